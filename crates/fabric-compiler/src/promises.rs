//! What guaranteed clusters get of every link, and the tables that follow from it.
//!
//! The engine of [`tenancy`](crate::tenancy) decides; what it decided before stays. On every turn of a switch, and at every
//! adapter, a service level goes to the lane of the cluster that owns it on both links, and level 0 to the best-effort lane;
//! everything else is discarded.

mod bound;
mod classes;
mod sharing;
mod ways;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use fabric_model::decisions::ClusterDecision;
use fabric_model::intent::{ClusterIntent, Intents, PortName};
use fabric_model::plan::{Draft, Finding};
use fabric_model::tenancy::{Class, ClusterNumber};
use fabric_model::{Decisions, FabricPlan, SharedMap, Topology};
use ib_wire::{DataLanes, Guid, ServiceLevel};

use crate::CompileError;
use crate::fabric::{Fabric, Place};
use crate::routing::Ground;
use crate::tenancy::ledger::{Grant, Ledger, LinkMoves, Refusal, Request, Routes};
use crate::tenancy::network::{HostIndex, Limits, LinkIndex, Network, reserved_lanes};
use bound::bound_ns;
pub(crate) use classes::take_classes;
use sharing::Users;
use ways::{ChosenWay, put_ways};

/// Who was promised what, and the books of all links: what one plan leaves for the next.
#[derive(Debug)]
pub(crate) struct Promises {
    ledger: Ledger,
    users: Users,
    /// By port GUID.
    hosts: HashMap<Guid, HostIndex>,
    /// The clusters that have something, by name. A number stays while its cluster has what it was given.
    numbers: BTreeMap<String, ClusterNumber>,
    next_number: u32,
    /// What was moved in arbitration tables to make room, since the last change began.
    moves: Vec<LinkMoves>,
    /// Clusters that are looked at again with every change: their promise is broken, or tables do not show what they
    /// were given.
    unsettled: BTreeSet<String>,
}

/// What other wishes change for clusters that are promised something.
#[derive(Debug, Default)]
pub(crate) struct ClusterChanges<'a> {
    /// Those that are promised nothing any more, by name.
    pub gone: Vec<&'a str>,
    /// Those that are new or not as before, in the order they were asked for.
    pub wanted: Vec<&'a ClusterIntent>,
}

/// The clusters that are to be promised something.
pub(crate) fn promised(clusters: &[ClusterIntent]) -> impl Iterator<Item = &ClusterIntent> {
    clusters.iter().filter(|cluster| cluster.class != Class::BestEffort)
}

/// Puts what all clusters are promised into a plan that has nothing of it, or something old. Returns the books; `None` if
/// nobody ever was promised anything.
pub(crate) fn keep(
    draft: &mut Draft,
    topology: &Topology,
    fabric: &Fabric,
    ground: Option<&Ground>,
    intents: &Intents,
) -> Result<Option<Promises>, CompileError> {
    let wanted: Vec<&ClusterIntent> = promised(&intents.clusters).collect();
    if wanted.is_empty() && !draft.plan().decisions().guarded {
        return Ok(None);
    }
    draft.decisions().management = management(draft.plan());
    let mut promises = Promises::new(draft, topology, intents);
    promises.users.put_plain(draft);
    let names: BTreeSet<&str> = wanted.iter().map(|cluster| cluster.name.as_str()).collect();
    let before = draft.plan().decisions().clusters.clone();
    let gone = before.keys().map(String::as_str).filter(|name| !names.contains(name)).collect();
    promises.change(draft, fabric, ground, &ClusterChanges { gone, wanted })?;
    Ok(Some(promises))
}

impl Promises {
    fn new(draft: &Draft, topology: &Topology, intents: &Intents) -> Self {
        let network = network(topology, intents, draft.plan());
        let hosts = places(&network);
        Self {
            users: Users::of(&network, draft.plan().decisions().management),
            ledger: Ledger::new(network),
            hosts,
            numbers: BTreeMap::new(),
            next_number: 0,
            moves: Vec::new(),
            unsettled: BTreeSet::new(),
        }
    }

    /// Whether a cluster is promised something.
    pub fn knows(&self, name: &str) -> bool {
        self.numbers.contains_key(name) || self.unsettled.contains(name)
    }

    /// Whether no cluster has to be looked at again.
    pub fn are_settled(&self) -> bool {
        self.unsettled.is_empty()
    }

    /// Whether a cluster has to be looked at with every change.
    pub fn is_unsettled(&self, name: &str) -> bool {
        self.unsettled.contains(name)
    }

