//! Traffic classes of tenants, inside what their clusters were granted.
//!
//! A tenant may divide the grant of its cluster by weights. Classes are applied last and withdrawn first: guarantees are
//! decided without them. The first class keeps the service level and lanes of the cluster. Each further class takes a
//! service level that is free on all links of the cluster, and a lane that is free on each, and the arbitration weight of
//! the cluster is divided among them (see [`division`]). Other clusters lose nothing: a division is taken only if the table
//! still keeps everything that was sold on the link.

mod division;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fabric_model::SharedMap;
use fabric_model::decisions::{ClassDivision, DividedLink};
use fabric_model::intent::ClassWeights;
use fabric_model::plan::{Draft, PlanFinding};
use fabric_model::tenancy::{Class, ClusterNumber};
use ib_wire::{LaneSet, ServiceLevel, VirtualLane, VlArbEntry};
use thiserror::Error;

use super::Guarantees;
use crate::tenancy::admission::{Grant, LinkShare};
use crate::tenancy::arbitration::{ENTRIES_MAX, LaneDemand, VISIT_BYTES_MAX};
use crate::tenancy::link_graph::LinkIndex;
use division::{ClusterEntries, Division, Entry};

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
        self.users.put(draft, &self.admission, &links.into_iter().collect::<Vec<_>>());
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
        // In order of names, so that it does not matter which cluster had classes before.
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
        let divided: Option<Vec<DividedTable>> = (grant.links.iter().zip(&classes.lanes))
            .map(|(share, lanes)| self.divided_table(share, lanes, weights, classes.has_latency))
            .collect();
        let Some(divided) = divided else {
            for share in &grant.links {
                self.users.remove_classes(share.link, classes.number);
            }
            // Its service levels may be in tables that were written for another cluster of the same links.
            let touched: Vec<LinkIndex> = grant.links.iter().map(|share| share.link).collect();
            self.users.put(draft, &self.admission, &touched);
            return Err(ClassesError::Indivisible);
        };
        let mut links = Vec::with_capacity(divided.len());
        for ((share, divided), lanes) in grant.links.iter().zip(divided).zip(&classes.lanes) {
            self.users.divide(share.link, divided.table);
            let port = self.admission.graph().links()[share.link.index()].from;
            links.push(DividedLink { port, lanes: lanes.clone(), weights: divided.weights });
        }
        let touched: Vec<LinkIndex> = grant.links.iter().map(|share| share.link).collect();
        self.users.put(draft, &self.admission, &touched);
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

    /// The table of a link with the entries of a cluster divided, so that it keeps everything that was sold. Long rounds are
    /// tried first, because they can be divided most exactly.
    fn divided_table(
        &self,
        share: &LinkShare,
        lanes: &[VirtualLane],
        weights: &[u32],
        keeps_own: bool,
    ) -> Option<DividedTable> {
        let (limits, sold) = (self.admission.table_limits(share.link), self.admission.sold(share.link));
        let longest = u64::from(ENTRIES_MAX) * VISIT_BYTES_MAX;
        let composed = ROUND_PARTS.iter().filter_map(|part| limits.compose_round(sold, longest / part));
        let divided_before = self.users.divided(share.link).map(<[VlArbEntry]>::to_vec);
        let mut bases = divided_before.map_or_else(|| composed.collect(), |table| vec![table]).into_iter();
        bases.find_map(|base| {
            let with = |division: &Division| {
                let mut table = base.clone();
                for Entry { position, class, weight } in &division.entries {
                    let lane = class.checked_sub(1).map_or(share.lane, |further| lanes[further]);
                    let entry = VlArbEntry { lane, weight: *weight };
                    match table.get_mut(usize::from(*position)) {
                        Some(place) => *place = entry,
                        None => table.push(entry),
                    }
                }
                table
            };
            let keeps_all =
                |table: &[VlArbEntry]| sold.iter().all(|demand| self.is_kept(table, share.link, demand));
            let own = (0..).zip(&base).filter(|(_, entry)| entry.lane == share.lane);
            let (own, own_weights): (Vec<u8>, Vec<u8>) =
                own.map(|(position, entry)| (position, entry.weight)).unzip();
            let free: Vec<u8> = (base.len() as u8..limits.entries_usable()).collect();
            let entries = ClusterEntries { own: &own, free: &free, weights: &own_weights, keeps_own };
            let division = entries.divided(weights, |division| keeps_all(&with(division)))?;
            Some(DividedTable { table: with(&division), weights: division.weights(weights.len()) })
        })
    }
}

impl Guarantees {
    /// Whether the table of a link keeps what was sold for a lane. A cluster that did not ask for a latency may wait longer if
    /// it is divided into classes.
    fn is_kept(&self, table: &[VlArbEntry], link: LinkIndex, demand: &LaneDemand) -> bool {
        let owner = self.users.owner(link, demand.lane);
        let same = owner.map_or(LaneSet::EMPTY, |owner| self.users.lanes_of(link, owner));
        let has_latency = owner
            .and_then(|owner| self.admission.grants().get(&owner))
            .is_some_and(|grant| grant.latency_ns.is_some());
        let may_wait = same.len() > 1 && !has_latency;
        let gap_bytes = demand.gap_bytes.filter(|_| !may_wait);
        let limits = self.admission.table_limits(link);
        limits.keeps(table, &LaneDemand { gap_bytes, ..*demand }, same)
    }
}

/// Rounds that are tried for a table with classes: this part of the longest.
const ROUND_PARTS: [u64; 6] = [1, 2, 4, 8, 16, 1 << 32];

/// The arbitration table of a link, and the weight that each class of a cluster has in it.
#[derive(Debug)]
struct DividedTable {
    table: Vec<VlArbEntry>,
    weights: Vec<u32>,
}
