//! Statistics of a running manager, for the log, `heddle sm status`, the report file and the metrics.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use fabric_model::FabricPlan;
use ib_wire::{Attribute, Guid, SmState};
use serde::Serialize;
use subnet_manager::{
    CounterPollCounts, DampedLinkUse, ElectionStatus, EntryClass, KeyStatus, Lack, Location, MadCounts,
    Manager, SaCounts, SmEvent,
};

/// Entries kept of each list; older ones are only counted.
const LIST_MAX: usize = 256;

/// Counters and the latest entries since the daemon started.
#[derive(Debug, Default, Serialize)]
pub struct SmStatistics {
    pub switches: usize,
    pub adapters: usize,
    /// LIDs in the plan in force.
    pub lids: usize,
    pub partitions: usize,
    pub findings: Vec<String>,
    /// Get requests sent, without retries.
    pub gets: u64,
    pub sets: u64,
    /// Sets that ask software at ports to register again.
    pub registrations: u64,
    pub retries: u64,
    /// Completed programming runs, repairs included.
    pub programmed: u64,
    /// Time from the start of the daemon to the last change of plan, in seconds.
    pub seconds: f64,
    /// Locations whose node does not answer, or answers as another node, with the reason.
    pub unmet: BTreeMap<String, String>,
    /// Other subnet managers, by location, with state and priority.
    pub foreign_managers: BTreeMap<String, String>,
    /// Handovers and claims of other subnet managers (Sets of SMInfo) that were refused.
    pub claims_refused: u64,
    pub silent: List,
    pub refused: List,
    pub unsupported: List,
    /// Entries of isolation or guarantees that devices do not take, by port.
    pub lacks: BTreeMap<String, String>,
    /// Links that flap or whose error counters grow, by their ends, with the reason and what becomes of them.
    pub damped_links: BTreeMap<String, DampedLinkStatus>,
    /// Reads of PortCounters.
    pub counter_reads: u64,
    /// Reads of PortCounters without an answer; a device need not answer.
    pub counter_reads_unanswered: u64,
    /// Ports whose saturated error counters were reset.
    pub counter_resets: u64,
    pub drift: List,
    pub interruptions: u64,
    /// Error of the last write of the state, while it fails: the fabric is not changed meanwhile.
    pub unsaved: Option<String>,
    pub state_write_failures: u64,
    pub traps: BTreeMap<u16, u64>,
    /// Ports that asked subnet administration for more than their share.
    pub overload: List,
    /// Ports that flooded the service level of management.
    pub management_floods: List,
    /// Of several managers: `master`, `candidate` or `standby`.
    pub role: Option<&'static str>,
    /// The port GUID of the master, if this manager is a standby.
    pub master: Option<Guid>,
    /// As a master: the standby managers that store every change before it takes effect.
    pub standbys: BTreeSet<Guid>,
    /// As a master or candidate: what the other managers say.
    pub election: Option<ElectionStatus>,
    /// The M_Keys of nodes; none without `--secret`.
    pub keys: Option<KeyStatus>,
    /// Counters of subnet administration.
    pub sa: SaCounts,
}

/// A damped link.
#[derive(Debug, Serialize)]
pub struct DampedLinkStatus {
    /// Whether plans do without it.
    pub left_out: bool,
    /// Both ends with their descriptions, the reason and what becomes of it.
    pub text: String,
}

/// The last entries of a list, with the number of all.
#[derive(Debug, Default, Serialize)]
pub struct List {
    pub count: u64,
    pub last: VecDeque<String>,
}

impl List {
    fn push(&mut self, entry: String) {
        self.count += 1;
        if self.last.len() == LIST_MAX {
            self.last.pop_front();
        }
        self.last.push_back(entry);
    }
}

