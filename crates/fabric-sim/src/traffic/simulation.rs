//! The simulation as its users see it: a workload goes in, measures come out.

use serde::Serialize;

use super::ahead::Ahead;
use super::arbiter::Arbiter;
use super::measure::Measure;
use super::message::{Message, Order, Orders, Tag, Workload};
use super::network::{Kind, NONE, Network};
use super::queue::EventQueue;
use super::settings::{BadSettings, Settings};
use super::state::{Fifo, LANES, Lanes, Output, Packet, Place, Posted, Slab, Source};
use super::time::{Pace, Time};
use crate::device::PortId;
use crate::fabric::DropReason;
use ib_wire::VirtualLane;

/// Room where nobody counts it.
const ENDLESS: u16 = u16::MAX;

/// Why a simulation came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The time is up.
    TimeIsUp,
    /// Everything was delivered or dropped, and nobody asked to be woken.
    Done,
    /// Nothing can happen any more, and packets are still inside: they wait in a ring, for a receiver that does not drain,
    /// or in a lane that no arbitration table serves.
    Stalled,
}

/// What became of all packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Packets that were made.
    pub created: u64,
    /// Packets that arrived.
    pub delivered: u64,
    /// Packets that were dropped.
    pub dropped: u64,
    /// Packets on their way.
    pub inside: u64,
    /// Things that happened: an arrival, the end of a transmission, room given back, a call for the workload.
    pub events: u64,
    /// Transmissions that were begun, one for each packet and link.
    pub hops: u64,
}

/// What a workload is to be told.
#[derive(Clone, Copy, Debug)]
pub(super) enum Notice {
    Sent(Message),
    Delivered(Message, u64),
    Lost(Message, DropReason),
    Woken(u64),
}

/// Packets on their way through a network.
#[derive(Debug)]
pub struct Simulation {
    pub(super) network: Network,
    pub(super) settings: Settings,
    pub(super) now: u64,
    pub(super) queue: EventQueue,
    pub(super) packets: Slab<Packet>,
    /// Where packets wait at switches, by their numbers.
    pub(super) places: Vec<Place>,
    pub(super) messages: Slab<Posted>,
    /// A queue for each lane of each port, then one for each source.
    pub(super) fifos: Vec<Fifo>,
    pub(super) sources: Vec<Source>,
    /// Numbers of the sources of each port, by function and lane.
    pub(super) sources_of: Vec<Vec<u32>>,
    /// One for each port, then one inside each port of an adapter.
    pub(super) outputs: Vec<Output>,
    pub(super) lanes: Lanes,
    /// Number of the output inside each port, if it is an adapter's.
    pub(super) inside: Vec<u32>,
    /// Room behind each output, in blocks a lane.
    pub(super) capacity: Vec<u16>,
    /// Management packets that each port holds.
    pub(super) held: Vec<u16>,
    pub(super) drains: Vec<bool>,
    pub(super) measures: Vec<Measure>,
    pub(super) notices: Vec<Notice>,
    pub(super) wakes: Slab<u64>,
    pub(super) totals: Totals,
    /// What was seen by looking ahead.
    pub(super) ahead: Ahead,
    orders: Orders,
    has_started: bool,
}

impl Simulation {
    /// Nothing is on its way yet.
    pub fn new(network: Network, settings: Settings) -> Result<Self, BadSettings> {
        settings.check()?;
        let ports = network.ports.len();
        let mut simulation = Self {
            settings,
            now: 0,
            queue: EventQueue::new(),
            packets: Slab::new(),
            places: Vec::new(),
            messages: Slab::new(),
            fifos: vec![Fifo::EMPTY; ports * LANES as usize],
            sources: Vec::new(),
            sources_of: vec![Vec::new(); ports],
            outputs: Vec::with_capacity(ports),
            lanes: Lanes::default(),
            inside: vec![NONE; ports],
            capacity: Vec::new(),
            held: vec![0; ports],
            drains: vec![true; ports],
            measures: Vec::new(),
            notices: Vec::new(),
            wakes: Slab::new(),
            totals: Totals::default(),
            ahead: Ahead::default(),
            orders: Orders::default(),
            has_started: false,
            network,
        };
        for port in 0..ports as u32 {
            simulation.add_link(port)?;
        }
        for port in 0..ports as u32 {
            if simulation.network.gates[port as usize].kind == Kind::Adapter {
                simulation.add_inside(port);
            }
        }
        simulation.lanes = Lanes::new(&simulation.capacity);
        Ok(simulation)
    }

