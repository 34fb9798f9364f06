//! Proves that a plan keeps its promises: reads every table of a [`FabricPlan`] on the cables of a [`Topology`] and tells
//! what is not as the [`Intents`] ask.
//!
//! [`verify`] is a function and nothing else: no clock, no dice, no file. It shares no code with the compiler, so that
//! both would have to be wrong in the same way. Every [`Finding`] names the entry that shows it, and belongs to a
//! [`Rule`], which names the beliefs about hardware it stands on. [`Verified`] remembers what was found, so that the next
//! plan for the same fabric costs what it changes.
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
mod bits;
mod bounded;
mod capacities;
mod credit_loops;
mod finding;
mod forwarding;
mod guarantees;
mod intended;
mod isolation;
mod multicast;
mod network;
mod partition_owners;
mod rule;
mod sharing;
mod verified;

use std::cell::OnceCell;

use fabric_model::plan::Finding as PlanFinding;
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

/// Everything that a plan does not keep, rule by rule; of each part that a rule looks at the first findings, and how many more
/// there are. A plan without findings may be sent.
pub fn verify(topology: &Topology, intents: &Intents, plan: &FabricPlan) -> Vec<Finding> {
    let read = Reading::new(topology, intents, plan);
    Rule::ALL.into_iter().flat_map(|rule| read.check(rule)).collect()
}

/// Whether a plan says of itself what was found in it, because it cannot be made good: that switches' own ports do not all
/// reach each other.
pub fn is_acknowledged(finding: &Finding, plan: &FabricPlan) -> bool {
    let says = |kind: fn(&PlanFinding) -> bool| plan.findings().iter().any(kind);
    let is_switch = |guid| plan.switches().any(|switch| switch.port_guid == guid);
    match finding {
        Finding::NotForwarded { lid, from, .. } => {
            says(|known| matches!(known, PlanFinding::NoRoute { .. }))
                && (is_switch(*from) || plan.lid_owner(*lid).is_some_and(is_switch))
        }
        _ => false,
    }
}

/// What one rule finds.
pub fn verify_rule(rule: Rule, topology: &Topology, intents: &Intents, plan: &FabricPlan) -> Vec<Finding> {
    Reading::new(topology, intents, plan).check(rule)
}

/// What all rules read.
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

    /// What was found about guarantees, which several rules look at.
    fn guarantees(&self) -> &Guarantees {
        self.guarantees.get_or_init(|| Guarantees::of(self))
    }

    fn check(&self, rule: Rule) -> Vec<Finding> {
        match rule {
            Rule::Addresses => addresses::check(self),
            Rule::Forwarding => {
                forwarding::check(self, forwarding::lids(self)).into_values().flatten().collect()
            }
            Rule::CreditLoops => credit_loops::check(&self.network),
            Rule::Isolation => Keys::of(self).findings(self),
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
