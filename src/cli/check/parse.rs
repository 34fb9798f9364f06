//! What tools print: figures and verdicts. All of it comes from a node, so nothing here trusts its form.

use std::collections::BTreeMap;

use anyhow::{Context, bail, ensure};

use super::super::output::harmless;
use super::report::Figure;

/// Longest text of a node in the report, in characters.
const SHORT_CHARS: usize = 300;

/// A text for the report: on one line, without control characters, and not too long.
pub fn short(text: &str) -> String {
    let one_line = harmless(&text.split_whitespace().collect::<Vec<_>>().join(" "));
    match one_line.char_indices().nth(SHORT_CHARS) {
        Some((end, _)) => format!("{}…", &one_line[..end]),
        None => one_line,
    }
}

/// Reads the figures of a tool out of what it printed.
pub type FigureReader = fn(&str) -> anyhow::Result<Vec<Figure>>;

/// A number that a tool printed. Values like `inf` are not numbers.
fn number(text: &str) -> Option<f64> {
    text.parse().ok().filter(|value: &f64| value.is_finite() && *value >= 0.0)
}

/// `ping`: all answers arrived; the average round trip in ms.
pub fn ping(text: &str) -> anyhow::Result<f64> {
    let loss = text.lines().find(|line| line.contains("packet loss")).context("ping printed no summary")?;
    ensure!(loss.contains(" 0% packet loss"), "{}", short(loss));
    let times = text.lines().find_map(|line| line.strip_prefix("rtt min/avg/max/mdev = "));
    let average = times.and_then(|times| number(times.split('/').nth(1)?));
    average.context("ping printed no times")
}

/// `ibv_rc_pingpong` and `ibv_ud_pingpong`: the time of a round.
pub fn pingpong(text: &str) -> anyhow::Result<Vec<Figure>> {
    // "1000 iters in 1.62 seconds = 1620.00 usec/iter"
    let line = text.lines().rev().find(|line| line.ends_with("usec/iter")).context("it printed no result")?;
    let time = line.split(" = ").nth(1).and_then(|rest| number(rest.split_whitespace().next()?));
    Ok(vec![Figure::new("round", time.context("it printed no time")?, "µs")])
}

/// The row of numbers below the last header of perftest that contains a word.
fn perftest_row(text: &str, column: &str) -> anyhow::Result<Vec<f64>> {
    let mut lines = text.lines().map(str::trim);
    let mut row = None;
    while let Some(line) = lines.next() {
        if line.starts_with("#bytes") && line.contains(column) {
            let numbers = lines.next().map(|line| line.split_whitespace().map_while(number).collect());
            row = numbers.or(row);
        }
    }
    row.with_context(|| format!("it printed no column {column}"))
}

/// `ib_*_lat`: the typical latency of one direction.
pub fn perftest_latency(text: &str) -> anyhow::Result<Vec<Figure>> {
    // #bytes #iterations t_min t_max t_typical t_avg …
    let row = perftest_row(text, "t_typical[usec]")?;
    Ok(vec![Figure::new("typical", *row.get(4).context("a row of perftest is too short")?, "µs")])
}

/// `ib_*_bw`: the average bandwidth.
pub fn perftest_bandwidth(text: &str) -> anyhow::Result<Vec<Figure>> {
    // #bytes #iterations peak average rate
    let row = perftest_row(text, "BW average[MB/sec]")?;
    // perftest counts 2^20 bytes.
    let average = row.get(3).context("a row of perftest is too short")? * 1.048_576;
    Ok(vec![Figure::new("average", average, "MB/s")])
}

/// `ib_atomic_bw`: operations of 8 bytes, so their rate says more than their bandwidth.
pub fn perftest_rate(text: &str) -> anyhow::Result<Vec<Figure>> {
    let row = perftest_row(text, "MsgRate[Mpps]")?;
    let rate = row.get(4).context("a row of perftest is too short")? * 1e6;
    Ok(vec![Figure::new("average", rate, "operations/s")])
}

/// The numbers of the last row of `ucx_perftest`: iterations; latency 50 %, average, overall; bandwidth average, overall; …
fn ucx_row(text: &str) -> anyhow::Result<Vec<f64>> {
    let line = text.lines().rev().find_map(|line| line.trim().strip_prefix("Final:"));
    let row = line.context("ucx_perftest printed no final row")?.split_whitespace().map_while(number);
    let row: Vec<f64> = row.collect();
    ensure!(row.len() >= 6, "the final row of ucx_perftest is too short");
    Ok(row)
}

