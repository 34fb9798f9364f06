//! Traffic classes of tenants, inside what their clusters were granted.
//!
//! A tenant may divide the grant of its cluster by weights. Classes are applied last and withdrawn first: guarantees are
//! decided without them. The first class keeps the service level and lanes of the cluster. Each further class takes a
//! service level that is free on all links of the cluster, and a lane that is free on each, and the arbitration weight of
//! the cluster is divided among them (see [`division`]). Other clusters lose nothing: the capacity of a table was computed
//! with one packet of the largest size per round for each unused lane, and that is all that a class adds.

mod division;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fabric_model::SharedMap;
use fabric_model::decisions::{ClassDivision, DividedLink};
use fabric_model::intent::ClassWeights;
use fabric_model::plan::{Draft, PlanFinding};
use fabric_model::tenancy::{Class, ClusterNumber};
use ib_wire::{ServiceLevel, VirtualLane, VlArbEntry};
use thiserror::Error;

use super::Guarantees;
use super::sharing::positions;
use crate::tenancy::admission::{Grant, LinkShare};
use crate::tenancy::link_graph::LinkIndex;
use division::{ClusterEntries, Division};

/// Classes of the previous plan, by cluster name.
type Before = SharedMap<String, Arc<ClassDivision>>;

/// Divides the grants of clusters by the weights of their tenants, in a plan without classes. A cluster that cannot be
/// divided stays whole, and the reason becomes a finding of the plan.
pub(crate) fn apply_classes(draft: &mut Draft, guarantees: Option<&mut Guarantees>, weights: &ClassWeights) {
    let before = std::mem::take(&mut draft.decisions().classes);
    let rejected = match guarantees {
        Some(guarantees) => guarantees.apply_classes(draft, &before, weights),
        None => weights.keys().map(|cluster| (cluster.clone(), ClassesError::NoGuarantee)).collect(),
    };
    let findings = rejected
        .into_iter()
        .map(|(cluster, error)| PlanFinding::ClassWeightsRejected { cluster, reason: error.to_string() });
    draft.findings().extend(findings);
}

/// Why the grant of a cluster is not divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
enum ClassesError {
    #[error("the cluster has no guarantee")]
    NoGuarantee,
    #[error(
        "the cluster uses a service level for every pair of switches, which cannot be divided into classes"
    )]
    ServiceLevelPerPair,
    /// Without the link: which one is short depends on the order in which clusters chose.
    #[error("too few service levels or lanes are left on its links")]
    NoServiceLevelOrLane,
    #[error("its entries cannot be divided in these proportions in the arbitration tables of all its links")]
    Indivisible,
}

/// Service levels and lanes of the further classes of a cluster.
#[derive(Debug)]
struct ChosenClasses {
    number: ClusterNumber,
    service_levels: Vec<ServiceLevel>,
    /// By link of the cluster, in the order of its grant.
    lanes: Vec<Vec<VirtualLane>>,
    /// Whether the cluster has a latency guarantee, which the first class keeps.
    has_latency: bool,
}

impl Guarantees {
    /// Withdraws all classes from the tables of a plan. Its decisions keep them until [`apply_classes`], so that classes
    /// that stay get the same service levels and lanes again.
    pub fn withdraw_classes(&mut self, draft: &mut Draft) {
        self.users.unite();
        let names = draft.plan().decisions().classes.keys();
        let grants = names.filter_map(|name| self.admission.grants().get(self.numbers.get(name)?));
        let links: BTreeSet<LinkIndex> =
            grants.flat_map(|grant| grant.links.iter().map(|share| share.link)).collect();
        self.users.put(draft, &links.into_iter().collect::<Vec<_>>());
    }

    /// Returns the clusters that are not divided, by name.
    fn apply_classes(
        &mut self,
        draft: &mut Draft,
        before: &Before,
        wanted: &ClassWeights,
    ) -> BTreeMap<String, ClassesError> {
        let mut chosen = BTreeMap::new();
        let mut rejected = BTreeMap::new();
        // Clusters that had classes keep their service levels and lanes before others choose.
        let (had, new): (Vec<_>, Vec<_>) = wanted.iter().partition(|(name, _)| before.contains_key(*name));
        for (name, weights) in had.into_iter().chain(new) {
            match self.choose(draft, name, weights, before.get(name).map(|had| &**had)) {
                Ok(classes) => drop(chosen.insert(name, classes)),
                Err(error) => drop(rejected.insert(name.clone(), error)),
            }
        }
        // The division of entries does not depend on the order of clusters.
        for (name, classes) in chosen {
            match self.divide(draft, &classes, &wanted[name]) {
                Ok(decision) => drop(draft.decisions().classes.insert(name.clone(), Arc::new(decision))),
                Err(error) => drop(rejected.insert(name.clone(), error)),
            }
        }
        rejected
    }

