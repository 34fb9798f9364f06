//! How a virtual machine comes to run: found running, or made step by step. What fails in between leaves nothing behind.

use std::sync::Arc;

use controller_api::agent::VmOrder;
use controller_api::cluster::CpuMode;
use tokio::sync::watch;

use super::{DesiredState, Keep, Vm, wait_until_not_run};
use crate::accelerator::ProbeKernel;
use crate::capacity::Allocation;
use crate::cpu_set::CpuSet;
use crate::disk;
use crate::disk_space::{self, DiskSpaceError};
use crate::domain::{
    Adapter, CpuPlacement, DirectBoot, Disk, Domain, DomainMetadata, MemoryBacking, order_digest,
};
use crate::error_chain;
use crate::fabric::Attachment;
use crate::hypervisor::HypervisorError;
use crate::image::VerifiedImage;
use crate::pinning_check;
use crate::state_dir::check_readable;

/// Why a virtual machine does not run.
#[derive(Debug)]
pub(super) enum StartError {
    /// Something else is desired meanwhile.
    Interrupted,
    /// Not yet; says why.
    Later(String),
    /// Not as ordered; says why.
    Never(String),
}

impl From<HypervisorError> for StartError {
    fn from(error: HypervisorError) -> Self {
        match error {
            HypervisorError::Unreachable { .. } => Self::Later(error.to_string()),
            HypervisorError::Refused { .. } => Self::Never(error.to_string()),
        }
    }
}

impl Vm {
    /// Adopts its domain if there is one, or makes one.
    pub(super) async fn start(&mut self, order: &Arc<VmOrder>) -> Result<(), StartError> {
        let (hypervisor, instance) = (&self.context.hypervisor, self.context.state_dir.instance());
        // Also one that was made while the connection to libvirt broke.
        match hypervisor.domain_metadata(instance, self.id).await? {
            Some(metadata) if metadata.matches(&self.host, order) => {
                let allocation = Allocation { cores: metadata.cores, memory: metadata.memory };
                self.context.adopt(self.id, allocation);
                // Where it was told to run is not known.
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
            // A disk that was there before this start has somebody's files on it.
            let keep = if had_disk { Keep::Disk } else { Keep::Nothing };
            if let Err(why) = self.tear_down(keep).await {
                return Err(StartError::Later(why));
            }
        }
        made
    }

    async fn make(&mut self, order: &Arc<VmOrder>) -> Result<(), StartError> {
        let image = self.check_image(order).await?;
        let allocation =
            self.context.allocate(order).await.map_err(|full| StartError::Never(full.to_string()))?;
        let never = |error: &dyn std::error::Error| StartError::Never(error_chain(error));
        let files = self.context.state_dir.vm(self.id);
        let qemu = self.context.qemu_user();
        let user = qemu.map(|qemu| self.context.users.user_for(self.id, qemu)).transpose();
        let user =
            user.map_err(|error| StartError::Never(format!("there is no user for its QEMU: {error}")))?;
        if let Some(user) = user {
            self.context.state_dir.check_reachable(user).map_err(|error| never(&error))?;
            for file in [&image.root, &image.kernel, &image.initrd] {
                check_readable(file, user).map_err(|error| never(&error))?;
            }
        }
        files.make(user).map_err(|error| never(&error))?;
        {
            let _disk_space = self.context.disk_space.lock().await;
            // What is there was allocation room when it was made.
            if !files.overlay.exists() {
                self.make_disk_space(&image).await.map_err(|error| never(&error))?;
            }
            disk::make_overlay(&files, &image, user).await.map_err(|error| never(&error))?;
        }
        disk::make_seed(&files, order, user).await.map_err(|error| never(&error))?;
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
                    mac: order.adapter.mac,
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
                let kept = pinning_check::check(&self.context.state_dir, self.id, &allocation).await;
                kept.map_err(|broken| StartError::Never(broken.to_string()))?;
            }
        }
        self.context.note_running(order, shared_cores).await;
        tracing::info!(vm = %self.id, label = order.label, ?accelerator, "started");
        Ok(())
    }

    /// Finds room for a disk; disks that rest make way for it.
    async fn make_disk_space(&self, image: &VerifiedImage) -> Result<(), DiskSpaceError> {
        loop {
            match disk_space::check(&self.context.state_dir, image) {
                Err(DiskSpaceError::Full { .. }) if self.context.evict_retained_disk().await => {}
                found => return found,
            }
        }
    }

    /// With huge pages if there are enough of them and libvirt takes them, else with ordinary ones.
    async fn create_backed(
        &self,
        order: &VmOrder,
        domain: impl Fn(MemoryBacking) -> String,
    ) -> Result<(), HypervisorError> {
        if pinning_check::huge_pages_suffice(order.memory) {
            match self.context.hypervisor.create(domain(MemoryBacking::HugePages)).await {
                Err(HypervisorError::Refused { message }) => {
                    tracing::info!(vm = %self.id, "no huge pages: {message}");
                }
                created => return created,
            }
        }
        self.context.hypervisor.create(domain(MemoryBacking::Pages)).await
    }

    async fn check_image(&mut self, order: &Arc<VmOrder>) -> Result<VerifiedImage, StartError> {
        let (context, image) = (Arc::clone(&self.context), order.image.clone());
        // Goes on if nobody waits any more: what was found out is kept for the next.
        let checking = tokio::spawn(async move {
            let mut images = context.images.clone().lock_owned().await;
            tokio::task::spawn_blocking(move || images.verify(&image)).await.expect("checking does not panic")
        });
        let checked = tokio::select! {
            checked = checking => checked.expect("checking does not panic"),
            () = wait_until_not_run(&mut self.desired) => {
                return Err(StartError::Interrupted);
            }
        };
        checked.map_err(|error| StartError::Never(format!("image {}: {error}", order.image.name)))
    }

    pub(super) async fn attach(&self, order: &VmOrder) {
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
        if still(&self.desired) { Ok(()) } else { Err(StartError::Interrupted) }
    }
}
