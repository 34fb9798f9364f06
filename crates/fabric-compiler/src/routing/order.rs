//! The order of switches that keeps routes free of deadlocks: every cable has an upper and a lower end, and packets go
//! up, then down. Since no packet goes up again after it went down, no ring of links can wait for each other.

use std::collections::VecDeque;

use fabric_model::decisions::{RoutingDecision, Scheme};

use crate::fabric::{Fabric, Place};

/// A switch with fewer adapters than this share of the fullest one's may be a spine that serves a few service nodes.
const LEAF_SHARE: usize = 4;

/// Switches up to which every one is tried as the root; above, one in the middle of a longest path is taken, because a
/// search from each would take seconds.
const ROOTS_TRIED_MAX: usize = 2048;

/// Heights of switches, and what follows from them.
#[derive(Debug)]
pub(crate) struct Order {
    pub scheme: Scheme,
    /// By place.
    pub heights: Vec<i32>,
    /// The switches, highest first; of equal ones the one with the higher GUID.
    pub descending: Vec<Place>,
    /// Which neighbours of each switch are above it, as places in its list of neighbours.
    pub up: Vec<Vec<usize>>,
    /// Which are below.
    pub down: Vec<Vec<usize>>,
    /// Whether every cable joins a height to the next.
    pub is_strict: bool,
}

impl Order {
    /// The heights of before, and for new switches those that the cables suggest; `None` if there is no before.
    pub fn kept(fabric: &Fabric, previous: &RoutingDecision) -> Option<Self> {
        let known: Vec<Option<i32>> = (fabric.switches.iter())
            .map(|switch| previous.switches.get(&switch.guid).map(|decision| decision.height))
            .collect();
        if known.iter().all(Option::is_none) {
            return None;
        }
        let heights = match previous.scheme {
            Scheme::Levels => match known.iter().copied().collect() {
                Some(heights) => heights,
                None => {
                    let levels = levels(fabric)?;
                    known.into_iter().zip(levels).map(|(known, level)| known.unwrap_or(level)).collect()
                }
            },
            Scheme::Root => rehung(fabric, hung_below(fabric, known))?,
        };
        Some(Self::of(fabric, previous.scheme, heights))
    }

    /// Levels by the distance from the adapters, if there are any.
    pub fn by_levels(fabric: &Fabric) -> Option<Self> {
        Some(Self::of(fabric, Scheme::Levels, levels(fabric)?))
    }

    /// Heights by the distance from one root. Every two switches of a connected fabric reach each other by it.
    pub fn by_root(fabric: &Fabric) -> Self {
        let from_root = center(fabric).map(|root| distances(fabric, [root]));
        let heights = from_root.unwrap_or_default().into_iter().map(|d| -d.unwrap_or(0)).collect();
        Self::of(fabric, Scheme::Root, heights)
    }

    /// Whether the first of two switches is above the second.
    pub fn is_above(&self, a: Place, b: Place) -> bool {
        (self.heights[a], a) > (self.heights[b], b)
    }

    fn of(fabric: &Fabric, scheme: Scheme, heights: Vec<i32>) -> Self {
        let is_strict = is_strict(fabric, &heights);
        let (up, down) = (Vec::new(), Vec::new());
        let mut order = Self { scheme, heights, descending: Vec::new(), up, down, is_strict };
        let mut descending: Vec<Place> = (0..fabric.switches.len()).collect();
        descending.sort_by_key(|place| std::cmp::Reverse((order.heights[*place], *place)));
        order.descending = descending;
        for (place, switch) in fabric.switches.iter().enumerate() {
            let above = |slot: &usize| order.is_above(switch.neighbours[*slot].place, place);
            let (up, down) = (0..switch.neighbours.len()).partition(above);
            order.up.push(up);
            order.down.push(down);
        }
        order
    }
}

/// How far each switch is from the nearest of some.
fn distances(fabric: &Fabric, from: impl IntoIterator<Item = Place>) -> Vec<Option<i32>> {
    let mut distances = vec![None; fabric.switches.len()];
    let mut queue = VecDeque::new();
    for place in from {
        distances[place] = Some(0);
        queue.push_back((place, 0));
    }
    while let Some((here, distance)) = queue.pop_front() {
        for neighbour in &fabric.switches[here].neighbours {
            if distances[neighbour.place].is_none() {
                distances[neighbour.place] = Some(distance + 1);
                queue.push_back((neighbour.place, distance + 1));
            }
        }
    }
    distances
}

