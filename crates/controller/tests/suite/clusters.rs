//! Clusters, sub-partitions and views through the REST interface.

use std::collections::{BTreeMap, BTreeSet};

use controller_api::agent::VmSpec;
use controller_api::cluster::{CpuMode, NewCluster, PartitionsUpdate, Phase, ResizeRequest, SubPartition};
use controller_api::operation::OperationState;
use controller_api::view::ViewStatus;
use controller_api::{ApiClient, ClientError, ClusterRef, Problem};
use fabric_model::tenancy::Class;
use ib_transport::framed::{Attached, Frame, FrameReader};
use ib_wire::{
    Attribute, Datagram, DirectedRoute, LidAddress, Mad, Membership, Method, NodeInfo, PartitionNumber, Pkey,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::site::{self, Site, by_name, eventually, new_cluster};

fn problem<T: std::fmt::Debug>(result: Result<T, ClientError>) -> Problem {
    match result {
        Err(ClientError::Refused(problem)) => problem.problem,
        other => panic!("not refused: {other:?}"),
    }
}

fn ready(site: &Site, client: &ApiClient, name: &str, size: u32) {
    let operation = site.ask(client.cluster_create(&new_cluster(name, size))).unwrap();
    let ended = site.wait(client, &operation);
    assert_eq!((ended.state, ended.reason), (OperationState::Done, None));
}

#[test]
fn a_cluster_is_created_resized_and_deleted_without_remains() {
    let site = Site::new(16);
    let blue = site.tenant("blue");
    ready(&site, &blue, "one", 2);
    let cluster = site.ask(blue.cluster_show(&by_name("one"))).unwrap();
    assert_eq!((cluster.phase, cluster.nodes.len()), (Phase::Ready, 2));
    assert_eq!(cluster.nodes[1].name, "one-2");
    assert_eq!(cluster.nodes[0].host, None, "tenants do not see hosts");
    let partition = cluster.partition.unwrap();
    assert_eq!(site.world.lock().unwrap().members.len(), 2);

    let grow = site.ask(blue.cluster_resize(&by_name("one"), ResizeRequest { size: 3 })).unwrap();
    assert_eq!(site.wait(&blue, &grow).state, OperationState::Done);
    {
        let world = site.world.lock().unwrap();
        let told: Vec<usize> =
            world.specs.values().flat_map(|it| &it.vms).map(|vm| vm.context.peers.len()).collect();
        assert_eq!(told, [3, 3, 3], "all nodes know each other");
    }
    let shrink = site.ask(blue.cluster_resize(&by_name("one"), ResizeRequest { size: 1 })).unwrap();
    assert_eq!(site.wait(&blue, &shrink).state, OperationState::Done);
    assert_eq!(site.ask(blue.cluster_show(&by_name("one"))).unwrap().nodes.len(), 1);
    assert_eq!(site.world.lock().unwrap().members.len(), 1);

    let delete = site.ask(blue.cluster_delete(&by_name("one"))).unwrap();
    assert_eq!(site.wait(&blue, &delete).state, OperationState::Done);
    assert_eq!(problem(site.ask(blue.cluster_show(&by_name("one")))).kind, "no-such-cluster");
    let world = site.world.lock().unwrap();
    assert!(world.members.is_empty() && world.specs.values().all(|spec| spec.vms.is_empty()));
    assert!(world.unsafe_vms.is_empty(), "{:?}", world.unsafe_vms);
    drop(world);
    ready(&site, &blue, "one", 1);
    let again = site.ask(blue.cluster_show(&by_name("one"))).unwrap().partition.unwrap();
    assert_ne!(again, partition, "a released number stays in quarantine");
}

fn inner(name: &str, full: &[u32], limited: &[u32]) -> SubPartition {
    let (full, limited) = (full.iter().copied().collect(), limited.iter().copied().collect());
    SubPartition { name: name.parse().unwrap(), full, limited }
}

/// The P_Keys of each virtual machine, by name.
fn keys(site: &Site) -> BTreeMap<String, Vec<Pkey>> {
    let world = site.world.lock().unwrap();
    let vms = world.specs.values().flat_map(|spec| &spec.vms);
    let key = |vm: &VmSpec| {
        let further = vm.adapter.inner_keys.iter().map(|key| key.pkey);
        (vm.context.hostname.clone(), [vm.adapter.pkey].into_iter().chain(further).collect())
    };
    vms.map(key).collect()
}

#[test]
fn sub_partitions_are_assigned_changed_and_released() {
    let site = Site::new(16);
    let blue = site.tenant("blue");
    let partitions = vec![inner("io", &[1, 2], &[]), inner("work", &[3], &[4])];
    let operation =
        site.ask(blue.cluster_create(&NewCluster { partitions, ..new_cluster("one", 5) })).unwrap();
    assert_eq!(site.wait(&blue, &operation).state, OperationState::Done);
    let cluster = site.ask(blue.cluster_show(&by_name("one"))).unwrap();
    let own = cluster.partition.unwrap();
    let [io, work] = [0, 1].map(|index| cluster.partitions[index].number);
    let (full, limited) = (Membership::Full, Membership::Limited);
    let expected = |io: PartitionNumber| {
        BTreeMap::from([
            ("one-1".to_owned(), vec![own.key(limited), io.key(full)]),
            ("one-2".to_owned(), vec![own.key(limited), io.key(full)]),
            ("one-3".to_owned(), vec![own.key(limited), work.key(full)]),
            ("one-4".to_owned(), vec![own.key(limited), work.key(limited)]),
            ("one-5".to_owned(), vec![own.key(full)]),
        ])
    };
    assert_eq!(keys(&site), expected(io));
    let numbers = |site: &Site| -> BTreeSet<PartitionNumber> {
        site.world.lock().unwrap().members.iter().map(|(number, _)| *number).collect()
    };
    assert_eq!(numbers(&site), BTreeSet::from([own, io, work]));

    // Replaced: a known name keeps its number, and a released number goes into quarantine.
    let change =
        |partitions| site.ask(blue.cluster_partition(&by_name("one"), &PartitionsUpdate { partitions }));
    let changed = change(vec![inner("work", &[3], &[4]), inner("disk", &[1, 2], &[])]).unwrap();
    assert_eq!(site.wait(&blue, &changed).state, OperationState::Done);
    let cluster = site.ask(blue.cluster_show(&by_name("one"))).unwrap();
    assert_eq!(cluster.partitions[0].number, work);
    let disk = cluster.partitions[1].number;
    assert!(disk != io && disk != own, "a released number stays in quarantine");
    assert_eq!(keys(&site), expected(disk));
    assert_eq!(numbers(&site), BTreeSet::from([own, work, disk]));

    // An invalid request is rejected and changes nothing.
    let refused = problem(change(vec![inner("io", &[6], &[])]));
    assert_eq!(refused.field.as_deref(), Some("partitions"));
    assert_eq!(refused.detail.unwrap(), "partition io: there is no node 6; nodes are numbered 1 to 5");
    assert_eq!(problem(change(vec![inner("io", &[1], &[1])])).kind, refused.kind);
    assert_eq!(
        problem(change((0..9).map(|n| inner(&format!("p{n}"), &[1], &[])).collect())).kind,
        refused.kind
    );
    let red = site.tenant("red");
    let foreign = PartitionsUpdate { partitions: Vec::new() };
    assert_eq!(problem(site.ask(red.cluster_partition(&by_name("one"), &foreign))).status, 404);
    assert_eq!(keys(&site), expected(disk));

    let cleared = change(Vec::new()).unwrap();
    assert_eq!(site.wait(&blue, &cleared).state, OperationState::Done);
    assert!(keys(&site).values().all(|keys| *keys == [own.key(full)]), "all are full members again");
    let delete = site.ask(blue.cluster_delete(&by_name("one"))).unwrap();
    assert_eq!(site.wait(&blue, &delete).state, OperationState::Done);
    assert!(site.world.lock().unwrap().members.is_empty());
    assert!(site.world.lock().unwrap().unsafe_vms.is_empty());
}

/// Queries the NodeInfo of a node in its view.
async fn ask_node_info(mut stream: controller_api::Upgraded) -> (Attached, Box<Datagram>) {
    let mut reader = FrameReader::default();
    let mut attached = None;
    loop {
        match reader.next_frame().unwrap() {
            Some(Frame::Attached(seat)) => {
                let mad = Mad::directed(Method::GET, Attribute::NODE_INFO, 0, &DirectedRoute::default());
                // The claimed source address is ignored.
                let (slid, dlid) = (LidAddress::from_wire(0x1234).unwrap(), LidAddress::Permissive);
                let mut request = Vec::new();
                Frame::encode_datagram(&Datagram::subnet_management(slid, dlid, mad), &mut request);
                stream.write_all(&request).await.unwrap();
                attached = Some(seat);
            }
            Some(Frame::Datagram(answer)) => return (attached.unwrap(), answer),
            Some(other) => panic!("{other:?}"),
            None => {
                let count = stream.read(reader.room()).await.unwrap();
                assert_ne!(count, 0, "the stream ended");
                reader.filled(count);
            }
        }
    }
}

#[test]
fn a_view_shows_its_tenant_only_its_own_network() {
    let site = Site::new(16);
    let (blue, red) = (site.tenant("blue"), site.tenant("red"));
    ready(&site, &blue, "one", 3);
    ready(&site, &red, "two", 3);
    let view = |client: &ApiClient, name: &str| {
        eventually("there is a view", || {
            site.ask(client.view_show(&by_name(name))).is_ok_and(|view| view.nodes.len() == 3)
        });
        site.ask(client.view_show(&by_name(name))).unwrap()
    };
    let (one, two) = (view(&blue, "one"), view(&red, "two"));
    let cluster = site.ask(blue.cluster_show(&by_name("one"))).unwrap();
    assert_eq!(Some(one.partition), cluster.partition);
    assert_eq!(one.nodes[1].node, "one-2");
    let numbers =
        |view: &ViewStatus| -> Vec<_> { view.nodes.iter().map(|node| (node.guid, node.lid)).collect() };
    assert_eq!(numbers(&one), numbers(&two), "both views have the same GUIDs and LIDs");
    assert_eq!((one.managed_by, one.in_force, one.pending), (None, None, false));

    // A stream ends at the adapter of the requested node, and not at one of another cluster.
    let stream = site.ask(blue.view_open(&by_name("one"), 2)).unwrap();
    let (seat, answer) = site.ask(ask_node_info(stream));
    assert_eq!(seat.port_guid, Some(one.nodes[1].port_guid));
    let info = NodeInfo::decode(answer.mad.smp_data()).unwrap();
    assert_eq!(info.node_guid, one.nodes[1].guid);
    assert_eq!(problem(site.ask(blue.view_open(&by_name("one"), 4)).map(|_| ())).status, 404);
    assert_eq!(problem(site.ask(red.view_open(&by_name("one"), 1)).map(|_| ())).status, 404);
    assert_eq!(problem(site.ask(red.view_show(&by_name("one"))).map(|_| ())).status, 404);
    assert_eq!(problem(site.ask(red.view_commit(&by_name("one"))).map(|_| ())).status, 404);
    site.ask(blue.view_commit(&by_name("one"))).unwrap();

    // Names stay while the cluster grows and the controller restarts.
    let grow = site.ask(blue.cluster_resize(&by_name("one"), ResizeRequest { size: 4 })).unwrap();
    assert_eq!(site.wait(&blue, &grow).state, OperationState::Done);
    eventually("the new node is in the view", || {
        site.ask(blue.view_show(&by_name("one"))).is_ok_and(|view| view.nodes.len() == 4)
    });
    let grown = site.ask(blue.view_show(&by_name("one"))).unwrap();
    assert_eq!(grown.nodes[..3], one.nodes[..]);
}

#[test]
fn a_foreign_cluster_looks_like_a_missing_one() {
    let site = Site::new(16);
    let (blue, red) = (site.tenant("blue"), site.tenant("red"));
    ready(&site, &blue, "secret", 1);
    let foreign = by_name("secret");
    let with_owner = ClusterRef { tenant: Some("blue".parse().unwrap()), ..foreign.clone() };
    let nothing = ClusterRef { name: "nothing".parse().unwrap(), tenant: None };
    let replace = |problem: Problem| format!("{problem:?}").replace("secret", "nothing");
    let absent = replace(problem(site.ask(red.cluster_show(&nothing))));
    for name in [&foreign, &with_owner] {
        assert_eq!(replace(problem(site.ask(red.cluster_show(name)))), absent);
        assert_eq!(replace(problem(site.ask(red.cluster_delete(name)))), absent);
        assert_eq!(replace(problem(site.ask(red.cluster_resize(name, ResizeRequest { size: 2 })))), absent);
        let open = controller_api::session::NewSession::Ssh {};
        assert_eq!(replace(problem(site.ask(red.session(name, 1, &open)).map(|_| ()))), absent);
    }
    assert!(site.ask(red.cluster_list()).unwrap().is_empty());
    assert!(site.ask(red.event_list(None, false)).unwrap().is_empty());
    let operation = site.ask(blue.operation_list()).unwrap()[0].id;
    assert_eq!(problem(site.ask(red.operation_show(operation))).status, 404);
    // Control: the owner and the operator see it, and the other tenant may use the same name.
    assert_eq!(site.ask(blue.cluster_list()).unwrap().len(), 1);
    assert!(site.ask(site.operator().cluster_show(&with_owner)).unwrap().nodes[0].host.is_some());
    ready(&site, &red, "secret", 1);
}

#[test]
fn guaranteed_clusters_are_exclusive_or_rejected() {
    let site = Site::new(4);
    let (blue, red) = (site.tenant("blue"), site.tenant("red"));
    let promised = |name: &str, bandwidth: &str| {
        let class = Class::Guaranteed { bandwidth: bandwidth.parse().unwrap(), latency_ns: None };
        NewCluster { class, ..new_cluster(name, 2) }
    };
    let too_much = problem(site.ask(blue.cluster_create(&promised("fast", "10000G"))));
    assert_eq!((too_much.kind.as_str(), too_much.field.as_deref()), ("cannot-guarantee", Some("class")));
    assert!(!too_much.detail.unwrap().contains("Gb/s left"), "tenants do not see what is left");
    let asked = NewCluster { tenant: Some("blue".parse().unwrap()), ..promised("fast", "10000G") };
    let too_much = problem(site.ask(site.operator().cluster_create(&asked)));
    assert!(too_much.detail.unwrap().contains("Gb/s left"), "operators see what is left");
    site.ask(blue.cluster_create(&promised("fast", "100M"))).unwrap();
    eventually("fast is ready", || {
        site.ask(blue.cluster_show(&by_name("fast"))).is_ok_and(|cluster| cluster.phase == Phase::Ready)
    });
    // No other cluster is placed on its hosts, even if all other hosts are full.
    let hosts = |client: &ApiClient, tenant: &str, name: &str| {
        let cluster = ClusterRef { tenant: Some(tenant.parse().unwrap()), ..by_name(name) };
        let nodes = site.ask(client.cluster_show(&cluster)).unwrap().nodes;
        nodes.into_iter().map(|node| node.host.unwrap()).collect::<std::collections::BTreeSet<_>>()
    };
    let operator = site.operator();
    let own = hosts(&operator, "blue", "fast");
    let rest = 4 * (4 - own.len() as u32);
    ready(&site, &red, "many", rest);
    assert!(hosts(&operator, "red", "many").is_disjoint(&own));
    assert_eq!(problem(site.ask(red.cluster_create(&new_cluster("more", 1)))).kind, "no-capacity");
}

#[test]
fn bad_requests_are_rejected_with_the_reason() {
    let site = Site::new(4);
    let blue = site.tenant("blue");
    let refused = |new_cluster: NewCluster| problem(site.ask(blue.cluster_create(&new_cluster)));
    let no_image = refused(NewCluster { image: "nothing".parse().unwrap(), ..new_cluster("one", 1) });
    assert_eq!(
        (no_image.kind.as_str(), no_image.hint.as_deref()),
        ("no-such-image", Some("images: debian-mpi"))
    );
    let too_many = refused(new_cluster("one", 17));
    assert_eq!((too_many.kind.as_str(), too_many.status), ("no-capacity", 409));
    let said = "there is no capacity now for 17 nodes of 1 cores and 384M";
    assert_eq!(too_many.detail.as_deref(), Some(said), "the request only, and nothing of the site");
    let dedicated = refused(NewCluster { mode: CpuMode::Dedicated, ..new_cluster("one", 2) });
    assert!(dedicated.detail.unwrap().contains("2 nodes with 1 dedicated cores each"));
    // Operators see what is left.
    let told = |new_cluster: NewCluster| {
        let asked = NewCluster { tenant: Some("blue".parse().unwrap()), ..new_cluster };
        problem(site.ask(site.operator().cluster_create(&asked))).detail.unwrap()
    };
    assert!(told(new_cluster("one", 17)).contains("can take 16"));
    let dedicated = told(NewCluster { mode: CpuMode::Dedicated, ..new_cluster("one", 2) });
    assert!(dedicated.contains("1 of 1 cores for dedicated nodes are left"));
    assert_eq!(refused(new_cluster("one", 0)).field.as_deref(), Some("size"));
    assert_eq!(refused(NewCluster { cores: 0, ..new_cluster("one", 1) }).field.as_deref(), Some("cores"));
    let key = NewCluster { ssh_keys: vec!["ssh-rsa x\nroot".to_owned()], ..new_cluster("one", 1) };
    assert_eq!(refused(key).field.as_deref(), Some("ssh_keys"));
    let stranger = site.client("heddle_0000".to_owned());
    assert_eq!(problem(site.ask(stranger.cluster_list())).status, 401);
    assert_eq!(problem(site.ask(blue.tenant_list())).kind, "not-allowed");
    let mut wrong = site::image(site.directory.path());
    wrong.digest = "00".repeat(32);
    assert_eq!(problem(site.ask(site.operator().image_add(&wrong))).kind, "wrong-checksum");
    ready(&site, &blue, "one", 1);
    assert_eq!(refused(new_cluster("one", 1)).kind, "name-taken");
    assert_eq!(site.ask(blue.cluster_list()).unwrap().len(), 1);
    assert_eq!(site.world.lock().unwrap().members.len(), 1);
}

#[test]
fn a_cluster_that_cannot_start_fails_with_its_reason() {
    let site = Site::new(4);
    let blue = site.tenant("blue");
    site.world
        .lock()
        .unwrap()
        .change(|world| world.failure = Some("the disk is full: 0 of 90 MiB".to_owned()));
    let operation = site.ask(blue.cluster_create(&new_cluster("one", 2))).unwrap();
    let ended = site.wait(&blue, &operation);
    assert_eq!(ended.state, OperationState::Failed);
    // Both fail, and the first one is reported. Only operators see the reason given by the host.
    let reason = ended.reason.unwrap();
    assert!(reason.starts_with("one-") && reason.contains(": its host cannot run it"), "{reason}");
    let events = site.ask(site.operator().event_list(None, false)).unwrap();
    assert!(events.iter().any(|event| event.text.ends_with(": the disk is full: 0 of 90 MiB")), "{events:?}");
    eventually("its hosts and ports are released", || {
        let world = site.world.lock().unwrap();
        world.members.is_empty() && world.specs.values().all(|spec| spec.vms.is_empty())
    });
    assert_eq!(site.ask(blue.cluster_show(&by_name("one"))).unwrap().phase, Phase::Failed);
    site.world.lock().unwrap().change(|world| world.failure = None);
    let delete = site.ask(blue.cluster_delete(&by_name("one"))).unwrap();
    assert_eq!(site.wait(&blue, &delete).state, OperationState::Done);
    ready(&site, &blue, "one", 2);
}

/// The controller is killed at twenty arbitrary points while clusters are created, resized and deleted.
#[test]
fn a_killed_controller_continues_where_it_was() {
    let mut site = Site::new(16);
    let blue = site.tenant("blue");
    let token = blue_token(&site);
    drop(blue);
    let mut seed = 0x9e37_79b9_u64;
    for round in 0..20 {
        let client = site.client(token.clone());
        let name = format!("c{}", round % 5);
        let asked = || match round % 3 {
            0 => site.ask(client.cluster_create(&new_cluster(&name, 2))),
            1 => site.ask(
                client.cluster_resize(&by_name(&format!("c{}", (round - 1) % 5)), ResizeRequest { size: 3 }),
            ),
            _ => site.ask(client.cluster_delete(&by_name(&format!("c{}", (round - 2) % 5)))),
        };
        // A controller that has just started rejects requests until it has observed its site. Other rejections are
        // expected, such as those because of an operation in progress.
        eventually(
            "the site is observed",
            || !matches!(asked(), Err(ClientError::Refused(problem)) if problem.problem.kind == "not-yet"),
        );
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        std::thread::sleep(std::time::Duration::from_millis(seed >> 57));
        site.kill();
        site.start();
    }
    let client = site.client(token);
    eventually("everything has ended", || {
        let operations = site.ask(client.operation_list()).unwrap();
        operations.iter().all(|operation| operation.state != OperationState::Running)
    });
    let clusters = site.ask(client.cluster_list()).unwrap();
    assert!(clusters.iter().all(|cluster| cluster.phase == Phase::Ready), "{clusters:?}");
    let wanted: usize = clusters.iter().map(|cluster| cluster.nodes.len()).sum();
    assert!(wanted > 0, "there are nodes");
    let world = site.world.lock().unwrap();
    let running: usize = world.specs.values().map(|spec| spec.vms.len()).sum();
    assert_eq!((running, world.vms.len()), (wanted, wanted));
    // Two nodes of a cluster may be behind one port, if other hosts were not observed yet when they were placed.
    let ports: BTreeSet<_> =
        world.vms.values().map(|(_, vm)| (vm.adapter.pkey.partition(), vm.adapter.port_guid)).collect();
    assert_eq!(world.members, ports);
    assert!(world.unsafe_vms.is_empty());
    let keys: std::collections::BTreeSet<_> =
        clusters.iter().filter_map(|cluster| cluster.partition).collect();
    assert_eq!(keys.len(), clusters.len(), "no partition is used twice");
}

fn blue_token(site: &Site) -> String {
    site.token_of("blue")
}
