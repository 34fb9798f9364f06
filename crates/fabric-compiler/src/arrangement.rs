//! Places a list of desired clusters on a fabric and plans the fabric for them.
//!
//! Clusters that have hosts keep them; a cluster that grows gets hosts near those it has. New clusters are placed in the
//! order of the list. Guaranteed ones get hosts of their own by [`placement`](crate::tenancy::placement). Best-effort ones
//! share hosts that no guaranteed cluster owns, by [`packing`](crate::packing).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use fabric_model::intent::{
    ClusterIntent, Ipoib, Member, MemberSelector, PartitionIntent, PkeyPlacement, Role,
};
use fabric_model::tenancy::{Bandwidth, Class, ClusterNumber, SlMode};
use fabric_model::{Decisions, FabricPlan, Intents, Topology};
use ib_wire::Guid;
use thiserror::Error;

use crate::guarantees::{link_graph, restored};
use crate::packing::{SharedHost, pack};
use crate::tenancy::admission::Grant;
use crate::tenancy::link_graph::{AttachedHost, HostIndex, LinkGraph};
use crate::tenancy::placement::{Capacity, PlacementError, PlacementRequest, Placer};
use crate::{CompileError, compile};

/// P_Keys that every port holds besides those of clusters: the default partition's, limited and full.
const DEFAULT_KEYS: usize = 2;

/// A cluster that is to run on the fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredCluster {
    /// Unique in the list. A later arrangement recognises the cluster by it.
    pub name: String,
    pub nodes: usize,
    /// What each node needs of its host.
    pub needs: Capacity,
    pub class: Class,
    /// Whether the cluster uses one service level, or one for each pair of switches.
    pub sl_mode: SlMode,
    /// Partitions inside the cluster. A node that is in one of them is a limited member of the cluster's own partition.
    pub partitions: Vec<InnerPartition>,
}

/// A partition inside a cluster. Nodes are numbered from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InnerPartition {
    /// Unique in the cluster.
    pub name: String,
    /// Nodes that reach all members.
    pub full: BTreeSet<u32>,
    /// Nodes that reach full members only.
    pub limited: BTreeSet<u32>,
}

/// Placed clusters, and the plan for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrangement {
    /// By cluster name: the port GUID of each node's host, in order of the nodes. Best-effort nodes may share a port.
    pub node_ports: BTreeMap<String, Vec<Guid>>,
    /// The intents that the plan was compiled from.
    pub intents: Intents,
    pub plan: FabricPlan,
}

/// Why clusters cannot be arranged.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ArrangeError {
    #[error("cluster {cluster} cannot be placed: {error}")]
    NotPlaced { cluster: String, error: NodesNotPlaced },
    #[error(transparent)]
    Compile(#[from] CompileError),
}

/// Nodes of a cluster that find no hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{reason}; at most {largest} nodes would fit")]
pub struct NodesNotPlaced {
    pub reason: NoHostsReason,
    /// The most nodes that the cluster could have now, including those that it has. A request for as many succeeds.
    pub largest: usize,
}

/// The resource that is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NoHostsReason {
    /// Of a best-effort cluster: hosts that may be shared have cores, memory, functions and P_Key entries for `capacity`
    /// more nodes only.
    #[error("{requested} nodes requested, but the hosts have capacity for {capacity}")]
    Capacity { requested: usize, capacity: usize },
    /// Of a guaranteed cluster.
    #[error(transparent)]
    Placement(#[from] PlacementError),
}

/// Places the clusters and plans the fabric.
///
/// `fabric` has the manager's port and the capabilities of devices; its own partitions and clusters are kept. `host` is the
/// capacity of every host except the manager's, which gets no nodes. Nodes of `previous` stay on their hosts; a cluster that
/// shrinks loses its last nodes. The same arguments give the same arrangement.
pub fn arrange(
    topology: &Topology,
    fabric: &Intents,
    host: Capacity,
    clusters: &[DesiredCluster],
    previous: Option<&Arrangement>,
) -> Result<Arrangement, ArrangeError> {
    let mut node_ports: BTreeMap<String, Vec<Guid>> = BTreeMap::new();
    for cluster in clusters {
        let before = previous.and_then(|previous| previous.node_ports.get(&cluster.name));
        let kept = before.map(|ports| ports[..ports.len().min(cluster.nodes)].to_vec());
        node_ports.extend(kept.map(|ports| (cluster.name.clone(), ports)));
    }
    let none = Decisions::default();
    let decisions = previous.map_or(&none, |previous| previous.plan.decisions());
    let kept = compile(topology, &intents(fabric, clusters, &node_ports), decisions)?;
    let mut search = HostSearch::new(topology, fabric, host, clusters, &kept, node_ports);
    for (number, cluster) in (0..).map(ClusterNumber).zip(clusters) {
        search.place_nodes(number, cluster)?;
    }
    let node_ports = search.node_ports;
    let intents = intents(fabric, clusters, &node_ports);
    let plan = compile(topology, &intents, kept.decisions())?;
    Ok(Arrangement { node_ports, intents, plan })
}

