//! One virtual machine: a task that makes it what is ordered, as long as it is ordered.

mod start;

use std::sync::Arc;
use std::time::Duration;

use controller_api::Name;
use controller_api::agent::{VmOrder, VmReport, VmState};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::context::{AgentContext, RunningVms};
use crate::disk;
use crate::disk_space;
use crate::hypervisor::{DomainState, HaltReason};
use crate::image::manifest;
use crate::link::{GuestContext, GuestLink, GuestState, SessionEvent, SessionOpener};
use start::StartError;

/// How long to wait before a virtual machine that ended by itself is started again: doubled each time.
const RESTART_PAUSE_MIN: Duration = Duration::from_secs(1);

/// The longest such pause.
const RESTART_PAUSE_MAX: Duration = Duration::from_secs(60);

/// Who has run so long starts again without a pause worth the name.
const STABLE_AFTER: Duration = Duration::from_secs(120);

/// How long to wait for libvirt before asking again.
const HYPERVISOR_PAUSE: Duration = Duration::from_secs(1);

/// How long a guest has to write its disks before it is stopped.
const QUIESCE_TIMEOUT: Duration = Duration::from_secs(4);

/// What a guest is asked to run before it is stopped: file systems are written and closed, also without a journal.
const QUIESCE: [&str; 3] =
    ["/bin/sh", "-c", "sync; echo s >/proc/sysrq-trigger; echo u >/proc/sysrq-trigger"];

/// What is desired of a virtual machine.
#[derive(Clone, Debug)]
pub enum DesiredState {
    Run(Arc<VmOrder>),
    /// Not to run; says why.
    Blocked(Arc<str>),
    /// To be left as it is: nobody knows its order.
    Unmanaged,
    /// To stop, with everything kept for the next start.
    Stop,
    Removed,
}

/// By which a virtual machine is context_sender what is desired, and reached.
#[derive(Debug)]
pub struct VmHandle {
    pub host: Name,
    pub desired: watch::Sender<DesiredState>,
    /// For sessions, while it runs.
    pub opener: watch::Receiver<Option<SessionOpener>>,
}

/// Starts the task of a virtual machine. It ends when the virtual machine is gone or has stopped, as desired.
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
    // Reported from here on: who asks in the next moment must not find it missing.
    match *vm.desired.borrow() {
        DesiredState::Run(_) => vm.report(VmState::Preparing, None),
        DesiredState::Blocked(ref why) => vm.report(VmState::Failed, Some(why.to_string())),
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
    /// Whether its image has a `heddle-guest` that will say how it stands.
    has_guest: bool,
}

/// How often it has ended by itself of late.
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

/// How a domain that ran came to its end.
#[derive(Debug)]
enum DomainEnd {
    Exited,
    /// Something else is desired.
    Superseded,
}

