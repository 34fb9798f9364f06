//! The control socket of a subnet manager: receives plans, reports the fabric and events.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::anyhow;
use control_protocol::sm::{DiscoveredTopology, EntryLack, LackPurpose};
use control_protocol::{FabricEvent, ReleasedKeys, SmRequest};
use fabric_model::intent::PortName;
use fabric_model::{Document, FabricPlan};
use serde_json::{Value, json};
use subnet_manager::{DampedLinkUse, Discovery, EntryClass, Lack, Location, SmEvent};

use super::daemon::Daemon;
use super::metrics;
use super::release::{self, Release, ReleaseStep};
use super::secret;
use crate::control_socket::{PendingRequest, Replies};

/// Longest request line: a plan for the largest fabrics.
pub const REQUEST_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// Executes a request and replies.
pub fn carry_out(daemon: &mut Daemon, command: PendingRequest<SmRequest>) {
    let PendingRequest { request, answers } = command;
    daemon.stats.count(&daemon.manager);
    daemon.stats.standbys = daemon.redundancy.as_ref().map(|it| it.followers.set()).unwrap_or_default();
    if !daemon.manager.is_master() {
        match request {
            SmRequest::Ping {}
            | SmRequest::Status {}
            | SmRequest::Metrics {}
            | SmRequest::AdoptNode { .. } => {}
            SmRequest::Watch {} => {
                answers.send(Ok(json!(FabricEvent::Standby { master: None })));
                return;
            }
            _ => {
                answers.send(Err(standby_error(None).into()));
                return;
            }
        }
    }
    match request {
        SmRequest::Ping {} => {
            answers.send(Ok(json!("pong")));
        }
        SmRequest::Status {} => {
            daemon.stats.keys = daemon.manager.key_status();
            answers.send(Ok(json!(daemon.stats)));
        }
        SmRequest::Metrics {} => {
            let text = metrics::text(&daemon.stats).map(Value::String);
            answers.send(text.map_err(|error| error.to_string().into()));
        }
        SmRequest::Watch {} => {
            let now = match daemon.planner.discovery() {
                Some(discovery) => discovered(discovery),
                None => FabricEvent::Discovering,
            };
            let mut known = std::iter::once(&now).chain(daemon.damped.values());
            if known.all(|event| answers.send(Ok(json!(event)))) {
                daemon.watchers.push(answers);
            }
        }
        SmRequest::Plan { plan } => match daemon.planner.take(plan) {
            Ok(plan) => apply(daemon, Ok(plan), answers),
            Err(rejection) => drop(answers.send(Err(rejection.into()))),
        },
        SmRequest::Reload {} => match daemon.reread() {
            Ok(Some(plan)) => apply(daemon, Ok(plan), answers),
            Ok(None) => drop(answers.send(Ok(json!("limits of link health read")))),
            Err(error) => drop(answers.send(Err(format!("{error:#}").into()))),
        },
        SmRequest::Follow { manager } => match &mut daemon.redundancy {
            Some(redundancy) if redundancy.managers.iter().any(|it| it.port == manager) => {
                let node = daemon.manager.node_of(manager);
                redundancy.followers.add(manager, answers, &daemon.memory, node);
            }
            _ => drop(answers.send(Err(format!("{manager} is not a declared manager").into()))),
        },
        SmRequest::Remembered { manager, sequence } => {
            let redundancy = daemon.redundancy.as_mut().ok_or("no other managers are declared".to_owned());
            let answer = redundancy.and_then(|it| it.followers.remembered(manager, sequence));
            answers.send(answer.map(|()| json!("stored")).map_err(Into::into));
        }
        SmRequest::ReadBack {} => daemon.read_back.wanted.push(answers),
        SmRequest::Retry {} => {
            let now = daemon.started.elapsed();
            daemon.manager.retry_lacks(now);
            answers.send(Ok(json!("trying again what devices did not take")));
        }
        SmRequest::RestoreLink { port } => {
            let now = daemon.started.elapsed();
            let answer = match daemon.manager.restore_link(now, port) {
                Some(link) => Ok(json!(format!("link {link} returns to plans"))),
                None => Err(format!("no link at {port} is damped").into()),
            };
            answers.send(answer);
        }
        SmRequest::RotateKeys { new_secret } => {
            let secret = new_secret.as_deref().map(secret::read).transpose();
            let begun =
                secret.and_then(|secret| Ok(daemon.manager.rotate_keys(daemon.started.elapsed(), secret)?));
            match begun {
                Ok(version) => {
                    tracing::info!(epoch = version.epoch, new_secret = new_secret.is_some(), "rotating keys");
                    daemon.rotating.push(answers);
                }
                Err(error) => drop(answers.send(Err(format!("{error:#}").into()))),
            }
        }
        SmRequest::Release { export, keys } => release(daemon, export, keys, answers),
        SmRequest::AdoptNode { node, behind } => {
            let location = behind.map(|name| Location { near: name.node, port: name.port });
            let now = daemon.started.elapsed();
            daemon.manager.rebind(now, location, node);
            answers.send(Ok(json!("location recorded; discovering the node")));
        }
    }
}

/// Why a manager that waits refuses a request.
pub fn standby_error(master: Option<ib_wire::Guid>) -> String {
    match master {
        Some(master) => format!("this manager is a standby: ask {master}, which is the master"),
        None => "this manager is not the master".to_owned(),
    }
}

