//! The network view of a machine with an InfiniBand adapter: its packets to QP0 and QP1 go through `heddle sim` to the server of the
//! view, over a stream that a control connection has become. Another emulated fabric stands for the view.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ib_transport::ClientRole;
use ib_transport::framed::{Attach, Frame};
use ib_wire::{
    Attribute, Capability, Datagram, DirectedRoute, Guid, LidAddress, Mad, ManagementClass, Method, NodeInfo,
    Packet, Pkey, PortInfo, PortNum, SmInfo, TransactionId,
};
use serde_json::{Value, json};

use crate::rig::adapter::Adapter;
use crate::rig::{self, PATIENCE, Server, SmDaemon, eventually};

const NET: &str = "tree-16.ibnetdiscover";
const MANAGER: &str = "host-00001";
const BLUE: u16 = 0x8123;
const DEFAULT_LIMITED: u16 = 0x7fff;

/// The view: two hosts at a switch.
const VIEW_NET: &str = r#"
switchguid=0x2481000000010(2481000000010)
Switch	4 "S-0002481000000010"		# "switch-1" enhanced port 0 lid 0 lmc 0
[1]	"H-0002200000000100"[1](2200000000101) 		# "blue-1" lid 0 4xEDR
[2]	"H-0002200000000200"[1](2200000000201) 		# "blue-2" lid 0 4xEDR

caguid=0x2200000000100
Ca	1 "H-0002200000000100"		# "blue-1"
[1](2200000000101) 	"S-0002481000000010"[1]		# lid 0 lmc 0 "switch-1" lid 0 4xEDR

caguid=0x2200000000200
Ca	1 "H-0002200000000200"		# "blue-2"
[1](2200000000201) 	"S-0002481000000010"[2]		# lid 0 lmc 0 "switch-1" lid 0 4xEDR
"#;

fn node_guid(number: u16) -> u64 {
    0x0002_c903_0010_0000 + u64::from(number - 1) * 0x10
}

fn host(number: u16) -> String {
    format!("host-{number:05}")
}

fn json_of(printed: &rig::Printed) -> Value {
    serde_json::from_str(&printed.stdout).unwrap_or_else(|_| panic!("{printed:?}"))
}

/// A fabric with a subnet manager that knows the aliases of two hosts, and the fabric that stands for a view.
struct Site {
    _manager: SmDaemon,
    server: Server,
    _view_manager: SmDaemon,
    view: Server,
}

impl Site {
    fn new() -> Self {
        let server = Server::heddle(&rig::fixture(NET), &[]);
        let ports = [2, 3].map(|number| node_guid(number) + 1);
        let conf = server.file("partitions.conf");
        let text = format!("blue=0x123: {:#x}=full, {:#x}=full;\n", ports[0], ports[1]);
        std::fs::write(&conf, text).unwrap();
        let alias = |port: u64| {
            let guid = alias_of(port);
            format!(
                "[[alias]]\nport = \"{port:#x}\"\nindex = 1\nguid = \"{guid:#x}\"\npartitions = [0x123, 0x7fff]\n"
            )
        };
        let aliases = server.file("aliases.toml");
        std::fs::write(&aliases, ports.map(alias).concat()).unwrap();
        let manager = SmDaemon::up(&server, MANAGER, &["--partitions", &conf, "--aliases", &aliases]);
        let scratch = tempfile::tempdir().unwrap();
        let net = scratch.path().join("view.topo");
        std::fs::write(&net, VIEW_NET).unwrap();
        let view = Server::heddle(&net, &[]);
        let view_manager = SmDaemon::up(&view, "blue-2", &[]);
        Self { _manager: manager, server, _view_manager: view_manager, view }
    }

    fn machine(&self, number: u16) -> Machine {
        let place = |what: &str| self.server.scratch().join(rig::unique(what));
        let (guest, fabric) = (place("g"), place("f"));
        let socket = UnixDatagram::bind(&guest).unwrap();
        let guid = alias_of(node_guid(number) + 1);
        let keys = [BLUE, DEFAULT_LIMITED].map(|key| format!("{key:#x}"));
        let attached = self.server.control(&[
            "attach-adapter",
            &host(number),
            "1",
            "1",
            "--guid",
            &format!("{guid:#x}"),
            "--pkey",
            &keys[0],
            "--pkey",
            &keys[1],
            "--guest",
            guest.to_str().unwrap(),
            "--fabric",
            fabric.to_str().unwrap(),
        ]);
        assert_eq!(attached.stdout.trim(), "attached", "{attached:?}");
        Machine { node: host(number), socket, fabric, hellos: 0, transactions: 0 }
    }

