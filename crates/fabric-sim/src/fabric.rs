//! The fabric as a machine: datagrams and time go in, deliveries come out.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::time::Duration;

use fabric_model::{self as model, Topology};
use ib_wire::{Datagram, Guid, Lid, PortNum};
use serde::Serialize;

use crate::capacities::{BadCapacity, Capacities};
use crate::device::{self, Device, DeviceId, Port, PortId};
use crate::faults::Faults;
use crate::mad_routing::Duplicate;
use crate::vf_frames::Functions;

/// What the fabric wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FabricOutput {
    /// A datagram arrived at a port and is for the software behind it.
    Deliver {
        /// The port.
        port: PortId,
        /// What arrived.
        datagram: Datagram,
    },
    /// A datagram that software behind a port sent came to nothing: it or its answer was dropped.
    Lost {
        /// The port it was sent from.
        port: PortId,
        /// What was left of it.
        datagram: Datagram,
        /// Why.
        reason: DropReason,
    },
}

/// Why a datagram or a frame went no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DropReason {
    /// The link has no other end, is unplugged, or is not physically up.
    LinkDown,
    /// The port's state lets no data pass.
    NotActive,
    /// A switch has no entry for the destination.
    NoRoute,
    /// It reached a port that does not own the destination LID.
    WrongPort,
    /// It went round in circles.
    HopLimit,
    /// A directed route asks for what is not there: a missing port, a hop through an adapter, too many hops.
    BadDirectedRoute,
    /// It presented the wrong management key.
    ManagementKey,
    /// A switch port does not let its partition pass.
    PartitionAtSwitch,
    /// The receiver does not hold its partition key.
    PartitionAtReceiver,
    /// It does not carry the queue key of the queue pair it is for.
    QueueKey,
    /// Its service level maps to no lane on a turn.
    ServiceLevel,
    /// A seeded fault took it.
    Injected,
    /// It needs no answer, or nobody is there to give one.
    Unanswered,
    /// The answer has no address to go to.
    NoReturnAddress,
    /// It is not a datagram of any class known here, or too short for a frame.
    Malformed,
    /// It does not fit into the largest packet of a link.
    TooLarge,
    /// The next port has no room for management, for which nobody waits.
    NoRoom,
    /// A frame has the source address of somebody else.
    Spoofed,
    /// A frame's sender has a partition key that its port does not hold.
    PartitionAtSender,
    /// A frame is for many, and its sender is in no group.
    NoGroup,
    /// A frame's destination address is not one of a virtual function.
    UnknownAddress,
    /// A frame reached its port, and no function there has its destination address.
    NoFunction,
}

/// An emulated fabric.
///
/// Feed it with [`Fabric::handle_datagram`] and [`Fabric::handle_timeout`]; after either, empty
/// [`Fabric::poll_output`] and arrange to come back at [`Fabric::poll_timeout`]. It knows no clock: `now` is the time
/// since any moment of the caller's choosing and must not run backwards.
#[derive(Debug)]
pub struct Fabric {
    pub(crate) capacities: Capacities,
    pub(crate) devices: Vec<Device>,
    pub(crate) ports: Vec<Port>,
    pub(crate) faults: Faults,
    pub(crate) now: Duration,
    pub(crate) drops: BTreeMap<DropReason, u64>,
    pub(crate) traps_sent: BTreeMap<u16, u64>,
    pub(crate) trap_transactions: u64,
    pub(crate) functions: Functions,
    /// The port that the packet under way has come to: where it stops if it goes no further.
    pub(crate) reached: PortId,
    /// What it was built from, and what reboots restore. Devices have the order of its nodes.
    blueprint: Topology,
    outputs: VecDeque<FabricOutput>,
    timers: BinaryHeap<Reverse<(Duration, u64)>>,
    timer_actions: HashMap<u64, Timer>,
    timers_started: u64,
}

/// What happens when its time has come.
#[derive(Debug)]
pub(crate) enum Timer {
    /// The lease of a management key may have run out.
    Lease(PortId),
    /// Traps of a port may have to be repeated.
    Traps(PortId),
    /// A delayed output is due.
    Output(Box<FabricOutput>),
    /// A link that was flapped comes back.
    LinkUp(PortId),
}

/// Datagrams a delay fault may hold back at once; more are delivered at once rather than kept without bound.
const DELAYED_MAX: usize = 65_536;

