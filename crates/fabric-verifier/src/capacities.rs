//! Capacities: no table is longer, no lane higher and no MTU larger than the devices support.

use std::collections::BTreeMap;

use fabric_model::intent::{Capabilities, PortName};
use fabric_model::plan::{Enforcement, PkeyTable, PortQos, SwitchPlan, SwitchPortPlan};
use ib_wire::{DataLanes, Mtu, PortNum, ServiceLevel, SlToVl, VirtualLane};

use crate::bounded::bounded;
use crate::network::{Link, PORTS, SwitchIndex};
use crate::{Finding, Reading, Rule, TableKind};

/// Findings by device and port.
#[derive(Clone, Debug, Default)]
pub(crate) struct Capacities {
    /// By link, with port 0 for the tables that a switch has once; parts without findings are absent.
    found: BTreeMap<Link, Vec<Finding>>,
}

impl Capacities {
    pub fn of(read: &Reading<'_>) -> Self {
        let mut capacities = Self::default();
        for (switch_index, switch) in read.network.switches.iter().enumerate() {
            capacities.check_switch(read, switch_index);
            for port in switch.ports.iter() {
                capacities.check_port(read, switch_index, port);
            }
        }
        for end in 0..read.network.plan.adapter_ports().len() {
            capacities.check_adapter(read, end);
        }
        capacities
    }

    pub fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.found.values().flatten()
    }

    /// Checks the tables that a switch has once: forwarding tables and the P_Key table of port 0.
    pub fn check_switch(&mut self, read: &Reading<'_>, switch_index: SwitchIndex) {
        let mut findings = Vec::new();
        of_switch(read.network.switches[switch_index], &read.intents.capabilities, &mut findings);
        self.put(switch_index * PORTS, findings);
    }

    pub fn check_port(&mut self, read: &Reading<'_>, switch_index: SwitchIndex, port: &SwitchPortPlan) {
        let (capabilities, guid) = (&read.intents.capabilities, read.network.switches[switch_index].guid);
        let name = PortName { node: guid, port: port.number };
        let mut findings = Vec::new();
        if let Enforcement::Both(keys) = &port.enforcement {
            let capacity = capabilities.switch(guid).enforced_pkeys.into();
            findings.extend(of_keys(TableKind::EnforcedPkeys, name, keys, capacity));
        }
        findings.extend(of_link(name, port.peer, port.mtu, port.lanes, capabilities));
        if let Some(sharing) = &port.qos {
            of_sharing(name, sharing, port.lanes, capabilities, &mut findings);
        }
        self.put(switch_index * PORTS + port.number.index(), findings);
    }

    pub fn check_adapter(&mut self, read: &Reading<'_>, end: usize) {
        let (capabilities, port) = (&read.intents.capabilities, read.network.adapters[end]);
        let capacity = usize::from(capabilities.port(port.name).pkeys);
        let mut findings = Vec::new();
        findings.extend(of_keys(TableKind::Pkeys, port.name, &port.pkeys, capacity));
        findings.extend(of_link(port.name, port.peer, port.mtu, port.lanes, capabilities));
        if let Some(sharing) = &port.qos {
            of_sharing(port.name, sharing, port.lanes, capabilities, &mut findings);
        }
        self.put(read.network.link_of_end(end), findings);
    }

    fn put(&mut self, link: Link, findings: Vec<Finding>) {
        if findings.is_empty() {
            self.found.remove(&link);
        } else {
            self.found.insert(link, bounded(Rule::Capacities, findings));
        }
    }
}

fn of_switch(switch: &SwitchPlan, capabilities: &Capabilities, findings: &mut Vec<Finding>) {
    let capability = capabilities.switch(switch.guid);
    let own = PortName { node: switch.guid, port: PortNum::MANAGEMENT };
    let (entries, capacity) = (switch.linear.len(), usize::from(capability.linear));
    if entries > capacity {
        findings.push(Finding::TableTooLong { table: TableKind::Linear, port: own, entries, capacity });
    }
    for (mlid, ports) in switch.multicast.exits() {
        if !ports.is_empty() && mlid.table_index() >= usize::from(capability.multicast) {
            let (switch, capacity) = (switch.guid, capability.multicast);
            findings.push(Finding::GroupBeyondTable { switch, mlid, capacity });
        }
    }
    findings.extend(of_keys(TableKind::Pkeys, own, &switch.pkeys, capability.own_pkeys.into()));
}

fn of_keys(table: TableKind, port: PortName, keys: &PkeyTable, capacity: usize) -> Option<Finding> {
    let entries = keys.entries().iter().rposition(Option::is_some).map_or(0, |last| last + 1);
    (entries > capacity).then_some(Finding::TableTooLong { table, port, entries, capacity })
}

fn of_link(
    port: PortName,
    peer: PortName,
    mtu: Mtu,
    lanes: DataLanes,
    capabilities: &Capabilities,
) -> Option<Finding> {
    let fits = [port, peer].iter().all(|end| {
        let able = capabilities.port(*end);
        mtu.bytes() <= able.mtu.bytes() && lanes.count() <= able.lanes.count()
    });
    (!fits || mtu.bytes() == 0 || lanes.count() == 0).then_some(Finding::LinkBeyondEnds { port, mtu, lanes })
}

fn of_sharing(
    port: PortName,
    sharing: &PortQos,
    lanes: DataLanes,
    capabilities: &Capabilities,
    findings: &mut Vec<Finding>,
) {
    let exists = |lane: VirtualLane| lane.to_wire() < lanes.count();
    let entries = sharing.low.len();
    let capacity = usize::from(capabilities.port(port).arbitration).min(PortQos::ENTRIES_MAX);
    // A port without a table serves its lanes as it likes; whether that is enough is a question of guarantees.
    if capacity > 0 && entries > capacity {
        findings.push(Finding::TableTooLong { table: TableKind::Arbitration, port, entries, capacity });
    }
    for (index, entry) in sharing.low.iter().enumerate() {
        if entry.weight == 0 || !exists(entry.lane) {
            let (lane, weight) = (entry.lane, entry.weight);
            findings.push(Finding::ArbitrationEntryInvalid { port, index, lane, weight });
        }
    }
    for (input, map) in maps(sharing) {
        for (sl, lane) in levels(map) {
            if lane != VirtualLane::MANAGEMENT && !exists(lane) {
                findings.push(Finding::LaneBeyondLink { port, input, sl, lane });
            }
        }
    }
}

/// The SL-to-VL maps of a port with their input ports; the map for all other inputs (`None`) comes last.
pub(crate) fn maps(sharing: &PortQos) -> impl Iterator<Item = (Option<PortNum>, &SlToVl)> {
    let listed = sharing.by_input.iter().map(|(input, map)| (Some(*input), map));
    listed.chain([(None, &sharing.otherwise)])
}

/// The lane of each of the 16 service levels.
pub(crate) fn levels(map: &SlToVl) -> impl Iterator<Item = (ServiceLevel, VirtualLane)> {
    (0..16).filter_map(ServiceLevel::from_wire).map(|sl| (sl, map.lane(sl)))
}
