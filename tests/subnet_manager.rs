//! `heddle sm` configures fabrics on the public ibsim and on `heddle sim`, and stock tools confirm it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod rig;

use std::path::Path;
use std::process::Command;

use rig::Server;

/// Configures the fabric once and returns what was printed.
fn configure(server: &Server, node: &str, options: &[&str]) -> String {
    let output = Command::new(rig::HEDDLE)
        .args(["sm", "--once", "--device", &format!("ibsim:{}@{node}", server.name)])
        .args(["--decisions", server.scratch().join("decisions.json").to_str().unwrap()])
        .args(options)
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    printed
}

fn first_host(net: &Path) -> String {
    let topology = fabric_model::ibnetdiscover::read(&std::fs::read(net).unwrap()).unwrap();
    topology.end_nodes().next().unwrap().1.id.clone()
}

/// Every cabled port is active, and hosts reach each other by LID.
fn confirm(server: &Server, node: &str) {
    let links = server.tool(node, "iblinkinfo", &[]).stdout;
    let cabled: Vec<_> = links.lines().filter(|line| line.contains("==>") && line.contains("LinkUp")).collect();
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
fn fabrics_of_every_shape_come_up_on_both_emulations_and_a_second_run_writes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let shapes: [&[&str]; 4] = [
        &["fat-tree", "--hosts", "54", "--radix", "6"],
        &["torus", "--dimensions", "3x3"],
        &["dragonfly-plus", "--groups", "3"],
        &["random", "--switches", "12", "--degree", "3", "--hosts-per-switch", "2", "--seed", "5"],
    ];
    let mut nets: Vec<_> = shapes.iter().map(|arguments| rig::generate(directory.path(), arguments)).collect();
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
fn partitions_reach_the_tables_of_adapters_and_of_their_switch_ports() {
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
    for (device, reason) in [("ibsim:no-such-server", "no-such-server"), ("umad:77", "umad77"), ("nonsense", "umad:N")] {
        let output = Command::new(rig::HEDDLE).args(["sm", "--once", "--device", device]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(reason), "{device}: {said}");
    }
}
