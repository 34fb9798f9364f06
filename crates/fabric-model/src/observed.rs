//! What devices of a running fabric were found to hold, whoever configured them.

use std::collections::BTreeMap;

use ib_wire::{Guid, Lid};

use crate::plan::{LinearTable, PkeyTable};

/// Tables as read from devices. What was not read, or is not set, is left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedTables {
    /// LIDs by port GUID; of a port with several the first. Ports may claim the same.
    pub lids: BTreeMap<Guid, Lid>,
    /// Linear forwarding tables by the switch's node GUID.
    pub linear: BTreeMap<Guid, LinearTable>,
    /// P_Key tables of end ports, by port GUID.
    pub pkeys: BTreeMap<Guid, PkeyTable>,
}
