//! `heddle sm` configures fabrics on the public ibsim and on `heddle sim`, and stock tools confirm it.

use std::path::Path;
use std::process::{Command, Output};

use crate::rig::{self, Server};

/// Configures the fabric once and returns what was printed.
fn configure(server: &Server, node: &str, options: &[&str]) -> String {
    let output = run(server, node, options);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    printed
}

fn run(server: &Server, node: &str, options: &[&str]) -> Output {
    Command::new(rig::HEDDLE)
        .args(["sm", "--once", "--device", &format!("ibsim:{}@{node}", server.name)])
        .args(["--state", server.scratch().join("state.json").to_str().unwrap()])
        .args(options)
        .output()
        .unwrap()
}

fn first_host(net: &Path) -> String {
    let topology = fabric_model::ibnetdiscover::read(&std::fs::read(net).unwrap()).unwrap();
    topology.end_nodes().next().unwrap().1.id.clone()
}

/// Every cabled port is active, and hosts reach each other by LID.
fn confirm(server: &Server, node: &str) {
    let links = server.tool(node, "iblinkinfo", &[]).stdout;
    let cabled: Vec<_> =
        links.lines().filter(|line| line.contains("==>") && line.contains("LinkUp")).collect();
    assert!(!cabled.is_empty());
    let inactive = cabled.iter().find(|line| !line.contains("Active"));
    assert!(inactive.is_none(), "{inactive:?}");
    let hosts = server.tool(node, "ibhosts", &[]).stdout.lines().count().min(12);
    for lid in 2..=hosts {
        let traced = server.tool(node, "ibtracert", &["1", &lid.to_string()]);
        assert!(traced.success && traced.stdout.contains("To ca"), "1 to {lid}: {traced:?}");
    }
}

#[test]
fn every_topology_comes_up_and_a_second_run_sends_no_set() {
    let directory = tempfile::tempdir().unwrap();
    let shapes: [&[&str]; 4] = [
        &["fat-tree", "--hosts", "54", "--radix", "6"],
        &["torus", "--dimensions", "3x3"],
        &["dragonfly-plus", "--groups", "3"],
        &["random", "--switches", "12", "--degree", "3", "--hosts-per-switch", "2", "--seed", "5"],
    ];
    let mut nets: Vec<_> =
        shapes.iter().map(|arguments| rig::generate(directory.path(), arguments)).collect();
    nets.push(rig::fixture("loginoff-2014.ibnetdiscover"));
    for net in nets {
        let host = first_host(&net);
        let ours = Server::heddle(&net, &[]);
        configure(&ours, &host, &[]);
        confirm(&ours, &host);
        let again = configure(&ours, &host, &[]);
        assert!(again.contains(" 0 Sets "), "{net:?}: {again}");

        let public = Server::ibsim(&net);
        configure(&public, &host, &[]);
        confirm(&public, &host);
    }
}

#[test]
fn partitions_are_written_to_adapters_and_switch_ports() {
    let server = Server::heddle(&rig::fixture("tree-16.ibnetdiscover"), &[]);
    let host = "host-00001";
    let conf = server.scratch().join("partitions.conf");
    let guid = |name: &str| {
        let printed = server.tool(name, "smpquery", &["-D", "nodeinfo", "0"]);
        printed.value("PortGuid").unwrap().to_owned()
    };
    let blue = format!("blue=0x123 : {}=full, {}=limited;\n", guid("host-00002"), guid("host-00003"));
    std::fs::write(&conf, blue).unwrap();
    configure(&server, host, &["--partitions", conf.to_str().unwrap()]);
    let keys = |path: &str, arguments: &[&str]| {
        let mut all = vec!["-D", "pkeys", path];
        all.extend(arguments);
        server.tool(host, "smpquery", &all).stdout
    };
    assert!(keys("0,1,2", &[]).contains("0x8123"), "{}", keys("0,1,2", &[]));
    assert!(keys("0,1,3", &[]).contains("0x0123"), "{}", keys("0,1,3", &[]));
    assert!(!keys("0,1,4", &[]).contains("0123") && !keys("0,1,4", &[]).contains("8123"));
    assert!(keys("0,1", &["2"]).contains("0x8123"), "the switch port enforces the same table");
    let port = server.tool(host, "smpquery", &["-D", "portinfo", "0,1", "2"]);
    assert_eq!((port.value("PartEnforceInb"), port.value("PartEnforceOutb")), (Some("1"), Some("1")));

    std::fs::write(&conf, "# nobody\n").unwrap();
    let printed = configure(&server, host, &["--partitions", conf.to_str().unwrap()]);
    assert!(!keys("0,1,2", &[]).contains("8123"), "removed again: {printed}");
    assert!(printed.contains(" 4 Sets "), "two adapters and their two switch ports: {printed}");
}

