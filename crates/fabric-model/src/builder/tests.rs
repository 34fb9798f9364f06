use super::*;

fn guid(number: u64) -> Guid {
    Guid::from_wire(number).unwrap()
}

fn port(node: NodeIndex, number: u8) -> Endpoint {
    Endpoint::new(node, PortNum::new(number).unwrap())
}

/// A switch of four ports and an adapter of two.
fn pair() -> (TopologyBuilder, NodeIndex, NodeIndex) {
    let mut builder = TopologyBuilder::new();
    let switch = builder.add_node(NewNode::new(NodeKind::Switch, "sw", guid(0x100), 4)).unwrap();
    let host = builder.add_node(NewNode::new(NodeKind::Adapter, "host", guid(0x200), 2)).unwrap();
    (builder, switch, host)
}

#[test]
fn only_switches_have_a_port_0() {
    let (builder, switch, host) = pair();
    let topology = builder.build().unwrap();
    let numbers = |node| topology[node].ports().map(|(number, _)| number.to_wire()).collect::<Vec<_>>();
    assert_eq!((numbers(switch), numbers(host)), (vec![0, 1, 2, 3, 4], vec![1, 2]));
    assert!(topology.port(port(host, 0)).is_none());
    assert!(topology.port(port(switch, 0)).is_some());
    assert!(topology.port(port(switch, 5)).is_none());
    assert_eq!((topology[switch].port_count(), topology[host].port_count()), (4, 2));
}

#[test]
fn a_cable_has_two_ends_and_is_one_link() {
    let (mut builder, switch, host) = pair();
    builder.connect(port(host, 2), port(switch, 3), Some(LinkRate::DEFAULT)).unwrap();
    let topology = builder.build().unwrap();
    assert_eq!(topology.peer(port(switch, 3)), Some(port(host, 2)));
    assert_eq!(topology.peer(port(host, 2)), Some(port(switch, 3)));
    let links: Vec<_> = topology.links().collect();
    assert_eq!(links.len(), 1);
    assert_eq!((links[0].a, links[0].b), (port(switch, 3), port(host, 2)));
    assert_eq!(links[0].rate, Some(LinkRate::DEFAULT));
}

#[test]
fn a_port_has_one_cable_to_another_port() {
    let (mut builder, switch, host) = pair();
    builder.connect(port(switch, 1), port(host, 1), None).unwrap();
    let taken = BuildError::PortTaken { port: "\"sw\"[1]".into(), peer: "\"host\"[1]".into() };
    assert_eq!(builder.connect(port(host, 2), port(switch, 1), None), Err(taken));
    let own = port(switch, 2);
    assert_eq!(builder.connect(own, own, None), Err(BuildError::SelfLink("\"sw\"[2]".into())));
    assert!(builder.connect(port(switch, 0), port(host, 2), None).is_err(), "port 0 cannot be cabled");
    assert!(builder.connect(port(switch, 5), port(host, 2), None).is_err(), "there is no port 5");
}

#[test]
fn disconnecting_frees_both_ports() {
    let (mut builder, switch, host) = pair();
    builder.connect(port(switch, 1), port(host, 1), None).unwrap();
    assert_eq!(builder.disconnect(port(switch, 1)), Ok(port(host, 1)));
    assert_eq!(builder.disconnect(port(switch, 1)), Err(BuildError::NotConnected("\"sw\"[1]".into())));
    builder.connect(port(switch, 2), port(host, 1), None).unwrap();
}

#[test]
fn ids_and_node_guids_are_unique() {
    let (mut builder, ..) = pair();
    let duplicate = builder.add_node(NewNode::new(NodeKind::Switch, "sw", guid(0x300), 4));
    assert_eq!(duplicate, Err(BuildError::DuplicateId { id: "sw".into() }));
    let duplicate = builder.add_node(NewNode::new(NodeKind::Switch, "sw2", guid(0x200), 4));
    let expected =
        BuildError::DuplicateGuid { guid: guid(0x200), first: "host".into(), second: "sw2".into() };
    assert_eq!(duplicate, Err(expected));
}

