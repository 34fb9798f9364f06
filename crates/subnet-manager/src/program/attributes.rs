//! Attribute values that a plan wants, derived from the observed ones.

use std::collections::BTreeSet;

use fabric_model::plan::{AdapterPortPlan, Enforcement, PkeyTable, PortQos, SwitchPlan, SwitchPortPlan};
use ib_wire::{
    Attribute, Capability, GuidBlock, Lid, MulticastBlock, MulticastLid, PhysicalState, PkeyBlock,
    PkeyBlockSelector, PortInfo, PortNum, PortState, SMP_DATA_LEN, SwitchInfo,
};

use super::Stage;
use crate::attribute_key::AttributeKey;
use crate::lifetimes::{HOQ_LIFE, LEAF_HOQ_LIFE, SUBNET_TIMEOUT, SWITCH_LIFE_TIME, VL_STALL_COUNT};
use crate::observed::ObservedNode;
use crate::transition;

/// The ports with lane sharing in the plan that are known, with PortInfo.
pub(super) fn shared_ports<'a>(
    plan: &'a SwitchPlan,
    node: &'a ObservedNode,
) -> impl Iterator<Item = (PortNum, &'a PortQos, &'a PortInfo)> {
    plan.ports
        .iter()
        .filter_map(|port| Some((port.number, port.qos.as_deref()?, node.ports.get(&port.number)?)))
}

/// The ports that enforce partitions in the plan, with their P_Key tables.
pub(super) fn enforced_ports(plan: &SwitchPlan) -> impl Iterator<Item = (&SwitchPortPlan, &PkeyTable)> {
    plan.ports.iter().filter_map(|port| match &port.enforcement {
        Enforcement::Both(table) => Some((port, table.as_ref())),
        Enforcement::Off => None,
    })
}

/// Whether a port enforces partitions now.
pub(super) fn enforces(node: &ObservedNode, port: PortNum) -> bool {
    node.ports.get(&port).is_some_and(|info| info.enforce_inbound || info.enforce_outbound)
}

/// The raw packet filters that the ports of a switch have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RawFilters {
    pub inbound: bool,
    pub outbound: bool,
}

pub(crate) fn raw_filters(node: &ObservedNode) -> RawFilters {
    let has = |filter: fn(&SwitchInfo) -> bool| node.switch.as_ref().is_some_and(filter);
    RawFilters {
        inbound: has(|info| info.filter_raw_inbound),
        outbound: has(|info| info.filter_raw_outbound),
    }
}

/// Number of multicast blocks that may be in use: by the plan, by the device, by groups of ports, and at least one.
pub(super) fn group_blocks(plan: &SwitchPlan, node: &ObservedNode, joined: u16) -> u16 {
    let tables = node.tables_of(PortNum::MANAGEMENT, Attribute::MULTICAST_FORWARDING);
    let seen = tables.map(|(modifier, _)| MulticastBlock::from_modifier(modifier).0 + 1);
    let capacity = node.switch.as_ref().map_or(0, |switch| switch.multicast_fdb_capacity);
    let joined = joined.min(capacity.div_ceil(MulticastBlock::ENTRIES as u16));
    seen.max().unwrap_or(1).max(plan.multicast.block_count()).max(joined)
}

/// The blocks of a P_Key table that have to shrink. `port` is the port number in the modifier.
pub(super) fn shrunk_keys(
    node: &ObservedNode,
    reached: PortNum,
    port: u16,
    wanted: &PkeyTable,
    capacity: u16,
) -> impl Iterator<Item = (AttributeKey, [u8; SMP_DATA_LEN])> {
    let key = move |block| (Attribute::PKEY_TABLE, PkeyBlockSelector { port, block }.to_modifier());
    let held = |block| node.tables.get(&(reached, key(block))).map(PkeyBlock::decode);
    let writes = transition::pkeys(held, wanted, capacity).shrink;
    writes.into_iter().map(move |write| (key(write.block), write.keys.encode()))
}

