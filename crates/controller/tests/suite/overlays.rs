//! Overlays: what tenants write into their views, and its effect on the fabric.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use controller_api::ApiClient;
use controller_api::cluster::NewCluster;
use controller_api::operation::OperationState;
use controller_api::view::ViewStatus;
use fabric_model::FabricPlan;
use fabric_model::tenancy::Class;
use ib_transport::ClientRole;
use ib_transport::framed::{Attach, Frame, FrameReader, RefusalCode};
use ib_wire::{
    Attribute, Datagram, DirectedRoute, Lid, LidAddress, Mad, ManagementClass, Membership, Method,
    PartitionNumber, Pkey, PortNum, ServiceLevel, SlToVl, TransactionId, VirtualLane, VlArbBlock, VlArbEntry,
    VlArbPart,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::site::{Site, by_name, eventually, new_cluster};

/// Longest response time of a view.
const PATIENCE: Duration = Duration::from_secs(90);

/// A cluster with a host for each of its nodes.
fn ready(site: &Site, client: &ApiClient, name: &str, size: u32) {
    let new = NewCluster { cores: 4, ..new_cluster(name, size) };
    let operation = site.ask(client.cluster_create(&new)).unwrap();
    assert_eq!(site.wait(client, &operation).state, OperationState::Done);
    eventually("there is a view", || {
        site.ask(client.view_show(&by_name(name))).is_ok_and(|view| view.nodes.len() == size as usize)
    });
}

/// A tenant's program that is attached to the adapter of a node.
struct Program<'a> {
    site: &'a Site,
    stream: controller_api::Upgraded,
    reader: FrameReader,
    /// Its client id, the upper bits of its transaction ids.
    client: u16,
    asked: u64,
}

impl<'a> Program<'a> {
    fn on(site: &'a Site, client: &ApiClient, cluster: &str, node: u32) -> Self {
        let stream = site.ask(client.view_open(&by_name(cluster), node)).unwrap();
        let mut program = Self { site, stream, reader: FrameReader::default(), client: 0, asked: 0 };
        let Frame::Attached(seat) = program.next_frame() else { panic!("the view sends the first frame") };
        program.client = seat.client;
        program
    }

    fn say(&mut self, frame: &Frame) {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        self.site.ask(self.stream.write_all(&bytes)).unwrap();
    }

    fn next_frame(&mut self) -> Frame {
        let (stream, reader) = (&mut self.stream, &mut self.reader);
        let read = async {
            loop {
                if let Some(frame) = reader.next_frame().unwrap() {
                    return frame;
                }
                let count = stream.read(reader.room()).await.unwrap();
                assert_ne!(count, 0, "the stream ended");
                reader.filled(count);
            }
        };
        self.site.ask(async { tokio::time::timeout(PATIENCE, read).await }).expect("the view answers")
    }

    /// Sends a NodeInfo MAD to a LID, with any transaction id.
    fn say_to(&mut self, method: Method, transaction: TransactionId, to: Lid) {
        let mut mad = Mad::new(ManagementClass::SUBNET_LID, method, Attribute::NODE_INFO, 0);
        mad.set_transaction(transaction);
        let slid = LidAddress::from_wire(1).unwrap();
        self.say(&Frame::Datagram(Box::new(Datagram::subnet_management(slid, to.into(), mad))));
    }

    fn ask(
        &mut self,
        method: Method,
        (attribute, modifier): (Attribute, u32),
        route: &[u8],
        data: Option<[u8; 64]>,
    ) -> Mad {
        let hops = route.iter().filter_map(|hop| PortNum::new(*hop));
        let mut mad = Mad::directed(method, attribute, modifier, &DirectedRoute::new(hops).unwrap());
        self.asked += 1;
        mad.set_transaction(TransactionId(self.asked));
        if let Some(data) = data {
            *mad.smp_data_mut() = data;
        }
        let (slid, dlid) = (LidAddress::from_wire(1).unwrap(), LidAddress::Permissive);
        self.say(&Frame::Datagram(Box::new(Datagram::subnet_management(slid, dlid, mad))));
        loop {
            match self.next_frame() {
                // The upper bits are the client id.
                Frame::Datagram(answer) if answer.mad.transaction().0 << 16 >> 16 == self.asked => {
                    return answer.mad;
                }
                _ => {}
            }
        }
    }

