//! The network check: whether a node reaches its cluster over the cluster's own network, before it counts as ready.
//!
//! Each node has two tasks, named by its context ([`Probes`]): get a reply from its successor, and receive a broadcast. It
//! repeats its requests, at intervals that double from 250 ms to 4 s, until both are done:
//!
//! ```text
//! node ── probe ──► successor         node ── broadcast request ──► broadcaster
//! node ◄── reply ── successor         all nodes ◄── broadcast ── broadcaster
//! ```
//!
//! Nodes answer at any time, whatever the state of their own check, so the nodes may start in any order. A node costs the
//! cluster two requests and a reply; requests that arrive within 250 ms share one broadcast. A broadcast request or a
//! broadcast also resets the retry interval of a node that still waits, because it shows that another node has come up.
//!
//! A reply repeats the nonce of its probe, and a broadcast carries the generation of its sender's context, so packets from
//! before a change of the cluster do not count. All packets are authenticated with a key shared by the nodes of the cluster
//! ([`ProbeKey`]), so other processes in a guest cannot answer for their node.
//!
//! [`Prober`] does no I/O and reads no clock: the caller passes packets and the time to [`Prober::receive`], sends what
//! [`Prober::transmit`] returns until it returns `None`, and calls it again at [`Prober::timeout`].

mod packet;
mod socket;

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

pub use packet::ProbeKey;
use packet::{Kind, Packet};
pub(crate) use socket::ProbeSocket;

/// UDP port of the network check. Firewalls in an image must allow it between nodes.
pub const UDP_PORT: u16 = 7556;

/// Interval before the first retry; doubled for each further one.
const RETRY_MIN: Duration = Duration::from_millis(250);

/// Longest retry interval.
const RETRY_MAX: Duration = Duration::from_secs(4);

/// Least time between two broadcasts of a node.
const BROADCAST_PAUSE: Duration = Duration::from_millis(250);

/// Most replies queued for sending. A node is normally probed by one or two others; the rest of a flood is dropped.
const REPLIES_QUEUED_MAX: usize = 64;

/// Most replies of a node per second.
const REPLIES_PER_SECOND: u32 = 256;

/// The peers of a node's network check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probes {
    /// The node that must reply; `None` if no other node may be reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub successor: Option<Ipv4Addr>,
    /// The node that is asked for a broadcast; `None` if no broadcast reaches this node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broadcaster: Option<Ipv4Addr>,
}

/// Result of a node's network check so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reachability {
    /// The successor has replied, or there is none.
    pub reached: bool,
    /// A broadcast was received, or no node could send one.
    pub heard: bool,
}

impl Reachability {
    /// Whether both tasks are done.
    pub const fn is_complete(self) -> bool {
        self.reached && self.heard
    }
}

/// Where a packet is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeDestination {
    Node(Ipv4Addr),
    Broadcast,
}

/// The parameters of a node's network check.
#[derive(Clone, Debug)]
pub struct ProbeTask {
    pub own_address: Ipv4Addr,
    /// Generation of the node's context.
    pub generation: u64,
    pub probes: Probes,
    /// Shared by all nodes of the cluster.
    pub key: ProbeKey,
}

/// State machine of the network check of one node; see the module documentation for the order of calls.
#[derive(Debug)]
pub struct Prober {
    task: ProbeTask,
    nonce: u64,
    reach: Reachability,
    /// When requests are sent next, and the interval after that.
    retry_at: Instant,
    pause: Duration,
    sent_at: Option<Instant>,
    outgoing: VecDeque<(ProbeDestination, Packet)>,
    broadcast_at: Option<Instant>,
    broadcast_earliest: Instant,
    /// Start of the current one-second interval, and the replies sent in it.
    replies_sent: (Instant, u32),
}

impl Prober {
    /// Starts a check; the first requests are due at `now`. `nonce` must be hard to guess.
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

    /// Generation of the context that is checked.
    pub fn generation(&self) -> u64 {
        self.task.generation
    }

    /// Result so far.
    pub const fn reach(&self) -> Reachability {
        self.reach
    }

    /// When [`Prober::transmit`] must be called next even if no packet arrives; `None` if nothing is scheduled.
    pub fn timeout(&self) -> Option<Instant> {
        let ask = (!self.reach.is_complete()).then_some(self.retry_at);
        ask.into_iter().chain(self.broadcast_at).min()
    }

    /// Processes a received packet. Packets that are malformed or of another cluster are ignored.
    pub fn receive(&mut self, from: Ipv4Addr, bytes: &[u8], now: Instant) {
        let Some(packet) = Packet::open(bytes, &self.task.key) else { return };
        // The kernel loops a node's own broadcasts back to it.
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

    /// The next packet to send. Call it until it returns `None`.
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

    /// Resets the retry interval: another node has come up.
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
