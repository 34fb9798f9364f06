//! What the tables of a view ask for.

use std::collections::BTreeMap;

use fabric_model::intent::Role;
use ib_wire::{Guid, PartitionNumber, PortNum, ServiceLevel};
use serde::{Deserialize, Serialize};

/// What the tables of a view ask for, in the tenant's own names: virtual machines, `switch-3`, ports of the view.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ViewOverlay {
    /// Where packets to each virtual machine leave the switches.
    pub routes: BTreeMap<String, BTreeMap<String, PortNum>>,
    /// The partitions that ports hold keys of, and who is in each.
    pub partitions: BTreeMap<PartitionNumber, BTreeMap<String, Role>>,
    /// Classes of service; `None` if no table of lanes or weights was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub classes: Option<Vec<OverlayClass>>,
}

/// Service levels that share a lane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OverlayClass {
    /// The levels, as the tenant's software names them.
    #[serde(alias = "levels")]
    pub service_levels: Vec<ServiceLevel>,
    /// What the class gets of the cluster's share, relative to the others.
    pub weight: u32,
}

/// A wish that can be, in terms of the physical network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PhysicalOverlay {
    /// Where packets to an adapter port leave switches, by port GUID, then by the switch's node GUID. Switches that are not
    /// named are the planner's to fill. Ports that others use too are left out, and those to which packets go as by default.
    pub routes: BTreeMap<Guid, BTreeMap<Guid, PortNum>>,
    /// Sub-partitions by the tenant's number, with virtual machines. The default one mapping for the cluster's own.
    pub partitions: BTreeMap<PartitionNumber, BTreeMap<String, Role>>,
    /// Classes inside the cluster's share; one or none if everything is alike.
    pub classes: Vec<OverlayClass>,
}

/// What becomes of the overlays of a view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OverlayChange {
    /// A wish that can be. It is in force when [`View::put_in_force`](crate::View::put_in_force) says so.
    Set {
        /// Its number.
        number: u64,
        /// What is wished.
        overlay: Box<PhysicalOverlay>,
    },
    /// Nobody overlays anything any more: the default is to return.
    Withdrawn {
        /// The number under which it was withdrawn.
        number: u64,
    },
}
