use super::*;
use fabric_model::generate::{DragonflyPlus, FatTree, FatTreeSize, RandomFabric, Torus};
use fabric_model::ibnetdiscover;

const REAL: &str = include_str!("../../../../fixtures/topologies/loginoff-2014.ibnetdiscover");

/// A fabric for each layout and degree of detail.
fn fabrics() -> Vec<(&'static str, Topology)> {
    let tree = |hosts| FatTree::with_hosts(hosts).generate().unwrap();
    vec![
        ("small tree", FatTree { radix: 8, ..FatTree::with_hosts(16) }.generate().unwrap()),
        ("small pods", FatTree { radix: 8, ..FatTree::new(FatTreeSize::Pods(4)) }.generate().unwrap()),
        ("324", tree(324)),
        ("648", tree(648)),
        ("1,944", tree(1_944)),
        ("4,860", tree(4_860)),
        ("11,664", tree(11_664)),
        ("torus", Torus { hosts_per_switch: 2, ..Torus::new([4, 4]) }.generate().unwrap()),
        ("cube", Torus::new([3, 4, 4]).generate().unwrap()),
        ("hypercube", Torus::new([2, 2, 2, 2]).generate().unwrap()),
        ("dragonfly", DragonflyPlus::new(6).generate().unwrap()),
        (
            "wide dragonfly",
            DragonflyPlus { leaves: 12, spines: 10, ..DragonflyPlus::new(9) }.generate().unwrap(),
        ),
        ("random", RandomFabric::new(60, 5, 1).generate().unwrap()),
        ("real", ibnetdiscover::parse(REAL).unwrap()),
    ]
}

#[test]
fn no_two_cards_overlap() {
    for (name, topology) in fabrics() {
        let scene = DrawnFabric::of(&topology).scene();
        for (number, a) in scene.cards.iter().enumerate() {
            for b in &scene.cards[number + 1..] {
                let apart = (a.centre.x - b.centre.x).abs() >= (a.width + b.width) / 2.0
                    || (a.centre.y - b.centre.y).abs() >= (a.height + b.height) / 2.0;
                assert!(apart, "{name}: {:?} and {:?}", a.lines, b.lines);
            }
        }
    }
}

#[test]
fn every_switch_or_its_pod_is_drawn() {
    for (name, topology) in fabrics() {
        let fabric = DrawnFabric::of(&topology);
        let scene = fabric.scene();
        assert!(!scene.cable_lines.is_empty(), "{name}");
        let pods = scene.cards.iter().any(|card| card.role == scene::CardRole::Pod);
        let switches = scene.cards.iter().filter(|card| card.role != scene::CardRole::Host).count();
        assert!(
            pods || switches == fabric.graph.switch_count(),
            "{name}: {switches} of {}",
            fabric.graph.switch_count()
        );
    }
}

#[test]
fn diagrams_are_small_files() {
    for (name, topology) in fabrics() {
        let bytes = to_svg(&topology, name).len();
        assert!(bytes < 200_000, "{name}: {bytes} bytes");
    }
}

#[test]
fn diagrams_have_a_title_and_a_summary() {
    let tree = FatTree::with_hosts(324).generate().unwrap();
    let svg = to_svg(&tree, "hall 3 <north>");
    assert!(svg.contains("hall 3 &lt;north&gt;") && !svg.contains("<north>"));
    let subtitle =
        "27 switches · 324 adapters · 648 links 4xEDR · 2 tiers · diameter 2 · oversubscription 1.0:1";
    assert!(svg.contains(subtitle), "{svg}");
    assert_eq!(svg.matches(">18 hosts<").count(), 18, "leaves show the number of hosts");
    assert!(svg.contains(">leaf switch<") && svg.contains(">leaf-18<"));
}

#[test]
fn hosts_of_small_fabrics_are_drawn_by_name() {
    let svg = to_svg(&ibnetdiscover::parse(REAL).unwrap(), "real");
    assert!(svg.contains(">stage114 mlx4_0<"));
    assert!(svg.contains(">+ 3 hosts<"), "hosts at a spine do not make it a leaf");
}

