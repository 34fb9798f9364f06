//! What was found in a plan, kept for the next one: while the fabric is the same, only what a table changed is read again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fabric_model::plan::{Basis, MulticastTable, PortSharing, SwitchPlan};
use fabric_model::{FabricPlan, Intents, Topology};
use ib_wire::{Guid, Lid, MulticastLid};

use crate::credits::Order;
use crate::network::Place;
use crate::wanted::Wanted;
use crate::{Destination, Finding, Reading, Rule, credits, forwarding, multicast};

/// A plan with everything that was found in it.
#[derive(Debug)]
pub struct Verified {
    basis: Basis,
    plan: Arc<FabricPlan>,
    wanted: Wanted,
    /// By rule; of those that are kept in parts, what belongs to no part.
    whole: BTreeMap<Rule, Vec<Finding>>,
    columns: BTreeMap<Lid, Vec<Finding>>,
    trees: BTreeMap<MulticastLid, Vec<Finding>>,
    /// `None` while there are rings.
    order: Option<Order>,
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
        if basis != self.basis || !same_ports(&self.plan, &plan) {
            return Self::whole(basis, topology, intents, plan);
        }
        let read = Reading::new(topology, intents, &plan);
        let changes = Changes::between(&self.plan, &plan);
        let mut whole: BTreeMap<Rule, Vec<Finding>> =
            [Rule::Isolation, Rule::Capacities, Rule::Ownership, Rule::Promises]
                .map(|rule| (rule, read.check(rule)))
                .into();
        let kept = self.whole.get(&Rule::Addresses).filter(|_| !changes.is_cabled_otherwise);
        whole.insert(Rule::Addresses, kept.cloned().unwrap_or_else(|| read.check(Rule::Addresses)));
        whole.insert(Rule::Multicast, multicast::check_groups(&read));

        let mut lids: BTreeSet<Lid> = self.columns.keys().copied().collect();
        lids.extend(changes.linear.iter().map(|(_, lid)| *lid));
        lids.extend(regrouped(&self.wanted, &read));
        let mut columns = self.columns.clone();
        columns.retain(|lid, _| !lids.contains(lid));
        columns.extend(forwarding::check(&read, lids.into_iter()));

        let mut mlids: BTreeSet<MulticastLid> = self.trees.keys().copied().collect();
        mlids.extend(changes.multicast.iter().map(|(_, mlid)| *mlid));
        mlids.extend(&changes.groups);
        let mut trees = self.trees.clone();
        trees.retain(|mlid, _| !mlids.contains(mlid));
        trees.extend(multicast::check(&read, &mlids));

        let order = self.order.clone().filter(|order| order.holds(&read.network, changes.entries()));
        let (order, rings) = match order {
            Some(order) => (Some(order), Vec::new()),
            None => rings(&read),
        };
        whole.insert(Rule::CreditLoops, rings);
        let kept = self.whole.get(&Rule::Sharing).filter(|_| changes.is_sharing_kept());
        whole.insert(Rule::Sharing, kept.cloned().unwrap_or_else(|| read.check(Rule::Sharing)));
        let wanted = read.wanted;
        Self { basis, plan, wanted, whole, columns, trees, order }
    }

    /// Everything that was found, rule by rule.
    pub fn findings(&self) -> impl Iterator<Item = &Finding> {
        Rule::ALL.into_iter().flat_map(|rule| {
            let whole = self.whole.get(&rule).into_iter().flatten();
            let columns = self.columns.values().flatten().filter(move |_| rule == Rule::Forwarding);
            let trees = self.trees.values().flatten().filter(move |_| rule == Rule::Multicast);
            whole.chain(columns).chain(trees)
        })
    }

    /// The plan.
    pub fn plan(&self) -> &Arc<FabricPlan> {
        &self.plan
    }

    fn whole(basis: Basis, topology: &Topology, intents: &Intents, plan: Arc<FabricPlan>) -> Self {
        let read = Reading::new(topology, intents, &plan);
        let rules = [
            Rule::Addresses,
            Rule::Isolation,
            Rule::Capacities,
            Rule::Sharing,
            Rule::Ownership,
            Rule::Promises,
        ];
        let mut whole: BTreeMap<Rule, Vec<Finding>> = rules.map(|rule| (rule, read.check(rule))).into();
        whole.insert(Rule::Multicast, multicast::check_groups(&read));
        let (order, rings) = rings(&read);
        whole.insert(Rule::CreditLoops, rings);
        let columns = forwarding::check(&read, forwarding::lids(&read));
        let trees = multicast::check(&read, &multicast::mlids(&read));
        let wanted = read.wanted;
        Self { basis, plan, wanted, whole, columns, trees, order }
    }
}

/// The order of links, or the rings that keep them from having one.
fn rings(read: &Reading<'_>) -> (Option<Order>, Vec<Finding>) {
    match Order::of(&read.network) {
        Some(order) => (Some(order), Vec::new()),
        None => (None, credits::check(&read.network)),
    }
}

/// Whether two plans have the same end ports with the same LIDs.
fn same_ports(a: &FabricPlan, b: &FabricPlan) -> bool {
    let adapters = |plan: &FabricPlan| -> Vec<_> {
        plan.adapter_ports().map(|port| (port.guid, port.name, port.lid)).collect()
    };
    let switches = |plan: &FabricPlan| -> Vec<_> {
        plan.switches().map(|switch| (switch.guid, switch.port_guid, switch.lid)).collect()
    };
    adapters(a) == adapters(b) && switches(a) == switches(b)
}