    /// Gives clusters what they are to have, and puts what follows into a plan. If one cannot have it, the books stay as
    /// they were; the plan is of no use then.
    pub fn change(
        &mut self,
        draft: &mut Draft,
        fabric: &Fabric,
        ground: Option<&Ground>,
        changes: &ClusterChanges<'_>,
    ) -> Result<(), CompileError> {
        check_groups(draft.plan())?;
        let before = draft.plan().decisions().clusters.clone();
        // Routes that were taken over from somebody else are not ours to choose.
        let may_choose = draft.plan().decisions().adopted.is_empty();
        let mut exchange = self.exchange(changes, &before, may_choose)?;
        let rerouted = match put_ways(draft, fabric, ground, &exchange.ways) {
            Some(rerouted) => rerouted,
            None => {
                self.take_back(exchange);
                exchange = self.exchange(changes, &before, false)?;
                Vec::new()
            }
        };
        self.put(draft, changes, &exchange);
        self.settle(draft, &rerouted, changes, exchange);
        Ok(())
    }

    /// Puts decisions, tables and findings into a plan, and notes who has what.
    fn put(&mut self, draft: &mut Draft, changes: &ClusterChanges<'_>, exchange: &Exchange) {
        let mut touched: Vec<LinkIndex> = Vec::new();
        let released = exchange.released.iter().map(|(_, grant)| grant);
        let admitted = exchange.admitted.values().filter_map(|number| self.ledger.grants().get(number));
        for grant in released.clone().chain(admitted.clone()) {
            touched.extend(grant.links.iter().map(|share| share.link));
        }
        released.for_each(|grant| self.users.remove(grant));
        admitted.for_each(|grant| self.users.add(grant));
        touched.extend(self.moves.iter().map(|(link, _)| *link));
        touched.sort_unstable();
        touched.dedup();
        let moved = self.users.replace(self.moves.iter().map(|(link, _)| *link), self.ledger.grants());
        self.users.put(draft, &touched);
        let decisions = draft.decisions();
        for (name, number) in self.numbers.iter().filter(|(_, number)| moved.contains(number)) {
            if let (Some(decision), Some(grant)) =
                (decisions.clusters.get_mut(name), self.ledger.grants().get(number))
            {
                *decision = Arc::new(placed(decision, grant, self.ledger.network()));
            }
        }
        decisions.guarded = true;
        for name in &changes.gone {
            decisions.clusters.remove(*name);
        }
        decisions.clusters.extend(exchange.decided.iter().cloned());
        draft.findings().extend(exchange.broken.iter().cloned());
    }

    /// Goes over to the routes of a plan. Whoever was given something by other ways than its tables have is looked at
    /// again with the next change.
    fn settle(
        &mut self,
        draft: &Draft,
        rerouted: &[Place],
        changes: &ClusterChanges<'_>,
        exchange: Exchange,
    ) {
        for (name, _) in &exchange.released {
            self.numbers.remove(name);
        }
        for name in &changes.gone {
            self.unsettled.remove(*name);
        }
        for place in rerouted {
            if let Some(switch) = draft.plan().shared_switches().get(*place) {
                self.ledger.set_table(*place, &switch.linear);
            }
        }
        for cluster in &changes.wanted {
            let is_settled = exchange.admitted.get(&cluster.name).is_some_and(|number| {
                let decision = draft.plan().decisions().clusters.get(&cluster.name);
                decision.is_some_and(|decision| self.is_given_again(*number, cluster, decision))
            });
            if is_settled {
                self.unsettled.remove(&cluster.name);
            } else {
                self.unsettled.insert(cluster.name.clone());
            }
        }
        self.numbers.extend(exchange.admitted);
    }

    /// Whether a cluster would be given again what it has, by the routes there are now.
    fn is_given_again(
        &mut self,
        number: ClusterNumber,
        cluster: &ClusterIntent,
        decision: &ClusterDecision,
    ) -> bool {
        let Some(grant) = self.ledger.release(number) else { return false };
        let again = request(number, cluster, &grant.hosts, Routes::Given);
        let is_given = self.ledger.admit_again(again, &decision.links, &decision.pairs).is_some();
        if !is_given {
            self.ledger.restore(grant);
        }
        is_given
    }