/// `ucx_perftest -t tag_lat`: the average latency of one direction.
pub fn ucx_latency(text: &str) -> anyhow::Result<Vec<Figure>> {
    Ok(vec![Figure::new("average", ucx_row(text)?[3], "µs")])
}

/// `ucx_perftest -t tag_bw`: the average bandwidth.
pub fn ucx_bandwidth(text: &str) -> anyhow::Result<Vec<Figure>> {
    // 2^20 bytes, like perftest.
    Ok(vec![Figure::new("average", ucx_row(text)?[5] * 1.048_576, "MB/s")])
}

/// `rping -v`: the number of rounds whose data came back.
pub fn rping(text: &str) -> anyhow::Result<Vec<Figure>> {
    let rounds = text.lines().filter(|line| line.trim_start().starts_with("ping data:")).count();
    ensure!(rounds > 0, "rping exchanged no data");
    Ok(vec![Figure::new("rounds", rounds as f64, "")])
}

/// `ucmatose`: it ended well.
pub fn ucmatose(text: &str) -> anyhow::Result<Vec<Figure>> {
    let is_complete = text.lines().any(|line| line.trim() == "return status 0");
    ensure!(is_complete, "ucmatose did not complete: {}", short(text.lines().last().unwrap_or_default()));
    Ok(Vec::new())
}

/// `mpi-ring`: the sum is right; the time of a round.
pub fn ring(text: &str) -> anyhow::Result<Figure> {
    let line = text.lines().find(|line| line.starts_with("ring: ")).context("mpi-ring printed no result")?;
    let (_, time) = line.split_once(": ok (").with_context(|| format!("wrong sum: {}", short(line)))?;
    let time = time.strip_suffix(" ms a round)").and_then(number).context("mpi-ring printed no time")?;
    Ok(Figure::new("round", time, "ms"))
}

/// `mpi-pingpong`: half of a round trip of the shortest message.
pub fn mpi_latency(text: &str) -> anyhow::Result<Figure> {
    ensure!(text.lines().any(|line| line == "pingpong: ok"), "mpi-pingpong did not end well");
    let row = table(text).next().context("mpi-pingpong printed no row")?;
    Ok(Figure::new("latency", *row.get(2).context("a row of mpi-pingpong is too short")?, "µs"))
}

/// `mpi-bandwidth`: that of the longest message.
pub fn mpi_bandwidth(text: &str) -> anyhow::Result<Figure> {
    ensure!(text.lines().any(|line| line == "bandwidth: ok"), "mpi-bandwidth did not end well");
    let row = table(text).last().context("mpi-bandwidth printed no row")?;
    Ok(Figure::new("bandwidth", *row.get(2).context("a row of mpi-bandwidth is too short")?, "MB/s"))
}

/// Rows of numbers, without what other programs print between them.
fn table(text: &str) -> impl Iterator<Item = Vec<f64>> + '_ {
    text.lines()
        .filter_map(|line| line.split_whitespace().map(number).collect::<Option<Vec<f64>>>())
        .filter(|row| row.len() >= 3)
}

/// Lines of `name value` that a script printed. The first of a name counts.
pub fn facts(text: &str) -> BTreeMap<&str, &str> {
    let mut facts = BTreeMap::new();
    for line in text.lines() {
        if let Some((name, value)) = line.trim().split_once(' ') {
            facts.entry(name).or_insert(value.trim());
        }
    }
    facts
}

/// The adapter of a node, as `packet-count` says when it listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listening {
    pub lid: u16,
    /// Lowest number of the queue pairs of the adapter.
    pub first_qpn: u32,
    pub gid: String,
    pub pkey: u16,
}

/// `listening lid 3 first-qpn 524288 gid fe80::1 sm-lid 1 pkey 0x8001`
pub fn listening(text: &str) -> anyhow::Result<Listening> {
    let line =
        text.lines().find(|line| line.starts_with("listening ")).context("packet-count does not listen")?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let value = |name: &str| {
        let found = words.iter().position(|word| *word == name).and_then(|at| words.get(at + 1));
        found.copied().with_context(|| format!("packet-count says no {name}"))
    };
    let gid: std::net::Ipv6Addr = value("gid")?.parse().context("packet-count says no GID")?;
    let pkey = value("pkey")?.strip_prefix("0x").and_then(|digits| u16::from_str_radix(digits, 16).ok());
    Ok(Listening {
        lid: value("lid")?.parse().context("packet-count says no LID")?,
        first_qpn: value("first-qpn")?.parse().context("packet-count says no queue pair")?,
        gid: gid.to_string(),
        pkey: pkey.context("packet-count says no P_Key")?,
    })
}

