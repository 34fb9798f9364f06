//! Hand-made plans for traffic tests: shortest paths, one P_Key, configurable lanes.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "every test binary uses its own part")]

use std::collections::VecDeque;
use std::sync::Arc;

use fabric_model::intent::PortName;
use fabric_model::plan::{
    AdapterPortPlan, Enforcement, LinearTable, ManagerPort, PkeyTable, PlanParts, PortQos, SwitchPlan,
    SwitchPortPlan,
};
use fabric_model::{FabricPlan, NodeIndex, Topology};
use fabric_sim::traffic::{
    HEADER_BYTES, Message, Service, Simulation, Tag, Time, TrafficNetwork, TrafficSettings, Workload,
    WorkloadActions,
};
use fabric_sim::{Capacities, Fabric, FunctionId, PortId};
use ib_wire::{DataLanes, Lid, Mtu, Pkey, PortNum, ServiceLevel, SlToVl, VirtualLane, VlArbEntry};

/// The parameters of a plan besides the topology.
pub struct Design {
    pub topology: Topology,
    pub lanes: DataLanes,
    pub mtu: Mtu,
    pub entries: u8,
    /// Lane sharing of every link; `None` keeps the factory defaults.
    pub sharing: Option<Arc<PortQos>>,
    /// Keys of a node's adapter, in order.
    pub keys: Box<dyn Fn(NodeIndex) -> Vec<Pkey>>,
    /// Whether switches enforce partitions.
    pub enforces: bool,
    /// Which of several shortest paths is used: a number modulo their count, from the tier of the switch and
    /// the number of the host.
    pub spread: fn(usize, usize) -> usize,
    /// Output ports off the shortest path, from a switch to a node.
    pub detour: Box<dyn Fn(NodeIndex, NodeIndex) -> Option<PortNum>>,
}

impl Design {
    pub fn new(topology: Topology) -> Self {
        Self {
            topology,
            lanes: DataLanes::Eight,
            mtu: Mtu::B4096,
            entries: 64,
            sharing: None,
            keys: Box::new(|_| vec![Pkey::DEFAULT_FULL]),
            enforces: false,
            spread: |_, node| node,
            detour: Box::new(|_, _| None),
        }
    }

    pub fn capacities(&self) -> Capacities {
        Capacities {
            lanes: DataLanes::Fifteen,
            mtu: Mtu::B4096,
            arbitration_entries: self.entries,
            linear_forwarding: 49152,
            ..Capacities::default()
        }
    }

    /// A fabric that holds the plan.
    pub fn fabric(&self) -> Fabric {
        let mut fabric = Fabric::new(self.topology.clone(), self.capacities(), 1).unwrap();
        fabric.install(&self.plan()).unwrap();
        fabric
    }

    pub fn simulation(&self, settings: TrafficSettings) -> Simulation {
        Simulation::new(TrafficNetwork::of(&self.fabric()), settings).unwrap()
    }

    pub fn plan(&self) -> FabricPlan {
        let tables = self.tables();
        let topology = &self.topology;
        let host = topology.end_nodes().next().unwrap().0;
        let manager = ManagerPort { guid: guid(topology, host, 1), lid: lid(host) };
        let switches = topology.switches().map(|(index, node)| SwitchPlan {
            guid: node.guid,
            port_guid: guid(topology, index, 0),
            lid: lid(index),
            linear: Arc::new(LinearTable::from_exits(tables[index.index()].clone())),
            multicast: Arc::default(),
            pkeys: Arc::new(PkeyTable::from_keys(vec![Some(Pkey::DEFAULT_FULL)])),
            ports: node
                .cabled_ports()
                .map(|(number, peer)| self.switch_port(number, peer.node, peer.port))
                .collect(),
        });
        let adapter_ports = topology.end_nodes().map(|(index, node)| {
            let (number, peer) = node.cabled_ports().next().unwrap();
            AdapterPortPlan {
                guid: guid(topology, index, number.to_wire()),
                name: PortName { node: node.guid, port: number },
                peer: PortName { node: topology[peer.node].guid, port: peer.port },
                lid: lid(index),
                mtu: self.mtu,
                lanes: self.lanes,
                pkeys: self.pkeys(index),
                qos: self.sharing.clone(),
                aliases: Arc::default(),
            }
        });
        FabricPlan::from_parts(PlanParts {
            manager,
            switches: switches.collect(),
            adapter_ports: adapter_ports.collect(),
            partitions: Vec::new(),
            groups: Vec::new(),
            findings: Vec::new(),
            decisions: Default::default(),
        })
    }

    fn pkeys(&self, host: NodeIndex) -> Arc<PkeyTable> {
        Arc::new(PkeyTable::from_keys((self.keys)(host).into_iter().map(Some).collect()))
    }

    fn switch_port(&self, number: PortNum, peer: NodeIndex, port: PortNum) -> SwitchPortPlan {
        let node = &self.topology[peer];
        let checks = self.enforces && !node.is_switch();
        SwitchPortPlan {
            number,
            peer: PortName { node: node.guid, port },
            mtu: self.mtu,
            lanes: self.lanes,
            enforcement: if checks { Enforcement::Both(self.pkeys(peer)) } else { Enforcement::Off },
            qos: self.sharing.clone(),
        }
    }

