//! Reads the tables of all nodes of a fabric with directed-route SMPs, independently of the subnet manager and the emulator.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use anyhow::{Context, ensure};
use fabric_model::{Endpoint, NodeIndex, Topology};
use ib_transport::ClientRole;
use ib_transport::ibsim::{DataMessage, DataStatus, IbsimClient, SocketName};
use ib_wire::{
    Attribute, DirectedRoute, ForwardingBlock, Lid, LidAddress, Mad, Method, PortInfo, PortNum, PortState,
    QueuePair, SMP_DATA_LEN, Status, SwitchInfo, TransactionId,
};

/// Reads in flight: the number at which ibsim is fastest (`heddle-bench sim`).
const OUTSTANDING: usize = 32;

/// Longest time to wait for an answer, on a busy machine.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// A Get of one attribute of one node.
#[derive(Clone, Debug)]
pub struct SmpRead {
    pub route: DirectedRoute,
    pub attribute: Attribute,
    pub modifier: u32,
}

/// LIDs, unicast routes and port states of a fabric, as read from its nodes.
#[derive(Debug, Default)]
pub struct FabricSnapshot {
    /// LIDs of end ports: cabled adapter ports, and port 0 of switches.
    pub lids: BTreeMap<Endpoint, Lid>,
    /// Linear forwarding table of each switch: exit port by LID, up to the block of LinearFDBTop; 255 is no route.
    pub linear: BTreeMap<NodeIndex, Vec<u8>>,
    /// Number of cabled ports in state Active.
    pub active: usize,
    /// Cabled ports in other states.
    pub inactive: Vec<Endpoint>,
}

/// A client of an emulator that knows a directed route to every node.
#[derive(Debug)]
pub struct Probe<'a> {
    client: IbsimClient,
    topology: &'a Topology,
    routes: BTreeMap<NodeIndex, DirectedRoute>,
    /// The ports that those routes pass.
    used: BTreeSet<Endpoint>,
}

impl<'a> Probe<'a> {
    /// Attaches to the emulator `name` at a node of its topology.
    pub fn attach(name: &SocketName, node: NodeIndex, topology: &'a Topology) -> anyhow::Result<Self> {
        let id = &topology.node(node).context("no such node")?.id;
        let client = IbsimClient::connect(name, id, ClientRole::Ordinary)?;
        let (routes, used) = routes(topology, node)?;
        Ok(Self { client, topology, routes, used })
    }

    /// The directed route to a port: to its switch, and from there through its cable. For a port of a switch, the route to
    /// the switch.
    pub fn route(&self, end: Endpoint) -> anyhow::Result<DirectedRoute> {
        let known = |node: NodeIndex| self.routes.get(&node).context("the node is not reachable");
        let node = self.topology.node(end.node).context("no such node")?;
        match self.topology.peer(end) {
            Some(peer) if !node.is_switch() && !known(end.node)?.hops().is_empty() => {
                known(peer.node)?.then(peer.port).context("the directed route is longer than 63 hops")
            }
            _ => Ok(known(end.node)?.clone()),
        }
    }

    /// Whether the route to any node passes the cable of this port.
    pub fn uses(&self, end: Endpoint) -> bool {
        self.used.contains(&end)
    }

    /// Reads LIDs, port states and unicast routes of the whole fabric.
    pub fn snapshot(&mut self) -> anyhow::Result<FabricSnapshot> {
        let mut seen = FabricSnapshot::default();
        self.read_ports(&mut seen)?;
        self.read_tables(&mut seen)?;
        Ok(seen)
    }

    fn read_ports(&mut self, seen: &mut FabricSnapshot) -> anyhow::Result<()> {
        let mut ends = Vec::new();
        for (index, node) in self.topology.nodes() {
            if !self.routes.contains_key(&index) {
                continue;
            }
            let own = node.is_switch().then_some(PortNum::MANAGEMENT);
            let ports = own.into_iter().chain(node.cabled_ports().map(|(number, _)| number));
            ends.extend(ports.map(|number| Endpoint::new(index, number)));
        }
        let reads = ends.iter().map(|end| {
            let modifier = end.port.to_wire().into();
            Ok(SmpRead { route: self.route(*end)?, attribute: Attribute::PORT_INFO, modifier })
        });
        let reads = reads.collect::<anyhow::Result<Vec<_>>>()?;
        for (end, answer) in ends.into_iter().zip(self.read(&reads)?) {
            let info = PortInfo::decode(&answer).context("invalid PortInfo")?;
            let is_switch = self.topology.node(end.node).is_some_and(fabric_model::Node::is_switch);
            if end.port == PortNum::MANAGEMENT || !is_switch {
                seen.lids.extend(info.lid.map(|lid| (end, lid)));
            }
            match info.state {
                _ if end.port == PortNum::MANAGEMENT => {}
                PortState::Active => seen.active += 1,
                _ => seen.inactive.push(end),
            }
        }
        Ok(())
    }