/// Packets with one mark that arrived.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arrived {
    pub packets: u64,
    pub slids: Vec<u16>,
}

/// `mark TEXT packets N slids 3,4`, for each mark.
pub fn arrived(text: &str) -> anyhow::Result<BTreeMap<&str, Arrived>> {
    let has_ended = text.lines().any(|line| line.starts_with("packets "));
    ensure!(has_ended, "packet-count did not end well");
    let mut marks = BTreeMap::new();
    for line in text.lines().filter(|line| line.starts_with("mark ")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, mark, "packets", packets, "slids", slids] = words[..] else {
            bail!("unexpected: {}", short(line))
        };
        let packets = packets.parse().context("packet-count printed no number")?;
        let slids = slids.split(',').filter_map(|lid| lid.parse().ok()).collect();
        marks.insert(mark, Arrived { packets, slids });
    }
    Ok(marks)
}

/// Marked frames that arrived, of `frame-count`.
pub fn marked_frames(text: &str) -> anyhow::Result<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("frames ")?.split_once(" marked "));
    line.and_then(|(_, marked)| marked.trim().parse().ok()).context("frame-count printed no result")
}

/// An answer to a management datagram that `packet-send` saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub lid: u16,
    pub status: u16,
    pub records: Option<u32>,
    pub guid: Option<String>,
}

/// The number of packets sent, and the answers: `answer lid 1 class 0x03 status 0x0000 records 2`.
pub fn answers(text: &str) -> anyhow::Result<(u64, Vec<Answer>)> {
    let sent = text.lines().find_map(|line| line.strip_prefix("sent ")?.trim().parse().ok());
    let sent = sent.context("packet-send sent nothing")?;
    let has_ended = text.lines().any(|line| line.starts_with("answers "));
    ensure!(has_ended, "packet-send did not end well");
    let lines = text.lines().filter(|line| line.starts_with("answer "));
    Ok((sent, lines.map(answer).collect::<Option<_>>().context("packet-send printed an unexpected answer")?))
}

