//! Which ways packets to each host of a cluster take, where the switches form a regular tree.
//!
//! A guaranteed cluster has hosts of its own, so the columns of their LIDs are its own in every forwarding table, and the
//! way to each can be chosen. Ways that the cluster uses already go first, so that it needs few lanes. A cluster that is
//! promised a rate goes where most is left: if every cluster spreads its destinations evenly, a leaf's up-links carry
//! what its hosts send, whoever they belong to. A host that finds no way gets one that another host can do without.

use std::cmp::Reverse;

use ib_wire::ServiceLevel;

use super::ledger::Books;
use super::level::{Group, Level};
use super::network::{HostIndex, LinkIndex};
use super::tree::{Tree, Way};

/// Exchanges that are looked at for a cluster whose hosts do not all find a way at once: bounds how long a decision takes.
const EXCHANGES_MAX: usize = 20_000;

/// The ways to a cluster's hosts, and how many ordered pairs of hosts every link carries.
#[derive(Clone, Debug, Default)]
pub(super) struct Chosen {
    /// By host, in the order they were given.
    pub ways: Vec<Way>,
    /// Links between switches, each once.
    pub pairs: Vec<(LinkIndex, u64)>,
}

/// What the links between some hosts have left, looked up once for all service levels.
#[derive(Debug)]
pub(super) struct Outlook<'a> {
    tree: &'a Tree,
    books: &'a Books,
    /// In order of their leaves.
    hosts: &'a [HostIndex],
    /// Bits per second of each host.
    rate: u64,
    /// Between the leaves; nothing is limited if there is one.
    near: Level,
    /// Between the pods, once it was needed.
    far: Option<Level>,
    pods: Vec<Group>,
    /// The place of each leaf's pod.
    pod_of: Vec<usize>,
    /// Where each leaf's hosts begin.
    starts: Vec<usize>,
}

impl<'a> Outlook<'a> {
    /// For hosts that each send at a rate; a host that leaves no room, if the links of leaves together have not enough.
    pub fn new(
        tree: &'a Tree,
        books: &'a Books,
        hosts: &'a [HostIndex],
        rate: u64,
    ) -> Result<Self, HostIndex> {
        let leaves = grouped(hosts.iter().map(|host| tree.leaf_of(*host)));
        let (pods, pod_of) = pods_of(tree, &leaves);
        let starts = leaves.iter().scan(0, |start, leaf| {
            let this = *start;
            *start += leaf.hosts as usize;
            Some(this)
        });
        let starts = starts.collect();
        let numbers = if leaves.len() > 1 { tree.leaf_ups } else { 0 };
        let near = Level::new(leaves, numbers, rate, |leaf| books.rooms().of_leaf(leaf));
        let outlook = Self { tree, books, hosts, rate, near, far: None, pods, pod_of, starts };
        if outlook.spans_leaves() && outlook.near.room_for_all() < hosts.len() as u64 {
            return Err(hosts[outlook.starts[outlook.near.tightest()]]);
        }
        Ok(outlook)
    }

    /// Those of some service levels that nobody has on any link of the leaves.
    pub fn levels_free(&self, levels: u16) -> u16 {
        levels & !self.near.levels_taken()
    }

    /// Those of some service levels that leave room at the leaves, the most room first.
    pub fn levels_by_room(&self, levels: impl Iterator<Item = ServiceLevel>) -> Vec<ServiceLevel> {
        let room = |level: ServiceLevel| (self.near.room_without(1 << level.to_wire()), level);
        let mut rooms: Vec<(u64, ServiceLevel)> = levels.map(room).collect();
        rooms.retain(|(room, _)| *room >= self.hosts.len() as u64);
        rooms.sort_by_key(|(room, level)| (Reverse(*room), *level));
        rooms.into_iter().map(|(_, level)| level).collect()
    }

    /// Chooses ways for all hosts but those that are kept, where nobody has some service levels; the host that no way is
    /// left to, if there is one.
    pub fn choose(&mut self, service_levels: u16, kept: &[Option<Way>]) -> Result<Chosen, HostIndex> {
        if !self.spans_leaves() {
            let ways = (0..self.hosts.len()).map(|place| kept.get(place).copied().flatten());
            return Ok(Chosen { ways: ways.map(Option::unwrap_or_default).collect(), pairs: Vec::new() });
        }
        let mut search = Search::new(self, service_levels).map_err(|place| self.hosts[place])?;
        search.run(kept).map_err(|place| self.hosts[place])?;
        Ok(Chosen {
            pairs: search.pairs(),
            ways: search.ways.into_iter().map(|way| way.unwrap_or_default()).collect(),
        })
    }