    fn read_tables(&mut self, seen: &mut FabricSnapshot) -> anyhow::Result<()> {
        let switches: Vec<NodeIndex> = self
            .topology
            .switches()
            .map(|(index, _)| index)
            .filter(|it| self.routes.contains_key(it))
            .collect();
        let ask = |index: &NodeIndex, attribute, modifier| SmpRead {
            route: self.routes.get(index).cloned().unwrap_or_default(),
            attribute,
            modifier,
        };
        let infos: Vec<SmpRead> = switches.iter().map(|it| ask(it, Attribute::SWITCH_INFO, 0)).collect();
        let mut blocks = Vec::new();
        let infos_read = self.read(&infos)?;
        for (index, answer) in switches.iter().zip(infos_read) {
            let top = SwitchInfo::decode(&answer).context("invalid SwitchInfo")?.linear_fdb_top;
            let count = u32::from(top) / ForwardingBlock::ENTRIES as u32 + 1;
            let route = self.routes.get(index).cloned().unwrap_or_default();
            let attribute = Attribute::LINEAR_FORWARDING;
            blocks.extend(
                (0..count).map(|modifier| (*index, SmpRead { route: route.clone(), attribute, modifier })),
            );
            seen.linear.insert(*index, Vec::with_capacity(count as usize * ForwardingBlock::ENTRIES));
        }
        let reads: Vec<SmpRead> = blocks.iter().map(|(_, read)| read.clone()).collect();
        for ((index, _), answer) in blocks.iter().zip(self.read(&reads)?) {
            seen.linear.entry(*index).or_default().extend(answer);
        }
        Ok(())
    }

    /// Sends Gets, 32 in flight, and returns their data in the order of `reads`.
    ///
    /// # Errors
    /// If an answer is missing after 20 seconds, has an error status, or was not requested.
    pub fn read(&mut self, reads: &[SmpRead]) -> anyhow::Result<Vec<[u8; SMP_DATA_LEN]>> {
        let mut found = vec![None; reads.len()];
        let (mut sent, mut answered) = (0, 0);
        let (mut batch, mut answers) = (Vec::new(), Vec::new());
        while answered < reads.len() {
            batch.clear();
            while sent < reads.len() && sent - answered < OUTSTANDING {
                batch.push(request(sent, &reads[sent])?);
                sent += 1;
            }
            self.client.send_batch(&batch)?;
            answers.clear();
            let count = self.client.receive_batch(&mut answers, ANSWER_TIMEOUT)?;
            ensure!(count > 0, "{} reads were not answered", sent - answered);
            for answer in &answers {
                let number = ib_transport::application_transaction(answer.mad.transaction()) as usize;
                let place = found.get_mut(number).context("an answer that was not requested")?;
                let read = &reads[number];
                let fine = answer.status == DataStatus::Ok && answer.mad.status() == Status::OK;
                ensure!(fine, "{:?} {:#x} was rejected", read.attribute, read.modifier);
                ensure!(place.replace(*answer.mad.smp_data()).is_none(), "two answers to one request");
                answered += 1;
            }
        }
        found.into_iter().map(|answer| answer.context("no answer")).collect()
    }
}

fn request(number: usize, read: &SmpRead) -> anyhow::Result<DataMessage> {
    let mut mad = Mad::directed(Method::GET, read.attribute, read.modifier, &read.route);
    mad.set_transaction(TransactionId(u32::try_from(number)?.into()));
    Ok(DataMessage {
        dlid: Some(LidAddress::Permissive),
        slid: Some(LidAddress::Permissive),
        dqp: QueuePair::SUBNET_MANAGEMENT,
        sqp: QueuePair::SUBNET_MANAGEMENT,
        status: DataStatus::Ok,
        mad,
    })
}

/// The shortest directed routes from one node to all that can be reached.
type Routes = BTreeMap<NodeIndex, DirectedRoute>;

/// Finds the shortest routes, and the ports they pass.
fn routes(topology: &Topology, from: NodeIndex) -> anyhow::Result<(Routes, BTreeSet<Endpoint>)> {
    let mut used = BTreeSet::new();
    let mut found = BTreeMap::from([(from, DirectedRoute::default())]);
    let mut queue = VecDeque::from([from]);
    while let Some(at) = queue.pop_front() {
        let node = topology.node(at).context("no such node")?;
        if at != from && !node.is_switch() {
            continue;
        }
        let here = found.get(&at).cloned().unwrap_or_default();
        // A program on an adapter leaves it by the port it sits on, the first with a cable.
        let exits = node.cabled_ports().take(if node.is_switch() { usize::MAX } else { 1 });
        for (exit, end) in exits {
            if let Entry::Vacant(place) = found.entry(end.node) {
                place.insert(here.then(exit).context("the directed route is longer than 63 hops")?);
                used.extend([end, Endpoint::new(at, exit)]);
                queue.push_back(end.node);
            }
        }
    }
    Ok((found, used))
}
