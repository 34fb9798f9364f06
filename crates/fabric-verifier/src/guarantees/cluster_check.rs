//! Checks of one guaranteed cluster: its packets are carried with its service levels in its lanes, every link gives
//! them enough bandwidth, and the latency bound holds.
//!
//! Everything is computed from the tables, not from the compiler's accounts. If every lane of a link gets what it
//! needs in the worst case, the needs do not exceed the link, so sums are not checked separately. All ordered pairs
//! of ports are followed, those from one switch together: O(ports × switches of the cluster × path length).

use std::collections::{BTreeMap, HashMap};

use fabric_model::decisions::ClusterDecision;
use fabric_model::intent::{Capabilities, ClusterIntent};
use fabric_model::plan::PortSet;
use fabric_model::tenancy::{Bandwidth, Class, SlMode};
use fabric_model::{Intents, StatedHardware};
use ib_wire::{Guid, LaneSet, PortNum, ServiceLevel, ServiceLevelSet, VirtualLane};

use super::arbitration::{LaneService, PACKET_BYTES, PathBound};
use super::holdings::ClusterGrants;
use super::switch_inputs::{kept_by_cluster, kept_part, longest_wait_s};
use crate::bounded::BoundedFindings;
use crate::network::{Link, NextHop, PORTS, PlannedNetwork, SwitchIndex, port_of};
use crate::{Finding, LaneWait, Rule};

/// The findings about a cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClusterResult {
    pub findings: Vec<Finding>,
    /// Whether each service level of the cluster is carried in both directions or in neither between every two of its
    /// ports. With a service level for each pair of switches, whether that one is.
    pub is_even: bool,
}

/// A link that packets of the cluster take.
struct UsedLink {
    link: Link,
    /// Ordered pairs of ports whose packets take the link.
    pairs: u64,
    /// One of these pairs, as a witness.
    from: usize,
    to: usize,
    /// Service levels and lane that the cluster was granted on the link.
    held: Option<(ServiceLevelSet, VirtualLane)>,
    service: Option<LaneService>,
    /// The input ports that were checked, by service level.
    inputs: Vec<(ServiceLevel, PortSet)>,
}

/// The service levels of a cluster's packets.
enum ClusterLevels {
    /// One for the whole cluster; `None` if the plan has none that all links carry.
    One(Option<ServiceLevel>),
    /// By pair of switches, the lower index first.
    Pairs(HashMap<(SwitchIndex, SwitchIndex), ServiceLevel>),
}

impl ClusterLevels {
    fn between(&self, a: SwitchIndex, b: SwitchIndex) -> Option<ServiceLevel> {
        match self {
            Self::One(level) => *level,
            Self::Pairs(pairs) => pairs.get(&(a.min(b), a.max(b))).copied(),
        }
    }
}

/// Ports of the cluster at one switch.
struct SwitchGroup {
    switch: SwitchIndex,
    ends: Vec<usize>,
}

/// Checks clusters one after the other. Its buffers are reused for every cluster.
pub(super) struct ClusterChecker<'a> {
    network: &'a PlannedNetwork<'a>,
    intents: &'a Intents,
    /// One more than the index into `used`, by link; 0 for links that are not used.
    slots: Vec<u32>,
    used: Vec<UsedLink>,
}

impl<'a> ClusterChecker<'a> {
    pub fn new(network: &'a PlannedNetwork<'a>, intents: &'a Intents) -> Self {
        Self { network, intents, slots: vec![0; network.link_count()], used: Vec::new() }
    }

