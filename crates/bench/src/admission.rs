//! `heddle-bench admission`: how many clusters a fabric admits if their hosts are given.

use std::sync::Arc;

use anyhow::ensure;
use clap::Args;
use fabric_compiler::tenancy::admission::{Admission, AdmissionRequest, RouteChoice};
use fabric_compiler::tenancy::link_graph::{HostIndex, LinkGraph};
use fabric_model::tenancy::{Bandwidth, ClusterNumber, SlMode};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64;
use serde::Serialize;

use crate::stream::{PlannedTree, size};

/// Request clusters at given places one after the other, and measure the fraction of hosts that is admitted.
///
/// Sizes are exponentially distributed. Places are those of a full fabric in which 30 % of the hosts were shuffled (aged),
/// or all (random). The rule of the paper gives a cluster one number, which is its service level and its lane on all links.
/// Heddle assigns service levels and lanes per link: one service level per cluster, one per pair of switches, as plans have
/// them, or one per direction of a path; on the default routes or with up-ports chosen per destination.
#[derive(Debug, Args)]
pub struct AdmissionArgs {
    /// Sizes of the fat-trees, in hosts.
    #[arg(long, value_delimiter = ',', default_values_t = [648, 1728, 11664])]
    hosts: Vec<u32>,
    /// Data lanes for guaranteed clusters on every link, 1 to 14.
    #[arg(long, value_delimiter = ',', default_values_t = [14, 7])]
    lanes: Vec<u8>,
    /// Seeds of the streams of clusters; one stream for each.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 3])]
    seeds: Vec<u64>,
    /// Mean size of a cluster, in hosts.
    #[arg(long, default_value_t = 8.0)]
    mean: f64,
    /// Print the figures as JSON instead of Markdown.
    #[arg(long)]
    json: bool,
}

/// Where the hosts of clusters are.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Places {
    Aged,
    Random,
}

/// Share of hosts admitted with one seed, in percent.
#[derive(Clone, Copy, Debug, Serialize)]
struct Shares {
    seed: u64,
    paper: f64,
    cluster: f64,
    pair: f64,
    path: f64,
    cluster_chosen: f64,
    pair_chosen: f64,
    path_chosen: f64,
}

#[derive(Debug, Serialize)]
struct Row {
    hosts: u32,
    places: Places,
    lanes: u8,
    shares: Vec<Shares>,
}

/// Measures, and prints the figures.
pub fn run(args: AdmissionArgs) -> anyhow::Result<()> {
    ensure!(!args.seeds.is_empty() && args.mean > 0.0, "nothing to measure");
    ensure!(args.lanes.iter().all(|lanes| (1..=14).contains(lanes)), "--lanes must be between 1 and 14");
    let mut rows = Vec::new();
    for hosts in &args.hosts {
        let fabric = PlannedTree::with_hosts(*hosts)?;
        for lanes in &args.lanes {
            let graph = fabric.graph(*lanes);
            for places in [Places::Aged, Places::Random] {
                eprintln!("{hosts} hosts, {lanes} lanes, {places:?}");
                let measure =
                    |seed: &u64| measure(&graph, &clusters(&graph, places, args.mean, *seed), *seed, *lanes);
                let shares = args.seeds.iter().map(measure).collect();
                rows.push(Row { hosts: *hosts, places, lanes: *lanes, shares });
            }
        }
    }
    crate::print(args.json, &rows, |rows| markdown(rows))
}

/// The hosts of every cluster; together they are all hosts.
fn clusters(graph: &LinkGraph, places: Places, mean: f64, seed: u64) -> Vec<Vec<HostIndex>> {
    let mut random = Pcg64::seed_from_u64(seed);
    let mut hosts: Vec<HostIndex> = (0..graph.hosts().len() as u32).map(HostIndex).collect();
    let mut some: Vec<usize> = (0..hosts.len()).collect();
    some.shuffle(&mut random);
    some.truncate(match places {
        Places::Aged => hosts.len() * 3 / 10,
        Places::Random => hosts.len(),
    });
    let mut taken: Vec<HostIndex> = some.iter().map(|at| hosts[*at]).collect();
    taken.shuffle(&mut random);
    for (at, host) in some.into_iter().zip(taken) {
        hosts[at] = host;
    }
    let mut clusters = Vec::new();
    while !hosts.is_empty() {
        let rest = hosts.split_off(size(&mut random, mean, hosts.len()));
        clusters.push(std::mem::replace(&mut hosts, rest));
    }
    clusters
}

