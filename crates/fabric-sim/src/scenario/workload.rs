//! Plays a scenario: every node of every act keeps messages going.

use ib_wire::{Lid, Pkey, ServiceLevel};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use super::clusters::{ClusterSet, SimCluster};
use super::report::{Played, ScenarioReport, is_stalled, link_loads};
use super::rounds::Rounds;
use super::{Scenario, ScenarioError, SendPattern, SendRate, WorkloadSpec};
use crate::fabric::DropReason;
use crate::traffic::{
    BLOCK_BYTES, HEADER_BYTES, Message, PAYLOAD_BYTES_MAX, Service, Simulation, Tag, Time, TrafficNetwork,
    Workload, WorkloadActions,
};

/// When somebody whose packet was dropped before it left tries again.
const RETRY: Time = Time::from_us(1);

/// Nodes begin at different moments within this.
pub(super) const STAGGER: Time = Time::from_us(1);

/// Packets of one block that a hostile sender puts into one message.
const SMALL_PAYLOAD: u16 = (BLOCK_BYTES - HEADER_BYTES) as u16;

/// Service levels there are.
const LEVELS: u8 = 16;

/// Plays a scenario on a network, and tells what everybody got.
pub fn run_scenario(
    network: TrafficNetwork,
    cast: &ClusterSet,
    scenario: &Scenario,
    seed: u64,
) -> Result<ScenarioReport, ScenarioError> {
    scenario.check(cast)?;
    let mut simulation = Simulation::new(network, scenario.settings())?;
    let mut player = Player::new(cast, scenario, seed);
    let warm_up = scenario.warm_up.time();
    simulation.run(&mut player, warm_up);
    let ports: Vec<u64> = simulation.network().ports().map(|port| simulation.sent_bytes(port)).collect();
    let before: Vec<u64> = (0..player.tags)
        .map(|tag| simulation.measure(Tag(tag)).map_or(0, |measure| measure.wire_bytes))
        .collect();
    let duration = scenario.duration.time();
    let outcome = simulation.run(&mut player, warm_up + duration);
    let sent: Vec<u64> = simulation
        .network()
        .ports()
        .zip(&ports)
        .map(|(port, before)| simulation.sent_bytes(port) - before)
        .collect();
    let clusters =
        player.played(&before).into_iter().map(|played| played.report(&simulation, &sent, duration));
    Ok(ScenarioReport {
        clusters: clusters.collect(),
        totals: simulation.totals(),
        is_stalled: is_stalled(outcome),
        duration,
        interval: simulation.settings().interval,
        links: link_loads(&simulation, &sent, duration),
    })
}

/// A node that plays an act.
struct Role<'a> {
    act: &'a WorkloadSpec,
    party: &'a SimCluster,
    /// Its place among the nodes.
    node: usize,
    tag: Tag,
    level: ServiceLevel,
    /// The troupe it belongs to.
    troupe: usize,
    /// Messages so far.
    count: u64,
    /// The message that has not left yet.
    pending: Option<u32>,
    /// Bits per second on the wire, if it does not send as much as it can.
    rate: Option<f64>,
}

/// All nodes of a cluster that play an act.
struct Troupe<'a> {
    party: &'a SimCluster,
    act: &'a WorkloadSpec,
    first_role: usize,
    rounds: Rounds,
}

struct Player<'a> {
    cast: &'a ClusterSet,
    roles: Vec<Role<'a>>,
    troupes: Vec<Troupe<'a>>,
    tags: u16,
    random: Pcg64,
}

/// What somebody is woken for.
#[derive(Clone, Copy)]
enum Cue {
    /// To send the next message.
    Next,
    /// To end computing.
    Computed,
}

impl Cue {
    fn token(self, role: usize) -> u64 {
        (role as u64) << 1 | u64::from(matches!(self, Self::Computed))
    }

    fn of(token: u64) -> (Self, usize) {
        (if token & 1 == 1 { Self::Computed } else { Self::Next }, (token >> 1) as usize)
    }
}

