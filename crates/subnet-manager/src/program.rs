//! The attributes to read and write for a plan.

mod attributes;
mod sl_to_vl;

use std::collections::{BTreeMap, BTreeSet};

use fabric_model::FabricPlan;
use fabric_model::intent::PortName;
use fabric_model::plan::{AdapterPortPlan, Enforcement, SwitchPlan, SwitchPortPlan};
use ib_wire::{
    Attribute, Guid, Lid, MKeyProtection, MulticastBlock, PortInfo, PortNum, SMP_DATA_LEN, VlArbBlock,
    VlArbPart,
};

use crate::attribute_key::{AttributeKey, AttributeRef};
use crate::key_ring::KeyRing;
use crate::keys::BoundNodes;
use crate::lacks::Lacks;
use crate::observed::{ObservedNode, OwnPort, is_host};
use crate::scope::Scope;
use crate::transition::{self, BlockWrite, HeldRoutes, LINEAR_BLOCK, RouteStep, lanes};
use crate::unsupported::Unsupported;
use attributes::{
    address, carries_data, enforced_ports, enforces, group_blocks, guids, keys, low_first, port_info,
    queue_life, shared_ports, shrunk_guids, shrunk_keys, step, switch_info, switch_life,
};
pub(crate) use attributes::{close, raw_filters, without_state};
pub(crate) use sl_to_vl::hops;

/// The stages of a programming run. In this order every stage is safe: what the plan no longer allows ends
/// before anything new begins, no port is reachable before its partition is enforced, and no port becomes
/// active before all tables are complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// Links that are not in the plan stop carrying data.
    Closed,
    /// P_Keys, alias GUIDs, multicast groups and SLtoVL maps are reduced to what is both held and wanted.
    Shrunk,
    /// LIDs, MasterSMLID and M_Keys.
    Addresses,
    /// MTU, lanes and VLHighLimit of links.
    Links,
    /// Ports become armed. A node that restarts later falls back to Initialize and is not activated without
    /// tables.
    Armed,
    /// P_Key tables of ports that do not enforce partitions yet.
    Prepared,
    Enforced,
    /// VL arbitration tables, in steps of their own.
    Weights,
    /// SLtoVL maps, complete.
    Lanes,
    /// The service level of requests to the subnet manager.
    SmServiceLevel,
    /// Linear forwarding tables, in steps of their own.
    Routes,
    Groups,
    /// P_Key tables and alias GUIDs, complete.
    Keys,
    /// Ports stop enforcing partitions where the plan has no enforcement.
    Released,
    Active,
}

impl Stage {
    pub const ALL: [Self; 15] = [
        Self::Closed,
        Self::Shrunk,
        Self::Addresses,
        Self::Links,
        Self::Armed,
        Self::Prepared,
        Self::Enforced,
        Self::Weights,
        Self::Lanes,
        Self::SmServiceLevel,
        Self::Routes,
        Self::Groups,
        Self::Keys,
        Self::Released,
        Self::Active,
    ];

    /// Stages that define final values, not intermediate ones.
    const TABLES: [Self; 10] = [
        Self::Addresses,
        Self::Links,
        Self::Enforced,
        Self::Weights,
        Self::Lanes,
        Self::SmServiceLevel,
        Self::Routes,
        Self::Groups,
        Self::Keys,
        Self::Released,
    ];

    /// Whether it writes PortInfo without changing the port state.
    pub const fn keeps_state(self) -> bool {
        matches!(self, Self::Addresses | Self::Links | Self::Enforced | Self::SmServiceLevel | Self::Released)
    }

    pub fn next(self) -> Option<Self> {
        Self::ALL.into_iter().find(|next| *next > self)
    }
}

/// A write of one attribute. Not printable, because it may contain an M_Key.
#[derive(Clone)]
pub(crate) struct Write {
    pub node: Guid,
    /// The port that is reached: the port itself of an adapter, port 0 of a switch.
    pub port: PortNum,
    pub key: AttributeKey,
    pub data: [u8; SMP_DATA_LEN],
}