impl Vm {
    async fn run(mut self) {
        let context = Arc::clone(&self.context);
        tokio::select! {
            () = context.ready() => {}
            // Nobody knows what runs, so there is nothing to stop.
            _ = self.desired.wait_for(|desired| matches!(desired, DesiredState::Stop)) => return,
        }
        loop {
            let desired = self.desired.borrow_and_update().clone();
            match desired {
                DesiredState::Removed => return self.remove().await,
                DesiredState::Stop => return self.stop().await,
                DesiredState::Run(order) => self.run_domain(&order).await,
                DesiredState::Unmanaged => self.watch_unmanaged().await,
                DesiredState::Blocked(why) => {
                    self.report(VmState::Failed, Some(why.to_string()));
                    // An error means that the agent ends.
                    if self.desired.changed().await.is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// Leaves it as it is, and reports whether it runs.
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

    /// Starts it, and stays until something else is desired, or it ended and is to be started again.
    async fn run_domain(&mut self, order: &Arc<VmOrder>) {
        self.report(VmState::Preparing, None);
        match self.start(order).await {
            Ok(()) => {}
            Err(StartError::Interrupted) => return,
            Err(StartError::Later(why)) => {
                self.report(VmState::Preparing, Some(why));
                tokio::select! {
                    () = sleep(HYPERVISOR_PAUSE) => {}
                    _ = self.desired.changed() => {}
                }
                return;
            }
            Err(StartError::Never(why)) => {
                tracing::warn!(vm = %self.id, label = order.label, "cannot be: {why}");
                self.report(VmState::Failed, Some(why));
                // Tried again when orders change.
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

    /// Watches it while it runs.
    async fn monitor(&mut self, order: &Arc<VmOrder>) -> DomainEnd {
        self.has_guest = has_guest(order).await;
        let (context_sender, receiver) = watch::channel(guest_context(order));
        let link = GuestLink::start(self.id, self.context.state_dir.vm(self.id).channel, receiver);
        let end = self.monitor_linked(order, &link, &context_sender).await;
        self.opener.send_replace(None);
        end
    }

    async fn monitor_linked(
        &mut self,
        order: &Arc<VmOrder>,
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
                // Its guest hears and says nothing.
                Some(why) => self.report(VmState::Stopped, Some(format!("it stands still: {why}"))),
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
                            context_sender.send_if_modified(|context_sender| {
                                let changed = next.context != order.context;
                                if changed {
                                    *context_sender = guest_context(&next);
                                }
                                changed
                            });
                            let is_moved =
                                next.context.sl != order.context.sl || next.adapter != order.adapter;
                            order = next;
                            if is_moved {
                                self.attach(&order).await;
                            }
                        }
                        // The agent ends, or `run` does what is desired.
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
                        DomainState::Halted(why) => {
                            self.resume(why).await;
                            halted = Some(why);
                        }
                        DomainState::Gone => return DomainEnd::Exited,
                    }
                }
            }
        }
    }

    /// What its domain does, by a look at all of them; one that is not among those that run is looked at itself.
    async fn domain_state(&self, snapshot: &RunningVms, since: Instant) -> DomainState {
        if snapshot.taken < since || snapshot.running.contains(&self.id) {
            return DomainState::Running;
        }
        // Without an answer, nothing is known to have changed.
        let state = self.context.hypervisor.state(self.context.state_dir.instance(), self.id).await;
        state.unwrap_or(DomainState::Running)
    }

    /// Lets one that could not write go on when the host's disk has room again: it tries once more what it could not do.
    async fn resume(&self, why: HaltReason) {
        let AgentContext { hypervisor, state_dir, .. } = &*self.context;
        if why != HaltReason::DiskError {
            return;
        }
        if !disk_space::has_reserve(state_dir) {
            self.context.evict_retained_disk().await;
        }
        if disk_space::has_reserve(state_dir)
            && let Err(error) = hypervisor.resume(state_dir.instance(), self.id).await
        {
            tracing::warn!(vm = %self.id, "does not go on: {error}");
        }
    }

    /// It has ended by itself: waits before the next start.
    async fn back_off(&mut self, started: Instant) {
        if started.elapsed() > STABLE_AFTER {
            self.restarts.count = 0;
        }
        self.restarts.count += 1;
        let pause = self.restarts.pause();
        let (count, seconds) = (self.restarts.count, pause.as_secs());
        let times = if count == 1 { "time" } else { "times" };
        let why = format!("it ended by itself, {count} {times} of late; started again in {seconds} s");
        tracing::warn!(vm = %self.id, "{why}");
        self.report(VmState::Stopped, Some(why));
        tokio::select! {
            () = sleep(pause) => {}
            // Orders of others change too; only an end is worth hurrying for.
            () = wait_until_not_run(&mut self.desired) => {}
        }
    }

    /// Removes it with everything it had; tries until it is done.
    async fn remove(&self) {
        self.report(VmState::Removing, None);
        while let Err(why) = self.tear_down(Keep::RetainedDisk).await {
            tracing::warn!(vm = %self.id, "cannot be removed yet: {why}");
            self.report(VmState::Removing, Some(why));
            sleep(HYPERVISOR_PAUSE).await;
        }
        self.context.reports.remove_vm(&self.host, self.id);
    }

    /// Ends its domain and keeps its disk.
    async fn stop(&self) {
        if let Err(why) = self.tear_down(Keep::Disk).await {
            tracing::warn!(vm = %self.id, "cannot be stopped: {why}");
        }
    }

    /// Takes away its domain, its state_dir on the fabric, what it was given of the machine, and its files.
    async fn tear_down(&self, keep: Keep) -> Result<(), String> {
        let AgentContext { hypervisor, state_dir, fabric, .. } = &*self.context;
        hypervisor.destroy(state_dir.instance(), self.id).await.map_err(|error| error.to_string())?;
        fabric.detach(self.id).await;
        self.context.release(self.id).await;
        let files = state_dir.vm(self.id);
        let removed = match keep {
            Keep::Disk | Keep::RetainedDisk => files.remove_sockets(),
            Keep::Nothing => files.remove(),
        };
        removed.map_err(|error| crate::error_chain(&error))?;
        if keep == Keep::RetainedDisk {
            let (context, id) = (Arc::clone(&self.context), self.id);
            let put = tokio::task::spawn_blocking(move || context.retained_disks.retain(id, &files));
            let put = put.await.map_err(|error| error.to_string())?;
            put.map_err(|error| format!("its disk cannot be put to rest: {error}"))?;
        }
        if keep != Keep::Disk {
            self.context.users.release(self.id);
            crate::context::remove_logs(state_dir.instance(), self.id);
        }
        Ok(())
    }

    fn report_running(&self, state: &GuestState, order: &VmOrder) {
        let (ready, network, said) = match state {
            // Nobody will say more than that it runs.
            _ if !self.has_guest => (Some(order.context.generation), None, None),
            GuestState::Silent | GuestState::Greeted => (None, None, None),
            // Of contexts that were never context_sender, a guest knows nothing.
            GuestState::Ready(generation, _) if *generation > order.context.generation => (None, None, None),
            GuestState::Ready(generation, network) => (Some(*generation), *network, None),
            GuestState::Failed(why) => (None, None, Some(format!("its guest says: {why}"))),
            GuestState::Misbehaving(what) => (None, None, Some(format!("its guest {what}"))),
        };
        let reason = self.context.fabric.attach_error(self.id).or(said);
        let stop = self.context.fabric.packet_stop(self.id);
        self.set(VmReport { ready, network, reason, stop, ..self.bare_report(VmState::Running) });
    }

    fn report_unmanaged(&self, runs: bool) {
        let state = if runs { VmState::Running } else { VmState::Stopped };
        self.report(state, Some("no orders list it; it is left as it is".to_owned()));
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

/// What is left when a virtual machine was cleared away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keep {
    Nothing,
    /// Where it was, for the next start.
    Disk,
    /// Out of reach, until its grace period is over.
    RetainedDisk,
}

async fn wait_until_not_run(desired: &mut watch::Receiver<DesiredState>) {
    // An error means that the agent ends.
    let _ = desired.wait_for(|desired| !matches!(desired, DesiredState::Run(_))).await;
}

/// Whether the image of an order has a guest, as far as can be context_sender.
async fn has_guest(order: &VmOrder) -> bool {
    let image = order.image.clone();
    let manifest = tokio::task::spawn_blocking(move || manifest(&image)).await;
    // Of an image that is not there any more nothing is known: most have one.
    !matches!(manifest, Ok(Ok(manifest)) if !manifest.guest)
}

fn guest_context(order: &VmOrder) -> GuestContext {
    GuestContext { generation: order.context.generation, documents: Arc::new(disk::seed(order).to_context()) }
}

/// Asks a guest to write its disks and close them, so that they are whole when it is stopped.
pub async fn quiesce(opener: SessionOpener) {
    let argv = QUIESCE.map(str::to_owned).to_vec();
    let done = async {
        let session = opener.open(controller_api::session::Open::Exec { argv }).await.ok()?;
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
    // Who does not answer is stopped as it is.
    let _ = tokio::time::timeout(QUIESCE_TIMEOUT, done).await;
}