impl<'a> Player<'a> {
    fn new(cast: &'a ClusterSet, scenario: &'a Scenario, seed: u64) -> Self {
        let mut player = Self {
            cast,
            roles: Vec::new(),
            troupes: Vec::new(),
            tags: 0,
            random: Pcg64::seed_from_u64(seed),
        };
        for act in &scenario.workloads {
            for party in scenario.clusters(cast, act) {
                player.engage(act, party);
            }
        }
        player
    }

    fn engage(&mut self, act: &'a WorkloadSpec, party: &'a SimCluster) {
        let troupe = self.troupes.len();
        self.troupes.push(Troupe { party, act, first_role: self.roles.len(), rounds: Rounds::default() });
        let rate = rate_of(act, party);
        for node in 0..party.seats.len() {
            let tag = Tag(self.tags);
            self.tags = self.tags.saturating_add(1);
            // A hostile guest does not ask which level it was given.
            let levels = if act.send == SendPattern::Everything { 0..LEVELS } else { 0..1 };
            for level in levels {
                let level = match act.send {
                    SendPattern::Everything => ServiceLevel::from_wire(level).unwrap_or_default(),
                    _ => party.sl,
                };
                self.roles.push(Role { act, party, node, tag, level, troupe, count: 0, pending: None, rate });
            }
        }
    }

