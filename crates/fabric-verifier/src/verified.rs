//! A plan with its findings, and incremental verification of the next plan.

mod clusters;

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fabric_model::intent::ClassWeights;
use fabric_model::plan::Basis;
use fabric_model::{FabricPlan, Intents, LinkRate, StatedHardware, Topology};
use ib_wire::{Guid, Lid, MulticastLid, PartitionNumber, PortNum};

use crate::bits::Bits;
use crate::capacities::Capacities;
use crate::credit_loops::LinkOrder;
use crate::guarantees::{Guarantees, PreviousState};
use crate::intended::{Intended, IntentChanges, SitePorts};
use crate::isolation::Keys;
use crate::network::{Cables, ExitColumns, PlannedNetwork};
use crate::plan_changes::PlanChanges;
use crate::sharing::Ports;
use crate::{
    Finding, Reading, addresses, aliases, credit_loops, forwarding, handed_over, multicast, partition_owners,
    sharing,
};
use clusters::Clusters;

/// A plan with all its findings, and the intermediate results from which those of the next plan follow.
///
/// # Order of calls
///
/// [`Verified::of`] verifies a whole plan. [`Verified::delta`] or [`Verified::delta_with_basis`] then verify the next one
/// and return a new value; a `Verified` itself never changes. It may start several deltas, so that a candidate plan can
/// be verified and discarded. Deltas need not follow the order in which plans were compiled or programmed, and may start
/// from a plan with findings.
///
/// # Guarantees
///
/// * `delta` has exactly the findings that [`verify`](crate::verify) returns for the same arguments, in the same order,
///   whichever plan it starts from.
/// * Its cost follows what differs: tables that both plans share by `Arc` are not compared. If cables, link rates, the
///   subnet manager, capabilities, stated hardware or LIDs differ, or end ports are not unique, the plan is verified as a
///   whole. So it is if handed-over ports or the membership in the default partition differ while there are partitions of
///   the site; and while there are, the keys of all end ports are read for [`Rule::HandedOver`](crate::Rule::HandedOver).
#[derive(Debug)]
pub struct Verified {
    basis: Basis,
    hardware: StatedHardware,
    topology: Arc<Topology>,
    cables: Arc<Cables>,
    plan: Arc<FabricPlan>,
    intended: Intended,
    clusters: Clusters,
    /// Ports for which the intents override routes.
    routed: BTreeSet<Guid>,
    /// Class weights of the intents, by cluster.
    classes: ClassWeights,
    addresses: Vec<Finding>,
    /// Findings about alias GUIDs.
    aliases: Vec<Finding>,
    columns: BTreeMap<Lid, Vec<Finding>>,
    /// `None` while there is a credit loop.
    order: Option<LinkOrder>,
    loops: Vec<Finding>,
    keys: Keys,
    isolation: Vec<Finding>,
    /// Findings about ports of tenants and of the site.
    handed_over: Vec<Finding>,
    groups: Vec<Finding>,
    trees: BTreeMap<MulticastLid, Vec<Finding>>,
    capacities: Capacities,
    ports: Ports,
    paths: Vec<Finding>,
    /// Findings about partition numbers with several owners.
    owners: Vec<Finding>,
    guarantees: Guarantees,
}

impl Verified {
    /// Verifies a whole plan.
    pub fn of(topology: &Arc<Topology>, intents: &Intents, plan: Arc<FabricPlan>) -> Self {
        Self::whole(Basis::of(topology, intents), topology, intents, plan)
    }

    /// Verifies another plan, reusing the results of this one where the tables are the same. See the type for what is
    /// guaranteed.
    #[must_use]
    pub fn delta(&self, topology: &Arc<Topology>, intents: &Intents, plan: Arc<FabricPlan>) -> Self {
        self.delta_with_basis(Basis::of(topology, intents), topology, intents, plan)
    }

