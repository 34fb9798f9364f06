//! What is not well, since when, and what that means for clusters. No I/O; [`watch`] looks every second.
//!
//! A part that does not answer is not taken for gone: what it was last known to run goes on, and states say that nobody
//! knows (`unknown`) or that something is missing (`degraded`). Durations are measured by the monotonic clock; the times that
//! are shown are those of the wall clock when the part was last heard of.

mod fault_events;
pub mod watch;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::time::{Duration, Instant};

use controller_api::Name;
use controller_api::cluster::{Health, HealthState, NodeState};
use controller_api::fabric::FabricState;
use controller_api::host::NewHost;
use jiff::Timestamp;

use crate::site::Observed;
use crate::store::{ClusterRow, NodeRow};

/// How long an agent may be silent. It answers within 5 s also if nothing happens; a machine that is three times too slow is not
/// worth an alarm.
pub const AGENT_SILENCE_LIMIT: Duration = Duration::from_secs(15);

/// How long the subnet manager may leave heartbeats unanswered. While it compares a plan of 11,664 hosts it is busy for seconds.
pub const MANAGER_SILENCE_LIMIT: Duration = Duration::from_secs(15);

/// How long the port of a host may be missing on the fabric: an adapter that restarts, or a cable that is seated again, is back
/// sooner.
pub const PORT_ABSENCE_LIMIT: Duration = Duration::from_secs(5);

/// How long the fabric may differ from what clusters need while the manager answers: what a cold fabric of 11,664 hosts takes on a
/// slow machine.
pub const PROGRAMMING_LIMIT: Duration = Duration::from_secs(120);

/// An instant by both clocks: the first for durations, the second for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockReading {
    /// Never steps.
    pub at: Instant,
    /// What is shown.
    pub wall: Timestamp,
}

impl ClockReading {
    /// This instant.
    pub fn now() -> Self {
        Self { at: Instant::now(), wall: Timestamp::now() }
    }

    /// Whether more than `limit` has passed until `now`.
    fn is_older(&self, limit: Duration, now: &Self) -> bool {
        now.at.saturating_duration_since(self.at) > limit
    }
}

/// Something that is not well.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// The subnet manager does not answer.
    ManagerSilent,
    /// The subnet manager answers, but the fabric does not become what clusters need.
    FabricStuck,
    /// The agent of a host does not answer: nobody knows what its virtual machines do.
    AgentSilent(Name),
    /// The port of a host is not on the fabric: its virtual machines reach nobody.
    OffFabric(Name),
}

/// Everything that is not well, with since when.
pub type Faults = BTreeMap<Fault, Timestamp>;

/// Remembers since when something looks wrong, until it has done so for long enough.
#[derive(Debug, Default)]
pub struct Monitor {
    /// When hosts were first looked for, and when their ports were first missed.
    hosts: HashMap<Name, ClockReading>,
    absent: HashMap<Name, ClockReading>,
    manager: Option<ClockReading>,
    programming: Option<ClockReading>,
}

impl Monitor {
    /// What is not well now, given what was not well before.
    pub fn examine(
        &mut self,
        observed: &Observed,
        hosts: &[NewHost],
        before: &Faults,
        now: ClockReading,
    ) -> Faults {
        let mut faults = Faults::new();
        let mut note = |fault: Fault, since: Timestamp| {
            // What began before this process did keeps its time.
            let since = before.get(&fault).copied().unwrap_or(since);
            faults.insert(fault, since);
        };
        let first = *self.manager.get_or_insert(now);
        let heard = observed.fabric.heard.unwrap_or(first);
        let is_silent = heard.is_older(MANAGER_SILENCE_LIMIT, &now);
        if is_silent || (observed.fabric.heard.is_none() && before.contains_key(&Fault::ManagerSilent)) {
            note(Fault::ManagerSilent, heard.wall);
        }
        if observed.fabric.state == FabricState::Programming && !is_silent {
            let first = *self.programming.get_or_insert(now);
            let since = observed.fabric.settled.filter(|settled| settled.at > first.at).unwrap_or(first);
            if since.is_older(PROGRAMMING_LIMIT, &now) {
                note(Fault::FabricStuck, since.wall);
            }
        } else {
            self.programming = None;
        }
        if self.hosts.len() > hosts.len() {
            let known: HashSet<&Name> = hosts.iter().map(|host| &host.name).collect();
            self.hosts.retain(|name, _| known.contains(name));
            self.absent.retain(|name, _| known.contains(name));
        }
        for host in hosts {
            let first = *self.hosts.entry(host.name.clone()).or_insert(now);
            let agent = observed.agents.get(&host.name);
            let heard = agent.map_or(first, |agent| agent.heard);
            let fault = Fault::AgentSilent(host.name.clone());
            let was_silent = agent.is_none() && before.contains_key(&fault);
            if was_silent || heard.is_older(AGENT_SILENCE_LIMIT, &now) {
                note(fault, heard.wall);
            }
            let fault = Fault::OffFabric(host.name.clone());
            let is_absent = host.port_guid.is_some() && observed.fabric.host_port(host).is_none();
            if observed.fabric.discovered.is_none() {
                // What was missing before this process began is missing until the fabric is observed.
                before.get(&fault).into_iter().for_each(|since| note(fault.clone(), *since));
            } else if is_absent {
                let first = *self.absent.entry(host.name.clone()).or_insert(now);
                if before.contains_key(&fault) || first.is_older(PORT_ABSENCE_LIMIT, &now) {
                    note(fault, first.wall);
                }
            } else {
                self.absent.remove(&host.name);
            }
        }
        faults
    }
}

