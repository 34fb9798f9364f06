//! The service levels of guaranteed clusters.

use std::collections::HashMap;
use std::sync::Arc;

use fabric_model::FabricPlan;
use fabric_model::decisions::ClusterDecision;
use fabric_model::tenancy::PairServiceLevel;
use ib_wire::{Guid, ServiceLevel};

use super::guid_map::GuidMap;

/// The service levels of guaranteed clusters, by port.
#[derive(Clone, Debug, Default)]
pub(super) struct ServiceLevels {
    ports: GuidMap<ClusterPort>,
}

/// The cluster of a port, and the node GUID of its switch.
#[derive(Clone, Debug)]
struct ClusterPort {
    cluster: Arc<Cluster>,
    switch: Guid,
}

#[derive(Debug)]
struct Cluster {
    name: String,
    /// The service level of all its packets.
    one: Option<ServiceLevel>,
    /// The service levels by pair of switches, if each pair has its own.
    pairs: HashMap<(Guid, Guid), ServiceLevel>,
}

impl ServiceLevels {
    /// From the decisions of a plan.
    pub fn of(plan: &FabricPlan) -> Self {
        let mut ports = GuidMap::default();
        for (name, decision) in &plan.decisions().clusters {
            let cluster = Arc::new(Cluster::of(name, decision));
            for port in &decision.ports {
                if let Some(planned) = plan.adapter_port(*port) {
                    let member = ClusterPort { cluster: Arc::clone(&cluster), switch: planned.peer.node };
                    ports.insert(*port, member);
                }
            }
        }
        Self { ports }
    }

    /// The service level between two ports, the same in both directions; `None` unless both are in one
    /// cluster that has a service level for them.
    #[inline]
    pub fn between(&self, a: Guid, b: Guid) -> Option<ServiceLevel> {
        let (a, b) = (self.ports.get(&a)?, self.ports.get(&b)?);
        if !Arc::ptr_eq(&a.cluster, &b.cluster) {
            return None;
        }
        let pair = || a.cluster.pairs.get(&PairServiceLevel::between(a.switch, b.switch)).copied();
        a.cluster.one.or_else(pair)
    }

    /// The service levels that are the same in both. During a change, a service level that is removed has no
    /// lane any more, and a new one has none yet.
    pub fn restricted_to(&self, next: &Self) -> Self {
        let mut both: HashMap<&str, Arc<Cluster>> = HashMap::new();
        let members = self.ports.iter().filter_map(|(port, member)| {
            let after = next.ports.get(port)?;
            let is_same = after.cluster.name == member.cluster.name && after.switch == member.switch;
            let cluster = is_same.then(|| {
                let name = member.cluster.name.as_str();
                both.entry(name).or_insert_with(|| Arc::new(member.cluster.restricted_to(&after.cluster)))
            })?;
            Some((*port, ClusterPort { cluster: Arc::clone(cluster), switch: member.switch }))
        });
        Self { ports: members.collect() }
    }
}

impl Cluster {
    fn of(name: &str, decision: &ClusterDecision) -> Self {
        let mut pairs = HashMap::with_capacity(decision.pairs.len());
        for pair in &decision.pairs {
            // The first entry for a pair applies.
            pairs.entry(pair.switches).or_insert(pair.service_level);
        }
        Self { name: name.to_owned(), one: decision.service_level(), pairs }
    }

    fn restricted_to(&self, next: &Self) -> Self {
        let stays = |(switches, sl): &(&(Guid, Guid), &ServiceLevel)| next.pairs.get(*switches) == Some(*sl);
        Self {
            name: self.name.clone(),
            one: self.one.filter(|sl| next.one == Some(*sl)),
            pairs: self.pairs.iter().filter(stays).map(|(switches, sl)| (*switches, *sl)).collect(),
        }
    }
}
