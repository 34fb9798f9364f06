//! Records of the tables in the plan.

use std::ops::ControlFlow;

use fabric_model::plan::{Enforcement, PkeyTable, PortQos};
use ib_wire::sa::{
    LinearForwardingRecord, Matcher, MulticastForwardingRecord, Pattern, PkeyTableRecord, SlToVlRecord,
    VlArbitrationRecord,
};
use ib_wire::{ForwardingBlock, LidAddress, PortNum, VirtualLane, VlArbBlock, VlArbEntry};

use super::directory::EndPort;
use super::inventory::add_if;
use super::query::{Answer, Query};

/// PKeyTableRecord: a port sees its own, the manager's own port all of them, including those of switch ports
/// that enforce partitions.
///
/// The block number is in network byte order. OpenSM 3.3.23 leaves it in host byte order and saquery prints
/// it so: blocks other than 0 are answered correctly but printed wrong by that tool.
pub(super) fn pkey_tables(query: &Query<'_>, answer: &mut Answer) -> ControlFlow<()> {
    let pattern = Pattern::<PkeyTableRecord>::of(query.request);
    let matcher = pattern.matcher();
    let lid = pattern.value::<Option<LidAddress>>(PkeyTableRecord::LID).flatten();
    for port in query.ports_at(lid, !pattern.selects(PkeyTableRecord::LID)) {
        answer.examine()?;
        if !query.is_manager && port.guid != query.requester.guid {
            continue;
        }
        blocks(port, port.number, &port.pkeys, &matcher, answer)?;
        let switch = query.directory.plan.switch(port.node).filter(|_| query.is_manager && port.is_switch);
        for external in switch.iter().flat_map(|switch| switch.ports.iter()) {
            if let Enforcement::Both(table) = &external.enforcement {
                blocks(port, external.number, table, &matcher, answer)?;
            }
        }
    }
    ControlFlow::Continue(())
}

fn blocks(
    port: &EndPort,
    number: PortNum,
    table: &PkeyTable,
    matcher: &Matcher,
    answer: &mut Answer,
) -> ControlFlow<()> {
    for block in 0..table.block_count().max(1) {
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
    let lid = pattern.value::<Option<LidAddress>>(LinearForwardingRecord::LID).flatten();
    for port in query.ports_at(lid, !pattern.selects(LinearForwardingRecord::LID)) {
        answer.examine()?;
        let switch = query.directory.plan.switch(port.node).filter(|_| port.is_switch);
        let Some(linear) = switch.map(|switch| &switch.linear) else { continue };
        for block in 0..linear.block_count() {
            answer.examine()?;
            let ports = ForwardingBlock::decode(&linear.block(block));
            let record = LinearForwardingRecord { lid: Some(port.lid.into()), block, ports };
            add_if(&matcher, &record.encode(), answer)?;
        }
    }
    ControlFlow::Continue(())
}

/// MFTRecord, for the manager's own port only.
pub(super) fn multicast_tables(query: &Query<'_>, answer: &mut Answer) -> ControlFlow<()> {
    let pattern = Pattern::<MulticastForwardingRecord>::of(query.request);
    let matcher = pattern.matcher();
    let lid = pattern.value::<Option<LidAddress>>(MulticastForwardingRecord::LID).flatten();
    for port in query.ports_at(lid, !pattern.selects(MulticastForwardingRecord::LID)) {
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

/// What ports send by: the maps and arbitration tables of an end node, with the number of each port.
fn qos_of<'a>(query: &Query<'a>, port: &EndPort) -> Vec<(PortNum, &'a PortQos)> {
    let plan = &query.directory.plan;
    match plan.switch(port.node).filter(|_| port.is_switch) {
        Some(switch) => {
            switch.ports.iter().filter_map(|port| Some((port.number, port.qos.as_deref()?))).collect()
        }
        None => {
            let qos = plan.adapter_port(port.guid).and_then(|port| port.qos.as_deref());
            qos.map(|qos| (port.number, qos)).into_iter().collect()
        }
    }
}

/// SLtoVLMappingTableRecord: one for each hop of a switch and each adapter port, for the manager's own port only.
pub(super) fn lane_maps(query: &Query<'_>, answer: &mut Answer) -> ControlFlow<()> {
    let pattern = Pattern::<SlToVlRecord>::of(query.request);
    let matcher = pattern.matcher();
    let lid = pattern.value::<Option<LidAddress>>(SlToVlRecord::LID).flatten();
    for port in query.ports_at(lid, !pattern.selects(SlToVlRecord::LID)) {
        answer.examine()?;
        let inputs = match port.is_switch {
            true => query.directory.facts(port.node).map_or(0, |facts| facts.info.port_count),
            false => 0,
        };
        for (output, qos) in qos_of(query, port) {
            for input in (0..=inputs).filter(|input| *input != output.to_wire()) {
                answer.examine()?;
                let own = PortNum::new(input).and_then(|input| qos.by_input.get(&input));
                let record = SlToVlRecord {
                    lid: Some(port.lid.into()),
                    input,
                    output: output.to_wire(),
                    mapping: *own.unwrap_or(&qos.otherwise),
                };
                add_if(&matcher, &record.encode(), answer)?;
            }
        }
    }
    ControlFlow::Continue(())
}

/// VLArbitrationTableRecord: the blocks with entries, for the manager's own port only.
pub(super) fn arbitration_tables(query: &Query<'_>, answer: &mut Answer) -> ControlFlow<()> {
    let pattern = Pattern::<VlArbitrationRecord>::of(query.request);
    let matcher = pattern.matcher();
    let lid = pattern.value::<Option<LidAddress>>(VlArbitrationRecord::LID).flatten();
    let unused = VlArbEntry { lane: VirtualLane::from_wire(0).unwrap_or(VirtualLane::MANAGEMENT), weight: 0 };
    for port in query.ports_at(lid, !pattern.selects(VlArbitrationRecord::LID)) {
        answer.examine()?;
        for (number, qos) in qos_of(query, port) {
            let low = qos.low.chunks(VlArbBlock::ENTRIES).zip(1..);
            for (entries, block) in low.chain(qos.high.chunks(VlArbBlock::ENTRIES).zip(3..)) {
                answer.examine()?;
                let mut table = [unused; VlArbBlock::ENTRIES];
                table[..entries.len()].copy_from_slice(entries);
                let record = VlArbitrationRecord {
                    lid: Some(port.lid.into()),
                    port: number.to_wire(),
                    block,
                    entries: VlArbBlock(table),
                };
                add_if(&matcher, &record.encode(), answer)?;
            }
        }
    }
    ControlFlow::Continue(())
}
