//! Two tenants manage the networks of their clusters at the same time, each with stock opensm, on one emulated fabric that
//! `heddle sm` programs. Only the agents of hosts are simulated.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use controller_api::ApiClient;
use controller_api::cluster::NewCluster;
use controller_api::operation::OperationState;
use controller_api::view::ViewStatus;
use fabric_model::FabricPlan;
use ib_wire::{Guid, Lid, PartitionNumber, Pkey, PortNum};

use crate::rig::{self, HEDDLE, Server, SmDaemon};
use crate::site::{Site, by_name, eventually, new_cluster};

/// The host of the subnet manager.
const HOST: &str = "host-00001";

/// Nodes of each cluster: two leaves of the tree.
const NODES: u32 = 8;

/// A tenant with a cluster.
struct Tenant<'a> {
    site: &'a Site,
    name: &'static str,
    token: String,
    client: ApiClient,
}

impl<'a> Tenant<'a> {
    fn new(site: &'a Site, name: &'static str) -> Self {
        let token = site.tenant_token(name);
        let client = site.client(token.clone());
        let new = NewCluster { cores: 4, ..new_cluster("one", NODES) };
        let operation = site.ask(client.cluster_create(&new)).unwrap();
        assert_eq!(site.wait(&client, &operation).state, OperationState::Done);
        let tenant = Self { site, name, token, client };
        eventually("there is a view", || {
            site.ask(tenant.client.view_show(&by_name("one")))
                .is_ok_and(|it| it.nodes.len() == NODES as usize)
        });
        tenant
    }

    fn view(&self) -> ViewStatus {
        self.site.ask(self.client.view_show(&by_name("one"))).unwrap()
    }

    /// opensm on the adapter of the first node.
    fn opensm(&self, partitions: &str) -> OpenSm {
        let folder = self.site.directory.path().join(self.name);
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("partitions.conf"), partitions).unwrap();
        // It ends with the command that started it, and the command with the test.
        let mortal = ["setpriv", "--pdeathsig", "KILL", "--"];
        // On a busy machine an answer takes longer than the 200 ms that opensm waits by itself.
        let command = "echo $$ > pid; exec opensm -t 60000 -d 2 -f log -P partitions.conf";
        let child = Command::new(mortal[0])
            .args(&mortal[1..])
            .args([HEDDLE, "view", "exec", "one", "--"])
            .args(mortal)
            .args(["sh", "-c", command])
            .current_dir(&folder)
            .env("HEDDLE_URL", self.site.controller_address().to_string())
            .env("HEDDLE_TOKEN", &self.token)
            .env("OSM_TMP_DIR", &folder)
            .env("OSM_CACHE_DIR", &folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        OpenSm { child, folder }
    }

    /// Waits until the last change of its subnet manager is in force and no change is pending.
    fn in_force(&self) -> ViewStatus {
        self.eventually("the last change is in force", |view| {
            let last = view.last_change.as_ref().and_then(|last| last["number"].as_u64());
            view.managed_by.is_some() && !view.pending && view.in_force.is_some() && view.in_force == last
        })
    }

