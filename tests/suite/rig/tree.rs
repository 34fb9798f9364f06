//! A small tree of 16 hosts that a manager runs: its names, what its devices hold, and programs that ask and change it.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use super::{PATIENCE, Printed, Server};

/// The host of the subnet manager.
pub const HOST: &str = "host-00001";

pub fn tree() -> Server {
    Server::heddle(&super::fixture("tree-16.ibnetdiscover"), &[])
}

pub fn public_tree() -> Server {
    Server::ibsim(&super::fixture("tree-16.ibnetdiscover"))
}

/// A host of the tree, by its number.
pub fn host(number: u64) -> String {
    format!("host-{number:05}")
}

/// The GUIDs that the tree gives a host, as a node and as a port.
pub fn guids(number: u64) -> (String, String) {
    let node = 0x0002_c903_0010_0000 + (number - 1) * 0x10;
    (format!("{node:#018x}"), format!("{:#018x}", node + 1))
}

/// The GUID of a leaf of the tree, by its number.
pub fn leaf_guid(number: u64) -> String {
    format!("{:#018x}", 0x0002_c903_0020_0000_u64 + (number - 1) * 0x10)
}

pub fn tree_nodes() -> Vec<String> {
    let switches = ["leaf-01", "leaf-02", "leaf-03", "leaf-04", "spine-01", "spine-02"];
    (1..=16).map(host).chain(switches.map(str::to_owned)).collect()
}

pub fn json(printed: &Printed) -> Value {
    serde_json::from_str(&printed.stdout).unwrap_or_else(|_| panic!("{printed:?}"))
}

/// Everything that management decides about every node: tables, addresses, states and keys, but no counters.
pub fn snapshot(server: &Server) -> BTreeMap<String, Value> {
    let decided = ["number", "lid", "lmc", "state", "physical_state", "m_key_set", "m_key_protection"];
    let look = |node: String| {
        let tables = json(&server.control(&["tables", &node]));
        let shown = json(&server.control(&["counters", &node]));
        let ports = shown["ports"].as_array().unwrap().iter();
        let ports: Vec<_> = ports.map(|port| decided.map(|key| (key, port[key].clone()))).collect();
        (node, json!({ "tables": tables, "ports": ports }))
    };
    tree_nodes().into_iter().map(look).collect()
}

/// The same but for whether links are up.
pub fn without_states(snapshot: &BTreeMap<String, Value>) -> BTreeMap<String, Value> {
    let mut snapshot = snapshot.clone();
    for node in snapshot.values_mut() {
        for port in node["ports"].as_array_mut().unwrap() {
            let fields = port.as_array_mut().unwrap();
            fields.retain(|field| field[0] != "state" && field[0] != "physical_state");
            assert_eq!(fields.len(), 5);
        }
    }
    snapshot
}

/// The names of nodes that are not as they were.
pub fn changed(before: &BTreeMap<String, Value>, after: &BTreeMap<String, Value>) -> Vec<String> {
    before.iter().filter(|(name, value)| after[*name] != **value).map(|(name, _)| name.clone()).collect()
}

pub fn is_as_before(server: &Server, before: &BTreeMap<String, Value>, what: &str) {
    let (mut last, mut differing): (Vec<String>, Vec<String>) = Default::default();
    let started = std::time::Instant::now();
    while started.elapsed() < PATIENCE {
        let after = snapshot(server);
        last = changed(before, &after);
        differing = last.iter().map(|name| format!("{}\nwas\n{}", after[name], before[name])).collect();
        if last.is_empty() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("after {what} these never get as they were: {last:?}\n{}", differing.join("\n"));
}

/// The partition keys of a node's port.
pub fn pkeys(server: &Server, node: &str, port: &str) -> Vec<u64> {
    let tables = json(&server.control(&["tables", node]));
    tables["pkeys"][port].as_array().unwrap().iter().filter_map(Value::as_u64).collect()
}

/// Number of Sets that software on any node has sent so far.
pub fn sets_asked(server: &Server) -> u64 {
    let status = json(&server.control(&["status"]));
    let ports = status["requests"].as_object().unwrap().values();
    ports.flat_map(|asked| asked["set"].as_object().unwrap().values()).filter_map(Value::as_u64).sum()
}

/// `heddle sm --once` on a server.
pub fn once(server: &Server, options: &[&str]) -> Printed {
    let output = Command::new(super::HEDDLE)
        .args(["sm", "--once", "--device", &server.device_spec(HOST)])
        .args(options)
        .output()
        .unwrap();
    Printed::of(output)
}

pub fn node_key(guid: &str, secret: &str) -> String {
    node_key_in(guid, secret, 0)
}

/// The key of a node in an epoch.
pub fn node_key_in(guid: &str, secret: &str, epoch: u32) -> String {
    let output = Command::new(super::HEDDLE)
        .args(["node-key", guid, "--secret", secret, "--epoch", &epoch.to_string()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A partition of full and limited members, as a line of a file.
pub fn partition(name: &str, number: u16, full: &[u64], limited: &[u64]) -> String {
    let list = |hosts: &[u64], how: &'static str| -> Vec<String> {
        hosts.iter().map(|number| format!("{}={how}", guids(*number).1)).collect()
    };
    let members = [list(full, "full"), list(limited, "limited")].concat().join(", ");
    format!("{name}={number:#x} : {members};\n")
}
