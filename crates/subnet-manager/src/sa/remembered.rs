//! What a manager remembers of groups with trees of their own: who is in them, by which multicast LID. The next manager finds their
//! entries in forwarding tables right, and keeps them until ports have joined again. It knows no more of such a group, above all
//! not its Q_Key, which is a tenant's secret: for clients the group exists again when a port creates it anew.

use std::collections::BTreeMap;

use ib_wire::{Gid, Guid, MulticastLid, PartitionNumber};
use serde::{Deserialize, Serialize};

/// A group that ports created, with a multicast LID of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RememberedGroup {
    pub mgid: Gid,
    pub partition: PartitionNumber,
    pub mlid: MulticastLid,
    /// By GUID of the port or of an alias.
    pub members: BTreeMap<Guid, MemberKind>,
}

/// What a member of a group does with packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemberKind {
    SendsOnly,
    Receives,
}
