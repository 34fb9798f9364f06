//! Two `heddle sm` as processes: what the master remembers reaches the other one, which takes over.

use std::io::Write as _;
use std::time::Duration;

use controller_api::fabric::FabricState;
use controller_api::operation::OperationState;
use serde_json::{Value, json};

use crate::rig::tree::{guids, host, tree};
use crate::rig::{Printed, Server, SmDaemon, eventually};
use crate::site::{Site, new_cluster};

/// Hosts of the two managers.
const PAIR: [u64; 2] = [1, 12];

fn json(printed: &Printed) -> Value {
    serde_json::from_str(&printed.stdout).unwrap_or_else(|_| panic!("{printed:?}"))
}

fn socket(server: &Server, number: usize) -> String {
    server.file(&format!("sm-{number}.sock"))
}

/// One of the two managers.
fn start(server: &Server, number: usize, options: &[&str]) -> SmDaemon {
    let other = 1 - number;
    let peer = format!("{}={}", guids(PAIR[other]).1, socket(server, other));
    let priority = (15 - number).to_string();
    // On a busy machine a manager may pause for longer than the default allows.
    let mut all = vec!["--peer", &peer, "--priority", &priority, "--takeover-after", "4"];
    all.extend(options);
    let device = server.device_spec(&host(PAIR[number]));
    let state = server.file(&format!("state-{number}.json"));
    SmDaemon::start_controlled(&[], &device, server.scratch(), socket(server, number).into(), (&state, &all))
}

fn is_master(manager: &SmDaemon) -> bool {
    let printed = manager.control(&["status"]);
    printed.success && json(&printed)["role"] == "master"
}

fn is_followed(manager: &SmDaemon, number: usize) -> bool {
    manager.status()["standbys"] == json!([guids(PAIR[number]).1])
}

/// Both managers, the first of which is the master.
fn pair(server: &Server, options: &[&str]) -> [SmDaemon; 2] {
    let mut first = start(server, 0, options);
    first.wait_for_up(1);
    let second = start(server, 1, options);
    eventually("the second one follows", || is_followed(&first, 1));
    [first, second]
}

/// Sets that software on a host has sent so far.
fn sets_of(server: &Server, number: u64) -> u64 {
    let node = format!("H-{}", &guids(number).0[2..]);
    let status = json(&server.control(&["status"]));
    let sets = status["requests"][&node]["set"].as_object();
    sets.into_iter().flat_map(|sets| sets.values()).filter_map(Value::as_u64).sum()
}

/// Whether saquery on a host finds the manager and is answered.
fn saquery_is_answered(server: &Server) -> bool {
    server.tool(&host(6), "saquery", &["-c"]).stdout.contains("SA ClassPortInfo")
}

#[test]
fn a_standby_manager_takes_over_with_the_keys_of_all_nodes() {
    let server = tree();
    let secret = server.secret(&[0x5a; 32]);
    let partitions = server.file("partitions.conf");
    std::fs::write(&partitions, "blue=0x8001, ipoib : ALL_CAS=limited;\n").unwrap();
    let [first, second] = pair(&server, &["--secret", &secret, "--partitions", &partitions]);
    assert!(saquery_is_answered(&server));
    // Keys of another epoch, of which only the master knew at first.
    let rotated = first.control(&["rotate-keys"]);
    assert!(rotated.success, "{rotated:?}");
    let before = sets_of(&server, PAIR[1]);
    first.crash();
    eventually("the second one is the master", || is_master(&second));
    eventually("hosts are answered", || saquery_is_answered(&server));
    // One Set for each of 22 nodes, and nothing else.
    eventually("every port knows the new master", || sets_of(&server, PAIR[1]) >= before + 22);
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(sets_of(&server, PAIR[1]) - before, 22);
    assert!(second.control(&["rotate-keys"]).success, "it is a manager as any other");

    let first = start(&server, 0, &["--secret", &secret, "--partitions", &partitions]);
    eventually("the first one follows now", || is_followed(&second, 0));
    assert!(!is_master(&first));
    let refused = first.control(&["rotate-keys"]);
    assert!(!refused.success && refused.stderr.contains("standby"), "{refused:?}");
}

