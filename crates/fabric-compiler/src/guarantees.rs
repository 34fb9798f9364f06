//! QoS guarantees of clusters, and the SL-to-VL and arbitration tables that enforce them.
//!
//! [`tenancy`](crate::tenancy) decides the grants; those of the previous plan are kept. The tables follow from the grants
//! ([`sharing`]): for each input and output port of a switch, and at each adapter port, a service level maps to the lane of
//! the cluster that owns it on both links, service level 0 to the best-effort lane, the service level of management to its
//! lane, and everything else to VL15, which discards it. A cluster whose guarantee is violated, because a cable failed for
//! example, stays connected: its former service levels map to the lane of best effort. Since no packet changes to a lane of another owner, the channel
//! dependencies of clusters are separate, and each cluster's worst-case latency follows from the longest waits it was sold.

mod classes;
mod error;
mod paths;
mod sharing;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use fabric_model::decisions::ClusterDecision;
use fabric_model::intent::{ClusterIntent, Intents};
use fabric_model::plan::{Draft, PlanFinding};
use fabric_model::tenancy::{Class, ClusterNumber};
use fabric_model::{Decisions, FabricPlan, SharedMap, Topology};
use ib_wire::{DataLanes, Guid, ServiceLevel, ServiceLevelSet};

use crate::CompileError;
use crate::fabric::Fabric;
use crate::routing::RoutingContext;
use crate::tenancy::admission::{Admission, AdmissionRequest, Grant, Refusal, RouteChoice};
use crate::tenancy::link_graph::{HostIndex, LinkGraph, LinkIndex, TenancyLimits, reserved_lanes};
pub(crate) use classes::apply_classes;
pub use error::GuaranteeError;
use paths::{ChosenPath, put_paths};
use sharing::LinkUsers;

/// The guarantees of a plan and the reservations on all links, kept for the next plan.
///
/// Between calls it matches the plan it was last applied to: [`Self::change`] starts from a draft of that plan, and leaves
/// the guarantees unchanged if it fails.
#[derive(Debug)]
pub(crate) struct Guarantees {
    admission: Admission,
    users: LinkUsers,
    /// By port GUID.
    hosts: HashMap<Guid, HostIndex>,
    /// Clusters with a grant, by name. A number stays while its cluster keeps its grant.
    numbers: BTreeMap<String, ClusterNumber>,
    next_number: u32,
    /// Clusters that every change reconsiders: their guarantee is violated, or the forwarding tables do not lead over the
    /// links of their grant.
    unsettled: BTreeSet<String>,
}

/// Changes to the guaranteed clusters between two intents.
#[derive(Debug, Default)]
pub(crate) struct ClusterChanges<'a> {
    /// Clusters without a guarantee from now on, by name.
    pub gone: Vec<&'a str>,
    /// New and changed clusters, in the order of the intents.
    pub wanted: Vec<&'a ClusterIntent>,
}

/// The clusters that request a guarantee.
pub(crate) fn guaranteed(clusters: &[ClusterIntent]) -> impl Iterator<Item = &ClusterIntent> {
    clusters.iter().filter(|cluster| cluster.class != Class::BestEffort)
}

/// Decides the guarantees of all clusters from nothing but the decisions of a plan, and writes the tables into it. `None`
/// if no cluster requests a guarantee and none ever had one: then ports keep no SL-to-VL and arbitration tables.
pub(crate) fn establish(
    draft: &mut Draft,
    topology: &Topology,
    fabric: &Fabric,
    context: Option<&RoutingContext>,
    intents: &Intents,
) -> Result<Option<Guarantees>, CompileError> {
    let wanted: Vec<&ClusterIntent> = guaranteed(&intents.clusters).collect();
    if wanted.is_empty() && !draft.plan().decisions().sl_enforcement {
        return Ok(None);
    }
    draft.decisions().management_sl = management(draft.plan());
    let mut guarantees = Guarantees::new(draft, topology, intents);
    guarantees.users.put_plain(draft);
    let names: BTreeSet<&str> = wanted.iter().map(|cluster| cluster.name.as_str()).collect();
    let before = draft.plan().decisions().clusters.clone();
    let gone = before.keys().map(String::as_str).filter(|name| !names.contains(name)).collect();
    guarantees.change(draft, fabric, context, &ClusterChanges { gone, wanted })?;
    Ok(Some(guarantees))
}

