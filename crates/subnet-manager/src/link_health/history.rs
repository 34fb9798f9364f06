//! What is known about the health of every link: a state machine that is given observations and the time.
//!
//! **Flaps.** Each end of a link has the times at which it was seen to go down, within the window. A link that went down is
//! often seen at both ends, and sometimes at one only, so the flaps of the link are those of the end with more of them.
//!
//! **Errors.** Each port has the last reading of its counters and their growth since a window began. The window begins anew
//! when it is over, so growth at its border may count in two parts.
//!
//! **Damping.** A link that reaches a limit is damped until it was quiet for a while: each further flap, and each limit of
//! errors that is reached again, starts the quiet time anew. A link that is damped again soon after it returned is damped for
//! twice as long (after the manner of BGP route flap damping, RFC 2439, with a time instead of a penalty that decays).

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::time::Duration;

use fabric_model::intent::PortName;
use serde::{Deserialize, Serialize};

use super::counters::{ErrorCounts, LinkErrorCounter};
use super::settings::LinkHealthSettings;

/// Links whose flaps are remembered. More than that flap only when a whole fabric restarts, and then not again and again.
const FLAPPING_MAX: usize = 65_536;

/// Links that are damped at a time. Where more reach a limit, cables are not what is wrong.
const DAMPED_MAX: usize = 4096;

/// A link, named by both of its ends, the lower first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "[PortName; 2]", into = "[PortName; 2]")]
pub struct LinkName([PortName; 2]);

impl LinkName {
    pub fn new(a: PortName, b: PortName) -> Self {
        Self([a.min(b), a.max(b)])
    }

    pub fn ends(&self) -> [PortName; 2] {
        self.0
    }
}

impl From<[PortName; 2]> for LinkName {
    fn from([a, b]: [PortName; 2]) -> Self {
        Self::new(a, b)
    }
}

impl From<LinkName> for [PortName; 2] {
    fn from(link: LinkName) -> Self {
        link.0
    }
}

impl fmt::Display for LinkName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} - {}", self.0[0], self.0[1])
    }
}

/// The limit that a damped link has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum DampingReason {
    /// The link went down this often.
    Flaps { count: u64, window_seconds: u64 },
    /// An error counter of one of its ports grew by this much.
    Errors { port: PortName, counter: LinkErrorCounter, growth: u32, window_seconds: u64 },
}

impl fmt::Display for DampingReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flaps { count, window_seconds } => {
                write!(f, "it went down {count} times within {window_seconds} s")
            }
            Self::Errors { port, counter, growth, window_seconds } => {
                write!(f, "{counter} of port {port} grew by {growth} within {window_seconds} s")
            }
        }
    }
}

/// A damped link, as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DampedLink {
    pub link: LinkName,
    pub reason: DampingReason,
    /// How often it was damped in a row, 1 for the first time.
    pub times: u32,
}

/// The health of all links.
#[derive(Debug)]
pub(crate) struct LinkHealth {
    settings: LinkHealthSettings,
    flapping: BTreeMap<LinkName, Flaps>,
    /// The link in `flapping` that ends at a port.
    flapping_at: BTreeMap<PortName, LinkName>,
    ports: BTreeMap<PortName, PortRecord>,
    /// In the order in which they were damped.
    damped: Vec<Damped>,
    /// Links that returned and are damped for longer if they are damped again.
    returned: BTreeMap<LinkName, Returned>,
    /// Whether links were damped or returned since this was last reset.
    has_changed: bool,
}

/// The times at which each end of a link went down, within the window. At most as many as damp it.
#[derive(Debug, Default)]
struct Flaps([VecDeque<Duration>; 2]);

impl Flaps {
    /// Forgets flaps that are not within a window up to `now`.
    fn forget_old(&mut self, now: Duration, window: Duration) {
        for times in &mut self.0 {
            while times.front().is_some_and(|at| *at + window <= now) {
                times.pop_front();
            }
        }
    }
}

#[derive(Debug, Default)]
struct PortRecord {
    /// The manager takes the link down, which is no flap.
    expects_down: bool,
    /// How often the manager took the link down since the last reading.
    own_downs: u32,
    reading: Option<Reading>,
}