    fn played(&self, before: &[u64]) -> Vec<Played<'a>> {
        self.troupes
            .iter()
            .enumerate()
            .map(|(place, troupe)| {
                let mut tags: Vec<Tag> =
                    self.roles.iter().filter(|role| role.troupe == place).map(|role| role.tag).collect();
                tags.dedup();
                let rounds =
                    (troupe.act.send == SendPattern::BulkSynchronous).then(|| troupe.rounds.took.clone());
                Played {
                    party: troupe.party,
                    is_hostile: troupe.act.send.is_hostile(),
                    is_tested: is_test(troupe.act),
                    is_uniform: troupe.act.send == SendPattern::AllToAll,
                    fill: fill(troupe.act),
                    before: tags.iter().map(|tag| before[usize::from(tag.0)]).collect(),
                    tags,
                    rounds,
                }
            })
            .collect()
    }

    /// A number below another.
    fn draw(&mut self, below: usize) -> usize {
        self.random.random_range(0..below.max(1) as u64) as usize
    }

    /// The next message of a role, if it has anybody to send to.
    fn message(&mut self, place: usize) -> Option<Message> {
        let role = &self.roles[place];
        let (act, party, node, count) = (role.act, role.party, role.node, role.count);
        let (mut level, tag, seats) = (role.level, role.tag, &party.seats);
        let mut pkey = party.pkey;
        let others =
            seats.len().checked_sub(1).filter(|others| *others > 0 || act.send == SendPattern::Everything)?;
        // All others get messages of one size before the next size comes, or some would get all that are large.
        let lap = if act.send == SendPattern::AllToAll { others.max(1) as u64 } else { 1 };
        let size = act.message[(count / lap % act.message.len() as u64) as usize].bytes();
        let (mut bytes, mut packet_bytes) = (size, None);
        let target = (act.to as usize).saturating_sub(1);
        // The one that others send to sends to them in turn.
        let to_target = if node == target { in_turn(node, count, others) } else { target };
        let to = match act.send {
            SendPattern::AllToAll | SendPattern::Overshoot => in_turn(node, count, others),
            SendPattern::Shift => (node + act.to as usize % seats.len()) % seats.len(),
            SendPattern::Incast | SendPattern::Stall if node == target => return None,
            SendPattern::Incast | SendPattern::Stall => to_target,
            SendPattern::Hotspot if self.draw(100) < usize::from(act.percent) => to_target,
            SendPattern::Hotspot | SendPattern::Random => in_turn(node, self.draw(others) as u64, others),
            SendPattern::BulkSynchronous => in_turn(node, count, others),
            SendPattern::Everything => node,
        };
        if to == node && act.send != SendPattern::Everything {
            return None;
        }
        if act.send != SendPattern::Everything {
            level = party.level(node, to);
        }
        let mut lid: Lid = seats[to].lid;
        match act.send {
            SendPattern::Everything => {
                lid = self.cast.addresses[self.draw(self.cast.addresses.len())];
                let keys: &[Pkey] = &seats[node].keys;
                pkey = keys.get(self.draw(keys.len())).copied().unwrap_or(pkey);
                bytes = 1 + self.draw(size as usize) as u64;
            }
            // Weight is used up to the last unit by the smallest packets, then the largest one goes.
            SendPattern::Overshoot if count % 2 == 0 && party.weight > 1 => {
                bytes = u64::from(SMALL_PAYLOAD) * u64::from(party.weight - 1);
                packet_bytes = Some(SMALL_PAYLOAD);
            }
            SendPattern::Overshoot => bytes = PAYLOAD_BYTES_MAX.into(),
            _ => {}
        }
        let role = &mut self.roles[place];
        role.count += 1;
        let from = party.seats[node].function;
        let token = (place as u64) << 32 | role.count & 0xffff_ffff;
        Some(Message { from, to: lid, service: Service::Data(level), pkey, bytes, packet_bytes, tag, token })
    }

    /// Sends the next message, now or when the next burst begins.
    fn next(&mut self, now: Time, place: usize, actions: &mut WorkloadActions) {
        let role = &self.roles[place];
        if let Some(bursts) = role.act.bursts {
            let (on, off) = (bursts.on.time().ps(), bursts.off.time().ps());
            let phase = now.ps() % (on + off).max(1);
            if phase >= on {
                return actions.wake(now + Time::from_ps(on + off - phase), Cue::Next.token(place));
            }
        }
        let rate = role.rate;
        let Some(message) = self.message(place) else { return };
        self.roles[place].pending = Some(message.token as u32);
        actions.post(message);
        if let Some(rate) = rate {
            let ps = wire_bytes(message.bytes) as f64 * 8e12 / rate;
            actions.wake(now + Time::from_ps(ps as u64), Cue::Next.token(place));
        }
    }

    /// A message has left, or was dropped before; whether it is the one that was waited for.
    fn is_gone(&mut self, message: &Message) -> Option<usize> {
        let place = (message.token >> 32) as usize;
        let role = &mut self.roles[place];
        let is_it =
            role.pending == Some(message.token as u32) && role.act.send != SendPattern::BulkSynchronous;
        is_it.then(|| role.pending = None).map(|()| place)
    }

    fn begin_round(&mut self, now: Time, troupe: usize, actions: &mut WorkloadActions) {
        let Troupe { party, act, first_role, .. } = self.troupes[troupe];
        let nodes = party.seats.len();
        if nodes < 2 {
            return;
        }
        self.troupes[troupe].rounds.begin(nodes, nodes as u64 - 1);
        for role in first_role..first_role + nodes {
            actions.wake(now + act.compute.time(), Cue::Computed.token(role));
        }
    }

    /// A message of a round has arrived, or never will.
    fn count_round(&mut self, now: Time, message: &Message, actions: &mut WorkloadActions) {
        let role = &self.roles[(message.token >> 32) as usize];
        let troupe = role.troupe;
        if role.act.send == SendPattern::BulkSynchronous && self.troupes[troupe].rounds.ended(now) {
            self.begin_round(now, troupe, actions);
        }
    }
}

