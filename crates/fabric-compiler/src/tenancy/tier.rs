//! The limits on a cluster's paths at one tier of a regular tree: between leaves and the switches above, or between pods and
//! the switches above.
//!
//! A *group* is a leaf or pod with hosts of the cluster; a *number* is an up-port (of leaves, or of leaves and pod switches).
//! A destination behind a number costs the link up of every other group one pair per host of that group, and the link down
//! of its own group one pair per host outside. So each link has a bound in destinations, and a destination fits if the
//! least bound of all other groups and that of its own link down are not reached. The least and the second least bound of
//! each number are kept up to date, so a query takes O(1), and taking a destination O(groups) at worst.

use ib_wire::ServiceLevelSet;

use super::link_graph::LinkIndex;
use super::reservations::PairDemand;
use super::residual::Residual;

/// The bound of a link that needs no rate.
const UNLIMITED: u32 = u32::MAX / 4;

/// The hosts of a cluster in one leaf or pod.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    /// The index of the leaf or pod.
    pub at: usize,
    pub hosts: u32,
}

/// For each number and group, the destinations that the link up from the group and the link down to it can carry.
#[derive(Clone, Debug)]
pub(super) struct Tier {
    pub groups: Vec<Group>,
    /// By number and group: the destinations that its link up can carry, plus those selected inside, which do not use it.
    bounds: Vec<u32>,
    /// By number and group: selected destinations inside.
    inside: Vec<u32>,
    /// By number and group: destinations inside that the link down can carry.
    down: Vec<u32>,
    /// By number: selected destinations.
    chosen: Vec<u32>,
    /// By number: the least bound, its group, and the least bound of the other groups.
    least: Vec<(u32, usize, u32)>,
    /// By number: lanes of its links that others own; without a rate, numbers with few go first.
    taken: Vec<u32>,
    /// By number and group: the service levels that others own on the link up and on the link down.
    sls: Vec<[ServiceLevelSet; 2]>,
}

