//! Forced deletion: nodes of a lost host are dropped after their ports have left the partitions.

use controller_api::cluster::{HealthState, Phase};
use controller_api::operation::OperationState;
use controller_api::{ClientError, ClusterRef};

use crate::site::{Site, by_name, eventually, new_cluster};

#[test]
fn a_forced_deletion_fences_nodes_on_silent_hosts() {
    let site = Site::new(8);
    let (operator, blue) = (site.operator(), site.tenant("blue"));
    let created = site.ask(blue.cluster_create(&new_cluster("one", 2))).unwrap();
    assert_eq!(site.wait(&blue, &created).state, OperationState::Done);
    let clusters = site.ask(operator.cluster_list()).unwrap();
    let dead = clusters[0].nodes[0].clone();
    let host = dead.host.unwrap();
    let port = site.world.lock().unwrap().specs[host.as_str()].vms[0].adapter.port_guid;
    let is_carried = || site.world.lock().unwrap().members.iter().any(|(_, member)| *member == port);
    site.world.lock().unwrap().silent.insert(host.to_string());
    eventually("the host is known to be silent", || {
        site.ask(blue.cluster_show(&by_name("one"))).unwrap().health.state == HealthState::Degraded
    });

    // Without force the deletion waits for the host, and the port stays a member.
    let deletion = site.ask(blue.cluster_delete(&by_name("one"))).unwrap();
    eventually("the other node is gone", || {
        site.ask(blue.cluster_show(&by_name("one"))).unwrap().nodes.len() == 1
    });
    let waiting = site.ask(blue.cluster_show(&by_name("one"))).unwrap();
    assert_eq!((waiting.phase, is_carried()), (Phase::Deleting, true));
    assert!(site.ask(operator.host_remove(&host)).is_err(), "a node is on it");

    // Tenants may not force it.
    match site.ask(blue.cluster_force_delete(&by_name("one"))) {
        Err(ClientError::Refused(problem)) => assert_eq!(problem.problem.status, 403, "{problem}"),
        other => panic!("not refused: {other:?}"),
    }
    assert!(is_carried());

    let whose = ClusterRef { name: "one".parse().unwrap(), tenant: Some("blue".parse().unwrap()) };
    let forced = site.ask(operator.cluster_force_delete(&whose)).unwrap();
    assert_eq!(forced.id, deletion.id, "it is the same deletion");
    assert_eq!(site.wait(&blue, &forced).state, OperationState::Done);
    assert!(!is_carried(), "the port left the partition before the node was dropped");
    assert!(
        site.world.lock().unwrap().specs[host.as_str()].vms.iter().any(|vm| vm.id == dead.id),
        "its virtual machine was not removed"
    );

    // A host that responds again gets the tombstone and removes it.
    site.world.lock().unwrap().silent.clear();
    eventually("the host has removed it", || {
        let world = site.world.lock().unwrap();
        world.removed.contains(&dead.id) && !world.vms.contains_key(&dead.id)
    });
    assert!(!is_carried());
    site.ask(operator.host_remove(&host)).unwrap();
}

#[test]
fn a_forced_deletion_waits_for_responding_hosts() {
    let site = Site::new(4);
    let (operator, blue) = (site.operator(), site.tenant("blue"));
    let created = site.ask(blue.cluster_create(&new_cluster("one", 2))).unwrap();
    assert_eq!(site.wait(&blue, &created).state, OperationState::Done);
    let whose = ClusterRef { name: "one".parse().unwrap(), tenant: Some("blue".parse().unwrap()) };
    let forced = site.ask(operator.cluster_force_delete(&whose)).unwrap();
    assert_eq!(site.wait(&blue, &forced).state, OperationState::Done);
    let world = site.world.lock().unwrap();
    assert!(world.specs.values().all(|spec| spec.vms.is_empty()), "every agent has the new spec");
    assert!(world.unsafe_vms.is_empty());
}
