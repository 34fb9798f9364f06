//! Which ways packets to each host of a cluster take, where the switches form a regular tree.
//!
//! A guaranteed cluster has hosts of its own, so the columns of their LIDs are its own in every forwarding table, and the
//! way to each can be chosen. Ways that the cluster uses already go first, so that it needs few lanes. A cluster that is
//! promised a rate goes where most is left: if every cluster spreads its destinations evenly, a leaf's up-links carry
//! what its hosts send, whoever they belong to.

use super::ledger::Books;
use super::network::{HostIndex, LinkIndex};
use super::tree::{Tree, Way};

/// Destinations that a link carries which has no rate to keep.
const UNLIMITED: u32 = u32::MAX / 4;

/// Rounds in which leaves that came too late are served earlier.
const ROUNDS_MAX: usize = 2;

/// A cluster's hosts in one leaf or pod.
#[derive(Clone, Copy, Debug)]
struct Group {
    /// The leaf or pod.
    at: usize,
    hosts: u32,
}

/// What limits the links of one kind, for every number of up-port and every group: destinations that the links up from
/// the group, and down to it, can still carry.
#[derive(Debug)]
struct Level {
    groups: Vec<Group>,
    /// By number and group: destinations outside the group that its link up can carry, and destinations chosen inside.
    bounds: Vec<u32>,
    inside: Vec<u32>,
    /// By number and group: destinations inside that its link down can carry.
    down: Vec<u32>,
    /// By number: destinations chosen.
    chosen: Vec<u32>,
    /// By number: the least bound, its group, and the least of the others.
    least: Vec<(u32, usize, u32)>,
    /// By number: how much of its links others have; the least goes first.
    taken: Vec<u32>,
}

impl Level {
    fn new(numbers: usize, groups: Vec<Group>) -> Self {
        let size = numbers * groups.len();
        Self {
            groups,
            bounds: Vec::with_capacity(size),
            inside: vec![0; size],
            down: Vec::with_capacity(size),
            chosen: vec![0; numbers],
            least: vec![(0, 0, 0); numbers],
            taken: vec![0; numbers],
        }
    }

    fn settle(&mut self, number: usize) {
        let width = self.groups.len();
        let mut least = (u32::MAX, 0, u32::MAX);
        for (group, bound) in self.bounds[number * width..(number + 1) * width].iter().enumerate() {
            if *bound < least.0 {
                least = (*bound, group, least.0);
            } else if *bound < least.2 {
                least.2 = *bound;
            }
        }
        self.least[number] = least;
    }

    /// Whether one more destination in a group fits.
    #[inline]
    fn fits(&self, number: usize, group: usize) -> bool {
        let (least, at, other) = self.least[number];
        let bound = if at == group { other } else { least };
        let place = number * self.groups.len() + group;
        bound > self.chosen[number] && self.down[place] > self.inside[place]
    }

    fn take(&mut self, number: usize, group: usize) {
        let place = number * self.groups.len() + group;
        self.chosen[number] += 1;
        self.inside[place] += 1;
        // What is inside does not pass the group's own link up.
        self.bounds[place] += 1;
        self.settle(number);
    }

    /// Forgets all destinations.
    fn reset(&mut self) {
        for (bound, inside) in self.bounds.iter_mut().zip(&mut self.inside) {
            *bound -= std::mem::take(inside);
        }
        self.chosen.fill(0);
        if !self.bounds.is_empty() {
            (0..self.chosen.len()).for_each(|number| self.settle(number));
        }
    }

    /// Numbers that a group can use beyond those that its hosts need.
    fn choice(&self, group: usize) -> i64 {
        let usable = (0..self.chosen.len()).filter(|number| self.fits(*number, group)).count();
        usable as i64 - i64::from(self.groups[group].hosts)
    }

    /// How many more destinations in a group fit, as far as the links up tell.
    #[inline]
    fn room(&self, number: usize, group: usize) -> u32 {
        let (least, at, other) = self.least[number];
        (if at == group { other } else { least }) - self.chosen[number]
    }

    /// Links that a destination in a group would add, and how much of them others have.
    #[inline]
    fn cost(&self, number: usize, group: usize) -> (u32, u32) {
        let is_new = self.chosen[number] == 0;
        let is_new_down = self.inside[number * self.groups.len() + group] == 0;
        let links = if is_new { self.groups.len() as u32 } else { u32::from(is_new_down) };
        (links, if is_new { self.taken[number] } else { 0 })
    }
}

