//! Lifecycle of a cluster: a pure function of desired state, observed state and time. No I/O.
//!
//! ```text
//! requested ─► placed ─► network-programmed ─► starting ─► ready ─► deleting ─► (row deleted)
//!                 └──────────────┴─────────────────┴─► failed ─► (only the reason is kept)
//! ```
//!
//! The order is safe: a virtual machine enters the spec of its host only after its port is a member of the partition, and
//! the port leaves the partition only after the virtual machine is gone. The exception is a node that an operator has
//! fenced because its host is silent: its port leaves the partition first, and only then is the node dropped.

mod network;

use std::collections::BTreeSet;
use std::time::Duration;

use controller_api::Name;
use controller_api::agent::{VmReport, VmState};
use controller_api::cluster::{NetworkState, NodeState, Phase};
use controller_api::operation::{OperationKind, OperationState, PhaseChange};
use ib_wire::{Guid, PartitionNumber, ServiceLevel};
use jiff::Timestamp;
use uuid::Uuid;

use crate::clock::{Moment, Uptime};
use crate::store::{ClusterRow, EventRecord, NodeRow};
pub use network::{packet_stop, probes, shortfall, state as network_state};

/// Longest time from the spec to the readiness of all nodes: emulated guests on a busy machine take minutes.
const START_TIMEOUT: Duration = Duration::from_secs(15 * 60);

/// Observed state of hosts and fabric.
pub trait Observations {
    /// State of a virtual machine on its host.
    fn vm(&self, host: &Name, id: Uuid) -> VmObservation<'_>;
    /// Why a host rejects its spec.
    fn spec_rejection(&self, host: &Name) -> Option<&str>;
    /// Whether the fabric is programmed with a port as a member of a partition; `None` if not known now.
    fn is_member(&self, partition: PartitionNumber, port: Guid) -> Option<bool>;
    /// Whether a port is on the fabric and closed, because it cannot be isolated from others; `None` if not known now.
    fn is_closed(&self, port: Guid) -> Option<bool>;
    /// Whether the fabric is programmed with all nodes of a cluster as members of its partitions; `None` if not known
    /// now.
    fn carries(&self, cluster: &ClusterRow) -> Option<bool>;
    /// Service levels on the wire of the traffic classes of a cluster; `None` if not known now.
    fn class_levels(&self, cluster: &ClusterRow) -> Option<Vec<ServiceLevel>>;
}

/// Observed state of a virtual machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VmObservation<'a> {
    /// The agent has never responded, or its report does not reflect its spec yet.
    Unknown,
    /// The acknowledged spec does not mention it; a later one may be on its way.
    NotInSpec,
    /// The agent acknowledged a spec that removes it, and reports that nothing of it is left.
    Removed,
    /// Reported by the agent.
    Reported(&'a VmReport),
}

/// Result of [`advance`].
#[derive(Debug, Default)]
pub struct AdvanceOutcome {
    /// Events to record.
    pub events: Vec<EventRecord>,
    /// Nothing of the cluster is left; its row can be deleted.
    pub is_removed: bool,
}

/// Advances a cluster as far as the observed state allows. A pure function of row, observations and time; calling it
/// again with the same arguments changes nothing.
pub fn advance(cluster: &mut ClusterRow, observed: &impl Observations, moment: Moment) -> AdvanceOutcome {
    let mut outcome = AdvanceOutcome::default();
    let now = moment.wall;
    if cluster.phase == Phase::Deleting {
        cluster.nodes.iter_mut().for_each(|node| node.leaving = true);
    }
    observe(cluster, observed);
    abort_failed_operation(cluster, observed, moment, &mut outcome);
    drop_gone_nodes(cluster, observed);
    if cluster.phase == Phase::Deleting {
        if cluster.nodes.is_empty() {
            finish(cluster, OperationState::Done, None, now);
            outcome.note(cluster, now, "cluster.deleted", "the cluster is removed".to_owned());
            outcome.is_removed = true;
        }
        return outcome;
    }
    if cluster.phase == Phase::Failed {
        if cluster.nodes.is_empty() {
            cluster.partition = None;
            cluster.inner.clear();
            cluster.overlay = None;
        }
        return outcome;
    }
    join(cluster);
    publish_class_levels(cluster, observed);
    network::observe(cluster, observed, moment, &mut outcome);
    progress(cluster, observed, now, &mut outcome);
    outcome
}

