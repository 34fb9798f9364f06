//! A topology survives writing and parsing.

use ib_wire::Lmc;
use proptest::prelude::*;

use super::*;
use crate::builder::{NewNode, TopologyBuilder};
use crate::generate::without_links;
use crate::link_rate::{LinkRate, Speed, Width};
use crate::topology::NodeIndex;

/// Topologies of all generators, mostly with a missing link.
fn generated() -> impl Strategy<Value = Topology> {
    let fat_trees = (1u32..200, 4u8..24, prop::sample::select(vec!["1:1", "2:1", "3:2"])).prop_filter_map(
        "too large for the radix",
        |(hosts, radix, ratio)| {
            FatTree { radix, oversubscription: ratio.parse().unwrap(), ..FatTree::with_hosts(hosts) }
                .generate()
                .ok()
        },
    );
    let tori = (prop::collection::vec(2u16..5, 1..4), any::<bool>(), 0u8..4).prop_map(
        |(dimensions, wrap, hosts)| {
            Torus { wrap, hosts_per_switch: hosts, ..Torus::new(dimensions) }.generate().unwrap()
        },
    );
    let dragonflies =
        (1u16..6, 1u8..4, 1u8..4, 0u8..4).prop_map(|(groups, leaves, spines, hosts_per_leaf)| {
            DragonflyPlus { leaves, spines, hosts_per_leaf, ..DragonflyPlus::new(groups) }.generate().unwrap()
        });
    let random = (5u32..30, 2u8..5, any::<u64>())
        .prop_map(|(switches, degree, seed)| RandomFabric::new(switches, degree, seed).generate().unwrap());
    let whole = prop_oneof![fat_trees, tori, dragonflies, random];
    (whole, any::<u64>()).prop_map(|(fabric, seed)| without_links(fabric.clone(), 1, seed).unwrap_or(fabric))
}

/// A node of an arbitrary topology.
fn node() -> impl Strategy<Value = NewNode> {
    let kind = prop_oneof![Just(NodeKind::Switch), Just(NodeKind::Adapter), Just(NodeKind::Router)];
    let port_0 = prop_oneof![Just(PortZero::Unknown), Just(PortZero::Base), Just(PortZero::Enhanced)];
    let ids = (prop::option::of(1..u32::MAX >> 8), prop::option::of(1..u16::MAX));
    let names = ("[a-z0-9-]{1,12}", prop::option::of("[a-z]{1,20}"), "[ -~é]{0,50}");
    (kind, port_0, ids, names, 1u8..40).prop_map(|(kind, port_0, ids, (name, module, description), ports)| {
        let id = module.map_or(name.clone(), |module| format!("{module}#{name}"));
        NewNode {
            vendor_id: ids.0,
            device_id: ids.1,
            description,
            port_0,
            ..NewNode::new(kind, id, guid(1), ports)
        }
    })
}

/// Two port numbers, rate, LID, LMC and speed mask of a cable.
fn cable() -> impl Strategy<Value = (usize, usize, Option<LinkRate>, u16, u8, u8)> {
    let rate = (prop::sample::select(Speed::ALL.to_vec()), prop::sample::select(Width::ALL.to_vec()));
    let rate = prop::option::of(rate.prop_map(|(speed, width)| LinkRate { speed, width }));
    (any::<usize>(), any::<usize>(), rate, 0..0xc000u16, 0..8u8, 1..8u8)
}

/// An arbitrary topology that the format can represent.
fn arbitrary() -> impl Strategy<Value = Topology> {
    (prop::collection::vec(node(), 1..8), prop::collection::vec(cable(), 0..20)).prop_map(
        |(nodes, cables)| {
            let mut builder = TopologyBuilder::new();
            let mut ports = Vec::new();
            for (index, node) in nodes.into_iter().enumerate() {
                let guid = guid(0x1000 * (index as u64 + 1));
                let count = node.port_count;
                let system_guid = (index % 2 == 0).then_some(guid);
                if let Ok(node) = builder.add_node(NewNode { guid, system_guid, ..node }) {
                    ports.extend((1..=count).map(|port| Endpoint::new(node, PortNum::new(port).unwrap())));
                }
            }
            for (a, b, rate, lid, lmc, speed) in cables {
                let (a, b) = (ports[a % ports.len()], ports[b % ports.len()]);
                if builder.connect(a, b, rate).is_ok() {
                    for end in [a, b] {
                        set_attributes(&mut builder, end, lid, lmc, speed);
                    }
                }
            }
            builder.build().unwrap()
        },
    )
}

fn set_attributes(builder: &mut TopologyBuilder, end: Endpoint, lid: u16, lmc: u8, speed: u8) {
    let lids = (Lid::from_wire(lid), Lmc::from_wire(lmc).unwrap());
    if builder.set_lid(end, lids.0, lids.1).is_err() {
        builder.set_lid(Endpoint::new(end.node, PortNum::MANAGEMENT), lids.0, lids.1).unwrap();
    } else if lid.is_multiple_of(3) {
        let suffix =
            ((end.node.index() as u64) << 32) + (u64::from(lid) << 8) + u64::from(end.port.to_wire());
        let odd = 0x7000_0000_0000_0000 + suffix;
        builder.set_port_guid(end, guid(odd)).unwrap();
    }
    builder.set_enabled(end, LinkWidth(lmc | 1), LinkSpeed(speed)).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(128) })]

    #[test]
    fn generated_fabrics_survive_a_round_trip(fabric in generated()) {
        prop_assert_eq!(parse(&write(&fabric)).unwrap(), fabric);
    }

    #[test]
    fn arbitrary_fabrics_survive_a_round_trip(fabric in arbitrary()) {
        let text = write(&fabric);
        prop_assert_eq!(parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}")), fabric);
        prop_assert!(text.lines().all(|line| line.len() < 255), "ibsim cuts longer lines");
    }
}

#[test]
fn test_files_survive_a_round_trip() {
    for text in [REAL, SHORT, MODULES, TREE] {
        let fabric = parse(text).unwrap();
        assert_eq!(parse(&write(&fabric)).unwrap(), fabric);
    }
}

#[test]
fn the_largest_reference_tree_survives_a_round_trip() {
    let tree = FatTree::with_hosts(11_664).generate().unwrap();
    assert_eq!(parse(&write(&tree)).unwrap(), tree);
}

#[test]
fn cables_may_connect_modules_with_the_outside() {
    let text = "Switch 2 \"s\"\n[1] \"m#h\"\n\nmodule=\"m\"\nCa 1 \"h\"\n[1] \"#s\"[1]\n";
    let fabric = parse(text).unwrap();
    assert_eq!(parse(&write(&fabric)).unwrap(), fabric);
    assert_eq!(fabric[NodeIndex::new(1)].module(), Some("m"));
}

#[test]
fn a_real_file_is_reproduced_line_by_line() {
    let written = write(&parse(REAL).unwrap());
    let content = |text: &str| {
        let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
    };
    assert_eq!(content(&written), content(REAL));
}

#[test]
fn descriptions_in_port_lines_have_no_equals_sign() {
    let fabric = parse("Switch 2 \"s\" # \"a=b\"\n[1] \"h\"\n\nCa 1 \"h\"\n[1] \"s\"\n").unwrap();
    let written = write(&fabric);
    assert!(written.contains("# \"a=b\" lid"));
    assert!(written.lines().filter(|line| line.starts_with('[')).all(|line| !line.contains('=')));
}
