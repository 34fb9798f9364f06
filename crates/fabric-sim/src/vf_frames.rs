//! Ethernet frames of virtual functions.
//!
//! A virtual function has a MAC address that encodes the LID of its adapter port and its number there, a set
//! of P_Keys and one service level. A unicast frame becomes one packet on that service level, a multicast
//! frame one packet per group on service level 0. The packets pass the same [`crate::forwarding`] pipeline as
//! management datagrams: link states, forwarding tables, lanes and P_Keys apply as they are at that moment.
//!
//! Injected loss applies to frames; injected duplication and delay apply to management only.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fabric_model::{FunctionKey, MacAddress};
use ib_wire::{Guid, LidAddress, MulticastLid, Pkey, QueuePair, ServiceLevel};
use serde::Serialize;
use thiserror::Error;

use crate::counters::CastKind;
use crate::device::PortId;
use crate::fabric::{DropReason, Fabric, FabricOutput};
use crate::forwarding::PacketKind;
use crate::link_queues::Content;
use crate::notices::Flow;

/// A virtual function of an adapter port: the port and a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FunctionId {
    port: PortId,
    number: u8,
}

impl FunctionId {
    /// The function with this number, attached or not.
    pub const fn new(port: PortId, number: u8) -> Self {
        Self { port, number }
    }

    pub const fn port(self) -> PortId {
        self.port
    }

    pub const fn number(self) -> u8 {
        self.number
    }
}

/// P_Keys of a function: the minimum that real adapters reserve per function.
pub const FUNCTION_KEYS_MAX: usize = 16;

/// Configuration of a virtual function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VirtualFunction {
    pub id: FunctionId,
    /// MAC address. Frames with another source address are dropped.
    pub mac: MacAddress,
    /// Its partitions, in order of preference for sending.
    pub keys: Arc<[FunctionKey]>,
    /// Service level of unicast frames.
    pub sl: ServiceLevel,
}

/// Frame counters of one function, or of all together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FrameCounters {
    /// Frames that it sent, delivered or not.
    pub sent: u64,
    /// Frames delivered to it.
    pub received: u64,
    /// Frames that it sent, or copies of them, that were dropped.
    pub drops: BTreeMap<DropReason, u64>,
    /// The port at which the last frame was dropped, by reason.
    #[serde(skip)]
    pub stops: BTreeMap<DropReason, PortId>,
}

impl FrameCounters {
    pub(crate) fn count_drop(&mut self, reason: DropReason, at: PortId) {
        *self.drops.entry(reason).or_default() += 1;
        self.stops.insert(reason, at);
    }
}

/// Why a function cannot be attached.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AttachFunctionError {
    /// The port belongs to a switch.
    #[error("a virtual function needs an adapter port, but this port belongs to a switch")]
    Switch,
    /// The address does not encode a LID, so that no frame could be routed to it.
    #[error("{mac} is not the address of a virtual function: 02, the LID of its port, its number, 00:00")]
    BadAddress { mac: MacAddress },
    /// Another function of the port has this address.
    #[error("{mac} is already the address of function {owner} of the same port")]
    AddressTaken {
        mac: MacAddress,
        /// Number of the function that has the address.
        owner: u8,
    },
    #[error("a virtual function can have at most {FUNCTION_KEYS_MAX} P_Keys, got {count}")]
    TooManyKeys { count: usize },
    /// Functions with queue pairs are counted from 1.
    #[error("a function with an InfiniBand adapter has a number between 1 and 31, got {number}")]
    BadNumber { number: u8 },
    /// It has to be detached before.
    #[error("function {number} of this port is attached with an adapter of another kind")]
    OtherKind { number: u8 },
    #[error("{guid} is the GUID of another function")]
    GuidTaken { guid: Guid },
}

/// The attached functions and their counters.
#[derive(Debug, Default)]
pub(crate) struct Functions {
    attached: BTreeMap<FunctionId, AttachedFunction>,
    /// Totals over all functions, detached ones included.
    total: FrameCounters,
}

#[derive(Debug)]
struct AttachedFunction {
    function: VirtualFunction,
    counters: FrameCounters,
}

