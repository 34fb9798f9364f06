//! Records of nodes, ports, switches, links and subnet managers.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use fabric_model::intent::PortName;
use ib_wire::sa::{
    self, ComponentMask, LinkRecord, Matcher, NodeRecord, Pattern, PortInfoRecord, Record, SmInfoRecord,
    SwitchInfoRecord,
};
use ib_wire::{
    Capability, ClassCapability2, ClassPortInfo, Gid, Guid, Lid, LidAddress, NodeInfo, PortInfo, PortNum,
    QKey, QueuePair, ServiceLevel, SmInfo, SmState,
};

use super::directory::EndPort;
use super::query::{Answer, Query};

/// RespTimeValue of ClassPortInfo as an exponent of 4.096 µs: 268 ms, as OpenSM.
const RESPONSE_TIME: u8 = 16;

/// Modifier of a PortInfoRecord request: match all ports that have all bits of the capability mask.
const CAPABILITY_BITS: u32 = 1 << 31;
/// Modifier of a PortInfoRecord request: match all ports that have all bits of CapabilityMask2.
const CAPABILITY2_BITS: u32 = 1 << 30;

/// ClassPortInfo of this subnet administration.
pub(super) fn class_port_info(answer: &mut Answer) {
    let no_gid = Gid::default();
    let info = ClassPortInfo {
        base_version: 1,
        class_version: 2,
        capability: sa::capability::PORT_INFO_CAPABILITY_MATCH
            .with(sa::capability::OPTIONAL_RECORDS)
            .with(sa::capability::MULTI_PATH)
            .with(sa::capability::MULTICAST),
        capability2: ClassCapability2::default()
            .with(sa::capability2::MULTICAST_FDB_TOP)
            .with(sa::capability2::ALIAS_GUIDS)
            .with(sa::capability2::FULL_PORT_INFO)
            .with(sa::capability2::EXTENDED_SPEEDS)
            .with(sa::capability2::SEND_ONLY_FULL_MEMBERS)
            .with(sa::capability2::PORT_INFO_CAPABILITY2_MATCH),
        response_time: RESPONSE_TIME,
        redirect_gid: no_gid,
        redirect_traffic_class: 0,
        redirect_sl: ServiceLevel::default(),
        redirect_flow_label: 0,
        redirect_lid: None,
        redirect_pkey: None,
        redirect_qp: QueuePair::GENERAL_MANAGEMENT,
        redirect_qkey: QKey::GENERAL_MANAGEMENT,
        trap_gid: no_gid,
        trap_traffic_class: 0,
        trap_sl: ServiceLevel::default(),
        trap_flow_label: 0,
        trap_lid: None,
        trap_pkey: None,
        trap_hop_limit: 0,
        trap_qp: QueuePair::SUBNET_MANAGEMENT,
        trap_qkey: QKey::GENERAL_MANAGEMENT,
    };
    let _ = answer.add(&info.encode());
}

/// The end ports that the LID component of a request leaves.
pub(super) fn ports<'a, R: Record>(
    query: &Query<'a>,
    pattern: &Pattern<'_, R>,
    lid: ComponentMask,
) -> &'a [EndPort] {
    query.ports_at(pattern.value::<Option<LidAddress>>(lid).flatten(), !pattern.selects(lid))
}

/// NodeRecord: one for each end port.
pub(super) fn nodes(query: &Query<'_>, answer: &mut Answer) -> ControlFlow<()> {
    let pattern = Pattern::<NodeRecord>::of(query.request);
    let matcher = pattern.matcher();
    let ports = match pattern.value::<Option<Guid>>(NodeRecord::PORT_GUID).flatten() {
        Some(guid) => query.directory.port_by_guid(guid).map_or(&[][..], std::slice::from_ref),
        None => ports(query, &pattern, NodeRecord::LID),
    };
    for port in ports {
        answer.examine()?;
        let Some(facts) = query.directory.facts(port.node).filter(|_| query.sees(port)) else {
            continue;
        };
        let node_info = NodeInfo { port_guid: port.guid, local_port: port.number, ..facts.info.clone() };
        let record = NodeRecord { lid: Some(port.lid.into()), node_info, description: facts.description };
        add_if(&matcher, &record.encode(), answer)?;
    }
    ControlFlow::Continue(())
}

