//! MPI: a ring over all nodes as users start it, and by transport; latency and bandwidth between two of them by transport.

use std::time::Duration;

use anyhow::{Context, ensure};
use controller_api::cluster::AdapterKind;

use super::adapter;
use super::nodes::NodeCommands;
use super::parse;
use super::report::{CheckFinding, Figure};

/// Limit of one run; the start of MPI takes most of it on emulated processors.
const LIMIT: Duration = Duration::from_secs(240);

/// Ranks of the ring, at most.
const RANKS_MAX: usize = 16;

/// Rounds of a ring: the first ones, in which connections are made, take much longer than the others.
const RING_ROUNDS: u32 = 100;

/// Longest message of the bandwidth, in bytes.
const LONGEST: u32 = 65_536;

/// A transport of MPI, and the options of mpirun that choose it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transport {
    pub name: &'static str,
    options: &'static str,
    /// Whether its packets are those of the InfiniBand adapter, which counts them.
    is_rdma: bool,
}

/// The transports of clusters with a kind of adapter.
pub const fn transports(adapter: AdapterKind) -> &'static [Transport] {
    const TCP: Transport =
        Transport { name: "tcp", options: "--mca pml ob1 --mca btl tcp,self", is_rdma: false };
    const INFINIBAND: [Transport; 3] = [
        Transport { name: "rc", options: "--mca pml ucx -x UCX_TLS=rc,self", is_rdma: true },
        Transport { name: "ud", options: "--mca pml ucx -x UCX_TLS=ud_verbs,self", is_rdma: true },
        TCP,
    ];
    match adapter {
        AdapterKind::Ethernet => &[TCP],
        AdapterKind::Infiniband => &INFINIBAND,
    }
}

/// Passes a number around all nodes, by the transport that MPI chooses.
pub async fn ring(nodes: &NodeCommands<'_>) -> anyhow::Result<CheckFinding> {
    let (figure, ranks) = ring_by(nodes, "").await?;
    Ok(CheckFinding { figures: vec![figure], note: Some(format!("{ranks} ranks")) })
}

/// The time of a round, and the number of ranks.
async fn ring_by(nodes: &NodeCommands<'_>, options: &str) -> anyhow::Result<(Figure, usize)> {
    let ranks = nodes.count().min(RANKS_MAX);
    let script = format!("mpirun -np {ranks} --map-by node {options} mpi-ring {RING_ROUNDS}");
    let printed = nodes.ok(nodes.first(), &script, LIMIT).await?;
    Ok((parse::ring(&printed)?, ranks))
}

/// A ring over all nodes; latency of the shortest message and bandwidth of the longest, between the first two.
pub async fn measure(nodes: &NodeCommands<'_>, transport: &Transport) -> anyhow::Result<CheckFinding> {
    let before = sent_packets(nodes, transport).await?;
    let (ring, _) = ring_by(nodes, transport.options).await?;
    let start = format!("mpirun -np 2 --map-by node {}", transport.options);
    let latency = nodes.ok(nodes.first(), &format!("{start} mpi-pingpong 1024"), LIMIT).await?;
    let bandwidth = nodes.ok(nodes.first(), &format!("{start} mpi-bandwidth {LONGEST}"), LIMIT).await?;
    let after = sent_packets(nodes, transport).await?;
    let figures = vec![ring, parse::mpi_latency(&latency)?, parse::mpi_bandwidth(&bandwidth)?];
    let note = match before.zip(after) {
        Some((before, after)) => {
            // A ping-pong alone is hundreds of messages; a run over another path is a handful of packets of IP.
            let sent = after.saturating_sub(before);
            ensure!(sent >= PACKETS_MIN, "the adapter sent {sent} packets only: MPI does not use it");
            Some(format!("the adapter of {} sent {sent} packets", nodes.first().name))
        }
        None => None,
    };
    Ok(CheckFinding { figures, note })
}

/// Packets that both programs need at least: 6 sizes of 52 rounds, and more than a hundred longer messages.
const PACKETS_MIN: u64 = 400;

/// Packets that the adapter of the first node has sent, if the transport uses it and it counts them.
async fn sent_packets(nodes: &NodeCommands<'_>, transport: &Transport) -> anyhow::Result<Option<u64>> {
    if !transport.is_rdma {
        return Ok(None);
    }
    let printed = nodes.ok(nodes.first(), adapter::SENT_PACKETS, Duration::from_secs(20)).await?;
    let facts = parse::facts(&printed);
    let count = facts.get("sent").filter(|count| **count != "unknown");
    count.map(|count| count.parse().context("the counter of the adapter is no number")).transpose()
}
