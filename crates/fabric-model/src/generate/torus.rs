//! Tori and meshes: switches at the points of a grid, cabled to their neighbours.

use super::assembler::Assembler;
use super::{DEFAULT_RADIX, GenerateError, out_of_range};
use crate::link_rate::LinkRate;
use crate::topology::{NODES_MAX, NodeIndex, Topology};

/// A torus or a mesh to generate. Switches are named by their coordinates: `switch-0-3`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Torus {
    /// How many switches in each direction; a direction needs two.
    pub dimensions: Vec<u16>,
    /// Whether the ends of each direction are joined: a torus; else a mesh.
    pub wrap: bool,
    /// Hosts at every switch.
    pub hosts_per_switch: u8,
    /// Ports of every switch.
    pub radix: u8,
    /// What every link runs at.
    pub rate: LinkRate,
}

impl Torus {
    /// A torus of 36-port switches with one host at each.
    pub fn new(dimensions: impl Into<Vec<u16>>) -> Self {
        Self {
            dimensions: dimensions.into(),
            wrap: true,
            hosts_per_switch: 1,
            radix: DEFAULT_RADIX,
            rate: LinkRate::DEFAULT,
        }
    }

    /// Makes it.
    pub fn generate(&self) -> Result<Topology, GenerateError> {
        let count = self.check()?;
        let mut fabric = Assembler::new(self.radix, self.rate);
        let points: Vec<Vec<u16>> = (0..count).map(|place| self.point(place)).collect();
        let switches = points.iter().map(|point| fabric.switch(name(point)));
        let switches: Vec<NodeIndex> = switches.collect::<Result<_, GenerateError>>()?;
        for switch in &switches {
            fabric.reserve(*switch, self.hosts_per_switch);
        }
        for (place, point) in points.iter().enumerate() {
            for next in self.next_points(point) {
                fabric.cable(switches[place], switches[self.place(&next)])?;
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

    /// How many switches there will be.
    fn check(&self) -> Result<usize, GenerateError> {
        if !(1..=8).contains(&self.dimensions.len()) {
            return Err(out_of_range("the number of dimensions", self.dimensions.len() as u64, "1..=8"));
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
            return Err(out_of_range("the number of switches", count as u64, format!("up to {NODES_MAX}")));
        }
        Ok(count)
    }

    /// The point at a place; the last coordinate runs fastest.
    fn point(&self, mut place: usize) -> Vec<u16> {
        let mut point = vec![0; self.dimensions.len()];
        for (coordinate, length) in point.iter_mut().zip(&self.dimensions).rev() {
            *coordinate = (place % usize::from(*length)) as u16;
            place /= usize::from(*length);
        }
        point
    }

    fn place(&self, point: &[u16]) -> usize {
        let step = |place, (coordinate, length): (&u16, &u16)| {
            place * usize::from(*length) + usize::from(*coordinate)
        };
        point.iter().zip(&self.dimensions).fold(0, step)
    }

    /// The neighbours one step further in each direction. Two switches that face each other both ways get one cable.
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
