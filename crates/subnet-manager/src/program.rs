//! What has to be read and written for a plan.

use std::collections::BTreeMap;

use fabric_model::FabricPlan;
use fabric_model::plan::{AdapterPortPlan, Enforcement, PkeyTable, SwitchPlan, SwitchPortPlan};
use ib_wire::{
    Attribute, Guid, Lid, MKeyProtection, MulticastBlock, PhysicalState, PkeyBlock, PkeyPosition, PortInfo,
    PortNum, PortState, SMP_DATA_LEN,
};

use crate::keys::SiteSecret;
use crate::observed::{ObservedNode, TableKey};
use crate::scope::Scope;
use crate::unsupported::{Place, Unsupported};

/// The steps of a pass over the fabric, in the order in which each is safe: what is no longer allowed ends before
/// anything new begins, nothing is reachable before its partition is enforced, and nothing becomes active before
/// everything is in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// LIDs, and management keys.
    Addresses,
    /// Ports that the plan does not know stop carrying data.
    Closed,
    /// Partitions and groups, as far as they shrink.
    Shrunk,
    Routes,
    Tops,
    Groups,
    Links,
    Keys,
    Armed,
    Active,
}

impl Stage {
    pub const ALL: [Self; 10] = [
        Self::Addresses,
        Self::Closed,
        Self::Shrunk,
        Self::Routes,
        Self::Tops,
        Self::Groups,
        Self::Links,
        Self::Keys,
        Self::Armed,
        Self::Active,
    ];

    pub fn next(self) -> Option<Self> {
        Self::ALL.into_iter().find(|next| *next > self)
    }
}

/// How long a subnet may take, as an exponent of 4.096 µs: a little over a second.
const SUBNET_TIMEOUT: u8 = 18;

/// One attribute of one port, and what it is to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Write {
    pub node: Guid,
    /// Of an adapter, the port that is reached; of a switch, port 0.
    pub port: PortNum,
    pub key: TableKey,
    pub data: [u8; SMP_DATA_LEN],
}

impl Write {
    pub fn place(&self) -> Place {
        (self.node, self.port, self.key)
    }
}

/// The nodes as they were last seen, and the plan they are compared with.
pub(crate) struct Comparison<'a> {
    pub plan: &'a FabricPlan,
    pub scope: &'a Scope,
    pub nodes: &'a BTreeMap<Guid, ObservedNode>,
    /// What nodes are put under keys with, if they are.
    pub secret: Option<&'a SiteSecret>,
    pub unsupported: &'a Unsupported,
}

