//! The figures of a run as Markdown, opensm and heddle in one row, goals beside them.

use super::change::ChangeCost;
use super::manager::Side;
use super::{BringUp, Emulator, Outcome, Report, Row, SaRequests};

/// Both sides on one fabric of one emulation.
struct Pair<'a> {
    opensm: &'a Row,
    heddle: Option<&'a Row>,
    opensm_with_qos: Option<&'a Row>,
    heddle_with_qos: Option<&'a Row>,
}

/// The figures as Markdown tables.
pub fn markdown(report: &Report) -> String {
    let pairs = pairs(report);
    let mut text = format!(
        "opensm ran with `-R {} -s 0`, heddle with its defaults and no sweeps. With QoS, opensm has the option -Q and heddle --qos: \
         both program SL-to-VL and arbitration tables on every port.\n",
        report.engine
    );
    bring_up(&mut text, &pairs);
    partition(&mut text, &pairs);
    link(&mut text, &pairs);
    paths(&mut text, &pairs);
    joins(&mut text, &pairs);
    routing(&mut text, report);
    text
}

fn pairs(report: &Report) -> Vec<Pair<'_>> {
    let opensm = report.rows.iter().filter(|row| row.side == Side::Opensm && !row.qos);
    let find = |side, qos, other: &Row| {
        let same = |row: &&Row| (row.hosts, row.on, row.side, row.qos) == (other.hosts, other.on, side, qos);
        report.rows.iter().find(same)
    };
    opensm
        .map(|opensm| Pair {
            opensm,
            heddle: find(Side::Heddle, false, opensm),
            opensm_with_qos: find(Side::Opensm, true, opensm),
            heddle_with_qos: find(Side::Heddle, true, opensm),
        })
        .collect()
}

fn bring_up(text: &mut String, pairs: &[Pair]) {
    *text += "\n**Bring-up**: from start to up; CPU and peak memory of the manager. Goals at 11664: ≥ 8 times faster, ≤ half \
              the memory.\n\n";
    bring_up_rows(text, pairs, |pair| Some((&pair.opensm.bring_up, pair.heddle.map(|row| &row.bring_up))));
    if pairs.iter().all(|pair| pair.opensm_with_qos.is_none()) {
        return;
    }
    *text += "\n**Bring-up with QoS** on both sides.\n\n";
    bring_up_rows(text, pairs, |pair| {
        let opensm = &pair.opensm_with_qos?.bring_up;
        Some((opensm, pair.heddle_with_qos.map(|row| &row.bring_up)))
    });
}

/// The figures of opensm and heddle for each pair that has them.
fn bring_up_rows<'a>(
    text: &mut String,
    pairs: &'a [Pair<'a>],
    both: impl Fn(&'a Pair<'a>) -> Option<(&'a BringUp, Option<&'a BringUp>)>,
) {
    *text += "| hosts | on | opensm s | heddle s | times faster | opensm CPU s | heddle CPU s | ratio | opensm MiB | heddle MiB | ratio \
              | opensm SMPs (Sets) | heddle SMPs (Sets) |\n\
              |---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n";
    for pair in pairs {
        let Some((opensm, heddle)) = both(pair) else { continue };
        let smps = |row: Option<&BringUp>| {
            let requests = row.and_then(|row| row.requests);
            requests.map_or("–".to_owned(), |it| format!("{} ({})", it.all(), it.sets))
        };
        let up = heddle.map(|it| it.up_s);
        let (cpu, memory) = (heddle.map(|it| it.cpu_s), heddle.map(|it| it.peak_mib));
        *text += &row(&[
            pair.opensm.hosts.to_string(),
            place(pair.opensm.on),
            figure(Some(opensm.up_s)),
            figure(up),
            bold(up.map(|up| opensm.up_s / up)),
            figure(Some(opensm.cpu_s)),
            figure(cpu),
            bold(cpu.map(|cpu| cpu / opensm.cpu_s)),
            figure(Some(opensm.peak_mib)),
            figure(memory),
            bold(memory.map(|memory| memory / opensm.peak_mib)),
            smps(Some(opensm)),
            smps(heddle),
        ]);
    }
}

