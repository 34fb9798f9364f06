//! From the tables that devices hold to those of a plan, so that nothing goes wrong on the way.
//!
//! Functions only: they take what devices hold as it was last read, and the plan, and say what to write in which steps.
//! Inside a step writes may go in any order and more than once; a step begins when every write of the one before was
//! answered. They know no earlier plan and keep no progress: a manager that was killed, or that changes its mind, reads
//! the tables and asks again.
//!
//! | what | order | what holds after every single write |
//! |---|---|---|
//! | [`pkeys`], [`groups`] | shrink everywhere, then grow | first what was allowed before, then what the plan allows |
//! | [`lanes`] | discard levels that lose their lane, then weights, then lanes | no lane is used without weight |
//! | [`lanes::intermediate_tables`] | new entries, then old ones away | no lane waits longer than before or after |
//! | [`route_steps`] | withdraw, move by distance, restore, raise tops | no new forwarding loop, no new credit loop |
//!
//! All together: keys and lanes shrink, enforcement goes on, groups shrink, weights, lanes grow, routes in their steps, groups grow, keys grow,
//! enforcement goes off where the plan has none, and only then ports become active. An address is changed where nobody
//! can talk to its port: after keys shrank, or while the port is not active.

pub mod lanes;
mod masks;
mod partitions;
mod routes;
mod turns;

pub use masks::{GroupBlock, groups};
pub use partitions::{PkeyWrite, pkeys, shrunk};
pub use routes::{BlockWrite, HeldRoutes, LINEAR_BLOCK, RouteStep, StepKind, route_steps};

/// Writes of one table in two phases. The second begins when the first is done everywhere: on all ports of all devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TwoPhases<W> {
    /// What is held and wanted both; nothing new.
    pub shrink: Vec<W>,
    /// What is wanted.
    pub grow: Vec<W>,
}

impl<W> TwoPhases<W> {
    /// Whether the table holds what is wanted already.
    pub fn is_empty(&self) -> bool {
        self.shrink.is_empty() && self.grow.is_empty()
    }
}

/// Compares one block with what is wanted, by way of what both have. A block that nobody has read may hold anything:
/// it becomes `empty` first.
fn two_phases<B: PartialEq + Clone>(
    held: Option<B>,
    common: impl Fn(&B) -> B,
    wanted: B,
    empty: B,
) -> (Option<B>, Option<B>) {
    let between = held.as_ref().map_or(empty, common);
    let shrink = (held.as_ref() != Some(&between)).then(|| between.clone());
    (shrink, (between != wanted).then_some(wanted))
}
