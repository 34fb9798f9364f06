//! The safe order of writes from the tables that devices hold to those of a plan.
//!
//! These are pure functions: they take the tables as last read and the plan, and return the writes of each
//! step. Within a step, writes may be done in any order and repeated. A step starts when every write of the
//! one before was confirmed. The functions know no earlier plan and keep no progress: a manager that was
//! killed, or that got another plan, reads the tables and computes the steps again.
//!
//! | function | order | invariant after every single write |
//! |---|---|---|
//! | [`pkeys`], [`groups`] | shrink everywhere, then grow | at first only what was allowed before, then only what the plan allows |
//! | [`lanes`] | discard service levels that lose their lane, then weights, then maps | no lane without weight is used |
//! | [`lanes::weights`] | the first block of each table, then the second | the table of the old plan or of the new one |
//! | [`route_steps`] | withdraw, move by distance, restore, raise tops | no new forwarding loop, no new credit loop |
//!
//! All together: P_Keys, groups and SLtoVL maps shrink; enforcement is switched on; weights; SLtoVL maps
//! grow; routes in their steps; groups grow; P_Keys grow; enforcement is switched off where the plan has
//! none; only then ports become active. The LID of a port changes while nobody can communicate with it: after
//! its P_Keys shrank, or while it is not active.

pub mod lanes;
mod masks;
mod partitions;
mod routes;
mod turns;

pub use masks::{GroupBlock, groups};
pub use partitions::{PkeyWrite, pkeys, shrunk};
pub use routes::{BlockWrite, HeldRoutes, LINEAR_BLOCK, RouteStep, StepKind, route_steps};

/// The writes of a table in two phases. The second starts when the first is complete on all ports of all
/// devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TwoPhases<W> {
    /// The intersection of held and wanted.
    pub shrink: Vec<W>,
    pub grow: Vec<W>,
}

impl<W> TwoPhases<W> {
    /// Whether the table already has the wanted content.
    pub fn is_empty(&self) -> bool {
        self.shrink.is_empty() && self.grow.is_empty()
    }
}

/// Splits the change of a block into two writes by way of the common part. A block that was not read may
/// contain anything: it becomes `empty` first.
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