    /// Takes service levels and lanes for the further classes of a cluster.
    fn choose(
        &mut self,
        draft: &Draft,
        name: &str,
        weights: &[u32],
        had: Option<&ClassDivision>,
    ) -> Result<ChosenClasses, ClassesError> {
        let number = *self.numbers.get(name).ok_or(ClassesError::NoGuarantee)?;
        let grant = self.admission.grants().get(&number).ok_or(ClassesError::NoGuarantee)?;
        let decided = draft.plan().decisions().clusters.get(name).ok_or(ClassesError::NoGuarantee)?;
        if decided.service_level().is_none() {
            return Err(ClassesError::ServiceLevelPerPair);
        }
        let further = weights.len().saturating_sub(1);
        let service_levels = self.class_service_levels(grant, further, had);
        let service_levels = service_levels.ok_or(ClassesError::NoServiceLevelOrLane)?;
        let mut lanes = Vec::with_capacity(grant.links.len());
        for share in &grant.links {
            let port = self.admission.graph().links()[share.link.index()].from;
            let had = had.and_then(|had| had.links.iter().find(|link| link.port == port));
            let free = self.class_lanes(share.link, further, had);
            lanes.push(free.ok_or(ClassesError::NoServiceLevelOrLane)?);
        }
        for (share, lanes) in grant.links.iter().zip(&lanes) {
            let classes = lanes.iter().copied().zip(service_levels.iter().copied());
            self.users.add_classes(share.link, number, classes);
        }
        let has_latency = matches!(decided.class, Class::Guaranteed { latency_ns: Some(_), .. });
        Ok(ChosenClasses { number, service_levels, lanes, has_latency })
    }

    /// Divides the arbitration entries of a cluster. On error its service levels and lanes are given back.
    fn divide(
        &mut self,
        draft: &mut Draft,
        classes: &ChosenClasses,
        weights: &[u32],
    ) -> Result<ClassDivision, ClassesError> {
        let grant = self.admission.grants().get(&classes.number).ok_or(ClassesError::NoGuarantee)?;
        let divisions: Option<Vec<Division>> =
            grant.links.iter().map(|share| self.division(share, weights, classes.has_latency)).collect();
        let Some(divisions) = divisions else {
            for share in &grant.links {
                self.users.remove_classes(share.link, classes.number);
            }
            return Err(ClassesError::Indivisible);
        };
        let mut links = Vec::with_capacity(divisions.len());
        for ((share, division), lanes) in grant.links.iter().zip(divisions).zip(&classes.lanes) {
            let entry = |entry: &division::Entry| {
                let lane = entry.class.checked_sub(1).map_or(share.lane, |further| lanes[further]);
                (entry.position, VlArbEntry { lane, weight: entry.weight })
            };
            self.users.divide(share.link, division.entries.iter().map(entry));
            let port = self.admission.graph().links()[share.link.index()].from;
            links.push(DividedLink { port, lanes: lanes.clone(), weights: division.weights(weights.len()) });
        }
        let touched: Vec<LinkIndex> = grant.links.iter().map(|share| share.link).collect();
        self.users.put(draft, &touched);
        Ok(ClassDivision { service_levels: classes.service_levels.clone(), links })
    }

    /// `count` service levels that are free on every link of a cluster: those it had, then the highest, because clusters
    /// take the lowest. `None` if there are too few.
    fn class_service_levels(
        &self,
        grant: &Grant,
        count: usize,
        had: Option<&ClassDivision>,
    ) -> Option<Vec<ServiceLevel>> {
        let all = self.admission.graph().limits().cluster_service_levels();
        let mut free = grant.links.iter().fold(all, |free, share| free - self.users.sls_taken(share.link));
        let had = had.map_or(&[][..], |had| &had.service_levels);
        let mut chosen = Vec::with_capacity(count);
        for class in 0..count {
            let kept = had.get(class).copied().filter(|sl| free.contains(*sl));
            let sl = kept.or_else(|| free.last())?;
            free.remove(sl);
            chosen.push(sl);
        }
        Some(chosen)
    }

    /// `count` lanes that are free on a link: those it had, then the highest. `None` if there are too few.
    fn class_lanes(
        &self,
        at: LinkIndex,
        count: usize,
        had: Option<&DividedLink>,
    ) -> Option<Vec<VirtualLane>> {
        let all = self.admission.graph().links()[at.index()].cluster_lanes();
        let mut free = all - self.users.lanes_taken(at);
        let mut chosen = Vec::with_capacity(count);
        for class in 0..count {
            let kept = had.and_then(|had| had.lanes.get(class)).copied();
            let lane = kept.filter(|lane| free.contains(*lane)).or_else(|| free.last())?;
            free.remove(lane);
            chosen.push(lane);
        }
        Some(chosen)
    }

    /// The division of a cluster's entries in the table of a link.
    fn division(&self, share: &LinkShare, weights: &[u32], keeps_own: bool) -> Option<Division> {
        let table = self.users.table(share.link);
        let entries = table.len() as u8;
        let own: Vec<u8> =
            positions(share.first_entry, share.entries, entries).map(|position| position as u8).collect();
        // From the range between two of its entries on.
        let start = usize::from(share.first_entry + entries / share.entries.max(1) / 2);
        let free = (0..table.len()).map(|step| (start + step) % table.len());
        let is_free = |position: &usize| *position != 0 && table[*position] == super::sharing::FILLING;
        let free: Vec<u8> = free.filter(is_free).map(|position| position as u8).collect();
        ClusterEntries { own: &own, free: &free, weight: share.weight, keeps_own }.divided(weights)
    }
}
