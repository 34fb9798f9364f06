//! Classes of packets that owners of clusters wish for, inside what their clusters have.
//!
//! They come last and go first: what clusters are promised is decided without them. A class takes a level and lanes that
//! nobody has, and what the cluster may send in a round is divided. To others that is no loss: a lane that nobody has was
//! counted with a packet in every round, and that is all that each class adds.

mod division;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fabric_model::SharedMap;
use fabric_model::decisions::{ClassesDecision, DividedLink};
use fabric_model::intent::WishedClasses;
use fabric_model::plan::{Draft, Finding};
use fabric_model::tenancy::{Class, ClusterNumber};
use ib_wire::{ServiceLevel, VirtualLane, VlArbEntry};

use super::Promises;
use super::sharing::positions;
use crate::tenancy::ledger::{Grant, LinkShare, levels};
use crate::tenancy::network::LinkIndex;
use division::{Division, Room};

/// Decided before, by the name of the cluster.
type Before = SharedMap<String, Arc<ClassesDecision>>;

/// Divides what clusters have as their owners wish. What cannot be is a finding of the plan, and is not done.
pub(crate) fn take_classes(draft: &mut Draft, promises: Option<&mut Promises>, wished: &WishedClasses) {
    let before = std::mem::take(&mut draft.decisions().classes);
    let not_taken = match promises {
        Some(promises) => promises.take_classes(draft, &before, wished),
        None => wished.keys().map(|cluster| (cluster.clone(), NOTHING.to_owned())).collect(),
    };
    let told = not_taken.into_iter().map(|(cluster, reason)| Finding::ClassesNotTaken { cluster, reason });
    draft.findings().extend(told);
}

const NOTHING: &str = "nothing is promised to it";

/// Not told by link: which one is short depends on who chose first.
const SHORT: &str = "too few service levels or lanes are left on its links";

/// What the further classes of a cluster got.
#[derive(Debug)]
struct Chosen {
    number: ClusterNumber,
    service_levels: Vec<ServiceLevel>,
    /// By link of the cluster.
    lanes: Vec<Vec<VirtualLane>>,
    /// Whether packets of the first class are to wait no longer than without the others.
    is_in_time: bool,
}

impl Promises {
    /// Makes the packets of every cluster alike. Who wished what is remembered until [`take_classes`].
    pub fn leave_classes(&mut self, draft: &mut Draft) {
        self.users.unite();
        let names = draft.plan().decisions().classes.keys();
        let grants = names.filter_map(|name| self.ledger.grants().get(self.numbers.get(name)?));
        let links: BTreeSet<LinkIndex> =
            grants.flat_map(|grant| grant.links.iter().map(|share| share.link)).collect();
        self.users.put(draft, &links.into_iter().collect::<Vec<_>>());
    }

    /// Why some clusters are not divided, by name.
    fn take_classes(
        &mut self,
        draft: &mut Draft,
        before: &Before,
        wished: &WishedClasses,
    ) -> BTreeMap<String, String> {
        let (mut chosen, mut not_taken) = (BTreeMap::new(), BTreeMap::new());
        // Who had levels and lanes keeps them before others choose.
        let (had, new): (Vec<_>, Vec<_>) = wished.iter().partition(|(name, _)| before.contains_key(*name));
        for (name, weights) in had.into_iter().chain(new) {
            match self.choose(draft, name, weights, before.get(name).map(|had| &**had)) {
                Ok(classes) => drop(chosen.insert(name, classes)),
                Err(reason) => drop(not_taken.insert(name.clone(), reason)),
            }
        }
        // Entries do not depend on who came first.
        for (name, classes) in chosen {
            match self.divide(draft, &classes, &wished[name]) {
                Ok(decision) => drop(draft.decisions().classes.insert(name.clone(), Arc::new(decision))),
                Err(reason) => drop(not_taken.insert(name.clone(), reason)),
            }
        }
        not_taken
    }

    /// Gives the further classes of a cluster levels and lanes; what is short if that cannot be.
    fn choose(
        &mut self,
        draft: &Draft,
        name: &str,
        weights: &[u32],
        had: Option<&ClassesDecision>,
    ) -> Result<Chosen, String> {
        let number = *self.numbers.get(name).ok_or(NOTHING)?;
        let grant = self.ledger.grants().get(&number).ok_or(NOTHING)?;
        let decided = draft.plan().decisions().clusters.get(name).ok_or(NOTHING)?;
        if decided.service_level().is_none() {
            return Err("its packets have a level for every two switches".to_owned());
        }
        let further = weights.len().saturating_sub(1);
        let service_levels = self.class_levels(grant, further, had).ok_or(SHORT)?;
        let mut lanes = Vec::with_capacity(grant.links.len());
        for share in &grant.links {
            let port = self.ledger.network().links()[share.link.index()].from;
            let had = had.and_then(|had| had.links.iter().find(|link| link.port == port));
            lanes.push(self.class_lanes(share.link, further, had).ok_or(SHORT)?);
        }
        for (share, lanes) in grant.links.iter().zip(&lanes) {
            let classes = lanes.iter().copied().zip(service_levels.iter().copied());
            self.users.add_classes(share.link, number, classes);
        }
        let is_in_time = matches!(decided.class, Class::Guaranteed { latency_ns: Some(_), .. });
        Ok(Chosen { number, service_levels, lanes, is_in_time })
    }

