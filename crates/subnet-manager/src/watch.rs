//! When to look at what: sweeps, and nodes that somebody gave a reason to look at.

use std::collections::BTreeMap;
use std::time::Duration;

use ib_wire::Guid;

use crate::unsupported::Place;

/// How closely a manager watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watchfulness {
    /// Time between sweeps, which find what no trap told.
    pub sweep: Duration,
    /// Attributes that each sweep compares with what they should hold; sweeps take turns until all were compared.
    pub audit: usize,
    /// How soon a node may be looked at again because of traps: they are not authenticated.
    pub spacing: Duration,
}

impl Default for Watchfulness {
    fn default() -> Self {
        Self { sweep: Duration::from_secs(10), audit: 4096, spacing: Duration::from_secs(1) }
    }
}

/// What is to be looked at, and when.
#[derive(Debug)]
pub(crate) struct Watch {
    how: Watchfulness,
    next_sweep: Duration,
    /// Nodes that should be looked at, and from when on they may be.
    suspects: BTreeMap<Guid, Duration>,
    /// When nodes were last looked at because of a trap.
    looked: BTreeMap<Guid, Duration>,
    /// What is left of the present round of comparisons, last first.
    round: Vec<Place>,
}

impl Watch {
    pub fn new(how: Watchfulness) -> Self {
        let (suspects, looked) = (BTreeMap::new(), BTreeMap::new());
        Self { how, next_sweep: Duration::ZERO, suspects, looked, round: Vec::new() }
    }

    /// Somebody gave a reason to look at a node.
    pub fn suspect(&mut self, now: Duration, node: Guid) {
        let earliest = self.looked.get(&node).map_or(now, |last| now.max(*last + self.how.spacing));
        self.suspects.entry(node).or_insert(earliest);
    }

    /// Nodes that may be looked at now.
    pub fn take_suspects(&mut self, now: Duration) -> Vec<Guid> {
        let due: Vec<Guid> =
            self.suspects.iter().filter(|(_, due)| **due <= now).map(|(node, _)| *node).collect();
        self.looked.retain(|_, last| *last + self.how.spacing > now);
        for node in &due {
            self.suspects.remove(node);
            self.looked.insert(*node, now);
        }
        due
    }

    /// Whether it is time to sweep; the next time counts from now.
    pub fn take_sweep(&mut self, now: Duration) -> bool {
        let due = self.next_sweep <= now;
        if due {
            self.put_off_sweep(now);
        }
        due
    }

    /// Everything was just seen: the next sweep has time.
    pub fn put_off_sweep(&mut self, now: Duration) {
        self.next_sweep = now + self.how.sweep;
    }

    /// What a sweep compares; `all` makes a new round when the present one is used up.
    pub fn take_audit(&mut self, all: impl FnOnce() -> Vec<Place>) -> Vec<Place> {
        if self.round.is_empty() {
            self.round = all();
            self.round.reverse();
        }
        let rest = self.round.len().saturating_sub(self.how.audit);
        self.round.split_off(rest)
    }

    /// When there will be something to look at.
    pub fn poll_timeout(&self) -> Duration {
        self.suspects.values().copied().fold(self.next_sweep, Duration::min)
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
    fn traps_lead_to_one_look_a_spacing() {
        let mut watch = Watch::new(Watchfulness::default());
        let at = Duration::from_millis;
        watch.put_off_sweep(at(0));
        for _ in 0..100 {
            watch.suspect(at(0), node(1));
        }
        assert_eq!(watch.take_suspects(at(0)), [node(1)]);
        watch.suspect(at(10), node(1));
        watch.suspect(at(10), node(2));
        assert_eq!(watch.take_suspects(at(10)), [node(2)], "the other was just looked at");
        assert_eq!(watch.poll_timeout(), at(1000));
        assert_eq!(watch.take_suspects(at(1000)), [node(1)]);
        assert_eq!(watch.poll_timeout(), at(10_000), "only the sweep is left");
    }

    #[test]
    fn sweeps_take_turns_until_everything_was_compared() {
        let mut watch = Watch::new(Watchfulness { audit: 2, ..Watchfulness::default() });
        let place = |raw| (node(raw), PortNum::MANAGEMENT, (Attribute::PORT_INFO, 0));
        let all = || (1..=3).map(place).collect::<Vec<_>>();
        assert_eq!(watch.take_audit(all), [place(2), place(1)]);
        assert_eq!(watch.take_audit(|| panic!("the round is not over")), [place(3)]);
        assert_eq!(watch.take_audit(all).len(), 2);
    }
}
