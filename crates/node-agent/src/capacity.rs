//! What the machine has, and who was given what of it. Nothing is given twice.

use std::collections::BTreeMap;

use controller_api::agent::Share;
use controller_api::cluster::CpuMode;
use controller_api::{MemorySize, agent::VmOrder};
use thiserror::Error;
use uuid::Uuid;

use crate::cores::Cores;

/// What the machine has for virtual machines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Every core that may be used at all.
    pub cores: Cores,
    /// Those of them that nobody has to himself: emulation, shared virtual machines and the host run there.
    pub reserved: Cores,
    /// Memory that guests may have in all.
    pub memory: MemorySize,
}

/// A machine that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{reserve} cores are to be reserved; it must be at least 1, and the machine has {cores}")]
pub struct BadReserve {
    reserve: u32,
    cores: u32,
}

impl Machine {
    /// A machine that keeps its lowest `reserve` cores for itself.
    pub fn new(cores: Cores, reserve: u32, memory: MemorySize) -> Result<Self, BadReserve> {
        if reserve == 0 || reserve > cores.count() {
            return Err(BadReserve { reserve, cores: cores.count() });
        }
        let reserved = cores.iter().take(reserve as usize).collect();
        Ok(Self { cores, reserved, memory })
    }

    fn offered(&self) -> Cores {
        self.cores.without(&self.reserved)
    }
}

/// What a virtual machine was given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Given {
    /// Cores it has to itself; none in shared mode.
    pub cores: Cores,
    /// Memory.
    pub memory: MemorySize,
}

/// Why a virtual machine has no place.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DoesNotFit {
    /// There are not enough cores.
    #[error(
        "needs {needed} {} of its own; {offered} of {all} cores are for virtual machines, {given} given away",
        cores(*.needed)
    )]
    Cores {
        /// Asked for.
        needed: u32,
        /// Cores of the machine.
        all: u32,
        /// What may be given away of them.
        offered: u32,
        /// What others have.
        given: u32,
    },
    /// There is not enough memory.
    #[error("needs {needed} of memory; {offered} MiB are for virtual machines, {given} MiB given away")]
    Memory {
        /// Asked for.
        needed: MemorySize,
        /// What may be given away.
        offered: u32,
        /// What others have.
        given: u32,
    },
}

const fn cores(count: u32) -> &'static str {
    if count == 1 { "core" } else { "cores" }
}

/// Who was given what.
#[derive(Debug)]
pub struct Ledger {
    machine: Machine,
    given: BTreeMap<Uuid, Given>,
}

impl Ledger {
    /// Nobody has anything.
    pub const fn new(machine: Machine) -> Self {
        Self { machine, given: BTreeMap::new() }
    }

    /// Gives a virtual machine what it needs, or says why not. Who has something already keeps it.
    pub fn take(&mut self, order: &VmOrder) -> Result<Given, DoesNotFit> {
        if let Some(given) = self.given.get(&order.id) {
            return Ok(given.clone());
        }
        let memory = self.memory();
        if order.memory.mib() > memory.total.saturating_sub(memory.used) {
            let (needed, offered, given) = (order.memory, memory.total, memory.used);
            return Err(DoesNotFit::Memory { needed, offered, given });
        }
        let cores = match order.mode {
            CpuMode::Shared => Cores::default(),
            CpuMode::Dedicated => {
                let free = self.machine.offered().without(&self.dedicated());
                if order.cores > free.count() {
                    let (Share { total, used }, all) = (self.cores(), self.machine.cores.count());
                    return Err(DoesNotFit::Cores { needed: order.cores, all, offered: total, given: used });
                }
                free.iter().take(order.cores as usize).collect()
            }
        };
        let given = Given { cores, memory: order.memory };
        self.given.insert(order.id, given.clone());
        Ok(given)
    }

    /// Notes what a virtual machine has that was found running.
    pub fn adopt(&mut self, id: Uuid, given: Given) {
        self.given.insert(id, given);
    }

    /// Takes back what a virtual machine had.
    pub fn release(&mut self, id: Uuid) {
        self.given.remove(&id);
    }

    /// What a virtual machine has.
    pub fn of(&self, id: Uuid) -> Given {
        self.given.get(&id).cloned().unwrap_or_default()
    }

    /// Cores that nobody has to himself.
    pub fn floating(&self) -> Cores {
        self.machine.cores.without(&self.dedicated())
    }

    /// Cores for dedicated virtual machines.
    pub fn cores(&self) -> Share {
        Share { total: self.machine.offered().count(), used: self.dedicated().count() }
    }

    /// MiB for guests.
    pub fn memory(&self) -> Share {
        let used = self.given.values().map(|given| given.memory.mib());
        Share { total: self.machine.memory.mib(), used: used.fold(0, u32::saturating_add) }
    }

    fn dedicated(&self) -> Cores {
        self.given.values().flat_map(|given| given.cores.iter()).collect()
    }
}
