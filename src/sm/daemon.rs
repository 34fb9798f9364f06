//! A manager and the device it sits behind: moves datagrams, time, plans and commands.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use fabric_model::{FabricPlan, Found};
use ib_transport::{Device, Received, Waker};
use ib_wire::Datagram;
use serde_json::{Value, json};
use subnet_manager::{Event, Manager};

use super::adoption;
use super::control::{self, SmRequest};
use super::metrics;
use super::planner::{PlanProvider, PlanRejection};
use super::progress::Bar;
use super::state::{self, State};
use super::stats::SmStatistics;
use super::{Outputs, Signal};
use crate::control_socket::{PendingRequest, Replies};

/// How long the fabric may stay without any answer if only one pass is wanted.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// How often one pass may be interrupted before it is given up.
const INTERRUPTIONS_MAX: u64 = 20;

/// How often metrics are written while nothing happens.
const METRICS_INTERVAL: Duration = Duration::from_secs(10);

/// Datagrams that are taken before new ones are sent: the fabric works on those meanwhile.
const BURST: usize = 32;

/// A manager and everything around it.
pub struct Daemon {
    pub device: Device,
    pub manager: Manager,
    pub planner: PlanProvider,
    pub state: State,
    pub stats: SmStatistics,
    pub outputs: Outputs,
    pub started: Instant,
    /// One pass is all that is wanted.
    pub once: bool,
    pub waker: Waker,
    pub signals: Receiver<Signal>,
    pub commands: Option<Receiver<PendingRequest<SmRequest>>>,
    /// What is there is taken over first.
    pub adoption: Option<Adopt>,
    /// Who wants to know when the fabric is equal to the plan.
    pub waiting: Vec<Replies>,
    /// Who wants to know everything.
    pub watchers: Vec<Replies>,
    pub read_back: ReadBack,
    pub bar: Bar,
    /// Kept for its memory.
    pub unsent: Vec<Datagram>,
    pub metrics_written: Option<Instant>,
}

/// Who wants to know what devices hold.
#[derive(Default)]
pub struct ReadBack {
    /// Those who asked since the last reading began.
    pub wanted: Vec<Replies>,
    /// Those for whom it is being read.
    pub begun: Vec<Replies>,
}

/// What to do with a fabric that somebody else runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adopt {
    /// Tell what would change.
    Only,
    /// Tell, and change it.
    AndApply,
}

/// The device has failed under a manager that was using it: whoever started it may start it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FabricGone;

impl std::fmt::Display for FabricGone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the fabric is gone")
    }
}

/// Why a daemon stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// One pass was wanted, and it is done.
    Programmed,
    /// A comparison was wanted, and it was told.
    Compared,
    /// Somebody asked it to.
    Asked,
}

