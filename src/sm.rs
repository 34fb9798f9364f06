//! `heddle sm`: the subnet manager behind a device.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use fabric_compiler::{compile, partitions_conf};
use fabric_model::{Decisions, FabricPlan, Intents, Summary};
use ib_transport::{Device, DeviceSpec, Received};
use subnet_manager::{Discovery, Event, Limits, Manager};

/// Configure a fabric, once: discover it, decide, and write what differs.
///
/// Whatever the fabric holds already and may keep is left alone: a second run on the same fabric with the same
/// `--decisions` writes nothing.
///
///     heddle sm --device ibsim:demo@host-00001 --once --partitions partitions.conf
///
/// It does not stay to watch the fabric yet, guards no node by a key, and answers no queries.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct SmArgs {
    /// Where the fabric is: umad:N, ibsim:NAME[@NODE] or heddle:SOCKET[@NODE].
    #[arg(long)]
    device: DeviceSpec,
    /// Configure and end. The only way so far.
    #[arg(long, required = true)]
    once: bool,
    /// Partitions, in the grammar of opensm's partitions.conf.
    #[arg(long)]
    partitions: Option<PathBuf>,
    /// What was decided before is read from here and what is decided now is written here.
    #[arg(long)]
    decisions: Option<PathBuf>,
    /// Requests in flight.
    #[arg(long, default_value_t = Limits::default().window)]
    window: usize,
}

/// How long the fabric may stay without any answer.
const SILENCE_MAX: Duration = Duration::from_secs(30);

pub fn run(args: SmArgs) -> anyhow::Result<()> {
    let started = Instant::now();
    let mut station = Station {
        device: Device::open(&args.device)?,
        manager: Manager::new(Limits { window: args.window.max(1), ..Limits::default() }),
        started,
        refused: 0,
        silent: 0,
    };
    let discovery = match station.next_result()? {
        Outcome::Discovered(discovery) => discovery,
        Outcome::Programmed => bail!("the fabric was programmed before it was discovered"),
    };
    let found = Summary::of(&discovery.topology);
    println!(
        "discovered {} switches, {} adapters in {:.2?}",
        found.switches,
        found.adapters,
        started.elapsed()
    );
    let plan = decide(&args, *discovery)?;
    for finding in plan.findings() {
        println!("finding: {finding}");
    }
    let decided = station.manager.counts();
    station.manager.apply(Arc::clone(&plan));
    match station.next_result()? {
        Outcome::Programmed => {}
        Outcome::Discovered(_) => bail!("the fabric was discovered twice"),
    }
    if let Some(path) = &args.decisions {
        write_whole(path, &serde_json::to_string_pretty(plan.decisions())?)?;
    }
    let counts = station.manager.counts();
    println!(
        "up: {} LIDs, {} partitions; {} Gets, {} Sets in {:.2?} ({} Gets to discover)",
        plan.lids().len(),
        plan.partitions().len(),
        counts.gets,
        counts.sets,
        started.elapsed(),
        decided.gets,
    );
    if station.refused + station.silent > 0 {
        bail!("{} requests were refused, {} not answered", station.refused, station.silent);
    }
    Ok(())
}

/// A manager and the device it sits behind.
struct Station {
    device: Device,
    manager: Manager,
    started: Instant,
    refused: usize,
    silent: usize,
}

enum Outcome {
    Discovered(Box<Discovery>),
    Programmed,
}

impl Station {
    /// Moves datagrams and time until the manager has reached its next aim.
    fn next_result(&mut self) -> anyhow::Result<Outcome> {
        let mut heard = Instant::now();
        loop {
            if let Some(outcome) = self.take_events()? {
                return Ok(outcome);
            }
            let now = self.started.elapsed();
            while let Some(datagram) = self.manager.poll_transmit(now) {
                self.device.send(&datagram)?;
            }
            let wait =
                self.manager.poll_timeout().map_or(Duration::from_millis(100), |due| due.saturating_sub(now));
            match self.device.receive(wait.max(Duration::from_millis(1)))? {
                Some(received) => {
                    heard = Instant::now();
                    self.take(received);
                    self.take_rest()?;
                }
                None => self.manager.handle_timeout(self.started.elapsed()),
            }
            if heard.elapsed() > SILENCE_MAX {
                bail!("nobody has answered for {SILENCE_MAX:?}");
            }
        }
    }

    /// Takes what came with the last datagram, without waiting for more.
    fn take_rest(&mut self) -> anyhow::Result<()> {
        while let Some(received) = self.device.receive(Duration::ZERO)? {
            self.take(received);
        }
        Ok(())
    }

    fn take(&mut self, received: Received) {
        let now = self.started.elapsed();
        match received {
            Received::Datagram(datagram) => self.manager.handle_datagram(now, &datagram),
            Received::Lost(transaction) => self.manager.handle_lost(now, transaction),
        }
    }

    fn take_events(&mut self) -> anyhow::Result<Option<Outcome>> {
        let mut events: VecDeque<Event> = std::iter::from_fn(|| self.manager.poll_event()).collect();
        while let Some(event) = events.pop_front() {
            match event {
                Event::Discovered(discovery) => return Ok(Some(Outcome::Discovered(discovery))),
                Event::Programmed(_) => return Ok(Some(Outcome::Programmed)),
                Event::Inconsistent(error) => return Err(error).context("what answers is no fabric"),
                Event::Silent { near, attribute } => {
                    self.silent += 1;
                    tracing::warn!(?near, ?attribute, "no answer");
                }
                Event::Refused { node, attribute, modifier, status } => {
                    self.refused += 1;
                    tracing::warn!(%node, ?attribute, modifier, ?status, "refused");
                }
            }
        }
        Ok(None)
    }
}

fn decide(args: &SmArgs, discovery: Discovery) -> anyhow::Result<Arc<FabricPlan>> {
    let mut intents = Intents::new(discovery.manager);
    intents.capabilities = discovery.capabilities;
    if let Some(path) = &args.partitions {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        intents.partitions =
            partitions_conf::parse(&text).with_context(|| format!("in {}", path.display()))?;
    }
    let previous = match &args.decisions {
        Some(path) => read_decisions(path)?,
        None => Decisions::default(),
    };
    Ok(Arc::new(compile(&discovery.topology, &intents, &previous)?))
}

fn read_decisions(path: &Path) -> anyhow::Result<Decisions> {
    match fs::read_to_string(path) {
        Ok(text) => {
            serde_json::from_str(&text).with_context(|| format!("{} holds no decisions", path.display()))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Decisions::default()),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// Replaces a file whole: whoever is killed in the middle leaves the old one.
fn write_whole(path: &Path, text: &str) -> anyhow::Result<()> {
    let draft = path.with_extension("new");
    fs::write(&draft, text).with_context(|| format!("cannot write {}", draft.display()))?;
    fs::rename(&draft, path).with_context(|| format!("cannot replace {}", path.display()))
}
