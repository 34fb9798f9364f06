//! What was found in a plan, kept for the next one: while the fabric is the same, only what a table changed is read again.

mod changes;
mod clusters;

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fabric_model::intent::WishedClasses;
use fabric_model::plan::Basis;
use fabric_model::{FabricPlan, Intents, LinkRate, Topology};
use ib_wire::{Guid, Lid, MulticastLid, PartitionNumber, PortNum};

use crate::bits::Bits;
use crate::capacities::Capacities;
use crate::credits::Order;
use crate::guarantees::{Before, Guarantees};
use crate::isolation::Keys;
use crate::network::{Cables, Exits, Network};
use crate::sharing::Ports;
use crate::wanted::{Otherwise, Wanted};
use crate::{Finding, Reading, addresses, credits, forwarding, multicast, owners, sharing};
pub(crate) use changes::Changes;
use clusters::Clusters;

/// A plan with everything that was found in it.
#[derive(Debug)]
pub struct Verified {
    basis: Basis,
    topology: Arc<Topology>,
    cables: Arc<Cables>,
    plan: Arc<FabricPlan>,
    wanted: Wanted,
    clusters: Clusters,
    /// Ports for which ways are wished.
    routed: BTreeSet<Guid>,
    /// How clusters are to be divided.
    classes: WishedClasses,
    addresses: Vec<Finding>,
    columns: BTreeMap<Lid, Vec<Finding>>,
    /// `None` while there are rings.
    order: Option<Order>,
    rings: Vec<Finding>,
    keys: Keys,
    isolation: Vec<Finding>,
    groups: Vec<Finding>,
    trees: BTreeMap<MulticastLid, Vec<Finding>>,
    capacities: Capacities,
    ports: Ports,
    ways: Vec<Finding>,
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
        self.delta_on(Basis::of(topology, intents), topology, intents, plan)
    }

    /// The same for who kept the [`Basis`] of the topology and the intents: to find it out again takes a while.
    #[must_use]
    pub fn delta_on(
        &self,
        basis: Basis,
        topology: &Arc<Topology>,
        intents: &Intents,
        plan: Arc<FabricPlan>,
    ) -> Self {
        let is_same_topology =
            || Arc::ptr_eq(topology, &self.topology) || rates(topology).eq(rates(&self.topology));
        let is_same = basis == self.basis && is_same_topology();
        let changes = is_same.then(|| Changes::between(&self.plan, &plan)).flatten();
        match changes.filter(|_| self.cables.are_unique) {
            Some(changes) => self.changed(&changes, topology, intents, plan),
            None => Self::whole(basis, topology, intents, plan),
        }
    }

    /// Everything that was found, rule by rule.
    pub fn findings(&self) -> impl Iterator<Item = &Finding> {
        let multicast = self.groups.iter().chain(self.trees.values().flatten());
        let sharing = self.ports.findings().chain(&self.ways);
        (self.addresses.iter())
            .chain(self.columns.values().flatten())
            .chain(&self.rings)
            .chain(&self.isolation)
            .chain(multicast)
            .chain(self.capacities.findings())
            .chain(sharing)
            .chain(&self.owners)
            .chain(self.guarantees.ownership())
            .chain(self.guarantees.promises())
    }

    /// The plan.
    pub fn plan(&self) -> &Arc<FabricPlan> {
        &self.plan
    }

    fn whole(basis: Basis, topology: &Arc<Topology>, intents: &Intents, plan: Arc<FabricPlan>) -> Self {
        let read = Reading::new(topology, intents, &plan);
        let (order, rings) = rings(&read);
        let columns = forwarding::check(&read, forwarding::lids(&read));
        let trees = multicast::check(&read, &multicast::mlids(&read));
        let (keys, ports) = (Keys::of(&read), Ports::of(&read.network));
        let (isolation, ways) = (keys.findings(&read), sharing::check_ways(&read, &ports));
        Self {
            basis,
            topology: Arc::clone(topology),
            clusters: Clusters::of(&intents.clusters),
            routed: routed(intents),
            classes: intents.classes.clone(),
            addresses: addresses::check(&read),
            columns,
            order,
            rings,
            keys,
            isolation,
            groups: multicast::check_groups(&read, |_| false),
            trees,
            capacities: Capacities::of(&read),
            ports,
            ways,
            owners: owners::check(intents),
            guarantees: read.guarantees().clone(),
            cables: Arc::clone(&read.network.cables),
            wanted: read.wanted,
            plan,
        }
    }

    /// What is found in a plan that has the same ports on the same cables.
    fn changed(
        &self,
        changes: &Changes,
        topology: &Arc<Topology>,
        intents: &Intents,
        plan: Arc<FabricPlan>,
    ) -> Self {
        let (wanted, otherwise) = self.wanted.changed(intents, (&self.plan, &plan), &changes.partitions);
        let (clusters, mut names) = self.clusters.changed(&intents.clusters);
        let are_clusters_same = names.is_empty();
        names.extend(divided_otherwise(&self.classes, &intents.classes));
        let network = Network::on(Arc::clone(&self.cables), topology, &plan);
        let read = Reading { intents, network, wanted, guarantees: OnceCell::new() };
        let routed = routed(intents);
        let before = Before {
            plan: &self.plan,
            clusters: names,
            routed: self.routed.symmetric_difference(&routed).copied().collect(),
            partitions: &otherwise.partitions,
        };
        let guarantees = self.guarantees.changed(&read, &before, changes);
        read.guarantees.get_or_init(|| guarantees);
        let exits = self.exits(&read, changes);
        let (columns, trees) = (self.columns(&read, &exits, &otherwise), self.trees(&read, changes));
        let groups = || changes.multicast.iter().copied();
        let order = self.order.clone().filter(|order| order.holds(&read.network, &exits, groups()));
        let (order, rings) = order.map_or_else(|| rings(&read), |order| (Some(order), Vec::new()));
        let keys = self.keys(&read, changes, &otherwise);
        let ports = self.ports(&read, changes);
        let ways = match changes.is_sharing_kept() && are_clusters_same {
            true => self.ways.clone(),
            false => sharing::check_ways(&read, &ports),
        };
        let is_cabled = !changes.is_cabled_otherwise;
        let addresses = if is_cabled { self.addresses.clone() } else { addresses::check(&read) };
        let (isolation, groups) = (keys.findings(&read), self.groups(&read, changes, &otherwise));
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
            rings,
            isolation,
            keys,
            groups,
            trees,
            capacities,
            ports,
            ways,
            owners: owners::check(intents),
            guarantees: read.guarantees.into_inner().expect("it was put in"),
            wanted: read.wanted,
            plan,
        }
    }

    /// Where packets leave to LIDs of which an entry changed, or of which something was found.
    fn exits(&self, read: &Reading<'_>, changes: &Changes) -> Exits {
        let mut lids = Bits::new(usize::from(Lid::MAX) + 1);
        let changed = changes.linear.iter().map(|(_, lid)| lid);
        changed.chain(self.columns.keys()).for_each(|lid| lids.insert(lid.to_wire().into()));
        let lids = lids.iter().filter_map(|raw| u16::try_from(raw).ok().and_then(Lid::from_wire));
        Exits::of(&read.network, lids.collect())
    }

    /// These LIDs, and those whose owner may talk to others than before.
    fn columns(
        &self,
        read: &Reading<'_>,
        exits: &Exits,
        otherwise: &Otherwise,
    ) -> BTreeMap<Lid, Vec<Finding>> {
        let regrouped = regrouped(otherwise, read).into_iter();
        let regrouped = regrouped.filter(|lid| exits.lids.binary_search(lid).is_err());
        let mut columns = forwarding::check_regrouped(read, regrouped);
        columns.extend(forwarding::check_read(read, exits));
        columns
    }

    /// LIDs of groups of which an entry or a group changed, or of which something was found.
    fn trees(&self, read: &Reading<'_>, changes: &Changes) -> BTreeMap<MulticastLid, Vec<Finding>> {
        let mut mlids: BTreeSet<MulticastLid> = self.trees.keys().copied().collect();
        let changed: BTreeSet<MulticastLid> =
            changes.multicast.iter().map(|(_, mlid)| *mlid).chain(changes.groups.iter().copied()).collect();
        let places = |mlid: MulticastLid| {
            changes.multicast.iter().filter(move |(_, other)| *other == mlid).map(|(place, _)| *place)
        };
        let is_kept =
            |mlid: &MulticastLid| multicast::is_kept(read, &self.plan, *mlid, places(*mlid), &changes.mgids);
        let lost: Vec<MulticastLid> =
            changed.into_iter().filter(|mlid| !mlids.contains(mlid) && !is_kept(mlid)).collect();
        mlids.extend(lost);
        multicast::check(read, &mlids)
    }

    fn groups(&self, read: &Reading<'_>, changes: &Changes, otherwise: &Otherwise) -> Vec<Finding> {
        let is_same = |number: &PartitionNumber| {
            !otherwise.partitions.contains(number) && !changes.group_partitions.contains(number)
        };
        multicast::check_groups(read, |number| self.groups.is_empty() && is_same(&number))
    }

    /// Tables that changed, or whose ports are to hold something else.
    fn keys(&self, read: &Reading<'_>, changes: &Changes, otherwise: &Otherwise) -> Keys {
        let mut keys = self.keys.clone();
        let numbers = otherwise.partitions.union(&changes.partitions);
        numbers.for_each(|number| keys.look_at_members(read, *number));
        let ends: BTreeSet<usize> =
            otherwise.ports.iter().filter_map(|guid| read.network.end(*guid)).collect();
        for end in ends.iter().chain(&changes.own_keys) {
            keys.look_at_end(read, *end);
        }
        let homes = ends.iter().filter_map(|end| read.network.ends()[*end].home);
        for (place, port) in homes.chain(changes.enforced.iter().copied()) {
            if let Some(port) = read.network.switches[place].port(port) {
                keys.look_at_port(read, place, port);
            }
        }
        keys
    }

    fn capacities(&self, read: &Reading<'_>, changes: &Changes) -> Capacities {
        let mut capacities = self.capacities.clone();
        changes.switches.iter().for_each(|place| capacities.look_at_switch(read, *place));
        for (place, port) in &changes.switch_ports {
            if let Some(port) = read.network.switches[*place].port(*port) {
                capacities.look_at_port(read, *place, port);
            }
        }
        changes.adapters.iter().for_each(|end| capacities.look_at_adapter(read, *end));
        capacities
    }

    fn ports(&self, read: &Reading<'_>, changes: &Changes) -> Ports {
        let mut ports = self.ports.clone();
        ports.is_planned = changes.is_shared;
        changes.links.iter().for_each(|link| ports.look(&read.network, *link));
        ports
    }
}

