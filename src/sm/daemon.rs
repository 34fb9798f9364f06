//! The daemon loop: moves datagrams, time, plans and control commands between the device and the manager.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use control_protocol::{FabricEvent, SmRequest};
use fabric_model::FabricPlan;
use ib_transport::{Device, Received, Waker};
use ib_wire::Datagram;
use serde_json::json;
use subnet_manager::{
    AttributeDifference, KeyKind, LinkName, Manager, ManagerSettings, PersistentState, SmEvent,
};

use super::adoption::AdoptionReport;
use super::control;
use super::metrics;
use super::planner::PlanProvider;
use super::progress::Bar;
use super::release::{Export, Release, ReleaseStep};
use super::standby::Redundancy;
use super::state::State;
use super::stats::SmStatistics;
use super::{Outputs, Signal};
use crate::control_socket::{PendingRequest, Replies};
use crate::files;

/// With `--once`: longest time without any answer from the fabric.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// With `--once`: interruptions of the programming run before the daemon gives up.
const INTERRUPTIONS_MAX: u64 = 20;

/// Interval of writing metrics while idle.
const METRICS_INTERVAL: Duration = Duration::from_secs(10);

/// Datagrams received in a row before new ones are sent, so that the fabric always has requests to work on.
const BURST: usize = 32;

/// The subnet manager with its device, state file, control socket and outputs.
pub struct Daemon {
    pub device: Device,
    pub manager: Manager,
    pub settings: ManagerSettings,
    /// What was stored last.
    pub memory: PersistentState,
    /// Other managers of the site.
    pub redundancy: Option<Redundancy>,
    /// Whether a state is stored here, and not by all standby managers yet.
    pub awaits_followers: bool,
    pub planner: PlanProvider,
    pub state: State,
    pub stats: SmStatistics,
    pub outputs: Outputs,
    /// File with the limits of link health.
    pub link_health: Option<PathBuf>,
    pub started: Instant,
    /// End after the first programming run.
    pub once: bool,
    pub waker: Waker,
    pub signals: Receiver<Signal>,
    pub commands: Option<Receiver<PendingRequest<SmRequest>>>,
    /// Set while the configuration of another subnet manager has still to be taken over.
    pub adoption: Option<Adopt>,
    pub adoption_report: AdoptionReport,
    /// Requests that are answered when the fabric is programmed.
    pub waiting: Vec<Replies>,
    /// Requests that are answered when all nodes have changed their M_Keys.
    pub rotating: Vec<Replies>,
    /// Set while the fabric is being released.
    pub release: Option<Release>,
    /// Connections of `heddle sm watch`.
    pub watchers: Vec<Replies>,
    /// The links that are damped, as new watchers receive them.
    pub damped: BTreeMap<LinkName, FabricEvent>,
    pub read_back: ReadBack,
    pub bar: Bar,
    /// Reused buffer.
    pub unsent: Vec<Datagram>,
    pub metrics_written: Option<Instant>,
    /// What a release wrote, a line for each file.
    pub released_with: Vec<String>,
}

/// Requests for a read-back.
#[derive(Default)]
pub struct ReadBack {
    /// Received since the last read-back began.
    pub wanted: Vec<Replies>,
    /// Answered by the read-back that is running.
    pub begun: Vec<Replies>,
}

/// What to do with a fabric that another subnet manager configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adopt {
    /// Print what would change.
    Only,
    /// Print what changes, and change it.
    AndApply,
}

/// The device failed while it was in use. A supervisor may restart the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FabricGone;

impl std::fmt::Display for FabricGone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the device of the fabric has failed")
    }
}

/// Why the daemon loop ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// `--once`: the fabric is programmed.
    Programmed,
    /// `--adopt` without `--apply`: the differences were printed.
    Compared,
    /// SIGINT or SIGTERM arrived.
    Asked,
    /// Another declared manager is the master.
    Yielded,
    /// This manager did nothing for so long that another one may be the master.
    Paused,
    /// The fabric was released; the request is not answered yet.
    Released,
}

