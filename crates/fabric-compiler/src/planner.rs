//! Plans a sequence of changes, each in a fraction of the time of a compilation.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use fabric_model::intent::ClusterIntent;
use fabric_model::plan::Basis;
use fabric_model::{Decisions, FabricPlan, Intents, Topology};

use crate::CompileError;
use crate::compiled::Compiled;
use crate::guarantees::{self, ClusterChanges, Guarantees, guaranteed};
use crate::list_diff::ChangedRange;
use crate::recompile::{put_findings, put_keys, put_partition};
use crate::{aliases, multicast, partitions, route_overrides};

/// Plans one fabric for a sequence of intents.
///
/// # Contract
///
/// - [`new`](Self::new) compiles the first plan, or [`resume`](Self::resume) continues from an earlier one. Then call
///   [`change`](Self::change) with the complete intents of each step. [`plan`](Self::plan) and [`intents`](Self::intents)
///   are always those of the last successful call.
/// - `change` gives exactly the plan that [`recompile`](crate::recompile()) gives for the same intents and previous plan.
/// - Atomic: a failed `change` leaves the planner as it was, and the next one starts from the last good plan.
/// - Plans are immutable and shared by [`Arc`]; a new plan shares all unchanged tables with the previous one.
/// - The topology is fixed. For another topology create a new planner from the decisions of the last plan.
/// - Plans are not verified here, and nothing is programmed. A caller that rejects a plan afterwards resumes from the
///   previous one.
///
/// # Cost
///
/// The planner keeps the order of switches, the P_Keys of ports and the reservations on links. A change takes time in
/// proportion to the partitions, ports and clusters that differ, plus a comparison of the intents from both ends. If the
/// manager's port, the capabilities or the order of partitions that stay are different, or cluster names are not unique,
/// everything but LIDs and routes is computed again.
///
/// ```
/// use std::sync::Arc;
/// use fabric_compiler::{Planner, partitions_conf, recompile};
/// use fabric_model::{Decisions, Intents, generate::FatTree};
///
/// let tree = Arc::new(FatTree { radix: 8, ..FatTree::with_hosts(16) }.generate()?);
/// let (_, host) = tree.end_nodes().next().expect("the tree has hosts");
/// let (_, port) = host.ports().next().expect("hosts have ports");
/// let mut intents = Intents::new(port.guid);
/// let mut planner = Planner::new(Arc::clone(&tree), intents.clone(), &Decisions::default())?;
///
/// let before = Arc::clone(planner.plan());
/// intents.partitions = partitions_conf::parse("blue=0x101, ipoib : ALL_CAS=full;")?;
/// let after = planner.change(&intents)?;
/// assert_eq!(**after, recompile(&tree, &intents, &before)?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Planner {
    topology: Arc<Topology>,
    basis: Basis,
    intents: Intents,
    /// Whether the names of guaranteed clusters are unique. If not, nothing is reused.
    has_unique_names: bool,
    /// The result for `intents`.
    compiled: Compiled,
}

impl Planner {
    /// Compiles the first plan, as [`compile`](crate::compile()) does.
    pub fn new(
        topology: Arc<Topology>,
        intents: Intents,
        previous: &Decisions,
    ) -> Result<Self, CompileError> {
        let compiled = Compiled::from_decisions(&topology, &intents, previous)?;
        let basis = compiled.plan.basis().unwrap_or_else(|| Basis::of(&topology, &intents));
        Ok(Self { topology, basis, has_unique_names: has_unique_names(&intents), intents, compiled })
    }

    /// Continues from a plan; the first plan is that of [`recompile`](crate::recompile()).
    pub fn resume(
        topology: Arc<Topology>,
        intents: Intents,
        plan: &FabricPlan,
    ) -> Result<Self, CompileError> {
        let basis = Basis::of(&topology, &intents);
        let compiled = Compiled::from_plan(basis, &topology, &intents, plan)?;
        Ok(Self { topology, basis, has_unique_names: has_unique_names(&intents), intents, compiled })
    }

    /// The plan for [`Self::intents`].
    pub fn plan(&self) -> &Arc<FabricPlan> {
        &self.compiled.plan
    }

    pub fn intents(&self) -> &Intents {
        &self.intents
    }

    pub fn topology(&self) -> &Arc<Topology> {
        &self.topology
    }

    /// The basis of the plan, for [`recompile_on`](crate::recompile_on()).
    pub fn basis(&self) -> Basis {
        self.basis
    }

    /// Plans for other intents. On error everything stays as it was.
    pub fn change(&mut self, intents: &Intents) -> Result<&Arc<FabricPlan>, CompileError> {
        partitions::check(intents)?;
        if !self.patch(intents)? {
            self.start_over(intents)?;
        }
        Ok(&self.compiled.plan)
    }

    /// Computes everything but LIDs and routes again.
    fn start_over(&mut self, intents: &Intents) -> Result<(), CompileError> {
        let basis = match is_same_fabric(&self.intents, intents) {
            true => self.basis,
            false => Basis::of(&self.topology, intents),
        };
        self.compiled = Compiled::from_plan(basis, &self.topology, intents, &self.compiled.plan)?;
        (self.basis, self.has_unique_names) = (basis, has_unique_names(intents));
        self.intents = intents.clone();
        Ok(())
    }

