//! A host is the port that it was bound to, whatever adapters call themselves: an emulated fabric, `heddle sm`, a controller;
//! only the agents of hosts are simulated.

use controller_api::cluster::NewCluster;
use controller_api::host::{Host, HostBinding, HostState, NewHost};
use controller_api::operation::OperationState;
use controller_api::{ApiClient, MemorySize, Name};
use serde_json::Value;

use crate::rig::{self, Server, SmDaemon};
use crate::site::{Site, by_name, eventually, new_cluster};

/// The host of the subnet manager.
const MANAGER: &str = "host-00001";

/// A host whose cable is pulled.
const VICTIM: &str = "host-00003";

/// An adapter that is not a host, but takes the name of one.
const IMPOSTOR: &str = "host-00009";

/// The host of the subnet manager in a fabric recorded in 2014.
const RECORDED_MANAGER: &str = "stage97 mlx4_0";

struct World {
    server: Server,
    _manager: SmDaemon,
    site: Site,
    operator: ApiClient,
}

impl World {
    /// A fabric of 16 adapters, two of which are hosts.
    fn new() -> Self {
        let server = Server::heddle(&rig::fixture("tree-16.ibnetdiscover"), &[]);
        let manager = SmDaemon::start(&server, MANAGER, &["--external-plans"]);
        rig::eventually("the manager listens", || manager.socket().exists());
        let hosts = ["host-00002", VICTIM].map(|name| name.parse().unwrap()).to_vec();
        let site = Site::managed_by(manager.socket().to_owned(), hosts);
        let operator = site.operator();
        Self { server, _manager: manager, site, operator }
    }

    fn control(&self, arguments: &[&str]) -> String {
        let printed = self.server.control(arguments);
        assert!(printed.success, "{arguments:?}: {printed:?}");
        printed.stdout
    }

    fn host(&self, name: &str) -> Host {
        let hosts = self.site.ask(self.operator.host_list()).unwrap();
        hosts.into_iter().find(|host| host.name.as_str() == name).unwrap()
    }

    /// Keys in the table of an adapter's port.
    fn keys(&self, node: &str) -> Vec<u64> {
        let tables: Value = serde_json::from_str(&self.control(&["tables", node])).unwrap();
        let keys = tables["pkeys"]["1"].as_array().unwrap();
        keys.iter().map(|key| key.as_u64().unwrap()).collect()
    }

    /// Keys of clusters, which are not the default partition's.
    fn cluster_keys(&self, node: &str) -> usize {
        self.keys(node).into_iter().filter(|key| key & 0x7fff != 0x7fff).count()
    }

    /// Number of adapters with this name in the controller's topology.
    fn called(&self, name: &str) -> usize {
        let topology = self.site.ask(self.operator.fabric_show()).unwrap().topology;
        topology
            .lines()
            .filter(|line| line.starts_with("Ca") && line.contains(&format!("\"{name}\"")))
            .count()
    }

    fn has_event(&self, kind: &str) -> bool {
        let events = self.site.ask(self.operator.event_list(None, false)).unwrap();
        events.iter().any(|event| event.kind == kind)
    }
}

fn big(name: &str, size: u32) -> NewCluster {
    NewCluster { cores: 2, ..new_cluster(name, size) }
}

#[test]
fn an_impostor_gets_no_key_of_the_host_whose_name_it_takes() {
    let world = World::new();
    let site = &world.site;
    let blue = site.tenant("blue");
    let first = site.ask(blue.cluster_create(&big("one", 2))).unwrap();
    assert_eq!(site.wait(&blue, &first).state, OperationState::Done);
    let bound = world.host(VICTIM).port_guid.unwrap();

    world.control(&["rename", IMPOSTOR, VICTIM]);
    world.control(&["link", "down", VICTIM, "1"]);
    eventually("the host is off the fabric, and the impostor on it", || {
        world.host(VICTIM).state == HostState::OffFabric && world.called(VICTIM) == 1
    });
    // The other host has room for one of two nodes.
    site.ask(blue.cluster_create(&big("two", 2))).unwrap_err();
    assert_eq!(world.cluster_keys(IMPOSTOR), 0, "{:x?}", world.keys(IMPOSTOR));
    assert_eq!(world.host(VICTIM).port_guid, Some(bound));
    eventually("operators hear of it", || world.has_event("host.name-claimed"));

    // Control: the real host gets the cluster and its keys.
    world.control(&["link", "up", VICTIM, "1"]);
    eventually("the host is back", || world.host(VICTIM).state == HostState::Up);
    let mut second = None;
    eventually("the fabric is planned again", || {
        second = site.ask(blue.cluster_create(&big("two", 2))).ok();
        second.is_some()
    });
    assert_eq!(site.wait(&blue, &second.unwrap()).state, OperationState::Done);
    assert_eq!((world.cluster_keys(VICTIM), world.cluster_keys(IMPOSTOR)), (2, 0));
    assert_eq!(site.ask(blue.cluster_show(&by_name("two"))).unwrap().nodes.len(), 2);
}

