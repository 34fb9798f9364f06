//! How a virtual machine comes to run: found running, or made step by step. What fails in between leaves nothing behind.

use std::sync::Arc;

use controller_api::agent::VmOrder;
use controller_api::cluster::CpuMode;
use tokio::sync::watch;

use super::{Remains, Vm, Wanted, wait_for_end};
use crate::accelerator::Kernel;
use crate::capacity::Given;
use crate::cores::Cores;
use crate::disk;
use crate::domain::{Adapter, Backing, Boot, Cpus, Disk, Domain, Mark, order_digest};
use crate::fabric::Attachment;
use crate::hypervisor::HypervisorError;
use crate::image::CheckedImage;
use crate::place::check_readable;
use crate::promise;
use crate::room::{self, RoomError};
use crate::told_whole;

/// Why a virtual machine does not run.
#[derive(Debug)]
pub(super) enum StartError {
    /// Something else is wanted meanwhile.
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
        let (hypervisor, instance) = (&self.shared.hypervisor, self.shared.place.instance());
        // Also one that was made while the connection to libvirt broke.
        match hypervisor.find(instance, self.id).await? {
            Some(mark) if mark.is_for(&self.host, order) => {
                let given = Given { cores: mark.cores, memory: mark.memory };
                self.shared.adopt(self.id, given);
                // Where it was told to run is not known.
                self.shared.runs(order, Cores::default()).await;
                self.attach(order).await;
                tracing::info!(vm = %self.id, label = order.label, "found running");
                return Ok(());
            }
            Some(_) => hypervisor.destroy(instance, self.id).await?,
            None => {}
        }
        let had_disk = self.shared.place.vm(self.id).overlay.exists();
        let made = self.make(order).await;
        if made.is_err() {
            // A disk that was there before this start has somebody's files on it.
            let remains = if had_disk { Remains::Disk } else { Remains::Nothing };
            if let Err(why) = self.clear_away(remains).await {
                return Err(StartError::Later(why));
            }
        }
        made
    }

    async fn make(&mut self, order: &Arc<VmOrder>) -> Result<(), StartError> {
        let image = self.check_image(order).await?;
        let given = self.shared.take(order).await.map_err(|full| StartError::Never(full.to_string()))?;
        let never = |error: &dyn std::error::Error| StartError::Never(told_whole(error));
        let files = self.shared.place.vm(self.id);
        let qemu = self.shared.qemu_user();
        let user = qemu.map(|qemu| self.shared.users.of(self.id, qemu)).transpose();
        let user =
            user.map_err(|error| StartError::Never(format!("there is no user for its QEMU: {error}")))?;
        if let Some(user) = user {
            self.shared.place.check_reachable(user).map_err(|error| never(&error))?;
            for file in [&image.root, &image.kernel, &image.initrd] {
                check_readable(file, user).map_err(|error| never(&error))?;
            }
        }
        files.make(user).map_err(|error| never(&error))?;
        {
            let _room = self.shared.room.lock().await;
            // What is there was given room when it was made.
            if !files.overlay.exists() {
                self.find_room(&image).await.map_err(|error| never(&error))?;
            }
            disk::make_overlay(&files, &image, user).await.map_err(|error| never(&error))?;
        }
        disk::make_seed(&files, order, user).await.map_err(|error| never(&error))?;
        self.check_wanted()?;
        self.attach(order).await;
        let kernel = Kernel { kernel: image.kernel.clone(), initrd: image.initrd.clone() };
        let accelerator = self.shared.accelerators.choose(kernel, qemu).await;
        self.check_wanted()?;
        let floating = self.shared.floating();
        let domain = |backing| {
            let cpus = match order.mode {
                CpuMode::Shared => Cpus::Floating(floating.clone()),
                CpuMode::Dedicated => {
                    Cpus::Pinned { cores: given.cores.clone(), emulation: floating.clone(), backing }
                }
            };
            Domain {
                mark: Mark {
                    instance: self.shared.place.instance().to_owned(),
                    id: self.id,
                    host: self.host.clone(),
                    order: order_digest(order),
                    cores: given.cores.clone(),
                    memory: given.memory,
                },
                title: &order.label,
                accelerator,
                cores: order.cores,
                memory: order.memory,
                cpus,
                boot: Boot {
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
            CpuMode::Shared => self.shared.hypervisor.create(domain(Backing::Pages)).await?,
            CpuMode::Dedicated => {
                self.create_backed(order, domain).await?;
                let kept = promise::check(&self.shared.place, self.id, &given).await;
                kept.map_err(|broken| StartError::Never(broken.to_string()))?;
            }
        }
        self.shared.runs(order, floating).await;
        tracing::info!(vm = %self.id, label = order.label, ?accelerator, "started");
        Ok(())
    }

    /// Finds room for a disk; disks that rest make way for it.
    async fn find_room(&self, image: &CheckedImage) -> Result<(), RoomError> {
        loop {
            match room::check(&self.shared.place, image) {
                Err(RoomError::Full { .. }) if self.shared.evict_rested().await => {}
                found => return found,
            }
        }
    }

    /// With huge pages if there are enough of them and libvirt takes them, else with ordinary ones.
    async fn create_backed(
        &self,
        order: &VmOrder,
        domain: impl Fn(Backing) -> String,
    ) -> Result<(), HypervisorError> {
        if promise::huge_pages_suffice(order.memory) {
            match self.shared.hypervisor.create(domain(Backing::HugePages)).await {
                Err(HypervisorError::Refused { message }) => {
                    tracing::info!(vm = %self.id, "no huge pages: {message}");
                }
                created => return created,
            }
        }
        self.shared.hypervisor.create(domain(Backing::Pages)).await
    }

    async fn check_image(&mut self, order: &Arc<VmOrder>) -> Result<CheckedImage, StartError> {
        let (shared, image) = (Arc::clone(&self.shared), order.image.clone());
        // Goes on if nobody waits any more: what was found out is kept for the next.
        let checking = tokio::spawn(async move {
            let mut images = shared.images.clone().lock_owned().await;
            tokio::task::spawn_blocking(move || images.check(&image)).await.expect("checking does not panic")
        });
        let checked = tokio::select! {
            checked = checking => checked.expect("checking does not panic"),
            () = wait_for_end(&mut self.wanted) => {
                return Err(StartError::Interrupted);
            }
        };
        checked.map_err(|error| StartError::Never(format!("image {}: {error}", order.image.name)))
    }

    pub(super) async fn attach(&self, order: &VmOrder) {
        let files = self.shared.place.vm(self.id);
        let (guest, fabric) = (files.nic_guest, files.nic_fabric);
        let (node, adapter, sl) =
            (self.host.clone(), order.adapter.clone(), order.context.sl.unwrap_or_default());
        let attachment = Attachment { node, adapter, sl, guest, fabric };
        self.shared.fabric.attach(self.id, attachment).await;
    }

    fn check_wanted(&mut self) -> Result<(), StartError> {
        let still = |wanted: &watch::Receiver<Wanted>| matches!(*wanted.borrow(), Wanted::Run(_));
        if still(&self.wanted) { Ok(()) } else { Err(StartError::Interrupted) }
    }
}
