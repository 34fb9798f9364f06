//! Frames of virtual functions: Ethernet goes in and comes out, and in between are the tables that management programs.
//!
//! A function sits on a port of an adapter, with an address that says where it is, the partition keys it may use and one
//! service level. What it sends is one packet on that level, or on level 0 if it is for many, carried by the code that
//! carries management ([`crate::forwarding`]): nothing reaches a function but through link states, forwarding tables, lanes and
//! partition keys as they are at that moment.
//!
//! Faults that lose packets lose frames too; those that duplicate and delay are for management only.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fabric_model::MacAddress;
use ib_wire::{LidAddress, MulticastLid, Pkey, QueuePair, ServiceLevel};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::counters::CastKind;
use crate::device::PortId;
use crate::fabric::{DropReason, Fabric};
use crate::forwarding::PacketKind;
use crate::notices::Flow;

/// A virtual function: its port, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FunctionId {
    port: PortId,
    number: u8,
}

impl FunctionId {
    /// The function with this number at a port, whether it is attached or not.
    pub const fn new(port: PortId, number: u8) -> Self {
        Self { port, number }
    }

    /// The port it sits on.
    pub const fn port(self) -> PortId {
        self.port
    }

    /// Its number there.
    pub const fn number(self) -> u8 {
        self.number
    }
}

/// A partition that a function is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FunctionKey {
    /// The key it sends with and accepts by. Counts only while it stands in the table of the port.
    pub pkey: Pkey,
    /// Where frames for many go, and from where it takes them.
    #[serde(default)]
    pub group: Option<MulticastLid>,
}

/// Keys of a function: what a port of the field sets aside for one at least.
pub const FUNCTION_KEYS_MAX: usize = 16;

/// What a virtual function is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VirtualFunction {
    /// Where it is.
    pub id: FunctionId,
    /// Its address: the one it may send from, and the one it is reached by.
    pub mac: MacAddress,
    /// The partitions it is in, in the order of its own table.
    pub keys: Arc<[FunctionKey]>,
    /// The level of what it sends to one other.
    pub sl: ServiceLevel,
}

/// What a function has sent and received, or all of them together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FrameCounters {
    /// Frames it sent, whatever became of them.
    pub sent: u64,
    /// Frames that reached it.
    pub received: u64,
    /// Frames it sent, or copies of them, that came to nothing, by reason.
    pub drops: BTreeMap<DropReason, u64>,
    /// The port at which the last of them stopped, by reason.
    #[serde(skip)]
    pub stops: BTreeMap<DropReason, PortId>,
}

impl FrameCounters {
    fn count_drop(&mut self, reason: DropReason, at: PortId) {
        *self.drops.entry(reason).or_default() += 1;
        self.stops.insert(reason, at);
    }
}

/// Why a function cannot be attached.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AttachFunctionError {
    /// The port is a switch's.
    #[error("a virtual function sits on a port of an adapter, and this is a switch")]
    Switch,
    /// Nobody could send to that address.
    #[error(
        "{mac} says no place: the address of a virtual function is 02, the LID of its port, its number, 00:00"
    )]
    BadAddress {
        /// The address.
        mac: MacAddress,
    },
    /// Another function of the port has it.
    #[error("{mac} is the address of function {owner} of the same port")]
    AddressTaken {
        /// The address.
        mac: MacAddress,
        /// Who has it.
        owner: u8,
    },
    /// It has more keys than it can hold.
    #[error("a virtual function holds {FUNCTION_KEYS_MAX} partition keys at most")]
    TooManyKeys,
}

/// All attached functions.
#[derive(Debug, Default)]
pub(crate) struct Functions {
    attached: BTreeMap<FunctionId, AttachedFunction>,
    /// What all of them did, those that are gone included.
    total: FrameCounters,
}

#[derive(Debug)]
struct AttachedFunction {
    function: VirtualFunction,
    counters: FrameCounters,
}

impl Functions {
    /// The functions at a port, without one that asks.
    fn others(&self, port: PortId, but: FunctionId) -> impl Iterator<Item = &VirtualFunction> {
        let all = FunctionId::new(port, 0)..=FunctionId::new(port, u8::MAX);
        self.attached
            .range(all)
            .map(|(_, attached)| &attached.function)
            .filter(move |function| function.id != but)
    }

    fn count(&mut self, id: FunctionId, count: impl Fn(&mut FrameCounters)) {
        if let Some(attached) = self.attached.get_mut(&id) {
            count(&mut attached.counters);
        }
        count(&mut self.total);
    }

    pub(crate) fn total(&self) -> &FrameCounters {
        &self.total
    }
}

/// Destination, source and type.
const HEADER_BYTES: usize = 14;

/// Reports of violations name a function by this queue pair and those that follow.
const FIRST_QUEUE_PAIR: u32 = 0x100;

