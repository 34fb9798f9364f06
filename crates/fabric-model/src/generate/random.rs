//! Random fabrics: connected, nearly regular graphs of switches.

use std::collections::HashSet;

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64;

use super::assembler::Assembler;
use super::{DEFAULT_RADIX, GenerateError, digits, out_of_range};
use crate::link_rate::LinkRate;
use crate::topology::{NODES_MAX, NodeIndex, Topology};

/// Parameters of a random topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandomFabric {
    /// Number of switches, at least 3.
    pub switches: u32,
    /// Cables per switch to other switches, at least 2. Two of them form a ring through all switches in random order; the
    /// others go to random switches. A few switches may have fewer, if only switches are left that they are connected to.
    pub degree: u8,
    pub hosts_per_switch: u8,
    /// The same seed gives the same topology.
    pub seed: u64,
    /// Ports per switch, for hosts and for cables to other switches.
    pub radix: u8,
    /// Rate of all links.
    pub rate: LinkRate,
}

impl RandomFabric {
    /// A fabric of 36-port switches with one host each.
    pub fn new(switches: u32, degree: u8, seed: u64) -> Self {
        Self { switches, degree, hosts_per_switch: 1, seed, radix: DEFAULT_RADIX, rate: LinkRate::DEFAULT }
    }

    /// Generates the topology. Fails if a parameter is out of range, a switch needs more ports than `radix`, or the limits of
    /// a [`Topology`] are exceeded.
    pub fn generate(&self) -> Result<Topology, GenerateError> {
        self.check()?;
        let mut fabric = Assembler::new(self.radix, self.rate);
        let width = digits(self.switches);
        let switches = (1..=self.switches).map(|number| fabric.switch(format!("switch-{number:0width$}")));
        let switches: Vec<NodeIndex> = switches.collect::<Result<_, GenerateError>>()?;
        for switch in &switches {
            fabric.reserve(*switch, self.hosts_per_switch);
        }
        for (a, b) in self.cables() {
            fabric.cable(switches[a], switches[b])?;
        }
        for switch in switches {
            fabric.rewind(switch);
            for _ in 0..self.hosts_per_switch {
                fabric.host(switch)?;
            }
        }
        fabric.finish()
    }

    fn check(&self) -> Result<(), GenerateError> {
        if !(3..=NODES_MAX as u32).contains(&self.switches) {
            return Err(out_of_range(
                "the number of switches",
                self.switches,
                format!("between 3 and {NODES_MAX}"),
            ));
        }
        let partners = self.switches - 1;
        if self.degree < 2 || u32::from(self.degree) > partners {
            return Err(out_of_range("the degree", self.degree, format!("between 2 and {partners}")));
        }
        let needed = u64::from(self.degree) + u64::from(self.hosts_per_switch);
        if needed > self.radix.into() {
            return Err(GenerateError::TooFewPorts { needed, radix: self.radix });
        }
        Ok(())
    }

    /// The pairs of switches that get a cable: first the ring, which keeps the fabric connected, then random pairs.
    fn cables(&self) -> Vec<(usize, usize)> {
        let mut random = Pcg64::seed_from_u64(self.seed);
        let mut ring: Vec<usize> = (0..self.switches as usize).collect();
        ring.shuffle(&mut random);
        let mut cables: Vec<_> = ring.iter().copied().zip(ring.iter().copied().cycle().skip(1)).collect();
        let mut joined: HashSet<_> = cables.iter().map(|cable| ordered(*cable)).collect();

        let mut loose: Vec<usize> =
            ring.iter().flat_map(|s| std::iter::repeat_n(*s, usize::from(self.degree) - 2)).collect();
        loose.shuffle(&mut random);
        while let Some(a) = loose.pop() {
            let partner = loose.iter().rposition(|b| *b != a && !joined.contains(&ordered((a, *b))));
            if let Some(index) = partner {
                let b = loose.swap_remove(index);
                joined.insert(ordered((a, b)));
                cables.push((a, b));
            }
        }
        cables
    }
}

fn ordered((a, b): (usize, usize)) -> (usize, usize) {
    (a.min(b), a.max(b))
}
