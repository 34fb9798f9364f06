//! The loop of a manager that waits for its turn.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use control_protocol::{FabricEvent, SmRequest};
use fabric_model::intent::UnenforcedPorts;
use ib_transport::{Device, Received, Waker};
use ib_wire::Guid;
use serde_json::{Value, json};
use subnet_manager::{ElectionTiming, Manager, PersistentState, Standby};

use super::daemon::{Daemon, FabricGone, Stop};
use super::planner::{IntentFiles, PlanProvider, PlanSource};
use super::replication::{DeclaredManager, Followers, Following};
use super::{Signal, control, metrics, secret};
use crate::control_socket::PendingRequest;

/// Datagrams received in a row.
const BURST: usize = 32;

/// What a daemon needs to be one of several managers.
pub struct Redundancy {
    pub managers: Vec<DeclaredManager>,
    pub timing: ElectionTiming,
    /// GUID of the own port.
    pub own: Guid,
    pub followers: Followers,
    pub following: Following,
    /// Candidacies in a row that ended with a master.
    pub fruitless: u32,
    pub takeovers: u64,
    /// Whether the memory was that of the former master when this manager became a candidate.
    pub is_current: bool,
}

/// Why the wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// No master answers: become a candidate, which may send its first Set at this time.
    Candidate { earliest: Duration },
    /// SIGINT or SIGTERM arrived.
    Asked,
}

impl Daemon {
    /// Waits until no declared manager is the master. Meanwhile stores what the master remembers.
    pub fn wait_as_standby(&mut self) -> anyhow::Result<Waited> {
        let mut standby = self.standby()?;
        let mut last = self.now();
        let mut master = None;
        loop {
            let now = self.now();
            let was_stopped = now.saturating_sub(last) > self.redundancy()?.timing.pause_max;
            last = now;
            standby.handle_timeout(now);
            if was_stopped {
                self.redundancy()?.following.connect_anew();
            }
            self.follow(now, &mut standby)?;
            standby.set_abandoned(self.redundancy()?.following.is_abandoned(now));
            if standby.master() != master {
                master = standby.master();
                if let Some(guid) = master {
                    self.print(&format!("standby: {guid} is the master"))?;
                }
            }
            self.unsent.extend(std::iter::from_fn(|| standby.poll_transmit()));
            self.device.send_batch(&self.unsent).context(FabricGone)?;
            self.unsent.clear();
            if standby.is_over(now) {
                let redundancy = self.redundancy()?;
                redundancy.is_current = redundancy.following.is_current(standby.heard_at());
                return Ok(Waited::Candidate { earliest: standby.earliest_set() });
            }
            let wait = standby.poll_timeout().saturating_sub(self.now());
            self.device.wait(&self.waker, wait).context(FabricGone)?;
            for _ in 0..BURST {
                let Some(received) = self.device.receive(Duration::ZERO).context(FabricGone)? else { break };
                if let Received::Datagram(datagram) = received {
                    standby.handle_datagram(self.now(), &datagram);
                }
            }
            while let Ok(signal) = self.signals.try_recv() {
                if signal == Signal::Stop {
                    return Ok(Waited::Asked);
                }
            }
            self.answer_as_standby(standby.master());
        }
    }

    pub fn redundancy(&mut self) -> anyhow::Result<&mut Redundancy> {
        self.redundancy.as_mut().context("no other managers are declared")
    }

    fn standby(&mut self) -> anyhow::Result<Standby> {
        let now = self.now();
        let settings = self.settings;
        let memory = self.memory.clone();
        let redundancy = self.redundancy()?;
        redundancy.followers = Followers::default();
        redundancy.following.begin_wait();
        let peers = redundancy.managers.iter().map(|manager| manager.port);
        let mut standby =
            Standby::new(settings, redundancy.timing, Some(redundancy.own), peers, redundancy.fruitless, now);
        set_lids(&mut standby, &memory);
        Ok(standby)
    }

    /// Stores what the master sent.
    fn follow(&mut self, now: Duration, standby: &mut Standby) -> anyhow::Result<()> {
        let Some(redundancy) = &mut self.redundancy else { return Ok(()) };
        let (state, memory) = (&mut self.state, &mut self.memory);
        let stored = redundancy.following.receive(now, |new| {
            state.write(new.clone())?;
            *memory = new.clone();
            Ok(())
        });
        match stored {
            Ok(true) => {
                self.stats.unsaved = None;
                set_lids(standby, &self.memory);
            }
            Ok(false) => {}
            // The master leaves this manager out until it can, and it takes over only after it has read the fabric.
            Err(error) => {
                redundancy.following.connect_anew();
                let why = format!("{error:#}");
                if self.stats.unsaved.is_none() {
                    crate::print_warning(format_args!("cannot store what the master remembers: {why}"));
                }
                self.stats.state_write_failures += 1;
                self.stats.unsaved = Some(why);
            }
        }
        Ok(())
    }

