//! Physical networks with clusters on them, and views of those.
#![allow(dead_code, reason = "every test file uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use fabric_compiler::compile;
use fabric_model::generate::FatTree;
use fabric_model::intent::ClusterIntent;
use fabric_model::tenancy::{Bandwidth, Class, SlMode};
use fabric_model::{Decisions, FabricPlan, Intents, Topology};
use fabric_sim::BareDatagram;
use ib_wire::{
    Attribute, Datagram, DirectedRoute, Guid, Lid, LidAddress, Mad, ManagementClass, Method, PartitionNumber,
    PortNum, QueuePair, TransactionId,
};
use tenant_view::{AdapterId, ClusterPlacement, Names, NodePlacement, Slice, View, ViewOutput, ViewShape};

/// A physical network and its plan.
pub struct World {
    pub topology: Topology,
    pub plan: FabricPlan,
}

pub fn second(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

pub fn partition() -> PartitionNumber {
    PartitionNumber::from_wire(0x123).unwrap()
}

impl World {
    pub fn of(topology: Topology) -> Self {
        let plan = compile(&topology, &Intents::new(ports(&topology)[0]), &Decisions::default()).unwrap();
        Self { topology, plan }
    }

    pub fn tree(hosts: u32, radix: u8) -> Self {
        Self::of(FatTree { radix, ..FatTree::with_hosts(hosts) }.generate().unwrap())
    }

    /// A guaranteed cluster, and others on the same links.
    pub fn guaranteed(hosts: &[usize], others: &[&[usize]]) -> Self {
        let topology = FatTree { radix: 8, ..FatTree::with_hosts(32) }.generate().unwrap();
        let ports = ports(&topology);
        let mut intents = Intents::new(*ports.last().unwrap());
        let cluster = |name: String, hosts: &[usize]| ClusterIntent {
            name,
            ports: hosts.iter().map(|host| ports[*host]).collect(),
            class: Class::Guaranteed {
                bandwidth: Bandwidth::from_bits_per_s(1_000_000_000),
                latency_ns: None,
            },
            sl_mode: SlMode::Cluster,
        };
        intents.clusters.push(cluster("blue".to_owned(), hosts));
        for (number, hosts) in others.iter().enumerate() {
            intents.clusters.push(cluster(format!("other-{number}"), hosts));
        }
        let plan = compile(&topology, &intents, &Decisions::default()).unwrap();
        Self { topology, plan }
    }

    /// GUIDs of adapter ports in file order.
    pub fn ports(&self) -> Vec<Guid> {
        ports(&self.topology)
    }

    /// A cluster on some hosts, by their numbers.
    pub fn cluster(&self, hosts: &[usize]) -> ClusterPlacement {
        let ports = self.ports();
        let nodes = hosts.iter().enumerate().map(|(index, host)| NodePlacement {
            node: format!("vm-{index}"),
            port: ports[*host],
            shared: false,
            guid: None,
        });
        ClusterPlacement { name: "blue".to_owned(), partition: partition(), nodes: nodes.collect() }
    }

    pub fn slice(&self, cluster: &ClusterPlacement) -> Slice {
        Slice::of(&self.topology, &self.plan, cluster, ViewShape::Network).unwrap()
    }

    pub fn view(&self, hosts: &[usize]) -> View {
        View::new(self.slice(&self.cluster(hosts)), Names::default()).unwrap()
    }
}

pub fn ports(topology: &Topology) -> Vec<Guid> {
    let adapters = topology.end_nodes().map(|(_, node)| node.ports().next().unwrap().1);
    adapters.filter(|port| port.peer.is_some()).map(|port| port.guid).collect()
}

/// Software behind an adapter of a view.
pub struct Program {
    pub adapter: AdapterId,
    transactions: u64,
    pub now: Duration,
}

impl Program {
    pub fn on(view: &View, name: &str) -> Self {
        Self { adapter: view.adapter(name).unwrap(), transactions: 0, now: Duration::ZERO }
    }

    /// Sends a request and returns the response that reaches this program, if any.
    pub fn ask(&mut self, view: &mut View, mad: Mad, dlid: Option<Lid>) -> Option<Mad> {
        self.ask_all(view, mad, dlid).pop()
    }

    /// Sends a request and returns all responses: a table has several parts.
    pub fn ask_all(&mut self, view: &mut View, mut mad: Mad, dlid: Option<Lid>) -> Vec<Mad> {
        self.transactions += 1;
        let transaction = TransactionId(self.transactions);
        mad.set_transaction(transaction);
        let qp = match mad.class().is_subnet_management() {
            true => QueuePair::SUBNET_MANAGEMENT,
            false => QueuePair::GENERAL_MANAGEMENT,
        };
        let dlid = dlid.map(LidAddress::from);
        let bare = BareDatagram { slid: None, dlid, sqp: qp, dqp: qp, mad };
        let mut answers = Vec::new();
        if view.handle_bare(self.now, self.adapter, bare).is_err() {
            return answers;
        }
        while let Some(output) = view.poll_output() {
            if let ViewOutput::Deliver { adapter, datagram } = output
                && adapter == self.adapter
                && datagram.mad.transaction() == transaction
            {
                answers.push(datagram.mad);
            }
        }
        answers
    }

    pub fn get(&mut self, view: &mut View, route: &[u8], attribute: Attribute, modifier: u32) -> Option<Mad> {
        self.ask(view, directed(Method::GET, attribute, modifier, route), None)
    }

    pub fn set(
        &mut self,
        view: &mut View,
        route: &[u8],
        attribute: Attribute,
        modifier: u32,
        data: [u8; 64],
    ) -> Option<Mad> {
        let mut mad = directed(Method::SET, attribute, modifier, route);
        *mad.smp_data_mut() = data;
        self.ask(view, mad, None)
    }

    /// Queries the subnet administration.
    pub fn query(&mut self, view: &mut View, method: Method, attribute: Attribute) -> Option<Mad> {
        self.query_all(view, method, attribute).pop()
    }

    pub fn query_all(&mut self, view: &mut View, method: Method, attribute: Attribute) -> Vec<Mad> {
        let port = view.port(self.adapter).unwrap();
        let info = view.fabric().port_info_of(port, 0).unwrap();
        let sm = ib_wire::PortInfo::decode(&info).unwrap().master_sm_lid.unwrap();
        let mad = Mad::new(ManagementClass::SUBNET_ADMINISTRATION, method, attribute, 0);
        self.ask_all(view, mad, Some(sm))
    }
}

pub fn directed(method: Method, attribute: Attribute, modifier: u32, route: &[u8]) -> Mad {
    let hops = route.iter().filter_map(|hop| PortNum::new(*hop));
    Mad::directed(method, attribute, modifier, &DirectedRoute::new(hops).unwrap())
}

/// Takes all outputs and returns the deliveries.
pub fn drain(view: &mut View) -> Vec<(AdapterId, Datagram)> {
    let mut taken = Vec::new();
    while let Some(output) = view.poll_output() {
        if let ViewOutput::Deliver { adapter, datagram } = output {
            taken.push((adapter, datagram));
        }
    }
    taken
}

/// Everything that is found along directed routes: node description, node GUID, kind and the route.
pub fn explore(program: &mut Program, view: &mut View) -> Vec<(String, Guid, ib_wire::NodeKind, Vec<u8>)> {
    let mut found: Vec<(String, Guid, ib_wire::NodeKind, Vec<u8>)> = Vec::new();
    let mut open = std::collections::VecDeque::from([Vec::new()]);
    while let Some(route) = open.pop_front() {
        let Some(info) = program.get(view, &route, Attribute::NODE_INFO, 0) else { continue };
        let info = ib_wire::NodeInfo::decode(info.smp_data()).unwrap();
        if found.iter().any(|(_, guid, ..)| *guid == info.node_guid) {
            continue;
        }
        let text = program.get(view, &route, Attribute::NODE_DESCRIPTION, 0).unwrap();
        let text = ib_wire::NodeDescription(*text.smp_data()).text();
        let is_switch = info.kind == ib_wire::NodeKind::Switch;
        found.push((text, info.node_guid, info.kind, route.clone()));
        if is_switch || route.is_empty() {
            let ports = if is_switch { 1..=info.port_count } else { 1..=1 };
            open.extend(ports.map(|port| route.iter().copied().chain([port]).collect::<Vec<u8>>()));
        }
    }
    found
}

/// The switches with directed routes to them.
pub fn switches(program: &mut Program, view: &mut View) -> Vec<(String, Guid, Vec<u8>)> {
    let mut found: Vec<(String, Guid, Vec<u8>)> = explore(program, view)
        .into_iter()
        .filter(|(_, _, kind, _)| *kind == ib_wire::NodeKind::Switch)
        .map(|(name, guid, _, route)| (name, guid, route))
        .collect();
    found.sort();
    found
}

/// A directed route to a node.
pub fn route_to(program: &mut Program, view: &mut View, name: &str) -> Vec<u8> {
    explore(program, view).into_iter().find(|(known, ..)| known == name).unwrap().3
}
