//! Sharing: every service level that a link carries has a lane with weight, no lane has strict priority, and service
//! levels that are carried in one direction are also carried back.
//!
//! Only ports whose SL-to-VL and arbitration tables are planned are checked. All others are left to their devices,
//! which carry every service level.

use std::collections::{BTreeMap, BTreeSet};

use fabric_model::intent::PortName;
use fabric_model::plan::{GroupPlan, PortQos};
use fabric_model::tenancy::{Class, SlMode};
use ib_wire::{LaneSet, Lid, PortNum, ServiceLevel, ServiceLevelSet, SlToVl, VirtualLane};

use crate::bounded::{BoundedFindings, bounded};
use crate::capacities::{levels, maps};
use crate::network::{Link, NextHop, PORTS, PlannedNetwork, SwitchIndex};
use crate::{Finding, Reading, Rule};

pub(crate) fn check(read: &Reading<'_>) -> Vec<Finding> {
    let ports = Ports::of(&read.network);
    let mut findings: Vec<Finding> = ports.findings().cloned().collect();
    findings.extend(check_paths(read, &ports));
    findings
}

/// Checks between ports: groups, and the return path of every service level.
pub(crate) fn check_paths(read: &Reading<'_>, ports: &Ports) -> Vec<Finding> {
    let mut findings = BoundedFindings::whole(Rule::Sharing);
    if !ports.is_planned {
        return Vec::new();
    }
    // If every port carries service level 0, groups with service level 0 need not be followed.
    let is_followed =
        |group: &GroupPlan| group.sl != ServiceLevel::default() || !ports.all_take_best_effort();
    let are_even = read.guarantees().are_levels_even();
    if are_even && !read.network.plan.groups().any(is_followed) {
        return Vec::new();
    }
    let levels = CarriedLevels::new(&read.network);
    levels.groups(&mut findings);
    if !are_even {
        levels.check_return_paths(&by_pairs(read), &mut findings);
    }
    findings.finish()
}

/// By end port, the cluster with a service level for each pair of switches (`SlMode::Path`), if it is in one. Other
/// service levels need not come back between its ports: they stay in the cluster's lanes, and the guarantee checks
/// follow the right one in both directions.
fn by_pairs(read: &Reading<'_>) -> Vec<Option<usize>> {
    let mut clusters = vec![None; read.network.ends().len()];
    for (index, cluster) in read.intents.clusters.iter().enumerate() {
        if cluster.class != Class::BestEffort && cluster.sl_mode == SlMode::Path {
            let ends = cluster.ports.iter().filter_map(|port| read.network.end(*port));
            ends.for_each(|end| clusters[end] = Some(index));
        }
    }
    clusters
}

/// Findings about SL-to-VL and arbitration tables, by port.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ports {
    /// Whether the plan has SL-to-VL and arbitration tables for any link.
    pub is_planned: bool,
    /// Ports with findings, or that do not carry service level 0.
    found: BTreeMap<Link, PortResult>,
}

#[derive(Clone, Debug, Default)]
struct PortResult {
    findings: Vec<Finding>,
    /// Whether service level 0 has an existing lane for every input port.
    takes_best_effort: bool,
}

impl Ports {
    pub fn of(network: &PlannedNetwork<'_>) -> Self {
        let mut ports = Self::default();
        for (switch_index, switch) in network.switches.iter().enumerate() {
            for port in switch.ports.iter() {
                ports.check(network, switch_index * PORTS + port.number.index());
            }
        }
        for end in 0..network.ends().len() {
            ports.check(network, network.link_of_end(end));
        }
        ports
    }

    pub fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.found.values().flat_map(|port| &port.findings)
    }

    /// Checks the port that sends on a link.
    pub fn check(&mut self, network: &PlannedNetwork<'_>, link: Link) {
        let (sharing, lanes) = network.link_sharing(link);
        self.is_planned |= sharing.is_some();
        let found = sharing.map(|sharing| PortResult::of(network.link_name(link), sharing, lanes));
        match found.filter(|found| !found.findings.is_empty() || !found.takes_best_effort) {
            Some(found) => drop(self.found.insert(link, found)),
            None => drop(self.found.remove(&link)),
        }
    }

    fn all_take_best_effort(&self) -> bool {
        self.found.values().all(|port| port.takes_best_effort)
    }
}

