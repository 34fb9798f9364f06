//! What guaranteed clusters own, and whether they get what they were promised.

mod holdings;
mod ownership;
mod promises;
mod service;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fabric_model::intent::ClusterIntent;
use fabric_model::plan::{FabricPlan, Finding as Known};
use fabric_model::tenancy::Class;

use crate::network::Place;
use crate::{Finding, Reading};
use holdings::Holdings;
use promises::{Judge, Judged};

/// Everything that was found about guarantees, in the parts in which it is looked at.
#[derive(Clone, Debug)]
pub(crate) struct Guarantees {
    is_guarded: bool,
    holdings: Holdings,
    tenants: Vec<Finding>,
    /// By switch, where there is something.
    switches: BTreeMap<Place, Vec<Finding>>,
    /// By end port, where there is something.
    ends: BTreeMap<usize, Vec<Finding>>,
    /// By name, where there is something.
    clusters: BTreeMap<Arc<str>, Judged>,
}

impl Guarantees {
    /// Reads everything.
    pub fn of(read: &Reading<'_>) -> Self {
        let network = &read.network;
        let is_guarded = is_guarded(read);
        let mut guarantees = Self {
            is_guarded,
            holdings: Holdings::new(network.link_count()),
            tenants: ownership::of_tenants(read),
            switches: BTreeMap::new(),
            ends: BTreeMap::new(),
            clusters: BTreeMap::new(),
        };
        if !is_guarded {
            return guarantees;
        }
        for (name, decision) in &network.plan.decisions().clusters {
            guarantees.holdings.give(network, &Arc::from(name.as_str()), decision);
        }
        guarantees.look(read, 0..network.switches.len(), 0..adapters(network.plan));
        guarantees.judge(read, |_| true);
        guarantees
    }

    /// What ownership breaks.
    pub fn ownership(&self) -> impl Iterator<Item = &Finding> {
        let parts = self.switches.values().chain(self.ends.values()).flatten();
        self.tenants.iter().chain(parts)
    }

    /// What is promised and not kept.
    pub fn promises(&self) -> impl Iterator<Item = &Finding> {
        self.clusters.values().flat_map(|judged| &judged.findings)
    }

    /// Whether packets with a level other than 0 go between ports of one cluster only, and each level both ways or
    /// neither between every two of them. Then nobody else need be asked whether levels come back.
    ///
    /// For a turn takes a level only between links on which the same cluster has it; cables of adapters are had by
    /// their own cluster only; and every level of a cluster was followed between all its ports.
    pub fn are_levels_even(&self) -> bool {
        self.is_guarded
            && self.ownership().next().is_none()
            && self.clusters.values().all(|judged| judged.is_even && judged.findings.is_empty())
    }

    fn look(
        &mut self,
        read: &Reading<'_>,
        switches: impl IntoIterator<Item = Place>,
        ends: impl IntoIterator<Item = usize>,
    ) {
        for place in switches {
            let found = ownership::of_switch(&read.network, &self.holdings, place);
            put(&mut self.switches, place, found);
        }
        for end in ends {
            let found = ownership::of_end(&read.network, &self.holdings, end);
            put(&mut self.ends, end, found);
        }
    }

    /// Judges some of the clusters that are asked for.
    fn judge(&mut self, read: &Reading<'_>, is_asked: impl Fn(&str) -> bool) {
        let plan = read.network.plan;
        let mut judge = Judge::new(&read.network);
        let broken = broken(plan);
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        let promised = read.intents.clusters.iter().filter(|cluster| is_guaranteed(cluster));
        for cluster in promised.filter(|cluster| seen.insert(&cluster.name)) {
            if !is_asked(&cluster.name) {
                continue;
            }
            let decision = plan.decisions().clusters.get(&cluster.name);
            let judged = if broken.contains(cluster.name.as_str()) {
                let is_even = decision.is_none_or(|decision| decision.links.is_empty());
                Judged { findings: Vec::new(), is_even }
            } else {
                judge.judge(cluster, decision)
            };
            if judged.is_even && judged.findings.is_empty() {
                self.clusters.remove(cluster.name.as_str());
            } else {
                self.clusters.insert(cluster.name.as_str().into(), judged);
            }
        }
    }
}

/// Whether a cluster is promised anything.
fn is_guaranteed(cluster: &ClusterIntent) -> bool {
    cluster.class != Class::BestEffort
}

/// Whether lanes are guarded: from the first promise on, for good.
fn is_guarded(read: &Reading<'_>) -> bool {
    read.network.plan.decisions().guarded || read.intents.clusters.iter().any(is_guaranteed)
}

/// Clusters of which the plan says itself that they do not get what they were promised.
fn broken(plan: &FabricPlan) -> BTreeSet<&str> {
    let names = plan.findings().iter().filter_map(|finding| match finding {
        Known::PromiseBroken { cluster, .. } => Some(cluster.as_str()),
        _ => None,
    });
    names.collect()
}

fn adapters(plan: &FabricPlan) -> usize {
    plan.adapter_ports().len()
}

fn put<K: Ord>(kept: &mut BTreeMap<K, Vec<Finding>>, key: K, found: Vec<Finding>) {
    if found.is_empty() {
        kept.remove(&key);
    } else {
        kept.insert(key, found);
    }
}