    fn spans_leaves(&self) -> bool {
        self.near.groups.len() > 1
    }

    /// Up-ports of a pod's switch, if there are several pods; else 1.
    fn pod_ups(&self) -> usize {
        if self.pods.len() > 1 { self.tree.pod_ups } else { 1 }
    }

    /// What is left between the pods.
    fn far(&mut self) -> &Level {
        let pod_ups = self.pod_ups();
        let Self { tree, books, rate, far, pods, .. } = self;
        far.get_or_insert_with(|| {
            let numbers = if pods.len() > 1 { tree.leaf_ups * pod_ups } else { 0 };
            Level::new(pods.clone(), numbers, *rate, |pod| books.rooms().of_pod(pod))
        })
    }
}

/// A host of a cluster, by the places of its leaf and its pod among the cluster's.
#[derive(Clone, Copy, Debug)]
struct Spot {
    leaf: usize,
    pod: usize,
}

/// One cluster's search for ways. A number stands for a way; see [`Search::way`].
#[derive(Debug)]
struct Search<'a> {
    tree: &'a Tree,
    total: u64,
    /// The cluster's leaves, and the up-ports of leaves.
    near: Level,
    /// The cluster's pods, and the up-ports of pods' switches; nothing is limited there if it has one pod.
    far: Level,
    /// Where each leaf's hosts begin.
    starts: Vec<usize>,
    /// The pod of each leaf.
    pods: Vec<usize>,
    /// Up-ports of a pod's switch, if there are several pods; else 1.
    pod_ups: usize,
    /// The cluster is promised a rate.
    is_spread: bool,
    /// By host.
    ways: Vec<Option<Way>>,
    /// By host: whether its way is to stay; false for those beyond the end.
    kept: Vec<bool>,
    exchanges_left: usize,
    /// By pod and up-port of leaves: the roomiest way behind it, with what was changed behind it when it was looked for.
    behind: Vec<Option<(u32, Behind)>>,
    /// By up-port of leaves: how often ways behind it were given or given back.
    changes: Vec<u32>,
}

/// The roomiest of the ways behind an up-port of leaves, with its room; none if none fits.
type Behind = Option<(u32, usize)>;

impl<'a> Search<'a> {
    /// The place of a host that leaves no room, if all links together have not enough.
    fn new(outlook: &mut Outlook<'a>, service_levels: u16) -> Result<Self, usize> {
        let total = outlook.hosts.len();
        let near = outlook.near.without(service_levels);
        if near.room_for_all() < total as u64 {
            return Err(outlook.starts[near.tightest()]);
        }
        let far = outlook.far().without(service_levels);
        let Outlook { tree, ref pods, .. } = *outlook;
        if pods.len() > 1 && far.room_for_all() < total as u64 {
            let tightest = far.tightest();
            let leaf = outlook.pod_of.iter().rposition(|pod| *pod == tightest);
            return Err(leaf.map_or(0, |leaf| outlook.starts[leaf]));
        }
        Ok(Self {
            tree,
            total: total as u64,
            near,
            far,
            starts: outlook.starts.clone(),
            pods: outlook.pod_of.clone(),
            pod_ups: outlook.pod_ups(),
            is_spread: outlook.rate > 0,
            ways: vec![None; total],
            kept: Vec::new(),
            exchanges_left: EXCHANGES_MAX,
            behind: vec![None; pods.len() * tree.leaf_ups],
            changes: vec![0; tree.leaf_ups],
        })
    }