    /// Like [`Verified::delta`], for callers that keep the [`Basis`] of `topology` and `intents`, which takes time to
    /// compute. `basis` must equal `Basis::of(topology, intents)`.
    #[must_use]
    pub fn delta_with_basis(
        &self,
        basis: Basis,
        topology: &Arc<Topology>,
        intents: &Intents,
        plan: Arc<FabricPlan>,
    ) -> Self {
        let is_same_topology =
            || Arc::ptr_eq(topology, &self.topology) || rates(topology).eq(rates(&self.topology));
        let is_same_site = || SitePorts::of(intents, &plan) == *self.intended.site();
        let is_same =
            basis == self.basis && intents.hardware == self.hardware && is_same_topology() && is_same_site();
        let changes = is_same.then(|| PlanChanges::between(&self.plan, &plan)).flatten();
        match changes.filter(|_| self.cables.are_unique) {
            Some(changes) => self.changed(&changes, topology, intents, plan),
            None => Self::whole(basis, topology, intents, plan),
        }
    }

    /// All findings, in the order of [`Rule::ALL`](crate::Rule::ALL).
    pub fn findings(&self) -> impl Iterator<Item = &Finding> {
        let multicast = self.groups.iter().chain(self.trees.values().flatten());
        let sharing = self.ports.findings().chain(&self.paths);
        (self.addresses.iter())
            .chain(&self.aliases)
            .chain(self.columns.values().flatten())
            .chain(&self.loops)
            .chain(&self.isolation)
            .chain(&self.handed_over)
            .chain(multicast)
            .chain(self.capacities.findings())
            .chain(sharing)
            .chain(&self.owners)
            .chain(self.guarantees.ownership())
            .chain(self.guarantees.violations())
    }

    pub fn plan(&self) -> &Arc<FabricPlan> {
        &self.plan
    }

    fn whole(basis: Basis, topology: &Arc<Topology>, intents: &Intents, plan: Arc<FabricPlan>) -> Self {
        let read = Reading::new(topology, intents, &plan);
        let (order, loops) = order_or_loops(&read);
        let columns = forwarding::check(&read, forwarding::lids(&read));
        let trees = multicast::check(&read, &multicast::mlids(&read));
        let (keys, ports) = (Keys::of(&read), Ports::of(&read.network));
        let (isolation, paths) = (keys.findings(&read), sharing::check_paths(&read, &ports));
        Self {
            basis,
            hardware: intents.hardware,
            topology: Arc::clone(topology),
            clusters: Clusters::of(&intents.clusters),
            routed: routed(intents),
            classes: intents.class_weights.clone(),
            addresses: addresses::check(&read),
            aliases: aliases::check(intents, &plan),
            columns,
            order,
            loops,
            keys,
            isolation,
            handed_over: handed_over::check(&read),
            groups: multicast::check_groups(&read, |_| false),
            trees,
            capacities: Capacities::of(&read),
            ports,
            paths,
            owners: partition_owners::check(intents),
            guarantees: read.guarantees().clone(),
            cables: Arc::clone(&read.network.cables),
            intended: read.intended,
            plan,
        }
    }