/// Who is told: tenants hear nothing of hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// Names of hosts are told.
    Operator,
    /// They are not.
    Tenant,
}

/// What is wrong with a node because of its host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFault {
    /// What its state is then.
    pub state: NodeState,
    /// Since when.
    pub since: Timestamp,
    /// Why.
    pub reason: String,
}

/// What is wrong with a node because of its host: an agent that is silent says more than a port that is missing.
pub fn node_fault(node: &NodeRow, faults: &Faults, audience: Audience) -> Option<NodeFault> {
    if node.leaving {
        return None;
    }
    let found = |fault: Fault, state| {
        let since = *faults.get(&fault)?;
        Some(NodeFault { state, since, reason: fault.about_node(audience) })
    };
    let silent = found(Fault::AgentSilent(node.host.clone()), NodeState::Unknown);
    silent.or_else(|| found(Fault::OffFabric(node.host.clone()), NodeState::Degraded))
}

/// How a cluster is: `unknown` if nothing is known of any of its nodes, `degraded` if anything is wrong, else `ok`.
pub fn cluster_health(cluster: &ClusterRow, faults: &Faults, audience: Audience) -> Health {
    let nodes = cluster.nodes.iter().filter(|node| !node.leaving);
    let of_nodes: Vec<(u32, NodeFault)> =
        nodes.clone().filter_map(|node| Some((node.number, node_fault(node, faults, audience)?))).collect();
    let of_network = [Fault::ManagerSilent, Fault::FabricStuck].into_iter();
    let of_network = of_network.filter_map(|fault| Some((*faults.get(&fault)?, fault.to_string())));
    let (mut sinces, mut reasons) = (Vec::new(), Vec::new());
    for (number, fault) in &of_nodes {
        sinces.push(fault.since);
        reasons.push(format!("node {number}: {}", fault.reason));
    }
    for (since, reason) in of_network {
        sinces.push(since);
        reasons.push(reason);
    }
    let is_unknown = |(_, fault): &(u32, NodeFault)| fault.state == NodeState::Unknown;
    let unknown = of_nodes.iter().filter(|fault| is_unknown(fault)).count();
    let state = match sinces.is_empty() {
        true => HealthState::Ok,
        false if unknown > 0 && unknown == nodes.count() => HealthState::Unknown,
        false => HealthState::Degraded,
    };
    Health { state, since: sinces.into_iter().min(), reasons }
}

impl Fault {
    /// What it means for a node, without which node.
    fn about_node(&self, audience: Audience) -> String {
        match (self, audience) {
            (Self::AgentSilent(_), Audience::Tenant) => "its host does not answer".to_owned(),
            (Self::OffFabric(_), Audience::Tenant) => "its host is not on the network".to_owned(),
            (fault, _) => fault.to_string(),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ManagerSilent => {
                f.write_str("the subnet manager does not answer: nodes keep their network, changes wait")
            }
            Self::FabricStuck => {
                f.write_str("the fabric is not what clusters need: changes of networks wait")
            }
            Self::AgentSilent(host) => write!(f, "the agent of {host} does not answer"),
            Self::OffFabric(host) => write!(f, "{host} is not on the fabric"),
        }
    }
}

#[cfg(test)]
mod tests;