    /// Checks a cluster against what the plan grants it.
    pub fn check(&mut self, cluster: &ClusterIntent, grants: ClusterGrants<'_>) -> ClusterResult {
        let name = || cluster.name.clone();
        let is_intended = |decision: &&ClusterDecision| {
            decision.ports == cluster.ports
                && decision.class == cluster.class
                && decision.sl_mode == cluster.sl_mode
        };
        let intended = self.intents.class_weights.get(&cluster.name).map_or(1, Vec::len);
        let is_divided_as_intended = grants.classes.is_none() || grants.further_classes() + 1 == intended;
        let Some(decision) = grants.decision.filter(is_intended).filter(|_| is_divided_as_intended) else {
            let findings = vec![Finding::GuaranteeMissing { cluster: name() }];
            return ClusterResult { findings, is_even: false };
        };
        let mut result = ClusterResult { findings: Vec::new(), is_even: true };
        // The first class, then the others.
        for class in std::iter::once(None).chain((0..grants.further_classes()).map(Some)) {
            let mut check = ClusterCheck {
                network: self.network,
                capabilities: &self.intents.capabilities,
                hardware: &self.intents.hardware,
                is_routed: is_routed(cluster, self.intents),
                class,
                slots: &mut self.slots,
                used: &mut self.used,
                cluster,
                decision,
                grants,
                held: HashMap::with_capacity(decision.links.len()),
                lanes: HashMap::new(),
                findings: BoundedFindings::part(Rule::Guarantees),
            };
            result.is_even &= check.run();
            result.findings.extend(check.findings.finish());
            for used in self.used.drain(..) {
                self.slots[used.link] = 0;
            }
        }
        result.is_even &= result.findings.is_empty();
        result
    }
}

/// Whether the tenant overrides routes to ports of the cluster.
pub(super) fn is_routed(cluster: &ClusterIntent, intents: &Intents) -> bool {
    !intents.route_overrides.is_empty()
        && cluster.ports.iter().any(|port| intents.route_overrides.contains_key(port))
}

/// The check of one class of one cluster.
struct ClusterCheck<'a, 'j> {
    network: &'a PlannedNetwork<'a>,
    capabilities: &'a Capabilities,
    hardware: &'a StatedHardware,
    /// The tenant chose routes: how much of its bandwidth they leave is not checked, but which links they take is.
    is_routed: bool,
    /// Index of the class among those after the first; `None` for the first.
    class: Option<usize>,
    slots: &'j mut Vec<u32>,
    used: &'j mut Vec<UsedLink>,
    cluster: &'j ClusterIntent,
    decision: &'j ClusterDecision,
    grants: ClusterGrants<'j>,
    held: HashMap<Link, (ServiceLevelSet, VirtualLane)>,
    /// The lanes of all classes, if the cluster has several classes.
    lanes: HashMap<Link, LaneSet>,
    findings: BoundedFindings,
}

/// The path with the highest latency bound.
struct Latest {
    bound_ns: f64,
    from: usize,
    to: usize,
}

impl ClusterCheck<'_, '_> {
    /// Makes all checks and returns whether service levels are carried evenly, see [`ClusterResult::is_even`].
    fn run(&mut self) -> bool {
        let ends = self.ends();
        self.check_grants(&ends);
        let groups = self.groups(&ends);
        let levels = self.levels(&groups);
        let latest = self.walk(&ends, &groups, &levels);
        self.check_shares(ends.len());
        if let Some(latest) = latest {
            self.check_latency(&latest);
        }
        match levels {
            // Granted service levels other than the cluster's own are not followed.
            ClusterLevels::One(level) => {
                let own = level.map_or(ServiceLevelSet::EMPTY, ServiceLevelSet::of);
                self.held.values().all(|(levels, _)| *levels == own)
            }
            // Packets were followed in both directions.
            ClusterLevels::Pairs(_) => true,
        }
    }

    /// The cluster's ports, by index among the end ports.
    fn ends(&mut self) -> Vec<usize> {
        let mut ends = Vec::with_capacity(self.cluster.ports.len());
        for port in &self.cluster.ports {
            let end = self.network.end(*port).filter(|end| {
                let end = &self.network.ends()[*end];
                !end.is_switch() && end.home.is_some()
            });
            match end {
                Some(end) if !ends.contains(&end) => ends.push(end),
                Some(_) => {}
                None => self.findings.push(Finding::ClusterPortMissing { cluster: self.name(), port: *port }),
            }
        }
        ends
    }

