//! Compiles and verifies plans of the fabric. No I/O.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fabric_compiler::{CompileError, Planner, check_partitions};
use fabric_model::intent::{Ipoib, Member, MemberSelector, PartitionIntent, PkeyPlacement};
use fabric_model::{Decisions, FabricPlan, Intents};
use fabric_verifier::{Finding, Verified, is_acknowledged, verify};
use ib_wire::{Guid, PartitionNumber};
use thiserror::Error;

use crate::network::{DiscoveredFabric, FabricIntent};

/// Most findings in one answer.
const FINDINGS_MAX: usize = 1000;

/// The current plan of the fabric, and the plans that may follow it.
///
/// # Contract
///
/// - [`propose`](Self::propose) compiles and verifies the plan that would follow the current one. It changes nothing of
///   the current state: which plans were proposed before, and whether those were committed, has no influence on the result.
/// - [`commit`](Self::commit) makes a candidate the current plan, from which later ones are compiled. A candidate that is
///   dropped instead leaves no trace.
/// - A trial (is an overlay possible, can a cluster be admitted) only proposes. The loop that programs the fabric
///   commits, after the decisions of the plan are in the store and before the plan is sent.
/// - A candidate follows one current plan. Once another candidate was committed, it is stale and is rejected.
/// - There is no current plan before the first commit: the first candidate follows the decisions of the store.
///
/// # Cost
///
/// The compiler's intermediate results of the last candidate are kept, and so is that candidate itself. A trial that is
/// programmed unchanged is therefore compiled once, and a sequence of commits costs what differs between two plans. Only a
/// candidate after a trial that was dropped is compiled from the current plan without intermediate results.
#[derive(Debug)]
pub struct Planning {
    /// Locked for moments only.
    current: Mutex<Current>,
    /// Locked while a candidate is compiled and verified.
    cache: Mutex<Cache>,
}

/// The state that candidates follow.
#[derive(Clone, Debug)]
struct Current {
    /// Number of commits so far.
    revision: u64,
    basis: PlanBasis,
}

/// What the next plan is compiled from.
#[derive(Clone, Debug)]
enum PlanBasis {
    /// No plan was committed yet.
    Decisions(Arc<Decisions>),
    Plan(Arc<VerifiedPlan>),
}

/// A plan that keeps every rule of the verifier, and what it was compiled for.
#[derive(Debug)]
struct VerifiedPlan {
    discovered: Arc<DiscoveredFabric>,
    intents: Intents,
    verified: Verified,
}

/// Saves work only; results do not depend on it.
#[derive(Debug, Default)]
struct Cache {
    /// The compiler with its intermediate results for `planner.plan()`, whichever that is.
    planner: Option<Planner>,
    /// The last candidate, committed or not.
    candidate: Option<PlanCandidate>,
}

/// A verified plan that follows the current one. See [`Planning`].
#[derive(Clone, Debug)]
pub struct PlanCandidate {
    /// The revision that it follows.
    follows: u64,
    next: Arc<VerifiedPlan>,
}

impl PlanCandidate {
    /// The plan, not current yet.
    pub fn plan(&self) -> &Arc<FabricPlan> {
        self.next.verified.plan()
    }
}

/// Why there is no plan for an intent.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PlanningError {
    /// The compiler found none.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// The verifier rejected the compiled plan; it is not sent.
    #[error("the plan fails verification and is not sent: {first} ({count} findings)")]
    Unsound { first: Box<Finding>, count: usize },
    /// A defect of the compiler or the verifier.
    #[error("the compiler panicked")]
    Panicked,
}

/// Another candidate was committed since this one was proposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("another plan was committed since this one was proposed")]
pub struct StaleCandidate;

impl Planning {
    /// Without a current plan; the first one keeps `decisions`.
    pub fn new(decisions: Arc<Decisions>) -> Self {
        let current = Current { revision: 0, basis: PlanBasis::Decisions(decisions) };
        Self { current: Mutex::new(current), cache: Mutex::default() }
    }

    /// The verified plan for an intent, as a candidate to follow the current plan. Compiles on a blocking thread.
    pub async fn propose(
        self: &Arc<Self>,
        discovered: Arc<DiscoveredFabric>,
        intent: Arc<FabricIntent>,
    ) -> Result<PlanCandidate, PlanningError> {
        let planning = Arc::clone(self);
        let compiled = tokio::task::spawn_blocking(move || planning.propose_blocking(&discovered, &intent));
        match compiled.await {
            Ok(candidate) => candidate,
            Err(error) => {
                tracing::error!("cannot compile a plan: {error}");
                Err(PlanningError::Panicked)
            }
        }
    }

    /// Makes a candidate the current plan.
    pub fn commit(&self, candidate: PlanCandidate) -> Result<(), StaleCandidate> {
        let mut current = lock(&self.current);
        if current.revision != candidate.follows {
            return Err(StaleCandidate);
        }
        *current = Current { revision: current.revision + 1, basis: PlanBasis::Plan(candidate.next) };
        Ok(())
    }

