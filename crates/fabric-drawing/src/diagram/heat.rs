//! Link utilisation and the colour scale that shows it.

use std::collections::HashMap;

use ib_wire::{Guid, PortNum};

use fabric_model::Topology;
use fabric_model::{SwitchGraph, SwitchIndex};

/// Number of colours between idle and full. Lines of one colour are written as one SVG path, so fewer shades give a
/// smaller file; 24 are enough that the eye sees no steps.
pub(super) const SHADES: u8 = 24;

/// The colour of an idle cable.
pub(super) const IDLE: &str = "#e6e4de";

/// Stops of the colour scale, as load and RGB: grey, sand, orange, red. From sand on each stop is darker than the one
/// before, so the scale is readable in greyscale too.
const SCALE: [(f32, [f32; 3]); 5] = [
    (0.0, [172.0, 183.0, 196.0]),
    (0.35, [226.0, 190.0, 120.0]),
    (0.65, [228.0, 128.0, 52.0]),
    (0.88, [200.0, 48.0, 36.0]),
    (1.0, [142.0, 16.0, 34.0]),
];

/// Parallel cables and their utilisation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Cables {
    pub count: u32,
    /// Load of the busiest cable, 0 to 1. A mean would hide a full cable among idle ones.
    pub load: f32,
}

impl Cables {
    /// `count` cables whose load is unknown.
    pub fn plain(count: u32) -> Self {
        Self { count, load: 0.0 }
    }

    /// One cable with the load of its busier direction.
    pub fn one(load: f32) -> Self {
        Self { count: 1, load }
    }

    /// Merges two bundles: the counts add up, the higher load wins.
    pub fn with(self, others: Self) -> Self {
        Self { count: self.count + others.count, load: self.load.max(others.load) }
    }
}

/// Loads of the cables of a fabric, 0 to 1, each taken in its busier direction.
#[derive(Debug)]
pub(super) struct Heat {
    /// Cables between two switches; the lower index comes first in the key.
    pub between: HashMap<(SwitchIndex, SwitchIndex), Cables>,
    /// Loads of the host cables of each switch, in the order of `SwitchGraph::hosts`.
    pub hosts: Vec<Vec<f32>>,
}

impl Heat {
    pub fn of(topology: &Topology, graph: &SwitchGraph, load: impl Fn(Guid, PortNum) -> Option<f64>) -> Self {
        let switches: HashMap<_, _> =
            graph.switches.iter().enumerate().map(|(switch, node)| (*node, switch)).collect();
        let (mut between, mut hosts) = (HashMap::new(), vec![Vec::new(); graph.switch_count()]);
        for (here, switch) in graph.switches.iter().enumerate() {
            let node = &topology[*switch];
            for (port, peer) in node.cabled_ports() {
                let there = load(topology[peer.node].guid, peer.port);
                let busier = clamped(load(node.guid, port)).max(clamped(there));
                match switches.get(&peer.node) {
                    Some(there) if here < *there => {
                        let cables: &mut Cables = between.entry((here, *there)).or_default();
                        *cables = cables.with(Cables::one(busier));
                    }
                    Some(_) => {}
                    None => hosts[here].push(busier),
                }
            }
        }
        Self { between, hosts }
    }
}

/// The index of the shade for a load, below [`SHADES`]; `None` for an idle cable.
pub(super) fn shade(load: f32) -> Option<u8> {
    (load > 0.0).then(|| ((load * f32::from(SHADES)) as u8).min(SHADES - 1))
}

/// The colour of a shade as `#rrggbb`; `None` is an idle cable.
pub(super) fn colour(shade: Option<u8>) -> String {
    shade.map_or(IDLE.to_owned(), |shade| colour_at((f32::from(shade) + 0.5) / f32::from(SHADES)))
}

/// Interpolates the colour scale at a load of 0 to 1.
pub(super) fn colour_at(load: f32) -> String {
    let above = SCALE.iter().position(|(at, _)| load <= *at).unwrap_or(SCALE.len() - 1).max(1);
    let ((low, from), (high, to)) = (SCALE[above - 1], SCALE[above]);
    let fraction = ((load - low) / (high - low)).clamp(0.0, 1.0);
    let mixed = |channel: usize| (from[channel] + (to[channel] - from[channel]) * fraction).round() as u8;
    format!("#{:02x}{:02x}{:02x}", mixed(0), mixed(1), mixed(2))
}

/// Clamps the caller's load to 0..=1. An unknown load and NaN count as 0.
fn clamped(load: Option<f64>) -> f32 {
    let load = load.unwrap_or(0.0) as f32;
    if load.is_nan() { 0.0 } else { load.clamp(0.0, 1.0) }
}
