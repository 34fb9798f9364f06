//! InfiniBand packets of virtual functions.
//!
//! A virtual machine with an InfiniBand adapter of software sends whole packets, and everything that it says is hostile. Its
//! function has an alias GUID, P_Keys, and queue pairs of a range of its own
//! ([decision 0041](../../../docs/decisions/0041-functions-share-a-lid-and-have-alias-guids.md)). The packets pass the same
//! [`crate::forwarding`] pipeline as management datagrams and frames:
//!
//! | to | |
//! |---|---|
//! | QP0 | the view of the function ([`crate::function_view`]), or dropped: a function has no part in subnet management of the fabric |
//! | QP1, subnet administration and management of performance and congestion | the view, or the fabric: becomes a datagram with a GRH that names the alias, so that the answer comes back to the function |
//! | QP1, other classes | the function whose alias the GRH names |
//! | another queue pair | the function that has its range |
//! | a multicast LID | every function that holds the P_Key, but not the sender |

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ib_wire::{
    Datagram, Gid, Grh, Guid, Lid, LidAddress, ManagementClass, MulticastLid, Packet, PartitionNumber, Pkey,
    PortInfo, PortState, QueuePair, TransactionId, set_packet_source,
};

use crate::counters::CastKind;
use crate::device::PortId;
use crate::fabric::{DropReason, Fabric, FabricOutput};
use crate::forwarding::PacketKind;
use crate::function_view::{FunctionAddress, FunctionView, ToView, ViewPort, is_management};
use crate::link_queues::Content;
use crate::mad_routing::Duplicate;
use crate::notices::Flow;
use crate::vf_frames::{AttachFunctionError, FUNCTION_KEYS_MAX, FrameCounters, FunctionId};

/// Bits of a queue pair number below the number of its function.
const RANGE_BITS: u32 = 19;

/// The largest number of a function with queue pairs. 0 is the port itself.
const NUMBER_MAX: u8 = 31;

/// GUID of subnet administration, whatever port it is at (IBA 4.1.3.1).
const SA_GUID: Guid = Guid::from_wire(0x0200_0000_0000_0002).expect("not 0");

/// A virtual function of a machine with an InfiniBand adapter of software.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterFunction {
    pub id: FunctionId,
    /// Alias GUID. The function is cut off unless its port has it in the GUID table.
    pub guid: Guid,
    /// P_Keys in the order of the function. It has those that its port holds.
    pub keys: Arc<[Pkey]>,
}

impl AdapterFunction {
    /// The lowest number of its queue pairs.
    fn first_queue_pair(&self) -> u32 {
        u32::from(self.id.number()) << RANGE_BITS
    }

    fn has_queue_pair(&self, pair: QueuePair) -> bool {
        pair.to_wire() >> RANGE_BITS == u32::from(self.id.number())
    }
}

/// What the driver of a function has to know of its port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionPort {
    pub function: FunctionId,
    pub guid: Guid,
    /// PortInfo of the port that the function shares, without secrets and counters. Its state is Down while the function is cut
    /// off.
    pub info: PortInfo,
    /// How often subnet administration has asked software at the port to register again.
    pub registrations: u32,
    pub first_queue_pair: u32,
    pub queue_pairs: u32,
    pub keys: Vec<Pkey>,
}

/// The attached adapter functions.
#[derive(Debug, Default)]
pub(crate) struct AdapterFunctions {
    attached: BTreeMap<FunctionId, Attached>,
}

#[derive(Debug)]
struct Attached {
    function: AdapterFunction,
    counters: FrameCounters,
    /// The state that its driver was sent last.
    sent_port: Option<FunctionPort>,
    view: Option<FunctionView>,
}

impl AdapterFunctions {
    fn at(&self, port: PortId) -> impl Iterator<Item = &AdapterFunction> {
        let all = FunctionId::new(port, 0)..=FunctionId::new(port, u8::MAX);
        self.attached.range(all).map(|(_, attached)| &attached.function)
    }

    pub(crate) fn has(&self, id: FunctionId) -> bool {
        self.attached.contains_key(&id)
    }

    fn count(&mut self, id: FunctionId, count: impl FnOnce(&mut FrameCounters)) {
        if let Some(attached) = self.attached.get_mut(&id) {
            count(&mut attached.counters);
        }
    }
}

