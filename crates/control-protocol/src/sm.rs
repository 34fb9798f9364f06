//! The control socket of `heddle sm`: plans go in, events of the fabric come out.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use fabric_model::FabricPlan;
use fabric_model::intent::{Capabilities, PortName};
use ib_wire::{Guid, PortNum};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

/// A request to a running subnet manager.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", try_from = "Fields")]
pub enum SmRequest {
    /// Check that the manager works. The thread that programs the fabric answers `"pong"`.
    Ping {},
    /// Statistics, as JSON for people and scripts.
    Status {},
    /// Stream [`FabricEvent`]s; the first one describes the fabric as it is now.
    Watch {},
    /// Program a plan, and take plans only from this socket from now on. Answered when the fabric equals the plan, also if it
    /// already did. After a [`PlanRejection`], the client has to plan again for the next fabric that a watcher receives.
    Plan { plan: Arc<FabricPlan> },
    /// Read the partitions file and the limits of link health again. Answered when the fabric equals the resulting plan.
    Reload {},
    /// A node was moved: its M_Key may be sent to whatever is behind this port; without a port, to the manager's own node.
    AdoptNode { node: Guid, behind: Option<PortName> },
    /// Try again the entries that devices did not take ([`FabricEvent::Lacking`]).
    Retry {},
    /// Let the damped link at a port return to plans ([`FabricEvent::LinkDamped`]).
    RestoreLink { port: PortName },
    /// Give every node the M_Key of the next epoch, or of the secret in a file that the manager reads. Answered when all nodes
    /// that answer have it.
    RotateKeys { new_secret: Option<PathBuf> },
    /// Write what another subnet manager needs into a directory, leave the fabric and end. Answered when all of that is done.
    Release { export: PathBuf, keys: ReleasedKeys },
    /// Statistics in the text format of Prometheus.
    Metrics {},
    /// A standby manager, named by its port GUID, asks the master for what it has to remember. Answered with a stream of
    /// [`Replica`]s.
    Follow { manager: Guid },
    /// A standby manager has stored everything up to a number.
    Remembered { manager: Guid, sequence: u64 },
    /// Read all tables of the current plan from the devices. Answered with that plan, with the tables as devices hold them.
    ReadBack {},
}

/// The M_Keys with which the nodes of a fabric are released.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReleasedKeys {
    /// Each node keeps its own.
    Kept,
    /// All nodes get the one in a file that the manager reads.
    Single(PathBuf),
    /// Nodes have none any more.
    Removed,
}

/// A request as it is read. The tagged enum of serde would buffer a plan, and lose its integer keys.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    command: String,
    plan: Option<Arc<FabricPlan>>,
    node: Option<Guid>,
    behind: Option<PortName>,
    port: Option<PortName>,
    new_secret: Option<PathBuf>,
    manager: Option<Guid>,
    sequence: Option<u64>,
    export: Option<PathBuf>,
    keys: Option<ReleasedKeys>,
}

/// A request whose command is unknown, or that has other fields than its command needs.
#[derive(Debug, Error)]
#[error(
    "unknown command {0:?}, or fields that it does not take: ping, status, watch, plan, reload, adopt-node, retry, restore-link, rotate-keys, release, follow, remembered, metrics, read-back"
)]
struct UnknownRequest(String);

impl TryFrom<Fields> for SmRequest {
    type Error = UnknownRequest;
    fn try_from(fields: Fields) -> Result<Self, UnknownRequest> {
        let Fields { command, plan, node, behind, port, new_secret, export, keys, manager, sequence } =
            fields;
        let has_others = plan.is_some() || node.is_some() || behind.is_some() || port.is_some();
        if manager.is_some() || sequence.is_some() {
            let is_alone = !has_others && new_secret.is_none() && export.is_none() && keys.is_none();
            return match (command.as_str(), manager, sequence) {
                ("follow", Some(manager), None) if is_alone => Ok(Self::Follow { manager }),
                ("remembered", Some(manager), Some(sequence)) if is_alone => {
                    Ok(Self::Remembered { manager, sequence })
                }
                _ => Err(UnknownRequest(command)),
            };
        }
        if export.is_some() || keys.is_some() {
            return match (export, keys) {
                (Some(export), Some(keys)) if !has_others && new_secret.is_none() && command == "release" => {
                    Ok(Self::Release { export, keys })
                }
                _ => Err(UnknownRequest(command)),
            };
        }
        if command == "rotate-keys" {
            let is_alone = plan.is_none() && node.is_none() && behind.is_none() && port.is_none();
            return if is_alone { Ok(Self::RotateKeys { new_secret }) } else { Err(UnknownRequest(command)) };
        }
        if let ("restore-link", None, None, None, Some(port), None) =
            (command.as_str(), &plan, node, behind, port, &new_secret)
        {
            return Ok(Self::RestoreLink { port });
        }
        match (command.as_str(), plan, node, behind) {
            _ if port.is_some() || new_secret.is_some() => Err(UnknownRequest(command)),
            ("plan", Some(plan), None, None) => Ok(Self::Plan { plan }),
            ("adopt-node", None, Some(node), behind) => Ok(Self::AdoptNode { node, behind }),
            ("ping", None, None, None) => Ok(Self::Ping {}),
            ("status", None, None, None) => Ok(Self::Status {}),
            ("watch", None, None, None) => Ok(Self::Watch {}),
            ("reload", None, None, None) => Ok(Self::Reload {}),
            ("retry", None, None, None) => Ok(Self::Retry {}),
            ("metrics", None, None, None) => Ok(Self::Metrics {}),
            ("read-back", None, None, None) => Ok(Self::ReadBack {}),
            _ => Err(UnknownRequest(command)),
        }
    }
}