#[test]
fn guids_of_cabled_ports_are_unique() {
    let (mut builder, switch, host) = pair();
    let other = builder.add_node(NewNode::new(NodeKind::Adapter, "other", guid(0x201), 1)).unwrap();
    assert!(builder.clone().build().is_ok(), "ports without a cable may share a derived GUID");
    builder.connect(port(switch, 1), port(host, 2), None).unwrap();
    builder.connect(port(switch, 2), port(other, 1), None).unwrap();
    let expected = BuildError::DuplicatePortGuid {
        guid: guid(0x202),
        first: "\"host\"[2]".into(),
        second: "\"other\"[1]".into(),
    };
    assert_eq!(builder.clone().build(), Err(expected));
    builder.set_port_guid(port(other, 1), guid(0x999)).unwrap();
    let topology = builder.build().unwrap();
    assert_eq!(topology.by_port_guid(guid(0x999)), Some(port(other, 1)));
    assert_eq!(topology.by_port_guid(guid(0x202)), Some(port(host, 2)));
    assert_eq!(topology.by_port_guid(guid(0x100)), Some(port(switch, 0)));
}

#[test]
fn node_ids_are_restricted_to_the_text_format() {
    for id in ["sw 0", "S-0002c9", "rack1#sw0", "größe"] {
        assert!(is_node_id(id), "{id}");
    }
    let long = "x".repeat(65);
    for id in ["", "a\"b", "a@b", "a\nb", "#a", "a#", "a#b#c", "123456789012345678901#a", &long] {
        assert!(!is_node_id(id), "{id}");
    }
}

#[test]
fn descriptions_are_sanitized_and_default_to_the_id() {
    assert_eq!(printable("say \"hi\"\tthere"), "say 'hi' there");
    assert_eq!(printable(&"ü".repeat(40)).len(), 64);
    let (builder, switch, _) = pair();
    let topology = builder.build().unwrap();
    assert_eq!(topology[switch].description, "sw");
    assert_eq!(topology.by_description("sw"), Some(switch));
    assert_eq!((topology.by_id("sw"), topology.by_guid(guid(0x100))), (Some(switch), Some(switch)));
}

#[test]
fn the_limits_on_nodes_and_ports_hold() {
    let mut builder = TopologyBuilder::new();
    let add = |builder: &mut TopologyBuilder, number: u64, ports| {
        builder.add_node(NewNode::new(NodeKind::Switch, format!("sw{number}"), guid(number), ports))
    };
    assert!(matches!(add(&mut builder, 1, 0), Err(BuildError::PortCount { ports: 0, .. })));
    assert!(matches!(add(&mut builder, 1, 255), Err(BuildError::PortCount { ports: 255, .. })));
    let error = (1..).find_map(|number| add(&mut builder, number, 254).err());
    assert_eq!(error, Some(BuildError::TooManyPorts));

    let mut builder = TopologyBuilder::new();
    let error = (1..).find_map(|number| add(&mut builder, number, 1).err());
    assert_eq!((error, builder.nodes.len()), (Some(BuildError::TooManyNodes), NODES_MAX));
}

#[test]
fn overflowing_port_guids_are_rejected() {
    let mut builder = TopologyBuilder::new();
    let last = builder.add_node(NewNode::new(NodeKind::Adapter, "last", guid(u64::MAX - 1), 2));
    assert!(matches!(last, Err(BuildError::PortGuidOverflow { ports: 2, .. })));
    builder.add_node(NewNode::new(NodeKind::Switch, "last", guid(u64::MAX), 2)).unwrap();
}

#[test]
fn a_link_needs_a_common_width_and_speed() {
    let (mut builder, switch, host) = pair();
    builder.connect(port(switch, 1), port(host, 1), None).unwrap();
    builder.set_enabled(port(host, 1), LinkWidth::X4, LinkSpeed::QDR).unwrap();
    assert!(matches!(builder.clone().build(), Err(BuildError::NothingInCommon { what: "speed", .. })));
    builder.set_enabled(port(host, 1), LinkWidth::X12, LinkSpeed::SDR).unwrap();
    assert!(matches!(builder.clone().build(), Err(BuildError::NothingInCommon { what: "width", .. })));
    let zero = builder.set_enabled(port(host, 1), LinkWidth(0), LinkSpeed::SDR);
    assert!(matches!(zero, Err(BuildError::BadMask { width: 0, .. })));
}

#[test]
fn only_end_ports_have_lids() {
    let (mut builder, switch, host) = pair();
    let lid = Lid::from_wire(7);
    assert!(matches!(builder.set_lid(port(switch, 1), lid, Lmc::default()), Err(BuildError::NoLid(_))));
    builder.set_lid(port(switch, 0), lid, Lmc::default()).unwrap();
    builder.set_lid(port(host, 1), lid, Lmc::default()).unwrap();
    let topology = builder.build().unwrap();
    assert_eq!(topology.port(port(switch, 1)).unwrap().lid, None);
    assert_eq!(topology.port(port(host, 1)).unwrap().lid, lid);
}
