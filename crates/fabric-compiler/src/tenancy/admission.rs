//! Admission control: grants each cluster a lane, service levels, a rate and a longest wait on the links it uses.
//!
//! On each directed link a lane and a service level have at most one owner. A guest that sends at a service level of its
//! cluster, to whatever address, stays in lanes of its cluster, or is dropped where that service level was not granted.
//! With one service level per cluster ([`SlMode::Cluster`]) unmodified software works: connections are answered at the
//! service level they were made with. With one per pair of switches ([`SlMode::Path`]) more clusters fit.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use fabric_model::intent::PortName;
use fabric_model::plan::LinearTable;
use fabric_model::tenancy::{Bandwidth, ClusterNumber, LinkGrant, PairServiceLevel, SlMode};
use ib_wire::{Guid, ServiceLevel, ServiceLevelSet, VlArbEntry};

use super::arbitration::{LaneDemand, TableLimits};
use super::demand::LinkDemands;
use super::latency::ClusterPaths;
use super::link_graph::{HostIndex, LinkGraph, LinkIndex};
use super::path_selection::{PathSelector, SelectedPaths};
use super::switch_inputs::uniform_part;
use super::tree::UpPorts;

pub use super::grant::{Grant, LinkShare, PairServiceLevels, PathServiceLevel};
pub use super::refusal::Refusal;
pub(super) use super::reservations::Reservations;

/// Service levels for which other paths are searched if none is free on the best paths. Bounds the time of a decision.
const SERVICE_LEVELS_TRIED_MAX: usize = 3;

/// The routes between the hosts of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteChoice {
    /// Those of the forwarding tables.
    Existing,
    /// Paths selected for the cluster where the switches form a regular tree; elsewhere those of the forwarding tables.
    Selected,
}

/// A request to admit a guaranteed cluster.
#[derive(Clone, Copy, Debug)]
pub struct AdmissionRequest<'a> {
    /// Must not be in use, except in [`Admission::change`].
    pub cluster: ClusterNumber,
    /// At least one, each once. The cluster becomes their only owner.
    pub hosts: &'a [HostIndex],
    /// The rate that every host can sustain while all hosts send to all others evenly. Zero asks for lanes only.
    pub bandwidth: Bandwidth,
    /// The longest time of a packet that finds its own lane empty, in nanoseconds, if one is asked for.
    pub latency_ns: Option<u64>,
    pub mode: SlMode,
    pub routes: RouteChoice,
}

/// The part of an earlier grant that a decision must keep.
#[derive(Clone, Copy, Debug)]
enum Keep<'a> {
    Nothing,
    /// The service level that the cluster had before its guarantee was violated.
    ServiceLevel(ServiceLevel),
    /// Service levels, and lanes where they are free.
    ServiceLevels(&'a Grant),
    /// The same, and the up-ports towards hosts that stay.
    UpPorts(&'a Grant),
}

impl Keep<'_> {
    fn grant(&self) -> Option<&Grant> {
        match self {
            Self::Nothing | Self::ServiceLevel(_) => None,
            Self::ServiceLevels(grant) | Self::UpPorts(grant) => Some(grant),
        }
    }

    fn sl(&self) -> Option<ServiceLevel> {
        match self {
            Self::ServiceLevel(sl) => Some(*sl),
            _ => self.grant()?.service_level,
        }
    }

    fn paths(&self) -> BTreeMap<(u32, HostIndex), ServiceLevel> {
        let paths = self.grant().map_or(&[][..], |grant| &grant.paths);
        paths.iter().map(|path| ((path.from, path.to), path.service_level)).collect()
    }

    /// The service level of a pair of switches: its own, or that of the whole cluster.
    fn pair(&self, switches: (u32, u32)) -> Option<ServiceLevel> {
        let grant = self.grant()?;
        grant.pairs.get(&switches).copied().or(grant.service_level)
    }

    /// In the order of `hosts`.
    fn up_ports(&self, hosts: &[HostIndex]) -> Vec<Option<UpPorts>> {
        let Self::UpPorts(Grant { hosts: had, up_ports: Some(up_ports), .. }) = self else {
            return Vec::new();
        };
        hosts.iter().map(|host| had.binary_search(host).ok().map(|index| up_ports[index])).collect()
    }
}