    /// Checks that grants are on existing links, and not on cables of ports outside the cluster.
    fn check_grants(&mut self, ends: &[usize]) {
        if self.grants.classes.is_some() {
            for (port, _, lane) in self.grants.parts() {
                if let Some(link) = self.network.link(port) {
                    self.lanes.entry(link).or_default().insert(lane);
                }
            }
        }
        let grants = self.grants;
        let own = ClusterGrants { classes: None, ..grants }.parts().filter(|_| self.class.is_none());
        let further = self.class.into_iter().flat_map(|class| grants.class(class));
        for (port, levels, lane) in own.chain(further) {
            let Some(link) = self.network.link(port) else {
                self.findings.push(Finding::GrantWithoutLink { cluster: self.name(), port });
                continue;
            };
            let end = match link.checked_sub(self.network.link_of_end(0)) {
                Some(end) => Some(end),
                None => match self.network.next(link / PORTS, port_of(link)) {
                    NextHop::EndPort(end) => Some(end as usize),
                    _ => None,
                },
            };
            if end.is_some_and(|end| !ends.contains(&end)) {
                self.findings.push(Finding::GrantOnForeignPort { cluster: self.name(), port });
            }
            self.held.insert(link, (levels, lane));
        }
    }

    fn groups(&self, ends: &[usize]) -> Vec<SwitchGroup> {
        let mut groups: BTreeMap<SwitchIndex, Vec<usize>> = BTreeMap::new();
        for end in ends {
            if let Some((switch, _)) = self.network.ends()[*end].home {
                groups.entry(switch).or_default().push(*end);
            }
        }
        groups.into_iter().map(|(switch, ends)| SwitchGroup { switch, ends }).collect()
    }

    /// Determines the service levels of the cluster's packets, and reports missing ones.
    fn levels(&mut self, groups: &[SwitchGroup]) -> ClusterLevels {
        let further = self.grants.classes.zip(self.class);
        if let Some((classes, class)) = further {
            return ClusterLevels::One(classes.service_levels.get(class).copied());
        }
        if self.cluster.sl_mode == SlMode::Cluster {
            let level = self.decision.service_level();
            if level.is_none() && !groups.is_empty() {
                self.findings.push(Finding::ServiceLevelMissing { cluster: self.name(), between: None });
            }
            return ClusterLevels::One(level);
        }
        let guid = |group: &SwitchGroup| self.network.switches[group.switch].guid;
        let by_guid: HashMap<Guid, SwitchIndex> =
            groups.iter().map(|group| (guid(group), group.switch)).collect();
        let mut pairs = HashMap::with_capacity(self.decision.pairs.len());
        for pair in &self.decision.pairs {
            let (a, b) = pair.switches;
            if let (Some(a), Some(b)) = (by_guid.get(&a), by_guid.get(&b)) {
                // The first of two entries counts.
                pairs.entry((*a.min(b), *a.max(b))).or_insert(pair.service_level);
            }
        }
        for (index, a) in groups.iter().enumerate() {
            for b in groups[index..].iter().filter(|b| !pairs.contains_key(&(a.switch, b.switch))) {
                let between = Some((guid(a), guid(b)));
                self.findings
                    .push(Finding::ServiceLevelMissing { cluster: self.cluster.name.clone(), between });
            }
        }
        ClusterLevels::Pairs(pairs)
    }