    fn get(&mut self, attribute: Attribute, route: &[u8]) -> [u8; 64] {
        *self.ask(Method::GET, (attribute, 0), route, None).smp_data()
    }

    fn set(&mut self, attribute: Attribute, route: &[u8], data: [u8; 64]) {
        self.ask(Method::SET, (attribute, 0), route, Some(data));
    }

    /// Sets the port through which a switch forwards packets to a LID.
    fn set_exit(&mut self, route: &[u8], lid: Lid, exit: u8) {
        let mut block = self.get(Attribute::LINEAR_FORWARDING, route);
        block[usize::from(lid.to_wire())] = exit;
        self.set(Attribute::LINEAR_FORWARDING, route, block);
    }

    fn exit(&mut self, route: &[u8], lid: Lid) -> u8 {
        self.get(Attribute::LINEAR_FORWARDING, route)[usize::from(lid.to_wire())]
    }
}

/// Gives the adapter of a node one lane per weight: one service level on each, and the remaining ones on the last.
fn weigh(site: &Site, client: &ApiClient, cluster: &str, node: u32, weights: &[u8]) {
    let lane = |lane: usize| VirtualLane::from_wire(lane as u8).unwrap();
    let mut program = Program::on(site, client, cluster, node);
    let lanes = SlToVl(std::array::from_fn(|level| lane(level.min(weights.len() - 1))));
    let mut map = [0; 64];
    map[..SlToVl::LEN].copy_from_slice(&lanes.encode());
    program.set(Attribute::SL_TO_VL, &[], map);
    let mut low = [VlArbEntry::default(); VlArbBlock::ENTRIES];
    for (at, weight) in weights.iter().enumerate() {
        low[at] = VlArbEntry { lane: lane(at), weight: *weight };
    }
    let high = [VlArbEntry::default(); VlArbBlock::ENTRIES];
    for (part, entries) in [(VlArbPart::LowFirst, low), (VlArbPart::HighFirst, high)] {
        let modifier = part.to_modifier(PortNum::new(1).unwrap());
        let block = VlArbBlock(entries).encode();
        program.ask(Method::SET, (Attribute::VL_ARBITRATION, modifier), &[], Some(block));
    }
}

/// Writes the P_Key table of a node's adapter.
fn hold(site: &Site, client: &ApiClient, cluster: &str, node: u32, keys: &[u16]) {
    let mut block = [0; 64];
    for (index, key) in keys.iter().enumerate() {
        block[2 * index..2 * index + 2].copy_from_slice(&key.to_be_bytes());
    }
    Program::on(site, client, cluster, node).set(Attribute::PKEY_TABLE, &[], block);
}

/// Waits until the last change is in force and newer than `after`.
fn in_force(site: &Site, client: &ApiClient, cluster: &str, after: Option<u64>) -> ViewStatus {
    let show = || site.ask(client.view_show(&by_name(cluster))).unwrap();
    eventually("the last change is in force", || {
        let view = show();
        view.in_force > after && view.in_force == view.last_change.and_then(|last| last["number"].as_u64())
    });
    show()
}

/// The keys of a cluster's nodes in the host specs.
fn keys(site: &Site, tenant: &str, cluster: &str) -> BTreeMap<String, Vec<Pkey>> {
    let world = site.world.lock().unwrap();
    let vms = world.specs.values().flat_map(|spec| &spec.vms);
    let own = vms.filter(|vm| vm.label.starts_with(&format!("{tenant}/{cluster}-")));
    own.map(|vm| {
        let adapter = &vm.adapter;
        let keys = [adapter.pkey].into_iter().chain(adapter.inner_keys.iter().map(|key| key.pkey));
        (vm.context.hostname.clone(), keys.collect())
    })
    .collect()
}

/// The service levels of traffic classes in the contexts of a cluster's nodes.
fn levels(site: &Site, tenant: &str, cluster: &str) -> Vec<Vec<ServiceLevel>> {
    let world = site.world.lock().unwrap();
    let vms = world.specs.values().flat_map(|spec| &spec.vms);
    let own = vms.filter(|vm| vm.label.starts_with(&format!("{tenant}/{cluster}-")));
    own.map(|vm| vm.context.classes.iter().map(|class| class.sl).collect()).collect()
}

fn plan(site: &Site) -> FabricPlan {
    site.world.lock().unwrap().plan.clone().unwrap()
}