impl Guarantees {
    fn new(draft: &Draft, topology: &Topology, intents: &Intents) -> Self {
        let graph = link_graph(topology, intents, draft.plan());
        let hosts = hosts_by_port(&graph);
        Self {
            users: LinkUsers::of(&graph, draft.plan().decisions().management_sl),
            admission: Admission::new(graph),
            hosts,
            numbers: BTreeMap::new(),
            next_number: 0,
            unsettled: BTreeSet::new(),
        }
    }

    /// Whether a cluster has a guarantee, kept or violated.
    pub fn knows(&self, name: &str) -> bool {
        self.numbers.contains_key(name) || self.unsettled.contains(name)
    }

    /// Whether no cluster has to be reconsidered.
    pub fn are_settled(&self) -> bool {
        self.unsettled.is_empty()
    }

    /// Whether every change reconsiders a cluster.
    pub fn is_unsettled(&self, name: &str) -> bool {
        self.unsettled.contains(name)
    }

    /// Applies changes of clusters, and writes decisions, forwarding entries, tables and findings into the draft.
    ///
    /// On error the guarantees are as before, and the draft must be dropped.
    pub fn change(
        &mut self,
        draft: &mut Draft,
        fabric: &Fabric,
        context: Option<&RoutingContext>,
        changes: &ClusterChanges<'_>,
    ) -> Result<(), CompileError> {
        check_groups(draft.plan())?;
        let before = draft.plan().decisions().clusters.clone();
        // Adopted routes stay as they are.
        let may_choose = draft.plan().decisions().adopted.is_empty();
        let mut change = self.readmit_all(changes, &before, may_choose)?;
        let rerouted = match put_paths(draft, fabric, context, &change.paths) {
            Some(rerouted) => rerouted,
            None => {
                self.undo(change);
                change = self.readmit_all(changes, &before, false)?;
                Vec::new()
            }
        };
        for index in rerouted {
            if let Some(switch) = draft.plan().shared_switches().get(index) {
                self.admission.set_table(index, &switch.linear);
            }
        }
        self.put(draft, changes, &change);
        self.continue_with(draft, changes, change);
        Ok(())
    }

    /// Writes decisions, tables and findings of a change into a plan.
    fn put(&mut self, draft: &mut Draft, changes: &ClusterChanges<'_>, change: &AdmissionChange) {
        let mut touched: Vec<LinkIndex> = Vec::new();
        let released = change.released.iter().map(|(_, grant)| grant);
        let admitted = change.admitted.values().filter_map(|number| self.admission.grants().get(number));
        for grant in released.clone().chain(admitted.clone()) {
            touched.extend(grant.links.iter().map(|share| share.link));
        }
        released.for_each(|grant| self.users.remove(grant));
        admitted.for_each(|grant| self.users.add(grant));
        touched.extend(self.users.clear_former());
        for (_, decision) in change.decided.iter().filter(|(_, decision)| !decision.former_sls.is_empty()) {
            touched.extend(self.put_former(decision));
        }
        touched.sort_unstable();
        touched.dedup();
        self.users.put(draft, &self.admission, &touched);
        let decisions = draft.decisions();
        decisions.sl_enforcement = true;
        for name in &changes.gone {
            decisions.clusters.remove(*name);
        }
        decisions.clusters.extend(change.decided.iter().cloned());
        draft.findings().extend(change.violated.iter().cloned());
    }