/// Admission control of a fabric: the grants of all clusters, and what is left of each link.
///
/// # Contract
///
/// - [`admit`](Self::admit) and [`readmit`](Self::readmit) add a cluster, [`change`](Self::change) replaces its hosts or
///   rate, [`release`](Self::release) removes it. Every call is complete in itself and may follow any other.
/// - All or nothing: a refused request leaves grants and reservations exactly as they were.
/// - A request changes nothing that other clusters were granted. The arbitration table of a link is composed anew from all
///   that was sold on it, and keeps each rate and each longest wait; if there is no such table, the request is refused.
/// - Guarantees hold while the forwarding tables lead over the links of the grants. A caller that selects paths
///   ([`RouteChoice::Selected`]) must program them.
/// - Deterministic: the same sequence of calls gives the same grants.
///
/// Memory is proportional to the number of links. See the [module](super) for the method and its complexity.
#[derive(Debug)]
pub struct Admission {
    graph: Arc<LinkGraph>,
    reservations: Reservations,
    demand: LinkDemands,
    /// Indexed by host.
    owners: Vec<Option<ClusterNumber>>,
    grants: BTreeMap<ClusterNumber, Grant>,
    /// By link: scratch space of [`ClusterPaths::bound_ns`].
    times_ns: Vec<u64>,
    /// Whether the two directions of a path have service levels of their own.
    has_one_way_service_levels: bool,
}

impl Admission {
    /// Starts without any cluster.
    pub fn new(graph: Arc<LinkGraph>) -> Self {
        let reservations = Reservations::new(&graph);
        let demand = LinkDemands::new(graph.links().len());
        let owners = vec![None; graph.hosts().len()];
        let times_ns = vec![0; graph.links().len()];
        Self {
            graph,
            reservations,
            demand,
            owners,
            grants: BTreeMap::new(),
            times_ns,
            has_one_way_service_levels: false,
        }
    }

    /// Lets each direction of a path have a service level of its own. Plans cannot express that, since connections are
    /// answered at the service level they were made with; it serves to measure what the restriction costs.
    #[must_use]
    pub fn with_one_way_service_levels(self) -> Self {
        Self { has_one_way_service_levels: true, ..self }
    }

    pub fn graph(&self) -> &Arc<LinkGraph> {
        &self.graph
    }

    pub fn grants(&self) -> &BTreeMap<ClusterNumber, Grant> {
        &self.grants
    }

    /// The cluster that owns a host.
    pub fn owner(&self, host: HostIndex) -> Option<ClusterNumber> {
        self.owners[host.index()]
    }

    /// The rate of a link that one cluster alone can reserve: the link rate without the worst-case overhead of arbitration.
    pub fn usable(&self, link: LinkIndex) -> Bandwidth {
        Bandwidth::from_bits_per_s(self.reservations.usable(link))
    }

    /// The rate of a link that one more cluster can reserve.
    pub fn left(&self, link: LinkIndex) -> Bandwidth {
        Bandwidth::from_bits_per_s(self.reservations.left(link))
    }

    pub(super) fn reservations(&self) -> &Reservations {
        &self.reservations
    }

    /// The arbitration table of a link; `None` while no cluster uses it.
    pub fn table(&self, link: LinkIndex) -> Option<Vec<VlArbEntry>> {
        self.reservations.table(link)
    }

    /// What was sold on a link, in order of the lanes, those of best effort and management first.
    pub fn sold(&self, link: LinkIndex) -> &[LaneDemand] {
        self.reservations.sold(link)
    }

    /// The limits of a link's arbitration table.
    pub fn table_limits(&self, link: LinkIndex) -> TableLimits {
        self.reservations.limits(link)
    }

    /// Admits a cluster on all links, or not at all.
    ///
    /// # Errors
    ///
    /// The limit that binds first: the hosts, then the latency, then lane, rate and wait on a link, then service levels.
    pub fn admit(&mut self, request: AdmissionRequest<'_>) -> Result<&Grant, Refusal> {
        self.admit_keeping(request, Keep::Nothing)
    }

    /// Admits a cluster with a certain service level, if each cluster has one.
    pub(crate) fn admit_with(
        &mut self,
        request: AdmissionRequest<'_>,
        sl: ServiceLevel,
    ) -> Result<&Grant, Refusal> {
        self.admit_keeping(request, Keep::ServiceLevel(sl))
    }