#[test]
fn tiny_fabrics_are_drawn() {
    let one = ibnetdiscover::parse("Switch 2 \"s\"\n[1] \"h\"\n\nCa 1 \"h\"\n[1] \"s\"\n").unwrap();
    let bare = ibnetdiscover::parse("Switch 2 \"s\"\n\nCa 1 \"h\"\n").unwrap();
    for topology in [Topology::default(), one, bare] {
        let svg = to_svg(&topology, "small");
        assert!(svg.ends_with("</svg>\n") && !svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        assert!(to_dot(&topology).ends_with("}\n"));
    }
}

#[test]
fn dot_merges_parallel_cables() {
    let tree = FatTree { radix: 4, ..FatTree::with_hosts(4) }.generate().unwrap();
    insta::assert_snapshot!(to_dot(&tree), @r##"
    graph fabric {
      rankdir=BT;
      node [shape=box, style="rounded,filled", fillcolor="#d5e2f4", color="#7397c9", fontname=sans];
      edge [color="#9aa3ad"];
      s0 [label="leaf-01"];
      s1 [label="leaf-02"];
      s2 [label="spine-01"];
      { rank=same; s0; s1 }
      { rank=same; s2 }
      s0 -- s2 [label="×2", penwidth=2];
      s1 -- s2 [label="×2", penwidth=2];
      h3 [label="host-00001", fillcolor="#f1eee6", color="#c3b9a2"];
      h3 -- s0;
      h4 [label="host-00002", fillcolor="#f1eee6", color="#c3b9a2"];
      h4 -- s0;
      h5 [label="host-00003", fillcolor="#f1eee6", color="#c3b9a2"];
      h5 -- s1;
      h6 [label="host-00004", fillcolor="#f1eee6", color="#c3b9a2"];
      h6 -- s1;
    }
    "##);
}

/// A load that differs from port to port.
fn uneven(guid: Guid, port: PortNum) -> Option<f64> {
    let number = guid.to_wire() % 7 + port.index() as u64;
    (!number.is_multiple_of(5)).then_some((number % 11) as f64 / 10.0)
}

#[test]
fn cells_overlap_neither_cards_nor_each_other() {
    for (name, topology) in fabrics() {
        let scene = DrawnFabric::of(&topology).with_loads(uneven).scene();
        let boxes: Vec<_> =
            scene.cells.iter().map(|cells| (cells.corner, cells.width(), cells.height())).collect();
        let apart = |(a, width, height): &(scene::Point, f32, f32), low: scene::Point, high: scene::Point| {
            a.x >= high.x || low.x >= a.x + width || a.y >= high.y || low.y >= a.y + height
        };
        for (number, cells) in boxes.iter().enumerate() {
            for (corner, width, height) in &boxes[number + 1..] {
                let high = scene::point(corner.x + width, corner.y + height);
                assert!(apart(cells, *corner, high), "{name}: {cells:?} and {corner:?}");
            }
            for card in scene.cards.iter().filter(|card| !holds_cells(card)) {
                let (x, y) = (card.width / 2.0, card.height / 2.0);
                let (low, high) = (
                    scene::point(card.centre.x - x, card.centre.y - y),
                    scene::point(card.centre.x + x, card.centre.y + y),
                );
                assert!(apart(cells, low, high), "{name}: {cells:?} and {:?}", card.lines);
            }
        }
    }
}

/// Lists of hosts and the dots of a ring contain their cells.
fn holds_cells(card: &scene::Card) -> bool {
    matches!(card.text, scene::Text::List(_)) || card.lines.is_empty()
}

#[test]
fn every_host_cable_at_a_leaf_has_a_cell() {
    for (name, topology) in fabrics() {
        let fabric = DrawnFabric::of(&topology).with_loads(uneven);
        let cells: usize = fabric.scene().cells.iter().map(|cells| cells.loads.len()).sum();
        let hosts: usize = fabric.graph.hosts.iter().map(Vec::len).sum();
        match name {
            "real" => assert_eq!(cells, hosts - 3, "three hosts are cabled to a spine"),
            // Pods that are drawn as one card also have cells for the cables inside.
            "4,860" | "11,664" => assert_eq!(cells, 2 * hosts, "{name}"),
            _ => assert_eq!(cells, hosts, "{name}"),
        }
    }
}

#[test]
fn a_full_cable_among_idle_ones_is_visible() {
    let tree = FatTree { radix: 8, ..FatTree::with_hosts(16) }.generate().unwrap();
    let switch = tree.by_description("spine-01").unwrap();
    let (busy, (port, _)) = (tree[switch].guid, tree[switch].cabled_ports().next().unwrap());
    let full = |guid, number| (guid == busy && number == port).then_some(1.0);
    let svg = to_heat_svg(&tree, "one", "", full);
    let red = heat::colour(heat::shade(1.0));
    assert_eq!(svg.matches(&format!("stroke=\"{red}\"")).count(), 1, "one line, and no host is busy");
    let idle = to_heat_svg(&tree, "none", "", |_, _| None);
    assert_eq!(idle.matches(&format!("stroke=\"{red}\"")).count(), 0);
}

#[test]
fn loads_out_of_range_are_clamped() {
    let tree = FatTree { radix: 4, ..FatTree::with_hosts(4) }.generate().unwrap();
    let svg = |load: f64| to_heat_svg(&tree, "t", "s", |_, _| Some(load));
    assert_eq!(svg(7.0), svg(1.0));
    assert_eq!(svg(f64::INFINITY), svg(1.0));
    for nothing in [-1.0, f64::NEG_INFINITY, f64::NAN] {
        assert_eq!(svg(nothing), to_heat_svg(&tree, "t", "s", |_, _| None));
    }
}

#[test]
fn shades_run_from_grey_to_red() {
    assert_eq!(heat::shade(0.0), None);
    assert_eq!(heat::shade(0.001), Some(0));
    assert_eq!(heat::shade(1.0), Some(heat::SHADES - 1));
    assert_eq!(heat::colour(None), heat::IDLE);
    assert_eq!([0.0, 0.5, 1.0].map(heat::colour_at), ["#acb7c4", "#e39f56", "#8e1022"]);
}

#[test]
fn heat_maps_are_small_files() {
    for (name, topology) in fabrics() {
        let bytes = to_heat_svg(&topology, name, "", uneven).len();
        assert!(bytes < 600_000, "{name}: {bytes} bytes");
    }
}

#[test]
fn cable_lines_and_cells_of_a_heat_map() {
    let tree = FatTree { radix: 4, ..FatTree::with_hosts(4) }.generate().unwrap();
    let svg = to_heat_svg(&tree, "small", "two runs", uneven);
    let paths: Vec<&str> = svg.lines().filter(|line| line.starts_with("<path")).collect();
    insta::assert_snapshot!(paths.join("\n"), @r##"
    <path d="M48 16L48 50" fill="none" stroke="#e4893e" stroke-width="1.88" stroke-opacity="0.82" stroke-linecap="round"/>
    <path d="M48 -16C48 -60 96 -60 96 -104" fill="none" stroke="#d04729" stroke-width="2.06" stroke-opacity="0.89" stroke-linecap="round"/>
    <path d="M144 16L144 50" fill="none" stroke="#d04729" stroke-width="2.06" stroke-opacity="0.89" stroke-linecap="round"/>
    <path d="M144 -16C144 -60 96 -60 96 -104" fill="none" stroke="#c02c24" stroke-width="2.14" stroke-opacity="0.92" stroke-linecap="round"/>
    <path d="M9.0 63.5h4.0" fill="none" stroke="#bcb9ad" stroke-width="11.0"/>
    <path d="M9.0 78.5h4.0" fill="none" stroke="#e4893e" stroke-width="11.0"/>
    <path d="M105.0 63.5h4.0" fill="none" stroke="#df7331" stroke-width="11.0"/>
    <path d="M105.0 78.5h4.0" fill="none" stroke="#d04729" stroke-width="11.0"/>
    <path d="M389 454h26" stroke="#7b8490" stroke-width="2.8" stroke-linecap="round"/>
    "##);
}
