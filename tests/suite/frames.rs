//! Virtual machines on the emulated fabric, simulated by datagram sockets: their frames go where the tables of the
//! fabric let them, which a subnet manager writes and repairs.

use std::cell::Cell;
use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use fabric_model::MacAddress;
use ib_wire::Lid;
use serde_json::Value;

use crate::rig::{self, PATIENCE, Printed, Server, SmDaemon, eventually};

const NET: &str = "tree-16.ibnetdiscover";
const MANAGER: &str = "host-00001";
const BLUE: u16 = 0x8123;
const RED: u16 = 0x8124;

/// Blue are hosts 2, 5 and 9, red are 3 and 6; each has a group for broadcasts.
const BLUE_HOSTS: [u16; 3] = [2, 5, 9];
const RED_HOSTS: [u16; 2] = [3, 6];

/// The shortest wait there is: for what has to be there already.
const NOW: Duration = Duration::from_millis(1);

fn json(printed: &Printed) -> Value {
    serde_json::from_str(&printed.stdout).unwrap_or_else(|_| panic!("{printed:?}"))
}

fn host(number: u16) -> String {
    format!("host-{number:05}")
}

fn node_guid(number: u16) -> u64 {
    0x0002_c903_0010_0000 + u64::from(number - 1) * 0x10
}

/// A fabric with a subnet manager and virtual machines.
struct Cluster {
    manager: SmDaemon,
    server: Server,
    /// Frames that machines have sent so far.
    sent: Rc<Cell<u64>>,
}

impl Cluster {
    fn new(options: &[&str]) -> Self {
        let server = Server::heddle(&rig::fixture(NET), &[]);
        let list = |hosts: &[u16]| -> String {
            let members = hosts.iter().map(|host| format!("{:#x}=full", node_guid(*host) + 1));
            members.collect::<Vec<_>>().join(", ")
        };
        let conf = server.file("partitions.conf");
        let text =
            format!("blue=0x123, ipoib: {};\nred=0x124, ipoib: {};\n", list(&BLUE_HOSTS), list(&RED_HOSTS));
        std::fs::write(&conf, text).unwrap();
        let manager = SmDaemon::up(&server, MANAGER, &[&["--partitions", &conf], options].concat());
        Self { manager, server, sent: Rc::default() }
    }

    /// Waits until all frames that were sent have been delivered or dropped.
    fn settle(&self) {
        eventually("all frames were taken", || {
            let status = json(&self.server.control(&["status"]));
            status["fabric"]["frames"]["sent"].as_u64().unwrap() >= self.sent.get()
        });
    }

    fn hear_nothing(&self, machines: &[&Machine]) {
        self.settle();
        for machine in machines {
            assert_eq!(machine.hear(NOW), None, "{}", machine.node);
        }
    }

    /// Whether a frame from one machine to another arrives there.
    fn reaches(&self, from: &Machine, to: &Machine) -> bool {
        from.send(to.mac, b"are you there?");
        self.settle();
        to.hear(NOW).is_some()
    }

    fn lid(&self, node: &str, port: &str) -> u16 {
        let shown = json(&self.server.control(&["counters", node, port]));
        shown["lid"].as_u64().unwrap().try_into().unwrap()
    }

    /// Puts a machine on a host, with the address, key and group that it should have.
    fn machine(&self, number: u16) -> Machine {
        let (key, group) = if BLUE_HOSTS.contains(&number) { (BLUE, 0) } else { (RED, 1) };
        let lid = Lid::from_wire(self.lid(&host(number), "1")).unwrap();
        let mac = MacAddress::of_function(lid, 1);
        let machine = Machine::new(&self.server, &host(number), mac, Rc::clone(&self.sent));
        let attached = machine.attach(&self.server, key, Some(self.groups()[group]));
        assert_eq!(attached.stdout.trim(), "attached", "{attached:?}");
        machine
    }

    /// The groups of both partitions: of host 2 on its leaf, and of host 3.
    fn groups(&self) -> [u64; 2] {
        let tables = json(&self.server.control(&["tables", "leaf-01"]));
        let groups = tables["multicast_forwarding"].as_object().unwrap();
        [2, 3].map(|port| {
            let mut lids =
                groups.iter().filter(|(_, exits)| exits.as_array().unwrap().contains(&port.into()));
            // Everybody is in the group of the default partition, if that has one; these two are in no other.
            let found: Vec<u64> = lids.by_ref().map(|(lid, _)| lid.parse().unwrap()).collect();
            assert_eq!(found.len(), 1, "{groups:?}");
            found[0]
        })
    }