/// The ways to a cluster's hosts, and how many ordered pairs of hosts every link carries.
#[derive(Clone, Debug, Default)]
pub(super) struct Chosen {
    /// By host, in the order they were given.
    pub ways: Vec<Way>,
    /// Links between switches, each once.
    pub pairs: Vec<(LinkIndex, u64)>,
}

/// What links must have left.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand {
    /// Bits per second of each host.
    pub rate: u64,
    /// Service levels that must be free, as bits.
    pub service_levels: u16,
}

/// Chooses ways for hosts that are in order of their leaves; the host that no way is left to, if there is one.
pub(super) fn choose(
    tree: &Tree,
    books: &Books,
    hosts: &[HostIndex],
    demand: Demand,
) -> Result<Chosen, HostIndex> {
    let total = hosts.len() as u64;
    let leaves = grouped(hosts.iter().map(|host| tree.leaf_of(*host)));
    if leaves.len() < 2 {
        return Ok(Chosen { ways: vec![Way { leaf_up: 0, pod_up: 0 }; hosts.len()], pairs: Vec::new() });
    }
    let pods = pods_of(tree, &leaves);
    let destinations = |link: LinkIndex, pairs_each: u64| {
        let pairs = books.pairs_left(link, demand.rate, total - 1, demand.service_levels);
        u32::try_from(pairs / pairs_each.max(1)).unwrap_or(UNLIMITED).min(UNLIMITED)
    };
    let mut near = Level::new(tree.leaf_ups, leaves);
    for up in 0..tree.leaf_ups {
        for group in 0..near.groups.len() {
            let Group { at, hosts } = near.groups[group];
            let (link_up, link_down) = (tree.leaf_up(at, up), tree.leaf_down(at, up));
            near.bounds.push(destinations(link_up, hosts.into()));
            near.down.push(destinations(link_down, total - u64::from(hosts)));
            near.taken[up] += books.taken(link_up, demand.rate) + books.taken(link_down, demand.rate);
        }
        near.settle(up);
    }
    let spans_pods = pods.len() > 1;
    let pod_ups = if spans_pods { tree.pod_ups } else { 1 };
    let mut far = Level::new(tree.leaf_ups * pod_ups, pods);
    if spans_pods {
        for number in 0..tree.leaf_ups * pod_ups {
            let way = way(number, pod_ups);
            for group in 0..far.groups.len() {
                let Group { at, hosts } = far.groups[group];
                let (link_up, link_down) = (tree.pod_up(at, way), tree.pod_down(at, way));
                far.bounds.push(destinations(link_up, hosts.into()));
                far.down.push(destinations(link_down, total - u64::from(hosts)));
                far.taken[number] += books.taken(link_up, demand.rate) + books.taken(link_down, demand.rate);
            }
            far.settle(number);
        }
    }
    let spread = demand.rate > 0;
    let ways = ways(tree, hosts, &mut near, &mut far, pod_ups, spread)?;
    Ok(Chosen { ways, pairs: pairs(tree, &near, &far, total, pod_ups) })
}

fn way(number: usize, pod_ups: usize) -> Way {
    Way { leaf_up: (number / pod_ups) as u8, pod_up: (number % pod_ups) as u8 }
}

/// Ways to all hosts, the leaves with the least choice first. If a host finds none, its leaf goes to the front, a few
/// times.
fn ways(
    tree: &Tree,
    hosts: &[HostIndex],
    near: &mut Level,
    far: &mut Level,
    pod_ups: usize,
    spread: bool,
) -> Result<Vec<Way>, HostIndex> {
    let mut starts = Vec::with_capacity(near.groups.len());
    let mut start = 0;
    for group in &near.groups {
        starts.push(start);
        start += group.hosts as usize;
    }
    let mut order: Vec<usize> = (0..near.groups.len()).collect();
    // In several pods the order of leaves spreads destinations better over the pods' own up-ports.
    if spread && far.groups.len() < 2 {
        order.sort_by_cached_key(|leaf| near.choice(*leaf));
    }
    let mut ways = vec![Way { leaf_up: 0, pod_up: 0 }; hosts.len()];
    let mut round = 0;
    loop {
        match attempt(tree, &order, &starts, near, far, pod_ups, spread, &mut ways) {
            Ok(()) => return Ok(ways),
            Err(leaf) => {
                round += 1;
                let place = order.iter().position(|at| *at == leaf).unwrap_or(0);
                if round == ROUNDS_MAX || place == 0 || !spread {
                    return Err(hosts[starts[leaf]]);
                }
                order[..=place].rotate_right(1);
                near.reset();
                far.reset();
            }
        }
    }
}

