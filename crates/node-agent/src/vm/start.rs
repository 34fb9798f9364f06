//! Starts a virtual machine: adopts its running domain, or creates disks, fabric attachment and domain. A failed start is
//! rolled back.

use std::io;
use std::sync::Arc;

use controller_api::Name;
use controller_api::agent::VmSpec;
use controller_api::cluster::CpuMode;
use thiserror::Error;
use tokio::sync::watch;

use super::{DesiredState, Keep, TearDownError, Vm, wait_until_not_run};
use crate::accelerator::ProbeKernel;
use crate::capacity::{Allocation, InsufficientCapacity};
use crate::cpu_set::CpuSet;
use crate::disk::{self, DiskError};
use crate::disk_space::{self, DiskSpaceError};
use crate::domain::{
    Adapter, CpuPlacement, DirectBoot, Disk, Domain, DomainMetadata, MemoryBacking, order_digest,
};
use crate::fabric::Attachment;
use crate::hypervisor::HypervisorError;
use crate::image::{ImageError, VerifiedImage};
use crate::pinning_check::{self, PinningViolation};
use crate::state_dir::{StateDirError, check_readable};

/// Why a virtual machine was not started.
#[derive(Debug)]
pub(super) enum StartError {
    /// Another state was desired in the meantime.
    Superseded,
    /// A temporary error: the start is retried after a pause.
    Retry(RetryCause),
    /// The spec cannot be fulfilled: the start is retried when the host spec changes.
    Failed(StartFailure),
}

/// A temporary error.
#[derive(Debug, Error)]
pub(super) enum RetryCause {
    #[error(transparent)]
    Hypervisor(HypervisorError),
    #[error(transparent)]
    TearDown(TearDownError),
}

