//! Separation of what tenants and operators may see, in one place.
//!
//! A tenant sees its own network under its own names. Hosts and their resources, ports, links, paths and everything of
//! others are for operators. Texts that are stored for tenants (reasons, events) are written without such facts in the
//! first place: see `lifecycle`.

use controller_api::Name;
use controller_api::image::Image;
use controller_api::limit::Limit;
use fabric_compiler::tenancy::admission::Refusal;
use fabric_compiler::{CompileError, GuaranteeError};

use super::access::Caller;
use crate::admission::AdmissionError;
use crate::clusters::NotPlanned;
use crate::placement::NodePlacementError;
use crate::planning::PlanningError;
use crate::store::{ImageRow, PartitionNumbersExhausted};

/// A message with a full text for operators, and one without facts about the site for tenants.
pub trait Disclose {
    /// Without hosts, ports, paths or resources of others.
    fn for_tenants(&self) -> String;
    /// The full text.
    fn for_operators(&self) -> String;
}

/// A session could not be opened.
#[derive(Debug)]
pub struct NodeUnreachable(pub anyhow::Error);

/// The host of a node, which does not respond.
#[derive(Debug)]
pub struct SilentHost<'a>(pub &'a Name);

impl Caller {
    /// The text that the caller may see.
    pub fn disclose(&self, what: &impl Disclose) -> String {
        match self {
            Self::Operator => what.for_operators(),
            Self::Tenant(_) => what.for_tenants(),
        }
    }

    /// A fact about the site; `None` for tenants.
    pub fn fact<T>(&self, fact: T) -> Option<T> {
        match self {
            Self::Operator => Some(fact),
            Self::Tenant(_) => None,
        }
    }

    /// A limit as the caller sees it: tenants learn what they requested and what their own quota is, not what the site
    /// has left, which tenants use it and which part is exhausted.
    pub fn disclose_limit(&self, limit: Limit) -> Limit {
        match self {
            Self::Operator => limit,
            Self::Tenant(_) => limit_for_tenants(limit),
        }
    }

    /// An image as the caller sees it; its directory is a fact about the site.
    pub fn image(&self, image: ImageRow) -> Image {
        let ImageRow { name, directory, digest, infiniband, created } = image;
        Image { name, directory: self.fact(directory), digest, infiniband, created }
    }
}

/// Every member is named here, so that a new one cannot be forgotten.
fn limit_for_tenants(limit: Limit) -> Limit {
    match limit {
        Limit::Quota { resource, allowed, requested } => Limit::Quota { resource, allowed, requested },
        Limit::PartitionNumbers { in_use: _, quarantined: _ } => {
            Limit::PartitionNumbers { in_use: None, quarantined: None }
        }
        Limit::UsableHosts { hosts: _ } => Limit::UsableHosts { hosts: None },
        Limit::HostCapacity {
            requested_nodes,
            requested_cores,
            requested_memory,
            nodes_that_fit: _,
            available: _,
        } => Limit::HostCapacity {
            requested_nodes,
            requested_cores,
            requested_memory,
            nodes_that_fit: None,
            available: None,
        },
        Limit::MachineMemory { requested_nodes, requested_memory, nodes_that_fit: _ } => {
            Limit::MachineMemory { requested_nodes, requested_memory, nodes_that_fit: None }
        }
        Limit::DedicatedCores { requested_nodes, requested_cores, available_cores: _, total_cores: _ } => {
            Limit::DedicatedCores {
                requested_nodes,
                requested_cores,
                available_cores: None,
                total_cores: None,
            }
        }
        Limit::Guarantee {
            requested_nodes,
            requested,
            requested_latency_ns,
            nodes_that_fit: _,
            cause: _,
            placement: _,
        } => Limit::Guarantee {
            requested_nodes,
            requested,
            requested_latency_ns,
            nodes_that_fit: None,
            cause: None,
            placement: None,
        },
        Limit::PkeyTable { table: _ } => Limit::PkeyTable { table: None },
    }
}

impl Disclose for AdmissionError {
    fn for_tenants(&self) -> String {
        match self {
            Self::NotYet => self.to_string(),
            Self::NoHost { .. } => "no capacity is left now".to_owned(),
            Self::NoCapacity { reason, .. } => match reason {
                NodePlacementError::Capacity { wanted, cores, memory, .. } => {
                    format!("there is no capacity now for {wanted} nodes of {cores} cores and {memory}")
                }
                NodePlacementError::Memory { wanted, memory, .. } => {
                    format!("there is no capacity now for {wanted} nodes of {memory}")
                }
                NodePlacementError::Dedicated { wanted, cores, .. } => {
                    format!("there is no capacity now for {wanted} nodes with {cores} dedicated cores each")
                }
            },
        }
    }

    fn for_operators(&self) -> String {
        self.to_string()
    }
}

impl Disclose for NotPlanned {
    fn for_tenants(&self) -> String {
        let text = match &self.reason {
            PlanningError::Compile(CompileError::NotAdmitted {
                reason: GuaranteeError::Refused(Refusal::RateUnknown { .. } | Refusal::NoLanes { .. }),
                ..
            }) => "nothing can be guaranteed on a part of the network that this cluster would use",
            PlanningError::Compile(CompileError::NotAdmitted { .. }) => {
                "the network has too little capacity left for this guarantee"
            }
            PlanningError::Compile(_) | PlanningError::Unsound { .. } => {
                "the network cannot carry this cluster now"
            }
            PlanningError::Panicked => "the plan cannot be checked",
        };
        text.to_owned()
    }

    fn for_operators(&self) -> String {
        match &self.reason {
            PlanningError::Compile(CompileError::NotAdmitted { reason, .. }) => {
                format!("the guarantee is not possible: {reason}")
            }
            PlanningError::Compile(_) | PlanningError::Unsound { .. } => self.reason.to_string(),
            PlanningError::Panicked => self.for_tenants(),
        }
    }
}

impl Disclose for PartitionNumbersExhausted {
    fn for_tenants(&self) -> String {
        "no partition number is free now".to_owned()
    }

    fn for_operators(&self) -> String {
        self.to_string()
    }
}

impl Disclose for SilentHost<'_> {
    fn for_tenants(&self) -> String {
        "its host".to_owned()
    }

    fn for_operators(&self) -> String {
        format!("host {}", self.0)
    }
}

impl Disclose for NodeUnreachable {
    fn for_tenants(&self) -> String {
        "the node cannot be reached now".to_owned()
    }

    fn for_operators(&self) -> String {
        format!("{:#}", self.0)
    }
}
