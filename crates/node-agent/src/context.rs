//! State shared by all virtual machines of an agent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use controller_api::agent::VmSpec;
use tokio::sync::watch;
use tokio::time::Instant;
use uuid::Uuid;

use crate::accelerator::AcceleratorProbe;
use crate::capacity::{Allocation, Allocations, InsufficientCapacity};
use crate::cpu_set::CpuSet;
use crate::fabric::FabricAttachments;
use crate::hypervisor::Hypervisor;
use crate::image::ImageCache;
use crate::reports::Reports;
use crate::retention::RetainedDisks;
use crate::state_dir::{QemuUser, StateDir};
use crate::users::QemuUsers;

/// State shared by all virtual machines of an agent.
#[derive(Debug)]
pub struct AgentContext {
    pub state_dir: Arc<StateDir>,
    pub hypervisor: Hypervisor,
    /// Locked while an image is read.
    pub images: Arc<tokio::sync::Mutex<ImageCache>>,
    /// Locked from a check for disk space until the disk is created.
    pub disk_space: tokio::sync::Mutex<()>,
    /// Disks of removed virtual machines.
    pub retained_disks: RetainedDisks,
    /// Users of QEMU processes.
    pub users: QemuUsers,
    pub fabric: Arc<FabricAttachments>,
    pub reports: Arc<Reports>,
    pub accelerator_probe: Arc<AcceleratorProbe>,
    allocations: Mutex<Allocations>,
    /// CPU affinity of running domains; locked while it is changed.
    affinities: tokio::sync::Mutex<BTreeMap<Uuid, CpuAffinity>>,
    running_vms: watch::Sender<RunningVms>,
    /// Result of the survey at start; nothing may be started before it is set.
    surveyed: watch::Sender<Option<HypervisorSurvey>>,
}

/// Persistent records about files of virtual machines.
#[derive(Debug)]
pub struct FileTables {
    pub retained_disks: RetainedDisks,
    pub users: QemuUsers,
}

/// The running virtual machines at one time.
#[derive(Clone, Debug)]
pub struct RunningVms {
    /// When libvirt was asked.
    pub taken: Instant,
    pub running: Arc<BTreeSet<Uuid>>,
}

/// Result of the survey of libvirt at start.
#[derive(Clone, Copy, Debug)]
pub struct HypervisorSurvey {
    /// User of QEMU processes, if libvirt names it.
    pub user: Option<QemuUser>,
}

/// CPU affinity of a domain.
#[derive(Debug)]
struct CpuAffinity {
    vcpus: u32,
    dedicated: bool,
    cores: CpuSet,
}

impl AgentContext {
    /// A context without virtual machines.
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

    /// Waits until the survey of libvirt is complete.
    pub async fn ready(&self) {
        // Cannot fail: the sender lives as long as `self`.
        let _ = self.surveyed.subscribe().wait_for(Option::is_some).await;
    }

    /// Whether the survey of libvirt is complete.
    pub fn is_surveyed(&self) -> bool {
        self.surveyed.borrow().is_some()
    }

    /// Stores the result of the survey; starts become possible.
    pub fn set_survey(&self, survey: HypervisorSurvey) {
        self.surveyed.send_replace(Some(survey));
    }

    /// User of QEMU processes, if known.
    pub fn qemu_user(&self) -> Option<QemuUser> {
        self.surveyed.borrow().and_then(|survey| survey.user)
    }

    /// The running virtual machines, as polled.
    pub fn running_vms(&self) -> watch::Receiver<RunningVms> {
        self.running_vms.subscribe()
    }

    /// Stores a poll of the running virtual machines.
    pub fn set_running_vms(&self, snapshot: RunningVms) {
        self.running_vms.send_replace(snapshot);
    }

    /// Adds `elapsed` to the age of retained disks and deletes expired ones.
    pub async fn age_retained_disks(self: &Arc<Self>, elapsed: Duration) {
        let this = Arc::clone(self);
        let passed = tokio::task::spawn_blocking(move || this.retained_disks.advance(elapsed)).await;
        if let Ok(Err(error)) = passed {
            tracing::warn!("cannot delete expired disks: {error}");
        }
    }

    /// Deletes the oldest retained disk to free space. Returns whether there was one.
    pub async fn evict_retained_disk(self: &Arc<Self>) -> bool {
        let this = Arc::clone(self);
        let evicted = tokio::task::spawn_blocking(move || this.retained_disks.evict_oldest()).await;
        match evicted {
            Ok(Ok(evicted)) => evicted.is_some(),
            Ok(Err(error)) => {
                tracing::warn!("cannot delete a retained disk: {error}");
                false
            }
            Err(_) => false,
        }
    }

    /// Allocates cores and memory for a VM spec, and moves shared virtual machines off newly dedicated cores.
    pub async fn allocate(&self, order: &VmSpec) -> Result<Allocation, InsufficientCapacity> {
        let allocation = self.allocations().allocate(order)?;
        self.publish_capacity();
        self.update_affinities().await;
        Ok(allocation)
    }

    /// Records the allocation of a virtual machine that was found running.
    pub fn adopt(&self, id: Uuid, allocation: Allocation) {
        self.allocations().adopt(id, allocation);
        self.publish_capacity();
    }

    /// Frees the allocation of a virtual machine, which must not run any more.
    pub async fn release(&self, id: Uuid) {
        self.affinities.lock().await.remove(&id);
        self.allocations().release(id);
        self.publish_capacity();
        self.update_affinities().await;
    }

    /// The allocation of a virtual machine; empty if it has none.
    pub fn allocation(&self, id: Uuid) -> Allocation {
        self.allocations().allocation(id)
    }

    /// Cores that are not dedicated to a virtual machine.
    pub fn shared_cores(&self) -> CpuSet {
        self.allocations().shared_cores()
    }

    /// Records that a domain runs with this CPU affinity; an empty set means unknown.
    pub async fn note_running(&self, order: &VmSpec, cores: CpuSet) {
        let dedicated = !self.allocation(order.id).cores.is_empty();
        self.affinities.lock().await.insert(order.id, CpuAffinity { vcpus: order.cores, dedicated, cores });
        // The shared cores may have changed in the meantime.
        self.update_affinities().await;
    }

    /// Sets the affinity of every running domain to the current shared cores, except for pinned vCPUs.
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
                // The domain may have ended; otherwise the next change retries.
                Err(error) => {
                    tracing::warn!(vm = %id, "cannot set the CPU affinity to {shared_cores}: {error}")
                }
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
