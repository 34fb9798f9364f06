//! What was found in a plan, kept for the next one: while the fabric is the same, only what a table changed is read again.

mod changes;

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fabric_model::intent::ClusterIntent;
use fabric_model::plan::{Basis, GroupPlan};
use fabric_model::{FabricPlan, Intents, LinkRate, Topology};
use ib_wire::{Guid, Lid, MulticastLid, PartitionNumber, PortNum};

use crate::capacities::Capacities;
use crate::credits::Order;
use crate::guarantees::{Before, Guarantees};
use crate::isolation::Keys;
use crate::network::{Cables, Network};
use crate::sharing::Ports;
use crate::wanted::Wanted;
use crate::{Finding, Reading, addresses, credits, forwarding, multicast, sharing};
pub(crate) use changes::Changes;

/// A plan with everything that was found in it.
#[derive(Debug)]
pub struct Verified {
    basis: Basis,
    rates: Arc<Rates>,
    cables: Arc<Cables>,
    plan: Arc<FabricPlan>,
    wanted: Wanted,
    clusters: Arc<Vec<ClusterIntent>>,
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
    guarantees: Guarantees,
}

impl Verified {
    /// Reads a whole plan.
    pub fn of(topology: &Topology, intents: &Intents, plan: Arc<FabricPlan>) -> Self {
        Self::whole(Basis::of(topology, intents), topology, intents, plan)
    }

    /// Reads another plan: finds exactly what [`verify`](crate::verify) finds, sooner where tables are those of this
    /// plan. If the cables, the manager or what devices can hold are others, everything is read.
    #[must_use]
    pub fn delta(&self, topology: &Topology, intents: &Intents, plan: Arc<FabricPlan>) -> Self {
        self.delta_on(Basis::of(topology, intents), topology, intents, plan)
    }

    /// The same for who kept the [`Basis`] of the topology and the intents: to find it out again takes a while.
    #[must_use]
    pub fn delta_on(
        &self,
        basis: Basis,
        topology: &Topology,
        intents: &Intents,
        plan: Arc<FabricPlan>,
    ) -> Self {
        let is_same = basis == self.basis && rates(topology).eq(self.rates.iter().copied());
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
            .chain(self.guarantees.ownership())
            .chain(self.guarantees.promises())
    }

    /// The plan.
    pub fn plan(&self) -> &Arc<FabricPlan> {
        &self.plan
    }

    fn whole(basis: Basis, topology: &Topology, intents: &Intents, plan: Arc<FabricPlan>) -> Self {
        let read = Reading::new(topology, intents, &plan);
        let (order, rings) = rings(&read);
        let columns = forwarding::check(&read, forwarding::lids(&read));
        let trees = multicast::check(&read, &multicast::mlids(&read));
        let (keys, ports) = (Keys::of(&read), Ports::of(&read.network));
        let (isolation, ways) = (keys.findings(&read), sharing::check_ways(&read, &ports));
        Self {
            basis,
            rates: Arc::new(rates(topology).collect()),
            clusters: Arc::new(intents.clusters.clone()),
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
        topology: &Topology,
        intents: &Intents,
        plan: Arc<FabricPlan>,
    ) -> Self {
        let (wanted, touched) = self.wanted.changed(intents, &plan);
        let network = Network::on(Arc::clone(&self.cables), topology, &plan);
        let read = Reading { intents, network, wanted, guarantees: OnceCell::new() };
        let before = Before { plan: &self.plan, clusters: &self.clusters, wanted: &self.wanted };
        let guarantees = self.guarantees.changed(&read, &before, changes);
        let guarantees = read.guarantees.get_or_init(|| guarantees);
        let (columns, trees) = (self.columns(&read, changes), self.trees(&read, changes));
        let lids: BTreeSet<Lid> = changes.linear.iter().map(|(_, lid)| *lid).collect();
        let groups = || changes.multicast.iter().copied();
        let order = self.order.clone().filter(|order| order.holds(&read.network, &lids, groups()));
        let (order, rings) = order.map_or_else(|| rings(&read), |order| (Some(order), Vec::new()));
        let keys = self.keys(&read, changes, &touched);
        let ports = self.ports(&read, changes);
        let are_clusters_same = *self.clusters == intents.clusters;
        let ways = match changes.is_sharing_kept() && are_clusters_same {
            true => self.ways.clone(),
            false => sharing::check_ways(&read, &ports),
        };
        let is_cabled = !changes.is_cabled_otherwise;
        let clusters = match are_clusters_same {
            true => Arc::clone(&self.clusters),
            false => Arc::new(intents.clusters.clone()),
        };
        Self {
            basis: self.basis,
            rates: Arc::clone(&self.rates),
            cables: Arc::clone(&self.cables),
            clusters,
            addresses: if is_cabled { self.addresses.clone() } else { addresses::check(&read) },
            columns,
            order,
            rings,
            isolation: keys.findings(&read),
            keys,
            groups: self.groups(&read, changes),
            trees,
            capacities: self.capacities(&read, changes),
            ports,
            ways,
            guarantees: guarantees.clone(),
            wanted: read.wanted,
            plan,
        }
    }

    /// LIDs of which an entry changed, whose owner may talk to others than before, or of which something was found.
    fn columns(&self, read: &Reading<'_>, changes: &Changes) -> BTreeMap<Lid, Vec<Finding>> {
        let mut lids: BTreeSet<Lid> = self.columns.keys().copied().collect();
        lids.extend(changes.linear.iter().map(|(_, lid)| *lid));
        let regrouped = regrouped(&self.wanted, read).into_iter().filter(|lid| !lids.contains(lid));
        let mut columns = forwarding::check_regrouped(read, regrouped);
        columns.extend(forwarding::check(read, lids.into_iter()));
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

    fn groups(&self, read: &Reading<'_>, changes: &Changes) -> Vec<Finding> {
        let is_same = |number: &PartitionNumber| {
            let before = self.wanted.partitions.get(number).zip(read.wanted.partitions.get(number));
            before.is_some_and(|(before, after)| Arc::ptr_eq(before, after))
        };
        let is_known = |group: &GroupPlan| {
            self.groups.is_empty() && !changes.mgids.contains(&group.mgid) && is_same(&group.partition)
        };
        multicast::check_groups(read, is_known)
    }

    /// Tables that changed, or whose ports are to hold something else.
    fn keys(&self, read: &Reading<'_>, changes: &Changes, touched: &BTreeSet<Guid>) -> Keys {
        let mut keys = self.keys.clone();
        let ends: BTreeSet<usize> = touched.iter().filter_map(|guid| read.network.end(*guid)).collect();
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

/// What every port is said to run at, in the order of a file.
type Rates = Vec<(Guid, PortNum, LinkRate)>;

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

/// The LIDs of ports whose partitions have other members than they had.
fn regrouped(before: &Wanted, read: &Reading<'_>) -> BTreeSet<Lid> {
    let after = &read.wanted.partitions;
    let gone = before.partitions.iter().filter(|(number, _)| !after.contains_key(number));
    let mut ports: BTreeSet<Guid> = gone.flat_map(|(_, old)| old.members.keys().copied()).collect();
    for (number, new) in after {
        let old = before.partitions.get(number);
        let is_same = old.is_some_and(|old| Arc::ptr_eq(old, new) || old.members == new.members);
        if !is_same {
            ports.extend(old.into_iter().chain([new]).flat_map(|partition| partition.members.keys()));
        }
    }
    let lid = |guid: &Guid| read.network.end(*guid).map(|end| read.network.ends()[end].lid);
    ports.iter().filter_map(lid).collect()
}