#[test]
fn a_stopped_master_sends_no_set_when_it_continues() {
    let server = tree();
    let [first, second] = pair(&server, &[]);
    first.pause();
    eventually("the second one is the master", || is_master(&second));
    eventually("hosts are answered", || saquery_is_answered(&server));
    let before = sets_of(&server, PAIR[0]);
    first.resume();
    eventually("the first one waits", || first.status()["role"] == "standby");
    eventually("and follows", || is_followed(&second, 0));
    assert_eq!(sets_of(&server, PAIR[0]), before);
    assert!(is_master(&second));
}

/// Each half of the split tree has a master, whose memory is its own.
#[test]
fn a_manager_that_lost_its_half_follows_again() {
    let server = tree();
    let partitions = server.file("partitions.conf");
    std::fs::write(&partitions, "blue=0x8001 : ALL_CAS=full;\n").unwrap();
    let [first, second] = pair(&server, &["--partitions", &partitions]);
    let link = |to: &str| {
        // One half keeps one spine, the other half the other.
        for (leaf, ports) in
            [("leaf-01", [7, 8]), ("leaf-02", [7, 8]), ("leaf-03", [5, 6]), ("leaf-04", [5, 6])]
        {
            for port in ports {
                assert!(server.control(&["link", to, leaf, &port.to_string()]).success);
            }
        }
    };
    link("down");
    eventually("the second half has a master", || is_master(&second));
    assert!(is_master(&first));
    link("up");
    eventually("the second one waits", || second.status()["role"] == "standby");
    eventually("and follows", || is_followed(&first, 1));
    std::fs::write(&partitions, "blue=0x8001 : ALL_CAS=full;\nred=0x8002 : ALL_CAS=full;\n").unwrap();
    assert!(first.control(&["reload"]).success);
    assert!(is_followed(&first, 1), "it was not left out");
    let text = std::fs::read_to_string(server.file("state-1.json")).unwrap();
    assert!(text.contains("32770"), "it knows what came after");
}

#[test]
fn a_standby_manager_that_hangs_is_left_out_and_catches_up() {
    let server = tree();
    let partitions = server.file("partitions.conf");
    std::fs::write(&partitions, "blue=0x8001 : ALL_CAS=full;\n").unwrap();
    let [first, second] = pair(&server, &["--partitions", &partitions]);
    second.pause();
    std::fs::write(&partitions, "blue=0x8001 : ALL_CAS=full;\nred=0x8002 : ALL_CAS=full;\n").unwrap();
    let reloaded = first.control(&["reload"]);
    assert!(reloaded.success, "{reloaded:?}");
    assert!(reloaded.stdout.contains("3 partitions"), "{reloaded:?}");
    assert_eq!(first.status()["standbys"], json!([]));
    assert!(first.stderr().contains("left out"), "{}", first.stderr());
    let text = std::fs::read_to_string(server.file("state-0.json")).unwrap();
    assert!(text.lines().last().unwrap().contains("\"standbys\":[]"), "it is stored: {text}");
    second.resume();
    eventually("it follows again", || is_followed(&first, 1));
    let text = std::fs::read_to_string(server.file("state-1.json")).unwrap();
    assert!(text.contains("32770"), "with the P_Keys that it missed");
}

#[test]
fn hosts_and_other_managers_are_answered_while_a_plan_is_made() {
    let server = tree();
    let partitions = server.file("partitions.conf");
    let blue = "blue=0x8001 : ALL_CAS=full;\n";
    std::fs::write(&partitions, blue).unwrap();
    let [first, second] = pair(&server, &["--partitions", &partitions]);
    // A plan takes as long as this file is read.
    std::fs::remove_file(&partitions).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&partitions).status().unwrap().success());
    std::thread::scope(|scope| {
        let reload = scope.spawn(|| first.control(&["reload"]));
        let mut file = std::fs::OpenOptions::new().write(true).open(&partitions).unwrap();
        std::thread::sleep(Duration::from_secs(6));
        eventually("hosts are answered", || saquery_is_answered(&server));
        assert_eq!(second.status()["role"], "standby", "it waits for 4 seconds without an answer");
        file.write_all(blue.as_bytes()).unwrap();
        file.write_all(b"red=0x8002 : ALL_CAS=full;\n").unwrap();
        drop(file);
        let reloaded = reload.join().unwrap();
        assert!(reloaded.stdout.contains("3 partitions"), "{reloaded:?}");
    });
    assert!(is_followed(&first, 1), "it was answered all the while");
}