    /// Ways to all hosts, the leaves with the least choice first; the place of a host without one, if there is one.
    fn run(&mut self, kept: &[Option<Way>]) -> Result<(), usize> {
        let leaves = self.near.groups.len();
        for leaf in 0..leaves {
            for place in self.places(leaf) {
                let Some(way) = kept.get(place).copied().flatten() else { continue };
                let number = self.number(way);
                if !self.fits(number, self.spot(leaf)) {
                    return Err(place);
                }
                self.give(place, number);
                self.ways[place] = Some(way);
            }
        }
        self.kept = kept.iter().map(Option::is_some).collect();
        let mut order: Vec<usize> = (0..leaves).collect();
        // In several pods the order of leaves spreads destinations better over the pods' own up-ports.
        if self.is_spread && !self.spans_pods() {
            order.sort_by_cached_key(|leaf| self.near.choice(*leaf));
        }
        for leaf in order {
            for place in self.places(leaf) {
                if self.ways[place].is_some() {
                    continue;
                }
                match self.best(self.spot(leaf)) {
                    Some(number) => self.give(place, number),
                    None if self.is_spread && self.exchange(place, leaf) => {}
                    None => return Err(place),
                }
            }
        }
        Ok(())
    }

    fn spans_pods(&self) -> bool {
        self.far.groups.len() > 1
    }

    /// The places of a leaf's hosts.
    fn places(&self, leaf: usize) -> std::ops::Range<usize> {
        self.starts[leaf]..self.starts[leaf] + self.near.groups[leaf].hosts as usize
    }

    fn spot(&self, leaf: usize) -> Spot {
        Spot { leaf, pod: self.pods[leaf] }
    }

    /// The leaf of a host.
    fn leaf_of(&self, place: usize) -> usize {
        self.starts.partition_point(|start| *start <= place) - 1
    }

    fn number(&self, way: Way) -> usize {
        usize::from(way.leaf_up) * self.pod_ups + if self.spans_pods() { usize::from(way.pod_up) } else { 0 }
    }

    fn fits(&self, number: usize, spot: Spot) -> bool {
        self.near.fits(number / self.pod_ups, spot.leaf)
            && (!self.spans_pods() || self.far.fits(number, spot.pod))
    }

    fn give(&mut self, place: usize, number: usize) {
        let spot = self.spot(self.leaf_of(place));
        self.near.take(number / self.pod_ups, spot.leaf);
        if self.spans_pods() {
            self.far.take(number, spot.pod);
            self.changes[number / self.pod_ups] += 1;
        }
        self.ways[place] = Some(way(number, self.pod_ups));
    }

    fn give_back(&mut self, place: usize) -> Option<usize> {
        let way = self.ways[place].take()?;
        let number = self.number(way);
        let spot = self.spot(self.leaf_of(place));
        self.near.untake(number / self.pod_ups, spot.leaf);
        if self.spans_pods() {
            self.far.untake(number, spot.pod);
            self.changes[number / self.pod_ups] += 1;
        }
        Some(number)
    }

    /// The best way to one more host.
    fn best(&mut self, spot: Spot) -> Option<usize> {
        if self.is_spread { self.roomiest(spot) } else { self.cheapest(spot) }
    }

    /// Where most is left: at the pods' up-ports first, which are the scarcer, then at the leaves'. Leaves begin at different
    /// up-ports, so that those with few hosts of a cluster do not all take the same.
    fn roomiest(&mut self, spot: Spot) -> Option<usize> {
        let ups = self.tree.leaf_ups;
        let first = self.near.groups[spot.leaf].at % ups;
        let mut best: Option<((u32, u32), usize)> = None;
        for up in (first..ups).chain(0..first) {
            if !self.near.fits(up, spot.leaf) {
                continue;
            }
            let behind = if self.spans_pods() { self.roomiest_behind(up, spot.pod) } else { Some((0, up)) };
            let Some((far, number)) = behind else { continue };
            let room = (far, self.near.room(up, spot.leaf));
            if best.is_none_or(|(most, _)| room > most) {
                best = Some((room, number));
            }
        }
        best.map(|(_, number)| number)
    }

    fn roomiest_behind(&mut self, up: usize, pod: usize) -> Behind {
        let place = pod * self.tree.leaf_ups + up;
        if let Some((changes, behind)) = self.behind[place]
            && changes == self.changes[up]
        {
            return behind;
        }
        let mut behind: Behind = None;
        for number in up * self.pod_ups..(up + 1) * self.pod_ups {
            let room = self.far.room(number, pod);
            if behind.is_none_or(|(most, _)| room > most) && self.far.fits(number, pod) {
                behind = Some((room, number));
            }
        }
        self.behind[place] = Some((self.changes[up], behind));
        behind
    }