impl Fabric {
    /// Attaches a virtual function with an InfiniBand adapter. It replaces the adapter function with the same port and number.
    ///
    /// # Errors
    ///
    /// The reason why not; nothing is changed.
    pub fn attach_adapter(&mut self, function: AdapterFunction) -> Result<(), AttachFunctionError> {
        self.check_adapter(&function)?;
        let id = function.id;
        if self.adapter_functions.attached.get(&id).is_none_or(|attached| attached.function != function) {
            let former = self.adapter_functions.attached.remove(&id);
            // The same machine with other P_Keys keeps its view.
            let view = former.filter(|former| former.function.guid == function.guid).and_then(|it| it.view);
            let attached = Attached { function, counters: FrameCounters::default(), sent_port: None, view };
            self.adapter_functions.attached.insert(id, attached);
        }
        Ok(())
    }

    /// Checks whether an adapter function could be attached now.
    ///
    /// # Errors
    ///
    /// The reason why not.
    pub fn check_adapter(&self, function: &AdapterFunction) -> Result<(), AttachFunctionError> {
        let AdapterFunction { id, guid, ref keys } = *function;
        if self.is_switch(id.port()) {
            return Err(AttachFunctionError::Switch);
        }
        if !(1..=NUMBER_MAX).contains(&id.number()) {
            return Err(AttachFunctionError::BadNumber { number: id.number() });
        }
        if keys.len() > FUNCTION_KEYS_MAX {
            return Err(AttachFunctionError::TooManyKeys { count: keys.len() });
        }
        if self.has_frame_function(id) {
            return Err(AttachFunctionError::OtherKind { number: id.number() });
        }
        let mut others = self.adapter_functions.attached.values().map(|attached| &attached.function);
        match others.find(|other| other.id != id && other.guid == guid) {
            Some(_) => Err(AttachFunctionError::GuidTaken { guid }),
            None => Ok(()),
        }
    }

    pub fn has_adapter_function(&self, id: FunctionId) -> bool {
        self.adapter_functions.has(id)
    }

    /// Detaches an adapter function. Returns whether it was attached.
    pub fn detach_adapter(&mut self, id: FunctionId) -> bool {
        self.adapter_functions.attached.remove(&id).is_some()
    }

    /// The attached adapter functions and the counters of their packets.
    pub fn adapter_functions(&self) -> impl Iterator<Item = (&AdapterFunction, &FrameCounters)> {
        self.adapter_functions.attached.values().map(|attached| (&attached.function, &attached.counters))
    }

    /// The ports of functions that have changed since their drivers were sent them, or that were never sent.
    pub fn take_function_ports(&mut self) -> Vec<FunctionPort> {
        let all = self.adapter_functions.attached.keys();
        let mut ports: Vec<FunctionPort> = all.filter_map(|id| self.function_port(*id)).collect();
        ports.retain(|port| {
            let attached = self.adapter_functions.attached.get_mut(&port.function);
            attached.is_some_and(|attached| attached.sent_port.replace(port.clone()).as_ref() != Some(port))
        });
        ports
    }

    /// What the driver of an attached function has to know now.
    pub fn function_port(&self, id: FunctionId) -> Option<FunctionPort> {
        let function = &self.adapter_functions.attached.get(&id)?.function;
        let port = self.port(id.port());
        let mut info = port.info.clone();
        (info.m_key, info.client_reregister) = (None, false);
        (info.m_key_violations, info.pkey_violations, info.qkey_violations) = (0, 0, 0);
        if !self.is_registered(function) {
            info.state = PortState::Down;
        }
        Some(FunctionPort {
            function: id,
            guid: function.guid,
            info,
            registrations: port.registrations,
            first_queue_pair: function.first_queue_pair(),
            queue_pairs: 1 << RANGE_BITS,
            keys: self.keys_of_function(function).collect(),
        })
    }

    /// Its keys that its port holds.
    fn keys_of_function<'a>(&'a self, function: &'a AdapterFunction) -> impl Iterator<Item = Pkey> + 'a {
        function.keys.iter().copied().filter(|key| self.holds_pkey(function.id.port(), *key))
    }