#[test]
fn nobody_else_is_obeyed_and_nobody_else_may_follow() {
    let server = tree();
    let secret = server.secret(&[0x5a; 32]);
    let [first, second] = pair(&server, &["--secret", &secret]);
    let stranger = server.opensm_beside(&host(7), &["-p", "15"]);
    let place = format!("{}[1]", guids(7).0);
    eventually("opensm at priority 15 is reported", || {
        first.status()["foreign_managers"].get(&place).is_some()
    });
    first.crash();
    eventually("the second one is the master", || is_master(&second));
    eventually("hosts are answered", || saquery_is_answered(&server));
    assert!(!stranger.log().contains("SUBNET UP"), "{}", stranger.log());
    let follow = json!({ "command": "follow", "manager": guids(7).1 });
    let reply = ask(&socket(&server, 1), &follow);
    assert!(reply["error"].to_string().contains("is not a declared manager"), "{reply}");
    let remembered = json!({ "command": "remembered", "manager": guids(PAIR[0]).1, "sequence": 999 });
    assert!(ask(&socket(&server, 1), &remembered)["error"].to_string().contains("does not follow"));
}

#[test]
fn the_controller_follows_the_master() {
    let server = tree();
    let secret = server.secret(&[0x5a; 32]);
    let options = ["--external-plans", "--secret", &secret];
    let first = start(&server, 0, &options);
    eventually("the first one is the master", || is_master(&first));
    let second = start(&server, 1, &options);
    let hosts = ["host-00002", "host-00003", "host-00004"].map(|name| name.parse().unwrap()).to_vec();
    // The one that waits is asked first.
    let site = Site::managed_by_one_of(vec![socket(&server, 1).into(), socket(&server, 0).into()], hosts);
    let blue = site.tenant("blue");
    let created = site.ask(blue.cluster_create(&new_cluster("one", 2))).unwrap();
    assert_eq!(site.wait(&blue, &created).state, OperationState::Done);
    eventually("the second one follows", || is_followed(&first, 1));
    let before = sets_of(&server, PAIR[1]);
    first.crash();
    eventually("the second one is the master", || is_master(&second));
    let operator = site.operator();
    eventually("its plan is in force", || {
        site.ask(operator.fabric_show()).unwrap().state == FabricState::Programmed
    });
    let sets = sets_of(&server, PAIR[1]) - before;
    assert!(sets <= 22, "one Set for each end port, got {sets}");
    let created = site.ask(blue.cluster_create(&new_cluster("two", 2))).unwrap();
    assert_eq!(site.wait(&blue, &created).state, OperationState::Done, "all goes on");
}

/// The first reply of a control socket.
fn ask(socket: &str, request: &Value) -> Value {
    use std::io::{BufRead, BufReader};
    let mut stream = std::os::unix::net::UnixStream::connect(socket).unwrap();
    writeln!(stream, "{request}").unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap()
}

#[test]
fn wrong_declarations_are_refused() {
    let server = tree();
    let own = format!("{}=/nowhere", guids(1).1);
    for (peer, said) in [
        (own.as_str(), "names the port of this manager"),
        ("12=", "names no socket"),
        ("nonsense=/x", "is not a port GUID"),
    ] {
        let mut manager = start_alone(&server, peer);
        assert_ne!(manager.wait_for_end(), Some(0), "{peer}");
        assert!(manager.stderr().contains(said), "{peer}: {}", manager.stderr());
    }
}

fn start_alone(server: &Server, peer: &str) -> SmDaemon {
    SmDaemon::start(server, &host(1), &["--peer", peer])
}
