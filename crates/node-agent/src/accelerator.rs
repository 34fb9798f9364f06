//! Whether virtual machines run by KVM. That the device exists, opens, and lets QEMU start proves nothing: a probe guest
//! has to come as far as its first process within a time limit.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::ValueEnum;
use controller_api::MemorySize;
use controller_api::agent::Accelerator;
use controller_api::image::Manifest;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use uuid::Uuid;

use crate::board::Board;
use crate::cores::Cores;
use crate::domain::{Boot, Cpus, Domain, Mark};
use crate::durable;
use crate::hypervisor::{DomainState, Hypervisor};
use crate::place::{Place, QemuUser};
use crate::shared::remove_logs;

/// How long a probe guest has. With KVM it needs a second; where it needs longer, KVM is not worth having.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long virtual machines wait for a probe: longer than it takes, unless libvirt hangs.
const PATIENCE: Duration = Duration::from_secs(8);

/// How often to look at a probe guest.
const PROBE_PAUSE: Duration = Duration::from_millis(200);

/// What the kernel says when it starts the first process.
const PROBE_LINE: &[u8] = b"as init process";

/// What a probe kernel is told: to talk, and not to stay when it has no root disk.
const PROBE_COMMAND_LINE: &str = "loglevel=7 panic=-1";

/// A probe guest is small.
const PROBE_MEMORY: MemorySize = MemorySize::from_mib(256);

/// Longest part of a probe's serial output that is looked at.
const CONSOLE_BYTES_MAX: u64 = 256 * 1024;

/// Longest file of this module.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Choice {
    /// KVM if a probe guest runs by it.
    Auto,
    /// KVM.
    Kvm,
    /// Translation.
    Tcg,
}

impl Choice {
    /// What need not be found out.
    pub fn given(self) -> Option<Accelerator> {
        match self {
            Self::Auto => None,
            Self::Kvm => Some(Accelerator::Kvm),
            Self::Tcg => Some(Accelerator::Tcg),
        }
    }
}

/// How long a probe guest may take to be removed when the agent ends.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// A kernel to probe with.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// Kernel.
    pub kernel: PathBuf,
    /// Initial file system.
    pub initrd: PathBuf,
}

/// Finds out how virtual machines run.
#[derive(Debug)]
pub struct Accelerators {
    choice: Choice,
    place: Arc<Place>,
    hypervisor: Hypervisor,
    board: Arc<Board>,
    probe: Mutex<Option<Probe>>,
    /// The agent ends: a probe ends with it.
    ending: watch::Sender<bool>,
}

/// A probe that goes on or has ended.
#[derive(Clone, Debug)]
struct Probe {
    started: Instant,
    verdict: watch::Receiver<Option<Accelerator>>,
}

/// What was found out, and for which machine it holds.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Verdict {
    boot: String,
    hypervisor: u32,
    accelerator: Accelerator,
}

impl Accelerators {
    /// Nothing is tried yet.
    pub fn new(choice: Choice, place: Arc<Place>, hypervisor: Hypervisor, board: Arc<Board>) -> Self {
        Self { choice, place, hypervisor, board, probe: Mutex::new(None), ending: watch::Sender::new(false) }
    }

    /// How a virtual machine that starts now is to run. Starts a probe if there was none, and waits for it; while none
    /// has ended well, virtual machines run by translation.
    pub async fn choose(self: &Arc<Self>, kernel: Kernel, user: Option<QemuUser>) -> Accelerator {
        if let Some(given) = self.choice.given() {
            return given;
        }
        let mut probe = self.begin(kernel, user);
        let patience = probe.started + PATIENCE;
        match timeout_at(patience, probe.verdict.wait_for(Option::is_some)).await {
            Ok(Ok(verdict)) => verdict.unwrap_or(Accelerator::Tcg),
            _ => Accelerator::Tcg,
        }
    }

    /// Starts a probe before anybody waits for it, if a kernel is found where images usually are. If not, the first
    /// virtual machine brings one; until then translation is all that is known to work.
    pub fn probe_early(self: &Arc<Self>, images: &Path, user: Option<QemuUser>) {
        if self.choice.given().is_some() {
            return;
        }
        match newest_kernel(images) {
            Some(kernel) => drop(self.begin(kernel, user)),
            None => self.board.set_machine(|machine| machine.accelerator = Some(Accelerator::Tcg)),
        }
    }

    /// Ends a probe that goes on, and waits until nothing of it is left.
    pub async fn end(&self) {
        self.ending.send_replace(true);
        let probe = self.probe.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(mut probe) = probe
            && timeout(END_TIMEOUT, probe.verdict.wait_for(Option::is_some)).await.is_err()
        {
            tracing::warn!("a probe guest has not ended in {} s", END_TIMEOUT.as_secs());
        }
    }