    /// Carries the former service levels of a violated cluster at best effort, each if it is free on all links between the
    /// nodes, so that it is carried in both directions or not at all. Returns these links.
    fn put_former(&mut self, decision: &ClusterDecision) -> Vec<LinkIndex> {
        let hosts: Vec<HostIndex> =
            decision.ports.iter().filter_map(|port| self.hosts.get(port).copied()).collect();
        let links = self.admission.links_between(&hosts).unwrap_or_default();
        let free = links.iter().fold(decision.former_sls, |free, link| free - self.users.sls_carried(*link));
        if free.is_empty() {
            return Vec::new();
        }
        let number = self.number();
        links.iter().for_each(|link| self.users.add_former(*link, number, free));
        links
    }

    /// Continues with the forwarding tables of the plan. Clusters whose grant does not match them are reconsidered with the
    /// next change.
    fn continue_with(&mut self, draft: &Draft, changes: &ClusterChanges<'_>, change: AdmissionChange) {
        for (name, _) in &change.released {
            self.numbers.remove(name);
        }
        for name in &changes.gone {
            self.unsettled.remove(*name);
        }
        for cluster in &changes.wanted {
            let is_settled = change.admitted.get(&cluster.name).is_some_and(|number| {
                let decision = draft.plan().decisions().clusters.get(&cluster.name);
                decision.is_some_and(|decision| self.is_readmitted(*number, cluster, decision))
            });
            if is_settled {
                self.unsettled.remove(&cluster.name);
            } else {
                self.unsettled.insert(cluster.name.clone());
            }
        }
        self.numbers.extend(change.admitted);
    }

    /// Whether a cluster would get the same grant on the current forwarding tables.
    fn is_readmitted(
        &mut self,
        number: ClusterNumber,
        cluster: &ClusterIntent,
        decision: &ClusterDecision,
    ) -> bool {
        let Some(grant) = self.admission.release(number) else { return false };
        let again = request(number, cluster, &grant.hosts, RouteChoice::Existing);
        let is_given = self.admission.readmit(again, &decision.links, &decision.pairs).is_some();
        if !is_given {
            self.admission.restore(grant);
        }
        is_given
    }

    /// Releases the changed and removed clusters and admits the wanted ones: first those whose grant can be kept, then the
    /// others in the order of the intents. A cluster whose request is unchanged but can no longer be met, because the
    /// fabric changed, stays without a grant, as a violated guarantee.
    fn readmit_all(
        &mut self,
        changes: &ClusterChanges<'_>,
        before: &SharedMap<String, Arc<ClusterDecision>>,
        may_choose: bool,
    ) -> Result<AdmissionChange, CompileError> {
        let mut change = AdmissionChange::default();
        let wanted = changes.wanted.iter().map(|cluster| cluster.name.as_str());
        for name in changes.gone.iter().copied().chain(wanted) {
            let number = self.numbers.get(name);
            let released = number.and_then(|number| self.admission.release(*number));
            change.released.extend(released.map(|grant| (name.to_owned(), grant)));
        }
        let mut new = Vec::new();
        for cluster in changes.wanted.iter().copied() {
            let had = before.get(&cluster.name);
            let kept = had.filter(|had| is_same(had, cluster));
            let hosts: Option<Vec<HostIndex>> =
                cluster.ports.iter().map(|port| self.hosts.get(port).copied()).collect();
            let number = self.number();
            let again = kept.zip(hosts.as_ref()).and_then(|(had, hosts)| {
                let request = request(number, cluster, hosts, RouteChoice::Existing);
                let grant = self.admission.readmit(request, &had.links, &had.pairs)?;
                // Decisions of earlier versions lack the waits, and what the operator states about the hardware may have
                // changed. A bound that was sold stays as long as it holds.
                let is_current =
                    had.links.iter().all(|link| link.wait_ns.is_some()) && grant.bound_ns <= had.bound_ns;
                let grant = (!is_current).then(|| grant.clone());
                Some(grant.map_or_else(|| Arc::clone(had), |grant| self.decision(cluster, &grant)))
            });
            match again {
                Some(decision) => change.admit(cluster, number, decision),
                None => new.push((number, cluster, hosts, had, kept)),
            }
        }
        for (number, cluster, hosts, had, kept) in new {
            // Packets of running clusters keep their paths where possible.
            let routes: &[RouteChoice] = match (may_choose, had) {
                (false, _) => &[RouteChoice::Existing],
                (true, None) => &[RouteChoice::Selected, RouteChoice::Existing],
                (true, Some(_)) => &[RouteChoice::Existing, RouteChoice::Selected],
            };
            let missing = || CompileError::PortsMissing { cluster: cluster.name.clone() };
            let admitted = hosts.ok_or_else(missing).and_then(|hosts| {
                let changed = had.and_then(|had| self.change_one(number, cluster, &hosts, had, routes));
                let former_sl = had.and_then(|had| had.former_sls.first());
                let again = || former_sl.and_then(|sl| self.admit_with(number, cluster, &hosts, sl, routes));
                let admitted = changed.or_else(again);
                admitted.map_or_else(|| self.admit(number, cluster, &hosts, routes, &change), Ok)
            });
            match (admitted, kept) {
                (Ok(decision), _) => {
                    let graph = self.admission.graph();
                    change.paths.extend(ChosenPath::of(&self.admission.grants()[&number], graph));
                    change.admit(cluster, number, decision);
                }
                (Err(error), Some(had)) => change.violate(cluster, had, &error),
                (Err(error), None) => {
                    self.undo(change);
                    return Err(error);
                }
            }
        }
        Ok(change)
    }

