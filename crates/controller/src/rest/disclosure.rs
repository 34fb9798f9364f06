//! What tenants are not told, left out in this one place.
//!
//! A tenant sees a network of its own under names of its own. Hosts and what they have left, ports, cables, paths and
//! whatever belongs to others are for operators. Everything here has two faces; a caller sees one of them. What is
//! stored for tenants (reasons of clusters and operations, events) is written without such facts in the first place:
//! see `lifecycle`.

use controller_api::image::Image;
use fabric_compiler::CompileError;

use super::access::Caller;
use crate::admission::AdmissionError;
use crate::network::PlanError;
use crate::placement::PlacementError;
use crate::store::ImageRow;

/// Something that operators are told in full, and tenants without facts about the site.
pub trait Disclose {
    /// Without hosts, ports, paths or what others have.
    fn for_tenants(&self) -> String;
    /// All of it.
    fn for_operators(&self) -> String;
}

/// The session of a node could not be opened.
#[derive(Debug)]
pub struct NodeUnreachable(pub anyhow::Error);

impl Caller {
    /// As much as the caller may know.
    pub fn disclose(&self, what: &impl Disclose) -> String {
        match self {
            Self::Operator => what.for_operators(),
            Self::Tenant(_) => what.for_tenants(),
        }
    }

    /// A fact about the site, if the caller may know it.
    pub fn fact<T>(&self, fact: T) -> Option<T> {
        match self {
            Self::Operator => Some(fact),
            Self::Tenant(_) => None,
        }
    }

    /// An image: where hosts find it is a fact about the site.
    pub fn image(&self, image: ImageRow) -> Image {
        let ImageRow { name, directory, digest, created } = image;
        Image { name, directory: self.fact(directory), digest, created }
    }
}

impl Disclose for AdmissionError {
    fn for_tenants(&self) -> String {
        match self {
            Self::NotYet => self.to_string(),
            Self::NoHost { .. } => "no capacity is left now".to_owned(),
            Self::PlacementError(PlacementError::Capacity { wanted, cores, memory, .. }) => {
                format!("there is no room now for {wanted} nodes of {cores} cores and {memory}")
            }
            Self::PlacementError(PlacementError::Memory { wanted, memory, .. }) => {
                format!("there is no room now for {wanted} nodes of {memory}")
            }
            Self::PlacementError(PlacementError::Dedicated { wanted, cores, .. }) => {
                format!("there is no room now for {wanted} nodes of {cores} cores of their own")
            }
        }
    }

    fn for_operators(&self) -> String {
        self.to_string()
    }
}

impl Disclose for PlanError {
    fn for_tenants(&self) -> String {
        match self {
            Self::Compile(CompileError::NotAdmitted { .. }) => {
                "the network has too little left to guarantee that now".to_owned()
            }
            Self::Compile(_) | Self::Unsound { .. } => "the network cannot carry that now".to_owned(),
        }
    }

    fn for_operators(&self) -> String {
        match self {
            Self::Compile(CompileError::NotAdmitted { reason, .. }) => {
                format!("that cannot be promised: {reason}")
            }
            Self::Compile(_) | Self::Unsound { .. } => self.to_string(),
        }
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