    fn add_link(&mut self, port: u32) -> Result<(), BadSettings> {
        let gate = &self.network.gates[port as usize];
        let peer = self.network.gates.get(gate.to as usize);
        let to_switch = peer.is_some_and(|peer| peer.kind != Kind::Adapter);
        let blocks = self.settings.lane_blocks(gate.lanes)?;
        let pace = self.network.ports[port as usize].pace;
        self.add_output(port, gate.to, pace, blocks);
        self.outputs[port as usize].to_switch = to_switch;
        Ok(())
    }

    fn add_inside(&mut self, port: u32) {
        let rate = self.settings.inside_adapter.map(|rate| Pace::of(rate.bits_per_s() as f64));
        let pace = rate.unwrap_or(self.network.ports[port as usize].pace);
        let number = self.outputs.len();
        self.inside[port as usize] = number as u32;
        self.add_output(port, port, pace, ENDLESS);
        self.outputs[number].is_inside = true;
    }

    fn add_output(&mut self, port: u32, to: u32, pace: Pace, blocks: u16) {
        self.outputs.push(Output {
            arbiter: Arbiter::new(self.network.ports[port as usize].tables.clone()),
            until: 0,
            fifo: NONE,
            to,
            pace,
            waiting: 0,
            ready: 0,
            lane: 0,
            blocks: 0,
            is_busy: false,
            to_switch: false,
            is_switch: self.network.gates[port as usize].kind != Kind::Adapter,
            is_inside: false,
        });
        self.capacity.push(blocks);
    }

    /// Lets time pass until a moment, or until nothing happens any more. The first call starts the workload; later ones go
    /// on from where the last one ended.
    pub fn run<W: Workload>(&mut self, workload: &mut W, until: Time) -> Outcome {
        if !self.has_started {
            self.has_started = true;
            workload.start(&mut self.orders);
            self.obey();
            self.tell(workload);
        }
        while let Some((time, what)) = self.queue.pop(until.ps()) {
            self.look_ahead();
            self.now = self.now.max(time);
            self.totals.events += 1;
            self.handle(what);
            if !self.notices.is_empty() {
                self.tell(workload);
            }
        }
        if !self.queue.is_empty() {
            self.now = self.now.max(until.ps());
            return Outcome::TimeIsUp;
        }
        if self.messages.len() == 0 { Outcome::Done } else { Outcome::Stalled }
    }

    /// Tells the workload what has happened, and does what it says, until it has nothing more to say.
    fn tell<W: Workload>(&mut self, workload: &mut W) {
        let now = Time::from_ps(self.now);
        let mut told = 0;
        while let Some(notice) = self.notices.get(told).copied() {
            told += 1;
            let orders = &mut self.orders;
            match notice {
                Notice::Sent(message) => workload.sent(now, &message, orders),
                Notice::Delivered(message, at) => {
                    workload.delivered(now, &message, Time::from_ps(at), orders);
                }
                Notice::Lost(message, reason) => workload.lost(now, &message, reason, orders),
                Notice::Woken(token) => workload.woken(now, token, orders),
            }
            self.obey();
        }
        self.notices.clear();
    }

    fn obey(&mut self) {
        let mut orders = std::mem::take(&mut self.orders.list);
        for order in orders.drain(..) {
            match order {
                Order::Post(message) => self.post(message),
                Order::Wake(at, token) => self.wake(at.ps(), token),
                Order::Drain(port, drains) => self.set_draining(port.0, drains),
            }
        }
        self.orders.list = orders;
    }

    /// What time it is.
    pub fn now(&self) -> Time {
        Time::from_ps(self.now)
    }

    /// The network it runs on.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// The settings it runs with.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What became of all packets.
    pub fn totals(&self) -> Totals {
        Totals { inside: self.packets.len() as u64, ..self.totals }
    }

    /// What became of the packets of an account; `None` if nothing was posted to it.
    pub fn measure(&self, tag: Tag) -> Option<&Measure> {
        self.measures.get(usize::from(tag.0)).filter(|measure| measure.created > 0)
    }

    /// The accounts to which something was posted, in order.
    pub fn measures(&self) -> impl Iterator<Item = (Tag, &Measure)> {
        let all = self.measures.iter().enumerate();
        all.filter(|(_, measure)| measure.created > 0).map(|(tag, measure)| (Tag(tag as u16), measure))
    }

    /// Bytes that a port has begun to send, with headers and checks.
    pub fn sent_bytes(&self, port: PortId) -> u64 {
        (0..LANES as u8).map(|lane| self.lanes.bytes(port.0, lane)).sum()
    }

    /// Those on one lane.
    pub fn lane_bytes(&self, port: PortId, lane: VirtualLane) -> u64 {
        self.lanes.bytes(port.0, lane.to_wire())
    }
}
