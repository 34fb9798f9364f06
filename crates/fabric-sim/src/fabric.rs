//! The emulated fabric as a state machine: datagrams and time go in, deliveries come out.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::time::Duration;

pub(crate) use fabric_model::DropReason;
use fabric_model::{self as model, Topology};
use ib_wire::{Datagram, Guid, Lid, PortNum};

use crate::capacities::BadCapacity;
use crate::device::{self, Device, DeviceId, Port, PortId};
use crate::faults::Faults;
use crate::link_queues::LinkQueues;
use crate::mad_routing::Duplicate;
use crate::profile::DeviceProfile;
use crate::set_faults::SetFault;
use crate::vf_frames::{FunctionId, Functions};
use crate::vf_packets::AdapterFunctions;

/// An output of the fabric, to be handled by the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FabricOutput {
    /// A datagram arrived at a port and is for the software behind it.
    Deliver { port: PortId, datagram: Datagram },
    /// A packet arrived at a port and is for the adapter of a virtual function.
    Packet { function: FunctionId, packet: Box<[u8]> },
    /// A frame that a [link model](crate::LinkModel) carried has arrived at a virtual function.
    Frame { function: FunctionId, frame: Box<[u8]> },
    /// A datagram that software sent was dropped, or its response was. Real adapters report nothing of the
    /// kind; a transport may use it to end a wait early.
    Lost {
        /// The port that the datagram was sent from.
        port: PortId,
        /// The request, with the headers it had where it or its response was dropped.
        datagram: Datagram,
        reason: DropReason,
    },
}

/// An emulated InfiniBand fabric, as a state machine without I/O, clock or threads.
///
/// # Verbs
///
/// | verb | effect |
/// |---|---|
/// | [`handle_datagram`](Self::handle_datagram) | software behind a port sends a datagram |
/// | [`send_frame`](Self::send_frame), [`send_packet`](Self::send_packet) | a virtual function sends an Ethernet frame, or an InfiniBand packet |
/// | [`handle_timeout`](Self::handle_timeout) | time passes: M_Key leases, trap repetitions, delayed datagrams, flapped links, packets on modelled links |
/// | [`set_is_sm`](Self::set_is_sm), [`attach`](Self::attach), [`detach`](Self::detach) | software starts or stops behind a port |
/// | [`plug`](Self::plug), [`unplug`](Self::unplug), [`flap`](Self::flap), [`reboot`](Self::reboot), [`rename`](Self::rename), [`recable`](Self::recable) | the hardware changes |
/// | [`set_loss`](Self::set_loss) and the other fault setters | faults are injected from now on |
/// | [`set_link_model`](Self::set_link_model) | links get a rate and a latency for frames and packets of functions, or lose them |
/// | [`install`](Self::install) | a plan is written into all devices at once, without a subnet manager |
///
/// # Order of calls
///
/// After every verb that takes `now`, call [`poll_output`](Self::poll_output) until it returns `None`, and
/// arrange to call `handle_timeout` no later than [`poll_timeout`](Self::poll_timeout). `now` is the time
/// since any fixed moment of the caller's choice; a `now` before the latest one counts as the latest one.
/// Each verb that takes `now` first runs the timers that are due, so calling `handle_timeout` before another
/// verb is not necessary.
///
/// # Guarantees
///
/// * The same topology, profile, seed and sequence of calls give the same outputs, counters and tables.
/// * A datagram is carried to its end, answered by an agent and carried back within one call. Only the delay
///   fault defers the resulting output.
/// * A packet passes a port only as the tables, states and keys of that moment permit. Management datagrams
///   and frames of virtual functions pass the same code.
/// * Every packet that is not delivered has a [`DropReason`] and is counted in
///   [`statistics`](Self::statistics).
/// * [`PortId`] and [`DeviceId`] stay valid for the life of the fabric. Ids of another fabric must not be
///   used.
/// * Work per call is bounded: hops, multicast copies, pending traps and delayed outputs have limits.
/// * No M_Key leaves through an inspection call.
#[derive(Debug)]
pub struct Fabric {
    pub(crate) profile: DeviceProfile,
    pub(crate) devices: Vec<Device>,
    pub(crate) ports: Vec<Port>,
    pub(crate) faults: Faults,
    pub(crate) set_faults: Vec<SetFault>,
    pub(crate) now: Duration,
    pub(crate) drops: BTreeMap<DropReason, u64>,
    pub(crate) traps_sent: BTreeMap<u16, u64>,
    pub(crate) trap_transactions: u64,
    pub(crate) functions: Functions,
    pub(crate) adapter_functions: AdapterFunctions,
    /// What the link model holds; `None` while it is off.
    pub(crate) link_queues: Option<Box<LinkQueues>>,
    /// The port that the current packet has reached. A drop is attributed to it.
    pub(crate) reached: PortId,
    /// The topology that the fabric was built from and that reboots restore. Device ids are node indices of
    /// it.
    blueprint: Topology,
    outputs: VecDeque<FabricOutput>,
    timers: BinaryHeap<Reverse<(Duration, u64)>>,
    timer_actions: HashMap<u64, Timer>,
    timers_started: u64,
}

