//! What takes a while: creating, resizing, deleting.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::Name;
use crate::cluster::Phase;

/// Something that was asked for and takes a while.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Operation {
    /// By which it can be followed.
    pub id: Uuid,
    /// Whose cluster.
    pub tenant: Name,
    /// Which cluster, by name.
    pub cluster: Name,
    /// Which cluster, by id: names may be used again.
    pub cluster_id: Uuid,
    /// What was asked for.
    pub kind: OperationKind,
    /// How it stands.
    pub state: OperationState,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When it was asked for.
    #[schema(value_type = String)]
    pub started: Timestamp,
    /// When it ended.
    #[schema(value_type = Option<String>)]
    pub ended: Option<Timestamp>,
    /// Phases the cluster has come through since, with when.
    pub steps: Vec<PhaseChange>,
}

/// A phase that was reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PhaseChange {
    /// Which.
    pub phase: Phase,
    /// When.
    #[schema(value_type = String)]
    pub at: Timestamp,
}

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum OperationKind {
    /// A new cluster.
    Create,
    /// More or fewer nodes.
    Resize,
    /// Other partitions inside.
    Partition,
    /// No cluster any more.
    Delete,
}

/// How an operation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum OperationState {
    /// It goes on.
    Running,
    /// It is done.
    Done,
    /// It could not be done.
    Failed,
}