    fn eventually(&self, what: &str, is_so: impl Fn(&ViewStatus) -> bool) -> ViewStatus {
        let started = Instant::now();
        loop {
            let view = self.view();
            if is_so(&view) {
                return view;
            }
            assert!(
                started.elapsed() < Duration::from_secs(90),
                "{}: not within 90 s: {what}: {view:?}",
                self.name
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The physical ports of its nodes, by the number of the node.
    fn ports(&self) -> BTreeMap<u32, Guid> {
        let world = self.site.world.lock().unwrap();
        let specs = world.specs.values().flat_map(|spec| &spec.vms);
        let own = specs.filter_map(|vm| {
            let number = vm.label.strip_prefix(&format!("{}/one-", self.name))?.parse().unwrap();
            Some((number, vm.adapter.port_guid))
        });
        own.collect()
    }

    /// The table entries of the cluster: the P_Keys of its ports, and the route to them from every switch.
    fn held(&self, plan: &FabricPlan) -> BTreeMap<Guid, (Vec<Pkey>, Vec<Option<PortNum>>)> {
        let held = |port: Guid| {
            let adapter = plan.adapter_port(port).unwrap();
            let exits = plan.switches().map(|switch| switch.linear.exit(adapter.lid)).collect();
            (port, (adapter.pkeys.keys().collect(), exits))
        };
        self.ports().into_values().map(held).collect()
    }
}

/// A running opensm. Ended by SIGTERM when dropped.
struct OpenSm {
    child: Child,
    folder: PathBuf,
}

impl OpenSm {
    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }
}

impl Drop for OpenSm {
    fn drop(&mut self) {
        match std::fs::read_to_string(self.folder.join("pid")) {
            Ok(pid) => drop(Command::new("kill").arg(pid.trim()).status()),
            Err(_) => drop(self.child.kill()),
        }
        let _ = self.child.wait();
    }
}

/// Partitions for the halves of a cluster, with the same numbers for every tenant.
fn partitions(view: &ViewStatus) -> String {
    let half = |number: u16, nodes: &[controller_api::view::ViewNode]| {
        let members: Vec<String> = nodes.iter().map(|node| format!("{}=full", node.port_guid)).collect();
        format!("half{number}={number:#x} : {};\n", members.join(", "))
    };
    let (first, second) = view.nodes.split_at(NODES as usize / 2);
    format!("Default=0x7fff : ALL=limited, SELF=full;\n{}{}", half(0x101, first), half(0x102, second))
}

/// The tables of the devices, read back by the subnet manager.
fn read_back(manager: &SmDaemon) -> FabricPlan {
    let printed = manager.control(&["read-back"]);
    serde_json::from_str(&printed.stdout).unwrap_or_else(|_| panic!("{printed:?}"))
}

/// Reads all tables back once the fabric matches the plan, and returns the findings of the verifier.
fn findings(site: &Site) -> Vec<String> {
    let operator = site.operator();
    let mut proof = None;
    eventually("the tables are verified", || {
        proof = site.ask(operator.fabric_proof()).ok();
        proof.is_some()
    });
    let proof = proof.unwrap();
    assert_eq!((proof.switches, proof.ports), (6, 16));
    proof.findings
}

#[test]
fn two_tenants_manage_views_without_affecting_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let net = rig::generate(folder.path(), &["fat-tree", "--hosts", "16", "--radix", "8"]);
    let server = Server::heddle(&net, &[]);
    let secret = server.secret(&[0x5a; 32]);
    let manager = SmDaemon::start(&server, HOST, &["--external-plans", "--secret", &secret]);
    rig::eventually("the manager listens", || manager.socket().exists());
    let hosts = (1..=16).map(|number| format!("host-{number:05}").parse().unwrap()).collect();
    let site = Site::managed_by(manager.socket().to_owned(), hosts);
    let tenants = ["blue", "red"].map(|name| Tenant::new(&site, name));
    let [blue, red] = &tenants;
    let numbers = |view: &ViewStatus| -> Vec<(Guid, Lid)> {
        view.nodes.iter().map(|node| (node.port_guid, node.lid)).collect()
    };
    assert_eq!(numbers(&blue.view()), numbers(&red.view()), "the same LIDs and GUIDs");
    assert_eq!(findings(&site), [""; 0]);

    // The same file for both.
    let text = partitions(&blue.view());
    let [of_blue, of_red] = tenants.each_ref().map(|tenant| tenant.opensm(&text));
    tenants.iter().for_each(|tenant| drop(tenant.in_force()));
    let views = tenants.each_ref().map(Tenant::in_force);
    for (view, manager) in views.iter().zip([&of_blue, &of_red]) {
        assert_eq!(view.managed_by.as_deref(), Some("one-1"), "both at once");
        assert!(manager.log().contains("Entering MASTER state"), "{}", manager.log());
    }
    let mut wire: BTreeSet<PartitionNumber> = BTreeSet::new();
    let plan = read_back(&manager);
    for (tenant, view) in tenants.iter().zip(&views) {
        let seen: Vec<u16> = view.partitions.iter().map(|it| it.view.to_wire()).collect();
        assert_eq!(seen, [0x101, 0x102], "{view:?}");
        for number in [view.partition, view.partitions[0].wire, view.partitions[1].wire] {
            assert!(wire.insert(number), "{number} belongs to another tenant");
        }
        let held = tenant.held(&plan);
        assert_eq!(held.len(), NODES as usize);
        for (number, port) in tenant.ports() {
            let half = &view.partitions[usize::from(number > NODES / 2)];
            let of: BTreeSet<PartitionNumber> = held[&port].0.iter().map(|key| key.partition()).collect();
            let expected = [PartitionNumber::DEFAULT, view.partition, half.wire];
            assert_eq!(of, expected.into(), "{} {number}", tenant.name);
        }
    }
    assert_eq!(findings(&site), [""; 0]);

    // One of them ends: its network returns to the default, and the other's does not change.
    let before = (red.view(), red.held(&read_back(&manager)), blue.held(&read_back(&manager)));
    drop(of_blue);
    let view =
        blue.eventually("the default returns", |view| view.managed_by.is_none() && view.in_force.is_none());
    assert_eq!(view.partitions, []);
    assert_eq!(findings(&site), [""; 0]);
    let plan = read_back(&manager);
    assert_ne!(blue.held(&plan), before.2, "its overlay is gone");
    assert_eq!((red.view(), red.held(&plan)), (before.0, before.1));

    // Control: a key of blue at a port of red is found.
    let port = plan.adapter_port(red.ports()[&1]).unwrap();
    let key = view.partition.key(ib_wire::Membership::Full);
    rig::eventually("a stray key is found", || {
        let status = Command::new(HEDDLE)
            .args(["smp", "--device", &server.device_spec(HOST), "--secret", &secret, "set-pkey"])
            .args([port.name.node.to_string(), port.lid.to_wire().to_string()])
            .args(["--index", "9", "--pkey", &format!("{:#x}", u16::from(key))])
            .status()
            .unwrap();
        assert!(status.success());
        findings(&site).iter().any(|finding| finding.contains(&key.to_string()))
    });
}
