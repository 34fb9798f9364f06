//! Placement of nodes on hosts and on the machines that emulate them. No I/O.

use controller_api::cluster::CpuMode;
use controller_api::{MemorySize, Name};
use fabric_compiler::packing::{SharedHost, pack};
use ib_wire::Guid;
use thiserror::Error;

/// Most virtual functions per adapter that guests can use: 15 of ConnectX-3's 16.
pub const FUNCTIONS_MAX: u8 = 15;

/// A usable host with its remaining resources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub host: Name,
    /// GUID of the switch it is cabled to.
    pub leaf: Guid,
    pub cores: u32,
    pub memory: MemorySize,
    pub functions: u8,
    /// P_Keys that its port and its switch port can still hold.
    pub keys: u16,
    /// Nodes on it, of all clusters.
    pub nodes: u32,
    /// Index of the physical machine. Emulated hosts on one machine share its cores.
    pub machine: usize,
}

/// Resources that one node needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeRequirements {
    pub cores: u32,
    pub memory: MemorySize,
    pub mode: CpuMode,
    /// Most P_Keys that the node will hold.
    pub keys: u16,
}

/// Why nodes do not fit.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NodePlacementError {
    /// The hosts have too few resources left; `cores_left` and `memory_left` are the maxima over all hosts.
    #[error(
        "{wanted} nodes with {cores} cores and {memory} do not fit: {hosts} usable hosts can take {fitting}; \
         at most {cores_left} cores and {memory_left} are left on one host"
    )]
    Capacity {
        wanted: u32,
        fitting: u32,
        cores: u32,
        memory: MemorySize,
        hosts: usize,
        cores_left: u32,
        memory_left: MemorySize,
    },
    /// The physical machines have too little memory left.
    #[error("{wanted} nodes with {memory} do not fit: the machines can take {fitting}")]
    Memory { wanted: u32, fitting: u32, memory: MemorySize },
    /// The physical machines have too few dedicated cores left.
    #[error(
        "{wanted} nodes with {cores} dedicated cores each do not fit: {left} of {total} cores for dedicated nodes are left"
    )]
    Dedicated { wanted: u32, cores: u32, left: u32, total: u32 },
}

/// A physical machine, on which several hosts may be emulated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PhysicalMachine {
    /// Cores for dedicated nodes.
    pub total: u32,
    /// Free cores for dedicated nodes.
    pub left: u32,
    /// Free memory, in MiB.
    pub memory_mib: u32,
}

