//! `heddle sm`: the subnet manager behind a device.

use std::collections::VecDeque;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::Args;
use fabric_compiler::{compile, partitions_conf};
use fabric_model::{Decisions, FabricPlan, Intents, Summary};
use ib_transport::{Device, DeviceSpec, Received};
use ib_wire::Guid;
use serde::{Deserialize, Serialize};
use subnet_manager::{Bindings, Discovery, Event, Limits, Manager, SiteSecret};

/// Configure a fabric, once: discover it, decide, and write what differs.
///
/// Whatever the fabric holds already and may keep is left alone: a second run on the same fabric with the same `--state`
/// writes nothing. With `--secret`, every node is put under a management key of its own, derived from that secret, and
/// answers nobody else from then on; `heddle node-key` shows the key of a node to who owns the secret.
///
///     head -c 32 /dev/urandom > site.secret && chmod 600 site.secret
///     heddle sm --once --device ibsim:demo@host-00001 --state fabric.json --secret site.secret
///
/// It does not stay to watch the fabric yet, and answers no queries.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct SmArgs {
    /// Where the fabric is: `umad:N`, `ibsim:NAME[@NODE]` or `heddle:SOCKET[@NODE]`.
    #[arg(long)]
    device: DeviceSpec,
    /// Configure and end. The only way so far.
    #[arg(long, required = true)]
    once: bool,
    /// Partitions, in the grammar of opensm's partitions.conf.
    #[arg(long)]
    partitions: Option<PathBuf>,
    /// What was decided and who was met where: read from here, and written here before anything is changed.
    #[arg(long)]
    state: Option<PathBuf>,
    /// Put every node under a key of its own, derived from the random bytes in this file. Needs `--state`.
    #[arg(long, requires = "state")]
    secret: Option<PathBuf>,
    /// Requests in flight.
    #[arg(long, default_value_t = Limits::default().window)]
    window: usize,
}

/// How long the fabric may stay without any answer.
const SILENCE_MAX: Duration = Duration::from_secs(30);

pub fn run(args: SmArgs) -> anyhow::Result<()> {
    let started = Instant::now();
    let mut state = args.state.as_deref().map(State::read).transpose()?.unwrap_or_default();
    let limits = Limits { window: args.window.max(1), ..Limits::default() };
    let mut station = Station {
        device: Device::open(&args.device)?,
        manager: match &args.secret {
            Some(path) => Manager::guarding(limits, read_secret(path)?, &state.bindings),
            None => Manager::new(limits),
        },
        started,
        refused: 0,
        silent: 0,
    };
    let discovery = match station.next_result()? {
        Outcome::Discovered(discovery) => discovery,
        Outcome::Programmed => bail!("the fabric was programmed before it was discovered"),
    };
    let found = Summary::of(&discovery.topology);
    crate::say(format_args!(
        "discovered {} switches, {} adapters in {:.2?}",
        found.switches,
        found.adapters,
        started.elapsed()
    ))?;
    let plan = decide(&args, *discovery, &state.decisions)?;
    for finding in plan.findings() {
        crate::say(format_args!("finding: {finding}"))?;
    }
    let decided = station.manager.counts();
    if let Some(path) = &args.state {
        // Before the first node is closed: whoever is killed later must find every node again.
        state = State { decisions: plan.decisions().clone(), bindings: station.manager.bindings() };
        state.write(path)?;
    }
    station.manager.apply(Arc::clone(&plan));
    match station.next_result()? {
        Outcome::Programmed => {}
        Outcome::Discovered(_) => bail!("the fabric was discovered twice"),
    }
    let counts = station.manager.counts();
    crate::say(format_args!(
        "up: {} LIDs, {} partitions; {} Gets, {} Sets in {:.2?} ({} Gets to discover)",
        plan.lids().len(),
        plan.partitions().len(),
        counts.gets,
        counts.sets,
        started.elapsed(),
        decided.gets,
    ))?;
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
                Event::Alone => bail!("nobody answers, not even the node this manager sits on"),
                Event::Inconsistent(error) => return Err(error).context("what answers is no fabric"),
                Event::SilentLocation { location, last } => {
                    self.silent += 1;
                    let place = location.map_or("the manager's own node".to_owned(), |it| {
                        format!("{}[{}]", it.near, it.port)
                    });
                    let last = last.map_or("nobody".to_owned(), |guid| guid.to_string());
                    eprintln!("heddle: no answer from behind {place}, where {last} was last met");
                }
                Event::Silent { node, attribute } => {
                    self.silent += 1;
                    tracing::warn!(%node, ?attribute, "no answer");
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

fn decide(args: &SmArgs, discovery: Discovery, previous: &Decisions) -> anyhow::Result<Arc<FabricPlan>> {
    let mut intents = Intents::new(discovery.manager);
    intents.capabilities = discovery.capabilities;
    if let Some(path) = &args.partitions {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        intents.partitions =
            partitions_conf::parse(&text).with_context(|| format!("in {}", path.display()))?;
    }
    Ok(Arc::new(compile(&discovery.topology, &intents, previous)?))
}

/// What has to be known the next time.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct State {
    decisions: Decisions,
    bindings: Bindings,
}

impl State {
    fn read(path: &Path) -> anyhow::Result<Self> {
        match fs::read_to_string(path) {
            Ok(text) => {
                serde_json::from_str(&text).with_context(|| format!("{} holds no state", path.display()))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    /// Replaces the file whole: whoever is killed in the middle leaves the old one.
    fn write(&self, path: &Path) -> anyhow::Result<()> {
        let draft = path.with_extension("new");
        let write = || -> std::io::Result<()> {
            let mut file = fs::File::create(&draft)?;
            file.write_all(serde_json::to_string(self)?.as_bytes())?;
            file.sync_all()?;
            fs::rename(&draft, path)
        };
        write().with_context(|| format!("cannot write {}", path.display()))
    }
}

/// Shows the management key of a node, for tools that ask for one (`smpquery -y`).
#[derive(Debug, Args)]
pub struct NodeKeyArgs {
    /// The node GUID.
    node: Guid,
    /// The site secret that the keys are derived from.
    #[arg(long)]
    secret: PathBuf,
}

pub fn show_key(args: NodeKeyArgs) -> anyhow::Result<()> {
    crate::say(format_args!("{:#018x}", read_secret(&args.secret)?.key(args.node).to_wire()))?;
    Ok(())
}

/// Reads the site secret, which nobody but its owner may be able to read.
fn read_secret(path: &Path) -> anyhow::Result<SiteSecret> {
    let place = path.display();
    let mode = fs::metadata(path).with_context(|| format!("cannot read {place}"))?.permissions().mode();
    ensure!(mode & 0o077 == 0, "{place} can be read by others (mode {:o}): chmod 600 {place}", mode & 0o777);
    let bytes = fs::read(path).with_context(|| format!("cannot read {place}"))?;
    SiteSecret::new(bytes).with_context(|| format!("in {place}"))
}