    /// Undoes [`Self::readmit_all`].
    fn undo(&mut self, change: AdmissionChange) {
        for number in change.admitted.values() {
            self.admission.release(*number);
        }
        for (_, grant) in change.released {
            self.admission.restore(grant);
        }
    }

    /// An unused cluster number.
    fn number(&mut self) -> ClusterNumber {
        self.next_number += 1;
        ClusterNumber(self.next_number)
    }

    /// Admits a cluster by the first choice of routes that works. The error is that of the existing routes, if none does.
    fn admit(
        &mut self,
        number: ClusterNumber,
        cluster: &ClusterIntent,
        hosts: &[HostIndex],
        routes: &[RouteChoice],
        change: &AdmissionChange,
    ) -> Result<Arc<ClusterDecision>, CompileError> {
        // Replaced: the existing routes are always among the choices.
        let mut reason = GuaranteeError::Refused(Refusal::InvalidHosts);
        for routes in routes {
            match self.admission.admit(request(number, cluster, hosts, *routes)).cloned() {
                Ok(grant) => return Ok(self.decision(cluster, &grant)),
                Err(refusal) if *routes == RouteChoice::Existing => {
                    reason = self.guarantee_error(refusal, change);
                }
                Err(_) => {}
            }
        }
        Err(CompileError::NotAdmitted { cluster: cluster.name.clone(), reason })
    }

    /// Admits a cluster whose guarantee was violated with the service level it had, so that its connections are guaranteed
    /// again; `None` if that fails.
    fn admit_with(
        &mut self,
        number: ClusterNumber,
        cluster: &ClusterIntent,
        hosts: &[HostIndex],
        sl: ServiceLevel,
        routes: &[RouteChoice],
    ) -> Option<Arc<ClusterDecision>> {
        let admitted = routes.iter().find_map(|routes| {
            self.admission.admit_with(request(number, cluster, hosts, *routes), sl).cloned().ok()
        });
        Some(self.decision(cluster, &admitted?))
    }

