//! `heddle sm` as a daemon: beside other subnet managers, through crashes, faults and changes.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::time::Duration;

use ib_transport::{ClientRole, Received};
use ib_wire::{
    Attribute, Datagram, DirectedRoute, LidAddress, Mad, Method, Pkey, PkeyBlock, PortNum, Status,
    TransactionId,
};
use serde_json::{Value, json};

use crate::rig::tree::*;
use crate::rig::{self, Server, SmDaemon, eventually};

// Beside other managers.

#[test]
fn opensm_without_keys_changes_nothing_and_is_reported() {
    let server = tree();
    let secret = server.secret(&[0x5a; 32]);
    let manager = SmDaemon::up(&server, HOST, &["--secret", &secret]);
    let before = snapshot(&server);
    let other = server.opensm_beside(&host(7), &[]);
    other.wait_for("SM port is down");
    let place = format!("{}[1]", guids(7).0);
    eventually("the other manager and its attempt are reported", || {
        let status = manager.status();
        status["foreign_managers"].get(&place).is_some() && status["traps"]["256"].as_u64() >= Some(1)
    });
    let said = format!("another subnet manager runs at {place}");
    assert!(manager.stderr().contains(&said), "{}", manager.stderr());
    assert!(!other.log().contains("SUBNET UP"), "{}", other.log());
    assert_eq!(changed(&before, &snapshot(&server)), Vec::<String>::new());
    drop(other);
    eventually("it is gone", || manager.status()["foreign_managers"].get(&place).is_none());

    let open = tree();
    let untouched = snapshot(&open);
    let log = open.bring_up(&host(7), &[]);
    assert!(log.contains("SUBNET UP") && changed(&untouched, &snapshot(&open)).len() == 22);
}

#[test]
fn opensm_with_one_key_configures_its_own_port_only() {
    let server = tree();
    let secret = server.secret(&[0x5a; 32]);
    let manager = SmDaemon::up(&server, HOST, &["--secret", &secret]);
    let before = snapshot(&server);
    let options = server.file("opensm.conf");
    let key = node_key(&guids(7).0, &secret);
    std::fs::write(&options, format!("m_key {key}\nm_key_protection_level 2\nm_key_lease_period 0\n"))
        .unwrap();
    let violations = |server: &Server| -> u64 {
        json(&server.control(&["counters", "leaf-02"]))["ports"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|port| port["m_key_violations"].as_u64())
            .sum()
    };
    let other = server.opensm_beside(&host(7), &["-F", &options]);
    eventually("it has tried the switch before it", || violations(&server) > 0);
    eventually("it is reported", || manager.status()["traps"]["256"].as_u64() >= Some(1));
    std::thread::sleep(Duration::from_secs(2));
    // The far end of its cable follows the state of its own port.
    let touched = changed(&without_states(&before), &without_states(&snapshot(&server)));
    assert!(touched.iter().all(|name| *name == host(7)), "{touched:?}");
    drop(other);
    is_as_before(&server, &before, "opensm");
}

#[test]
fn a_foreign_manager_is_queried_without_its_m_key() {
    let server = tree();
    let secret = server.secret(&[0x5a; 32]);
    let manager = SmDaemon::up(&server, HOST, &["--secret", &secret]);
    let mut other = server.device(&host(7), ClientRole::SubnetManager);
    let mut questions = 0;
    let started = std::time::Instant::now();
    while questions < 2 {
        assert!(started.elapsed() < Duration::from_secs(120), "asked {questions} times");
        let Some(Received::Datagram(asked)) = other.receive(Duration::from_secs(1)).unwrap() else {
            continue;
        };
        if asked.mad.attribute() == Attribute::SM_INFO {
            assert!(asked.mad.m_key().is_none(), "it was shown the key of its port");
            questions += 1;
        }
    }
    let place = format!("{}[1]", guids(7).0);
    eventually("it is reported as silent", || manager.status()["foreign_managers"][&place] == "silent");
    // The key that it was not shown is in force.
    let asked = |options: &[&str]| {
        server.tool(&host(8), "smpquery", &[&["-t", "50", "-D"], options, &["nodeinfo", "0,1,3"]].concat())
    };
    assert!(!asked(&[]).success, "its node answers without a key");
    assert!(asked(&["-y", &node_key(&guids(7).0, &secret)]).success, "and answers to it");
}

