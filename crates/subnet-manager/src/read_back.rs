//! Reads the tables of the plan in force back from the devices, for verification.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use fabric_model::FabricPlan;
use fabric_model::plan::{
    AdapterPortPlan, Enforcement, LinearTable, MulticastTable, PkeyTable, PlanParts, PortQos, PortSet,
    SwitchPlan, SwitchPortPlan,
};
use ib_wire::{
    Attribute, Guid, MulticastBlock, MulticastLid, PkeyBlock, PkeyBlockSelector, PortInfo, PortNum, SlToVl,
    SlToVlSelector, VlArbBlock, VlArbEntry, VlArbPart,
};

use crate::backlog::{Job, JobKind};
use crate::event::SmEvent;
use crate::group_trees;
use crate::manager::{Manager, Phase};
use crate::observed::ObservedNode;
use crate::program::raw_filters;
use crate::scope::Scope;
use crate::transition::lanes;

impl Manager {
    /// Reads every table of the plan in force; [`SmEvent::ReadBack`] has the result. Differences are repaired
    /// afterwards.
    ///
    /// Returns false and reads nothing unless the manager is idle with a plan in force.
    pub fn read_back(&mut self, now: Duration) -> bool {
        let in_force = self.in_force.clone().filter(|_| self.phase == Phase::Idle && !self.plan_is_new());
        let Some(plan) = in_force else { return false };
        let scope = Scope::between(None, &plan, &BTreeSet::new(), &self.observed.nodes);
        let targets = self.comparison(&plan, &scope).targets();
        self.begin_discovery_run();
        self.is_reading_back = true;
        self.backlog.fill(targets.into_iter().map(|target| Job { target, kind: JobKind::Audit }));
        self.proceed(now);
        true
    }

    /// Reports the tables that were read, if a read-back is going on.
    pub(crate) fn conclude_reading_back(&mut self) {
        if std::mem::take(&mut self.is_reading_back)
            && let Some(plan) = &self.in_force
        {
            let held = group_trees::without_joined(held(plan, &self.observed.nodes), plan);
            self.emit(SmEvent::ReadBack(Box::new(held)));
        }
    }
}

/// A plan with the tables that devices hold. Devices that did not answer and ports without a LID are not in
/// it.
fn held(plan: &FabricPlan, nodes: &BTreeMap<Guid, ObservedNode>) -> FabricPlan {
    let parts = plan.parts();
    let switch = |plan: &SwitchPlan| held_by_switch(plan, nodes.get(&plan.guid)?);
    let adapter_port = |plan: &AdapterPortPlan| held_by_adapter(plan, nodes.get(&plan.name.node)?);
    let held = FabricPlan::from_parts(PlanParts {
        switches: parts.switches.iter().filter_map(switch).collect(),
        adapter_ports: parts.adapter_ports.iter().filter_map(adapter_port).collect(),
        ..parts.clone()
    });
    match plan.basis() {
        Some(basis) => held.with_basis(basis),
        None => held,
    }
}

fn held_by_switch(plan: &SwitchPlan, node: &ObservedNode) -> Option<SwitchPlan> {
    let own = PortNum::MANAGEMENT;
    let ports = plan.ports.iter().filter_map(|port| held_by_port(port, node));
    Some(SwitchPlan {
        lid: node.ports.get(&own)?.lid?,
        linear: Arc::new(linear(node)),
        multicast: Arc::new(multicast(node)),
        pkeys: Arc::new(pkeys(node, own, 0)),
        ports: ports.collect(),
        ..plan.clone()
    })
}

fn held_by_port(plan: &SwitchPortPlan, node: &ObservedNode) -> Option<SwitchPortPlan> {
    let info = node.ports.get(&plan.number)?;
    // Enforcement in one direction only counts as none, and so does one that lets raw packets pass although the switch
    // could filter them.
    let filters = raw_filters(node);
    let filters_raw =
        (info.filter_raw_inbound || !filters.inbound) && (info.filter_raw_outbound || !filters.outbound);
    let enforcement = match info.enforce_inbound && info.enforce_outbound && filters_raw {
        true => Enforcement::Both(Arc::new(pkeys(node, PortNum::MANAGEMENT, plan.number.to_wire().into()))),
        false => Enforcement::Off,
    };
    let sharing = plan.qos.as_ref().map(|_| Arc::new(switch_sharing(node, plan.number, info)));
    let (mtu, lanes) = (info.neighbor_mtu, info.operational_vls);
    Some(SwitchPortPlan { mtu, lanes, enforcement, qos: sharing, ..plan.clone() })
}

fn held_by_adapter(plan: &AdapterPortPlan, node: &ObservedNode) -> Option<AdapterPortPlan> {
    let port = plan.name.port;
    let info = node.ports.get(&port)?;
    let sharing = plan.qos.as_ref().map(|_| {
        let otherwise = lane_map(node, port, 0);
        let (low, high) = (low(node, port, port, info), high(node, port, port, info));
        Arc::new(PortQos { by_input: BTreeMap::new(), otherwise, low, high })
    });
    Some(AdapterPortPlan {
        lid: info.lid?,
        mtu: info.neighbor_mtu,
        lanes: info.operational_vls,
        pkeys: Arc::new(pkeys(node, port, 0)),
        qos: sharing,
        ..plan.clone()
    })
}

