//! Multicast: packets to a group reach each member once, and no other port.
//!
//! Several groups may share a multicast LID if their trees are disjoint. The switches with an entry for the LID are
//! split into islands, the components that exits connect. Each island must be a tree that carries packets in both
//! directions and must serve the members of exactly one group.

use std::collections::{BTreeMap, BTreeSet};

use fabric_model::FabricPlan;
use fabric_model::intent::Ipoib;
use fabric_model::plan::{GroupPlan, PortSet};
use ib_wire::{Gid, Guid, Membership, MulticastLid, PartitionNumber, PortNum};

use crate::bounded::bounded;
use crate::network::{NextHop, PlannedNetwork, SwitchIndex};
use crate::{Finding, Reading, Rule, SwitchExit};

/// Multicast LIDs that a switch has an entry for or that a group of the plan has.
pub(crate) fn mlids(read: &Reading<'_>) -> BTreeSet<MulticastLid> {
    let entries =
        read.network.switches.iter().flat_map(|switch| switch.multicast.exits().map(|(mlid, _)| mlid));
    entries.chain(read.network.plan.groups().map(|group| group.mlid)).collect()
}

/// Findings for some multicast LIDs; LIDs without findings are absent.
pub(crate) fn check(
    read: &Reading<'_>,
    mlids: &BTreeSet<MulticastLid>,
) -> BTreeMap<MulticastLid, Vec<Finding>> {
    if mlids.is_empty() {
        return BTreeMap::new();
    }
    let network = &read.network;
    let mut tables: BTreeMap<MulticastLid, BTreeMap<SwitchIndex, PortSet>> =
        mlids.iter().map(|mlid| (*mlid, BTreeMap::new())).collect();
    for (switch_index, switch) in network.switches.iter().enumerate() {
        let mut add = |mlid: MulticastLid, ports: PortSet| {
            if let Some(exits) = tables.get_mut(&mlid).filter(|_| !ports.is_empty()) {
                exits.insert(switch_index, ports);
            }
        };
        if mlids.len() < switch.multicast.exits().len() {
            mlids.iter().for_each(|mlid| add(*mlid, switch.multicast.exit(*mlid)));
        } else {
            switch.multicast.exits().for_each(|(mlid, ports)| add(mlid, ports));
        }
    }
    let mut by_mlid: BTreeMap<MulticastLid, Vec<&GroupPlan>> = BTreeMap::new();
    for group in network.plan.groups().filter(|group| mlids.contains(&group.mlid)) {
        by_mlid.entry(group.mlid).or_default().push(group);
    }
    let mut found = BTreeMap::new();
    for (mlid, exits) in &tables {
        let groups = by_mlid.get(mlid).map_or(&[][..], Vec::as_slice);
        let mut findings = Vec::new();
        Forest::new(read, *mlid, exits).check(groups, &mut findings);
        let findings = bounded(Rule::Multicast, findings);
        if !findings.is_empty() {
            found.insert(*mlid, findings);
        }
    }
    found
}