/// What a timer triggers.
#[derive(Debug)]
pub(crate) enum Timer {
    /// Check whether an M_Key lease has expired.
    Lease(PortId),
    /// Repeat the traps of a port that are due.
    Traps(PortId),
    /// Hand out a delayed output.
    Output(Box<FabricOutput>),
    /// A flapped link comes back up.
    LinkUp(PortId),
}

/// Limit on datagrams held back by the delay fault. Beyond it they are delivered at once, so that memory
/// stays bounded.
const DELAYED_MAX: usize = 65_536;

impl Fabric {
    /// Builds a fabric of devices of one profile, with factory defaults in all devices and all cables plugged
    /// in. The topology is used as it is: see [`DeviceProfile::furnish`].
    ///
    /// `seed` determines the injected faults. Fails if a size is out of range.
    pub fn new(
        topology: Topology,
        profile: impl Into<DeviceProfile>,
        seed: u64,
    ) -> Result<Self, BadCapacity> {
        let profile = profile.into();
        profile.check()?;
        let mut fabric = Self {
            profile,
            devices: Vec::with_capacity(topology.node_count()),
            ports: Vec::new(),
            faults: Faults::new(seed),
            set_faults: Vec::new(),
            now: Duration::ZERO,
            drops: BTreeMap::new(),
            traps_sent: BTreeMap::new(),
            trap_transactions: 0,
            functions: Functions::default(),
            adapter_functions: AdapterFunctions::default(),
            link_queues: None,
            reached: PortId(0),
            blueprint: topology,
            outputs: VecDeque::new(),
            timers: BinaryHeap::new(),
            timer_actions: HashMap::new(),
            timers_started: 0,
        };
        for index in 0..fabric.blueprint.node_count() {
            fabric.add_device(DeviceId(index as u32));
        }
        fabric.plug_cables();
        Ok(fabric)
    }

    pub(crate) fn add_device(&mut self, id: DeviceId) {
        let first_port = PortId(self.ports.len() as u32);
        self.devices.push(self.new_device(id, first_port));
        let node = &self.blueprint[model::NodeIndex::new(id.0)];
        for (number, port) in node.ports() {
            self.ports.push(device::new_port(id, node.kind, number, port, &self.profile));
        }
    }

    /// A device as the topology and the profile describe it, at power-on.
    pub(crate) fn new_device(&self, id: DeviceId, first_port: PortId) -> Device {
        let index = model::NodeIndex::new(id.0);
        let description = self.profile.description(&self.blueprint, index);
        device::new_device(&self.blueprint[index], &description, first_port, &self.profile)
    }

