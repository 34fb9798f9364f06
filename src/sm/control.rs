//! The control socket of a subnet manager: receives plans, reports the fabric and events.

use std::sync::Arc;

use fabric_model::{Document, FabricPlan};
use ib_wire::{Guid, PortNum};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use subnet_manager::{Discovery, Location, SmEvent};

use super::daemon::Daemon;
use super::metrics;
use crate::control_socket::{PendingRequest, Replies};

/// Longest request line: a plan for the largest fabrics.
pub const REQUEST_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// A request to a running subnet manager.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", try_from = "Fields")]
pub enum SmRequest {
    /// Liveness check, answered by the thread of the daemon loop.
    Ping {},
    /// The statistics, as JSON.
    Status {},
    /// The discovered fabric, then every event as it happens.
    Watch {},
    /// Program this plan, and make no plans any more; answered when the fabric is programmed, also if it was already. If
    /// the plan is rejected with a code ([`PlanRejection`](super::planner::PlanRejection)), the client has to compile a plan
    /// for the fabric that the next `discovered` event reports.
    Plan { plan: Box<FabricPlan> },
    /// Read the partition file again; answered when the fabric is programmed.
    Reload {},
    /// Declare that a node is behind this port now, so that its M_Key may be sent there; without a port, it is the node of
    /// the manager itself.
    AdoptNode { node: Guid, behind: Option<PortAddress> },
    /// The metrics, in the text format of Prometheus.
    Metrics {},
    /// Read back every table of the plan in force; answered with that plan, with the tables that devices hold.
    ReadBack {},
}

/// A request as serde reads it. A tagged enum would buffer the plan twice, and lose integer keys of maps.
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
                _ => Err("unknown command, or an argument is missing".to_owned()),
            },
            _ => Err("unknown command, or it takes other arguments".to_owned()),
        }
    }
}

/// A port, by the GUID of its node and its number.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct PortAddress {
    pub node: Guid,
    pub port: PortNum,
}

/// Executes a request and replies.
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
            answers.send(Ok(json!("location recorded; discovering the node")));
        }
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
fn fabric(discovery: &Discovery) -> Value {
    json!({
        "event": "discovered",
        "manager": discovery.manager,
        "fabric": Document::of(&discovery.topology),
        "topology": fabric_model::ibnetdiscover::write(&discovery.topology),
        "capabilities": discovery.capabilities,
    })
}

/// An event as a line of `heddle sm watch`.
pub fn line(event: &SmEvent) -> Value {
    match event {
        SmEvent::Discovered(discovery) => fabric(discovery),
        SmEvent::Surveyed(_) => json!({ "event": "surveyed" }),
        SmEvent::ReadBack(_) => json!({ "event": "read-back" }),
        SmEvent::Compared(differences) => json!({ "event": "compared", "differences": differences.len() }),
        SmEvent::LocalNodeSilent => json!({ "event": "alone" }),
        SmEvent::Inconsistent(error) => json!({ "event": "inconsistent", "reason": error.to_string() }),
        SmEvent::Programmed(counts) => {
            json!({ "event": "programmed", "gets": counts.gets, "sets": counts.sets })
        }
        SmEvent::Interrupted => json!({ "event": "interrupted" }),
        SmEvent::SilentLocation { location, last } => {
            json!({ "event": "silent-location", "location": location, "last": last })
        }
        SmEvent::Stranger { location, claims } => {
            json!({ "event": "stranger", "location": location, "claims": claims })
        }
        SmEvent::LocationRecovered { location } => json!({ "event": "answered", "location": location }),
        SmEvent::NodeSilent { node, attribute } => {
            json!({ "event": "silent", "node": node, "attribute": format!("{attribute:?}") })
        }
        SmEvent::RequestRefused { node, attribute, modifier, status } => json!({
            "event": "refused",
            "node": node,
            "attribute": format!("{attribute:?}"),
            "modifier": modifier,
            "status": status.map(|status| status.0),
        }),
        SmEvent::Unsupported { node, attribute, modifier } => {
            changed("unsupported", node, attribute.0, *modifier)
        }
        SmEvent::Drift { node, attribute, modifier } => changed("drift", node, attribute.0, *modifier),
        SmEvent::TrapReceived { node, trap } => {
            json!({ "event": "trap", "node": node, "number": trap.number() })
        }
        SmEvent::ForeignManager { node, port, info } => json!({
            "event": "foreign-manager",
            "node": node,
            "port": port,
            "priority": info.as_ref().map(|info| info.priority),
        }),
        SmEvent::ForeignManagerGone { node, port } => {
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