/// Whether a multicast LID without earlier findings is still without. `changed` are the switches whose entry for the
/// LID changed, `mgids` the groups that were added, removed or changed.
///
/// Only islands that contain a changed switch, a member of a changed group, or a neighbour of those are walked; all
/// others are as before.
pub(crate) fn is_kept(
    read: &Reading<'_>,
    before: &FabricPlan,
    mlid: MulticastLid,
    changed: impl Iterator<Item = SwitchIndex>,
    mgids: &BTreeSet<Gid>,
) -> bool {
    let network = &read.network;
    let home = |guid: &Guid| network.end(*guid).and_then(|end| network.ends()[end].home).map(|home| home.0);
    let of_lid = |group: &&GroupPlan| group.mlid == mlid;
    let is_changed = |group: &&GroupPlan| mgids.contains(&group.mgid);
    let groups = before.groups().chain(network.plan.groups()).filter(of_lid).filter(is_changed);
    let mut seeds: BTreeSet<SwitchIndex> =
        groups.flat_map(|group| group.members.iter().filter_map(home)).collect();
    seeds.extend(changed);
    let around = |switch_index: &SwitchIndex| {
        let ports = network.switches[*switch_index].ports.iter().map(|port| port.number);
        ports.filter_map(|port| switch_behind(network, *switch_index, port)).collect::<Vec<_>>()
    };
    let mut open: Vec<SwitchIndex> = seeds.iter().flat_map(around).chain(seeds.iter().copied()).collect();
    let mut exits: BTreeMap<SwitchIndex, PortSet> = BTreeMap::new();
    while let Some(switch_index) = open.pop() {
        let ports = network.switches[switch_index].multicast.exit(mlid);
        if !ports.is_empty() && exits.insert(switch_index, ports).is_none() {
            open.extend(ports.iter().filter_map(|exit| switch_behind(network, switch_index, exit)));
        }
    }
    // The members of an unchanged group are in one island, or in parts of one that fell apart.
    let is_near = |group: &&GroupPlan| {
        let first = group.members.iter().find_map(home);
        first.is_some_and(|home| exits.contains_key(&home) || seeds.contains(&home))
    };
    let groups = network.plan.groups().filter(of_lid);
    let groups: Vec<&GroupPlan> = groups.filter(|group| is_changed(group) || is_near(group)).collect();
    let mut findings = Vec::new();
    Forest::new(read, mlid, &exits).check(&groups, &mut findings);
    findings.is_empty()
}

/// Checks that the plan's groups are those that the intents ask for. Skips partitions for which `is_known` holds.
pub(crate) fn check_groups(read: &Reading<'_>, is_known: impl Fn(PartitionNumber) -> bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut seen: BTreeSet<PartitionNumber> = BTreeSet::new();
    for group in read.network.plan.groups().filter(|group| !is_known(group.partition)) {
        let intended = read.intended.partitions.get(&group.partition);
        let Some((intended, ipoib)) = intended.and_then(|intended| Some((intended, intended.ipoib?))) else {
            findings.push(Finding::GroupUnwanted { mgid: group.mgid });
            continue;
        };
        if !seen.insert(group.partition) {
            findings.push(Finding::GroupUnwanted { mgid: group.mgid });
            continue;
        }
        if !is_as_asked(group, ipoib) {
            findings.push(Finding::GroupDiffers { mgid: group.mgid, partition: group.partition });
        }
        let is_adapter =
            |guid: &&Guid| read.network.end(**guid).is_some_and(|end| !read.network.ends()[end].is_switch());
        if intended.grouped().filter(is_adapter).eq(&group.members) {
            continue;
        }
        let intended: BTreeSet<Guid> = intended.grouped().filter(is_adapter).copied().collect();
        let planned: BTreeSet<Guid> = group.members.iter().copied().collect();
        for port in intended.symmetric_difference(&planned) {
            let intended = intended.contains(port);
            findings.push(Finding::GroupMemberDiffers { mgid: group.mgid, port: *port, intended });
        }
    }
    let others = read.intended.partitions.iter().filter(|(number, _)| !is_known(**number));
    let missing = others.filter(|(number, intended)| intended.ipoib.is_some() && !seen.contains(number));
    findings.extend(missing.map(|(partition, _)| Finding::GroupMissing { partition: *partition }));
    findings
}

fn is_as_asked(group: &GroupPlan, ipoib: Ipoib) -> bool {
    let mut gid = [0; 16];
    gid[..4].copy_from_slice(&[0xff, 0x10 | ipoib.scope.to_wire(), 0x40, 0x1b]);
    gid[4..6].copy_from_slice(&group.partition.key(Membership::Full).to_wire().to_be_bytes());
    gid[12..].fill(0xff);
    let planned =
        Ipoib { rate: group.rate, mtu: group.mtu, sl: group.sl, scope: group.scope, qkey: group.qkey };
    group.mgid == Gid(gid) && planned == ipoib
}

