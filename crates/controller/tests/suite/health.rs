//! Faults of hosts and the subnet manager: states and events for tenants and operators, and their end.

use controller_api::ApiClient;
use controller_api::cluster::{Cluster, HealthState, NodeState, Phase};
use controller_api::event::Event;
use controller_api::fabric::FabricState;
use controller_api::host::HostState;
use controller_api::operation::OperationState;

use crate::site::{Site, by_name, eventually, new_cluster};

/// A site with a ready cluster of two nodes; the tenant that owns it.
fn with_cluster() -> (Site, ApiClient) {
    let site = Site::new(8);
    let token = site.tenant_token("blue");
    let blue = owner(&site, &token);
    (site, blue)
}

/// The owner of a ready cluster of two nodes.
fn owner(site: &Site, token: &str) -> ApiClient {
    let blue = site.client(token.to_owned());
    let operation = site.ask(blue.cluster_create(&new_cluster("one", 2))).unwrap();
    assert_eq!(site.wait(&blue, &operation).state, OperationState::Done);
    blue
}

fn cluster(site: &Site, client: &ApiClient) -> Cluster {
    site.ask(client.cluster_show(&by_name("one"))).unwrap()
}

fn events(site: &Site, client: &ApiClient, kind: &str) -> Vec<Event> {
    let events = site.ask(client.event_list(None, false)).unwrap();
    events.into_iter().filter(|event| event.kind == kind).collect()
}

/// The host of a node.
fn host_of(site: &Site, number: u32) -> String {
    let clusters = site.ask(site.operator().cluster_list()).unwrap();
    let node = clusters[0].nodes.iter().find(|node| node.number == number).unwrap();
    node.host.as_ref().unwrap().to_string()
}

#[test]
fn nodes_of_a_silent_agent_are_unknown() {
    let (site, blue) = with_cluster();
    let operator = site.operator();
    let before = cluster(&site, &blue);
    assert_eq!((before.health.state, before.health.since), (HealthState::Ok, None));
    let host = host_of(&site, 2);
    site.world.lock().unwrap().silent.insert(host.clone());

    eventually("the tenant sees it", || cluster(&site, &blue).health.state == HealthState::Degraded);
    let seen = cluster(&site, &blue);
    assert_eq!(seen.phase, Phase::Ready, "running nodes stay ready");
    let node = seen.nodes.iter().find(|node| node.number == 2).unwrap();
    assert_eq!((node.state, node.since.is_some()), (NodeState::Unknown, true));
    assert_eq!(seen.health.reasons, ["node 2: its host does not respond"]);
    assert_eq!(seen.health.since, node.since);
    assert_eq!(seen.nodes.iter().find(|node| node.number == 1).unwrap().state, NodeState::Ready);
    let told = events(&site, &blue, "cluster.nodes-unknown");
    assert_eq!(
        told.iter().map(|event| event.text.as_str()).collect::<Vec<_>>(),
        ["node 2: its host does not respond"]
    );
    let text = serde_json::to_string(&(seen, site.ask(blue.event_list(None, false)).unwrap())).unwrap();
    assert!(!text.contains("host-0"), "tenants do not see host names: {text}");

    let hosts = site.ask(operator.host_list()).unwrap();
    let silent: Vec<_> = hosts.iter().filter(|host| host.state != HostState::Up).collect();
    assert_eq!(
        silent.iter().map(|it| (it.name.as_str(), it.state)).collect::<Vec<_>>(),
        [(&*host, HostState::AgentSilent)]
    );
    assert!(silent[0].since.is_some());
    let told = events(&site, &operator, "host.agent-silent");
    assert_eq!(
        told.iter().map(|it| it.text.clone()).collect::<Vec<_>>(),
        [format!("the agent of {host} does not respond")]
    );

    site.world.lock().unwrap().silent.clear();
    eventually("it is over", || cluster(&site, &blue).health.state == HealthState::Ok);
    let after = cluster(&site, &blue);
    assert_eq!((after.nodes, after.phase), (before.nodes, Phase::Ready));
    assert!(
        site.ask(operator.host_list())
            .unwrap()
            .iter()
            .all(|host| host.state == HostState::Up && host.since.is_none())
    );
    for (client, begins, ends) in [
        (&blue, "cluster.nodes-unknown", "cluster.nodes-known"),
        (&operator, "host.agent-silent", "host.agent-answers"),
    ] {
        assert_eq!(
            (events(&site, client, begins).len(), events(&site, client, ends).len()),
            (1, 1),
            "{begins}"
        );
    }
}

#[test]
fn faults_are_reported_once_across_a_restart() {
    let mut site = Site::new(8);
    let token = site.tenant_token("blue");
    let blue = owner(&site, &token);
    let host = host_of(&site, 1);
    site.world.lock().unwrap().silent.insert(host);
    eventually("it is reported", || events(&site, &blue, "cluster.nodes-unknown").len() == 1);
    let since = cluster(&site, &blue).health.since;
    site.kill();
    site.start();
    let (blue, operator) = (site.client(token), site.operator());
    assert_eq!(cluster(&site, &blue).health.since, since, "it keeps its start time");
    eventually("the others answer", || {
        site.ask(operator.host_list()).unwrap().iter().filter(|host| host.state == HostState::Up).count() == 7
    });
    site.world.lock().unwrap().silent.clear();
    eventually("it is over", || cluster(&site, &blue).health.state == HealthState::Ok);
    assert_eq!(events(&site, &blue, "cluster.nodes-unknown").len(), 1);
    assert_eq!(events(&site, &blue, "cluster.nodes-known").len(), 1);
}

#[test]
fn a_subnet_manager_that_hangs_is_detected() {
    let (site, blue) = with_cluster();
    let operator = site.operator();
    let fabric = || site.ask(operator.fabric_show()).unwrap();
    assert_eq!((fabric().state, fabric().since), (FabricState::Programmed, None));
    site.world.lock().unwrap().manager_hangs = true;
    eventually("operators see it", || {
        fabric().state == FabricState::ManagerSilent && fabric().since.is_some()
    });
    let seen = cluster(&site, &blue);
    assert_eq!((seen.phase, seen.health.state), (Phase::Ready, HealthState::Degraded));
    assert_eq!(events(&site, &operator, "fabric.manager-silent").len(), 1);
    assert_eq!(events(&site, &blue, "network.unmanaged").len(), 1);
    assert_eq!(events(&site, &blue, "fabric.manager-silent").len(), 0, "only operators see it");

    site.world.lock().unwrap().manager_hangs = false;
    eventually("it is over", || cluster(&site, &blue).health.state == HealthState::Ok);
    assert_eq!((fabric().state, fabric().since), (FabricState::Programmed, None));
    assert_eq!(events(&site, &operator, "fabric.manager-answers").len(), 1);
    assert_eq!(events(&site, &blue, "network.managed").len(), 1);
}

#[test]
fn a_session_on_a_silent_host_is_rejected_with_the_reason() {
    let (site, blue) = with_cluster();
    let host = host_of(&site, 2);
    site.world.lock().unwrap().silent.insert(host);
    eventually("the tenant sees it", || cluster(&site, &blue).health.state == HealthState::Degraded);
    let open = controller_api::session::NewSession::Exec { argv: vec!["true".to_owned()] };
    let refused = site.ask(blue.session(&by_name("one"), 2, &open)).err().unwrap().to_string();
    assert!(
        refused.contains("node 2 of cluster one cannot be reached: its host does not respond"),
        "{refused}"
    );
}
