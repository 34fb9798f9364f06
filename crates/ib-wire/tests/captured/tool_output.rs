//! Output of stock tools, parsed into keys and values.

use std::collections::BTreeMap;

/// A printed value. Numbers compare as numbers, whatever their base.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Number(u64),
    Text(String),
}

impl Value {
    /// Parses a printed value: hexadecimal with `0x`, decimal, else text.
    pub fn parse(text: &str) -> Self {
        let number = match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        };
        number.map_or_else(|| Self::Text(text.to_owned()), Self::Number)
    }
}

macro_rules! number_value {
    ($($ty:ty),*) => { $(
        impl From<$ty> for Value {
            fn from(number: $ty) -> Self {
                Self::Number(u64::from(number))
            }
        }
    )* };
}
number_value!(u8, u16, u32, u64, bool);

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

/// One dump: the values of `key....value` lines by key, and all other lines, trimmed.
#[derive(Debug, Default)]
pub struct Dump {
    pub values: BTreeMap<String, Value>,
    pub lines: Vec<String>,
}

impl Dump {
    /// Compares with the decoded values: every printed value must be among them and equal, except those that the tool hides.
    /// Returns the number of compared values.
    pub fn assert_matches(&self, name: &str, read: &[(&str, Value)]) -> usize {
        let mut compared = 0;
        for (key, printed) in &self.values {
            if *printed == Value::Text("<not displayed>".to_owned()) {
                continue;
            }
            let found = read.iter().find(|(ours, _)| ours == key);
            let (_, value) = found.unwrap_or_else(|| panic!("{name}: {key} was printed but not decoded"));
            assert_eq!(value, printed, "{name}: {key}");
            compared += 1;
        }
        assert!(compared > 0, "{name}: nothing to compare");
        compared
    }
}

/// Splits an output into its dumps. A dump starts at a line without indent that ends in "dump:".
pub fn dumps(text: &str) -> Vec<Dump> {
    let mut dumps = vec![Dump::default()];
    for line in text.lines() {
        if line.ends_with("dump:") && !line.starts_with(char::is_whitespace) {
            dumps.push(Dump::default());
            continue;
        }
        let Some(dump) = dumps.last_mut() else { continue };
        match key_and_value(line.trim()) {
            Some((key, value)) => {
                dump.values.insert(key.to_owned(), Value::parse(value));
            }
            None => dump.lines.push(line.trim().to_owned()),
        }
    }
    dumps.retain(|dump| !dump.values.is_empty() || !dump.lines.is_empty());
    dumps
}

/// The numbers in a line of a table, split at `separator`.
pub fn row(line: &str, separator: char) -> Vec<u64> {
    let cells = line.split(separator).map(str::trim).filter(|cell| !cell.is_empty());
    cells
        .map(|cell| match Value::parse(cell) {
            Value::Number(number) => number,
            Value::Text(text) => panic!("{text:?} in a table: {line:?}"),
        })
        .collect()
}

/// `Key:...value` and `key...value`: at least one dot, or a colon and dots.
fn key_and_value(line: &str) -> Option<(&str, &str)> {
    let end = line.find(":.").or_else(|| line.find("..."))?;
    let rest = line[end..].strip_prefix(':').unwrap_or(&line[end..]);
    Some((&line[..end], rest.trim_start_matches('.').trim()))
}