    /// Takes from clusters what they no longer have, and gives others what they want: those that had something first,
    /// then the others in the order they were asked for. One that had it and cannot have it any more, because the fabric
    /// has changed, goes on without.
    fn exchange(
        &mut self,
        changes: &ClusterChanges<'_>,
        before: &SharedMap<String, Arc<ClusterDecision>>,
        may_choose: bool,
    ) -> Result<Exchange, CompileError> {
        let mut exchange = Exchange::default();
        self.moves.clear();
        let wanted = changes.wanted.iter().map(|cluster| cluster.name.as_str());
        for name in changes.gone.iter().copied().chain(wanted) {
            let number = self.numbers.get(name);
            let released = number.and_then(|number| self.ledger.release(*number));
            exchange.released.extend(released.map(|grant| (name.to_owned(), grant)));
        }
        let mut new = Vec::new();
        for cluster in changes.wanted.iter().copied() {
            let had = before.get(&cluster.name);
            let kept = had.filter(|had| is_same(had, cluster));
            let hosts: Option<Vec<HostIndex>> =
                cluster.ports.iter().map(|port| self.hosts.get(port).copied()).collect();
            let number = self.number();
            let again = kept.zip(hosts.as_ref()).filter(|(had, hosts)| {
                let request = request(number, cluster, hosts, Routes::Given);
                let again = self.ledger.admit_again(request, &had.links, &had.pairs);
                again.map(|(_, moves)| self.moves.extend(moves)).is_some()
            });
            match again {
                Some((had, _)) => exchange.admit(cluster, number, Arc::clone(had)),
                None => new.push((number, cluster, hosts, had, kept)),
            }
        }
        for (number, cluster, hosts, had, kept) in new {
            // Packets that flow stay where they are if they can.
            let routes: &[Routes] = match (may_choose, had) {
                (false, _) => &[Routes::Given],
                (true, None) => &[Routes::Chosen, Routes::Given],
                (true, Some(_)) => &[Routes::Given, Routes::Chosen],
            };
            let missing = || CompileError::PortsMissing { cluster: cluster.name.clone() };
            let admitted = hosts.ok_or_else(missing).and_then(|hosts| {
                let changed = had.and_then(|had| self.change_one(number, cluster, &hosts, had, routes));
                changed.map_or_else(|| self.admit(number, cluster, &hosts, routes, &exchange), Ok)
            });
            match (admitted, kept) {
                (Ok(decision), _) => {
                    let network = self.ledger.network();
                    exchange.ways.extend(ChosenWay::of(&self.ledger.grants()[&number], network));
                    exchange.admit(cluster, number, Arc::new(decision));
                }
                (Err(error), Some(had)) => exchange.break_promise(cluster, had, &error),
                (Err(error), None) => {
                    self.take_back(exchange);
                    return Err(error);
                }
            }
        }
        // One that was given something may have been moved for the next.
        for (name, decision) in &mut exchange.decided {
            let number = exchange.admitted.get(name);
            if let Some(grant) = number.and_then(|number| self.ledger.grants().get(number))
                && !is_placed(decision, grant, self.ledger.network())
            {
                *decision = Arc::new(placed(decision, grant, self.ledger.network()));
            }
        }
        Ok(exchange)
    }

    /// Makes an exchange undone.
    fn take_back(&mut self, exchange: Exchange) {
        for number in exchange.admitted.values() {
            self.ledger.release(*number);
        }
        self.ledger.take_back_moves(&std::mem::take(&mut self.moves));
        for (_, grant) in exchange.released {
            self.ledger.restore(grant);
        }
    }

    /// A number that no cluster has.
    fn number(&mut self) -> ClusterNumber {
        self.next_number += 1;
        ClusterNumber(self.next_number)
    }

    /// Admits a cluster by the first routes that will do; what is short on those that the tables have, if none will.
    fn admit(
        &mut self,
        number: ClusterNumber,
        cluster: &ClusterIntent,
        hosts: &[HostIndex],
        routes: &[Routes],
        exchange: &Exchange,
    ) -> Result<ClusterDecision, CompileError> {
        let mut reason = String::new();
        for routes in routes {
            let granted = self.ledger.admit(request(number, cluster, hosts, *routes));
            let granted = granted.map(|(grant, moves)| {
                self.moves.extend(moves);
                grant.clone()
            });
            let decided = granted
                .map_err(|refusal| self.told(&refusal, exchange))
                .and_then(|grant| decision(cluster, &grant, self.ledger.network()));
            match decided {
                Ok(decision) => return Ok(decision),
                Err(short) => {
                    self.ledger.release(number);
                    if *routes == Routes::Given {
                        reason = short;
                    }
                }
            }
        }
        Err(CompileError::NotAdmitted { cluster: cluster.name.clone(), reason })
    }