fn partition(text: &mut String, pairs: &[Pair]) {
    let shown: Vec<&Pair> = pairs.iter().filter(|pair| pair.opensm.partition.is_some()).collect();
    if shown.is_empty() {
        return;
    }
    *text += "\n**A partition of 16 ports** is written to the file and the manager signalled: until the last member holds it, \
              and until the manager has nothing left to do. Goals at 4860: ≥ 300 times fewer SMPs, ≥ 100 times faster.\n\n\
              | hosts | on | change | opensm in force ms | heddle in force ms | times faster | opensm settled ms | heddle settled ms \
              | times faster | opensm SMPs | heddle SMPs | times fewer | opensm CPU ms | heddle CPU ms |\n\
              |---:|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n";
    for pair in shown {
        let opensm = pair.opensm.partition.as_ref().and_then(Outcome::measured);
        let heddle = pair.heddle.and_then(|row| row.partition.as_ref()).and_then(Outcome::measured);
        steps(text, pair, "add", opensm.map(|it| &it.add), heddle.map(|it| &it.add));
        steps(text, pair, "remove", opensm.map(|it| &it.remove), heddle.map(|it| &it.remove));
    }
}

fn steps(
    text: &mut String,
    pair: &Pair,
    name: &str,
    opensm: Option<&ChangeCost>,
    heddle: Option<&ChangeCost>,
) {
    let both = |of: fn(&ChangeCost) -> f64| (opensm.map(of), heddle.map(of));
    let (in_force, settled) = (both(|it| it.in_force_ms), both(|it| it.settled_ms));
    let smps = |step: Option<&ChangeCost>| step.and_then(|it| it.requests).map(|it| it.all() as f64);
    let counted = (smps(opensm), smps(heddle));
    let cpu = both(|it| it.cpu_ms);
    *text += &row(&[
        pair.opensm.hosts.to_string(),
        place(pair.opensm.on),
        name.to_owned(),
        figure(in_force.0),
        figure(in_force.1),
        bold(ratio(in_force)),
        figure(settled.0),
        figure(settled.1),
        bold(ratio(settled)),
        whole(counted.0),
        whole(counted.1),
        bold(ratio(counted)),
        figure(cpu.0),
        figure(cpu.1),
    ]);
}

fn link(text: &mut String, pairs: &[Pair]) {
    let shown: Vec<&Pair> = pairs.iter().filter(|pair| pair.opensm.link.is_some()).collect();
    if shown.is_empty() {
        return;
    }
    *text += "\n**A link between switches fails**: until the manager has nothing left to do and every pair is found reachable \
              without it. Goal: only blocks that change are written.\n\n\
              | hosts | opensm ms | heddle ms | times faster | opensm SMPs | heddle SMPs | times fewer | opensm blocks written / changed \
              | heddle blocks written / changed | heddle CPU ms |\n\
              |---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n";
    for pair in shown {
        let opensm = pair.opensm.link.as_ref().and_then(Outcome::measured);
        let heddle = pair.heddle.and_then(|row| row.link.as_ref()).and_then(Outcome::measured);
        let settled = (opensm.map(|it| it.settled_ms), heddle.map(|it| it.settled_ms));
        let smps = (opensm.map(|it| it.requests.all() as f64), heddle.map(|it| it.requests.all() as f64));
        let blocks = |side: Option<&super::LinkFailure>| {
            side.map_or("–".to_owned(), |it| {
                format!("{} / {}", it.requests.route_blocks, it.blocks_changed)
            })
        };
        *text += &row(&[
            pair.opensm.hosts.to_string(),
            figure(settled.0),
            figure(settled.1),
            bold(ratio(settled)),
            whole(smps.0),
            whole(smps.1),
            bold(ratio(smps)),
            blocks(opensm),
            blocks(heddle),
            figure(heddle.map(|it| it.cpu_ms)),
        ]);
    }
}

