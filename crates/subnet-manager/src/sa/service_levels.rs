//! The service levels of guaranteed clusters, as paths inside them have them.

use std::collections::HashMap;
use std::sync::Arc;

use fabric_model::FabricPlan;
use fabric_model::decisions::ClusterDecision;
use fabric_model::tenancy::PairLevel;
use ib_wire::{Guid, ServiceLevel};

/// What guaranteed clusters send at.
#[derive(Debug, Default)]
pub(super) struct ServiceLevels {
    /// By port GUID.
    ports: HashMap<Guid, ClusterPort>,
}

/// The cluster of a port, and its switch by node GUID.
#[derive(Clone, Debug)]
struct ClusterPort {
    cluster: Arc<Cluster>,
    switch: Guid,
}

#[derive(Debug)]
struct Cluster {
    name: String,
    /// The level of all its packets.
    one: Option<ServiceLevel>,
    /// The levels between its switches, where every two have their own.
    pairs: HashMap<(Guid, Guid), ServiceLevel>,
}

impl ServiceLevels {
    /// By the decisions of a plan.
    pub fn of(plan: &FabricPlan) -> Self {
        let mut ports = HashMap::new();
        for (name, decision) in &plan.decisions().clusters {
            let cluster = Arc::new(Cluster::of(name, decision));
            for port in &decision.ports {
                if let Some(planned) = plan.adapter_port(*port) {
                    let seat = ClusterPort { cluster: Arc::clone(&cluster), switch: planned.peer.node };
                    ports.insert(*port, seat);
                }
            }
        }
        Self { ports }
    }

    /// The level between two ports, the same in both directions; `None` if they are not in one cluster that has a level for
    /// them.
    #[inline]
    pub fn between(&self, a: Guid, b: Guid) -> Option<ServiceLevel> {
        let (a, b) = (self.ports.get(&a)?, self.ports.get(&b)?);
        if !Arc::ptr_eq(&a.cluster, &b.cluster) {
            return None;
        }
        let pair = || a.cluster.pairs.get(&PairLevel::between(a.switch, b.switch)).copied();
        a.cluster.one.or_else(pair)
    }

    /// What both these and the next ones are. A level that is about to be lost has no lane any more, and one that comes has
    /// none yet.
    pub fn restricted_to(&self, next: &Self) -> Self {
        let mut both: HashMap<&str, Arc<Cluster>> = HashMap::new();
        let seats = self.ports.iter().filter_map(|(port, seat)| {
            let after = next.ports.get(port)?;
            let is_same = after.cluster.name == seat.cluster.name && after.switch == seat.switch;
            let cluster = is_same.then(|| {
                let name = seat.cluster.name.as_str();
                both.entry(name).or_insert_with(|| Arc::new(seat.cluster.restricted_to(&after.cluster)))
            })?;
            Some((*port, ClusterPort { cluster: Arc::clone(cluster), switch: seat.switch }))
        });
        Self { ports: seats.collect() }
    }
}

impl Cluster {
    fn of(name: &str, decision: &ClusterDecision) -> Self {
        let mut pairs = HashMap::with_capacity(decision.pairs.len());
        for pair in &decision.pairs {
            // The first that is told holds.
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
