//! An attacker with full access to one adapter, including its M_Key, against a fabric in which every node has its own
//! M_Key: every attribute of every node, by every kind of route. The same requests with the right keys are the control.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use fabric_model::{NodeIndex, Topology, ibnetdiscover};
use ib_transport::{ClientRole, Received};
use ib_wire::{
    Attribute, Datagram, DirectedRoute, Guid, GuidBlock, Lid, LidAddress, MKey, Mad, ManagementClass, Method,
    PhysicalState, Pkey, PkeyBlock, PkeyBlockSelector, PortInfo, PortNum, PortState, SlToVlSelector, Status,
    SwitchInfo, TransactionId, VlArbPart,
};

use crate::rig::adapter::Adapter;
use crate::rig::{self, Server};

const MANAGER: &str = "host-00001";
const ATTACKER: &str = "host-00006";

/// Longest time until an answer or a loss report on a busy machine.
const ANSWER_LIMIT: Duration = rig::PATIENCE;

/// How long to listen at one of two devices before the other.
const STEP: Duration = Duration::from_millis(10);

/// The data of one attribute.
type Content = [u8; 64];

/// Which key to present to a target.
type KeyFor<'a> = &'a dyn Fn(&Target) -> Option<MKey>;

/// One thing to read or write.
type Question = (Attribute, u32);

/// Every attribute of subnet management, with modifiers that exist on every node, on switches only, and nowhere.
fn questions() -> Vec<Question> {
    let port = |number| PortNum::new(number).unwrap();
    let pkeys = |port, block| PkeyBlockSelector { port, block }.to_modifier();
    let all: [(Attribute, Vec<u32>); 16] = [
        (Attribute::NODE_DESCRIPTION, vec![0]),
        (Attribute::NODE_INFO, vec![0]),
        (Attribute::SWITCH_INFO, vec![0]),
        (Attribute::GUID_INFO, vec![0, 1, 99]),
        (Attribute::PORT_INFO, vec![0, 1, 2, 8, 1 | PortInfo::EXTENDED_SPEEDS_KNOWN, 200]),
        (Attribute::PKEY_TABLE, vec![pkeys(0, 0), pkeys(0, 1), pkeys(1, 0), pkeys(2, 1), pkeys(99, 0)]),
        (
            Attribute::SL_TO_VL,
            vec![
                SlToVlSelector::Hop { input: 1, output: 2 }.to_modifier(),
                SlToVlSelector::Hop { input: 0, output: 1 }.to_modifier(),
                SlToVlSelector::AllHops.to_modifier(),
            ],
        ),
        (
            Attribute::VL_ARBITRATION,
            vec![
                VlArbPart::LowFirst.to_modifier(port(1)),
                VlArbPart::HighFirst.to_modifier(port(1)),
                VlArbPart::LowFirst.to_modifier(port(2)),
            ],
        ),
        (Attribute::LINEAR_FORWARDING, vec![0, 1, 9999]),
        (Attribute::MULTICAST_FORWARDING, vec![0, 1, 1 << 28]),
        (Attribute::SM_INFO, vec![0, 1, 2, 3, 4, 5]),
        (Attribute::MLNX_EXT_PORT_INFO, vec![0, 1]),
        (Attribute::NOTICE, vec![0]),
        // Random forwarding, LED, and a vendor attribute: no device has them, and none may answer without the key.
        (Attribute(0x001a), vec![0]),
        (Attribute(0x0031), vec![0, 1]),
        (Attribute(0xff00), vec![0]),
    ];
    all.into_iter()
        .flat_map(|(attribute, modifiers)| modifiers.into_iter().map(move |it| (attribute, it)))
        .collect()
}

/// How a datagram is addressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    /// By a directed route, hop by hop.
    Directed,
    /// Through the forwarding tables.
    ByLid,
    /// Through the forwarding tables to a switch beside the node, one hop from there.
    Mixed,
}

const WAYS: [Way; 3] = [Way::Directed, Way::ByLid, Way::Mixed];

