//! Ownership and guarantees: what clusters hold on links, whether another cluster uses it, and whether guarantees hold.

mod arbitration;
mod cluster_check;
mod holdings;
mod ownership;
mod switch_inputs;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fabric_model::intent::ClusterIntent;
use fabric_model::plan::{FabricPlan, PlanFinding};
use fabric_model::tenancy::Class;
use ib_wire::{Guid, Lid, PartitionNumber, ServiceLevel};

use crate::bounded::bounded;
use crate::network::{Link, NextHop, PORTS, SwitchIndex, port_of};
use crate::plan_changes::PlanChanges;
use crate::{Finding, Reading, Rule};
use cluster_check::{ClusterChecker, ClusterResult};
use holdings::{ClusterGrants, Holdings};

/// The state in which the earlier results were computed.
#[derive(Debug)]
pub(crate) struct PreviousState<'a> {
    pub plan: &'a FabricPlan,
    /// Names of clusters whose intents have changed since.
    pub clusters: BTreeSet<&'a str>,
    /// Ports for which route overrides were added or removed since.
    pub routed: BTreeSet<Guid>,
    /// Partitions whose intents have changed since.
    pub partitions: &'a BTreeSet<PartitionNumber>,
}

/// All results about ownership and guarantees, in the parts in which they are recomputed.
#[derive(Clone, Debug)]
pub(crate) struct Guarantees {
    needs_sharing: bool,
    /// The service level that is reserved for management, if any.
    management: Option<ServiceLevel>,
    holdings: Holdings,
    tenants: Vec<Finding>,
    /// By switch; switches without findings are absent.
    switches: BTreeMap<SwitchIndex, Vec<Finding>>,
    /// By end port; ports without findings are absent.
    ends: BTreeMap<usize, Vec<Finding>>,
    /// By name; clusters without findings and with even service levels are absent.
    clusters: BTreeMap<Arc<str>, ClusterResult>,
}

impl Guarantees {
    /// Checks a whole plan.
    pub fn of(read: &Reading<'_>) -> Self {
        let network = &read.network;
        let needs_sharing = needs_sharing(read);
        let mut guarantees = Self {
            needs_sharing,
            management: network.plan.decisions().management_sl,
            holdings: Holdings::new(network.link_count()),
            tenants: ownership::of_tenants(read),
            switches: BTreeMap::new(),
            ends: BTreeMap::new(),
            clusters: BTreeMap::new(),
        };
        if !needs_sharing {
            return guarantees;
        }
        let decisions = network.plan.decisions();
        for name in decisions.clusters.keys() {
            guarantees.holdings.add(network, &Arc::from(name.as_str()), ClusterGrants::of(decisions, name));
        }
        guarantees.check_ownership(read, 0..network.switches.len(), 0..adapters(network.plan));
        guarantees.check_clusters(read, |_| true);
        guarantees
    }

    /// Checks another plan with the same ports on the same cables, and recomputes only the parts that a change can
    /// affect.
    pub fn changed(&self, read: &Reading<'_>, before: &PreviousState<'_>, changes: &PlanChanges) -> Self {
        let network = &read.network;
        if needs_sharing(read) != self.needs_sharing
            || network.plan.decisions().management_sl != self.management
        {
            return Self::of(read);
        }
        let changed_grants = changed_grants(before.plan, network.plan);
        let mut affected = affected_clusters(before, read, changes);
        affected.extend(changed_grants.iter().copied());
        let is_kept =
            self.tenants.is_empty() && ownership::are_tenants_apart(read, before.partitions, &affected);
        let tenants = if is_kept { Vec::new() } else { ownership::of_tenants(read) };
        let mut guarantees = Self { tenants, ..self.clone() };
        if !self.needs_sharing {
            return guarantees;
        }
        let mut names: BTreeSet<&str> = self.clusters.keys().map(|name| &**name).collect();
        let mut links: BTreeSet<Link> = changes.links.iter().copied().collect();
        for name in changed_grants {
            let [old, new] =
                [before.plan, network.plan].map(|plan| ClusterGrants::of(plan.decisions(), name));
            guarantees.holdings.remove(network, name, old);
            guarantees.holdings.add(network, &Arc::from(name), new);
            links.extend(old.parts().chain(new.parts()).filter_map(|(port, ..)| network.link(port)));
        }
        let (mut switches, mut ends) = (BTreeSet::new(), BTreeSet::new());
        for link in &links {
            match link.checked_sub(network.link_of_end(0)) {
                Some(end) => {
                    ends.insert(end);
                    switches.extend(network.ends()[end].home.map(|(switch_index, _)| switch_index));
                }
                None => {
                    switches.insert(link / PORTS);
                    if let NextHop::Switch(there, _) = network.next(link / PORTS, port_of(*link)) {
                        switches.insert(there as SwitchIndex);
                    }
                }
            }
        }
        guarantees.check_ownership(read, switches, ends);
        // A cluster without findings holds something on every link that it uses.
        let holders = changes.links.iter().flat_map(|link| self.holdings.of(*link));
        names.extend(holders.map(|holding| &*holding.cluster));
        names.extend(affected);
        let is_affected = |name: &str| names.contains(name);
        guarantees.clusters.clear();
        guarantees.check_clusters(read, is_affected);
        guarantees
    }

    /// The findings of [`Rule::Ownership`], except shared partition numbers.
    pub fn ownership(&self) -> impl Iterator<Item = &Finding> {
        let parts = self.switches.values().chain(self.ends.values()).flatten();
        self.tenants.iter().chain(parts)
    }