#[test]
fn equal_view_partition_numbers_differ_on_the_wire() {
    let site = Site::new(16);
    let tenants = [(site.tenant("blue"), "blue"), (site.tenant("red"), "red")];
    let (limited, full) = (Membership::Limited, Membership::Full);
    let mut numbers = BTreeSet::new();
    for (client, tenant) in &tenants {
        ready(&site, client, "one", 4);
        for (node, own) in [(1, 0x8101), (2, 0x8101), (3, 0x8102), (4, 0x0102)] {
            hold(&site, client, "one", node, &[0x7fff, own]);
        }
        let view = in_force(&site, client, "one", None);
        let last = view.last_change.unwrap();
        assert_eq!(last["verdict"], "approved", "{last}");
        let seen: Vec<u16> = view.partitions.iter().map(|partition| partition.view.to_wire()).collect();
        assert_eq!(seen, [0x101, 0x102]);
        let [a, b] = [0, 1].map(|at| view.partitions[at].wire);
        let own = view.partition;
        let expected = BTreeMap::from([
            ("one-1".to_owned(), vec![own.key(limited), a.key(full)]),
            ("one-2".to_owned(), vec![own.key(limited), a.key(full)]),
            ("one-3".to_owned(), vec![own.key(limited), b.key(full)]),
            ("one-4".to_owned(), vec![own.key(limited), b.key(limited)]),
        ]);
        eventually("specs are sent", || keys(&site, tenant, "one") == expected);
        let plan = plan(&site);
        for number in [own, a, b] {
            assert!(numbers.insert(number), "{number} belongs to another cluster");
            assert!(plan.partition(number).is_some());
        }
    }
    // Default tables restore the default configuration.
    let (blue, _) = &tenants[0];
    let before = site.ask(blue.view_show(&by_name("one"))).unwrap();
    (1..=4).for_each(|node| hold(&site, blue, "one", node, &[0xffff]));
    let view = in_force(&site, blue, "one", before.in_force);
    assert_eq!(view.partitions, []);
    let all: Vec<Vec<Pkey>> = (0..4).map(|_| vec![view.partition.key(full)]).collect();
    eventually("specs are sent", || keys(&site, "blue", "one").into_values().eq(all.iter().cloned()));
    let kept: Vec<PartitionNumber> = plan(&site).partitions().map(|partition| partition.number).collect();
    assert_eq!(kept.len(), 1 + 1 + 3, "the default one, that of blue, those of red");
}

/// LIDs to which some switch forwards by another port.
fn changed(before: &FabricPlan, after: &FabricPlan) -> BTreeSet<Lid> {
    let switches = before.switches().zip(after.switches());
    switches.flat_map(|(old, new)| old.linear.differences(&new.linear).collect::<Vec<_>>()).collect()
}

