//! One virtual machine: a task that makes it what is ordered, as long as it is ordered.

mod start;

use std::sync::Arc;
use std::time::Duration;

use controller_api::Name;
use controller_api::agent::{VmOrder, VmReport, VmState};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::disk;
use crate::hypervisor::{DomainState, Halt};
use crate::image::manifest;
use crate::link::{FromGuest, Link, Opener, Standing, Told};
use crate::room;
use crate::shared::{Shared, Snapshot};
use start::StartError;

/// How long to wait before a virtual machine that ended by itself is started again: doubled each time.
const RESTART_PAUSE_MIN: Duration = Duration::from_secs(1);

/// The longest such pause.
const RESTART_PAUSE_MAX: Duration = Duration::from_secs(60);

/// Who has run so long starts again without a pause worth the name.
const WELL_AFTER: Duration = Duration::from_secs(120);

/// How long to wait for libvirt before asking again.
const HYPERVISOR_PAUSE: Duration = Duration::from_secs(1);

/// How long a guest has to write its disks before it is stopped.
const QUIESCE_TIMEOUT: Duration = Duration::from_secs(4);

/// What a guest is asked to run before it is stopped: file systems are written and closed, also without a journal.
const QUIESCE: [&str; 3] =
    ["/bin/sh", "-c", "sync; echo s >/proc/sysrq-trigger; echo u >/proc/sysrq-trigger"];

/// What is wanted of a virtual machine.
#[derive(Clone, Debug)]
pub enum Wanted {
    /// To run.
    Run(Arc<VmOrder>),
    /// Not to run; says why.
    Refused(Arc<str>),
    /// To be left as it is: nobody knows its order.
    Leave,
    /// To stop, with everything kept for the next start.
    Stop,
    /// To be gone.
    Gone,
}

/// By which a virtual machine is told what is wanted, and reached.
#[derive(Debug)]
pub struct Handle {
    /// Where it is.
    pub host: Name,
    /// What is wanted.
    pub wanted: watch::Sender<Wanted>,
    /// For sessions, while it runs.
    pub opener: watch::Receiver<Option<Opener>>,
}

/// Starts the task of a virtual machine. It ends when the virtual machine is gone or has stopped, as wanted.
pub fn spawn(
    shared: Arc<Shared>,
    host: Name,
    id: Uuid,
    wanted: Wanted,
) -> (Handle, tokio::task::JoinHandle<()>) {
    let (wanted, receiver) = watch::channel(wanted);
    let (opener, opener_receiver) = watch::channel(None);
    let vm = Vm {
        id,
        host: host.clone(),
        shared,
        wanted: receiver,
        opener,
        restarts: Restarts::default(),
        has_guest: true,
    };
    // Reported from here on: who asks in the next moment must not find it missing.
    match *vm.wanted.borrow() {
        Wanted::Run(_) => vm.report(VmState::Preparing, None),
        Wanted::Refused(ref why) => vm.report(VmState::Failed, Some(why.to_string())),
        Wanted::Leave => vm.report_left(false),
        Wanted::Stop => {}
        Wanted::Gone => vm.report(VmState::Removing, None),
    }
    let task = tokio::spawn(vm.run());
    (Handle { host, wanted, opener: opener_receiver }, task)
}

