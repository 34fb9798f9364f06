//! Asynchronous operations: create, resize, partition and delete.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::Name;
use crate::cluster::Phase;

/// Asynchronous operation on a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Operation {
    /// Unique id of the operation.
    pub id: Uuid,
    /// Name of the tenant that owns the cluster.
    pub tenant: Name,
    /// Name of the cluster operated on.
    pub cluster: Name,
    /// Unique id of the cluster; its name may be reused.
    pub cluster_id: Uuid,
    /// Kind of the requested operation.
    pub kind: OperationKind,
    /// Current state of the operation.
    pub state: OperationState,
    /// Reason for the failure; absent unless the state is `failed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Time of the request (RFC 3339).
    #[schema(value_type = String)]
    pub started: Timestamp,
    /// Time at which the operation ended (RFC 3339); absent while it runs.
    #[schema(value_type = Option<String>)]
    pub ended: Option<Timestamp>,
    /// Phases that the cluster has reached since the start, in order.
    pub steps: Vec<PhaseChange>,
}

/// Phase that a cluster has reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PhaseChange {
    /// Phase that was reached.
    pub phase: Phase,
    /// Time of the change (RFC 3339).
    #[schema(value_type = String)]
    pub at: Timestamp,
}

/// Kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum OperationKind {
    Create,
    Resize,
    /// Replacement of the sub-partitions.
    Partition,
    Delete,
}

/// State of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum OperationState {
    Running,
    Done,
    Failed,
}
