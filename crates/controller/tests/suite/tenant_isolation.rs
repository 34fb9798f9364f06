//! Quotas, limits and visibility between tenants.

use std::collections::BTreeSet;

use controller_api::cluster::{NewCluster, SubPartition};
use controller_api::host::NewHost;
use controller_api::operation::OperationState;
use controller_api::quota::QuotaChange;
use controller_api::tenant::TenantChange;
use controller_api::{ApiClient, MemorySize};
use fabric_model::tenancy::Class;

use crate::site::{Site, by_name, eventually, new_cluster};

fn kind<T: std::fmt::Debug>(result: Result<T, controller_api::ClientError>) -> String {
    match result {
        Err(controller_api::ClientError::Refused(problem)) => problem.problem.kind,
        other => panic!("not refused: {other:?}"),
    }
}

fn guaranteed(name: &str, size: u32, bandwidth: &str) -> NewCluster {
    let class = Class::Guaranteed { bandwidth: bandwidth.parse().unwrap(), latency_ns: None };
    NewCluster { class, ..new_cluster(name, size) }
}

fn gone(site: &Site, client: &ApiClient, name: &str) {
    let operation = site.ask(client.cluster_delete(&by_name(name))).unwrap();
    assert_eq!(site.wait(client, &operation).state, OperationState::Done);
}

#[test]
fn a_tenant_sees_nothing_of_a_former_namesake() {
    let site = Site::new(4);
    let (operator, old) = (site.operator(), site.tenant("phoenix"));
    site.ask(old.cluster_create(&new_cluster("secret", 1))).unwrap();
    let operation = site.ask(old.operation_list()).unwrap()[0].id;
    gone(&site, &old, "secret");
    assert!(!site.ask(old.event_list(None, false)).unwrap().is_empty(), "control: it sees its own");
    site.ask(operator.tenant_delete(&"phoenix".parse().unwrap())).unwrap();
    let new = site.tenant("phoenix");
    assert_eq!(site.ask(new.operation_list()).unwrap(), []);
    assert_eq!(site.ask(new.event_list(None, false)).unwrap(), []);
    assert_eq!(kind(site.ask(new.operation_show(operation))), "no-such-operation");
    assert!(site.ask(operator.operation_show(operation)).is_ok(), "operators keep the history");
}

#[test]
fn a_guarantee_of_zero_is_rejected() {
    let site = Site::new(4);
    let blue = site.tenant("blue");
    assert_eq!(kind(site.ask(blue.cluster_create(&guaranteed("all", 1, "0")))), "invalid");
    site.ask(blue.cluster_create(&guaranteed("some", 1, "100M"))).expect("the control");
}

#[test]
fn one_tenant_cannot_occupy_all_hosts() {
    let site = Site::new(16);
    let (blue, red) = (site.tenant("blue"), site.tenant("red"));
    assert_eq!(kind(site.ask(blue.cluster_create(&guaranteed("all", 16, "1M")))), "quota-exceeded");
    site.ask(blue.cluster_create(&guaranteed("half", 8, "1M"))).expect("the control: half of them");
    assert_eq!(kind(site.ask(blue.cluster_create(&guaranteed("more", 1, "1M")))), "quota-exceeded");
    site.ask(red.cluster_create(&new_cluster("other", 4))).expect("hosts are left for others");
}

#[test]
fn quarantined_numbers_count_against_their_last_tenant() {
    let site = Site::new(4);
    let (blue, red) = (site.tenant("blue"), site.tenant("red"));
    let inner = |n: u32| SubPartition {
        name: format!("p{n}").parse().unwrap(),
        full: [1].into(),
        limited: BTreeSet::new(),
    };
    let greedy = NewCluster { partitions: (0..8).map(inner).collect(), ..new_cluster("greedy", 1) };
    let mut refused = None;
    for _ in 0..70 {
        match site.ask(blue.cluster_create(&greedy)) {
            Ok(_) => gone(&site, &blue, "greedy"),
            Err(error) => {
                refused = Some(error);
                break;
            }
        }
    }
    assert_eq!(kind::<()>(Err(refused.expect("the quota ends the loop"))), "quota-exceeded");
    site.ask(red.cluster_create(&greedy)).expect("the control: another tenant has its own");
}

