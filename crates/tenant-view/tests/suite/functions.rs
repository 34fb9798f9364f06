//! A virtual function on the physical network whose view this is: what its machine sends to QP0 and QP1 is answered by the view,
//! and nothing of it reaches physical devices.

use std::collections::BTreeSet;
use std::time::Duration;

use fabric_compiler::compile;
use fabric_model::Decisions;
use fabric_model::Intents;
use fabric_model::intent::{
    Alias, Member, MemberSelector, PartitionIntent, PkeyPlacement, PortAliases, Role,
};
use fabric_sim::{
    AdapterFunction, Capacities, DropReason, Fabric, FabricOutput, FunctionId, ToView, ViewPort,
};
use ib_wire::{
    Attribute, Datagram, Gid, Grh, Guid, GuidBlock, Lid, LidAddress, MKey, Mad, ManagementClass, Method,
    NodeInfo, Packet, PartitionNumber, PhysicalState, Pkey, PortInfo, PortState, QueuePair, SmInfo, SmState,
    Status, TransactionId,
};
use tenant_view::{AdapterId, Names, View, ViewManager, ViewOutput};

use crate::world::{World, directed, partition, ports, second};

/// P_Keys of the function: that of the cluster, and the default partition.
const BLUE: u16 = 0x8123;
const DEFAULT_LIMITED: u16 = 0x7fff;

/// Hosts of the cluster, by their numbers. The manager of the fabric is at host 0.
const HOSTS: [usize; 3] = [1, 5, 9];

/// What kernels write into the upper half.
const KERNEL: u64 = 0x0000_0007_0000_0000;

fn guid(index: usize) -> Guid {
    Guid::from_wire(0x0220_0000_0000_0100 + index as u64).unwrap()
}

fn key(raw: u16) -> Pkey {
    Pkey::from_wire(raw).unwrap()
}

/// The physical network with a function on each host of a cluster, and the view of the cluster.
struct Site {
    fabric: Fabric,
    view: View,
    now: Duration,
    /// By node: the function on the fabric, and the adapter in the view.
    nodes: Vec<(FunctionId, AdapterId)>,
    transactions: u64,
    /// Datagrams that reached software on the fabric.
    physical: Vec<Datagram>,
}

impl Site {
    fn new() -> Self {
        let mut world = World::tree(16, 8);
        let all = ports(&world.topology);
        let mut intents = Intents::new(all[0]);
        intents.partitions.push(PartitionIntent {
            name: "blue".to_owned(),
            number: Some(partition()),
            members: HOSTS
                .iter()
                .map(|host| Member {
                    selector: MemberSelector::Port(all[*host]),
                    role: Role::Full,
                    placement: PkeyPlacement::default(),
                })
                .collect(),
            ipoib: None,
        });
        intents.aliases = PortAliases::new();
        for (index, host) in HOSTS.into_iter().enumerate() {
            let partitions = BTreeSet::from([partition(), PartitionNumber::DEFAULT]);
            let alias = Alias { guid: guid(index), partitions };
            intents.aliases.entry(all[host]).or_default().insert(1, alias);
        }
        world.plan = compile(&world.topology, &intents, &Decisions::default()).unwrap();
        let mut fabric = Fabric::new(world.topology.clone(), Capacities::default(), 1).unwrap();
        fabric.install(&world.plan).unwrap();
        let mut cluster = world.cluster(&HOSTS);
        for (index, node) in cluster.nodes.iter_mut().enumerate() {
            node.guid = Some(guid(index));
        }
        let view = View::new(world.slice(&cluster), Names::default()).unwrap();
        let mut site =
            Self { fabric, view, now: second(1.0), nodes: Vec::new(), transactions: 0, physical: Vec::new() };
        for (index, host) in HOSTS.into_iter().enumerate() {
            let (node, port) = {
                let end = world.topology.by_port_guid(all[host]).unwrap();
                (site.fabric.device_by_guid(world.topology[end.node].guid).unwrap(), end.port)
            };
            let port = site.fabric.port_of(node, port).unwrap();
            let mut block = GuidBlock([None; 8]);
            block.0[1] = Some(guid(index));
            let mut mad = directed(Method::SET, Attribute::GUID_INFO, 0, &[]);
            *mad.smp_data_mut() = block.encode();
            let smp = Datagram::subnet_management(LidAddress::Permissive, LidAddress::Permissive, mad);
            site.fabric.handle_datagram(site.now, port, smp);
            let id = FunctionId::new(port, 1);
            let keys = [BLUE, DEFAULT_LIMITED].map(key).into();
            site.fabric.attach_adapter(AdapterFunction { id, guid: guid(index), keys }).unwrap();
            assert!(site.fabric.open_view(id));
            let adapter = site.view.adapter(&format!("vm-{index}")).unwrap();
            site.nodes.push((id, adapter));
        }
        site.exchange();
        site.physical.clear();
        site
    }