impl Daemon {
    /// Runs until a signal stops it, or with `--once` until the fabric is programmed.
    pub fn run(&mut self) -> anyhow::Result<Stop> {
        let once = self.once;
        let mut heard = Instant::now();
        let mut received_burst = false;
        loop {
            self.persist()?;
            if let Some(stop) = self.handle_events(once)? {
                return Ok(stop);
            }
            self.transmit()?;
            if !received_burst {
                let has_more = self.manager.has_more() && !self.awaits_followers;
                self.wait(if has_more { Duration::ZERO } else { METRICS_INTERVAL })?;
            }
            let received = self.receive()?;
            received_burst = received == BURST;
            if received > 0 {
                heard = Instant::now();
            }
            if once && heard.elapsed() > SILENCE_MAX {
                bail!("no node has answered for {SILENCE_MAX:?}");
            }
            if self.replicate()? {
                return Ok(Stop::Yielded);
            }
            if self.handle_signals()? {
                return Ok(Stop::Asked);
            }
            self.handle_commands();
            if self.advance_release() {
                return Ok(Stop::Released);
            }
            self.start_read_back();
            self.write_metrics()?;
        }
    }

    /// Sends what the manager has to send.
    fn transmit(&mut self) -> anyhow::Result<()> {
        let now = self.now();
        self.unsent.extend(std::iter::from_fn(|| self.manager.poll_transmit(now)));
        self.device.send_batch(&self.unsent).context(FabricGone)?;
        self.unsent.clear();
        self.bar.show(self.manager.progress());
        Ok(())
    }

    /// Waits until something arrives or the manager has something to do.
    fn wait(&mut self, longest: Duration) -> anyhow::Result<()> {
        let now = self.now();
        let due = self.manager.poll_timeout().map_or(longest, |due| due.saturating_sub(now));
        self.device.wait(&self.waker, due.min(longest)).context(FabricGone)
    }

    /// Sends, receives and does what is due, without anything that follows from it.
    pub fn go_on(&mut self) -> anyhow::Result<()> {
        self.transmit()?;
        self.wait(METRICS_INTERVAL)?;
        self.receive()?;
        let now = self.now();
        if let Some(redundancy) = self.redundancy.as_mut().filter(|_| self.manager.is_master()) {
            redundancy.followers.beat(now);
        }
        Ok(())
    }

    /// Ends all requests that are not answered yet.
    pub fn drop_requests(&mut self) {
        self.waiting.clear();
        self.rotating.clear();
        self.watchers.clear();
        self.damped.clear();
        self.read_back = ReadBack::default();
    }

    pub fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Handles up to `BURST` datagrams, and what is due. Returns the number of datagrams.
    fn receive(&mut self) -> anyhow::Result<usize> {
        let now = self.now();
        let mut count = 0;
        while count < BURST {
            match self.device.receive(Duration::ZERO).context(FabricGone)? {
                Some(Received::Datagram(datagram)) => self.manager.handle_datagram(now, &datagram),
                Some(Received::Lost(transaction)) => self.manager.handle_lost(now, transaction),
                None => break,
            }
            count += 1;
        }
        self.manager.handle_timeout(self.now());
        Ok(count)
    }