impl SmStatistics {
    /// Records an event and logs it.
    pub fn note(&mut self, event: &SmEvent) {
        match event {
            SmEvent::Discovered(discovery) => {
                (self.switches, self.adapters) =
                    (discovery.topology.switches().count(), discovery.topology.end_nodes().count());
                tracing::info!(switches = self.switches, adapters = self.adapters, "discovered");
            }
            SmEvent::Surveyed(found) => tracing::info!(switches = found.tables.linear.len(), "surveyed"),
            SmEvent::ReadBack(_) => tracing::info!("read back"),
            SmEvent::Compared(differences) => tracing::info!(differences = differences.len(), "compared"),
            SmEvent::LocalNodeSilent => {
                tracing::error!("no node answers, not even the one that this manager runs on")
            }
            SmEvent::Inconsistent(error) => {
                tracing::error!(%error, "the discovered topology is inconsistent")
            }
            SmEvent::Programmed(counts) => {
                self.count_mads(*counts);
                self.programmed += 1;
                tracing::info!(gets = counts.gets, sets = counts.sets, "programmed");
            }
            SmEvent::Interrupted => {
                self.interruptions += 1;
                tracing::warn!("programming interrupted: a node did not answer");
            }
            SmEvent::SilentLocation { location, last } => {
                let last = last.map_or("no node".to_owned(), |guid| guid.to_string());
                let place = location_name(*location);
                tracing::warn!(%place, %last, "no answer from behind a port");
                crate::print_warning(format_args!(
                    "no answer from behind {place}, where {last} was last found"
                ));
                self.unmet.insert(place, format!("no answer; last found: {last}"));
            }
            SmEvent::Stranger { location, claims } => {
                let place = location_name(*location);
                tracing::warn!(%place, %claims, "a node without the key answers with the GUID of a node found elsewhere");
                crate::print_warning(format_args!(
                    "behind {place} a node without the key of {claims} answers with its GUID; {claims} was found elsewhere"
                ));
                self.unmet.insert(place, format!("answers as {claims} without its key"));
            }
            SmEvent::LocationRecovered { location } => {
                let place = location_name(*location);
                tracing::info!(%place, "no longer silent");
                self.unmet.remove(&place);
            }
            SmEvent::NodeSilent { node, attribute } => {
                tracing::warn!(%node, ?attribute, "no answer");
                self.silent.push(format!("{node} {attribute:?}"));
            }
            SmEvent::RequestRefused { node, attribute, modifier, status } => {
                tracing::warn!(%node, ?attribute, modifier, ?status, "refused");
                self.refused.push(format!("{} {status:?}", attribute_name(*node, *attribute, *modifier)));
            }
            SmEvent::Unsupported { node, attribute, modifier } => {
                tracing::info!(%node, ?attribute, modifier, "not supported");
                self.unsupported.push(attribute_name(*node, *attribute, *modifier));
            }
            SmEvent::Lacking(lack) => {
                let effect = match lack.class {
                    EntryClass::Isolation => "no tenant can use the port",
                    EntryClass::Guarantee | EntryClass::Other => "nothing is guaranteed on its link",
                };
                tracing::error!("{lack}; {effect}");
                crate::print_warning(format_args!("{lack}; {effect}"));
                self.lacks.insert(lack_name(lack), format!("{lack}; {effect}"));
            }
            SmEvent::LackEnded(lack) => {
                tracing::info!(port = %lack.port, attribute = ?lack.attribute, "taken now, or no longer needed");
                self.lacks.remove(&lack_name(lack));
            }
            SmEvent::LinkDamped(report) => {
                tracing::warn!("{report}");
                crate::print_warning(format_args!("{report}"));
                let left_out = report.usage == DampedLinkUse::LeftOut;
                let status = DampedLinkStatus { left_out, text: report.to_string() };
                self.damped_links.insert(report.damped.link.to_string(), status);
            }
            SmEvent::LinkRestored { link } => {
                tracing::info!(%link, "the link counts as healthy again");
                self.damped_links.remove(&link.to_string());
            }
            SmEvent::Drift { node, attribute, modifier } => {
                tracing::warn!(%node, ?attribute, modifier, "drift: changed by another writer; repairing");
                self.drift.push(attribute_name(*node, *attribute, *modifier));
            }
            SmEvent::TrapReceived { node, trap } => {
                tracing::info!(%node, trap = trap.number(), "trap");
                *self.traps.entry(trap.number()).or_default() += 1;
            }
            SmEvent::PortOverload { port } => {
                tracing::warn!(%port, "a port asks subnet administration for more than its share");
                self.overload.push(port.to_string());
            }
            SmEvent::ManagementFlood { port, bytes_per_second } => {
                tracing::warn!(%port, bytes_per_second, "a port floods the service level of management");
                crate::print_warning(format_args!(
                    "port {port} sends {:.0} MB/s at the service level of management and may delay others there",
                    *bytes_per_second as f64 / 1e6
                ));
                self.management_floods.push(port.to_string());
            }
            SmEvent::KeysRotated { version, absent } => {
                tracing::info!(epoch = version.epoch, absent, "all nodes that answer hold the current M_Key");
            }
            SmEvent::Elected => tracing::info!("elected"),
            SmEvent::LeaseLost => tracing::warn!("lease lost"),
            SmEvent::Yielded { to } => tracing::info!(?to, "yielded"),
            SmEvent::ForeignManager { node, port, info } => {
                let says = match info {
                    Some(info) => format!("{} with priority {}", state(info.state), info.priority),
                    None => "silent".to_owned(),
                };
                tracing::warn!(%node, %port, %says, "another subnet manager");
                crate::print_warning(format_args!("another subnet manager runs at {node}[{port}]: {says}"));
                self.foreign_managers.insert(format!("{node}[{port}]"), says);
            }
            SmEvent::ClaimRefused { from, order } => {
                let text = super::release::refused_claim(*from, *order);
                tracing::warn!("{text}");
                crate::print_warning(format_args!("{text}"));
            }
            SmEvent::ForeignManagerGone { node, port } => {
                tracing::info!(%node, %port, "the other subnet manager is gone");
                self.foreign_managers.remove(&format!("{node}[{port}]"));
            }
        }
    }

