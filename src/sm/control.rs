//! The control socket of a subnet manager: takes plans, tells what it observes.

use std::sync::Arc;

use fabric_model::{Document, FabricPlan};
use ib_wire::{Guid, PortNum};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use subnet_manager::{Discovery, Event, Location};

use super::daemon::Daemon;
use super::metrics;
use crate::control_socket::{PendingRequest, Replies};

/// Longest request: a plan for the largest fabrics.
pub const REQUEST_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// What can be asked of a running subnet manager.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", try_from = "Fields")]
pub enum SmRequest {
    /// Whether the manager works: answered by the thread that does the work.
    Ping {},
    /// What happened so far.
    Status {},
    /// The fabric as it was last seen, then every event as it happens.
    Watch {},
    /// Take a plan, and no longer decide by itself; answered when the fabric is equal to it, also if it was already. Where
    /// it is refused with a code ([`PlanRejection`](super::planner::PlanRejection)), another plan is wanted, for the fabric that a
    /// watcher is told of next.
    Plan { plan: Box<FabricPlan> },
    /// Read the file of partitions again; answered when the fabric is equal to the plan.
    Reload {},
    /// A node was moved: its key may be shown behind this port from now on; without a port, where the manager sits.
    AdoptNode { node: Guid, behind: Option<PortAddress> },
    /// What happened so far, for Prometheus.
    Metrics {},
    /// Read every table that the plan in force speaks of; answered with that plan, its tables as devices hold them.
    ReadBack {},
}

/// A request as it is read: straight into place. Told apart by serde, by its tag, a plan would be kept twice meanwhile, and
/// lose its numbers where they name entries.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    command: String,
    plan: Option<Box<FabricPlan>>,
    node: Option<Guid>,
    behind: Option<PortAddress>,
}

impl TryFrom<Fields> for SmRequest {
    type Error = String;
    fn try_from(fields: Fields) -> Result<Self, String> {
        match fields {
            Fields { command, plan: Some(plan), node: None, behind: None } if command == "plan" => {
                Ok(Self::Plan { plan })
            }
            Fields { command, plan: None, node: Some(node), behind } if command == "adopt-node" => {
                Ok(Self::AdoptNode { node, behind })
            }
            Fields { command, plan: None, node: None, behind: None } => match command.as_str() {
                "ping" => Ok(Self::Ping {}),
                "status" => Ok(Self::Status {}),
                "watch" => Ok(Self::Watch {}),
                "reload" => Ok(Self::Reload {}),
                "metrics" => Ok(Self::Metrics {}),
                "read-back" => Ok(Self::ReadBack {}),
                _ => Err("no such command, or it needs more than this".to_owned()),
            },
            _ => Err("no such command, or it needs something else".to_owned()),
        }
    }
}

/// A port, by node and number.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct PortAddress {
    pub node: Guid,
    pub port: PortNum,
}

/// Does what is asked, and answers.
pub fn carry_out(daemon: &mut Daemon, command: PendingRequest<SmRequest>) {
    let PendingRequest { request, answers } = command;
    daemon.stats.count(daemon.manager.counts());
    match request {
        SmRequest::Ping {} => {
            answers.send(Ok(json!("pong")));
        }
        SmRequest::Status {} => {
            answers.send(Ok(json!(daemon.stats)));
        }
        SmRequest::Metrics {} => {
            let text = metrics::text(&daemon.stats).map(Value::String);
            answers.send(text.map_err(|error| error.to_string().into()));
        }
        SmRequest::Watch {} => {
            let now = match daemon.planner.discovery() {
                Some(discovery) => fabric(discovery),
                None => json!({ "event": "discovering" }),
            };
            if answers.send(Ok(now)) {
                daemon.watchers.push(answers);
            }
        }
        SmRequest::Plan { plan } => match daemon.planner.take(*plan) {
            Ok(plan) => apply(daemon, Ok(plan), answers),
            Err(rejection) => drop(answers.send(Err(rejection.into()))),
        },
        SmRequest::Reload {} => {
            let plan = daemon.planner.reread();
            apply(daemon, plan, answers);
        }
        SmRequest::ReadBack {} => daemon.read_back.wanted.push(answers),
        SmRequest::AdoptNode { node, behind } => {
            let location = behind.map(|name| Location { near: name.node, port: name.port });
            let now = daemon.started.elapsed();
            daemon.manager.rebind(now, location, node);
            answers.send(Ok(json!("bound; it is looked at now")));
        }
    }
}

