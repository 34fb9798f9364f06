//! Tori and meshes: switches on a grid, connected to their neighbours.

use super::assembler::Assembler;
use super::{DEFAULT_RADIX, GenerateError, out_of_range};
use crate::link_rate::LinkRate;
use crate::topology::{NODES_MAX, NodeIndex, Topology};

/// Parameters of a torus or a mesh. Switches are named by their coordinates: `switch-0-3`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Torus {
    /// Switches per dimension, each at least 2; one to eight dimensions.
    pub dimensions: Vec<u16>,
    /// Whether the ends of each dimension are connected: true for a torus, false for a mesh.
    pub wrap: bool,
    pub hosts_per_switch: u8,
    /// Ports per switch, for hosts and for cables to other switches.
    pub radix: u8,
    /// Rate of all links.
    pub rate: LinkRate,
}

impl Torus {
    /// A torus of 36-port switches with one host each.
    pub fn new(dimensions: impl Into<Vec<u16>>) -> Self {
        Self {
            dimensions: dimensions.into(),
            wrap: true,
            hosts_per_switch: 1,
            radix: DEFAULT_RADIX,
            rate: LinkRate::DEFAULT,
        }
    }

    /// Generates the topology. Fails if a parameter is out of range, a switch needs more ports than `radix`, or the limits of
    /// a [`Topology`] are exceeded.
    pub fn generate(&self) -> Result<Topology, GenerateError> {
        let count = self.check()?;
        let mut fabric = Assembler::new(self.radix, self.rate);
        let points: Vec<Vec<u16>> = (0..count).map(|index| self.point(index)).collect();
        let switches = points.iter().map(|point| fabric.switch(name(point)));
        let switches: Vec<NodeIndex> = switches.collect::<Result<_, GenerateError>>()?;
        for switch in &switches {
            fabric.reserve(*switch, self.hosts_per_switch);
        }
        for (index, point) in points.iter().enumerate() {
            for next in self.next_points(point) {
                fabric.cable(switches[index], switches[self.index_of(&next)])?;
            }
        }
        for switch in switches {
            fabric.rewind(switch);
            for _ in 0..self.hosts_per_switch {
                fabric.host(switch)?;
            }
        }
        fabric.finish()
    }

    /// Checks the parameters and returns the number of switches.
    fn check(&self) -> Result<usize, GenerateError> {
        if !(1..=8).contains(&self.dimensions.len()) {
            return Err(out_of_range(
                "the number of dimensions",
                self.dimensions.len() as u64,
                "between 1 and 8",
            ));
        }
        if let Some(short) = self.dimensions.iter().find(|length| **length < 2) {
            return Err(out_of_range("a dimension", *short, "2 or more"));
        }
        let needed = u64::from(self.hosts_per_switch) + 2 * self.dimensions.len() as u64;
        if needed > self.radix.into() {
            return Err(GenerateError::TooFewPorts { needed, radix: self.radix });
        }
        let count = self.dimensions.iter().map(|length| usize::from(*length)).try_fold(1, usize::checked_mul);
        let count = count.unwrap_or(usize::MAX);
        if count > NODES_MAX {
            return Err(out_of_range("the number of switches", count as u64, format!("at most {NODES_MAX}")));
        }
        Ok(count)
    }

    /// The coordinates of a switch by its index; the last coordinate varies fastest.
    fn point(&self, mut index: usize) -> Vec<u16> {
        let mut point = vec![0; self.dimensions.len()];
        for (coordinate, length) in point.iter_mut().zip(&self.dimensions).rev() {
            *coordinate = (index % usize::from(*length)) as u16;
            index /= usize::from(*length);
        }
        point
    }

    fn index_of(&self, point: &[u16]) -> usize {
        let step = |index, (coordinate, length): (&u16, &u16)| {
            index * usize::from(*length) + usize::from(*coordinate)
        };
        point.iter().zip(&self.dimensions).fold(0, step)
    }

    /// The next neighbour in each dimension. In a dimension of two switches there is one cable instead of two.
    fn next_points(&self, point: &[u16]) -> Vec<Vec<u16>> {
        let mut next_points = Vec::new();
        for (axis, length) in self.dimensions.iter().enumerate() {
            let mut next = point.to_vec();
            next[axis] += 1;
            if next[axis] == *length {
                if !self.wrap || *length == 2 {
                    continue;
                }
                next[axis] = 0;
            }
            next_points.push(next);
        }
        next_points
    }
}

fn name(point: &[u16]) -> String {
    point.iter().fold("switch".to_owned(), |name, coordinate| format!("{name}-{coordinate}"))
}
