//! Dragonfly+ (Shpiner et al., 2017): groups of leaves and spines, and global links between the spines of every two groups.

use super::assembler::Assembler;
use super::{DEFAULT_RADIX, GenerateError, digits, out_of_range};
use crate::link_rate::LinkRate;
use crate::topology::{NodeIndex, Topology};

/// Parameters of a Dragonfly+ topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DragonflyPlus {
    /// Number of groups, at least 1.
    pub groups: u16,
    /// Leaves per group, at least 1.
    pub leaves: u8,
    /// Spines per group, at least 1. Every leaf has a cable to every spine of its group.
    pub spines: u8,
    pub hosts_per_leaf: u8,
    /// Cables between every two groups, distributed evenly over their spines.
    pub global_links: u8,
    /// Ports per switch, for hosts and for cables to other switches.
    pub radix: u8,
    /// Rate of all links.
    pub rate: LinkRate,
}

impl DragonflyPlus {
    /// `groups` groups of four spines and four leaves with four hosts each, and one cable between every two groups.
    pub fn new(groups: u16) -> Self {
        Self {
            groups,
            leaves: 4,
            spines: 4,
            hosts_per_leaf: 4,
            global_links: 1,
            radix: DEFAULT_RADIX,
            rate: LinkRate::DEFAULT,
        }
    }

    /// Generates the topology. Fails if a parameter is out of range, a switch needs more ports than `radix`, or the limits of
    /// a [`Topology`] are exceeded.
    pub fn generate(&self) -> Result<Topology, GenerateError> {
        self.check()?;
        let mut fabric = Assembler::new(self.radix, self.rate);
        let groups = (1..=self.groups).map(|number| self.group(&mut fabric, number));
        let groups: Vec<Group> = groups.collect::<Result<_, _>>()?;
        self.join_groups(&mut fabric, &groups)?;
        for leaf in groups.iter().flat_map(|group| &group.leaves) {
            fabric.rewind(*leaf);
            for _ in 0..self.hosts_per_leaf {
                fabric.host(*leaf)?;
            }
        }
        fabric.finish()
    }

    fn check(&self) -> Result<(), GenerateError> {
        for (what, value) in [("leaves per group", self.leaves), ("spines per group", self.spines)] {
            if value == 0 {
                return Err(out_of_range(what, value, "1 or more"));
            }
        }
        if self.groups == 0 {
            return Err(out_of_range("the number of groups", self.groups, "1 or more"));
        }
        let leaf_ports = u64::from(self.hosts_per_leaf) + u64::from(self.spines);
        let global = u64::from(self.groups - 1) * u64::from(self.global_links);
        let spine_ports = u64::from(self.leaves) + global.div_ceil(self.spines.into());
        let needed = leaf_ports.max(spine_ports);
        if needed > self.radix.into() {
            return Err(GenerateError::TooFewPorts { needed, radix: self.radix });
        }
        Ok(())
    }

    fn group(&self, fabric: &mut Assembler, number: u16) -> Result<Group, GenerateError> {
        let width = digits(self.groups.into());
        let mut switches = |role: &str, count: u8| -> Result<Vec<NodeIndex>, GenerateError> {
            (1..=count).map(|n| fabric.switch(format!("group{number:0width$}-{role}{n:02}"))).collect()
        };
        let group = Group { leaves: switches("leaf", self.leaves)?, spines: switches("spine", self.spines)? };
        for leaf in &group.leaves {
            fabric.reserve(*leaf, self.hosts_per_leaf);
            for spine in &group.spines {
                fabric.cable(*leaf, *spine)?;
            }
        }
        Ok(group)
    }

    fn join_groups(&self, fabric: &mut Assembler, groups: &[Group]) -> Result<(), GenerateError> {
        let mut next_spine = vec![0; groups.len()];
        let mut spine_of = |group: usize| {
            let spine = groups[group].spines[next_spine[group] % groups[group].spines.len()];
            next_spine[group] += 1;
            spine
        };
        for a in 0..groups.len() {
            for b in a + 1..groups.len() {
                for _ in 0..self.global_links {
                    fabric.cable(spine_of(a), spine_of(b))?;
                }
            }
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Group {
    leaves: Vec<NodeIndex>,
    spines: Vec<NodeIndex>,
}