    /// Divides the entries of a cluster; what is short if that cannot be.
    fn divide(
        &mut self,
        draft: &mut Draft,
        classes: &Chosen,
        weights: &[u32],
    ) -> Result<ClassesDecision, String> {
        let grant = self.ledger.grants().get(&classes.number).ok_or(NOTHING)?;
        let divisions: Option<Vec<Division>> =
            grant.links.iter().map(|share| self.division(share, weights, classes.is_in_time)).collect();
        let Some(divisions) = divisions else {
            for share in &grant.links {
                self.users.remove_classes(share.link, classes.number);
            }
            return Err(
                "its entries cannot be divided so in the arbitration tables of all its links".to_owned()
            );
        };
        let mut links = Vec::with_capacity(divisions.len());
        for ((share, division), lanes) in grant.links.iter().zip(divisions).zip(&classes.lanes) {
            let entry = |entry: &division::Entry| {
                let lane = entry.class.checked_sub(1).map_or(share.lane, |further| lanes[further]);
                (entry.position, VlArbEntry { lane, weight: entry.weight })
            };
            self.users.divide(share.link, division.entries.iter().map(entry));
            let port = self.ledger.network().links()[share.link.index()].from;
            links.push(DividedLink { port, lanes: lanes.clone(), weights: division.weights(weights.len()) });
        }
        let touched: Vec<LinkIndex> = grant.links.iter().map(|share| share.link).collect();
        self.users.put(draft, &touched);
        Ok(ClassesDecision { service_levels: classes.service_levels.clone(), links })
    }

    /// So many levels that nobody has on any link of a cluster: those it had, then the highest, as clusters take the lowest.
    fn class_levels(
        &self,
        grant: &Grant,
        count: usize,
        had: Option<&ClassesDecision>,
    ) -> Option<Vec<ServiceLevel>> {
        let all = (1_u32 << (self.ledger.network().limits().service_levels + 1)) - 2;
        let taken = grant.links.iter().fold(0, |taken, share| taken | self.users.levels_taken(share.link));
        let mut free = all as u16 & !taken;
        let had = had.map_or(&[][..], |had| &had.service_levels);
        let mut chosen = Vec::with_capacity(count);
        for class in 0..count {
            let kept = had.get(class).copied().filter(|level| free >> level.to_wire() & 1 == 1);
            let highest = || levels(free).last();
            let level = kept.or_else(highest)?;
            free &= !(1 << level.to_wire());
            chosen.push(level);
        }
        Some(chosen)
    }

    /// So many lanes that nobody has on a link.
    fn class_lanes(
        &self,
        at: LinkIndex,
        count: usize,
        had: Option<&DividedLink>,
    ) -> Option<Vec<VirtualLane>> {
        let link = &self.ledger.network().links()[at.index()];
        let all = ((1_u32 << link.lanes) - 1) << link.first_lane;
        let mut free = all & 0x7fff & !u32::from(self.users.lanes_taken(at));
        let mut chosen = Vec::with_capacity(count);
        for class in 0..count {
            let kept = had.and_then(|had| had.lanes.get(class)).copied();
            let kept = kept.filter(|lane| free >> lane.to_wire() & 1 == 1);
            let highest = || VirtualLane::from_wire(free.checked_ilog2()? as u8);
            let lane = kept.or_else(highest)?;
            free &= !(1 << lane.to_wire());
            chosen.push(lane);
        }
        Some(chosen)
    }

    /// How the entries of a link are divided.
    fn division(&self, share: &LinkShare, weights: &[u32], is_in_time: bool) -> Option<Division> {
        let table = self.users.table(share.link);
        let entries = table.len() as u8;
        let own: Vec<u8> =
            positions(share.first_entry, share.entries, entries).map(|position| position as u8).collect();
        // From the middle between two of its entries on.
        let start = usize::from(share.first_entry + entries / share.entries.max(1) / 2);
        let free = (0..table.len()).map(|step| (start + step) % table.len());
        let is_free = |position: &usize| *position != 0 && table[*position] == super::sharing::FILLING;
        let free: Vec<u8> = free.filter(is_free).map(|position| position as u8).collect();
        let room = Room { own: &own, free: &free, weight: share.weight, keeps_own: is_in_time };
        room.divided(weights)
    }
}