    /// Computes what differs; false, and nothing is changed, if that is not possible.
    fn patch(&mut self, intents: &Intents) -> Result<bool, CompileError> {
        let Compiled { plan, fabric, context, partitions, keys, guarantees } = &mut self.compiled;
        let is_possible = self.has_unique_names
            && is_same_fabric(&self.intents, intents)
            && self.intents.hardware == intents.hardware;
        let Some(context) = context.as_ref().filter(|_| is_possible) else { return Ok(false) };
        let current = &self.intents;
        let changed_ranges = (
            ChangedRange::of(&current.partitions, &intents.partitions),
            ChangedRange::of(&current.clusters, &intents.clusters),
        );
        let clusters = match guarantees {
            Some(guarantees) => cluster_changes(current, intents, &changed_ranges.1, guarantees),
            None => has_unique_names(intents).then(ClusterChanges::default),
        };
        let Some(clusters) = clusters else { return Ok(false) };

        let changes = partitions.compare(fabric, (current, intents), &changed_ranges.0, plan.decisions())?;
        let Some(changes) = changes else { return Ok(false) };
        let key_changes = keys.change(fabric, partitions, &changes, &intents.capabilities)?;
        let changed = changes.partitions.iter().map(|(number, partition)| (*number, partition.as_ref()));
        let groups = multicast::patch(
            fabric,
            (&context.order, &context.core_tree),
            &changed.collect(),
            &intents.capabilities,
            plan,
        )?;
        let Some(groups) = groups else { return Ok(false) };

        if current.aliases != intents.aliases {
            aliases::check(plan, &intents.aliases)?;
        }
        let mut draft = plan.draft();
        route_overrides::withdraw(&mut draft, fabric);
        if let Some(guarantees) = guarantees {
            guarantees.withdraw_classes(&mut draft);
        }
        draft.decisions().partitions = changes.numbers.clone();
        put_findings(&mut draft, keys.findings_after(&key_changes));
        for (end_index, table) in &key_changes.tables {
            put_keys(&mut draft, fabric, *end_index, table);
        }
        groups.put(&mut draft);
        for (number, partition) in &changes.partitions {
            match partition {
                Some(partition) => put_partition(&mut draft, partition),
                None => draft.remove_partition(*number),
            }
        }
        match guarantees {
            Some(guarantees) => guarantees.change(&mut draft, fabric, Some(context), &clusters)?,
            None => {
                *guarantees =
                    guarantees::establish(&mut draft, &self.topology, fabric, Some(context), intents)?
            }
        }
        guarantees::apply_classes(&mut draft, guarantees.as_mut(), &intents.class_weights);
        route_overrides::apply(&mut draft, fabric, &intents.route_overrides);
        if current.aliases != intents.aliases {
            aliases::apply(&mut draft, intents);
        }
        partitions.apply(changes);
        keys.apply(key_changes);
        *plan = Arc::new(draft.finish());
        changed_ranges.0.put(&mut self.intents.partitions, &intents.partitions);
        changed_ranges.1.put(&mut self.intents.clusters, &intents.clusters);
        self.intents.owners.clone_from(&intents.owners);
        self.intents.handed_over.clone_from(&intents.handed_over);
        self.intents.route_overrides.clone_from(&intents.route_overrides);
        self.intents.aliases.clone_from(&intents.aliases);
        self.intents.class_weights.clone_from(&intents.class_weights);
        Ok(true)
    }
}

/// Whether LIDs and routes stay the same.
fn is_same_fabric(before: &Intents, after: &Intents) -> bool {
    before.manager == after.manager
        && before.standby_managers == after.standby_managers
        && before.unenforced_ports == after.unenforced_ports
        && before.capabilities == after.capabilities
}

/// Whether the names of guaranteed clusters are unique.
fn has_unique_names(intents: &Intents) -> bool {
    let mut names = HashSet::with_capacity(intents.clusters.len());
    guaranteed(&intents.clusters).all(|cluster| names.insert(cluster.name.as_str()))
}

/// The clusters that differ or have to be reconsidered; `None` if a name is not unique.
fn cluster_changes<'a>(
    before: &'a Intents,
    after: &'a Intents,
    range: &ChangedRange,
    guarantees: &Guarantees,
) -> Option<ClusterChanges<'a>> {
    let (old, new) = match guarantees.are_settled() {
        true => (&before.clusters[range.old.clone()], &after.clusters[range.new.clone()]),
        false => (&before.clusters[..], &after.clusters[..]),
    };
    let mut left: HashMap<&str, &ClusterIntent> =
        guaranteed(old).map(|cluster| (cluster.name.as_str(), cluster)).collect();
    let mut names = HashSet::with_capacity(new.len());
    let mut wanted = Vec::new();
    for cluster in guaranteed(new) {
        let same = left.remove(cluster.name.as_str());
        // A known name that is not in the changed range is in use outside of it.
        if !names.insert(cluster.name.as_str()) || same.is_none() && guarantees.knows(&cluster.name) {
            return None;
        }
        if same.is_none_or(|same| same != cluster) || guarantees.is_unsettled(&cluster.name) {
            wanted.push(cluster);
        }
    }
    let mut gone: Vec<&str> = left.into_keys().collect();
    gone.sort_unstable();
    Some(ClusterChanges { gone, wanted })
}
