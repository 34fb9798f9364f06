//! Whether a cluster can be, and where: what hosts, ports and machines have left. No I/O.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use controller_api::Name;
use controller_api::cluster::{CpuMode, NodeState};
use controller_api::host::NewHost;
use fabric_compiler::arrangement::seats;
use fabric_model::MacAddress;
use fabric_model::intent::PortName;
use fabric_model::tenancy::Class;
use ib_wire::{Guid, Pkey};
use thiserror::Error;
use uuid::Uuid;

use crate::network::node_keys;
use crate::placement::{Candidate, FUNCTIONS_MAX, Machine, Need, NoPlace, have_room, place, room};
use crate::site::{AgentSight, Place, Seen};
use crate::store::{ClusterRow, NodeRow};

/// Keys that every port holds besides those of clusters: the default partition's, limited and full.
const DEFAULT_KEYS: u16 = 2;

/// Where hosts are on the fabric.
type Places<'a> = HashMap<&'a Name, Place>;

/// Why nodes cannot be placed.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum NotPlaced {
    /// What is there is not known yet.
    #[error("the fabric is not known yet")]
    NotYet,
    /// No host can be used now.
    #[error(
        "none of {hosts} hosts can be used now: {held} are in use by clusters that share their ports with nobody, or that a \
         guaranteed cluster cannot share with; of the others, the agents of {silent} do not answer and {absent} are not on the \
         fabric"
    )]
    NoHost {
        /// Hosts in all.
        hosts: usize,
        /// Those whose ports cannot be shared: a guaranteed cluster has its ports to itself.
        held: usize,
        /// Of the others, those whose agents do not answer.
        silent: usize,
        /// Of the others, those whose agents answer and that are not on the fabric.
        absent: usize,
    },
    /// There is no place.
    #[error(transparent)]
    NoPlace(#[from] NoPlace),
}

/// Finds places for `wanted` more nodes of a cluster.
pub fn admit(
    cluster: &ClusterRow,
    wanted: u32,
    hosts: &[NewHost],
    clusters: &[ClusterRow],
    seen: &Seen,
) -> Result<Vec<NodeRow>, NotPlaced> {
    if seen.fabric.sighting.is_none() || seen.fabric.plan.is_none() {
        return Err(NotPlaced::NotYet);
    }
    let is_up = |host: &NewHost| seen.agents.get(&host.name).is_some_and(AgentSight::is_up);
    let (machines, machine_of) = machines(hosts, clusters, seen);
    let used = usage(clusters);
    let places: Places<'_> =
        hosts.iter().filter_map(|host| Some((&host.name, *seen.fabric.place(host)?))).collect();
    let held = held(cluster, clusters);
    let free = || hosts.iter().filter(|host| !held.contains(&host.name));
    let candidates: Vec<Candidate> = free()
        .filter_map(|host| {
            let place = places.get(&host.name).filter(|_| is_up(host))?;
            seen.fabric.lid(place.port_guid)?;
            Some(candidate(host, place, used.get(&host.name), seen, machine_of[&host.agent]))
        })
        .collect();
    if candidates.is_empty() {
        let (free, silent) = (free().count(), free().filter(|host| !is_up(host)).count());
        let (hosts, held) = (hosts.len(), hosts.len() - free);
        return Err(NotPlaced::NoHost { hosts, held, silent, absent: free - silent });
    }
    let taken: Vec<Name> = cluster.nodes.iter().map(|node| node.host.clone()).collect();
    let keys = cluster.partition_numbers().count().max(1) as u16;
    let need = Need { cores: cluster.cores, memory: cluster.memory, mode: cluster.mode, keys };
    let alone = alone(cluster, wanted, &candidates, &machines, need, (seen, &places));
    let chosen = match alone {
        Some(chosen) => chosen,
        None => place(&candidates, &machines, need, wanted, &taken)?,
    };
    Ok(nodes(cluster, &chosen, &used, (seen, &places)))
}

/// A host of its own for each node of a guaranteed cluster, where the links have what it is to be promised. `None` for others,
/// and if there is no such place: then its nodes may have to share hosts.
fn alone(
    cluster: &ClusterRow,
    wanted: u32,
    candidates: &[Candidate],
    machines: &[Machine],
    need: Need,
    (seen, places): (&Seen, &Places<'_>),
) -> Option<Vec<Name>> {
    let Class::Guaranteed { bandwidth, .. } = cluster.class else { return None };
    let (sighting, plan) = (seen.fabric.sighting.as_ref()?, seen.fabric.plan.as_ref()?);
    let is_free = |candidate: &&Candidate| candidate.nodes == 0 && room(candidate, need, false) > 0;
    let by_port: HashMap<Guid, &Candidate> = (candidates.iter().filter(is_free))
        .filter_map(|candidate| Some((places.get(&candidate.host)?.port_guid, candidate)))
        .collect();
    let name = cluster.id.to_string();
    let (topology, fabric) = (&sighting.topology, &sighting.intents);
    let suits = |port| by_port.contains_key(&port);
    let ports = seats(topology, fabric, plan, (&name, bandwidth), wanted as usize, suits).ok()?;
    let chosen: Vec<&Candidate> = ports.iter().filter_map(|port| by_port.get(port).copied()).collect();
    have_room(machines, &chosen, need).then(|| chosen.iter().map(|it| it.host.clone()).collect())
}

/// Hosts on which a cluster may have no nodes because of what others have there: the port of a guaranteed cluster is its own.
fn held<'a>(cluster: &ClusterRow, clusters: &'a [ClusterRow]) -> HashSet<&'a Name> {
    let is_guaranteed = |cluster: &ClusterRow| cluster.class != Class::BestEffort;
    let others = clusters.iter().filter(|other| other.id != cluster.id);
    let exclusive = others.filter(|other| is_guaranteed(cluster) || is_guaranteed(other));
    exclusive.flat_map(|other| &other.nodes).map(|node| &node.host).collect()
}