/// The LIDs of ports whose partitions have other members than they had.
fn regrouped(before: &Wanted, read: &Reading<'_>) -> BTreeSet<Lid> {
    let after = &read.wanted.partitions;
    let numbers = before.partitions.keys().chain(after.keys());
    let mut ports: BTreeSet<Guid> = BTreeSet::new();
    for number in numbers {
        let (old, new) = (before.partitions.get(number), after.get(number));
        let members = |partition: Option<&crate::wanted::WantedPartition>| {
            partition.map(|partition| partition.members.clone()).unwrap_or_default()
        };
        if old.map(|partition| &partition.members) != new.map(|partition| &partition.members) {
            ports.extend(members(old).into_keys().chain(members(new).into_keys()));
        }
    }
    let lid = |guid: &Guid| read.network.end(*guid).map(|end| read.network.ends()[end].lid);
    ports.iter().filter_map(lid).collect()
}

/// Entries that differ between two plans for the same ports.
#[derive(Debug, Default)]
struct Changes {
    linear: Vec<(Place, Lid)>,
    multicast: Vec<(Place, MulticastLid)>,
    /// Groups that came, went or changed.
    groups: BTreeSet<MulticastLid>,
    /// Whether some cable or the manager is said to be elsewhere.
    is_cabled_otherwise: bool,
    is_shared_otherwise: bool,
    is_shared: bool,
}

impl Changes {
    fn between(old: &FabricPlan, new: &FabricPlan) -> Self {
        let mut changes = Self { is_cabled_otherwise: old.manager() != new.manager(), ..Self::default() };
        for (place, (old, new)) in old.switches().zip(new.switches()).enumerate() {
            changes.of_linear(place, old, new);
            changes.of_multicast(place, &old.multicast, &new.multicast);
            // Where ports come or go, everything about them is other than it was.
            let is_other =
                !old.ports.iter().map(|port| port.number).eq(new.ports.iter().map(|port| port.number));
            changes.is_cabled_otherwise |= is_other;
            changes.is_shared_otherwise |= is_other;
            for (old, new) in old.ports.iter().zip(&new.ports) {
                changes.is_cabled_otherwise |= old.peer != new.peer;
                changes.is_shared_otherwise |= old.lanes != new.lanes;
                changes.of_sharing(old.sharing.as_ref(), new.sharing.as_ref());
            }
        }
        for (old, new) in old.adapter_ports().zip(new.adapter_ports()) {
            changes.is_cabled_otherwise |= old.peer != new.peer;
            changes.is_shared_otherwise |= old.lanes != new.lanes;
            changes.of_sharing(old.sharing.as_ref(), new.sharing.as_ref());
        }
        let mut groups: BTreeMap<_, _> = old.groups().map(|group| (group.mgid, group)).collect();
        let are_unique = groups.len() == old.groups().len();
        for group in new.groups() {
            match groups.remove(&group.mgid) {
                Some(before) if before == group && are_unique => {}
                before => {
                    changes.groups.extend(before.map(|group| group.mlid).into_iter().chain([group.mlid]))
                }
            }
        }
        changes.groups.extend(groups.into_values().map(|group| group.mlid));
        changes
    }

    fn of_linear(&mut self, place: Place, old: &SwitchPlan, new: &SwitchPlan) {
        if Arc::ptr_eq(&old.linear, &new.linear) {
            return;
        }
        let top = old.linear.exits().len().max(new.linear.exits().len());
        let lids = (1..top).filter_map(|raw| u16::try_from(raw).ok().and_then(Lid::from_wire));
        let changed = lids.filter(|lid| old.linear.exit(*lid) != new.linear.exit(*lid));
        self.linear.extend(changed.map(|lid| (place, lid)));
    }

    fn of_multicast(&mut self, place: Place, old: &Arc<MulticastTable>, new: &Arc<MulticastTable>) {
        if Arc::ptr_eq(old, new) {
            return;
        }
        let mlids: BTreeSet<MulticastLid> = old.exits().chain(new.exits()).map(|(mlid, _)| mlid).collect();
        let changed = mlids.into_iter().filter(|mlid| old.exit(*mlid) != new.exit(*mlid));
        self.multicast.extend(changed.map(|mlid| (place, mlid)));
    }

    fn of_sharing(&mut self, old: Option<&Arc<PortSharing>>, new: Option<&Arc<PortSharing>>) {
        self.is_shared |= new.is_some();
        self.is_shared_otherwise |= match (old, new) {
            (Some(old), Some(new)) => !Arc::ptr_eq(old, new) && old != new,
            (None, None) => false,
            _ => true,
        };
    }

    /// Whether no level is carried elsewhere than it was.
    fn is_sharing_kept(&self) -> bool {
        let is_forwarding_kept =
            self.linear.is_empty() && self.multicast.is_empty() && self.groups.is_empty();
        !self.is_shared_otherwise && (is_forwarding_kept || !self.is_shared)
    }

    /// The forwarding entries.
    fn entries(&self) -> impl Iterator<Item = (Place, Destination)> {
        let linear = self.linear.iter().map(|(place, lid)| (*place, Destination::Lid(*lid)));
        linear.chain(self.multicast.iter().map(|(place, mlid)| (*place, Destination::Group(*mlid))))
    }
}