impl Fabric {
    /// Builds the fabric: every device as it comes out of the box, every cable plugged.
    pub fn new(topology: Topology, capacities: Capacities, seed: u64) -> Result<Self, BadCapacity> {
        capacities.check()?;
        let mut fabric = Self {
            capacities,
            devices: Vec::with_capacity(topology.node_count()),
            ports: Vec::new(),
            faults: Faults::new(seed),
            now: Duration::ZERO,
            drops: BTreeMap::new(),
            traps_sent: BTreeMap::new(),
            trap_transactions: 0,
            functions: Functions::default(),
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
        let node = &self.blueprint[model::NodeIndex::new(id.0)];
        let first_port = PortId(self.ports.len() as u32);
        self.devices.push(device::new_device(node, first_port, &self.capacities));
        for (number, port) in node.ports() {
            self.ports.push(device::new_port(id, node.kind, number, port, &self.capacities));
        }
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

    /// Takes a datagram that software behind `from` sends.
    pub fn handle_datagram(&mut self, now: Duration, from: PortId, datagram: Datagram) {
        self.handle_timeout(now);
        if self.faults.duplicates() {
            self.carry(from, datagram.clone(), Duplicate::Copy);
        }
        self.carry(from, datagram, Duplicate::Original);
    }

    /// Lets time pass: leases run out, traps are repeated, delayed datagrams come due.
    pub fn handle_timeout(&mut self, now: Duration) {
        self.now = self.now.max(now);
        while let Some(Reverse((due, key))) = self.timers.peek().copied() {
            if due > self.now {
                break;
            }
            self.timers.pop();
            match self.timer_actions.remove(&key) {
                Some(Timer::Lease(port)) => self.expire_lease(port),
                Some(Timer::Traps(port)) => self.repeat_traps(port),
                Some(Timer::Output(output)) => self.outputs.push_back(*output),
                Some(Timer::LinkUp(port)) => self.link_up(port),
                None => {}
            }
        }
    }

    /// The next thing to do, if any. Poll until `None` after every call that takes `now`.
    pub fn poll_output(&mut self) -> Option<FabricOutput> {
        self.outputs.pop_front()
    }

    /// When [`Fabric::handle_timeout`] has to be called again at the latest.
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.timers.peek().map(|Reverse((due, _))| *due)
    }

    /// Starts a timer; it fires in the first `handle_timeout` at or after `due`.
    pub(crate) fn start_timer(&mut self, due: Duration, action: Timer) {
        self.timers_started += 1;
        self.timers.push(Reverse((due, self.timers_started)));
        self.timer_actions.insert(self.timers_started, action);
    }

    /// Hands out an output, now or after the delay that a fault imposes.
    pub(crate) fn push_output(&mut self, output: FabricOutput) {
        let delay = self.faults.delay();
        if delay.is_zero() || self.timer_actions.len() >= DELAYED_MAX {
            self.outputs.push_back(output);
        } else {
            self.start_timer(self.now + delay, Timer::Output(Box::new(output)));
        }
    }

    /// The port software means by a name: a node's id, else its description; an empty name is the first node.
    /// Of a switch it is port 0, of an adapter the first port.
    pub fn find_port(&self, name: &str) -> Option<PortId> {
        self.find_device(name).map(|device| self.devices[device.index()].first_port)
    }

    /// The node by id, else by description, else by its GUID or that of a port; an empty name is the first node.
    pub fn find_device(&self, name: &str) -> Option<DeviceId> {
        if name.is_empty() {
            return (!self.devices.is_empty()).then_some(DeviceId(0));
        }
        let topology = &self.blueprint;
        let by_guid = || name.parse().ok().and_then(|guid| node_with(topology, guid));
        let found = topology.by_id(name).or_else(|| topology.by_description(name)).or_else(by_guid);
        found.map(|node| DeviceId(node.index() as u32))
    }

    /// All nodes that a name could mean: the one with that id, GUID or port GUID, else those with that description.
    pub fn find_devices(&self, name: &str) -> impl Iterator<Item = DeviceId> {
        let topology = &self.blueprint;
        let by_guid = || name.parse().ok().and_then(|guid| node_with(topology, guid));
        let one = topology.by_id(name).or_else(by_guid);
        let described = topology.nodes().filter(move |(_, node)| one.is_none() && node.description == name);
        one.into_iter().chain(described.map(|(index, _)| index)).map(|node| DeviceId(node.index() as u32))
    }

    /// The node with this node GUID.
    pub fn device_by_guid(&self, guid: Guid) -> Option<DeviceId> {
        self.blueprint.by_guid(guid).map(|node| DeviceId(node.index() as u32))
    }

    /// A port of a node by number.
    pub fn port_of(&self, device: DeviceId, number: PortNum) -> Option<PortId> {
        self.devices[device.index()].port(number)
    }

    /// How many nodes, ports and plugged links there are.
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

    /// The port that holds the LID and the management key for this one: a switch's port 0, else the port itself.
    pub(crate) fn end_port(&self, port: PortId) -> PortId {
        let device = self.device_of(port);
        if device.switch.is_some() { device.first_port } else { port }
    }

    /// Software behind a port says whether it is a subnet manager.
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

    /// The port's LID, if it has one.
    pub fn lid(&self, port: PortId) -> Option<Lid> {
        self.port(port).info.lid
    }

    pub(crate) fn model_port(&self, id: PortId) -> &model::Port {
        let port = self.port(id);
        let node = self.model_node(port.device);
        node.port(port.number).expect("the fabric has the ports of its model")
    }

    pub(crate) fn model_node(&self, device: DeviceId) -> &model::Node {
        &self.blueprint[model::NodeIndex::new(device.0)]
    }

    /// What it was built from, and what reboots restore.
    pub(crate) fn blueprint(&self) -> &Topology {
        &self.blueprint
    }

    /// Another topology, in which every device has its place.
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

/// The node with this GUID, else the one with a port of this GUID.
fn node_with(topology: &Topology, guid: Guid) -> Option<model::NodeIndex> {
    topology.by_guid(guid).or_else(|| topology.by_port_guid(guid).map(|end| end.node))
}
