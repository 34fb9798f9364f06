//! What a plan cannot make good, with a witness.

use std::fmt;

use ib_wire::{Guid, PartitionNumber};
use serde::{Deserialize, Serialize};

/// Something about a fabric that is not as it should be; the plan works around it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum PlanFinding {
    /// Nodes that no cable joins to the manager's part of the fabric: the plan leaves them out.
    Unreachable {
        /// How many nodes.
        nodes: usize,
        /// One of them, by node GUID.
        witness: Guid,
    },
    /// Ends that cannot reach each other without a risk of deadlock, at least one of them being a switch's own port.
    NoRoute {
        /// How many pairs of switches, in one direction each.
        pairs: usize,
        /// The switch where packets of one of them would start.
        from: Guid,
        /// The switch they would be for.
        to: Guid,
    },
    /// Several partitions claim index 0 of one port; the first asked for has it.
    IndexZeroContested {
        /// The port, by port GUID.
        port: Guid,
        /// Which has it.
        given: PartitionNumber,
        /// The first that did not get it.
        refused: PartitionNumber,
    },
    /// A cluster that was promised something and cannot have it any more: it has best effort only.
    #[serde(alias = "promise-broken")]
    GuaranteeViolated {
        /// Its name.
        cluster: String,
        /// What is short, and where.
        reason: String,
    },
    /// A way that was wished for packets to a port cannot be: they go as without a wish.
    #[serde(alias = "route-not-taken")]
    RouteOverrideRejected {
        /// The port, by port GUID.
        port: Guid,
        /// Why, and where.
        reason: String,
    },
    /// What a cluster has cannot be divided as its owner wishes: all its packets are alike.
    #[serde(alias = "classes-not-taken")]
    ClassWeightsRejected {
        /// Its name.
        cluster: String,
        /// What is short, and where.
        reason: String,
    },
}

impl fmt::Display for PlanFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable { nodes, witness } => {
                write!(f, "{nodes} nodes are not connected to the manager, {witness} among them")
            }
            Self::NoRoute { pairs, from, to } => {
                write!(f, "{pairs} pairs of switches have no route that is safe, {from} to {to} among them")
            }
            Self::IndexZeroContested { port, given, refused } => {
                write!(
                    f,
                    "partitions {given} and {refused} both claim index 0 of port {port}; {given} has it"
                )
            }
            Self::GuaranteeViolated { cluster, reason } => {
                write!(f, "cluster {cluster} has best effort only: {reason}")
            }
            Self::RouteOverrideRejected { port, reason } => {
                write!(f, "packets to port {port} go as without a wish: {reason}")
            }
            Self::ClassWeightsRejected { cluster, reason } => {
                write!(f, "packets of cluster {cluster} are not divided into classes: {reason}")
            }
        }
    }
}
