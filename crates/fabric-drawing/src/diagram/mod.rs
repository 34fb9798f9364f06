//! Fabrics as drawings: SVG for people, DOT for other tools.
//!
//! The drawing follows the graph, not the file: a fabric whose cables join level to level becomes rows with hosts at
//! the bottom; groups joined by cables between them become a ring of panels; switches named by coordinates become a
//! grid; anything else becomes a ring of switches. Beyond [`HOSTS_DRAWN_MAX`] hosts a leaf says how many it has.

mod dot;
mod grid;
mod groups;
mod heat;
mod pods;
mod ring;
mod scene;
mod svg;
mod tree;

pub use dot::to_dot;

use heat::{Cables, Heat};
use ib_wire::{Guid, PortNum};
use scene::Scene;
use svg::Ink;

use fabric_model::TopologySummary;
use fabric_model::{NodeIndex, Topology};
use fabric_model::{SwitchGraph, SwitchIndex};

/// Hosts up to which each is drawn by name.
pub const HOSTS_DRAWN_MAX: usize = 150;

/// Switches of one row up to which each is drawn; above, a tree is drawn by pods.
const ROW_SWITCHES_MAX: usize = 160;

/// Draws a fabric. The title stands above it, followed by the fabric in numbers.
pub fn to_svg(topology: &Topology, title: &str) -> String {
    let fabric = Fabric::of(topology);
    svg::render(&fabric.scene(), title, &subtitle(&TopologySummary::of(topology)), Ink::Roles)
}

/// Draws a fabric as [`to_svg`] does, its cables in the colours of what they carried.
///
/// `load` gives the part of its link's rate, from 0 to 1, that a port sent, by the GUID of its node and its number. A
/// cable has the load of its busier direction, a line that stands for several cables that of the busiest. Hosts are
/// cells in the colours of their cables. A port of which nothing is known sent nothing.
pub fn to_heat_svg(
    topology: &Topology,
    title: &str,
    subtitle: &str,
    load: impl Fn(Guid, PortNum) -> Option<f64>,
) -> String {
    let fabric = Fabric::of(topology).with_loads(load);
    svg::render(&fabric.scene(), title, subtitle, Ink::Heat)
}

/// A fabric and what the layouts want to know of it.
#[derive(Debug)]
struct Fabric<'a> {
    topology: &'a Topology,
    graph: SwitchGraph,
    levels: Option<Vec<u8>>,
    /// What its cables carried, if that is to be shown.
    heat: Option<Heat>,
}

impl<'a> Fabric<'a> {
    fn of(topology: &'a Topology) -> Self {
        let graph = SwitchGraph::of(topology);
        let levels = graph.levels();
        Self { topology, graph, levels, heat: None }
    }

    fn with_loads(self, load: impl Fn(Guid, PortNum) -> Option<f64>) -> Self {
        let heat = Heat::of(self.topology, &self.graph, load);
        Self { heat: Some(heat), ..self }
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

    fn name(&self, place: SwitchIndex) -> &str {
        &self.topology[self.graph.switches[place]].description
    }

    fn hosts(&self, place: SwitchIndex) -> &[NodeIndex] {
        &self.graph.hosts[place]
    }

    /// The loads of the cables to a switch's hosts, in their order, if loads are shown and it has hosts.
    fn host_loads(&self, place: SwitchIndex) -> Option<&[f32]> {
        let loads = self.heat.as_ref()?.hosts[place].as_slice();
        (!loads.is_empty()).then_some(loads)
    }

    /// The cables to a switch's hosts.
    fn host_cables(&self, place: SwitchIndex) -> Cables {
        match self.host_loads(place) {
            Some(loads) => loads.iter().map(|load| Cables::one(*load)).fold(Cables::default(), Cables::with),
            None => Cables::plain(self.hosts(place).len() as u32),
        }
    }

    /// Pairs of neighbours of which both are among some places, which are in order.
    fn pairs_among(
        &self,
        places: &[SwitchIndex],
    ) -> impl Iterator<Item = (SwitchIndex, SwitchIndex, Cables)> {
        let inside = |place: &SwitchIndex| places.binary_search(place).is_ok();
        places.iter().flat_map(move |here| self.pairs_of(*here)).filter(move |(_, there, _)| inside(there))
    }

    /// Pairs of neighbours, each once, with the cables between them.
    fn pairs(&self) -> impl Iterator<Item = (SwitchIndex, SwitchIndex, Cables)> {
        (0..self.graph.switch_count()).flat_map(|here| self.pairs_of(here))
    }

    /// The pairs a place is the first of.
    fn pairs_of(&self, here: SwitchIndex) -> impl Iterator<Item = (SwitchIndex, SwitchIndex, Cables)> {
        let later = self.graph.neighbours[here].iter().filter(move |(there, _)| here < *there);
        later.map(move |(there, count)| {
            let heat = self.heat.as_ref().and_then(|heat| heat.between.get(&(here, *there)));
            (here, *there, heat.copied().unwrap_or(Cables::plain(*count)))
        })
    }
}

/// The switches of each level, leaves first.
fn rows(levels: &[u8]) -> Vec<Vec<SwitchIndex>> {
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

fn subtitle(summary: &TopologySummary) -> String {
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