    /// Answers control requests while another manager is the master.
    fn answer_as_standby(&mut self, master: Option<Guid>) {
        while let Some(PendingRequest { request, answers }) =
            self.commands.as_ref().and_then(|commands| commands.try_recv().ok())
        {
            self.stats.role = Some("standby");
            self.stats.master = master;
            let answer = match request {
                SmRequest::Ping {} => Ok(json!("pong")),
                SmRequest::Status {} => Ok(json!(self.stats)),
                SmRequest::Metrics {} => {
                    metrics::text(&self.stats).map(Value::String).map_err(|error| error.to_string().into())
                }
                SmRequest::Watch {} => Ok(json!(FabricEvent::Standby { master })),
                _ => Err(control::standby_error(master).into()),
            };
            answers.send(answer);
        }
    }
}

fn set_lids(standby: &mut Standby, memory: &PersistentState) {
    standby.set_lids(|guid| memory.decisions.end_ports.get(&guid).map(|port| port.lid));
}

/// What every candidacy starts with, besides the memory.
pub struct Candidacy {
    pub secrets: Vec<PathBuf>,
    pub event_ports: BTreeSet<Guid>,
    pub plan_source: PlanSource,
    pub files: IntentFiles,
    pub unenforced: UnenforcedPorts,
    pub qos: bool,
    pub operator_keys: Vec<PathBuf>,
    /// Whether a released fabric may be taken back.
    pub reclaim: bool,
}

/// Waits, becomes a candidate, and waits again when another manager is the master.
pub fn take_turns(daemon: &mut Daemon, start: &Candidacy) -> anyhow::Result<Stop> {
    loop {
        let Waited::Candidate { earliest } = daemon.wait_as_standby()? else { return Ok(Stop::Asked) };
        let secrets =
            start.secrets.iter().map(|path| secret::read(path)).collect::<anyhow::Result<Vec<_>>>()?;
        let is_given = |mark: &u64| secrets.iter().any(|secret| secret.fingerprint() == *mark);
        let memory = &daemon.memory;
        if memory.released && !start.reclaim {
            crate::print_warning("the fabric was released: take it back with --reclaim");
            daemon.redundancy()?.fruitless = 16;
            continue;
        }
        if !memory.secret.iter().chain(&memory.keys.older_secrets()).all(is_given) {
            crate::print_warning(
                "cannot take over: the nodes have keys of a secret that --secret does not name",
            );
            daemon.redundancy()?.fruitless += 1;
            continue;
        }
        let keys = start.operator_keys.iter().map(|path| secret::read_operator_key(path));
        let keys = keys.collect::<anyhow::Result<Vec<_>>>()?;
        let mut manager = Manager::with_operator_keys(daemon.settings, secrets, keys, memory);
        manager.set_event_ports(start.event_ports.clone());
        let redundancy = daemon.redundancy.as_ref().context("no other managers are declared")?;
        let peers = redundancy.managers.iter().map(|it| it.port);
        manager.set_peers(peers, redundancy.timing, earliest);
        manager.handle_timeout(daemon.started.elapsed());
        let mut decisions = memory.decisions.clone();
        decisions.sl_enforcement |= start.qos;
        daemon.planner =
            PlanProvider::new(start.plan_source, start.files.clone(), decisions, start.unenforced)?;
        (daemon.manager, daemon.awaits_followers, daemon.adoption) = (manager, false, None);
        daemon.stats.role = Some("candidate");
        let stop = daemon.run()?;
        if !matches!(stop, Stop::Yielded | Stop::Paused) {
            return Ok(stop);
        }
        // Their requests end with an error, and watchers look for the master.
        daemon.drop_requests();
        daemon.redundancy()?.fruitless += u32::from(stop == Stop::Yielded);
    }
}

pub fn redundancy(
    device: &mut Device,
    peers: &[DeclaredManager],
    takeover_after: f64,
    waker: &Waker,
) -> anyhow::Result<Redundancy> {
    let own =
        device.port_guid()?.context("the device does not tell the GUID of its port, which --peer needs")?;
    ensure!(peers.iter().all(|peer| peer.port != own), "--peer names the port of this manager, {own}");
    Ok(Redundancy {
        managers: peers.to_vec(),
        timing: ElectionTiming::with_patience(Duration::from_secs_f64(takeover_after)),
        own,
        followers: Followers::default(),
        following: Following::start(own, peers, waker)?,
        fruitless: 0,
        takeovers: 0,
        is_current: false,
    })
}

/// Parses the seconds of `--takeover-after`.
pub fn patience(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.5..=60.0).contains(seconds));
    seconds.ok_or_else(|| format!("the seconds must be between 0.5 and 60, got {text:?}"))
}
