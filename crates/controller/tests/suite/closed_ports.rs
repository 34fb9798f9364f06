//! Devices that do not take what isolates tenants or carries guarantees: clusters leave `ready` or lose their guarantee,
//! operators and tenants learn it, and it ends.

use control_protocol::sm::{EntryLack, LackPurpose};
use controller_api::ApiClient;
use controller_api::cluster::{Cluster, HealthState, NewCluster, NodeState, Phase};
use controller_api::host::HostState;
use controller_api::operation::OperationState;
use fabric_model::intent::{PortCapability, PortName};
use fabric_model::tenancy::{Bandwidth, Class};
use ib_wire::Guid;

use crate::site::{Site, by_name, eventually, new_cluster};

fn created(site: &Site, new: &NewCluster) -> ApiClient {
    let blue = site.tenant("blue");
    let operation = site.ask(blue.cluster_create(new)).unwrap();
    assert_eq!(site.wait(&blue, &operation).state, OperationState::Done);
    blue
}

fn cluster(site: &Site, client: &ApiClient) -> Cluster {
    site.ask(client.cluster_show(&by_name("one"))).unwrap()
}

fn kinds(site: &Site, client: &ApiClient) -> Vec<String> {
    let events = site.ask(client.event_list(None, false)).unwrap();
    events.into_iter().map(|event| event.kind).collect()
}

/// Host name and port of a node of the cluster.
fn host_of(site: &Site, number: u32) -> (String, Guid) {
    let clusters = site.ask(site.operator().cluster_list()).unwrap();
    let node = clusters[0].nodes.iter().find(|node| node.number == number).unwrap();
    let name = node.host.clone().unwrap();
    let hosts = site.ask(site.operator().host_list()).unwrap();
    let port = hosts.iter().find(|host| host.name == name).unwrap().port_guid.unwrap();
    (name.to_string(), port)
}

/// The switch port in front of a host.
fn leaf_port(site: &Site, port: Guid) -> PortName {
    site.world.lock().unwrap().plan.as_ref().unwrap().adapter_port(port).unwrap().peer
}

/// The subnet manager reports that a port lacks something.
fn report(site: &Site, port: PortName, purpose: LackPurpose) {
    let capability = match purpose {
        LackPurpose::Isolation => PortCapability { isolates: false, ..PortCapability::default() },
        LackPurpose::Guarantee => PortCapability { divides_lanes: false, ..PortCapability::default() },
    };
    let mut world = site.world.lock().unwrap();
    world.lacks = vec![EntryLack { port, purpose, text: format!("port {port} refuses it") }];
    world.capabilities.ports.insert(port, capability);
}

fn recover(site: &Site) {
    let mut world = site.world.lock().unwrap();
    world.lacks.clear();
    world.capabilities.ports.clear();
}

#[test]
fn a_closed_port_ends_the_readiness_of_its_cluster() {
    let site = Site::new(8);
    let operator = site.operator();
    let blue = created(&site, &new_cluster("one", 2));
    assert_eq!(cluster(&site, &blue).phase, Phase::Ready);
    let (host, port) = host_of(&site, 2);
    let leaf = leaf_port(&site, port);
    report(&site, leaf, LackPurpose::Isolation);

    eventually("the cluster is not ready", || {
        let cluster = cluster(&site, &blue);
        cluster.phase == Phase::Starting && cluster.health.state == HealthState::Degraded
    });
    let seen = cluster(&site, &blue);
    let states: Vec<NodeState> = seen.nodes.iter().map(|node| node.state).collect();
    let is_beside = host_of(&site, 1).1 == port;
    assert_eq!(states[1], NodeState::Degraded);
    assert_eq!(states[0] == NodeState::Ready, !is_beside);
    assert!(seen.health.reasons.contains(&"node 2: its network is closed".to_owned()), "{seen:?}");
    assert!(kinds(&site, &blue).contains(&"cluster.nodes-closed".to_owned()));
    let text = serde_json::to_string(&(seen, site.ask(blue.event_list(None, false)).unwrap())).unwrap();
    assert!(!text.contains("host-0") && !text.contains(&leaf.to_string()), "no facts about hosts: {text}");

    let hosts = site.ask(operator.host_list()).unwrap();
    let closed: Vec<_> = hosts.iter().filter(|host| host.state == HostState::PortClosed).collect();
    assert_eq!(closed.iter().map(|host| host.name.as_str()).collect::<Vec<_>>(), [&*host]);
    assert!(kinds(&site, &operator).contains(&"host.port-closed".to_owned()));
    let fabric = site.ask(operator.fabric_show()).unwrap();
    assert!(fabric.findings.iter().any(|finding| finding.contains(&leaf.to_string())), "{fabric:?}");
    assert_eq!(fabric.findings.len(), 2, "what the device did, and what follows: {fabric:?}");

    // Nobody is placed there meanwhile.
    let operation = site.ask(blue.cluster_create(&new_cluster("two", 4))).unwrap();
    assert_eq!(site.wait(&blue, &operation).state, OperationState::Done);
    let two =
        site.ask(operator.cluster_list()).unwrap().into_iter().find(|it| it.name.as_str() == "two").unwrap();
    assert!(two.nodes.iter().all(|node| node.host.as_ref().unwrap().as_str() != host));

    recover(&site);
    eventually("the cluster is ready again", || {
        let cluster = cluster(&site, &blue);
        cluster.phase == Phase::Ready && cluster.health.state == HealthState::Ok
    });
    assert!(kinds(&site, &blue).contains(&"cluster.nodes-open".to_owned()));
    assert!(kinds(&site, &operator).contains(&"host.port-open".to_owned()));
    assert_eq!(site.ask(operator.fabric_show()).unwrap().findings, [""; 0]);
}

#[test]
fn a_withdrawn_guarantee_is_told_and_restored() {
    let site = Site::new(8);
    let operator = site.operator();
    let bandwidth = Bandwidth::from_bits_per_s(1_000_000_000);
    let mut new = new_cluster("one", 2);
    new.class = Class::Guaranteed { bandwidth, latency_ns: None };
    let blue = created(&site, &new);
    assert_eq!(cluster(&site, &blue).health.state, HealthState::Ok);
    let (_, port) = host_of(&site, 1);
    let leaf = leaf_port(&site, port);
    report(&site, leaf, LackPurpose::Guarantee);

    eventually("the tenant sees it", || cluster(&site, &blue).health.state == HealthState::Degraded);
    let seen = cluster(&site, &blue);
    assert_eq!(seen.phase, Phase::Ready, "it has best effort");
    assert!(seen.health.reasons[0].contains("guarantee is withdrawn"), "{seen:?}");
    for client in [&blue, &operator] {
        assert!(kinds(&site, client).contains(&"cluster.guarantee-withdrawn".to_owned()));
    }
    // The control: a port that nobody crosses is no obstacle to another guarantee, this one is.
    let mut another = new_cluster("two", 2);
    another.class = new.class;
    let operation = site.ask(blue.cluster_create(&another)).unwrap();
    assert_eq!(site.wait(&blue, &operation).state, OperationState::Done);
    assert_eq!(cluster(&site, &blue).health.state, HealthState::Degraded);

    recover(&site);
    eventually("it is restored", || cluster(&site, &blue).health.state == HealthState::Ok);
    for client in [&blue, &operator] {
        assert!(kinds(&site, client).contains(&"cluster.guarantee-restored".to_owned()));
    }
}