fn paths(text: &mut String, pairs: &[Pair]) {
    *text += &sa_requests(
        pairs,
        "\n**Path queries** by several hosts at once, each to changing peers. Goal: ≥ 5 times as many per CPU second of the \
         manager. With ibsim's protocol, a large part of heddle's time is the kernel's, which receives and sends a message for each query; \
         framed, both managers attach with a protocol where one system call can carry many. User mode is without the kernel's part.\n\n",
        |row| row.paths.as_ref(),
    );
}

fn joins(text: &mut String, pairs: &[Pair]) {
    *text += &sa_requests(
        pairs,
        "\n**Joins** by several hosts at once: each joins a multicast group of its own, and leaves it, 64 groups in turn. Joins and \
         leaves are counted.\n\n",
        |row| row.joins.as_ref(),
    );
}

/// Requests to subnet administration, per second and in CPU time of the manager; empty if none were measured.
fn sa_requests(
    pairs: &[Pair],
    about: &str,
    measured: impl Fn(&Row) -> Option<&Outcome<SaRequests>>,
) -> String {
    let shown: Vec<&Pair> = pairs.iter().filter(|pair| measured(pair.opensm).is_some()).collect();
    if shown.is_empty() {
        return String::new();
    }
    let mut text = about.to_owned();
    text += "| hosts | on | opensm per s | heddle per s | ratio | opensm CPU µs | heddle CPU µs | per CPU second | opensm user µs \
             | heddle user µs | per second in user mode |\n\
             |---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n";
    for pair in shown {
        let opensm = measured(pair.opensm).and_then(Outcome::measured);
        let heddle = pair.heddle.and_then(&measured).and_then(Outcome::measured);
        let (slow, fast) = (opensm.map(|it| it.per_s), heddle.map(|it| it.per_s));
        let (dear, cheap) = (opensm.map(|it| it.cpu_us), heddle.map(|it| it.cpu_us));
        let user = (opensm.map(|it| it.user_us), heddle.map(|it| it.user_us));
        text += &row(&[
            pair.opensm.hosts.to_string(),
            place(pair.opensm.on),
            whole(slow),
            whole(fast),
            bold(ratio((fast, slow))),
            figure(dear),
            figure(cheap),
            bold(ratio((dear, cheap))),
            figure(user.0),
            figure(user.1),
            bold(ratio(user)),
        ]);
    }
    text
}

fn routing(text: &mut String, report: &Report) {
    if report.routing.is_empty() {
        return;
    }
    *text += "\n**A whole plan**, computed alone on one core: addresses, routes, partitions. Goal at 11664: ≤ 1 s.\n\n\
              | hosts | s |\n|---:|---:|\n";
    for routing in &report.routing {
        *text += &row(&[routing.hosts.to_string(), format!("{:.3}", routing.plan_s)]);
    }
}

fn row(cells: &[String]) -> String {
    format!("| {} |\n", cells.join(" | "))
}

fn place(emulator: Emulator) -> String {
    match emulator {
        Emulator::Ibsim => "ibsim",
        Emulator::HeddleFramed => "heddle sim, framed",
        Emulator::Heddle | Emulator::Echo => "heddle sim",
    }
    .to_owned()
}

fn ratio((above, below): (Option<f64>, Option<f64>)) -> Option<f64> {
    above.zip(below).map(|(above, below)| above / below)
}

/// A figure, or a dash where there is none.
fn figure(value: Option<f64>) -> String {
    value.map_or("–".to_owned(), |value| format!("{value:.2}"))
}

fn whole(value: Option<f64>) -> String {
    value.map_or("–".to_owned(), |value| format!("{value:.0}"))
}

fn bold(value: Option<f64>) -> String {
    value.map_or("–".to_owned(), |value| format!("**{value:.2}**"))
}
