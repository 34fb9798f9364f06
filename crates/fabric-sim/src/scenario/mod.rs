//! Scenarios: workloads of clusters on a planned fabric, and whether their guarantees were met.
//!
//! A [`Scenario`] describes the workloads, usually read from a TOML file. A [`ClusterSet`] locates the
//! clusters on a fabric that holds a plan. [`run_scenario`] simulates the packets and returns a
//! [`ScenarioReport`]. Workloads may be hostile: send to all addresses on all service levels, choose packet
//! sizes against a victim, or stop draining.

mod clusters;
mod file;
mod quantities;
mod report;
mod rounds;
mod workload;

use fabric_model::{StatedHardware, SwitchModel};
use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use clusters::{ClusterSet, ClusterSetError, SimCluster, SimNode, without_classes};
pub use quantities::{QuantityError, SendRate, Size, Span};
pub use report::{ClusterReport, ScenarioReport};
pub use workload::run_scenario;

use crate::traffic::{BadTrafficSettings, Buffer, TrafficSettings};

/// Workloads of clusters, and how long they run.
///
/// Deserializes from a table with the field names as keys; `warm_up` (0), `buffer` (64 KiB) and `switch_model` are
/// optional. Sizes are numbers or texts such as `64k`, times are texts such as `50us`. Unknown keys are rejected.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "file::ScenarioFile")]
pub struct Scenario {
    /// Measured time; must not be 0.
    pub duration: Span,
    /// Simulated time before the measurement starts.
    pub warm_up: Span,
    /// Receive buffer of every lane of every port.
    pub buffer: Size,
    /// Model of all switches; `None` for the one that the operator states.
    pub switch_model: Option<SwitchModel>,
    /// The workloads. A cluster may have several.
    pub workloads: Vec<WorkloadSpec>,
}

/// What a cluster sends.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkloadSpec {
    /// Name of the cluster; `*` means all clusters that no other workload names.
    pub cluster: String,
    pub send: SendPattern,
    /// Message sizes, used in turn. 1 byte to 64 MiB each.
    #[serde(default = "usual_messages")]
    pub message: Vec<Size>,
    /// Rate of each node.
    #[serde(default)]
    pub rate: SendRate,
    /// `shift`: distance to the receiver in nodes. `incast`, `hotspot` and `stall`: number of the receiver,
    /// starting at 1.
    #[serde(default = "first")]
    pub to: u32,
    /// `hotspot`: part of the messages that go to the receiver `to`, in percent.
    #[serde(default = "half")]
    pub percent: u8,
    /// Alternates between sending and pausing.
    #[serde(default)]
    pub bursts: Option<Bursts>,
    /// `bulk-synchronous`: computing time of a node before it sends.
    #[serde(default)]
    pub compute: Span,
}

/// Which nodes of a cluster send to which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SendPattern {
    /// Every node sends to all others in turn.
    AllToAll,
    /// Every node sends to the node at a fixed distance.
    Shift,
    /// All nodes send to one.
    Incast,
    /// A part of all messages goes to one node, the rest to random ones.
    Hotspot,
    /// Every node sends to random others.
    Random,
    /// All nodes compute, then each sends one message to every other; the next round begins when all have
    /// arrived.
    BulkSynchronous,
    /// Hostile: sends to all addresses on all service levels at once, with random P_Keys and packet sizes.
    Everything,
    /// Hostile: keeps its lanes full, with packet sizes that exceed the arbitration weight of every visit by
    /// as much as possible.
    Overshoot,
    /// Hostile: all nodes fill the buffers towards one that does not drain them.
    Stall,
}

impl SendPattern {
    /// Whether the pattern is meant to harm other clusters.
    pub const fn is_hostile(self) -> bool {
        matches!(self, Self::Everything | Self::Overshoot | Self::Stall)
    }
}

/// Alternating periods of sending and pausing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bursts {
    pub on: Span,
    pub off: Span,
}

fn usual_buffer() -> Size {
    Size::from_bytes(64 << 10)
}

fn usual_messages() -> Vec<Size> {
    vec![Size::from_bytes(4096)]
}

const fn first() -> u32 {
    1
}

const fn half() -> u8 {
    50
}