/// One round; the leaf that has a host without a way, if there is one.
#[allow(clippy::too_many_arguments, reason = "the parts of one search")]
fn attempt(
    tree: &Tree,
    order: &[usize],
    starts: &[usize],
    near: &mut Level,
    far: &mut Level,
    pod_ups: usize,
    spread: bool,
    ways: &mut [Way],
) -> Result<(), usize> {
    let spans_pods = far.groups.len() > 1;
    for &leaf in order {
        let Group { at, hosts } = near.groups[leaf];
        let pod = if spans_pods {
            far.groups.iter().position(|group| group.at == tree.pod_of(at)).unwrap_or(0)
        } else {
            0
        };
        for chosen in &mut ways[starts[leaf]..starts[leaf] + hosts as usize] {
            let number = best(tree, near, far, (leaf, pod), pod_ups, spread).ok_or(leaf)?;
            near.take(number / pod_ups, leaf);
            if spans_pods {
                far.take(number, pod);
            }
            *chosen = way(number, pod_ups);
        }
    }
    Ok(())
}

/// The best way to one more host of a leaf in a pod.
fn best(
    tree: &Tree,
    near: &Level,
    far: &Level,
    (leaf, pod): (usize, usize),
    pod_ups: usize,
    spread: bool,
) -> Option<usize> {
    let spans_pods = far.groups.len() > 1;
    let mut best: Option<((u32, u32), usize)> = None;
    for up in (0..tree.leaf_ups).filter(|up| near.fits(*up, leaf)) {
        let room = near.room(up, leaf);
        let (links, taken) = if spread { (UNLIMITED.saturating_sub(room), 0) } else { near.cost(up, leaf) };
        if best.is_some_and(|(cost, _)| cost <= (links, taken)) {
            continue;
        }
        if !spans_pods {
            best = Some(((links, taken), up));
            continue;
        }
        for number in (up * pod_ups..(up + 1) * pod_ups).filter(|number| far.fits(*number, pod)) {
            let cost = if spread {
                (UNLIMITED.saturating_sub(room.min(far.room(number, pod))), 0)
            } else {
                let (more, further) = far.cost(number, pod);
                (links + more, taken + further)
            };
            if best.is_none_or(|(least, _)| cost < least) {
                best = Some((cost, number));
            }
        }
    }
    best.map(|(_, number)| number)
}

/// The pairs on every link: sources below it times destinations beyond it.
fn pairs(tree: &Tree, near: &Level, far: &Level, total: u64, pod_ups: usize) -> Vec<(LinkIndex, u64)> {
    let mut pairs = Vec::new();
    let mut note =
        |level: &Level, number: usize, up: &dyn Fn(usize) -> LinkIndex, down: &dyn Fn(usize) -> LinkIndex| {
            for (place, group) in level.groups.iter().enumerate() {
                let inside = u64::from(level.inside[number * level.groups.len() + place]);
                let outside = u64::from(level.chosen[number]) - inside;
                let hosts = u64::from(group.hosts);
                if outside > 0 {
                    pairs.push((up(group.at), hosts * outside));
                }
                if inside > 0 {
                    pairs.push((down(group.at), inside * (total - hosts)));
                }
            }
        };
    for up in (0..tree.leaf_ups).filter(|up| near.chosen[*up] > 0) {
        note(near, up, &|leaf| tree.leaf_up(leaf, up), &|leaf| tree.leaf_down(leaf, up));
    }
    if far.groups.len() > 1 {
        for number in (0..far.chosen.len()).filter(|number| far.chosen[*number] > 0) {
            let way = way(number, pod_ups);
            note(far, number, &|pod| tree.pod_up(pod, way), &|pod| tree.pod_down(pod, way));
        }
    }
    pairs
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

fn pods_of(tree: &Tree, leaves: &[Group]) -> Vec<Group> {
    let mut pods: Vec<Group> = Vec::new();
    for leaf in leaves {
        let at = tree.pod_of(leaf.at);
        match pods.last_mut() {
            Some(pod) if pod.at == at => pod.hosts += leaf.hosts,
            _ => pods.push(Group { at, hosts: leaf.hosts }),
        }
    }
    pods
}