    fn control(&self) -> PathBuf {
        self.server.scratch().join(format!("heddle/sim-{}.sock", self.server.name))
    }

    /// Asks for the stream of a machine's view. Returns the connection and the reply.
    fn ask_for_view(&self, node: &str, function: u8) -> (UnixStream, Value) {
        let mut stream = UnixStream::connect(self.control()).unwrap();
        let request = json!({ "command": "adapter-view", "node": node, "port": 1, "function": function });
        writeln!(stream, "{request}").unwrap();
        let mut reply = Vec::new();
        while reply.last() != Some(&b'\n') {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            reply.push(byte[0]);
        }
        (stream, serde_json::from_slice(&reply).unwrap())
    }

    /// Opens the view of a machine, at an adapter of the fabric that stands for views.
    fn open_view(&self, node: &str, adapter: &str) -> Tunnel {
        let (fabric, reply) = self.ask_for_view(node, 1);
        assert_eq!(reply, json!({ "ok": "opened" }));
        let mut view = UnixStream::connect(self.view.scratch().join("door")).unwrap();
        let mut attach = Vec::new();
        let role = ClientRole::Ordinary;
        Frame::Attach(Attach { node_id: adapter.to_owned(), role }).encode(&mut attach);
        view.write_all(&attach).unwrap();
        let tunnel = Tunnel::between(fabric, view);
        eventually("the view is open", || self.adapter(node)["view"] == true);
        tunnel
    }

    fn adapter(&self, node: &str) -> Value {
        let all = json_of(&self.server.control(&["adapters"]));
        let number: u16 = node.trim_start_matches("host-").parse().unwrap();
        let guid = json!(Guid::from_wire(alias_of(node_guid(number) + 1)).unwrap());
        all.as_array().unwrap().iter().find(|adapter| adapter["guid"] == guid).unwrap().clone()
    }

    fn drops(&self, node: &str) -> BTreeMap<String, u64> {
        serde_json::from_value(self.adapter(node)["packets"]["drops"].clone()).unwrap()
    }
}

fn alias_of(port: u64) -> u64 {
    0x0220_0000_0000_0000 | port & 0xffff_ffff
}

