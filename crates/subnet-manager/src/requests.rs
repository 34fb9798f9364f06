//! Requests to nodes: with their M_Key, along their directed route.

use fabric_model::FabricPlan;
use fabric_model::intent::PortName;
use ib_wire::{MKey, Mad, Method, PortNum, SMP_DATA_LEN};

use crate::attribute_key::AttributeRef;
use crate::manager::{Manager, Phase};
use crate::observed::ObservedNode;
use crate::program::Comparison;
use crate::purpose::Purpose;
use crate::scope::Scope;

impl Manager {
    pub(crate) fn comparison<'a>(&'a self, plan: &'a FabricPlan, scope: &'a Scope) -> Comparison<'a> {
        Comparison {
            plan,
            scope,
            nodes: &self.observed.nodes,
            keys: self.keys.as_ref(),
            bound: &self.bound,
            unsupported: &self.unsupported,
            lacks: &self.lacks,
            own: self.observed.own,
            gid_prefix: self.settings.gid_prefix,
            joined_blocks: self.group_trees.blocks_used(),
        }
    }

    pub(crate) fn read(&mut self, target: AttributeRef) {
        self.request_get(target, Purpose::Read { target });
    }

    /// Reads a known attribute. If the value differs, the node is compared with the plan.
    pub(crate) fn audit(&mut self, target: AttributeRef) {
        self.request_get(target, Purpose::Audit { target });
    }

    pub(crate) fn write(&mut self, target: AttributeRef, data: [u8; SMP_DATA_LEN]) {
        if matches!(self.phase, Phase::Writing(_)) {
            self.written.note(target);
        }
        self.excuse_own_down(target, &data);
        self.request(Method::SET, target, data, Purpose::Write { target });
    }

    pub(crate) fn request_get(&mut self, target: AttributeRef, purpose: Purpose) {
        self.request(Method::GET, target, [0; SMP_DATA_LEN], purpose);
    }

    pub(crate) fn request(
        &mut self,
        method: Method,
        target: AttributeRef,
        data: [u8; SMP_DATA_LEN],
        purpose: Purpose,
    ) {
        let key = self.key_of(PortName { node: target.0, port: target.1 });
        self.request_as(key, method, target, data, purpose);
    }

    /// Sends a request with a given M_Key.
    pub(crate) fn request_as(
        &mut self,
        m_key: Option<MKey>,
        method: Method,
        (node, port, key): AttributeRef,
        data: [u8; SMP_DATA_LEN],
        purpose: Purpose,
    ) {
        let Some(seen) = self.observed.nodes.get(&node) else { return };
        let Some(route) = seen.route(port) else { return };
        let mut mad = Mad::directed(method, key.0, seen.request_modifier(key), route);
        *mad.smp_data_mut() = data;
        mad.set_m_key(m_key);
        self.window.request(node, mad, purpose);
    }

    /// The M_Key to present. A node without a key accepts any.
    pub(crate) fn key_of(&self, port: PortName) -> Option<MKey> {
        // A switch has one key, whatever the port through which it is reached.
        let is_switch = self.observed.nodes.get(&port.node).is_some_and(ObservedNode::is_switch);
        let port = if is_switch { PortName { port: PortNum::MANAGEMENT, ..port } } else { port };
        self.keys.as_ref().and_then(|keys| keys.key(&self.bound, port))
    }
}
