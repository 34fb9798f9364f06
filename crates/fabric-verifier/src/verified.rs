//! What was found in a plan, kept for the next one: while the fabric is the same, only what a table changed is read again.

mod clusters;
mod plan_changes;

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fabric_model::intent::WishedClasses;
use fabric_model::plan::Basis;
use fabric_model::{FabricPlan, Intents, LinkRate, Topology};
use ib_wire::{Guid, Lid, MulticastLid, PartitionNumber, PortNum};

use crate::bits::Bits;
use crate::capacities::Capacities;
use crate::credit_loops::LinkOrder;
use crate::guarantees::{Guarantees, PreviousState};
use crate::intended::{Intended, IntentChanges};
use crate::isolation::Keys;
use crate::network::{Cables, ExitColumns, PlannedNetwork};
use crate::sharing::Ports;
use crate::{Finding, Reading, addresses, credit_loops, forwarding, multicast, partition_owners, sharing};
use clusters::Clusters;
pub(crate) use plan_changes::PlanChanges;

/// A plan with everything that was found in it.
#[derive(Debug)]
pub struct Verified {
    basis: Basis,
    topology: Arc<Topology>,
    cables: Arc<Cables>,
    plan: Arc<FabricPlan>,
    intended: Intended,
    clusters: Clusters,
    /// Ports for which paths are wished.
    routed: BTreeSet<Guid>,
    /// How clusters are to be divided.
    classes: WishedClasses,
    addresses: Vec<Finding>,
    columns: BTreeMap<Lid, Vec<Finding>>,
    /// `None` while there are credit_loops_found.
    order: Option<LinkOrder>,
    credit_loops_found: Vec<Finding>,
    keys: Keys,
    isolation: Vec<Finding>,
    groups: Vec<Finding>,
    trees: BTreeMap<MulticastLid, Vec<Finding>>,
    capacities: Capacities,
    ports: Ports,
    paths: Vec<Finding>,
    /// Numbers that belong to two.
    owners: Vec<Finding>,
    guarantees: Guarantees,
}

impl Verified {
    /// Reads a whole plan.
    pub fn of(topology: &Arc<Topology>, intents: &Intents, plan: Arc<FabricPlan>) -> Self {
        Self::whole(Basis::of(topology, intents), topology, intents, plan)
    }

    /// Reads another plan: finds exactly what [`verify`](crate::verify) finds, sooner where tables are those of this
    /// plan. If the cables, the manager or what devices can hold are others, everything is read.
    #[must_use]
    pub fn delta(&self, topology: &Arc<Topology>, intents: &Intents, plan: Arc<FabricPlan>) -> Self {
        self.delta_with_basis(Basis::of(topology, intents), topology, intents, plan)
    }