#[test]
fn a_second_controller_on_a_store_is_rejected() {
    let site = Site::new(4);
    let blue = site.tenant("blue");
    let endpoint = std::fs::read_to_string(site.directory.path().join("endpoint")).unwrap();
    let second = controller::serve(site.settings(), std::future::pending());
    let limit = std::time::Duration::from_secs(20);
    let ended = site.ask(async { tokio::time::timeout(limit, second).await }).expect("it ends");
    let error = format!("{:#}", ended.unwrap_err());
    assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
    assert_eq!(std::fs::read_to_string(site.directory.path().join("endpoint")).unwrap(), endpoint);
    site.ask(blue.cluster_create(&new_cluster("one", 1))).expect("the first one works");
}

#[test]
fn waiting_event_queries_are_limited_per_tenant() {
    let site = Site::new(4);
    let (blue, red) = (std::sync::Arc::new(site.tenant("blue")), site.tenant("red"));
    let polls: Vec<_> = (0..40)
        .map(|_| {
            let blue = std::sync::Arc::clone(&blue);
            async move { blue.event_list(Some(1_000_000), true).await }
        })
        .collect();
    let ended = site.ask(async {
        let mut tasks = tokio::task::JoinSet::new();
        for poll in polls {
            tasks.spawn(poll);
        }
        tasks.join_all().await
    });
    let refused = ended.iter().filter(|it| matches!(it, Err(controller_api::ClientError::Refused(problem)) if problem.problem.kind == "too-many-waiting"));
    assert_eq!(refused.count(), 40 - 16);
    eventually("their slots are free", || site.ask(blue.event_list(Some(1_000_000), true)).is_ok());
    site.ask(red.event_list(Some(1_000_000), true)).expect("another tenant waits");
}

#[test]
fn only_operators_see_who_occupies_hosts() {
    let site = Site::new(4);
    let (operator, blue, red) = (site.operator(), site.tenant("blue"), site.tenant("red"));
    let quota = QuotaChange { exclusive_share: Some(100), ..QuotaChange::default() };
    let tenant = "blue".parse().unwrap();
    let changed = site.ask(operator.tenant_change(&tenant, &TenantChange { quota })).unwrap();
    assert_eq!(changed.quota.exclusive_share, 100);
    site.ask(blue.cluster_create(&guaranteed("all", 4, "100M"))).unwrap();
    let shown = site.ask(blue.tenant_show(&tenant)).unwrap();
    assert_eq!((shown.usage.exclusive_hosts, shown.usage.nodes, shown.usage.partitions), (4, 4, 1));
    assert_eq!(kind(site.ask(red.tenant_show(&tenant))), "no-such-tenant");
    assert_eq!(kind(site.ask(blue.tenant_change(&tenant, &TenantChange { quota }))), "not-allowed");
    let detail = |client: &ApiClient, new: &NewCluster| match site.ask(client.cluster_create(new)) {
        Err(controller_api::ClientError::Refused(problem)) => problem.problem.detail.unwrap(),
        other => panic!("not refused: {other:?}"),
    };
    assert_eq!(detail(&red, &new_cluster("one", 1)), "no capacity is left now");
    let told =
        detail(&operator, &NewCluster { tenant: Some("red".parse().unwrap()), ..new_cluster("one", 1) });
    assert!(told.starts_with("none of 4 hosts is usable now: 4 are occupied by"), "{told}");
}

#[test]
fn a_host_without_cores_or_memory_is_refused() {
    let site = Site::new(4);
    let host = |cores, mib| NewHost {
        name: "small".parse().unwrap(),
        port_guid: None,
        agent: "/run/agent".to_owned(),
        cores,
        memory: MemorySize::from_mib(mib),
    };
    let operator = site.operator();
    assert_eq!(kind(site.ask(operator.host_add(&host(0, 1024)))), "invalid");
    assert_eq!(kind(site.ask(operator.host_add(&host(1, 0)))), "invalid");
    site.ask(operator.host_add(&host(1, 1024))).expect("the control");
}
