//! Two hundred clusters are created, resized and deleted on `heddle sim`, programmed by `heddle sm`: after every change
//! the tables of the devices are read back and verified.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;

use fabric_compiler::{CompileError, compile, recompile};
use fabric_model::intent::{
    ClusterIntent, Ipoib, Member, MemberSelector, PartitionIntent, PkeyPlacement, Role,
};
use fabric_model::plan::Enforcement;
use fabric_model::tenancy::{Bandwidth, Class, SlMode};
use fabric_model::{Decisions, FabricPlan, Intents, Topology, ibnetdiscover};
use fabric_sim::BuiltInProfile;
use fabric_verifier::{Finding, verify};
use ib_wire::{Guid, Pkey};
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64;
use serde_json::{Value, json};

use crate::rig::{self, Server, SmDaemon, eventually};

const SEED: u64 = 20_261_115;

/// The host of the subnet manager; no cluster uses it.
const HOST: &str = "host-00001";

/// Number of clusters in a run on strict devices.
const CLUSTERS: usize = 200;

/// Number of clusters in a run on other devices.
const FEW_CLUSTERS: usize = 40;

/// Sends a request to the manager, and returns the first reply.
fn ask(manager: &SmDaemon, request: &Value) -> Result<Value, String> {
    let mut stream = UnixStream::connect(manager.socket()).unwrap();
    writeln!(stream, "{request}").unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    let mut answer: Value = serde_json::from_str(&line).unwrap();
    match answer["error"].as_str() {
        Some(error) => Err(error.to_owned()),
        None => Ok(answer["ok"].take()),
    }
}

/// A running manager, and the clusters that its plan places.
struct Site {
    manager: SmDaemon,
    topology: Topology,
    intents: Intents,
    plan: FabricPlan,
    /// Ports of hosts that clusters may use.
    hosts: Vec<Guid>,
}

impl Site {
    fn new(manager: SmDaemon) -> Self {
        let seen = ask(&manager, &json!({ "command": "watch" })).unwrap();
        let topology = ibnetdiscover::parse(seen["topology"].as_str().unwrap()).unwrap();
        let mut intents = Intents::new(serde_json::from_value(seen["manager"].clone()).unwrap());
        intents.capabilities = serde_json::from_value(seen["capabilities"].clone()).unwrap();
        let hosts = topology.end_nodes().filter(|(_, node)| node.is_host_adapter());
        let ports = hosts.map(|(_, node)| node.ports().next().unwrap().1.guid);
        let hosts = ports.filter(|port| *port != intents.manager).collect();
        let plan = compile(&topology, &intents, &Decisions::default()).unwrap();
        Self { manager, topology, intents, plan, hosts }
    }

    /// The hosts that a cluster may use.
    fn free_for(&self, name: &str, class: Class) -> Vec<Guid> {
        let owned = |port: &Guid| {
            let mut others = self.intents.clusters.iter().filter(|other| other.name != name);
            others.any(|other| other.ports.contains(port))
        };
        let used = |port: &Guid| {
            let mut others = self.intents.partitions.iter().filter(|other| other.name != name);
            others.any(|other| {
                other.members.iter().any(|member| member.selector == MemberSelector::Port(*port))
            })
        };
        let is_free = |port: &&Guid| match class {
            Class::BestEffort => !owned(port),
            Class::Guaranteed { .. } => !used(port),
        };
        self.hosts.iter().filter(is_free).copied().collect()
    }

    fn ports_of(&self, name: &str) -> Vec<Guid> {
        let partition = self.intents.partitions.iter().find(|partition| partition.name == name);
        let members = partition.into_iter().flat_map(|partition| &partition.members);
        members
            .filter_map(|member| match member.selector {
                MemberSelector::Port(port) => Some(port),
                _ => None,
            })
            .collect()
    }

    /// The intents with a cluster on these ports; without the cluster if there are none.
    fn with(&self, name: &str, class: Class, ports: &[Guid]) -> Intents {
        let mut intents = self.intents.clone();
        intents.partitions.retain(|partition| partition.name != name);
        intents.clusters.retain(|cluster| cluster.name != name);
        if !ports.is_empty() {
            let member = |port: &Guid| Member {
                selector: MemberSelector::Port(*port),
                role: Role::Full,
                placement: PkeyPlacement::Anywhere,
            };
            let members = ports.iter().map(member).collect();
            let ipoib = Some(Ipoib::default());
            intents.partitions.push(PartitionIntent { name: name.to_owned(), number: None, members, ipoib });
            if class != Class::BestEffort {
                let (name, ports) = (name.to_owned(), ports.to_vec());
                // Every second cluster has a service level for each pair of switches.
                let is_odd = name.bytes().next_back().is_some_and(|last| last % 2 == 1);
                let sl_mode = if is_odd { SlMode::Path } else { SlMode::Cluster };
                intents.clusters.push(ClusterIntent { name, ports, class, sl_mode });
            }
        }
        intents
    }

    /// Programs the intents and verifies the tables of the devices; false if they were not admitted.
    fn change(&mut self, intents: Intents) -> bool {
        let plan = match recompile(&self.topology, &intents, &self.plan) {
            Ok(plan) => plan,
            Err(CompileError::NotAdmitted { .. }) => return false,
            Err(error) => panic!("{error}"),
        };
        assert_eq!(verify(&self.topology, &intents, &plan), []);
        ask(&self.manager, &json!({ "command": "plan", "plan": plan })).unwrap();
        (self.intents, self.plan) = (intents, plan);
        assert_eq!(self.judge(), []);
        true
    }

    /// The tables that devices hold, as a plan.
    fn read_back(&self) -> FabricPlan {
        serde_json::from_value(ask(&self.manager, &json!({ "command": "read-back" })).unwrap()).unwrap()
    }