/// The entries of all switches for one multicast LID.
struct Forest<'a> {
    network: &'a PlannedNetwork<'a>,
    mlid: MulticastLid,
    exits: &'a BTreeMap<SwitchIndex, PortSet>,
    /// The island of each switch, named by its lowest switch.
    islands: BTreeMap<SwitchIndex, SwitchIndex>,
}

impl<'a> Forest<'a> {
    fn new(read: &'a Reading<'a>, mlid: MulticastLid, exits: &'a BTreeMap<SwitchIndex, PortSet>) -> Self {
        let network = &read.network;
        // Undirected: packets may also come from the other side.
        let mut joined: BTreeMap<SwitchIndex, BTreeSet<SwitchIndex>> = BTreeMap::new();
        for (switch_index, ports) in exits {
            joined.entry(*switch_index).or_default();
            for there in ports.iter().filter_map(|exit| switch_behind(network, *switch_index, exit)) {
                if exits.contains_key(&there) {
                    joined.entry(*switch_index).or_default().insert(there);
                    joined.entry(there).or_default().insert(*switch_index);
                }
            }
        }
        let mut islands: BTreeMap<SwitchIndex, SwitchIndex> = BTreeMap::new();
        for first in exits.keys() {
            let mut open = vec![*first];
            while let Some(switch_index) = open.pop() {
                if let std::collections::btree_map::Entry::Vacant(entry) = islands.entry(switch_index) {
                    entry.insert(*first);
                    open.extend(&joined[&switch_index]);
                }
            }
        }
        Self { network, mlid, exits, islands }
    }

    fn check(&self, groups: &[&GroupPlan], findings: &mut Vec<Finding>) {
        let owners = self.owners(groups, findings);
        self.leaves(&owners, findings);
        self.branches(findings);
    }