#[test]
fn tenant_routes_are_applied_and_loops_rejected() {
    let mut site = Site::new(16);
    let (blue, red) = (site.tenant("blue"), site.tenant("red"));
    // Cluster one occupies two leaves, cluster two the others.
    ready(&site, &blue, "one", 8);
    ready(&site, &red, "two", 8);
    let before = plan(&site);
    let view = site.ask(blue.view_show(&by_name("one"))).unwrap();
    let mut program = Program::on(&site, &blue, "one", 1);
    // Packets to nodes of the other leaf leave by different up-ports.
    let exits: Vec<(usize, u8)> =
        view.nodes.iter().enumerate().map(|(at, node)| (at, program.exit(&[1], node.lid))).collect();
    let is_switch =
        |program: &mut Program<'_>, route: &[u8]| program.get(Attribute::NODE_INFO, route)[2] == 2;
    let climbs: Vec<(usize, u8)> =
        exits.into_iter().filter(|(at, exit)| *at > 0 && is_switch(&mut program, &[1, *exit])).collect();
    let (far, exit) = climbs[0];
    let (other, detour) = *climbs.iter().find(|(_, other)| *other != exit).unwrap();
    let lid = view.nodes[far].lid;
    let down = program.exit(&[1, detour], view.nodes[other].lid);

    // A route back to where the packets came from is a loop.
    let back = program.exit(&[1, detour], view.nodes[0].lid);
    program.set_exit(&[1, detour], lid, back);
    program.set_exit(&[1], lid, detour);
    let refused = site.ask(blue.view_commit(&by_name("one"))).unwrap();
    let last = refused.last_change.unwrap();
    assert_eq!(
        (&last["verdict"], &last["refusal"]["refusal"]),
        (&"refused".into(), &"forwarding-loop".into()),
        "{last}"
    );
    assert_eq!(refused.in_force, None);
    assert_eq!(changed(&before, &plan(&site)), BTreeSet::new());

    // The route of the other node's packets is not.
    program.set_exit(&[1, detour], lid, down);
    let granted = in_force(&site, &blue, "one", None);
    let after = plan(&site);
    let physical = changed(&before, &after);
    assert_eq!(physical.len(), 1, "one LID of the fabric: {physical:?}");
    assert_eq!(after.decisions().overridden_exits.len(), 1);
    let owner = after.lid_owner(*physical.first().unwrap()).unwrap();
    let specs = site.world.lock().unwrap().specs.clone();
    let mut vms = specs.values().flat_map(|spec| &spec.vms);
    let owned = vms.find(|vm| vm.adapter.port_guid == owner).unwrap();
    assert_eq!(owned.label, format!("blue/{}", view.nodes[far].node));
    assert_eq!(granted.nodes, view.nodes, "the view stays as it is");
    assert_eq!(site.ask(red.view_show(&by_name("two"))).unwrap().in_force, None);

    // It survives the controller.
    drop(program);
    site.kill();
    site.start();
    let operator = site.operator();
    eventually("the fabric is programmed again", || {
        site.ask(operator.fabric_show())
            .is_ok_and(|fabric| fabric.state == controller_api::fabric::FabricState::Programmed)
    });
    assert_eq!(changed(&after, &plan(&site)), BTreeSet::new());
}

#[test]
fn tenant_classes_get_service_levels_and_lanes_while_available() {
    let mut site = Site::new(16);
    let (blue, red) = (site.tenant("blue"), site.tenant("red"));
    for (client, name) in [(&blue, "one"), (&red, "two")] {
        let class = Class::Guaranteed { bandwidth: "5G".parse().unwrap(), latency_ns: None };
        let new = NewCluster { cores: 4, class, ..new_cluster(name, 4) };
        let operation = site.ask(client.cluster_create(&new)).unwrap();
        assert_eq!(site.wait(client, &operation).state, OperationState::Done);
        eventually("there is a view", || site.ask(client.view_show(&by_name(name))).is_ok());
    }
    let before = plan(&site);
    (1..=4).for_each(|node| weigh(&site, &blue, "one", node, &[192, 64]));
    let view = in_force(&site, &blue, "one", None);
    eventually("the tenant is told", || {
        site.ask(blue.view_show(&by_name("one"))).unwrap().classes.len() == 2
    });
    let classes = site.ask(blue.view_show(&by_name("one"))).unwrap().classes;
    let seen: Vec<Vec<u8>> =
        classes.iter().map(|class| class.view_sls.iter().map(|level| level.to_wire()).collect()).collect();
    assert_eq!(seen, [vec![0], (1..16).collect()]);
    assert_eq!(classes[0].wire_sl, view.service_level);
    assert_ne!(classes[1].wire_sl, view.service_level);
    assert!(
        classes[0].min_share_permille > classes[1].min_share_permille && classes[1].min_share_permille > 100,
        "{classes:?}"
    );
    let after = plan(&site);
    assert_eq!(after.decisions().clusters, before.decisions().clusters, "guarantees are unchanged");
    assert_eq!(after.decisions().classes.len(), 1);
    // Its nodes learn the service levels, and those of other clusters do not.
    let wire: Vec<ServiceLevel> = classes.iter().map(|class| class.wire_sl).collect();
    eventually("all nodes have them", || levels(&site, "blue", "one") == vec![wire.clone(); 4]);
    assert_eq!(levels(&site, "red", "two"), vec![Vec::new(); 4]);

    // More classes than lanes: the lightest are folded into one.
    (1..=4).for_each(|node| weigh(&site, &red, "two", node, &[8, 7, 6, 5, 4, 3, 2, 1]));
    let view = in_force(&site, &red, "two", None);
    let last = view.last_change.unwrap();
    assert_eq!(last["verdict"], "adapted", "{last}");
    assert!(last["adaptations"].to_string().contains("classes-folded"), "{last}");
    let count = |view: &ViewStatus| view.classes.len();
    eventually("the tenant is told", || {
        (2..8).contains(&count(&site.ask(red.view_show(&by_name("two"))).unwrap()))
    });
    let after = plan(&site);
    assert_eq!(after.decisions().classes.len(), 2);

    // It survives the controller.
    site.kill();
    site.start();
    let operator = site.operator();
    eventually("the fabric is programmed again", || {
        site.ask(operator.fabric_show())
            .is_ok_and(|fabric| fabric.state == controller_api::fabric::FabricState::Programmed)
    });
    assert_eq!(plan(&site).decisions().classes, after.decisions().classes);
}

