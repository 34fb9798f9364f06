//! Scenarios: who sends what to whom on a planned fabric, and whether everybody got what was promised.
//!
//! A [`Scenario`] says what clusters do; a [`ClusterSet`] says who they are on a fabric that holds a plan. [`play`] moves their
//! packets and returns a [`ScenarioReport`]. Tenants are not believed to be kind: an act may send everything everywhere, choose
//! packets against one victim, or stop draining.

mod clusters;
mod quantities;
mod report;
mod rounds;
mod workload;

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use clusters::{ClusterNode, ClusterSet, ClusterSetError, SimCluster, without_classes};
pub use quantities::{SendRate, Size, Span};
pub use report::{ClusterReport, ScenarioReport};
pub use workload::run_scenario;

use crate::traffic::{BadTrafficSettings, Buffer, TrafficSettings};

/// What clusters do on a fabric.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// How long it is measured.
    pub duration: Span,
    /// How long it runs before that.
    #[serde(default)]
    pub warm_up: Span,
    /// Buffer of every lane of every port.
    #[serde(default = "usual_buffer")]
    pub buffer: Size,
    /// What the clusters do; one may do several things.
    pub workloads: Vec<WorkloadSpec>,
}

/// What a cluster does.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkloadSpec {
    /// Which cluster; `*` for all that no other act names.
    pub cluster: String,
    /// In which way.
    pub send: SendPattern,
    /// Sizes of messages, which take turns.
    #[serde(default = "usual_messages")]
    pub message: Vec<Size>,
    /// How much each node sends.
    #[serde(default)]
    pub rate: SendRate,
    /// `shift`: how many nodes further; `incast` and `hotspot`: which node gets it all, from 1.
    #[serde(default = "first")]
    pub to: u32,
    /// `hotspot`: the part of messages that go there, in percent.
    #[serde(default = "half")]
    pub percent: u8,
    /// For how long a node sends, and then does not, again and again.
    #[serde(default)]
    pub bursts: Option<Bursts>,
    /// `bulk-synchronous`: how long a node computes before it sends.
    #[serde(default)]
    pub compute: Span,
}

/// In which way a cluster sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SendPattern {
    /// Every node to all others in turn.
    AllToAll,
    /// Every node to the one some places further.
    Shift,
    /// All nodes to one.
    Incast,
    /// All to all, but a part of everything to one.
    Hotspot,
    /// Every node to others at random.
    Random,
    /// All compute, then every node sends a message to all others; the next round begins when everything has arrived.
    BulkSynchronous,
    /// Hostile: everything to everybody, on all service levels at once, in packets of any size.
    Everything,
    /// Hostile: its own lanes as full as can be, in packets that take the most of every turn.
    Overshoot,
    /// Hostile: all nodes fill the buffers towards one that takes nothing out of them.
    Stall,
}

impl SendPattern {
    /// Whether it is meant to harm others.
    pub const fn is_hostile(self) -> bool {
        matches!(self, Self::Everything | Self::Overshoot | Self::Stall)
    }
}

/// Sending and pausing in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bursts {
    /// How long a node sends.
    pub on: Span,
    /// How long it does not.
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

/// Why a scenario cannot be played.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ScenarioError {
    /// Nothing would be measured.
    #[error("duration must be more than nothing")]
    NoTime,
    /// An act names nobody.
    #[error("no cluster is called {0}")]
    NoCluster(String),
    /// An act has no message, or one of no bytes or of too many.
    #[error("{0}: messages have 1 byte to 64 MiB")]
    Message(String),
    /// A node that is not there.
    #[error("{cluster}: there is no node {node}")]
    NoNode {
        /// The cluster.
        cluster: String,
        /// The number.
        node: u32,
    },
    /// More than all.
    #[error("{0}: percent is 0 to 100")]
    Percent(String),
    /// A rate that nobody was promised.
    #[error("{0}: nothing was promised to it, so it cannot send that much")]
    NoGuarantee(String),
    /// Bursts of no length.
    #[error("{0}: bursts have a length")]
    Bursts(String),
    /// Buffers that cannot be.
    #[error("buffer: {0}")]
    TrafficSettings(#[from] BadTrafficSettings),
}

/// Bytes of a message at most.
const MESSAGE_MAX: u64 = 64 << 20;

impl Scenario {
    /// Whether it can be played by a cast; otherwise what is wrong with it.
    pub fn check(&self, clusters: &ClusterSet) -> Result<(), ScenarioError> {
        if self.duration == Span::default() {
            return Err(ScenarioError::NoTime);
        }
        for spec in &self.workloads {
            let cluster = || spec.cluster.clone();
            let clusters: Vec<&SimCluster> = self.clusters(clusters, spec).collect();
            if clusters.is_empty() && spec.cluster != ALL_OTHERS {
                return Err(ScenarioError::NoCluster(cluster()));
            }
            let is_size = |size: &Size| (1..=MESSAGE_MAX).contains(&size.bytes());
            if spec.message.is_empty() || !spec.message.iter().all(is_size) {
                return Err(ScenarioError::Message(cluster()));
            }
            if spec.percent > 100 {
                return Err(ScenarioError::Percent(cluster()));
            }
            if spec.bursts.is_some_and(|bursts| bursts.on == Span::default()) {
                return Err(ScenarioError::Bursts(cluster()));
            }
            let names_node =
                matches!(spec.send, SendPattern::Incast | SendPattern::Hotspot | SendPattern::Stall);
            for party in clusters {
                if names_node && !(1..=party.nodes.len()).contains(&(spec.to as usize)) {
                    return Err(ScenarioError::NoNode { cluster: party.name.clone(), node: spec.to });
                }
                if spec.rate == SendRate::Guaranteed && party.guarantee.is_none() {
                    return Err(ScenarioError::NoGuarantee(party.name.clone()));
                }
            }
        }
        Ok(())
    }

    /// Who plays an act.
    fn clusters<'a>(
        &'a self,
        clusters: &'a ClusterSet,
        spec: &'a WorkloadSpec,
    ) -> impl Iterator<Item = &'a SimCluster> {
        let is_named = |party: &SimCluster| self.workloads.iter().any(|spec| spec.cluster == party.name);
        clusters.clusters.iter().filter(move |party| match spec.cluster.as_str() {
            ALL_OTHERS => !is_named(party),
            name => party.name == name,
        })
    }

    fn settings(&self) -> TrafficSettings {
        let blocks = self.buffer.bytes() / u64::from(crate::traffic::BLOCK_BYTES);
        let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
        TrafficSettings { buffer: Buffer::PerLane(blocks), ..TrafficSettings::default() }
    }
}

/// All clusters that no other act names.
const ALL_OTHERS: &str = "*";
