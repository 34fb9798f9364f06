//! Decides between KVM and TCG. That /dev/kvm exists and QEMU starts proves nothing: a probe guest must reach its init process
//! within a time limit.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::ValueEnum;
use controller_api::MemorySize;
use controller_api::agent::Accelerator;
use controller_api::image::Manifest;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use uuid::Uuid;

use crate::cpu_set::CpuSet;
use crate::domain::{CpuPlacement, DirectBoot, Domain, DomainMetadata, remove_logs};
use crate::error_chain;
use crate::hypervisor::{DomainState, HaltReason, Hypervisor, HypervisorError};
use crate::reports::Reports;
use crate::state_dir::{QemuUser, StateDir, StateDirError};

/// Time limit of the probe guest. With working KVM it needs about a second.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the start of a virtual machine waits for the probe. Longer than the probe takes unless libvirt hangs.
const CHOOSE_TIMEOUT: Duration = Duration::from_secs(8);

/// Polling interval of the probe guest.
const PROBE_PAUSE: Duration = Duration::from_millis(200);

/// What the kernel logs when it starts the init process.
const PROBE_LINE: &[u8] = b"as init process";

/// Kernel command line of the probe guest: log to the console, and exit on the panic caused by the missing root disk.
const PROBE_COMMAND_LINE: &str = "loglevel=7 panic=-1";

/// Memory of the probe guest.
const PROBE_MEMORY: MemorySize = MemorySize::from_mib(256);

/// Most bytes of the probe guest's console that are read.
const CONSOLE_BYTES_MAX: u64 = 256 * 1024;

/// Most bytes of `accelerator.json` and of an image manifest.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// The accelerator requested on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AcceleratorChoice {
    /// KVM if a probe guest boots with it, else TCG
    Auto,
    /// Hardware virtualization with KVM
    Kvm,
    /// Emulation by QEMU
    Tcg,
}

impl AcceleratorChoice {
    /// The accelerator, unless it must be determined by a probe.
    pub fn fixed(self) -> Option<Accelerator> {
        match self {
            Self::Auto => None,
            Self::Kvm => Some(Accelerator::Kvm),
            Self::Tcg => Some(Accelerator::Tcg),
        }
    }
}

/// How long the agent waits for the removal of the probe guest when it exits.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

/// Kernel and initramfs of the probe guest.
#[derive(Clone, Debug)]
pub struct ProbeKernel {
    pub kernel: PathBuf,
    pub initrd: PathBuf,
}

/// Determines the accelerator of virtual machines, by a probe guest if necessary. At most one probe runs per agent; its result
/// is stored and stays valid until the host reboots or the hypervisor's version changes.
#[derive(Debug)]
pub struct AcceleratorProbe {
    choice: AcceleratorChoice,
    state_dir: Arc<StateDir>,
    hypervisor: Hypervisor,
    reports: Arc<Reports>,
    probe: Mutex<Option<RunningProbe>>,
    /// Set when the agent exits; ends a running probe.
    shutting_down: watch::Sender<bool>,
}

/// A probe in progress or completed.
#[derive(Clone, Debug)]
struct RunningProbe {
    started: Instant,
    result: watch::Receiver<Option<Accelerator>>,
}

/// Content of `accelerator.json`: the result of a probe, and the boot and hypervisor version for which it is valid.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct StoredResult {
    boot: String,
    hypervisor: u32,
    accelerator: Accelerator,
}

