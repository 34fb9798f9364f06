//! Negative cache of placement: candidates that were refused are not tried again until something about them changed.
//!
//! A request that waits is retried whenever a cluster leaves, and most candidates are unchanged then. Whether a candidate
//! is refused depends on its hosts and on the links of its leaves, and, if it spans pods, on those of its pods. Each leaf
//! and pod therefore has the number of its last change, and a refusal is valid while none of them is newer.

use std::collections::HashMap;

use super::admission::Refusal;
use super::balance::LeafCounts;
use super::placement::PlacementRequest;

/// Refusals that are kept for one request: more than are found between two changes.
const REFUSALS_MAX: usize = 256;

/// The refusals of one request.
#[derive(Debug, Default)]
pub(super) struct NegativeCache {
    /// The request, apart from its cluster number.
    request: Option<PlacementRequest>,
    refusals: HashMap<LeafCounts, (u64, Refusal)>,
    /// By pod: the time when no even pick was found in it.
    pods: HashMap<usize, u64>,
    changes: LastChanges,
}

/// The last change of each leaf and pod. Time is counted in changes.
#[derive(Debug, Default)]
pub(super) struct LastChanges {
    now: u64,
    leaves: Vec<u64>,
    pods: Vec<u64>,
    pod_of: Vec<usize>,
}

impl NegativeCache {
    pub fn new(leaves: usize, pods: &[Vec<usize>]) -> Self {
        let mut pod_of = vec![0; leaves];
        for (pod, leaves) in pods.iter().enumerate() {
            leaves.iter().for_each(|leaf| pod_of[*leaf] = pod);
        }
        let changes = LastChanges { now: 0, leaves: vec![0; leaves], pods: vec![0; pods.len()], pod_of };
        Self { changes, ..Self::default() }
    }

    /// Records that a host of a leaf was taken or released.
    pub fn change(&mut self, leaf: usize) {
        let changes = &mut self.changes;
        changes.now += 1;
        changes.leaves[leaf] = changes.now;
        changes.pods[changes.pod_of[leaf]] = changes.now;
    }

    /// Starts with a request: forgets everything unless the last one was equal but for its number.
    pub fn begin(&mut self, request: PlacementRequest) {
        let is_same = self
            .request
            .is_some_and(|before| PlacementRequest { cluster: request.cluster, ..before } == request);
        if !is_same || self.refusals.len() > REFUSALS_MAX {
            self.request = Some(request);
            self.refusals.clear();
            self.pods.clear();
        }
    }

    /// The refusal of a candidate, if it is still valid.
    pub fn refusal(&self, candidate: &LeafCounts) -> Option<Refusal> {
        let (when, refusal) = self.refusals.get(candidate)?;
        self.changes.none_since(*when, candidate).then_some(*refusal)
    }

    pub fn note(&mut self, candidate: LeafCounts, refusal: Refusal) {
        self.refusals.insert(candidate, (self.changes.now, refusal));
    }

    /// Whether no even pick was found in a pod that is unchanged since.
    pub fn lacks_even_pick(&self, pod: usize) -> bool {
        self.pods.get(&pod).is_some_and(|when| self.changes.pods[pod] <= *when)
    }

    pub fn changes(&self) -> &LastChanges {
        &self.changes
    }

    /// Records that no even pick was found in a pod.
    pub fn note_no_even(&mut self, pod: usize) {
        self.pods.insert(pod, self.changes.now);
    }
}

impl LastChanges {
    pub fn now(&self) -> u64 {
        self.now
    }

    pub fn of_leaf(&self, leaf: usize) -> u64 {
        self.leaves[leaf]
    }

    pub fn of_pod(&self, pod: usize) -> u64 {
        self.pods[pod]
    }

    fn none_since(&self, when: u64, candidate: &LeafCounts) -> bool {
        let pod_of = |(leaf, _): &(usize, u32)| self.pod_of[*leaf];
        let first = candidate.first().map(pod_of);
        if candidate.iter().all(|at| Some(pod_of(at)) == first) {
            return candidate.iter().all(|(leaf, _)| self.leaves[*leaf] <= when);
        }
        candidate.iter().all(|at| self.pods[pod_of(at)] <= when)
    }
}