    /// Whether the port of a function has its alias.
    fn is_registered(&self, function: &AdapterFunction) -> bool {
        self.aliases_of(function.id.port()).any(|alias| alias == function.guid)
    }

    fn gid_of_function(&self, function: &AdapterFunction) -> Gid {
        Gid::unicast(self.port(function.id.port()).info.gid_prefix, function.guid)
    }

    /// Carries a packet that an attached function sends; one that is not attached sends nothing. The packets that arrive are outputs.
    pub fn send_packet(&mut self, now: Duration, from: FunctionId, packet: &[u8]) {
        self.handle_timeout(now);
        let Some(attached) = self.adapter_functions.attached.get_mut(&from) else { return };
        attached.counters.sent += 1;
        let sender = attached.function.clone();
        if let Err(reason) = self.carry_packet(&sender, packet) {
            self.count_packet_drop(from, reason);
        }
    }

    fn carry_packet(&mut self, sender: &AdapterFunction, raw: &[u8]) -> Result<(), DropReason> {
        let port = sender.id.port();
        self.reached = port;
        let packet = Packet::read(raw).map_err(|_| DropReason::Malformed)?;
        if packet.dqp == QueuePair::SUBNET_MANAGEMENT {
            return self.send_smp(sender, &packet);
        }
        self.check_source(sender, &packet)?;
        if !self.keys_of_function(sender).any(|key| key == packet.pkey) {
            return Err(DropReason::PartitionAtSender);
        }
        if !self.has_room(port, packet.payload.len()) {
            return Err(DropReason::TooLarge);
        }
        let own = self.lid(port).ok_or(DropReason::NotActive)?;
        if packet.dqp == QueuePair::GENERAL_MANAGEMENT {
            let datagram = packet.to_datagram().ok_or(DropReason::Malformed)?;
            if is_for_agents(datagram.mad.class()) {
                return self.send_to_view_or_agents(sender, datagram);
            }
        }
        match packet.dlid {
            LidAddress::Unicast(lid) => self.carry_packet_to_one(sender, (own, lid), &packet, raw),
            LidAddress::Multicast(group) => {
                self.carry_packet_to_group(sender, (own, group), &packet, raw);
                Ok(())
            }
            LidAddress::Permissive => Err(DropReason::NoRoute),
        }
    }

    /// Sends an SMP to the view of a function. Nothing that a function says reaches QP0 of the fabric.
    fn send_smp(&mut self, sender: &AdapterFunction, packet: &Packet<'_>) -> Result<(), DropReason> {
        if !self.has_view(sender.id) {
            return Err(DropReason::Unanswered);
        }
        let datagram = packet.to_datagram().ok_or(DropReason::Malformed)?;
        if datagram.sqp != QueuePair::SUBNET_MANAGEMENT {
            return Err(DropReason::Spoofed);
        }
        if datagram.grh.is_some() || !datagram.mad.class().is_subnet_management() {
            return Err(DropReason::Malformed);
        }
        self.send_to_view_or_agents(sender, datagram)
    }

    /// Sends a management datagram to the view of a function, or to subnet administration or an agent on the fabric.
    fn send_to_view_or_agents(
        &mut self,
        sender: &AdapterFunction,
        datagram: Datagram,
    ) -> Result<(), DropReason> {
        let (now, own) = (self.now, self.address_of_function(sender));
        let view = self.adapter_functions.attached.get_mut(&sender.id).and_then(|it| it.view.as_mut());
        let left = match view {
            Some(view) => view.take(now, &own, datagram)?,
            None => Some(datagram),
        };
        match left {
            Some(datagram) => self.send_to_agents(sender, datagram),
            None => Ok(()),
        }
    }

    fn send_to_agents(&mut self, sender: &AdapterFunction, datagram: Datagram) -> Result<(), DropReason> {
        // Whatever became of it on its way: SMPs of functions stay in views.
        if datagram.mad.class().is_subnet_management() {
            return Err(DropReason::Unanswered);
        }
        let port = sender.id.port();
        let own = self.lid(port).ok_or(DropReason::NotActive)?;
        self.carry(port, self.with_alias(sender, own, datagram), Duplicate::Unreported);
        Ok(())
    }