    /// Handles the events of the manager; returns why to stop, if it is time to.
    fn handle_events(&mut self, once: bool) -> anyhow::Result<Option<Stop>> {
        let mut stop = None;
        while let Some(event) = self.manager.poll_event() {
            self.stats.note(&event);
            self.notify_watchers(&event);
            match event {
                SmEvent::Discovered(discovery) => {
                    let found = format!(
                        "discovered {} switches, {} adapters in {:.2?}",
                        self.stats.switches,
                        self.stats.adapters,
                        self.started.elapsed()
                    );
                    self.print(&found)?;
                    self.planner.found(discovery)?;
                    if self.is_stale() {
                        self.print("what this manager remembers may be old: it reads the fabric first")?;
                        self.manager.freeze_bindings();
                        if !self.planner.is_external() {
                            self.adoption = Some(Adopt::AndApply);
                        }
                    }
                    match self.adoption {
                        Some(_) => self.manager.survey(self.now()),
                        None => self.decide(once)?,
                    }
                }
                SmEvent::Elected => {
                    self.stats.role = Some("master");
                    if let Some(redundancy) = &mut self.redundancy {
                        redundancy.fruitless = 0;
                        redundancy.takeovers += 1;
                    }
                    self.print("this manager is the master")?;
                }
                SmEvent::LeaseLost => {
                    self.stats.role = Some("candidate");
                    self.print(
                        "this manager was stopped or cut off: it sends nothing until it is the master again",
                    )?;
                }
                SmEvent::Yielded { to } => {
                    let Some(to) = to else {
                        self.print(
                            "this manager waits: it was stopped, or too busy to answer the others in time",
                        )?;
                        return Ok(Some(Stop::Paused));
                    };
                    self.print(&format!("this manager waits: {to} goes before it"))?;
                    return Ok(Some(Stop::Yielded));
                }
                // Another survey has already led to a plan in force; the fabric has changed since.
                SmEvent::Surveyed(_) if self.adoption.is_none() => self.decide(once)?,
                SmEvent::Surveyed(found) => self.adopt(*found)?,
                SmEvent::ReadBack(plan) => {
                    let answer = serde_json::to_value(&plan)?;
                    for answers in self.read_back.begun.drain(..) {
                        answers.send(Ok(answer.clone()));
                    }
                }
                SmEvent::Compared(differences) => {
                    self.report_comparison(&differences)?;
                    match (self.adoption.take(), self.planner.plan().cloned()) {
                        (Some(Adopt::AndApply), Some(plan)) => self.apply(plan)?,
                        _ => return Ok(Some(Stop::Compared)),
                    }
                }
                SmEvent::Programmed(_) => {
                    self.report_programmed()?;
                    stop = once.then_some(Stop::Programmed);
                }
                SmEvent::KeysRotated { version, absent } => {
                    let left = match absent {
                        0 => String::new(),
                        _ => format!("; {absent} that do not answer get theirs when they come back"),
                    };
                    let keys = match version.kind {
                        KeyKind::Derived => format!("M_Keys of epoch {}", version.epoch),
                        KeyKind::Operator => "the operator key".to_owned(),
                        KeyKind::Removed => "no M_Key".to_owned(),
                    };
                    let done = format!("all nodes that answer hold {keys}{left}");
                    self.print(&done)?;
                    self.settle_release();
                    for answers in self.rotating.drain(..) {
                        answers.send(Ok(json!(done)));
                    }
                }
                SmEvent::LocalNodeSilent if once => bail!(
                    "no node answers, not even the one that this manager runs on. If it has an M_Key that --secret and --state \
                     do not give, name the node with heddle sm adopt-node --here"
                ),
                SmEvent::Inconsistent(error) if once => {
                    return Err(error).context("the discovered topology is inconsistent");
                }
                SmEvent::Interrupted if once && self.stats.interruptions > INTERRUPTIONS_MAX => {
                    bail!(
                        "programming was interrupted {INTERRUPTIONS_MAX} times: too many requests are not answered"
                    );
                }
                _ => {}
            }
        }
        Ok(stop)
    }

    /// Whether the memory of this candidate may be older than what the last master remembered. Asked once for each candidacy.
    fn is_stale(&mut self) -> bool {
        let Some(redundancy) = self.redundancy.as_mut().filter(|_| !self.manager.is_master()) else {
            return false;
        };
        let was_current = std::mem::replace(&mut redundancy.is_current, true);
        let own = self.memory.decisions.end_ports.get(&redundancy.own).map(|port| port.lid);
        let last = self.manager.last_master();
        let knows_nothing = self.memory.decisions.end_ports.is_empty();
        !was_current && !knows_nothing && last.is_some() && last != own
    }

    /// Prints what a takeover would write, or the whole report as JSON.
    fn report_comparison(&mut self, differences: &[AttributeDifference]) -> anyhow::Result<()> {
        self.adoption_report.compare(differences);
        self.bar.clear();
        match self.outputs.json {
            true => crate::print_line(serde_json::to_string_pretty(&self.adoption_report)?),
            false => self.adoption_report.print_changes(differences),
        }
    }

    pub fn apply(&mut self, plan: Arc<FabricPlan>) -> anyhow::Result<()> {
        for finding in plan.findings() {
            self.print(&format!("finding: {finding}"))?;
        }
        let began = Instant::now();
        self.manager.apply(self.now(), plan);
        tracing::debug!(elapsed = ?began.elapsed(), "compared with the plan");
        Ok(())
    }

    /// Reports that the fabric is programmed: output line, waiting requests, report file.
    fn report_programmed(&mut self) -> anyhow::Result<()> {
        let counts = self.manager.counts();
        self.stats.count(&self.manager);
        if let Some(plan) = self.planner.plan().filter(|_| !self.manager.is_holding_back()) {
            self.stats.note_plan(plan, self.started.elapsed());
        }
        let up = format!(
            "up: {} LIDs, {} partitions; {} Gets, {} Sets in {:.2?}",
            self.stats.lids,
            self.stats.partitions,
            counts.gets,
            counts.sets,
            self.started.elapsed(),
        );
        self.print(&up)?;
        // While a plan is held back, the fabric is programmed with the plan before it.
        if !self.manager.is_holding_back() {
            for answers in self.waiting.drain(..) {
                answers.send(Ok(json!(up)));
            }
        }
        if let Some(path) = &self.outputs.report {
            warn(files::replace_public(path, &serde_json::to_vec_pretty(&self.stats)?));
        }
        self.metrics_written = None;
        Ok(())
    }

