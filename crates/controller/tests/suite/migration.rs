//! Migration of stores of earlier versions.

use std::collections::BTreeSet;
use std::path::Path;

use controller_api::cluster::Phase;
use controller_api::operation::OperationState;

use crate::site::{Site, by_name, eventually, new_cluster};

fn fixture() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/stores/22e25ee"))
}

#[test]
fn a_store_of_schema_4_is_migrated() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::copy(fixture().join("store"), directory.path().join("store")).unwrap();
    std::fs::copy(fixture().join("operator.token"), directory.path().join("token")).unwrap();
    let site = Site::with_store(8, directory, controller::SystemClock::start());
    let tokens = std::fs::read_to_string(fixture().join("tenant.tokens")).unwrap();
    let [blue, red, phoenix] =
        tokens.lines().map(|token| site.client(token.to_owned())).collect::<Vec<_>>().try_into().unwrap();
    let operator = site.operator();

    // Clusters keep their numbers and keep running.
    for (client, name, numbers) in
        [(&blue, "one", vec![0x101, 0x102]), (&red, "fast", vec![0x103]), (&phoenix, "new", vec![0x105])]
    {
        eventually("it is ready", || {
            site.ask(client.cluster_show(&by_name(name))).unwrap().phase == Phase::Ready
        });
        let cluster = site.ask(client.cluster_show(&by_name(name))).unwrap();
        let inner = cluster.partitions.iter().map(|inner| inner.number);
        let found: Vec<u16> =
            cluster.partition.into_iter().chain(inner).map(|number| number.to_wire()).collect();
        assert_eq!(found, numbers);
    }
    // Hosts with nodes are bound to the ports of their nodes, all others to the only adapter of their name.
    eventually("hosts are bound", || {
        site.ask(operator.host_list()).unwrap().iter().all(|host| host.port_guid.is_some())
    });
    for host in site.ask(operator.host_list()).unwrap() {
        let world = site.world.lock().unwrap();
        let ports = world.specs[host.name.as_str()].vms.iter().map(|vm| Some(vm.adapter.port_guid));
        assert!(ports.into_iter().all(|port| port == host.port_guid), "{host:?}");
    }
    // Records of an earlier tenant of the same name are visible to operators only.
    let clusters = |client: &controller_api::ApiClient| -> BTreeSet<String> {
        site.ask(client.operation_list()).unwrap().iter().map(|it| it.cluster.to_string()).collect()
    };
    assert_eq!(clusters(&phoenix), BTreeSet::from(["new".to_owned()]));
    assert!(clusters(&operator).contains("secret"), "the control");
    let events = site.ask(phoenix.event_list(None, false)).unwrap();
    assert!(
        !events.is_empty() && events.iter().all(|event| event.cluster != Some("secret".parse().unwrap()))
    );
    // A new cluster gets a number that is neither in use nor in quarantine.
    let operation = site.ask(blue.cluster_create(&new_cluster("two", 1))).unwrap();
    assert_eq!(site.wait(&blue, &operation).state, OperationState::Done);
    let two = site.ask(blue.cluster_show(&by_name("two"))).unwrap();
    assert_eq!(two.partition.unwrap().to_wire(), 0x107);
    // Private keys are no longer stored in plain text.
    let held = ["store", "store-wal"]
        .map(|name| std::fs::read(site.directory.path().join(name)).unwrap_or_default());
    let find = |what: &[u8]| held.iter().any(|bytes| bytes.windows(what.len()).any(|window| window == what));
    assert!(find(b"ssh-ed25519 ") && !find(b"PRIVATE KEY"));
    // A migrated cluster can be deleted.
    let operation = site.ask(red.cluster_delete(&by_name("fast"))).unwrap();
    assert_eq!(site.wait(&red, &operation).state, OperationState::Done);
}
