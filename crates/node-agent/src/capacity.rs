//! Cores and memory of the machine, and their allocation to virtual machines. Nothing is allocated twice.
//!
//! A dedicated core is a physical one: a virtual CPU runs on its first hardware thread, and the others stay idle. Threads of
//! one core share caches and execution units, so that another tenant on a sibling could slow it down and observe it.

use std::collections::BTreeMap;

use controller_api::agent::ResourceUse;
use controller_api::cluster::CpuMode;
use controller_api::{MemorySize, agent::VmSpec};
use thiserror::Error;
use uuid::Uuid;

use crate::cpu_set::CpuSet;

/// Cores and memory of the machine that the agent may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostCapacity {
    /// All usable cores.
    pub cores: CpuSet,
    /// The subset of `cores` that is never dedicated: it runs the host, QEMU's emulator threads and shared virtual machines.
    pub reserved: CpuSet,
    /// The hardware threads of each physical core. A CPU that is in none of them is a core of its own.
    siblings: Vec<CpuSet>,
    /// Memory for guests in total.
    pub memory: MemorySize,
}

/// The number of reserved cores is out of range.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("reserved cores must be between 1 and {cores}, got {reserve}")]
pub struct InvalidReserve {
    reserve: u32,
    cores: u32,
}

impl HostCapacity {
    /// Reserves the lowest `reserve` physical cores. `siblings` are the hardware threads of each.
    pub fn new(
        cores: CpuSet,
        siblings: Vec<CpuSet>,
        reserve: u32,
        memory: MemorySize,
    ) -> Result<Self, InvalidReserve> {
        let mut capacity = Self { cores, reserved: CpuSet::default(), siblings, memory };
        let physical = capacity.first_threads(&capacity.cores);
        if reserve == 0 || reserve > physical.count() {
            return Err(InvalidReserve { reserve, cores: physical.count() });
        }
        let reserved = capacity.with_siblings(&physical.iter().take(reserve as usize).collect());
        capacity.reserved = reserved.iter().filter(|cpu| capacity.cores.contains(*cpu)).collect();
        Ok(capacity)
    }

    /// The first hardware thread of every core that can be dedicated: the agent may use all its threads, and none is
    /// reserved.
    fn offered(&self) -> CpuSet {
        let free = self.cores.without(&self.reserved);
        let is_whole = |cpu: &u32| self.with_siblings(&CpuSet::from_iter([*cpu])).without(&free).is_empty();
        self.first_threads(&free).iter().filter(is_whole).collect()
    }

    /// The lowest thread of each physical core that has threads in a set.
    fn first_threads(&self, set: &CpuSet) -> CpuSet {
        let is_first = |cpu: &u32| {
            let mut lower = self.threads_of(*cpu).filter(|other| other < cpu);
            !lower.any(|other| set.contains(other))
        };
        set.iter().filter(is_first).collect()
    }

    /// The CPUs of a set, and all hardware threads of their cores.
    fn with_siblings(&self, set: &CpuSet) -> CpuSet {
        set.iter().chain(set.iter().flat_map(|cpu| self.threads_of(cpu))).collect()
    }

    fn threads_of(&self, cpu: u32) -> impl Iterator<Item = u32> {
        self.siblings.iter().filter(move |threads| threads.contains(cpu)).flat_map(CpuSet::iter)
    }
}

/// What is allocated to a virtual machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocation {
    /// Dedicated cores; empty in shared mode.
    pub cores: CpuSet,
    pub memory: MemorySize,
}

/// The machine has too few free cores or too little free memory.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum InsufficientCapacity {
    #[error(
        "{requested} dedicated {} requested, but {offered} of {total} cores can be dedicated and {allocated} of these are in use",
        cores(*.requested)
    )]
    Cores {
        requested: u32,
        /// Usable cores of the machine.
        total: u32,
        /// Cores that can be dedicated.
        offered: u32,
        allocated: u32,
    },
    #[error(
        "{requested} of memory requested, but {allocated} of {offered} MiB for virtual machines are in use"
    )]
    Memory {
        requested: MemorySize,
        /// Memory for virtual machines, in MiB.
        offered: u32,
        allocated: u32,
    },
}

const fn cores(count: u32) -> &'static str {
    if count == 1 { "core" } else { "cores" }
}

/// The allocations of all virtual machines of the machine.
#[derive(Debug)]
pub struct Allocations {
    machine: HostCapacity,
    allocations: BTreeMap<Uuid, Allocation>,
}

impl Allocations {
    /// No allocations yet.
    pub const fn new(machine: HostCapacity) -> Self {
        Self { machine, allocations: BTreeMap::new() }
    }

    /// Allocates cores and memory for a VM spec. An existing allocation of the virtual machine is returned unchanged.
    pub fn allocate(&mut self, order: &VmSpec) -> Result<Allocation, InsufficientCapacity> {
        if let Some(allocation) = self.allocations.get(&order.id) {
            return Ok(allocation.clone());
        }
        let memory = self.memory();
        if order.memory.mib() > memory.total.saturating_sub(memory.used) {
            let (requested, offered, allocated) = (order.memory, memory.total, memory.used);
            return Err(InsufficientCapacity::Memory { requested, offered, allocated });
        }
        let cores = match order.mode {
            CpuMode::Shared => CpuSet::default(),
            CpuMode::Dedicated => {
                let free = self.machine.offered().without(&self.machine.with_siblings(&self.dedicated()));
                if order.cores > free.count() {
                    let ResourceUse { total: offered, used } = self.cores();
                    let total = self.machine.first_threads(&self.machine.cores).count();
                    return Err(InsufficientCapacity::Cores {
                        requested: order.cores,
                        total,
                        offered,
                        allocated: used,
                    });
                }
                free.iter().take(order.cores as usize).collect()
            }
        };
        let allocation = Allocation { cores, memory: order.memory };
        self.allocations.insert(order.id, allocation.clone());
        Ok(allocation)
    }

    /// Records the allocation of a virtual machine that was found running.
    pub fn adopt(&mut self, id: Uuid, allocation: Allocation) {
        self.allocations.insert(id, allocation);
    }

    /// Frees the allocation of a virtual machine, if it has one.
    pub fn release(&mut self, id: Uuid) {
        self.allocations.remove(&id);
    }

    /// The allocation of a virtual machine; empty if it has none.
    pub fn allocation(&self, id: Uuid) -> Allocation {
        self.allocations.get(&id).cloned().unwrap_or_default()
    }

    /// CPUs whose cores are not dedicated to a virtual machine.
    pub fn shared_cores(&self) -> CpuSet {
        self.machine.cores.without(&self.machine.with_siblings(&self.dedicated()))
    }

    /// Cores that can be dedicated, and how many are.
    pub fn cores(&self) -> ResourceUse {
        let used = self.machine.first_threads(&self.machine.with_siblings(&self.dedicated()));
        ResourceUse { total: self.machine.offered().count(), used: used.count() }
    }

    /// Memory for guests and what is allocated of it, in MiB.
    pub fn memory(&self) -> ResourceUse {
        let used = self.allocations.values().map(|allocation| allocation.memory.mib());
        ResourceUse { total: self.machine.memory.mib(), used: used.fold(0, u32::saturating_add) }
    }

    fn dedicated(&self) -> CpuSet {
        self.allocations.values().flat_map(|allocation| allocation.cores.iter()).collect()
    }
}