/// The intents for the clusters that have hosts.
fn intents(
    fabric: &Intents,
    clusters: &[DesiredCluster],
    node_ports: &BTreeMap<String, Vec<Guid>>,
) -> Intents {
    let placed = || clusters.iter().filter_map(|cluster| Some((cluster, node_ports.get(&cluster.name)?)));
    let mut intents = fabric.clone();
    intents.partitions.extend(placed().flat_map(|(cluster, ports)| partitions(cluster, ports)));
    let guaranteed = placed().filter(|(cluster, _)| cluster.class != Class::BestEffort);
    intents.clusters.extend(guaranteed.map(|(cluster, ports)| ClusterIntent {
        name: cluster.name.clone(),
        ports: distinct(ports),
        class: cluster.class,
        sl_mode: cluster.sl_mode,
    }));
    intents
}

fn distinct(ports: &[Guid]) -> Vec<Guid> {
    ports.iter().copied().collect::<BTreeSet<_>>().into_iter().collect()
}

/// The cluster's own partition, and those inside it.
fn partitions(cluster: &DesiredCluster, ports: &[Guid]) -> Vec<PartitionIntent> {
    let numbered = || (1_u32..).zip(ports);
    let partition = |name: String, placement: PkeyPlacement, role: &dyn Fn(u32) -> Option<Role>| {
        let mut members: BTreeMap<Guid, Role> = BTreeMap::new();
        for (number, port) in numbered() {
            // Of two nodes on one port, the higher membership counts.
            if let Some(role) = role(number) {
                members.entry(*port).and_modify(|known| *known = (*known).max(role)).or_insert(role);
            }
        }
        let member = |(port, role)| Member { selector: MemberSelector::Port(port), role, placement };
        let members = members.into_iter().map(member).collect();
        PartitionIntent { name, number: None, members, ipoib: Some(Ipoib::default()) }
    };
    let is_inside = |number: u32| {
        cluster.partitions.iter().any(|inner| inner.full.contains(&number) || inner.limited.contains(&number))
    };
    let own = |number: u32| Some(if is_inside(number) { Role::Limited } else { Role::Full });
    let mut all = vec![partition(cluster.name.clone(), PkeyPlacement::FirstIfAlone, &own)];
    for inner in &cluster.partitions {
        let role = |number: u32| {
            let limited = || inner.limited.contains(&number).then_some(Role::Limited);
            inner.full.contains(&number).then_some(Role::Full).or_else(limited)
        };
        let name = format!("{}/{}", cluster.name, inner.name);
        all.push(partition(name, PkeyPlacement::Anywhere, &role));
    }
    all
}

/// What a host has left, and how many nodes it has.
#[derive(Clone, Copy)]
struct Usage {
    left: Capacity,
    /// P_Key entries of its port that clusters may still use.
    keys: usize,
    nodes: usize,
}

/// What hosts have left while clusters are placed.
struct HostSearch<'a> {
    placer: Placer,
    graph: Arc<LinkGraph>,
    by_port: HashMap<Guid, HostIndex>,
    managers: BTreeSet<Guid>,
    /// Of every host but the manager's.
    host: Capacity,
    /// P_Key entries of a port that clusters may use.
    keys: usize,
    clusters: &'a [DesiredCluster],
    node_ports: BTreeMap<String, Vec<Guid>>,
}

