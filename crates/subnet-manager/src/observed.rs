//! What devices were last seen to hold.

use std::collections::{BTreeMap, BTreeSet};

use fabric_model::intent::{Capabilities, PortCapability, PortName, SwitchCapability};
use ib_wire::{
    Attribute, DirectedRoute, Guid, NodeDescription, NodeInfo, NodeKind, PortInfo, PortNum, SMP_DATA_LEN,
    SwitchInfo,
};

/// A table of a node, or a part of one: the attribute and the modifier that selects it.
pub(crate) type TableKey = (Attribute, u32);

/// A node as far as it answered.
#[derive(Clone, Debug)]
pub(crate) struct ObservedNode {
    pub info: NodeInfo,
    pub description: Option<NodeDescription>,
    pub switch: Option<SwitchInfo>,
    /// How to reach it: a switch by one route, an adapter by one for each of its ports.
    pub routes: BTreeMap<PortNum, DirectedRoute>,
    pub ports: BTreeMap<PortNum, PortInfo>,
    pub port_guids: BTreeMap<PortNum, Guid>,
    /// Ports that answered to the key of this node: they are under it. Of a switch, port 0.
    pub keyed: BTreeSet<PortNum>,
    /// The other end of each cable that was followed.
    pub links: BTreeMap<PortNum, (Guid, PortNum)>,
    /// Tables that were read or written, as blocks: of a switch under port 0, of an adapter under the port they belong to.
    pub tables: BTreeMap<(PortNum, TableKey), [u8; SMP_DATA_LEN]>,
}

impl ObservedNode {
    pub fn is_switch(&self) -> bool {
        self.info.kind == NodeKind::Switch
    }

    /// The route to use for a port's attributes: the switch's own, or the adapter port's.
    pub fn route(&self, port: PortNum) -> Option<&DirectedRoute> {
        if self.is_switch() { self.routes.values().next() } else { self.routes.get(&port) }
    }

    /// The port whose key guards `port`: a switch's port 0, an adapter's port itself.
    pub fn guard(&self, port: PortNum) -> PortNum {
        if self.is_switch() { PortNum::MANAGEMENT } else { port }
    }

    /// What the node can hold, for whoever compiles a plan.
    pub fn add_capabilities(&self, all: &mut Capabilities) {
        let node = self.info.node_guid;
        for (port, info) in &self.ports {
            let pkeys = match &self.switch {
                Some(switch) if *port != PortNum::MANAGEMENT => switch.partition_enforcement_capacity,
                _ => self.info.partition_capacity,
            };
            let capability = PortCapability { pkeys, mtu: info.mtu_cap, lanes: info.vl_cap };
            all.ports.insert(PortName { node, port: *port }, capability);
        }
        if let Some(switch) = &self.switch {
            let capability = SwitchCapability {
                linear: switch.linear_fdb_capacity,
                multicast: switch.multicast_fdb_capacity,
                enforced_pkeys: switch.partition_enforcement_capacity,
                own_pkeys: self.info.partition_capacity,
            };
            all.switches.insert(node, capability);
        }
    }
}
