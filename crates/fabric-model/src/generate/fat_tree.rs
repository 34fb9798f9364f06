//! Fat-trees of two or three tiers.
//!
//! With two tiers, the uplinks of every leaf are distributed evenly over the spines. With three, the leaves of a pod connect
//! to the spines of the pod, and spine *s* of every pod connects to core group *s*. The number of upper switches is the
//! smallest for which they have enough ports and every lower switch has equally many cables to each of them.

use std::str::FromStr;

use super::assembler::Assembler;
use super::{DEFAULT_RADIX, GenerateError, digits, out_of_range};
use crate::link_rate::LinkRate;
use crate::topology::{NodeIndex, Topology};

/// Ratio of host ports to uplinks of a leaf, written as `2:1`: both 1..=99, `down >= up`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Oversubscription {
    pub down: u8,
    pub up: u8,
}

impl Oversubscription {
    /// 1:1: full bisection bandwidth.
    pub const NONE: Self = Self { down: 1, up: 1 };
}

/// The text is not an oversubscription.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid oversubscription {0:?}: expected two numbers between 1 and 99 with a colon, the larger first, such as 2:1"
)]
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

/// Size of a fat-tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FatTreeSize {
    /// A number of hosts, distributed evenly over as few switches as possible.
    Hosts {
        /// Number of hosts, at least 1.
        hosts: u32,
        /// 2 or 3; `None` takes 2 if the hosts fit and 3 otherwise.
        tiers: Option<u8>,
    },
    /// Two tiers with this many full leaves, 1 to the radix.
    Leaves(u16),
    /// Three tiers with this many full pods, 1 to the radix.
    Pods(u16),
}

/// Parameters of a fat-tree topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FatTree {
    pub size: FatTreeSize,
    /// Ports per switch, 2..=254.
    pub radix: u8,
    /// Oversubscription of the leaves; upper tiers are never oversubscribed.
    pub oversubscription: Oversubscription,
    /// Rate of all links.
    pub rate: LinkRate,
}

impl FatTree {
    /// The smallest tree for this many hosts, of 36-port switches and without oversubscription.
    pub fn with_hosts(hosts: u32) -> Self {
        Self::new(FatTreeSize::Hosts { hosts, tiers: None })
    }

    /// A tree of 36-port switches without oversubscription.
    pub fn new(size: FatTreeSize) -> Self {
        let (radix, oversubscription) = (DEFAULT_RADIX, Oversubscription::NONE);
        Self { size, radix, oversubscription, rate: LinkRate::DEFAULT }
    }

    /// Generates the topology. Fails if a parameter is out of range, a switch needs more ports than `radix`, or the limits of
    /// a [`Topology`] are exceeded.
    pub fn generate(&self) -> Result<Topology, GenerateError> {
        let shape = TreeShape::of(self)?;
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

/// Numbers of switches, hosts and ports that follow from the parameters.
#[derive(Debug)]
struct TreeShape {
    tiers: u8,
    radix: u8,
    hosts: u32,
    /// Host ports of a leaf.
    down: u8,
    /// Uplinks of a leaf, and spines of a pod.
    up: u8,
    leaves_per_pod: u32,
    /// 1 with two tiers.
    pods: u32,
}

impl TreeShape {
    fn of(tree: &FatTree) -> Result<Self, GenerateError> {
        let radix = tree.radix;
        let Oversubscription { down, up } = tree.oversubscription;
        if !(2..=254).contains(&radix) {
            return Err(out_of_range("the radix", radix, "between 2 and 254"));
        }
        if down == 0 || up == 0 || up > down {
            return Err(out_of_range(
                "the second number of the oversubscription",
                up,
                format!("between 1 and {down}"),
            ));
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

    /// Number of hosts of a leaf: an even share; the remainder goes to the first leaves.
    fn hosts_of(&self, leaf: usize, leaves: usize) -> u32 {
        let (leaf, leaves) = (leaf as u32, leaves as u32);
        self.hosts / leaves + u32::from(leaf < self.hosts % leaves)
    }
}

/// How a leaf divides its ports.
#[derive(Clone, Copy, Debug)]
struct Ports {
    radix: u8,
    down: u8,
    up: u8,
}

impl Ports {
    /// Leaves of a full pod: its spines have half of their ports below and half above.
    fn pod_leaves(self) -> u32 {
        u32::from(self.radix / 2)
    }

    fn for_hosts(self, hosts: u32, tiers: Option<u8>) -> Result<TreeShape, GenerateError> {
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

    fn two_tiers(self, leaves: u32, hosts: u32) -> Result<TreeShape, GenerateError> {
        if !(1..=self.radix.into()).contains(&leaves) {
            return Err(out_of_range(
                "the number of leaves",
                leaves,
                format!("between 1 and {}", self.radix),
            ));
        }
        Ok(self.shape(2, 1, leaves, hosts))
    }

    fn three_tiers(self, pods: u32, leaves_per_pod: u32, hosts: u32) -> Result<TreeShape, GenerateError> {
        if !(1..=self.radix.into()).contains(&pods) {
            return Err(out_of_range("the number of pods", pods, format!("between 1 and {}", self.radix)));
        }
        Ok(self.shape(3, pods, leaves_per_pod, hosts))
    }

    fn shape(self, tiers: u8, pods: u32, leaves_per_pod: u32, hosts: u32) -> TreeShape {
        TreeShape { tiers, radix: self.radix, hosts, down: self.down, up: self.up, leaves_per_pod, pods }
    }
}

fn two_tiers(fabric: &mut Assembler, shape: &TreeShape) -> Result<Vec<NodeIndex>, GenerateError> {
    let leaves = switches(fabric, "leaf-", shape.leaves_per_pod)?;
    let spines = switches(fabric, "spine-", uppers(shape.up, shape.leaves_per_pod, shape.radix))?;
    leaves.iter().for_each(|leaf| fabric.reserve(*leaf, shape.down));
    join(fabric, &leaves, &spines, shape.up)?;
    Ok(leaves)
}

fn three_tiers(fabric: &mut Assembler, shape: &TreeShape) -> Result<Vec<NodeIndex>, GenerateError> {
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

/// Number of upper switches for `lowers` switches with `uplinks` uplinks each: the smallest divisor of `uplinks` with enough
/// ports. `uplinks` itself always has enough, because no tier has more switches than the radix.
fn uppers(uplinks: u8, lowers: u32, radix: u8) -> u32 {
    let uplinks = u32::from(uplinks);
    let enough = |uppers: &u32| uplinks % uppers == 0 && lowers * (uplinks / uppers) <= radix.into();
    (1..=uplinks).find(enough).unwrap_or(uplinks)
}

/// Connects every lower switch to every upper one with the same number of cables.
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