fn measure(graph: &Arc<LinkGraph>, clusters: &[Vec<HostIndex>], seed: u64, lanes: u8) -> Shares {
    let two_way = || Admission::new(Arc::clone(graph));
    let one_way = || two_way().with_one_way_service_levels();
    let ours = |mut admission: Admission, mode, routes| {
        let admitted = (0..).map(ClusterNumber).zip(clusters).filter(|(cluster, hosts)| {
            let (cluster, bandwidth, latency_ns) = (*cluster, Bandwidth::ZERO, None);
            let request = AdmissionRequest { cluster, hosts, bandwidth, latency_ns, mode, routes };
            admission.admit(request).is_ok()
        });
        percent(admitted.map(|(_, hosts)| hosts.len()).sum(), graph)
    };
    Shares {
        seed,
        paper: percent(paper(graph, clusters, lanes), graph),
        cluster: ours(two_way(), SlMode::Cluster, RouteChoice::Existing),
        pair: ours(two_way(), SlMode::Path, RouteChoice::Existing),
        path: ours(one_way(), SlMode::Path, RouteChoice::Existing),
        cluster_chosen: ours(two_way(), SlMode::Cluster, RouteChoice::Selected),
        pair_chosen: ours(two_way(), SlMode::Path, RouteChoice::Selected),
        path_chosen: ours(one_way(), SlMode::Path, RouteChoice::Selected),
    }
}

fn percent(hosts: usize, graph: &LinkGraph) -> f64 {
    100.0 * hosts as f64 / graph.hosts().len() as f64
}

/// Hosts admitted by the paper's rule: the lowest number that no other cluster has on any link of the cluster.
fn paper(graph: &LinkGraph, clusters: &[Vec<HostIndex>], lanes: u8) -> usize {
    let mut taken = vec![0u16; graph.links().len()];
    let mut admitted = 0;
    for hosts in clusters {
        let mut links = Vec::new();
        for from in hosts {
            for to in hosts.iter().filter(|to| *to != from) {
                links.push(graph.hosts()[from.index()].inward);
                graph.links_from(graph.switch_of(*from), *to, |link| links.push(link));
            }
        }
        let all = links.iter().fold(0, |all, link| all | taken[link.index()]);
        let number = (!all).trailing_zeros();
        if number < u32::from(lanes) {
            links.iter().for_each(|link| taken[link.index()] |= 1 << number);
            admitted += hosts.len();
        }
    }
    admitted
}

fn markdown(rows: &[Row]) -> String {
    let mut text = String::from(
        "Hosts admitted in %, mean over the seeds and range.\n\n\
         | hosts | places | lanes | paper | one SL per cluster | one per two switches | one per path \
         | per cluster, up-ports chosen | per two switches, up-ports chosen | per path, up-ports chosen |\n\
         |---:|---|---:|---:|---:|---:|---:|---:|---:|---:|\n",
    );
    for Row { hosts, places, lanes, shares } in rows {
        let column = |of: fn(&Shares) -> f64| {
            let values: Vec<f64> = shares.iter().map(of).collect();
            let mean = values.iter().sum::<f64>() / values.len() as f64;
            let (least, most) = values.iter().fold((f64::MAX, f64::MIN), |(a, b), v| (a.min(*v), b.max(*v)));
            format!("{mean:.1} ({least:.1}–{most:.1})")
        };
        text += &format!(
            "| {hosts} | {} | {lanes} | {} | {} | {} | {} | {} | {} | {} |\n",
            format!("{places:?}").to_lowercase(),
            column(|shares| shares.paper),
            column(|shares| shares.cluster),
            column(|shares| shares.pair),
            column(|shares| shares.path),
            column(|shares| shares.cluster_chosen),
            column(|shares| shares.pair_chosen),
            column(|shares| shares.path_chosen),
        );
    }
    text
}