impl PortResult {
    fn of(port: PortName, sharing: &PortQos, lanes: u8) -> Self {
        let mut found = Self { findings: Vec::new(), takes_best_effort: true };
        for (index, entry) in sharing.high.iter().enumerate().filter(|(_, entry)| entry.weight != 0) {
            found.findings.push(Finding::HighPriorityWeight { port, index, lane: entry.lane });
        }
        let served = sharing.low.iter().filter(|entry| entry.weight != 0);
        let served: LaneSet = served.map(|entry| entry.lane).collect();
        for (input, map) in maps(sharing) {
            let best_effort = map.lane(ServiceLevel::default());
            if best_effort == VirtualLane::MANAGEMENT {
                found.findings.push(Finding::BestEffortDiscarded { port, input });
            }
            found.takes_best_effort &= best_effort.to_wire() < lanes;
            for (sl, lane) in levels(map) {
                if lane != VirtualLane::MANAGEMENT && !served.contains(lane) {
                    found.findings.push(Finding::LaneWithoutWeight { port, input, sl, lane });
                }
            }
        }
        found.findings = bounded(Rule::Sharing, found.findings);
        found
    }
}

/// The service levels that arrive over a path.
#[derive(Clone, Copy)]
struct Carried {
    levels: ServiceLevelSet,
    /// Whether there is a path at all; if not, `levels` is empty.
    arrives: bool,
}

impl Carried {
    const NO_PATH: Self = Self { levels: ServiceLevelSet::EMPTY, arrives: false };
    /// A path without hops.
    const ALL: Self = Self { levels: ServiceLevelSet::ALL, arrives: true };

    /// What arrives if the path also has to pass a hop that carries `levels`.
    #[inline]
    fn through(self, levels: ServiceLevelSet) -> Self {
        Self { levels: self.levels & levels, ..self }
    }
}

/// Service level 0, which is checked port by port.
const BEST_EFFORT: ServiceLevelSet = ServiceLevelSet::from_bits(1);

fn set_of(map: &SlToVl, lanes: u8) -> ServiceLevelSet {
    let taken = levels(map).filter(|(_, lane)| *lane != VirtualLane::MANAGEMENT && lane.to_wire() < lanes);
    taken.fold(ServiceLevelSet::EMPTY, |set, (sl, _)| set | sl.into())
}

/// The service levels that each hop (input-output pair) of a switch carries.
struct Hops {
    /// Number of ports including port 0.
    width: usize,
    /// By output port, then input port.
    sets: Vec<ServiceLevelSet>,
}

impl Hops {
    fn at(network: &PlannedNetwork<'_>, switch_index: SwitchIndex) -> Self {
        let width = network.port_count(switch_index) + 1;
        let mut sets = vec![ServiceLevelSet::ALL; width * width];
        for port in network.switches[switch_index].ports.iter() {
            let (Some(sharing), true) = (&port.qos, port.number.index() < width) else { continue };
            let lanes = port.lanes.count();
            let of_exit = &mut sets[port.number.index() * width..][..width];
            of_exit.fill(set_of(&sharing.otherwise, lanes));
            for (input, map) in sharing.by_input.iter().filter(|(input, _)| input.index() < width) {
                of_exit[input.index()] = set_of(map, lanes);
            }
        }
        Self { width, sets }
    }

    #[inline]
    fn levels(&self, input: PortNum, exit: PortNum) -> ServiceLevelSet {
        self.sets.get(exit.index() * self.width + input.index()).copied().unwrap_or(ServiceLevelSet::ALL)
    }
}

/// Follows service levels along paths.
struct CarriedLevels<'a> {
    network: &'a PlannedNetwork<'a>,
    /// By switch index.
    hops: Vec<Hops>,
    /// Service levels that an adapter sends, by end port.
    sent: Vec<ServiceLevelSet>,
}

impl<'a> CarriedLevels<'a> {
    fn new(network: &'a PlannedNetwork<'a>) -> Self {
        let sent = |end: usize| {
            let sharing = network.end_sharing(end);
            sharing.map_or(ServiceLevelSet::ALL, |sharing| set_of(&sharing.otherwise, network.end_lanes(end)))
        };
        let hops = (0..network.switches.len()).map(|switch_index| Hops::at(network, switch_index)).collect();
        Self { network, hops, sent: (0..network.ends().len()).map(sent).collect() }
    }

    /// The service levels of a hop.
    #[inline]
    fn hop(&self, switch_index: SwitchIndex, input: PortNum, exit: PortNum) -> ServiceLevelSet {
        self.hops[switch_index].levels(input, exit)
    }

