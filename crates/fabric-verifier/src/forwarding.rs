//! Forwarding: packets to every LID reach its owner from every port that may talk to it, and never loop.
//!
//! For each LID the exits of all switches form a functional graph. It is walked from every switch, and each switch is
//! visited once (O(switches) per LID): its fate is that of its next hop. Then the switches from which packets arrive
//! are compared with those behind which a port may talk to the owner.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use fabric_model::intent::Role;
use ib_wire::{Guid, Lid, PartitionNumber};

use crate::bits::Bits;
use crate::bounded::{PART_FINDINGS_MAX, bounded};
use crate::graph::{Walk, WalkStep};
use crate::network::{ExitColumns, NextHop, PlannedNetwork, SwitchIndex};
use crate::{Finding, Reading, Rule, SwitchExit, is_acknowledged};

/// LIDs that are checked together: their entries are adjacent in every table and stay in the CPU cache.
const BATCH: usize = 64;

/// All LIDs up to the highest that a table or an end port has.
pub(crate) fn lids(read: &Reading<'_>) -> impl Iterator<Item = Lid> + use<> {
    let top = read.network.ends().iter().map(|end| end.lid.to_wire()).fold(read.network.top(), u16::max);
    (1..=top).filter_map(Lid::from_wire)
}

/// Findings for some LIDs; LIDs without findings are absent.
pub(crate) fn check(read: &Reading<'_>, lids: impl Iterator<Item = Lid>) -> BTreeMap<Lid, Vec<Finding>> {
    let (columns, mut found, mut lids) = (Columns::new(read), BTreeMap::new(), lids.peekable());
    while lids.peek().is_some() {
        let exits = ExitColumns::of(&read.network, lids.by_ref().take(BATCH).collect());
        columns.check_all(&exits, &mut found);
    }
    found
}

/// Like [`check`], for columns that were read already.
pub(crate) fn check_read(read: &Reading<'_>, exits: &ExitColumns) -> BTreeMap<Lid, Vec<Finding>> {
    let mut found = BTreeMap::new();
    Columns::new(read).check_all(exits, &mut found);
    found
}

/// Like [`check`], for LIDs without earlier findings whose entries have not changed, but whose owners are in other
/// partitions now. Only LIDs with unreached senders are checked in full.
pub(crate) fn check_repartitioned(
    read: &Reading<'_>,
    lids: impl Iterator<Item = Lid>,
) -> BTreeMap<Lid, Vec<Finding>> {
    let columns = Columns::new(read);
    let lost: Vec<Lid> = lids.filter(|lid| !columns.arrives(*lid)).collect();
    check(read, lost.into_iter())
}

/// What the checks of all LIDs share.
struct Columns<'a> {
    read: &'a Reading<'a>,
    /// Switches behind which a partition has members (or members that are not limited), computed on first use.
    homes: RefCell<HashMap<(PartitionNumber, bool), Bits>>,
    everywhere: Bits,
    manager: Option<usize>,
}

/// The switches behind which a partition has members, or with `is_full` members that are not limited.
fn homes(read: &Reading<'_>, number: PartitionNumber, is_full: bool) -> Bits {
    let network = &read.network;
    let mut homes = Bits::new(network.switches.len());
    let members = read.intended.partitions.get(&number).map(|partition| &partition.members);
    let members = members.into_iter().flatten().filter(|(_, role)| !is_full || **role != Role::Limited);
    for end in members.filter_map(|(guid, _)| network.end(*guid)) {
        if let Some((home, _)) = network.ends()[end].home {
            homes.insert(home);
        }
    }
    homes
}

impl<'a> Columns<'a> {
    fn new(read: &'a Reading<'a>) -> Self {
        let network = &read.network;
        let count = network.switches.len();
        let mut everywhere = Bits::new(count);
        (0..count).for_each(|switch_index| everywhere.insert(switch_index));
        Self { read, homes: RefCell::default(), everywhere, manager: network.end(read.intents.manager) }
    }

    fn check_all(&self, exits: &ExitColumns, found: &mut BTreeMap<Lid, Vec<Finding>>) {
        let mut walk = ColumnWalk::new(&self.read.network, exits);
        for (column, lid) in exits.lids.iter().enumerate() {
            let mut findings = Vec::new();
            self.check(column, *lid, &mut walk, &mut findings);
            // Acknowledged findings are never folded into `Omitted`: callers drop them one by one.
            let says = |finding: &Finding| is_acknowledged(finding, self.read.network.plan);
            if findings.len() > PART_FINDINGS_MAX && !findings.iter().any(says) {
                findings = bounded(Rule::Forwarding, findings);
            }
            if !findings.is_empty() {
                found.insert(*lid, findings);
            }
        }
    }

    fn check(&self, column: usize, lid: Lid, walk: &mut ColumnWalk<'_>, findings: &mut Vec<Finding>) {
        walk.follow(column, lid, findings);
        let Some(owner) = self.read.network.lid_owner(lid) else { return };
        let needed = self.needed(owner);
        let mut reported: BTreeSet<(SwitchIndex, bool)> = BTreeSet::new();
        for from in needed.without(&walk.arrives) {
            let (path, at) = self.read.network.path(from, lid);
            let exit = self.read.network.exit(at, lid);
            let next = exit.map(|exit| self.read.network.next(at, exit));
            // Loops and exits without a cable have been reported by the walk.
            let is_new = !matches!(next, Some(NextHop::NoCable | NextHop::Switch(..)));
            if is_new && reported.insert((at, exit.is_some())) {
                findings.push(self.finding(lid, owner, from, path, at));
            }
        }
    }