    fn begin(self: &Arc<Self>, kernel: Kernel, user: Option<QemuUser>) -> Probe {
        let mut probe = self.probe.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(probe) = &*probe {
            return probe.clone();
        }
        let (sender, verdict) = watch::channel(None);
        let this = Arc::clone(self);
        tokio::spawn(async move {
            let accelerator = this.find_out(&kernel, user).await;
            this.board.set_machine(|machine| machine.accelerator = Some(accelerator));
            sender.send_replace(Some(accelerator));
        });
        probe.insert(Probe { started: Instant::now(), verdict }).clone()
    }

    async fn find_out(&self, kernel: &Kernel, user: Option<QemuUser>) -> Accelerator {
        if !Path::new("/dev/kvm").exists() {
            return Accelerator::Tcg;
        }
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let hypervisor = self.hypervisor.version().await.unwrap_or_default();
        let known = durable::read(&self.place.accelerator(), FILE_BYTES_MAX).ok().flatten();
        let known = known.and_then(|bytes| serde_json::from_slice::<Verdict>(&bytes).ok());
        if let Some(known) = known.filter(|known| known.boot == boot && known.hypervisor == hypervisor) {
            return known.accelerator;
        }
        let accelerator = match self.try_kvm(kernel, user).await {
            Ok(()) => Accelerator::Kvm,
            // Nothing was found out.
            Err(_) if *self.ending.borrow() => return Accelerator::Tcg,
            Err(why) => {
                tracing::warn!(
                    "virtual machines run by translation: a probe guest does not run by KVM: {why}"
                );
                Accelerator::Tcg
            }
        };
        let verdict = Verdict { boot, hypervisor, accelerator };
        let bytes = serde_json::to_vec(&verdict).expect("a verdict is JSON");
        if let Err(error) = durable::write(&self.place.accelerator(), &bytes) {
            tracing::warn!("cannot keep what was found out about KVM: {error}");
        }
        accelerator
    }

    /// Runs a probe guest as virtual machines are run, and removes all of it.
    async fn try_kvm(&self, kernel: &Kernel, user: Option<QemuUser>) -> Result<(), String> {
        let id = Uuid::new_v4();
        let files = self.place.vm(id);
        let trying = async {
            files.make(user).map_err(|error| error.to_string())?;
            let domain = Domain {
                mark: Mark {
                    instance: self.place.instance().to_owned(),
                    id,
                    host: "probe".parse().expect("a name"),
                    order: "probe".to_owned(),
                    cores: Cores::default(),
                    memory: PROBE_MEMORY,
                },
                title: "probe",
                accelerator: Accelerator::Kvm,
                cores: 1,
                memory: PROBE_MEMORY,
                cpus: Cpus::Anywhere,
                boot: Boot {
                    kernel: &kernel.kernel,
                    initrd: &kernel.initrd,
                    command_line: PROBE_COMMAND_LINE,
                },
                disks: Vec::new(),
                console: &files.console,
                channel: None,
                adapter: None,
                user,
            };
            self.hypervisor.create(domain.to_xml()).await.map_err(|error| error.to_string())?;
            self.watch(id, &files.console).await
        };
        let mut ending = self.ending.subscribe();
        let tried = tokio::select! {
            tried = trying => tried,
            _ = ending.wait_for(|ending| *ending) => Err("the agent ends".to_owned()),
        };
        if let Err(error) = self.hypervisor.destroy(self.place.instance(), id).await {
            tracing::warn!("cannot end a probe guest: {error}");
        }
        if let Err(error) = files.remove() {
            tracing::warn!("cannot remove a probe guest: {error}");
        }
        remove_logs(self.place.instance(), id);
        tried
    }

    async fn watch(&self, id: Uuid, console: &Path) -> Result<(), String> {
        let end = Instant::now() + PROBE_TIMEOUT;
        while Instant::now() < end {
            let said = durable::read(console, CONSOLE_BYTES_MAX).ok().flatten().unwrap_or_default();
            if said.windows(PROBE_LINE.len()).any(|window| window == PROBE_LINE) {
                return Ok(());
            }
            match self.hypervisor.state(self.place.instance(), id).await {
                Ok(DomainState::Running) => {}
                Ok(DomainState::Halted(why)) => return Err(why.to_string()),
                Ok(DomainState::Gone) => return Err("it has ended".to_owned()),
                Err(error) => return Err(error.to_string()),
            }
            sleep(PROBE_PAUSE).await;
        }
        Err(format!("it did not get as far as its first process in {} s", PROBE_TIMEOUT.as_secs()))
    }
}

/// The kernel of the image that was made last.
fn newest_kernel(images: &Path) -> Option<Kernel> {
    let manifests = std::fs::read_dir(images).ok()?.flatten().filter_map(|entry| {
        let path = entry.path().join("image.json");
        let modified = path.metadata().and_then(|found| found.modified()).ok()?;
        Some((modified, path))
    });
    let (_, path) = manifests.max()?;
    let bytes = durable::read(&path, FILE_BYTES_MAX).ok()??;
    let manifest: Manifest = serde_json::from_slice(&bytes).ok()?;
    let beside = |file: &str| path.parent().map(|directory| directory.join(file));
    Some(Kernel { kernel: beside(&manifest.kernel.file)?, initrd: beside(&manifest.initrd.file)? })
}
