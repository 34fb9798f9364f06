//! Management keys and partitions through the real sockets, judged by stock tools, each refusal next to its control.

use std::time::Duration;

use ib_transport::{ClientRole, Device, Received, application_transaction};
use ib_wire::notice::Notice;
use ib_wire::{
    Attribute, Datagram, DirectedRoute, Lid, LidAddress, MKey, MKeyProtection, Mad, ManagementClass, Method,
    PhysicalState, Pkey, PkeyBlock, PkeyBlockSelector, PortInfo, PortNum, PortState, TransactionId,
};

use crate::rig::{self, PATIENCE, Server};

const HOST: &str = "host-00001";

/// A client of the own framing that manages the fabric like a subnet manager would.
struct Operator {
    client: Device,
    transactions: u32,
    /// Received datagrams that were not handled yet.
    heard: Vec<Datagram>,
    /// Requests that were reported as lost.
    lost: Vec<u32>,
}

impl Operator {
    fn attach(server: &Server, node: &str, role: ClientRole) -> Self {
        Self { client: server.device(node, role), transactions: 0, heard: Vec::new(), lost: Vec::new() }
    }

    /// Receives the next datagram or loss report; false if there is none within `limit`.
    fn hear(&mut self, limit: Duration) -> bool {
        match self.client.receive(limit).unwrap() {
            Some(Received::Lost(id)) => self.lost.push(application_transaction(id)),
            Some(Received::Datagram(datagram)) => self.heard.push(*datagram),
            None => return false,
        }
        true
    }

    /// The first datagram of a kind, as soon as it is there.
    fn wait_for(&mut self, what: &str, is_it: impl Fn(&Datagram) -> bool) -> Datagram {
        loop {
            if let Some(place) = self.heard.iter().position(&is_it) {
                return self.heard.remove(place);
            }
            assert!(self.hear(PATIENCE), "{what} never comes");
        }
    }

    /// Sends a request; its transaction.
    fn send(&mut self, mut datagram: Datagram) -> u32 {
        self.transactions += 1;
        datagram.mad.set_transaction(TransactionId(self.transactions.into()));
        self.client.send(&datagram).unwrap();
        self.transactions
    }

    /// Sends a request and returns its answer; `None` if it is lost.
    fn ask(&mut self, datagram: Datagram) -> Option<Mad> {
        let transaction = self.send(datagram);
        loop {
            let is_answer = |it: &Datagram| {
                it.mad.method().is_response() && application_transaction(it.mad.transaction()) == transaction
            };
            if let Some(place) = self.heard.iter().position(is_answer) {
                return Some(self.heard.remove(place).mad);
            }
            if self.lost.contains(&transaction) {
                return None;
            }
            assert!(self.hear(PATIENCE), "neither an answer nor its loss");
        }
    }

    /// Receives everything that the emulation has delivered so far.
    fn catch_up(&mut self) {
        self.smp(Method::GET, &[], Attribute::NODE_INFO, 0, None, None).unwrap();
    }

    fn smp(
        &mut self,
        method: Method,
        hops: &[u8],
        attribute: Attribute,
        modifier: u32,
        key: Option<MKey>,
        data: Option<[u8; 64]>,
    ) -> Option<Mad> {
        let route = DirectedRoute::new(hops.iter().map(|hop| PortNum::new(*hop).unwrap())).unwrap();
        let mut mad = Mad::directed(method, attribute, modifier, &route);
        mad.set_m_key(key);
        *mad.smp_data_mut() = data.unwrap_or([0; 64]);
        self.ask(Datagram::subnet_management(LidAddress::Permissive, LidAddress::Permissive, mad))
    }

    /// Sets the M_Key of a node.
    fn guard(&mut self, hops: &[u8], key: u64, level: MKeyProtection) {
        let read = self.smp(Method::GET, hops, Attribute::PORT_INFO, 0, None, None).unwrap();
        let mut info = PortInfo::decode(read.smp_data()).unwrap();
        info.m_key = MKey::from_wire(key);
        info.m_key_protection = level;
        info.m_key_lease_period_s = 0;
        (info.state, info.physical_state) = (PortState::NoChange, PhysicalState::NoChange);
        self.smp(Method::SET, hops, Attribute::PORT_INFO, 0, None, Some(info.encode())).unwrap();
    }
}

fn keyed_sim() -> Server {
    let server = sim();
    server.bring_up(HOST, &[]);
    server
}