    fn address_of_function(&self, function: &AdapterFunction) -> FunctionAddress {
        let info = &self.port(function.id.port()).info;
        let key = self.keys_of_function(function).next();
        FunctionAddress { lid: info.lid, manager: info.master_sm_lid, key }
    }

    /// From now on, a function manages the view that takes [`Fabric::poll_view_output`] in place of the fabric. It replaces an earlier
    /// one. Returns `false`, and changes nothing, if no adapter is attached to the function.
    pub fn open_view(&mut self, id: FunctionId) -> bool {
        let attached = self.adapter_functions.attached.get_mut(&id);
        attached.map(|attached| attached.view = Some(FunctionView::default())).is_some()
    }

    /// Ends the view of a function. Its SMPs are dropped again.
    pub fn close_view(&mut self, id: FunctionId) {
        if let Some(attached) = self.adapter_functions.attached.get_mut(&id) {
            attached.view = None;
        }
    }

    pub fn has_view(&self, id: FunctionId) -> bool {
        self.adapter_functions.attached.get(&id).is_some_and(|attached| attached.view.is_some())
    }

    /// The next message to the view of a function. Call until `None` after [`Fabric::send_packet`] and [`Fabric::set_view_port`].
    pub fn poll_view_output(&mut self, id: FunctionId) -> Option<ToView> {
        self.view_of(id)?.poll_output()
    }

    /// Sets the port of a function in its view, in answer to [`ToView::PortQuery`].
    pub fn set_view_port(&mut self, now: Duration, id: FunctionId, port: ViewPort) {
        self.handle_timeout(now);
        self.reached = id.port();
        let Some(attached) = self.adapter_functions.attached.get(&id) else { return };
        let sender = attached.function.clone();
        let (now, own) = (self.now, self.address_of_function(&sender));
        let Some(view) = self.view_of(id) else { return };
        for outcome in view.set_port(now, &own, port) {
            let sent = match outcome {
                Ok(Some(datagram)) => self.send_to_agents(&sender, datagram),
                Ok(None) => Ok(()),
                Err(reason) => Err(reason),
            };
            if let Err(reason) = sent {
                self.count_packet_drop(id, reason);
            }
        }
    }

    /// Hands a datagram of its view to a function.
    pub fn deliver_from_view(&mut self, now: Duration, id: FunctionId, datagram: Datagram) {
        self.handle_timeout(now);
        let Some(attached) = self.adapter_functions.attached.get(&id) else { return };
        let function = attached.function.clone();
        let own = self.address_of_function(&function);
        let is_own = |pair| pair == QueuePair::GENERAL_MANAGEMENT || function.has_queue_pair(pair);
        let is_smp = datagram.mad.class().is_subnet_management();
        let is_for_it = is_management(&datagram) && (is_smp || is_own(datagram.dqp));
        let received = self.view_of(id).filter(|_| is_for_it).and_then(|view| view.receive(&own, datagram));
        match received {
            Some(datagram) => {
                self.adapter_functions.count(id, |counters| counters.received += 1);
                self.push_output(FabricOutput::Packet { function: id, packet: datagram.to_packet().into() });
            }
            None => {
                self.reached = id.port();
                self.count_packet_drop(id, DropReason::Unanswered);
            }
        }
    }

    /// Forgets a request of a function that its view will not answer.
    pub fn forget_view_request(&mut self, id: FunctionId, request: TransactionId) {
        if let Some(view) = self.view_of(id) {
            view.forget(request);
        }
    }

    /// Counts a message to the view of a function that could not be sent, because the view reads too little.
    pub fn count_unsent_to_view(&mut self, id: FunctionId) {
        self.reached = id.port();
        self.count_packet_drop(id, DropReason::NoRoom);
    }

    fn view_of(&mut self, id: FunctionId) -> Option<&mut FunctionView> {
        self.adapter_functions.attached.get_mut(&id)?.view.as_mut()
    }

    /// A function names itself: its alias, if the packet has a GRH, and one of its queue pairs, if the packet names any.
    fn check_source(&self, sender: &AdapterFunction, packet: &Packet<'_>) -> Result<(), DropReason> {
        let names_itself = packet.grh.is_none_or(|grh| grh.source == self.gid_of_function(sender));
        let is_own = |pair| pair == QueuePair::GENERAL_MANAGEMENT || sender.has_queue_pair(pair);
        let is_sender = packet.datagram.is_none_or(|(_, pair)| is_own(pair));
        if names_itself && is_sender && self.is_registered(sender) {
            Ok(())
        } else {
            Err(DropReason::Spoofed)
        }
    }

