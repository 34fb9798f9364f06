//! [`PlanFinding`]: what a plan could not satisfy, with a witness.

use std::fmt;

use ib_wire::{Guid, PartitionNumber};
use serde::{Deserialize, Serialize};

use crate::intent::PortName;
use crate::link_rate::LinkRate;

/// An intent that the plan could not satisfy, or a defect of the fabric that it works around. Every finding names a
/// witness.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum PlanFinding {
    /// Nodes that are not connected to the manager. The plan omits them.
    Unreachable {
        nodes: usize,
        /// Node GUID of one of them.
        witness: Guid,
    },
    /// Adapter ports whose partitions their switch ports cannot enforce. The plan omits them, so that they stay closed.
    Unenforced {
        ports: usize,
        /// One of them.
        witness: PortName,
    },
    /// Adapter ports whose partitions only their adapters enforce, as the intents allow.
    EnforcedByAdapters {
        ports: usize,
        /// One of them.
        witness: PortName,
    },
    /// Switches with hosts that cannot discard raw packets. These have no P_Key, so that no partition holds them back.
    RawUnfiltered {
        switches: usize,
        /// Node GUID of one of them.
        witness: Guid,
    },
    /// Switches that route adaptively. Packets need not follow the planned routes, so nothing is guaranteed.
    AdaptiveRouting {
        switches: usize,
        /// Node GUID of one of them.
        witness: Guid,
    },
    /// Links that are slower than what is enabled at both ends. Guarantees count with their active rate.
    SlowLinks {
        links: usize,
        /// A port of one of them.
        witness: PortName,
        /// Its active rate.
        active: LinkRate,
        /// The fastest rate that is enabled at both ends.
        enabled: LinkRate,
    },
    /// Pairs of switches without a deadlock-free route between their end ports. At least one end of each affected path is
    /// port 0 of a switch, never two adapters.
    NoRoute {
        /// Ordered pairs of switches.
        pairs: usize,
        /// Node GUID of the first switch of one such pair.
        from: Guid,
        /// Node GUID of the second switch of that pair.
        to: Guid,
    },
    /// Several partitions request index 0 of the same P_Key table. The first request wins.
    IndexZeroContested {
        port: Guid,
        /// The partition that has index 0.
        given: PartitionNumber,
        /// The first partition that did not get it.
        refused: PartitionNumber,
    },
    /// The guarantee of a cluster can no longer be kept. The cluster gets best effort only.
    #[serde(alias = "promise-broken")]
    GuaranteeViolated { cluster: String, reason: String },
    /// A route override is not possible. Packets to the port use the default routes.
    #[serde(alias = "route-not-taken")]
    RouteOverrideRejected {
        /// GUID of the destination port.
        port: Guid,
        reason: String,
    },
    /// The class weights of a cluster are not possible. All its packets are in one class.
    #[serde(alias = "classes-not-taken")]
    ClassWeightsRejected { cluster: String, reason: String },
}

impl fmt::Display for PlanFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable { nodes, witness } => {
                write!(f, "{nodes} nodes are not connected to the manager, for example {witness}")
            }
            Self::Unenforced { ports, witness } => {
                write!(
                    f,
                    "{ports} adapter ports stay closed, because their switch ports cannot enforce partitions, for example {witness}"
                )
            }
            Self::EnforcedByAdapters { ports, witness } => {
                write!(
                    f,
                    "{ports} adapter ports are open although their switch ports cannot enforce partitions, for example {witness}"
                )
            }
            Self::RawUnfiltered { switches, witness } => {
                write!(
                    f,
                    "{switches} switches cannot discard raw packets, which belong to no partition, for example {witness}"
                )
            }
            Self::AdaptiveRouting { switches, witness } => {
                write!(
                    f,
                    "{switches} switches route adaptively, so that nothing is guaranteed, for example {witness}"
                )
            }
            Self::SlowLinks { links, witness, active, enabled } => {
                write!(
                    f,
                    "{links} links are slower than what is enabled at both ends, for example that of {witness}: {active} instead of {enabled}"
                )
            }
            Self::NoRoute { pairs, from, to } => {
                write!(f, "{pairs} pairs of switches have no deadlock-free route, for example {from} to {to}")
            }
            Self::IndexZeroContested { port, given, refused } => {
                write!(
                    f,
                    "partitions {given} and {refused} both request P_Key index 0 of port {port}; {given} has it"
                )
            }
            Self::GuaranteeViolated { cluster, reason } => {
                write!(f, "the guarantee of cluster {cluster} is violated, it has best effort only: {reason}")
            }
            Self::RouteOverrideRejected { port, reason } => {
                write!(f, "the route override for port {port} is rejected: {reason}")
            }
            Self::ClassWeightsRejected { cluster, reason } => {
                write!(f, "the class weights of cluster {cluster} are rejected: {reason}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_earlier_versions_are_still_read() {
        let cluster = || "blue".to_owned();
        let reason = || "no lane".to_owned();
        let port = Guid::from_wire(1).unwrap();
        for (json, expected) in [
            (
                r#"{"kind":"promise-broken","cluster":"blue","reason":"no lane"}"#,
                PlanFinding::GuaranteeViolated { cluster: cluster(), reason: reason() },
            ),
            (
                r#"{"kind":"route-not-taken","port":"0x1","reason":"no lane"}"#,
                PlanFinding::RouteOverrideRejected { port, reason: reason() },
            ),
            (
                r#"{"kind":"classes-not-taken","cluster":"blue","reason":"no lane"}"#,
                PlanFinding::ClassWeightsRejected { cluster: cluster(), reason: reason() },
            ),
        ] {
            assert_eq!(serde_json::from_str::<PlanFinding>(json).unwrap(), expected);
            let written = serde_json::to_string(&expected).unwrap();
            assert_eq!(serde_json::from_str::<PlanFinding>(&written).unwrap(), expected);
        }
    }
}
