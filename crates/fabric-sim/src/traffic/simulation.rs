//! The simulation: a workload goes in, measurements come out.

use serde::Serialize;

use super::arbiter::Arbiter;
use super::event_queue::EventQueue;
use super::inputs::Inputs;
use super::measure::Measure;
use super::message::{Message, Tag, Workload, WorkloadAction, WorkloadActions};
use super::network::{NONE, PortKind, TrafficNetwork};
use super::prefetch::Prefetch;
use super::settings::{BadTrafficSettings, TrafficSettings};
use super::state::{Fifo, LANES, Lanes, Output, Packet, Posted, QueueEntry, Slab, Source};
use super::time::{Pace, Time};
use crate::device::PortId;
use crate::fabric::DropReason;
use ib_wire::{LaneSet, VirtualLane};

/// Credits of an output without flow control.
const ENDLESS: u16 = u16::MAX;

/// The reason why [`Simulation::run`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunOutcome {
    /// The time limit was reached; events are still pending.
    TimeLimit,
    /// All messages were delivered or dropped, and no wakeup is pending.
    Done,
    /// No event is pending, but packets remain: in a deadlock, for a receiver that does not drain, or on a
    /// lane that no arbitration table serves.
    Stalled,
}

/// Totals over all packets since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    pub created: u64,
    pub delivered: u64,
    pub dropped: u64,
    /// Packets in queues, in buffers and on links.
    pub in_flight: u64,
    /// Processed events: arrivals, ends of transmissions, returned credits, wakeups.
    pub events: u64,
    /// Transmissions started, one per packet and link.
    pub hops: u64,
}

/// A notification for the workload.
#[derive(Clone, Copy, Debug)]
pub(super) enum WorkloadNotice {
    Sent(Message),
    Delivered(Message, u64),
    Lost(Message, DropReason),
    Woken(u64),
}

/// A running simulation.
///
/// # Verbs
///
/// 1. [`Simulation::new`] takes a snapshot of a fabric and the settings; nothing is in flight.
/// 2. [`run`](Self::run) simulates until a moment and may be called again with a later one. Always pass the
///    same workload: the first call starts it, all calls notify it.
/// 3. Between calls of `run`, read the results: [`totals`](Self::totals), [`measure`](Self::measure),
///    [`measures`](Self::measures), [`sent_bytes`](Self::sent_bytes), [`lane_bytes`](Self::lane_bytes); and
///    the state: [`blocked`](Self::blocked), [`credit_loop`](Self::credit_loop), [`audit`](Self::audit).
///
/// # Guarantees
///
/// * The same network, settings and workload give the same results, however the time is divided into calls of
///   `run`. Events at the same time have a fixed order.
/// * The workload is notified in the order of events; the actions of each notification are carried out before
///   the next one.
/// * `created == delivered + dropped + in_flight` holds between calls, the credits of every lane are
///   conserved, and no link and no input of a switch is idle while it could move a packet. `audit` checks all
///   of this.
/// * After [`RunOutcome::TimeLimit`] the time is exactly `until`; otherwise it is the time of the last event.
#[derive(Debug)]
pub struct Simulation {
    pub(super) network: TrafficNetwork,
    pub(super) settings: TrafficSettings,
    pub(super) now: u64,
    pub(super) queue: EventQueue,
    pub(super) packets: Slab<Packet>,
    /// Queue entries of the packets at switches, by packet number.
    pub(super) queue_entries: Vec<QueueEntry>,
    pub(super) messages: Slab<Posted>,
    /// A queue for each lane of each port, then one for each source.
    pub(super) fifos: Vec<Fifo>,
    pub(super) sources: Vec<Source>,
    /// Numbers of the sources of each port, by function and lane.
    pub(super) sources_of: Vec<Vec<u32>>,
    /// One for each port, then one for the loopback of each adapter port.
    pub(super) outputs: Vec<Output>,
    pub(super) lanes: Lanes,
    /// The loopback output of each adapter port, else [`NONE`].
    pub(super) loopback_outputs: Vec<u32>,
    /// Buffer at the other end of each output, in blocks per lane.
    pub(super) capacity: Vec<u16>,
    /// Management packets that each port holds.
    pub(super) held: Vec<u16>,
    pub(super) drains: Vec<bool>,
    pub(super) inputs: Inputs,
    pub(super) measures: Vec<Measure>,
    pub(super) notices: Vec<WorkloadNotice>,
    pub(super) wakes: Slab<u64>,
    pub(super) totals: Totals,
    /// State of the prefetcher.
    pub(super) prefetch: Prefetch,
    actions: WorkloadActions,
    has_started: bool,
}

impl Simulation {
    /// A simulation at time 0 with nothing in flight. Fails if a buffer does not fit the largest packet or
    /// flow control.
    pub fn new(network: TrafficNetwork, settings: TrafficSettings) -> Result<Self, BadTrafficSettings> {
        settings.check()?;
        let ports = network.ports.len();
        let mut simulation = Self {
            settings,
            now: 0,
            queue: EventQueue::new(),
            packets: Slab::new(),
            queue_entries: Vec::new(),
            messages: Slab::new(),
            fifos: vec![Fifo::EMPTY; ports * LANES as usize],
            sources: Vec::new(),
            sources_of: vec![Vec::new(); ports],
            outputs: Vec::with_capacity(ports),
            lanes: Lanes::default(),
            loopback_outputs: vec![NONE; ports],
            capacity: Vec::new(),
            held: vec![0; ports],
            drains: vec![true; ports],
            inputs: Inputs::new(settings.switch_model, ports),
            measures: Vec::new(),
            notices: Vec::new(),
            wakes: Slab::new(),
            totals: Totals::default(),
            prefetch: Prefetch::default(),
            actions: WorkloadActions::default(),
            has_started: false,
            network,
        };
        for port in 0..ports as u32 {
            simulation.add_link(port)?;
        }
        for port in 0..ports as u32 {
            if simulation.network.lookups[port as usize].kind == PortKind::Adapter {
                simulation.add_loopback(port);
            }
        }
        simulation.lanes = Lanes::new(&simulation.capacity);
        Ok(simulation)
    }

