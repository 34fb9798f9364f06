//! Rounds of the `bulk-synchronous` pattern.

use crate::traffic::{Histogram, Time};

/// The rounds of a cluster. The exchange of a round lasts from the moment the last node has computed until
/// all messages have arrived; then the next round begins.
#[derive(Clone, Debug, Default)]
pub(super) struct Rounds {
    /// Messages of the round that have not arrived.
    open: u64,
    /// Nodes that are still computing.
    computing: usize,
    /// Start of the current exchange.
    began: Time,
    /// Durations of the exchanges.
    pub took: Histogram,
}

impl Rounds {
    /// Begins a round in which each of `nodes` computes and then sends `messages` messages.
    pub fn begin(&mut self, nodes: usize, messages: u64) {
        self.computing = nodes;
        self.open = nodes as u64 * messages;
    }

    /// A node has finished computing.
    pub fn computed(&mut self, now: Time) {
        self.computing -= 1;
        if self.computing == 0 {
            self.began = now;
        }
    }

    /// A message has arrived or was lost. Returns whether the round is over.
    pub fn ended(&mut self, now: Time) -> bool {
        self.open -= 1;
        if self.open > 0 || self.computing > 0 {
            return false;
        }
        self.took.record(now - self.began);
        true
    }
}