impl Daemon {
    /// Runs until the fabric is equal to the plan for the first time, if that is all, or until it is asked to stop.
    pub fn run(&mut self) -> anyhow::Result<Stop> {
        let once = self.once;
        let mut heard = Instant::now();
        let mut received_burst = false;
        loop {
            self.persist()?;
            if let Some(stop) = self.handle_events(once)? {
                return Ok(stop);
            }
            let now = self.now();
            self.unsent.extend(std::iter::from_fn(|| self.manager.poll_transmit(now)));
            self.device.send_batch(&self.unsent).context(FabricGone)?;
            self.unsent.clear();
            self.bar.show(self.manager.progress());
            if !received_burst {
                let due = self.manager.poll_timeout().unwrap_or(now + METRICS_INTERVAL);
                let wait = match self.manager.has_more() {
                    true => Duration::ZERO,
                    false => due.saturating_sub(self.now()).min(METRICS_INTERVAL),
                };
                self.device.wait(&self.waker, wait).context(FabricGone)?;
            }
            let received = self.receive()?;
            received_burst = received == BURST;
            if received > 0 {
                heard = Instant::now();
            }
            if once && heard.elapsed() > SILENCE_MAX {
                bail!("nobody has answered for {SILENCE_MAX:?}");
            }
            self.manager.handle_timeout(self.now());
            if self.handle_signals()? {
                return Ok(Stop::Asked);
            }
            self.handle_commands();
            self.start_read_back();
            self.write_metrics()?;
        }
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Takes what came, but not too much at once; how much.
    fn receive(&mut self) -> anyhow::Result<usize> {
        let now = self.now();
        for count in 0..BURST {
            let received = self.device.receive(Duration::ZERO).context(FabricGone)?;
            let Some(received) = received else { return Ok(count) };
            match received {
                Received::Datagram(datagram) => self.manager.handle_datagram(now, &datagram),
                Received::Lost(transaction) => self.manager.handle_lost(now, transaction),
            }
        }
        Ok(BURST)
    }

    /// What has to be safe is made safe; only then the manager goes on.
    fn persist(&mut self) -> anyhow::Result<()> {
        if let Some(memory) = self.manager.poll_persist() {
            let began = Instant::now();
            match self.state.write(memory) {
                Ok(()) => {
                    tracing::debug!(elapsed = ?began.elapsed(), "what was decided is safe");
                    self.record_state_saved()?;
                    self.manager.handle_persisted(self.now());
                }
                Err(error) if self.once => return Err(error),
                Err(error) => {
                    self.record_state_unsaved(&error);
                    self.manager.handle_not_persisted(self.now());
                }
            }
        }
        Ok(())
    }

    /// What was decided cannot be kept: the fabric stays as it is, and it is tried again.
    fn record_state_unsaved(&mut self, error: &anyhow::Error) {
        let why = format!("{error:#}");
        tracing::error!("what was decided cannot be kept, so it is not done: {why}");
        if self.stats.unsaved.is_none() {
            crate::print_warning(format_args!(
                "what was decided cannot be kept, so the fabric stays as it is until it can: {why}"
            ));
            self.send_to_watchers(json!({ "event": "state-unsaved", "error": why }));
        }
        self.stats.state_write_failures += 1;
        self.stats.unsaved = Some(why);
        self.metrics_written = None;
    }

    /// What was decided is kept, perhaps after it could not be.
    fn record_state_saved(&mut self) -> anyhow::Result<()> {
        if self.stats.unsaved.take().is_some() {
            tracing::info!("what was decided can be kept again");
            self.send_to_watchers(json!({ "event": "state-saved" }));
            self.metrics_written = None;
            self.say("what was decided can be kept again")?;
        }
        Ok(())
    }

    /// Tells what happened, and decides what has to be decided; whether that was all that was wanted.
    fn handle_events(&mut self, once: bool) -> anyhow::Result<Option<Stop>> {
        let mut stop = None;
        while let Some(event) = self.manager.poll_event() {
            self.stats.note(&event);
            self.notify_watchers(&event);
            match event {
                Event::Discovered(discovery) => {
                    let found = format!(
                        "discovered {} switches, {} adapters in {:.2?}",
                        self.stats.switches,
                        self.stats.adapters,
                        self.started.elapsed()
                    );
                    self.say(&found)?;
                    self.planner.found(discovery)?;
                    match self.adoption {
                        Some(_) => self.manager.survey(self.now()),
                        None => self.decide(once)?,
                    }
                }
                Event::Surveyed(found) => self.adopt(&found)?,
                Event::ReadBack(plan) => {
                    let answer = serde_json::to_value(&plan)?;
                    for answers in self.read_back.begun.drain(..) {
                        answers.send(Ok(answer.clone()));
                    }
                }
                Event::Compared(differences) => {
                    adoption::print_differences(&differences)?;
                    match (self.adoption.take(), self.planner.plan().cloned()) {
                        (Some(Adopt::AndApply), Some(plan)) => self.apply(plan)?,
                        _ => return Ok(Some(Stop::Compared)),
                    }
                }
                Event::Programmed(_) => {
                    self.report_programmed()?;
                    stop = once.then_some(Stop::Programmed);
                }
                Event::Alone if once => bail!(
                    "nobody answers, not even the node this manager sits on; is it under a key that --secret and --state \
                     do not know? heddle sm adopt-node --here tells which node it is"
                ),
                Event::Inconsistent(error) if once => {
                    return Err(error).context("what answers is no fabric");
                }
                Event::Interrupted if once && self.stats.interruptions > INTERRUPTIONS_MAX => {
                    bail!("interrupted {INTERRUPTIONS_MAX} times: too many requests are not answered");
                }
                _ => {}
            }
        }
        Ok(stop)
    }

    fn decide(&mut self, once: bool) -> anyhow::Result<()> {
        match self.planner.decide() {
            Ok(Some(plan)) => self.apply(plan),
            Ok(None) => {
                for answers in self.waiting.drain(..) {
                    answers.send(Err(PlanRejection::FabricChanged.into()));
                }
                self.say("waits for a plan")
            }
            Err(error) if once => Err(error),
            Err(error) => {
                tracing::error!("no plan for this fabric: {error:#}");
                for answers in self.waiting.drain(..) {
                    answers.send(Err(format!("no plan for this fabric: {error:#}").into()));
                }
                Ok(())
            }
        }
    }

    /// Takes over what is there, and tells how it will differ.
    fn adopt(&mut self, found: &Found) -> anyhow::Result<()> {
        let (adoption, plan) = self.planner.adopt(found)?;
        self.say(&format!(
            "adopted: {} of {} LIDs and {} of {} routes to adapters stay",
            adoption.lids_kept,
            plan.lids().len(),
            adoption.routes_kept,
            adoption.routes,
        ))?;
        self.manager.compare(self.now(), plan);
        Ok(())
    }

    pub fn apply(&mut self, plan: Arc<FabricPlan>) -> anyhow::Result<()> {
        for finding in plan.findings() {
            self.say(&format!("finding: {finding}"))?;
        }
        let began = Instant::now();
        self.manager.apply(self.now(), plan);
        tracing::debug!(elapsed = ?began.elapsed(), "compared with the plan");
        Ok(())
    }

    /// The fabric is equal to the plan: everybody who wants to know is told.
    fn report_programmed(&mut self) -> anyhow::Result<()> {
        let counts = self.manager.counts();
        self.stats.count(counts);
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
        self.say(&up)?;
        // While a plan is held back, it is the one before that the fabric is equal to.
        if !self.manager.is_holding_back() {
            for answers in self.waiting.drain(..) {
                answers.send(Ok(json!(up)));
            }
        }
        if let Some(path) = &self.outputs.report {
            warn(state::replace(path, &serde_json::to_vec_pretty(&self.stats)?));
        }
        self.metrics_written = None;
        Ok(())
    }

    /// Tells people. A manager that stays does so also where nobody listens any more.
    fn say(&mut self, line: &str) -> anyhow::Result<()> {
        self.bar.clear();
        match crate::print_line(line) {
            Err(error) if !self.once => {
                tracing::warn!("cannot print: {error:#}");
                Ok(())
            }
            said => said,
        }
    }

    /// Does what signals ask for; whether it is to stop.
    fn handle_signals(&mut self) -> anyhow::Result<bool> {
        loop {
            match self.signals.try_recv() {
                Ok(Signal::Stop) => return Ok(true),
                Ok(Signal::Reload) => match self.planner.reread() {
                    Ok(plan) => self.apply(plan)?,
                    Err(error) => {
                        crate::print_warning(format_args!("nothing was changed: {error:#}"));
                        tracing::error!("nothing was changed: {error:#}");
                    }
                },
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return Ok(false),
            }
        }
    }

    fn handle_commands(&mut self) {
        while let Some(command) = self.commands.as_ref().and_then(|commands| commands.try_recv().ok()) {
            control::carry_out(self, command);
        }
    }

    /// Whoever wants to know what devices hold gets it read after he asked, once nothing else is going on.
    fn start_read_back(&mut self) {
        let is_due = !self.read_back.wanted.is_empty() && self.read_back.begun.is_empty();
        if is_due && self.manager.read_back(self.now()) {
            self.read_back.begun = std::mem::take(&mut self.read_back.wanted);
        }
    }

    fn notify_watchers(&mut self, event: &Event) {
        if !self.watchers.is_empty() {
            self.send_to_watchers(control::line(event));
        }
    }

    fn send_to_watchers(&mut self, line: Value) {
        self.watchers.retain(|watcher| watcher.send(Ok(line.clone())));
    }

    fn write_metrics(&mut self) -> anyhow::Result<()> {
        let Some(path) = &self.outputs.metrics else { return Ok(()) };
        if self.metrics_written.is_none_or(|at| at.elapsed() > METRICS_INTERVAL) {
            self.stats.count(self.manager.counts());
            warn(state::replace(path, metrics::text(&self.stats)?.as_bytes()));
            self.metrics_written = Some(Instant::now());
        }
        Ok(())
    }
}

/// Files beside the work of a manager are no reason to stop it.
fn warn(written: anyhow::Result<()>) {
    if let Err(error) = written {
        tracing::warn!("{error:#}");
    }
}
