//! What the fabric is to be: the partitions of clusters, numbers for new ones, and the plan. No I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use controller_api::cluster::SubPartitionStatus;
use fabric_compiler::{CompileError, Planner};
use fabric_model::intent::{
    ClusterIntent, Ipoib, KeyPlace, Member, PartitionIntent, PartitionOwners, Role, Who, WishedClasses,
    WishedRoutes,
};
use fabric_model::tenancy::Class;
use fabric_model::{Decisions, FabricPlan, Intents, Topology};
use fabric_verifier::{Verified, is_told, verify};
use ib_wire::{Guid, Membership, MulticastLid, PartitionNumber, Pkey};
use thiserror::Error;

use crate::store::{ClusterRow, ViewPartition};

/// Findings that are told at once.
const FINDINGS_MAX: usize = 1000;

/// Who is to be, or is, in which partition, and as what.
pub type Members = BTreeMap<(PartitionNumber, Guid), Role>;

/// What clusters want of the fabric.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FabricIntent {
    /// Who is to be in which partition.
    pub members: Members,
    /// Whose each partition is, by the ids of clusters: members of one number add up, whoever they belong to.
    pub owners: PartitionOwners,
    /// Who is guaranteed something, oldest first.
    pub guaranteed: Vec<ClusterIntent>,
    /// Ways that tenants chose for packets to ports that are theirs alone.
    pub routes: WishedRoutes,
    /// How tenants divide what their clusters have.
    pub classes: WishedClasses,
}

/// What all clusters want.
pub fn fabric_intent(clusters: &[ClusterRow]) -> FabricIntent {
    FabricIntent {
        members: clusters.iter().fold(Members::new(), with_members),
        owners: owners(clusters),
        guaranteed: clusters.iter().filter_map(guaranteed).collect(),
        routes: routes(clusters),
        classes: clusters.iter().filter_map(classes).collect(),
    }
}

/// The clusters that use each partition number. More than one is never planned for.
fn owners(clusters: &[ClusterRow]) -> PartitionOwners {
    let mut owners = PartitionOwners::new();
    for cluster in clusters {
        for (partition, port) in members(cluster).into_keys() {
            owners.entry(partition).or_default().entry(cluster.id.to_string()).or_insert(port);
        }
    }
    owners
}

/// How what a cluster has is to be divided, by its id.
fn classes(cluster: &ClusterRow) -> Option<(String, Vec<u32>)> {
    let from_overlay = cluster.overlay.iter().flat_map(|overlay| &overlay.classes);
    let weights: Vec<u32> = from_overlay.map(|class| class.weight).collect();
    (weights.len() > 1 && guaranteed(cluster).is_some()).then(|| (cluster.id.to_string(), weights))
}

fn routes(clusters: &[ClusterRow]) -> WishedRoutes {
    let mut nodes: BTreeMap<Guid, usize> = BTreeMap::new();
    for node in clusters.iter().flat_map(|cluster| &cluster.nodes).filter(|node| node.is_carried()) {
        *nodes.entry(node.port_guid).or_default() += 1;
    }
    let from_overlay =
        clusters.iter().filter_map(|cluster| cluster.overlay.as_ref()).flat_map(|overlay| &overlay.routes);
    let own = from_overlay.filter(|(port, _)| nodes.get(port) == Some(&1));
    own.map(|(port, exits)| (*port, exits.clone())).collect()
}

/// What a cluster is guaranteed, if it is anything, by its id: names may be used again.
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

/// A fabric as the subnet manager sees it.
#[derive(Clone, Debug)]
pub struct DiscoveredFabric {
    /// Nodes and cables.
    pub topology: Arc<Topology>,
    /// Where the manager sits, and what devices can hold; no partitions.
    pub intents: Intents,
}

/// The partitions that a node of a cluster is in, the cluster's own first. There it is a limited member if it is in one
/// inside the cluster, so that nodes of different ones do not reach each other; in the network of the cluster its tenant says
/// what it is.
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

/// The keys of a node in a partition that its tenant has made in the network of the cluster.
pub fn overlay_keys(partition: &ViewPartition, node: u32) -> impl Iterator<Item = Pkey> {
    let role = partition.members.get(&node);
    role.into_iter().flat_map(|role| role.keys(partition.number))
}

/// The key of a node in a partition inside its cluster, if it is in it.
pub fn inner_key(inner: &SubPartitionStatus, node: u32) -> Option<Pkey> {
    let is_full = inner.full.contains(&node).then_some(Membership::Full);
    let membership = is_full.or(inner.limited.contains(&node).then_some(Membership::Limited))?;
    Some(inner.number.key(membership))
}