    fn lid(&self, node: usize) -> Lid {
        self.fabric.lid(self.nodes[node].0.port()).unwrap()
    }

    /// LID of the subnet manager, as the state of its port names it.
    fn manager(&self) -> LidAddress {
        self.fabric.function_port(self.nodes[0].0).unwrap().info.master_sm_lid.unwrap().into()
    }

    fn info_in_view(&self, node: usize) -> PortInfo {
        let port = self.view.port(self.nodes[node].1).unwrap();
        PortInfo::decode(&self.view.fabric().port_info_of(port, 0).unwrap()).unwrap()
    }

    /// Carries datagrams between functions and the view until there are none, and returns the packets for machines.
    fn exchange(&mut self) -> Vec<(usize, Datagram)> {
        let mut packets = Vec::new();
        loop {
            let mut is_idle = true;
            for (node, (id, adapter)) in self.nodes.clone().into_iter().enumerate() {
                while let Some(message) = self.fabric.poll_view_output(id) {
                    is_idle = false;
                    match message {
                        ToView::PortQuery => {
                            let info = self.info_in_view(node);
                            let port = self.view.port(adapter).unwrap();
                            let keys = self.view.fabric().pkeys_of(port);
                            let port = ViewPort {
                                lid: info.lid,
                                manager: info.master_sm_lid,
                                key: Pkey::from_wire(u16::from_be_bytes([keys[0], keys[1]])),
                            };
                            self.fabric.set_view_port(self.now, id, port);
                        }
                        ToView::Datagram(mut datagram) => {
                            // As the server of the view does.
                            let mad = &mut datagram.mad;
                            if !mad.method().is_response() {
                                let stamp = (adapter_number(node) as u64) << 48;
                                mad.set_transaction(TransactionId(mad.transaction().0 | stamp));
                            }
                            let _ = self.view.handle_datagram(self.now, adapter, *datagram);
                        }
                    }
                }
            }
            while let Some(output) = self.view.poll_output() {
                is_idle = false;
                if let ViewOutput::Deliver { adapter, datagram } = output {
                    let (id, _) = *self.nodes.iter().find(|(_, at)| *at == adapter).unwrap();
                    self.fabric.deliver_from_view(self.now, id, datagram);
                }
            }
            while let Some(output) = self.fabric.poll_output() {
                is_idle = false;
                match output {
                    FabricOutput::Packet { function, packet } => {
                        let node = self.nodes.iter().position(|(id, _)| *id == function).unwrap();
                        let packet = Packet::read(&packet).unwrap().to_datagram().unwrap();
                        packets.push((node, packet));
                    }
                    FabricOutput::Deliver { datagram, .. } => self.physical.push(datagram),
                    FabricOutput::Lost { .. } | FabricOutput::Frame { .. } => {}
                }
            }
            if is_idle {
                return packets;
            }
        }
    }

    fn send(&mut self, node: usize, datagram: &Datagram) -> Vec<(usize, Datagram)> {
        self.fabric.send_packet(self.now, self.nodes[node].0, &datagram.to_packet());
        self.exchange()
    }

    /// Sends a request as a kernel does, and returns the response.
    fn ask(&mut self, node: usize, mut request: Datagram) -> Option<Datagram> {
        self.transactions += 1;
        let transaction = TransactionId(KERNEL | self.transactions);
        request.mad.set_transaction(transaction);
        let answers = self.send(node, &request).into_iter();
        let mut own = answers.filter(|(to, answer)| *to == node && answer.mad.method().is_response());
        own.find(|(_, answer)| answer.mad.transaction() == transaction).map(|(_, answer)| answer)
    }

    fn drops(&self, node: usize, reason: DropReason) -> u64 {
        let id = self.nodes[node].0;
        let (_, counters) = self.fabric.adapter_functions().find(|(function, _)| function.id == id).unwrap();
        counters.drops.get(&reason).copied().unwrap_or(0)
    }

    /// The tables of all physical devices.
    fn tables(&self) -> String {
        self.fabric.device_ids().map(|device| format!("{:?}", self.fabric.table_view(device))).collect()
    }
}

/// The number of a client of the view's server.
fn adapter_number(node: usize) -> u16 {
    0x0400 + node as u16
}

