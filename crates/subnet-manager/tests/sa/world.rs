//! Hand-made plans, and ports that query them. Uses nothing of the compiler.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "the example uses a part of it")]

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use fabric_model::intent::{AliasTable, MulticastScope, PortName};
use fabric_model::plan::{
    AdapterPortPlan, Enforcement, GroupPlan, LinearTable, ManagerPort, PartitionPlan, PkeyTable, PlanParts,
    SwitchPlan, SwitchPortPlan,
};
use fabric_model::{Decisions, Endpoint, FabricPlan, NodeIndex, Topology};
use ib_wire::rmpp::{Receiver, SEGMENT_DATA_LEN};
use ib_wire::sa::{self, ComponentMask, Record};
use ib_wire::{
    Attribute, DataLanes, Datagram, ExtendedSpeed, Gid, Guid, Lid, LidAddress, LinkSpeed, LinkWidth, Mad,
    ManagementClass, Method, Mtu, MulticastLid, NodeDescription, NodeInfo, PartitionNumber, Pkey, PortInfo,
    PortNum, QKey, Rate, ServiceLevel, SmKey, Status, SwitchInfo, TransactionId,
};
use subnet_manager::{Directory, ManagerFacts, NodeFacts, SubnetAdministration};

pub const NOW: Duration = Duration::from_secs(100);

/// A hand-planned fabric: hosts have the LIDs 1, 2, 3 … in the order of the topology, the manager is on the
/// first, and switches follow.
#[derive(Clone)]
pub struct World {
    pub topology: Topology,
    pub hosts: usize,
    /// P_Keys of each end port, by LID.
    pub keys: BTreeMap<u16, Vec<u16>>,
    /// MTU between switches.
    pub trunk_mtu: Mtu,
    pub groups: Vec<(u16, u8)>,
    /// Alias GUIDs of hosts, by LID.
    pub aliases: BTreeMap<u16, AliasTable>,
    pub decisions: Decisions,
}

impl World {
    /// Every port is a limited member of the default partition, the manager a full one.
    pub fn new(topology: Topology) -> Self {
        let hosts = topology.end_nodes().count();
        let all = topology.node_count() as u16;
        let mut keys: BTreeMap<u16, Vec<u16>> = (1..=all).map(|lid| (lid, vec![0x7fff])).collect();
        keys.insert(1, vec![0xffff]);
        Self {
            topology,
            hosts,
            keys,
            trunk_mtu: Mtu::B2048,
            groups: Vec::new(),
            aliases: BTreeMap::new(),
            decisions: Decisions::default(),
        }
    }

    /// Adds a P_Key to ports.
    pub fn with(mut self, key: u16, lids: impl IntoIterator<Item = u16>) -> Self {
        for lid in lids {
            self.keys.get_mut(&lid).unwrap().push(key);
        }
        self
    }

    pub fn directory(&self) -> Arc<Directory> {
        let manager = ManagerFacts { priority: 5, activity: 227, ..ManagerFacts::default() };
        Arc::new(Directory::new(Arc::new(self.plan()), manager, self.facts()))
    }

    /// A subnet administration with this directory.
    pub fn sa(&self) -> SubnetAdministration {
        let mut sa = SubnetAdministration::new();
        sa.publish(self.directory());
        sa
    }

    pub fn lid(&self, node: NodeIndex) -> u16 {
        let is_switch = self.topology[node].is_switch();
        let alike = |(other, of): &(NodeIndex, &fabric_model::Node)| {
            of.is_switch() == is_switch && other.index() < node.index()
        };
        let before = self.topology.nodes().filter(alike).count();
        (1 + before + if is_switch { self.hosts } else { 0 }) as u16
    }

    /// GUID of the end port with a LID.
    pub fn guid(&self, lid: u16) -> Guid {
        let plan = self.plan();
        plan.lid_owner(Lid::from_wire(lid).unwrap()).unwrap()
    }

    pub fn gid(&self, lid: u16) -> Gid {
        Gid::unicast(Gid::DEFAULT_PREFIX, self.guid(lid))
    }