    /// Checks that the service level of each group passes every hop of its tree.
    fn groups(&self, findings: &mut BoundedFindings) {
        let network = self.network;
        for group in network.plan.groups() {
            let (mlid, sl) = (group.mlid, group.sl);
            let takes = |set: ServiceLevelSet| set.contains(sl);
            let mut starts: Vec<(SwitchIndex, PortNum)> = Vec::new();
            for end in group.members.iter().filter_map(|guid| network.end(*guid)) {
                starts.extend(network.ends()[end].home);
                if !takes(self.sent[end]) {
                    let at = network.ends()[end].name;
                    findings.push(Finding::GroupServiceLevelDiscarded { mlid, sl, at, input: None });
                }
            }
            let mut seen: BTreeSet<(SwitchIndex, PortNum)> = BTreeSet::new();
            while let Some((switch_index, input)) = starts.pop() {
                if !seen.insert((switch_index, input)) {
                    continue;
                }
                let exits = network.switches[switch_index].multicast.exit(mlid);
                for exit in exits.iter().filter(|exit| *exit != input) {
                    if !takes(self.hop(switch_index, input, exit)) {
                        let at = network.port_name(switch_index, exit);
                        findings.push(Finding::GroupServiceLevelDiscarded {
                            mlid,
                            sl,
                            at,
                            input: Some(input),
                        });
                    } else if let NextHop::Switch(there, input) = network.next(switch_index, exit) {
                        starts.push((there as SwitchIndex, input));
                    }
                }
            }
        }
    }

    /// Checks that between every two adapters a service level passes in both directions or in neither. Pairs within a
    /// cluster with a service level for each pair of switches are exempt.
    fn check_return_paths(&self, by_pairs: &[Option<usize>], findings: &mut BoundedFindings) {
        let network = self.network;
        // Grouped by switch, so that what is read together is adjacent in memory.
        let mut leaves: BTreeMap<SwitchIndex, Vec<usize>> = BTreeMap::new();
        for (index, end) in network.ends().iter().enumerate().filter(|(_, end)| !end.is_switch()) {
            if let Some((home, _)) = end.home {
                leaves.entry(home).or_default().push(index);
            }
        }
        let leaves: Vec<(SwitchIndex, Vec<usize>)> = leaves.into_iter().collect();
        let firsts: Vec<usize> = (leaves.iter())
            .scan(0, |first, (_, ends)| Some(std::mem::replace(first, *first + ends.len())))
            .collect();
        let count = leaves.iter().map(|(_, ends)| ends.len()).sum::<usize>();
        // By leaf switch, then end port: what arrives from the leaf's exit at the end port.
        let mut carried: Vec<Carried> = vec![Carried::NO_PATH; leaves.len() * count];
        for (index, end) in leaves.iter().flat_map(|(_, ends)| ends).enumerate() {
            let column = self.column(*end);
            for (leaf, (switch_index, _)) in leaves.iter().enumerate() {
                carried[leaf * count + index] = column[*switch_index];
            }
        }
        let is_by_pairs = |a: usize, b: usize| by_pairs[a].is_some() && by_pairs[a] == by_pairs[b];
        let mut reported: BTreeSet<(ServiceLevel, PortName, Option<PortNum>)> = BTreeSet::new();
        for (leaf, (_, ends)) in leaves.iter().enumerate() {
            for (other, (_, others)) in leaves.iter().enumerate().skip(leaf) {
                for (a, first) in ends.iter().zip(firsts[leaf]..) {
                    for (b, second) in others.iter().zip(firsts[other]..) {
                        let there = self.carried(*a, *b, carried[leaf * count + second]);
                        let back = self.carried(*b, *a, carried[other * count + first]);
                        // Few pairs differ: all else is looked up only for those.
                        if there.levels != back.levels
                            && there.arrives
                            && back.arrives
                            && !is_by_pairs(*a, *b)
                        {
                            let (there, back) = (there.levels, back.levels);
                            self.report_one_way(*a, *b, there, back, &mut reported, findings);
                        }
                    }
                }
            }
        }
    }