fn sim() -> Server {
    Server::heddle(&rig::fixture("tree-16.ibnetdiscover"), &[])
}

#[test]
fn smpquery_needs_the_m_key_of_each_node() {
    let server = keyed_sim();
    let mut operator = Operator::attach(&server, HOST, ClientRole::Ordinary);
    // The leaf, and the second host behind it.
    operator.guard(&[1, 2], 0x1111_2222_3333_4444, MKeyProtection::Closed);
    operator.guard(&[1], 0x5555_6666_7777_8888, MKeyProtection::Closed);
    let answered = |path: &str, key: Option<&str>, operation: &[&str]| {
        let mut arguments = vec!["-D"];
        arguments.extend(key.map(|key| ["-y", key]).iter().flatten());
        arguments.push(operation[0]);
        arguments.push(path);
        arguments.extend(&operation[1..]);
        server.tool(HOST, "smpquery", &arguments).success
    };
    let (host_key, leaf_key) = ("0x1111222233334444", "0x5555666677778888");
    for operation in
        [&["nodeinfo"][..], &["nodedesc"], &["portinfo", "1"], &["pkeys"], &["guidinfo"], &["vlarb"]]
    {
        assert!(answered("0,1,2", Some(host_key), operation), "{operation:?} with the host's key");
        assert!(!answered("0,1,2", None, operation), "{operation:?} without a key");
        assert!(!answered("0,1,2", Some(leaf_key), operation), "{operation:?} with the leaf's key");
    }
    for operation in [&["nodeinfo"][..], &["switchinfo"], &["portinfo", "3"], &["sl2vl", "1"]] {
        assert!(answered("0,1", Some(leaf_key), operation), "{operation:?} with the leaf's key");
        assert!(!answered("0,1", None, operation), "{operation:?} without a key");
        assert!(!answered("0,1", Some(host_key), operation), "{operation:?} with the host's key");
    }
    assert!(answered("0", None, &["nodeinfo"]), "a node without a key answers everybody");
    let shown = server.control(&["counters", "host-00002", "1"]).stdout;
    assert!(
        shown.contains("\"m_key_set\": true") && !shown.contains("1111"),
        "the key itself is never shown: {shown}"
    );
    let violations =
        serde_json::from_str::<serde_json::Value>(&shown).unwrap()["m_key_violations"].as_u64().unwrap();
    assert!(violations >= 12, "{violations} violations counted");
}

#[test]
fn opensm_with_a_key_works_at_level_2_and_tools_need_the_key() {
    let server = sim();
    let options = server.scratch().join("opensm.conf");
    std::fs::write(&options, "m_key 0x00000000cafebabe\nm_key_protection_level 2\nm_key_lease_period 0\n")
        .unwrap();
    server.bring_up(HOST, &["-F", options.to_str().unwrap()]);
    assert!(!server.tool(HOST, "smpquery", &["nodeinfo", "4"]).success);
    assert!(server.tool(HOST, "smpquery", &["-y", "0xcafebabe", "nodeinfo", "4"]).success);
    let all = server.tool(HOST, "ibnetdiscover", &["-y", "0xcafebabe"]);
    assert_eq!(all.stdout.matches("\nCa\t").count(), 16, "{}", all.stdout);
}

#[test]
fn a_wrong_key_is_reported_to_the_manager_by_trap_256() {
    let server = keyed_sim();
    let mut manager = Operator::attach(&server, HOST, ClientRole::SubnetManager);
    manager.guard(&[1, 2], 0x1234, MKeyProtection::Closed);
    assert!(!server.tool("host-00003", "smpquery", &["-D", "nodeinfo", "0,1,2"]).success);
    assert_eq!(next_trap(&mut manager), 256);
}

fn next_trap(operator: &mut Operator) -> u16 {
    next_notice(operator).0
}

/// A request of a class that the subnet manager behind the other port handles, in a partition.
fn message(from: u16, to: u16, pkey: u16) -> Datagram {
    let mad = Mad::new(ManagementClass::SUBNET_ADMINISTRATION, Method::GET, Attribute::CLASS_PORT_INFO, 0);
    let lid = |raw| Lid::from_wire(raw).unwrap().into();
    Datagram::general_management(lid(from), lid(to), Pkey::from_wire(pkey).unwrap(), mad)
}

