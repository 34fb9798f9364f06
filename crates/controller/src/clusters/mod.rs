//! Use cases of clusters: create, resize, partition and delete.
//!
//! Each function holds [`Site::writer`](crate::site::Site::writer) while it reads, decides and stores, and returns the
//! operation that the control loops complete. The caller has validated the values of the request, and has checked that it
//! may act for the owner. Errors carry all facts; `rest` decides which of them the caller may see.

mod create;
mod delete;
mod partition;
mod resize;
mod steps;

use controller_api::Name;
use controller_api::cluster::{InvalidSubPartition, Phase};
use fabric_model::tenancy::Class;
use thiserror::Error;

use crate::admission::{AdmissionError, NotExclusive};
use crate::planning::PlanningError;
use crate::quota::QuotaExceeded;
use crate::store::{PartitionNumbersExhausted, StoreError};

pub use create::create;
pub use delete::{Deletion, delete};
pub use partition::partition;
pub use resize::resize;

/// Why a cluster cannot be created or changed.
#[derive(Debug, Error)]
pub enum ClusterError {
    /// The owner has no cluster of this name.
    #[error("there is no cluster {0}")]
    NoSuchCluster(Name),
    /// The tenant was deleted meanwhile.
    #[error("there is no tenant {0}")]
    NoSuchTenant(Name),
    /// The tenant has a cluster of this name.
    #[error("cluster {0} exists already")]
    NameTaken(Name),
    /// `known` are the names of the existing images.
    #[error("there is no image {name}")]
    NoSuchImage { name: Name, known: Vec<Name> },
    /// An InfiniBand adapter is asked for, and the image cannot drive it.
    #[error("image {0} has no driver for InfiniBand adapters")]
    NoInfinibandDriver(Name),
    /// The cluster is not ready, or an operation on it is in progress.
    #[error("cluster {name} is {phase}; only a ready cluster can be changed")]
    Busy { name: Name, phase: Phase },
    #[error(transparent)]
    InvalidSubPartition(#[from] InvalidSubPartition),
    #[error(transparent)]
    NumbersExhausted(#[from] PartitionNumbersExhausted),
    #[error(transparent)]
    Quota(#[from] QuotaExceeded),
    /// The nodes cannot be placed.
    #[error(transparent)]
    NotPlaced(#[from] AdmissionError),
    #[error(transparent)]
    NotPlanned(#[from] NotPlanned),
    /// The key pair of the cluster cannot be generated.
    #[error("cannot generate the key pair of the cluster")]
    NoKeys(#[source] anyhow::Error),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Placed nodes for which there is no plan.
#[derive(Debug, Error)]
#[error("{reason}")]
pub struct NotPlanned {
    pub reason: PlanningError,
    /// Nodes of the cluster, new ones included.
    pub nodes: u32,
    pub class: Class,
    /// Why the new nodes of a guaranteed cluster have no hosts of their own; `None` if they have.
    pub not_exclusive: Option<NotExclusive>,
}
