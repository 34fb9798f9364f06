//! Rounds of computing and exchanging, all nodes together.

use crate::traffic::{Histogram, Time};

/// The rounds of a cluster. A round's exchange is from the moment the last node ends its computing until every message has
/// arrived; then all begin anew.
#[derive(Clone, Debug, Default)]
pub(super) struct Rounds {
    /// Messages of the round that have not arrived.
    open: u64,
    /// Nodes that still compute.
    computing: usize,
    /// When the exchange of this round began.
    began: Time,
    /// How long exchanges took.
    pub took: Histogram,
}

impl Rounds {
    /// A round begins: so many nodes compute and then send so many messages each.
    pub fn begin(&mut self, nodes: usize, messages: u64) {
        self.computing = nodes;
        self.open = nodes as u64 * messages;
    }

    /// A node has computed.
    pub fn computed(&mut self, now: Time) {
        self.computing -= 1;
        if self.computing == 0 {
            self.began = now;
        }
    }

    /// A message has arrived, or never will. Whether the round is over.
    pub fn ended(&mut self, now: Time) -> bool {
        self.open -= 1;
        if self.open > 0 || self.computing > 0 {
            return false;
        }
        self.took.record(now - self.began);
        true
    }
}
