//! Partitions of the site beside clusters: set by operators, checked before they are accepted.

use controller_api::MemorySize;
use controller_api::cluster::NewCluster;
use controller_api::fabric::SitePartitions;
use controller_api::host::NewHost;
use controller_api::limit::Limit;
use controller_api::operation::OperationState;
use controller_api::{ClientError, ClusterRef};
use fabric_model::FabricPlan;
use fabric_model::generate::FatTree;
use ib_wire::{Guid, Pkey};

use crate::site::{Site, by_name, eventually, new_cluster};

/// Everybody in the default partition, as under opensm.
const OPEN: &str = "Default=0x7fff, ipoib, defmember=full : ALL;";

fn set(site: &Site, conf: &str) -> Result<SitePartitions, ClientError> {
    site.ask(site.operator().fabric_partitions_set(&SitePartitions { conf: conf.to_owned() }))
}

fn shown(site: &Site) -> String {
    site.ask(site.operator().fabric_partitions()).unwrap().conf
}

fn plan(site: &Site) -> Option<FabricPlan> {
    site.world.lock().unwrap().plan.clone()
}

fn keys(plan: &FabricPlan, port: Guid) -> Vec<u16> {
    plan.adapter_port(port).unwrap().pkeys.keys().map(Pkey::to_wire).collect()
}

/// The ports of the fabric, of which four belong to hosts. The manager's is among the others.
struct Ports {
    hosts: Vec<Guid>,
    others: Vec<Guid>,
}

fn site_beside_others() -> (Site, Ports) {
    let tree = FatTree { radix: 8, ..FatTree::with_hosts(8) }.generate().unwrap();
    let ports: Vec<Guid> = tree.end_nodes().map(|(_, node)| node.ports().next().unwrap().1.guid).collect();
    let site = Site::on(tree);
    eventually("the first plan is programmed", || plan(&site).is_some());
    let manager = plan(&site).unwrap().manager().guid;
    // Hosts without nodes can be removed: their ports are the site's then.
    let (mut hosts, mut others) = (Vec::new(), Vec::new());
    for host in site.ask(site.operator().host_list()).unwrap() {
        let port = host.port_guid.unwrap();
        if hosts.len() < 4 && port != manager {
            hosts.push(port);
        } else {
            site.ask(site.operator().host_remove(&host.name)).unwrap();
            others.push(port);
        }
    }
    assert_eq!(ports.len(), hosts.len() + others.len());
    (site, Ports { hosts, others })
}

fn problem(error: ClientError) -> String {
    match error {
        ClientError::Refused(problem) => format!("{} {problem:?}", problem.problem.kind),
        other => panic!("{other:?}"),
    }
}

#[test]
fn ports_of_hosts_leave_an_open_default_partition() {
    let (site, ports) = site_beside_others();
    set(&site, OPEN).unwrap();
    assert_eq!(shown(&site), OPEN);
    eventually("the plan has the partitions of the site", || {
        plan(&site).is_some_and(|plan| keys(&plan, ports.hosts[0]) == [0x7ffe])
    });
    let plan = plan(&site).unwrap();
    for port in &ports.hosts {
        assert_eq!(keys(&plan, *port), [0x7ffe], "the management partition");
    }
    for port in &ports.others {
        assert!(keys(&plan, *port).contains(&0xffff), "{port}");
    }
}

#[test]
fn clusters_come_and_go_beside_a_site() {
    let (site, ports) = site_beside_others();
    set(&site, OPEN).unwrap();
    let tenant = site.tenant("blue");
    let operation = site.ask(tenant.cluster_create(&new_cluster("one", 2))).unwrap();
    site.wait(&tenant, &operation);
    let plan = plan(&site).unwrap();
    let own = |port: &Guid| keys(&plan, *port).contains(&0x8100);
    assert!(ports.hosts.iter().any(own));
    let manager = plan.manager().guid;
    assert!(own(&manager), "requests with the cluster's key are answered");
    assert!(ports.others.iter().filter(|port| **port != manager).all(|port| !own(port)));
}