    /// Follows the packets from every port to every other, those from one switch together, and returns the slowest
    /// path.
    fn walk(&mut self, ends: &[usize], groups: &[SwitchGroup], levels: &ClusterLevels) -> Option<Latest> {
        // A cluster of one port still has its cable.
        let others = (ends.len() as u64).saturating_sub(1).max(1);
        for end in ends {
            self.count_pairs(self.network.link_of_end(*end), others, *end, *end);
            let Some((switch, port)) = self.network.ends()[*end].home else { continue };
            let level = levels.between(switch, switch);
            self.check_hop(self.network.link_of_end(*end), None, level, *end, *end);
            if ends.len() == 1 {
                let cable = switch * PORTS + port.index();
                self.count_pairs(cable, others, *end, *end);
            }
        }
        let (mut latest, mut steps): (Option<Latest>, _) = (None, Vec::new());
        for to in ends {
            let Some((home, _)) = self.network.ends()[*to].home else { continue };
            for group in groups {
                let level = levels.between(group.switch, home);
                let count = group.ends.iter().filter(|from| *from != to).count();
                let Some(first) = group.ends.iter().find(|from| *from != to) else { continue };
                if !self.follow(group.switch, *to, &mut steps) {
                    let [from, to] = [*first, *to].map(|end| self.guid(end));
                    self.findings.push(Finding::ClusterPortUnreached { cluster: self.name(), from, to });
                    continue;
                }
                let path = self.take(&steps, count as u64, (*first, *to), level);
                let Some((first_link, _)) = steps.first().copied() else { continue };
                for from in group.ends.iter().filter(|from| *from != to) {
                    let input = self.network.ends()[*from].home.map(|(_, input)| input);
                    let own = self.network.link_of_end(*from);
                    // A service level for the whole cluster was checked above.
                    if let ClusterLevels::Pairs(_) = levels {
                        self.check_hop(own, None, level, *from, *to);
                    }
                    self.check_hop(first_link, input, level, *from, *to);
                    let own = self.service(own);
                    let Some(path) = path.zip(own).map(|(path, own)| path.then(&own)) else { continue };
                    let bound_ns = path.bound_ns();
                    if latest.as_ref().is_none_or(|latest| latest.bound_ns < bound_ns) {
                        latest = Some(Latest { bound_ns, from: *from, to: *to });
                    }
                }
            }
        }
        latest
    }

    /// Counts pairs on the links of a path and checks its hops after the first one; the first hop depends on the
    /// sender's port.
    fn take(
        &mut self,
        steps: &[(Link, PortNum)],
        count: u64,
        (from, to): (usize, usize),
        level: Option<ServiceLevel>,
    ) -> Option<PathBound> {
        let mut path = Some(PathBound::START);
        for (step, (link, input)) in steps.iter().enumerate() {
            self.count_pairs(*link, count, from, to);
            if step > 0 {
                self.check_hop(*link, Some(*input), level, from, to);
            }
            path = path.zip(self.service(*link)).map(|(path, service)| path.then(&service));
        }
        path
    }

    /// Collects the links from a switch to an end port, each with the input port before it. Returns false if packets
    /// do not arrive.
    fn follow(&self, from: SwitchIndex, to: usize, steps: &mut Vec<(Link, PortNum)>) -> bool {
        let lid = self.network.ends()[to].lid;
        let (mut here, mut input) = (from, PortNum::MANAGEMENT);
        steps.clear();
        while steps.len() <= self.network.switches.len() {
            let Some(exit) = self.network.exit(here, lid) else { return false };
            steps.push((here * PORTS + exit.index(), input));
            match self.network.next(here, exit) {
                NextHop::Switch(there, port) => (here, input) = (there as SwitchIndex, port),
                NextHop::EndPort(end) => return end as usize == to,
                _ => return false,
            }
        }
        false
    }

    /// Adds ordered pairs of ports to a link.
    fn count_pairs(&mut self, link: Link, pairs: u64, from: usize, to: usize) {
        if let Some(slot) = self.slots[link].checked_sub(1) {
            self.used[slot as usize].pairs += pairs;
            return;
        }
        let held = self.held.get(&link).copied();
        let service = held.and_then(|(_, lane)| {
            let (sharing, _) = self.network.link_sharing(link);
            let same = self.lanes.get(&link).copied().unwrap_or_default();
            let service = LaneService::of(&sharing?.low, lane, same, self.network.rate(link))?;
            Some(service.with_passage(self.passage_ps(link)))
        });
        self.used.push(UsedLink { link, pairs, from, to, held, service, inputs: Vec::new() });
        self.slots[link] = self.used.len() as u32;
    }