    fn functions(&self) -> Vec<Value> {
        json(&self.server.control(&["functions"])).as_array().unwrap().clone()
    }

    /// The counters of the function of a machine.
    fn function(&self, machine: &Machine) -> Value {
        let mac = machine.mac.to_string();
        self.functions().into_iter().find(|function| function["mac"] == mac).unwrap()
    }

    fn drops(&self, machine: &Machine, reason: &str) -> u64 {
        self.function(machine)["frames"]["drops"][reason].as_u64().unwrap_or(0)
    }
}

/// A machine that sends and receives frames.
struct Machine {
    node: String,
    mac: MacAddress,
    socket: UnixDatagram,
    guest: PathBuf,
    fabric: PathBuf,
    sent: Rc<Cell<u64>>,
}

impl Machine {
    fn new(server: &Server, node: &str, mac: MacAddress, sent: Rc<Cell<u64>>) -> Self {
        let (guest, fabric) =
            (server.scratch().join(rig::unique("g")), server.scratch().join(rig::unique("f")));
        let socket = UnixDatagram::bind(&guest).unwrap();
        Self { node: node.to_owned(), mac, socket, guest, fabric, sent }
    }

    fn attach(&self, server: &Server, key: u16, group: Option<u64>) -> Printed {
        let (mac, key) = (self.mac.to_string(), format!("{key:#x}"));
        let group = group.map(|group| format!("{group:#x}"));
        let mut arguments = vec!["attach", &self.node, "1", "1", "--mac", &mac, "--pkey", &key];
        arguments.extend([
            "--guest",
            self.guest.to_str().unwrap(),
            "--fabric",
            self.fabric.to_str().unwrap(),
        ]);
        arguments.extend(group.as_deref().map(|group| ["--group", group]).into_iter().flatten());
        server.control(&arguments)
    }

    fn say(&self, from: MacAddress, to: MacAddress, text: &[u8]) {
        let frame = [&to.bytes()[..], &from.bytes(), &[0x88, 0xb5], text].concat();
        self.say_bytes(&frame);
    }

    fn say_bytes(&self, frame: &[u8]) {
        self.socket.send_to(frame, &self.fabric).unwrap();
        self.sent.set(self.sent.get() + 1);
    }

    fn send(&self, to: MacAddress, text: &[u8]) {
        self.say(self.mac, to, text);
    }