fn answer(line: &str) -> Option<Answer> {
    let words: Vec<&str> = line.split_whitespace().skip(1).collect();
    let pairs: BTreeMap<&str, &str> = words.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
    Some(Answer {
        lid: pairs.get("lid")?.parse().ok()?,
        status: u16::from_str_radix(pairs.get("status")?.strip_prefix("0x")?, 16).ok()?,
        records: pairs.get("records").and_then(|records| records.parse().ok()),
        guid: pairs.get("guid").map(|guid| short(guid)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The output of a client, captured in a node (fixtures/check).
    macro_rules! transcript {
        ($name:literal) => {
            include_str!(concat!("../../../fixtures/check/", $name, ".txt"))
        };
    }

    fn only(figures: anyhow::Result<Vec<Figure>>) -> (f64, &'static str) {
        let figures = figures.unwrap();
        assert_eq!(figures.len(), 1);
        (figures[0].value, figures[0].unit)
    }

    #[test]
    fn transcripts_of_verbs_tools_are_read() {
        assert_eq!(only(rping(transcript!("rping"))), (10.0, ""));
        assert!(ucmatose(transcript!("ucmatose")).is_ok());
        assert_eq!(only(pingpong(transcript!("ibv_rc_pingpong"))), (31372.91, "µs"));
        assert_eq!(only(pingpong(transcript!("ibv_ud_pingpong"))), (29708.04, "µs"));
    }

    #[test]
    fn transcripts_of_perftest_and_ucx_are_read() {
        assert_eq!(only(perftest_latency(transcript!("ib_write_lat"))), (21297.43, "µs"));
        assert_eq!(only(perftest_latency(transcript!("ib_atomic_lat"))), (4870.87, "µs"));
        let (rate, unit) = only(perftest_bandwidth(transcript!("ib_write_bw")));
        assert!((rate - 3.83 * 1.048_576).abs() < 1e-9 && unit == "MB/s", "{rate}");
        let (rate, _) = only(perftest_rate(transcript!("ib_write_bw")));
        assert!((rate - 61.0).abs() < 1e-9, "{rate}");
        assert_eq!(only(ucx_latency(transcript!("ucx_tag_lat"))), (5794.641, "µs"));
        let (rate, _) = only(ucx_bandwidth(transcript!("ucx_tag_bw")));
        assert!((rate - 0.49 * 1.048_576).abs() < 1e-9, "{rate}");
    }

    #[test]
    fn transcripts_of_mpi_and_ping_are_read() {
        assert_eq!(ring(transcript!("mpi_ring")).unwrap().value, 76.72);
        assert_eq!(mpi_latency(transcript!("mpi_pingpong")).unwrap().value, 22074.4);
        assert!(mpi_bandwidth(transcript!("mpi_bandwidth")).unwrap().value > 0.0);
        assert!(ping(transcript!("ping")).unwrap() > 0.0);
    }

    #[test]
    fn wrong_and_cut_off_results_are_failures() {
        assert!(ring(&transcript!("mpi_ring").replace(": ok", ": WRONG")).is_err());
        assert!(
            mpi_latency(&transcript!("mpi_pingpong").replace("pingpong: ok", "pingpong: WRONG")).is_err()
        );
        assert!(ping(&transcript!("ping").replace(" 0% packet loss", " 20% packet loss")).is_err());
        assert!(ping(&transcript!("ping").replace(" 0% packet loss", " 100% packet loss")).is_err());
        assert!(ucmatose(&transcript!("ucmatose").replace("return status 0", "return status -1")).is_err());
        let readers: [FigureReader; 6] =
            [rping, pingpong, perftest_latency, perftest_bandwidth, ucx_latency, ucx_bandwidth];
        for text in [
            "",
            "Final:",
            "#bytes t_typical[usec]\n",
            "#bytes BW average[MB/sec]\nx",
            "= usec/iter",
            "ring: : ok (",
        ] {
            assert!(ring(text).is_err() && readers.iter().all(|read| read(text).is_err()), "{text}");
        }
    }

    #[test]
    fn numbers_of_a_node_are_finite() {
        for text in ["inf", "nan", "-1", "1e999"] {
            assert_eq!(number(text), None, "{text}");
        }
        let forged = "#bytes t_typical[usec]\n1 2 3 4 inf\n";
        assert!(perftest_latency(forged).is_err());
    }

    #[test]
    fn texts_of_a_node_are_short_and_harmless() {
        let hostile = format!("\u{1b}[31mred\n{}", "x".repeat(10_000));
        let text = short(&hostile);
        assert!(text.chars().count() <= SHORT_CHARS + 1 && !text.contains(['\u{1b}', '\n']), "{text}");
    }

    #[test]
    fn listeners_and_arrivals_are_read() {
        let text = "listening lid 3 first-qpn 524288 gid fe80::600:0:0:1 sm-lid 1 pkey 0x8005\n\
                    mark check-lid packets 20 slids 3,9\nmark check-x packets 1 slids 3\npackets 30 marked 21\n";
        let own = Listening { lid: 3, first_qpn: 524_288, gid: "fe80::600:0:0:1".to_owned(), pkey: 0x8005 };
        assert_eq!(listening(text).unwrap(), own);
        let arrived = arrived(text).unwrap();
        assert_eq!(arrived["check-lid"], Arrived { packets: 20, slids: vec![3, 9] });
        assert_eq!(arrived.len(), 2);
        // A node may say anything, but a GID stands in commands.
        assert!(listening(&text.replace("fe80::600:0:0:1", "$(reboot)")).is_err());
        assert_eq!(marked_frames("listening\nframes 7 marked 5\n").unwrap(), 5);
    }

    #[test]
    fn answers_to_management_datagrams_are_read() {
        let text = "sent 10\nanswer lid 5 class 0x03 status 0x0000 records 3\n\
                    answer lid 6 class 0x01 status 0x0200 guid 0x0002c90300100000\nanswers 2\n";
        let (sent, answers) = answers(text).unwrap();
        assert_eq!((sent, answers.len()), (10, 2));
        assert_eq!((answers[0].records, answers[1].status), (Some(3), 0x0200));
        assert_eq!(answers[1].guid.as_deref(), Some("0x0002c90300100000"));
        assert!(super::answers("sent 10\n").is_err(), "it was killed");
        assert!(super::answers("sent 10\nanswer lid x\nanswers 1\n").is_err());
    }
}
