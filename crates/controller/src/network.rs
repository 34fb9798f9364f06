//! Derives the desired state of the fabric from the clusters. No I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use controller_api::cluster::{AdapterKind, SubPartitionStatus};
use controller_api::host::NewHost;
use fabric_model::intent::{
    Alias, ClassWeights, ClusterIntent, PartitionIntent, PartitionOwners, PortAliases, Role, RouteOverrides,
};
use fabric_model::tenancy::Class;
use fabric_model::{Decisions, Intents, Topology};
use ib_wire::{Guid, Membership, MulticastLid, PartitionNumber, Pkey};
use sha2::{Digest as _, Sha256};

use crate::store::{ClusterRow, NodeRow, ViewPartition};

/// Roles by partition and port GUID.
pub type Members = BTreeMap<(PartitionNumber, Guid), Role>;

/// Desired state of the fabric, derived from all clusters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FabricIntent {
    pub members: Members,
    /// The partitions that clusters have as a whole, without sub-partitions and those of views.
    pub own_partitions: BTreeSet<PartitionNumber>,
    /// Cluster ids that use each partition number. Members of one number add up, whichever cluster they belong to.
    pub owners: PartitionOwners,
    /// Clusters with a guarantee, oldest first.
    pub guaranteed: Vec<ClusterIntent>,
    /// Route overrides of tenants, for ports that only one of their nodes uses.
    pub routes: RouteOverrides,
    /// Traffic-class weights of tenants.
    pub classes: ClassWeights,
    /// GUIDs of nodes with InfiniBand adapters.
    pub aliases: PortAliases,
    /// What operators want beside clusters.
    pub site: SiteFabric,
}

/// The partitions of the site. Both fields are empty if there are none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SiteFabric {
    /// Each with a number.
    pub partitions: Vec<PartitionIntent>,
    /// Ports of hosts, which carry tenants or will.
    pub handed_over: BTreeSet<Guid>,
}

impl SiteFabric {
    /// Partitions of the site beside hosts and clusters. Ports of subnet managers are handed over only if they carry nodes.
    pub fn new(
        partitions: Vec<PartitionIntent>,
        hosts: &[NewHost],
        clusters: &[ClusterRow],
        is_manager: impl Fn(Guid) -> bool,
    ) -> Self {
        if partitions.is_empty() {
            return Self::default();
        }
        let of_hosts = hosts.iter().filter_map(|host| host.port_guid).filter(|port| !is_manager(*port));
        let nodes = clusters.iter().flat_map(|cluster| &cluster.nodes).filter(|node| node.is_carried());
        Self { partitions, handed_over: of_hosts.chain(nodes.map(|node| node.port_guid)).collect() }
    }
}

/// The desired state of the fabric for a set of clusters, without partitions of the site. See
/// [`Site::fabric_intent`](crate::site::Site::fabric_intent).
pub fn fabric_intent(clusters: &[ClusterRow]) -> FabricIntent {
    FabricIntent {
        members: clusters.iter().fold(Members::new(), with_members),
        own_partitions: clusters.iter().filter_map(|cluster| cluster.partition).collect(),
        owners: owners(clusters),
        guaranteed: clusters.iter().filter_map(guaranteed).collect(),
        routes: routes(clusters),
        classes: clusters.iter().filter_map(classes).collect(),
        aliases: aliases(clusters),
        site: SiteFabric::default(),
    }
}

/// The clusters that use each partition number. A number with more than one is never planned.
fn owners(clusters: &[ClusterRow]) -> PartitionOwners {
    let mut owners = PartitionOwners::new();
    for cluster in clusters {
        for (partition, port) in members(cluster).into_keys() {
            owners.entry(partition).or_default().entry(cluster.id.to_string()).or_insert(port);
        }
    }
    owners
}

/// Traffic-class weights of a guaranteed cluster with more than one class, by cluster id.
fn classes(cluster: &ClusterRow) -> Option<(String, Vec<u32>)> {
    let from_overlay = cluster.overlay.iter().flat_map(|overlay| &overlay.classes);
    let weights: Vec<u32> = from_overlay.map(|class| class.weight).collect();
    (weights.len() > 1 && guaranteed(cluster).is_some()).then(|| (cluster.id.to_string(), weights))
}

/// The GUIDs of nodes with InfiniBand adapters, at the index of their function. Subnet administration answers a node in its
/// partitions, and in the default partition, in which it is asked.
fn aliases(clusters: &[ClusterRow]) -> PortAliases {
    let mut aliases = PortAliases::new();
    for cluster in clusters {
        for node in cluster.nodes.iter().filter(|node| node.is_carried()) {
            let Some(guid) = adapter_guid(cluster, node) else { continue };
            let own = node_keys(cluster, node.number).into_iter().map(Pkey::partition);
            let partitions = own.chain([PartitionNumber::DEFAULT]).collect();
            aliases.entry(node.port_guid).or_default().insert(node.function, Alias { guid, partitions });
        }
    }
    aliases
}