/// A node: its location in the fabric, its address and its key.
struct Target {
    name: String,
    guid: Guid,
    is_switch: bool,
    route: DirectedRoute,
    lid: Lid,
    /// A switch beside it and the port that leads here.
    beside: (Lid, PortNum),
    key: Option<MKey>,
}

impl Adapter {
    /// Sends a request along a directed route.
    fn directed(
        &mut self,
        method: Method,
        route: &DirectedRoute,
        what: Question,
        key: Option<MKey>,
        data: Content,
    ) -> Option<Mad> {
        let mut mad = Mad::directed(method, what.0, what.1, route);
        mad.set_m_key(key);
        *mad.smp_data_mut() = data;
        self.ask(Datagram::subnet_management(LidAddress::Permissive, LidAddress::Permissive, mad))
    }

    /// Sends a request to a target by one kind of route.
    fn smp(
        &mut self,
        way: Way,
        method: Method,
        to: &Target,
        what: Question,
        key: Option<MKey>,
        data: Content,
    ) -> Option<Mad> {
        let own = LidAddress::from(self.lid.unwrap());
        let (mut mad, dlid) = match way {
            Way::Directed => return self.directed(method, &to.route, what, key, data),
            Way::ByLid => (Mad::new(ManagementClass::SUBNET_LID, method, what.0, what.1), to.lid),
            Way::Mixed => {
                let hop = DirectedRoute::new([to.beside.1]).unwrap();
                let mut mad = Mad::directed(method, what.0, what.1, &hop);
                mad.set_directed_ends(own, LidAddress::Permissive);
                (mad, to.beside.0)
            }
        };
        mad.set_m_key(key);
        *mad.smp_data_mut() = data;
        self.ask(Datagram::subnet_management(own, dlid.into(), mad))
    }
}

/// A fabric of 16 hosts, and the routes from the attacker's adapter to its nodes.
struct Stage {
    server: Server,
    topology: Topology,
    secret: PathBuf,
}

impl Stage {
    fn new() -> Self {
        let net = rig::fixture("tree-16.ibnetdiscover");
        let server = Server::heddle(&net, &[]);
        let topology = ibnetdiscover::read(&std::fs::read(&net).unwrap()).unwrap();
        let secret = server.scratch().join("site.secret");
        std::fs::write(&secret, [0xa7; 48]).unwrap();
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
        Self { server, topology, secret }
    }

