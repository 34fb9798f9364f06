//! Fat-trees of two or three tiers.
//!
//! A leaf has hosts below and uplinks above. In two tiers the uplinks spread over the spines. In three, the leaves of
//! a pod reach the pod's spines, and spine number *s* of every pod reaches core group *s*. Upper switches are as few
//! as their ports allow while every lower switch has the same number of cables to each of them.

use std::str::FromStr;

use super::assembler::Assembler;
use super::{DEFAULT_RADIX, GenerateError, digits, out_of_range};
use crate::link_rate::LinkRate;
use crate::topology::{NodeIndex, Topology};

/// What a leaf has below for what it has above: `2:1` means twice as much towards hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Oversubscription {
    /// Share of the ports towards hosts.
    pub down: u8,
    /// Share of the ports towards spines.
    pub up: u8,
}

impl Oversubscription {
    /// As much above as below.
    pub const NONE: Self = Self { down: 1, up: 1 };
}

/// A text that is not an oversubscription.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an oversubscription: two numbers 1..=99 with : between, the larger first (2:1)")]
pub struct ParseOversubscriptionError(String);

impl FromStr for Oversubscription {
    type Err = ParseOversubscriptionError;

    fn from_str(text: &str) -> Result<Self, ParseOversubscriptionError> {
        let read = || {
            let (down, up) = text.split_once(':')?;
            let (down, up) = (down.parse().ok()?, up.parse().ok()?);
            ((1..=99).contains(&down) && (1..=down).contains(&up)).then_some(Self { down, up })
        };
        read().ok_or_else(|| ParseOversubscriptionError(text.chars().take(20).collect()))
    }
}

/// How large a fat-tree is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FatTreeSize {
    /// So many hosts, spread evenly over as few switches as hold them. `tiers` is 2 or 3; `None` takes 2 if they do.
    Hosts {
        /// How many.
        hosts: u32,
        /// Switch tiers.
        tiers: Option<u8>,
    },
    /// Two tiers with so many full leaves.
    Leaves(u16),
    /// Three tiers with so many full pods.
    Pods(u16),
}

/// A fat-tree to generate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FatTree {
    /// How large.
    pub size: FatTreeSize,
    /// Ports of every switch.
    pub radix: u8,
    /// What leaves have below for what they have above; tiers above are never oversubscribed.
    pub oversubscription: Oversubscription,
    /// What every link runs at.
    pub rate: LinkRate,
}

impl FatTree {
    /// The smallest tree of 36-port switches without oversubscription that holds so many hosts.
    pub fn with_hosts(hosts: u32) -> Self {
        Self::new(FatTreeSize::Hosts { hosts, tiers: None })
    }

    /// A tree of this size, of 36-port switches without oversubscription.
    pub fn new(size: FatTreeSize) -> Self {
        let (radix, oversubscription) = (DEFAULT_RADIX, Oversubscription::NONE);
        Self { size, radix, oversubscription, rate: LinkRate::DEFAULT }
    }

    /// Makes it.
    pub fn generate(&self) -> Result<Topology, GenerateError> {
        let shape = Shape::of(self)?;
        let mut fabric = Assembler::new(self.radix, self.rate);
        let leaves = if shape.tiers == 2 {
            two_tiers(&mut fabric, &shape)?
        } else {
            three_tiers(&mut fabric, &shape)?
        };
        for (number, leaf) in leaves.iter().enumerate() {
            fabric.rewind(*leaf);
            for _ in 0..shape.hosts_of(number, leaves.len()) {
                fabric.host(*leaf)?;
            }
        }
        fabric.finish()
    }
}

/// A size worked out.
#[derive(Debug)]
struct Shape {
    tiers: u8,
    radix: u8,
    hosts: u32,
    /// Ports of a leaf for hosts.
    down: u8,
    /// Ports of a leaf for spines; as many spines has a pod.
    up: u8,
    leaves_per_pod: u32,
    /// 1 in two tiers.
    pods: u32,
}

impl Shape {
    fn of(tree: &FatTree) -> Result<Self, GenerateError> {
        let radix = tree.radix;
        let Oversubscription { down, up } = tree.oversubscription;
        if !(2..=254).contains(&radix) {
            return Err(out_of_range("the radix", radix, "2..=254"));
        }
        if down == 0 || up == 0 || up > down {
            return Err(out_of_range("the upper part of the oversubscription", up, format!("1..={down}")));
        }
        let below = u32::from(radix) * u32::from(down) / (u32::from(down) + u32::from(up));
        let above = below * u32::from(up) / u32::from(down);
        if above == 0 {
            return Err(out_of_range("the radix", radix, format!("{} or more for {down}:{up}", down + up)));
        }
        let ports = Ports { radix, down: below as u8, up: above as u8 };
        match tree.size {
            FatTreeSize::Leaves(leaves) => ports.two_tiers(leaves.into(), u32::from(leaves) * below),
            FatTreeSize::Pods(pods) => {
                let hosts = u32::from(pods) * ports.pod_leaves() * below;
                ports.three_tiers(pods.into(), ports.pod_leaves(), hosts)
            }
            FatTreeSize::Hosts { hosts, tiers } => ports.for_hosts(hosts, tiers),
        }
    }

    /// Hosts of one leaf: an even share, the first leaves getting what is left over.
    fn hosts_of(&self, leaf: usize, leaves: usize) -> u32 {
        let (leaf, leaves) = (leaf as u32, leaves as u32);
        self.hosts / leaves + u32::from(leaf < self.hosts % leaves)
    }
}

