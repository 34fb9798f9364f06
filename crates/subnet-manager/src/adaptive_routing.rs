//! Recognises switches that another manager has left with adaptive routing on. The manager does not switch it off: the
//! vendor's attribute has more fields than are known.

use ib_wire::{AdaptiveRoutingInfo, Attribute, Guid, NodeInfo, NodeKind, PortNum};

use crate::manager::Manager;
use crate::purpose::Purpose;

/// Vendor whose switches have the attribute.
const MELLANOX: u32 = 0x2c9;

/// Switches that can route adaptively, by NodeInfo:DeviceID: SwitchX, Switch-IB, Switch-IB 2, Quantum, Quantum-2. Others
/// may not answer requests for attributes that they do not know (A-PROF-5).
const ADAPTIVE: [u16; 5] = [0xc738, 0xcb20, 0xcf08, 0xd2f0, 0xd2f2];

/// Whether a node may have adaptive routing on.
pub(crate) fn may_route_adaptively(info: &NodeInfo) -> bool {
    info.kind == NodeKind::Switch && info.vendor_id == MELLANOX && ADAPTIVE.contains(&info.device_id)
}

impl Manager {
    /// Asks a switch whether adaptive routing is on.
    pub(crate) fn query_adaptive_routing(&mut self, node: Guid) {
        let target = (node, PortNum::MANAGEMENT, (Attribute::ADAPTIVE_ROUTING_INFO, 0));
        self.request_get(target, Purpose::AdaptiveRouting { node });
    }

    /// Records the answer; `None` if the switch does not have the attribute.
    pub(crate) fn record_adaptive_routing(&mut self, node: Guid, info: Option<AdaptiveRoutingInfo>) {
        let is_on = info.is_some_and(|info| info.enabled);
        if let Some(node) = self.observed.nodes.get_mut(&node) {
            self.observed.changed |= node.routes_adaptively != is_on;
            node.routes_adaptively = is_on;
        }
    }
}