    pub fn plan(&self) -> FabricPlan {
        let lids: Vec<u16> = self.topology.nodes().map(|(node, _)| self.lid(node)).collect();
        let lid_of = |node: NodeIndex| Lid::from_wire(lids[node.index()]).unwrap();
        let tables = self.linear_tables(&lids);
        let keys = |lid: Lid| {
            let keys = self.keys[&lid.to_wire()].iter().map(|raw| Some(Pkey::from_wire(*raw).unwrap()));
            Arc::new(PkeyTable::from_keys(keys.collect()))
        };
        let name = |end: Endpoint| PortName { node: self.topology[end.node].guid, port: end.port };
        let mut adapter_ports = Vec::new();
        for (index, node) in self.topology.end_nodes() {
            let (number, peer) = node.cabled_ports().next().unwrap();
            adapter_ports.push(AdapterPortPlan {
                guid: node.port(number).unwrap().guid,
                name: PortName { node: node.guid, port: number },
                peer: name(peer),
                lid: lid_of(index),
                mtu: Mtu::B4096,
                lanes: DataLanes::Eight,
                pkeys: keys(lid_of(index)),
                qos: None,
                aliases: Arc::new(self.aliases.get(&lid_of(index).to_wire()).cloned().unwrap_or_default()),
            });
        }
        let switches = self.topology.switches().map(|(index, node)| SwitchPlan {
            guid: node.guid,
            port_guid: node.port(PortNum::MANAGEMENT).unwrap().guid,
            lid: lid_of(index),
            linear: Arc::new(LinearTable::from_exits(tables[&index].clone())),
            multicast: Arc::default(),
            pkeys: keys(lid_of(index)),
            ports: node
                .cabled_ports()
                .map(|(number, peer)| {
                    let is_trunk = self.topology[peer.node].is_switch();
                    SwitchPortPlan {
                        number,
                        peer: name(peer),
                        mtu: if is_trunk { self.trunk_mtu } else { Mtu::B4096 },
                        lanes: DataLanes::Eight,
                        enforcement: match is_trunk {
                            true => Enforcement::Off,
                            false => Enforcement::Both(keys(lid_of(peer.node))),
                        },
                        qos: None,
                    }
                })
                .collect(),
        });
        let (first, manager) = self.topology.end_nodes().next().unwrap();
        let (number, _) = manager.cabled_ports().next().unwrap();
        FabricPlan::from_parts(PlanParts {
            manager: ManagerPort { guid: manager.port(number).unwrap().guid, lid: lid_of(first) },
            switches: switches.collect(),
            groups: self.groups(&adapter_ports),
            adapter_ports,
            partitions: self.decisions.management_partition.into_iter().map(management).collect(),
            findings: Vec::new(),
            decisions: self.decisions.clone(),
        })
    }

    fn groups(&self, ports: &[AdapterPortPlan]) -> Vec<GroupPlan> {
        let group = |(number, sl): &(u16, u8)| {
            let partition = PartitionNumber::from_wire(*number).unwrap();
            let mut mgid = [0xff; 16];
            (mgid[1], mgid[4], mgid[5]) = (0x12, (number >> 8) as u8 | 0x80, *number as u8);
            let is_member =
                |port: &&AdapterPortPlan| port.pkeys.keys().any(|key| key.partition() == partition);
            GroupPlan {
                mgid: Gid(mgid),
                mlid: MulticastLid::from_wire(0xc000).unwrap(),
                partition,
                mtu: Mtu::B2048,
                rate: Rate::G10,
                sl: ServiceLevel::from_wire(*sl).unwrap(),
                scope: MulticastScope::LINK_LOCAL,
                qkey: QKey::from_wire(0x0b1b),
                root: None,
                members: ports.iter().filter(is_member).map(|port| port.guid).collect(),
            }
        };
        self.groups.iter().map(group).collect()
    }

    /// Shortest paths; the destination LID selects one of several.
    fn linear_tables(&self, lids: &[u16]) -> BTreeMap<NodeIndex, Vec<u8>> {
        let top = lids.iter().max().unwrap();
        let mut tables: BTreeMap<NodeIndex, Vec<u8>> =
            self.topology.switches().map(|(index, _)| (index, vec![0xff; usize::from(*top) + 1])).collect();
        for (index, switch) in self.topology.switches() {
            let distances = self.distances(index);
            let mut behind: Vec<(u16, u8)> = vec![(lids[index.index()], 0)];
            let hosts = switch.cabled_ports().filter(|(_, peer)| !self.topology[peer.node].is_switch());
            behind.extend(hosts.map(|(number, peer)| (lids[peer.node.index()], number.to_wire())));
            for (from, table) in &mut tables {
                let nearer: Vec<u8> = (self.topology[*from].cabled_ports())
                    .filter(|(_, peer)| distances[peer.node.index()] < distances[from.index()])
                    .filter(|(_, peer)| self.topology[peer.node].is_switch())
                    .map(|(number, _)| number.to_wire())
                    .collect();
                for (lid, last) in &behind {
                    let exit = if *from == index {
                        *last
                    } else {
                        nearer.get(usize::from(*lid) % nearer.len().max(1)).copied().unwrap_or(0xff)
                    };
                    table[usize::from(*lid)] = exit;
                }
            }
        }
        tables
    }

    fn distances(&self, to: NodeIndex) -> Vec<u32> {
        let mut distances = vec![u32::MAX; self.topology.node_count()];
        distances[to.index()] = 0;
        let mut queue = VecDeque::from([to]);
        while let Some(node) = queue.pop_front() {
            for (_, peer) in self.topology[node].cabled_ports() {
                let known = distances[peer.node.index()] != u32::MAX;
                if self.topology[peer.node].is_switch() && !known {
                    distances[peer.node.index()] = distances[node.index()] + 1;
                    queue.push_back(peer.node);
                }
            }
        }
        distances
    }

