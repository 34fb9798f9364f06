//! What the machine has, and who was allocation what of it. Nothing is allocation twice.

use std::collections::BTreeMap;

use controller_api::agent::Share;
use controller_api::cluster::CpuMode;
use controller_api::{MemorySize, agent::VmOrder};
use thiserror::Error;
use uuid::Uuid;

use crate::cpu_set::CpuSet;

/// What the machine has for virtual machines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostCapacity {
    /// Every core that may be used at all.
    pub cores: CpuSet,
    /// Those of them that nobody has to himself: emulation, shared virtual machines and the host run there.
    pub reserved: CpuSet,
    /// Memory that guests may have in all.
    pub memory: MemorySize,
}

/// A machine that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{reserve} cores are to be reserved; it must be at least 1, and the machine has {cores}")]
pub struct InvalidReserve {
    reserve: u32,
    cores: u32,
}

impl HostCapacity {
    /// A machine that keeps its lowest `reserve` cores for itself.
    pub fn new(cores: CpuSet, reserve: u32, memory: MemorySize) -> Result<Self, InvalidReserve> {
        if reserve == 0 || reserve > cores.count() {
            return Err(InvalidReserve { reserve, cores: cores.count() });
        }
        let reserved = cores.iter().take(reserve as usize).collect();
        Ok(Self { cores, reserved, memory })
    }

    fn offered(&self) -> CpuSet {
        self.cores.without(&self.reserved)
    }
}

/// What a virtual machine was allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocation {
    /// CpuSet it has to itself; none in shared mode.
    pub cores: CpuSet,
    pub memory: MemorySize,
}

/// Why a virtual machine has no place.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum InsufficientCapacity {
    /// There are not enough cores.
    #[error(
        "needs {requested} {} of its own; {offered} of {total} cores are for virtual machines, {allocated} allocated",
        cores(*.requested)
    )]
    Cores {
        requested: u32,
        /// CpuSet of the machine.
        total: u32,
        /// What may be allocation away of them.
        offered: u32,
        allocated: u32,
    },
    /// There is not enough memory.
    #[error("needs {requested} of memory; {offered} MiB are for virtual machines, {allocated} MiB allocated")]
    Memory {
        requested: MemorySize,
        /// What may be allocation away.
        offered: u32,
        allocated: u32,
    },
}

const fn cores(count: u32) -> &'static str {
    if count == 1 { "core" } else { "cores" }
}

/// Who was allocation what.
#[derive(Debug)]
pub struct Allocations {
    machine: HostCapacity,
    allocations: BTreeMap<Uuid, Allocation>,
}

impl Allocations {
    /// Nobody has anything.
    pub const fn new(machine: HostCapacity) -> Self {
        Self { machine, allocations: BTreeMap::new() }
    }

    /// Gives a virtual machine what it needs, or says why not. Who has something already keeps it.
    pub fn allocate(&mut self, order: &VmOrder) -> Result<Allocation, InsufficientCapacity> {
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
                let free = self.machine.offered().without(&self.dedicated());
                if order.cores > free.count() {
                    let Share { total: offered, used } = self.cores();
                    let total = self.machine.cores.count();
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

    /// Notes what a virtual machine has that was found running.
    pub fn adopt(&mut self, id: Uuid, allocation: Allocation) {
        self.allocations.insert(id, allocation);
    }

    /// Takes back what a virtual machine had.
    pub fn release(&mut self, id: Uuid) {
        self.allocations.remove(&id);
    }

    /// What a virtual machine has.
    pub fn allocation(&self, id: Uuid) -> Allocation {
        self.allocations.get(&id).cloned().unwrap_or_default()
    }

    /// CpuSet that nobody has to himself.
    pub fn shared_cores(&self) -> CpuSet {
        self.machine.cores.without(&self.dedicated())
    }

    /// CpuSet for dedicated virtual machines.
    pub fn cores(&self) -> Share {
        Share { total: self.machine.offered().count(), used: self.dedicated().count() }
    }

    /// MiB for guests.
    pub fn memory(&self) -> Share {
        let used = self.allocations.values().map(|allocation| allocation.memory.mib());
        Share { total: self.machine.memory.mib(), used: used.fold(0, u32::saturating_add) }
    }

    fn dedicated(&self) -> CpuSet {
        self.allocations.values().flat_map(|allocation| allocation.cores.iter()).collect()
    }
}