    /// The longest time from the output of a link to that of the next switch, or to the receiver, in picoseconds.
    fn passage_ps(&self, link: Link) -> u64 {
        let passage = self.network.link_rate(link).map_or(0, |rate| self.hardware.passage(rate).total_ns());
        let is_to_switch = match link.checked_sub(self.network.link_of_end(0)) {
            Some(_) => true,
            None => matches!(self.network.next(link / PORTS, port_of(link)), NextHop::Switch(..)),
        };
        let input_s = match is_to_switch {
            true => longest_wait_s(self.hardware.switch_model, self.lanes_of(link), self.network.rate(link)),
            false => 0.0,
        };
        1000 * u64::from(passage) + (input_s * 1e12).ceil() as u64
    }

    /// The number of lanes that a link serves.
    fn lanes_of(&self, link: Link) -> usize {
        let (sharing, _) = self.network.link_sharing(link);
        let entries = sharing.into_iter().flat_map(|sharing| &sharing.low);
        entries.filter(|entry| entry.weight != 0).map(|entry| entry.lane).collect::<LaneSet>().len()
    }

    /// The part of a link's share that the inputs before it leave to the cluster. An adapter has none.
    fn part_kept(&self, used: &UsedLink) -> f64 {
        if used.link >= self.network.link_of_end(0) {
            return 1.0;
        }
        let inputs = used.inputs.iter().flat_map(|(_, inputs)| inputs.iter());
        let into = inputs.filter_map(|input| self.network.link_into(used.link / PORTS, input));
        let lanes = into.map(|link| self.lanes_of(link)).max();
        lanes.map_or(1.0, |lanes| kept_part(self.hardware.switch_model, lanes))
    }

    fn service(&self, link: Link) -> Option<LaneService> {
        let slot = self.slots[link].checked_sub(1)?;
        self.used[slot as usize].service
    }

    /// Whether a link maps a service level to the cluster's lane for an input port; `None` is the sender itself.
    fn carries(&self, link: Link, input: Option<PortNum>, sl: ServiceLevel) -> bool {
        let Some((levels, lane)) = self.held.get(&link).copied() else { return false };
        let (Some(sharing), lanes) = self.network.link_sharing(link) else { return false };
        let listed = input.and_then(|input| sharing.by_input.get(&input));
        let map = listed.unwrap_or(&sharing.otherwise);
        levels.contains(sl) && lane.to_wire() < lanes && map.lane(sl) == lane
    }

    /// Checks that a hop maps a service level to the cluster's lane. Each input port is checked once for each service
    /// level.
    fn check_hop(
        &mut self,
        link: Link,
        input: Option<PortNum>,
        level: Option<ServiceLevel>,
        from: usize,
        to: usize,
    ) {
        let Some(slot) = self.slots[link].checked_sub(1) else { return };
        let Some(sl) = level else { return };
        let levels = &mut self.used[slot as usize].inputs;
        let known = levels.iter().position(|(level, _)| *level == sl).unwrap_or_else(|| {
            levels.push((sl, PortSet::EMPTY));
            levels.len() - 1
        });
        let (inputs, seen) = (&mut levels[known].1, input.unwrap_or(PortNum::MANAGEMENT));
        if inputs.contains(seen) {
            return;
        }
        inputs.insert(seen);
        if !self.held.contains_key(&link) {
            return;
        }
        if !self.carries(link, input, sl) {
            let at = self.network.link_name(link);
            let (cluster, [from, to]) = (self.name(), [from, to].map(|end| self.guid(end)));
            self.findings.push(Finding::ServiceLevelDiscarded { cluster, sl, from, to, at, input });
        }
    }