impl Write {
    pub fn target(&self) -> AttributeRef {
        (self.node, self.port, self.key)
    }
}

/// A write of a block of a VL arbitration table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WeightWrite {
    pub target: AttributeRef,
    pub block: VlArbBlock,
}

impl WeightWrite {
    fn of(write: &Write) -> Self {
        Self { target: write.target(), block: VlArbBlock::decode(&write.data) }
    }

    fn part(&self) -> Option<VlArbPart> {
        VlArbPart::from_modifier(self.target.2.1).map(|(part, _)| part)
    }
}

/// A plan and the last known attributes of the nodes.
pub(crate) struct Comparison<'a> {
    pub plan: &'a FabricPlan,
    pub scope: &'a Scope,
    pub nodes: &'a BTreeMap<Guid, ObservedNode>,
    /// The source of M_Keys, if nodes get any.
    pub keys: Option<&'a KeyRing>,
    pub bound: &'a BoundNodes,
    pub unsupported: &'a Unsupported,
    pub lacks: &'a Lacks,
    pub own: Option<OwnPort>,
    /// PortInfo:GidPrefix of end ports.
    pub gid_prefix: u64,
    /// Number of multicast blocks that groups of ports may use.
    pub joined_blocks: u16,
}

impl Comparison<'_> {
    /// The tables that must be read before the comparison. Routes of a switch without any are not read.
    pub fn reads(&self) -> Vec<AttributeRef> {
        let stages = [Stage::Weights, Stage::Lanes, Stage::Routes, Stage::Groups, Stage::Keys];
        let tables = stages.into_iter().flat_map(|stage| self.wanted(stage));
        tables.filter(|write| !self.is_known(write)).map(|write| write.target()).collect()
    }

    /// All attributes that the plan defines.
    pub fn targets(&self) -> BTreeSet<AttributeRef> {
        let wanted = |stage| [self.wanted(stage), self.wanted_top(stage)].concat();
        Stage::TABLES.into_iter().flat_map(wanted).map(|write| write.target()).collect()
    }

    /// Attributes that are known to differ from the plan.
    pub fn known_differences(&self) -> Vec<Write> {
        let is_known = |write: &Write| {
            self.nodes.get(&write.node).is_some_and(|node| node.held(write.port, write.key).is_some())
        };
        self.differences().into_iter().filter(is_known).collect()
    }

    /// Attributes that differ from the plan or are unknown.
    pub fn differences(&self) -> Vec<Write> {
        let wanted = |stage| [self.wanted(stage), self.wanted_top(stage)].concat();
        let tables = Stage::TABLES.into_iter().flat_map(wanted);
        tables.filter(|write| self.differs(write)).collect()
    }

    /// Like [`Self::differences`], and ports whose state differs.
    pub fn all_differences(&self) -> Vec<Write> {
        let states = [Stage::Closed, Stage::Armed, Stage::Active];
        self.differences()
            .into_iter()
            .chain(states.into_iter().flat_map(|stage| self.wanted(stage)))
            .collect()
    }

    /// The writes of a stage: only attributes that differ.
    pub fn writes(&self, stage: Stage) -> Vec<Write> {
        let mut writes = match stage {
            Stage::Shrunk => self.shrunk(),
            _ => self.wanted(stage),
        };
        if !matches!(stage, Stage::Closed | Stage::Armed | Stage::Active) {
            writes.retain(|write| self.differs(write));
        }
        match stage {
            Stage::Shrunk | Stage::Lanes => sl_to_vl::together(writes, self.nodes),
            _ => writes,
        }
    }

    /// The steps of the linear forwarding tables.
    pub fn route_steps(&self) -> Vec<RouteStep> {
        transition::route_steps(self.plan, self, self.scope.switches.iter().copied())
    }

    /// The steps of the VL arbitration tables, see [`lanes`]. Each starts when the one before is complete.
    pub fn weight_steps(&self) -> Vec<Vec<WeightWrite>> {
        let differs = |write: &WeightWrite| {
            let (node, port, key) = write.target;
            self.differs(&Write { node, port, key, data: write.block.encode() })
        };
        let writes = self.wanted(Stage::Weights);
        let writes: Vec<WeightWrite> = writes.iter().map(WeightWrite::of).filter(differs).collect();
        // Lanes of the high-priority table keep it until the low-priority tables have entries for them.
        let order = [VlArbPart::LowFirst, VlArbPart::LowSecond, VlArbPart::HighFirst, VlArbPart::HighSecond];
        let steps =
            order.map(|part| writes.iter().filter(|write| write.part() == Some(part)).copied().collect());
        steps.into_iter().filter(|step: &Vec<WeightWrite>| !step.is_empty()).collect()
    }

    /// The writes of one route step.
    pub fn writes_of_step(&self, step: &RouteStep) -> Vec<Write> {
        let own = |node, key, data| Write { node, port: PortNum::MANAGEMENT, key, data };
        let block =
            |it: &BlockWrite| own(it.switch, (Attribute::LINEAR_FORWARDING, it.block.into()), it.exits);
        let top = |(switch, top): &(Guid, u16)| {
            let (key, data) = switch_info(self.nodes.get(switch)?, *top)?;
            Some(own(*switch, key, data))
        };
        let blocks = step.blocks.iter().map(block).filter(|write| self.differs(write));
        blocks.chain(step.tops.iter().filter_map(top)).collect()
    }

    fn differs(&self, write: &Write) -> bool {
        let held = self.nodes.get(&write.node).and_then(|node| node.held(write.port, write.key));
        held.is_none_or(|held| self.unsupported.differs(write.target(), &held, &write.data))
    }

    /// Whether a table need not be read. Routes, weights and lanes of a switch without any routes are written without reading:
    /// nobody has configured it since it started.
    fn is_known(&self, write: &Write) -> bool {
        let Some(node) = self.nodes.get(&write.node) else { return true };
        let is_unused = matches!(
            write.key.0,
            Attribute::LINEAR_FORWARDING | Attribute::VL_ARBITRATION | Attribute::SL_TO_VL
        );
        let is_blank = is_unused && node.switch.as_ref().is_some_and(|switch| switch.linear_fdb_top == 0);
        is_blank || node.tables.contains_key(&(write.port, write.key))
    }

    /// All writes of a stage, for nodes and ports that are known.
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
            Stage::Closed => {
                let stray = |port: &PortNum| *port != PortNum::MANAGEMENT && plan.port(*port).is_none();
                writes.extend(
                    node.ports.keys().copied().filter(stray).filter_map(|it| close(node, it)).map(own),
                );
                let down = |port: &&SwitchPortPlan| {
                    self.is_closed(plan.guid, port) || self.must_retrain(plan.guid, port)
                };
                let retrained = plan.ports.iter().filter(down);
                writes.extend(retrained.filter_map(|port| close(node, port.number)).map(own));
            }
            Stage::Shrunk | Stage::SmServiceLevel => {}
            Stage::Links => {
                let wanted = |port: &SwitchPortPlan| {
                    port_info(node, port.number, |info| {
                        (info.neighbor_mtu, info.operational_vls) = (port.mtu, port.lanes);
                        low_first(info, port.qos.as_deref());
                        queue_life(info, port);
                    })
                };
                writes.extend(switch_life(node).map(own));
                writes.extend(plan.ports.iter().filter_map(wanted).map(own));
            }
            Stage::Prepared => {
                let capacity = node.switch.as_ref().map_or(0, |switch| switch.partition_enforcement_capacity);
                for (port, table) in enforced_ports(plan).filter(|(port, _)| !enforces(node, port.number)) {
                    writes.extend(keys(table, port.number.to_wire().into(), capacity).map(own));
                }
            }
            Stage::Enforced | Stage::Released => {
                let enforced = stage == Stage::Enforced;
                let is_due =
                    |port: &&SwitchPortPlan| matches!(port.enforcement, Enforcement::Both(_)) == enforced;
                let wanted = |port: &SwitchPortPlan| {
                    port_info(node, port.number, |info| {
                        (info.enforce_inbound, info.enforce_outbound) = (enforced, enforced);
                        // Raw packets have no P_Key that could be checked.
                        let filters = raw_filters(node);
                        info.filter_raw_inbound = enforced && filters.inbound;
                        info.filter_raw_outbound = enforced && filters.outbound;
                    })
                };
                writes.extend(plan.ports.iter().filter(is_due).filter_map(wanted).map(own));
            }
            Stage::Addresses => {
                let wanted = |info: &mut PortInfo| {
                    self.address(info, plan.lid);
                    info.master_sm_sl = self.plan.management_service_level();
                    self.guard(info, PortName { node: plan.guid, port: PortNum::MANAGEMENT });
                };
                writes.extend(port_info(node, PortNum::MANAGEMENT, wanted).map(own));
            }
            Stage::Weights => {
                for (port, sharing, info) in shared_ports(plan, node) {
                    let caps = (info.vl_arb_low_cap, info.vl_arb_high_cap);
                    writes.extend(lanes::weights(sharing, port, caps.0, caps.1).map(own));
                }
            }
            Stage::Lanes => {
                for (port, sharing, _) in shared_ports(plan, node) {
                    writes.extend(lanes::hops(sharing, port, node.info.port_count).map(own));
                }
            }
            Stage::Routes => {
                writes.extend((0..plan.linear.block_count()).map(|block| {
                    own(((Attribute::LINEAR_FORWARDING, block.into()), plan.linear_block(block)))
                }))
            }
            Stage::Groups => {
                let positions = node.info.port_count / 16 + 1;
                for block in 0..group_blocks(plan, node, self.joined_blocks) {
                    writes.extend((0..positions).map(|position| {
                        let modifier = MulticastBlock::to_modifier(block, position);
                        let data = plan.multicast_block(block, position).encode();
                        own(((Attribute::MULTICAST_FORWARDING, modifier), data))
                    }));
                }
            }
            Stage::Keys => {
                writes.extend(keys(&plan.pkeys, 0, node.info.partition_capacity).map(own));
                let capacity = node.switch.as_ref().map_or(0, |switch| switch.partition_enforcement_capacity);
                for (port, table) in enforced_ports(plan) {
                    writes.extend(keys(table, port.number.to_wire().into(), capacity).map(own));
                }
            }
            Stage::Armed | Stage::Active => {
                let open = plan.ports.iter().filter(|port| !self.is_closed(plan.guid, port));
                writes.extend(open.filter_map(|port| step(node, port.number, stage)).map(own));
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
                    self.address(info, plan.lid);
                    self.guard(info, plan.name);
                    (info.neighbor_mtu, info.operational_vls) = (plan.mtu, plan.lanes);
                    low_first(info, plan.qos.as_deref());
                    // A port that carries data may send a request at any time, and its new service level has
                    // no lane before all hops have it.
                    if !carries_data(node, port) {
                        info.master_sm_sl = self.plan.management_service_level();
                    }
                };
                writes.extend(port_info(node, port, wanted).map(own));
            }
            Stage::SmServiceLevel => {
                let wanted = |info: &mut PortInfo| info.master_sm_sl = self.plan.management_service_level();
                writes.extend(port_info(node, port, wanted).map(own));
            }
            Stage::Weights => {
                if let (Some(sharing), Some(info)) = (&plan.qos, node.ports.get(&port)) {
                    let caps = (info.vl_arb_low_cap, info.vl_arb_high_cap);
                    writes.extend(lanes::weights(sharing, port, caps.0, caps.1).map(own));
                }
            }
            Stage::Lanes => {
                writes.extend(plan.qos.as_ref().map(|sharing| own(lanes::injection(sharing))));
            }
            Stage::Keys => {
                writes.extend(keys(&plan.pkeys, 0, node.info.partition_capacity).map(own));
                writes.extend(guids(plan, node).map(own));
            }
            Stage::Armed | Stage::Active if self.is_adapter_closed(plan) => {}
            Stage::Armed | Stage::Active => writes.extend(step(node, port, stage).map(own)),
            _ => {}
        }
    }

    /// Whether the link of a switch port must carry no data: the plan isolates the host behind it, and something for that
    /// is missing.
    fn is_closed(&self, switch: Guid, plan: &SwitchPortPlan) -> bool {
        let switch_port = PortName { node: switch, port: plan.number };
        plan.is_enforced() && self.is_host(plan.peer) && self.lacks.close(switch_port, plan.peer)
    }

    fn is_adapter_closed(&self, plan: &AdapterPortPlan) -> bool {
        let switch = self.plan.switch(plan.peer.node).filter(|_| !self.lacks.is_empty());
        let port = switch.and_then(|switch| switch.port(plan.peer.port));
        port.is_some_and(|port| self.is_closed(plan.peer.node, port))
    }

    /// Whether a port is that of a host, and not the manager's own.
    fn is_host(&self, port: PortName) -> bool {
        is_host(self.nodes, self.own, port)
    }

    /// Whether a link that carries data has to go down first: MTU and lanes change only below Armed (A-PORT-10).
    fn must_retrain(&self, switch: Guid, plan: &SwitchPortPlan) -> bool {
        let own = (switch, PortNum::MANAGEMENT, plan.number);
        let is_switch = self.nodes.get(&plan.peer.node).is_some_and(ObservedNode::is_switch);
        let reached = if is_switch { PortNum::MANAGEMENT } else { plan.peer.port };
        let peer = (plan.peer.node, reached, plan.peer.port);
        [own, peer].into_iter().any(|(guid, port, number)| {
            let Some(node) = self.nodes.get(&guid).filter(|node| carries_data(node, number)) else {
                return false;
            };
            let wanted = port_info(node, number, |info| {
                (info.neighbor_mtu, info.operational_vls) = (plan.mtu, plan.lanes)
            });
            wanted.is_some_and(|(key, data)| self.differs(&Write { node: guid, port, key, data }))
        })
    }

    /// Nodes at the ends of links that have to go down before they can change.
    pub fn retrained_nodes(&self) -> BTreeSet<Guid> {
        let switches = self.scope.switches.iter().filter_map(|guid| self.plan.switch(*guid));
        let ports = switches.flat_map(|switch| switch.ports.iter().map(move |port| (switch.guid, port)));
        let retrained = ports.filter(|(switch, port)| self.must_retrain(*switch, port));
        retrained.flat_map(|(switch, port)| [switch, port.peer.node]).collect()
    }

    /// The writes of LinearFDBTop.
    fn wanted_top(&self, stage: Stage) -> Vec<Write> {
        let switches = self.scope.switches.iter().filter_map(|guid| self.plan.switch(*guid));
        let top = |switch: &SwitchPlan| {
            let (key, data) = switch_info(self.nodes.get(&switch.guid)?, switch.linear.top())?;
            Some(Write { node: switch.guid, port: PortNum::MANAGEMENT, key, data })
        };
        switches.filter(|_| stage == Stage::Routes).filter_map(top).collect()
    }

    /// P_Keys, groups and SLtoVL maps, reduced to what is both held and wanted.
    fn shrunk(&self) -> Vec<Write> {
        let mut writes = self.shrunk_lanes();
        for switch in self.scope.switches.iter().filter_map(|guid| self.plan.switch(*guid)) {
            if let Some(node) = self.nodes.get(&switch.guid) {
                shrink_switch(switch, node, self.joined_blocks, &mut writes);
            }
        }
        for port in self.scope.adapter_ports.iter().filter_map(|guid| self.plan.adapter_port(*guid)) {
            let PortName { node: guid, port: number } = port.name;
            // A port without data needs no intermediate state.
            if let Some(node) = self.nodes.get(&guid).filter(|node| carries_data(node, number)) {
                let capacity = node.info.partition_capacity;
                let shrunk = shrunk_keys(node, number, 0, &port.pkeys, capacity);
                let shrunk = shrunk.chain(shrunk_guids(port, node));
                writes.extend(shrunk.map(|(key, data)| Write { node: guid, port: number, key, data }));
            }
        }
        writes
    }

    /// SLtoVL maps without the service levels that lose or change their lane.
    fn shrunk_lanes(&self) -> Vec<Write> {
        let wanted = self.wanted(Stage::Lanes).into_iter();
        let shrunk = wanted.filter_map(|write| {
            let held = self.nodes.get(&write.node).and_then(|node| node.held(write.port, write.key));
            let phases = lanes::sl_to_vl(held.as_ref().map(lanes::decode), lanes::decode(&write.data));
            phases.shrink.first().map(|map| Write { data: lanes::encode(map), ..write })
        });
        shrunk.collect()
    }

    /// Sets the addresses of an end port, and that of the manager.
    fn address(&self, info: &mut PortInfo, lid: Lid) {
        address(info, lid, self.plan.manager().lid);
        info.gid_prefix = self.gid_prefix;
    }

    /// Sets M_Key, protection level and an unlimited lease.
    fn guard(&self, info: &mut PortInfo, port: PortName) {
        if let Some(key) = self.keys.and_then(|keys| keys.key(self.bound, port)) {
            info.m_key = Some(key);
            info.m_key_protection = MKeyProtection::Closed;
            info.m_key_lease_period_s = 0;
        }
    }
}