    /// All findings of [`Rule::Guarantees`].
    pub fn violations(&self) -> impl Iterator<Item = &Finding> {
        self.clusters.values().flat_map(|result| &result.findings)
    }

    /// Whether packets with a service level other than 0 and that of management stay between ports of one cluster,
    /// and each service level passes in both directions or in neither between every two of these ports. Then the
    /// return paths of all other pairs need not be checked.
    ///
    /// Proof: a hop carries a service level only between links on which the same cluster holds it (that of management
    /// always). Cables of adapters are held by their own cluster only. Every service level of a cluster was followed
    /// between all its ports. With a service level for each pair of switches, only that one was followed; the others
    /// stay in the cluster's lanes and need not come back.
    pub fn are_levels_even(&self) -> bool {
        self.needs_sharing
            && self.ownership().next().is_none()
            && self.clusters.values().all(|result| result.is_even && result.findings.is_empty())
    }

    fn check_ownership(
        &mut self,
        read: &Reading<'_>,
        switches: impl IntoIterator<Item = SwitchIndex>,
        ends: impl IntoIterator<Item = usize>,
    ) {
        for switch_index in switches {
            let found = ownership::of_switch(&read.network, &self.holdings, switch_index);
            put(&mut self.switches, switch_index, found);
        }
        for end in ends {
            let found = ownership::of_end(&read.network, &self.holdings, end);
            put(&mut self.ends, end, found);
        }
    }

    /// Checks the guaranteed clusters for which `is_affected` holds.
    fn check_clusters(&mut self, read: &Reading<'_>, is_affected: impl Fn(&str) -> bool) {
        let plan = read.network.plan;
        let mut checker = ClusterChecker::new(&read.network, read.intents);
        let acknowledged = acknowledged(plan);
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        let guaranteed = read.intents.clusters.iter().filter(|cluster| is_guaranteed(cluster));
        for cluster in guaranteed.filter(|cluster| is_affected(&cluster.name)) {
            if !seen.insert(&cluster.name) {
                continue;
            }
            let grants = ClusterGrants::of(plan.decisions(), &cluster.name);
            let result = if acknowledged.contains(cluster.name.as_str()) {
                let is_even = grants.parts().next().is_none();
                ClusterResult { findings: Vec::new(), is_even }
            } else {
                checker.check(cluster, grants)
            };
            if result.is_even && result.findings.is_empty() {
                self.clusters.remove(cluster.name.as_str());
            } else {
                self.clusters.insert(cluster.name.as_str().into(), result);
            }
        }
    }
}

/// Clusters whose grants or classes differ between two plans.
fn changed_grants<'a>(old: &'a FabricPlan, new: &'a FabricPlan) -> BTreeSet<&'a str> {
    let [old, new] = [old, new].map(FabricPlan::decisions);
    let clusters = new.clusters.differences(&old.clusters).into_iter().map(|it| it.key.as_str());
    let classes = new.classes.differences(&old.classes).into_iter().map(|it| it.key.as_str());
    clusters.chain(classes).collect()
}

/// Clusters whose intents changed, whose violation the plan acknowledges or no longer acknowledges, or whose routes
/// changed.
fn affected_clusters<'a>(
    before: &PreviousState<'a>,
    read: &Reading<'a>,
    changes: &PlanChanges,
) -> BTreeSet<&'a str> {
    let mut names = before.clusters.clone();
    names.extend(acknowledged(before.plan).symmetric_difference(&acknowledged(read.network.plan)));
    let lids: BTreeSet<Lid> = changes.linear.iter().map(|(_, lid)| *lid).collect();
    let owners = lids.into_iter().filter_map(|lid| read.network.lid_owner(lid));
    let owners = owners.map(|end| read.network.ends()[end].guid);
    let mut ports: Vec<Guid> = owners.chain(before.routed.iter().copied()).collect();
    if !ports.is_empty() {
        ports.sort_unstable();
        let is_routed =
            |cluster: &&ClusterIntent| cluster.ports.iter().any(|port| ports.binary_search(port).is_ok());
        let clusters = &read.intents.clusters;
        names.extend(clusters.iter().filter(is_routed).map(|cluster| cluster.name.as_str()));
    }
    names
}

fn is_guaranteed(cluster: &ClusterIntent) -> bool {
    cluster.class != Class::BestEffort
}

/// Whether every port needs planned SL-to-VL and arbitration tables: from the first guaranteed cluster on, and for
/// good.
fn needs_sharing(read: &Reading<'_>) -> bool {
    let decisions = read.network.plan.decisions();
    decisions.sl_enforcement
        || decisions.management_sl.is_some()
        || read.intents.clusters.iter().any(is_guaranteed)
}

/// Clusters whose violated guarantee the plan itself acknowledges.
fn acknowledged(plan: &FabricPlan) -> BTreeSet<&str> {
    let names = plan.findings().iter().filter_map(|finding| match finding {
        PlanFinding::GuaranteeViolated { cluster, .. } => Some(cluster.as_str()),
        _ => None,
    });
    names.collect()
}

fn adapters(plan: &FabricPlan) -> usize {
    plan.adapter_ports().len()
}

/// Stores the findings of one part, or removes it if there are none.
fn put<K: Ord>(kept: &mut BTreeMap<K, Vec<Finding>>, key: K, found: Vec<Finding>) {
    if found.is_empty() {
        kept.remove(&key);
    } else {
        kept.insert(key, bounded(Rule::Ownership, found));
    }
}
