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

use crate::context::remove_logs;
use crate::cpu_set::CpuSet;
use crate::domain::{CpuPlacement, DirectBoot, Domain, DomainMetadata};
use crate::durable;
use crate::hypervisor::{DomainState, Hypervisor};
use crate::reports::Reports;
use crate::state_dir::{QemuUser, StateDir};

/// How long a probe guest has. With KVM it needs a second; where it needs longer, KVM is not worth having.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long virtual machines wait for a probe: longer than it takes, unless libvirt hangs.
const CHOOSE_TIMEOUT: Duration = Duration::from_secs(8);

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
pub enum AcceleratorChoice {
    /// KVM if a probe guest runs by it.
    Auto,
    Kvm,
    Tcg,
}

impl AcceleratorChoice {
    /// What need not be found out.
    pub fn fixed(self) -> Option<Accelerator> {
        match self {
            Self::Auto => None,
            Self::Kvm => Some(Accelerator::Kvm),
            Self::Tcg => Some(Accelerator::Tcg),
        }
    }
}

/// How long a probe guest may take to be removed when the agent ends.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

/// A kernel to probe with.
#[derive(Clone, Debug)]
pub struct ProbeKernel {
    pub kernel: PathBuf,
    pub initrd: PathBuf,
}

/// Finds out how virtual machines run.
#[derive(Debug)]
pub struct AcceleratorProbe {
    choice: AcceleratorChoice,
    state_dir: Arc<StateDir>,
    hypervisor: Hypervisor,
    reports: Arc<Reports>,
    probe: Mutex<Option<RunningProbe>>,
    /// The agent ends: a probe ends with it.
    shutting_down: watch::Sender<bool>,
}

/// A probe that goes on or has ended.
#[derive(Clone, Debug)]
struct RunningProbe {
    started: Instant,
    result: watch::Receiver<Option<Accelerator>>,
}

/// What was found out, and for which machine it holds.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct StoredResult {
    boot: String,
    hypervisor: u32,
    accelerator: Accelerator,
}

impl AcceleratorProbe {
    /// Nothing is tried yet.
    pub fn new(
        choice: AcceleratorChoice,
        state_dir: Arc<StateDir>,
        hypervisor: Hypervisor,
        reports: Arc<Reports>,
    ) -> Self {
        Self {
            choice,
            state_dir,
            hypervisor,
            reports,
            probe: Mutex::new(None),
            shutting_down: watch::Sender::new(false),
        }
    }

    /// How a virtual machine that starts now is to run. Starts a probe if there was none, and waits for it; while none
    /// has ended well, virtual machines run by translation.
    pub async fn choose(self: &Arc<Self>, kernel: ProbeKernel, user: Option<QemuUser>) -> Accelerator {
        if let Some(given) = self.choice.fixed() {
            return given;
        }
        let mut probe = self.begin(kernel, user);
        let deadline = probe.started + CHOOSE_TIMEOUT;
        match timeout_at(deadline, probe.result.wait_for(Option::is_some)).await {
            Ok(Ok(result)) => result.unwrap_or(Accelerator::Tcg),
            _ => Accelerator::Tcg,
        }
    }

    /// Starts a probe before anybody waits for it, if a kernel is found where images usually are. If not, the first
    /// virtual machine brings one; until then translation is all that is known to work.
    pub fn probe_early(self: &Arc<Self>, images: &Path, user: Option<QemuUser>) {
        if self.choice.fixed().is_some() {
            return;
        }
        match newest_kernel(images) {
            Some(kernel) => drop(self.begin(kernel, user)),
            None => self.reports.set_machine(|machine| machine.accelerator = Some(Accelerator::Tcg)),
        }
    }

    /// Ends a probe that goes on, and waits until nothing of it is left.
    pub async fn shut_down(&self) {
        self.shutting_down.send_replace(true);
        let probe = self.probe.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(mut probe) = probe
            && timeout(SHUTDOWN_TIMEOUT, probe.result.wait_for(Option::is_some)).await.is_err()
        {
            tracing::warn!("a probe guest has not ended in {} s", SHUTDOWN_TIMEOUT.as_secs());
        }
    }