/// The blocks of the GUID table of an adapter port that hold aliases, in the plan or in the device as far as it was read.
pub(super) fn guids(
    plan: &AdapterPortPlan,
    node: &ObservedNode,
) -> impl Iterator<Item = (AttributeKey, [u8; SMP_DATA_LEN])> {
    let port = plan.name.port;
    let capacity = node.ports.get(&port).map_or(0, |info| info.guid_cap);
    let planned = plan.aliases.keys().filter(|index| **index < capacity);
    let planned = planned.map(|index| u32::from(*index) / GuidBlock::ENTRIES as u32);
    let held = node.tables_of(port, Attribute::GUID_INFO).map(|(block, _)| block);
    let blocks: BTreeSet<u32> = planned.chain(held).collect();
    let data = move |block| guid_block(plan, block, capacity).encode();
    blocks.into_iter().map(move |block| ((Attribute::GUID_INFO, block), data(block)))
}

/// The blocks of the GUID table of an adapter port without the aliases that it loses.
pub(super) fn shrunk_guids(
    plan: &AdapterPortPlan,
    node: &ObservedNode,
) -> impl Iterator<Item = (AttributeKey, [u8; SMP_DATA_LEN])> {
    let port = plan.name.port;
    let capacity = node.ports.get(&port).map_or(0, |info| info.guid_cap);
    node.tables_of(port, Attribute::GUID_INFO).filter_map(move |(block, data)| {
        let (held, wanted) = (GuidBlock::decode(data), guid_block(plan, block, capacity));
        let kept = std::array::from_fn(|i| held.0[i].filter(|guid| wanted.0[i] == Some(*guid)));
        (kept != held.0).then(|| ((Attribute::GUID_INFO, block), GuidBlock(kept).encode()))
    })
}

fn guid_block(plan: &AdapterPortPlan, block: u32, capacity: u8) -> GuidBlock {
    let entry = |i: usize| {
        let index = u8::try_from(block as usize * GuidBlock::ENTRIES + i).ok().filter(|it| *it < capacity)?;
        if index == 0 { Some(plan.guid) } else { plan.aliases.get(&index).map(|alias| alias.guid) }
    };
    GuidBlock(std::array::from_fn(entry))
}

pub(super) fn carries_data(node: &ObservedNode, port: PortNum) -> bool {
    node.ports.get(&port).is_some_and(|info| matches!(info.state, PortState::Armed | PortState::Active))
}

pub(super) fn address(info: &mut PortInfo, lid: Lid, manager: Lid) {
    info.lid = Some(lid);
    info.lmc = AdapterPortPlan::LMC;
    info.master_sm_lid = Some(manager);
    info.subnet_timeout = SUBNET_TIMEOUT;
}

/// Clears VLHighLimit where the plan defines lane sharing, because then the high-priority table is empty.
pub(super) fn low_first(info: &mut PortInfo, sharing: Option<&PortQos>) {
    if sharing.is_some() {
        info.vl_high_limit = 0;
    }
}

/// Sets how long packets may wait at the head of the output queue of a switch port.
pub(super) fn queue_life(info: &mut PortInfo, plan: &SwitchPortPlan) {
    let is_leaf = matches!(plan.enforcement, Enforcement::Both(_));
    info.hoq_life = if is_leaf { LEAF_HOQ_LIFE } else { HOQ_LIFE };
    info.vl_stall_count = VL_STALL_COUNT;
}

/// PortInfo with a change; the port state stays as observed.
pub(super) fn port_info(
    node: &ObservedNode,
    port: PortNum,
    change: impl FnOnce(&mut PortInfo),
) -> Option<(AttributeKey, [u8; SMP_DATA_LEN])> {
    let mut wanted = node.ports.get(&port)?.clone();
    change(&mut wanted);
    Some(((Attribute::PORT_INFO, port.to_wire().into()), wanted.encode()))
}

