//! How packets get from the receive buffers of a switch to the queues of its outputs, by switch model.
//!
//! With [`SwitchModel::IdealOutputs`] a packet joins the queue of its output as soon as enough of it has
//! arrived. The other two models put a stage before that queue; the module documentation of
//! [`traffic`](super) defines them. The queues of outputs, arbitration and credits are the same in all three.

use std::collections::HashMap;

use fabric_model::SwitchModel;
use ib_wire::{LaneSet, VirtualLane};

use super::events::{MANAGEMENT, PacketEvent};
use super::network::NONE;
use super::simulation::Simulation;
use super::state::{LANES, QueueEntry, QueueStatus};

/// Blocks that an output fetches ahead for each lane: what one visit of an arbitration entry can ask for. A
/// packet is fetched while fewer are there.
const FETCHED_BLOCKS: u16 = 255;

/// A list of virtual output queues, linked by [`VirtualQueue::next`].
#[derive(Clone, Copy, Debug)]
struct QueueList {
    first: u32,
    last: u32,
}

impl QueueList {
    const EMPTY: Self = Self { first: NONE, last: NONE };
}

/// The packets of one receive buffer for one lane of one output. A queue with packets is either in the list of
/// its place or in that of its reader.
#[derive(Clone, Copy, Debug)]
struct VirtualQueue {
    first: u32,
    last: u32,
    /// The next queue of the list that it is in.
    next: u32,
    /// The receive buffer: port times lanes plus lane.
    buffer: u32,
    /// The lane of the output: port times lanes plus lane.
    place: u32,
}

/// Room for packets ahead of the arbiter, for one lane of an output.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// Queues that wait for room.
    waiting: QueueList,
    /// Blocks that packets occupy, or will when their input is read.
    blocks: u16,
}

/// Reads packets out of the receive buffers of one input, one after the other.
#[derive(Clone, Copy, Debug, Default)]
struct Reader {
    is_busy: bool,
    /// The lane that was read last.
    last: VirtualLane,
    /// Lanes with a packet that has room at its output.
    ready: LaneSet,
}

/// The state of the inputs of all switches. Empty for ideal outputs.
#[derive(Debug)]
pub(super) struct Inputs {
    model: SwitchModel,
    /// Packets of each receive buffer that have not left completely.
    present: Vec<u32>,
    /// By port, with limited speed-up.
    readers: Vec<Reader>,
    /// By receive buffer, with limited speed-up: queues whose first packet has room at its output.
    granted: Vec<QueueList>,
    /// By lane of an output, with limited speed-up.
    places: Vec<Place>,
    queues: Vec<VirtualQueue>,
    /// Numbers of the queues by receive buffer and place.
    numbers: HashMap<(u32, u32), u32>,
}

impl Inputs {
    pub fn new(model: SwitchModel, ports: usize) -> Self {
        let lanes = ports * LANES as usize;
        let (buffers, limited) = match model {
            SwitchModel::IdealOutputs => (0, 0),
            SwitchModel::FifoInputs => (lanes, 0),
            SwitchModel::LimitedSpeedup(_) => (lanes, lanes),
        };
        Self {
            model,
            present: vec![0; buffers],
            readers: vec![Reader::default(); limited / LANES as usize],
            granted: vec![QueueList::EMPTY; limited],
            places: vec![Place { waiting: QueueList::EMPTY, blocks: 0 }; limited],
            queues: Vec::new(),
            numbers: HashMap::new(),
        }
    }

    /// The number of the queue between a receive buffer and a place.
    fn queue(&mut self, buffer: u32, place: u32) -> u32 {
        let next = self.queues.len() as u32;
        let number = *self.numbers.entry((buffer, place)).or_insert(next);
        if number == next {
            self.queues.push(VirtualQueue { first: NONE, last: NONE, next: NONE, buffer, place });
        }
        number
    }

    fn append(queues: &mut [VirtualQueue], list: &mut QueueList, number: u32) {
        queues[number as usize].next = NONE;
        match std::mem::replace(&mut list.last, number) {
            NONE => list.first = number,
            last => queues[last as usize].next = number,
        }
    }

    fn take_first(queues: &[VirtualQueue], list: &mut QueueList) -> u32 {
        let number = list.first;
        list.first = queues[number as usize].next;
        if list.first == NONE {
            list.last = NONE;
        }
        number
    }

    /// Gives room at a place to the queue that has waited longest for it. Returns the input of the queue.
    fn grant(&mut self, place: u32, blocks: impl Fn(u32) -> u8) -> Option<u32> {
        let room = &mut self.places[place as usize];
        if room.waiting.first == NONE || room.blocks >= FETCHED_BLOCKS {
            return None;
        }
        let number = Self::take_first(&self.queues, &mut room.waiting);
        let queue = self.queues[number as usize];
        room.blocks += u16::from(blocks(queue.first));
        Self::append(&mut self.queues, &mut self.granted[queue.buffer as usize], number);
        let lane = VirtualLane::from_wire((queue.buffer % LANES) as u8).unwrap_or_default();
        self.readers[(queue.buffer / LANES) as usize].ready.insert(lane);
        Some(queue.buffer / LANES)
    }

    /// The queue that an input reads next: of the lanes with room in turn, of a lane the one that got room
    /// first. `None` if no packet has room.
    fn next_granted(&mut self, port: u32) -> Option<u32> {
        let reader = &mut self.readers[port as usize];
        let later = reader.ready - LaneSet::range(VirtualLane::default(), reader.last.to_wire() + 1);
        let lane = later.first().or(reader.ready.first())?;
        let list = &mut self.granted[(port * LANES) as usize + lane.index()];
        let number = Self::take_first(&self.queues, list);
        if list.first == NONE {
            reader.ready.remove(lane);
        }
        reader.last = lane;
        Some(number)
    }

