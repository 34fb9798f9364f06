//! `heddle-bench shapes`: shared adapters, and jobs beside hostile neighbours, as ratios next to what papers report.

mod adapter;
mod job;

use anyhow::ensure;
use clap::Args;
use fabric_model::Topology;
use ib_wire::Guid;
use serde::Serialize;

/// Measure shared adapters, and jobs beside hostile neighbours, as ratios next to the figures of papers.
///
/// First: the virtual functions of one adapter send to those of another at the same time. Latency is half a round trip;
/// throughput is the received payload of messages posted one after the other. The figures beside it are those of Ruivo et
/// al. (CCGrid 2014) for FermiCloud. The model covers the link, its packets and the arbitration between functions; the
/// processing time of a guest and its function is an input and does not depend on the number of functions.
///
/// Second: a bulk-synchronous job (compute, exchange messages between all nodes, wait for all) beside a hostile neighbour on
/// the same leaves; once with the lanes that a plan gives to two guaranteed clusters, once with one lane for both.
#[derive(Debug, Args)]
pub struct ShapesArgs {
    /// Virtual functions of a shared adapter; the first number is the baseline of the ratios.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4, 7])]
    functions: Vec<u8>,
    /// Message sizes of shared adapters, in bytes.
    #[arg(long, value_delimiter = ',', default_values_t = [4, 64, 128, 256, 1024, 2048, 4096, 16384, 65536])]
    sizes: Vec<u64>,
    /// Processing time of guest and function for a message that is answered, in ns. With 1648 a message of 128 bytes takes the
    /// 2.235 µs of table I.
    #[arg(long, default_value_t = 1648)]
    answer_ns: u64,
    /// Time a guest takes to post one of many messages, in ns.
    #[arg(long, default_value_t = 500)]
    post_ns: u64,
    /// Message sizes of the job, in bytes.
    #[arg(long, value_delimiter = ',', default_values_t = [64, 4096, 65536])]
    messages: Vec<u64>,
    /// Computing time of the job between messages, in µs.
    #[arg(long, value_delimiter = ',', default_values_t = [10, 100])]
    compute: Vec<u64>,
    /// Simulated time of a run of the job, in µs.
    #[arg(long, default_value_t = 3000)]
    duration: u64,
    /// Guaranteed rate of the job and of the neighbour each, as a fraction (0 to 1) of the usable rate of a link.
    #[arg(long, default_value_t = 0.45)]
    rate: f64,
    /// Seeds of the start times of functions and neighbours and of the actions of neighbours.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 3])]
    seeds: Vec<u64>,
    /// Print the figures as JSON instead of Markdown.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Shapes {
    adapter: Vec<adapter::Row>,
    job: Vec<job::Row>,
}

/// Measures, and prints the figures.
pub fn run(args: ShapesArgs) -> anyhow::Result<()> {
    ensure!(
        !args.functions.is_empty() && !args.seeds.is_empty(),
        "--functions and --seeds need at least one value"
    );
    ensure!(
        args.functions.iter().all(|count| (1..=FUNCTIONS_MAX).contains(count)),
        "--functions must be between 1 and {FUNCTIONS_MAX}"
    );
    ensure!(
        args.sizes.iter().chain(&args.messages).all(|bytes| *bytes > 0),
        "message sizes must be at least 1 byte"
    );
    ensure!(
        (0.0..=1.0).contains(&args.rate) && args.duration > 0,
        "--rate must be between 0 and 1, and --duration at least 1 µs"
    );
    let shapes = Shapes { adapter: adapter::measure(&args)?, job: job::measure(&args)? };
    let (adapter, job) = (adapter::markdown(&args, &shapes.adapter)?, job::markdown(&args, &shapes.job)?);
    crate::print(args.json, &shapes, |_| format!("{adapter}\n{job}"))
}

/// Functions of an adapter; those that answer have the numbers above.
const FUNCTIONS_MAX: u8 = 127;

/// The ports of hosts, in order.
fn port_guids(topology: &Topology) -> Vec<Guid> {
    topology.end_nodes().filter_map(|(_, host)| Some(host.ports().next()?.1.guid)).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use clap::Parser;
    use fabric_sim::scenario::SendPattern;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: ShapesArgs,
    }

    #[test]
    fn functions_share_a_saturated_link_evenly() {
        let args = Line::parse_from(["", "--functions", "1,7", "--sizes", "4,4096", "--seeds", "1"]).args;
        let rows = adapter::measure(&args).unwrap();
        let ratio = |row: &adapter::Row| row.shared[1].gbps / row.shared[0].gbps;
        assert!((6.99..7.01).contains(&ratio(&rows[0])), "{rows:?}");
        assert!((0.99..1.01).contains(&ratio(&rows[1])), "{rows:?}");
        assert!(rows[1].shared[1].least_gbps > 0.99 * rows[1].shared[1].most_gbps, "{rows:?}");
    }

    #[test]
    fn a_stalled_neighbour_stops_only_jobs_without_lanes() {
        let line = ["", "--messages", "4096", "--compute", "10", "--duration", "300", "--seeds", "1"];
        let rows = job::measure(&Line::parse_from(line).args).unwrap();
        let stalled = rows.iter().find(|row| row.neighbour == SendPattern::Stall).unwrap();
        assert!(
            stalled.without_classes.ended < 3 && stalled.planned.ended == stalled.alone.ended,
            "{stalled:?}"
        );
    }
}