/// Makes the fabric equal to a plan; who asked is answered when it is.
fn apply(daemon: &mut Daemon, plan: anyhow::Result<Arc<FabricPlan>>, answers: Replies) {
    match plan.and_then(|plan| daemon.apply(plan)) {
        Ok(()) => daemon.waiting.push(answers),
        Err(error) => drop(answers.send(Err(format!("{error:#}").into()))),
    }
}

/// The fabric as whoever makes plans needs it: nodes and cables, what devices can hold, and where the manager sits.
fn fabric(discovery: &Discovery) -> Value {
    json!({
        "event": "discovered",
        "manager": discovery.manager,
        "fabric": Document::of(&discovery.topology),
        "topology": fabric_model::ibnetdiscover::write(&discovery.topology),
        "capabilities": discovery.capabilities,
    })
}

/// An event as those who watch see it.
pub fn line(event: &Event) -> Value {
    match event {
        Event::Discovered(discovery) => fabric(discovery),
        Event::Surveyed(_) => json!({ "event": "surveyed" }),
        Event::ReadBack(_) => json!({ "event": "read-back" }),
        Event::Compared(differences) => json!({ "event": "compared", "differences": differences.len() }),
        Event::Alone => json!({ "event": "alone" }),
        Event::Inconsistent(error) => json!({ "event": "inconsistent", "reason": error.to_string() }),
        Event::Programmed(counts) => {
            json!({ "event": "programmed", "gets": counts.gets, "sets": counts.sets })
        }
        Event::Interrupted => json!({ "event": "interrupted" }),
        Event::SilentLocation { location, last } => {
            json!({ "event": "silent-location", "location": location, "last": last })
        }
        Event::Stranger { location, claims } => {
            json!({ "event": "stranger", "location": location, "claims": claims })
        }
        Event::Answered { location } => json!({ "event": "answered", "location": location }),
        Event::Silent { node, attribute } => {
            json!({ "event": "silent", "node": node, "attribute": format!("{attribute:?}") })
        }
        Event::Refused { node, attribute, modifier, status } => json!({
            "event": "refused",
            "node": node,
            "attribute": format!("{attribute:?}"),
            "modifier": modifier,
            "status": status.map(|status| status.0),
        }),
        Event::Unsupported { node, attribute, modifier } => {
            changed("unsupported", node, attribute.0, *modifier)
        }
        Event::Drift { node, attribute, modifier } => changed("drift", node, attribute.0, *modifier),
        Event::Trapped { node, trap } => json!({ "event": "trap", "node": node, "number": trap.number() }),
        Event::ForeignManager { node, port, info } => json!({
            "event": "foreign-manager",
            "node": node,
            "port": port,
            "priority": info.as_ref().map(|info| info.priority),
        }),
        Event::ForeignManagerGone { node, port } => {
            json!({ "event": "foreign-manager-gone", "node": node, "port": port })
        }
    }
}

fn changed(event: &str, node: &Guid, attribute: u16, modifier: u32) -> Value {
    json!({ "event": event, "node": node, "attribute": attribute, "modifier": modifier })
}

#[cfg(test)]
mod tests {
    use fabric_compiler::{compile, partitions_conf};
    use fabric_model::generate::FatTree;
    use fabric_model::{Decisions, Intents};

    use super::*;

    #[test]
    fn a_plan_with_groups_arrives_as_it_was_sent() {
        let tree = FatTree { radix: 8, ..FatTree::with_hosts(16) }.generate().unwrap();
        let port = tree.end_nodes().next().unwrap().1.ports().next().unwrap().1.guid;
        let mut intents = Intents::new(port);
        intents.partitions = partitions_conf::parse("blue=0x101, ipoib : ALL_CAS=full;").unwrap();
        let sent = compile(&tree, &intents, &Decisions::default()).unwrap();
        let text = serde_json::to_string(&SmRequest::Plan { plan: Box::new(sent.clone()) }).unwrap();
        let SmRequest::Plan { plan } = serde_json::from_str(&text).unwrap() else {
            panic!("another request")
        };
        assert_eq!(*plan, sent);
        assert_eq!(plan.groups().len(), 1);
    }
}
