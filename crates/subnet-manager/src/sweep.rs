//! The schedule of sweeps and rechecks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ib_wire::Guid;

use crate::attribute_key::AttributeRef;

/// How often a subnet manager sweeps the fabric and how much it audits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SweepSettings {
    /// Time between light sweeps, which find changes that no trap reported.
    pub interval: Duration,
    /// Attributes that each sweep audits. Consecutive sweeps cover all of them in turn.
    pub audit_attributes: usize,
    /// Minimum time between two rechecks of a node caused by traps, which are not authenticated.
    pub trap_spacing: Duration,
}

impl Default for SweepSettings {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(10),
            audit_attributes: 4096,
            trap_spacing: Duration::from_secs(1),
        }
    }
}

/// How long the recheck of a silent node waits for others that are due.
const SILENT_WAIT_MAX: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct SweepSchedule {
    settings: SweepSettings,
    next_sweep: Duration,
    /// Nodes to be rechecked, and the earliest time for each.
    rechecks: BTreeMap<Guid, Duration>,
    /// Nodes among them that do not answer. Others are rechecked before: they may tell that a link is gone, and which
    /// routes to the silent ones are left.
    silent: BTreeSet<Guid>,
    /// Time of the last recheck of each node.
    last_recheck: BTreeMap<Guid, Duration>,
    /// Attributes that remain to be audited in this round, the next one last.
    round: Vec<AttributeRef>,
}

impl SweepSchedule {
    pub fn new(settings: SweepSettings) -> Self {
        let (rechecks, last_recheck) = (BTreeMap::new(), BTreeMap::new());
        let silent = BTreeSet::new();
        Self { settings, next_sweep: Duration::ZERO, rechecks, silent, last_recheck, round: Vec::new() }
    }

    /// Schedules a recheck of a node that does not answer.
    pub fn schedule_recheck_of_silent(&mut self, now: Duration, node: Guid) {
        if !self.rechecks.contains_key(&node) {
            self.schedule_recheck(now, node);
            self.silent.insert(node);
        }
    }

    /// Schedules a recheck of a node.
    pub fn schedule_recheck(&mut self, now: Duration, node: Guid) {
        self.silent.remove(&node);
        let earliest =
            self.last_recheck.get(&node).map_or(now, |last| now.max(*last + self.settings.trap_spacing));
        self.rechecks.entry(node).or_insert(earliest);
    }

    /// Takes the nodes whose recheck is due. Silent ones wait for another time if there are others, but not for long.
    pub fn take_rechecks(&mut self, now: Duration) -> Vec<Guid> {
        let due = self.rechecks.iter().filter(|(_, due)| **due <= now).map(|(node, _)| *node);
        let (silent, mut due): (Vec<Guid>, Vec<Guid>) = due.partition(|node| self.silent.contains(node));
        let is_over = |node: &Guid| self.rechecks.get(node).is_some_and(|due| *due + SILENT_WAIT_MAX <= now);
        if due.is_empty() {
            due = silent;
        } else {
            due.extend(silent.into_iter().filter(is_over));
        }
        self.last_recheck.retain(|_, last| *last + self.settings.trap_spacing > now);
        for node in &due {
            self.rechecks.remove(node);
            self.silent.remove(node);
            self.last_recheck.insert(*node, now);
        }
        due
    }

    /// Whether a sweep is due. If so, schedules the next one.
    pub fn take_sweep(&mut self, now: Duration) -> bool {
        let due = self.next_sweep <= now;
        if due {
            self.put_off_sweep(now);
        }
        due
    }

    /// Postpones the next sweep by a full interval, because everything was just read.
    pub fn put_off_sweep(&mut self, now: Duration) {
        self.next_sweep = now + self.settings.interval;
    }

    /// Takes the attributes that this sweep audits. `all` starts a new round when the current one is used up.
    pub fn take_audit(&mut self, all: impl FnOnce() -> Vec<AttributeRef>) -> Vec<AttributeRef> {
        if self.round.is_empty() {
            self.round = all();
            self.round.reverse();
        }
        let rest = self.round.len().saturating_sub(self.settings.audit_attributes);
        self.round.split_off(rest)
    }

    /// When a recheck or sweep is due.
    pub fn poll_timeout(&self) -> Duration {
        self.rechecks.values().copied().fold(self.next_sweep, Duration::min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ib_wire::{Attribute, PortNum};

    fn node(raw: u64) -> Guid {
        Guid::from_wire(raw).unwrap()
    }

    #[test]
    fn traps_cause_one_recheck_per_spacing() {
        let mut schedule = SweepSchedule::new(SweepSettings::default());
        let at = Duration::from_millis;
        schedule.put_off_sweep(at(0));
        for _ in 0..100 {
            schedule.schedule_recheck(at(0), node(1));
        }
        assert_eq!(schedule.take_rechecks(at(0)), [node(1)]);
        schedule.schedule_recheck(at(10), node(1));
        schedule.schedule_recheck(at(10), node(2));
        assert_eq!(schedule.take_rechecks(at(10)), [node(2)], "the other was just rechecked");
        assert_eq!(schedule.poll_timeout(), at(1000));
        assert_eq!(schedule.take_rechecks(at(1000)), [node(1)]);
        assert_eq!(schedule.poll_timeout(), at(10_000), "only the sweep is left");
    }

    #[test]
    fn silent_nodes_are_rechecked_after_others() {
        let mut schedule = SweepSchedule::new(SweepSettings::default());
        let at = Duration::from_millis;
        schedule.schedule_recheck_of_silent(at(0), node(1));
        schedule.schedule_recheck_of_silent(at(0), node(2));
        schedule.schedule_recheck(at(0), node(3));
        // It reported something.
        schedule.schedule_recheck(at(0), node(2));
        assert_eq!(schedule.take_rechecks(at(0)), [node(2), node(3)]);
        assert_eq!(schedule.take_rechecks(at(0)), [node(1)]);
        assert_eq!(schedule.take_rechecks(at(0)), []);
        // However many others come, it is rechecked.
        schedule.schedule_recheck_of_silent(at(10_000), node(4));
        schedule.schedule_recheck(at(10_000), node(5));
        assert_eq!(schedule.take_rechecks(at(14_999)), [node(5)]);
        schedule.schedule_recheck(at(15_000), node(6));
        assert_eq!(schedule.take_rechecks(at(15_000)), [node(6), node(4)]);
    }

    #[test]
    fn sweeps_audit_everything_in_turn() {
        let mut schedule =
            SweepSchedule::new(SweepSettings { audit_attributes: 2, ..SweepSettings::default() });
        let target = |raw| (node(raw), PortNum::MANAGEMENT, (Attribute::PORT_INFO, 0));
        let all = || (1..=3).map(target).collect::<Vec<_>>();
        assert_eq!(schedule.take_audit(all), [target(2), target(1)]);
        assert_eq!(schedule.take_audit(|| panic!("the round is not over")), [target(3)]);
        assert_eq!(schedule.take_audit(all).len(), 2);
    }
}
