//! Output of commands: tables, JSON and YAML.

use std::io::{self, ErrorKind, IsTerminal, Write};
use std::time::Duration;

use clap::ValueEnum;
use comfy_table::{ContentArrangement, Table, presets};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::Serialize;

/// Output formats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Aligned columns for people
    #[default]
    Table,
    /// JSON, as the REST interface sends it
    Json,
    /// The same data as YAML
    Yaml,
}

impl Format {
    /// Prints a result; `people` writes it for people.
    pub fn print<T: Serialize + ?Sized>(
        self,
        value: &T,
        people: impl FnOnce(&T) -> String,
    ) -> anyhow::Result<()> {
        print(&self.render(value, people)?)
    }

    fn render<T: Serialize + ?Sized>(
        self,
        value: &T,
        people: impl FnOnce(&T) -> String,
    ) -> anyhow::Result<String> {
        Ok(match self {
            Self::Table => people(value),
            Self::Json => serde_json::to_string_pretty(value)?,
            Self::Yaml => serde_norway::to_string(value)?,
        })
    }

    /// Prints one of a stream of results: a line for people, a line of JSON, or a document of YAML.
    pub fn print_next<T: Serialize>(
        self,
        value: &T,
        people: impl FnOnce(&T) -> String,
    ) -> anyhow::Result<()> {
        match self {
            Self::Table => print(&people(value)),
            Self::Json => print(&serde_json::to_string(value)?),
            Self::Yaml => print(&format!("---\n{}", serde_norway::to_string(value)?)),
        }
    }

    /// Whether the format is for people.
    pub fn is_for_people(self) -> bool {
        self == Self::Table
    }
}

/// Prints a text with one line end behind it.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{}", text.trim_end()).and_then(|()| out.flush()) {
        // The reader has closed the pipe: `heddle event list | head`.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        printed => Ok(printed?),
    }
}

/// A table: columns under a header.
pub fn table<const N: usize>(header: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let mut table = plain();
    table.set_header(header.map(heading));
    table.add_rows(rows.into_iter().map(|row| row.map(|cell| harmless(&cell))));
    finish(&mut table)
}

/// Units in column headers; they are not capitalised, because the case of a unit has a meaning.
const UNITS: [&str; 2] = ["Gb/s", "µs"];

fn heading(text: &str) -> String {
    let word = |word: &str| if UNITS.contains(&word) { word.to_owned() } else { word.to_uppercase() };
    text.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

/// Names and values of one object, one per line.
pub fn facts(facts: impl IntoIterator<Item = (&'static str, String)>) -> String {
    let mut table = plain();
    table.add_rows(facts.into_iter().map(|(name, value)| [name.to_owned(), harmless(&value)]));
    finish(&mut table)
}

/// Replaces control characters, so that texts of untrusted sources cannot control the terminal.
pub fn harmless(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c }).collect()
}

/// The value, or a dash if there is none.
pub fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// The time since `then`, in one unit.
pub fn age(then: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(then).as_secs().max(0);
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// A point in time, in the time zone of this machine.
pub fn time(at: Timestamp) -> String {
    at.to_zoned(TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S").to_string()
}

/// A duration, in seconds or minutes.
pub fn took(duration: Duration) -> String {
    match duration.as_secs() {
        0..100 => format!("{:.1} s", duration.as_secs_f64()),
        seconds => format!("{} min {:02} s", seconds / 60, seconds % 60),
    }
}

/// A count with its word: `1 node`, `2 nodes`.
pub fn count(number: usize, word: &str) -> String {
    let ending = match number {
        1 => "",
        _ if word.ends_with("ch") => "es",
        _ => "s",
    };
    format!("{number} {word}{ending}")
}

fn plain() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    if io::stdout().is_terminal() {
        table.set_content_arrangement(ContentArrangement::Dynamic);
    }
    table
}

fn finish(table: &mut Table) -> String {
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.trim_fmt()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn headings_are_in_capitals_and_units_are_not() {
        assert_eq!(["guaranteed Gb/s", "p50 µs", "node"].map(heading), ["GUARANTEED Gb/s", "P50 µs", "NODE"]);
    }

    #[test]
    fn tables_are_aligned_and_have_no_blanks_at_the_end() {
        let rows = [["blue".to_owned(), "ready".to_owned()], ["a-longer-name".to_owned(), "-".to_owned()]];
        assert_eq!(
            table(["name", "phase"], rows),
            "NAME           PHASE\nblue           ready\na-longer-name  -"
        );
        assert_eq!(facts([("name", "blue".to_owned()), ("nodes", "2".to_owned())]), "name   blue\nnodes  2");
    }

    #[test]
    fn an_empty_table_still_has_its_header() {
        assert_eq!(table(["name", "phase"], []), "NAME  PHASE");
    }

    #[test]
    fn control_characters_are_replaced() {
        let hostile = "\u{1b}]0;owned\u{7}";
        assert_eq!(harmless(hostile), "\u{fffd}]0;owned\u{fffd}");
        assert!(!table(["reason"], [[hostile.to_owned()]]).contains('\u{1b}'));
        assert_eq!(harmless("plain ä\nnext"), "plain ä\nnext");
    }

    #[test]
    fn ages_have_one_unit() {
        for (seconds, text) in [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (200_000, "2 d")] {
            assert_eq!(age(at(1_000_000), at(1_000_000 + seconds)), text);
        }
        assert_eq!(age(at(10), at(5)), "0 s", "clocks may differ");
    }

    #[test]
    fn durations_are_in_seconds_or_minutes() {
        assert_eq!(took(Duration::from_millis(1_240)), "1.2 s");
        assert_eq!(took(Duration::from_secs(125)), "2 min 05 s");
    }

    #[test]
    fn every_format_prints_the_same_value() {
        let value = serde_json::json!({ "name": "blue", "size": 2 });
        let people = |_: &serde_json::Value| "blue, 2 nodes".to_owned();
        assert_eq!(Format::Table.render(&value, people).unwrap(), "blue, 2 nodes");
        let json = Format::Json.render(&value, people).unwrap();
        assert_eq!(serde_json::from_str::<serde_json::Value>(&json).unwrap(), value);
        assert_eq!(Format::Yaml.render(&value, people).unwrap(), "name: blue\nsize: 2\n");
    }
}