impl<'a> HostSearch<'a> {
    fn new(
        topology: &Topology,
        fabric: &Intents,
        host: Capacity,
        clusters: &'a [DesiredCluster],
        plan: &FabricPlan,
        node_ports: BTreeMap<String, Vec<Guid>>,
    ) -> Self {
        let graph = link_graph(topology, fabric, plan);
        let by_port = (0..).zip(graph.hosts()).map(|(index, host)| (host.port, HostIndex(index))).collect();
        let numbered = (0..).map(ClusterNumber).zip(clusters.iter().map(|cluster| cluster.name.as_str()));
        let admission = restored(&graph, numbered, plan.decisions());
        let ports = &fabric.capabilities;
        let keys = usize::from(ports.default_port.pkeys.min(ports.default_switch.enforced_pkeys));
        let managers = fabric.managers().collect();
        let mut search = Self {
            placer: Placer::new(admission, |_| host),
            graph,
            by_port,
            managers,
            host,
            keys: keys.saturating_sub(DEFAULT_KEYS),
            clusters,
            node_ports,
        };
        search.refresh();
        search
    }

    /// Marks hosts in use as unavailable to guaranteed clusters.
    fn refresh(&mut self) {
        let mut free = vec![self.host; self.graph.hosts().len()];
        let used = self.node_ports.values().flatten().chain(&self.managers);
        for host in used.filter_map(|port| self.by_port.get(port)) {
            free[host.index()] = Capacity::NONE;
        }
        self.placer.set_capacities(free);
    }

    /// Finds hosts for the nodes of a cluster that have none yet.
    fn place_nodes(&mut self, number: ClusterNumber, cluster: &DesiredCluster) -> Result<(), ArrangeError> {
        let has = self.node_ports.get(&cluster.name).map_or(0, Vec::len);
        if has == cluster.nodes {
            return Ok(());
        }
        let more = match cluster.class {
            Class::BestEffort => self.shared_hosts(cluster, cluster.nodes - has),
            Class::Guaranteed { .. } if has > 0 => self.more_hosts(number, cluster),
            Class::Guaranteed { bandwidth, .. } => self.own_hosts(number, cluster, bandwidth),
        };
        let more = more.map_err(|error| ArrangeError::NotPlaced { cluster: cluster.name.clone(), error })?;
        self.node_ports.entry(cluster.name.clone()).or_default().extend(more);
        self.refresh();
        Ok(())
    }

    /// Hosts for a new guaranteed cluster.
    fn own_hosts(
        &mut self,
        number: ClusterNumber,
        cluster: &DesiredCluster,
        bandwidth: Bandwidth,
    ) -> Result<Vec<Guid>, NodesNotPlaced> {
        let DesiredCluster { nodes, needs, sl_mode: mode, .. } = *cluster;
        place(&mut self.placer, PlacementRequest { cluster: number, nodes, needs, bandwidth, mode })
    }

    /// Further hosts for a guaranteed cluster, near those it has.
    fn more_hosts(
        &mut self,
        number: ClusterNumber,
        cluster: &DesiredCluster,
    ) -> Result<Vec<Guid>, NodesNotPlaced> {
        let own: BTreeSet<Guid> = self.node_ports[&cluster.name].iter().copied().collect();
        self.placer.set_needs(number, cluster.needs);
        let more = grow(&mut self.placer, number, cluster.nodes - own.len());
        let more = more.map_err(|error| NodesNotPlaced { largest: own.len() + error.largest, ..error })?;
        Ok(more.into_iter().filter(|port| !own.contains(port)).collect())
    }

