//! Addresses: every end port has a unique LID, and the plan matches the devices and cables of the topology.

use std::collections::{BTreeMap, HashSet};

use fabric_model::intent::PortName;
use fabric_model::{Endpoint, Topology};
use ib_wire::{Guid, Lid, PortNum};

use crate::{Finding, Reading};

pub(crate) fn check(read: &Reading<'_>) -> Vec<Finding> {
    let mut findings = manager(read);
    lids(read, &mut findings);
    devices(read, &mut findings);
    cables(read, &mut findings);
    findings
}

fn manager(read: &Reading<'_>) -> Vec<Finding> {
    let intended = read.intents.manager;
    let planned = read.network.plan.manager();
    let held = read.network.end(intended).map(|end| read.network.ends()[end].lid);
    let mut findings = Vec::new();
    if read.network.topology.by_port_guid(intended).is_none() {
        findings.push(Finding::ManagerMissing { port: intended });
    }
    if planned.guid != intended || Some(planned.lid) != held {
        let (planned, planned_lid) = (planned.guid, planned.lid);
        findings.push(Finding::ManagerDiffers { planned, planned_lid, intended, held });
    }
    findings
}

fn lids(read: &Reading<'_>, findings: &mut Vec<Finding>) {
    let mut owners: BTreeMap<Lid, Guid> = BTreeMap::new();
    let mut ends: Vec<(Lid, Guid)> = read.network.ends().iter().map(|end| (end.lid, end.guid)).collect();
    ends.sort_unstable();
    for (lid, guid) in ends {
        if let Some(first) = owners.get(&lid) {
            findings.push(Finding::DuplicateLid { lid, first: *first, second: guid });
        } else {
            owners.insert(lid, guid);
        }
    }
}

/// Checks that the plan contains exactly the end ports that are connected to the subnet manager, with their GUIDs.
fn devices(read: &Reading<'_>, findings: &mut Vec<Finding>) {
    let topology = read.network.topology;
    let mut planned: HashSet<PortName> = HashSet::with_capacity(read.network.ends().len());
    let mut present: HashSet<PortName> = HashSet::with_capacity(read.network.ends().len());
    present.extend(read.intended.present().iter().map(|end| end.name));
    for end in read.network.ends() {
        if !planned.insert(end.name) || !present.contains(&end.name) {
            findings.push(Finding::PortUnknown { port: end.name });
        } else if let Some(found) = guid(topology, end.name).filter(|found| *found != end.guid) {
            findings.push(Finding::GuidDiffers { port: end.name, planned: end.guid, found });
        }
    }
    let names = read.intended.present().iter().map(|end| end.name);
    findings.extend(names.filter(|port| !planned.contains(port)).map(|port| Finding::PortMissing { port }));
}

/// Checks that the plan names the right peer for both ends of every cable. A switch port to an end port that must not be in
/// the plan is not in it either.
fn cables(read: &Reading<'_>, findings: &mut Vec<Finding>) {
    let topology = read.network.topology;
    let present: HashSet<PortName> = read.intended.present().iter().map(|end| end.name).collect();
    let is_expected = |peer: Endpoint| {
        let node = &topology[peer.node];
        node.is_switch() || present.contains(&PortName { node: node.guid, port: peer.port })
    };
    let mut compare = |port: PortName, planned: Option<PortName>| {
        let found = peer(topology, port);
        if planned != found {
            findings.push(Finding::CableDiffers { port, planned, found });
        }
    };
    for adapter in read.network.plan.adapter_ports() {
        compare(adapter.name, Some(adapter.peer));
    }
    for switch in &read.network.switches {
        for port in switch.ports.iter() {
            compare(PortName { node: switch.guid, port: port.number }, Some(port.peer));
        }
        let Some(node) = topology.by_guid(switch.guid) else { continue };
        for (number, peer) in topology[node].cabled_ports() {
            if switch.port(number).is_none() && is_expected(peer) {
                compare(PortName { node: switch.guid, port: number }, None);
            }
        }
    }
}

fn peer(topology: &Topology, port: PortName) -> Option<PortName> {
    let node = topology.by_guid(port.node)?;
    let peer = topology.peer(Endpoint::new(node, port.port))?;
    Some(PortName { node: topology[peer.node].guid, port: peer.port })
}

/// Port GUID of an end port; port 0 of a switch may fall back to the node GUID.
fn guid(topology: &Topology, port: PortName) -> Option<Guid> {
    let node = topology.by_guid(port.node)?;
    let own = topology.port(Endpoint::new(node, port.port)).map(|port| port.guid);
    own.or_else(|| (port.port == PortNum::MANAGEMENT).then(|| topology[node].guid))
}