/// What every sender to a group addresses.
const GROUP_QUEUE_PAIR: QueuePair = QueuePair::from_wire(0xff_ffff).expect("24 bits");

impl Fabric {
    /// Whether a virtual function can be attached.
    pub fn check_function(&self, function: &VirtualFunction) -> Result<(), AttachFunctionError> {
        let VirtualFunction { id, mac, .. } = *function;
        if self.is_switch(id.port) {
            return Err(AttachFunctionError::Switch);
        }
        if mac.lid().is_none() {
            return Err(AttachFunctionError::BadAddress { mac });
        }
        if function.keys.len() > FUNCTION_KEYS_MAX {
            return Err(AttachFunctionError::TooManyKeys);
        }
        match self.functions.others(id.port, id).find(|other| other.mac == mac) {
            Some(owner) => Err(AttachFunctionError::AddressTaken { mac, owner: owner.id.number }),
            None => Ok(()),
        }
    }

    /// Attaches a virtual function in place of what was attached there under its number. Attaching the same again
    /// changes nothing; anything else counts from 0.
    pub fn attach(&mut self, function: VirtualFunction) -> Result<(), AttachFunctionError> {
        self.check_function(&function)?;
        let id = function.id;
        if self.functions.attached.get(&id).is_none_or(|attached| attached.function != function) {
            self.functions
                .attached
                .insert(id, AttachedFunction { function, counters: FrameCounters::default() });
        }
        Ok(())
    }

    /// Detaches a function; whether it was attached.
    pub fn detach(&mut self, id: FunctionId) -> bool {
        self.functions.attached.remove(&id).is_some()
    }

    /// The attached functions and what they counted, by port and number.
    pub fn functions(&self) -> impl Iterator<Item = (&VirtualFunction, &FrameCounters)> {
        self.functions.attached.values().map(|attached| (&attached.function, &attached.counters))
    }

    /// Carries a frame that a function sends, and tells in `receivers` to which others it comes.
    ///
    /// Violations on the way are counted and reported as those of datagrams are: empty [`Fabric::poll_output`] after it.
    pub fn send_frame(
        &mut self,
        now: Duration,
        from: FunctionId,
        frame: &[u8],
        receivers: &mut Vec<FunctionId>,
    ) {
        self.handle_timeout(now);
        receivers.clear();
        let Some(attached) = self.functions.attached.get(&from) else { return };
        let sender = attached.function.clone();
        self.functions.count(from, |counters| counters.sent += 1);
        if let Err(reason) = self.carry_frame(&sender, frame, receivers) {
            self.count_frame_drop(from, reason);
        }
        for id in receivers {
            self.functions.count(*id, |counters| counters.received += 1);
        }
    }

    fn carry_frame(
        &mut self,
        sender: &VirtualFunction,
        frame: &[u8],
        receivers: &mut Vec<FunctionId>,
    ) -> Result<(), DropReason> {
        let port = sender.id.port;
        self.reached = port;
        let (destination, source) = addresses(frame).ok_or(DropReason::Malformed)?;
        if source != sender.mac {
            return Err(DropReason::Spoofed);
        }
        if !self.has_room(port, frame.len()) {
            return Err(DropReason::TooLarge);
        }
        if !sender.keys.iter().any(|key| self.holds_pkey(port, key.pkey)) {
            return Err(DropReason::PartitionAtSender);
        }
        if destination.is_group() {
            self.carry_to_groups(sender, frame.len(), receivers)
        } else {
            receivers.push(self.carry_to_one(sender, destination, frame.len())?);
            Ok(())
        }
    }

    /// To the port that the address names, and there to the function that has it.
    fn carry_to_one(
        &mut self,
        sender: &VirtualFunction,
        destination: MacAddress,
        payload: usize,
    ) -> Result<FunctionId, DropReason> {
        let lid = destination.lid().ok_or(DropReason::UnknownAddress)?;
        let number = destination.bytes()[3];
        let key = self.key_toward(sender, destination).ok_or(DropReason::PartitionAtSender)?;
        let flow = self.flow(sender, key, sender.sl, lid.into(), queue_pair(number));
        let end = self
            .route(sender.id.port, lid, &PacketKind::Data { flow, cast: CastKind::Unicast, payload })?
            .end;
        self.accept_partition(end, &flow)?;
        let owner = self.functions.others(end, sender.id).find(|other| other.mac == destination);
        let receiver = owner.ok_or(DropReason::NoFunction)?;
        if self.takes(receiver, key) { Ok(receiver.id) } else { Err(self.refuse_partition(end, &flow)) }
    }