    fn admit_keeping(&mut self, request: AdmissionRequest<'_>, keep: Keep<'_>) -> Result<&Grant, Refusal> {
        let grant = self.decide(request, keep)?;
        self.record(grant);
        Ok(&self.grants[&request.cluster])
    }

    /// The links between some hosts by the forwarding tables, those of the hosts included; `None` if a route is missing or
    /// there are no hosts.
    pub(crate) fn links_between(&mut self, hosts: &[HostIndex]) -> Option<Vec<LinkIndex>> {
        let mut hosts = hosts.to_vec();
        hosts.sort_unstable();
        if hosts.is_empty() {
            return None;
        }
        self.demand.count_routes(&self.graph, &hosts).ok()?;
        Some(self.demand.pairs().map(|(link, _)| link).collect())
    }

    /// Gives an admitted cluster other hosts, another rate or another latency. It keeps its service level, its lanes on links
    /// that it still uses, and the paths to hosts that stay unless the rate needs others. If it is refused, everything
    /// stays as before.
    pub fn change(&mut self, request: AdmissionRequest<'_>) -> Result<&Grant, Refusal> {
        let before = self.release(request.cluster).ok_or(Refusal::UnknownCluster(request.cluster))?;
        match self.decide_keeping(request, &before) {
            Ok(grant) => {
                self.record(grant);
                Ok(&self.grants[&request.cluster])
            }
            Err(refusal) => {
                self.restore(before);
                Err(refusal)
            }
        }
    }

    /// Whether [`Self::change`] would succeed. Changes nothing.
    pub fn check_change(&mut self, request: AdmissionRequest<'_>) -> Result<(), Refusal> {
        let before = self.release(request.cluster).ok_or(Refusal::UnknownCluster(request.cluster))?;
        let answer = self.decide_keeping(request, &before);
        let answer =
            answer.map(|grant| grant.links.iter().for_each(|share| self.reservations.give_back(share)));
        self.restore(before);
        answer
    }

    fn decide_keeping(&mut self, request: AdmissionRequest<'_>, before: &Grant) -> Result<Grant, Refusal> {
        let first = self.decide(request, Keep::UpPorts(before));
        first.or_else(|refusal| self.decide(request, Keep::ServiceLevels(before)).map_err(|_| refusal))
    }

    /// Records a grant whose reservations were made already.
    fn record(&mut self, grant: Grant) {
        for host in &grant.hosts {
            self.owners[host.index()] = Some(grant.cluster);
        }
        self.grants.insert(grant.cluster, grant);
    }

    /// The rate per host that is reserved for a request: what it asks for, and what the inputs of switches cost.
    fn reserved_rate(&self, request: AdmissionRequest<'_>) -> u64 {
        let part = uniform_part(self.graph.limits().hardware.switch_model, request.hosts.len());
        (request.bandwidth.bits_per_s() as f64 / part).ceil() as u64
    }