/// Starts to release the fabric; the request is answered when that is done.
fn release(daemon: &mut Daemon, export: PathBuf, keys: ReleasedKeys, answers: Replies) {
    let begun = match daemon.release {
        Some(_) => Err(anyhow!("the fabric is being released already")),
        None => release::prepare(&export).and_then(|()| release::target(&keys)),
    };
    let now = daemon.started.elapsed();
    let begun = begun.and_then(|target| match target {
        Some(target) => {
            daemon.manager.rotate_to(now, target)?;
            Ok(ReleaseStep::ChangingKeys)
        }
        None => Ok(ReleaseStep::Settling { since: Instant::now() }),
    });
    match begun {
        Ok(step) => {
            tracing::info!(?step, "releasing the fabric");
            daemon.release = Some(Release { export, keys, answers, step });
        }
        Err(error) => drop(answers.send(Err(format!("nothing is released: {error:#}").into()))),
    }
}

/// Starts programming a plan; the request is answered when the fabric is programmed.
fn apply(daemon: &mut Daemon, plan: anyhow::Result<Arc<FabricPlan>>, answers: Replies) {
    match plan.and_then(|plan| daemon.apply(plan)) {
        Ok(()) => daemon.waiting.push(answers),
        Err(error) => drop(answers.send(Err(format!("{error:#}").into()))),
    }
}

/// The `discovered` event: topology, capabilities of devices, and the port of the manager, which is all that a plan needs.
fn discovered(discovery: &Discovery) -> FabricEvent {
    FabricEvent::Discovered(Box::new(DiscoveredTopology {
        manager: discovery.manager,
        standby_managers: discovery.standby_managers.clone(),
        topology: fabric_model::ibnetdiscover::write(&discovery.topology),
        capabilities: discovery.capabilities.clone(),
        lacks: discovery.lacks.iter().map(entry_lack).collect(),
        fabric: Some(json!(Document::of(&discovery.topology))),
    }))
}

/// An event of the manager as watchers receive it.
pub fn fabric_event(event: &SmEvent) -> FabricEvent {
    let port = |location: &Option<Location>| location.map(|it| PortName { node: it.near, port: it.port });
    match event {
        SmEvent::Discovered(discovery) => discovered(discovery),
        SmEvent::Surveyed(_) => FabricEvent::Surveyed,
        SmEvent::ReadBack(_) => FabricEvent::ReadBack,
        SmEvent::Compared(differences) => FabricEvent::Compared { differences: differences.len() },
        SmEvent::LocalNodeSilent => FabricEvent::Alone,
        SmEvent::Inconsistent(error) => FabricEvent::Inconsistent { reason: error.to_string() },
        SmEvent::Programmed(counts) => FabricEvent::Programmed { gets: counts.gets, sets: counts.sets },
        SmEvent::Interrupted => FabricEvent::Interrupted,
        SmEvent::SilentLocation { location, last } => {
            FabricEvent::SilentLocation { location: port(location), last: *last }
        }
        SmEvent::Stranger { location, claims } => {
            FabricEvent::Stranger { location: port(location), claims: *claims }
        }
        SmEvent::LocationRecovered { location } => FabricEvent::Answered { location: port(location) },
        SmEvent::NodeSilent { node, attribute } => {
            FabricEvent::Silent { node: *node, attribute: format!("{attribute:?}") }
        }
        SmEvent::RequestRefused { node, attribute, modifier, status } => FabricEvent::Refused {
            node: *node,
            attribute: format!("{attribute:?}"),
            modifier: *modifier,
            status: status.map(|status| status.0),
        },
        SmEvent::Unsupported { node, attribute, modifier } => {
            FabricEvent::Unsupported { node: *node, attribute: attribute.0, modifier: *modifier }
        }
        SmEvent::Lacking(lack) => FabricEvent::Lacking(entry_lack(lack)),
        SmEvent::LackEnded(lack) => FabricEvent::LackEnded(entry_lack(lack)),
        SmEvent::LinkDamped(report) => FabricEvent::LinkDamped {
            link: report.damped.link.ends(),
            left_out: report.usage == DampedLinkUse::LeftOut,
            text: report.to_string(),
        },
        SmEvent::LinkRestored { link } => FabricEvent::LinkRestored { link: link.ends() },
        SmEvent::Drift { node, attribute, modifier } => {
            FabricEvent::Drift { node: *node, attribute: attribute.0, modifier: *modifier }
        }
        SmEvent::TrapReceived { node, trap } => FabricEvent::Trap { node: *node, number: trap.number() },
        SmEvent::PortOverload { port } => FabricEvent::PortOverload { port: *port },
        SmEvent::ManagementFlood { port, bytes_per_second } => {
            FabricEvent::ManagementFlood { port: *port, bytes_per_second: *bytes_per_second }
        }
        SmEvent::KeysRotated { version, absent } => {
            FabricEvent::KeysRotated { epoch: version.epoch, absent: *absent }
        }
        SmEvent::Elected => FabricEvent::Elected,
        SmEvent::LeaseLost => FabricEvent::LeaseLost,
        SmEvent::Yielded { to } => FabricEvent::Yielded { to: *to },
        SmEvent::ForeignManager { node, port, info } => FabricEvent::ForeignManager {
            node: *node,
            port: *port,
            priority: info.as_ref().map(|info| info.priority),
        },
        SmEvent::ClaimRefused { from, order } => {
            FabricEvent::ClaimRefused { text: release::refused_claim(*from, *order) }
        }
        SmEvent::ForeignManagerGone { node, port } => {
            FabricEvent::ForeignManagerGone { node: *node, port: *port }
        }
    }
}

/// A lack as watchers receive it.
fn entry_lack(lack: &Lack) -> EntryLack {
    let purpose = match lack.class {
        EntryClass::Isolation => LackPurpose::Isolation,
        EntryClass::Guarantee | EntryClass::Other => LackPurpose::Guarantee,
    };
    EntryLack { port: lack.port, purpose, text: lack.to_string() }
}