/// Why the probe guest did not reach its init process.
#[derive(Debug, Error)]
enum ProbeError {
    #[error(transparent)]
    Files(#[from] StateDirError),
    #[error(transparent)]
    Hypervisor(#[from] HypervisorError),
    #[error("the probe guest is halted: {0}")]
    Halted(HaltReason),
    #[error("the probe guest exited before it reached its init process")]
    Exited,
    #[error("the probe guest did not reach its init process within {} s", PROBE_TIMEOUT.as_secs())]
    Timeout,
    #[error("the agent is shutting down")]
    ShuttingDown,
}

impl AcceleratorProbe {
    /// Does not start a probe yet.
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

    /// The accelerator for a virtual machine that starts now. Starts a probe if there was none and waits up to 8 s from its
    /// start. Returns TCG if the probe fails or takes longer.
    pub async fn choose(self: &Arc<Self>, kernel: ProbeKernel, user: Option<QemuUser>) -> Accelerator {
        if let Some(accelerator) = self.choice.fixed() {
            return accelerator;
        }
        let mut probe = self.begin(kernel, user);
        let deadline = probe.started + CHOOSE_TIMEOUT;
        match timeout_at(deadline, probe.result.wait_for(Option::is_some)).await {
            Ok(Ok(result)) => result.unwrap_or(Accelerator::Tcg),
            _ => Accelerator::Tcg,
        }
    }

    /// Starts a probe in advance with the kernel of the newest image in `images`. Without an image, TCG is reported until the
    /// first virtual machine starts a probe.
    pub fn probe_early(self: &Arc<Self>, images: &Path, user: Option<QemuUser>) {
        if self.choice.fixed().is_some() {
            return;
        }
        match newest_kernel(images) {
            Some(kernel) => drop(self.begin(kernel, user)),
            None => self.reports.set_machine(|machine| machine.accelerator = Some(Accelerator::Tcg)),
        }
    }

    /// Ends a running probe and waits up to 10 s until its domain and files are removed.
    pub async fn shut_down(&self) {
        self.shutting_down.send_replace(true);
        let probe = self.probe.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(mut probe) = probe
            && timeout(SHUTDOWN_TIMEOUT, probe.result.wait_for(Option::is_some)).await.is_err()
        {
            tracing::warn!("the probe guest was not removed within {} s", SHUTDOWN_TIMEOUT.as_secs());
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
        let known = durable_file::read(&self.state_dir.accelerator_path(), FILE_BYTES_MAX).ok().flatten();
        let known = known.and_then(|bytes| serde_json::from_slice::<StoredResult>(&bytes).ok());
        if let Some(known) = known.filter(|known| known.boot == boot && known.hypervisor == hypervisor) {
            return known.accelerator;
        }
        let accelerator = match self.run_probe(kernel, user).await {
            Ok(()) => Accelerator::Kvm,
            // An interrupted probe has no result to store.
            Err(_) if *self.shutting_down.borrow() => return Accelerator::Tcg,
            Err(error) => {
                let cause = error_chain(&error);
                tracing::warn!("KVM does not work, so virtual machines use TCG: {cause}");
                Accelerator::Tcg
            }
        };
        let result = StoredResult { boot, hypervisor, accelerator };
        let bytes = serde_json::to_vec(&result).expect("the result serializes to JSON");
        if let Err(error) = durable_file::replace(&self.state_dir.accelerator_path(), &bytes) {
            tracing::warn!("cannot store the result of the KVM probe: {error}");
        }
        accelerator
    }

    /// Runs the probe guest with KVM and removes its domain, files and logs.
    async fn run_probe(&self, kernel: &ProbeKernel, user: Option<QemuUser>) -> Result<(), ProbeError> {
        let id = Uuid::new_v4();
        let files = self.state_dir.vm(id);
        let trying = async {
            files.make(user)?;
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
            self.hypervisor.create(domain.to_xml()).await?;
            self.wait_for_init(id, &files.console).await
        };
        let mut shutting_down = self.shutting_down.subscribe();
        let tried = tokio::select! {
            tried = trying => tried,
            _ = shutting_down.wait_for(|shutting_down| *shutting_down) => Err(ProbeError::ShuttingDown),
        };
        if let Err(error) = self.hypervisor.destroy(self.state_dir.instance(), id).await {
            tracing::warn!("cannot stop the probe guest: {error}");
        }
        if let Err(error) = files.remove() {
            tracing::warn!("cannot remove the files of the probe guest: {}", error_chain(&error));
        }
        remove_logs(self.state_dir.instance(), id);
        tried
    }

    async fn wait_for_init(&self, id: Uuid, console: &Path) -> Result<(), ProbeError> {
        let end = Instant::now() + PROBE_TIMEOUT;
        while Instant::now() < end {
            let log = durable_file::read(console, CONSOLE_BYTES_MAX).ok().flatten().unwrap_or_default();
            if log.windows(PROBE_LINE.len()).any(|window| window == PROBE_LINE) {
                return Ok(());
            }
            match self.hypervisor.state(self.state_dir.instance(), id).await? {
                DomainState::Running => {}
                DomainState::Halted(reason) => return Err(ProbeError::Halted(reason)),
                DomainState::Gone => return Err(ProbeError::Exited),
            }
            sleep(PROBE_PAUSE).await;
        }
        Err(ProbeError::Timeout)
    }
}

/// The kernel of the most recently built image; `None` if there is no usable image.
fn newest_kernel(images: &Path) -> Option<ProbeKernel> {
    let manifests = std::fs::read_dir(images).ok()?.flatten().filter_map(|entry| {
        let path = entry.path().join("image.json");
        let modified = path.metadata().and_then(|found| found.modified()).ok()?;
        Some((modified, path))
    });
    let (_, path) = manifests.max()?;
    let bytes = durable_file::read(&path, FILE_BYTES_MAX).ok()??;
    let manifest: Manifest = serde_json::from_slice(&bytes).ok()?;
    let beside = |file: &str| path.parent().map(|directory| directory.join(file));
    Some(ProbeKernel { kernel: beside(&manifest.kernel.file)?, initrd: beside(&manifest.initrd.file)? })
}