impl Comparison<'_> {
    /// Tables that have to be known before anything is compared. A switch whose table is empty needs no reading.
    pub fn reads(&self) -> Vec<Place> {
        let stages = [Stage::Routes, Stage::Groups, Stage::Keys];
        let tables = stages.into_iter().flat_map(|stage| self.wanted(stage));
        tables.filter(|write| !self.is_known(write)).map(|write| write.place()).collect()
    }

    /// What a step has to write: the differences, and nothing else.
    pub fn writes(&self, stage: Stage) -> Vec<Write> {
        let mut writes = self.wanted(stage);
        if !matches!(stage, Stage::Closed | Stage::Armed | Stage::Active) {
            writes.retain(|write| self.differs(write));
        }
        writes
    }

    fn differs(&self, write: &Write) -> bool {
        let held = self.nodes.get(&write.node).and_then(|node| node.held(write.port, write.key));
        held.is_none_or(|held| self.unsupported.differs(write.place(), &held, &write.data))
    }

    /// Routes of a switch that has none yet are written without having been read.
    fn is_known(&self, write: &Write) -> bool {
        let Some(node) = self.nodes.get(&write.node) else { return true };
        let is_blank = write.key.0 == Attribute::LINEAR_FORWARDING
            && node.switch.as_ref().is_some_and(|switch| switch.linear_fdb_top == 0);
        is_blank || node.tables.contains_key(&(write.port, write.key))
    }

    /// Everything the plan says about a step, but for what cannot be said of ports that were not seen.
    fn wanted(&self, stage: Stage) -> Vec<Write> {
        let mut writes = Vec::new();
        for switch in self.scope.switches.iter().filter_map(|guid| self.plan.switch(*guid)) {
            if let Some(node) = self.nodes.get(&switch.guid) {
                self.wanted_of_switch(stage, switch, node, &mut writes);
            }
        }
        for port in self.scope.adapter_ports.iter().filter_map(|guid| self.plan.adapter_port(*guid)) {
            if let Some(node) = self.nodes.get(&port.name.node) {
                self.wanted_of_adapter(stage, port, node, &mut writes);
            }
        }
        writes
    }

    fn wanted_of_switch(
        &self,
        stage: Stage,
        plan: &SwitchPlan,
        node: &ObservedNode,
        writes: &mut Vec<Write>,
    ) {
        let own = |(key, data)| Write { node: plan.guid, port: PortNum::MANAGEMENT, key, data };
        match stage {
            Stage::Addresses => {
                let wanted = |info: &mut PortInfo| {
                    address(info, plan.lid, self.plan.manager().lid);
                    self.guard(info, plan.guid);
                };
                writes.extend(port_info(node, PortNum::MANAGEMENT, wanted).map(own));
            }
            Stage::Closed => {
                let stray = |port: &PortNum| *port != PortNum::MANAGEMENT && plan.port(*port).is_none();
                writes.extend(
                    node.ports.keys().copied().filter(stray).filter_map(|it| close(node, it)).map(own),
                );
            }
            Stage::Shrunk => {}
            Stage::Routes => {
                writes.extend((0..plan.linear.block_count()).map(|block| {
                    own(((Attribute::LINEAR_FORWARDING, block.into()), plan.linear_block(block)))
                }))
            }
            Stage::Tops => writes.extend(switch_info(plan, node).map(own)),
            Stage::Groups => {
                let positions = node.info.port_count / 16 + 1;
                for block in 0..plan.multicast.block_count().max(1) {
                    writes.extend((0..positions).map(|position| {
                        let modifier = MulticastBlock::to_modifier(block, position);
                        let data = plan.multicast_block(block, position).encode();
                        own(((Attribute::MULTICAST_FORWARDING, modifier), data))
                    }));
                }
            }
            Stage::Links => {
                let wanted = |port: &SwitchPortPlan| port_info(node, port.number, |info| link(info, port));
                writes.extend(plan.ports.iter().filter_map(wanted).map(own));
            }
            Stage::Keys => {
                writes.extend(keys(&plan.pkeys, 0, node.info.partition_capacity).map(own));
                let capacity = node.switch.as_ref().map_or(0, |switch| switch.partition_enforcement_capacity);
                for port in &plan.ports {
                    if let Enforcement::Both(table) = &port.enforcement {
                        writes.extend(keys(table, port.number.to_wire().into(), capacity).map(own));
                    }
                }
            }
            Stage::Armed | Stage::Active => {
                let wanted = |port: &SwitchPortPlan| step(node, port.number, stage);
                writes.extend(plan.ports.iter().filter_map(wanted).map(own));
            }
        }
    }

    fn wanted_of_adapter(
        &self,
        stage: Stage,
        plan: &AdapterPortPlan,
        node: &ObservedNode,
        writes: &mut Vec<Write>,
    ) {
        let port = plan.name.port;
        let own = |(key, data)| Write { node: plan.name.node, port, key, data };
        match stage {
            Stage::Addresses => {
                let wanted = |info: &mut PortInfo| {
                    address(info, plan.lid, self.plan.manager().lid);
                    self.guard(info, plan.name.node);
                    (info.neighbor_mtu, info.operational_vls) = (plan.mtu, plan.lanes);
                };
                writes.extend(port_info(node, port, wanted).map(own));
            }
            Stage::Keys => writes.extend(keys(&plan.pkeys, 0, node.info.partition_capacity).map(own)),
            Stage::Armed | Stage::Active => writes.extend(step(node, port, stage).map(own)),
            Stage::Closed | Stage::Shrunk | Stage::Routes | Stage::Tops | Stage::Groups | Stage::Links => {}
        }
    }

    /// Closed to everybody without the node's own key, for as long as it runs.
    fn guard(&self, info: &mut PortInfo, node: Guid) {
        if let Some(secret) = self.secret {
            info.m_key = Some(secret.key(node));
            info.m_key_protection = MKeyProtection::Closed;
            info.m_key_lease_period_s = 0;
        }
    }
}

