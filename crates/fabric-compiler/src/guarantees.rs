//! QoS guarantees of clusters, and the SL-to-VL and arbitration tables that enforce them.
//!
//! [`tenancy`](crate::tenancy) decides the grants; those of the previous plan are kept. The tables follow from the grants
//! ([`sharing`]): for each input and output port of a switch, and at each adapter port, a service level maps to the lane of
//! the cluster that owns it on both links, service level 0 to the best-effort lane, the service level of management to its
//! lane, and everything else to VL15, which discards it. Since no packet changes to a lane of another owner, the channel
//! dependencies of clusters are separate, and each cluster's worst-case latency follows from its own entries ([`latency`]).

mod classes;
mod error;
mod latency;
mod paths;
mod sharing;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use fabric_model::decisions::ClusterDecision;
use fabric_model::intent::{ClusterIntent, Intents, PortName};
use fabric_model::plan::{Draft, PlanFinding};
use fabric_model::tenancy::{Class, ClusterNumber};
use fabric_model::{Decisions, FabricPlan, SharedMap, Topology};
use ib_wire::{DataLanes, Guid, PortNum, ServiceLevel};

use crate::CompileError;
use crate::fabric::{Fabric, SwitchIndex};
use crate::routing::RoutingContext;
use crate::tenancy::admission::{Admission, AdmissionRequest, Grant, LinkMoves, Refusal, RouteChoice};
use crate::tenancy::link_graph::{HostIndex, LinkGraph, LinkIndex, TenancyLimits, reserved_lanes};
pub(crate) use classes::apply_classes;
pub use error::GuaranteeError;
use latency::latency_bound_ns;
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
    /// Arbitration entries moved to make room since the last change began, in order.
    moves: Vec<LinkMoves>,
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
            moves: Vec::new(),
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
        self.put(draft, changes, &change);
        self.continue_with(draft, &rerouted, changes, change);
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
        touched.extend(self.moves.iter().map(|(link, _)| *link));
        touched.sort_unstable();
        touched.dedup();
        let moved = self.users.replace(self.moves.iter().map(|(link, _)| *link), self.admission.grants());
        self.users.put(draft, &touched);
        let decisions = draft.decisions();
        for (name, number) in self.numbers.iter().filter(|(_, number)| moved.contains(number)) {
            if let (Some(decision), Some(grant)) =
                (decisions.clusters.get_mut(name), self.admission.grants().get(number))
            {
                *decision = Arc::new(placed(decision, grant, self.admission.graph()));
            }
        }
        decisions.sl_enforcement = true;
        for name in &changes.gone {
            decisions.clusters.remove(*name);
        }
        decisions.clusters.extend(change.decided.iter().cloned());
        draft.findings().extend(change.violated.iter().cloned());
    }

    /// Continues with the forwarding tables of the plan. Clusters whose grant does not match them are reconsidered with the
    /// next change.
    fn continue_with(
        &mut self,
        draft: &Draft,
        rerouted: &[SwitchIndex],
        changes: &ClusterChanges<'_>,
        change: AdmissionChange,
    ) {
        for (name, _) in &change.released {
            self.numbers.remove(name);
        }
        for name in &changes.gone {
            self.unsettled.remove(*name);
        }
        for index in rerouted {
            if let Some(switch) = draft.plan().shared_switches().get(*index) {
                self.admission.set_table(*index, &switch.linear);
            }
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
        self.moves.clear();
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
            let again = kept.zip(hosts.as_ref()).filter(|(had, hosts)| {
                let request = request(number, cluster, hosts, RouteChoice::Existing);
                let again = self.admission.readmit(request, &had.links, &had.pairs);
                again.map(|(_, moves)| self.moves.extend(moves)).is_some()
            });
            match again {
                Some((had, _)) => match with_current_bound(had, number, &self.admission) {
                    Ok(decision) => change.admit(cluster, number, decision),
                    Err(reason) => {
                        self.admission.release(number);
                        let error = CompileError::NotAdmitted { cluster: cluster.name.clone(), reason };
                        change.violate(cluster, had, &error);
                    }
                },
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
                changed.map_or_else(|| self.admit(number, cluster, &hosts, routes, &change), Ok)
            });
            match (admitted, kept) {
                (Ok(decision), _) => {
                    let graph = self.admission.graph();
                    change.paths.extend(ChosenPath::of(&self.admission.grants()[&number], graph));
                    change.admit(cluster, number, Arc::new(decision));
                }
                (Err(error), Some(had)) => change.violate(cluster, had, &error),
                (Err(error), None) => {
                    self.undo(change);
                    return Err(error);
                }
            }
        }
        // Entries of a cluster admitted earlier may have been moved for a later one.
        for (name, decision) in &mut change.decided {
            let number = change.admitted.get(name);
            if let Some(grant) = number.and_then(|number| self.admission.grants().get(number))
                && !is_placed(decision, grant, self.admission.graph())
            {
                *decision = Arc::new(placed(decision, grant, self.admission.graph()));
            }
        }
        Ok(change)
    }

    /// Undoes [`Self::readmit_all`].
    fn undo(&mut self, change: AdmissionChange) {
        for number in change.admitted.values() {
            self.admission.release(*number);
        }
        self.admission.undo_moves(&std::mem::take(&mut self.moves));
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
    ) -> Result<ClusterDecision, CompileError> {
        // Replaced: the existing routes are always among the choices.
        let mut reason = GuaranteeError::Refused(Refusal::InvalidHosts);
        for routes in routes {
            let granted = self.admission.admit(request(number, cluster, hosts, *routes));
            let granted = granted.map(|(grant, moves)| {
                self.moves.extend(moves);
                grant.clone()
            });
            let decided = granted
                .map_err(|refusal| self.guarantee_error(refusal, change))
                .and_then(|grant| decision(cluster, &grant, self.admission.graph()));
            match decided {
                Ok(decision) => return Ok(decision),
                Err(error) => {
                    self.admission.release(number);
                    if *routes == RouteChoice::Existing {
                        reason = error;
                    }
                }
            }
        }
        Err(CompileError::NotAdmitted { cluster: cluster.name.clone(), reason })
    }

    /// Gives a cluster other hosts or another rate so that it keeps its service levels; `None` if that fails.
    fn change_one(
        &mut self,
        number: ClusterNumber,
        cluster: &ClusterIntent,
        hosts: &[HostIndex],
        had: &ClusterDecision,
        routes: &[RouteChoice],
    ) -> Option<ClusterDecision> {
        let Class::Guaranteed { bandwidth, .. } = had.class else { return None };
        let before: Option<Vec<HostIndex>> =
            had.ports.iter().map(|port| self.hosts.get(port).copied()).collect();
        let (before, mode) = (before?, had.sl_mode);
        let request_before = AdmissionRequest {
            cluster: number,
            hosts: &before,
            bandwidth,
            mode,
            routes: RouteChoice::Existing,
        };
        let (_, moves) = self.admission.readmit(request_before, &had.links, &had.pairs)?;
        self.moves.extend(moves);
        let decided = routes.iter().find_map(|routes| {
            let (grant, moves) = self.admission.change(request(number, cluster, hosts, *routes)).ok()?;
            self.moves.extend(moves);
            let grant = grant.clone();
            decision(cluster, &grant, self.admission.graph()).ok()
        });
        if decided.is_none() {
            self.admission.release(number);
        }
        decided
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
        let nothing = ClusterDecision { links: Vec::new(), pairs: Vec::new(), ..had.clone() };
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
        if let (Some(hosts), Class::Guaranteed { bandwidth, .. }) = (hosts, before.class) {
            let (hosts, mode, routes) = (hosts.as_slice(), before.sl_mode, RouteChoice::Existing);
            let request = AdmissionRequest { cluster: number, hosts, bandwidth, mode, routes };
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
    let graph = LinkGraph::of(topology, plan, limits(intents, plan));
    Arc::new(graph.with_buffers(&intents.capabilities))
}

fn limits(intents: &Intents, plan: &FabricPlan) -> TenancyLimits {
    let usual = TenancyLimits {
        table_entries: table_entries(intents),
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

/// The number of entries that the arbitration tables of all ports have at least: 8, 16, 32 or 64.
fn table_entries(intents: &Intents) -> u8 {
    let capabilities = &intents.capabilities;
    // Port 0 of a switch sends over no link, and its arbitration fields are not valid.
    let external = capabilities.ports.iter().filter(|(name, _)| name.port != PortNum::MANAGEMENT);
    let least = external.map(|(_, port)| port.arbitration).min();
    let least = least.unwrap_or(capabilities.default_port.arbitration).clamp(8, 64);
    1 << least.ilog2()
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
    let bandwidth = match cluster.class {
        Class::Guaranteed { bandwidth, .. } => bandwidth,
        Class::BestEffort => Default::default(),
    };
    AdmissionRequest { cluster: number, hosts, bandwidth, mode: cluster.sl_mode, routes }
}

/// A kept decision with the latency bound of its grant: what the operator states about the hardware may have changed since.
/// A bound that was sold stays as long as it holds.
fn with_current_bound(
    had: &Arc<ClusterDecision>,
    number: ClusterNumber,
    admission: &Admission,
) -> Result<Arc<ClusterDecision>, GuaranteeError> {
    let Some(grant) = admission.grants().get(&number) else { return Ok(Arc::clone(had)) };
    let bound_ns = latency_bound_ns(grant, admission.graph());
    match had.class {
        _ if bound_ns <= had.bound_ns => Ok(Arc::clone(had)),
        Class::Guaranteed { latency_ns: Some(requested_ns), .. } if requested_ns < bound_ns => {
            Err(GuaranteeError::LatencyExceeded { bound_ns, requested_ns })
        }
        _ => Ok(Arc::new(ClusterDecision { bound_ns, ..ClusterDecision::clone(had) })),
    }
}

/// Whether a decision has the current positions of a cluster's entries.
fn is_placed(decision: &ClusterDecision, grant: &Grant, graph: &LinkGraph) -> bool {
    decision.links.len() == grant.links.len()
        && decision.links.iter().zip(&grant.links).all(|(decided, share)| {
            decided.port == graph.links()[share.link.index()].from
                && decided.first_entry == Some(share.first_entry)
        })
}

/// A decision with the current positions of its cluster's entries, otherwise unchanged.
fn placed(decision: &ClusterDecision, grant: &Grant, graph: &LinkGraph) -> ClusterDecision {
    let first: HashMap<PortName, u8> = (grant.links.iter())
        .map(|share| (graph.links()[share.link.index()].from, share.first_entry))
        .collect();
    let mut decision = decision.clone();
    for link in &mut decision.links {
        link.first_entry = first.get(&link.port).copied();
    }
    decision
}

fn decision(
    cluster: &ClusterIntent,
    grant: &Grant,
    graph: &LinkGraph,
) -> Result<ClusterDecision, GuaranteeError> {
    let bound_ns = latency_bound_ns(grant, graph);
    if let Class::Guaranteed { latency_ns: Some(requested_ns), .. } = cluster.class
        && requested_ns < bound_ns
    {
        return Err(GuaranteeError::LatencyExceeded { bound_ns, requested_ns });
    }
    Ok(ClusterDecision {
        ports: cluster.ports.clone(),
        class: cluster.class,
        sl_mode: cluster.sl_mode,
        bound_ns,
        links: grant.link_grants(graph).collect(),
        pairs: grant.pair_service_levels(graph),
    })
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