/// Levels from 1 upwards. Trees in the strict sense come first: every cable joins a level to the next. Where some join
/// switches of one level (a Dragonfly+), levels still order the fabric, unless all switches have the same.
fn levels(fabric: &Fabric) -> Option<Vec<i32>> {
    let adapters = |place: Place| fabric.switches[place].adapters.len();
    let places = 0..fabric.switches.len();
    let fullest = places.clone().map(adapters).max().unwrap_or(0);
    let levels_over = |at_least: usize| -> Option<Vec<i32>> {
        let leaves = places.clone().filter(|place| adapters(*place) >= at_least);
        distances(fabric, leaves).into_iter().map(|distance| distance.map(|d| d + 1)).collect()
    };
    let mostly_leaves = (fullest / LEAF_SHARE).max(1);
    let all = levels_over(1).filter(|levels| is_strict(fabric, levels));
    let most = || levels_over(mostly_leaves).filter(|levels| is_strict(fabric, levels));
    let loose = || levels_over(mostly_leaves).filter(|levels| levels.iter().any(|level| *level > 1));
    all.or_else(most).or_else(loose)
}

/// Whether every cable joins a level to the next.
fn is_strict(fabric: &Fabric, levels: &[i32]) -> bool {
    (fabric.switches.iter().zip(levels)).all(|(switch, level)| {
        switch.neighbours.iter().all(|neighbour| level.abs_diff(levels[neighbour.place]) == 1)
    })
}

/// Gives switches without a height one below their highest neighbour that has one.
fn hung_below(fabric: &Fabric, mut heights: Vec<Option<i32>>) -> Vec<i32> {
    loop {
        let next: Vec<(Place, i32)> = (0..heights.len())
            .filter(|place| heights[*place].is_none())
            .filter_map(|place| {
                let neighbours = fabric.switches[place].neighbours.iter();
                let highest = neighbours.filter_map(|neighbour| heights[neighbour.place]).max()?;
                Some((place, highest.saturating_sub(1)))
            })
            .collect();
        if next.is_empty() {
            return heights.into_iter().map(Option::unwrap_or_default).collect();
        }
        for (place, height) in next {
            heights[place] = Some(height);
        }
    }
}

/// Hangs every switch that has lost all cables upwards below its highest neighbour, until only one is above all its
/// neighbours. Then everyone reaches everyone by that one. `None` if it does not come to an end soon.
fn rehung(fabric: &Fabric, mut heights: Vec<i32>) -> Option<Vec<i32>> {
    let top = (0..heights.len()).max_by_key(|place| (heights[*place], *place))?;
    for _ in 0..=heights.len() {
        let is_lost = |place: &Place| {
            let mut neighbours = fabric.switches[*place].neighbours.iter();
            neighbours.all(|n| (heights[n.place], n.place) < (heights[*place], *place))
        };
        let Some(lost) = (0..heights.len()).find(|place| *place != top && is_lost(place)) else {
            return Some(heights);
        };
        let neighbours = fabric.switches[lost].neighbours.iter();
        heights[lost] = neighbours.map(|n| heights[n.place]).max()?.checked_sub(1)?;
    }
    None
}

/// The switch from which the farthest is nearest; of several the one nearest to all, then the one with the lowest GUID.
fn center(fabric: &Fabric) -> Option<Place> {
    let count = fabric.switches.len();
    if count > ROOTS_TRIED_MAX {
        return middle_of_a_long_path(fabric);
    }
    (0..count).min_by_key(|place| {
        let distances = distances(fabric, [*place]);
        let farthest = distances.iter().flatten().max().copied();
        (farthest, distances.iter().flatten().map(|d| i64::from(*d)).sum::<i64>(), *place)
    })
}

fn middle_of_a_long_path(fabric: &Fabric) -> Option<Place> {
    let farthest =
        |from: &[Option<i32>]| (0..from.len()).max_by_key(|place| (from[*place], std::cmp::Reverse(*place)));
    let one = farthest(&distances(fabric, [0]))?;
    let from_one = distances(fabric, [one]);
    let other = farthest(&from_one)?;
    let from_other = distances(fabric, [other]);
    (0..from_one.len()).min_by_key(|place| (from_one[*place].max(from_other[*place]), *place))
}