/// The GUID of a node's InfiniBand adapter: a digest of the node's id, marked as assigned locally. `None` if it has an
/// Ethernet card. It is below the GUIDs of switches in views: of two subnet managers with one priority, the lower GUID becomes master,
/// and that of the tenant is to become it.
pub fn adapter_guid(cluster: &ClusterRow, node: &NodeRow) -> Option<Guid> {
    if cluster.adapter != AdapterKind::Infiniband {
        return None;
    }
    let digest = Sha256::digest(node.id.as_bytes());
    let [_, second, rest @ ..] = *digest.first_chunk::<8>()?;
    // EUI-64: bit 1 of the first byte says that it is local.
    let [third, fourth, fifth, sixth, seventh, eighth] = rest;
    let bytes = [0x02, second & 0x1f | 0x20, third, fourth, fifth, sixth, seventh, eighth];
    Guid::from_wire(u64::from_be_bytes(bytes))
}

fn routes(clusters: &[ClusterRow]) -> RouteOverrides {
    let mut nodes: BTreeMap<Guid, usize> = BTreeMap::new();
    for node in clusters.iter().flat_map(|cluster| &cluster.nodes).filter(|node| node.is_carried()) {
        *nodes.entry(node.port_guid).or_default() += 1;
    }
    let from_overlay =
        clusters.iter().filter_map(|cluster| cluster.overlay.as_ref()).flat_map(|overlay| &overlay.routes);
    let own = from_overlay.filter(|(port, _)| nodes.get(port) == Some(&1));
    own.map(|(port, exits)| (*port, exits.clone())).collect()
}

/// The guarantee of a cluster, under its id, since names may be reused. `None` for best effort.
fn guaranteed(cluster: &ClusterRow) -> Option<ClusterIntent> {
    let present = cluster.nodes.iter().filter(|node| node.is_carried());
    let ports: BTreeSet<Guid> = present.map(|node| node.port_guid).collect();
    let is_guaranteed = cluster.class != Class::BestEffort && !ports.is_empty();
    is_guaranteed.then(|| ClusterIntent {
        name: cluster.id.to_string(),
        ports: ports.into_iter().collect(),
        class: cluster.class,
        sl_mode: cluster.sl_mode,
    })
}

/// The fabric as the subnet manager discovered it.
#[derive(Clone, Debug)]
pub struct DiscoveredFabric {
    pub topology: Arc<Topology>,
    /// Port of the subnet manager and capabilities of the devices; no partitions.
    pub intents: Intents,
}

/// P_Keys of a node, that of the cluster's own partition first. There the node is a limited member if it is in any
/// sub-partition, so that nodes of different sub-partitions do not reach each other; otherwise the tenant's overlay
/// decides.
pub fn node_keys(cluster: &ClusterRow, number: u32) -> Vec<Pkey> {
    let inner: Vec<Pkey> = cluster.inner.iter().filter_map(|inner| inner_key(inner, number)).collect();
    let own = match &cluster.overlay {
        _ if !inner.is_empty() => Role::Limited,
        Some(overlay) => overlay.own_role(number),
        None => Role::Full,
    };
    let own = cluster.partition.into_iter().flat_map(|partition| own.keys(partition));
    let from_overlay = cluster.overlay.iter().flat_map(|overlay| &overlay.partitions);
    let from_overlay = from_overlay.flat_map(|partition| overlay_keys(partition, number));
    own.chain(inner).chain(from_overlay).collect()
}

/// P_Keys of a node in a partition that its tenant created in the view.
pub fn overlay_keys(partition: &ViewPartition, node: u32) -> impl Iterator<Item = Pkey> {
    let role = partition.members.get(&node);
    role.into_iter().flat_map(|role| role.keys(partition.number))
}

/// P_Key of a node in a sub-partition; `None` if it is no member.
pub fn inner_key(inner: &SubPartitionStatus, node: u32) -> Option<Pkey> {
    let is_full = inner.full.contains(&node).then_some(Membership::Full);
    let membership = is_full.or(inner.limited.contains(&node).then_some(Membership::Limited))?;
    Some(inner.number.key(membership))
}

/// Memberships of a cluster: all nodes that have a partition and whose virtual machine may still exist.
pub fn members(cluster: &ClusterRow) -> Members {
    with_members(Members::new(), cluster)
}

/// Adds the memberships of a cluster. A port with both full and limited nodes gets both P_Keys.
fn with_members(mut members: Members, cluster: &ClusterRow) -> Members {
    for node in cluster.nodes.iter().filter(|node| node.is_carried()) {
        for key in node_keys(cluster, node.number) {
            let role = match key.membership() {
                Membership::Full => Role::Full,
                Membership::Limited => Role::Limited,
            };
            let held = members.entry((key.partition(), node.port_guid)).or_insert(role);
            if *held != role {
                *held = Role::Both;
            }
        }
    }
    members
}

/// Multicast LID of the broadcast group of a partition.
pub fn broadcast_group(decisions: &Decisions, partition: PartitionNumber) -> Option<MulticastLid> {
    decisions.groups.get(&partition).map(|group| group.mlid)
}