    /// Runs `heddle sm --once`, which gives every node its own M_Key.
    fn manage(&self, options: &[&str]) {
        let output = Command::new(rig::HEDDLE)
            .args(["sm", "--once", "--device", &format!("ibsim:{}@{MANAGER}", self.server.name)])
            .arg("--state")
            .arg(self.server.scratch().join("state.json"))
            .arg("--secret")
            .arg(&self.secret)
            .args(options)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// The key of a node, derived from the secret.
    fn key(&self, node: Guid) -> Option<MKey> {
        let output = Command::new(rig::HEDDLE)
            .args(["node-key", &node.to_string(), "--secret"])
            .arg(&self.secret)
            .output()
            .unwrap();
        let shown = String::from_utf8(output.stdout).unwrap();
        Some(
            MKey::from_wire(u64::from_str_radix(shown.trim().trim_start_matches("0x"), 16).unwrap()).unwrap(),
        )
    }

    fn guid(&self, name: &str) -> Guid {
        self.topology.node(self.topology.by_description(name).unwrap()).unwrap().guid
    }

    fn port_guid(&self, name: &str) -> Guid {
        let node = self.topology.node(self.topology.by_description(name).unwrap()).unwrap();
        node.port(PortNum::new(1).unwrap()).unwrap().guid
    }

    /// Every node but the attacker's own.
    fn targets(&self, adapter: &mut Adapter, key: impl Fn(Guid) -> Option<MKey>) -> Vec<Target> {
        let routes = routes(&self.topology, self.topology.by_description(ATTACKER).unwrap());
        let mut lid_of = |index: NodeIndex| {
            let node = self.topology.node(index).unwrap();
            let what = (Attribute::PORT_INFO, 0);
            let answer =
                adapter.directed(Method::GET, &routes[&index], what, key(node.guid), [0; 64]).unwrap();
            PortInfo::decode(answer.smp_data()).unwrap().lid.unwrap()
        };
        let lids: BTreeMap<NodeIndex, Lid> = routes.keys().map(|index| (*index, lid_of(*index))).collect();
        let targets = routes.iter().map(|(index, route)| {
            let node = self.topology.node(*index).unwrap();
            let is_switch_beside =
                |end: &fabric_model::Endpoint| self.topology.node(end.node).unwrap().is_switch();
            let beside = node.cabled_ports().map(|(_, end)| end).find(is_switch_beside).unwrap();
            Target {
                name: node.description.clone(),
                guid: node.guid,
                is_switch: node.is_switch(),
                route: route.clone(),
                lid: lids[index],
                beside: (lids[&beside.node], beside.port),
                key: key(node.guid),
            }
        });
        targets.filter(|target| target.name != ATTACKER).collect()
    }

    /// The state of the nodes: every answer to every request with the right keys, and the tables as the emulation
    /// shows them. Counters of the attack itself are left out.
    fn observe(&self, adapter: &mut Adapter, targets: &[Target]) -> Observed {
        let mut answers = BTreeMap::new();
        for target in targets {
            for what in questions() {
                let answer = adapter.smp(Way::Directed, Method::GET, target, what, target.key, [0; 64]);
                let content = answer.filter(|mad| mad.status() == Status::OK).map(|mad| *mad.smp_data());
                answers.insert(
                    (target.name.clone(), what.0.0, what.1),
                    content.map(|raw| without_counts(what.0, raw)),
                );
            }
        }
        let names = targets.iter().map(|target| target.name.clone());
        let tables = names.map(|name| {
            let shown = self.server.control(&["tables", &name]);
            assert!(shown.success, "{shown:?}");
            (name, shown.stdout)
        });
        Observed { tables: tables.collect(), answers }
    }
}

/// The state of the nodes.
#[derive(Debug, PartialEq, Eq)]
struct Observed {
    answers: BTreeMap<(String, u16, u32), Option<Content>>,
    tables: BTreeMap<String, String>,
}

impl Observed {
    /// Which attributes of which nodes differ.
    fn changed(&self, other: &Self) -> BTreeSet<(String, u16)> {
        let differs = self.answers.iter().filter(|(what, content)| other.answers[*what] != **content);
        differs.map(|((name, attribute, _), _)| (name.clone(), *attribute)).collect()
    }
}

/// PortInfo without its violation counters, which the attack increments without success.
fn without_counts(attribute: Attribute, mut raw: Content) -> Content {
    if attribute == Attribute::PORT_INFO {
        let mut info = PortInfo::decode(&raw).unwrap();
        (info.m_key_violations, info.pkey_violations, info.qkey_violations) = (0, 0, 0);
        raw = info.encode();
    }
    raw
}

/// The shortest directed routes from one node to all.
fn routes(topology: &Topology, from: NodeIndex) -> BTreeMap<NodeIndex, DirectedRoute> {
    let mut found = BTreeMap::from([(from, DirectedRoute::default())]);
    let mut queue = VecDeque::from([from]);
    while let Some(at) = queue.pop_front() {
        let node = topology.node(at).unwrap();
        if at != from && !node.is_switch() {
            continue;
        }
        for (exit, end) in node.cabled_ports() {
            if !found.contains_key(&end.node) {
                found.insert(end.node, found[&at].then(exit).unwrap());
                queue.push_back(end.node);
            }
        }
    }
    found
}

/// The data that an attacker writes: the current data with a visible change that disconnects no node, so that the same
/// Set with the right key can be seen to work, and the next one still arrives.
fn tampered(attribute: Attribute, held: Option<Content>) -> Content {
    let Some(mut raw) = held else { return [0x5a; 64] };
    match attribute {
        Attribute::PORT_INFO => {
            let mut info = PortInfo::decode(&raw).unwrap();
            (info.state, info.physical_state) = (PortState::NoChange, PhysicalState::NoChange);
            info.vl_high_limit ^= 0x55;
            raw = info.encode();
        }
        Attribute::SWITCH_INFO => {
            let mut info = SwitchInfo::decode(&raw).unwrap();
            info.life_time ^= 1;
            raw = info.encode();
        }
        Attribute::GUID_INFO => {
            let mut block = GuidBlock::decode(&raw);
            block.0[7] = Guid::from_wire(0x0bad);
            raw = block.encode();
        }
        Attribute::PKEY_TABLE => {
            let mut block = PkeyBlock::decode(&raw);
            block.0[31] = Pkey::from_wire(0x8bad);
            raw = block.encode();
        }
        // The lane of service level 14, a weight, the route of an unused LID, a port of an unused group.
        Attribute::SL_TO_VL => raw[7] ^= 0x10,
        Attribute::VL_ARBITRATION => raw[1] ^= 0x55,
        Attribute::LINEAR_FORWARDING => raw[63] ^= 0x05,
        Attribute::MULTICAST_FORWARDING => raw[63] ^= 0x02,
        _ => raw[0] ^= 0xff,
    }
    raw
}

/// One request of an attack, and whether it was answered.
struct Tried {
    method: Method,
    attribute: Attribute,
    answered: bool,
    text: String,
}

/// Every attribute of every target by every kind of route, read and written, with the key that `key` returns for it.
fn attack(
    adapter: &mut Adapter,
    targets: &[Target],
    held: &Observed,
    key: impl Fn(&Target) -> Option<MKey>,
) -> Vec<Tried> {
    let mut tried = Vec::new();
    for target in targets {
        for (attribute, modifier) in questions() {
            let content = held.answers[&(target.name.clone(), attribute.0, modifier)];
            for (method, data) in [(Method::GET, [0; 64]), (Method::SET, tampered(attribute, content))] {
                for way in WAYS {
                    let what = (attribute, modifier);
                    let answer = adapter.smp(way, method, target, what, key(target), data);
                    let text = format!("{method:?} {attribute:?} {modifier:#x} {way:?} {}", target.name);
                    tried.push(Tried { method, attribute, answered: answer.is_some(), text });
                }
            }
        }
    }
    tried
}

/// Subnet manager software answers SMInfo: a node without a manager does not answer.
fn of_agents(tried: &[Tried], method: Method) -> impl Iterator<Item = &Tried> {
    tried.iter().filter(move |it| it.attribute != Attribute::SM_INFO && it.method == method)
}

fn texts<'a>(tried: impl Iterator<Item = &'a Tried>) -> Vec<&'a str> {
    tried.map(|it| it.text.as_str()).take(20).collect()
}

