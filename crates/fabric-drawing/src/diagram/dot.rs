//! Export of a topology to the DOT language of Graphviz.

use std::fmt::{self, Write};

use super::{DrawnFabric, HOSTS_DRAWN_MAX, counted, rows};
use fabric_model::Topology;

/// Writes the fabric as an undirected DOT graph. Parallel cables become one edge that is labelled with their number.
pub fn to_dot(topology: &Topology) -> String {
    let mut dot = String::new();
    write_graph(&mut dot, &DrawnFabric::of(topology)).expect("writing to a string does not fail");
    dot
}

fn write_graph(dot: &mut String, fabric: &DrawnFabric<'_>) -> fmt::Result {
    dot.push_str("graph fabric {\n  rankdir=BT;\n");
    dot.push_str("  node [shape=box, style=\"rounded,filled\", fillcolor=\"#d5e2f4\", color=\"#7397c9\", fontname=sans];\n");
    dot.push_str("  edge [color=\"#9aa3ad\"];\n");
    for switch in 0..fabric.graph.switch_count() {
        writeln!(dot, "  s{switch} [label={:?}];", fabric.name(switch))?;
    }
    for row in fabric.tiers.as_deref().map(rows).unwrap_or_default() {
        let names: Vec<String> = row.iter().map(|switch| format!("s{switch}")).collect();
        writeln!(dot, "  {{ rank=same; {} }}", names.join("; "))?;
    }
    for (a, b, cables) in fabric.pairs() {
        match cables.count {
            1 => writeln!(dot, "  s{a} -- s{b};")?,
            count => writeln!(dot, "  s{a} -- s{b} [label=\"×{count}\", penwidth=2];")?,
        }
    }
    write_hosts(dot, fabric)?;
    dot.push_str("}\n");
    Ok(())
}

fn write_hosts(dot: &mut String, fabric: &DrawnFabric<'_>) -> fmt::Result {
    const STYLE: &str = "fillcolor=\"#f1eee6\", color=\"#c3b9a2\"";
    let by_name = fabric.topology.end_nodes().count() <= HOSTS_DRAWN_MAX;
    for switch in 0..fabric.graph.switch_count() {
        let hosts = fabric.hosts(switch);
        if by_name {
            for host in hosts {
                let number = host.index();
                writeln!(dot, "  h{number} [label={:?}, {STYLE}];", fabric.topology[*host].description)?;
                writeln!(dot, "  h{number} -- s{switch};")?;
            }
        } else if !hosts.is_empty() {
            writeln!(
                dot,
                "  h{switch} [label={:?}, {STYLE}];\n  h{switch} -- s{switch};",
                counted(hosts.len(), "host")
            )?;
        }
    }
    Ok(())
}