    fn plug_cables(&mut self) {
        for index in 0..self.ports.len() {
            let id = PortId(index as u32);
            self.ports[index].peer = self.model_port(id).peer.and_then(|peer| self.port_at(peer));
        }
        for index in 0..self.ports.len() {
            let id = PortId(index as u32);
            if self.ports[index].peer.is_some_and(|peer| id < peer) {
                self.train_link(id);
            }
        }
    }

    /// Carries a datagram that the software behind `from` sends: to its destination, through an agent if it
    /// addresses one, and back.
    pub fn handle_datagram(&mut self, now: Duration, from: PortId, datagram: Datagram) {
        self.handle_timeout(now);
        if self.faults.duplicates() {
            self.carry(from, datagram.clone(), Duplicate::Copy);
        }
        self.carry(from, datagram, Duplicate::Original);
    }

    /// Advances time to `now` and runs the timers that are due, in order of their deadlines.
    pub fn handle_timeout(&mut self, now: Duration) {
        self.now = self.now.max(now);
        while let Some(Reverse((due, key))) = self.timers.peek().copied() {
            if due > self.now {
                break;
            }
            self.run_links(due);
            self.timers.pop();
            match self.timer_actions.remove(&key) {
                Some(Timer::Lease(port)) => self.expire_lease(port),
                Some(Timer::Traps(port)) => self.repeat_traps(port),
                Some(Timer::Output(output)) => self.outputs.push_back(*output),
                Some(Timer::LinkUp(port)) => self.link_up(port),
                None => {}
            }
        }
        self.run_links(self.now);
    }

    /// The next output. Call until `None` after every verb that takes `now`.
    pub fn poll_output(&mut self) -> Option<FabricOutput> {
        self.outputs.pop_front()
    }

    /// When [`Fabric::handle_timeout`] must be called at the latest; `None` while no timer runs.
    pub fn poll_timeout(&self) -> Option<Duration> {
        let timer = self.timers.peek().map(|Reverse((due, _))| *due);
        let link = self.link_queues.as_ref().and_then(|queues| queues.next_event());
        timer.into_iter().chain(link).min()
    }

    /// Starts a timer. It fires in the first `handle_timeout` at or after `due`.
    pub(crate) fn start_timer(&mut self, due: Duration, action: Timer) {
        self.timers_started += 1;
        self.timers.push(Reverse((due, self.timers_started)));
        self.timer_actions.insert(self.timers_started, action);
    }

    /// Queues an output, now or after the delay that the delay fault imposes.
    pub(crate) fn push_output(&mut self, output: FabricOutput) {
        let delay = self.faults.delay();
        if delay.is_zero() || self.timer_actions.len() >= DELAYED_MAX {
            self.outputs.push_back(output);
        } else {
            self.start_timer(self.now + delay, Timer::Output(Box::new(output)));
        }
    }

    /// Queues an output that the delay fault does not apply to.
    pub(crate) fn push_undelayed(&mut self, output: FabricOutput) {
        self.outputs.push_back(output);
    }

    /// The port that a name means for attaching software: port 0 of a switch, the first port of an adapter.
    ///
    /// A name is a node's id in the topology file, else its description; the empty name means the first node.
    pub fn find_port(&self, name: &str) -> Option<PortId> {
        self.find_device(name).map(|device| self.devices[device.index()].first_port)
    }

    /// The node with this id, else this description, else this node or port GUID. The empty name means the
    /// first node.
    pub fn find_device(&self, name: &str) -> Option<DeviceId> {
        if name.is_empty() {
            return (!self.devices.is_empty()).then_some(DeviceId(0));
        }
        let topology = &self.blueprint;
        let by_guid = || name.parse().ok().and_then(|guid| node_with(topology, guid));
        let found = topology.by_id(name).or_else(|| topology.by_description(name)).or_else(by_guid);
        found.map(|node| DeviceId(node.index() as u32))
    }