/// Copies bytes in both directions, as the agent and the controller do.
struct Tunnel {
    ends: [UnixStream; 2],
    paused: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Tunnel {
    fn between(fabric: UnixStream, view: UnixStream) -> Self {
        let paused = Arc::new(AtomicBool::new(false));
        let ends = [fabric, view];
        let copy = |from: usize| {
            let (mut from, mut to) = (ends[from].try_clone().unwrap(), ends[1 - from].try_clone().unwrap());
            let paused = Arc::clone(&paused);
            std::thread::spawn(move || {
                let mut buffer = [0; 4096];
                loop {
                    while paused.load(Ordering::Acquire) {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    match from.read(&mut buffer) {
                        Ok(0) | Err(_) => break,
                        Ok(length) if to.write_all(&buffer[..length]).is_err() => break,
                        Ok(_) => {}
                    }
                }
                let _ = to.shutdown(Shutdown::Both);
            })
        };
        let threads = vec![copy(0), copy(1)];
        Self { ends, paused, threads }
    }

    fn pause(&self, on: bool) {
        self.paused.store(on, Ordering::Release);
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.pause(false);
        self.ends.iter().for_each(|end| drop(end.shutdown(Shutdown::Both)));
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// A machine with an adapter: the messages of its driver.
struct Machine {
    node: String,
    socket: UnixDatagram,
    fabric: PathBuf,
    hellos: u32,
    transactions: u64,
}

impl Machine {
    fn say(&self, kind: u8, body: &[u8]) -> bool {
        let length = (body.len() as u16).to_be_bytes();
        let frame = [&[0xff; 12][..], &[0x88, 0xb5, kind, 1, length[0], length[1]], body].concat();
        self.socket.send_to(&frame, &self.fabric).is_ok()
    }

    /// The driver says hello, and whether a subnet manager has opened the device for it.
    fn hello(&mut self, is_sm: bool) {
        self.hellos += 1;
        let mut body = [0; 80];
        body[..4].copy_from_slice(&self.hellos.to_be_bytes());
        body[7] = is_sm.into();
        self.say(3, &body);
    }

    /// LID of the subnet manager, as the driver is told it.
    fn manager(&mut self) -> LidAddress {
        self.hello(false);
        let mut frame = [0; 8192];
        self.socket.set_read_timeout(Some(PATIENCE)).unwrap();
        while self.socket.recv(&mut frame).is_ok() {
            if frame[14] == 2 {
                return LidAddress::from_wire(u16::from_be_bytes([frame[18 + 54], frame[18 + 55]])).unwrap();
            }
        }
        panic!("the hello is not answered");
    }

    /// The next packet within a time, as a datagram.
    fn hear(&self, limit: Duration) -> Option<Datagram> {
        let mut frame = [0; 8192];
        let end = Instant::now() + limit;
        loop {
            let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            self.socket.set_read_timeout(Some(left)).unwrap();
            match self.socket.recv(&mut frame) {
                // Others are states of the port.
                Ok(length) if frame[14] == 1 => {
                    let body = usize::from(u16::from_be_bytes([frame[16], frame[17]]));
                    assert!(18 + body <= length);
                    return Packet::read(&frame[18..18 + body]).unwrap().to_datagram();
                }
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < end => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn send(&mut self, mut request: Datagram) -> TransactionId {
        self.transactions += 1;
        let transaction = TransactionId(0x0000_0005_0000_0000 | self.transactions);
        request.mad.set_transaction(transaction);
        assert!(self.say(1, &request.to_packet()));
        transaction
    }

    fn ask(&mut self, request: Datagram, limit: Duration) -> Option<Datagram> {
        let transaction = self.send(request);
        let end = Instant::now() + limit;
        while Instant::now() < end {
            let heard = self.hear(end.saturating_duration_since(Instant::now()))?;
            if heard.mad.transaction() == transaction && heard.mad.method().is_response() {
                return Some(heard);
            }
        }
        None
    }
}

fn smp(attribute: Attribute, route: &[u8]) -> Datagram {
    let hops = route.iter().map(|hop| PortNum::new(*hop).unwrap());
    let mut mad = Mad::directed(Method::GET, attribute, 0, &DirectedRoute::new(hops).unwrap());
    mad.set_hop_pointer(1);
    Datagram::subnet_management(LidAddress::Permissive, LidAddress::Permissive, mad)
}

fn to_manager(class: ManagementClass, attribute: Attribute, manager: LidAddress, key: u16) -> Datagram {
    let method = if class == ManagementClass::SUBNET_LID { Method::GET } else { Method::GET_TABLE };
    let mad = Mad::new(class, method, attribute, 0);
    let from = LidAddress::from_wire(1).unwrap();
    if class == ManagementClass::SUBNET_LID {
        return Datagram::subnet_management(from, manager, mad);
    }
    Datagram::general_management(from, manager, Pkey::from_wire(key).unwrap(), mad)
}

fn node_of(answer: &Datagram) -> Guid {
    NodeInfo::decode(answer.mad.smp_data()).unwrap().node_guid
}

fn contains(mad: &Mad, guid: u64) -> bool {
    mad.0.windows(8).any(|bytes| bytes == guid.to_be_bytes())
}

const SOON: Duration = Duration::from_millis(500);

#[test]
fn a_machine_manages_its_view_through_its_adapter() {
    let site = Site::new();
    let mut machine = site.machine(2);
    assert_eq!(machine.ask(smp(Attribute::NODE_INFO, &[]), SOON), None, "there is no view yet");
    assert_eq!(site.drops(&machine.node)["unanswered"], 1);

    let tunnel = site.open_view(&machine.node, "blue-1");
    let own = machine.ask(smp(Attribute::NODE_INFO, &[]), PATIENCE).unwrap();
    assert_eq!(node_of(&own).to_wire(), 0x2200000000100);
    assert!(own.mad.is_returning());
    let switch = machine.ask(smp(Attribute::NODE_INFO, &[1]), PATIENCE).unwrap();
    assert_eq!((node_of(&switch).to_wire(), switch.mad.hop_pointer()), (0x2481000000010, 1));

    // The LID of the physical manager, as the kernel knows it, means the manager of the view.
    let manager = machine.manager();
    let sm = to_manager(ManagementClass::SUBNET_LID, Attribute::SM_INFO, manager, 0);
    let answer = machine.ask(sm, PATIENCE).unwrap();
    assert_eq!(answer.slid, manager, "the address that was asked");
    let info = SmInfo::decode(answer.mad.smp_data()).unwrap();
    assert_eq!(info.guid.map(Guid::to_wire), Some(0x2200000000201));
    let records =
        |key| to_manager(ManagementClass::SUBNET_ADMINISTRATION, Attribute::NODE_RECORD, manager, key);
    let of_view = machine.ask(records(BLUE), PATIENCE).unwrap();
    assert_eq!((of_view.slid, of_view.pkey.to_wire()), (manager, BLUE));
    assert!(contains(&of_view.mad, 0x2200000000100) || contains(&of_view.mad, 0x2481000000010));
    let of_fabric = machine.ask(records(DEFAULT_LIMITED), PATIENCE).unwrap();
    assert!(contains(&of_fabric.mad, node_guid(1)) || contains(&of_fabric.mad, node_guid(2)));

    drop(tunnel);
    eventually("the view is closed", || site.adapter(&machine.node)["view"] == false);
    let before = site.drops(&machine.node)["unanswered"];
    assert_eq!(machine.ask(smp(Attribute::NODE_INFO, &[]), SOON), None);
    assert_eq!(site.drops(&machine.node)["unanswered"], before + 1);
    let again = machine.ask(records(BLUE), PATIENCE).unwrap();
    assert!(!contains(&again.mad, 0x2200000000100), "the fabric answers as it did before");
}

#[test]
fn a_subnet_manager_of_a_machine_is_announced_in_its_view_only() {
    let site = Site::new();
    let mut machine = site.machine(2);
    machine.hello(true);
    let is_announced = |server: &Server, node: &str| {
        let mut program = Adapter::attach(server, node, ClientRole::Ordinary);
        let info = program.ask(smp(Attribute::PORT_INFO, &[])).unwrap();
        PortInfo::decode(info.smp_data()).unwrap().capability.has(Capability::IS_SM)
    };
    let _tunnel = site.open_view(&machine.node, "blue-1");
    eventually("it is announced", || is_announced(&site.view, "blue-1"));
    assert!(!is_announced(&site.server, &machine.node));
    machine.hello(false);
    eventually("it is not announced any more", || !is_announced(&site.view, "blue-1"));
}

#[test]
fn a_view_that_does_not_read_stops_nobody() {
    let site = Site::new();
    let (mut flooding, mut other) = (site.machine(2), site.machine(3));
    let tunnel = site.open_view(&flooding.node, "blue-1");
    let _other_tunnel = site.open_view(&other.node, "blue-2");
    tunnel.pause(true);
    let requests = 6000;
    for _ in 0..requests {
        flooding.send(smp(Attribute::NODE_INFO, &[1]));
    }
    assert!(other.ask(smp(Attribute::NODE_INFO, &[]), PATIENCE).is_some());
    eventually("all were taken", || site.adapter(&flooding.node)["packets"]["sent"] == requests);
    let drops = site.drops(&flooding.node);
    assert!(drops["no_room"] > 0, "{drops:?}");
    tunnel.pause(false);
    eventually("it is answered again", || flooding.ask(smp(Attribute::NODE_INFO, &[]), SOON).is_some());
}

#[test]
fn streams_of_views_are_for_adapters_that_are_there() {
    let site = Site::new();
    let mut machine = site.machine(2);
    for (node, function, why) in [
        ("host-99999", 1, "no node"),
        ("host-00002", 2, "no InfiniBand adapter"),
        ("host-00003", 1, "no InfiniBand adapter"),
    ] {
        let (_, reply) = site.ask_for_view(node, function);
        assert!(reply["error"].as_str().is_some_and(|error| error.contains(why)), "{why}: {reply}");
    }
    let first = site.open_view(&machine.node, "blue-1");
    let second = site.open_view(&machine.node, "blue-2");
    let is_over = |tunnel: &Tunnel| tunnel.threads.iter().all(JoinHandle::is_finished);
    eventually("the former stream ends", || is_over(&first));
    let own = machine.ask(smp(Attribute::NODE_INFO, &[]), PATIENCE).unwrap();
    assert_eq!(node_of(&own).to_wire(), 0x2200000000200, "a new stream replaces the former one");
    assert!(!is_over(&second));
    let detached = site.server.control(&["detach", &machine.node, "1", "1"]);
    assert_eq!(detached.stdout.trim(), "detached");
    eventually("the stream ends with the function", || is_over(&second));
}

/// Frames that are not the protocol end the stream and nothing else.
#[test]
fn a_stream_that_speaks_something_else_is_closed() {
    let site = Site::new();
    let mut machine = site.machine(2);
    let (mut stream, reply) = site.ask_for_view(&machine.node, 1);
    assert_eq!(reply, json!({ "ok": "opened" }));
    eventually("the view is open", || site.adapter(&machine.node)["view"] == true);
    stream.write_all(&[0xff; 4096]).unwrap();
    eventually("the view is closed", || site.adapter(&machine.node)["view"] == false);
    let _tunnel = site.open_view(&machine.node, "blue-1");
    assert!(machine.ask(smp(Attribute::NODE_INFO, &[]), PATIENCE).is_some(), "the control");
}