/// PortInfo that changes no port state when set.
pub(crate) fn without_state(mut data: [u8; SMP_DATA_LEN]) -> [u8; SMP_DATA_LEN] {
    if let Ok(mut info) = PortInfo::decode(&data) {
        (info.state, info.physical_state) = (PortState::NoChange, PhysicalState::NoChange);
        data = info.encode();
    }
    data
}

/// A Set that raises the port state by one step, if the port is in the state below.
pub(super) fn step(
    node: &ObservedNode,
    port: PortNum,
    stage: Stage,
) -> Option<(AttributeKey, [u8; SMP_DATA_LEN])> {
    let (below, wanted) = match stage {
        Stage::Armed => (PortState::Initialize, PortState::Armed),
        _ => (PortState::Armed, PortState::Active),
    };
    let mut info = node.ports.get(&port).filter(|info| info.state == below)?.clone();
    (info.state, info.physical_state) = (wanted, PhysicalState::NoChange);
    Some(((Attribute::PORT_INFO, port.to_wire().into()), info.encode()))
}

/// A Set that stops a port from carrying data, if it does: the link trains again and stays in Initialize.
pub(crate) fn close(node: &ObservedNode, port: PortNum) -> Option<(AttributeKey, [u8; SMP_DATA_LEN])> {
    let mut info = node.ports.get(&port).filter(|_| carries_data(node, port))?.clone();
    (info.state, info.physical_state) = (PortState::Down, PhysicalState::NoChange);
    Some(((Attribute::PORT_INFO, port.to_wire().into()), info.encode()))
}

/// SwitchInfo with the lifetime of packets and MulticastFDBTop.
pub(super) fn switch_life(node: &ObservedNode) -> Option<(AttributeKey, [u8; SMP_DATA_LEN])> {
    let mut info = node.switch.clone()?;
    let top = multicast_top(node, &info);
    if (info.life_time, info.multicast_fdb_top) != (SWITCH_LIFE_TIME, top) {
        // Written as 0, PortStateChange stays as it is.
        (info.life_time, info.multicast_fdb_top, info.port_state_change) = (SWITCH_LIFE_TIME, top, false);
    }
    Some(((Attribute::SWITCH_INFO, 0), info.encode()))
}

/// The multicast LID of the last entry of the table, so that all are in use. Another manager may have left a lower one. Switches
/// without this bound keep what they have.
fn multicast_top(node: &ObservedNode, info: &SwitchInfo) -> u16 {
    let port_0 = node.ports.get(&PortNum::MANAGEMENT);
    match port_0.is_some_and(|port| port.capability.has(Capability::MULTICAST_FDB_TOP)) {
        true => (MulticastLid::MIN - 1).saturating_add(info.multicast_fdb_capacity),
        false => info.multicast_fdb_top,
    }
}

/// SwitchInfo with another LinearFDBTop, MulticastFDBTop, and the lifetime of packets. Writing PortStateChange clears it.
pub(super) fn switch_info(node: &ObservedNode, top: u16) -> Option<(AttributeKey, [u8; SMP_DATA_LEN])> {
    let mut info = node.switch.clone()?;
    info.multicast_fdb_top = multicast_top(node, &info);
    (info.linear_fdb_top, info.life_time) = (top, SWITCH_LIFE_TIME);
    Some(((Attribute::SWITCH_INFO, 0), info.encode()))
}

/// All blocks of a P_Key table; entries that the plan does not name are empty.
pub(super) fn keys(
    table: &PkeyTable,
    port: u16,
    capacity: u16,
) -> impl Iterator<Item = (AttributeKey, [u8; SMP_DATA_LEN])> {
    (0..capacity.div_ceil(PkeyBlock::ENTRIES as u16)).map(move |block| {
        let modifier = PkeyBlockSelector { port, block }.to_modifier();
        ((Attribute::PKEY_TABLE, modifier), table.block(block).encode())
    })
}
