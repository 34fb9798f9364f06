//! The figures of a run as Markdown, ibsim and the view in one row, goals beside them.

use super::beside_ibsim::Addressing;
use super::flood::ReadLatency;
use super::idle::NODES;
use super::{Report, Side};

/// The figures as Markdown tables.
pub fn markdown(report: &Report) -> String {
    let mut text = String::new();
    for missing in &report.missing {
        text += &format!("{missing}\n\n");
    }
    datagrams(&mut text, report);
    bring_up(&mut text, report);
    idle(&mut text, report);
    flood(&mut text, report);
    text
}

fn datagrams(text: &mut String, report: &Report) {
    *text += &format!(
        "**Datagrams**: Get(NodeInfo) of the furthest adapter of a view of {} nodes and {} switches, and of ibsim with the \
         same network; server CPU in µs per request. Goal: not slower.\n\n\
         | routed by | cores | in flight | ibsim req/s | view req/s | ratio | ibsim CPU | view CPU | ratio |\n\
         |---|---:|---:|---:|---:|---:|---:|---:|---:|\n",
        report.nodes, report.switches
    );
    for view in report.datagrams.iter().filter(|row| row.side == Side::View) {
        let same = |row: &&super::Datagrams| row.side == Side::Ibsim && row.case() == view.case();
        let ibsim = report.datagrams.iter().find(same).map(|row| row.best);
        let (rate, cpu) = (ibsim.map(|it| it.requests_per_s), ibsim.map(|it| it.cpu_us_per_request));
        *text += &format!(
            "| {} | {} | {} | {} | {:.0} | **{}** | {} | {:.2} | **{}** |\n",
            match view.addressing {
                Addressing::Directed => "directed route",
                Addressing::Lid => "LID",
            },
            view.placement.count(),
            view.outstanding,
            figure(rate, 0),
            view.best.requests_per_s,
            figure(rate.map(|rate| view.best.requests_per_s / rate), 2),
            figure(cpu, 2),
            view.best.cpu_us_per_request,
            figure(cpu.map(|cpu| view.best.cpu_us_per_request / cpu), 2),
        );
    }
}

fn bring_up(text: &mut String, report: &Report) {
    let Some(view) = report.bring_up.iter().find(|row| row.side == Side::View) else { return };
    let ibsim = report.bring_up.iter().find(|row| row.side == Side::Ibsim);
    *text += "\n**Bring-up**: opensm from its start until SUBNET UP. A view is up already and has a manager, which stands \
              by for opensm. Goal: not slower.\n\n\
              | | ibsim | view | ratio |\n|---|---:|---:|---:|\n";
    let rows = [
        ("s", ibsim.map(|it| it.up_s), view.up_s),
        ("server CPU s", ibsim.map(|it| it.server_cpu_s), view.server_cpu_s),
        ("opensm CPU s", ibsim.map(|it| it.opensm_cpu_s), view.opensm_cpu_s),
    ];
    for (what, ibsim, view) in rows {
        let ratio = figure(ibsim.map(|ibsim| view / ibsim), 2);
        *text += &format!("| {what} | {} | {view:.3} | **{ratio}** |\n", figure(ibsim, 3));
    }
}

fn idle(text: &mut String, report: &Report) {
    let idle = &report.idle;
    *text += &format!(
        "\n**Idle views** of {NODES} nodes, spread over a tree of 324 hosts, in one process. Goal: ≤ 1024 KiB each.\n\n\
         | views | built in s | MiB with one | MiB with all | KiB each | CPU ms per s |\n\
         |---:|---:|---:|---:|---:|---:|\n\
         | {} | {:.2} | {:.1} | {:.1} | **{:.0}** | {:.2} |\n",
        idle.views, idle.build_s, idle.before_mib, idle.after_mib, idle.kib_each, idle.cpu_ms_per_s
    );
}

fn flood(text: &mut String, report: &Report) {
    *text += "\n**Flood**: garbage and Gets are sent as fast as they are accepted; meanwhile Gets are measured in another view, one \
              after the other. A flood of another process shows the effect of machine load alone.\n\n\
              | flooded | Gets | p50 µs | p99 µs | max µs | flood datagrams/s |\n|---|---:|---:|---:|---:|---:|\n";
    let mut row = |flooded: &str, seen: &ReadLatency| {
        *text += &format!(
            "| {flooded} | {} | {:.0} | {:.0} | {:.0} | {:.0} |\n",
            seen.gets, seen.p50_us, seen.p99_us, seen.max_us, seen.flood_per_s
        );
    };
    row("nothing", &report.flood.quiet);
    row("another process", &report.flood.elsewhere);
    row("another view of the process", &report.flood.beside);
}

/// A figure, or a dash where there is none.
fn figure(value: Option<f64>, digits: usize) -> String {
    value.map_or("–".to_owned(), |value| format!("{value:.digits$}"))
}