    /// Gives a cluster other hosts, another rate or another latency so that it keeps its service levels; `None` if that
    /// fails.
    fn change_one(
        &mut self,
        number: ClusterNumber,
        cluster: &ClusterIntent,
        hosts: &[HostIndex],
        had: &ClusterDecision,
        routes: &[RouteChoice],
    ) -> Option<Arc<ClusterDecision>> {
        let Class::Guaranteed { bandwidth, latency_ns } = had.class else { return None };
        let before: Option<Vec<HostIndex>> =
            had.ports.iter().map(|port| self.hosts.get(port).copied()).collect();
        let (before, mode) = (before?, had.sl_mode);
        let request_before = AdmissionRequest {
            cluster: number,
            hosts: &before,
            bandwidth,
            latency_ns,
            mode,
            routes: RouteChoice::Existing,
        };
        self.admission.readmit(request_before, &had.links, &had.pairs)?;
        let changed = routes
            .iter()
            .find_map(|routes| self.admission.change(request(number, cluster, hosts, *routes)).cloned().ok());
        if changed.is_none() {
            self.admission.release(number);
        }
        Some(self.decision(cluster, &changed?))
    }

    fn decision(&self, cluster: &ClusterIntent, grant: &Grant) -> Arc<ClusterDecision> {
        let graph = self.admission.graph();
        Arc::new(ClusterDecision {
            ports: cluster.ports.clone(),
            class: cluster.class,
            sl_mode: cluster.sl_mode,
            bound_ns: grant.bound_ns,
            links: grant.link_grants(graph).collect(),
            pairs: grant.pair_service_levels(graph),
            former_sls: ServiceLevelSet::EMPTY,
        })
    }

    /// A refusal that names clusters as intents do.
    fn guarantee_error(&self, refusal: Refusal, change: &AdmissionChange) -> GuaranteeError {
        let Refusal::HostTaken { host, cluster } = refusal else {
            return GuaranteeError::Refused(refusal);
        };
        let mut known = self.numbers.iter().chain(&change.admitted);
        let name = known.find(|(_, number)| **number == cluster).map_or("?", |(name, _)| name);
        GuaranteeError::HostTaken { host, cluster: name.to_owned() }
    }
}

/// Grants released and given by one change.
#[derive(Debug, Default)]
struct AdmissionChange {
    /// Grants that were released, by cluster name.
    released: Vec<(String, Grant)>,
    admitted: BTreeMap<String, ClusterNumber>,
    /// Decisions to store, by name.
    decided: Vec<(String, Arc<ClusterDecision>)>,
    /// Paths to hosts of newly admitted clusters.
    paths: Vec<ChosenPath>,
    violated: Vec<PlanFinding>,
}

impl AdmissionChange {
    fn admit(&mut self, cluster: &ClusterIntent, number: ClusterNumber, decision: Arc<ClusterDecision>) {
        self.admitted.insert(cluster.name.clone(), number);
        self.decided.push((cluster.name.clone(), decision));
    }

    fn violate(&mut self, cluster: &ClusterIntent, had: &ClusterDecision, error: &CompileError) {
        let name = || cluster.name.clone();
        self.violated.push(PlanFinding::GuaranteeViolated { cluster: name(), reason: error.to_string() });
        let sls = had.links.iter().flat_map(|link| &link.service_levels).copied();
        let former_sls = had.former_sls | sls.collect();
        let nothing = ClusterDecision { links: Vec::new(), pairs: Vec::new(), former_sls, ..had.clone() };
        self.decided.push((name(), Arc::new(nothing)));
    }
}

/// The grants of the named clusters by some decisions, as far as they can still be given.
pub(crate) fn restored<'a>(
    graph: &Arc<LinkGraph>,
    clusters: impl Iterator<Item = (ClusterNumber, &'a str)>,
    decisions: &Decisions,
) -> Admission {
    let mut admission = Admission::new(Arc::clone(graph));
    let by_port = hosts_by_port(graph);
    for (number, name) in clusters {
        let Some(before) = decisions.clusters.get(name) else { continue };
        let hosts: Option<Vec<HostIndex>> =
            before.ports.iter().map(|port| by_port.get(port).copied()).collect();
        if let (Some(hosts), Class::Guaranteed { bandwidth, latency_ns }) = (hosts, before.class) {
            let (hosts, mode, routes) = (hosts.as_slice(), before.sl_mode, RouteChoice::Existing);
            let request = AdmissionRequest { cluster: number, hosts, bandwidth, latency_ns, mode, routes };
            admission.readmit(request, &before.links, &before.pairs);
        }
    }
    admission
}