/// A transaction id with a client id in its upper bits.
fn stamped(client: u16, number: u64) -> TransactionId {
    TransactionId(u64::from(client) << 48 | number)
}

#[test]
fn a_stream_cannot_impersonate_another_adapter() {
    let site = Site::new(16);
    let (blue, red) = (site.tenant("blue"), site.tenant("red"));
    ready(&site, &blue, "one", 4);
    ready(&site, &red, "two", 4);
    let lids: Vec<Lid> =
        site.ask(red.view_show(&by_name("two"))).unwrap().nodes.iter().map(|node| node.lid).collect();
    let mut victim = Program::on(&site, &red, "two", 1);
    let mut neighbour = Program::on(&site, &blue, "one", 2);
    let keys = |program: &mut Program<'_>| program.get(Attribute::PKEY_TABLE, &[]);
    let before = (keys(&mut victim), keys(&mut neighbour));

    // A forged source LID and client id.
    let mut forger = Program::on(&site, &blue, "one", 1);
    for (lid, client) in [(lids[0], victim.client), (lids[1], neighbour.client)] {
        let mut mad = Mad::directed(Method::SET, Attribute::PKEY_TABLE, 0, &DirectedRoute::default());
        mad.smp_data_mut()[..4].copy_from_slice(&[0xff, 0xff, 0x81, lid.to_wire() as u8]);
        let written = *mad.smp_data();
        mad.set_transaction(stamped(client, 7));
        forger.say(&Frame::Datagram(Box::new(Datagram::subnet_management(
            lid.into(),
            LidAddress::Permissive,
            mad,
        ))));
        let Frame::Datagram(answer) = forger.next_frame() else { panic!("an answer") };
        assert_eq!(answer.mad.transaction(), stamped(forger.client, 7), "the answer goes to the real sender");
        assert_eq!(keys(&mut forger), written, "the write goes to its own table");
        assert_eq!((keys(&mut victim), keys(&mut neighbour)), before);
    }

    // Forged answers reach no other cluster. Control: a neighbour in the cluster that has sent a request gets them.
    for program in [&mut victim, &mut neighbour] {
        program.say_to(Method::GET, TransactionId(9), lids[1]);
        assert!(matches!(program.next_frame(), Frame::Datagram(_)), "a request by LID is answered");
    }
    for lid in &lids {
        forger.say_to(Method::GET_RESP, stamped(victim.client, 1), *lid);
        forger.say_to(Method::GET_RESP, stamped(neighbour.client, 1), *lid);
    }
    keys(&mut forger);
    let heard = |program: &mut Program<'_>| {
        program.say_to(Method::GET, TransactionId(2), lids[1]);
        let mut heard = Vec::new();
        while heard.last() != Some(&2) {
            let Frame::Datagram(datagram) = program.next_frame() else { panic!("a datagram") };
            heard.push(datagram.mad.transaction().0 as u32);
        }
        heard
    };
    assert_eq!((heard(&mut neighbour), heard(&mut victim)), (vec![1, 2], vec![2]));

    // A forged node id.
    let foreign = site.ask(red.cluster_show(&by_name("two"))).unwrap().id;
    let node_id = format!("{}/1", foreign.simple());
    forger.say(&Frame::Attach(Attach { node_id, role: ClientRole::SubnetManager }));
    assert_eq!(forger.next_frame(), Frame::Refused(RefusalCode::Malformed));
    assert_eq!((keys(&mut victim), keys(&mut neighbour)), before);
    assert_eq!(site.ask(red.view_show(&by_name("two"))).unwrap().managed_by, None);
    let mut again = Program::on(&site, &blue, "one", 1);
    assert_eq!(keys(&mut again)[2..4], [0x81, lids[1].to_wire() as u8], "the same adapter as before");
}