#[derive(Debug)]
struct Reading {
    at: Duration,
    counts: ErrorCounts,
    window_began: Duration,
    /// Growth in the window.
    growth: ErrorCounts,
}

#[derive(Debug)]
struct Damped {
    entry: DampedLink,
    /// When it returns; `None` after a restart, until the time is known.
    until: Option<Duration>,
}

#[derive(Debug)]
struct Returned {
    times: u32,
    at: Duration,
}

impl LinkHealth {
    /// `damped` are the links that a former manager damped; their quiet time starts anew.
    pub fn new(settings: LinkHealthSettings, damped: &[DampedLink]) -> Self {
        let kept = damped.iter().take(DAMPED_MAX);
        Self {
            settings,
            flapping: BTreeMap::new(),
            flapping_at: BTreeMap::new(),
            ports: BTreeMap::new(),
            damped: kept.map(|entry| Damped { entry: *entry, until: None }).collect(),
            returned: BTreeMap::new(),
            has_changed: false,
        }
    }

    pub fn settings(&self) -> &LinkHealthSettings {
        &self.settings
    }

    /// Replaces the limits. Links that are damped stay so; quiet times that began keep their length.
    pub fn set_settings(&mut self, settings: LinkHealthSettings) {
        self.settings = settings;
    }

    /// The damped links, in the order in which they were damped.
    pub fn damped(&self) -> impl Iterator<Item = &DampedLink> {
        self.damped.iter().map(|damped| &damped.entry)
    }