    /// Verifies a plan that has the same end ports on the same cables.
    fn changed(
        &self,
        changes: &PlanChanges,
        topology: &Arc<Topology>,
        intents: &Intents,
        plan: Arc<FabricPlan>,
    ) -> Self {
        let (intended, intent_changes) =
            self.intended.changed(intents, (&self.plan, &plan), &changes.partitions);
        let (clusters, mut names) = self.clusters.changed(&intents.clusters);
        let are_clusters_same = names.is_empty();
        names.extend(changed_weights(&self.classes, &intents.class_weights));
        let network = PlannedNetwork::on(Arc::clone(&self.cables), topology, &plan);
        let read = Reading { intents, network, intended, guarantees: OnceCell::new() };
        let routed = routed(intents);
        let before = PreviousState {
            plan: &self.plan,
            clusters: names,
            routed: self.routed.symmetric_difference(&routed).copied().collect(),
            partitions: &intent_changes.partitions,
        };
        let guarantees = self.guarantees.changed(&read, &before, changes);
        read.guarantees.get_or_init(|| guarantees);
        let exits = self.exits(&read, changes);
        let (columns, trees) = (self.columns(&read, &exits, &intent_changes), self.trees(&read, changes));
        let groups = || changes.multicast.iter().copied();
        let order = self.order.clone().filter(|order| order.holds(&read.network, &exits, groups()));
        let (order, loops) = order.map_or_else(|| order_or_loops(&read), |order| (Some(order), Vec::new()));
        let keys = self.keys(&read, changes, &intent_changes);
        let ports = self.ports(&read, changes);
        let paths = if changes.is_sharing_kept() && are_clusters_same {
            self.paths.clone()
        } else {
            sharing::check_paths(&read, &ports)
        };
        let is_cabled = !changes.is_recabled;
        let addresses = if is_cabled { self.addresses.clone() } else { addresses::check(&read) };
        let (isolation, groups) = (keys.findings(&read), self.groups(&read, changes, &intent_changes));
        let capacities = self.capacities(&read, changes);
        Self {
            basis: self.basis,
            hardware: self.hardware,
            topology: Arc::clone(topology),
            cables: Arc::clone(&self.cables),
            clusters,
            routed,
            classes: intents.class_weights.clone(),
            addresses,
            aliases: aliases::check(intents, &plan),
            columns,
            order,
            loops,
            isolation,
            handed_over: handed_over::check(&read),
            keys,
            groups,
            trees,
            capacities,
            ports,
            paths,
            owners: partition_owners::check(intents),
            guarantees: read.guarantees.into_inner().expect("it was put in"),
            intended: read.intended,
            plan,
        }
    }

    /// The columns of LIDs with changed entries or with findings.
    fn exits(&self, read: &Reading<'_>, changes: &PlanChanges) -> ExitColumns {
        let mut lids = Bits::new(usize::from(Lid::MAX) + 1);
        let changed = changes.linear.iter().map(|(_, lid)| lid);
        changed.chain(self.columns.keys()).for_each(|lid| lids.insert(lid.to_wire().into()));
        let lids = lids.iter().filter_map(|raw| u16::try_from(raw).ok().and_then(Lid::from_wire));
        ExitColumns::of(&read.network, lids.collect())
    }

    /// Findings for these columns, and for LIDs whose owners are in other partitions now.
    fn columns(
        &self,
        read: &Reading<'_>,
        exits: &ExitColumns,
        intent_changes: &IntentChanges,
    ) -> BTreeMap<Lid, Vec<Finding>> {
        let repartitioned = repartitioned(intent_changes, read).into_iter();
        let repartitioned = repartitioned.filter(|lid| exits.lids.binary_search(lid).is_err());
        let mut columns = forwarding::check_repartitioned(read, repartitioned);
        columns.extend(forwarding::check_read(read, exits));
        columns
    }

    /// Findings for multicast LIDs with changed entries or groups, or with findings.
    fn trees(&self, read: &Reading<'_>, changes: &PlanChanges) -> BTreeMap<MulticastLid, Vec<Finding>> {
        let mut mlids: BTreeSet<MulticastLid> = self.trees.keys().copied().collect();
        let changed: BTreeSet<MulticastLid> =
            changes.multicast.iter().map(|(_, mlid)| *mlid).chain(changes.groups.iter().copied()).collect();
        let switches = |mlid: MulticastLid| {
            changes
                .multicast
                .iter()
                .filter(move |(_, other)| *other == mlid)
                .map(|(switch_index, _)| *switch_index)
        };
        let is_kept = |mlid: &MulticastLid| {
            multicast::is_kept(read, &self.plan, *mlid, switches(*mlid), &changes.mgids)
        };
        let lost: Vec<MulticastLid> =
            changed.into_iter().filter(|mlid| !mlids.contains(mlid) && !is_kept(mlid)).collect();
        mlids.extend(lost);
        multicast::check(read, &mlids)
    }