    /// A datagram that names the alias of its sender, as adapters with several functions add it.
    fn with_alias(&self, sender: &AdapterFunction, own: Lid, datagram: Datagram) -> Datagram {
        let prefix = self.port(sender.id.port()).info.gid_prefix;
        let named = Grh {
            source: self.gid_of_function(sender),
            destination: Gid::unicast(prefix, SA_GUID),
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 1,
        };
        let pkey = self.pkey_to_agents(sender, &datagram);
        Datagram { slid: own.into(), grh: Some(datagram.grh.unwrap_or(named)), pkey, ..datagram }
    }

    /// Subnet administration is asked in the default partition if the sender is in it: programs take the key at index 0, which is that
    /// of its cluster.
    fn pkey_to_agents(&self, sender: &AdapterFunction, datagram: &Datagram) -> Pkey {
        let is_sa = datagram.mad.class() == ManagementClass::SUBNET_ADMINISTRATION;
        let mut default =
            self.keys_of_function(sender).filter(|key| key.partition() == PartitionNumber::DEFAULT);
        default.next().filter(|_| is_sa).unwrap_or(datagram.pkey)
    }

    fn carry_packet_to_one(
        &mut self,
        sender: &AdapterFunction,
        (own, lid): (Lid, Lid),
        packet: &Packet<'_>,
        raw: &[u8],
    ) -> Result<(), DropReason> {
        let flow = flow(packet, own);
        let kind = PacketKind::Data { flow, cast: CastKind::Unicast, payload: packet.payload.len() };
        if self.is_modelled(sender.id.port(), lid.into()) {
            self.queue_at_sender(sender.id, Content::Packet { source: own }, &[kind], raw);
            return Ok(());
        }
        let end = self.route(sender.id.port(), lid, &kind)?.end;
        self.hand_over(end, (own, &flow), packet, raw)
    }

    /// Hands a unicast packet to the function at its end port that it is for.
    fn hand_over(
        &mut self,
        end: PortId,
        (own, flow): (Lid, &Flow),
        packet: &Packet<'_>,
        raw: &[u8],
    ) -> Result<(), DropReason> {
        self.accept_partition(end, flow)?;
        let receiver = self.receiver_of(end, packet).ok_or(DropReason::NoFunction)?;
        if !self.takes_packet(&receiver, packet.pkey) {
            return Err(self.refuse_partition(end, flow));
        }
        self.deliver_packet(receiver.id, own, raw);
        Ok(())
    }

    /// Delivers a packet that the link model has carried to an end port.
    pub(crate) fn arrive_packet(
        &mut self,
        sender: FunctionId,
        own: Lid,
        end: PortId,
        flow: &Flow,
        raw: &[u8],
    ) -> Result<(), DropReason> {
        let packet = Packet::read(raw).map_err(|_| DropReason::Malformed)?;
        if !matches!(packet.dlid, LidAddress::Multicast(_)) {
            return self.hand_over(end, (own, flow), &packet, raw);
        }
        self.accept_partition(end, flow)?;
        self.deliver_to_all(end, sender, (own, packet.pkey), raw);
        Ok(())
    }

    fn receiver_of(&self, end: PortId, packet: &Packet<'_>) -> Option<AdapterFunction> {
        let mut functions = self.adapter_functions.at(end);
        let found = match packet.grh {
            Some(grh) if packet.dqp == QueuePair::GENERAL_MANAGEMENT => {
                functions.find(|function| self.gid_of_function(function) == grh.destination)
            }
            _ => functions.find(|function| function.has_queue_pair(packet.dqp)),
        };
        found.cloned()
    }