/// PortInfoRecord. A requester that sees port 0 of a switch sees all its ports.
pub(super) fn port_infos(query: &Query<'_>, answer: &mut Answer) -> ControlFlow<()> {
    let pattern = Pattern::<PortInfoRecord>::of(query.request);
    let by_bits = |flag, component| match query.request.modifier() & flag {
        0 => ComponentMask::NONE,
        _ => component,
    };
    let bitwise = by_bits(CAPABILITY_BITS, PortInfoRecord::CAPABILITY)
        | by_bits(CAPABILITY2_BITS, PortInfoRecord::CAPABILITY2);
    let matcher = pattern.without(bitwise).matcher();
    let has_bits = |info: &PortInfo| {
        let first = pattern.value::<Capability>(PortInfoRecord::CAPABILITY);
        let second = pattern.value::<u16>(PortInfoRecord::CAPABILITY2);
        (!bitwise.has(PortInfoRecord::CAPABILITY) || first.is_none_or(|wanted| info.capability.has(wanted)))
            && (!bitwise.has(PortInfoRecord::CAPABILITY2)
                || second.is_none_or(|wanted| info.capability2 & wanted == wanted))
    };
    for port in ports(query, &pattern, PortInfoRecord::LID) {
        answer.examine()?;
        let Some(facts) = query.directory.facts(port.node).filter(|_| query.sees(port)) else {
            continue;
        };
        for (number, info) in &facts.ports {
            if !port.is_switch && *number != port.number {
                continue;
            }
            answer.examine()?;
            let port_info = as_reported(query, port, *number, info);
            if has_bits(&port_info) {
                let record = PortInfoRecord {
                    lid: Some(port.lid.into()),
                    port: number.to_wire(),
                    qdr_not_overloaded: false,
                    port_info,
                };
                add_if(&matcher, &record.encode(), answer)?;
            }
        }
    }
    ControlFlow::Continue(())
}

/// PortInfo without the M_Key and with the addresses of the plan.
fn as_reported(query: &Query<'_>, port: &EndPort, number: PortNum, info: &PortInfo) -> PortInfo {
    let manager = query.directory.plan.manager();
    let mut reported = PortInfo { m_key: None, ..info.clone() };
    if number == port.number {
        reported.lid = Some(port.lid);
        reported.master_sm_lid = Some(manager.lid);
    }
    if port.guid == manager.guid && !port.is_switch {
        reported.capability = reported.capability.with(Capability::IS_SM);
    }
    reported
}

/// SMInfoRecord of the master subnet manager.
pub(super) fn managers(query: &Query<'_>, answer: &mut Answer) -> ControlFlow<()> {
    let Some(port) = query.directory.manager_port().filter(|port| query.sees(port)) else {
        return ControlFlow::Continue(());
    };
    let facts = query.directory.manager;
    let sm_info = SmInfo {
        guid: Some(port.guid),
        sm_key: None,
        activity: facts.activity,
        priority: facts.priority,
        state: SmState::Master,
    };
    let record = SmInfoRecord { lid: Some(port.lid.into()), sm_info };
    add_if(&Pattern::<SmInfoRecord>::of(query.request).matcher(), &record.encode(), answer)
}

/// SwitchInfoRecord, for the manager's own port only.
pub(super) fn switches(query: &Query<'_>, answer: &mut Answer) -> ControlFlow<()> {
    let pattern = Pattern::<SwitchInfoRecord>::of(query.request);
    let matcher = pattern.matcher();
    for port in ports(query, &pattern, SwitchInfoRecord::LID).iter().filter(|port| port.is_switch) {
        answer.examine()?;
        let (Some(facts), Some(switch)) =
            (query.directory.facts(port.node), query.directory.plan.switch(port.node))
        else {
            continue;
        };
        let Some(mut switch_info) = facts.switch.clone() else { continue };
        switch_info.linear_fdb_top = switch.linear.top();
        let record = SwitchInfoRecord { lid: Some(port.lid.into()), switch_info };
        add_if(&matcher, &record.encode(), answer)?;
    }
    ControlFlow::Continue(())
}

/// LinkRecord: one for each direction, for the manager's own port only.
pub(super) fn links(query: &Query<'_>, answer: &mut Answer) -> ControlFlow<()> {
    let plan = &query.directory.plan;
    let adapters: BTreeMap<PortName, Lid> = plan.adapter_ports().map(|port| (port.name, port.lid)).collect();
    let lid_of = |end: PortName| match plan.switch(end.node) {
        Some(switch) => Some(switch.lid),
        None => adapters.get(&end).copied(),
    };
    let pattern = Pattern::<LinkRecord>::of(query.request);
    let matcher = pattern.matcher();
    for port in ports(query, &pattern, LinkRecord::FROM_LID) {
        answer.examine()?;
        let cables: Vec<(PortNum, PortName)> = match plan.switch(port.node).filter(|_| port.is_switch) {
            Some(switch) => switch.ports.iter().map(|cable| (cable.number, cable.peer)).collect(),
            None => plan.adapter_port(port.guid).map(|own| (port.number, own.peer)).into_iter().collect(),
        };
        for (number, peer) in cables {
            answer.examine()?;
            let record = LinkRecord {
                from_lid: Some(port.lid.into()),
                from_port: number.to_wire(),
                to_port: peer.port.to_wire(),
                to_lid: lid_of(peer).map(LidAddress::Unicast),
            };
            add_if(&matcher, &record.encode(), answer)?;
        }
    }
    ControlFlow::Continue(())
}

/// Adds a record if it matches the request.
pub(super) fn add_if(matcher: &Matcher, record: &[u8], answer: &mut Answer) -> ControlFlow<()> {
    if matcher.matches(record) { answer.add(record) } else { ControlFlow::Continue(()) }
}