    fn groups(
        &self,
        read: &Reading<'_>,
        changes: &PlanChanges,
        intent_changes: &IntentChanges,
    ) -> Vec<Finding> {
        let is_same = |number: &PartitionNumber| {
            !intent_changes.partitions.contains(number) && !changes.group_partitions.contains(number)
        };
        multicast::check_groups(read, |number| self.groups.is_empty() && is_same(&number))
    }

    /// Rechecks tables that changed, and tables of ports that should hold other keys.
    fn keys(&self, read: &Reading<'_>, changes: &PlanChanges, intent_changes: &IntentChanges) -> Keys {
        let mut keys = self.keys.clone();
        let numbers = intent_changes.partitions.union(&changes.partitions);
        numbers.for_each(|number| keys.check_members(read, *number));
        let ends: BTreeSet<usize> =
            intent_changes.ports.iter().filter_map(|guid| read.network.end(*guid)).collect();
        for end in ends.iter().chain(&changes.own_keys) {
            keys.check_end(read, *end);
        }
        let homes = ends.iter().filter_map(|end| read.network.ends()[*end].home);
        for (switch_index, port) in homes.chain(changes.enforced.iter().copied()) {
            if let Some(port) = read.network.switches[switch_index].port(port) {
                keys.check_port(read, switch_index, port);
            }
        }
        keys
    }

    fn capacities(&self, read: &Reading<'_>, changes: &PlanChanges) -> Capacities {
        let mut capacities = self.capacities.clone();
        changes.switches.iter().for_each(|switch_index| capacities.check_switch(read, *switch_index));
        for (switch_index, port) in &changes.switch_ports {
            if let Some(port) = read.network.switches[*switch_index].port(*port) {
                capacities.check_port(read, *switch_index, port);
            }
        }
        changes.adapters.iter().for_each(|end| capacities.check_adapter(read, *end));
        capacities
    }

    fn ports(&self, read: &Reading<'_>, changes: &PlanChanges) -> Ports {
        let mut ports = self.ports.clone();
        ports.is_planned = changes.is_shared;
        changes.links.iter().for_each(|link| ports.check(&read.network, *link));
        ports
    }
}

fn routed(intents: &Intents) -> BTreeSet<Guid> {
    intents.route_overrides.keys().copied().collect()
}

/// Clusters whose class weights differ.
fn changed_weights<'a>(before: &'a ClassWeights, after: &'a ClassWeights) -> impl Iterator<Item = &'a str> {
    let names = before.keys().chain(after.keys());
    names.filter(|name| before.get(*name) != after.get(*name)).map(String::as_str)
}

/// The rate of every port that has one, in the order of the topology.
fn rates(topology: &Topology) -> impl Iterator<Item = (Guid, PortNum, LinkRate)> + '_ {
    let ports = topology.nodes().flat_map(|(_, node)| node.ports().map(move |port| (node.guid, port)));
    ports.filter_map(|(guid, (number, port))| Some((guid, number, port.rate?)))
}

/// The topological order of links, or the credit loops if there is none.
fn order_or_loops(read: &Reading<'_>) -> (Option<LinkOrder>, Vec<Finding>) {
    match LinkOrder::of(&read.network) {
        Some(order) => (Some(order), Vec::new()),
        None => (None, credit_loops::check(&read.network)),
    }
}

/// The LIDs of ports in changed partitions.
fn repartitioned(intent_changes: &IntentChanges, read: &Reading<'_>) -> BTreeSet<Lid> {
    let lid = |guid: &Guid| read.network.end(*guid).map(|end| read.network.ends()[end].lid);
    intent_changes.ports.iter().filter_map(lid).collect()
}