/// The linear forwarding table up to LinearFDBTop.
pub(crate) fn linear(node: &ObservedNode) -> LinearTable {
    let top = node.switch.as_ref().map_or(0, |switch| usize::from(switch.linear_fdb_top));
    let mut exits = vec![0xff; top + 1];
    for (block, data) in node.tables_of(PortNum::MANAGEMENT, Attribute::LINEAR_FORWARDING) {
        let start = block as usize * LinearTable::BLOCK;
        if let Some(part) = exits.get_mut(start..) {
            let len = part.len().min(data.len());
            part[..len].copy_from_slice(&data[..len]);
        }
    }
    LinearTable::from_exits(exits)
}

fn multicast(node: &ObservedNode) -> MulticastTable {
    let mut exits: BTreeMap<MulticastLid, PortSet> = BTreeMap::new();
    for (modifier, data) in node.tables_of(PortNum::MANAGEMENT, Attribute::MULTICAST_FORWARDING) {
        let (block, position) = MulticastBlock::from_modifier(modifier);
        for (target, mask) in MulticastBlock::decode(data).0.iter().enumerate() {
            let group = MulticastLid::from_table_index(usize::from(block) * MulticastBlock::ENTRIES + target);
            let ports = (0..16).filter(|bit| mask.0 & 1 << bit != 0);
            for port in ports.filter_map(|bit| PortNum::new(16 * position + bit)) {
                group.into_iter().for_each(|group| exits.entry(group).or_default().insert(port));
            }
        }
    }
    MulticastTable::from_exits(exits)
}

/// The P_Key table of an end port (`port` 0) or of an external port of a switch.
pub(crate) fn pkeys(node: &ObservedNode, reached: PortNum, port: u16) -> PkeyTable {
    let blocks = node.tables_of(reached, Attribute::PKEY_TABLE);
    let own = blocks.filter(|(modifier, _)| PkeyBlockSelector::from_modifier(*modifier).port == port);
    let mut keys: Vec<_> = own.flat_map(|(_, data)| PkeyBlock::decode(data).0).collect();
    keys.truncate(keys.iter().rposition(Option::is_some).map_or(0, |last| last + 1));
    PkeyTable::from_keys(keys)
}

/// The lane sharing of a switch port. The map of input port 0 becomes the default for all inputs.
fn switch_sharing(node: &ObservedNode, output: PortNum, info: &PortInfo) -> PortQos {
    let inputs = (0..=node.info.port_count).filter_map(PortNum::new).filter(|input| *input != output);
    let hop_map = |input: PortNum| {
        let selector = SlToVlSelector::Hop { input: input.to_wire(), output: output.to_wire() };
        lane_map(node, PortNum::MANAGEMENT, selector.to_modifier())
    };
    let maps: BTreeMap<PortNum, SlToVl> = inputs.map(|input| (input, hop_map(input))).collect();
    let otherwise = maps.get(&PortNum::MANAGEMENT).copied().unwrap_or(DISCARDED);
    let by_input = maps.into_iter().filter(|(_, map)| *map != otherwise).collect();
    let own = PortNum::MANAGEMENT;
    PortQos { by_input, otherwise, low: low(node, own, output, info), high: high(node, own, output, info) }
}

/// All service levels discarded.
const DISCARDED: SlToVl = SlToVl([ib_wire::VirtualLane::MANAGEMENT; 16]);

fn lane_map(node: &ObservedNode, reached: PortNum, modifier: u32) -> SlToVl {
    let data = node.tables.get(&(reached, (Attribute::SL_TO_VL, modifier)));
    data.map_or(DISCARDED, lanes::decode)
}

/// The low-priority VL arbitration table without entries of weight 0, which devices skip.
fn low(node: &ObservedNode, reached: PortNum, port: PortNum, info: &PortInfo) -> Vec<VlArbEntry> {
    arbitration(node, reached, port, [VlArbPart::LowFirst, VlArbPart::LowSecond], info.vl_arb_low_cap)
}

/// The high-priority VL arbitration table without entries of weight 0.
fn high(node: &ObservedNode, reached: PortNum, port: PortNum, info: &PortInfo) -> Vec<VlArbEntry> {
    arbitration(node, reached, port, [VlArbPart::HighFirst, VlArbPart::HighSecond], info.vl_arb_high_cap)
}

fn arbitration(
    node: &ObservedNode,
    reached: PortNum,
    port: PortNum,
    parts: [VlArbPart; 2],
    capacity: u8,
) -> Vec<VlArbEntry> {
    let blocks = parts
        .into_iter()
        .filter_map(|part| node.tables.get(&(reached, (Attribute::VL_ARBITRATION, part.to_modifier(port)))));
    let entries = blocks.flat_map(|data| VlArbBlock::decode(data).0).take(capacity.into());
    entries.filter(|entry| entry.weight > 0).collect()
}