/// An SMP as it leaves a kernel: its hop pointer is 1.
fn smp(method: Method, attribute: Attribute, modifier: u32, route: &[u8]) -> Datagram {
    let mut mad = directed(method, attribute, modifier, route);
    mad.set_hop_pointer(1);
    Datagram::subnet_management(LidAddress::Permissive, LidAddress::Permissive, mad)
}

fn query(from: Lid, to: LidAddress, pkey: u16, method: Method, attribute: Attribute) -> Datagram {
    let mad = Mad::new(ManagementClass::SUBNET_ADMINISTRATION, method, attribute, 0);
    Datagram::general_management(from.into(), to, key(pkey), mad)
}

fn node_guid(answer: &Datagram) -> Guid {
    NodeInfo::decode(answer.mad.smp_data()).unwrap().node_guid
}

#[test]
fn a_machine_finds_itself_and_its_switch_in_its_view() {
    let mut site = Site::new();
    let own = site.ask(0, smp(Method::GET, Attribute::NODE_INFO, 0, &[])).unwrap();
    let info = NodeInfo::decode(own.mad.smp_data()).unwrap();
    assert_eq!((info.node_guid, info.port_guid), (guid(0), guid(0)), "the GUID that the kernel has");
    assert!(own.mad.is_returning());
    let switch = site.ask(0, smp(Method::GET, Attribute::NODE_INFO, 0, &[1])).unwrap();
    assert_eq!(switch.mad.hop_pointer(), 1);
    assert!(site.view.topology().by_guid(node_guid(&switch)).is_some());
    // By LID, too: the LIDs are those of the view.
    let there = site.info_in_view(1).lid.unwrap();
    let mad = Mad::new(ManagementClass::SUBNET_LID, Method::GET, Attribute::NODE_INFO, 0);
    let by_lid = Datagram::subnet_management(site.lid(0).into(), there.into(), mad);
    let other = site.ask(0, by_lid).unwrap();
    assert_eq!((node_guid(&other), other.slid), (guid(1), there.into()));
    assert!(site.physical.is_empty());
}

#[test]
fn without_a_view_smps_of_a_machine_are_dropped_and_counted() {
    let mut site = Site::new();
    let request = smp(Method::GET, Attribute::NODE_INFO, 0, &[]);
    site.fabric.close_view(site.nodes[0].0);
    assert_eq!(site.ask(0, request.clone()), None);
    assert_eq!(site.drops(0, DropReason::Unanswered), 1);
    assert!(site.ask(1, request.clone()).is_some(), "the control");
    site.fabric.open_view(site.nodes[0].0);
    assert!(site.ask(0, request).is_some(), "the control");
}

#[test]
fn subnet_administration_is_that_of_the_view_unless_the_default_partition_is_named() {
    let mut site = Site::new();
    let (from, manager) = (site.lid(0), site.manager());
    let request = query(from, manager, BLUE, Method::GET_TABLE, Attribute::NODE_RECORD);
    let answer = site.ask(0, request.clone()).unwrap();
    assert_eq!((answer.slid, answer.pkey), (manager, key(BLUE)));
    assert_eq!(answer.mad.method(), Method::GET_TABLE_RESP);
    assert!(site.physical.is_empty());
    assert_eq!(site.ask(0, query(from, manager, DEFAULT_LIMITED, Method::GET, Attribute::NODE_RECORD)), None);
    assert_eq!(site.physical.len(), 1, "it reached the manager of the fabric");
    // Without a view, the adapter asks in the default partition.
    site.fabric.close_view(site.nodes[0].0);
    assert_eq!(site.ask(0, request), None);
    assert_eq!(site.physical.len(), 2);
    assert_eq!(site.physical[1].pkey, key(DEFAULT_LIMITED));
}

#[test]
fn counters_of_the_own_port_are_physical() {
    let mut site = Site::new();
    let request = |to: Lid, from: Lid| {
        let mad = Mad::new(ManagementClass::PERFORMANCE, Method::GET, Attribute::PORT_COUNTERS, 0);
        Datagram::general_management(from.into(), to.into(), key(BLUE), mad)
    };
    let (own, there) = (site.lid(0), site.info_in_view(0).lid.unwrap());
    let other = site.info_in_view(1).lid.unwrap();
    let accepted = |site: &Site| site.view.counts().accepted;
    for (to, is_view) in [(own, false), (there, own == other), (other, own != other)] {
        let before = accepted(&site);
        let answer = site.ask(0, request(to, own)).unwrap();
        assert_eq!(answer.mad.method(), Method::GET_RESP);
        assert_eq!(accepted(&site) > before, is_view, "{to}");
    }
}

