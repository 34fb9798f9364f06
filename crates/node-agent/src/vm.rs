//! One virtual machine: a task that reconciles it with its desired state.
//!
//! The agent writes the desired state into [`VmHandle::desired`]; the task starts or adopts the domain, monitors it, restarts it
//! when it exits, and reports every change to [`crate::reports::Reports`]. The task ends after [`DesiredState::Stop`] and
//! [`DesiredState::Removed`].

mod start;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use controller_api::Name;
use controller_api::agent::{VmReport, VmSpec, VmState};
use thiserror::Error;
use tokio::sync::watch;
use tokio::task::JoinError;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::context::{AgentContext, RunningVms};
use crate::disk;
use crate::disk_space;
use crate::error_chain;
use crate::hypervisor::{DomainState, HaltReason, HypervisorError};
use crate::image::manifest;
use crate::link::{GuestContext, GuestLink, GuestState, SessionEvent, SessionOpener};
use crate::state_dir::StateDirError;
use start::StartError;

/// Pause before the first restart of a domain that exited; doubled for each further one.
const RESTART_PAUSE_MIN: Duration = Duration::from_secs(1);

/// Longest pause before a restart.
const RESTART_PAUSE_MAX: Duration = Duration::from_secs(60);

/// A domain that has run this long resets the restart pause.
const STABLE_AFTER: Duration = Duration::from_secs(120);

/// Pause before an operation that libvirt did not complete is retried.
const HYPERVISOR_PAUSE: Duration = Duration::from_secs(1);

/// Time limit for a guest to sync its disks before it is stopped.
const QUIESCE_TIMEOUT: Duration = Duration::from_secs(4);

/// Command run in a guest before it is stopped: syncs the file systems and remounts them read-only.
const QUIESCE: [&str; 3] =
    ["/bin/sh", "-c", "sync; echo s >/proc/sysrq-trigger; echo u >/proc/sysrq-trigger"];

/// The desired state of a virtual machine.
#[derive(Clone, Debug)]
pub enum DesiredState {
    Run(Arc<VmSpec>),
    /// Must not be started, for this reason. Reported as failed.
    Blocked(Arc<str>),
    /// Left as it is: no host spec lists it.
    Unmanaged,
    /// Stopped; disk and allocation record are kept for the next start.
    Stop,
    /// Stopped and deleted; the disk is retained for the grace period.
    Removed,
}

/// The agent's handle of a virtual machine's task.
#[derive(Debug)]
pub struct VmHandle {
    pub host: Name,
    pub desired: watch::Sender<DesiredState>,
    /// Opens sessions in the guest; `None` while it does not run.
    pub opener: watch::Receiver<Option<SessionOpener>>,
}

/// Starts the task of a virtual machine. It reports the virtual machine before it returns, and ends once the virtual machine is
/// removed or stopped as desired.
pub fn spawn(
    context: Arc<AgentContext>,
    host: Name,
    id: Uuid,
    desired: DesiredState,
) -> (VmHandle, tokio::task::JoinHandle<()>) {
    let (desired, receiver) = watch::channel(desired);
    let (opener, opener_receiver) = watch::channel(None);
    let vm = Vm {
        id,
        host: host.clone(),
        context,
        desired: receiver,
        opener,
        restarts: Restarts::default(),
        has_guest: true,
    };
    // Before the task runs: a report read right after this call must list it.
    match *vm.desired.borrow() {
        DesiredState::Run(_) => vm.report(VmState::Preparing, None),
        DesiredState::Blocked(ref reason) => vm.report(VmState::Failed, Some(reason.to_string())),
        DesiredState::Unmanaged => vm.report_unmanaged(false),
        DesiredState::Stop => {}
        DesiredState::Removed => vm.report(VmState::Removing, None),
    }
    let task = tokio::spawn(vm.run());
    (VmHandle { host, desired, opener: opener_receiver }, task)
}

struct Vm {
    id: Uuid,
    host: Name,
    context: Arc<AgentContext>,
    desired: watch::Receiver<DesiredState>,
    opener: watch::Sender<Option<SessionOpener>>,
    restarts: Restarts,
    /// Whether its image contains `heddle-guest`, which reports the guest's status.
    has_guest: bool,
}

/// Consecutive restarts after runs shorter than [`STABLE_AFTER`].
#[derive(Debug, Default)]
struct Restarts {
    count: u32,
}