impl Functions {
    /// The functions of a port except `but`.
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

/// Bytes of an Ethernet header: destination, source, type.
const HEADER_BYTES: usize = 14;

/// Violation reports name function `n` by this queue pair number plus `n`.
const FIRST_QUEUE_PAIR: u32 = 0x100;

/// The queue pair that multicast packets address.
const GROUP_QUEUE_PAIR: QueuePair = QueuePair::from_wire(0xff_ffff).expect("24 bits");

impl Fabric {
    /// Checks whether a function could be attached now.
    pub fn check_function(&self, function: &VirtualFunction) -> Result<(), AttachFunctionError> {
        let VirtualFunction { id, mac, .. } = *function;
        if self.is_switch(id.port) {
            return Err(AttachFunctionError::Switch);
        }
        if mac.lid().is_none() {
            return Err(AttachFunctionError::BadAddress { mac });
        }
        if function.keys.len() > FUNCTION_KEYS_MAX {
            return Err(AttachFunctionError::TooManyKeys { count: function.keys.len() });
        }
        if self.adapter_functions.has(id) {
            return Err(AttachFunctionError::OtherKind { number: id.number });
        }
        match self.functions.others(id.port, id).find(|other| other.mac == mac) {
            Some(owner) => Err(AttachFunctionError::AddressTaken { mac, owner: owner.id.number }),
            None => Ok(()),
        }
    }

    /// Attaches a virtual function. It replaces the function with the same port and number; unless both are
    /// equal, its counters start at 0.
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

    pub(crate) fn has_frame_function(&self, id: FunctionId) -> bool {
        self.functions.attached.contains_key(&id)
    }

    /// Detaches a function. Returns whether it was attached.
    pub fn detach(&mut self, id: FunctionId) -> bool {
        self.functions.attached.remove(&id).is_some()
    }

    /// The attached functions and their counters, by port and number.
    pub fn functions(&self) -> impl Iterator<Item = (&VirtualFunction, &FrameCounters)> {
        self.functions.attached.values().map(|attached| (&attached.function, &attached.counters))
    }

