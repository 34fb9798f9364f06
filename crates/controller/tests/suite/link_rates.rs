//! Guarantees on links of different rates.

use std::collections::BTreeMap;

use controller_api::cluster::NewCluster;
use controller_api::fabric::LinkStatus;
use fabric_model::tenancy::Class;
use fabric_model::{Endpoint, LinkRate, NewNode, Topology, TopologyBuilder};
use ib_wire::{Guid, NodeKind, PortNum};

use crate::site::{Site, new_cluster};

/// Rates of hosts at one switch; `None` is not reported.
const RATES: [Option<&str>; 5] = [Some("4xSDR"), Some("4xQDR"), Some("4xFDR10"), Some("4xHDR"), None];

/// Two hosts for each rate.
fn fabric(rates: &[Option<&str>]) -> Topology {
    let mut builder = TopologyBuilder::new();
    let guid = |number: u64| Guid::from_wire(0x1000 + 16 * number).unwrap();
    let port = |number: usize| PortNum::new(number as u8).unwrap();
    let switch = builder.add_node(NewNode::new(NodeKind::Switch, "S-1", guid(0), 24)).unwrap();
    for index in 0..2 * rates.len() {
        let number = index + 1;
        let name = format!("H-{number}");
        let mut node = NewNode::new(NodeKind::Adapter, name, guid(number as u64), 1);
        node.description = format!("host-{number}");
        let host = builder.add_node(node).unwrap();
        let rate = rates[index / 2].map(|rate| rate.parse::<LinkRate>().unwrap());
        builder.connect(Endpoint::new(switch, port(number)), Endpoint::new(host, port(1)), rate).unwrap();
    }
    builder.build().unwrap()
}

fn guaranteed(name: &str, bandwidth: &str) -> NewCluster {
    let class = Class::Guaranteed { bandwidth: bandwidth.parse().unwrap(), latency_ns: None };
    NewCluster { class, ..new_cluster(name, 2) }
}

#[test]
fn no_link_is_sold_beyond_its_rate() {
    let site = Site::on(fabric(&RATES));
    // Each tenant has few hosts of its own.
    let tenants = ["blue", "red"].map(|name| site.tenant(name));
    let sizes = ["60G", "24G", "18G", "12G", "12G", "5G", "5G", "1G", "1G"];
    let mut sold = Vec::new();
    for (index, bandwidth) in sizes.into_iter().enumerate() {
        let tenant = &tenants[sold.len() / 2 % tenants.len()];
        match site.ask(tenant.cluster_create(&guaranteed(&format!("c{index}"), bandwidth))) {
            Ok(operation) => {
                site.wait(tenant, &operation);
                sold.push(bandwidth);
            }
            Err(refused) => println!("{bandwidth} refused: {refused}"),
        }
    }
    assert_eq!(sold, ["60G", "24G", "18G", "5G"], "one for each rate that is known");
    let links: Vec<LinkStatus> = site.ask(site.operator().fabric_links(true)).unwrap();
    assert_eq!(links.len(), 4 * RATES.len(), "both directions of each link");
    let mut most: BTreeMap<String, f64> = BTreeMap::new();
    for link in &links {
        let sold = link.guaranteed_total().bits_per_s() as f64 / 1e9;
        let rate = link.rate.map_or(0.0, |rate| rate.data_rate_gbps());
        assert!(sold <= rate, "{link:?}");
        let name = link.rate.map_or("unknown".to_owned(), |rate| rate.to_string());
        let entry = most.entry(name).or_default();
        *entry = entry.max(sold);
    }
    println!("most sold, Gb/s: {most:?}");
    assert_eq!(most["unknown"], 0.0);
    assert!(most["4xSDR"] >= 5.0 && most["4xHDR"] >= 60.0, "{most:?}");
    let guaranteed = site.ask(site.operator().fabric_links(false)).unwrap();
    assert!(guaranteed.iter().all(|link| !link.guaranteed.is_empty()));
    assert_eq!(guaranteed.len(), 2 * 2 * 4);
}

#[test]
fn a_tenant_learns_that_nothing_can_be_guaranteed() {
    let refused = |rate: Option<&str>| {
        let site = Site::on(fabric(&[rate, rate]));
        let tenant = site.tenant("blue");
        let error = site.ask(tenant.cluster_create(&guaranteed("greedy", "90G"))).unwrap_err();
        site.ask(tenant.cluster_create(&new_cluster("modest", 2))).expect("best effort is possible");
        error.to_string()
    };
    let unknown = refused(None);
    assert!(unknown.contains("nothing can be guaranteed on a part of the network"), "{unknown}");
    let slow = refused(Some("4xQDR"));
    assert!(slow.contains("too little capacity"), "{slow}");
}