/// Ports for which ways are wished.
fn routed(intents: &Intents) -> BTreeSet<Guid> {
    intents.routes.keys().copied().collect()
}

/// Clusters that are to be divided otherwise than before.
fn divided_otherwise<'a>(
    before: &'a WishedClasses,
    after: &'a WishedClasses,
) -> impl Iterator<Item = &'a str> {
    let names = before.keys().chain(after.keys());
    names.filter(|name| before.get(*name) != after.get(*name)).map(String::as_str)
}

/// What every port is said to run at, in the order of a file.
fn rates(topology: &Topology) -> impl Iterator<Item = (Guid, PortNum, LinkRate)> + '_ {
    let ports = topology.nodes().flat_map(|(_, node)| node.ports().map(move |port| (node.guid, port)));
    ports.filter_map(|(guid, (number, port))| Some((guid, number, port.rate?)))
}

/// The order of links, or the rings that keep them from having one.
fn rings(read: &Reading<'_>) -> (Option<Order>, Vec<Finding>) {
    match Order::of(&read.network) {
        Some(order) => (Some(order), Vec::new()),
        None => (None, credits::check(&read.network)),
    }
}

/// The LIDs of ports whose partitions are asked for otherwise than they were.
fn regrouped(otherwise: &Otherwise, read: &Reading<'_>) -> BTreeSet<Lid> {
    let lid = |guid: &Guid| read.network.end(*guid).map(|end| read.network.ends()[end].lid);
    otherwise.ports.iter().filter_map(lid).collect()
}