/// The hosts of a network by their ports.
fn hosts_by_port(graph: &LinkGraph) -> HashMap<Guid, HostIndex> {
    (0..).zip(graph.hosts()).map(|(at, host)| (host.port, HostIndex(at))).collect()
}

/// The service level of management, which no cluster gets.
const MANAGEMENT: ServiceLevel = match ServiceLevel::from_wire(15) {
    Some(sl) => sl,
    None => unreachable!(),
};

/// The service level of management in a plan, or from the first guarantee on: one of its own if all links between switches
/// have a lane for it. On adapter links without such a lane, management uses that of best effort.
fn management(plan: &FabricPlan) -> Option<ServiceLevel> {
    if plan.decisions().sl_enforcement {
        return plan.decisions().management_sl;
    }
    let has_lane = |lanes: DataLanes| reserved_lanes(lanes.count()) > 1;
    let ports = || plan.switches().flat_map(|switch| switch.ports.iter());
    let mut between = ports().filter(|port| plan.switch(port.peer.node).is_some());
    let is_possible = between.all(|port| has_lane(port.lanes)) && ports().any(|port| has_lane(port.lanes));
    is_possible.then_some(MANAGEMENT)
}

/// The links of a plan, with what guaranteed clusters may use of them.
pub(crate) fn link_graph(topology: &Topology, intents: &Intents, plan: &FabricPlan) -> Arc<LinkGraph> {
    let graph = LinkGraph::of(topology, plan, limits(intents, plan)).with_capabilities(&intents.capabilities);
    // What packets do that do not follow the planned routes, no reservation can count.
    let is_predictable = intents.capabilities.adaptive_routing.is_empty();
    Arc::new(if is_predictable { graph } else { graph.without_rates() })
}

fn limits(intents: &Intents, plan: &FabricPlan) -> TenancyLimits {
    let usual = TenancyLimits {
        best_effort_percent: intents.best_effort_percent,
        hardware: intents.hardware,
        ..TenancyLimits::default()
    };
    match management(plan) {
        Some(_) => {
            TenancyLimits { service_levels: usual.service_levels.min(MANAGEMENT.to_wire() - 1), ..usual }
        }
        None => usual,
    }
}

/// Groups must use service level 0: at any other, their packets would enter lanes of clusters or of management, or be
/// dropped.
fn check_groups(plan: &FabricPlan) -> Result<(), CompileError> {
    match plan.groups().find(|group| group.sl != ServiceLevel::default()) {
        Some(group) => Err(CompileError::GroupServiceLevel { partition: group.partition, sl: group.sl }),
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
    routes: RouteChoice,
) -> AdmissionRequest<'a> {
    let (bandwidth, latency_ns) = match cluster.class {
        Class::Guaranteed { bandwidth, latency_ns } => (bandwidth, latency_ns),
        Class::BestEffort => Default::default(),
    };
    AdmissionRequest { cluster: number, hosts, bandwidth, latency_ns, mode: cluster.sl_mode, routes }
}

#[cfg(test)]
mod tests {
    use fabric_model::generate::FatTree;

    use super::*;

    #[test]
    fn best_effort_and_management_service_levels_are_reserved() {
        let tree = FatTree { radix: 8, ..FatTree::with_hosts(16) }.generate().unwrap();
        let host = tree.end_nodes().next().unwrap().1;
        let mut intents = Intents::new(host.ports().next().unwrap().1.guid);
        let service_levels = |intents: &Intents| {
            let plan = crate::compile(&tree, intents, &Decisions::default()).unwrap();
            limits(intents, &plan).service_levels
        };
        assert_eq!(service_levels(&intents), 14);
        intents.capabilities.default_port.lanes = DataLanes::Four;
        assert_eq!(service_levels(&intents), 15);
    }
}