    /// The next frame without its header, or `None` if none arrives within `limit`.
    fn hear(&self, limit: Duration) -> Option<Vec<u8>> {
        let mut frame = [0; 8192];
        self.socket.set_read_timeout(Some(limit)).unwrap();
        match self.socket.recv(&mut frame) {
            Ok(length) => Some(frame[14..length].to_vec()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            Err(error) => panic!("{error}"),
        }
    }

    fn hears(&self, text: &[u8]) {
        assert_eq!(self.hear(PATIENCE).as_deref(), Some(text), "{}", self.node);
    }
}

#[test]
fn machines_reach_their_partition_and_nobody_else() {
    let cluster = Cluster::new(&[]);
    let [two, five, nine] = BLUE_HOSTS.map(|number| cluster.machine(number));
    let [three, six] = RED_HOSTS.map(|number| cluster.machine(number));
    two.send(five.mac, b"to five");
    five.hears(b"to five");
    three.send(six.mac, b"to six");
    six.hears(b"to six");

    two.send(MacAddress::BROADCAST, b"to blue");
    five.hears(b"to blue");
    nine.hears(b"to blue");

    // Across, to every address that a red machine has or could have; broadcast; under a red name.
    two.send(three.mac, b"across");
    two.send(six.mac, b"across");
    two.say(three.mac, six.mac, b"under a false name");
    two.say(five.mac, nine.mac, b"under a false name");
    two.send("33:33:00:00:00:01".parse().unwrap(), b"multicast");
    five.hears(b"multicast");
    nine.hears(b"multicast");
    cluster.hear_nothing(&[&two, &three, &five, &six, &nine]);
    assert_eq!(cluster.drops(&two, "partition_at_switch"), 2, "stopped at the last switch");
    assert_eq!(cluster.drops(&two, "spoofed"), 2);
    three.send(six.mac, b"the control");
    six.hears(b"the control");
    let status = json(&cluster.server.control(&["status"]));
    assert_eq!(status["fabric"]["frames"]["drops"]["spoofed"], 2, "{status}");
    assert!(status["fabric"]["traps"]["259"].as_u64().unwrap() > 0, "{status}");
    drop(cluster.manager);
}

#[test]
fn what_is_no_frame_of_the_machine_is_dropped_and_counted() {
    let cluster = Cluster::new(&[]);
    let [two, five] = [2, 5].map(|number| cluster.machine(number));
    let largest = vec![7; 2048 - 14];
    two.send(five.mac, &largest);
    five.hears(&largest);
    two.send(five.mac, &vec![7; 2049 - 14]);
    two.send(five.mac, &vec![7; 60_000]);
    two.say_bytes(b"short");
    two.send("52:54:00:12:34:56".parse().unwrap(), b"nobody");
    // Another sender at the socket of the machine.
    five.socket.send_to(&[0; 60], &two.fabric).unwrap();
    eventually("it was taken", || cluster.function(&two)["socket"]["foreign"] == 1);
    cluster.hear_nothing(&[&five]);
    for (reason, count) in [("too_large", 2), ("malformed", 1), ("unknown_address", 1)] {
        assert_eq!(cluster.drops(&two, reason), count, "{reason}");
    }
    assert_eq!(cluster.function(&two)["frames"]["sent"], 5);
    assert!(cluster.reaches(&two, &five));
}

#[test]
fn a_machine_that_does_not_read_stops_nobody() {
    let cluster = Cluster::new(&[]);
    let [two, five, nine] = BLUE_HOSTS.map(|number| cluster.machine(number));
    for _ in 0..1000 {
        two.send(MacAddress::BROADCAST, b"flood");
        five.hears(b"flood");
    }
    let counted = cluster.function(&nine);
    assert!(counted["socket"]["unread"].as_u64().unwrap() > 0, "{counted}");
    assert_eq!(counted["frames"]["received"], 1000);
    // It reads again, receives its backlog, and is reached again.
    eventually("nine is reached again", || {
        while nine.hear(Duration::from_millis(5)).is_some() {}
        two.send(nine.mac, b"again");
        nine.hear(PATIENCE).as_deref() == Some(b"again")
    });
}

#[test]
fn a_detached_machine_is_off_and_attaching_is_idempotent() {
    let cluster = Cluster::new(&[]);
    let [two, five] = [2, 5].map(|number| cluster.machine(number));
    assert!(cluster.reaches(&two, &five));
    let again = five.attach(&cluster.server, BLUE, Some(cluster.groups()[0]));
    assert!(again.success, "{again:?}");
    assert_eq!(cluster.function(&five)["frames"]["received"], 1, "it goes on counting");
    assert!(cluster.reaches(&two, &five) && cluster.reaches(&five, &two));

    let detach = || cluster.server.control(&["detach", &host(5), "1", "1"]);
    assert_eq!(detach().stdout.trim(), "detached");
    assert_eq!(detach().stdout.trim(), "was not attached");
    assert!(!five.fabric.exists(), "its socket is gone");
    assert!(!cluster.reaches(&two, &five));
    assert_eq!(cluster.functions().len(), 1);

    // Under another key, which its port does not hold.
    let wrong = five.attach(&cluster.server, RED, None);
    assert!(wrong.success, "{wrong:?}");
    assert!(!cluster.reaches(&two, &five) && !cluster.reaches(&five, &two));
    assert_eq!(cluster.drops(&five, "partition_at_sender"), 1);
}

#[test]
fn what_makes_no_sense_is_refused_and_changes_nothing() {
    let cluster = Cluster::new(&[]);
    let [two, five] = [2, 5].map(|number| cluster.machine(number));
    let (guest, fabric) = (cluster.server.file("g"), cluster.server.file("f"));
    let attach = |node: &str, port: &str, mac: &str, guest: &str, fabric: &str| {
        let arguments = ["attach", node, port, "7", "--mac", mac, "--pkey", "0x8123", "--guest", guest];
        cluster.server.control(&[&arguments[..], &["--fabric", fabric]].concat())
    };
    let good = "02:00:02:07:00:00";
    for (refused, why) in [
        (attach("host-99999", "1", good, &guest, &fabric), "no node"),
        (attach("host-00002", "3", good, &guest, &fabric), "has no port 3"),
        (attach("leaf-01", "1", good, &guest, &fabric), "belongs to a switch"),
        (
            attach("host-00002", "1", "52:54:00:00:00:01", &guest, &fabric),
            "is not the address of a virtual function",
        ),
        (attach("host-00002", "1", &two.mac.to_string(), &guest, &fabric), "function 1 of the same port"),
        (attach("host-00002", "1", good, two.guest.to_str().unwrap(), &fabric), "another virtual machine"),
        (attach("host-00002", "1", good, &guest, &guest), "another virtual machine"),
        (attach("host-00002", "1", good, &guest, "/no/such/directory/f"), "cannot listen at"),
        (attach("host-00002", "1", good, &guest, &cluster.server.file("partitions.conf")), "not a socket"),
    ] {
        assert!(!refused.success && refused.stderr.contains(why), "{why}: {refused:?}");
    }
    assert_eq!(cluster.functions().len(), 2);
    assert!(cluster.reaches(&two, &five), "the control");
    let found = attach(&format!("{:#x}", node_guid(2) + 1), "1", good, &guest, &fabric);
    assert!(found.success, "a port GUID names the node too: {found:?}");
    assert_eq!(cluster.functions().len(), 3);
}

#[test]
fn sockets_are_removed_at_exit_and_stale_ones_replaced() {
    let mut cluster = Cluster::new(&[]);
    let two = cluster.machine(2);
    cluster.server.crash();
    assert!(two.fabric.exists(), "nobody tidied up");
    let net = rig::fixture(NET);
    cluster.server.restart(&net);
    assert!(two.attach(&cluster.server, BLUE, None).success);
    two.send(two.mac, b"it is heard");
    eventually("a frame was taken", || cluster.functions()[0]["frames"]["sent"] == 1);
    cluster.server.stop();
    assert!(!two.fabric.exists());
}

#[test]
fn the_control_socket_can_be_anywhere() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("ctl").to_str().unwrap().to_owned();
    let _server = Server::heddle(&rig::fixture(NET), &["--control", &socket]);
    let output = Command::new(rig::HEDDLE).args(["sim-ctl", &socket, "functions"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "[]", "{output:?}");
}

/// `heddle smp` on a host that has nothing to do with it, under the keys of the site.
fn smp(cluster: &Cluster, secret: &str, arguments: &[&str]) -> Printed {
    let output = Command::new(rig::HEDDLE)
        .args(["smp", "--device", &cluster.server.device_spec("host-00016"), "--secret", secret])
        .args(arguments)
        .output()
        .unwrap();
    Printed::of(output)
}

#[test]
fn a_removed_entry_stops_one_pair_until_it_is_repaired() {
    let directory = tempfile::tempdir().unwrap();
    let secret = directory.path().join("site.secret");
    std::fs::write(&secret, [7; 32]).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&secret, mode).unwrap();
    let secret = secret.to_str().unwrap();
    let cluster = Cluster::new(&["--secret", secret]);
    let [two, five, nine] = BLUE_HOSTS.map(|number| cluster.machine(number));
    let [three, six] = RED_HOSTS.map(|number| cluster.machine(number));
    assert!(cluster.reaches(&two, &five) && cluster.reaches(&nine, &two) && cluster.reaches(&three, &six));
    let drift = || cluster.manager.status()["drift"]["count"].as_u64().unwrap();
    assert_eq!(drift(), 0);