/// Copies the observed state of each node into its row.
fn observe(cluster: &mut ClusterRow, observed: &impl Observations) {
    let partition = cluster.partition;
    for node in &mut cluster.nodes {
        let is_carried = partition.is_some_and(|it| observed.is_member(it, node.port_guid) == Some(true));
        node.networked |= is_carried && !node.leaving;
        let vm = observed.vm(&node.host, node.id);
        if node.leaving {
            node.state = NodeState::Leaving;
            // Without a network it was never in a spec. Otherwise it is gone only when its agent reports so.
            node.gone |= !node.networked || vm == VmObservation::Removed;
            continue;
        }
        match vm {
            VmObservation::Reported(report) => {
                node.ready = report.ready;
                node.reason = report.reason.clone();
                node.network = report.network;
                // Readiness counts once the node is on the fabric. A later loss of the fabric does not revoke it, but a port
                // that is closed does.
                let is_closed = observed.is_closed(node.port_guid) == Some(true);
                let counts = (is_carried || node.state == NodeState::Ready) && !is_closed;
                node.state = match report.state {
                    VmState::Preparing | VmState::Removing => NodeState::Starting,
                    VmState::Running if report.ready.is_some() && counts => NodeState::Ready,
                    VmState::Running => NodeState::Starting,
                    VmState::Stopped => NodeState::Stopped,
                    VmState::Failed => NodeState::Failed,
                };
            }
            VmObservation::NotInSpec | VmObservation::Removed => {
                (node.state, node.ready, node.network) = (NodeState::Placed, None, None);
            }
            // Keep the last known state: agents restart without their virtual machines.
            VmObservation::Unknown => {}
        }
    }
}

/// Ends an operation that cannot succeed, and takes back what was begun for it.
fn abort_failed_operation(
    cluster: &mut ClusterRow,
    observed: &impl Observations,
    moment: Moment,
    outcome: &mut AdvanceOutcome,
) {
    let now = moment.wall;
    let Some(operation) = cluster.operation.as_ref().filter(|it| it.state == OperationState::Running) else {
        return;
    };
    let kind = operation.kind;
    // Nodes that have not been observed may be well: a controller that was down for long must not abort them.
    let are_heard =
        cluster.nodes.iter().all(|node| observed.vm(&node.host, node.id) != VmObservation::Unknown);
    let failed = failed_node(cluster).or_else(|| refused_node(cluster, observed));
    let failed = failed.map(|failure| {
        outcome.note_for_operators(cluster, now, "node.failed", failure.internal);
        failure.open
    });
    let reason = match (failed, are_heard && is_overdue(cluster, moment.uptime)) {
        (Some(reason), _) => reason,
        (None, true) => format!("not ready after {} s: {}", START_TIMEOUT.as_secs(), waiting_reason(cluster)),
        (None, false) => return,
    };
    match kind {
        OperationKind::Create => fail(cluster, reason, now, outcome),
        OperationKind::Resize => {
            for node in cluster.nodes.iter_mut().filter(|node| !node.joined) {
                node.leaving = true;
            }
            cluster.size = cluster.nodes.iter().filter(|node| !node.leaving).count() as u32;
            outcome.note(cluster, now, "cluster.resize-failed", reason.clone());
            finish(cluster, OperationState::Failed, Some(reason), now);
        }
        OperationKind::Partition => {
            outcome.note(cluster, now, "cluster.partition-failed", reason.clone());
            finish(cluster, OperationState::Failed, Some(reason), now);
        }
        // A deletion continues until it is done.
        OperationKind::Delete => {}
    }
}

/// Marks a cluster as failed; its nodes leave.
pub fn fail(cluster: &mut ClusterRow, reason: String, now: Timestamp, outcome: &mut AdvanceOutcome) {
    cluster.phase = Phase::Failed;
    cluster.reason = Some(reason.clone());
    for node in &mut cluster.nodes {
        (node.leaving, node.state) = (true, NodeState::Leaving);
    }
    outcome.note(cluster, now, "cluster.failed", reason.clone());
    finish(cluster, OperationState::Failed, Some(reason), now);
}