/// Who of a cluster is to be in which partition: every node that has a partition and whose virtual machine may still be there.
pub fn members(cluster: &ClusterRow) -> Members {
    with_members(Members::new(), cluster)
}

/// Adds the members of a cluster. A port behind which some are full and others limited has both keys.
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

/// Why there is no plan by which intent come true.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PlanError {
    /// It cannot be made.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// It was made, and does not keep what it should: it is not sent.
    #[error("the plan does not keep what it should, and is not sent: {first} ({count} findings)")]
    Unsound {
        /// The first finding.
        first: String,
        /// How many there are.
        count: usize,
    },
}

/// Makes plans for one discovered of a fabric, each from the one before, and proves them.
#[derive(Debug)]
pub struct VerifiedPlanner {
    discovered: Arc<DiscoveredFabric>,
    planner: Planner,
    verified: Verified,
}

impl VerifiedPlanner {
    /// A planner whose first plan is for some intent; goes on from a plan if there is one, else from decisions.
    fn new(
        discovered: Arc<DiscoveredFabric>,
        intent: &FabricIntent,
        previous: Option<&FabricPlan>,
        decisions: &Decisions,
    ) -> Result<Self, PlanError> {
        let (topology, intents) = (Arc::clone(&discovered.topology), intents(&discovered, intent));
        let planner = match previous {
            Some(previous) => Planner::resume(topology, intents, previous),
            None => Planner::new(topology, intents, decisions),
        }?;
        let verified = Verified::of(&discovered.topology, planner.intents(), Arc::clone(planner.plan()));
        check_sound(&verified)?;
        Ok(Self { discovered, planner, verified })
    }

    /// The next plan. If there is none, everything stays as it was.
    fn change(&mut self, intent: &FabricIntent) -> Result<(), PlanError> {
        let (before, intents) = (self.planner.intents().clone(), intents(&self.discovered, intent));
        let plan = Arc::clone(self.planner.change(&intents)?);
        let verified =
            self.verified.delta_on(self.planner.basis(), &self.discovered.topology, &intents, plan);
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

/// The plan for a fabric on which these intent come true, proved to keep what it should. What the planner has from plans
/// before is used if it is about the same discovered.
pub fn plan(
    planner: &mut Option<VerifiedPlanner>,
    discovered: &Arc<DiscoveredFabric>,
    intent: &FabricIntent,
    previous: Option<&FabricPlan>,
    decisions: &Decisions,
) -> Result<Arc<FabricPlan>, PlanError> {
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
    intents.routes.clone_from(&intent.routes);
    intents.classes.clone_from(&intent.classes);
    intents
}

/// What tables that were read back do not keep of some intent.
pub fn check_tables(discovered: &DiscoveredFabric, intent: &FabricIntent, held: &FabricPlan) -> Vec<String> {
    let findings = verify(&discovered.topology, &intents(discovered, intent), held);
    let findings = findings.iter().filter(|finding| !is_told(finding, held));
    findings.take(FINDINGS_MAX).map(ToString::to_string).collect()
}

/// Whether nothing was found but what the plan says of itself.
fn check_sound(verified: &Verified) -> Result<(), PlanError> {
    let unexpected = || verified.findings().filter(|finding| !is_told(finding, verified.plan()));
    match unexpected().next() {
        None => Ok(()),
        Some(first) => Err(PlanError::Unsound { first: first.to_string(), count: unexpected().count() }),
    }
}

fn partitions(members: &Members) -> Vec<PartitionIntent> {
    let mut ports: BTreeMap<PartitionNumber, Vec<Member>> = BTreeMap::new();
    for ((partition, port), role) in members {
        let member = Member { who: Who::Port(*port), role: *role, place: KeyPlace::Anywhere };
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

/// The LID to which broadcasts of a partition go.
pub fn broadcast_group(decisions: &Decisions, partition: PartitionNumber) -> Option<MulticastLid> {
    decisions.groups.get(&partition).map(|group| group.mlid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_clusters_with_one_number_are_never_planned_for() {
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
        assert!(matches!(refused, PlanError::Compile(CompileError::NumberShared { .. })), "{refused}");
        // Whatever has put them there: tables that hold it are found.
        let held = {
            let merged = FabricIntent { owners: PartitionOwners::new(), ..fabric_intent(&joined) };
            plan(&mut None, &discovered, &merged, None, &Decisions::default()).unwrap()
        };
        let found = check_tables(&discovered, &fabric_intent(&joined), &held);
        assert!(found.len() == 1 && found[0].contains("partition 0x0101 is used by"), "{found:?}");
    }
}
