//! Admission of nodes: whether and where a cluster fits on the hosts, ports and machines. No I/O.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use controller_api::Name;
use controller_api::cluster::{CpuMode, NodeState};
use controller_api::host::NewHost;
use fabric_compiler::arrangement::{NodesNotPlaced, find_hosts};
use fabric_model::intent::PortName;
use fabric_model::tenancy::{Bandwidth, Class};
use fabric_model::{Endpoint, FabricPlan, MacAddress};
use ib_wire::{Guid, Pkey};
use thiserror::Error;
use uuid::Uuid;

use crate::network::{DiscoveredFabric, node_keys};
use crate::observed::{HostAttachment, Observed, ObservedAgent};
use crate::placement::{
    Candidate, FUNCTIONS_MAX, NodePlacementError, NodeRequirements, PhysicalMachine, machines_fit,
    node_capacity, place_nodes,
};
use crate::store::{ClusterRow, NodeRow};

/// P_Keys that every port holds besides those of clusters: the limited and the full one of the default partition.
const DEFAULT_KEYS: u16 = 2;

/// Fabric ports by host name.
type HostAttachments<'a> = HashMap<&'a Name, HostAttachment>;

/// Why nodes cannot be placed.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum AdmissionError {
    /// The fabric has not been discovered or planned yet.
    #[error("the fabric has not been discovered yet")]
    NotYet,
    /// No host is usable now. `excluded_hosts` have ports that cannot be shared; of the others, `silent` ones have an
    /// agent that does not respond, and `absent` ones are not on the fabric.
    #[error(
        "none of {hosts} hosts is usable now: {excluded_hosts} are occupied by guaranteed clusters, or by clusters that a \
         guaranteed one cannot share a port with; of the others, the agents of {silent} do not respond and {absent} are not on \
         the fabric"
    )]
    NoHost { hosts: usize, excluded_hosts: usize, silent: usize, absent: usize },
    /// The usable hosts have too few resources left.
    #[error("{reason}")]
    NoCapacity {
        reason: NodePlacementError,
        /// Why a guaranteed cluster cannot have hosts of its own either.
        not_exclusive: Option<NotExclusive>,
    },
}

/// Why new nodes of a guaranteed cluster cannot have one unused host each. They may then share hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NotExclusive {
    /// Too few hosts are unused, or their links have too little left.
    #[error(transparent)]
    Fabric(#[from] NodesNotPlaced),
    /// The physical machines behind the hosts have too few cores or too little memory left.
    #[error("the machines behind {hosts} unused hosts have too few cores or too little memory left")]
    Machines { hosts: usize },
}

/// New nodes with their hosts.
#[derive(Debug)]
pub struct PlacedNodes {
    pub nodes: Vec<NodeRow>,
    /// Why they have no hosts of their own; `None` if they have, or are of a best-effort cluster.
    pub not_exclusive: Option<NotExclusive>,
}

