//! The persistent part of groups with trees of their own: multicast LID and members. With it, the next manager recognises their
//! entries in forwarding tables, and keeps them until ports have joined again. The other attributes of a group are not stored, above
//! all not its Q_Key, which is a tenant's secret: for clients the group exists again when a port creates it anew.

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