    /// Whether packets to a LID arrive from every switch they may come from. Must not be called for a LID with a
    /// loop.
    fn arrives(&self, lid: Lid) -> bool {
        let network = &self.read.network;
        let Some(owner) = network.lid_owner(lid) else { return true };
        self.needed(owner).iter().all(|from| {
            let mut here = from;
            loop {
                let Some(exit) = network.exit(here, lid) else { return false };
                match network.next(here, exit) {
                    NextHop::Switch(there, _) => here = there as SwitchIndex,
                    NextHop::EndPort(end) => return network.ends()[end as usize].lid == lid,
                    NextHop::OwnPort => return network.switches[here].lid == lid,
                    NextHop::NoCable | NextHop::UnknownPort => return false,
                }
            }
        })
    }

    /// The switches behind which some port may talk to an end port. Subnet management packets carry no P_Key, so the
    /// subnet manager talks to every port.
    fn needed(&self, owner: usize) -> Bits {
        let network = &self.read.network;
        if self.manager == Some(owner) {
            return self.everywhere.clone();
        }
        let mut needed = Bits::new(network.switches.len());
        if let Some((home, _)) = self.manager.and_then(|manager| network.ends()[manager].home) {
            needed.insert(home);
        }
        let intended = self.read.intended.port(network.ends()[owner].guid);
        for (number, role) in intended.map_or(&[][..], |port| &port.roles) {
            let mut homes = self.homes.borrow_mut();
            let is_full = *role == Role::Limited;
            let at = homes.entry((*number, is_full));
            needed.join(at.or_insert_with(|| self::homes(self.read, *number, is_full)));
        }
        needed
    }

    fn finding(
        &self,
        lid: Lid,
        owner: usize,
        from: SwitchIndex,
        path: Vec<SwitchExit>,
        at: SwitchIndex,
    ) -> Finding {
        let network = &self.read.network;
        let exit = network.exit(at, lid);
        let from = self.sender(from, owner);
        match exit {
            None => Finding::NotForwarded { lid, from, path, at: network.switches[at].guid },
            Some(exit) => Finding::Misrouted { lid, from, path, to: network.peer_name(at, exit) },
        }
    }

    /// A port behind a switch that may talk to an end port; the switch's own port if there is none.
    fn sender(&self, switch_index: SwitchIndex, owner: usize) -> Guid {
        let network = &self.read.network;
        let here = |end: &&crate::network::EndPort| end.home.is_some_and(|(home, _)| home == switch_index);
        let owner = network.ends()[owner].guid;
        let may = |guid: Guid| {
            guid != owner && (guid == self.read.intents.manager || self.read.intended.may_talk(guid, owner))
        };
        let sender = network.ends().iter().filter(here).find(|end| may(end.guid));
        sender.map_or(network.switches[switch_index].port_guid, |end| end.guid)
    }
}

/// Follows the packets to the LIDs of columns.
struct ColumnWalk<'a> {
    network: &'a PlannedNetwork<'a>,
    exits: &'a ExitColumns,
    walk: Walk,
    /// The switches from which packets arrive at the owner.
    arrives: Bits,
}

impl<'a> ColumnWalk<'a> {
    fn new(network: &'a PlannedNetwork<'a>, exits: &'a ExitColumns) -> Self {
        let count = network.switches.len();
        Self { network, exits, walk: Walk::new(count), arrives: Bits::new(count) }
    }

    /// Follows packets to the LID of a column from every switch. Reports loops and exits without a cable.
    fn follow(&mut self, column: usize, lid: Lid, findings: &mut Vec<Finding>) {
        let network = self.network;
        let loops = self.walk.follow(|here| {
            let Some(exit) = self.exits.exit(here, column) else { return WalkStep::Lost };
            match network.next(here, exit) {
                NextHop::Switch(there, _) => WalkStep::Switch(there as SwitchIndex),
                NextHop::EndPort(end) if network.ends()[end as usize].lid == lid => WalkStep::Arrived,
                NextHop::OwnPort if network.switches[here].lid == lid => WalkStep::Arrived,
                NextHop::NoCable => {
                    findings.push(Finding::ExitWithoutCable { lid, exit: network.hop(here, exit) });
                    WalkStep::Lost
                }
                NextHop::OwnPort | NextHop::EndPort(_) | NextHop::UnknownPort => WalkStep::Lost,
            }
        });
        findings.extend(loops.iter().map(|switches| self.forwarding_loop(lid, switches)));
        self.arrives.clear();
        let arrivals = self.walk.arrivals().enumerate().filter(|(_, arrives)| *arrives);
        arrivals.for_each(|(switch_index, _)| self.arrives.insert(switch_index));
    }

    fn forwarding_loop(&self, lid: Lid, switches: &[SwitchIndex]) -> Finding {
        let hop = |switch_index: &SwitchIndex| {
            let exit = self.network.exit(*switch_index, lid)?;
            Some(self.network.hop(*switch_index, exit))
        };
        Finding::ForwardingLoop { lid, cycle: switches.iter().filter_map(hop).collect() }
    }
}
