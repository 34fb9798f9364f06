//! What all virtual machines of an agent have in common.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use controller_api::agent::VmOrder;
use tokio::sync::watch;
use tokio::time::Instant;
use uuid::Uuid;

use crate::accelerator::AcceleratorProbe;
use crate::capacity::{Allocation, Allocations, InsufficientCapacity};
use crate::cpu_set::CpuSet;
use crate::domain::domain_name;
use crate::fabric::FabricAttachments;
use crate::hypervisor::Hypervisor;
use crate::image::ImageCache;
use crate::reports::Reports;
use crate::retention::RetainedDisks;
use crate::state_dir::{QemuUser, StateDir};
use crate::users::QemuUsers;

/// Where libvirt logs what QEMU says.
const LOGS: &str = "/var/log/libvirt/qemu";

/// What all virtual machines of an agent have in common.
#[derive(Debug)]
pub struct AgentContext {
    pub state_dir: Arc<StateDir>,
    pub hypervisor: Hypervisor,
    /// ImageCache that were found right. Held while one is read.
    pub images: Arc<tokio::sync::Mutex<ImageCache>>,
    /// Held from a look for room on the disk until something was put there.
    pub disk_space: tokio::sync::Mutex<()>,
    /// Disks of removed virtual machines.
    pub retained_disks: RetainedDisks,
    /// Who each QEMU runs as.
    pub users: QemuUsers,
    pub fabric: Arc<FabricAttachments>,
    pub reports: Arc<Reports>,
    /// How virtual machines run.
    pub accelerator_probe: Arc<AcceleratorProbe>,
    allocations: Mutex<Allocations>,
    /// Domains that were affinities where to run; held while they are affinities.
    affinities: tokio::sync::Mutex<BTreeMap<Uuid, CpuAffinity>>,
    running_vms: watch::Sender<RunningVms>,
    /// What libvirt said at first; nothing may be started before.
    surveyed: watch::Sender<Option<HypervisorSurvey>>,
}

/// What is kept about files of virtual machines.
#[derive(Debug)]
pub struct FileTables {
    /// Disks of removed virtual machines.
    pub retained_disks: RetainedDisks,
    /// Whose files they are.
    pub users: QemuUsers,
}

/// Virtual machines that run.
#[derive(Clone, Debug)]
pub struct RunningVms {
    /// When libvirt was asked.
    pub taken: Instant,
    pub running: Arc<BTreeSet<Uuid>>,
}

/// What libvirt said at first.
#[derive(Clone, Copy, Debug)]
pub struct HypervisorSurvey {
    /// Who QEMU runs as.
    pub user: Option<QemuUser>,
}

/// Where a domain was affinities to run.
#[derive(Debug)]
struct CpuAffinity {
    vcpus: u32,
    dedicated: bool,
    cores: CpuSet,
}

impl AgentContext {
    /// Nothing runs yet.
    pub fn new(
        state_dir: Arc<StateDir>,
        hypervisor: Hypervisor,
        fabric: Arc<FabricAttachments>,
        reports: Arc<Reports>,
        accelerator_probe: Arc<AcceleratorProbe>,
        allocations: Allocations,
        files: FileTables,
    ) -> Self {
        let FileTables { retained_disks, users } = files;
        let images = Arc::new(tokio::sync::Mutex::new(ImageCache::open(state_dir.image_cache_path())));
        let nothing = RunningVms { taken: Instant::now(), running: Arc::default() };
        Self {
            state_dir,
            hypervisor,
            images,
            disk_space: tokio::sync::Mutex::default(),
            retained_disks,
            users,
            fabric,
            reports,
            accelerator_probe,
            allocations: Mutex::new(allocations),
            affinities: tokio::sync::Mutex::default(),
            running_vms: watch::Sender::new(nothing),
            surveyed: watch::Sender::new(None),
        }
    }

    /// Comes back when libvirt was asked what is there.
    pub async fn ready(&self) {
        // The sender lives as long as we do.
        let _ = self.surveyed.subscribe().wait_for(Option::is_some).await;
    }

    /// Whether libvirt was asked what is there.
    pub fn is_surveyed(&self) -> bool {
        self.surveyed.borrow().is_some()
    }

    /// Notes what libvirt said at first.
    pub fn set_survey(&self, survey: HypervisorSurvey) {
        self.surveyed.send_replace(Some(survey));
    }

    /// Who QEMU runs as.
    pub fn qemu_user(&self) -> Option<QemuUser> {
        self.surveyed.borrow().and_then(|survey| survey.user)
    }

