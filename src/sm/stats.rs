//! What happened while a manager ran: for the log, the report and the metrics.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use fabric_model::FabricPlan;
use ib_wire::{Attribute, Guid, SmState};
use serde::Serialize;
use subnet_manager::{Counts, Event, Location};

/// Entries of each list that a report shows at most; the rest is counted.
const LIST_MAX: usize = 256;

/// What happened so far.
#[derive(Debug, Default, Serialize)]
pub struct SmStatistics {
    /// Switches and adapters that were found.
    pub switches: usize,
    pub adapters: usize,
    /// The plan in force.
    pub lids: usize,
    pub partitions: usize,
    pub findings: Vec<String>,
    /// Datagrams sent.
    pub gets: u64,
    pub sets: u64,
    pub retries: u64,
    /// Times the fabric was made equal to a plan, or repaired.
    pub programmed: u64,
    /// Seconds since the start until it last was.
    pub seconds: f64,
    /// Who does not answer, or answers as somebody else.
    pub unmet: BTreeMap<String, String>,
    /// Other subnet managers.
    pub foreign_managers: BTreeMap<String, String>,
    /// Requests that were not answered, refused, not supported; what others changed; traps by number.
    pub silent: List,
    pub refused: List,
    pub unsupported: List,
    pub drift: List,
    pub interruptions: u64,
    /// Why what was decided cannot be kept, while that is so: nothing that depends on it is written.
    pub unsaved: Option<String>,
    /// How often it could not.
    pub state_write_failures: u64,
    pub traps: BTreeMap<u16, u64>,
}

/// The last entries of a list that may get long.
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
    /// Writes an event down, and into the log.
    pub fn note(&mut self, event: &Event) {
        match event {
            Event::Discovered(discovery) => {
                (self.switches, self.adapters) =
                    (discovery.topology.switches().count(), discovery.topology.end_nodes().count());
                tracing::info!(switches = self.switches, adapters = self.adapters, "discovered");
            }
            Event::Surveyed(found) => tracing::info!(switches = found.linear.len(), "read what is there"),
            Event::ReadBack(_) => tracing::info!("read what the plan speaks of"),
            Event::Compared(differences) => tracing::info!(differences = differences.len(), "compared"),
            Event::Alone => tracing::error!("nobody answers, not even the node this manager sits on"),
            Event::Inconsistent(error) => tracing::error!(%error, "what answers is no fabric"),
            Event::Programmed(counts) => {
                self.count(*counts);
                self.programmed += 1;
                tracing::info!(gets = counts.gets, sets = counts.sets, "the fabric is equal to the plan");
            }
            Event::Interrupted => {
                self.interruptions += 1;
                tracing::warn!("interrupted: somebody did not answer");
            }
            Event::SilentLocation { location, last } => {
                let last = last.map_or("nobody".to_owned(), |guid| guid.to_string());
                let place = place(*location);
                tracing::warn!(%place, %last, "no answer from behind a port");
                crate::print_warning(format_args!(
                    "no answer from behind {place}, where {last} was last met"
                ));
                self.unmet.insert(place, format!("no answer; last met: {last}"));
            }
            Event::Stranger { location, claims } => {
                let place = place(*location);
                tracing::warn!(%place, %claims, "somebody without its key answers as a node met elsewhere");
                crate::print_warning(format_args!(
                    "behind {place} somebody without its key answers as {claims}, met elsewhere"
                ));
                self.unmet.insert(place, format!("answers as {claims} without its key"));
            }
            Event::Answered { location } => {
                let place = place(*location);
                tracing::info!(%place, "no longer silent");
                self.unmet.remove(&place);
            }
            Event::Silent { node, attribute } => {
                tracing::warn!(%node, ?attribute, "no answer");
                self.silent.push(format!("{node} {attribute:?}"));
            }
            Event::Refused { node, attribute, modifier, status } => {
                tracing::warn!(%node, ?attribute, modifier, ?status, "refused");
                self.refused.push(format!("{} {status:?}", what(*node, *attribute, *modifier)));
            }
            Event::Unsupported { node, attribute, modifier } => {
                tracing::info!(%node, ?attribute, modifier, "not supported");
                self.unsupported.push(what(*node, *attribute, *modifier));
            }
            Event::Drift { node, attribute, modifier } => {
                tracing::warn!(%node, ?attribute, modifier, "somebody else changed it; it is repaired");
                self.drift.push(what(*node, *attribute, *modifier));
            }
            Event::Trapped { node, trap } => {
                tracing::info!(%node, trap = trap.number(), "trap");
                *self.traps.entry(trap.number()).or_default() += 1;
            }
            Event::ForeignManager { node, port, info } => {
                let says = match info {
                    Some(info) => format!("{} with priority {}", state(info.state), info.priority),
                    None => "silent".to_owned(),
                };
                tracing::warn!(%node, %port, %says, "another subnet manager");
                crate::print_warning(format_args!("another subnet manager runs at {node}[{port}]: {says}"));
                self.foreign_managers.insert(format!("{node}[{port}]"), says);
            }
            Event::ForeignManagerGone { node, port } => {
                tracing::info!(%node, %port, "the other subnet manager is gone");
                self.foreign_managers.remove(&format!("{node}[{port}]"));
            }
        }
    }

    /// Notes the plan that is in force since `elapsed`.
    pub fn note_plan(&mut self, plan: &FabricPlan, elapsed: Duration) {
        (self.lids, self.partitions) = (plan.lids().len(), plan.partitions().len());
        self.findings = plan.findings().iter().map(ToString::to_string).collect();
        self.seconds = elapsed.as_secs_f64();
    }

    /// Notes how many datagrams were sent.
    pub fn count(&mut self, counts: Counts) {
        (self.gets, self.sets, self.retries) = (counts.gets, counts.sets, counts.retries);
    }
}

fn what(node: Guid, attribute: Attribute, modifier: u32) -> String {
    format!("{node} {attribute:?} {modifier:#x}")
}

fn place(location: Option<Location>) -> String {
    location.map_or("the manager's own node".to_owned(), |it| format!("{}[{}]", it.near, it.port))
}

fn state(state: SmState) -> &'static str {
    match state {
        SmState::Master => "master",
        SmState::Standby => "standby",
        SmState::Discovering => "discovering",
        SmState::NotActive => "not active",
        SmState::Unknown(_) => "in a state of its own",
    }
}
