use ib_wire::{Guid, Lid, LinkSpeed, LinkWidth, NodeKind, PortNum};

use super::*;
use crate::generate::{DragonflyPlus, FatTree, RandomFabric, Torus};
use crate::topology::{Endpoint, PortZero, Topology};

mod hostile;
mod round_trip;

const REAL: &str = include_str!("../../../../fixtures/topologies/loginoff-2014.ibnetdiscover");
const SHORT: &str = include_str!("../../../../fixtures/topologies/short-form.ibsim");
const MODULES: &str = include_str!("../../../../fixtures/topologies/modules.ibsim");
const TREE: &str = include_str!("../../../../fixtures/topologies/tree-16.ibnetdiscover");

fn end(topology: &Topology, id: &str, port: u8) -> Endpoint {
    Endpoint::new(topology.by_id(id).unwrap(), PortNum::new(port).unwrap())
}

fn guid(number: u64) -> Guid {
    Guid::from_wire(number).unwrap()
}

fn message(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

#[test]
fn a_real_fabric_is_parsed() {
    let fabric = parse(REAL).unwrap();
    assert_eq!((fabric.switches().count(), fabric.end_nodes().count()), (8, 144));
    let leaf = fabric.by_description("MF0;ib5:SX6036/U1").unwrap();
    let node = &fabric[leaf];
    assert_eq!((node.id.as_str(), node.port_count()), ("S-f4521403001165a0", 36));
    assert_eq!(
        (node.port_0, node.vendor_id, node.device_id),
        (PortZero::Enhanced, Some(0x2c9), Some(0xc738))
    );
    assert_eq!(node.port(PortNum::MANAGEMENT).unwrap().lid, Lid::from_wire(128));

    let host = end(&fabric, "H-24be05ffff980030", 1);
    let port = fabric.port(host).unwrap();
    assert_eq!(port.peer, Some(end(&fabric, "S-f4521403001165a0", 1)));
    assert_eq!((port.guid, port.lid), (guid(0x24be_05ff_ff98_0031), Lid::from_wire(105)));
    assert_eq!(port.rate, Some("4xQDR".parse().unwrap()));
    let between_switches = fabric.port(end(&fabric, "S-f4521403001165a0", 21)).unwrap();
    assert_eq!(between_switches.rate, Some("4xFDR10".parse().unwrap()));
    assert_eq!(fabric[host.node].system_guid, Some(guid(0x24be_05ff_ff98_0033)));
}

#[test]
fn the_short_form_gets_default_guids_ports_and_masks() {
    let fabric = parse(SHORT).unwrap();
    let guids: Vec<u64> = fabric.nodes().map(|(_, node)| node.guid.to_wire()).collect();
    assert_eq!(guids, [0x20_0000, 0x20_0001, 0x10_0000, 0x10_0003, 0x10_0006]);
    assert_eq!(fabric.peer(end(&fabric, "host1", 1)), Some(end(&fabric, "sw0", 2)));
    assert_eq!(fabric.peer(end(&fabric, "host2", 1)), Some(end(&fabric, "sw1", 1)));
    let host2 = fabric.port(end(&fabric, "host2", 1)).unwrap();
    assert_eq!((host2.guid, host2.lid, host2.lmc.to_wire()), (guid(0x10_0007), Lid::from_wire(9), 1));
    assert_eq!((host2.enabled_width, host2.enabled_speed), (LinkWidth::X4, LinkSpeed::SDR));
    let masked = fabric.port(end(&fabric, "sw1", 8)).unwrap();
    assert_eq!((masked.enabled_width, masked.enabled_speed), (LinkWidth(3), LinkSpeed(7)));
    let second = &fabric[fabric.by_id("sw1").unwrap()];
    assert_eq!((second.description.as_str(), second.port_0), ("second switch", PortZero::Base));
    assert_eq!(fabric.by_description("host0"), fabric.by_id("host0"), "the id if there is no description");
}

#[test]
fn modules_aliases_and_relative_guids_are_parsed() {
    let fabric = parse(MODULES).unwrap();
    let ids: Vec<_> = fabric.nodes().map(|(_, node)| (node.id.as_str(), node.guid.to_wire())).collect();
    assert_eq!(
        ids,
        [("rack1#sw", 0x1000), ("rack1#host", 0x2000), ("rack2#sw", 0x1100), ("rack2#host", 0x2100)]
    );
    assert_eq!(fabric.peer(end(&fabric, "rack1#sw", 4)), Some(end(&fabric, "rack2#sw", 4)));
    assert_eq!(fabric[fabric.by_id("rack2#sw").unwrap()].device_id, Some(0x5a44));
    assert_eq!(fabric.port(end(&fabric, "rack2#sw", 2)).unwrap().enabled_speed, LinkSpeed(3));
    assert_eq!(fabric.port(end(&fabric, "rack1#sw", 2)).unwrap().enabled_speed, LinkSpeed(1));
}

#[test]
fn the_generator_reproduces_the_golden_tree() {
    let tree = FatTree { radix: 8, ..FatTree::with_hosts(16) }.generate().unwrap();
    assert_eq!(write(&tree), TREE);
    assert_eq!(parse(TREE).unwrap(), tree);
}

#[test]
fn explicit_port_guids_are_kept() {
    let fabric = parse(concat!(
        "switchguid=0x10(11)\nSwitch 2 \"s\"\n[1] \"a\"[1](77)\n[2] \"b\"[1](0x88)\n\n",
        "caguid=0x20\nCa 1 \"a\"\n[1](99) \"s\"[1]\n\ncaguid=0x30\nCa 1 \"b\"\n[1] \"s\"[2]\n",
    ));
    let fabric = fabric.unwrap();
    let port_guid = |id, port| fabric.port(end(&fabric, id, port)).unwrap().guid.to_wire();
    assert_eq!((port_guid("s", 0), port_guid("s", 2)), (0x11, 0x11));
    assert_eq!(port_guid("a", 1), 0x99, "the GUID on the line of the port wins");
    assert_eq!(port_guid("b", 1), 0x88, "or else that of the other end");
}

#[test]
fn routers_are_parsed() {
    let fabric =
        parse("Rt 2 \"R-1\"\t# \"gate\"\n[2](44) \"sw\"\n\nSwitch 1 \"sw\"\n[1] \"R-1\"[2]\n").unwrap();
    let router = &fabric[fabric.by_description("gate").unwrap()];
    assert_eq!((router.kind, router.guid), (NodeKind::Router, guid(0x30_0000)));
}

#[test]
fn unknown_lines_are_ignored() {
    let fabric =
        parse("DDR links\n Switch 3 \"indented\"\npdebug=1\nChassis 1\r\nSwitch 2 \"s\"\r\n").unwrap();
    assert_eq!(fabric.node_count(), 1);
}

#[test]
fn errors_have_line_column_and_what_is_expected() {
    let cases = [
        ("Switch 36 \"s\"\n[99] \"h\"", r#"line 2, column 2: expected a port number 1..=36, found "99""#),
        ("Switch 36 \"s\"\n[0] \"h\"", r#"line 2, column 2: expected a port number 1..=36, found "0""#),
        (
            "Switch 2 \"s\"\n[1",
            "line 2, column 3: expected ] after the port number, found the end of the line",
        ),
        ("\nCa 0 \"h\"", r#"line 2, column 4: expected a number of ports 1..=254, found "0""#),
        ("Ca 1 h", r#"line 1, column 6: expected the node's id in quotes, found "h""#),
        ("Ca 1 \"h", "line 1, column 8: expected a closing quote, found the end of the line"),
        ("Ca 1 \"a#b\"", r#"line 1, column 7: expected a node id without # and @, found "a""#),
        ("Ca 1 \"h\"\n[1] \"s\"", "line 2, column 5: there is no node \"s\" in this file"),
        ("Ca 1 \"h\"\n[1] \"@s\"", "line 2, column 5: there is no alias \"@s\" in this file"),
        ("Ca 1 \"h\"\n[1] \"h\"[0]", r#"line 2, column 9: expected a port number 1..=254, found "0""#),
        ("caguid=0xq", r#"line 1, column 8: expected a GUID like 0x0002c90300000001, found "0xq""#),
        ("caguid 5", r#"line 1, column 8: expected = or +, found "5""#),
        (
            "Ca 1 \"h\"\n\n[1] \"s\"",
            "line 3, column 2: a port line must follow the line of its node without an empty line between",
        ),
        (
            "do Link \"a\"",
            "line 1, column 1: `do` lines are not supported: remove the line; a topology file contains no commands",
        ),
        ("include \"f\"", "line 1, column 1: `include` lines are not supported: merge the files into one"),
        ("Ca 1 \"h\"\n\nCa 2 \"h\"", "line 3, column 6: duplicate node id \"h\""),
    ];
    for (text, expected) in cases {
        assert_eq!(message(text), expected, "{text}");
    }
}

#[test]
fn invalid_masks_are_rejected_at_their_position() {
    assert!(message("width=0").starts_with("line 1, column 7: expected a mask of enabled widths 1..=31"));
    assert!(
        message("Ca 1 \"h\"\n[1] \"h\" s=8")
            .starts_with("line 2, column 11: expected a mask of enabled speeds")
    );
    let unknown = message("Ca 1 \"h\"\n[1] \"h\" speed=1");
    assert_eq!(
        unknown,
        "line 2, column 9: expected w=, s=, e= or a comment that begins with #, found \"speed\""
    );
}

#[test]
fn port_options_are_parsed_as_in_ibsim() {
    let fabric = parse("Switch 2 \"s\"\n[1] \"s\"[2] e=2 s = 0 w=0x1f\n[2] \"s\"[1] s=7\n").unwrap();
    let port = fabric.port(end(&fabric, "s", 1)).unwrap();
    assert_eq!((port.enabled_width, port.enabled_speed), (LinkWidth(0x1f), LinkSpeed::QDR));
}

#[test]
fn both_ends_of_a_link_must_be_listed_and_agree() {
    let one_sided = message("Switch 2 \"s\"\n[1] \"h\"\n\nCa 1 \"h\"\n");
    assert_eq!(
        one_sided,
        r#"line 2, column 5: "s"[1] is connected to "h"[1] here, but "h"[1] is not listed"#
    );
    let crossed = message("Switch 2 \"s\"\n[1] \"h\"\n\nCa 1 \"h\"\n[1] \"s\"[2]\n");
    let expected = concat!(
        r#"line 2, column 5: "s"[1] is connected to "h"[1] here, "#,
        r#"but "h"[1] is connected to "s"[2] in line 5"#,
    );
    assert_eq!(crossed, expected);
    assert_eq!(message("Ca 1 \"h\"\n[1] \"h\""), "line 2, column 5: port \"h\"[1] is connected to itself");
}

#[test]
fn duplicate_ports_and_aliases_are_rejected() {
    let twice = message("Switch 2 \"s\"\n[1] \"s\"[2]\n[1] \"s\"[2]\n");
    assert_eq!(twice, "line 3, column 2: port 1 was already listed in line 2");
    let alias = message("Switch 2 \"s\"\n@[1] \"up\"\n@[2] \"up\"\n");
    assert_eq!(alias, "line 3, column 6: the alias \"@up\" was already defined in line 2");
    let used = message("Switch 4 \"s\"\n@[1] \"up\"\n[2] \"@up\"\n[3] \"@up\"\n");
    assert_eq!(used, "line 4, column 5: port \"s\"[1] is already connected to \"s\"[2]");
}

#[test]
fn builder_errors_are_reported_at_the_offending_line() {
    let text = "Switch 2 \"s\"\n[1] \"a\"\n[2] \"b\"\n\ncaguid=0x10\nCa 1 \"a\"\n[1](99) \"s\"[1]\n\nCa 1 \"b\"\n[1](99) \"s\"[2]\n";
    let expected = "line 10, column 2: ports \"a\"[1] and \"b\"[1] have the same GUID 0x0000000000000099";
    assert_eq!(message(text), expected);
    let masks = message("Switch 2 \"s\"\n[1] \"s\"[2] s=1\n[2] \"s\"[1] s=2\n");
    assert!(masks.starts_with("line 2, column 2: ports"), "{masks}");
}