    /// Carries a frame that an attached function sends. Replaces the content of `receivers` by the functions
    /// that it was delivered to, each once; a sender that is not attached sends nothing. With a
    /// [link model](crate::LinkModel), those behind other ports get it as outputs, later.
    ///
    /// Violations are counted and may raise traps: call [`Fabric::poll_output`] until `None` afterwards.
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
            self.carry_to_groups(sender, frame, receivers)
        } else {
            receivers.extend(self.carry_to_one(sender, destination, frame)?);
            Ok(())
        }
    }

    /// Carries a frame to the port that the address encodes, and to the function there that has the address. With a link model,
    /// it is not there yet.
    fn carry_to_one(
        &mut self,
        sender: &VirtualFunction,
        destination: MacAddress,
        frame: &[u8],
    ) -> Result<Option<FunctionId>, DropReason> {
        let lid = destination.lid().ok_or(DropReason::UnknownAddress)?;
        let number = destination.bytes()[3];
        let key = self.key_toward(sender, destination).ok_or(DropReason::PartitionAtSender)?;
        let flow = self.flow(sender, key, sender.sl, lid.into(), queue_pair(number));
        let packet = PacketKind::Data { flow, cast: CastKind::Unicast, payload: frame.len() };
        if self.is_modelled(sender.id.port, lid.into()) {
            let content = Content::Frame { sender: sender.clone(), destination };
            self.queue_at_sender(sender.id, content, &[packet], frame);
            return Ok(None);
        }
        let end = self.route(sender.id.port, lid, &packet)?.end;
        self.receiver_of_frame(sender, destination, end, &flow).map(Some)
    }

    /// The function at an end port that takes a unicast frame.
    fn receiver_of_frame(
        &mut self,
        sender: &VirtualFunction,
        destination: MacAddress,
        end: PortId,
        flow: &Flow,
    ) -> Result<FunctionId, DropReason> {
        self.accept_partition(end, flow)?;
        let owner = self.functions.others(end, sender.id).find(|other| other.mac == destination);
        let receiver = owner.ok_or(DropReason::NoFunction)?;
        if self.takes(receiver, flow.pkey) { Ok(receiver.id) } else { Err(self.refuse_partition(end, flow)) }
    }

    /// Delivers a frame that the link model has carried to an end port, to functions that are not in `reached` yet.
    pub(crate) fn arrive_frame(
        &mut self,
        sender: &VirtualFunction,
        destination: MacAddress,
        end: PortId,
        flow: &Flow,
        frame: &[u8],
        reached: &mut Vec<FunctionId>,
    ) -> Result<(), DropReason> {
        let mut receivers = Vec::new();
        if let LidAddress::Multicast(group) = flow.destination {
            self.accept_partition(end, flow)?;
            self.join(sender, (flow.pkey, group), end, &mut receivers);
        } else {
            receivers.push(self.receiver_of_frame(sender, destination, end, flow)?);
        }
        for id in receivers {
            if !reached.contains(&id) {
                reached.push(id);
                self.functions.count(id, |counters| counters.received += 1);
                self.push_undelayed(FabricOutput::Frame { function: id, frame: frame.into() });
            }
        }
        Ok(())
    }

    /// The P_Key for frames to an address: of the sender's keys that its port holds, the first that the
    /// receiver accepts, else the first.
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

    /// Carries a frame to the members of all groups of the sender.
    fn carry_to_groups(
        &mut self,
        sender: &VirtualFunction,
        frame: &[u8],
        receivers: &mut Vec<FunctionId>,
    ) -> Result<(), DropReason> {
        let port = sender.id.port;
        let (mut groups, mut modelled) = (0, Vec::new());
        for key in sender.keys.iter() {
            if let Some(group) = key.group.filter(|_| self.holds_pkey(port, key.pkey)) {
                let sl = ServiceLevel::default();
                let flow = self.flow(sender, key.pkey, sl, LidAddress::Multicast(group), GROUP_QUEUE_PAIR);
                let packet = PacketKind::Data { flow, cast: CastKind::Multicast, payload: frame.len() };
                if self.is_modelled(port, LidAddress::Multicast(group)) {
                    self.join(sender, (key.pkey, group), port, receivers);
                    modelled.push(packet);
                } else {
                    self.carry_to_group(sender, (&flow, group), &packet, receivers);
                }
                groups += 1;
            }
        }
        if !modelled.is_empty() {
            let content = Content::Frame { sender: sender.clone(), destination: MacAddress::BROADCAST };
            self.queue_at_sender(sender.id, content, &modelled, frame);
        }
        // A function that shares several partitions with the sender receives the frame once.
        receivers.sort_unstable();
        receivers.dedup();
        if groups > 0 { Ok(()) } else { Err(DropReason::NoGroup) }
    }

    fn carry_to_group(
        &mut self,
        sender: &VirtualFunction,
        (flow, group): (&Flow, MulticastLid),
        packet: &PacketKind,
        receivers: &mut Vec<FunctionId>,
    ) {
        let key = flow.pkey;
        let mut reached = Vec::new();
        self.replicate(sender.id.port, group, packet, &mut reached, |fabric, reason| {
            fabric.count_frame_drop(sender.id, reason);
        });
        self.join(sender, (key, group), sender.id.port, receivers);
        for end in reached {
            match self.accept_partition(end, flow) {
                Ok(()) => self.join(sender, (key, group), end, receivers),
                Err(reason) => self.count_frame_drop(sender.id, reason),
            }
        }
    }

    /// Adds the functions of a port that are members of a group and accept the P_Key.
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

    /// Whether a function accepts a P_Key: one of its own keys matches, and its port holds that one.
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

    pub(crate) fn count_frame_drop(&mut self, from: FunctionId, reason: DropReason) {
        let at = self.reached;
        self.functions.count(from, |counters| counters.count_drop(reason, at));
    }
}

/// Destination and source address of a frame.
fn addresses(frame: &[u8]) -> Option<(MacAddress, MacAddress)> {
    let (header, _) = frame.split_first_chunk::<HEADER_BYTES>()?;
    let (destination, rest) = header.split_first_chunk::<6>()?;
    let (source, _) = rest.split_first_chunk::<6>()?;
    Some((MacAddress::from_bytes(*destination), MacAddress::from_bytes(*source)))
}

/// The queue pair number of a function in violation reports.
fn queue_pair(number: u8) -> QueuePair {
    QueuePair::from_wire(FIRST_QUEUE_PAIR + u32::from(number)).expect("a byte above it is below 24 bits")
}