#[test]
fn nothing_that_a_machine_sends_to_qp0_changes_a_physical_device() {
    let mut site = Site::new();
    // The keys of the fabric, which the tenant has guessed.
    let guessed = MKey::from_wire(0x1234_5678).unwrap();
    let devices: Vec<_> = site.fabric.device_ids().collect();
    for device in devices {
        let port = site.fabric.ports_of(device).next().unwrap();
        let mut info = PortInfo::decode(&site.fabric.port_info_of(port, 0).unwrap()).unwrap();
        info.m_key = Some(guessed);
        (info.state, info.physical_state) = (PortState::NoChange, PhysicalState::NoChange);
        let mut mad = directed(Method::SET, Attribute::PORT_INFO, 0, &[]);
        *mad.smp_data_mut() = info.encode();
        let set = Datagram::subnet_management(LidAddress::Permissive, LidAddress::Permissive, mad);
        site.fabric.handle_datagram(site.now, port, set);
        assert!(site.fabric.port_view(port).m_key_set, "{port:?}");
    }
    site.exchange();
    site.physical.clear();
    let before = site.tables();
    let routes_before = {
        let switch = site.view.topology().switches().next().unwrap().1.guid;
        let device = site.view.fabric().device_by_guid(switch).unwrap();
        format!("{:?}", site.view.fabric().table_view(device))
    };
    for with_key in [None, Some(guessed)] {
        for route in [&[][..], &[1], &[1, 1], &[1, 2], &[1, 5], &[1, 6, 1]] {
            let mut blank = smp(Method::SET, Attribute::LINEAR_FORWARDING, 0, route);
            blank.mad.set_m_key(with_key);
            *blank.mad.smp_data_mut() = [1; 64];
            site.ask(0, blank);
            let mut down = smp(Method::SET, Attribute::PORT_INFO, 1, route);
            down.mad.set_m_key(with_key);
            site.ask(0, down);
        }
        for lid in 1..40 {
            let mut mad = Mad::new(ManagementClass::SUBNET_LID, Method::SET, Attribute::LINEAR_FORWARDING, 0);
            mad.set_m_key(with_key);
            *mad.smp_data_mut() = [1; 64];
            let to = LidAddress::from_wire(lid).unwrap();
            site.ask(0, Datagram::subnet_management(site.lid(0).into(), to, mad));
        }
    }
    assert_eq!(site.tables(), before);
    assert!(site.physical.is_empty(), "{:?}", site.physical);
    let routes = {
        let switch = site.view.topology().switches().next().unwrap().1.guid;
        let device = site.view.fabric().device_by_guid(switch).unwrap();
        format!("{:?}", site.view.fabric().table_view(device))
    };
    assert_ne!(routes, routes_before, "the control: the view took it");
}

#[test]
fn forged_smps_are_dropped_and_counted() {
    let mut site = Site::new();
    let right = smp(Method::GET, Attribute::NODE_INFO, 0, &[]);
    assert!(site.ask(0, right.clone()).is_some(), "the control");
    let grh = Grh {
        source: Gid::unicast(Gid::DEFAULT_PREFIX, guid(1)),
        destination: Gid::unicast(Gid::DEFAULT_PREFIX, guid(2)),
        traffic_class: 0,
        flow_label: 0,
        hop_limit: 1,
    };
    let mut other_class = right.clone();
    other_class.mad = Mad::new(ManagementClass::PERFORMANCE, Method::GET, Attribute::PORT_COUNTERS, 0);
    for (what, forged, reason) in [
        ("from QP1", Datagram { sqp: QueuePair::GENERAL_MANAGEMENT, ..right.clone() }, DropReason::Spoofed),
        ("with a GRH", Datagram { grh: Some(grh), ..right.clone() }, DropReason::Malformed),
        ("of another class", other_class, DropReason::Malformed),
    ] {
        let (before, accepted) = (site.drops(0, reason), site.view.counts().accepted);
        assert_eq!(site.ask(0, forged), None, "{what}");
        assert_eq!(site.drops(0, reason), before + 1, "{what}");
        assert_eq!(site.view.counts().accepted, accepted, "{what}");
    }
    // A source LID of another machine is replaced by that in the view.
    let there = site.info_in_view(1).lid.unwrap();
    let mad = Mad::new(ManagementClass::SUBNET_LID, Method::GET, Attribute::NODE_INFO, 0);
    let forged = Datagram::subnet_management(site.lid(1).into(), there.into(), mad);
    assert_eq!(
        site.ask(0, forged).map(|answer| node_guid(&answer)),
        Some(guid(1)),
        "it comes back to the sender"
    );
}

