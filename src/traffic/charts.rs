//! Charts of a simulated scenario.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use fabric_drawing::chart::{Axis, LineChart, ReferenceLine, Series};
use fabric_drawing::diagram::to_heat_svg;
use fabric_model::Topology;
use fabric_sim::scenario::{ClusterReport, ScenarioReport};
use fabric_sim::traffic::{Histogram, Time};
use ib_wire::{Guid, PortNum};

use super::Run;

/// Smallest fraction of packets that the latency chart shows.
const PART_MIN: f64 = 1e-6;

/// Writes the charts of latency, throughput and link load to a directory.
pub(super) fn draw(directory: &Path, topology: &Topology, planned: &Run, shared: Option<&Run>) -> Result<()> {
    fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    let runs = [(Some(planned), "planned", "as planned"), (shared, "one-class", "one class for all")];
    for (run, name, title) in runs.into_iter().filter_map(|(run, name, title)| Some((run?, name, title))) {
        let charts = [
            ("latency", latency(&run.report, title).to_svg()),
            ("throughput", throughput(&run.report, title).to_svg()),
            ("links", links(topology, run, title)),
        ];
        for (what, svg) in charts {
            let path = directory.join(format!("{what}-{name}.svg"));
            fs::write(&path, svg).with_context(|| path.display().to_string())?;
        }
    }
    Ok(())
}

/// The fraction of packets that took longer than a given time.
fn latency(report: &ScenarioReport, title: &str) -> LineChart {
    let parties = || report.clusters.iter().enumerate();
    let series = parties()
        .filter(|(_, party)| party.latency.count() > 0)
        .map(|(colour, party)| Series::new(named(party), tail(&party.latency)).coloured(colour));
    let bounds = parties().filter_map(|(colour, party)| {
        Some(
            ReferenceLine::at_x(format!("bound of {}", party.name), party.latency_bound?.us())
                .coloured(colour),
        )
    });
    LineChart {
        title: format!("Latency of packets, {title}"),
        subtitle: "fraction of packets that took longer; bounds are for packets that find their lane empty"
            .into(),
        x: Axis::log("latency in µs, from post to arrival"),
        y: Axis::log("fraction of packets").with_range(PART_MIN, 1.0),
        series: series.collect(),
        reference_lines: bounds.collect(),
    }
}

fn tail(histogram: &Histogram) -> Vec<(f64, f64)> {
    let all = histogram.count() as f64;
    let mut left = histogram.count();
    let mut points: Vec<(f64, f64)> = histogram.min().map(|min| (min.us(), 1.0)).into_iter().collect();
    for (time, count) in histogram.buckets() {
        left -= count;
        points.push((time.us(), (left as f64 / all).max(PART_MIN)));
    }
    points
}

/// The received payload of a node over time.
fn throughput(report: &ScenarioReport, title: &str) -> LineChart {
    let slice = report.interval;
    let parties = || report.clusters.iter().enumerate();
    let series = parties().filter(|(_, party)| party.nodes > 0).map(|(colour, party)| {
        let gbps = |bytes: u64| bytes as f64 * 8.0 / slice.s() / party.nodes as f64 / 1e9;
        let at = |number: usize| Time::from_ps(slice.ps() * number as u64).us();
        // The last slice may be cut off.
        let whole = party.interval_bytes.len().saturating_sub(1);
        let points = party.interval_bytes[..whole]
            .iter()
            .enumerate()
            .map(|(number, bytes)| (at(number), gbps(*bytes)));
        Series::new(named(party), points.collect()).coloured(colour)
    });
    let guarantees = parties().filter_map(|(colour, party)| {
        let gbps = party.guarantee?.bits_per_s() as f64 / 1e9;
        Some(ReferenceLine::at_y(format!("guarantee of {}", party.name), gbps).coloured(colour))
    });
    LineChart {
        title: format!("Throughput of a node, {title}"),
        subtitle: "received payload, mean of the nodes of a cluster".into(),
        x: Axis::linear("µs"),
        y: Axis::linear("Gb/s"),
        series: series.collect(),
        reference_lines: guarantees.collect(),
    }
}

fn links(topology: &Topology, run: &Run, title: &str) -> String {
    let fabric = &run.fabric;
    let place = |port| (fabric.node_of(port).node_guid, fabric.number_of(port));
    let loads: HashMap<(Guid, PortNum), f64> =
        run.report.links.iter().map(|(port, load)| (place(*port), *load)).collect();
    to_heat_svg(
        topology,
        &format!("Link load, {title}"),
        &format!("fraction of the rate of each link in {}", run.report.duration),
        |node, port| loads.get(&(node, port)).copied(),
    )
}

fn named(party: &ClusterReport) -> String {
    format!("{}{}", party.name, if party.is_hostile { " (hostile)" } else { "" })
}