#[test]
fn a_packet_with_a_foreign_p_key_is_dropped_and_reported() {
    const BLUE: u16 = 0x8123;
    let server = keyed_sim();
    // host-00001 has LID 1 and is the manager; host-00002 has LID 4 on the same leaf, switch LID 2.
    let mut manager = Operator::attach(&server, HOST, ClientRole::SubnetManager);
    let mut sender = Operator::attach(&server, "host-00002", ClientRole::Ordinary);
    let keys = |keys: &[u16]| {
        let mut block = PkeyBlock([None; 32]);
        for (entry, raw) in block.0.iter_mut().zip(keys) {
            *entry = Pkey::from_wire(*raw);
        }
        block.encode()
    };
    let table = |operator: &mut Operator, hops: &[u8], port: u16, held: &[u16]| {
        let modifier = PkeyBlockSelector { port, block: 0 }.to_modifier();
        operator.smp(Method::SET, hops, Attribute::PKEY_TABLE, modifier, None, Some(keys(held))).unwrap();
    };
    let lid = |server: &Server, name: &str| -> u16 {
        server.tool(name, "smpquery", &["-D", "portinfo", "0"]).value("Lid").unwrap().parse().unwrap()
    };
    let (own, other) = (lid(&server, HOST), lid(&server, "host-00002"));
    // A message arrives, or its sender hears that it is lost: no time decides.
    let passes = |sender: &mut Operator, manager: &mut Operator| {
        let transaction = sender.send(message(other, own, BLUE));
        loop {
            let is_lost = sender.lost.contains(&transaction);
            if is_lost {
                manager.catch_up();
            }
            let is_it = |it: &Datagram| {
                it.mad.class() == ManagementClass::SUBNET_ADMINISTRATION
                    && application_transaction(it.mad.transaction()) == transaction
            };
            if manager.heard.iter().any(is_it) || is_lost {
                return manager.heard.iter().any(is_it);
            }
            manager.hear(Duration::from_millis(10));
            sender.hear(Duration::from_millis(10));
        }
    };
    // opensm enforces on the leaf's host ports: they need the key too.
    for (hops, port) in [(&[][..], 0), (&[1, 2], 0), (&[1], 1), (&[1], 2)] {
        table(&mut manager, hops, port, &[0xffff, BLUE]);
    }
    assert!(passes(&mut sender, &mut manager), "both ends and both switch ports hold the key");

    for (hops, port, trap, node, number) in
        [(&[][..], 0, 257, HOST, "1"), (&[1][..], 1, 259, "leaf-01", "1"), (&[1][..], 2, 259, "leaf-01", "2")]
    {
        let violations = |server: &Server| {
            let shown = server.control(&["counters", node, number]).stdout;
            serde_json::from_str::<serde_json::Value>(&shown).unwrap()["pkey_violations"].as_u64().unwrap()
        };
        let before = violations(&server);
        // The emulation reports violations of a port no more often than once a second.
        std::thread::sleep(Duration::from_millis(1100));
        table(&mut manager, hops, port, &[0xffff]);
        assert!(!passes(&mut sender, &mut manager), "{node} port {number} lost its entry");
        let (reported, notice) = next_notice(&mut manager);
        assert_eq!(reported, trap, "{node} port {number}");
        manager.client.send(&notice).unwrap();
        assert_eq!(violations(&server), before + 1);
        table(&mut manager, hops, port, &[0xffff, BLUE]);
        assert!(passes(&mut sender, &mut manager), "{node} port {number} got it back");
    }
}

/// The next trap and the TrapRepress that silences it.
fn next_notice(operator: &mut Operator) -> (u16, Datagram) {
    let datagram = operator.wait_for("a trap", |it| it.mad.method() == Method::TRAP);
    let number = Notice::decode_smp(datagram.mad.smp_data()).unwrap().trap().unwrap().number();
    let mut mad = datagram.mad;
    mad.set_method(Method::TRAP_REPRESS);
    (number, Datagram::subnet_management(datagram.dlid, datagram.slid, mad))
}

#[test]
fn a_client_cannot_send_with_a_p_key_its_port_lacks() {
    let server = keyed_sim();
    let _manager = Operator::attach(&server, HOST, ClientRole::SubnetManager);
    let mut sender = Operator::attach(&server, "host-00002", ClientRole::Ordinary);
    assert!(sender.ask(message(4, 1, 0x8123)).is_none(), "its adapter has no such key to send with");
}