    /// All nodes that a name may mean: the one with this id, node GUID or port GUID, else all with this
    /// description.
    pub fn find_devices(&self, name: &str) -> impl Iterator<Item = DeviceId> {
        let topology = &self.blueprint;
        let by_guid = || name.parse().ok().and_then(|guid| node_with(topology, guid));
        let one = topology.by_id(name).or_else(by_guid);
        let described = topology.nodes().filter(move |(_, node)| one.is_none() && node.description == name);
        one.into_iter().chain(described.map(|(index, _)| index)).map(|node| DeviceId(node.index() as u32))
    }

    pub fn device_by_guid(&self, guid: Guid) -> Option<DeviceId> {
        self.blueprint.by_guid(guid).map(|node| DeviceId(node.index() as u32))
    }

    /// The port of a node with this number.
    pub fn port_of(&self, device: DeviceId, number: PortNum) -> Option<PortId> {
        self.devices[device.index()].port(number)
    }

    /// The numbers of nodes, ports and cables.
    pub fn size(&self) -> (usize, usize, usize) {
        let links = self.ports.iter().filter(|port| port.peer.is_some()).count() / 2;
        (self.devices.len(), self.ports.len(), links)
    }

    pub(crate) fn port(&self, id: PortId) -> &Port {
        &self.ports[id.index()]
    }

    pub(crate) fn port_mut(&mut self, id: PortId) -> &mut Port {
        &mut self.ports[id.index()]
    }

    pub(crate) fn device_of(&self, port: PortId) -> &Device {
        &self.devices[self.port(port).device.index()]
    }

    pub(crate) fn device_of_mut(&mut self, port: PortId) -> &mut Device {
        let device = self.port(port).device;
        &mut self.devices[device.index()]
    }

    pub(crate) fn is_switch(&self, port: PortId) -> bool {
        self.device_of(port).switch.is_some()
    }

    /// The port that holds the LID and the M_Key for this one: port 0 of a switch, else the port itself.
    pub(crate) fn end_port(&self, port: PortId) -> PortId {
        let device = self.device_of(port);
        if device.switch.is_some() { device.first_port } else { port }
    }

    /// Declares whether the software behind a port is a subnet manager. Sets the IsSM bit; a change raises
    /// trap 144.
    pub fn set_is_sm(&mut self, now: Duration, port: PortId, is_sm: bool) {
        self.handle_timeout(now);
        if self.port(port).is_sm != is_sm {
            self.port_mut(port).is_sm = is_sm;
            let capability = self.port(port).info.capability;
            self.port_mut(port).info.capability = if is_sm {
                capability.with(ib_wire::Capability::IS_SM)
            } else {
                capability.without(ib_wire::Capability::IS_SM)
            };
            self.raise_capability_change(port);
        }
    }

    /// The base LID of a port.
    pub fn lid(&self, port: PortId) -> Option<Lid> {
        self.port(port).info.lid
    }

    pub(crate) fn model_port(&self, id: PortId) -> &model::Port {
        let port = self.port(id);
        let node = self.model_node(port.device);
        node.port(port.number).expect("the fabric has all ports of its topology")
    }

    pub(crate) fn model_node(&self, device: DeviceId) -> &model::Node {
        &self.blueprint[model::NodeIndex::new(device.0)]
    }

    pub(crate) fn blueprint(&self) -> &Topology {
        &self.blueprint
    }

    /// Replaces the topology. Every device must keep its node index.
    pub(crate) fn set_blueprint(&mut self, topology: Topology) {
        self.blueprint = topology;
    }

    fn port_at(&self, end: model::Endpoint) -> Option<PortId> {
        self.devices[end.node.index()].port(end.port)
    }

    pub(crate) fn count_drop(&mut self, reason: DropReason) {
        *self.drops.entry(reason).or_default() += 1;
    }
}

/// The node with this node GUID, else the one that has a port with this GUID.
fn node_with(topology: &Topology, guid: Guid) -> Option<model::NodeIndex> {
    topology.by_guid(guid).or_else(|| topology.by_port_guid(guid).map(|end| end.node))
}
