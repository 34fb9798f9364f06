//! Records of the tables in the plan.

use std::ops::ControlFlow;

use fabric_model::plan::{Enforcement, PkeyTable};
use ib_wire::sa::{LinearForwardingRecord, Matcher, Pattern, PkeyTableRecord};
use ib_wire::{ForwardingBlock, LidAddress, PortNum};

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