    /// Checks that every link gives the cluster the bandwidth and the buffer that its pairs need.
    fn check_shares(&mut self, ports: usize) {
        let bandwidth = match self.cluster.class {
            Class::Guaranteed { bandwidth, .. } => bandwidth.bits_per_s(),
            Class::BestEffort => 0,
        };
        let others = (ports as u128).saturating_sub(1).max(1);
        let mut findings = Vec::new();
        for used in self.used.iter() {
            let (cluster, port) = (self.name(), self.network.link_name(used.link));
            let Some((_, lane)) = used.held else {
                let [from, to] = [used.from, used.to].map(|end| self.guid(end));
                findings.push(Finding::GrantMissing { cluster, port, from, to });
                continue;
            };
            let Some(service) = used.service else {
                findings.push(Finding::LaneUnserved { cluster, port, lane });
                continue;
            };
            // The bandwidth of all classes together was checked with the first.
            if self.is_routed || self.class.is_some() {
                continue;
            }
            let needed = u128::from(used.pairs) * u128::from(bandwidth) / others;
            let needed = u64::try_from(needed).unwrap_or(u64::MAX);
            let part = self.part_kept(used) * kept_by_cluster(self.hardware.switch_model, ports);
            let given = (service.share() as f64 * part) as u64;
            if given < needed {
                let [needed, given] = [needed, given].map(Bandwidth::from_bits_per_s);
                let entry = service.entry;
                findings.push(Finding::ShareTooSmall { cluster, port, lane, entry, needed, given });
                continue;
            }
            if let Some((needed, held)) = self.buffer_short(used.link, needed) {
                findings.push(Finding::BufferTooSmall { cluster, port, needed, held });
            }
        }
        self.findings.extend(findings);
    }

    /// The bytes of lane buffer that a share needs behind a link and those there are, if the buffer is known and too
    /// small. Needed are one credit round trip of the share and one packet.
    fn buffer_short(&self, link: Link, share: u64) -> Option<(u64, u64)> {
        let buffer = self.capabilities.port(self.network.receiver(link)?).lane_buffer?;
        let under_way = (u128::from(share) * u128::from(buffer.round_trip_ns)).div_ceil(8_000_000_000);
        let needed = PACKET_BYTES + u64::try_from(under_way).unwrap_or(u64::MAX - PACKET_BYTES);
        let held = u64::from(buffer.bytes);
        (held < needed).then_some((needed, held))
    }

    /// Checks the latency of the slowest path.
    fn check_latency(&mut self, latest: &Latest) {
        let requested = match self.cluster.class {
            Class::Guaranteed { latency_ns, .. } => latency_ns,
            Class::BestEffort => None,
        };
        // Without a latency in the intents, waiting for the cluster's other classes is not checked. With one,
        // the first class keeps it.
        if self.class.is_some() || self.grants.classes.is_some() && requested.is_none() {
            return;
        }
        let guaranteed_ns =
            requested.map_or(self.decision.bound_ns, |requested| requested.min(self.decision.bound_ns));
        // The guaranteed bound was rounded up.
        let bound_ns = latest.bound_ns.floor() as u64;
        if bound_ns <= guaranteed_ns {
            return;
        }
        let mut steps = Vec::new();
        if let Some((switch, _)) = self.network.ends()[latest.from].home {
            self.follow(switch, latest.to, &mut steps);
        }
        let links =
            [self.network.link_of_end(latest.from)].into_iter().chain(steps.iter().map(|step| step.0));
        let waits = links.filter_map(|link| {
            let (service, (_, lane)) = (self.service(link)?, self.held.get(&link).copied()?);
            let wait_ns = (service.wait_s() * 1e9) as u64;
            Some(LaneWait { port: self.network.link_name(link), lane, entry: service.entry, wait_ns })
        });
        let waits = waits.collect();
        let [from, to] = [latest.from, latest.to].map(|end| self.guid(end));
        let cluster = self.name();
        self.findings.push(Finding::LatencyExceeded { cluster, from, to, bound_ns, guaranteed_ns, waits });
    }

    fn name(&self) -> String {
        self.cluster.name.clone()
    }

    fn guid(&self, end: usize) -> Guid {
        self.network.ends()[end].guid
    }
}