/// Why a node cannot run: `open` for its tenant, `internal` for operators, since messages of hosts name paths and
/// resources of others.
struct Failure {
    open: String,
    internal: String,
}

impl Failure {
    fn new(cluster: &ClusterRow, node: &NodeRow, reason: &str) -> Self {
        let name = node_name(cluster, node);
        Self {
            open: format!("{name}: its host cannot run it; operators find the reason in their events"),
            internal: format!("{name} on {}: {reason}", node.host),
        }
    }
}

/// The first starting node that failed on its host.
fn failed_node(cluster: &ClusterRow) -> Option<Failure> {
    let starting = |node: &&NodeRow| !node.leaving && (cluster.phase != Phase::Ready || !node.joined);
    let node = cluster.nodes.iter().filter(starting).find(|node| node.state == NodeState::Failed)?;
    let reason = node.reason.as_deref().unwrap_or("its host gives no reason");
    Some(Failure::new(cluster, node, reason))
}

/// The first node whose host rejects its spec.
fn refused_node(cluster: &ClusterRow, observed: &impl Observations) -> Option<Failure> {
    let waiting = cluster.nodes.iter().filter(|node| !node.leaving && node.state == NodeState::Placed);
    let refused = |node: &NodeRow| Some(Failure::new(cluster, node, observed.spec_rejection(&node.host)?));
    waiting.filter(|node| node.networked).find_map(refused)
}

/// Whether the current operation exceeds [`START_TIMEOUT`], by the clock that does not step.
fn is_overdue(cluster: &ClusterRow, now: Uptime) -> bool {
    now.since(cluster.began) > START_TIMEOUT
}

/// Drops nodes that have neither a virtual machine nor a membership on the fabric any more.
fn drop_gone_nodes(cluster: &mut ClusterRow, observed: &impl Observations) {
    let staying: BTreeSet<Guid> =
        cluster.nodes.iter().filter(|node| node.is_carried()).map(|node| node.port_guid).collect();
    let partition = cluster.partition;
    cluster.nodes.retain(|node| {
        let is_forgotten = || match partition {
            Some(partition) => observed.is_member(partition, node.port_guid) == Some(false),
            None => true,
        };
        // If another node of the cluster is behind the same port, the port stays a member, unless the node is fenced: a
        // virtual machine in an unknown state must not reach the partition.
        let is_left = if node.gone {
            staying.contains(&node.port_guid) || is_forgotten()
        } else {
            node.fenced && is_forgotten()
        };
        !is_left
    });
}

/// Announces new nodes to the others once they are ready and their network check has passed.
fn join(cluster: &mut ClusterRow) {
    let new = || cluster.nodes.iter().filter(|node| !node.joined && !node.leaving);
    let is_ready = |node: &NodeRow| node.state == NodeState::Ready && network::is_settled(node);
    if new().next().is_some() && new().all(is_ready) {
        for node in cluster.nodes.iter_mut().filter(|node| !node.leaving) {
            node.joined = true;
        }
        cluster.generation += 1;
    }
}

/// Announces changed service levels of traffic classes to the nodes.
fn publish_class_levels(cluster: &mut ClusterRow, observed: &impl Observations) {
    let levels = observed.class_levels(cluster);
    if let (Some(overlay), Some(levels)) = (&mut cluster.overlay, levels)
        && overlay.wire_sls != levels
    {
        overlay.wire_sls = levels;
        cluster.generation += 1;
    }
}

/// Derives the phase of the cluster from its nodes.
fn progress(
    cluster: &mut ClusterRow,
    observed: &impl Observations,
    now: Timestamp,
    outcome: &mut AdvanceOutcome,
) {
    let generation = cluster.generation;
    let is_broken = cluster.network.state == NetworkState::Broken;
    let nodes = || cluster.nodes.iter().filter(|node| !node.leaving);
    let is_ready = |node: &NodeRow| {
        let is_up = node.state == NodeState::Ready && node.ready >= Some(generation);
        is_up && node.joined && network::is_settled(node)
    };
    let stays_up = |node: &NodeRow| {
        !node.joined || node.state == NodeState::Ready && (network::is_settled(node) || !is_broken)
    };
    let phase = if nodes().next().is_none() {
        Phase::Requested
    } else if nodes().all(is_ready) {
        Phase::Ready
    } else if cluster.phase == Phase::Ready && nodes().all(stays_up) {
        // Growing, or a new generation: running nodes stay up, also while the network is checked again.
        Phase::Ready
    } else if nodes().any(|node| node.state != NodeState::Placed) {
        Phase::Starting
    } else if nodes().all(|node| node.networked) {
        Phase::NetworkProgrammed
    } else {
        Phase::Placed
    };
    let is_settled = nodes().all(is_ready)
        && nodes().count() == cluster.nodes.len()
        && observed.carries(cluster) == Some(true);
    cluster.reason = (phase != Phase::Ready || is_broken).then(|| waiting_reason(cluster));
    if phase != cluster.phase {
        reach(cluster, phase, now, outcome);
    }
    if phase == Phase::Ready && is_settled {
        finish(cluster, OperationState::Done, None, now);
    }
}