/// Why a VM spec cannot be fulfilled.
#[derive(Debug, Error)]
pub(super) enum StartFailure {
    #[error("image {name}")]
    Image {
        name: Name,
        #[source]
        error: ImageError,
    },
    #[error(transparent)]
    Capacity(#[from] InsufficientCapacity),
    #[error("cannot assign a user id to its QEMU process")]
    User(#[source] io::Error),
    #[error(transparent)]
    Files(#[from] StateDirError),
    #[error(transparent)]
    DiskSpace(#[from] DiskSpaceError),
    #[error(transparent)]
    Disk(#[from] DiskError),
    #[error(transparent)]
    Hypervisor(HypervisorError),
    #[error(transparent)]
    Pinning(#[from] PinningViolation),
}

impl From<HypervisorError> for StartError {
    fn from(error: HypervisorError) -> Self {
        match error {
            HypervisorError::Unreachable { .. } => Self::Retry(RetryCause::Hypervisor(error)),
            HypervisorError::Refused { .. } => Self::Failed(StartFailure::Hypervisor(error)),
        }
    }
}

impl From<StartFailure> for StartError {
    fn from(failure: StartFailure) -> Self {
        Self::Failed(failure)
    }
}

impl Vm {
    /// Adopts the domain if it runs already, else creates it. On error, everything created is removed again.
    pub(super) async fn start(&mut self, order: &Arc<VmSpec>) -> Result<(), StartError> {
        let (hypervisor, instance) = (&self.context.hypervisor, self.context.state_dir.instance());
        // The domain may also have been created just before the connection to libvirt broke.
        match hypervisor.domain_metadata(instance, self.id).await? {
            Some(metadata) if metadata.matches(&self.host, order) => {
                let allocation = Allocation { cores: metadata.cores, memory: metadata.memory };
                self.context.adopt(self.id, allocation);
                // Its CPU affinity is unknown, so it is set again.
                self.context.note_running(order, CpuSet::default()).await;
                self.attach(order).await;
                tracing::info!(vm = %self.id, label = order.label, "found running");
                return Ok(());
            }
            Some(_) => hypervisor.destroy(instance, self.id).await?,
            None => {}
        }
        let had_disk = self.context.state_dir.vm(self.id).overlay.exists();
        let made = self.make(order).await;
        if made.is_err() {
            // A disk that existed before this start holds data of its tenant.
            let keep = if had_disk { Keep::Disk } else { Keep::Nothing };
            if let Err(error) = self.tear_down(keep).await {
                return Err(StartError::Retry(RetryCause::TearDown(error)));
            }
        }
        made
    }

    async fn make(&mut self, order: &Arc<VmSpec>) -> Result<(), StartError> {
        let image = self.check_image(order).await?;
        let allocation = self.context.allocate(order).await.map_err(StartFailure::from)?;
        let files = self.context.state_dir.vm(self.id);
        let qemu = self.context.qemu_user();
        let user = qemu.map(|qemu| self.context.users.user_for(self.id, qemu)).transpose();
        let user = user.map_err(StartFailure::User)?;
        if let Some(user) = user {
            self.context.state_dir.check_reachable(user).map_err(StartFailure::from)?;
            for file in [&image.root, &image.kernel, &image.initrd] {
                check_readable(file, user).map_err(StartFailure::from)?;
            }
        }
        files.make(user).map_err(StartFailure::from)?;
        {
            let _disk_space = self.context.disk_space.lock().await;
            // Space for an existing disk was reserved when it was created.
            if !files.overlay.exists() {
                self.make_disk_space(&image).await.map_err(StartFailure::from)?;
            }
            disk::make_overlay(&files, &image, user).await.map_err(StartFailure::from)?;
        }
        disk::make_seed(&files, order, user).await.map_err(StartFailure::from)?;
        self.check_still_desired()?;
        self.attach(order).await;
        let kernel = ProbeKernel { kernel: image.kernel.clone(), initrd: image.initrd.clone() };
        let accelerator = self.context.accelerator_probe.choose(kernel, qemu).await;
        self.check_still_desired()?;
        let shared_cores = self.context.shared_cores();
        let domain = |backing| {
            let cpus = match order.mode {
                CpuMode::Shared => CpuPlacement::Shared(shared_cores.clone()),
                CpuMode::Dedicated => CpuPlacement::Pinned {
                    cores: allocation.cores.clone(),
                    emulator_cores: shared_cores.clone(),
                    backing,
                },
            };
            Domain {
                metadata: DomainMetadata {
                    instance: self.context.state_dir.instance().to_owned(),
                    id: self.id,
                    host: self.host.clone(),
                    order_digest: order_digest(order),
                    cores: allocation.cores.clone(),
                    memory: allocation.memory,
                },
                title: &order.label,
                accelerator,
                cores: order.cores,
                memory: order.memory,
                cpus,
                boot: DirectBoot {
                    kernel: &image.kernel,
                    initrd: &image.initrd,
                    command_line: &image.command_line,
                },
                disks: vec![
                    Disk::Overlay { path: &files.overlay, base: &image.root, base_format: image.root_format },
                    Disk::ReadOnly(&files.seed),
                ],
                console: &files.console,
                channel: Some(&files.channel),
                adapter: Some(Adapter {
                    mac: match order.adapter.guid {
                        Some(_) => order.adapter.mac.of_wire(),
                        None => order.adapter.mac,
                    },
                    guest: &files.nic_guest,
                    fabric: &files.nic_fabric,
                }),
                user,
            }
            .to_xml()
        };
        match order.mode {
            CpuMode::Shared => self.context.hypervisor.create(domain(MemoryBacking::Pages)).await?,
            CpuMode::Dedicated => {
                self.create_backed(order, domain).await?;
                let checked = pinning_check::check(&self.context.state_dir, self.id, &allocation).await;
                checked.map_err(StartFailure::from)?;
            }
        }
        self.context.note_running(order, shared_cores).await;
        tracing::info!(vm = %self.id, label = order.label, ?accelerator, "started");
        Ok(())
    }

    /// Checks that there is space for a new disk; evicts retained disks, oldest first, to make space.
    async fn make_disk_space(&self, image: &VerifiedImage) -> Result<(), DiskSpaceError> {
        loop {
            match disk_space::check(&self.context.state_dir, image) {
                Err(DiskSpaceError::Full { .. }) if self.context.evict_retained_disk().await => {}
                found => return found,
            }
        }
    }

    /// Creates the domain with huge pages if enough are free and libvirt accepts them, else with ordinary pages.
    async fn create_backed(
        &self,
        order: &VmSpec,
        domain: impl Fn(MemoryBacking) -> String,
    ) -> Result<(), HypervisorError> {
        if pinning_check::huge_pages_suffice(order.memory) {
            match self.context.hypervisor.create(domain(MemoryBacking::HugePages)).await {
                Err(HypervisorError::Refused { message }) => {
                    tracing::info!(vm = %self.id, "huge pages not available, using ordinary pages: {message}");
                }
                created => return created,
            }
        }
        self.context.hypervisor.create(domain(MemoryBacking::Pages)).await
    }

    async fn check_image(&mut self, order: &Arc<VmSpec>) -> Result<VerifiedImage, StartError> {
        let (context, image) = (Arc::clone(&self.context), order.image.clone());
        // Continues when the start is superseded: the result is cached for the next virtual machine.
        let checking = tokio::spawn(async move {
            let mut images = context.images.clone().lock_owned().await;
            tokio::task::spawn_blocking(move || images.verify(&image))
                .await
                .expect("verification does not panic")
        });
        let checked = tokio::select! {
            checked = checking => checked.expect("verification does not panic"),
            () = wait_until_not_run(&mut self.desired) => {
                return Err(StartError::Superseded);
            }
        };
        checked.map_err(|error| {
            StartError::Failed(StartFailure::Image { name: order.image.name.clone(), error })
        })
    }

    pub(super) async fn attach(&self, order: &VmSpec) {
        let files = self.context.state_dir.vm(self.id);
        let (guest, fabric) = (files.nic_guest, files.nic_fabric);
        let (node, adapter, sl) =
            (self.host.clone(), order.adapter.clone(), order.context.sl.unwrap_or_default());
        let attachment = Attachment { node, adapter, sl, guest, fabric };
        self.context.fabric.attach(self.id, attachment).await;
    }

    fn check_still_desired(&mut self) -> Result<(), StartError> {
        let still =
            |desired: &watch::Receiver<DesiredState>| matches!(*desired.borrow(), DesiredState::Run(_));
        if still(&self.desired) { Ok(()) } else { Err(StartError::Superseded) }
    }
}