struct Vm {
    id: Uuid,
    host: Name,
    shared: Arc<Shared>,
    wanted: watch::Receiver<Wanted>,
    opener: watch::Sender<Option<Opener>>,
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
enum End {
    /// By itself.
    Ended,
    /// Something else is wanted.
    Unwanted,
}

impl Vm {
    async fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        tokio::select! {
            () = shared.ready() => {}
            // Nobody knows what runs, so there is nothing to stop.
            _ = self.wanted.wait_for(|wanted| matches!(wanted, Wanted::Stop)) => return,
        }
        loop {
            let wanted = self.wanted.borrow_and_update().clone();
            match wanted {
                Wanted::Gone => return self.remove().await,
                Wanted::Stop => return self.stop().await,
                Wanted::Run(order) => self.make_so(&order).await,
                Wanted::Leave => self.leave().await,
                Wanted::Refused(why) => {
                    self.report(VmState::Failed, Some(why.to_string()));
                    // An error means that the agent ends.
                    if self.wanted.changed().await.is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// Leaves it as it is, and reports whether it runs.
    async fn leave(&mut self) {
        let mut snapshots = self.shared.snapshots();
        loop {
            self.report_left(snapshots.borrow_and_update().running.contains(&self.id));
            tokio::select! {
                _ = self.wanted.changed() => return,
                Ok(()) = snapshots.changed() => {}
            }
        }
    }

    /// Starts it, and stays until something else is wanted, or it ended and is to be started again.
    async fn make_so(&mut self, order: &Arc<VmOrder>) {
        self.report(VmState::Preparing, None);
        match self.start(order).await {
            Ok(()) => {}
            Err(StartError::Interrupted) => return,
            Err(StartError::Later(why)) => {
                self.report(VmState::Preparing, Some(why));
                tokio::select! {
                    () = sleep(HYPERVISOR_PAUSE) => {}
                    _ = self.wanted.changed() => {}
                }
                return;
            }
            Err(StartError::Never(why)) => {
                tracing::warn!(vm = %self.id, label = order.label, "cannot be: {why}");
                self.report(VmState::Failed, Some(why));
                // Tried again when orders change.
                let _ = self.wanted.changed().await;
                return;
            }
        }
        let started = Instant::now();
        match self.attend(order).await {
            End::Unwanted => {}
            End::Ended => self.rest(started).await,
        }
    }

    /// Watches it while it runs.
    async fn attend(&mut self, order: &Arc<VmOrder>) -> End {
        self.has_guest = has_guest(order).await;
        let (told, receiver) = watch::channel(told(order));
        let link = Link::start(self.id, self.shared.place.vm(self.id).channel, receiver);
        let end = self.attend_linked(order, &link, &told).await;
        self.opener.send_replace(None);
        end
    }

    async fn attend_linked(&mut self, order: &Arc<VmOrder>, link: &Link, told: &watch::Sender<Told>) -> End {
        let mut order = Arc::clone(order);
        let (mut standing, mut snapshots) = (link.standing(), self.shared.snapshots());
        let (mut fabric, since) = (self.shared.fabric.seen(), Instant::now());
        let mut halted = None;
        loop {
            match halted {
                None => self.report_running(&standing.borrow_and_update().clone(), &order),
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
                changed = self.wanted.changed() => {
                    let wanted = self.wanted.borrow_and_update().clone();
                    match wanted {
                        Wanted::Run(next) if changed.is_ok() => {
                            told.send_if_modified(|told| {
                                let changed = next.context != order.context;
                                if changed {
                                    *told = self::told(&next);
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
                        // The agent ends, or `run` does what is wanted.
                        _ => {
                            return End::Unwanted;
                        }
                    }
                }
                Ok(()) = standing.changed() => {}
                Ok(()) = fabric.changed() => {}
                Ok(()) = snapshots.changed() => {
                    let snapshot = snapshots.borrow_and_update().clone();
                    match self.look(&snapshot, since).await {
                        DomainState::Running => halted = None,
                        DomainState::Halted(why) => {
                            self.resume(why).await;
                            halted = Some(why);
                        }
                        DomainState::Gone => return End::Ended,
                    }
                }
            }
        }
    }

    /// What its domain does, by a look at all of them; one that is not among those that run is looked at itself.
    async fn look(&self, snapshot: &Snapshot, since: Instant) -> DomainState {
        if snapshot.taken < since || snapshot.running.contains(&self.id) {
            return DomainState::Running;
        }
        // Without an answer, nothing is known to have changed.
        let state = self.shared.hypervisor.state(self.shared.place.instance(), self.id).await;
        state.unwrap_or(DomainState::Running)
    }

    /// Lets one that could not write go on when the host's disk has room again: it tries once more what it could not do.
    async fn resume(&self, why: Halt) {
        let Shared { hypervisor, place, .. } = &*self.shared;
        if why != Halt::Disk {
            return;
        }
        if !room::has_reserve(place) {
            self.shared.evict_rested().await;
        }
        if room::has_reserve(place)
            && let Err(error) = hypervisor.resume(place.instance(), self.id).await
        {
            tracing::warn!(vm = %self.id, "does not go on: {error}");
        }
    }

    /// It has ended by itself: waits before the next start.
    async fn rest(&mut self, started: Instant) {
        if started.elapsed() > WELL_AFTER {
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
            () = wait_for_end(&mut self.wanted) => {}
        }
    }

    /// Removes it with everything it had; tries until it is done.
    async fn remove(&self) {
        self.report(VmState::Removing, None);
        while let Err(why) = self.clear_away(Remains::RestingDisk).await {
            tracing::warn!(vm = %self.id, "cannot be removed yet: {why}");
            self.report(VmState::Removing, Some(why));
            sleep(HYPERVISOR_PAUSE).await;
        }
        self.shared.board.remove_vm(&self.host, self.id);
    }

    /// Ends its domain and keeps its disk.
    async fn stop(&self) {
        if let Err(why) = self.clear_away(Remains::Disk).await {
            tracing::warn!(vm = %self.id, "cannot be stopped: {why}");
        }
    }

    /// Takes away its domain, its place on the fabric, what it was given of the machine, and its files.
    async fn clear_away(&self, remains: Remains) -> Result<(), String> {
        let Shared { hypervisor, place, fabric, .. } = &*self.shared;
        hypervisor.destroy(place.instance(), self.id).await.map_err(|error| error.to_string())?;
        fabric.detach(self.id).await;
        self.shared.release(self.id).await;
        let files = place.vm(self.id);
        let removed = match remains {
            Remains::Disk | Remains::RestingDisk => files.remove_sockets(),
            Remains::Nothing => files.remove(),
        };
        removed.map_err(|error| crate::told_whole(&error))?;
        if remains == Remains::RestingDisk {
            let (shared, id) = (Arc::clone(&self.shared), self.id);
            let put = tokio::task::spawn_blocking(move || shared.resting.put(id, &files));
            let put = put.await.map_err(|error| error.to_string())?;
            put.map_err(|error| format!("its disk cannot be put to rest: {error}"))?;
        }
        if remains != Remains::Disk {
            self.shared.users.release(self.id);
            crate::shared::remove_logs(place.instance(), self.id);
        }
        Ok(())
    }

    fn report_running(&self, standing: &Standing, order: &VmOrder) {
        let (ready, network, said) = match standing {
            // Nobody will say more than that it runs.
            _ if !self.has_guest => (Some(order.context.generation), None, None),
            Standing::Silent | Standing::Greeted => (None, None, None),
            // Of contexts that were never told, a guest knows nothing.
            Standing::Ready(generation, _) if *generation > order.context.generation => (None, None, None),
            Standing::Ready(generation, network) => (Some(*generation), *network, None),
            Standing::Failed(why) => (None, None, Some(format!("its guest says: {why}"))),
            Standing::Misbehaving(what) => (None, None, Some(format!("its guest {what}"))),
        };
        let reason = self.shared.fabric.complaint(self.id).or(said);
        let stop = self.shared.fabric.stop(self.id);
        self.set(VmReport { ready, network, reason, stop, ..self.bare_report(VmState::Running) });
    }

    fn report_left(&self, runs: bool) {
        let state = if runs { VmState::Running } else { VmState::Stopped };
        self.report(state, Some("no orders list it; it is left as it is".to_owned()));
    }

    fn report(&self, state: VmState, reason: Option<String>) {
        self.set(VmReport { reason, ..self.bare_report(state) });
    }

    fn bare_report(&self, state: VmState) -> VmReport {
        let pinned = self.shared.given(self.id).cores.iter().collect();
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
        self.shared.board.set_vm(&self.host, report);
    }
}

/// What is left when a virtual machine was cleared away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Remains {
    Nothing,
    /// Where it was, for the next start.
    Disk,
    /// Out of reach, until its grace period is over.
    RestingDisk,
}

async fn wait_for_end(wanted: &mut watch::Receiver<Wanted>) {
    // An error means that the agent ends.
    let _ = wanted.wait_for(|wanted| !matches!(wanted, Wanted::Run(_))).await;
}

/// Whether the image of an order has a guest, as far as can be told.
async fn has_guest(order: &VmOrder) -> bool {
    let image = order.image.clone();
    let manifest = tokio::task::spawn_blocking(move || manifest(&image)).await;
    // Of an image that is not there any more nothing is known: most have one.
    !matches!(manifest, Ok(Ok(manifest)) if !manifest.guest)
}

fn told(order: &VmOrder) -> Told {
    Told { generation: order.context.generation, documents: Arc::new(disk::seed(order).to_context()) }
}

/// Asks a guest to write its disks and close them, so that they are whole when it is stopped.
pub async fn quiesce(opener: Opener) {
    let argv = QUIESCE.map(str::to_owned).to_vec();
    let done = async {
        let session = opener.open(controller_api::session::Open::Exec { argv }).await.ok()?;
        loop {
            match session.hear().await {
                FromGuest::Output(bytes) | FromGuest::Error(bytes) => session.consumed(bytes.len()).await,
                FromGuest::Exit(status) => return Some(status),
                FromGuest::Note(_) => {}
                FromGuest::Refused(_) => return None,
            }
        }
    };
    // Who does not answer is stopped as it is.
    let _ = tokio::time::timeout(QUIESCE_TIMEOUT, done).await;
}