impl PhysicalMachine {
    /// Allocates the resources of a node; `false` without any effect if there are too few.
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

/// Chooses a host for each of `wanted` nodes by [`pack`]; `taken` are the current hosts of the same cluster.
pub fn place_nodes(
    candidates: &[Candidate],
    machines: &[PhysicalMachine],
    need: NodeRequirements,
    wanted: u32,
    taken: &[Name],
) -> Result<Vec<Name>, NodePlacementError> {
    let shared_host = |candidate: &Candidate| {
        let is_ours = taken.contains(&candidate.host);
        let capacity = node_capacity(candidate, need, is_ours) as usize;
        SharedHost { switch: candidate.leaf, capacity, nodes: candidate.nodes as usize, is_ours }
    };
    let hosts: Vec<SharedHost> = candidates.iter().map(shared_host).collect();
    let fitting: usize = hosts.iter().map(|host| host.capacity).sum();
    if fitting < wanted as usize {
        return Err(NodePlacementError::Capacity {
            wanted,
            fitting: fitting as u32,
            cores: need.cores,
            memory: need.memory,
            hosts: candidates.len(),
            cores_left: candidates.iter().map(|it| it.cores).max().unwrap_or(0),
            memory_left: candidates.iter().map(|it| it.memory).max().unwrap_or_default(),
        });
    }
    let mut machines = machines.to_vec();
    let chosen = pack(&hosts, wanted as usize, |host| {
        machines.get_mut(candidates[host].machine).is_some_and(|machine| machine.take(need))
    });
    if chosen.len() == wanted as usize {
        return Ok(chosen.into_iter().map(|host| candidates[host].host.clone()).collect());
    }
    let sum = |part: fn(&PhysicalMachine) -> u32| machines.iter().map(part).sum::<u32>();
    if need.mode == CpuMode::Shared || sum(|machine| machine.left) >= need.cores {
        return Err(NodePlacementError::Memory { wanted, fitting: chosen.len() as u32, memory: need.memory });
    }
    let given = chosen.len() as u32 * need.cores;
    let (left, total) = (sum(|machine| machine.left) + given, sum(|machine| machine.total));
    Err(NodePlacementError::Dedicated { wanted, cores: need.cores, left, total })
}

/// Whether the machines can take one node on each of `hosts`.
pub fn machines_fit(machines: &[PhysicalMachine], hosts: &[&Candidate], need: NodeRequirements) -> bool {
    let mut machines = machines.to_vec();
    hosts.iter().all(|host| machines.get_mut(host.machine).is_some_and(|machine| machine.take(need)))
}

/// Number of nodes that a host can take. A port whose P_Key table is full takes only nodes of clusters it `is_member` of.
pub fn node_capacity(candidate: &Candidate, need: NodeRequirements, is_member: bool) -> u32 {
    if candidate.keys < need.keys && !is_member {
        return 0;
    }
    let cores = candidate.cores / need.cores.max(1);
    let memory = candidate.memory.mib() / need.memory.mib().max(1);
    cores.min(memory).min(candidate.functions.into())
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
    fn a_placement_error_names_the_remaining_resources() {
        let refused = place_nodes(&hosts(&[1, 2], 2), &MACHINES, NEED, 5, &[]).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "5 nodes with 1 cores and 384M do not fit: 2 usable hosts can take 4; at most 2 cores and 4G are left on one host"
        );
        assert_eq!(
            place_nodes(&hosts(&[1, 2], 2), &MACHINES, NEED, 4, &[]).map(|chosen| chosen.len()),
            Ok(4)
        );
    }

    #[test]
    fn dedicated_cores_of_a_machine_are_allocated_once() {
        let need = NodeRequirements { mode: CpuMode::Dedicated, ..NEED };
        let machines = [PhysicalMachine { left: 1, total: 1, ..MACHINES[0] }];
        assert_eq!(place_nodes(&hosts(&[1, 1], 4), &machines, need, 1, &[]), Ok(names(&["host-0"])));
        let refused = place_nodes(&hosts(&[1, 1], 4), &machines, need, 2, &[]);
        assert_eq!(refused, Err(NodePlacementError::Dedicated { wanted: 2, cores: 1, left: 1, total: 1 }));
    }

    #[test]
    fn memory_of_a_machine_is_allocated_once() {
        let machines = [PhysicalMachine { memory_mib: 1000, ..MACHINES[0] }];
        assert_eq!(
            place_nodes(&hosts(&[1, 1, 1], 4), &machines, NEED, 2, &[]),
            Ok(names(&["host-0", "host-1"]))
        );
        let refused = place_nodes(&hosts(&[1, 1, 1], 4), &machines, NEED, 3, &[]);
        assert_eq!(refused, Err(NodePlacementError::Memory { wanted: 3, fitting: 2, memory: NEED.memory }));
    }

    #[test]
    fn a_full_pkey_table_admits_only_member_clusters() {
        let mut hosts = hosts(&[1, 1], 4);
        hosts[0].keys = 0;
        assert_eq!(place_nodes(&hosts, &MACHINES, NEED, 1, &[]), Ok(names(&["host-1"])));
        hosts[1].cores = 0;
        assert_eq!(place_nodes(&hosts, &MACHINES, NEED, 1, &names(&["host-0"])), Ok(names(&["host-0"])));
    }
}