    /// Facts of the nodes: every link is 4xEDR, and every node has an M_Key that must not be disclosed.
    pub fn facts(&self) -> Vec<NodeFacts> {
        self.topology.nodes().map(|(_, node)| facts(node)).collect()
    }
}

pub const M_KEY: u64 = 0xdead_beef_cafe_f00d;

fn facts(node: &fabric_model::Node) -> NodeFacts {
    let info = NodeInfo {
        base_version: 1,
        class_version: 1,
        kind: node.kind,
        port_count: node.port_count(),
        system_guid: Some(node.guid),
        node_guid: node.guid,
        port_guid: node.guid,
        partition_capacity: 64,
        device_id: 1,
        revision: 1,
        local_port: PortNum::new(1).unwrap(),
        vendor_id: 2,
    };
    let mut switch = SwitchInfo::decode(&[0; 64]).unwrap();
    switch.linear_fdb_capacity = 0xc000;
    let mut port_info = PortInfo::decode(&[0; 64]).unwrap();
    port_info.m_key = ib_wire::MKey::from_wire(M_KEY);
    port_info.link_width_active = LinkWidth::X4;
    port_info.link_speed_active = LinkSpeed::QDR;
    port_info.extended_speed_active = ExtendedSpeed::EDR;
    port_info.mtu_cap = Mtu::B4096;
    port_info.guid_cap = 20;
    NodeFacts {
        info,
        description: NodeDescription::new(&node.description),
        switch: node.is_switch().then_some(switch),
        ports: node.ports().map(|(number, _)| (number, port_info.clone())).collect(),
        port_guids: node.ports().map(|(number, port)| (number, port.guid)).collect(),
    }
}

/// A request of a port in a partition.
fn management(number: PartitionNumber) -> PartitionPlan {
    PartitionPlan { number, name: "Management".to_owned(), members: BTreeMap::new() }
}

pub fn request(from: u16, key: u16, mad: Mad) -> Datagram {
    let lid = |raw| LidAddress::Unicast(Lid::from_wire(raw).unwrap());
    Datagram::general_management(lid(from), lid(1), Pkey::from_wire(key).unwrap(), mad)
}

/// A query for records `R`: bytes at offsets, and the component mask.
pub fn query<R: Record>(method: Method, pattern: &[(usize, &[u8])], mask: ComponentMask) -> Mad {
    let mut mad = plain(method, R::ATTRIBUTE);
    for (place, bytes) in pattern {
        mad.sa_data_mut()[*place..*place + bytes.len()].copy_from_slice(bytes);
    }
    mad.set_component_mask(mask);
    mad
}

pub fn plain(method: Method, attribute: Attribute) -> Mad {
    let mut mad = Mad::new(ManagementClass::SUBNET_ADMINISTRATION, method, attribute, 0);
    mad.set_transaction(TransactionId(0x1234));
    if attribute == Attribute::PKEY_TABLE_RECORD {
        mad.set_sm_key(SmKey::from_wire(1));
    }
    mad
}

/// The only response to a request; nothing else may be sent.
pub fn exchange(sa: &mut SubnetAdministration, datagram: &Datagram) -> Option<Datagram> {
    sa.handle_datagram(NOW, datagram);
    let answer = sa.poll_transmit(NOW);
    assert_eq!(sa.poll_transmit(NOW), None);
    answer
}

/// The status of a Get, and its record if there is one.
pub fn get<R: Record>(sa: &mut SubnetAdministration, datagram: &Datagram) -> Result<R, Status> {
    let answer = exchange(sa, datagram).expect("an answer");
    match answer.mad.status() {
        Status::OK => {
            assert_eq!(answer.mad.sa_record_len(), R::LEN);
            Ok(R::decode(answer.mad.sa_data()).unwrap())
        }
        status => Err(status),
    }
}

/// The records of a table of any length; the requester acknowledges all segments.
pub fn table<R: Record>(sa: &mut SubnetAdministration, datagram: &Datagram) -> Result<Vec<R>, Status> {
    sa.handle_datagram(NOW, datagram);
    let mut receiver = Receiver::new();
    while let Some(answer) = sa.poll_transmit(NOW) {
        if answer.mad.status() != Status::OK {
            return Err(answer.mad.status());
        }
        assert_eq!(answer.dlid, datagram.slid);
        let message = receiver.handle(&answer.mad).unwrap();
        if let Some(mad) = receiver.poll_transmit() {
            sa.handle_datagram(NOW, &Datagram { mad, ..datagram.clone() });
        }
        if let Some(message) = message {
            assert!(message.header.rmpp().version == 1, "tables have an RMPP header");
            assert!(message.data.len() <= SEGMENT_DATA_LEN || sa.poll_transmit(NOW).is_none());
            let records = sa::records(&message.data, message.header.sa_record_len());
            return Ok(records.collect::<Result<_, _>>().unwrap());
        }
    }
    panic!("no answer");
}
