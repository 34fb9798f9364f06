//! The order of switches that keeps routes free of deadlocks: every link has an upper and a lower end, and packets go up,
//! then down. Since no packet goes up after it went down, no cycle of links can wait for each other (up*/down* routing).
//!
//! Heights are distances from the leaves (trees, O(links)), or minus the distance from a central root (O(switches · links)
//! up to 2,048 switches, O(links) above). Previous heights are kept, so that a changed cable does not reorder the fabric.

use std::collections::VecDeque;

use fabric_model::decisions::{HeightScheme, RoutingDecision};

use crate::fabric::{Fabric, SwitchIndex};

/// A switch with less than a fourth of the adapters of the fullest one may be a spine that serves a few service nodes.
const LEAF_SHARE: usize = 4;

/// Up to this many switches, each is tried as the root. Above, the middle of a long path is taken, because a search from
/// each would take seconds.
const ROOTS_TRIED_MAX: usize = 2048;

/// The heights of switches, and for each the neighbours above and below.
#[derive(Debug)]
pub(crate) struct Order {
    pub scheme: HeightScheme,
    /// Indexed by switch.
    pub heights: Vec<i32>,
    /// The switches, highest first; of equal ones the one with the higher GUID.
    pub descending: Vec<SwitchIndex>,
    /// By switch: the indices of the neighbours above it.
    pub up: Vec<Vec<usize>>,
    /// By switch: the indices of the neighbours below it.
    pub down: Vec<Vec<usize>>,
    /// Whether every link joins a height to the next.
    pub is_strict: bool,
}

impl Order {
    /// With the heights of a decision, and for new switches those that follow from their links. `None` if the decision knows
    /// none of the switches, or new ones cannot be fitted in.
    pub fn kept(fabric: &Fabric, previous: &RoutingDecision) -> Option<Self> {
        let known: Vec<Option<i32>> = (fabric.switches.iter())
            .map(|switch| previous.switches.get(&switch.guid).map(|decision| decision.height))
            .collect();
        if known.iter().all(Option::is_none) {
            return None;
        }
        let heights = match previous.scheme {
            HeightScheme::Tiers => match known.iter().copied().collect() {
                Some(heights) => heights,
                None => {
                    let tiers = tiers(fabric)?;
                    known.into_iter().zip(tiers).map(|(known, tier)| known.unwrap_or(tier)).collect()
                }
            },
            HeightScheme::Root => rehung(fabric, hung_below(fabric, known))?,
        };
        Some(Self::of(fabric, previous.scheme, heights))
    }

    /// With heights by the distance from the leaves; `None` if they do not order the fabric.
    pub fn by_tiers(fabric: &Fabric) -> Option<Self> {
        Some(Self::of(fabric, HeightScheme::Tiers, tiers(fabric)?))
    }

    /// With heights by the distance from one root, through which any two switches of a connected fabric reach each other.
    pub fn by_root(fabric: &Fabric) -> Self {
        let from_root = center(fabric).map(|root| distances(fabric, [root]));
        let heights = from_root.unwrap_or_default().into_iter().map(|d| -d.unwrap_or(0)).collect();
        Self::of(fabric, HeightScheme::Root, heights)
    }

    /// Whether switch `a` is above switch `b`. Of equal heights, the higher GUID is above.
    pub fn is_above(&self, a: SwitchIndex, b: SwitchIndex) -> bool {
        (self.heights[a], a) > (self.heights[b], b)
    }

    fn of(fabric: &Fabric, scheme: HeightScheme, heights: Vec<i32>) -> Self {
        let is_strict = is_strict(fabric, &heights);
        let (up, down) = (Vec::new(), Vec::new());
        let mut order = Self { scheme, heights, descending: Vec::new(), up, down, is_strict };
        let mut descending: Vec<SwitchIndex> = (0..fabric.switches.len()).collect();
        descending.sort_by_key(|index| std::cmp::Reverse((order.heights[*index], *index)));
        order.descending = descending;
        for (index, switch) in fabric.switches.iter().enumerate() {
            let above = |slot: &usize| order.is_above(switch.neighbours[*slot].switch, index);
            let (up, down) = (0..switch.neighbours.len()).partition(above);
            order.up.push(up);
            order.down.push(down);
        }
        order
    }
}

/// By switch: the distance to the nearest of some; `None` if none is reached.
fn distances(fabric: &Fabric, from: impl IntoIterator<Item = SwitchIndex>) -> Vec<Option<i32>> {
    let mut distances = vec![None; fabric.switches.len()];
    let mut queue = VecDeque::new();
    for index in from {
        distances[index] = Some(0);
        queue.push_back((index, 0));
    }
    while let Some((here, distance)) = queue.pop_front() {
        for neighbour in &fabric.switches[here].neighbours {
            if distances[neighbour.switch].is_none() {
                distances[neighbour.switch] = Some(distance + 1);
                queue.push_back((neighbour.switch, distance + 1));
            }
        }
    }
    distances
}

