//! The rates of links are the verifier's own: it takes none from the decisions of a plan.

use std::collections::BTreeSet;

use fabric_compiler::compile;
use fabric_model::generate::FatTree;
use fabric_model::intent::PortName;
use fabric_model::{Decisions, Endpoint, Intents, LinkRate, Topology, TopologyBuilder};
use fabric_verifier::{Finding, Rule, verify};

use crate::world::{add_cluster, hosts};

/// The topology with another rate on the link of a port, at both ends.
fn with_rate(topology: &Topology, end: Endpoint, rate: Option<LinkRate>) -> Topology {
    let peer = topology.peer(end).unwrap();
    let mut builder = TopologyBuilder::from(topology.clone());
    builder.set_rate(end, rate).unwrap();
    builder.set_rate(peer, rate).unwrap();
    builder.build().unwrap()
}

/// A plan for links of 4xEDR is verified on a fabric whose links have other rates.
#[test]
fn a_guarantee_is_broken_on_a_link_slower_than_planned() {
    let tree = FatTree { radix: 8, ..FatTree::with_hosts(16) }.generate().unwrap();
    let ports = hosts(&tree);
    let mut intents = Intents::new(ports[0]);
    let members = vec![ports[1], ports[5], ports[9]];
    add_cluster(&mut intents, "a".to_owned(), members.clone(), 40_000_000_000, Some(200_000));
    let plan = compile(&tree, &intents, &Decisions::default()).unwrap();
    let own = tree.by_port_guid(members[0]).unwrap();
    let trunk = plan.decisions().clusters["a"].links.iter().map(|link| link.port).find_map(|port| {
        plan.switch(port.node)?;
        let end = Endpoint::new(tree.by_guid(port.node)?, port.port);
        tree[tree.peer(end)?.node].is_switch().then_some(end)
    });
    let other = tree.by_port_guid(ports[2]).unwrap();
    let rate = |text: &str| Some(text.parse().unwrap());
    // The link, its rate, and whether a guarantee is then broken.
    let cases = [
        (own, rate("4xEDR"), false),
        (own, rate("4xHDR"), false),
        (own, rate("4xQDR"), true),
        (own, None, true),
        (trunk.unwrap(), rate("4xHDR"), false),
        (trunk.unwrap(), rate("4xSDR"), true),
        (trunk.unwrap(), None, true),
        (other, rate("4xSDR"), false),
        (other, None, false),
    ];
    for (end, rate, is_broken) in cases {
        let findings = verify(&with_rate(&tree, end, rate), &intents, &plan);
        let name = |end: Endpoint| PortName { node: tree[end.node].guid, port: end.port };
        let slow = [name(end), name(tree.peer(end).unwrap())];
        let broken: BTreeSet<Rule> = findings.iter().map(Finding::rule).collect();
        let expected = if is_broken { BTreeSet::from([Rule::Guarantees]) } else { BTreeSet::new() };
        assert_eq!(broken, expected, "{rate:?} at {slow:?}: {:?}", findings);
        let names_link = |found: &Finding| matches!(found, Finding::ShareTooSmall { port, .. } | Finding::LaneUnserved { port, .. } if slow.contains(port));
        assert_eq!(findings.iter().any(names_link), is_broken, "{:?}", findings);
    }
}
