//! Records of the tables in the plan.

use std::ops::ControlFlow;

use fabric_model::plan::{Enforcement, PkeyTable, PortQos};
use ib_wire::sa::{
    LinearForwardingRecord, Matcher, MulticastForwardingRecord, Pattern, PkeyTableRecord, SlToVlRecord,
    VlArbitrationRecord,
};
use ib_wire::{ForwardingBlock, PkeyBlock, PortNum, SlToVl, VirtualLane, VlArbBlock, VlArbEntry};

use super::directory::EndPort;
use super::inventory::{add_if, ports};
use super::query::{Answer, Query};

/// PKeyTableRecord: a port sees its own, the manager's own port all of them, including those of external switch ports. Tables have
/// all their blocks, also empty ones; those of switch ports that do not enforce partitions are empty.
///
/// The block number is in network byte order. OpenSM 3.3.23 leaves it in host byte order and saquery prints
/// it so: blocks other than 0 are answered correctly but printed wrong by that tool.
pub(super) fn pkey_tables(query: &Query<'_>, answer: &mut Answer) -> ControlFlow<()> {
    let pattern = Pattern::<PkeyTableRecord>::of(query.request);
    let matcher = pattern.matcher();
    for port in ports(query, &pattern, PkeyTableRecord::LID) {
        answer.examine()?;
        if !query.is_manager && port.guid != query.requester.guid {
            continue;
        }
        let facts = query.directory.facts(port.node);
        let own_capacity = facts.map_or(0, |facts| facts.info.partition_capacity);
        blocks(port, port.number, &port.pkeys, own_capacity, &matcher, answer)?;
        let switch = query.directory.plan.switch(port.node).filter(|_| query.is_manager && port.is_switch);
        let (Some(switch), Some(facts)) = (switch, facts) else { continue };
        let capacity = facts.switch.as_ref().map_or(0, |info| info.partition_enforcement_capacity);
        let nothing = PkeyTable::default();
        for number in (1..=facts.info.port_count).filter_map(PortNum::new) {
            let table = match switch.port(number).map(|external| &external.enforcement) {
                Some(Enforcement::Both(table)) => table,
                _ if capacity == 0 => continue,
                _ => &nothing,
            };
            blocks(port, number, table, capacity, &matcher, answer)?;
        }
    }
    ControlFlow::Continue(())
}

fn blocks(
    port: &EndPort,
    number: PortNum,
    table: &PkeyTable,
    capacity: u16,
    matcher: &Matcher,
    answer: &mut Answer,
) -> ControlFlow<()> {
    let count = capacity.div_ceil(PkeyBlock::ENTRIES as u16);
    for block in 0..count.max(table.block_count()).max(1) {
        answer.examine()?;
        let pkeys = table.block(block);
        let record = PkeyTableRecord { lid: Some(port.lid.into()), block, port: number.to_wire(), pkeys };
        add_if(matcher, &record.encode(), answer)?;
    }
    ControlFlow::Continue(())
}

/// LFTRecord, for the manager's own port only.
pub(super) fn linear_tables(query: &Query<'_>, answer: &mut Answer) -> ControlFlow<()> {
    let pattern = Pattern::<LinearForwardingRecord>::of(query.request);
    let matcher = pattern.matcher();
    for port in ports(query, &pattern, LinearForwardingRecord::LID) {
        answer.examine()?;
        let switch = query.directory.plan.switch(port.node).filter(|_| port.is_switch);
        let Some(linear) = switch.map(|switch| &switch.linear) else { continue };
        for block in 0..linear.block_count() {
            answer.examine()?;
            let entries = ForwardingBlock::decode(&linear.block(block));
            let record = LinearForwardingRecord { lid: Some(port.lid.into()), block, ports: entries };
            add_if(&matcher, &record.encode(), answer)?;
        }
    }
    ControlFlow::Continue(())
}

/// MFTRecord, for the manager's own port only.
pub(super) fn multicast_tables(query: &Query<'_>, answer: &mut Answer) -> ControlFlow<()> {
    let pattern = Pattern::<MulticastForwardingRecord>::of(query.request);
    let matcher = pattern.matcher();
    for port in ports(query, &pattern, MulticastForwardingRecord::LID) {
        answer.examine()?;
        let Some(switch) = query.directory.plan.switch(port.node).filter(|_| port.is_switch) else {
            continue;
        };
        let port_count = query.directory.facts(port.node).map_or(0, |facts| facts.info.port_count);
        for block in 0..switch.multicast.block_count() {
            for position in 0..=port_count / PORTS_PER_POSITION {
                answer.examine()?;
                let masks = switch.multicast.block(block, position);
                let record = MulticastForwardingRecord { lid: Some(port.lid.into()), position, block, masks };
                add_if(&matcher, &record.encode(), answer)?;
            }
        }
    }
    ControlFlow::Continue(())
}

