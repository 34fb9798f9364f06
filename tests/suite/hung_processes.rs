//! Real processes that hang or are cut off, on an emulated fabric: what tenants and operators see, until they recover. Only
//! the agents of hosts are simulated.

use std::time::Instant;

use controller_api::ApiClient;
use controller_api::cluster::{Cluster, HealthState, NodeState};
use controller_api::fabric::FabricState;
use controller_api::host::HostState;
use controller_api::operation::OperationState;

use crate::rig::{self, Server, SmDaemon};
use crate::site::{Site, by_name, eventually, new_cluster};

struct World {
    server: Server,
    manager: SmDaemon,
    site: Site,
    blue: ApiClient,
}

impl World {
    /// A fabric of 16 adapters, three of which are hosts; a cluster of two nodes.
    fn new() -> Self {
        let server = Server::heddle(&rig::fixture("tree-16.ibnetdiscover"), &[]);
        let manager = SmDaemon::start(&server, "host-00001", &["--external-plans"]);
        rig::eventually("the manager listens", || manager.socket().exists());
        let hosts = ["host-00002", "host-00003", "host-00004"].map(|name| name.parse().unwrap()).to_vec();
        let site = Site::managed_by(manager.socket().to_owned(), hosts);
        let blue = site.tenant("blue");
        let created = site.ask(blue.cluster_create(&new_cluster("one", 2))).unwrap();
        assert_eq!(site.wait(&blue, &created).state, OperationState::Done);
        Self { server, manager, site, blue }
    }

    fn cluster(&self) -> Cluster {
        self.site.ask(self.blue.cluster_show(&by_name("one"))).unwrap()
    }

    fn count(&self, client: &ApiClient, kind: &str) -> usize {
        let events = self.site.ask(client.event_list(None, false)).unwrap();
        events.iter().filter(|event| event.kind == kind).count()
    }
}

#[test]
fn a_stopped_subnet_manager_is_reported_until_it_continues() {
    let world = World::new();
    let operator = world.site.operator();
    let state = || world.site.ask(operator.fabric_show()).unwrap().state;
    let began = Instant::now();
    world.manager.pause();
    eventually("operators see it", || state() == FabricState::ManagerSilent);
    eventually("the tenant sees it", || world.cluster().health.state == HealthState::Degraded);
    println!("manager stopped: told after {:.1} s", began.elapsed().as_secs_f64());
    world.manager.resume();
    let began = Instant::now();
    eventually("it is over", || {
        world.cluster().health.state == HealthState::Ok && state() == FabricState::Programmed
    });
    println!("manager goes on: told after {:.1} s", began.elapsed().as_secs_f64());
    for (client, kinds) in [
        (&operator, ["fabric.manager-silent", "fabric.manager-answers"]),
        (&world.blue, ["network.unmanaged", "network.managed"]),
    ] {
        assert_eq!(kinds.map(|kind| world.count(client, kind)), [1, 1], "{kinds:?}");
    }
    let created = world.site.ask(world.blue.cluster_create(&new_cluster("two", 2))).unwrap();
    assert_eq!(world.site.wait(&world.blue, &created).state, OperationState::Done, "all goes on");
}

#[test]
fn a_host_off_the_fabric_is_reported_until_it_returns() {
    let world = World::new();
    let operator = world.site.operator();
    let began = Instant::now();
    assert!(world.server.control(&["link", "down", "host-00002", "1"]).success);
    eventually("the tenant sees it", || world.cluster().health.state == HealthState::Degraded);
    println!("host off the fabric: told after {:.1} s", began.elapsed().as_secs_f64());
    let degraded = world.cluster();
    let unwell: Vec<NodeState> =
        degraded.nodes.iter().map(|node| node.state).filter(|state| *state != NodeState::Ready).collect();
    assert_eq!(unwell, [NodeState::Degraded]);
    assert!(degraded.health.reasons[0].ends_with("its host is not on the network"), "{degraded:?}");
    let hosts = world.site.ask(operator.host_list()).unwrap();
    let off: Vec<_> = hosts.iter().filter(|host| host.state == HostState::OffFabric).collect();
    assert_eq!(
        off.iter().map(|it| (it.name.as_str(), it.since.is_some())).collect::<Vec<_>>(),
        [("host-00002", true)]
    );
    assert!(world.server.control(&["link", "up", "host-00002", "1"]).success);
    eventually("it is over", || world.cluster().health.state == HealthState::Ok);
    for (client, kinds) in [
        (&operator, ["host.off-fabric", "host.on-fabric"]),
        (&world.blue, ["cluster.nodes-cut-off", "cluster.nodes-connected"]),
    ] {
        assert_eq!(kinds.map(|kind| world.count(client, kind)), [1, 1], "{kinds:?}");
    }
}