    fn propose_blocking(
        &self,
        discovered: &Arc<DiscoveredFabric>,
        intent: &FabricIntent,
    ) -> Result<PlanCandidate, PlanningError> {
        let mut cache = lock(&self.cache);
        let Current { revision, basis } = lock(&self.current).clone();
        let intents = intents(discovered, intent);
        let is_same = |known: &&PlanCandidate| {
            let is_same_fabric = Arc::ptr_eq(&known.next.discovered, discovered);
            known.follows == revision && is_same_fabric && known.next.intents == intents
        };
        if let Some(known) = cache.candidate.as_ref().filter(is_same) {
            return Ok(known.clone());
        }
        let verified = match basis {
            PlanBasis::Decisions(decisions) => {
                let topology = Arc::clone(&discovered.topology);
                let planner = cache.planner.insert(Planner::new(topology, intents.clone(), &decisions)?);
                Verified::of(&discovered.topology, &intents, Arc::clone(planner.plan()))
            }
            PlanBasis::Plan(current) => {
                let planner = compile_next(&mut cache.planner, &current, discovered, &intents)?;
                let (plan, topology) = (Arc::clone(planner.plan()), &discovered.topology);
                current.verified.delta_with_basis(planner.basis(), topology, &intents, plan)
            }
        };
        check_sound(&verified)?;
        let next = VerifiedPlan { discovered: Arc::clone(discovered), intents, verified };
        let candidate = PlanCandidate { follows: revision, next: Arc::new(next) };
        cache.candidate = Some(candidate.clone());
        Ok(candidate)
    }
}

/// A compiler with the plan that follows `current`. The kept one is changed if it is at the current plan; otherwise one is
/// resumed there, which gives the same plan.
fn compile_next<'a>(
    kept: &'a mut Option<Planner>,
    current: &VerifiedPlan,
    discovered: &DiscoveredFabric,
    intents: &Intents,
) -> Result<&'a Planner, CompileError> {
    let is_current = |planner: &Planner| {
        let is_same_topology = Arc::ptr_eq(planner.topology(), &discovered.topology);
        is_same_topology && Arc::ptr_eq(planner.plan(), current.verified.plan())
    };
    match kept.take().filter(is_current) {
        Some(mut planner) => {
            let changed = planner.change(intents).map(drop);
            // A failed change leaves the planner at the current plan.
            let planner = kept.insert(planner);
            changed.map(|()| &*planner)
        }
        None => {
            let topology = Arc::clone(&discovered.topology);
            Ok(kept.insert(Planner::resume(topology, intents.clone(), current.verified.plan())?))
        }
    }
}

/// Violations of an intent by tables that were read back, at most [`FINDINGS_MAX`].
pub fn check_tables(discovered: &DiscoveredFabric, intent: &FabricIntent, held: &FabricPlan) -> Vec<String> {
    let findings = verify(&discovered.topology, &intents(discovered, intent), held);
    let findings = findings.iter().filter(|finding| !is_acknowledged(finding, held));
    findings.take(FINDINGS_MAX).map(ToString::to_string).collect()
}

/// Fails on any finding that the plan itself does not declare.
fn check_sound(verified: &Verified) -> Result<(), PlanningError> {
    let mut unexpected = verified.findings().filter(|finding| !is_acknowledged(finding, verified.plan()));
    match unexpected.next() {
        None => Ok(()),
        Some(first) => {
            Err(PlanningError::Unsound { first: Box::new(first.clone()), count: 1 + unexpected.count() })
        }
    }
}

/// Checks an intent as far as that is possible before the fabric is discovered.
pub fn check_undiscovered(intent: &FabricIntent) -> Result<(), PlanningError> {
    // The port of the manager is not known yet, and none has this GUID.
    let nobody = Guid::from_wire(u64::MAX).expect("only 0 is no GUID");
    Ok(check_partitions(&wanted(Intents::new(nobody), intent))?)
}

fn intents(discovered: &DiscoveredFabric, intent: &FabricIntent) -> Intents {
    wanted(discovered.intents.clone(), intent)
}

fn wanted(mut intents: Intents, intent: &FabricIntent) -> Intents {
    intents.partitions = [intent.site.partitions.clone(), partitions(intent)].concat();
    intents.handed_over.clone_from(&intent.site.handed_over);
    intents.owners.clone_from(&intent.owners);
    intents.clusters.clone_from(&intent.guaranteed);
    intents.route_overrides.clone_from(&intent.routes);
    intents.class_weights.clone_from(&intent.classes);
    intents.aliases.clone_from(&intent.aliases);
    intents
}

/// The partitions of clusters. A cluster that has a port alone has its P_Key at index 0 there, which software uses by
/// default: adapters that are passed through have no table of their own for a guest.
fn partitions(intent: &FabricIntent) -> Vec<PartitionIntent> {
    let mut ports: BTreeMap<PartitionNumber, Vec<Member>> = BTreeMap::new();
    for ((partition, port), role) in &intent.members {
        let placement = if intent.own_partitions.contains(partition) {
            PkeyPlacement::FirstIfAlone
        } else {
            PkeyPlacement::Anywhere
        };
        let member = Member { selector: MemberSelector::Port(*port), role: *role, placement };
        ports.entry(*partition).or_default().push(member);
    }
    let intent = |(number, members): (PartitionNumber, Vec<Member>)| PartitionIntent {
        name: format!("cluster-{number}"),
        number: Some(number),
        members,
        ipoib: Some(Ipoib::default()),
    };
    ports.into_iter().map(intent).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
