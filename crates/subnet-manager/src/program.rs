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

/// The steps of programming, in the order in which each is safe: nothing is reachable before its partition is enforced,
/// and nothing becomes active before everything is in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    Addresses,
    Routes,
    Tops,
    Groups,
    Keys,
    Links,
    Armed,
    Active,
}

impl Stage {
    pub const ALL: [Self; 8] = [
        Self::Addresses,
        Self::Routes,
        Self::Tops,
        Self::Groups,
        Self::Keys,
        Self::Links,
        Self::Armed,
        Self::Active,
    ];
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

/// The nodes as they were last seen, and the plan they are compared with.
pub(crate) struct Comparison<'a> {
    pub plan: &'a FabricPlan,
    pub nodes: &'a BTreeMap<Guid, ObservedNode>,
    /// What nodes are put under keys with, if they are.
    pub secret: Option<&'a SiteSecret>,
}

impl Comparison<'_> {
    /// Tables that have to be known before anything is compared. A switch whose table is empty needs no reading.
    pub fn reads(&self) -> Vec<(Guid, PortNum, TableKey)> {
        let stages = [Stage::Routes, Stage::Groups, Stage::Keys];
        let tables = stages.into_iter().flat_map(|stage| self.wanted(stage));
        tables
            .filter(|write| !self.is_blank(write))
            .map(|write| (write.node, write.port, write.key))
            .collect()
    }

    /// What a step has to write: the differences, and nothing else.
    pub fn writes(&self, stage: Stage) -> Vec<Write> {
        let differs = |write: &Write| {
            let node = self.nodes.get(&write.node);
            node.and_then(|node| node.tables.get(&(write.port, write.key))) != Some(&write.data)
        };
        match stage {
            Stage::Routes | Stage::Groups | Stage::Keys => {
                self.wanted(stage).into_iter().filter(differs).collect()
            }
            _ => self.wanted(stage),
        }
    }

    /// Routes of a switch that has none yet are written without having been read.
    fn is_blank(&self, write: &Write) -> bool {
        let top = self
            .nodes
            .get(&write.node)
            .and_then(|node| node.switch.as_ref())
            .map(|switch| switch.linear_fdb_top);
        write.key.0 == Attribute::LINEAR_FORWARDING && top == Some(0)
    }

    fn wanted(&self, stage: Stage) -> Vec<Write> {
        let mut writes = Vec::new();
        for switch in self.plan.switches() {
            if let Some(node) = self.nodes.get(&switch.guid) {
                self.wanted_of_switch(stage, switch, node, &mut writes);
            }
        }
        for port in self.plan.adapter_ports() {
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
        let own = |key, data| Write { node: plan.guid, port: PortNum::MANAGEMENT, key, data };
        match stage {
            Stage::Addresses => {
                let wanted = |info: &mut PortInfo| {
                    address(info, plan.lid, self.plan.manager().lid);
                    self.guard(info, plan.guid);
                };
                writes.extend(port_info(node, PortNum::MANAGEMENT, wanted).map(|(key, data)| own(key, data)));
            }
            Stage::Routes => writes
                .extend((0..plan.linear.block_count()).map(|block| {
                    own((Attribute::LINEAR_FORWARDING, block.into()), plan.linear_block(block))
                })),
            Stage::Tops => {
                writes.extend(switch_info(plan, node).map(|data| own((Attribute::SWITCH_INFO, 0), data)))
            }
            Stage::Groups => {
                let positions = node.info.port_count / 16 + 1;
                for block in 0..plan.multicast.block_count().max(1) {
                    writes.extend((0..positions).map(|position| {
                        let modifier = MulticastBlock::to_modifier(block, position);
                        own(
                            (Attribute::MULTICAST_FORWARDING, modifier),
                            plan.multicast_block(block, position).encode(),
                        )
                    }));
                }
            }
            Stage::Keys => {
                writes.extend(
                    keys(&plan.pkeys, 0, node.info.partition_capacity).map(|(key, data)| own(key, data)),
                );
                let capacity = node.switch.as_ref().map_or(0, |switch| switch.partition_enforcement_capacity);
                for port in &plan.ports {
                    if let Enforcement::Both(table) = &port.enforcement {
                        let number = port.number.to_wire().into();
                        writes.extend(keys(table, number, capacity).map(|(key, data)| own(key, data)));
                    }
                }
            }
            Stage::Links => {
                let wanted = |port: &SwitchPortPlan| port_info(node, port.number, |info| link(info, port));
                writes.extend(plan.ports.iter().filter_map(wanted).map(|(key, data)| own(key, data)));
            }
            Stage::Armed | Stage::Active => {
                let wanted = |port: &SwitchPortPlan| step(node, port.number, stage);
                writes.extend(plan.ports.iter().filter_map(wanted).map(|(key, data)| own(key, data)));
            }
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

    fn wanted_of_adapter(
        &self,
        stage: Stage,
        plan: &AdapterPortPlan,
        node: &ObservedNode,
        writes: &mut Vec<Write>,
    ) {
        let port = plan.name.port;
        let own = |key, data| Write { node: plan.name.node, port, key, data };
        match stage {
            Stage::Addresses => {
                let wanted = |info: &mut PortInfo| {
                    address(info, plan.lid, self.plan.manager().lid);
                    self.guard(info, plan.name.node);
                    (info.neighbor_mtu, info.operational_vls) = (plan.mtu, plan.lanes);
                };
                writes.extend(port_info(node, port, wanted).map(|(key, data)| own(key, data)));
            }
            Stage::Keys => {
                writes.extend(
                    keys(&plan.pkeys, 0, node.info.partition_capacity).map(|(key, data)| own(key, data)),
                );
            }
            Stage::Armed | Stage::Active => {
                writes.extend(step(node, port, stage).map(|(key, data)| own(key, data)))
            }
            Stage::Routes | Stage::Tops | Stage::Groups | Stage::Links => {}
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

/// The Set that makes a port's PortInfo what it should be, if it is not; its state is left alone.
fn port_info(
    node: &ObservedNode,
    port: PortNum,
    change: impl FnOnce(&mut PortInfo),
) -> Option<(TableKey, [u8; SMP_DATA_LEN])> {
    let seen = node.ports.get(&port)?;
    let mut wanted = seen.clone();
    change(&mut wanted);
    if wanted == *seen {
        return None;
    }
    (wanted.state, wanted.physical_state) = (PortState::NoChange, PhysicalState::NoChange);
    Some(((Attribute::PORT_INFO, port.to_wire().into()), wanted.encode()))
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

fn switch_info(plan: &SwitchPlan, node: &ObservedNode) -> Option<[u8; SMP_DATA_LEN]> {
    let mut info = node.switch.clone()?;
    if info.linear_fdb_top == plan.linear.top() && !info.port_state_change {
        return None;
    }
    info.linear_fdb_top = plan.linear.top();
    Some(info.encode())
}

/// All blocks of a P_Key table: what the plan does not name is empty.
fn keys(table: &PkeyTable, port: u16, capacity: u16) -> impl Iterator<Item = (TableKey, [u8; SMP_DATA_LEN])> {
    (0..capacity.div_ceil(PkeyBlock::ENTRIES as u16)).map(move |block| {
        let modifier = PkeyPosition { port, block }.to_modifier();
        ((Attribute::PKEY_TABLE, modifier), table.block(block).encode())
    })
}
