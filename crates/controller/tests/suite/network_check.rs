//! Network check of clusters: unchecked, checking, passed and failed.

use controller_api::agent::NetworkCheck;
use controller_api::cluster::{NetworkState, NodeState, PacketStop, Phase};
use controller_api::operation::OperationState;
use controller_api::{ApiClient, ClusterRef};
use ib_wire::PortNum;

use crate::site::{Site, by_name, eventually, new_cluster};

const CARRIES: Option<NetworkCheck> = Some(NetworkCheck { reached: true, heard: true });
const UNREACHED: Option<NetworkCheck> = Some(NetworkCheck { reached: false, heard: true });

fn say(site: &Site, network: Option<NetworkCheck>, stop: Option<PacketStop>) {
    site.world.lock().unwrap().change(|world| (world.network, world.stop) = (network, stop));
}

fn phase(site: &Site, client: &ApiClient, name: &str) -> (Phase, NetworkState) {
    let cluster = site.ask(client.cluster_show(&by_name(name))).unwrap();
    (cluster.phase, cluster.network)
}

#[test]
fn a_cluster_is_ready_after_its_network_check_passes() {
    let site = Site::new(16);
    let blue = site.tenant("blue");
    let leaf =
        PacketStop { node: "leaf".to_owned(), port: PortNum::new(5).unwrap(), reason: "no_route".to_owned() };
    say(&site, UNREACHED, Some(leaf.clone()));
    let operation = site.ask(blue.cluster_create(&new_cluster("one", 2))).unwrap();
    eventually("its guests are up", || {
        let cluster = site.ask(blue.cluster_show(&by_name("one"))).unwrap();
        cluster.nodes.len() == 2 && cluster.nodes.iter().all(|node| node.state == NodeState::Ready)
    });
    eventually("its network is being checked", || {
        phase(&site, &blue, "one") == (Phase::Starting, NetworkState::Checking)
    });
    assert_eq!(site.ask(blue.operation_show(operation.id)).unwrap().state, OperationState::Running);
    let told = site.ask(blue.cluster_show(&by_name("one"))).unwrap();
    let reason = told.reason.unwrap();
    assert!(reason.starts_with("checking the network: one-1 has not yet reached one-2"), "{reason}");
    assert_eq!(told.nodes[0].reason.as_deref(), Some("has not yet reached one-2"));
    assert_eq!(told.nodes[0].stop, None, "tenants do not see the fabric");
    let whose = ClusterRef { tenant: Some("blue".parse().unwrap()), ..by_name("one") };
    let seen = site.ask(site.operator().cluster_show(&whose)).unwrap();
    assert_eq!(seen.nodes[0].stop, Some(leaf));

    say(&site, CARRIES, None);
    assert_eq!(site.wait(&blue, &operation).state, OperationState::Done);
    assert_eq!(phase(&site, &blue, "one"), (Phase::Ready, NetworkState::Carries));
    let told = site.ask(blue.cluster_show(&by_name("one"))).unwrap();
    assert_eq!((told.reason, told.nodes[0].network), (None, NetworkState::Carries));
}

#[test]
fn guests_without_checks_leave_the_network_unchecked() {
    let mut site = Site::new(16);
    let blue = site.tenant("blue");
    say(&site, None, None);
    let operation = site.ask(blue.cluster_create(&new_cluster("one", 2))).unwrap();
    assert_eq!(site.wait(&blue, &operation).state, OperationState::Done);
    assert_eq!(phase(&site, &blue, "one"), (Phase::Ready, NetworkState::Unchecked));
    // With guests that check: the result survives a restart of the controller.
    say(&site, CARRIES, None);
    eventually("the result is seen", || phase(&site, &blue, "one") == (Phase::Ready, NetworkState::Carries));
    let token = site.tenant_token("green");
    site.kill();
    site.start();
    let green = site.client(token);
    assert!(site.ask(green.cluster_list()).unwrap().is_empty());
    let all = site.ask(site.operator().cluster_list()).unwrap();
    assert_eq!((all[0].phase, all[0].network), (Phase::Ready, NetworkState::Carries));
}

#[test]
fn nodes_probe_their_successor_and_the_first_node() {
    let site = Site::new(16);
    let blue = site.tenant("blue");
    say(&site, CARRIES, None);
    let operation = site.ask(blue.cluster_create(&new_cluster("one", 3))).unwrap();
    assert_eq!(site.wait(&blue, &operation).state, OperationState::Done);
    let world = site.world.lock().unwrap();
    let vms = world.specs.values().flat_map(|spec| &spec.vms);
    let mut asked: Vec<String> = vms
        .map(|vm| {
            let probes = vm.context.probes.unwrap();
            let [successor, broadcaster] =
                [probes.successor, probes.broadcaster].map(|address| address.unwrap().octets()[3]);
            format!("{} {successor} {broadcaster}", vm.context.hostname)
        })
        .collect();
    asked.sort();
    assert_eq!(asked, ["one-1 2 2", "one-2 3 1", "one-3 1 1"]);
}