    /// Prints a line. Without `--once`, a closed standard output is not an error.
    pub fn print(&mut self, line: &str) -> anyhow::Result<()> {
        self.bar.clear();
        if self.outputs.json {
            return Ok(());
        }
        match crate::print_line(line) {
            Err(error) if !self.once => {
                tracing::warn!("cannot print: {error:#}");
                Ok(())
            }
            said => said,
        }
    }

    /// Handles signals that arrived; returns whether to stop.
    fn handle_signals(&mut self) -> anyhow::Result<bool> {
        loop {
            match self.signals.try_recv() {
                Ok(Signal::Stop) => return Ok(true),
                Ok(Signal::Reload) => match self.reread() {
                    Ok(Some(plan)) => self.apply(plan)?,
                    Ok(None) => {}
                    Err(error) => {
                        crate::print_warning(format_args!("reload failed, nothing was changed: {error:#}"));
                        tracing::error!("reload failed, nothing was changed: {error:#}");
                    }
                },
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return Ok(false),
            }
        }
    }

    /// Nodes hold the keys that they are to be released with.
    fn settle_release(&mut self) {
        if let Some(release) = self.release.as_mut().filter(|it| it.step == ReleaseStep::ChangingKeys) {
            release.step = ReleaseStep::Settling { since: Instant::now() };
        }
    }

    /// Takes the next step of a release, if one is due. Returns whether the fabric is released.
    fn advance_release(&mut self) -> bool {
        match self.release.as_ref().map(|release| release.step) {
            None | Some(ReleaseStep::ChangingKeys) => return false,
            Some(ReleaseStep::Persisting) => return self.manager.is_released(),
            Some(ReleaseStep::Settling { .. }) => {}
        }
        let is_ready = self.manager.check_release();
        let Some(mut release) = self.release.take_if(|release| is_ready.is_ok() || release.is_overdue())
        else {
            return false;
        };
        let now = self.now();
        let released =
            is_ready.map_err(Into::into).and_then(|()| self.export(&release)).and_then(|written| {
                self.manager.release(now)?;
                Ok(written)
            });
        match released {
            Ok(written) => {
                tracing::info!("released; nothing is written any more");
                self.released_with = written;
                release.step = ReleaseStep::Persisting;
                self.release = Some(release);
            }
            Err(error) => {
                release.answers.send(Err(format!("the fabric is not released: {error:#}").into()));
            }
        }
        false
    }

    /// Writes what another manager needs.
    fn export(&self, release: &Release) -> anyhow::Result<Vec<String>> {
        let plan = self.planner.plan().context("there is no plan")?;
        let held = self.manager.held_keys();
        let intents = self.planner.partitions();
        Export { plan, intents, held: &held, keys: &release.keys }.write(&release.export)
    }

    fn handle_commands(&mut self) {
        while let Some(command) = self.commands.as_ref().and_then(|commands| commands.try_recv().ok()) {
            control::carry_out(self, command);
        }
    }

    /// Starts a read-back for the waiting requests as soon as the manager is idle.
    fn start_read_back(&mut self) {
        let is_due = !self.read_back.wanted.is_empty() && self.read_back.begun.is_empty();
        if is_due && self.manager.read_back(self.now()) {
            self.read_back.begun = std::mem::take(&mut self.read_back.wanted);
        }
    }

    fn notify_watchers(&mut self, event: &SmEvent) {
        match event {
            SmEvent::LinkDamped(report) => {
                self.damped.insert(report.damped.link, control::fabric_event(event));
            }
            SmEvent::LinkRestored { link } => drop(self.damped.remove(link)),
            _ => {}
        }
        if !self.watchers.is_empty() {
            self.send_to_watchers(control::fabric_event(event));
        }
    }

    pub fn send_to_watchers(&mut self, event: FabricEvent) {
        let line = json!(event);
        self.watchers.retain(|watcher| watcher.send(Ok(line.clone())));
    }

    fn write_metrics(&mut self) -> anyhow::Result<()> {
        let Some(path) = &self.outputs.metrics else { return Ok(()) };
        if self.metrics_written.is_none_or(|at| at.elapsed() > METRICS_INTERVAL) {
            self.stats.count(&self.manager);
            warn(files::replace_public(path, metrics::text(&self.stats)?.as_bytes()));
            self.metrics_written = Some(Instant::now());
        }
        Ok(())
    }
}

/// Logs a failed write of a report or metrics file; the daemon goes on.
fn warn(written: anyhow::Result<()>) {
    if let Err(error) = written {
        tracing::warn!("{error:#}");
    }
}
