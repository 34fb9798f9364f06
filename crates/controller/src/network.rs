//! Derives the desired state of the fabric from the clusters, and compiles it into verified plans. No I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use controller_api::cluster::SubPartitionStatus;
use fabric_compiler::{CompileError, Planner};
use fabric_model::intent::{
    ClassWeights, ClusterIntent, Ipoib, Member, MemberSelector, PartitionIntent, PartitionOwners,
    PkeyPlacement, Role, RouteOverrides,
};
use fabric_model::tenancy::Class;
use fabric_model::{Decisions, FabricPlan, Intents, Topology};
use fabric_verifier::{Verified, is_acknowledged, verify};
use ib_wire::{Guid, Membership, MulticastLid, PartitionNumber, Pkey};
use thiserror::Error;

use crate::store::{ClusterRow, ViewPartition};

/// Most findings in one answer.
const FINDINGS_MAX: usize = 1000;

/// Roles by partition and port GUID.
pub type Members = BTreeMap<(PartitionNumber, Guid), Role>;

/// Desired state of the fabric, derived from all clusters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FabricIntent {
    pub members: Members,
    /// Cluster ids that use each partition number. Members of one number add up, whichever cluster they belong to.
    pub owners: PartitionOwners,
    /// Clusters with a guarantee, oldest first.
    pub guaranteed: Vec<ClusterIntent>,
    /// Route overrides of tenants, for ports that only one of their nodes uses.
    pub routes: RouteOverrides,
    /// Traffic-class weights of tenants.
    pub classes: ClassWeights,
}

