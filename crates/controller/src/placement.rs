//! Which hosts a cluster gets: as few switches as can be, hosts that nobody uses first, else first fit. No I/O.

use std::collections::BTreeMap;

use controller_api::cluster::CpuMode;
use controller_api::{MemorySize, Name};
use ib_wire::Guid;
use thiserror::Error;

/// Virtual functions of an adapter: what adapters of the field offer at most (15 of ConnectX-3's 16 stay for guests).
pub const FUNCTIONS_MAX: u8 = 15;

/// A host that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Which.
    pub host: Name,
    /// The switch it is cabled to.
    pub leaf: Guid,
    /// Cores that are left.
    pub cores: u32,
    /// Memory that is left.
    pub memory: MemorySize,
    /// Virtual functions that are left.
    pub functions: u8,
    /// Partition keys that its port and the switch port before it can still take.
    pub keys: u16,
    /// Nodes on it, of whomever.
    pub nodes: u32,
    /// Hosts that share their cores with each other have the same number: emulated hosts on one machine.
    pub machine: usize,
}

/// What a node needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeRequirements {
    /// Virtual cores.
    pub cores: u32,
    /// Memory.
    pub memory: MemorySize,
    /// How it gets them.
    pub mode: CpuMode,
    /// Partition keys at most.
    pub keys: u16,
}

/// Why there is no place.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PlacementError {
    /// Fewer nodes fit than were asked for.
    #[error(
        "{wanted} nodes of {cores} cores and {memory} do not fit: {fitting} would, on {hosts} usable hosts; \
         the roomiest has {cores_left} cores and {memory_left} left"
    )]
    Capacity {
        /// Nodes that were asked for.
        wanted: u32,
        /// Nodes that would fit.
        fitting: u32,
        /// What each needs.
        cores: u32,
        /// Likewise.
        memory: MemorySize,
        /// Hosts that were looked at.
        hosts: usize,
        /// The most that a host has left.
        cores_left: u32,
        /// Likewise.
        memory_left: MemorySize,
    },
    /// Not enough memory of machines is left.
    #[error("{wanted} nodes of {memory} do not fit: the machines have room for {fitting}")]
    Memory {
        /// Nodes that were asked for.
        wanted: u32,
        /// Nodes that would fit.
        fitting: u32,
        /// What each needs.
        memory: MemorySize,
    },
    /// Not enough cores of machines are left that can be given to one node alone.
    #[error(
        "{wanted} nodes with {cores} dedicated cores each do not fit: {left} of {total} cores for dedicated nodes are left"
    )]
    Dedicated {
        /// Nodes that were asked for.
        wanted: u32,
        /// Cores that each needs.
        cores: u32,
        /// Cores that are left.
        left: u32,
        /// Cores in all.
        total: u32,
    },
}

/// What a machine has, on which several hosts may be emulated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PhysicalMachine {
    /// Cores that can be given to one node alone.
    pub total: u32,
    /// Those that nobody has.
    pub left: u32,
    /// Memory that nobody has, in MiB.
    pub memory_mib: u32,
}

impl PhysicalMachine {
    /// Gives a node what it needs; false, and nothing is given, if there is not enough.
    fn take(&mut self, need: NodeRequirements) -> bool {
        let cores = if need.mode == CpuMode::Dedicated { need.cores } else { 0 };
        let is_enough = self.left >= cores && self.memory_mib >= need.memory.mib();
        if is_enough {
            self.left -= cores;
            self.memory_mib -= need.memory.mib();
        }
        is_enough
    }
}

