//! Typed reasons as machine-readable limits, with all facts. What the caller may see of them is decided in
//! [`super::disclosure`].

use controller_api::limit::{GuaranteeLimit, HostsLeft, Limit, PkeyTableUse, UnusableHosts};
use fabric_compiler::arrangement::{NoHostsReason, NodesNotPlaced};
use fabric_compiler::tenancy::admission::Refusal;
use fabric_compiler::tenancy::placement::PlacementError;
use fabric_compiler::{CompileError, GuaranteeError};
use fabric_model::tenancy::Class;

use crate::admission::{AdmissionError, NotExclusive};
use crate::clusters::{ClusterError, NotPlanned};
use crate::placement::NodePlacementError;
use crate::planning::PlanningError;

/// The limit that a rejected request exceeds; `None` if the reason is not a limit.
pub fn limit_of(error: &ClusterError) -> Option<Limit> {
    match error {
        ClusterError::Quota(exceeded) => Some(Limit::Quota {
            resource: exceeded.resource,
            allowed: exceeded.allowed,
            requested: exceeded.requested,
        }),
        ClusterError::NumbersExhausted(exhausted) => Some(Limit::PartitionNumbers {
            in_use: Some(exhausted.in_use),
            quarantined: Some(exhausted.quarantined),
        }),
        ClusterError::NotPlaced(error) => limit_of_hosts(error),
        ClusterError::NotPlanned(error) => limit_of_plan(error),
        ClusterError::NoSuchCluster(_)
        | ClusterError::NoSuchTenant(_)
        | ClusterError::NameTaken(_)
        | ClusterError::NoSuchImage { .. }
        | ClusterError::NoInfinibandDriver(_)
        | ClusterError::Busy { .. }
        | ClusterError::InvalidSubPartition(_)
        | ClusterError::NoKeys(_)
        | ClusterError::Store(_) => None,
    }
}

fn limit_of_hosts(error: &AdmissionError) -> Option<Limit> {
    match *error {
        AdmissionError::NotYet => None,
        AdmissionError::NoHost { hosts: total, excluded_hosts: excluded, silent, absent } => {
            Some(Limit::UsableHosts { hosts: Some(UnusableHosts { total, excluded, silent, absent }) })
        }
        AdmissionError::NoCapacity { ref reason, .. } => Some(match *reason {
            NodePlacementError::Capacity {
                wanted,
                fitting,
                cores,
                memory,
                hosts,
                cores_left,
                memory_left,
            } => Limit::HostCapacity {
                requested_nodes: wanted,
                requested_cores: cores,
                requested_memory: memory,
                nodes_that_fit: Some(fitting),
                available: Some(HostsLeft { hosts, cores: cores_left, memory: memory_left }),
            },
            NodePlacementError::Memory { wanted, fitting, memory } => Limit::MachineMemory {
                requested_nodes: wanted,
                requested_memory: memory,
                nodes_that_fit: Some(fitting),
            },
            NodePlacementError::Dedicated { wanted, cores, left, total } => Limit::DedicatedCores {
                requested_nodes: wanted,
                requested_cores: cores,
                available_cores: Some(left),
                total_cores: Some(total),
            },
        }),
    }
}

fn limit_of_plan(error: &NotPlanned) -> Option<Limit> {
    let PlanningError::Compile(compile) = &error.reason else { return None };
    match (compile, error.class) {
        (
            CompileError::NotAdmitted { reason, .. },
            Class::Guaranteed { bandwidth: requested, latency_ns: requested_latency_ns },
        ) => Some(Limit::Guarantee {
            requested_nodes: error.nodes,
            requested,
            requested_latency_ns,
            nodes_that_fit: error.not_exclusive.as_ref().and_then(nodes_that_fit),
            cause: Some(limit_of_guarantee(reason)),
            placement: error.not_exclusive.as_ref().map(limit_of_exclusive_hosts),
        }),
        (
            &(CompileError::PkeyTableFull { port, needed, capacity }
            | CompileError::ManagerKeysFull { port, needed, capacity }),
            _,
        ) => Some(Limit::PkeyTable { table: Some(PkeyTableUse { port, needed, capacity }) }),
        _ => None,
    }
}

fn nodes_that_fit(reason: &NotExclusive) -> Option<usize> {
    match reason {
        NotExclusive::Fabric(NodesNotPlaced { largest, .. }) => Some(*largest),
        NotExclusive::Machines { .. } => None,
    }
}

fn limit_of_exclusive_hosts(reason: &NotExclusive) -> GuaranteeLimit {
    match *reason {
        NotExclusive::Machines { hosts: needed } => GuaranteeLimit::Machines { needed },
        NotExclusive::Fabric(NodesNotPlaced { ref reason, .. }) => match *reason {
            NoHostsReason::Capacity { requested: needed, capacity: available }
            | NoHostsReason::Placement(PlacementError::TooFewHosts { requested: needed, free: available }) => {
                GuaranteeLimit::FreeHosts { needed, available }
            }
            NoHostsReason::Placement(PlacementError::Refused(ref refusal)) => limit_of_link(refusal),
        },
    }
}

fn limit_of_guarantee(reason: &GuaranteeError) -> GuaranteeLimit {
    match reason {
        GuaranteeError::Refused(refusal) => limit_of_link(refusal),
        GuaranteeError::HostTaken { host, cluster } => {
            GuaranteeLimit::HostTaken { host: *host, cluster: cluster.clone() }
        }
    }
}

fn limit_of_link(refusal: &Refusal) -> GuaranteeLimit {
    match *refusal {
        Refusal::BandwidthShort { port, needed, free: available } => {
            GuaranteeLimit::LinkBandwidth { port, needed, available }
        }
        Refusal::RateUnknown { port } => GuaranteeLimit::LinkRate { port },
        Refusal::NoLanes { port } => GuaranteeLimit::Lanes { port, lanes: 0 },
        Refusal::NoLaneFree { port, lanes } => GuaranteeLimit::Lanes { port, lanes },
        Refusal::NoServiceLevelFree { port, free: available, usable } => {
            GuaranteeLimit::ServiceLevels { port, available, usable }
        }
        Refusal::ArbitrationTableFull { port, needed, free: available } => {
            GuaranteeLimit::ArbitrationEntries { port, needed, available }
        }
        Refusal::BufferTooSmall { port, needed: needed_bytes, held: available_bytes } => {
            GuaranteeLimit::LaneBuffer { port, needed_bytes, available_bytes }
        }
        // The requested bound is in the limit itself.
        Refusal::LatencyTooShort { possible_ns, requested_ns: _ } => GuaranteeLimit::Latency { possible_ns },
        Refusal::WaitTooShort { port, wait_ns } => GuaranteeLimit::LinkLatency { port, wait_ns },
        Refusal::NoPath { to: host, bandwidth: needed } => GuaranteeLimit::Paths { host, needed },
        Refusal::NoRoute { to: host } => GuaranteeLimit::Routes { host },
        Refusal::HostTaken { host, cluster } => {
            GuaranteeLimit::HostTaken { host, cluster: cluster.to_string() }
        }
        Refusal::AlreadyAdmitted(_) | Refusal::UnknownCluster(_) | Refusal::InvalidHosts => {
            GuaranteeLimit::Defect { detail: refusal.to_string() }
        }
    }
}
