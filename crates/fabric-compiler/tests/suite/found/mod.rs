//! Fabrics as other subnet managers leave them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "every test binary uses its own part")]

use std::collections::VecDeque;
use std::collections::btree_map::{BTreeMap, Entry};

use fabric_model::plan::{LinearTable, PkeyTable};
use fabric_model::{Endpoint, FabricPlan, NodeIndex, ObservedTables, Topology};
use ib_wire::{Guid, Lid, Pkey, PortNum};

/// Chooses among the exits of shortest paths, by switch and LID.
pub type Choose = fn(usize, NodeIndex, Lid) -> usize;

/// Like minhop with much balancing: any of them.
pub fn scattered(count: usize, switch: NodeIndex, lid: Lid) -> usize {
    let mut number = (switch.index() as u64) << 32 | u64::from(lid.to_wire());
    for _ in 0..3 {
        number = (number ^ number >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    }
    (number >> 33) as usize % count
}

/// Like ftree: the same for a LID on all switches of a tier.
pub fn by_lid(count: usize, _: NodeIndex, lid: Lid) -> usize {
    usize::from(lid.to_wire()) % count
}

/// The configuration of a manager that uses shortest paths, assigns LIDs in the order of nodes, and makes all ports full
/// members of the default partition.
pub fn shortest_paths(topology: &Topology, choose: Choose) -> ObservedTables {
    let mut found = ObservedTables::default();
    let mut homes: BTreeMap<Lid, (NodeIndex, PortNum)> = BTreeMap::new();
    let mut numbers = (1..).filter_map(Lid::from_wire);
    for (index, node) in topology.nodes() {
        let end =
            node.ports().find(|(number, port)| node.is_switch() || port.peer.is_some() && number.index() > 0);
        let Some((number, port)) = end else { continue };
        let lid = numbers.next().unwrap();
        found.lids.insert(port.guid, lid);
        found.pkeys.insert(port.guid, PkeyTable::from_keys(vec![Some(Pkey::DEFAULT_FULL)]));
        let home = topology.peer(Endpoint::new(index, number)).map(|peer| (peer.node, peer.port));
        homes.insert(lid, home.unwrap_or((index, PortNum::MANAGEMENT)));
    }
    let top = usize::from(homes.last_key_value().unwrap().0.to_wire());
    let mut rows: BTreeMap<Guid, Vec<u8>> =
        topology.switches().map(|(_, node)| (node.guid, vec![0xff; top + 1])).collect();
    for (lid, (home, port)) in homes {
        let distances = distances(topology, home);
        for (index, node) in topology.switches() {
            let exit = if index == home {
                port
            } else {
                let nearer =
                    |peer: &NodeIndex| distances.get(peer).is_some_and(|d| d + 1 == distances[&index]);
                let exits: Vec<PortNum> = node
                    .cabled_ports()
                    .filter(|(_, peer)| nearer(&peer.node))
                    .map(|(port, _)| port)
                    .collect();
                exits[choose(exits.len(), index, lid)]
            };
            rows.get_mut(&node.guid).unwrap()[usize::from(lid.to_wire())] = exit.to_wire();
        }
    }
    found.linear = rows.into_iter().map(|(guid, row)| (guid, LinearTable::from_exits(row))).collect();
    found
}

fn distances(topology: &Topology, from: NodeIndex) -> BTreeMap<NodeIndex, usize> {
    let mut distances = BTreeMap::from([(from, 0)]);
    let mut queue = VecDeque::from([from]);
    while let Some(here) = queue.pop_front() {
        let distance = distances[&here] + 1;
        for (_, peer) in topology[here].cabled_ports().filter(|(_, peer)| topology[peer.node].is_switch()) {
            if let Entry::Vacant(place) = distances.entry(peer.node) {
                place.insert(distance);
                queue.push_back(peer.node);
            }
        }
    }
    distances
}

/// The configuration of devices that were programmed from a plan.
pub fn programmed(plan: &FabricPlan) -> ObservedTables {
    let adapters = plan.adapter_ports().map(|port| (port.guid, (*port.pkeys).clone()));
    let switches = plan.switches().map(|switch| (switch.port_guid, (*switch.pkeys).clone()));
    ObservedTables {
        lids: plan.lids().map(|(lid, guid)| (guid, lid)).collect(),
        linear: plan.switches().map(|switch| (switch.guid, (*switch.linear).clone())).collect(),
        pkeys: adapters.chain(switches).collect(),
    }
}