/// Chooses a host for each of `wanted` nodes. `taken` are hosts of the same cluster, whose switches are preferred, and whose
/// ports are in its partition already.
pub fn place_nodes(
    candidates: &[Candidate],
    machines: &[PhysicalMachine],
    need: NodeRequirements,
    wanted: u32,
    taken: &[Name],
) -> Result<Vec<Name>, PlacementError> {
    let mut leaves: BTreeMap<Guid, Vec<(&Candidate, u32)>> = BTreeMap::new();
    for candidate in candidates {
        let room = node_capacity(candidate, need, taken.contains(&candidate.host));
        leaves.entry(candidate.leaf).or_default().push((candidate, room));
    }
    let fitting: u32 = leaves.values().flatten().map(|(_, room)| room).sum();
    if fitting < wanted {
        return Err(PlacementError::Capacity {
            wanted,
            fitting,
            cores: need.cores,
            memory: need.memory,
            hosts: candidates.len(),
            cores_left: candidates.iter().map(|it| it.cores).max().unwrap_or(0),
            memory_left: candidates.iter().map(|it| it.memory).max().unwrap_or_default(),
        });
    }
    let mut machines = machines.to_vec();
    let mut chosen = Vec::new();
    for leaf in in_order(&leaves, wanted, taken) {
        fill(&leaves[&leaf], &mut machines, need, wanted as usize, &mut chosen);
        if chosen.len() == wanted as usize {
            return Ok(chosen);
        }
    }
    let sum = |part: fn(&PhysicalMachine) -> u32| machines.iter().map(part).sum::<u32>();
    if need.mode == CpuMode::Shared || sum(|machine| machine.left) >= need.cores {
        return Err(PlacementError::Memory { wanted, fitting: chosen.len() as u32, memory: need.memory });
    }
    let given = chosen.len() as u32 * need.cores;
    let (left, total) = (sum(|machine| machine.left) + given, sum(|machine| machine.total));
    Err(PlacementError::Dedicated { wanted, cores: need.cores, left, total })
}

/// Whether machines have room for a node on each of some hosts.
pub fn machines_fit(machines: &[PhysicalMachine], hosts: &[&Candidate], need: NodeRequirements) -> bool {
    let mut machines = machines.to_vec();
    hosts.iter().all(|host| machines.get_mut(host.machine).is_some_and(|machine| machine.take(need)))
}

/// Nodes that a host has room for.
pub fn node_capacity(candidate: &Candidate, need: NodeRequirements, is_member: bool) -> u32 {
    if candidate.keys < need.keys && !is_member {
        return 0;
    }
    let cores = candidate.cores / need.cores.max(1);
    let memory = candidate.memory.mib() / need.memory.mib().max(1);
    cores.min(memory).min(candidate.functions.into())
}

/// The switches in the order in which they are filled: those of the cluster itself, then the tightest that takes all, else
/// the roomiest.
fn in_order(leaves: &BTreeMap<Guid, Vec<(&Candidate, u32)>>, wanted: u32, taken: &[Name]) -> Vec<Guid> {
    let room = |leaf: &Guid| leaves[leaf].iter().map(|(_, room)| room).sum::<u32>();
    let is_ours = |leaf: &Guid| leaves[leaf].iter().any(|(candidate, _)| taken.contains(&candidate.host));
    let mut order: Vec<Guid> = leaves.keys().copied().collect();
    order.sort_by_key(|leaf| (!is_ours(leaf), std::cmp::Reverse(room(leaf)), *leaf));
    let ours: u32 = order.iter().filter(|leaf| is_ours(leaf)).map(room).sum();
    if ours < wanted {
        let rest = wanted - ours;
        let enough = order.iter().copied().filter(|leaf| !is_ours(leaf) && room(leaf) >= rest);
        // Of those that take all, the one that keeps the others whole; among equals, the first.
        if let Some(best) = enough.min_by_key(|leaf| (room(leaf), *leaf)) {
            order.retain(|leaf| *leaf != best);
            let at = order.iter().take_while(|leaf| is_ours(leaf)).count();
            order.insert(at, best);
        }
    }
    order
}