    /// When the next link returns.
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.damped.iter().filter_map(|damped| damped.until).min()
    }

    /// Lets links return whose quiet time is over. Returns whether links were damped or returned since the last call.
    pub fn take_changed(&mut self, now: Duration) -> bool {
        let settings = self.settings;
        for damped in &mut self.damped {
            damped.until.get_or_insert_with(|| now + settings.quiet_time(damped.entry.times));
        }
        let is_over = |damped: &mut Damped| damped.until.is_some_and(|until| until <= now);
        let over: Vec<DampedLink> = self.damped.extract_if(.., is_over).map(|damped| damped.entry).collect();
        for DampedLink { link, times, .. } in over {
            self.forget_history(link);
            self.returned.insert(link, Returned { times, at: now });
            self.has_changed = true;
        }
        self.returned.retain(|_, returned| now < returned.at + settings.quiet_max);
        std::mem::take(&mut self.has_changed)
    }

    /// Lets the damped link at a port return, and forgets that it was damped. Returns its name, if there is one.
    pub fn restore(&mut self, port: PortName) -> Option<LinkName> {
        let index = self.damped.iter().position(|damped| damped.entry.link.ends().contains(&port))?;
        let link = self.damped.remove(index).entry.link;
        self.forget_history(link);
        self.returned.remove(&link);
        self.has_changed = true;
        Some(link)
    }

    /// The manager is about to take a link down.
    pub fn expect_down(&mut self, ends: impl IntoIterator<Item = PortName>) {
        for port in ends {
            let record = self.ports.entry(port).or_default();
            record.expects_down = true;
            record.own_downs += 1;
        }
    }

    /// A port was seen to go down, or to have been down. `peer` is the other end of its cable, if it is known still.
    pub fn handle_down(&mut self, now: Duration, port: PortName, peer: Option<PortName>) {
        if let Some(record) = self.ports.get_mut(&port)
            && std::mem::take(&mut record.expects_down)
        {
            return;
        }
        let known = peer.map(|peer| LinkName::new(port, peer));
        let Some(link) = known.or_else(|| self.flapping_at.get(&port).copied()) else { return };
        if self.postpone_return(now, link) {
            return;
        }
        let is_full = self.flapping.len() >= FLAPPING_MAX && !self.flapping.contains_key(&link);
        if self.settings.flaps == 0 || is_full {
            return;
        }
        let flaps = self.flapping.entry(link).or_default();
        flaps.forget_old(now, self.settings.flap_window);
        let times = &mut flaps.0[usize::from(link.ends()[1] == port)];
        times.push_back(now);
        let count = times.len() as u64;
        for end in link.ends() {
            self.flapping_at.insert(end, link);
        }
        if count >= self.settings.flaps {
            let window_seconds = self.settings.flap_window.as_secs();
            self.damp(now, link, DampingReason::Flaps { count, window_seconds });
        }
    }

    /// The counters of a port were read; `peer` is the other end of its cable.
    pub fn handle_counters(&mut self, now: Duration, port: PortName, peer: PortName, counts: ErrorCounts) {
        let settings = self.settings;
        let record = self.ports.entry(port).or_default();
        let own_downs = std::mem::take(&mut record.own_downs);
        let fresh = Reading { at: now, counts, window_began: now, growth: ErrorCounts::default() };
        let Some(reading) = &mut record.reading else {
            record.reading = Some(fresh);
            return;
        };
        let elapsed = now.saturating_sub(reading.at);
        let mut growth = counts.growth_since(&reading.counts);
        let downed = growth.get(LinkErrorCounter::LinkDowned).saturating_sub(own_downs);
        growth.set(LinkErrorCounter::LinkDowned, downed);
        if elapsed > settings.error_window {
            growth = scaled(growth, settings.error_window, elapsed);
        }
        if now.saturating_sub(reading.window_began) >= settings.error_window {
            (reading.window_began, reading.growth) = (now, ErrorCounts::default());
        }
        (reading.at, reading.counts) = (now, counts);
        reading.growth.add(&growth);
        let reached = LinkErrorCounter::ALL.into_iter().find(|counter| {
            let limit = settings.errors.get(*counter);
            limit > 0 && reading.growth.get(*counter) >= limit
        });
        let Some(counter) = reached else { return };
        let growth = reading.growth.get(counter);
        (reading.window_began, reading.growth) = (now, ErrorCounts::default());
        let link = LinkName::new(port, peer);
        if !self.postpone_return(now, link) {
            let window_seconds = settings.error_window.as_secs();
            self.damp(now, link, DampingReason::Errors { port, counter, growth, window_seconds });
        }
    }

    /// Forgets flaps that are older than the window, and ports that are gone.
    pub fn forget_old(&mut self, now: Duration, is_known: impl Fn(PortName) -> bool) {
        let window = self.settings.flap_window;
        self.flapping.retain(|_, flaps| {
            flaps.forget_old(now, window);
            flaps.0.iter().any(|times| !times.is_empty())
        });
        let flapping = &self.flapping;
        self.flapping_at.retain(|_, link| flapping.contains_key(link));
        self.ports.retain(|port, _| is_known(*port));
    }

    fn damp(&mut self, now: Duration, link: LinkName, reason: DampingReason) {
        if self.damped.len() >= DAMPED_MAX {
            return;
        }
        self.forget_history(link);
        let times = self.returned.remove(&link).map_or(1, |returned| returned.times.saturating_add(1));
        let until = Some(now + self.settings.quiet_time(times));
        self.damped.push(Damped { entry: DampedLink { link, reason, times }, until });
        self.has_changed = true;
    }

    /// Starts the quiet time of a damped link anew. Returns whether the link is damped.
    fn postpone_return(&mut self, now: Duration, link: LinkName) -> bool {
        let settings = self.settings;
        let Some(damped) = self.damped.iter_mut().find(|damped| damped.entry.link == link) else {
            return false;
        };
        damped.until = Some(now + settings.quiet_time(damped.entry.times));
        true
    }

    fn forget_history(&mut self, link: LinkName) {
        self.flapping.remove(&link);
        for end in link.ends() {
            if self.flapping_at.get(&end) == Some(&link) {
                self.flapping_at.remove(&end);
            }
            if let Some(reading) = self.ports.get_mut(&end).and_then(|record| record.reading.as_mut()) {
                reading.growth = ErrorCounts::default();
            }
        }
    }
}

/// The part of a growth that falls into a window, if it was even.
fn scaled(growth: ErrorCounts, window: Duration, elapsed: Duration) -> ErrorCounts {
    let mut part = ErrorCounts::default();
    for counter in LinkErrorCounter::ALL {
        let count = u128::from(growth.get(counter)) * window.as_millis() / elapsed.as_millis().max(1);
        part.set(counter, u32::try_from(count).unwrap_or(u32::MAX));
    }
    part
}

#[cfg(test)]
#[path = "history_tests.rs"]
mod tests;