#[test]
fn one_m_key_gives_access_to_its_own_node_only() {
    let stage = Stage::new();
    stage.manage(&[]);
    let mut adapter = Adapter::attach(&stage.server, ATTACKER, ClientRole::Ordinary);
    let targets = stage.targets(&mut adapter, |guid| stage.key(guid));
    assert_eq!(targets.len(), 16 + 6 - 1);
    let before = stage.observe(&mut adapter, &targets);

    let own = stage.key(stage.guid(ATTACKER));
    let neighbour = targets[0].key.unwrap().to_wire();
    let mut requests = 0;
    let attempts: [(&str, KeyFor); 4] = [
        ("the attacker's own key", &|_| own),
        ("no key", &|_| None),
        ("a guessed key", &|target| MKey::from_wire(target.guid.to_wire())),
        ("a key one bit off", &|target| {
            MKey::from_wire(target.key.unwrap().to_wire() ^ 1 << (neighbour % 64))
        }),
    ];
    for (what, key) in attempts {
        let tried = attack(&mut adapter, &targets, &before, key);
        requests += tried.len();
        let answered = texts(tried.iter().filter(|it| it.answered));
        assert!(answered.is_empty(), "{what}: {answered:?}");
        let after = stage.observe(&mut adapter, &targets);
        assert_eq!(after.changed(&before), BTreeSet::new(), "{what}");
        assert_eq!(after.tables, before.tables, "{what}");
    }

    let control = attack(&mut adapter, &targets, &before, |target| target.key);
    for method in [Method::GET, Method::SET] {
        let silent = texts(of_agents(&control, method).filter(|it| !it.answered));
        assert!(silent.is_empty(), "{silent:?}");
    }
    let after = stage.observe(&mut adapter, &targets);
    let expected = targets
        .iter()
        .flat_map(|target| writable(target.is_switch).iter().map(|it| (target.name.clone(), it.0)));
    assert_eq!(
        after.changed(&before),
        expected.collect(),
        "the same Sets with the right keys change every table"
    );
    assert_ne!(after.tables, before.tables);
    eprintln!("{requests} requests refused, {} answered with the right keys", control.len());
}