#[test]
fn a_bad_file_changes_nothing() {
    let (site, ports) = site_beside_others();
    set(&site, OPEN).unwrap();
    let full = format!("storage=0x20 : {}=full;", ports.hosts[0]);
    for (conf, words) in [
        ("Default=0x7fff ALL=full;", "line 1, column 16"),
        ("storage : ALL=limited;", "needs a number, such as storage=0x20"),
        (full.as_str(), "as a limited member only"),
    ] {
        let refused = problem(set(&site, conf).unwrap_err());
        assert!(refused.contains(words), "{conf}: {refused}");
        assert_eq!(shown(&site), OPEN);
    }
}

#[test]
fn a_number_of_a_cluster_is_refused_and_names_it() {
    let (site, _) = site_beside_others();
    let tenant = site.tenant("blue");
    let operation = site.ask(tenant.cluster_create(&new_cluster("one", 2))).unwrap();
    site.wait(&tenant, &operation);
    let refused = problem(set(&site, "storage=0x100 : ALL=limited;").unwrap_err());
    assert!(refused.contains("number-taken") && refused.contains("blue/one"), "{refused}");
    set(&site, "storage=0x20 : ALL=limited;").unwrap();
}

#[test]
fn clusters_never_get_a_number_of_the_site() {
    let (site, _) = site_beside_others();
    set(&site, "a=0x100 : ALL=limited; b=0x101 : ALL=limited;").unwrap();
    let tenant = site.tenant("blue");
    let operation = site.ask(tenant.cluster_create(&new_cluster("one", 1))).unwrap();
    site.wait(&tenant, &operation);
    let used: Vec<u16> = site
        .world
        .lock()
        .unwrap()
        .plan
        .as_ref()
        .unwrap()
        .partitions()
        .map(|it| it.number.to_wire())
        .collect();
    assert!(used.contains(&0x102), "{used:x?}");
}

#[test]
fn a_port_that_the_site_keeps_is_not_handed_over() {
    let (site, ports) = site_beside_others();
    set(&site, &format!("storage=0x20 : {}=full, ALL=limited;", ports.others[0])).unwrap();
    let host = |name: &str, port| NewHost {
        name: name.parse().unwrap(),
        agent: "/run/agent".to_owned(),
        cores: 4,
        memory: MemorySize::from_mib(4096),
        port_guid: Some(port),
    };
    let refused = site.ask(site.operator().host_add(&host("late", ports.others[0]))).unwrap_err();
    assert!(problem(refused).contains("of-site"));
    site.ask(site.operator().host_add(&host("late", ports.others[1]))).unwrap();
}

#[test]
fn no_node_is_placed_on_a_port_of_a_manager_beside_a_site() {
    let site = Site::on(FatTree { radix: 8, ..FatTree::with_hosts(8) }.generate().unwrap());
    eventually("the first plan is programmed", || plan(&site).is_some());
    let manager = plan(&site).unwrap().manager().guid;
    site.tenant("blue");
    let create = |size| {
        let cluster = NewCluster { tenant: Some("blue".parse().unwrap()), ..new_cluster("one", size) };
        site.ask(site.operator().cluster_create(&cluster))
    };
    let fitting = || match create(1000).unwrap_err() {
        ClientError::Refused(problem) => match problem.limit {
            Some(Limit::HostCapacity { nodes_that_fit: Some(nodes), .. }) => nodes,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    let everywhere = fitting();
    set(&site, OPEN).unwrap();
    assert_eq!(fitting() * 8, everywhere * 7, "seven of eight hosts are left");
    let operation = create(fitting()).unwrap();
    assert_eq!(site.wait(&site.operator(), &operation).state, OperationState::Done);
    let hosts = site.ask(site.operator().host_list()).unwrap();
    let kept = hosts.into_iter().find(|host| host.port_guid == Some(manager)).unwrap().name;
    let name = ClusterRef { tenant: Some("blue".parse().unwrap()), ..by_name("one") };
    let nodes = site.ask(site.operator().cluster_show(&name)).unwrap().nodes;
    assert!(nodes.iter().all(|node| node.host.is_some() && node.host != Some(kept.clone())), "{nodes:?}");
}