/// What a master tells a standby manager. Numbers grow by one with every change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Replica {
    /// Everything that the master remembers, as the first line of its state file.
    Whole {
        sequence: u64,
        state: String,
        /// Node GUID of the standby manager, if the master sees its port.
        node: Option<Guid>,
    },
    /// A change, as a further line of the state file.
    Change { sequence: u64, change: String },
    /// The master is there, and knows that the standby manager has stored everything up to this number.
    Beat { remembered: u64 },
    /// The standby manager did not answer in time: the master goes on without it, and what it has stored is stale.
    LeftOut,
}

/// Reasons to reject a plan that a client has to tell apart: it has to plan again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlanRejection {
    #[error("the first discovery of the fabric is not complete")]
    NotDiscovered,
    #[error("the plan was made for a fabric with other links, devices or manager port")]
    OtherFabric,
    #[error("the fabric changed before it equalled the plan")]
    FabricChanged,
}

/// An event that watchers of a subnet manager receive.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum FabricEvent {
    /// The first discovery is in progress.
    Discovering,
    /// This manager waits, and another one is the master, if its port GUID is given. The stream ends; ask the other one.
    Standby { master: Option<Guid> },
    /// This manager became the master.
    Elected,
    /// This manager was stopped or cut off, and sends nothing until it is the master again.
    LeaseLost,
    /// Another manager is or will be the master. The stream ends.
    Yielded { to: Option<Guid> },
    /// The fabric was discovered, or has changed. Plans for an earlier fabric are rejected from now on.
    Discovered(Box<DiscoveredTopology>),
    /// Tables of devices were read, to adopt them.
    Surveyed,
    /// Tables of the current plan were read back.
    ReadBack,
    /// The fabric was compared with a plan, without writing.
    Compared { differences: usize },
    /// No other port answers.
    Alone,
    /// The discovered fabric contradicts itself, for example by duplicate GUIDs.
    Inconsistent { reason: String },
    /// The fabric equals the plan, after this many requests.
    Programmed { gets: u64, sets: u64 },
    /// Programming was interrupted by a change of the fabric, and starts again.
    Interrupted,
    /// A port has a link, and nothing behind it answers. `last` is the node that answered there before.
    SilentLocation { location: Option<PortName>, last: Option<Guid> },
    /// A device claims the GUID of a node that was seen elsewhere, and does not know its M_Key.
    Stranger { location: Option<PortName>, claims: Guid },
    /// A silent location answers again.
    Answered { location: Option<PortName> },
    /// A node stopped answering during programming.
    Silent { node: Guid, attribute: String },
    /// A device rejected a Set.
    Refused { node: Guid, attribute: String, modifier: u32, status: Option<u16> },
    /// A device accepted a Set and did not change.
    Unsupported { node: Guid, attribute: u16, modifier: u32 },
    /// A device did not take an entry that isolates tenants or carries guarantees: its port is closed, or nothing is
    /// guaranteed on its link. [`FabricEvent::Discovered`] follows, with these capabilities.
    Lacking(EntryLack),
    /// A device takes an entry that it did not take before, or the entry is not needed any more.
    LackEnded(EntryLack),
    /// A link flaps, or its error counters grow. With `left_out`, plans do without it: [`FabricEvent::Discovered`] follows.
    /// Reported again if that changes. `text` is a sentence for operators, with both ends and the reason.
    LinkDamped { link: [PortName; 2], left_out: bool, text: String },
    /// A damped link was quiet for long enough, or an operator restored it.
    LinkRestored { link: [PortName; 2] },
    /// Something other than this manager changed a table; the manager repairs it.
    Drift { node: Guid, attribute: u16, modifier: u32 },
    /// A trap was received.
    Trap { node: Guid, number: u16 },
    /// A port asks subnet administration for more than its share and gets BUSY.
    PortOverload { port: Guid },
    /// A port sends more than the limit at the service level that is reserved for management.
    ManagementFlood { port: Guid, bytes_per_second: u64 },
    /// Another subnet manager runs on this port. It has no priority if it does not answer.
    ForeignManager { node: Guid, port: PortNum, priority: Option<u8> },
    /// A subnet manager ordered the master to give the fabric over, or the like, and was refused.
    ClaimRefused { text: String },
    /// The other subnet manager has gone.
    ForeignManagerGone { node: Guid, port: PortNum },
    /// Every node that answers holds the current M_Key. `absent` nodes get it when they come back.
    KeysRotated { epoch: u32, absent: usize },
    /// The manager's state cannot be written to disk; the fabric keeps its last plan.
    StateUnsaved { error: String },
    /// The manager's state can be written again.
    StateSaved,
}