    /// The key for what goes to an address: of those that the port holds the first by which the two may talk, as a path
    /// record would tell, else the first.
    fn key_toward(&self, sender: &VirtualFunction, destination: MacAddress) -> Option<Pkey> {
        let mut held =
            sender.keys.iter().map(|key| key.pkey).filter(|key| self.holds_pkey(sender.id.port, *key));
        let first = held.next()?;
        let rest: Vec<Pkey> = held.collect();
        if rest.is_empty() {
            return Some(first);
        }
        let attached = self.functions.attached.values().map(|attached| &attached.function);
        let receiver = attached.into_iter().find(|function| function.mac == destination);
        let fits = |key: &Pkey| receiver.is_some_and(|receiver| self.takes(receiver, *key));
        [first].into_iter().chain(rest).find(fits).or(Some(first))
    }

    /// To every function that has joined a group of the sender's: inside the adapter, and wherever the tables lead.
    fn carry_to_groups(
        &mut self,
        sender: &VirtualFunction,
        payload: usize,
        receivers: &mut Vec<FunctionId>,
    ) -> Result<(), DropReason> {
        let port = sender.id.port;
        let mut groups = 0;
        for key in sender.keys.iter() {
            if let Some(group) = key.group.filter(|_| self.holds_pkey(port, key.pkey)) {
                self.carry_to_group(sender, (key.pkey, group), payload, receivers);
                groups += 1;
            }
        }
        // Who shares several partitions with the sender hears it once.
        receivers.sort_unstable();
        receivers.dedup();
        if groups > 0 { Ok(()) } else { Err(DropReason::NoGroup) }
    }

    fn carry_to_group(
        &mut self,
        sender: &VirtualFunction,
        (key, group): (Pkey, MulticastLid),
        payload: usize,
        receivers: &mut Vec<FunctionId>,
    ) {
        let sl = ServiceLevel::default();
        let flow = self.flow(sender, key, sl, LidAddress::Multicast(group), GROUP_QUEUE_PAIR);
        let packet = PacketKind::Data { flow, cast: CastKind::Multicast, payload };
        let mut reached = Vec::new();
        self.replicate(sender.id.port, group, &packet, &mut reached, |fabric, reason| {
            fabric.count_frame_drop(sender.id, reason);
        });
        self.join(sender, (key, group), sender.id.port, receivers);
        for end in reached {
            match self.accept_partition(end, &flow) {
                Ok(()) => self.join(sender, (key, group), end, receivers),
                Err(reason) => self.count_frame_drop(sender.id, reason),
            }
        }
    }

    /// Adds the functions of a port that take what somebody else sends to a group.
    fn join(
        &self,
        sender: &VirtualFunction,
        (key, group): (Pkey, MulticastLid),
        end: PortId,
        to: &mut Vec<FunctionId>,
    ) {
        let others = self.functions.others(end, sender.id);
        let has_joined = |own: &FunctionKey| own.group == Some(group) && self.is_taken_by(end, own.pkey, key);
        to.extend(others.filter(|it| it.keys.iter().any(has_joined)).map(|it| it.id));
    }

    /// Whether a function takes packets with a key: one of its own is of the same partition, and stands in its port's table.
    fn takes(&self, receiver: &VirtualFunction, key: Pkey) -> bool {
        receiver.keys.iter().any(|own| self.is_taken_by(receiver.id.port, own.pkey, key))
    }

    fn is_taken_by(&self, port: PortId, own: Pkey, key: Pkey) -> bool {
        key.is_accepted_by(own) && self.holds_pkey(port, own)
    }

    fn flow(
        &self,
        sender: &VirtualFunction,
        pkey: Pkey,
        sl: ServiceLevel,
        destination: LidAddress,
        to: QueuePair,
    ) -> Flow {
        Flow {
            pkey,
            sl,
            source: self.lid(sender.id.port).map_or(LidAddress::Permissive, LidAddress::from),
            destination,
            source_qp: queue_pair(sender.id.number),
            destination_qp: to,
            source_gid: None,
            destination_gid: None,
        }
    }

    fn count_frame_drop(&mut self, from: FunctionId, reason: DropReason) {
        let at = self.reached;
        self.functions.count(from, |counters| counters.count_drop(reason, at));
    }
}

/// Whom a frame is for, and from whom it says to be.
fn addresses(frame: &[u8]) -> Option<(MacAddress, MacAddress)> {
    let (header, _) = frame.split_first_chunk::<HEADER_BYTES>()?;
    let (destination, rest) = header.split_first_chunk::<6>()?;
    let (source, _) = rest.split_first_chunk::<6>()?;
    Some((MacAddress::from_bytes(*destination), MacAddress::from_bytes(*source)))
}

/// The queue pair of a function, as reports name it.
fn queue_pair(number: u8) -> QueuePair {
    QueuePair::from_wire(FIRST_QUEUE_PAIR + u32::from(number)).expect("a byte above it is below 24 bits")
}