    /// Linear forwarding tables of all switches: shortest paths, destinations spread over equal ones.
    fn tables(&self) -> Vec<Vec<u8>> {
        let topology = &self.topology;
        let (count, switches) = (topology.node_count(), topology.switches().count());
        let mut tables = vec![vec![0xff; count + 1]; count];
        let levels = self.distances(topology.end_nodes().map(|(index, _)| index));
        for (to, _) in topology.nodes() {
            let distance = self.distances([to]);
            for (at, switch) in topology.switches() {
                let exits: Vec<PortNum> = switch
                    .cabled_ports()
                    .filter(|(_, peer)| distance[peer.node.index()] + 1 == distance[at.index()])
                    .map(|(number, _)| number)
                    .collect();
                let node = to.index().wrapping_sub(switches);
                let spread = (self.spread)(levels[at.index()], node);
                let shortest = exits.get(spread % exits.len().max(1)).copied();
                let own = (at == to).then_some(PortNum::MANAGEMENT);
                let exit = (self.detour)(at, to).or(own).or(shortest);
                tables[at.index()][to.index() + 1] = exit.map_or(0xff, PortNum::to_wire);
            }
        }
        tables
    }

    /// Hops from every node to the nearest of some, through switches only.
    fn distances(&self, to: impl IntoIterator<Item = NodeIndex>) -> Vec<usize> {
        let mut distances = vec![usize::MAX; self.topology.node_count()];
        let mut open: VecDeque<NodeIndex> = to.into_iter().collect();
        open.iter().for_each(|node| distances[node.index()] = 0);
        while let Some(at) = open.pop_front() {
            if distances[at.index()] > 0 && !self.topology[at].is_switch() {
                continue;
            }
            for (_, peer) in self.topology[at].cabled_ports() {
                if distances[peer.node.index()] == usize::MAX {
                    distances[peer.node.index()] = distances[at.index()] + 1;
                    open.push_back(peer.node);
                }
            }
        }
        distances
    }
}

/// The LID that plans of this file give to a node.
pub fn lid(node: NodeIndex) -> Lid {
    Lid::from_wire(node.index() as u16 + 1).unwrap()
}

fn guid(topology: &Topology, node: NodeIndex, port: u8) -> ib_wire::Guid {
    topology[node].port(PortNum::new(port).unwrap()).unwrap().guid
}

pub fn lane(raw: u8) -> VirtualLane {
    VirtualLane::from_wire(raw).unwrap()
}

pub fn sl(raw: u8) -> ServiceLevel {
    ServiceLevel::from_wire(raw).unwrap()
}

/// Each service level on the lane of its number as far as there are lanes, all others discarded; `low` has
/// lanes and weights.
pub fn sharing(lanes: u8, low: &[(u8, u8)]) -> Arc<PortQos> {
    let map = |level: usize| if level < usize::from(lanes) { lane(level as u8) } else { lane(15) };
    Arc::new(PortQos {
        by_input: Default::default(),
        otherwise: SlToVl(std::array::from_fn(map)),
        low: low.iter().map(|(raw, weight)| VlArbEntry { lane: lane(*raw), weight: *weight }).collect(),
        high: Vec::new(),
    })
}

/// Adapter ports and their LIDs, in order of the topology.
pub fn hosts(network: &TrafficNetwork) -> Vec<(PortId, Lid)> {
    network.adapter_ports().map(|port| (port, network.lid(port).unwrap())).collect()
}

/// A message on a service level, with the default P_Key.
pub fn message(from: PortId, to: Lid, level: u8, bytes: u64) -> Message {
    Message {
        from: FunctionId::new(from, 0),
        to,
        service: Service::Data(sl(level)),
        pkey: Pkey::DEFAULT_FULL,
        bytes,
        packet_bytes: None,
        header_bytes: HEADER_BYTES,
        tag: Tag(level.into()),
        token: 0,
    }
}

/// Posts each message again as soon as it has left: saturating sources.
pub struct Saturating(pub Vec<Message>);

impl Workload for Saturating {
    fn start(&mut self, actions: &mut WorkloadActions) {
        self.0.iter().for_each(|message| actions.post(*message));
    }

    fn sent(&mut self, _: Time, message: &Message, actions: &mut WorkloadActions) {
        actions.post(*message);
    }
}

/// Posts each message once, at its time.
#[derive(Default)]
pub struct Timed {
    pub messages: Vec<(Time, Message)>,
    pub delivered: Vec<(Time, Message)>,
    pub lost: Vec<(Message, fabric_sim::DropReason)>,
}

impl Workload for Timed {
    fn start(&mut self, actions: &mut WorkloadActions) {
        for (number, (at, _)) in self.messages.iter().enumerate() {
            actions.wake(*at, number as u64);
        }
    }

    fn woken(&mut self, _: Time, token: u64, actions: &mut WorkloadActions) {
        actions.post(self.messages[token as usize].1);
    }

    fn delivered(&mut self, now: Time, message: &Message, _: Time, _: &mut WorkloadActions) {
        self.delivered.push((now, *message));
    }

    fn lost(&mut self, _: Time, message: &Message, reason: fabric_sim::DropReason, _: &mut WorkloadActions) {
        self.lost.push((*message, reason));
    }
}