/// An entry that a device did not take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct EntryLack {
    /// The port concerned; port 0 stands for a whole switch.
    pub port: PortName,
    /// What is missing with it.
    pub purpose: LackPurpose,
    /// Node, attribute, what was written and what the device answered, as a sentence for operators.
    pub text: String,
}

/// What an entry that a device did not take is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LackPurpose {
    /// It separates tenants: the port is closed.
    Isolation,
    /// It carries guarantees: nothing is guaranteed on the link that the port sends into.
    Guarantee,
}

/// A fabric as planners need it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DiscoveredTopology {
    /// GUID of the port of the subnet manager.
    pub manager: Guid,
    /// GUIDs of the ports of managers that would take over.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub standby_managers: BTreeSet<Guid>,
    /// Nodes and links, in the format of ibnetdiscover.
    pub topology: String,
    /// Table sizes and abilities of the devices, without what they lack.
    pub capabilities: Capabilities,
    /// Entries that devices did not take.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lacks: Vec<EntryLack>,
    /// Nodes and links as JSON, for scripts; Heddle's own programs read `topology`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric: Option<Value>,
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
        let sent =
            SmRequest::Plan { plan: Arc::new(compile(&tree, &intents, &Decisions::default()).unwrap()) };
        let received: SmRequest = serde_json::from_str(&serde_json::to_string(&sent).unwrap()).unwrap();
        assert_eq!(received, sent);
        let SmRequest::Plan { plan } = received else { panic!("another request") };
        assert_eq!(plan.groups().len(), 1);
    }

    #[test]
    fn requests_with_missing_or_further_fields_are_rejected() {
        let read = |text: &str| serde_json::from_str::<SmRequest>(text);
        assert!(read(r#"{"command":"ping"}"#).is_ok());
        assert!(read(r#"{"command":"adopt-node","node":"0x0002c90300100000"}"#).is_ok());
        let port = PortName { node: Guid::from_wire(7).unwrap(), port: PortNum::new(3).unwrap() };
        assert!(read(r#"{"command":"rotate-keys"}"#).is_ok());
        for keys in [ReleasedKeys::Kept, ReleasedKeys::Single("/k".into()), ReleasedKeys::Removed] {
            let release = SmRequest::Release { export: "/x".into(), keys };
            assert_eq!(read(&serde_json::to_string(&release).unwrap()).unwrap(), release);
        }
        let restore = SmRequest::RestoreLink { port };
        assert_eq!(read(&serde_json::to_string(&restore).unwrap()).unwrap(), restore);
        for text in [
            r#"{"command":"pong"}"#,
            r#"{"command":"plan"}"#,
            r#"{"command":"adopt-node"}"#,
            r#"{"command":"restore-link"}"#,
            r#"{"command":"rotate-keys","node":"0x0002c90300100000"}"#,
            r#"{"command":"ping","new_secret":"/x"}"#,
            r#"{"command":"restore-link","node":"0x0002c90300100000"}"#,
            r#"{"command":"ping","node":"0x0002c90300100000"}"#,
            r#"{"command":"ping","more":1}"#,
            r#"{"command":"ping","export":"/x"}"#,
            r#"{"command":"release","export":"/x"}"#,
            r#"{"command":"release","export":"/x","keys":"kept","new_secret":"/y"}"#,
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn events_are_read_as_they_were_written() {
        let guid = Guid::from_wire(0x0002_c903_0010_0000).unwrap();
        let port = PortNum::new(3).unwrap();
        let location = Some(PortName { node: guid, port });
        let events = [
            FabricEvent::Discovering,
            FabricEvent::SilentLocation { location, last: None },
            FabricEvent::Drift { node: guid, attribute: 0x16, modifier: 1 },
            FabricEvent::ForeignManager { node: guid, port, priority: Some(4) },
            FabricEvent::LinkDamped {
                link: [PortName { node: guid, port }; 2],
                left_out: true,
                text: "it flaps".to_owned(),
            },
            FabricEvent::LinkRestored { link: [PortName { node: guid, port }; 2] },
            FabricEvent::ClaimRefused { text: "refused".to_owned() },
            FabricEvent::StateUnsaved { error: "no space left on device".to_owned() },
            FabricEvent::Lacking(EntryLack {
                port: PortName { node: guid, port },
                purpose: LackPurpose::Isolation,
                text: "refused".to_owned(),
            }),
        ];
        for event in events {
            let text = serde_json::to_string(&event).unwrap();
            assert_eq!(serde_json::from_str::<FabricEvent>(&text).unwrap(), event, "{text}");
        }
    }
}
