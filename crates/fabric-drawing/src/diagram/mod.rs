//! Topology diagrams: SVG for people, DOT for Graphviz.
//!
//! The layout depends on the graph of switches, not on the order of the file. The first that fits is taken:
//!
//! 1. A fabric whose cables all join adjacent tiers: one row per tier, hosts at the bottom. If a row has more than 160
//!    switches and there are three tiers, a pod is drawn as one card.
//! 2. Switches named by two or three coordinates: a grid.
//! 3. Groups of leaves and spines that are joined spine to spine (Dragonfly+): a ring of panels.
//! 4. Anything else: a ring of switches.
//!
//! Up to [`HOSTS_DRAWN_MAX`] hosts are drawn by name; larger fabrics show the number of hosts per leaf.

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

/// Largest number of hosts in a fabric for which every host is drawn by name.
pub const HOSTS_DRAWN_MAX: usize = 150;

/// Largest number of switches in a row; a wider tree of three tiers is drawn with one card per pod.
const ROW_SWITCHES_MAX: usize = 160;

/// Draws a fabric as an SVG document. The subtitle shows counts, link rates, tiers and diameter.
pub fn to_svg(topology: &Topology, title: &str) -> String {
    let fabric = DrawnFabric::of(topology);
    svg::render(&fabric.scene(), title, &subtitle(&TopologySummary::of(topology)), Ink::Roles)
}

/// Draws a heat map of link utilisation, in the layout of [`to_svg`].
///
/// `load` returns the transmit utilisation of a port, given its node GUID and port number: the fraction of the link rate,
/// 0 to 1. `None` and NaN count as idle; values outside the range are clamped. A cable has the colour of its busier
/// direction, a line that stands for several cables that of the busiest one, and every host is a cell in the colour of
/// its cable.
pub fn to_heat_svg(
    topology: &Topology,
    title: &str,
    subtitle: &str,
    load: impl Fn(Guid, PortNum) -> Option<f64>,
) -> String {
    let fabric = DrawnFabric::of(topology).with_loads(load);
    svg::render(&fabric.scene(), title, subtitle, Ink::Heat)
}

/// A topology with the properties that the layouts use.
#[derive(Debug)]
struct DrawnFabric<'a> {
    topology: &'a Topology,
    graph: SwitchGraph,
    tiers: Option<Vec<u8>>,
    /// Loads of the cables; only in heat maps.
    heat: Option<Heat>,
}

impl<'a> DrawnFabric<'a> {
    fn of(topology: &'a Topology) -> Self {
        let graph = SwitchGraph::of(topology);
        let tiers = graph.tiers();
        Self { topology, graph, tiers, heat: None }
    }

    fn with_loads(self, load: impl Fn(Guid, PortNum) -> Option<f64>) -> Self {
        let heat = Heat::of(self.topology, &self.graph, load);
        Self { heat: Some(heat), ..self }
    }

    fn scene(&self) -> Scene {
        if let Some(tiers) = &self.tiers {
            let rows = rows(tiers);
            let crowded = rows.iter().any(|row| row.len() > ROW_SWITCHES_MAX);
            return if crowded && rows.len() > 2 { pods::draw(self, tiers) } else { tree::draw(self, tiers) };
        }
        grid::draw(self).or_else(|| groups::draw(self)).unwrap_or_else(|| ring::draw(self))
    }

    fn name(&self, switch: SwitchIndex) -> &str {
        &self.topology[self.graph.switches[switch]].description
    }

    fn hosts(&self, switch: SwitchIndex) -> &[NodeIndex] {
        &self.graph.hosts[switch]
    }

    /// Loads of the host cables of a switch, in the order of its hosts; `None` without loads or without hosts.
    fn host_loads(&self, switch: SwitchIndex) -> Option<&[f32]> {
        let loads = self.heat.as_ref()?.hosts[switch].as_slice();
        (!loads.is_empty()).then_some(loads)
    }

    /// All host cables of a switch as one bundle.
    fn host_cables(&self, switch: SwitchIndex) -> Cables {
        match self.host_loads(switch) {
            Some(loads) => loads.iter().map(|load| Cables::one(*load)).fold(Cables::default(), Cables::with),
            None => Cables::plain(self.hosts(switch).len() as u32),
        }
    }

    /// Pairs of neighbours that are both in `switches`, which must be sorted.
    fn pairs_among(
        &self,
        switches: &[SwitchIndex],
    ) -> impl Iterator<Item = (SwitchIndex, SwitchIndex, Cables)> {
        let inside = |switch: &SwitchIndex| switches.binary_search(switch).is_ok();
        switches.iter().flat_map(move |here| self.pairs_of(*here)).filter(move |(_, there, _)| inside(there))
    }

    /// Every pair of neighbours once, with the cables between them.
    fn pairs(&self) -> impl Iterator<Item = (SwitchIndex, SwitchIndex, Cables)> {
        (0..self.graph.switch_count()).flat_map(|here| self.pairs_of(here))
    }

    /// The pairs in which `here` has the lower index.
    fn pairs_of(&self, here: SwitchIndex) -> impl Iterator<Item = (SwitchIndex, SwitchIndex, Cables)> {
        let later = self.graph.neighbours[here].iter().filter(move |(there, _)| here < *there);
        later.map(move |(there, count)| {
            let heat = self.heat.as_ref().and_then(|heat| heat.between.get(&(here, *there)));
            (here, *there, heat.copied().unwrap_or(Cables::plain(*count)))
        })
    }
}

/// The switches of each tier, from the leaves up.
fn rows(tiers: &[u8]) -> Vec<Vec<SwitchIndex>> {
    let top = tiers.iter().copied().max().unwrap_or(0);
    let row = |tier| (0..tiers.len()).filter(|switch| tiers[*switch] == tier).collect();
    (1..=top).map(row).collect()
}

/// A count with its noun in the right number: `1 host`, `18 hosts`.
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
    parts.extend(summary.tiers.map(|tiers| counted(tiers.into(), "tier")));
    parts.extend(summary.diameter.map(|hops| format!("diameter {hops}")));
    parts.extend(summary.oversubscription.map(|ratio| format!("oversubscription {ratio:.1}:1")));
    parts.join(" · ")
}

#[cfg(test)]
mod tests;