/// Why a scenario cannot run.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ScenarioError {
    #[error("duration must be greater than 0")]
    NoDuration,
    /// A workload names a cluster that is not in the [`ClusterSet`].
    #[error("cluster {0} does not exist")]
    NoCluster(String),
    #[error("cluster {0}: a workload needs at least one message size")]
    NoMessage(String),
    #[error("cluster {cluster}: a message must have 1 byte to 64 MiB, got {bytes} bytes")]
    MessageSize { cluster: String, bytes: u64 },
    #[error("cluster {cluster}: `to` must be between 1 and {nodes}, got {node}")]
    NoNode { cluster: String, node: u32, nodes: usize },
    #[error("cluster {cluster}: percent must be between 0 and 100, got {percent}")]
    Percent { cluster: String, percent: u8 },
    /// The workload sends at the guaranteed rate of a cluster that has none.
    #[error("cluster {0}: the rate cannot be `guaranteed`, because the plan guarantees it none")]
    NoGuarantee(String),
    #[error("cluster {0}: `on` of bursts must be greater than 0")]
    Bursts(String),
    #[error(transparent)]
    TrafficSettings(#[from] BadTrafficSettings),
}

/// Largest message in bytes.
const MESSAGE_MAX: u64 = 64 << 20;

impl Scenario {
    /// Checks the scenario against the clusters that take part. Reports the first problem.
    pub fn check(&self, clusters: &ClusterSet) -> Result<(), ScenarioError> {
        if self.duration == Span::default() {
            return Err(ScenarioError::NoDuration);
        }
        for spec in &self.workloads {
            let cluster = || spec.cluster.clone();
            let clusters: Vec<&SimCluster> = self.clusters(clusters, spec).collect();
            if clusters.is_empty() && spec.cluster != ALL_OTHERS {
                return Err(ScenarioError::NoCluster(cluster()));
            }
            if spec.message.is_empty() {
                return Err(ScenarioError::NoMessage(cluster()));
            }
            let mut sizes = spec.message.iter().map(|size| size.bytes());
            if let Some(bytes) = sizes.find(|bytes| !(1..=MESSAGE_MAX).contains(bytes)) {
                return Err(ScenarioError::MessageSize { cluster: cluster(), bytes });
            }
            if spec.percent > 100 {
                return Err(ScenarioError::Percent { cluster: cluster(), percent: spec.percent });
            }
            if spec.bursts.is_some_and(|bursts| bursts.on == Span::default()) {
                return Err(ScenarioError::Bursts(cluster()));
            }
            let names_node =
                matches!(spec.send, SendPattern::Incast | SendPattern::Hotspot | SendPattern::Stall);
            for member in clusters {
                let (name, nodes) = (|| member.name.clone(), member.nodes.len());
                if names_node && !(1..=nodes).contains(&(spec.to as usize)) {
                    return Err(ScenarioError::NoNode { cluster: name(), node: spec.to, nodes });
                }
                if spec.rate == SendRate::Guaranteed && member.guarantee.is_none() {
                    return Err(ScenarioError::NoGuarantee(name()));
                }
            }
        }
        Ok(())
    }

    /// The clusters that a workload applies to.
    fn clusters<'a>(
        &'a self,
        clusters: &'a ClusterSet,
        spec: &'a WorkloadSpec,
    ) -> impl Iterator<Item = &'a SimCluster> {
        let is_named = |cluster: &SimCluster| self.workloads.iter().any(|spec| spec.cluster == cluster.name);
        clusters.clusters.iter().filter(move |cluster| match spec.cluster.as_str() {
            ALL_OTHERS => !is_named(cluster),
            name => cluster.name == name,
        })
    }

    fn settings(&self, hardware: &StatedHardware) -> TrafficSettings {
        let blocks = self.buffer.bytes() / u64::from(crate::traffic::BLOCK_BYTES);
        let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
        let switch_model = self.switch_model.unwrap_or(hardware.switch_model);
        TrafficSettings { buffer: Buffer::PerLane(blocks), switch_model, ..TrafficSettings::of(hardware) }
    }
}

/// Cluster name that means all clusters without a workload of their own.
const ALL_OTHERS: &str = "*";