    // Removes the P_Key of host 5 with an SMP that carries its M_Key. With the M_Key of another node it is rejected.
    let (guid, lid) = (format!("{:#x}", node_guid(5)), cluster.lid(&host(5), "1").to_string());
    let other = format!("{:#x}", node_guid(6));
    let stranger = smp(&cluster, secret, &["set-pkey", &other, &lid, "--index", "1"]);
    assert!(!stranger.success && stranger.stderr.contains("no answer"), "{stranger:?}");
    cluster.manager.pause();
    let taken = smp(&cluster, secret, &["set-pkey", &guid, &lid, "--index", "1"]);
    assert_eq!(taken.stdout.trim(), "0x8123 became none", "{taken:?}");
    stops_and_comes_back(&cluster, (&two, &five), (&nine, &two), "partition_at_receiver", 1, &drift);

    // The route from the leaf of host 2 to host 5.
    let leaf = format!("{:#x}", 0x0002_c903_0020_0000_u64);
    let at = cluster.lid("leaf-01", "0").to_string();
    cluster.manager.pause();
    let taken = smp(&cluster, secret, &["set-lft", &leaf, &at, "--to", &lid]);
    assert!(taken.stdout.trim().ends_with("became none"), "{taken:?}");
    stops_and_comes_back(&cluster, (&two, &five), (&three, &six), "no_route", 2, &drift);
}