    fn judge(&self) -> Vec<Finding> {
        let held = self.read_back();
        let findings = verify(&self.topology, &self.intents, &held);
        if findings.is_empty() {
            assert_same(&held, &self.plan);
        }
        findings
    }
}

/// Compares tables entry by entry, including those that no rule checks.
fn assert_same(held: &FabricPlan, plan: &FabricPlan) {
    assert_eq!(
        (held.switches().len(), held.adapter_ports().len()),
        (plan.switches().len(), plan.adapter_ports().len())
    );
    for (held, plan) in held.switches().zip(plan.switches()) {
        assert_eq!((held.lid, &held.linear, &held.multicast), (plan.lid, &plan.linear, &plan.multicast));
        assert_eq!(held.pkeys, plan.pkeys);
        for (held, plan) in held.ports.iter().zip(plan.ports.iter()) {
            assert_eq!((held.number, &held.enforcement), (plan.number, &plan.enforcement));
            assert_eq!(held.qos.is_some(), plan.qos.is_some());
            let low = |sharing: &Option<std::sync::Arc<_>>| {
                sharing
                    .as_ref()
                    .map(|sharing: &std::sync::Arc<fabric_model::plan::PortQos>| sharing.low.clone())
            };
            assert_eq!(low(&held.qos), low(&plan.qos));
        }
    }
    for (held, plan) in held.adapter_ports().zip(plan.adapter_ports()) {
        assert_eq!((held.lid, &held.pkeys, &held.qos), (plan.lid, &plan.pkeys, &plan.qos));
    }
}

fn class(random: &mut Pcg64) -> Class {
    match random.random_range(0..5) {
        0 | 1 => Class::BestEffort,
        step => {
            let bandwidth = Bandwidth::from_bits_per_s([0, 200_000_000, 2_000_000_000][step - 2]);
            Class::Guaranteed { bandwidth, latency_ns: None }
        }
    }
}

#[test]
fn tables_stay_verified_while_clusters_come_and_go() {
    come_and_go(BuiltInProfile::Strict, CLUSTERS);
}

#[test]
fn tables_stay_verified_on_connectx3_and_switchx() {
    come_and_go(BuiltInProfile::ConnectX3SwitchX, FEW_CLUSTERS);
}

#[test]
fn tables_stay_verified_on_connectx6_and_quantum() {
    come_and_go(BuiltInProfile::ConnectX6Quantum, FEW_CLUSTERS);
}

fn come_and_go(devices: BuiltInProfile, clusters: usize) {
    let net_directory = tempfile::tempdir().unwrap();
    let net = rig::generate(net_directory.path(), &["fat-tree", "--hosts", "32", "--radix", "8"]);
    let server = Server::heddle(&net, &["--profile", devices.name()]);
    let secret = server.secret(&[0x5a; 32]);
    let mut site = Site::new(SmDaemon::up(&server, HOST, &["--secret", &secret]));
    let mut random = Pcg64::seed_from_u64(SEED);
    let mut there: BTreeMap<String, Class> = BTreeMap::new();
    let (mut created, mut resized, mut deleted, mut refused) = (0, 0, 0, 0);
    while created < clusters || !there.is_empty() {
        let names: Vec<String> = there.keys().cloned().collect();
        let step = random.random_range(0..4);
        let chosen = names.choose(&mut random).cloned();
        match chosen {
            Some(name) if step == 0 || created == clusters => {
                assert!(site.change(site.with(&name, Class::BestEffort, &[])), "a deletion is not refused");
                there.remove(&name);
                deleted += 1;
            }
            Some(name) if step == 1 => {
                let (class, mut ports) = (there[&name], site.ports_of(&name));
                if random.random_bool(0.5) && ports.len() > 1 {
                    ports.pop();
                } else {
                    let mut free = site.free_for(&name, class);
                    free.retain(|port| !ports.contains(port));
                    ports.extend(free.choose(&mut random));
                }
                if site.change(site.with(&name, class, &ports)) {
                    resized += 1;
                } else {
                    refused += 1;
                }
            }
            _ if created < clusters => {
                let (class, name) = (class(&mut random), format!("cluster-{}", created + refused));
                let size = random.random_range(1..=4);
                let ports: BTreeSet<Guid> =
                    site.free_for(&name, class).sample(&mut random, size).copied().collect();
                let ports: Vec<Guid> = ports.into_iter().collect();
                if !ports.is_empty() && site.change(site.with(&name, class, &ports)) {
                    there.insert(name, class);
                    created += 1;
                } else {
                    refused += 1;
                }
            }
            _ => {}
        }
    }
    println!(
        "{created} clusters requested, {resized} resized, {deleted} deleted, {refused} refused or without free hosts"
    );
    assert!(deleted > clusters / 2 && resized > clusters / 5, "{deleted} {resized}");

    // Control: an extra key on one host is found.
    let stray = site.hosts[5];
    let port = site.plan.adapter_port(stray).unwrap().clone();
    assert!(matches!(
        site.plan.switch(port.peer.node).unwrap().port(port.peer.port).unwrap().enforcement,
        Enforcement::Both(_)
    ));
    eventually("a stray key is found", || {
        let status = Command::new(rig::HEDDLE)
            .args(["smp", "--device", &server.device_spec(HOST), "--secret", &secret, "set-pkey"])
            .args([port.name.node.to_string(), port.lid.to_wire().to_string()])
            .args(["--index", "9", "--pkey", "0x8123"])
            .status()
            .unwrap();
        assert!(status.success());
        let key = Pkey::from_wire(0x8123).unwrap();
        site.judge().iter().any(|finding| finding.to_string().contains(&key.to_string()))
    });
}