/// Sets the phase, and records it in the operation and as an event.
pub fn reach(cluster: &mut ClusterRow, phase: Phase, now: Timestamp, outcome: &mut AdvanceOutcome) {
    cluster.phase = phase;
    if let Some(operation) = cluster.operation.as_mut().filter(|it| it.state == OperationState::Running) {
        operation.steps.push(PhaseChange { phase, at: now });
    }
    let (kind, text) = match phase {
        Phase::Requested => ("cluster.requested", "requested".to_owned()),
        Phase::Placed => ("cluster.placed", format!("{} nodes have a host", cluster.nodes.len())),
        Phase::NetworkProgrammed => {
            ("cluster.network-programmed", "the fabric is programmed for its nodes".to_owned())
        }
        Phase::Starting => ("cluster.starting", "its nodes are starting".to_owned()),
        Phase::Ready => ("cluster.ready", ready_text(cluster)),
        Phase::Deleting => ("cluster.deleting", "the cluster is being removed".to_owned()),
        Phase::Failed => ("cluster.failed", cluster.reason.clone().unwrap_or_default()),
    };
    outcome.note(cluster, now, kind, text);
}

fn ready_text(cluster: &ClusterRow) -> String {
    let said = format!("{} nodes have reported that they are ready", cluster.size);
    match cluster.network.state {
        NetworkState::Unchecked => format!("{said} (network unchecked)"),
        NetworkState::Carries => format!("{said} and reach each other"),
        NetworkState::Checking | NetworkState::Broken => said,
    }
}

/// Ends the current operation.
pub fn finish(cluster: &mut ClusterRow, state: OperationState, reason: Option<String>, now: Timestamp) {
    if let Some(operation) = cluster.operation.as_mut().filter(|it| it.state == OperationState::Running) {
        (operation.state, operation.reason, operation.ended) = (state, reason, Some(now));
    }
}

/// What the cluster is waiting for.
fn waiting_reason(cluster: &ClusterRow) -> String {
    let waiting = cluster.nodes.iter().filter(|node| {
        !node.leaving && (node.state != NodeState::Ready || node.ready < Some(cluster.generation))
    });
    let names: Vec<String> =
        waiting.map(|node| format!("{} ({})", node_name(cluster, node), node.state)).collect();
    if names.is_empty() {
        network::shortfalls(cluster).unwrap_or_else(|| "waiting for hosts".to_owned())
    } else {
        format!("waiting for {}", names.join(", "))
    }
}

/// Host name of a node: `CLUSTER-NUMBER`.
pub fn node_name(cluster: &ClusterRow, node: &NodeRow) -> String {
    format!("{}-{}", cluster.name, node.number)
}

impl AdvanceOutcome {
    /// Records an event that only operators see.
    pub fn note_for_operators(
        &mut self,
        cluster: &ClusterRow,
        at: Timestamp,
        kind: &'static str,
        text: String,
    ) {
        let text = format!("cluster {} of {}: {text}", cluster.name, cluster.tenant.name);
        self.events.push(EventRecord { at, tenant: None, cluster: None, kind, text });
    }

    fn note(&mut self, cluster: &ClusterRow, at: Timestamp, kind: &'static str, text: String) {
        let (tenant, name) = (Some(cluster.tenant.clone()), Some(cluster.name.clone()));
        self.events.push(EventRecord { at, tenant, cluster: name, kind, text });
    }
}

#[cfg(test)]
pub(crate) mod tests;
