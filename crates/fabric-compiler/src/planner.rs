//! Plans one change after the other, each in a small part of the time that a compilation takes.

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
use crate::{multicast, partitions, route_overrides};

/// A fabric and what is wanted of it, planned change by change.
///
/// It keeps what the plans of one fabric have in common: the switches in their order, who holds which keys, and the reservations
/// of all links. A change looks at partitions, ports and clusters that are not as they were; the rest of the plan is
/// shared with the plan before.
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
    /// Whether clusters can be told apart by their names. Otherwise everything is looked at every time.
    has_unique_names: bool,
    /// What came of the intents.
    compiled: Compiled,
}

impl Planner {
    /// Compiles.
    pub fn new(
        topology: Arc<Topology>,
        intents: Intents,
        previous: &Decisions,
    ) -> Result<Self, CompileError> {
        let compiled = Compiled::from_decisions(&topology, &intents, previous)?;
        let basis = compiled.plan.basis().unwrap_or_else(|| Basis::of(&topology, &intents));
        Ok(Self { topology, basis, has_unique_names: has_unique_names(&intents), intents, compiled })
    }

    /// Goes on from a plan; what [`recompile`](crate::recompile()) makes of it is the first.
    pub fn resume(
        topology: Arc<Topology>,
        intents: Intents,
        plan: &FabricPlan,
    ) -> Result<Self, CompileError> {
        let basis = Basis::of(&topology, &intents);
        let compiled = Compiled::from_plan(basis, &topology, &intents, plan)?;
        Ok(Self { topology, basis, has_unique_names: has_unique_names(&intents), intents, compiled })
    }

    /// The plan for what is wanted.
    pub fn plan(&self) -> &Arc<FabricPlan> {
        &self.compiled.plan
    }

    /// What is wanted.
    pub fn intents(&self) -> &Intents {
        &self.intents
    }

    /// The fabric.
    pub fn topology(&self) -> &Arc<Topology> {
        &self.topology
    }

    /// What the plan stands on.
    pub fn basis(&self) -> Basis {
        self.basis
    }

    /// Plans for other wishes: gives what [`recompile`](crate::recompile()) makes of them and the plan. If they cannot be,
    /// everything stays as it was.
    pub fn change(&mut self, intents: &Intents) -> Result<&Arc<FabricPlan>, CompileError> {
        partitions::check_owners(intents)?;
        if !self.patch(intents)? {
            self.start_over(intents)?;
        }
        Ok(&self.compiled.plan)
    }

    /// Looks at everything.
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

    /// Looks at what is not as it was; false, and nothing is changed, if that is not enough.
    fn patch(&mut self, intents: &Intents) -> Result<bool, CompileError> {
        let Compiled { plan, fabric, context, partitions, keys, guarantees } = &mut self.compiled;
        let is_possible = self.has_unique_names && is_same_fabric(&self.intents, intents);
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

        let mut draft = plan.draft();
        route_overrides::withdraw(&mut draft, fabric);
        if let Some(guarantees) = guarantees {
            guarantees.withdraw_classes(&mut draft);
        }
        draft.decisions().partitions = changes.numbers.clone();
        put_findings(&mut draft, keys.findings_after(&key_changes));
        for (place, table) in &key_changes.tables {
            put_keys(&mut draft, fabric, *place, table);
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
        guarantees::apply_classes(&mut draft, guarantees.as_mut(), &intents.classes);
        route_overrides::apply(&mut draft, fabric, &intents.routes);
        partitions.apply(changes);
        keys.apply(key_changes);
        *plan = Arc::new(draft.finish());
        changed_ranges.0.put(&mut self.intents.partitions, &intents.partitions);
        changed_ranges.1.put(&mut self.intents.clusters, &intents.clusters);
        self.intents.routes.clone_from(&intents.routes);
        self.intents.classes.clone_from(&intents.classes);
        Ok(true)
    }
}

/// Whether LIDs and routes stay.
fn is_same_fabric(before: &Intents, after: &Intents) -> bool {
    before.manager == after.manager && before.capabilities == after.capabilities
}

/// Whether clusters can be told apart by their names.
fn has_unique_names(intents: &Intents) -> bool {
    let mut names = HashSet::with_capacity(intents.clusters.len());
    guaranteed(&intents.clusters).all(|cluster| names.insert(cluster.name.as_str()))
}

/// What is not as it was, and what has to be looked at every time; `None` if a name is there twice.
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
        // A name that is known and not left stands elsewhere.
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