/// Ports that one position of a multicast forwarding table has.
const PORTS_PER_POSITION: u8 = 16;

/// What the ports of an end node send by: the maps and arbitration tables of each port number, `None` where the plan has none: at
/// port 0 of a switch and at ports without a cable. Empty if the plan has none for any port.
fn qos_of<'a>(query: &Query<'a>, port: &EndPort) -> Vec<(u8, Option<&'a PortQos>)> {
    let plan = &query.directory.plan;
    let Some(switch) = plan.switch(port.node).filter(|_| port.is_switch) else {
        let qos = plan.adapter_port(port.port_guid).and_then(|port| port.qos.as_deref());
        return qos.map(|qos| (port.number.to_wire(), Some(qos))).into_iter().collect();
    };
    if switch.ports.iter().all(|port| port.qos.is_none()) {
        return Vec::new();
    }
    let count = query.directory.facts(port.node).map_or(0, |facts| facts.info.port_count);
    let qos = |number| switch.port(PortNum::new(number)?)?.qos.as_deref();
    (0..=count).map(|number| (number, qos(number))).collect()
}

/// SLtoVLMappingTableRecord: one for each pair of input and output of a switch, and one for each adapter port, for the manager's
/// own port only. Port numbers in a request for an adapter are ignored. What the plan does not have is shown as lane 0.
pub(super) fn lane_maps(query: &Query<'_>, answer: &mut Answer) -> ControlFlow<()> {
    let pattern = Pattern::<SlToVlRecord>::of(query.request);
    let of_switches = pattern.matcher();
    let of_adapters = pattern.without(SlToVlRecord::INPUT | SlToVlRecord::OUTPUT).matcher();
    let unplanned = SlToVl([VirtualLane::from_wire(0).unwrap_or(VirtualLane::MANAGEMENT); 16]);
    for port in ports(query, &pattern, SlToVlRecord::LID) {
        answer.examine()?;
        let maps = qos_of(query, port);
        let matcher = if port.is_switch { &of_switches } else { &of_adapters };
        for (output, qos) in &maps {
            for input in if port.is_switch { 0..maps.len() as u8 } else { 0..1 } {
                answer.examine()?;
                let map = |qos: &PortQos| {
                    let own = PortNum::new(input).and_then(|input| qos.by_input.get(&input));
                    *own.unwrap_or(&qos.otherwise)
                };
                let record = SlToVlRecord {
                    lid: Some(port.lid.into()),
                    input,
                    // OpenSM numbers the output of an adapter 0, too.
                    output: if port.is_switch { *output } else { 0 },
                    mapping: qos.map_or(unplanned, map),
                };
                add_if(matcher, &record.encode(), answer)?;
            }
        }
    }
    ControlFlow::Continue(())
}

/// VLArbitrationTableRecord: all blocks, also empty ones, for the manager's own port only. The port number in a request for an
/// adapter is ignored.
pub(super) fn arbitration_tables(query: &Query<'_>, answer: &mut Answer) -> ControlFlow<()> {
    let pattern = Pattern::<VlArbitrationRecord>::of(query.request);
    let of_switches = pattern.matcher();
    let of_adapters = pattern.without(VlArbitrationRecord::PORT).matcher();
    let unused = VlArbEntry { lane: VirtualLane::from_wire(0).unwrap_or(VirtualLane::MANAGEMENT), weight: 0 };
    for port in ports(query, &pattern, VlArbitrationRecord::LID) {
        answer.examine()?;
        let matcher = if port.is_switch { &of_switches } else { &of_adapters };
        for (number, qos) in qos_of(query, port) {
            let (low, high) = qos.map_or((&[][..], &[][..]), |qos| (&qos.low, &qos.high));
            // Blocks 1 and 2 are the low-priority table, 3 and 4 the high-priority one.
            for ((entries, half), block) in [(low, 0), (low, 1), (high, 0), (high, 1)].into_iter().zip(1..) {
                answer.examine()?;
                let mut table = [unused; VlArbBlock::ENTRIES];
                let entries = entries.iter().skip(half * VlArbBlock::ENTRIES);
                table.iter_mut().zip(entries).for_each(|(place, entry)| *place = *entry);
                let record = VlArbitrationRecord {
                    lid: Some(port.lid.into()),
                    port: number,
                    block,
                    entries: VlArbBlock(table),
                };
                add_if(matcher, &record.encode(), answer)?;
            }
        }
    }
    ControlFlow::Continue(())
}