impl Workload for Player<'_> {
    fn start(&mut self, actions: &mut WorkloadActions) {
        for troupe in 0..self.troupes.len() {
            let Troupe { act, party, .. } = self.troupes[troupe];
            match act.send {
                SendPattern::BulkSynchronous => self.begin_round(Time::ZERO, troupe, actions),
                SendPattern::Stall => {
                    let seat = party.seats.get((act.to as usize).saturating_sub(1));
                    seat.into_iter().for_each(|seat| actions.stop_draining(seat.function.port()));
                }
                _ => {}
            }
        }
        for place in 0..self.roles.len() {
            if self.roles[place].act.send != SendPattern::BulkSynchronous {
                let begin = Time::from_ps(self.random.random_range(0..STAGGER.ps()));
                actions.wake(begin, Cue::Next.token(place));
            }
        }
    }

    fn sent(&mut self, now: Time, message: &Message, actions: &mut WorkloadActions) {
        if let Some(place) = self.is_gone(message)
            && self.roles[place].rate.is_none()
        {
            self.next(now, place, actions);
        }
    }

    fn delivered(&mut self, now: Time, message: &Message, _: Time, actions: &mut WorkloadActions) {
        self.count_round(now, message, actions);
    }

    fn lost(&mut self, now: Time, message: &Message, _: DropReason, actions: &mut WorkloadActions) {
        // Those that were dropped before they left are tried again, but not at once: time has to pass.
        if let Some(place) = self.is_gone(message)
            && self.roles[place].rate.is_none()
        {
            actions.wake(now + RETRY, Cue::Next.token(place));
        }
        self.count_round(now, message, actions);
    }

    fn woken(&mut self, now: Time, token: u64, actions: &mut WorkloadActions) {
        match Cue::of(token) {
            (Cue::Next, place) => self.next(now, place, actions),
            (Cue::Computed, place) => {
                let troupe = self.roles[place].troupe;
                self.troupes[troupe].rounds.computed(now);
                for _ in 1..self.roles[place].party.seats.len() {
                    self.message(place).into_iter().for_each(|message| actions.post(message));
                }
            }
        }
    }
}

/// Whether an act asks for what was promised, in the way it was promised.
fn is_test(act: &WorkloadSpec) -> bool {
    act.send == SendPattern::AllToAll && act.rate == SendRate::Guaranteed && act.bursts.is_none()
}

/// Bytes of a message's packets with their headers.
fn wire_bytes(bytes: u64) -> u64 {
    bytes + bytes.div_ceil(PAYLOAD_BYTES_MAX.into()).max(1) * u64::from(HEADER_BYTES)
}

/// The part of a promise that a cluster's packets can carry. Arbitration and buffers count blocks of 64 bytes, the last one of
/// a packet whole: who sends small packets uses up its turns with fewer bytes. What full-size packets carry is all of it.
fn fill(act: &WorkloadSpec) -> f64 {
    let sum = |of: fn(u64) -> u64| act.message.iter().map(|size| of(size.bytes())).sum::<u64>() as f64;
    let full = u64::from(PAYLOAD_BYTES_MAX);
    let of_full = wire_bytes(full) as f64 / wire_blocks(full) as f64;
    (sum(wire_bytes) / sum(wire_blocks) / of_full).min(1.0)
}

/// Blocks of a message's packets, each last one counted whole.
fn wire_blocks(bytes: u64) -> u64 {
    let full = u64::from(PAYLOAD_BYTES_MAX);
    let blocks = |payload: u64| (payload + u64::from(HEADER_BYTES)).div_ceil(BLOCK_BYTES.into());
    let last = bytes - bytes.saturating_sub(1) / full * full;
    bytes.saturating_sub(1) / full * blocks(full) + blocks(last)
}

/// What a node sends, in bits per second with headers; `None` as much as it can.
fn rate_of(act: &WorkloadSpec, party: &SimCluster) -> Option<f64> {
    match act.rate {
        SendRate::Full => None,
        SendRate::Guaranteed => party.guarantee.map(|guarantee| guarantee.bits_per_s() as f64 * fill(act)),
        SendRate::Fixed(rate) => Some(rate.bits_per_s() as f64),
    }
}

/// The node that another one sends to in turn, never itself.
fn in_turn(node: usize, count: u64, others: usize) -> usize {
    (node + 1 + (count % others.max(1) as u64) as usize) % (others + 1)
}