    /// Reports the service levels that pass in one direction only, with one witness for each port that discards them.
    fn report_one_way(
        &self,
        a: usize,
        b: usize,
        there: ServiceLevelSet,
        back: ServiceLevelSet,
        reported: &mut BTreeSet<(ServiceLevel, PortName, Option<PortNum>)>,
        findings: &mut BoundedFindings,
    ) {
        for sl in (there - back) | (back - there) {
            let (from, to) = if there.contains(sl) { (a, b) } else { (b, a) };
            let (at, input) = self.discarded(to, from, sl);
            if reported.insert((sl, at, input)) {
                findings.push(self.one_way(sl, from, to, at, input));
            }
        }
    }

    /// The service levels that arrive at an end port from the exit of each switch.
    fn column(&self, to: usize) -> Vec<Carried> {
        let network = self.network;
        let lid = network.ends()[to].lid;
        let mut column: Vec<Option<Carried>> = vec![None; network.switches.len()];
        let mut path: Vec<SwitchIndex> = Vec::new();
        for start in 0..column.len() {
            let mut here = start;
            path.clear();
            let mut carried = loop {
                if let Some(known) = column[here] {
                    break known;
                }
                // A loop finds itself here, and carries nothing.
                column[here] = Some(Carried::NO_PATH);
                path.push(here);
                let Some(exit) = network.exit(here, lid) else { break Carried::NO_PATH };
                match network.next(here, exit) {
                    NextHop::Switch(there, _) => here = there as SwitchIndex,
                    NextHop::EndPort(end) if end as usize == to => break Carried::ALL,
                    _ => break Carried::NO_PATH,
                }
            };
            // Backwards from the switch whose result is known, or from the last switch, whose exit leads to the end
            // port.
            let mut before = (path.last() != Some(&here)).then_some(here);
            for switch_index in path.iter().rev() {
                if let Some(there) = before {
                    let levels = self.onward(*switch_index, there, lid);
                    carried = levels.map_or(Carried::NO_PATH, |levels| carried.through(levels));
                }
                column[*switch_index] = Some(carried);
                before = Some(*switch_index);
            }
        }
        column.into_iter().map(|carried| carried.unwrap_or(Carried::NO_PATH)).collect()
    }

    /// The service levels that the hop at `here` carries for packets that come from `before`; `None` if there is no
    /// such hop.
    fn onward(&self, before: SwitchIndex, here: SwitchIndex, lid: Lid) -> Option<ServiceLevelSet> {
        let network = self.network;
        let input = match network.exit(before, lid).map(|exit| network.next(before, exit)) {
            Some(NextHop::Switch(_, input)) => input,
            _ => return None,
        };
        Some(self.hop(here, input, network.exit(here, lid)?))
    }

    /// The service levels that arrive from one end port at another, given what arrives from the exit of its switch.
    #[inline]
    fn carried(&self, from: usize, to: usize, onward: Carried) -> Carried {
        let Some((home, input)) = self.network.ends()[from].home else { return Carried::NO_PATH };
        let lid = self.network.ends()[to].lid;
        let Some(exit) = self.network.exit(home, lid) else { return Carried::NO_PATH };
        onward.through((self.sent[from] & self.hop(home, input, exit)) - BEST_EFFORT)
    }

    /// The port that discards a service level on the path between two end ports, and the input port there.
    fn discarded(&self, from: usize, to: usize, sl: ServiceLevel) -> (PortName, Option<PortNum>) {
        let network = self.network;
        let takes = |set: ServiceLevelSet| set.contains(sl);
        let own = (network.ends()[from].name, None);
        let Some((mut here, mut input)) = network.ends()[from].home else { return own };
        if !takes(self.sent[from]) {
            return own;
        }
        let lid = network.ends()[to].lid;
        while let Some(exit) = network.exit(here, lid) {
            if !takes(self.hop(here, input, exit)) {
                return (network.port_name(here, exit), Some(input));
            }
            match network.next(here, exit) {
                NextHop::Switch(there, next) => (here, input) = (there as SwitchIndex, next),
                _ => break,
            }
        }
        own
    }

    fn one_way(
        &self,
        sl: ServiceLevel,
        from: usize,
        to: usize,
        at: PortName,
        input: Option<PortNum>,
    ) -> Finding {
        let ends = self.network.ends();
        let lid = ends[to].lid;
        let home = ends[from].home.map(|(home, _)| home);
        let path = home.map_or(Vec::new(), |home| self.network.path(home, lid).0);
        Finding::ServiceLevelOneWay { sl, from: ends[from].guid, to: ends[to].guid, path, at, input }
    }
}