    fn add_link(&mut self, port: u32) -> Result<(), BadTrafficSettings> {
        let lookup = &self.network.lookups[port as usize];
        let peer = self.network.lookups.get(lookup.to as usize);
        let to_switch = peer.is_some_and(|peer| peer.kind != PortKind::Adapter);
        let blocks = self.settings.lane_blocks(lookup.lanes)?;
        let pace = self.network.ports[port as usize].pace;
        self.add_output(port, lookup.to, pace, blocks);
        self.outputs[port as usize].to_switch = to_switch;
        Ok(())
    }

    fn add_loopback(&mut self, port: u32) {
        let rate = self.settings.loopback_rate.map(|rate| Pace::of(rate.bits_per_s() as f64));
        let pace = rate.unwrap_or(self.network.ports[port as usize].pace);
        let number = self.outputs.len();
        self.loopback_outputs[port as usize] = number as u32;
        self.add_output(port, port, pace, ENDLESS);
        self.outputs[number].is_loopback = true;
    }

    fn add_output(&mut self, port: u32, to: u32, pace: Pace, blocks: u16) {
        self.outputs.push(Output {
            arbiter: Arbiter::new(self.network.ports[port as usize].tables.clone()),
            until: 0,
            fifo: NONE,
            to,
            pace,
            waiting: LaneSet::EMPTY,
            ready: LaneSet::EMPTY,
            lane: VirtualLane::default(),
            blocks: 0,
            is_busy: false,
            to_switch: false,
            is_switch: self.network.lookups[port as usize].kind != PortKind::Adapter,
            is_loopback: false,
            has_fec: self.network.ports[port as usize].rate.has_fec(),
        });
        self.capacity.push(blocks);
    }

    /// Simulates until the time `until`, or until no event is pending. The first call starts the workload;
    /// later calls continue.
    pub fn run<W: Workload>(&mut self, workload: &mut W, until: Time) -> RunOutcome {
        if !self.has_started {
            self.has_started = true;
            workload.start(&mut self.actions);
            self.apply_actions();
            self.notify(workload);
        }
        while let Some((time, what)) = self.queue.pop(until.ps()) {
            self.prefetch();
            self.now = self.now.max(time);
            self.totals.events += 1;
            self.handle(what);
            if !self.notices.is_empty() {
                self.notify(workload);
            }
        }
        if !self.queue.is_empty() {
            self.now = self.now.max(until.ps());
            return RunOutcome::TimeLimit;
        }
        if self.messages.len() == 0 { RunOutcome::Done } else { RunOutcome::Stalled }
    }

    /// Notifies the workload and carries out its actions, until there are no more notifications.
    fn notify<W: Workload>(&mut self, workload: &mut W) {
        let now = Time::from_ps(self.now);
        let mut delivered = 0;
        while let Some(notice) = self.notices.get(delivered).copied() {
            delivered += 1;
            let actions = &mut self.actions;
            match notice {
                WorkloadNotice::Sent(message) => workload.sent(now, &message, actions),
                WorkloadNotice::Delivered(message, at) => {
                    workload.delivered(now, &message, Time::from_ps(at), actions);
                }
                WorkloadNotice::Lost(message, reason) => workload.lost(now, &message, reason, actions),
                WorkloadNotice::Woken(token) => workload.woken(now, token, actions),
            }
            self.apply_actions();
        }
        self.notices.clear();
    }

    fn apply_actions(&mut self) {
        let mut actions = std::mem::take(&mut self.actions.list);
        for order in actions.drain(..) {
            match order {
                WorkloadAction::Post(message) => self.post(message),
                WorkloadAction::Wake(at, token) => self.wake(at.ps(), token),
                WorkloadAction::Drain(port, drains) => self.set_draining(port.0, drains),
            }
        }
        self.actions.list = actions;
    }

    /// The current simulated time.
    pub fn now(&self) -> Time {
        Time::from_ps(self.now)
    }

    pub fn network(&self) -> &TrafficNetwork {
        &self.network
    }

    pub fn settings(&self) -> &TrafficSettings {
        &self.settings
    }

    /// Totals over all packets since the start.
    pub fn totals(&self) -> Totals {
        Totals { in_flight: self.packets.len() as u64, ..self.totals }
    }

    /// Measurements of a tag; `None` if nothing was posted with it.
    pub fn measure(&self, tag: Tag) -> Option<&Measure> {
        self.measures.get(usize::from(tag.0)).filter(|measure| measure.created > 0)
    }

    /// All tags that something was posted with, in ascending order, and their measurements.
    pub fn measures(&self) -> impl Iterator<Item = (Tag, &Measure)> {
        let all = self.measures.iter().enumerate();
        all.filter(|(_, measure)| measure.created > 0).map(|(tag, measure)| (Tag(tag as u16), measure))
    }

    /// Bytes that a port has started to send, headers and CRCs included.
    pub fn sent_bytes(&self, port: PortId) -> u64 {
        LaneSet::ALL.iter().map(|lane| self.lanes.bytes(port.0, lane)).sum()
    }

    /// Bytes that a port has started to send on one lane.
    pub fn lane_bytes(&self, port: PortId, lane: VirtualLane) -> u64 {
        self.lanes.bytes(port.0, lane)
    }
}