    /// Makes the reservations of a cluster on all links, or none.
    fn decide(&mut self, request: AdmissionRequest<'_>, keep: Keep<'_>) -> Result<Grant, Refusal> {
        let hosts = self.check_hosts(request)?;
        let chosen = self.chosen(request, &hosts, keep)?;
        let all_sls = self.graph.limits().cluster_service_levels();
        let rate = self.reserved_rate(request);
        match &chosen {
            Some((chosen, _)) => self.demand.count_selected(&self.graph, &hosts, chosen),
            None => self.demand.count_routes(&self.graph, &hosts)?,
        }
        let up_ports = chosen.as_ref().map(|(chosen, _)| chosen.up_ports.as_slice());
        let wait_ns = self.wait_between_ns(request.latency_ns, &hosts, up_ports)?;
        for (link, pairs) in self.demand.pairs() {
            let wait_ns = wait_ns.filter(|_| !self.graph.links()[link.index()].is_of_host);
            self.reservations.check(link, share_of(pairs, rate, hosts.len()), wait_ns)?;
        }
        let (mut pairs, mut paths) = (PairServiceLevels::new(), Vec::new());
        let service_level = match (request.mode, &chosen) {
            (SlMode::Cluster, Some((_, Some(sl)))) => Some(*sl),
            (SlMode::Cluster, _) => {
                let kept = keep.sl().map_or(all_sls, ServiceLevelSet::of);
                Some(self.common_service_level(all_sls & kept, all_sls.len() as u8)?)
            }
            (SlMode::Path, _) => {
                let (graph, reservations) = (&self.graph, &self.reservations);
                if self.has_one_way_service_levels {
                    let had = keep.paths();
                    paths = self.demand.path_service_levels(
                        graph,
                        reservations,
                        &hosts,
                        up_ports,
                        all_sls,
                        &had,
                    )?;
                } else {
                    let had = |switches| keep.pair(switches);
                    pairs = self.demand.pair_service_levels(
                        graph,
                        reservations,
                        &hosts,
                        up_ports,
                        all_sls,
                        had,
                    )?;
                }
                None
            }
        };
        let everywhere = service_level.map_or(ServiceLevelSet::EMPTY, ServiceLevelSet::of);
        let mut links = Vec::with_capacity(self.demand.pairs().len());
        for (link, pairs, own_sls) in self.demand.sorted() {
            let share = share_of(pairs, rate, hosts.len());
            let had = keep.grant().and_then(|had| had.share(link));
            let wait_ns = wait_ns.filter(|_| !self.graph.links()[link.index()].is_of_host);
            links.push(self.reservations.take(link, share, wait_ns, own_sls | everywhere, had));
        }
        let up_ports = chosen.map(|(chosen, _)| chosen.up_ports);
        let bound_ns = self.bound_ns(&hosts, up_ports.as_deref(), &links);
        let AdmissionRequest { cluster, bandwidth, latency_ns, .. } = request;
        Ok(Grant {
            cluster,
            hosts,
            bandwidth,
            latency_ns,
            service_level,
            pairs,
            paths,
            up_ports,
            links,
            bound_ns,
        })
    }

    /// The longest wait on each link between switches that a latency allows.
    fn wait_between_ns(
        &self,
        latency_ns: Option<u64>,
        hosts: &[HostIndex],
        up_ports: Option<&[UpPorts]>,
    ) -> Result<Option<u64>, Refusal> {
        let Some(requested_ns) = latency_ns else { return Ok(None) };
        let paths = ClusterPaths { graph: &self.graph, hosts, up_ports };
        paths
            .wait_between_ns(requested_ns, |link| self.reservations.wait_ns(link, None))
            .map_err(|possible_ns| Refusal::LatencyTooShort { possible_ns, requested_ns })
    }

    fn bound_ns(&mut self, hosts: &[HostIndex], up_ports: Option<&[UpPorts]>, links: &[LinkShare]) -> u64 {
        let paths = ClusterPaths { graph: &self.graph, hosts, up_ports };
        paths.bound_ns(links, &mut self.times_ns)
    }