/// The attributes that a Set changes.
fn writable(is_switch: bool) -> &'static [Attribute] {
    const ADAPTER: [Attribute; 5] = [
        Attribute::GUID_INFO,
        Attribute::PORT_INFO,
        Attribute::PKEY_TABLE,
        Attribute::SL_TO_VL,
        Attribute::VL_ARBITRATION,
    ];
    // The GUID table of a switch has one entry, its own GUID, which is read-only.
    const SWITCH: [Attribute; 7] = [
        Attribute::SWITCH_INFO,
        Attribute::PORT_INFO,
        Attribute::PKEY_TABLE,
        Attribute::SL_TO_VL,
        Attribute::VL_ARBITRATION,
        Attribute::LINEAR_FORWARDING,
        Attribute::MULTICAST_FORWARDING,
    ];
    if is_switch { &SWITCH } else { &ADAPTER }
}

#[test]
fn at_protection_level_0_gets_succeed_and_sets_fail() {
    let stage = Stage::new();
    let options = stage.server.scratch().join("opensm.conf");
    let text = "m_key 0x00000000cafebabe\nm_key_protection_level 0\nm_key_lease_period 0\n";
    std::fs::write(&options, text).unwrap();
    stage.server.bring_up(MANAGER, &["-F", options.to_str().unwrap()]);
    let mut adapter = Adapter::attach(&stage.server, ATTACKER, ClientRole::Ordinary);
    let targets = stage.targets(&mut adapter, |_| MKey::from_wire(0xcafe_babe));
    let before = stage.observe(&mut adapter, &targets);
    let tried = attack(&mut adapter, &targets, &before, |_| None);
    let silent = texts(of_agents(&tried, Method::GET).filter(|it| !it.answered));
    assert!(silent.is_empty(), "{silent:?}");
    let answered = texts(of_agents(&tried, Method::SET).filter(|it| it.answered));
    assert!(answered.is_empty(), "{answered:?}");
    assert_eq!(stage.observe(&mut adapter, &targets), before);
}

#[test]
fn without_keys_the_same_harness_reads_and_writes_everything() {
    let stage = Stage::new();
    stage.server.bring_up(MANAGER, &[]);
    let mut adapter = Adapter::attach(&stage.server, ATTACKER, ClientRole::Ordinary);
    let targets = stage.targets(&mut adapter, |_| None);
    let before = stage.observe(&mut adapter, &targets);
    let tried = attack(&mut adapter, &targets, &before, |_| None);
    let silent = texts(tried.iter().filter(|it| it.attribute != Attribute::SM_INFO && !it.answered));
    assert!(silent.is_empty(), "{silent:?}");
    assert_eq!(stage.observe(&mut adapter, &targets).changed(&before).len(), 15 * 5 + 6 * 7);
}

/// The partition of another tenant.
const BLUE: u16 = 0x8123;

/// A request that the software behind the other port takes.
fn message(from: Lid, to: Lid, pkey: Pkey) -> Datagram {
    let mad = Mad::new(ManagementClass::SUBNET_ADMINISTRATION, Method::GET, Attribute::CLASS_PORT_INFO, 0);
    Datagram::general_management(from.into(), to.into(), pkey, mad)
}