#[test]
fn without_keys_opensm_stays_standby_beside_the_manager() {
    let server = public_tree();
    let manager = SmDaemon::up(&server, HOST, &[]);
    let other = server.opensm_beside(&host(3), &[]);
    other.wait_for("Entering STANDBY state");
    let info = server.tool(&host(2), "sminfo", &[]).stdout;
    assert!(info.contains("sm guid 0x2c90300100001,"), "{info}");
    assert!(info.contains("priority 15 state 3 SMINFO_MASTER"), "{info}");
    let place = format!("{}[1]", guids(3).0);
    eventually("it is reported", || {
        let says = manager.status()["foreign_managers"][&place].clone();
        says.as_str().is_some_and(|says| says.ends_with("with priority 0"))
    });
    assert!(!other.log().contains("SUBNET UP"), "{}", other.log());
    drop(other);

    let alone = public_tree();
    let master = alone.opensm(&host(3), &[]);
    assert!(!master.log().contains("STANDBY"));
}

#[test]
fn the_sm_priority_can_be_set() {
    let server = public_tree();
    let _manager = SmDaemon::up(&server, HOST, &["--priority", "9"]);
    let info = server.tool(&host(2), "sminfo", &[]).stdout;
    assert!(info.contains("priority 9 state 3 SMINFO_MASTER"), "{info}");
    let refused = once(&server, &["--priority", "16"]);
    assert!(!refused.success && refused.stderr.contains("16"), "{refused:?}");
}

// Through crashes and faults.

#[test]
fn a_restart_after_a_kill_sends_no_set() {
    let guarded = tree();
    let secret = guarded.secret(&[0x5a; 32]);
    let public = public_tree();
    for (server, options) in [(&guarded, &["--secret", &secret][..]), (&public, &[])] {
        let mut first = SmDaemon::start(server, HOST, options);
        assert!(!first.wait_for_up(1).contains(" 0 Sets "), "the first one has to write");
        first.crash();
        let mut second = SmDaemon::start(server, HOST, options);
        let told = second.wait_for_up(1);
        assert!(told.contains(" 0 Sets "), "{told}");
    }
}