    fn carry_packet_to_group(
        &mut self,
        sender: &AdapterFunction,
        (own, group): (Lid, MulticastLid),
        packet: &Packet<'_>,
        raw: &[u8],
    ) {
        let (port, flow) = (sender.id.port(), flow(packet, own));
        let kind = PacketKind::Data { flow, cast: CastKind::Multicast, payload: packet.payload.len() };
        let mut ends = Vec::new();
        if self.is_modelled(port, LidAddress::Multicast(group)) {
            self.queue_at_sender(sender.id, Content::Packet { source: own }, &[kind], raw);
        } else {
            self.replicate(port, group, &kind, &mut ends, |fabric, reason| {
                fabric.count_packet_drop(sender.id, reason);
            });
        }
        for end in ends {
            match self.accept_partition(end, &flow) {
                Ok(()) => self.deliver_to_all(end, sender.id, (own, packet.pkey), raw),
                Err(reason) => self.count_packet_drop(sender.id, reason),
            }
        }
        // The adapter itself gives it to other functions of the port.
        self.deliver_to_all(port, sender.id, (own, packet.pkey), raw);
    }

    /// Delivers a packet to all functions of a port that accept its P_Key, but not to the sender.
    fn deliver_to_all(&mut self, end: PortId, sender: FunctionId, (source, key): (Lid, Pkey), raw: &[u8]) {
        let others = self.adapter_functions.at(end).filter(|function| function.id != sender);
        let takers = others.filter(|function| self.takes_packet(function, key));
        let takers: Vec<FunctionId> = takers.map(|function| function.id).collect();
        takers.into_iter().for_each(|id| self.deliver_packet(id, source, raw));
    }

    /// Whether a function that is not cut off accepts a P_Key.
    fn takes_packet(&self, receiver: &AdapterFunction, key: Pkey) -> bool {
        self.is_registered(receiver) && self.keys_of_function(receiver).any(|own| key.is_accepted_by(own))
    }

    fn deliver_packet(&mut self, function: FunctionId, source: Lid, raw: &[u8]) {
        let mut packet = raw.to_vec();
        set_packet_source(&mut packet, source.into());
        self.adapter_functions.count(function, |counters| counters.received += 1);
        self.push_output(FabricOutput::Packet { function, packet: packet.into() });
    }

    /// Hands a datagram to the software at a port: to the function whose alias it names, or to other software.
    pub(crate) fn deliver(&mut self, port: PortId, datagram: Datagram) {
        match self.addressed_function(port, &datagram) {
            Some(function) if !self.takes_packet(&function, datagram.pkey) => {
                self.reached = port;
                self.count_packet_drop(function.id, DropReason::PartitionAtReceiver);
            }
            Some(function) => {
                // Kernels compare: their requests to subnet administration had no GRH.
                let packet = Datagram { grh: None, ..datagram }.to_packet();
                self.adapter_functions.count(function.id, |counters| counters.received += 1);
                self.push_output(FabricOutput::Packet { function: function.id, packet: packet.into() });
            }
            None => self.push_output(FabricOutput::Deliver { port, datagram }),
        }
    }

    fn addressed_function(&self, port: PortId, datagram: &Datagram) -> Option<AdapterFunction> {
        let named = datagram.grh.filter(|_| is_for_agents(datagram.mad.class()))?.destination;
        let mut functions = self.adapter_functions.at(port);
        functions.find(|function| self.gid_of_function(function) == named).cloned()
    }

    pub(crate) fn count_packet_drop(&mut self, from: FunctionId, reason: DropReason) {
        let at = self.reached;
        self.count_drop(reason);
        self.adapter_functions.count(from, |counters| counters.count_drop(reason, at));
    }
}

/// Whether datagrams of a class are for subnet administration or agents of devices, and not for software of machines.
fn is_for_agents(class: ManagementClass) -> bool {
    [ManagementClass::SUBNET_ADMINISTRATION, ManagementClass::PERFORMANCE, ManagementClass::CONGESTION]
        .contains(&class)
}

fn flow(packet: &Packet<'_>, source: Lid) -> Flow {
    Flow {
        pkey: packet.pkey,
        sl: packet.sl,
        source: source.into(),
        destination: packet.dlid,
        source_qp: packet.datagram.map_or(QueuePair::SUBNET_MANAGEMENT, |(_, pair)| pair),
        destination_qp: packet.dqp,
        source_gid: packet.grh.map(|grh| grh.source),
        destination_gid: packet.grh.map(|grh| grh.destination),
    }
}
