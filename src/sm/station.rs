//! A manager and the device it sits behind: moves datagrams, time, plans and commands.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use fabric_model::FabricPlan;
use ib_transport::{Device, Received, Waker};
use subnet_manager::{Event, Manager};

use super::control::{self, Request};
use super::ledger::Ledger;
use super::metrics;
use super::planner::Planner;
use super::progress::Bar;
use super::state::{self, State};
use super::{Outputs, Signal};
use crate::control_socket::{Answers, Command};

/// How long the fabric may stay without any answer if only one pass is wanted.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// How often one pass may be interrupted before it is given up.
const INTERRUPTIONS_MAX: u64 = 20;

/// How often metrics are written while nothing happens.
const METRICS_INTERVAL: Duration = Duration::from_secs(10);

/// A manager and everything around it.
pub struct Station {
    pub device: Device,
    pub manager: Manager,
    pub planner: Planner,
    pub state: State,
    pub ledger: Ledger,
    pub outputs: Outputs,
    pub started: Instant,
    pub waker: Waker,
    pub signals: Receiver<Signal>,
    pub commands: Option<Receiver<Command<Request>>>,
    /// Who wants to know when the fabric is equal to the plan.
    pub waiting: Vec<Answers>,
    /// Who wants to know everything.
    pub watchers: Vec<Answers>,
    pub bar: Bar,
    pub metrics_written: Option<Instant>,
}

/// Why a station stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// One pass was wanted, and it is done.
    Programmed,
    /// Somebody asked it to.
    Asked,
}

impl Station {
    /// Runs until the fabric is equal to the plan for the first time (`once`), or until it is asked to stop.
    pub fn run(&mut self, once: bool) -> anyhow::Result<Stop> {
        let mut heard = Instant::now();
        loop {
            self.persist()?;
            if self.take_events(once)? && once {
                return Ok(Stop::Programmed);
            }
            let now = self.now();
            while let Some(datagram) = self.manager.poll_transmit(now) {
                self.device.send(&datagram)?;
            }
            self.bar.show(self.manager.progress());
            let due = self.manager.poll_timeout().unwrap_or(now + METRICS_INTERVAL);
            let mut wait = due.saturating_sub(self.now()).min(METRICS_INTERVAL);
            if self.manager.has_more() {
                wait = Duration::ZERO;
            }
            self.device.wait(&self.waker, wait)?;
            if self.receive()? {
                heard = Instant::now();
            }
            if once && heard.elapsed() > SILENCE_MAX {
                bail!("nobody has answered for {SILENCE_MAX:?}");
            }
            self.manager.handle_timeout(self.now());
            if self.take_signals()? {
                return Ok(Stop::Asked);
            }
            self.take_commands();
            self.write_metrics()?;
        }
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Takes everything that came; whether anything did.
    fn receive(&mut self) -> anyhow::Result<bool> {
        let mut any = false;
        while let Some(received) = self.device.receive(Duration::ZERO)? {
            any = true;
            let now = self.now();
            match received {
                Received::Datagram(datagram) => self.manager.handle_datagram(now, &datagram),
                Received::Lost(transaction) => self.manager.handle_lost(now, transaction),
            }
        }
        Ok(any)
    }

    /// What has to be safe is made safe; only then the manager goes on.
    fn persist(&mut self) -> anyhow::Result<()> {
        if let Some(memory) = self.manager.poll_persist() {
            self.state.write(&memory)?;
            self.manager.handle_persisted(self.now());
        }
        Ok(())
    }

    /// Tells what happened, and decides what has to be decided; whether the fabric is equal to the plan now.
    fn take_events(&mut self, once: bool) -> anyhow::Result<bool> {
        let mut is_programmed = false;
        while let Some(event) = self.manager.poll_event() {
            self.ledger.note(&event);
            self.tell_watchers(&event);
            match event {
                Event::Discovered(discovery) => {
                    let found = format!(
                        "discovered {} switches, {} adapters in {:.2?}",
                        self.ledger.switches,
                        self.ledger.adapters,
                        self.started.elapsed()
                    );
                    self.say(&found)?;
                    match self.planner.found(discovery) {
                        Ok(Some(plan)) => self.apply(plan)?,
                        Ok(None) => tracing::warn!("the fabric has changed; plans come from outside"),
                        Err(error) if once => return Err(error),
                        Err(error) => tracing::error!("no plan for this fabric: {error:#}"),
                    }
                }
                Event::Programmed(_) => {
                    is_programmed = true;
                    self.conclude()?;
                }
                Event::Alone if once => bail!("nobody answers, not even the node this manager sits on"),
                Event::Inconsistent(error) if once => {
                    return Err(error).context("what answers is no fabric");
                }
                Event::Interrupted if once && self.ledger.interruptions > INTERRUPTIONS_MAX => {
                    bail!("interrupted {INTERRUPTIONS_MAX} times: somebody answers to reads only");
                }
                _ => {}
            }
        }
        Ok(is_programmed)
    }

    pub fn apply(&mut self, plan: Arc<FabricPlan>) -> anyhow::Result<()> {
        for finding in plan.findings() {
            self.say(&format!("finding: {finding}"))?;
        }
        self.manager.apply(self.now(), plan);
        Ok(())
    }

    /// The fabric is equal to the plan: everybody who wants to know is told.
    fn conclude(&mut self) -> anyhow::Result<()> {
        let counts = self.manager.counts();
        self.ledger.count(counts);
        if let Some(plan) = self.planner.plan() {
            self.ledger.note_plan(plan, self.started.elapsed());
        }
        let up = format!(
            "up: {} LIDs, {} partitions; {} Gets, {} Sets in {:.2?}",
            self.ledger.lids,
            self.ledger.partitions,
            counts.gets,
            counts.sets,
            self.started.elapsed(),
        );
        self.say(&up)?;
        for answers in self.waiting.drain(..) {
            answers.send(Ok(serde_json::json!(up)));
        }
        if let Some(path) = &self.outputs.report {
            state::replace(path, &serde_json::to_vec_pretty(&self.ledger)?)?;
        }
        self.metrics_written = None;
        Ok(())
    }

    fn say(&mut self, line: &str) -> anyhow::Result<()> {
        self.bar.clear();
        crate::say(line)
    }

    /// Does what signals ask for; whether it is to stop.
    fn take_signals(&mut self) -> anyhow::Result<bool> {
        loop {
            match self.signals.try_recv() {
                Ok(Signal::Stop) => return Ok(true),
                Ok(Signal::Reload) => match self.planner.reread() {
                    Ok(plan) => self.apply(plan)?,
                    Err(error) => {
                        eprintln!("heddle: nothing was changed: {error:#}");
                        tracing::error!("nothing was changed: {error:#}");
                    }
                },
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return Ok(false),
            }
        }
    }

    fn take_commands(&mut self) {
        while let Some(command) = self.commands.as_ref().and_then(|commands| commands.try_recv().ok()) {
            control::carry_out(self, command);
        }
    }

    fn tell_watchers(&mut self, event: &Event) {
        if !self.watchers.is_empty() {
            let line = control::line(event);
            self.watchers.retain(|watcher| watcher.send(Ok(line.clone())));
        }
    }

    fn write_metrics(&mut self) -> anyhow::Result<()> {
        let Some(path) = &self.outputs.metrics else { return Ok(()) };
        if self.metrics_written.is_none_or(|at| at.elapsed() > METRICS_INTERVAL) {
            self.ledger.count(self.manager.counts());
            state::replace(path, metrics::text(&self.ledger)?.as_bytes())?;
            self.metrics_written = Some(Instant::now());
        }
        Ok(())
    }
}
