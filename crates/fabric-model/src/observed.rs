//! Tables that were read from the devices of a running fabric, whichever subnet manager configured it.

use std::collections::BTreeMap;

use ib_wire::{Guid, Lid};

use crate::plan::{LinearTable, PkeyTable};

/// Tables as devices hold them. Tables that were not read or are not set are absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedTables {
    /// Base LIDs by port GUID. Two ports may claim the same LID.
    pub lids: BTreeMap<Guid, Lid>,
    /// Linear forwarding tables, by node GUID of the switch.
    pub linear: BTreeMap<Guid, LinearTable>,
    /// P_Key tables of end ports, by port GUID.
    pub pkeys: BTreeMap<Guid, PkeyTable>,
}