/// Checks that frames of a pair are dropped for a reason, and those of another pair are not; then the manager, which
/// was stopped until now, repairs the pair.
fn stops_and_comes_back(
    cluster: &Cluster,
    pair: (&Machine, &Machine),
    control: (&Machine, &Machine),
    reason: &str,
    drifts: u64,
    drift: &dyn Fn() -> u64,
) {
    let before = cluster.drops(pair.0, reason);
    pair.0.send(pair.1.mac, b"lost");
    control.0.send(control.1.mac, b"not lost");
    control.1.hears(b"not lost");
    cluster.hear_nothing(&[pair.1]);
    assert_eq!(cluster.drops(pair.0, reason), before + 1, "{reason}");
    cluster.manager.resume();
    eventually("the manager has repaired it", || drift() == drifts && cluster.reaches(pair.0, pair.1));
    assert!(cluster.reaches(control.0, control.1));
}

#[test]
fn links_with_a_rate_push_back_and_lose_nothing() {
    const FRAMES: u32 = 200;
    let cluster = Cluster::new(&[]);
    let [two, five, nine] = BLUE_HOSTS.map(|number| cluster.machine(number));
    let model = |arguments: &[&str]| cluster.server.control(&[&["link-model"], arguments].concat());
    assert_eq!(json(&model(&[]))["rate"], Value::Null, "off by default");
    // 1 MB/s: a frame of 1000 bytes takes a millisecond on each link.
    let changed = json(&model(&["8M", "--latency", "100us"]));
    assert_eq!((&changed["rate"], &changed["latency_ns"]), (&"0.008 Gb/s".into(), &100_000.into()));

    let began = std::time::Instant::now();
    std::thread::scope(|scope| {
        // Blocks while its socket is full.
        let sending = scope.spawn(|| {
            for number in 0..FRAMES {
                let text = [&number.to_be_bytes()[..], &[0; 948]].concat();
                let frame = [&five.mac.bytes()[..], &two.mac.bytes(), &[0x88, 0xb5], &text].concat();
                two.socket.send_to(&frame, &two.fabric).unwrap();
            }
            began.elapsed()
        });
        eventually("the sender is not read", || json(&model(&[]))["congested_functions"] == 1);
        let load = json(&model(&[]));
        assert!(load["waiting_bytes"].as_u64().unwrap() < 34 * 1024, "{load}");
        // Another one is served meanwhile.
        nine.send(two.mac, b"between");
        two.hears(b"between");
        for number in 0..FRAMES {
            let heard = five.hear(PATIENCE).unwrap_or_else(|| panic!("frame {number} is missing"));
            assert_eq!(heard[..4], number.to_be_bytes(), "in order");
        }
        let (sent, heard) = (sending.join().unwrap(), began.elapsed());
        assert!(heard >= Duration::from_millis(u64::from(FRAMES)), "{heard:?}");
        assert!(sent >= Duration::from_millis(u64::from(FRAMES) - 60), "it had to wait: {sent:?}");
    });
    assert_eq!(cluster.function(&two)["frames"]["drops"], json_object());
    assert_eq!(json(&model(&[]))["packets"], 0);

    for wrong in [&["1/0"][..], &["fast"], &["off", "--latency", "1ms"], &["8M", "--latency", "2000ms"]] {
        assert!(!model(wrong).success, "{wrong:?}");
    }
    assert_eq!(model(&["off"]).stdout.trim(), "link model off");
    assert!(cluster.reaches(&two, &five));
}

fn json_object() -> Value {
    Value::Object(serde_json::Map::new())
}