    /// Where the cluster needs the fewest more links, and those that others use least.
    fn cheapest(&self, spot: Spot) -> Option<usize> {
        let mut best: Option<((u32, u32), usize)> = None;
        for up in (0..self.tree.leaf_ups).filter(|up| self.near.fits(*up, spot.leaf)) {
            let (links, taken) = self.near.cost(up, spot.leaf);
            if best.is_some_and(|(cost, _)| cost <= (links, taken)) {
                continue;
            }
            if !self.spans_pods() {
                best = Some(((links, taken), up));
                continue;
            }
            for number in up * self.pod_ups..(up + 1) * self.pod_ups {
                let (more, further) = self.far.cost(number, spot.pod);
                let cost = (links + more, taken + further);
                if best.is_none_or(|(least, _)| cost < least) && self.far.fits(number, spot.pod) {
                    best = Some((cost, number));
                }
            }
        }
        best.map(|(_, number)| number)
    }

    /// Finds a way for a host that another host gives up for another one.
    fn exchange(&mut self, place: usize, leaf: usize) -> bool {
        for up in (0..self.tree.leaf_ups).filter(|up| self.near.fits_down(*up, leaf)).collect::<Vec<_>>() {
            for group in 0..self.near.groups.len() {
                let goes_elsewhere = |search: &Self| {
                    (0..search.tree.leaf_ups).any(|to| to != up && search.near.fits(to, group))
                };
                if !self.near.has(up, group) || (!self.spans_pods() && !goes_elsewhere(self)) {
                    continue;
                }
                for other in self.places(group) {
                    let uses = self.ways[other].is_some_and(|way| usize::from(way.leaf_up) == up);
                    let stays = self.kept.get(other).copied().unwrap_or(false);
                    if !uses || stays || self.exchanges_left == 0 {
                        continue;
                    }
                    self.exchanges_left -= 1;
                    if self.exchange_with(place, leaf, other, up) {
                        return true;
                    }
                }
            }
        }
        false
    }

    fn exchange_with(&mut self, place: usize, leaf: usize, other: usize, up: usize) -> bool {
        let Some(had) = self.give_back(other) else { return false };
        // The way that was given up, or another behind the same up-port.
        let spot = self.spot(leaf);
        let freed = if self.fits(had, spot) {
            Some(had)
        } else if self.spans_pods() && self.near.fits(up, leaf) {
            self.roomiest_behind(up, spot.pod).map(|(_, number)| number)
        } else {
            None
        };
        if let Some(number) = freed {
            self.give(place, number);
            if let Some(number) = self.best(self.spot(self.leaf_of(other))) {
                self.give(other, number);
                return true;
            }
            self.give_back(place);
        }
        self.give(other, had);
        false
    }

    /// The pairs on every link: sources below it times destinations beyond it.
    fn pairs(&self) -> Vec<(LinkIndex, u64)> {
        let tree = self.tree;
        let mut pairs = Vec::new();
        let near = |up: usize, leaf: usize| (tree.leaf_up(leaf, up), tree.leaf_down(leaf, up));
        self.near.pairs(self.total, near, &mut pairs);
        if self.spans_pods() {
            let far = |number: usize, pod: usize| {
                let way = way(number, self.pod_ups);
                (tree.pod_up(pod, way), tree.pod_down(pod, way))
            };
            self.far.pairs(self.total, far, &mut pairs);
        }
        pairs
    }
}

fn way(number: usize, pod_ups: usize) -> Way {
    Way { leaf_up: (number / pod_ups) as u8, pod_up: (number % pod_ups) as u8 }
}

fn grouped(places: impl Iterator<Item = usize>) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for at in places {
        match groups.last_mut() {
            Some(group) if group.at == at => group.hosts += 1,
            _ => groups.push(Group { at, hosts: 1 }),
        }
    }
    groups
}

/// The pods of some leaves, and the place of each leaf's pod among them.
fn pods_of(tree: &Tree, leaves: &[Group]) -> (Vec<Group>, Vec<usize>) {
    let mut pods: Vec<Group> = Vec::new();
    let mut places = Vec::with_capacity(leaves.len());
    for leaf in leaves {
        let at = tree.pod_of(leaf.at);
        // Hosts in order of their leaves are seldom in order of pods too.
        match pods.iter().position(|pod| pod.at == at) {
            Some(place) => {
                pods[place].hosts += leaf.hosts;
                places.push(place);
            }
            None => {
                places.push(pods.len());
                pods.push(Group { at, hosts: leaf.hosts });
            }
        }
    }
    (pods, places)
}