    /// Records the plan in force; `elapsed` is the time since the daemon started.
    pub fn note_plan(&mut self, plan: &FabricPlan, elapsed: Duration) {
        (self.lids, self.partitions) = (plan.lids().len(), plan.partitions().len());
        self.findings = plan.findings().iter().map(ToString::to_string).collect();
        self.seconds = elapsed.as_secs_f64();
    }

    /// Copies the counters of a manager.
    pub fn count(&mut self, manager: &Manager) {
        self.count_mads(manager.counts());
        self.sa = manager.sa_counts();
        self.election = manager.election_status();
        self.claims_refused = manager.claims_refused();
        self.keys = manager.key_status();
        let CounterPollCounts { reads, unanswered, resets } = manager.counter_poll_counts();
        (self.counter_reads, self.counter_reads_unanswered, self.counter_resets) =
            (reads, unanswered, resets);
    }

    fn count_mads(&mut self, counts: MadCounts) {
        (self.gets, self.sets, self.retries) = (counts.gets, counts.sets, counts.retries);
        self.registrations = counts.registrations;
    }
}

fn attribute_name(node: Guid, attribute: Attribute, modifier: u32) -> String {
    format!("{node} {attribute:?} {modifier:#x}")
}

fn lack_name(lack: &Lack) -> String {
    format!("{} {:?} {:#x}", lack.port, lack.attribute, lack.modifier)
}

fn location_name(location: Option<Location>) -> String {
    location.map_or("the manager's own node".to_owned(), |it| format!("{}[{}]", it.near, it.port))
}

fn state(state: SmState) -> &'static str {
    match state {
        SmState::Master => "master",
        SmState::Standby => "standby",
        SmState::Discovering => "discovering",
        SmState::NotActive => "not active",
        SmState::Unknown(_) => "in an unknown state",
    }
}