    /// Gives a cluster other hosts or another rate, so that it keeps its service levels; `None` if that cannot be.
    fn change_one(
        &mut self,
        number: ClusterNumber,
        cluster: &ClusterIntent,
        hosts: &[HostIndex],
        had: &ClusterDecision,
        routes: &[Routes],
    ) -> Option<ClusterDecision> {
        let Class::Guaranteed { bandwidth, .. } = had.class else { return None };
        let before: Option<Vec<HostIndex>> =
            had.ports.iter().map(|port| self.hosts.get(port).copied()).collect();
        let (before, mode) = (before?, had.sl_mode);
        let request_before =
            Request { cluster: number, hosts: &before, bandwidth, mode, routes: Routes::Given };
        let (_, moves) = self.ledger.admit_again(request_before, &had.links, &had.pairs)?;
        self.moves.extend(moves);
        let decided = routes.iter().find_map(|routes| {
            let (grant, moves) = self.ledger.change(request(number, cluster, hosts, *routes)).ok()?;
            self.moves.extend(moves);
            let grant = grant.clone();
            decision(cluster, &grant, self.ledger.network()).ok()
        });
        if decided.is_none() {
            self.ledger.release(number);
        }
        decided
    }

    /// A refusal in words, clusters by their names.
    fn told(&self, refusal: &Refusal, exchange: &Exchange) -> String {
        let Refusal::HostTaken { host, cluster } = refusal else {
            return refusal.told(self.ledger.network());
        };
        let mut known = self.numbers.iter().chain(&exchange.admitted);
        let name = known.find(|(_, number)| *number == cluster).map_or("?", |(name, _)| name);
        format!("host {host} belongs to cluster {name}")
    }
}

/// Who lost and who got something.
#[derive(Debug, Default)]
struct Exchange {
    /// By name, with what they had.
    released: Vec<(String, Grant)>,
    admitted: BTreeMap<String, ClusterNumber>,
    /// To be remembered, by name.
    decided: Vec<(String, Arc<ClusterDecision>)>,
    /// To hosts of clusters that were admitted now.
    ways: Vec<ChosenWay>,
    broken: Vec<Finding>,
}

impl Exchange {
    fn admit(&mut self, cluster: &ClusterIntent, number: ClusterNumber, decision: Arc<ClusterDecision>) {
        self.admitted.insert(cluster.name.clone(), number);
        self.decided.push((cluster.name.clone(), decision));
    }

    fn break_promise(&mut self, cluster: &ClusterIntent, had: &ClusterDecision, error: &CompileError) {
        let name = || cluster.name.clone();
        self.broken.push(Finding::PromiseBroken { cluster: name(), reason: error.to_string() });
        let nothing = ClusterDecision { links: Vec::new(), pairs: Vec::new(), ..had.clone() };
        self.decided.push((name(), Arc::new(nothing)));
    }
}

/// The books of who has what by some decisions: of the clusters that are named, as far as it can still be had.
pub(crate) fn restored<'a>(
    network: &Arc<Network>,
    clusters: impl Iterator<Item = (ClusterNumber, &'a str)>,
    decisions: &Decisions,
) -> Ledger {
    let mut ledger = Ledger::new(Arc::clone(network));
    let places = places(network);
    for (number, name) in clusters {
        let Some(before) = decisions.clusters.get(name) else { continue };
        let hosts: Option<Vec<HostIndex>> =
            before.ports.iter().map(|port| places.get(port).copied()).collect();
        if let (Some(hosts), Class::Guaranteed { bandwidth, .. }) = (hosts, before.class) {
            let (hosts, mode, routes) = (hosts.as_slice(), before.sl_mode, Routes::Given);
            let request = Request { cluster: number, hosts, bandwidth, mode, routes };
            ledger.admit_again(request, &before.links, &before.pairs);
        }
    }
    ledger
}

/// The hosts of a network by their ports.
fn places(network: &Network) -> HashMap<Guid, HostIndex> {
    (0..).zip(network.hosts()).map(|(at, host)| (host.port, HostIndex(at))).collect()
}

/// The level of management: no cluster's.
const MANAGEMENT: ServiceLevel = match ServiceLevel::from_wire(15) {
    Some(level) => level,
    None => unreachable!(),
};

/// The level that management has by a plan, or would have from the first promise on: one of its own if all cables between
/// switches have a lane for it. It goes by best effort's on links of adapters that have none.
fn management(plan: &FabricPlan) -> Option<ServiceLevel> {
    if plan.decisions().guarded {
        return plan.decisions().management;
    }
    let has_lane = |lanes: DataLanes| reserved_lanes(lanes.count()) > 1;
    let ports = || plan.switches().flat_map(|switch| switch.ports.iter());
    let mut between = ports().filter(|port| plan.switch(port.peer.node).is_some());
    let is_possible = between.all(|port| has_lane(port.lanes)) && ports().any(|port| has_lane(port.lanes));
    is_possible.then_some(MANAGEMENT)
}

