//! Verifies a [`FabricPlan`] against a [`Topology`] and the [`Intents`], and reports every violation with a witness.
//!
//! [`verify`] is a pure function: no clock, no randomness, no I/O. It shares no code with the compiler, so that an
//! error has to be made twice, in the same way, to stay undetected. Every [`Finding`] names the table entry or path
//! that shows it and belongs to a [`Rule`], which lists the assumptions about hardware that it relies on.
//! [`Verified`] keeps the results of one plan, so that the next plan for the same fabric costs only what it changes.
//!
//! ```
//! use fabric_compiler::compile;
//! use fabric_model::{Decisions, Intents, generate::FatTree};
//! use fabric_verifier::verify;
//!
//! let tree = FatTree { radix: 8, ..FatTree::with_hosts(16) }.generate()?;
//! let (_, host) = tree.end_nodes().next().expect("the tree has hosts");
//! let (_, port) = host.ports().next().expect("hosts have ports");
//! let intents = Intents::new(port.guid);
//! let plan = compile(&tree, &intents, &Decisions::default())?;
//! assert_eq!(verify(&tree, &intents, &plan), []);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod addresses;
mod aliases;
mod bits;
mod bounded;
mod capacities;
mod credit_loops;
mod finding;
mod forwarding;
pub mod graph;
mod guarantees;
mod handed_over;
mod intended;
mod isolation;
mod multicast;
mod network;
mod partition_owners;
mod plan_changes;
mod rule;
mod sharing;
mod verified;

use std::cell::OnceCell;

use fabric_model::plan::PlanFinding;
use fabric_model::{FabricPlan, Intents, Topology};

pub use bounded::{PART_FINDINGS_MAX, WHOLE_FINDINGS_MAX};
pub use finding::{Finding, LaneWait, LinkWait, PacketDestination, PkeyTableKind, SwitchExit, TableKind};
pub use rule::Rule;
pub use verified::Verified;

use capacities::Capacities;
use guarantees::Guarantees;
use intended::Intended;
use isolation::Keys;
use network::PlannedNetwork;

/// Verifies a plan by all rules and returns the findings in the order of [`Rule::ALL`].
///
/// A plan without findings may be programmed. For each part that a rule examines (a LID, port, switch, group or
/// cluster) at most [`PART_FINDINGS_MAX`] findings are kept, followed by one [`Finding::Omitted`].
pub fn verify(topology: &Topology, intents: &Intents, plan: &FabricPlan) -> Vec<Finding> {
    let read = Reading::new(topology, intents, plan);
    Rule::ALL.into_iter().flat_map(|rule| read.check(rule)).collect()
}

/// Whether the plan itself acknowledges a finding, because the topology allows no better plan.
///
/// This holds for switches' own ports that do not reach each other (or are not reached) when the plan reports
/// `NoRoute`. Callers drop acknowledged findings before they decide whether to program a plan.
pub fn is_acknowledged(finding: &Finding, plan: &FabricPlan) -> bool {
    let reports = |kind: fn(&PlanFinding) -> bool| plan.findings().iter().any(kind);
    let is_switch = |guid| plan.switches().any(|switch| switch.port_guid == guid);
    match finding {
        Finding::NotForwarded { lid, from, .. } => {
            reports(|known| matches!(known, PlanFinding::NoRoute { .. }))
                && (is_switch(*from) || plan.lid_owner(*lid).is_some_and(is_switch))
        }
        _ => false,
    }
}

/// Verifies a plan by one rule; the concatenation over [`Rule::ALL`] equals [`verify`].
pub fn verify_rule(rule: Rule, topology: &Topology, intents: &Intents, plan: &FabricPlan) -> Vec<Finding> {
    Reading::new(topology, intents, plan).check(rule)
}

/// What all rules read: the intents, the plan on its cables, and what the intents require of it.
#[derive(Debug)]
pub(crate) struct Reading<'a> {
    intents: &'a Intents,
    network: PlannedNetwork<'a>,
    intended: Intended,
    guarantees: OnceCell<Guarantees>,
}

impl<'a> Reading<'a> {
    fn new(topology: &'a Topology, intents: &'a Intents, plan: &'a FabricPlan) -> Self {
        let network = PlannedNetwork::new(topology, plan);
        let intended = Intended::new(topology, intents, plan);
        Self { intents, network, intended, guarantees: OnceCell::new() }
    }

    /// The results of the guarantee checks, computed on first use because several rules need them.
    fn guarantees(&self) -> &Guarantees {
        self.guarantees.get_or_init(|| Guarantees::of(self))
    }

    fn check(&self, rule: Rule) -> Vec<Finding> {
        match rule {
            Rule::Addresses => {
                [addresses::check(self), aliases::check(self.intents, self.network.plan)].concat()
            }
            Rule::Forwarding => {
                forwarding::check(self, forwarding::lids(self)).into_values().flatten().collect()
            }
            Rule::CreditLoops => credit_loops::check(&self.network),
            Rule::Isolation => Keys::of(self).findings(self),
            Rule::HandedOver => handed_over::check(self),
            Rule::Multicast => {
                let trees = multicast::check(self, &multicast::mlids(self)).into_values().flatten();
                multicast::check_groups(self, |_| false).into_iter().chain(trees).collect()
            }
            Rule::Capacities => Capacities::of(self).findings().cloned().collect(),
            Rule::Sharing => sharing::check(self),
            Rule::Ownership => {
                let numbers = partition_owners::check(self.intents);
                numbers.into_iter().chain(self.guarantees().ownership().cloned()).collect()
            }
            Rule::Guarantees => self.guarantees().violations().cloned().collect(),
        }
    }
}
