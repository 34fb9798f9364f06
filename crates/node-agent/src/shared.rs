//! What all virtual machines of an agent have in common.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use controller_api::agent::VmOrder;
use tokio::sync::watch;
use tokio::time::Instant;
use uuid::Uuid;

use crate::accelerator::Accelerators;
use crate::board::Board;
use crate::capacity::{DoesNotFit, Given, Ledger};
use crate::cores::Cores;
use crate::domain::domain_name;
use crate::fabric::Fabric;
use crate::hypervisor::Hypervisor;
use crate::image::Images;
use crate::place::{Place, QemuUser};
use crate::resting::Resting;
use crate::users::Users;

/// Where libvirt logs what QEMU says.
const LOGS: &str = "/var/log/libvirt/qemu";

/// What all virtual machines of an agent have in common.
#[derive(Debug)]
pub struct Shared {
    /// Where things are.
    pub place: Arc<Place>,
    /// libvirt.
    pub hypervisor: Hypervisor,
    /// Images that were found right. Held while one is read.
    pub images: Arc<tokio::sync::Mutex<Images>>,
    /// Held from a look for room on the disk until something was put there.
    pub room: tokio::sync::Mutex<()>,
    /// Disks of removed virtual machines.
    pub resting: Resting,
    /// Who each QEMU runs as.
    pub users: Users,
    /// The emulated fabric.
    pub fabric: Arc<Fabric>,
    /// What is reported.
    pub board: Arc<Board>,
    /// How virtual machines run.
    pub accelerators: Arc<Accelerators>,
    ledger: Mutex<Ledger>,
    /// Domains that were told where to run; held while they are told.
    told: tokio::sync::Mutex<BTreeMap<Uuid, ToldWhere>>,
    snapshots: watch::Sender<Snapshot>,
    /// What libvirt said at first; nothing may be started before.
    surveyed: watch::Sender<Option<Survey>>,
}

/// What is kept about files of virtual machines.
#[derive(Debug)]
pub struct Files {
    /// Disks of removed virtual machines.
    pub resting: Resting,
    /// Whose files they are.
    pub users: Users,
}

/// Virtual machines that run.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// When libvirt was asked.
    pub taken: Instant,
    /// Which.
    pub running: Arc<BTreeSet<Uuid>>,
}

/// What libvirt said at first.
#[derive(Clone, Copy, Debug)]
pub struct Survey {
    /// Who QEMU runs as.
    pub user: Option<QemuUser>,
}

/// Where a domain was told to run.
#[derive(Debug)]
struct ToldWhere {
    vcpus: u32,
    dedicated: bool,
    cores: Cores,
}

impl Shared {
    /// Nothing runs yet.
    pub fn new(
        place: Arc<Place>,
        hypervisor: Hypervisor,
        fabric: Arc<Fabric>,
        board: Arc<Board>,
        accelerators: Arc<Accelerators>,
        ledger: Ledger,
        files: Files,
    ) -> Self {
        let Files { resting, users } = files;
        let images = Arc::new(tokio::sync::Mutex::new(Images::open(place.images())));
        let nothing = Snapshot { taken: Instant::now(), running: Arc::default() };
        Self {
            place,
            hypervisor,
            images,
            room: tokio::sync::Mutex::default(),
            resting,
            users,
            fabric,
            board,
            accelerators,
            ledger: Mutex::new(ledger),
            told: tokio::sync::Mutex::default(),
            snapshots: watch::Sender::new(nothing),
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
    pub fn set_surveyed(&self, survey: Survey) {
        self.surveyed.send_replace(Some(survey));
    }

    /// Who QEMU runs as.
    pub fn qemu_user(&self) -> Option<QemuUser> {
        self.surveyed.borrow().and_then(|survey| survey.user)
    }

    /// Looks at what runs, as they are taken.
    pub fn snapshots(&self) -> watch::Receiver<Snapshot> {
        self.snapshots.subscribe()
    }

    /// Notes what runs.
    pub fn set_snapshot(&self, snapshot: Snapshot) {
        self.snapshots.send_replace(snapshot);
    }

    /// Time has passed for disks that rest.
    pub async fn let_rest(self: &Arc<Self>, elapsed: Duration) {
        let this = Arc::clone(self);
        let passed = tokio::task::spawn_blocking(move || this.resting.pass(elapsed)).await;
        if let Ok(Err(error)) = passed {
            tracing::warn!("disks that have rested cannot be deleted: {error}");
        }
    }

    /// Deletes the disk that has rested longest, to make room; whether there was one.
    pub async fn evict_rested(self: &Arc<Self>) -> bool {
        let this = Arc::clone(self);
        let evicted = tokio::task::spawn_blocking(move || this.resting.evict()).await;
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
    pub async fn take(&self, order: &VmOrder) -> Result<Given, DoesNotFit> {
        let given = self.ledger().take(order)?;
        self.publish_shares();
        self.confine_all().await;
        Ok(given)
    }

    /// Notes what a virtual machine has that was found running.
    pub fn adopt(&self, id: Uuid, given: Given) {
        self.ledger().adopt(id, given);
        self.publish_shares();
    }

    /// Takes back what a virtual machine had. It must not run any more.
    pub async fn release(&self, id: Uuid) {
        self.told.lock().await.remove(&id);
        self.ledger().release(id);
        self.publish_shares();
        self.confine_all().await;
    }

    /// What a virtual machine has.
    pub fn given(&self, id: Uuid) -> Given {
        self.ledger().of(id)
    }

    /// Cores that nobody has to himself.
    pub fn floating(&self) -> Cores {
        self.ledger().floating()
    }

    /// A domain runs; it was told to stay on these cores, as far as is known.
    pub async fn runs(&self, order: &VmOrder, cores: Cores) {
        let dedicated = !self.given(order.id).cores.is_empty();
        self.told.lock().await.insert(order.id, ToldWhere { vcpus: order.cores, dedicated, cores });
        // The cores that float may be others by now.
        self.confine_all().await;
    }

    /// Tells every domain that runs where the cores are that nobody has to himself.
    async fn confine_all(&self) {
        let (mut told, instance) = (self.told.lock().await, self.place.instance());
        let floating = self.floating();
        for (id, domain) in told.iter_mut().filter(|(_, domain)| domain.cores != floating) {
            let confined = match domain.dedicated {
                true => self.hypervisor.confine_emulation(instance, *id, &floating).await,
                false => self.hypervisor.confine(instance, *id, domain.vcpus, &floating).await,
            };
            match confined {
                Ok(()) => domain.cores = floating.clone(),
                // It may have ended just now; if it runs, the next change tries again.
                Err(error) => tracing::warn!(vm = %id, "cannot be kept on cores {floating}: {error}"),
            }
        }
    }

    fn publish_shares(&self) {
        let (cores, memory_mib) = {
            let ledger = self.ledger();
            (ledger.cores(), ledger.memory())
        };
        self.board.set_machine(|machine| (machine.cores, machine.memory_mib) = (cores, memory_mib));
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
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