/// How the ports of a leaf are shared out.
#[derive(Clone, Copy, Debug)]
struct Ports {
    radix: u8,
    down: u8,
    up: u8,
}

impl Ports {
    /// Leaves that a pod's spines can serve and still have as many ports above as below.
    fn pod_leaves(self) -> u32 {
        u32::from(self.radix / 2)
    }

    fn for_hosts(self, hosts: u32, tiers: Option<u8>) -> Result<Shape, GenerateError> {
        let radix = u32::from(self.radix);
        let leaves = hosts.div_ceil(self.down.into());
        let pods = leaves.div_ceil(self.pod_leaves());
        let too_many =
            |tiers, capacity| GenerateError::TooManyHosts { hosts, tiers, radix: self.radix, capacity };
        match tiers {
            _ if hosts == 0 => Err(out_of_range("the number of hosts", hosts, "1 or more")),
            None if leaves <= radix => self.two_tiers(leaves.max(2), hosts),
            Some(2) if leaves <= radix => self.two_tiers(leaves.max(2), hosts),
            Some(2) => Err(too_many(2, radix * u32::from(self.down))),
            None | Some(3) if pods > radix => {
                Err(too_many(3, radix * self.pod_leaves() * u32::from(self.down)))
            }
            None | Some(3) => {
                let pods = pods.max(2);
                self.three_tiers(pods, leaves.div_ceil(pods), hosts)
            }
            Some(other) => Err(out_of_range("the number of tiers", other, "2 or 3")),
        }
    }

    fn two_tiers(self, leaves: u32, hosts: u32) -> Result<Shape, GenerateError> {
        if !(1..=self.radix.into()).contains(&leaves) {
            return Err(out_of_range("the number of leaves", leaves, format!("1..={}", self.radix)));
        }
        Ok(self.shape(2, 1, leaves, hosts))
    }

    fn three_tiers(self, pods: u32, leaves_per_pod: u32, hosts: u32) -> Result<Shape, GenerateError> {
        if !(1..=self.radix.into()).contains(&pods) {
            return Err(out_of_range("the number of pods", pods, format!("1..={}", self.radix)));
        }
        Ok(self.shape(3, pods, leaves_per_pod, hosts))
    }

    fn shape(self, tiers: u8, pods: u32, leaves_per_pod: u32, hosts: u32) -> Shape {
        Shape { tiers, radix: self.radix, hosts, down: self.down, up: self.up, leaves_per_pod, pods }
    }
}

fn two_tiers(fabric: &mut Assembler, shape: &Shape) -> Result<Vec<NodeIndex>, GenerateError> {
    let leaves = switches(fabric, "leaf-", shape.leaves_per_pod)?;
    let spines = switches(fabric, "spine-", uppers(shape.up, shape.leaves_per_pod, shape.radix))?;
    leaves.iter().for_each(|leaf| fabric.reserve(*leaf, shape.down));
    join(fabric, &leaves, &spines, shape.up)?;
    Ok(leaves)
}

fn three_tiers(fabric: &mut Assembler, shape: &Shape) -> Result<Vec<NodeIndex>, GenerateError> {
    let width = digits(shape.pods);
    let mut pods = Vec::new();
    for pod in 1..=shape.pods {
        let leaves = switches(fabric, &format!("pod{pod:0width$}-leaf"), shape.leaves_per_pod)?;
        let spines = switches(fabric, &format!("pod{pod:0width$}-spine"), shape.up.into())?;
        leaves.iter().for_each(|leaf| fabric.reserve(*leaf, shape.down));
        join(fabric, &leaves, &spines, shape.up)?;
        pods.push((leaves, spines));
    }
    let uplinks = shape.radix / 2;
    let per_group = uppers(uplinks, shape.pods, shape.radix);
    let cores = switches(fabric, "core-", per_group * u32::from(shape.up))?;
    for (group, cores) in cores.chunks(per_group as usize).enumerate() {
        let spines: Vec<_> = pods.iter().map(|(_, spines)| spines[group]).collect();
        join(fabric, &spines, cores, uplinks)?;
    }
    Ok(pods.into_iter().flat_map(|(leaves, _)| leaves).collect())
}

fn switches(fabric: &mut Assembler, prefix: &str, count: u32) -> Result<Vec<NodeIndex>, GenerateError> {
    let width = digits(count);
    (1..=count).map(|number| fabric.switch(format!("{prefix}{number:0width$}"))).collect()
}

/// How many upper switches serve `lowers` switches with `uplinks` each: the fewest that divide the uplinks evenly and
/// have the ports. As many as there are uplinks always do, because no tier has more switches than the radix.
fn uppers(uplinks: u8, lowers: u32, radix: u8) -> u32 {
    let uplinks = u32::from(uplinks);
    let enough = |uppers: &u32| uplinks % uppers == 0 && lowers * (uplinks / uppers) <= radix.into();
    (1..=uplinks).find(enough).unwrap_or(uplinks)
}

/// Cables every lower switch to every upper one, spreading its uplinks evenly.
fn join(
    fabric: &mut Assembler,
    lowers: &[NodeIndex],
    uppers: &[NodeIndex],
    uplinks: u8,
) -> Result<(), GenerateError> {
    let parallel = usize::from(uplinks) / uppers.len();
    for lower in lowers {
        for upper in uppers {
            for _ in 0..parallel {
                fabric.cable(*lower, *upper)?;
            }
        }
    }
    Ok(())
}
