//! Overlays: what a tenant's subnet manager writes into the tables of its view.

use std::collections::BTreeMap;

use fabric_model::intent::Role;
use ib_wire::{Guid, PartitionNumber, PortNum, ServiceLevel};
use serde::{Deserialize, Serialize};

/// The contents of a view's tables in the tenant's names: virtual machines, `switch-3`, ports of the view.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ViewOverlay {
    /// Output port of each switch, by virtual machine and switch.
    pub routes: BTreeMap<String, BTreeMap<String, PortNum>>,
    /// Members of each partition, by its number in the view.
    pub partitions: BTreeMap<PartitionNumber, BTreeMap<String, Role>>,
    /// `None` if no SL-to-VL or arbitration table was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub classes: Option<Vec<OverlayClass>>,
}

/// A class of service: service levels that share a lane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OverlayClass {
    /// Service levels of the view.
    #[serde(alias = "levels")]
    pub service_levels: Vec<ServiceLevel>,
    /// The class's part of the cluster's share, relative to the other weights.
    pub weight: u32,
}

/// An applicable overlay in terms of the physical network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PhysicalOverlay {
    /// Output ports for an adapter port, by its port GUID, then by node GUID of the switch. The compiler routes at
    /// switches that are not named. Ports that other virtual machines use, and ports with default routes, are absent.
    pub routes: BTreeMap<Guid, BTreeMap<Guid, PortNum>>,
    /// Members of the sub-partitions, by their number in the view; the default partition stands for the cluster's
    /// own.
    pub partitions: BTreeMap<PartitionNumber, BTreeMap<String, Role>>,
    /// Classes inside the cluster's share; none or one if it is not divided.
    pub classes: Vec<OverlayClass>,
}

/// A change of a view's overlay, see [`View::poll_overlay`](crate::View::poll_overlay).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OverlayChange {
    /// Apply this overlay, then call [`View::put_in_force`](crate::View::put_in_force), or
    /// [`View::refuse`](crate::View::refuse) if it cannot be planned.
    Set { number: u64, overlay: Box<PhysicalOverlay> },
    /// Return to the default, then call [`View::put_in_force`](crate::View::put_in_force) with this number.
    Withdrawn { number: u64 },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_stored_by_earlier_versions_are_read() {
        let class: OverlayClass = serde_json::from_str(r#"{"levels":[0,1],"weight":3}"#).unwrap();
        let service_levels = (0..2).filter_map(ServiceLevel::from_wire).collect();
        assert_eq!(class, OverlayClass { service_levels, weight: 3 });
    }
}