/// Chooses hosts for `wanted` more nodes of a cluster, and assigns their numbers, virtual functions and MAC addresses.
///
/// A guaranteed cluster gets one unused host per node if the links have the bandwidth left; all others are packed by
/// [`place_nodes`].
pub fn admit(
    cluster: &ClusterRow,
    wanted: u32,
    hosts: &[NewHost],
    clusters: &[ClusterRow],
    observed: &Observed,
) -> Result<PlacedNodes, AdmissionError> {
    let (Some(discovered), Some(plan)) = (&observed.fabric.discovered, &observed.fabric.plan) else {
        return Err(AdmissionError::NotYet);
    };
    let is_up = |host: &NewHost| observed.agents.get(&host.name).is_some_and(ObservedAgent::is_up);
    let (machines, machine_of) = machines(hosts, clusters, observed);
    let used = usage(clusters);
    let host_ports: HostAttachments<'_> =
        hosts.iter().filter_map(|host| Some((&host.name, *observed.fabric.host_port(host)?))).collect();
    let excluded_hosts = excluded_hosts(cluster, clusters);
    let free = || hosts.iter().filter(|host| !excluded_hosts.contains(&host.name));
    let candidates: Vec<Candidate> = free()
        .filter_map(|host| {
            let host_port = host_ports.get(&host.name).filter(|_| is_up(host))?;
            observed.fabric.lid(host_port.port_guid)?;
            Some(candidate(host, host_port, used.get(&host.name), observed, machine_of[&host.agent]))
        })
        .collect();
    if candidates.is_empty() {
        let (free, silent) = (free().count(), free().filter(|host| !is_up(host)).count());
        let (hosts, excluded_hosts) = (hosts.len(), hosts.len() - free);
        return Err(AdmissionError::NoHost { hosts, excluded_hosts, silent, absent: free - silent });
    }
    let taken: Vec<Name> = cluster.nodes.iter().map(|node| node.host.clone()).collect();
    let keys = cluster.partition_numbers().count().max(1) as u16;
    let need = NodeRequirements { cores: cluster.cores, memory: cluster.memory, mode: cluster.mode, keys };
    let pack = |not_exclusive| match place_nodes(&candidates, &machines, need, wanted, &taken) {
        Ok(chosen) => Ok((chosen, not_exclusive)),
        Err(reason) => Err(AdmissionError::NoCapacity { reason, not_exclusive }),
    };
    let (chosen, not_exclusive) = match cluster.class {
        Class::BestEffort => pack(None)?,
        Class::Guaranteed { bandwidth, .. } => {
            let fabric = FabricLinks { discovered, plan, host_ports: &host_ports };
            match fabric.exclusive_hosts(cluster, bandwidth, wanted, &candidates, &machines, need) {
                Ok(chosen) => (chosen, None),
                Err(reason) => pack(Some(reason))?,
            }
        }
    };
    Ok(PlacedNodes { nodes: nodes(cluster, &chosen, &used, observed, &host_ports), not_exclusive })
}

/// The links that guaranteed clusters share, and where hosts are on them.
struct FabricLinks<'a> {
    discovered: &'a DiscoveredFabric,
    plan: &'a FabricPlan,
    host_ports: &'a HostAttachments<'a>,
}

impl FabricLinks<'_> {
    /// One unused host per new node of a guaranteed cluster, chosen so that the links can guarantee its bandwidth.
    fn exclusive_hosts(
        &self,
        cluster: &ClusterRow,
        bandwidth: Bandwidth,
        wanted: u32,
        candidates: &[Candidate],
        machines: &[PhysicalMachine],
        need: NodeRequirements,
    ) -> Result<Vec<Name>, NotExclusive> {
        let is_free =
            |candidate: &&Candidate| candidate.nodes == 0 && node_capacity(candidate, need, false) > 0;
        let by_port: HashMap<Guid, &Candidate> = (candidates.iter().filter(is_free))
            .filter_map(|candidate| Some((self.host_ports.get(&candidate.host)?.port_guid, candidate)))
            .collect();
        let name = cluster.id.to_string();
        let DiscoveredFabric { topology, intents } = self.discovered;
        let suits = |port| by_port.contains_key(&port);
        let ports = find_hosts(topology, intents, self.plan, (&name, bandwidth), wanted as usize, suits)?;
        let chosen: Vec<&Candidate> = ports.iter().filter_map(|port| by_port.get(port).copied()).collect();
        if machines_fit(machines, &chosen, need) {
            Ok(chosen.iter().map(|it| it.host.clone()).collect())
        } else {
            Err(NotExclusive::Machines { hosts: chosen.len() })
        }
    }
}

/// Hosts that a cluster must not use because of other clusters there: a port of a guaranteed cluster is never shared.
fn excluded_hosts<'a>(cluster: &ClusterRow, clusters: &'a [ClusterRow]) -> HashSet<&'a Name> {
    let is_guaranteed = |cluster: &ClusterRow| cluster.class != Class::BestEffort;
    let others = clusters.iter().filter(|other| other.id != cluster.id);
    let exclusive = others.filter(|other| is_guaranteed(cluster) || is_guaranteed(other));
    exclusive.flat_map(|other| &other.nodes).map(|node| &node.host).collect()
}

/// Resources in use on a host.
#[derive(Clone, Debug, Default)]
struct HostUsage {
    cores: u32,
    memory_mib: u32,
    nodes: u32,
    functions: BTreeSet<u8>,
    keys: BTreeSet<Pkey>,
}