    /// Admits a cluster with an earlier grant: the same lanes, service levels, rates and waits on the same links. Waits that
    /// an earlier version did not record are chosen anew.
    ///
    /// `None`, and nothing is reserved, if the forwarding tables lead over other links by now, a part of the grant is not
    /// free, or the service level of a pair of switches is missing.
    pub fn readmit(
        &mut self,
        request: AdmissionRequest<'_>,
        links: &[LinkGrant],
        pairs: &[PairServiceLevel],
    ) -> Option<&Grant> {
        let hosts = self.check_hosts(request).ok()?;
        self.demand.count_routes(&self.graph, &hosts).ok()?;
        let is_path = request.mode == SlMode::Path;
        let pairs = if is_path { self.readmitted_pairs(&hosts, pairs)? } else { PairServiceLevels::new() };
        let rate = self.reserved_rate(request);
        let new_wait_ns = match links.iter().all(|grant| grant.wait_ns.is_some()) {
            true => None,
            false => self.wait_between_ns(request.latency_ns, &hosts, None).ok()?,
        };
        let mut had: HashMap<PortName, &LinkGrant> = links.iter().map(|grant| (grant.port, grant)).collect();
        let wanted: Option<Vec<LinkShare>> = (self.demand.sorted().into_iter())
            .map(|(link, pairs, sls)| {
                let grant = had.remove(&self.graph.links()[link.index()].from)?;
                let service_levels: ServiceLevelSet = grant.service_levels.iter().copied().collect();
                let share = Bandwidth::from_bits_per_s(share_of(pairs, rate, hosts.len()));
                let wait_ns = grant.wait_ns.unwrap_or_else(|| self.reservations.wait_ns(link, new_wait_ns));
                let is_same = grant.share == share && (!is_path || service_levels == sls);
                is_same.then_some(LinkShare { link, lane: grant.lane, service_levels, share, wait_ns })
            })
            .collect();
        let links = wanted.filter(|_| had.is_empty())?;
        // A cluster has one share of each link, so that one does not depend on another.
        if !links.iter().all(|share| self.reservations.is_available(share)) {
            return None;
        }
        let bound_ns = self.bound_ns(&hosts, None, &links);
        if request.latency_ns.is_some_and(|latency_ns| latency_ns < bound_ns) {
            return None;
        }
        links.iter().for_each(|share| self.reservations.retake(share));
        let everywhere = links.iter().fold(ServiceLevelSet::ALL, |sls, share| sls & share.service_levels);
        let AdmissionRequest { cluster, bandwidth, latency_ns, .. } = request;
        let service_level = everywhere.first().filter(|_| !is_path);
        self.record(Grant {
            cluster,
            hosts,
            bandwidth,
            latency_ns,
            service_level,
            pairs,
            paths: Vec::new(),
            up_ports: None,
            links,
            bound_ns,
        });
        self.grants.get(&cluster)
    }

    /// The service levels of pairs of switches by a plan; `None` if one is missing or superfluous.
    fn readmitted_pairs(
        &mut self,
        hosts: &[HostIndex],
        pairs: &[PairServiceLevel],
    ) -> Option<PairServiceLevels> {
        let graph = &self.graph;
        let switches: HashMap<Guid, u32> =
            hosts.iter().map(|host| (graph.switch_guid(*host), graph.switch_of(*host))).collect();
        let index = |pair: &PairServiceLevel| {
            let (a, b) = (*switches.get(&pair.switches.0)?, *switches.get(&pair.switches.1)?);
            Some(((a.min(b), a.max(b)), pair.service_level))
        };
        let had: PairServiceLevels = pairs.iter().map(index).collect::<Option<_>>()?;
        let again =
            self.demand.mark_pair_service_levels(graph, hosts, |switches| had.get(&switches).copied())?;
        (again.len() == pairs.len()).then_some(again)
    }

    /// Removes a cluster and returns its grant; `None` if it is not admitted.
    pub fn release(&mut self, cluster: ClusterNumber) -> Option<Grant> {
        let grant = self.grants.remove(&cluster)?;
        grant.links.iter().for_each(|share| self.reservations.give_back(share));
        grant.hosts.iter().for_each(|host| self.owners[host.index()] = None);
        Some(grant)
    }

    /// Undoes [`Self::release`]. Nothing of the grant may have been given to others since.
    pub(crate) fn restore(&mut self, grant: Grant) {
        grant.links.iter().for_each(|share| self.reservations.retake(share));
        self.record(grant);
    }

    /// Replaces the forwarding table of a switch in the graph. Grants stay as they are.
    pub(crate) fn set_table(&mut self, switch: usize, table: &Arc<LinearTable>) {
        Arc::make_mut(&mut self.graph).set_table(switch, table);
    }