#[test]
fn the_state_file_of_an_earlier_version_is_read() {
    let kept = |name: &str| format!("{}/fixtures/managers/22e25ee/{name}", env!("CARGO_MANIFEST_DIR"));
    let lids = |server: &Server| {
        [2, 7].map(|number| json(&server.control(&["counters", &host(number)]))["ports"][0]["lid"].clone())
    };
    let (partitions, bytes) = (kept("partitions.conf"), [0x5a; 32]);
    let (server, fresh) = (tree(), tree());
    std::fs::copy(kept("state.json"), server.file("state.json")).unwrap();
    let secret = server.secret(&bytes);
    let manager = SmDaemon::up(&server, HOST, &["--secret", &secret, "--partitions", &partitions]);
    assert_eq!(lids(&server), [json!(22), json!(21)]);
    assert_eq!(manager.status()["unmet"], json!({}));
    let mode = std::fs::metadata(server.file("state.json")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    // The controls: without it, ports get other LIDs; another secret than the one it speaks of is refused.
    let secret = fresh.secret(&bytes);
    let _manager = SmDaemon::up(&fresh, HOST, &["--secret", &secret, "--partitions", &partitions]);
    assert_ne!(lids(&fresh), [json!(22), json!(21)]);
    let other = tree();
    std::fs::copy(kept("state.json"), other.file("state.json")).unwrap();
    let secret = other.secret(&[0x5b; 32]);
    let mut refused = SmDaemon::start(&other, HOST, &["--secret", &secret, "--partitions", &partitions]);
    assert_ne!(refused.wait_for_end(), Some(0));
    assert!(refused.stderr().contains("secret"), "{}", refused.stderr());
}

#[test]
fn nodes_are_restored_and_protected_after_a_fault() {
    let server = tree();
    let secret = server.secret(&[0x5a; 32]);
    let mut manager = SmDaemon::up(&server, HOST, &["--secret", &secret]);
    let before = snapshot(&server);
    for (name, node) in &before {
        // The first port speaks for a switch, the only one for a host.
        let first = node["ports"][0].to_string();
        let is_closed = first.contains(r#"["m_key_set",true],["m_key_protection",2]"#);
        assert!(is_closed, "{name}: {first}");
    }
    for (node, port) in [("leaf-02", "5"), ("leaf-02", "1"), ("spine-01", "8")] {
        let times = manager.ups().len();
        assert!(server.control(&["link", "down", node, port]).success);
        manager.wait_for_up(times + 1);
        assert!(server.control(&["link", "up", node, port]).success);
        is_as_before(&server, &before, &format!("the cable at {node} {port} was plugged again"));
    }
    for node in ["host-00009", "leaf-03", "spine-02"] {
        let times = manager.ups().len();
        assert!(server.control(&["reboot", node]).success);
        manager.wait_for_up(times + 1);
        is_as_before(&server, &before, &format!("{node} was rebooted"));
    }
    // Host 10 is on the leaf that was rebooted, next to the host that was.
    for (path, guid) in [("0,1", leaf_guid(3)), ("0,1,1", guids(9).0)] {
        let ask = |options: &[&str]| {
            let arguments = [&["-D"], options, &["nodeinfo", path]].concat();
            server.tool(&host(10), "smpquery", &arguments)
        };
        assert!(!ask(&[]).success, "{path} answers without a key");
        let answer = ask(&["-y", &node_key(&guid, &secret)]);
        assert_eq!(answer.value("Guid"), Some(guid.as_str()), "{path} answers to its key: {answer:?}");
    }
    let status = manager.status();
    assert_eq!((&status["refused"]["count"], &status["unmet"]), (&json!(0), &json!({})), "{status}");
}

#[test]
fn a_reboot_or_unplugged_cable_is_not_drift() {
    let server = tree();
    let manager = SmDaemon::up(&server, HOST, &[]);
    let before = snapshot(&server);
    for command in [
        &["link", "down", "leaf-02", "1"][..],
        &["link", "down", "leaf-02", "5"],
        &["link", "up", "leaf-02", "1"],
        &["link", "up", "leaf-02", "5"],
        &["reboot", "host-00009"],
        &["reboot", "spine-02"],
    ] {
        assert!(server.control(command).success);
    }
    is_as_before(&server, &before, "many faults");
    let status = manager.status();
    assert_eq!(status["drift"]["count"], 0, "nobody changed anything: {status}");
}

// Another writer.

/// Writes an attribute behind a directed route, as software on `node`, and returns the answer.
fn write(
    server: &Server,
    node: &str,
    hops: &[u8],
    attribute: Attribute,
    modifier: u32,
    data: [u8; 64],
) -> Mad {
    let mut device = server.device(node, ClientRole::Ordinary);
    let route = DirectedRoute::new(hops.iter().map(|hop| PortNum::new(*hop).unwrap())).unwrap();
    let mut mad = Mad::directed(Method::SET, attribute, modifier, &route);
    *mad.smp_data_mut() = data;
    mad.set_transaction(TransactionId(7));
    device.send(&Datagram::subnet_management(LidAddress::Permissive, LidAddress::Permissive, mad)).unwrap();
    match device.receive(rig::PATIENCE).unwrap().expect("an answer or its loss") {
        Received::Datagram(answer) => answer.mad.clone(),
        Received::Lost(_) => panic!("{attribute:?} of {hops:?} is not answered"),
    }
}

#[test]
fn drift_is_reported_and_repaired() {
    let server = tree();
    let mut manager = SmDaemon::up(&server, HOST, &[]);
    let before = snapshot(&server);
    let sets = manager.status()["sets"].as_u64().unwrap();
    assert_eq!(manager.status()["drift"]["count"], 0);

    // Host 5 gives host 6 on the same leaf the key of a manager, and sends what leaves it for LID 9 another way.
    let mut block = PkeyBlock([None; 32]);
    block.0[0] = Pkey::from_wire(0xffff);
    let keys = block.encode();
    let answer = write(&server, &host(5), &[1, 2], Attribute::PKEY_TABLE, 0, keys);
    assert_eq!((answer.status(), answer.smp_data()), (Status::OK, &keys), "it was taken");
    let mut routes = [0xff; 64];
    for (lid, port) in before["leaf-02"]["tables"]["linear_forwarding"].as_object().unwrap() {
        routes[lid.parse::<usize>().unwrap()] = u8::try_from(port.as_u64().unwrap()).unwrap();
    }
    routes[9] = if routes[9] == 5 { 6 } else { 5 };
    let answer = write(&server, &host(5), &[1], Attribute::LINEAR_FORWARDING, 0, routes);
    assert_eq!((answer.status(), answer.smp_data()), (Status::OK, &routes), "it was taken");

    manager.wait_for_up(2);
    is_as_before(&server, &before, "drift");
    let status = manager.status();
    let told = status["drift"]["last"].to_string();
    for what in [format!("{} PKEY_TABLE 0x0", guids(6).0), format!("{} LINEAR_FORWARDING 0x0", leaf_guid(2))]
    {
        assert!(told.contains(&what), "{what}: {status}");
    }
    assert_eq!(status["drift"]["count"], 2, "nothing else is told: {status}");
    assert_eq!(status["sets"].as_u64().unwrap(), sets + 2, "nothing else is written: {status}");
}

// Partitions.

const BLUE_FULL: u64 = 0x8123;
const BLUE_LIMITED: u64 = 0x0123;

/// The hosts that hold a key.
fn holders(server: &Server, key: u64) -> Vec<u64> {
    (1..=16).filter(|number| pkeys(server, &host(*number), "1").contains(&key)).collect()
}

#[test]
fn partitions_follow_their_file_on_reload_and_on_sighup() {
    for by_signal in [false, true] {
        let server = tree();
        let conf = server.file("partitions.conf");
        std::fs::write(&conf, "# nobody\n").unwrap();
        let mut manager = SmDaemon::up(&server, HOST, &["--partitions", &conf]);
        let reload = |manager: &mut SmDaemon| -> Result<(), String> {
            if !by_signal {
                let printed = manager.control(&["reload"]);
                return if printed.success { Ok(()) } else { Err(printed.stderr) };
            }
            let (ups, refusals) =
                (manager.ups().len(), manager.stderr().matches("nothing was changed").count());
            manager.hang_up();
            eventually("it took or refused the file", || {
                let refused = manager.stderr().matches("nothing was changed").count() > refusals;
                refused || manager.ups().len() > ups
            });
            if manager.ups().len() > ups { Ok(()) } else { Err(manager.stderr()) }
        };
        assert!(holders(&server, BLUE_FULL).is_empty());

        std::fs::write(&conf, partition("blue", 0x123, &[2, 6], &[3])).unwrap();
        reload(&mut manager).unwrap();
        assert_eq!(holders(&server, BLUE_FULL), [2, 6]);
        assert_eq!(holders(&server, BLUE_LIMITED), [3]);
        assert!(pkeys(&server, "leaf-02", "2").contains(&BLUE_FULL), "the switch port enforces it");
        assert!(!pkeys(&server, "leaf-02", "1").contains(&BLUE_FULL));

        let before = snapshot(&server);
        for broken in ["blue=0x123 : nonsense=full;\n", "blue=0x123, colour=7 : ALL=full;\n", "blue=0x123 : "]
        {
            std::fs::write(&conf, broken).unwrap();
            let why = reload(&mut manager).unwrap_err();
            assert!(why.contains("partitions.conf: line "), "{broken:?}: {why}");
            assert_eq!(changed(&before, &snapshot(&server)), Vec::<String>::new(), "{broken:?}");
        }
        std::fs::write(&conf, partition("blue", 0x123, &[2], &[])).unwrap();
        reload(&mut manager).unwrap();
        assert_eq!(holders(&server, BLUE_FULL), [2]);
        assert!(holders(&server, BLUE_LIMITED).is_empty());
    }
}

// Taking over from another subnet manager.

/// LIDs and forwarding tables of every node, by GUID, as directed-route tools see them.
fn routes(server: &Server, nodes: &[String]) -> BTreeMap<String, Value> {
    let look = |name: &String| {
        let tables = json(&server.control(&["tables", name]));
        let shown = json(&server.control(&["counters", name]));
        let lids: Vec<_> =
            shown["ports"].as_array().unwrap().iter().map(|port| port["lid"].clone()).collect();
        (name.clone(), json!({ "lids": lids, "routes": tables["linear_forwarding"] }))
    };
    nodes.iter().map(look).collect()
}

fn lids(routes: &BTreeMap<String, Value>) -> Vec<Value> {
    routes.values().map(|node| node["lids"].clone()).collect()
}

#[test]
fn adopting_an_opensm_fabric_compares_first_and_then_applies() {
    let directory = tempfile::tempdir().unwrap();
    let torus = rig::generate(directory.path(), &["torus", "--dimensions", "3x3"]);
    for (net, engine) in [
        (rig::fixture("tree-16.ibnetdiscover"), "minhop"),
        (rig::fixture("tree-16.ibnetdiscover"), "ftree"),
        (torus, "minhop"),
    ] {
        let topology = fabric_model::ibnetdiscover::read(&std::fs::read(&net).unwrap()).unwrap();
        let nodes: Vec<String> = topology.nodes().map(|(_, node)| node.id.clone()).collect();
        let server = Server::heddle(&net, &[]);
        server.bring_up(HOST, &["-R", engine]);
        let (given, sets) = (routes(&server, &nodes), sets_asked(&server));

        let compared = once(&server, &["--adopt"]);
        assert!(compared.success, "{compared:?}");
        let count = format!("adopted: {0} of {0} LIDs and ", nodes.len());
        assert!(compared.stdout.contains(&count), "{compared:?}");
        assert!(
            compared.stdout.contains(" differences: ") && !compared.stdout.contains("up:"),
            "{compared:?}"
        );
        assert_eq!(sets_asked(&server), sets, "nothing is written without --apply");
        assert_eq!(routes(&server, &nodes), given);

        let state = server.file("state.json");
        let taken = once(&server, &["--adopt", "--apply", "--state", &state]);
        assert!(taken.success && taken.stdout.contains("\nup: "), "{taken:?}");
        assert!(sets_asked(&server) > sets);
        assert_eq!(lids(&routes(&server, &nodes)), lids(&given), "LIDs stay as opensm gave them");

        let (ours, sets) = (routes(&server, &nodes), sets_asked(&server));
        let again = once(&server, &["--adopt", "--apply", "--state", &state]);
        assert!(again.stdout.contains("no differences") && again.stdout.contains(" 0 Sets in"), "{again:?}");
        let restarted = once(&server, &["--state", &state]);
        assert!(restarted.stdout.contains(" 0 Sets in"), "{restarted:?}");
        assert_eq!((routes(&server, &nodes), sets_asked(&server)), (ours, sets));
        let with_lanes = once(&server, &["--adopt", "--apply", "--qos", "--state", &state]);
        assert!(with_lanes.stdout.contains("\nup: "), "{with_lanes:?}");
        assert!(sets_asked(&server) > sets, "with --qos, lanes are programmed, too");
    }
}

// Nodes that were moved.

/// Removes every binding of a node from a state file.
fn forget(path: &str, guid: &str) {
    let forgotten = |line: &str| {
        let mut value: Value = serde_json::from_str(line).unwrap();
        if let Some(nodes) = value.pointer_mut("/bindings/nodes").and_then(Value::as_array_mut) {
            nodes.retain(|binding| binding[1] != guid);
        }
        format!("{value}\n")
    };
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.contains(guid));
    std::fs::write(path, text.lines().map(forgotten).collect::<String>()).unwrap();
}

#[test]
fn a_moved_node_is_reported_until_it_is_adopted() {
    let server = tree();
    let secret = server.secret(&[0x5a; 32]);
    let state = server.file("state.json");
    let options = ["--secret", &secret, "--state", &state];
    assert!(once(&server, &options).success);
    let (node, stranger, place) = (guids(5).0, guids(16).0, format!("{}[1]", leaf_guid(2)));
    let adopt = |guid: &str| {
        Command::new(rig::HEDDLE)
            .args(["sm", "adopt-node", guid, "--behind", &place, "--state", &state])
            .output()
            .unwrap()
    };
    assert!(adopt(&stranger).status.success());
    let lost = once(&server, &options);
    let said = format!("no answer from behind {place}, where {stranger} was last found");
    assert!(!lost.success && lost.stderr.contains(&said), "{lost:?}");
    assert!(adopt(&node).status.success());
    let found = once(&server, &options);
    assert!(found.success && !found.stderr.contains("no answer"), "{found:?}");
}

/// A fabric that was programmed, a manager without the location of host 5, and that location.
fn forgetful() -> (Server, BTreeMap<String, Value>, SmDaemon, String) {
    let server = tree();
    let secret = server.secret(&[0x5a; 32]);
    let state = server.file("state.json");
    assert!(once(&server, &["--secret", &secret, "--state", &state]).success);
    let before = snapshot(&server);
    forget(&state, &guids(5).0);
    let manager = SmDaemon::up(&server, HOST, &["--secret", &secret]);
    (server, before, manager, format!("{}[1]", leaf_guid(2)))
}

#[test]
fn adopt_node_reaches_a_running_manager() {
    let (server, before, mut manager, place) = forgetful();
    let said = format!("no answer from behind {place}, where no node was last found");
    assert!(manager.stderr().contains(&said), "{}", manager.stderr());
    assert!(manager.status()["unmet"].get(&place).is_some());
    let shown = json(&server.control(&["counters", "leaf-02", "1"]));
    assert_ne!(shown["state"], "Active", "nobody gets through who is not known: {shown}");

    let refused = manager.control(&["adopt-node", &guids(5).0, "--behind", "nonsense"]);
    assert!(!refused.success && refused.stderr.contains("is not GUID[PORT]"), "{refused:?}");
    let adopted = manager.control(&["adopt-node", &guids(5).0, "--behind", &place]);
    assert!(adopted.success, "{adopted:?}");
    manager.wait_for_up(2);
    is_as_before(&server, &before, "the node was adopted");
}

#[test]
fn a_node_that_answers_again_is_not_reported_as_silent() {
    let (server, before, manager, place) = forgetful();
    assert!(manager.status()["unmet"].get(&place).is_some());
    assert!(manager.control(&["adopt-node", &guids(5).0, "--behind", &place]).success);
    is_as_before(&server, &before, "the node was adopted");
    let status = manager.status();
    assert_eq!(status["unmet"], json!({}), "{status}");
}

#[test]
fn a_comparison_writes_no_state_and_replaces_no_other_file() {
    let server = tree();
    let secret = server.secret(&[0x5a; 32]);
    let state = server.file("state.json");
    assert!(once(&server, &["--state", &state, "--adopt"]).success);
    assert!(!std::path::Path::new(&state).exists(), "a comparison decides nothing");
    assert!(once(&server, &["--state", &state, "--adopt", "--apply"]).success);
    assert!(std::path::Path::new(&state).exists());

    let refused = once(&server, &["--state", &state, "--secret", &secret, "--control", &secret]);
    assert!(!refused.success && refused.stderr.contains("is not a socket"), "{refused:?}");
    assert_eq!(std::fs::read(&secret).unwrap(), [0x5a; 32], "the secret is still there");
}

#[test]
fn another_secret_and_a_second_manager_are_rejected() {
    let server = tree();
    let (secret, state) = (server.secret(&[0x5a; 32]), server.file("state.json"));
    let manager = SmDaemon::up(&server, HOST, &["--secret", &secret]);
    let second = once(&server, &["--secret", &secret, "--state", &state]);
    assert!(!second.success && second.stderr.contains("another manager uses"), "{second:?}");
    drop(manager);
    assert!(once(&server, &["--secret", &secret, "--state", &state]).success, "now it is free");
    let other = server.secret(&[0x5b; 32]);
    let wrong = once(&server, &["--secret", &other, "--state", &state]);
    assert!(!wrong.success && wrong.stderr.contains("keys of another secret"), "{wrong:?}");
}