/// Tiers from 1 (leaves) upwards. Preferably every link joins a tier to the next. Where links join switches of one tier (a
/// Dragonfly+), tiers still order the fabric, unless all switches have the same; `None` then.
fn tiers(fabric: &Fabric) -> Option<Vec<i32>> {
    let adapters = |index: SwitchIndex| fabric.switches[index].adapters.len();
    let indices = 0..fabric.switches.len();
    let fullest = indices.clone().map(adapters).max().unwrap_or(0);
    let tiers_over = |at_least: usize| -> Option<Vec<i32>> {
        let leaves = indices.clone().filter(|index| adapters(*index) >= at_least);
        distances(fabric, leaves).into_iter().map(|distance| distance.map(|d| d + 1)).collect()
    };
    let mostly_leaves = (fullest / LEAF_SHARE).max(1);
    let all = tiers_over(1).filter(|tiers| is_strict(fabric, tiers));
    let most = || tiers_over(mostly_leaves).filter(|tiers| is_strict(fabric, tiers));
    let loose = || tiers_over(mostly_leaves).filter(|tiers| tiers.iter().any(|tier| *tier > 1));
    all.or_else(most).or_else(loose)
}

/// Whether every link joins a tier to the next.
fn is_strict(fabric: &Fabric, tiers: &[i32]) -> bool {
    (fabric.switches.iter().zip(tiers)).all(|(switch, tier)| {
        switch.neighbours.iter().all(|neighbour| tier.abs_diff(tiers[neighbour.switch]) == 1)
    })
}

/// Puts switches without a height one below their highest neighbour.
fn hung_below(fabric: &Fabric, mut heights: Vec<Option<i32>>) -> Vec<i32> {
    loop {
        let next: Vec<(SwitchIndex, i32)> = (0..heights.len())
            .filter(|index| heights[*index].is_none())
            .filter_map(|index| {
                let neighbours = fabric.switches[index].neighbours.iter();
                let highest = neighbours.filter_map(|neighbour| heights[neighbour.switch]).max()?;
                Some((index, highest.saturating_sub(1)))
            })
            .collect();
        if next.is_empty() {
            return heights.into_iter().map(Option::unwrap_or_default).collect();
        }
        for (index, height) in next {
            heights[index] = Some(height);
        }
    }
}

/// Puts every switch that has lost all links upwards below its highest neighbour, until only one switch is above all its
/// neighbours. Then all switches reach each other through that one. `None` if that takes more steps than switches.
fn rehung(fabric: &Fabric, mut heights: Vec<i32>) -> Option<Vec<i32>> {
    let top = (0..heights.len()).max_by_key(|index| (heights[*index], *index))?;
    for _ in 0..=heights.len() {
        let is_lost = |index: &SwitchIndex| {
            let mut neighbours = fabric.switches[*index].neighbours.iter();
            neighbours.all(|n| (heights[n.switch], n.switch) < (heights[*index], *index))
        };
        let Some(lost) = (0..heights.len()).find(|index| *index != top && is_lost(index)) else {
            return Some(heights);
        };
        let neighbours = fabric.switches[lost].neighbours.iter();
        heights[lost] = neighbours.map(|n| heights[n.switch]).max()?.checked_sub(1)?;
    }
    None
}

/// The switch with the least distance to the farthest other; of several, the one with the least sum of distances, then the
/// lowest GUID.
fn center(fabric: &Fabric) -> Option<SwitchIndex> {
    let count = fabric.switches.len();
    if count > ROOTS_TRIED_MAX {
        return middle_of_a_long_path(fabric);
    }
    (0..count).min_by_key(|index| {
        let distances = distances(fabric, [*index]);
        let farthest = distances.iter().flatten().max().copied();
        (farthest, distances.iter().flatten().map(|d| i64::from(*d)).sum::<i64>(), *index)
    })
}

fn middle_of_a_long_path(fabric: &Fabric) -> Option<SwitchIndex> {
    let farthest =
        |from: &[Option<i32>]| (0..from.len()).max_by_key(|index| (from[*index], std::cmp::Reverse(*index)));
    let one = farthest(&distances(fabric, [0]))?;
    let from_one = distances(fabric, [one]);
    let other = farthest(&from_one)?;
    let from_other = distances(fabric, [other]);
    (0..from_one.len()).min_by_key(|index| (from_one[*index].max(from_other[*index]), *index))
}