impl Tier {
    /// For `numbers` numbers. `residuals` gives the residual capacity of the links up and down of a leaf or pod.
    pub fn new<'r>(
        groups: Vec<Group>,
        numbers: usize,
        rate: u64,
        residuals: impl Fn(usize) -> &'r [Residual],
    ) -> Self {
        let total: u64 = groups.iter().map(|group| u64::from(group.hosts)).sum();
        let size = numbers * groups.len();
        let mut tier = Self {
            bounds: Vec::with_capacity(size),
            inside: vec![0; size],
            down: Vec::with_capacity(size),
            chosen: vec![0; numbers],
            least: vec![(0, 0, 0); numbers],
            taken: vec![0; numbers],
            sls: Vec::with_capacity(size),
            groups,
        };
        // A destination costs the link up one pair per host of the group, the link down one per host outside.
        let demands: Vec<[PairDemand; 2]> = (tier.groups.iter())
            .map(|group| {
                let inside = u64::from(group.hosts);
                let of = |pairs| PairDemand::new(rate, total, pairs);
                [of(inside), of(total - inside)]
            })
            .collect();
        let destinations = |residual: &Residual, demand: &PairDemand| {
            residual.times_left(demand).min(UNLIMITED.into()) as u32
        };
        let residuals: Vec<&[Residual]> = tier.groups.iter().map(|group| residuals(group.at)).collect();
        for number in 0..numbers {
            for (residuals, [up_demand, down_demand]) in residuals.iter().zip(&demands) {
                let (up, down) = (&residuals[2 * number], &residuals[2 * number + 1]);
                tier.bounds.push(destinations(up, up_demand));
                tier.down.push(destinations(down, down_demand));
                tier.sls.push([up.sls_taken, down.sls_taken]);
                if rate == 0 {
                    tier.taken[number] += u32::from(up.lanes_taken) + u32::from(down.lanes_taken);
                }
            }
            tier.update_least(number);
        }
        tier
    }

    /// A copy without the links on which others own one of the service levels.
    pub fn without(&self, service_levels: ServiceLevelSet) -> Self {
        let mut tier = self.clone();
        if service_levels.is_empty() {
            return tier;
        }
        for (cell, [up, down]) in self.sls.iter().enumerate() {
            if !up.is_disjoint(service_levels) {
                tier.bounds[cell] = 0;
            }
            if !down.is_disjoint(service_levels) {
                tier.down[cell] = 0;
            }
        }
        (0..tier.chosen.len()).for_each(|number| tier.update_least(number));
        tier
    }

    /// The service levels that others own on any link.
    pub fn sls_taken(&self) -> ServiceLevelSet {
        self.sls.iter().fold(ServiceLevelSet::EMPTY, |taken, [up, down]| taken | *up | *down)
    }

    /// Whether one more destination in a group fits behind a number.
    #[inline]
    pub fn fits(&self, number: usize, group: usize) -> bool {
        let (least, at, other) = self.least[number];
        let bound = if at == group { other } else { least };
        bound > self.chosen[number] && self.fits_down(number, group)
    }

    /// Whether the link down to a group can carry one more destination.
    #[inline]
    pub fn fits_down(&self, number: usize, group: usize) -> bool {
        let cell = number * self.groups.len() + group;
        self.down[cell] > self.inside[cell]
    }

    /// Whether a destination in a group was selected behind a number.
    #[inline]
    pub fn has(&self, number: usize, group: usize) -> bool {
        self.inside[number * self.groups.len() + group] > 0
    }

    pub fn take(&mut self, number: usize, group: usize) {
        let cell = number * self.groups.len() + group;
        self.chosen[number] += 1;
        self.inside[cell] += 1;
        // Destinations inside do not use the group's own link up.
        self.bounds[cell] += 1;
        let (least, at, other) = self.least[number];
        let is_up_to_date = if at == group {
            self.least[number].0 += 1;
            least < other
        } else {
            // The least bound of the others stays if another group has the same.
            let row = &self.bounds[number * self.groups.len()..][..self.groups.len()];
            let has_other = |(group, bound): (usize, &u32)| group != at && *bound == other;
            self.bounds[cell] - 1 > other || row.iter().enumerate().any(has_other)
        };
        if !is_up_to_date {
            self.update_least(number);
        }
    }

    /// Undoes [`Self::take`].
    pub fn untake(&mut self, number: usize, group: usize) {
        let cell = number * self.groups.len() + group;
        self.chosen[number] -= 1;
        self.inside[cell] -= 1;
        self.bounds[cell] -= 1;
        if self.bounds[cell] < self.least[number].2 {
            self.update_least(number);
        }
    }

    /// The numbers that a group can use, less its hosts: the fewer, the more constrained it is.
    pub fn spare_ports(&self, group: usize) -> i64 {
        let usable = (0..self.chosen.len()).filter(|number| self.fits(*number, group)).count();
        usable as i64 - i64::from(self.groups[group].hosts)
    }

    /// An upper bound on the destinations that fit, by the tightest link up of each number.
    pub fn capacity_for_all(&self) -> u64 {
        let width = self.groups.len();
        let of_number = |(number, (least, at, _)): (usize, &(u32, usize, u32))| {
            // Destinations inside the group do not use its link up.
            u64::from(*least) + u64::from(self.down[number * width + at].min(self.groups[*at].hosts))
        };
        self.least.iter().enumerate().map(of_number).sum()
    }

    /// The same bound without the links on which others own one of the service levels.
    pub fn capacity_without(&self, service_levels: ServiceLevelSet) -> u64 {
        let width = self.groups.len();
        let of_number = |(number, (least, at, _)): (usize, &(u32, usize, u32))| {
            let here = number * width..(number + 1) * width;
            let is_taken = |sls: &[ServiceLevelSet; 2]| !sls[0].is_disjoint(service_levels);
            let (least, at) = match self.sls[here].iter().position(is_taken) {
                Some(taken) => (0, taken),
                None => (*least, *at),
            };
            let cell = number * width + at;
            let is_down_free = self.sls[cell][1].is_disjoint(service_levels);
            let down = if is_down_free { self.down[cell] } else { 0 };
            u64::from(least) + u64::from(down.min(self.groups[at].hosts))
        };
        self.least.iter().enumerate().map(of_number).sum()
    }

    /// The group that has the least bound of the most numbers.
    pub fn tightest(&self) -> usize {
        let mut counts = vec![0u32; self.groups.len()];
        self.least.iter().for_each(|(_, at, _)| counts[*at] += 1);
        (0..counts.len()).max_by_key(|group| counts[*group]).unwrap_or(0)
    }

    /// How many more destinations in a group the links up can carry behind a number.
    #[inline]
    pub fn spare(&self, number: usize, group: usize) -> u32 {
        let (least, at, other) = self.least[number];
        (if at == group { other } else { least }).saturating_sub(self.chosen[number])
    }

    /// The links that a destination in a group would add, and how many of their lanes others own.
    #[inline]
    pub fn cost(&self, number: usize, group: usize) -> (u32, u32) {
        let is_new = self.chosen[number] == 0;
        let is_new_down = self.inside[number * self.groups.len() + group] == 0;
        let links = if is_new { self.groups.len() as u32 } else { u32::from(is_new_down) };
        (links, if is_new { self.taken[number] } else { 0 })
    }

    /// Appends each used link with its pairs: sources below it times destinations beyond it.
    pub fn pairs(
        &self,
        total: u64,
        links: impl Fn(usize, usize) -> (LinkIndex, LinkIndex),
        pairs: &mut Vec<(LinkIndex, u64)>,
    ) {
        let inside = |number: usize, cell: usize| self.inside[number * self.groups.len() + cell];
        // In this order the links of one switch are next to each other.
        for (cell, group) in self.groups.iter().enumerate() {
            for (number, chosen) in self.chosen.iter().enumerate() {
                let outside = chosen - inside(number, cell);
                if outside > 0 {
                    let (up, _) = links(number, group.at);
                    pairs.push((up, u64::from(group.hosts) * u64::from(outside)));
                }
            }
        }
        for number in (0..self.chosen.len()).filter(|number| self.chosen[*number] > 0) {
            for (cell, group) in self.groups.iter().enumerate() {
                let inside = u64::from(inside(number, cell));
                if inside > 0 {
                    let (_, down) = links(number, group.at);
                    pairs.push((down, inside * (total - u64::from(group.hosts))));
                }
            }
        }
    }

    fn update_least(&mut self, number: usize) {
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