    /// The same for who kept the [`Basis`] of the topology and the intents: to find it out again takes a while.
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
        let is_same = basis == self.basis && is_same_topology();
        let changes = is_same.then(|| PlanChanges::between(&self.plan, &plan)).flatten();
        match changes.filter(|_| self.cables.are_unique) {
            Some(changes) => self.changed(&changes, topology, intents, plan),
            None => Self::whole(basis, topology, intents, plan),
        }
    }

    /// Everything that was found, rule by rule.
    pub fn findings(&self) -> impl Iterator<Item = &Finding> {
        let multicast = self.groups.iter().chain(self.trees.values().flatten());
        let sharing = self.ports.findings().chain(&self.paths);
        (self.addresses.iter())
            .chain(self.columns.values().flatten())
            .chain(&self.credit_loops_found)
            .chain(&self.isolation)
            .chain(multicast)
            .chain(self.capacities.findings())
            .chain(sharing)
            .chain(&self.owners)
            .chain(self.guarantees.ownership())
            .chain(self.guarantees.violations())
    }

    /// The plan.
    pub fn plan(&self) -> &Arc<FabricPlan> {
        &self.plan
    }

    fn whole(basis: Basis, topology: &Arc<Topology>, intents: &Intents, plan: Arc<FabricPlan>) -> Self {
        let read = Reading::new(topology, intents, &plan);
        let (order, credit_loops_found) = credit_loops_found(&read);
        let columns = forwarding::check(&read, forwarding::lids(&read));
        let trees = multicast::check(&read, &multicast::mlids(&read));
        let (keys, ports) = (Keys::of(&read), Ports::of(&read.network));
        let (isolation, paths) = (keys.findings(&read), sharing::check_paths(&read, &ports));
        Self {
            basis,
            topology: Arc::clone(topology),
            clusters: Clusters::of(&intents.clusters),
            routed: routed(intents),
            classes: intents.classes.clone(),
            addresses: addresses::check(&read),
            columns,
            order,
            credit_loops_found,
            keys,
            isolation,
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

    /// What is found in a plan that has the same ports on the same cables.
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
        names.extend(changed_weights(&self.classes, &intents.classes));
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
        let (order, credit_loops_found) =
            order.map_or_else(|| credit_loops_found(&read), |order| (Some(order), Vec::new()));
        let keys = self.keys(&read, changes, &intent_changes);
        let ports = self.ports(&read, changes);
        let paths = match changes.is_sharing_kept() && are_clusters_same {
            true => self.paths.clone(),
            false => sharing::check_paths(&read, &ports),
        };
        let is_cabled = !changes.is_recabled;
        let addresses = if is_cabled { self.addresses.clone() } else { addresses::check(&read) };
        let (isolation, groups) = (keys.findings(&read), self.groups(&read, changes, &intent_changes));
        let capacities = self.capacities(&read, changes);
        Self {
            basis: self.basis,
            topology: Arc::clone(topology),
            cables: Arc::clone(&self.cables),
            clusters,
            routed,
            classes: intents.classes.clone(),
            addresses,
            columns,
            order,
            credit_loops_found,
            isolation,
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

    /// Where packets leave to LIDs of which an entry changed, or of which something was found.
    fn exits(&self, read: &Reading<'_>, changes: &PlanChanges) -> ExitColumns {
        let mut lids = Bits::new(usize::from(Lid::MAX) + 1);
        let changed = changes.linear.iter().map(|(_, lid)| lid);
        changed.chain(self.columns.keys()).for_each(|lid| lids.insert(lid.to_wire().into()));
        let lids = lids.iter().filter_map(|raw| u16::try_from(raw).ok().and_then(Lid::from_wire));
        ExitColumns::of(&read.network, lids.collect())
    }

    /// These LIDs, and those whose owner may talk to others than before.
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

    /// LIDs of groups of which an entry or a group changed, or of which something was found.
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

    /// Tables that changed, or whose ports are to hold something else.
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

/// Ports for which paths are wished.
fn routed(intents: &Intents) -> BTreeSet<Guid> {
    intents.routes.keys().copied().collect()
}

/// Clusters that are to be divided intent_changes than before.
fn changed_weights<'a>(before: &'a WishedClasses, after: &'a WishedClasses) -> impl Iterator<Item = &'a str> {
    let names = before.keys().chain(after.keys());
    names.filter(|name| before.get(*name) != after.get(*name)).map(String::as_str)
}

/// What every port is said to run at, in the order of a file.
fn rates(topology: &Topology) -> impl Iterator<Item = (Guid, PortNum, LinkRate)> + '_ {
    let ports = topology.nodes().flat_map(|(_, node)| node.ports().map(move |port| (node.guid, port)));
    ports.filter_map(|(guid, (number, port))| Some((guid, number, port.rate?)))
}

/// The order of links, or the credit_loops_found that keep them from having one.
fn credit_loops_found(read: &Reading<'_>) -> (Option<LinkOrder>, Vec<Finding>) {
    match LinkOrder::of(&read.network) {
        Some(order) => (Some(order), Vec::new()),
        None => (None, credit_loops::check(&read.network)),
    }
}

/// The LIDs of ports whose partitions are asked for intent_changes than they were.
fn repartitioned(intent_changes: &IntentChanges, read: &Reading<'_>) -> BTreeSet<Lid> {
    let lid = |guid: &Guid| read.network.end(*guid).map(|end| read.network.ends()[end].lid);
    intent_changes.ports.iter().filter_map(lid).collect()
}