fn usage(clusters: &[ClusterRow]) -> HashMap<Name, HostUsage> {
    let mut used: HashMap<Name, HostUsage> = HashMap::new();
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

fn candidate(
    host: &NewHost,
    host_port: &HostAttachment,
    used: Option<&HostUsage>,
    observed: &Observed,
    machine: usize,
) -> Candidate {
    let none = HostUsage::default();
    let used = used.unwrap_or(&none);
    let memory = host.memory.mib().saturating_sub(used.memory_mib);
    let capacity = key_capacity(host_port, observed);
    Candidate {
        host: host.name.clone(),
        leaf: host_port.leaf,
        cores: host.cores.saturating_sub(used.cores),
        memory: controller_api::MemorySize::from_mib(memory),
        functions: FUNCTIONS_MAX - used.functions.len().min(FUNCTIONS_MAX.into()) as u8,
        keys: capacity.saturating_sub(used.keys.len() as u16),
        nodes: used.nodes,
        machine,
    }
}

/// P_Keys of clusters that the port of a host and its switch port can both hold.
fn key_capacity(host_port: &HostAttachment, observed: &Observed) -> u16 {
    let Some(discovered) = &observed.fabric.discovered else { return 0 };
    let capabilities = &discovered.intents.capabilities;
    let topology = &discovered.topology;
    let name = |end: Endpoint| Some(PortName { node: topology.node(end.node)?.guid, port: end.port });
    let end = topology.by_port_guid(host_port.port_guid);
    let switch_port = end.and_then(|end| topology.peer(end)).and_then(name);
    let (Some(port), Some(switch_port)) = (end.and_then(name), switch_port) else { return 0 };
    let own = capabilities.port(port).pkeys;
    let enforced = capabilities.enforced_pkeys(switch_port, port);
    own.min(enforced).saturating_sub(DEFAULT_KEYS)
}

/// Machines as their agents report them, and the index of each agent's machine. Resources of nodes that are placed but
/// not running yet are subtracted.
fn machines<'a>(
    hosts: &'a [NewHost],
    clusters: &[ClusterRow],
    observed: &Observed,
) -> (Vec<PhysicalMachine>, BTreeMap<&'a String, usize>) {
    let mut index = BTreeMap::new();
    let mut machines: Vec<PhysicalMachine> = Vec::new();
    for host in hosts {
        let at = *index.entry(&host.agent).or_insert_with(|| {
            machines.push(PhysicalMachine::default());
            machines.len() - 1
        });
        if let Some(agent) = observed.agents.get(&host.name) {
            let (cores, memory) = (agent.report.cores, agent.report.memory_mib);
            machines[at] = PhysicalMachine {
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

/// Rows for new nodes on the chosen hosts: the lowest free numbers and virtual functions.
fn nodes(
    cluster: &ClusterRow,
    chosen: &[Name],
    used: &HashMap<Name, HostUsage>,
    observed: &Observed,
    host_ports: &HostAttachments<'_>,
) -> Vec<NodeRow> {
    let mut functions: HashMap<&Name, BTreeSet<u8>> = HashMap::new();
    let mut numbers = (1..).filter(|number| cluster.nodes.iter().all(|node| node.number != *number));
    let mut nodes = Vec::new();
    for host in chosen {
        let taken = functions
            .entry(host)
            .or_insert_with(|| used.get(host).map(|usage| usage.functions.clone()).unwrap_or_default());
        let host_port = host_ports.get(host);
        let lid = host_port.and_then(|host_port| observed.fabric.lid(host_port.port_guid));
        let function = (1..=FUNCTIONS_MAX).find(|function| !taken.contains(function));
        // Every chosen host has these: it was a candidate.
        let (Some(host_port), Some(lid), Some(function), Some(number)) =
            (host_port, lid, function, numbers.next())
        else {
            continue;
        };
        taken.insert(function);
        nodes.push(node(number, host, host_port, function, MacAddress::of_function(lid, function)));
    }
    nodes
}

fn node(number: u32, host: &Name, host_port: &HostAttachment, function: u8, mac: MacAddress) -> NodeRow {
    let port_guid: Guid = host_port.port_guid;
    NodeRow {
        id: Uuid::new_v4(),
        number,
        host: host.clone(),
        port_guid,
        port: host_port.port,
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