#[test]
fn a_flooding_machine_uses_up_its_own_view_only() {
    let mut site = Site::new();
    let mut flood = smp(Method::GET, Attribute::NODE_INFO, 0, &[1]);
    // Its tenant has used up what it may send at once.
    let (_, adapter) = site.nodes[0];
    while site.view.handle_datagram(site.now, adapter, flood.clone()).is_ok() {
        while site.view.poll_output().is_some() {}
    }
    let refused = site.view.counts().refused;
    for number in 0..2000_u64 {
        flood.mad.set_transaction(TransactionId(number));
        assert!(site.send(0, &flood).is_empty());
    }
    let passed = site.view.counts().refused - refused;
    assert!(
        passed > 0 && passed + site.drops(0, DropReason::NoRoom) == 2000,
        "requests without an answer are bounded"
    );
    // The fabric goes on for others, and for the packets of the machine itself.
    for node in [0, 1] {
        let request =
            query(site.lid(node), site.manager(), DEFAULT_LIMITED, Method::GET, Attribute::NODE_RECORD);
        site.ask(node, request);
    }
    assert_eq!(site.physical.len(), 2);
    site.now += second(60.0);
    assert!(site.ask(1, smp(Method::GET, Attribute::NODE_INFO, 0, &[1])).is_some(), "later");
}

/// A subnet manager in a machine, as far as the negotiation needs it: it answers what its kernel hands to it, which is never a directed
/// request.
#[test]
fn a_subnet_manager_in_a_machine_becomes_master_and_answers_others() {
    let mut site = Site::new();
    let (_, adapter) = site.nodes[0];
    site.view.set_is_sm(site.now, adapter, true);
    let mut state = SmState::Standby;
    for _ in 0..40 {
        site.now += second(0.25);
        site.view.handle_timeout(site.now);
        let mut received = site.exchange();
        while let Some((node, request)) = received.pop() {
            let mad = &request.mad;
            if node != 0 || mad.method().is_response() || mad.attribute() != Attribute::SM_INFO {
                continue;
            }
            assert_eq!(
                (mad.class(), request.dqp),
                (ManagementClass::SUBNET_LID, QueuePair::SUBNET_MANAGEMENT)
            );
            if mad.method() == Method::SET {
                state = SmState::Master;
            }
            let mut answer = request.clone();
            (answer.slid, answer.dlid) = (request.dlid, request.slid);
            answer.mad.set_method(Method::GET_RESP);
            let info = SmInfo { guid: Some(guid(0)), sm_key: None, activity: 0, priority: 5, state };
            *answer.mad.smp_data_mut() = info.encode();
            received.extend(site.send(0, &answer));
        }
    }
    assert_eq!(state, SmState::Master);
    assert_eq!(site.view.managed_by(), ViewManager::Tenant { node: "vm-0".to_owned() });
    // It tells the ports where it is.
    let there = site.info_in_view(0).lid.unwrap();
    for (node, route) in [(0, &[][..]), (1, &[])] {
        let mut info = site.info_in_view(node);
        info.master_sm_lid = Some(there);
        (info.state, info.physical_state) = (PortState::NoChange, PhysicalState::NoChange);
        let mut set = smp(Method::SET, Attribute::PORT_INFO, 0, route);
        *set.mad.smp_data_mut() = info.encode();
        assert_eq!(site.ask(node, set).unwrap().mad.status(), Status::OK);
    }
    // A query of another machine reaches it on QP1, and its answer goes back.
    let manager = site.manager();
    let mut request = query(site.lid(1), manager, BLUE, Method::GET, Attribute::NODE_RECORD);
    let transaction = TransactionId(KERNEL | 0xabcd);
    request.mad.set_transaction(transaction);
    let mut arrived = site.send(1, &request);
    assert_eq!(arrived.len(), 1, "{arrived:?}");
    let (node, received) = arrived.pop().unwrap();
    assert_eq!((node, received.dqp), (0, QueuePair::GENERAL_MANAGEMENT));
    assert_eq!(received.pkey, key(BLUE), "a key of its table");
    assert_eq!(received.slid, site.info_in_view(1).lid.unwrap().into());
    let mut answer = received.clone();
    (answer.slid, answer.dlid) = (received.dlid, received.slid);
    answer.mad.set_method(Method::GET_RESP);
    let back = site.send(0, &answer);
    assert_eq!(back.len(), 1, "{back:?}");
    assert_eq!((back[0].0, back[0].1.mad.transaction(), back[0].1.slid), (1, transaction, manager));
}