/// The links of a plan, and what guaranteed clusters may use of them.
pub(crate) fn network(topology: &Topology, intents: &Intents, plan: &FabricPlan) -> Arc<Network> {
    let network = Network::of(topology, plan, limits(intents, plan));
    Arc::new(network.with_buffers(&intents.capabilities))
}

fn limits(intents: &Intents, plan: &FabricPlan) -> Limits {
    let usual = Limits { table_entries: table_entries(intents), ..Limits::default() };
    match management(plan) {
        Some(_) => Limits { service_levels: usual.service_levels.min(MANAGEMENT.to_wire() - 1), ..usual },
        None => usual,
    }
}

/// Entries that the arbitration tables of all ports have.
fn table_entries(intents: &Intents) -> u8 {
    let capabilities = &intents.capabilities;
    let least = capabilities.ports.values().map(|port| port.arbitration).min();
    let least = least.unwrap_or(capabilities.usual_port.arbitration).clamp(8, 64);
    // A power of two.
    1 << least.ilog2()
}

/// Groups use the level that is everybody's: at any other, their packets would enter lanes of clusters or of management, or
/// be dropped.
fn check_groups(plan: &FabricPlan) -> Result<(), CompileError> {
    match plan.groups().find(|group| group.sl != ServiceLevel::default()) {
        Some(group) => Err(CompileError::GroupLevel { partition: group.partition, sl: group.sl }),
        None => Ok(()),
    }
}

fn is_same(before: &ClusterDecision, cluster: &ClusterIntent) -> bool {
    before.ports == cluster.ports && before.class == cluster.class && before.sl_mode == cluster.sl_mode
}

fn request<'a>(
    number: ClusterNumber,
    cluster: &ClusterIntent,
    hosts: &'a [HostIndex],
    routes: Routes,
) -> Request<'a> {
    let bandwidth = match cluster.class {
        Class::Guaranteed { bandwidth, .. } => bandwidth,
        Class::BestEffort => Default::default(),
    };
    Request { cluster: number, hosts, bandwidth, mode: cluster.sl_mode, routes }
}

/// Whether a decision says where the entries of a cluster are.
fn is_placed(decision: &ClusterDecision, grant: &Grant, network: &Network) -> bool {
    decision.links.len() == grant.links.len()
        && decision.links.iter().zip(&grant.links).all(|(told, share)| {
            told.port == network.links()[share.link.index()].from
                && told.first_entry == Some(share.first_entry)
        })
}

/// A decision that says where the entries of its cluster are; nothing else of it is changed.
fn placed(decision: &ClusterDecision, grant: &Grant, network: &Network) -> ClusterDecision {
    let first: HashMap<PortName, u8> = (grant.links.iter())
        .map(|share| (network.links()[share.link.index()].from, share.first_entry))
        .collect();
    let mut decision = decision.clone();
    for link in &mut decision.links {
        link.first_entry = first.get(&link.port).copied();
    }
    decision
}

fn decision(cluster: &ClusterIntent, grant: &Grant, network: &Network) -> Result<ClusterDecision, String> {
    let bound_ns = bound_ns(grant, network);
    if let Class::Guaranteed { latency_ns: Some(asked), .. } = cluster.class
        && asked < bound_ns
    {
        let [bound, asked] = [bound_ns, asked].map(|ns| ns as f64 / 1000.0);
        let reason =
            format!("a packet may take {bound:.1} µs if others do their worst, {asked} µs were asked for");
        return Err(reason);
    }
    Ok(ClusterDecision {
        ports: cluster.ports.clone(),
        class: cluster.class,
        sl_mode: cluster.sl_mode,
        bound_ns,
        links: grant.link_grants(network).collect(),
        pairs: grant.pair_levels(network),
    })
}

#[cfg(test)]
mod tests {
    use fabric_model::generate::FatTree;

    use super::*;

    #[test]
    fn clusters_have_every_level_but_that_of_best_effort_and_that_of_management() {
        let tree = FatTree { radix: 8, ..FatTree::with_hosts(16) }.generate().unwrap();
        let host = tree.end_nodes().next().unwrap().1;
        let mut intents = Intents::new(host.ports().next().unwrap().1.guid);
        let levels = |intents: &Intents| {
            let plan = crate::compile(&tree, intents, &Decisions::default()).unwrap();
            limits(intents, &plan).service_levels
        };
        assert_eq!(levels(&intents), 14);
        intents.capabilities.usual_port.lanes = DataLanes::Four;
        assert_eq!(levels(&intents), 15);
    }
}