    fn begin(self: &Arc<Self>, kernel: ProbeKernel, user: Option<QemuUser>) -> RunningProbe {
        let mut probe = self.probe.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(probe) = &*probe {
            return probe.clone();
        }
        let (sender, result) = watch::channel(None);
        let this = Arc::clone(self);
        tokio::spawn(async move {
            let accelerator = this.determine(&kernel, user).await;
            this.reports.set_machine(|machine| machine.accelerator = Some(accelerator));
            sender.send_replace(Some(accelerator));
        });
        probe.insert(RunningProbe { started: Instant::now(), result }).clone()
    }

    async fn determine(&self, kernel: &ProbeKernel, user: Option<QemuUser>) -> Accelerator {
        if !Path::new("/dev/kvm").exists() {
            return Accelerator::Tcg;
        }
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let hypervisor = self.hypervisor.version().await.unwrap_or_default();
        let known = durable::read(&self.state_dir.accelerator_path(), FILE_BYTES_MAX).ok().flatten();
        let known = known.and_then(|bytes| serde_json::from_slice::<StoredResult>(&bytes).ok());
        if let Some(known) = known.filter(|known| known.boot == boot && known.hypervisor == hypervisor) {
            return known.accelerator;
        }
        let accelerator = match self.run_probe(kernel, user).await {
            Ok(()) => Accelerator::Kvm,
            // Nothing was found out.
            Err(_) if *self.shutting_down.borrow() => return Accelerator::Tcg,
            Err(why) => {
                tracing::warn!(
                    "virtual machines run by translation: a probe guest does not run by KVM: {why}"
                );
                Accelerator::Tcg
            }
        };
        let result = StoredResult { boot, hypervisor, accelerator };
        let bytes = serde_json::to_vec(&result).expect("a result is JSON");
        if let Err(error) = durable::replace(&self.state_dir.accelerator_path(), &bytes) {
            tracing::warn!("cannot keep what was found out about KVM: {error}");
        }
        accelerator
    }

    /// Runs a probe guest as virtual machines are run, and removes all of it.
    async fn run_probe(&self, kernel: &ProbeKernel, user: Option<QemuUser>) -> Result<(), String> {
        let id = Uuid::new_v4();
        let files = self.state_dir.vm(id);
        let trying = async {
            files.make(user).map_err(|error| error.to_string())?;
            let domain = Domain {
                metadata: DomainMetadata {
                    instance: self.state_dir.instance().to_owned(),
                    id,
                    host: "probe".parse().expect("a name"),
                    order_digest: "probe".to_owned(),
                    cores: CpuSet::default(),
                    memory: PROBE_MEMORY,
                },
                title: "probe",
                accelerator: Accelerator::Kvm,
                cores: 1,
                memory: PROBE_MEMORY,
                cpus: CpuPlacement::Unpinned,
                boot: DirectBoot {
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
            self.wait_for_init(id, &files.console).await
        };
        let mut shutting_down = self.shutting_down.subscribe();
        let tried = tokio::select! {
            tried = trying => tried,
            _ = shutting_down.wait_for(|shutting_down| *shutting_down) => Err("the agent ends".to_owned()),
        };
        if let Err(error) = self.hypervisor.destroy(self.state_dir.instance(), id).await {
            tracing::warn!("cannot end a probe guest: {error}");
        }
        if let Err(error) = files.remove() {
            tracing::warn!("cannot remove a probe guest: {error}");
        }
        remove_logs(self.state_dir.instance(), id);
        tried
    }

    async fn wait_for_init(&self, id: Uuid, console: &Path) -> Result<(), String> {
        let end = Instant::now() + PROBE_TIMEOUT;
        while Instant::now() < end {
            let said = durable::read(console, CONSOLE_BYTES_MAX).ok().flatten().unwrap_or_default();
            if said.windows(PROBE_LINE.len()).any(|window| window == PROBE_LINE) {
                return Ok(());
            }
            match self.hypervisor.state(self.state_dir.instance(), id).await {
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
fn newest_kernel(images: &Path) -> Option<ProbeKernel> {
    let manifests = std::fs::read_dir(images).ok()?.flatten().filter_map(|entry| {
        let path = entry.path().join("image.json");
        let modified = path.metadata().and_then(|found| found.modified()).ok()?;
        Some((modified, path))
    });
    let (_, path) = manifests.max()?;
    let bytes = durable::read(&path, FILE_BYTES_MAX).ok()??;
    let manifest: Manifest = serde_json::from_slice(&bytes).ok()?;
    let beside = |file: &str| path.parent().map(|directory| directory.join(file));
    Some(ProbeKernel { kernel: beside(&manifest.kernel.file)?, initrd: beside(&manifest.initrd.file)? })
}
