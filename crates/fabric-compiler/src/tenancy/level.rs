//! What limits a cluster's ways at one level of a tree.

use super::books::PairDemand;
use super::network::LinkIndex;
use super::rooms::Room;

/// Destinations that a link carries which has no rate to keep.
const UNLIMITED: u32 = u32::MAX / 4;

/// A cluster's hosts in one leaf or pod.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    /// The leaf or pod.
    pub at: usize,
    pub hosts: u32,
}

/// What limits the links of one kind, for every number of up-port and every group: destinations that the links up from
/// the group, and down to it, can still carry.
#[derive(Clone, Debug)]
pub(super) struct Level {
    pub groups: Vec<Group>,
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
    /// By number and group: the service levels that others have on the link up and the link down, as bits.
    levels: Vec<[u16; 2]>,
}

impl Level {
    /// For so many numbers; `rooms` tells by leaf or pod what the links up, and those down, have left.
    pub fn new<'r>(
        groups: Vec<Group>,
        numbers: usize,
        rate: u64,
        rooms: impl Fn(usize) -> &'r [Room],
    ) -> Self {
        let total: u64 = groups.iter().map(|group| u64::from(group.hosts)).sum();
        let size = numbers * groups.len();
        let mut level = Self {
            bounds: Vec::with_capacity(size),
            inside: vec![0; size],
            down: Vec::with_capacity(size),
            chosen: vec![0; numbers],
            least: vec![(0, 0, 0); numbers],
            taken: vec![0; numbers],
            levels: Vec::with_capacity(size),
            groups,
        };
        // A destination costs the link up a pair with every host of the group, the link down one with every other.
        let demands: Vec<[PairDemand; 2]> = (level.groups.iter())
            .map(|group| {
                let inside = u64::from(group.hosts);
                let of = |pairs| PairDemand::new(rate, total, pairs);
                [of(inside), of(total - inside)]
            })
            .collect();
        let destinations =
            |room: &Room, demand: &PairDemand| room.times_left(demand).min(UNLIMITED.into()) as u32;
        let rooms: Vec<&[Room]> = level.groups.iter().map(|group| rooms(group.at)).collect();
        for number in 0..numbers {
            for (rooms, [up_demand, down_demand]) in rooms.iter().zip(&demands) {
                let (up, down) = (&rooms[2 * number], &rooms[2 * number + 1]);
                level.bounds.push(destinations(up, up_demand));
                level.down.push(destinations(down, down_demand));
                level.levels.push([up.levels_taken, down.levels_taken]);
                if rate == 0 {
                    level.taken[number] += u32::from(up.lanes_taken) + u32::from(down.lanes_taken);
                }
            }
            level.settle(number);
        }
        level
    }

    /// The same without the links on which others have one of some service levels.
    pub fn without(&self, service_levels: u16) -> Self {
        let mut level = self.clone();
        if service_levels == 0 {
            return level;
        }
        for (place, [up, down]) in self.levels.iter().enumerate() {
            if up & service_levels != 0 {
                level.bounds[place] = 0;
            }
            if down & service_levels != 0 {
                level.down[place] = 0;
            }
        }
        (0..level.chosen.len()).for_each(|number| level.settle(number));
        level
    }

    /// The service levels that others have on some link.
    pub fn levels_taken(&self) -> u16 {
        self.levels.iter().fold(0, |taken, [up, down]| taken | up | down)
    }

    /// Whether one more destination in a group fits.
    #[inline]
    pub fn fits(&self, number: usize, group: usize) -> bool {
        let (least, at, other) = self.least[number];
        let bound = if at == group { other } else { least };
        bound > self.chosen[number] && self.fits_down(number, group)
    }

    /// Whether one more destination in a group fits as far as the link down to it tells.
    #[inline]
    pub fn fits_down(&self, number: usize, group: usize) -> bool {
        let place = number * self.groups.len() + group;
        self.down[place] > self.inside[place]
    }

    /// Whether a destination in a group was chosen.
    #[inline]
    pub fn has(&self, number: usize, group: usize) -> bool {
        self.inside[number * self.groups.len() + group] > 0
    }

    pub fn take(&mut self, number: usize, group: usize) {
        let place = number * self.groups.len() + group;
        self.chosen[number] += 1;
        self.inside[place] += 1;
        // What is inside does not pass the group's own link up.
        self.bounds[place] += 1;
        let (least, at, other) = self.least[number];
        let is_settled = if at == group {
            self.least[number].0 += 1;
            least < other
        } else {
            // Where the least of the others was, another may be that has as little.
            let row = &self.bounds[number * self.groups.len()..][..self.groups.len()];
            let has_other = |(group, bound): (usize, &u32)| group != at && *bound == other;
            self.bounds[place] - 1 > other || row.iter().enumerate().any(has_other)
        };
        if !is_settled {
            self.settle(number);
        }
    }

    /// Undoes [`Self::take`].
    pub fn untake(&mut self, number: usize, group: usize) {
        let place = number * self.groups.len() + group;
        self.chosen[number] -= 1;
        self.inside[place] -= 1;
        self.bounds[place] -= 1;
        if self.bounds[place] < self.least[number].2 {
            self.settle(number);
        }
    }

    /// Numbers that a group can use beyond those that its hosts need.
    pub fn choice(&self, group: usize) -> i64 {
        let usable = (0..self.chosen.len()).filter(|number| self.fits(*number, group)).count();
        usable as i64 - i64::from(self.groups[group].hosts)
    }

    /// How many destinations fit at most, as far as the tightest link up of each number tells.
    pub fn room_for_all(&self) -> u64 {
        let width = self.groups.len();
        let of_number = |(number, (least, at, _)): (usize, &(u32, usize, u32))| {
            // What is inside the group does not pass its link up.
            u64::from(*least) + u64::from(self.down[number * width + at].min(self.groups[*at].hosts))
        };
        self.least.iter().enumerate().map(of_number).sum()
    }

    /// The same without the links on which others have a service level.
    pub fn room_without(&self, service_levels: u16) -> u64 {
        let width = self.groups.len();
        let of_number = |(number, (least, at, _)): (usize, &(u32, usize, u32))| {
            let here = number * width..(number + 1) * width;
            let is_taken = |levels: &[u16; 2]| levels[0] & service_levels != 0;
            let (least, at) = match self.levels[here].iter().position(is_taken) {
                Some(taken) => (0, taken),
                None => (*least, *at),
            };
            let place = number * width + at;
            let down = if self.levels[place][1] & service_levels != 0 { 0 } else { self.down[place] };
            u64::from(least) + u64::from(down.min(self.groups[at].hosts))
        };
        self.least.iter().enumerate().map(of_number).sum()
    }

    /// The group that is the least bound of the most numbers.
    pub fn tightest(&self) -> usize {
        let mut counts = vec![0u32; self.groups.len()];
        self.least.iter().for_each(|(_, at, _)| counts[*at] += 1);
        (0..counts.len()).max_by_key(|group| counts[*group]).unwrap_or(0)
    }

    /// How many more destinations in a group fit, as far as the links up tell.
    #[inline]
    pub fn room(&self, number: usize, group: usize) -> u32 {
        let (least, at, other) = self.least[number];
        (if at == group { other } else { least }).saturating_sub(self.chosen[number])
    }

    /// Links that a destination in a group would add, and how much of them others have.
    #[inline]
    pub fn cost(&self, number: usize, group: usize) -> (u32, u32) {
        let is_new = self.chosen[number] == 0;
        let is_new_down = self.inside[number * self.groups.len() + group] == 0;
        let links = if is_new { self.groups.len() as u32 } else { u32::from(is_new_down) };
        (links, if is_new { self.taken[number] } else { 0 })
    }

    /// The pairs on every link that has some: sources below it times destinations beyond it.
    pub fn pairs(
        &self,
        total: u64,
        links: impl Fn(usize, usize) -> (LinkIndex, LinkIndex),
        pairs: &mut Vec<(LinkIndex, u64)>,
    ) {
        let inside = |number: usize, place: usize| self.inside[number * self.groups.len() + place];
        // Links of a switch are next to each other: those up by group, those down by number.
        for (place, group) in self.groups.iter().enumerate() {
            for (number, chosen) in self.chosen.iter().enumerate() {
                let outside = chosen - inside(number, place);
                if outside > 0 {
                    let (up, _) = links(number, group.at);
                    pairs.push((up, u64::from(group.hosts) * u64::from(outside)));
                }
            }
        }
        for number in (0..self.chosen.len()).filter(|number| self.chosen[*number] > 0) {
            for (place, group) in self.groups.iter().enumerate() {
                let inside = u64::from(inside(number, place));
                if inside > 0 {
                    let (_, down) = links(number, group.at);
                    pairs.push((down, inside * (total - u64::from(group.hosts))));
                }
            }
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
}