#[test]
fn a_second_adapter_of_the_same_name_harms_no_host() {
    let world = World::new();
    world.control(&["rename", IMPOSTOR, VICTIM]);
    // A change, so that the fabric is discovered again.
    world.control(&["link", "down", "host-00010", "1"]);
    eventually("both are seen", || world.called(VICTIM) == 2);
    eventually("operators hear of it", || world.has_event("host.name-claimed"));
    assert_eq!(world.host(VICTIM).state, HostState::Up);
    let blue = world.site.tenant("blue");
    let mut created = None;
    eventually("the fabric is planned again", || {
        created = world.site.ask(blue.cluster_create(&NewCluster { cores: 4, ..new_cluster("one", 2) })).ok();
        created.is_some()
    });
    assert_eq!(world.site.wait(&blue, &created.unwrap()).state, OperationState::Done);
    assert_eq!((world.cluster_keys(VICTIM), world.cluster_keys(IMPOSTOR)), (1, 0));
}

#[test]
fn a_host_without_a_guid_binds_to_the_adapter_of_its_name() {
    let world = World::new();
    let (operator, site) = (&world.operator, &world.site);
    let add = |name: &str, port_guid| {
        let (agent, memory) =
            (site.directory.path().join("agent").display().to_string(), MemorySize::from_mib(4096));
        site.ask(operator.host_add(&NewHost {
            name: name.parse().unwrap(),
            port_guid,
            agent,
            cores: 4,
            memory,
        }))
    };
    // Two adapters have the name: the host is bound to neither.
    world.control(&["rename", "host-00010", IMPOSTOR]);
    world.control(&["link", "down", "host-00011", "1"]);
    eventually("both are seen", || world.called(IMPOSTOR) == 2);
    assert_eq!(add(IMPOSTOR, None).unwrap().port_guid, None);
    eventually("it is unbound", || world.host(IMPOSTOR).state == HostState::Unbound);
    // One of them disappears: the host is bound to the other.
    world.control(&["link", "down", "host-00010", "1"]);
    eventually("it is bound", || world.host(IMPOSTOR).state == HostState::Up);
    eventually("the event is stored", || world.has_event("host.bound"));

    // A port belongs to one host, and a host has one port, until an operator rebinds it.
    let (own, other) = (world.host(IMPOSTOR).port_guid.unwrap(), world.host(VICTIM).port_guid.unwrap());
    let refused = add("host-00012", Some(own)).unwrap_err().to_string();
    assert!(refused.contains(IMPOSTOR), "{refused}");
    let elsewhere = add("host-00012", None).unwrap().port_guid.unwrap();
    let refused = add(IMPOSTOR, Some("0x77".parse().unwrap())).unwrap_err().to_string();
    assert!(refused.contains(&own.to_string()), "{refused}");
    let bind = |name: &str, port_guid| {
        site.ask(operator.host_bind(&name.parse().unwrap(), HostBinding { port_guid }))
    };
    bind(IMPOSTOR, elsewhere).unwrap_err();
    let blue = site.tenant("blue");
    let mut created = None;
    eventually("the fabric is planned again", || {
        created = site.ask(blue.cluster_create(&NewCluster { cores: 4, ..new_cluster("one", 4) })).ok();
        created.is_some()
    });
    let refused = bind(VICTIM, "0x77".parse().unwrap()).unwrap_err().to_string();
    assert!(refused.contains("nodes"), "{refused}");
    assert_eq!(bind(VICTIM, other).unwrap().port_guid, Some(other), "what holds already may be said again");
    let gone = site.ask(blue.cluster_delete(&by_name("one"))).unwrap();
    site.wait(&blue, &gone);
    assert_eq!(bind(VICTIM, "0x77".parse().unwrap()).unwrap().port_guid, Some("0x77".parse().unwrap()));
}

/// D8: adapters of the field are called `stage99 mlx4_0`, and hosts are found all the same.
#[test]
fn all_hosts_of_a_recorded_fabric_can_be_added() {
    let server =
        Server::heddle(&rig::fixture("loginoff-2014.ibnetdiscover"), &["--profile", "connectx3-switchx"]);
    let manager = SmDaemon::start(&server, RECORDED_MANAGER, &["--external-plans"]);
    rig::eventually("the manager listens", || manager.socket().exists());
    let text = std::fs::read_to_string(rig::fixture("loginoff-2014.ibnetdiscover")).unwrap();
    let topology = fabric_model::ibnetdiscover::parse(&text).unwrap();
    let hosts: Vec<Name> = topology.end_nodes().map(|(_, node)| node.host_name().parse().unwrap()).collect();
    assert_eq!(hosts.len(), 144);
    let site = Site::managed_by(manager.socket().to_owned(), hosts);
    let operator = site.operator();
    eventually("all hosts are bound and up", || {
        let hosts = site.ask(operator.host_list()).unwrap();
        hosts.iter().filter(|host| host.state == HostState::Up && host.port_guid.is_some()).count() == 144
    });
}
