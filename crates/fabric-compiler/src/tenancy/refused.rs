//! Places that a cluster was refused: what has not changed since is not asked again.
//!
//! Who waits for a place asks again whenever somebody leaves, and most of what was refused is as it was. Whether a place is
//! refused depends on its hosts and on the links of its leaves, and, if it spans pods, of its pods.

use std::collections::HashMap;

use super::balance::Picked;
use super::ledger::Refusal;
use super::placement::Wish;

/// Places that are remembered for one wish: more than are tried for it between two changes of its surroundings.
const PLACES_MAX: usize = 256;

/// What was refused to one wish.
#[derive(Debug, Default)]
pub(super) struct Refused {
    /// Whose refusals these are; its number does not matter.
    wish: Option<Wish>,
    places: HashMap<Picked, (u64, Refusal)>,
    /// Pods, by number, in which no even place was found, and when.
    pods: HashMap<usize, u64>,
    changes: Changes,
}

/// When something was last given or given back, counted in changes.
#[derive(Debug, Default)]
pub(super) struct Changes {
    now: u64,
    leaves: Vec<u64>,
    pods: Vec<u64>,
    /// The pod of each leaf.
    pod_of: Vec<usize>,
}

impl Refused {
    /// For leaves in pods.
    pub fn new(leaves: usize, pods: &[Vec<usize>]) -> Self {
        let mut pod_of = vec![0; leaves];
        for (pod, leaves) in pods.iter().enumerate() {
            leaves.iter().for_each(|leaf| pod_of[*leaf] = pod);
        }
        let changes = Changes { now: 0, leaves: vec![0; leaves], pods: vec![0; pods.len()], pod_of };
        Self { changes, ..Self::default() }
    }

    /// A host of a leaf was given to somebody, or given back.
    pub fn change(&mut self, leaf: usize) {
        let changes = &mut self.changes;
        changes.now += 1;
        changes.leaves[leaf] = changes.now;
        changes.pods[changes.pod_of[leaf]] = changes.now;
    }

    /// From now on it is about a wish.
    pub fn begin(&mut self, wish: Wish) {
        let is_same = self.wish.is_some_and(|before| Wish { cluster: wish.cluster, ..before } == wish);
        if !is_same || self.places.len() > PLACES_MAX {
            self.wish = Some(wish);
            self.places.clear();
            self.pods.clear();
        }
    }

    /// Why a place was refused, if it still would be.
    pub fn why(&self, place: &Picked) -> Option<Refusal> {
        let (when, refusal) = self.places.get(place)?;
        self.changes.none_since(*when, place).then_some(*refusal)
    }

    /// A place was refused.
    pub fn note(&mut self, place: Picked, refusal: Refusal) {
        self.places.insert(place, (self.changes.now, refusal));
    }

    /// Whether no even place was found in a pod that is as it was.
    pub fn has_no_even(&self, pod: usize) -> bool {
        self.pods.get(&pod).is_some_and(|when| self.changes.pods[pod] <= *when)
    }

    /// When something was last given or given back.
    pub fn changes(&self) -> &Changes {
        &self.changes
    }

    /// No even place was found in a pod.
    pub fn note_no_even(&mut self, pod: usize) {
        self.pods.insert(pod, self.changes.now);
    }
}

impl Changes {
    /// How many there were.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// The last one in a leaf.
    pub fn of_leaf(&self, leaf: usize) -> u64 {
        self.leaves[leaf]
    }

    /// The last one in a pod.
    pub fn of_pod(&self, pod: usize) -> u64 {
        self.pods[pod]
    }

    fn none_since(&self, when: u64, place: &Picked) -> bool {
        let pod_of = |(leaf, _): &(usize, u32)| self.pod_of[*leaf];
        let first = place.first().map(pod_of);
        if place.iter().all(|at| Some(pod_of(at)) == first) {
            return place.iter().all(|(leaf, _)| self.leaves[*leaf] <= when);
        }
        place.iter().all(|at| self.pods[pod_of(at)] <= when)
    }
}