/// The desired state of the fabric for a set of clusters.
pub fn fabric_intent(clusters: &[ClusterRow]) -> FabricIntent {
    FabricIntent {
        members: clusters.iter().fold(Members::new(), with_members),
        owners: owners(clusters),
        guaranteed: clusters.iter().filter_map(guaranteed).collect(),
        routes: routes(clusters),
        classes: clusters.iter().filter_map(classes).collect(),
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

/// Why there is no plan for an intent.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PlanningError {
    /// The compiler found none.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// The verifier rejected the compiled plan; it is not sent.
    #[error("the plan fails verification and is not sent: {first} ({count} findings)")]
    Unsound { first: String, count: usize },
}

/// Compiles plans for one discovered fabric, each from the previous one, and verifies them.
#[derive(Debug)]
pub struct VerifiedPlanner {
    discovered: Arc<DiscoveredFabric>,
    planner: Planner,
    verified: Verified,
}

impl VerifiedPlanner {
    /// A planner with a verified first plan for `intent`, based on `previous` if given, else on `decisions`.
    fn new(
        discovered: Arc<DiscoveredFabric>,
        intent: &FabricIntent,
        previous: Option<&FabricPlan>,
        decisions: &Decisions,
    ) -> Result<Self, PlanningError> {
        let (topology, intents) = (Arc::clone(&discovered.topology), intents(&discovered, intent));
        let planner = match previous {
            Some(previous) => Planner::resume(topology, intents, previous),
            None => Planner::new(topology, intents, decisions),
        }?;
        let verified = Verified::of(&discovered.topology, planner.intents(), Arc::clone(planner.plan()));
        check_sound(&verified)?;
        Ok(Self { discovered, planner, verified })
    }

    /// Compiles and verifies the next plan. On an error the previous plan stays in place.
    fn change(&mut self, intent: &FabricIntent) -> Result<(), PlanningError> {
        let (before, intents) = (self.planner.intents().clone(), intents(&self.discovered, intent));
        let plan = Arc::clone(self.planner.change(&intents)?);
        let verified =
            self.verified.delta_with_basis(self.planner.basis(), &self.discovered.topology, &intents, plan);
        match check_sound(&verified) {
            Ok(()) => self.verified = verified,
            Err(unsound) => {
                self.planner.change(&before)?;
                return Err(unsound);
            }
        }
        Ok(())
    }
}

/// The verified plan for an intent. Reuses `planner` if that was made for the same discovered fabric, and replaces it
/// otherwise.
pub fn plan(
    planner: &mut Option<VerifiedPlanner>,
    discovered: &Arc<DiscoveredFabric>,
    intent: &FabricIntent,
    previous: Option<&FabricPlan>,
    decisions: &Decisions,
) -> Result<Arc<FabricPlan>, PlanningError> {
    match planner.take().filter(|planner| Arc::ptr_eq(&planner.discovered, discovered)) {
        Some(mut kept) => {
            let changed = kept.change(intent);
            let plan = changed.map(|()| Arc::clone(kept.planner.plan()));
            *planner = Some(kept);
            plan
        }
        None => {
            let new = VerifiedPlanner::new(Arc::clone(discovered), intent, previous, decisions)?;
            Ok(Arc::clone(planner.insert(new).planner.plan()))
        }
    }
}

fn intents(discovered: &DiscoveredFabric, intent: &FabricIntent) -> Intents {
    let mut intents = discovered.intents.clone();
    intents.partitions = partitions(&intent.members);
    intents.owners.clone_from(&intent.owners);
    intents.clusters.clone_from(&intent.guaranteed);
    intents.route_overrides.clone_from(&intent.routes);
    intents.class_weights.clone_from(&intent.classes);
    intents
}

/// Violations of an intent by tables that were read back, at most [`FINDINGS_MAX`].
pub fn check_tables(discovered: &DiscoveredFabric, intent: &FabricIntent, held: &FabricPlan) -> Vec<String> {
    let findings = verify(&discovered.topology, &intents(discovered, intent), held);
    let findings = findings.iter().filter(|finding| !is_acknowledged(finding, held));
    findings.take(FINDINGS_MAX).map(ToString::to_string).collect()
}

/// Fails on any finding that the plan itself does not declare.
fn check_sound(verified: &Verified) -> Result<(), PlanningError> {
    let unexpected = || verified.findings().filter(|finding| !is_acknowledged(finding, verified.plan()));
    match unexpected().next() {
        None => Ok(()),
        Some(first) => Err(PlanningError::Unsound { first: first.to_string(), count: unexpected().count() }),
    }
}

fn partitions(members: &Members) -> Vec<PartitionIntent> {
    let mut ports: BTreeMap<PartitionNumber, Vec<Member>> = BTreeMap::new();
    for ((partition, port), role) in members {
        let member =
            Member { selector: MemberSelector::Port(*port), role: *role, placement: PkeyPlacement::Anywhere };
        ports.entry(*partition).or_default().push(member);
    }
    let intent = |(number, members): (PartitionNumber, Vec<Member>)| PartitionIntent {
        name: format!("cluster-{number}"),
        number: Some(number),
        members,
        ipoib: Some(Ipoib::default()),
    };
    ports.into_iter().map(intent).collect()
}

/// Multicast LID of the broadcast group of a partition.
pub fn broadcast_group(decisions: &Decisions, partition: PartitionNumber) -> Option<MulticastLid> {
    decisions.groups.get(&partition).map(|group| group.mlid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_clusters_with_one_number_are_never_planned() {
        let topology = fabric_model::generate::FatTree::with_hosts(4).generate().unwrap();
        let ports: Vec<Guid> =
            topology.end_nodes().map(|(_, host)| host.ports().next().unwrap().1.guid).collect();
        let discovered =
            Arc::new(DiscoveredFabric { topology: Arc::new(topology), intents: Intents::new(ports[0]) });
        let cluster = |id: u128, raw: u16, port: Guid| {
            let mut row = crate::lifecycle::tests::cluster(1);
            (row.id, row.partition) = (uuid::Uuid::from_u128(id), PartitionNumber::from_wire(raw));
            row.nodes[0].port_guid = port;
            row
        };
        let planned = |clusters: &[ClusterRow]| {
            plan(&mut None, &discovered, &fabric_intent(clusters), None, &Decisions::default())
        };
        let apart = [cluster(1, 0x101, ports[1]), cluster(2, 0x102, ports[2])];
        let sound = planned(&apart).unwrap();
        assert_eq!(check_tables(&discovered, &fabric_intent(&apart), &sound), [""; 0]);

        let joined = [cluster(1, 0x101, ports[1]), cluster(2, 0x101, ports[2])];
        let refused = planned(&joined).unwrap_err();
        assert!(matches!(refused, PlanningError::Compile(CompileError::NumberShared { .. })), "{refused}");
        // The verifier also finds it in tables, whoever wrote them.
        let held = {
            let merged = FabricIntent { owners: PartitionOwners::new(), ..fabric_intent(&joined) };
            plan(&mut None, &discovered, &merged, None, &Decisions::default()).unwrap()
        };
        let found = check_tables(&discovered, &fabric_intent(&joined), &held);
        assert!(found.len() == 1 && found[0].contains("partition number 0x0101 belongs to both"), "{found:?}");
    }
}