    /// Hosts for nodes of a best-effort cluster.
    fn shared_hosts(&self, cluster: &DesiredCluster, nodes: usize) -> Result<Vec<Guid>, NodesNotPlaced> {
        let unused = Usage { left: self.host, keys: self.keys, nodes: 0 };
        let mut used: HashMap<Guid, Usage> = HashMap::new();
        let mut owned: BTreeSet<Guid> = self.managers.clone();
        for other in self.clusters {
            let Some(ports) = self.node_ports.get(&other.name) else { continue };
            if other.class != Class::BestEffort {
                owned.extend(ports);
                continue;
            }
            for port in ports {
                let usage = used.entry(*port).or_insert(unused);
                usage.left = usage.left.without(other.needs);
                usage.nodes += 1;
            }
            for port in distinct(ports) {
                let usage = used.entry(port).or_insert(unused);
                usage.keys = usage.keys.saturating_sub(1 + other.partitions.len());
            }
        }
        let mine: BTreeSet<Guid> =
            self.node_ports.get(&cluster.name).into_iter().flatten().copied().collect();
        let (ports, hosts): (Vec<Guid>, Vec<SharedHost>) = (0..)
            .map(HostIndex)
            .zip(self.graph.hosts())
            .filter(|(_, host)| !owned.contains(&host.port))
            .map(|(index, AttachedHost { port, .. })| {
                let is_ours = mine.contains(port);
                let Usage { left, keys, nodes } = used.get(port).copied().unwrap_or(unused);
                let has_keys = is_ours || keys > cluster.partitions.len();
                let capacity = if has_keys { left.times(cluster.needs) } else { 0 };
                (*port, SharedHost { switch: self.graph.switch_guid(index), capacity, nodes, is_ours })
            })
            .unzip();
        let chosen = pack(&hosts, nodes, |_| true);
        if chosen.len() < nodes {
            let capacity = chosen.len();
            let reason = NoHostsReason::Capacity { requested: nodes, capacity };
            let has = self.node_ports.get(&cluster.name).map_or(0, Vec::len);
            return Err(NodesNotPlaced { reason, largest: has + capacity });
        }
        Ok(chosen.into_iter().map(|host| ports[host]).collect())
    }
}

/// Finds hosts for `nodes` further nodes of a guaranteed cluster, without changing the plan.
///
/// Every cluster of the plan keeps what it has. A cluster that the plan knows by name grows by `nodes` at the bandwidth that
/// it has; any other is placed anew with one service level. Only hosts whose port GUID `suits` accepts are used. Returns the
/// port GUIDs of the new hosts. Admission by the compiler can still fail, because the plan may change in between.
pub fn find_hosts(
    topology: &Topology,
    fabric: &Intents,
    plan: &FabricPlan,
    (cluster, bandwidth): (&str, Bandwidth),
    nodes: usize,
    suits: impl Fn(Guid) -> bool,
) -> Result<Vec<Guid>, NodesNotPlaced> {
    let graph = link_graph(topology, fabric, plan);
    let names = || (0..).map(ClusterNumber).zip(plan.decisions().clusters.keys().map(String::as_str));
    let admission = restored(&graph, names(), plan.decisions());
    let needs = Capacity { cores: 1, memory_mib: 0, functions: 0 };
    let mut placer =
        Placer::new(
            admission,
            |host| {
                if suits(graph.hosts()[host.index()].port) { needs } else { Capacity::NONE }
            },
        );
    let known = names().find(|(_, name)| *name == cluster).map(|(number, _)| number);
    match known.filter(|number| placer.admission().grants().contains_key(number)) {
        Some(number) => {
            placer.set_needs(number, needs);
            let own = &plan.decisions().clusters[cluster].ports;
            let hosts = grow(&mut placer, number, nodes)?;
            Ok(hosts.into_iter().filter(|port| !own.contains(port)).collect())
        }
        None => {
            let cluster = ClusterNumber(u32::MAX);
            place(&mut placer, PlacementRequest { cluster, nodes, needs, bandwidth, mode: SlMode::Cluster })
        }
    }
}

/// Places a cluster; returns the ports of all its hosts.
fn place(placer: &mut Placer, request: PlacementRequest) -> Result<Vec<Guid>, NodesNotPlaced> {
    let graph = Arc::clone(placer.admission().graph());
    match placer.place(request) {
        Ok(grant) => Ok(ports(grant, &graph)),
        Err(error) => Err(NodesNotPlaced { reason: error.into(), largest: placer.largest(request) }),
    }
}

/// Grows a cluster by some nodes; returns the ports of all its hosts. `largest` of an error counts further nodes only.
fn grow(placer: &mut Placer, cluster: ClusterNumber, nodes: usize) -> Result<Vec<Guid>, NodesNotPlaced> {
    let graph = Arc::clone(placer.admission().graph());
    match placer.grow(cluster, nodes) {
        Ok(grant) => Ok(ports(grant, &graph)),
        Err(error) => {
            let largest = placer.largest_growth(cluster, nodes).unwrap_or(0);
            Err(NodesNotPlaced { reason: error.into(), largest })
        }
    }
}

fn ports(grant: &Grant, graph: &LinkGraph) -> Vec<Guid> {
    grant.hosts.iter().map(|host| graph.hosts()[host.index()].port).collect()
}
