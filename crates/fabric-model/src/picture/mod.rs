//! Fabrics as drawings: SVG for people, DOT for other tools.
//!
//! The drawing follows the graph, not the file: a fabric whose cables join level to level becomes rows with hosts at
//! the bottom; groups joined by cables between them become a ring of panels; switches named by coordinates become a
//! grid; anything else becomes a ring of switches. Beyond [`HOSTS_DRAWN_MAX`] hosts a leaf says how many it has.

mod dot;
mod grid;
mod groups;
mod pods;
mod ring;
mod scene;
mod svg;
mod tree;

pub use dot::to_dot;

use scene::Scene;

use crate::structure::{Place, SwitchGraph};
use crate::summary::Summary;
use crate::topology::{NodeIndex, Topology};

/// Hosts up to which each is drawn by name.
pub const HOSTS_DRAWN_MAX: usize = 150;

/// Switches of one row up to which each is drawn; above, a tree is drawn by pods.
const ROW_SWITCHES_MAX: usize = 160;

/// Draws a fabric. The title stands above it, followed by the fabric in numbers.
pub fn to_svg(topology: &Topology, title: &str) -> String {
    let fabric = Fabric::of(topology);
    svg::render(&fabric.scene(), title, &subtitle(&Summary::of(topology)))
}

/// A fabric and what the layouts want to know of it.
#[derive(Debug)]
struct Fabric<'a> {
    topology: &'a Topology,
    graph: SwitchGraph,
    levels: Option<Vec<u8>>,
}

impl<'a> Fabric<'a> {
    fn of(topology: &'a Topology) -> Self {
        let graph = SwitchGraph::of(topology);
        let levels = graph.levels();
        Self { topology, graph, levels }
    }

    fn scene(&self) -> Scene {
        if let Some(levels) = &self.levels {
            let rows = rows(levels);
            let crowded = rows.iter().any(|row| row.len() > ROW_SWITCHES_MAX);
            return if crowded && rows.len() > 2 {
                pods::draw(self, levels)
            } else {
                tree::draw(self, levels)
            };
        }
        grid::draw(self).or_else(|| groups::draw(self)).unwrap_or_else(|| ring::draw(self))
    }

    fn name(&self, place: Place) -> &str {
        &self.topology[self.graph.switches[place]].description
    }

    fn hosts(&self, place: Place) -> &[NodeIndex] {
        &self.graph.hosts[place]
    }

    /// Pairs of neighbours, each once, with the number of cables between them.
    fn pairs(&self) -> impl Iterator<Item = (Place, Place, u32)> {
        let neighbours = self.graph.neighbours.iter().enumerate();
        neighbours.flat_map(|(here, there)| {
            there
                .iter()
                .filter(move |(place, _)| here < *place)
                .map(move |(place, cables)| (here, *place, *cables))
        })
    }
}

/// The switches of each level, leaves first.
fn rows(levels: &[u8]) -> Vec<Vec<Place>> {
    let top = levels.iter().copied().max().unwrap_or(0);
    let row = |level| (0..levels.len()).filter(|place| levels[*place] == level).collect();
    (1..=top).map(row).collect()
}

/// `1 host`, `18 hosts`.
fn counted(count: usize, what: &str) -> String {
    match what {
        _ if count == 1 => format!("1 {what}"),
        "switch" => format!("{count} switches"),
        "leaf" => format!("{count} leaves"),
        _ => format!("{count} {what}s"),
    }
}

fn subtitle(summary: &Summary) -> String {
    let mut parts = vec![counted(summary.switches, "switch"), counted(summary.adapters, "adapter")];
    if summary.routers > 0 {
        parts.push(counted(summary.routers, "router"));
    }
    parts.extend(summary.links_by_rate.iter().map(|count| match count.rate {
        Some(rate) => format!("{} {rate}", counted(count.links, "link")),
        None => counted(count.links, "link"),
    }));
    parts.extend(summary.levels.map(|levels| counted(levels.into(), "level")));
    parts.extend(summary.diameter.map(|hops| format!("diameter {hops}")));
    parts.extend(summary.oversubscription.map(|ratio| format!("oversubscription {ratio:.1}:1")));
    parts.join(" · ")
}

#[cfg(test)]
mod tests;