/// Gives nodes to the hosts of a switch, one to each before any gets a second, unused hosts first.
fn fill(
    hosts: &[(&Candidate, u32)],
    machines: &mut [PhysicalMachine],
    need: NodeRequirements,
    wanted: usize,
    chosen: &mut Vec<Name>,
) {
    let mut hosts: Vec<(&Candidate, u32)> = hosts.to_vec();
    hosts.sort_by_key(|(candidate, _)| (candidate.nodes, candidate.host.clone()));
    loop {
        let before = chosen.len();
        for (candidate, room) in &mut hosts {
            if chosen.len() == wanted {
                return;
            }
            let Some(machine) = machines.get_mut(candidate.machine) else { continue };
            if *room > 0 && machine.take(need) {
                *room -= 1;
                chosen.push(candidate.host.clone());
            }
        }
        if chosen.len() == before {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEED: NodeRequirements =
        NodeRequirements { cores: 1, memory: MemorySize::from_mib(384), mode: CpuMode::Shared, keys: 1 };

    const MACHINES: [PhysicalMachine; 1] = [PhysicalMachine { total: 0, left: 0, memory_mib: 65_536 }];

    fn hosts(leaves: &[u64], cores: u32) -> Vec<Candidate> {
        let candidate = |(index, leaf): (usize, &u64)| Candidate {
            host: format!("host-{index}").parse().unwrap(),
            leaf: Guid::from_wire(*leaf).unwrap(),
            cores,
            memory: MemorySize::from_mib(4096),
            functions: FUNCTIONS_MAX,
            keys: 10,
            nodes: 0,
            machine: 0,
        };
        leaves.iter().enumerate().map(candidate).collect()
    }

    fn names(names: &[&str]) -> Vec<Name> {
        names.iter().map(|name| name.parse().unwrap()).collect()
    }

    #[test]
    fn one_switch_is_better_than_two_and_unused_hosts_better_than_used_ones() {
        let mut hosts = hosts(&[1, 1, 2, 2, 2], 1);
        assert_eq!(place_nodes(&hosts, &MACHINES, NEED, 2, &[]), Ok(names(&["host-0", "host-1"])));
        assert_eq!(place_nodes(&hosts, &MACHINES, NEED, 3, &[]), Ok(names(&["host-2", "host-3", "host-4"])));
        hosts[2].nodes = 1;
        hosts[2].cores = 4;
        assert_eq!(place_nodes(&hosts, &MACHINES, NEED, 3, &[]), Ok(names(&["host-3", "host-4", "host-2"])));
    }

    #[test]
    fn growing_stays_at_the_switches_of_the_cluster() {
        let hosts = hosts(&[1, 1, 1, 2, 2, 2], 1);
        let taken = names(&["host-4"]);
        let mut rest = hosts.clone();
        rest[4].cores = 0;
        assert_eq!(place_nodes(&rest, &MACHINES, NEED, 2, &taken), Ok(names(&["host-3", "host-5"])));
        assert_eq!(
            place_nodes(&rest, &MACHINES, NEED, 3, &taken),
            Ok(names(&["host-3", "host-5", "host-0"]))
        );
    }

    #[test]
    fn what_does_not_fit_is_told_in_numbers() {
        let refused = place_nodes(&hosts(&[1, 2], 2), &MACHINES, NEED, 5, &[]).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "5 nodes of 1 cores and 384M do not fit: 4 would, on 2 usable hosts; the roomiest has 2 cores and 4G left"
        );
        assert_eq!(
            place_nodes(&hosts(&[1, 2], 2), &MACHINES, NEED, 4, &[]).map(|chosen| chosen.len()),
            Ok(4)
        );
    }

    #[test]
    fn dedicated_cores_of_a_machine_are_given_once() {
        let need = NodeRequirements { mode: CpuMode::Dedicated, ..NEED };
        let machines = [PhysicalMachine { left: 1, total: 1, ..MACHINES[0] }];
        assert_eq!(place_nodes(&hosts(&[1, 1], 4), &machines, need, 1, &[]), Ok(names(&["host-0"])));
        let refused = place_nodes(&hosts(&[1, 1], 4), &machines, need, 2, &[]);
        assert_eq!(refused, Err(PlacementError::Dedicated { wanted: 2, cores: 1, left: 1, total: 1 }));
    }

    #[test]
    fn memory_of_a_machine_is_given_once_whatever_hosts_it_plays() {
        let machines = [PhysicalMachine { memory_mib: 1000, ..MACHINES[0] }];
        assert_eq!(
            place_nodes(&hosts(&[1, 1, 1], 4), &machines, NEED, 2, &[]),
            Ok(names(&["host-0", "host-1"]))
        );
        let refused = place_nodes(&hosts(&[1, 1, 1], 4), &machines, NEED, 3, &[]);
        assert_eq!(refused, Err(PlacementError::Memory { wanted: 3, fitting: 2, memory: NEED.memory }));
    }

    #[test]
    fn a_port_whose_table_is_full_takes_only_clusters_it_is_in() {
        let mut hosts = hosts(&[1, 1], 4);
        hosts[0].keys = 0;
        assert_eq!(place_nodes(&hosts, &MACHINES, NEED, 1, &[]), Ok(names(&["host-1"])));
        hosts[1].cores = 0;
        assert_eq!(place_nodes(&hosts, &MACHINES, NEED, 1, &names(&["host-0"])), Ok(names(&["host-0"])));
    }
}