    /// The first packet of each virtual output queue that is not empty, with its place.
    pub fn waiting(&self) -> impl Iterator<Item = (u32, u32)> {
        self.queues.iter().filter(|queue| queue.first != NONE).map(|queue| (queue.first, queue.place))
    }

    /// An input that is not read although a packet has room, or whose packet has no room although its place
    /// has: neither must exist.
    pub fn neglected(&self) -> Option<u32> {
        let readers = self.readers.iter().position(|reader| !reader.is_busy && !reader.ready.is_empty());
        let places = self.places.iter();
        let mut open = places.filter(|place| place.waiting.first != NONE && place.blocks < FETCHED_BLOCKS);
        let open = open.next().map(|place| self.queues[place.waiting.first as usize].buffer / LANES);
        readers.map(|port| port as u32).or(open)
    }
}

impl Simulation {
    /// Hands a packet of which enough has arrived over to its switch.
    pub(super) fn enter(&mut self, id: u32) {
        let packet = &mut self.packets[id];
        let buffer = packet.at * LANES + u32::from(packet.lane);
        let out = packet.out;
        if self.inputs.model != SwitchModel::IdealOutputs && packet.lane != MANAGEMENT {
            let present = &mut self.inputs.present[buffer as usize];
            packet.uncontended &= *present == 0;
            *present += 1;
            match self.inputs.model {
                SwitchModel::FifoInputs => return self.enter_fifo(id, buffer),
                _ => self.enter_queue(id, buffer),
            }
        } else {
            self.wait(id);
        }
        self.try_send(out);
    }

    /// A packet has left its receive buffer completely.
    pub(super) fn leave(&mut self, buffer: u32) {
        if self.inputs.present.is_empty() || (buffer % LANES) as u8 == MANAGEMENT {
            return;
        }
        self.inputs.present[buffer as usize] -= 1;
        if self.inputs.model == SwitchModel::FifoInputs {
            self.fifos[buffer as usize].status = QueueStatus::Idle;
            self.advance_fifo(buffer);
        }
    }

    fn enter_fifo(&mut self, id: u32, buffer: u32) {
        self.queue_entries[id as usize] = QueueEntry::EMPTY;
        let fifo = &mut self.fifos[buffer as usize];
        match fifo.first {
            NONE => fifo.first = id,
            _ => self.queue_entries[fifo.last as usize].next = id,
        }
        fifo.last = id;
        self.advance_fifo(buffer);
    }

    /// Puts the first packet of a FIFO into the queue of its output, unless the one before it is still here.
    fn advance_fifo(&mut self, buffer: u32) {
        let fifo = &mut self.fifos[buffer as usize];
        if fifo.first == NONE || fifo.status != QueueStatus::Idle {
            return;
        }
        let id = fifo.first;
        fifo.first = self.queue_entries[id as usize].next;
        fifo.status = QueueStatus::Sending;
        let out = self.wait(id);
        self.try_send(out);
    }

    fn enter_queue(&mut self, id: u32, buffer: u32) {
        self.queue_entries[id as usize] = QueueEntry::EMPTY;
        let packet = &mut self.packets[id];
        let place = packet.out * LANES + u32::from(packet.out_lane.to_wire());
        packet.uncontended &= self.inputs.places[place as usize].blocks == 0;
        let number = self.inputs.queue(buffer, place);
        let queue = &mut self.inputs.queues[number as usize];
        match std::mem::replace(&mut queue.last, id) {
            _ if queue.first == NONE => {
                queue.first = id;
                let waiting = &mut self.inputs.places[place as usize].waiting;
                Inputs::append(&mut self.inputs.queues, waiting, number);
            }
            last => self.queue_entries[last as usize].next = id,
        }
        self.fill_place(place);
    }

    /// A packet of a lane starts to leave: there is room for another.
    pub(super) fn free_place(&mut self, out: u32, lane: VirtualLane, blocks: u8) {
        if self.inputs.places.is_empty() || lane == VirtualLane::MANAGEMENT {
            return;
        }
        let place = out * LANES + u32::from(lane.to_wire());
        self.inputs.places[place as usize].blocks -= u16::from(blocks);
        self.fill_place(place);
    }

    /// Gives the room of a place away. Only the queue of this lane of this output gets packets by that.
    fn fill_place(&mut self, place: u32) {
        while let Some(port) = self.inputs.grant(place, |id| self.packets[id].blocks()) {
            if !self.inputs.readers[port as usize].is_busy {
                self.read(port);
            }
        }
    }

    /// An input can be read again.
    pub(super) fn read_next(&mut self, port: u32) {
        self.inputs.readers[port as usize].is_busy = false;
        if let Some(place) = self.read(port) {
            self.fill_place(place);
            self.try_send(place / LANES);
        }
    }

    /// Reads the next packet of an idle input that has room, and puts it into the queue of its output. Returns
    /// its place.
    fn read(&mut self, port: u32) -> Option<u32> {
        let SwitchModel::LimitedSpeedup(speedup) = self.inputs.model else { return None };
        let number = self.inputs.next_granted(port)?;
        let queue = &mut self.inputs.queues[number as usize];
        let (id, place) = (queue.first, queue.place);
        queue.first = self.queue_entries[id as usize].next;
        if queue.first != NONE {
            let waiting = &mut self.inputs.places[place as usize].waiting;
            Inputs::append(&mut self.inputs.queues, waiting, number);
        }
        self.inputs.readers[port as usize].is_busy = true;
        let whole = self.network.lookups[port as usize].pace.time(self.packets[id].bytes().into());
        let until = self.now + whole.div_ceil(speedup.factor().into());
        self.at(until, PacketEvent::Read { port });
        self.wait(id);
        Some(place)
    }
}