impl Restarts {
    fn pause(&self) -> Duration {
        let doublings = self.count.saturating_sub(1).min(6);
        RESTART_PAUSE_MAX.min(RESTART_PAUSE_MIN * 2u32.pow(doublings))
    }
}

/// Why monitoring of a domain ended.
#[derive(Debug)]
enum DomainEnd {
    Exited,
    /// Another state is desired.
    Superseded,
}

impl Vm {
    async fn run(mut self) {
        let context = Arc::clone(&self.context);
        tokio::select! {
            () = context.ready() => {}
            // Before the survey it is unknown what runs, so there is nothing to stop.
            _ = self.desired.wait_for(|desired| matches!(desired, DesiredState::Stop)) => return,
        }
        loop {
            let desired = self.desired.borrow_and_update().clone();
            match desired {
                DesiredState::Removed => return self.remove().await,
                DesiredState::Stop => return self.stop().await,
                DesiredState::Run(order) => self.run_domain(&order).await,
                DesiredState::Unmanaged => self.watch_unmanaged().await,
                DesiredState::Blocked(reason) => {
                    self.report(VmState::Failed, Some(reason.to_string()));
                    // Fails only when the agent exits.
                    if self.desired.changed().await.is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// Reports whether it runs, and changes nothing.
    async fn watch_unmanaged(&mut self) {
        let mut snapshots = self.context.running_vms();
        loop {
            self.report_unmanaged(snapshots.borrow_and_update().running.contains(&self.id));
            tokio::select! {
                _ = self.desired.changed() => return,
                Ok(()) = snapshots.changed() => {}
            }
        }
    }

    /// Starts the domain and monitors it until another state is desired or it must be restarted.
    async fn run_domain(&mut self, order: &Arc<VmSpec>) {
        self.report(VmState::Preparing, None);
        match self.start(order).await {
            Ok(()) => {}
            Err(StartError::Superseded) => return,
            Err(StartError::Retry(cause)) => {
                self.report(VmState::Preparing, Some(error_chain(&cause)));
                tokio::select! {
                    () = sleep(HYPERVISOR_PAUSE) => {}
                    _ = self.desired.changed() => {}
                }
                return;
            }
            Err(StartError::Failed(failure)) => {
                let reason = error_chain(&failure);
                tracing::warn!(vm = %self.id, label = order.label, "cannot start: {reason}");
                self.report(VmState::Failed, Some(reason));
                // Retried when the host spec changes.
                let _ = self.desired.changed().await;
                return;
            }
        }
        let started = Instant::now();
        match self.monitor(order).await {
            DomainEnd::Superseded => {}
            DomainEnd::Exited => self.back_off(started).await,
        }
    }

    /// Monitors the running domain and its guest.
    async fn monitor(&mut self, order: &Arc<VmSpec>) -> DomainEnd {
        self.has_guest = has_guest(order).await;
        let (context_sender, receiver) = watch::channel(guest_context(order));
        let link = GuestLink::start(self.id, self.context.state_dir.vm(self.id).channel, receiver);
        let end = self.monitor_linked(order, &link, &context_sender).await;
        self.opener.send_replace(None);
        end
    }

    async fn monitor_linked(
        &mut self,
        order: &Arc<VmSpec>,
        link: &GuestLink,
        context_sender: &watch::Sender<GuestContext>,
    ) -> DomainEnd {
        let mut order = Arc::clone(order);
        let (mut state, mut snapshots) = (link.state(), self.context.running_vms());
        let (mut fabric, since) = (self.context.fabric.status(), Instant::now());
        let mut halted = None;
        loop {
            match halted {
                None => self.report_running(&state.borrow_and_update().clone(), &order),
                // The guest of a halted domain cannot respond.
                Some(reason) => self.report(VmState::Stopped, Some(format!("halted: {reason}"))),
            }
            self.opener.send_if_modified(|opener| {
                let modified = opener.is_some() != halted.is_none();
                if modified {
                    *opener = halted.is_none().then(|| link.opener());
                }
                modified
            });
            tokio::select! {
                changed = self.desired.changed() => {
                    let desired = self.desired.borrow_and_update().clone();
                    match desired {
                        DesiredState::Run(next) if changed.is_ok() => {
                            context_sender.send_if_modified(|context| {
                                let changed = next.context != order.context;
                                if changed {
                                    *context = guest_context(&next);
                                }
                                changed
                            });
                            let adapter_changed =
                                next.context.sl != order.context.sl || next.adapter != order.adapter;
                            order = next;
                            if adapter_changed {
                                self.attach(&order).await;
                            }
                        }
                        // The agent exits, or `run` handles the new state.
                        _ => {
                            return DomainEnd::Superseded;
                        }
                    }
                }
                Ok(()) = state.changed() => {}
                Ok(()) = fabric.changed() => {}
                Ok(()) = snapshots.changed() => {
                    let snapshot = snapshots.borrow_and_update().clone();
                    match self.domain_state(&snapshot, since).await {
                        DomainState::Running => halted = None,
                        DomainState::Halted(reason) => {
                            self.resume(reason).await;
                            halted = Some(reason);
                        }
                        DomainState::Gone => return DomainEnd::Exited,
                    }
                }
            }
        }
    }

    /// State of the domain. libvirt is asked only if `snapshot`, taken after `since`, does not list it as running.
    async fn domain_state(&self, snapshot: &RunningVms, since: Instant) -> DomainState {
        if snapshot.taken < since || snapshot.running.contains(&self.id) {
            return DomainState::Running;
        }
        // If libvirt does not answer, the last known state is kept.
        let state = self.context.hypervisor.state(self.context.state_dir.instance(), self.id).await;
        state.unwrap_or(DomainState::Running)
    }

    /// Resumes a domain that was paused by a write error, once the host has disk space again; QEMU then repeats the write.
    async fn resume(&self, reason: HaltReason) {
        let AgentContext { hypervisor, state_dir, .. } = &*self.context;
        if reason != HaltReason::DiskError {
            return;
        }
        if !disk_space::has_reserve(state_dir) {
            self.context.evict_retained_disk().await;
        }
        if disk_space::has_reserve(state_dir)
            && let Err(error) = hypervisor.resume(state_dir.instance(), self.id).await
        {
            tracing::warn!(vm = %self.id, "cannot resume: {error}");
        }
    }

    /// Waits before a domain that exited is restarted.
    async fn back_off(&mut self, started: Instant) {
        if started.elapsed() > STABLE_AFTER {
            self.restarts.count = 0;
        }
        self.restarts.count += 1;
        let pause = self.restarts.pause();
        let (count, seconds) = (self.restarts.count, pause.as_secs());
        let reason = format!("the guest exited; restart {count} follows in {seconds} s");
        tracing::warn!(vm = %self.id, "{reason}");
        self.report(VmState::Stopped, Some(reason));
        tokio::select! {
            () = sleep(pause) => {}
            // A changed spec does not shorten the pause; stopping or removing does.
            () = wait_until_not_run(&mut self.desired) => {}
        }
    }

    /// Removes the virtual machine and retains its disk. Retries until it succeeds.
    async fn remove(&self) {
        self.report(VmState::Removing, None);
        while let Err(error) = self.tear_down(Keep::RetainedDisk).await {
            let reason = error_chain(&error);
            tracing::warn!(vm = %self.id, "removal failed and is retried: {reason}");
            self.report(VmState::Removing, Some(reason));
            sleep(HYPERVISOR_PAUSE).await;
        }
        self.context.reports.remove_vm(&self.host, self.id);
    }

    /// Stops the domain and keeps the disk.
    async fn stop(&self) {
        if let Err(error) = self.tear_down(Keep::Disk).await {
            tracing::warn!(vm = %self.id, "cannot stop: {}", error_chain(&error));
        }
    }

    /// Destroys the domain, detaches it from the fabric, and releases its allocation and its files except those to `keep`.
    /// Idempotent: can be retried after any error.
    async fn tear_down(&self, keep: Keep) -> Result<(), TearDownError> {
        let AgentContext { hypervisor, state_dir, fabric, .. } = &*self.context;
        hypervisor.destroy(state_dir.instance(), self.id).await?;
        fabric.detach(self.id).await;
        self.context.release(self.id).await;
        let files = state_dir.vm(self.id);
        match keep {
            Keep::Disk | Keep::RetainedDisk => files.remove_sockets()?,
            Keep::Nothing => files.remove()?,
        }
        if keep == Keep::RetainedDisk {
            let (context, id) = (Arc::clone(&self.context), self.id);
            let retained = tokio::task::spawn_blocking(move || context.retained_disks.retain(id, &files));
            retained.await?.map_err(TearDownError::Retain)?;
        }
        if keep != Keep::Disk {
            self.context.users.release(self.id);
            crate::domain::remove_logs(state_dir.instance(), self.id);
        }
        Ok(())
    }

    fn report_running(&self, state: &GuestState, order: &VmSpec) {
        let (ready, network, guest_reason) = match state {
            // Without a guest agent, running is all that can be known.
            _ if !self.has_guest => (Some(order.context.generation), None, None),
            GuestState::Silent | GuestState::Greeted => (None, None, None),
            // A generation that was never sent is not believed.
            GuestState::Ready(generation, _) if *generation > order.context.generation => (None, None, None),
            GuestState::Ready(generation, network) => (Some(*generation), *network, None),
            GuestState::Failed(reason) => (None, None, Some(format!("the guest reports: {reason}"))),
            GuestState::Misbehaving(reason) => (None, None, Some(format!("the guest {reason}"))),
        };
        let reason = self.context.fabric.attach_error(self.id).or(guest_reason);
        let stop = self.context.fabric.packet_stop(self.id);
        self.set(VmReport { ready, network, reason, stop, ..self.bare_report(VmState::Running) });
    }

    fn report_unmanaged(&self, runs: bool) {
        let state = if runs { VmState::Running } else { VmState::Stopped };
        self.report(state, Some("not listed in the host spec; left unchanged".to_owned()));
    }

    fn report(&self, state: VmState, reason: Option<String>) {
        self.set(VmReport { reason, ..self.bare_report(state) });
    }

    fn bare_report(&self, state: VmState) -> VmReport {
        let pinned = self.context.allocation(self.id).cores.iter().collect();
        VmReport {
            id: self.id,
            state,
            ready: None,
            reason: None,
            pinned,
            network: None,
            stop: None,
            unlisted: None,
        }
    }

    fn set(&self, report: VmReport) {
        self.context.reports.set_vm(&self.host, report);
    }
}

/// What remains of a virtual machine after [`Vm::tear_down`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keep {
    Nothing,
    /// The disk, in place, for the next start.
    Disk,
    /// The disk, moved out of QEMU's reach for the grace period.
    RetainedDisk,
}

/// Why a virtual machine could not be torn down.
#[derive(Debug, Error)]
enum TearDownError {
    #[error(transparent)]
    Hypervisor(#[from] HypervisorError),
    #[error(transparent)]
    Files(#[from] StateDirError),
    #[error("cannot retain the disk")]
    Retain(#[source] io::Error),
    #[error("retaining the disk was aborted")]
    Aborted(#[from] JoinError),
}

async fn wait_until_not_run(desired: &mut watch::Receiver<DesiredState>) {
    // Fails only when the agent exits.
    let _ = desired.wait_for(|desired| !matches!(desired, DesiredState::Run(_))).await;
}

/// Whether the image of a VM spec contains `heddle-guest`.
async fn has_guest(order: &VmSpec) -> bool {
    let image = order.image.clone();
    let manifest = tokio::task::spawn_blocking(move || manifest(&image)).await;
    // Assumed if the manifest cannot be read.
    !matches!(manifest, Ok(Ok(manifest)) if !manifest.guest)
}

fn guest_context(order: &VmSpec) -> GuestContext {
    GuestContext { generation: order.context.generation, documents: Arc::new(disk::seed(order).to_context()) }
}

/// Asks a guest to sync its disks, so that they are consistent when it is stopped. Gives up after 4 s.
pub async fn quiesce(opener: SessionOpener) {
    let argv = QUIESCE.map(str::to_owned).to_vec();
    let done = async {
        let session = opener.open(controller_api::session::NewSession::Exec { argv }).await.ok()?;
        loop {
            match session.recv().await {
                SessionEvent::Output(bytes) | SessionEvent::Error(bytes) => {
                    session.consumed(bytes.len()).await
                }
                SessionEvent::Exit(status) => return Some(status),
                SessionEvent::Note(_) => {}
                SessionEvent::Refused(_) => return None,
            }
        }
    };
    // A guest that does not answer is stopped without syncing.
    let _ = tokio::time::timeout(QUIESCE_TIMEOUT, done).await;
}
