//! Whether a node reaches its cluster over the cluster's own network, before it counts as ready.
//!
//! Every node has two tasks, which its context names ([`Probes`]): to reach its successor and get an answer, and to hear a
//! broadcast. It repeats a question until it is answered, with pauses that double:
//!
//! ```text
//! node ── probe ───► successor        node ── call ──► broadcaster
//! node ◄── answer ── successor        everybody ◄── broadcast ── broadcaster
//! ```
//!
//! Everybody answers probes and calls at any time, so nobody has to know how far the others are. The questions of one node
//! cost the cluster two packets and an answer each; calls that come together lead to one broadcast. Calls and broadcasts
//! also wake those who still wait: somebody has come up.
//!
//! An answer repeats the nonce of the question, and a broadcast tells the generation of its sender's context, so that old
//! packets count for nothing. All are signed with a key that the nodes of a cluster share ([`ProbeKey`]): no other process
//! of a machine can answer in place of its node.
//!
//! The machine ([`Prober`]) knows neither sockets nor clocks.

mod packet;
mod socket;

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

pub use packet::ProbeKey;
use packet::{Kind, Packet};
pub(crate) use socket::ProbeSocket;

use crate::seed::Probes;

/// UDP port of these packets; firewalls in an image have to let it pass between nodes.
pub const UDP_PORT: u16 = 7556;

/// Pause before a question is repeated: doubled each time.
const RETRY_MIN: Duration = Duration::from_millis(250);

/// The longest such pause: what a node that comes late waits at most for others to notice.
const RETRY_MAX: Duration = Duration::from_secs(4);

/// Time between two broadcasts of one node: calls that come meanwhile share the next one.
const BROADCAST_PAUSE: Duration = Duration::from_millis(250);

/// Answers that may wait to be sent. A node is asked by one or two others; who floods it is not answered.
const REPLIES_QUEUED_MAX: usize = 64;

/// Answers in a second.
const REPLIES_PER_SECOND: u32 = 256;

/// SessionRequest a node knows of its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reachability {
    /// Its successor has answered, or it has none.
    pub reached: bool,
    /// It has heard a broadcast, or nobody could send it one.
    pub heard: bool,
}

impl Reachability {
    /// Whether nothing is left to find out.
    pub const fn is_complete(self) -> bool {
        self.reached && self.heard
    }
}

/// Who a packet is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeDestination {
    /// One node.
    Node(Ipv4Addr),
    /// All of them.
    Broadcast,
}

/// SessionRequest a node is, and what it has to find out.
#[derive(Clone, Debug)]
pub struct ProbeTask {
    /// Its address.
    pub own_address: Ipv4Addr,
    /// Of its context.
    pub generation: u64,
    /// Whom it has to reach and hear.
    pub probes: Probes,
    /// Shared by the nodes of the cluster.
    pub key: ProbeKey,
}

/// Asks, answers, and notes what came of it.
#[derive(Debug)]
pub struct Prober {
    task: ProbeTask,
    nonce: u64,
    reach: Reachability,
    /// When questions are asked next, and the pause after that.
    retry_at: Instant,
    pause: Duration,
    sent_at: Option<Instant>,
    outgoing: VecDeque<(ProbeDestination, Packet)>,
    broadcast_at: Option<Instant>,
    broadcast_earliest: Instant,
    /// The second that began then, and the answers given in it.
    replies_sent: (Instant, u32),
}

impl Prober {
    /// Asks from now on. The nonce has to be hard to guess.
    pub fn new(task: ProbeTask, nonce: u64, now: Instant) -> Self {
        let Probes { successor, broadcaster } = task.probes;
        Self {
            task,
            nonce,
            reach: Reachability { reached: successor.is_none(), heard: broadcaster.is_none() },
            retry_at: now,
            pause: RETRY_MIN,
            sent_at: None,
            outgoing: VecDeque::new(),
            broadcast_at: None,
            broadcast_earliest: now,
            replies_sent: (now, 0),
        }
    }

    /// Which context it is about.
    pub fn generation(&self) -> u64 {
        self.task.generation
    }

    /// SessionRequest was found out so far.
    pub const fn reach(&self) -> Reachability {
        self.reach
    }

    /// When to call [`Prober::transmit`] although nothing has come.
    pub fn timeout(&self) -> Option<Instant> {
        let ask = (!self.reach.is_complete()).then_some(self.retry_at);
        ask.into_iter().chain(self.broadcast_at).min()
    }

    /// Takes a packet; one that is not of this cluster, or makes no sense, is passed over.
    pub fn receive(&mut self, from: Ipv4Addr, bytes: &[u8], now: Instant) {
        let Some(packet) = Packet::open(bytes, &self.task.key) else { return };
        // The kernel gives a node its own broadcasts back.
        if packet.from != from || from == self.task.own_address {
            return;
        }
        match packet.kind {
            Kind::Probe => self.reply(from, packet.nonce, now),
            Kind::Reply => {
                let is_ours = packet.nonce == self.nonce && Some(from) == self.task.probes.successor;
                self.reach.reached |= is_ours;
            }
            Kind::BroadcastRequest => {
                let at = now.max(self.broadcast_earliest);
                self.broadcast_at.get_or_insert(at);
                self.wake(now);
            }
            Kind::Broadcast => {
                self.reach.heard |= packet.generation >= self.task.generation;
                self.wake(now);
            }
        }
    }

    /// The next packet to send; call it until there is none.
    pub fn transmit(&mut self, now: Instant) -> Option<(ProbeDestination, Vec<u8>)> {
        if !self.reach.is_complete() && now >= self.retry_at {
            self.send_requests(now);
        }
        if self.broadcast_at.is_some_and(|at| now >= at) {
            self.broadcast_at = None;
            self.broadcast_earliest = now + BROADCAST_PAUSE;
            self.queue(ProbeDestination::Broadcast, Kind::Broadcast, 0);
        }
        let (to, packet) = self.outgoing.pop_front()?;
        Some((to, packet.seal(&self.task.key)))
    }

    fn send_requests(&mut self, now: Instant) {
        let Probes { successor, broadcaster } = self.task.probes;
        if let Some(successor) = successor.filter(|_| !self.reach.reached) {
            self.queue(ProbeDestination::Node(successor), Kind::Probe, self.nonce);
        }
        if let Some(broadcaster) = broadcaster.filter(|_| !self.reach.heard) {
            self.queue(ProbeDestination::Node(broadcaster), Kind::BroadcastRequest, 0);
        }
        self.sent_at = Some(now);
        self.retry_at = now + self.pause;
        self.pause = RETRY_MAX.min(self.pause * 2);
    }

    /// Asks soon: somebody has come up.
    fn wake(&mut self, now: Instant) {
        self.pause = RETRY_MIN;
        self.retry_at = self.sent_at.map_or(now, |asked| now.max(asked + RETRY_MIN));
    }

    fn reply(&mut self, to: Ipv4Addr, nonce: u64, now: Instant) {
        let (since, count) = &mut self.replies_sent;
        if now.saturating_duration_since(*since) >= Duration::from_secs(1) {
            (*since, *count) = (now, 0);
        }
        if *count < REPLIES_PER_SECOND && self.outgoing.len() < REPLIES_QUEUED_MAX {
            *count += 1;
            self.queue(ProbeDestination::Node(to), Kind::Reply, nonce);
        }
    }

    fn queue(&mut self, to: ProbeDestination, kind: Kind, nonce: u64) {
        let ProbeTask { own_address, generation, .. } = self.task;
        self.outgoing.push_back((to, Packet { kind, from: own_address, generation, nonce }));
    }
}