/// A site secret that only its owner can read.
fn secret(server: &Server) -> String {
    use std::os::unix::fs::PermissionsExt;
    let path = server.scratch().join("site.secret");
    std::fs::write(&path, [0x5a; 32]).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn every_node_gets_its_own_m_key_and_a_restart_knows_it() {
    let server = Server::heddle(&rig::fixture("tree-16.ibnetdiscover"), &[]);
    let (host, secret) = ("host-00001", secret(&server));
    let paths = ["0", "0,1", "0,1,2", "0,1,5", "0,1,5,3", "0,1,5,3,2"];
    let guids: Vec<String> = paths
        .iter()
        .map(|path| {
            server.tool(host, "smpquery", &["-D", "nodeinfo", path]).value("Guid").unwrap().to_owned()
        })
        .collect();
    configure(&server, host, &["--secret", &secret]);
    let key = |guid: &str| {
        let output =
            Command::new(rig::HEDDLE).args(["node-key", guid, "--secret", &secret]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    for (path, guid) in paths.iter().zip(&guids) {
        let answers = |key: Option<&str>| {
            let mut arguments = vec!["-D"];
            arguments.extend(key.map(|key| ["-y", key]).iter().flatten());
            arguments.extend(["nodeinfo", path]);
            server.tool(host, "smpquery", &arguments).success
        };
        assert!(!answers(None), "{path} answers without a key");
        assert!(answers(Some(&key(guid))), "{path} does not answer to its key");
        let other = guids.iter().find(|other| *other != guid).unwrap();
        assert!(!answers(Some(&key(other))), "{path} answers to the key of {other}");
    }
    let again = configure(&server, host, &["--secret", &secret]);
    assert!(again.contains(" 0 Sets "), "{again}");
}

#[test]
fn without_its_state_the_manager_reports_silent_locations() {
    let server = Server::heddle(&rig::fixture("tree-16.ibnetdiscover"), &[]);
    let (host, secret) = ("host-00001", secret(&server));
    configure(&server, host, &["--secret", &secret]);
    std::fs::remove_file(server.scratch().join("state.json")).unwrap();
    let lost = run(&server, host, &["--secret", &secret]);
    let said = String::from_utf8_lossy(&lost.stderr);
    assert!(
        !lost.status.success() && said.contains("no answer from behind the manager's own node"),
        "{said}"
    );
}

#[test]
fn a_node_that_lost_its_key_is_closed_again() {
    let server = Server::heddle(&rig::fixture("tree-16.ibnetdiscover"), &[]);
    let (host, secret) = ("host-00001", secret(&server));
    configure(&server, host, &["--secret", &secret]);
    let open = || server.tool(host, "smpquery", &["-D", "nodeinfo", "0,1,2"]).success;
    assert!(!open());
    assert!(server.control(&["reboot", "host-00002"]).success);
    assert!(open(), "a node that restarted has no key");
    configure(&server, host, &["--secret", &secret]);
    assert!(!open());
    confirm_one(&server, &secret);
}

/// The second host still has its LID and its link.
fn confirm_one(server: &Server, secret: &str) {
    let shown = server.control(&["counters", "host-00002", "1"]).stdout;
    let port: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!((&port["state"], &port["m_key_set"]), (&"Active".into(), &true.into()), "{shown}");
    assert!(!shown.contains("5a5a") && std::fs::read(secret).unwrap().len() == 32);
}

#[test]
fn a_secret_that_others_can_read_or_guess_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("secret");
    for (bytes, mode, reason) in
        [(32, 0o644, "can be read by others"), (31, 0o600, "at least 32 random bytes")]
    {
        std::fs::write(&path, vec![7; bytes]).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let output =
            Command::new(rig::HEDDLE).args(["node-key", "0x1", "--secret"]).arg(&path).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(reason), "{said}");
    }
}

#[test]
fn a_lossy_fabric_comes_up_all_the_same() {
    let server = Server::heddle(&rig::fixture("tree-16.ibnetdiscover"), &["--seed", "11"]);
    assert!(server.control(&["loss", "0.01"]).success);
    assert!(server.control(&["duplicate", "0.05"]).success);
    configure(&server, "host-00001", &[]);
    assert!(server.control(&["loss", "0"]).success);
    assert!(server.control(&["duplicate", "0"]).success);
    confirm(&server, "host-00001");
}

#[test]
fn a_device_that_is_not_there_is_said_to_be_missing() {
    for (device, reason) in
        [("ibsim:no-such-server", "no-such-server"), ("umad:77", "umad77"), ("nonsense", "umad:N")]
    {
        let output = Command::new(rig::HEDDLE).args(["sm", "--once", "--device", device]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(reason), "{device}: {said}");
    }
}