    /// The hosts in order, if all are free.
    fn check_hosts(&self, request: AdmissionRequest<'_>) -> Result<Vec<HostIndex>, Refusal> {
        if self.grants.contains_key(&request.cluster) {
            return Err(Refusal::AlreadyAdmitted(request.cluster));
        }
        let mut hosts = request.hosts.to_vec();
        hosts.sort_unstable();
        let exists = hosts.last().is_some_and(|last| last.index() < self.owners.len());
        if !exists || hosts.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Refusal::InvalidHosts);
        }
        for host in &hosts {
            if let Some(cluster) = self.owner(*host) {
                return Err(Refusal::HostTaken { host: self.guid(*host), cluster });
            }
        }
        Ok(hosts)
    }

    /// Selected paths if the request asks for them, and with them the service level of the cluster.
    ///
    /// First any paths, if those leave a service level free; otherwise up to [`SERVICE_LEVELS_TRIED_MAX`] service levels,
    /// each with paths that avoid links where others own it.
    fn chosen(
        &self,
        request: AdmissionRequest<'_>,
        hosts: &[HostIndex],
        keep: Keep<'_>,
    ) -> Result<Option<(SelectedPaths, Option<ServiceLevel>)>, Refusal> {
        let Some(tree) = self.graph.tree().filter(|_| request.routes == RouteChoice::Selected) else {
            return Ok(None);
        };
        let kept = keep.up_ports(hosts);
        let no_path = |to| Refusal::NoPath { to: self.guid(to), bandwidth: request.bandwidth };
        let rate = self.reserved_rate(request);
        let mut selector = PathSelector::new(tree, &self.reservations, hosts, rate).map_err(no_path)?;
        if let Some(sl) = keep.sl().filter(|_| request.mode == SlMode::Cluster) {
            let chosen = selector.choose(sl.into(), &kept).map_err(no_path)?;
            return Ok(Some((chosen, Some(sl))));
        }
        if request.mode == SlMode::Path {
            return Ok(Some((selector.choose(ServiceLevelSet::EMPTY, &kept).map_err(no_path)?, None)));
        }
        let usable = self.graph.limits().cluster_service_levels();
        let is_taken = selector.sls_free(usable).is_empty();
        let by_spare = if is_taken { selector.sls_by_spare(usable) } else { Vec::new() };
        // Paths to at least as many hosts as there are up-ports, selected without regard to service levels, hardly ever
        // leave one free.
        let mut candidates = if is_taken && (by_spare.is_empty() || hosts.len() >= tree.leaf_ups) {
            by_spare
        } else {
            let any = selector.choose(ServiceLevelSet::EMPTY, &kept).map_err(no_path)?;
            let taken = |(link, _): &(LinkIndex, u64)| self.reservations.sls_taken(*link);
            if let Some(sl) = any.pairs.iter().fold(usable, |free, pairs| free - taken(pairs)).first() {
                return Ok(Some((any, Some(sl))));
            }
            self.sls_by_conflicts(&any, usable)
        };
        candidates.truncate(SERVICE_LEVELS_TRIED_MAX);
        let mut failed = hosts[0];
        for sl in candidates {
            match selector.choose(sl.into(), &kept) {
                Ok(chosen) => return Ok(Some((chosen, Some(sl)))),
                Err(host) => failed = host,
            }
        }
        Err(no_path(failed))
    }

    /// Service levels by the number of links on which others own them, then ascending.
    fn sls_by_conflicts(&self, chosen: &SelectedPaths, usable: ServiceLevelSet) -> Vec<ServiceLevel> {
        let mut conflicts = [0u32; 16];
        for (link, _) in &chosen.pairs {
            self.reservations.sls_taken(*link).iter().for_each(|sl| conflicts[sl.index()] += 1);
        }
        let mut sls: Vec<ServiceLevel> = usable.into();
        sls.sort_by_key(|sl| (conflicts[sl.index()], *sl));
        sls
    }

    /// The lowest service level that is free on all links.
    fn common_service_level(&self, all: ServiceLevelSet, count: u8) -> Result<ServiceLevel, Refusal> {
        let (mut free, mut worst) = (all, (usize::MAX, LinkIndex(0)));
        for (link, _) in self.demand.pairs() {
            let here = all - self.reservations.sls_taken(link);
            free &= here;
            worst = worst.min((here.len(), link));
        }
        let (least_free, link) = worst;
        let port = self.reservations.port(link);
        free.first().ok_or(Refusal::NoServiceLevelFree { port, free: least_free as u8, usable: count })
    }

    fn guid(&self, host: HostIndex) -> Guid {
        self.graph.hosts()[host.index()].port
    }
}

/// The rate that `pairs` ordered pairs of hosts need on a link if each of `hosts` sends `rate` to all others evenly, in
/// bits per second, rounded down.
fn share_of(pairs: u64, rate: u64, hosts: usize) -> u64 {
    let others = hosts.saturating_sub(1).max(1) as u64;
    match pairs.checked_mul(rate) {
        Some(product) => product / others,
        None => (u128::from(pairs) * u128::from(rate) / u128::from(others)) as u64,
    }
}
