//! What the links between the switches of a tree have left, in the order in which it is asked for.
//!
//! A search asks for all links of a leaf, or all of a pod. In the fabric these lie apart, each at the switch it leaves; here
//! they lie next to each other, up and down in turn.

use super::books::PairDemand;
use super::network::{LinkIndex, Network};
use super::tree::Way;

/// What a link has left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Room {
    /// One more than the bits per second that one cluster can have; 0 if no lane is left.
    pub below: u64,
    /// Service levels that somebody has, as bits.
    pub levels_taken: u16,
    /// Lanes that somebody has.
    pub lanes_taken: u8,
}

impl Room {
    /// How many times the link can carry the pairs that `demand` speaks of.
    #[inline]
    pub fn times_left(&self, demand: &PairDemand) -> u64 {
        // A share is rounded down, so a bit less than one bit more fits.
        if self.below == 0 { 0 } else { demand.times(self.below) }
    }

    /// How many pairs it can carry, as far as anybody counts.
    #[inline]
    pub fn pairs_left(&self, pair: &PairDemand) -> u32 {
        u32::try_from(self.times_left(pair)).unwrap_or(u32::MAX)
    }
}

/// What all of them have left; nothing where the switches form no tree.
#[derive(Clone, Debug, Default)]
pub(super) struct Rooms {
    /// The place of each link; none for hosts' cables.
    places: Vec<Option<u32>>,
    rooms: Vec<Room>,
    /// Links of a leaf.
    of_leaf: usize,
    /// Links of a pod.
    of_pod: usize,
    /// Where those of pods begin.
    pods: usize,
}

impl Rooms {
    /// Nothing is left yet.
    pub fn new(network: &Network) -> Self {
        let Some(tree) = network.tree() else { return Self::default() };
        let mut links: Vec<LinkIndex> = (0..tree.leaves)
            .flat_map(|leaf| (0..tree.leaf_ups).map(move |up| (leaf, up)))
            .flat_map(|(leaf, up)| [tree.leaf_up(leaf, up), tree.leaf_down(leaf, up)])
            .collect();
        let pods = links.len();
        let spans_pods = tree.pods > 1;
        for pod in 0..if spans_pods { tree.pods } else { 0 } {
            for leaf_up in 0..tree.leaf_ups as u8 {
                let ways = (0..tree.pod_ups as u8).map(|pod_up| Way { leaf_up, pod_up });
                links.extend(ways.flat_map(|way| [tree.pod_up(pod, way), tree.pod_down(pod, way)]));
            }
        }
        let mut places = vec![None; network.links().len()];
        for (place, link) in (0..).zip(&links) {
            places[link.index()] = Some(place);
        }
        let rooms = vec![Room::default(); links.len()];
        let of_pod = if spans_pods { 2 * tree.leaf_ups * tree.pod_ups } else { 0 };
        Self { places, rooms, of_leaf: 2 * tree.leaf_ups, of_pod, pods }
    }

    /// A link has another room.
    #[inline]
    pub fn set(&mut self, link: LinkIndex, room: impl FnOnce() -> Room) {
        if let Some(place) = self.places.get(link.index()).copied().flatten() {
            self.rooms[place as usize] = room();
        }
    }

    /// By up-port of a leaf: the link up, then the link down.
    #[inline]
    pub fn of_leaf(&self, leaf: usize) -> &[Room] {
        &self.rooms[leaf * self.of_leaf..][..self.of_leaf]
    }

    /// By up-port of a pod's leaves and of its switches: the link up, then the link down.
    #[inline]
    pub fn of_pod(&self, pod: usize) -> &[Room] {
        &self.rooms[self.pods + pod * self.of_pod..][..self.of_pod]
    }
}