impl HeldRoutes for Comparison<'_> {
    fn top(&self, switch: Guid) -> u16 {
        let info = self.nodes.get(&switch).and_then(|node| node.switch.as_ref());
        info.map_or(0, |info| info.linear_fdb_top)
    }

    fn block(&self, switch: Guid, block: u16) -> Option<[u8; LINEAR_BLOCK]> {
        let key = (Attribute::LINEAR_FORWARDING, block.into());
        self.nodes.get(&switch)?.tables.get(&(PortNum::MANAGEMENT, key)).copied()
    }
}

fn shrink_switch(plan: &SwitchPlan, node: &ObservedNode, joined_blocks: u16, writes: &mut Vec<Write>) {
    let own = |(key, data)| Write { node: plan.guid, port: PortNum::MANAGEMENT, key, data };
    let table = |key| node.tables.get(&(PortNum::MANAGEMENT, key));
    let held = |block, position| {
        let modifier = MulticastBlock::to_modifier(block, position);
        table((Attribute::MULTICAST_FORWARDING, modifier)).map(MulticastBlock::decode)
    };
    let blocks = group_blocks(plan, node, joined_blocks);
    let groups = transition::groups(held, &plan.multicast, blocks, node.info.port_count).shrink;
    writes.extend(groups.into_iter().map(|it| {
        let modifier = MulticastBlock::to_modifier(it.block, it.position);
        own(((Attribute::MULTICAST_FORWARDING, modifier), it.masks.encode()))
    }));
    let capacity = node.info.partition_capacity;
    writes.extend(shrunk_keys(node, PortNum::MANAGEMENT, 0, &plan.pkeys, capacity).map(own));
    let capacity = node.switch.as_ref().map_or(0, |switch| switch.partition_enforcement_capacity);
    for (port, table) in enforced_ports(plan).filter(|(port, _)| enforces(node, port.number)) {
        let number = port.number.to_wire().into();
        writes.extend(shrunk_keys(node, PortNum::MANAGEMENT, number, table, capacity).map(own));
    }
}