    /// Looks at what runs, as they are taken.
    pub fn running_vms(&self) -> watch::Receiver<RunningVms> {
        self.running_vms.subscribe()
    }

    /// Notes what runs.
    pub fn set_running_vms(&self, snapshot: RunningVms) {
        self.running_vms.send_replace(snapshot);
    }

    /// Time has passed for disks that rest.
    pub async fn age_retained_disks(self: &Arc<Self>, elapsed: Duration) {
        let this = Arc::clone(self);
        let passed = tokio::task::spawn_blocking(move || this.retained_disks.advance(elapsed)).await;
        if let Ok(Err(error)) = passed {
            tracing::warn!("disks that have rested cannot be deleted: {error}");
        }
    }

    /// Deletes the disk that has rested longest, to make room; whether there was one.
    pub async fn evict_retained_disk(self: &Arc<Self>) -> bool {
        let this = Arc::clone(self);
        let evicted = tokio::task::spawn_blocking(move || this.retained_disks.evict_oldest()).await;
        match evicted {
            Ok(Ok(evicted)) => evicted.is_some(),
            Ok(Err(error)) => {
                tracing::warn!("a disk that rests cannot be deleted: {error}");
                false
            }
            Err(_) => false,
        }
    }

    /// Gives a virtual machine what it needs of the machine. Who floats makes room first.
    pub async fn allocate(&self, order: &VmOrder) -> Result<Allocation, InsufficientCapacity> {
        let allocation = self.allocations().allocate(order)?;
        self.publish_capacity();
        self.update_affinities().await;
        Ok(allocation)
    }

    /// Notes what a virtual machine has that was found running.
    pub fn adopt(&self, id: Uuid, allocation: Allocation) {
        self.allocations().adopt(id, allocation);
        self.publish_capacity();
    }

    /// Takes back what a virtual machine had. It must not run any more.
    pub async fn release(&self, id: Uuid) {
        self.affinities.lock().await.remove(&id);
        self.allocations().release(id);
        self.publish_capacity();
        self.update_affinities().await;
    }

    /// What a virtual machine has.
    pub fn allocation(&self, id: Uuid) -> Allocation {
        self.allocations().allocation(id)
    }

    /// CpuSet that nobody has to himself.
    pub fn shared_cores(&self) -> CpuSet {
        self.allocations().shared_cores()
    }

    /// A domain runs; it was affinities to stay on these cores, as far as is known.
    pub async fn note_running(&self, order: &VmOrder, cores: CpuSet) {
        let dedicated = !self.allocation(order.id).cores.is_empty();
        self.affinities.lock().await.insert(order.id, CpuAffinity { vcpus: order.cores, dedicated, cores });
        // The cores that float may be others by now.
        self.update_affinities().await;
    }

    /// Tells every domain that runs where the cores are that nobody has to himself.
    async fn update_affinities(&self) {
        let (mut affinities, instance) = (self.affinities.lock().await, self.state_dir.instance());
        let shared_cores = self.shared_cores();
        for (id, domain) in affinities.iter_mut().filter(|(_, domain)| domain.cores != shared_cores) {
            let confined = match domain.dedicated {
                true => self.hypervisor.pin_emulator(instance, *id, &shared_cores).await,
                false => self.hypervisor.pin_domain(instance, *id, domain.vcpus, &shared_cores).await,
            };
            match confined {
                Ok(()) => domain.cores = shared_cores.clone(),
                // It may have ended just now; if it runs, the next change tries again.
                Err(error) => tracing::warn!(vm = %id, "cannot be kept on cores {shared_cores}: {error}"),
            }
        }
    }

    fn publish_capacity(&self) {
        let (cores, memory_mib) = {
            let allocations = self.allocations();
            (allocations.cores(), allocations.memory())
        };
        self.reports.set_machine(|machine| (machine.cores, machine.memory_mib) = (cores, memory_mib));
    }

    fn allocations(&self) -> MutexGuard<'_, Allocations> {
        self.allocations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes what libvirt has logged about a virtual machine that is gone: its name is never used again.
pub fn remove_logs(instance: &str, id: Uuid) {
    let name = domain_name(instance, id);
    for suffix in ["log", "log.0", "log.1", "log.2"] {
        // Where logs are elsewhere, or belong to somebody else, they stay.
        let _ = std::fs::remove_file(Path::new(LOGS).join(format!("{name}.{suffix}")));
    }
}
