//! ClientReregister: software at a port is asked to register anew what subnet administration does not know: membership in
//! multicast groups, and subscriptions.
//!
//! Of registrations, only the groups with trees of their own are persisted. Every manager asks each adapter port once, as soon as
//! subnet administration answers from the plan, and again after its link was down: so a restart, a takeover from another manager
//! and a port that comes need no rules of their own.
//!
//! Software keeps the paths that it was told, by GID. No kernel subscribes to notices about the ports of others, but IPoIB discards its paths
//! when its own port is asked to register. So when an address moves to another LID, its peers are asked, too.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fabric_model::intent::PortName;
use fabric_model::plan::AdapterPortPlan;
use ib_wire::{Attribute, Capability, Guid, Lid, Method, Pkey, PortInfo, PortState};

use crate::attribute_key::AttributeRef;
use crate::manager::{Manager, Phase};
use crate::program::{Write, without_state};
use crate::purpose::Purpose;

/// Addresses that are in no plan any more, and whose LIDs are kept: an address that moves may be in none for a while.
const DEPARTED_MAX: usize = 4096;

/// Which ports were asked to register.
#[derive(Debug, Default)]
pub(crate) struct Registration {
    /// Ports that still have to be asked.
    pending: BTreeSet<PortName>,
    asked: BTreeSet<PortName>,
    /// LID of each address, port or alias, in the last plan that had it.
    lids: BTreeMap<Guid, Lid>,
}

impl Registration {
    /// The link of a port is not active: whatever its software registered is void.
    pub fn forget(&mut self, port: PortName) {
        self.pending.remove(&port);
        self.asked.remove(&port);
    }
}

impl Manager {
    /// Asks the active adapter ports of the current run that were not asked yet.
    pub(crate) fn begin_registration(&mut self) {
        let Some(plan) = self.plan.clone() else { return };
        let ports = self.scope.adapter_ports.iter().filter_map(|guid| plan.adapter_port(*guid));
        let unasked = ports.map(|port| port.name).filter(|name| !self.registration.asked.contains(name));
        let unasked: Vec<PortName> = unasked.filter(|name| self.can_be_asked(*name)).collect();
        self.registration.pending.extend(unasked);
        let pending: Vec<PortName> = self.registration.pending.iter().copied().collect();
        for name in pending {
            let node = self.observed.nodes.get(&name.node);
            let Some(info) = node.and_then(|node| node.ports.get(&name.port)) else { continue };
            let info = PortInfo { client_reregister: true, ..info.clone() };
            let target: AttributeRef =
                (name.node, name.port, (Attribute::PORT_INFO, name.port.to_wire().into()));
            self.phase = Phase::Registering;
            self.request(Method::SET, target, without_state(info.encode()), Purpose::Register { target });
        }
    }

    /// Where other managers are declared: asks ports to register in the same Set that names their new manager, so that a takeover
    /// costs one Set for each.
    pub(crate) fn ask_with_new_manager(&self, writes: &mut [Write]) {
        if !self.has_peers() {
            return;
        }
        for write in writes.iter_mut().filter(|write| write.key.0 == Attribute::PORT_INFO) {
            let name = PortName { node: write.node, port: write.port };
            let held = self.observed.nodes.get(&write.node).and_then(|node| node.ports.get(&write.port));
            let Ok(wanted) = PortInfo::decode(&write.data) else { continue };
            let has_new_manager = held.is_some_and(|held| held.master_sm_lid != wanted.master_sm_lid);
            if has_new_manager && self.can_be_asked(name) {
                write.data = PortInfo { client_reregister: true, ..wanted }.encode();
            }
        }
    }

    /// Asks ports again whose membership in groups ended with a plan.
    pub(crate) fn ask_evicted(&mut self) {
        let evicted = self.sa.take_evicted();
        let Some(plan) = self.plan.as_ref().filter(|_| !evicted.is_empty()) else { return };
        let has_evicted = |port: &&AdapterPortPlan| {
            evicted.contains(&port.guid) || port.aliases.values().any(|alias| evicted.contains(&alias.guid))
        };
        let names: Vec<PortName> = plan.adapter_ports().filter(has_evicted).map(|port| port.name).collect();
        let open: Vec<PortName> = names.into_iter().filter(|name| self.can_be_asked(*name)).collect();
        self.registration.pending.extend(open);
    }

    /// Asks ports again that may know a path to an address whose LID has changed.
    pub(crate) fn ask_peers_of_moved(&mut self) {
        let Some(plan) = self.plan.clone() else { return };
        let (mut moved, mut addresses) = (BTreeSet::new(), 0);
        for port in plan.adapter_ports() {
            let aliases = port.aliases.values().map(|alias| alias.guid);
            for guid in aliases.chain([port.guid]) {
                addresses += 1;
                let before = self.registration.lids.insert(guid, port.lid);
                if before.is_some_and(|before| before != port.lid) {
                    moved.extend(keys_of(port, guid));
                }
            }
        }
        if self.registration.lids.len() > addresses + DEPARTED_MAX {
            let present = |guid| plan.adapter_port(guid).is_some();
            let aliases = plan.adapter_ports().flat_map(|port| port.aliases.values());
            let aliases: BTreeSet<Guid> = aliases.map(|alias| alias.guid).collect();
            self.registration.lids.retain(|guid, _| present(*guid) || aliases.contains(guid));
        }
        if moved.is_empty() {
            return;
        }
        let is_peer = |port: &&AdapterPortPlan| {
            port.pkeys.keys().any(|held| moved.iter().any(|key: &Pkey| key.is_accepted_by(held)))
        };
        let names: Vec<PortName> = plan.adapter_ports().filter(is_peer).map(|port| port.name).collect();
        let open: Vec<PortName> = names.into_iter().filter(|name| self.can_be_asked(*name)).collect();
        self.registration.pending.extend(open);
    }

    /// Whether a port is active and takes the request.
    fn can_be_asked(&self, name: PortName) -> bool {
        let node = self.observed.nodes.get(&name.node);
        node.and_then(|node| node.ports.get(&name.port)).is_some_and(|info| {
            info.state == PortState::Active && info.capability.has(Capability::CLIENT_REREGISTER)
        })
    }

    /// A port answered, whatever it thinks of the request.
    pub(crate) fn record_asked(&mut self, (node, port, _): AttributeRef) {
        let name = PortName { node, port };
        self.registration.pending.remove(&name);
        self.registration.asked.insert(name);
    }

    /// All ports answered, or were given up and are asked again after the next programming run.
    pub(crate) fn conclude_registration(&mut self, now: Duration) {
        self.phase = Phase::Idle;
        for node in std::mem::take(&mut self.silent) {
            self.sweeps.schedule_recheck_of_silent(now, node);
        }
    }
}

/// The P_Keys of an address of a port: all of the port's, or those of the partitions of the alias.
fn keys_of(port: &AdapterPortPlan, guid: Guid) -> impl Iterator<Item = Pkey> {
    let alias = port.aliases.values().find(|alias| alias.guid == guid);
    port.pkeys.keys().filter(move |key| alias.is_none_or(|alias| alias.partitions.contains(&key.partition())))
}