/// Whether a message of `sender` in a partition arrives.
fn arrives(sender: &mut Adapter, receiver: &mut Adapter, pkey: u16) -> bool {
    let (from, to) = (sender.lid.unwrap(), receiver.lid.unwrap());
    let mut datagram = message(from, to, Pkey::from_wire(pkey).unwrap());
    sender.transactions += 1;
    let transaction = sender.transactions;
    datagram.mad.set_transaction(TransactionId(transaction));
    sender.device.send(&datagram).unwrap();
    let of = |id: TransactionId| u64::from(ib_transport::application_transaction(id));
    let is_it = |received: &Received| match received {
        Received::Datagram(it) => {
            it.mad.class() == ManagementClass::SUBNET_ADMINISTRATION
                && of(it.mad.transaction()) == transaction
        }
        Received::Lost(_) => false,
    };
    let mut has_come = |limit| {
        std::iter::from_fn(|| receiver.device.receive(limit).unwrap()).any(|received| is_it(&received))
    };
    // Either the message arrives or its loss is reported, so no timeout decides. The emulation delivers a message
    // before it reports a loss.
    let started = Instant::now();
    while started.elapsed() < ANSWER_LIMIT {
        if has_come(STEP) {
            return true;
        }
        if let Some(Received::Lost(id)) = sender.device.receive(STEP).unwrap()
            && of(id) == transaction
        {
            return has_come(Duration::ZERO);
        }
    }
    panic!("the message neither arrives nor is lost");
}

#[test]
fn a_forged_p_key_table_is_stopped_at_the_switch_port() {
    let stage = Stage::new();
    let (victim, member) = ("host-00002", "host-00010");
    let conf = stage.server.scratch().join("partitions.conf");
    let blue = format!("blue=0x123 : {}=full, {}=full;\n", stage.port_guid(victim), stage.port_guid(member));
    std::fs::write(&conf, blue).unwrap();
    stage.manage(&["--partitions", conf.to_str().unwrap()]);
    let mut receiver = Adapter::attach(&stage.server, victim, ClientRole::SubnetManager);
    let mut rightful = Adapter::attach(&stage.server, member, ClientRole::Ordinary);
    let mut attacker = Adapter::attach(&stage.server, ATTACKER, ClientRole::Ordinary);
    assert!(arrives(&mut rightful, &mut receiver, BLUE), "the rightful member's message");
    assert!(!arrives(&mut attacker, &mut receiver, BLUE), "the attacker's adapter does not hold the key yet");

    let own = stage.key(stage.guid(ATTACKER));
    let position = (Attribute::PKEY_TABLE, PkeyBlockSelector { port: 0, block: 0 }.to_modifier());
    let here = DirectedRoute::default();
    let read = attacker.directed(Method::GET, &here, position, own, [0; 64]).expect("its own table");
    let mut block = PkeyBlock::decode(read.smp_data());
    for (place, raw) in [(10, BLUE), (11, BLUE & 0x7fff), (12, 0xffff)] {
        block.0[place] = Pkey::from_wire(raw);
    }
    let wrote = attacker.directed(Method::SET, &here, position, own, block.encode()).expect("its own table");
    assert_eq!(PkeyBlock::decode(wrote.smp_data()), block, "the attacker controls its own adapter");

    let dropped = || {
        let shown = stage.server.control(&["counters", "leaf-02", "2"]).stdout;
        let port: serde_json::Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(port["peer"].as_str(), Some("H-0002c90300100050[1]"), "the switch port of the attacker");
        port["counters"]["receive_constraint_errors"].as_u64().unwrap()
    };
    // It may not raise itself from a limited member of the default partition to a full one either.
    for pkey in [BLUE, BLUE & 0x7fff, 0xffff] {
        let before = dropped();
        assert!(!arrives(&mut attacker, &mut receiver, pkey), "{pkey:#x}");
        assert_eq!(dropped(), before + 1, "{pkey:#x} went no further than the switch port");
        assert!(arrives(&mut rightful, &mut receiver, BLUE), "the same message of a member");
    }
    drop((receiver, rightful));
    let mut manager = Adapter::attach(&stage.server, "host-00001", ClientRole::SubnetManager);
    assert!(
        arrives(&mut attacker, &mut manager, 0x7fff),
        "as the limited member it is, it reaches the manager"
    );
}