/// What is in use on a host.
#[derive(Clone, Debug, Default)]
struct Usage {
    cores: u32,
    memory_mib: u32,
    nodes: u32,
    functions: BTreeSet<u8>,
    keys: BTreeSet<Pkey>,
}

fn usage(clusters: &[ClusterRow]) -> HashMap<Name, Usage> {
    let mut used: HashMap<Name, Usage> = HashMap::new();
    for cluster in clusters {
        for node in &cluster.nodes {
            let usage = used.entry(node.host.clone()).or_default();
            usage.cores += cluster.cores;
            usage.memory_mib += cluster.memory.mib();
            usage.nodes += 1;
            usage.functions.insert(node.function);
            usage.keys.extend(node_keys(cluster, node.number));
        }
    }
    used
}

fn candidate(host: &NewHost, place: &Place, used: Option<&Usage>, seen: &Seen, machine: usize) -> Candidate {
    let none = Usage::default();
    let used = used.unwrap_or(&none);
    let memory = host.memory.mib().saturating_sub(used.memory_mib);
    let capacity = key_capacity(place, seen);
    Candidate {
        host: host.name.clone(),
        leaf: place.leaf,
        cores: host.cores.saturating_sub(used.cores),
        memory: controller_api::MemorySize::from_mib(memory),
        functions: FUNCTIONS_MAX - used.functions.len().min(FUNCTIONS_MAX.into()) as u8,
        keys: capacity.saturating_sub(used.keys.len() as u16),
        nodes: used.nodes,
        machine,
    }
}

/// Keys of clusters that the port of a host, and the switch port before it, can hold.
fn key_capacity(place: &Place, seen: &Seen) -> u16 {
    let Some(sighting) = &seen.fabric.sighting else { return 0 };
    let capabilities = &sighting.intents.capabilities;
    let node = sighting.topology.by_port_guid(place.port_guid);
    let guid = node.and_then(|end| sighting.topology.node(end.node)).map(|node| node.guid);
    let Some(guid) = guid else { return 0 };
    let own = capabilities.port(PortName { node: guid, port: place.port }).pkeys;
    let enforced = capabilities.switch(place.leaf).enforced_pkeys;
    own.min(enforced).saturating_sub(DEFAULT_KEYS)
}

/// Machines by what their agents say of them, and which agent is on which. What was promised to nodes that do not run yet is
/// given away already.
fn machines<'a>(
    hosts: &'a [NewHost],
    clusters: &[ClusterRow],
    seen: &Seen,
) -> (Vec<Machine>, BTreeMap<&'a String, usize>) {
    let mut index = BTreeMap::new();
    let mut machines: Vec<Machine> = Vec::new();
    for host in hosts {
        let at = *index.entry(&host.agent).or_insert_with(|| {
            machines.push(Machine::default());
            machines.len() - 1
        });
        if let Some(agent) = seen.agents.get(&host.name) {
            let (cores, memory) = (agent.report.cores, agent.report.memory_mib);
            machines[at] = Machine {
                total: cores.total,
                left: cores.total.saturating_sub(cores.used),
                memory_mib: memory.total.saturating_sub(memory.used),
            };
        }
    }
    let agent_of: HashMap<&Name, &String> = hosts.iter().map(|host| (&host.name, &host.agent)).collect();
    for cluster in clusters {
        let cores = if cluster.mode == CpuMode::Dedicated { cluster.cores } else { 0 };
        for node in cluster.nodes.iter().filter(|node| node.state == NodeState::Placed) {
            if let Some(at) = agent_of.get(&node.host).and_then(|agent| index.get(*agent)) {
                let machine = &mut machines[*at];
                machine.left = machine.left.saturating_sub(cores);
                machine.memory_mib = machine.memory_mib.saturating_sub(cluster.memory.mib());
            }
        }
    }
    (machines, index)
}

/// Numbers, functions and addresses for nodes on these hosts.
fn nodes(
    cluster: &ClusterRow,
    chosen: &[Name],
    used: &HashMap<Name, Usage>,
    (seen, places): (&Seen, &Places<'_>),
) -> Vec<NodeRow> {
    let mut functions: HashMap<&Name, BTreeSet<u8>> = HashMap::new();
    let mut numbers = (1..).filter(|number| cluster.nodes.iter().all(|node| node.number != *number));
    let mut nodes = Vec::new();
    for host in chosen {
        let taken = functions
            .entry(host)
            .or_insert_with(|| used.get(host).map(|usage| usage.functions.clone()).unwrap_or_default());
        let place = places.get(host);
        let lid = place.and_then(|place| seen.fabric.lid(place.port_guid));
        let function = (1..=FUNCTIONS_MAX).find(|function| !taken.contains(function));
        // Hosts without these were no candidates.
        let (Some(place), Some(lid), Some(function), Some(number)) = (place, lid, function, numbers.next())
        else {
            continue;
        };
        taken.insert(function);
        nodes.push(node(number, host, place, function, MacAddress::of_function(lid, function)));
    }
    nodes
}

fn node(number: u32, host: &Name, place: &Place, function: u8, mac: MacAddress) -> NodeRow {
    let port_guid: Guid = place.port_guid;
    NodeRow {
        id: Uuid::new_v4(),
        number,
        host: host.clone(),
        port_guid,
        port: place.port,
        function,
        mac,
        leaving: false,
        joined: true,
        networked: false,
        gone: false,
        state: NodeState::Placed,
        reason: None,
        ready: None,
        network: None,
        fenced: false,
    }
}