    /// The group of each island: the one whose members are attached to it. Reports members that their island does not
    /// serve.
    fn owners<'g>(
        &self,
        groups: &[&'g GroupPlan],
        findings: &mut Vec<Finding>,
    ) -> BTreeMap<SwitchIndex, &'g GroupPlan> {
        let mut owners: BTreeMap<SwitchIndex, &GroupPlan> = BTreeMap::new();
        for group in groups {
            let mut served: BTreeMap<SwitchIndex, Vec<Guid>> = BTreeMap::new();
            for guid in &group.members {
                let Some(end) = self.network.end(*guid) else { continue };
                let Some((home, port)) = self.network.ends()[end].home else { continue };
                let exits = self.exits.get(&home).copied().unwrap_or_default();
                match self.islands.get(&home).filter(|_| exits.contains(port)) {
                    Some(island) => served.entry(*island).or_default().push(*guid),
                    None => findings.push(self.unreached(*guid)),
                }
            }
            // The island with most members belongs to the group; members on others are unreached.
            let main = served.iter().max_by_key(|(island, members)| (members.len(), usize::MAX - **island));
            let main = main.map(|(island, _)| *island);
            for (island, members) in &served {
                if Some(*island) != main {
                    findings.extend(members.iter().map(|guid| self.unreached(*guid)));
                }
                if let Some(first) = owners.get(island) {
                    findings.push(Finding::GroupTreesMeet {
                        mlid: self.mlid,
                        switch: self.network.switches[*island].guid,
                        first: first.partition,
                        second: group.partition,
                    });
                } else {
                    owners.insert(*island, group);
                }
            }
        }
        owners
    }

    fn unreached(&self, member: Guid) -> Finding {
        let home = self.network.end(member).and_then(|end| self.network.ends()[end].home);
        let (switch_index, port) = home.expect("members that hang on no switch are left out");
        Finding::GroupMemberUnreached {
            mlid: self.mlid,
            member,
            at: self.network.port_name(switch_index, port),
        }
    }

    /// Checks that every exit leads to a switch, or to a member of the island's group.
    fn leaves(&self, owners: &BTreeMap<SwitchIndex, &GroupPlan>, findings: &mut Vec<Finding>) {
        let members: BTreeMap<SwitchIndex, BTreeSet<Guid>> =
            owners.iter().map(|(island, group)| (*island, group.members.iter().copied().collect())).collect();
        for (switch_index, ports) in self.exits {
            let members = members.get(&self.islands[switch_index]);
            for exit in ports.iter() {
                let is_right = match self.network.next(*switch_index, exit) {
                    NextHop::Switch(..) => members.is_some(),
                    NextHop::EndPort(end) => {
                        members.is_some_and(|m| m.contains(&self.network.ends()[end as usize].guid))
                    }
                    NextHop::NoCable | NextHop::OwnPort | NextHop::UnknownPort => false,
                };
                if !is_right {
                    let to = self.network.peer_name(*switch_index, exit);
                    findings.push(Finding::GroupMisrouted {
                        mlid: self.mlid,
                        exit: self.network.hop(*switch_index, exit),
                        to,
                    });
                }
            }
        }
    }

    /// Checks that exits between switches are symmetric and form no cycle.
    fn branches(&self, findings: &mut Vec<Finding>) {
        for (switch_index, ports) in self.exits {
            for exit in ports.iter() {
                let NextHop::Switch(there, input) = self.network.next(*switch_index, exit) else { continue };
                let back = self.exits.get(&(there as SwitchIndex)).copied().unwrap_or_default();
                if !back.contains(input) {
                    let to = self.network.peer_name(*switch_index, exit);
                    findings.push(Finding::GroupOneWay {
                        mlid: self.mlid,
                        exit: self.network.hop(*switch_index, exit),
                        to,
                    });
                }
            }
        }
        let mut seen: BTreeSet<SwitchIndex> = BTreeSet::new();
        for start in self.exits.keys() {
            if !seen.contains(start)
                && let Some(cycle) = self.cycle(*start, &mut seen)
            {
                findings.push(Finding::GroupLoop { mlid: self.mlid, cycle });
            }
        }
    }

    /// Finds a cycle from a switch by depth-first search. Packets do not leave by the port at which they entered.
    fn cycle(&self, start: SwitchIndex, seen: &mut BTreeSet<SwitchIndex>) -> Option<Vec<SwitchExit>> {
        let exits = |switch_index: SwitchIndex, input: PortNum| -> Vec<PortNum> {
            let ports = self.exits.get(&switch_index).copied().unwrap_or_default();
            ports.iter().filter(|exit| *exit != input).collect()
        };
        // The path with the exits left to try at each switch; no packet enters by port 0.
        let mut path: Vec<(SwitchIndex, Vec<PortNum>)> = vec![(start, exits(start, PortNum::MANAGEMENT))];
        let mut hops: Vec<SwitchExit> = Vec::new();
        let mut is_open: BTreeSet<SwitchIndex> = [start].into();
        seen.insert(start);
        while let Some((switch_index, left)) = path.last_mut() {
            let switch_index = *switch_index;
            let Some(exit) = left.pop() else {
                is_open.remove(&switch_index);
                path.pop();
                hops.pop();
                continue;
            };
            let NextHop::Switch(there, input) = self.network.next(switch_index, exit) else { continue };
            let there = there as SwitchIndex;
            if is_open.contains(&there) {
                let first = path.iter().position(|(switch_index, _)| *switch_index == there).unwrap_or(0);
                let last = self.network.hop(switch_index, exit);
                return Some(hops.split_off(first).into_iter().chain([last]).collect());
            }
            if seen.insert(there) {
                hops.push(self.network.hop(switch_index, exit));
                is_open.insert(there);
                path.push((there, exits(there, input)));
            }
        }
        None
    }
}

fn switch_behind(
    network: &PlannedNetwork<'_>,
    switch_index: SwitchIndex,
    exit: PortNum,
) -> Option<SwitchIndex> {
    match network.next(switch_index, exit) {
        NextHop::Switch(there, _) => Some(there as SwitchIndex),
        _ => None,
    }
}