fn address(info: &mut PortInfo, lid: Lid, manager: Lid) {
    info.lid = Some(lid);
    info.lmc = AdapterPortPlan::LMC;
    info.master_sm_lid = Some(manager);
    info.subnet_timeout = SUBNET_TIMEOUT;
}

fn link(info: &mut PortInfo, plan: &SwitchPortPlan) {
    let enforced = matches!(plan.enforcement, Enforcement::Both(_));
    (info.neighbor_mtu, info.operational_vls) = (plan.mtu, plan.lanes);
    (info.enforce_inbound, info.enforce_outbound) = (enforced, enforced);
}

/// What a port's PortInfo should be; its state is as it was seen.
fn port_info(
    node: &ObservedNode,
    port: PortNum,
    change: impl FnOnce(&mut PortInfo),
) -> Option<(TableKey, [u8; SMP_DATA_LEN])> {
    let mut wanted = node.ports.get(&port)?.clone();
    change(&mut wanted);
    Some(((Attribute::PORT_INFO, port.to_wire().into()), wanted.encode()))
}

/// A Set of PortInfo that changes no state.
pub(crate) fn without_state(mut data: [u8; SMP_DATA_LEN]) -> [u8; SMP_DATA_LEN] {
    if let Ok(mut info) = PortInfo::decode(&data) {
        (info.state, info.physical_state) = (PortState::NoChange, PhysicalState::NoChange);
        data = info.encode();
    }
    data
}

/// The Set that takes a port one step up, if it is on the step below.
fn step(node: &ObservedNode, port: PortNum, stage: Stage) -> Option<(TableKey, [u8; SMP_DATA_LEN])> {
    let (below, wanted) = match stage {
        Stage::Armed => (PortState::Initialize, PortState::Armed),
        _ => (PortState::Armed, PortState::Active),
    };
    let mut info = node.ports.get(&port).filter(|info| info.state == below)?.clone();
    (info.state, info.physical_state) = (wanted, PhysicalState::NoChange);
    Some(((Attribute::PORT_INFO, port.to_wire().into()), info.encode()))
}

/// The Set that stops a port from carrying data, if it does: its link trains again and stays in its first state.
fn close(node: &ObservedNode, port: PortNum) -> Option<(TableKey, [u8; SMP_DATA_LEN])> {
    let carries = |info: &&PortInfo| matches!(info.state, PortState::Armed | PortState::Active);
    let mut info = node.ports.get(&port).filter(carries)?.clone();
    (info.state, info.physical_state) = (PortState::Down, PhysicalState::NoChange);
    Some(((Attribute::PORT_INFO, port.to_wire().into()), info.encode()))
}

/// SwitchInfo as it should be. PortStateChange is cleared by writing it.
fn switch_info(plan: &SwitchPlan, node: &ObservedNode) -> Option<(TableKey, [u8; SMP_DATA_LEN])> {
    let mut info = node.switch.clone()?;
    info.linear_fdb_top = plan.linear.top();
    Some(((Attribute::SWITCH_INFO, 0), info.encode()))
}

/// All blocks of a P_Key table: what the plan does not name is empty.
fn keys(table: &PkeyTable, port: u16, capacity: u16) -> impl Iterator<Item = (TableKey, [u8; SMP_DATA_LEN])> {
    (0..capacity.div_ceil(PkeyBlock::ENTRIES as u16)).map(move |block| {
        let modifier = PkeyPosition { port, block }.to_modifier();
        ((Attribute::PKEY_TABLE, modifier), table.block(block).encode())
    })
}
