use super::*;
use crate::generate::{DragonflyPlus, FatTree, FatTreeSize, RandomFabric, Torus};
use crate::ibnetdiscover;

const REAL: &str = include_str!("../../../../fixtures/topologies/loginoff-2014.ibnetdiscover");

/// One fabric for each layout and size of detail.
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
        let scene = Fabric::of(&topology).scene();
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
fn every_switch_or_its_pod_is_drawn_and_wired() {
    for (name, topology) in fabrics() {
        let fabric = Fabric::of(&topology);
        let scene = fabric.scene();
        assert!(!scene.wires.is_empty(), "{name}");
        let pods = scene.cards.iter().any(|card| card.role == scene::Role::Pod);
        let switches = scene.cards.iter().filter(|card| card.role != scene::Role::Host).count();
        assert!(pods || switches == fabric.graph.len(), "{name}: {switches} of {}", fabric.graph.len());
    }
}

#[test]
fn drawings_stay_small_files() {
    for (name, topology) in fabrics() {
        let bytes = to_svg(&topology, name).len();
        assert!(bytes < 200_000, "{name}: {bytes} bytes");
    }
}

#[test]
fn a_drawing_says_what_it_shows() {
    let tree = FatTree::with_hosts(324).generate().unwrap();
    let svg = to_svg(&tree, "hall 3 <north>");
    assert!(svg.contains("hall 3 &lt;north&gt;") && !svg.contains("<north>"));
    let subtitle =
        "27 switches · 324 adapters · 648 links 4xEDR · 2 levels · diameter 2 · oversubscription 1.0:1";
    assert!(svg.contains(subtitle), "{svg}");
    assert_eq!(svg.matches(">18 hosts<").count(), 18, "hosts are counted, not drawn");
    assert!(svg.contains(">leaf switch<") && svg.contains(">leaf-18<"));
}

#[test]
fn few_hosts_are_drawn_by_name() {
    let svg = to_svg(&ibnetdiscover::parse(REAL).unwrap(), "real");
    assert!(svg.contains(">stage114 mlx4_0<"));
    assert!(svg.contains(">+ 3 hosts<"), "hosts at a spine do not make it a leaf");
}

#[test]
fn fabrics_without_much_in_them_are_drawn_too() {
    let one = ibnetdiscover::parse("Switch 2 \"s\"\n[1] \"h\"\n\nCa 1 \"h\"\n[1] \"s\"\n").unwrap();
    let bare = ibnetdiscover::parse("Switch 2 \"s\"\n\nCa 1 \"h\"\n").unwrap();
    for topology in [Topology::default(), one, bare] {
        let svg = to_svg(&topology, "small");
        assert!(svg.ends_with("</svg>\n") && !svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        assert!(to_dot(&topology).ends_with("}\n"));
    }
}

#[test]
fn dot_names_nodes_and_merges_parallel_cables() {
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
