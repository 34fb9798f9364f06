//! Faults of hosts and fabric, and the health of clusters. No I/O; [`watch`] checks every second.
//!
//! A part that does not respond is not considered gone: what it ran last keeps running, and states say that nothing is
//! known (`unknown`) or that something is missing (`degraded`). Durations are measured by the monotonic clock; the times
//! shown are wall-clock times of the last sign of life.

mod fault_events;
pub mod watch;

use std::collections::{HashMap, HashSet};
use std::fmt;

use controller_api::Name;
use controller_api::cluster::{Health, HealthState, NodeState};
use controller_api::fabric::FabricState;
use controller_api::host::NewHost;
use fabric_model::plan::PlanFinding;
use jiff::Timestamp;
use uuid::Uuid;

use crate::clock::ClockReading;
use crate::faults::{
    AGENT_SILENCE_LIMIT, Fault, Faults, MANAGER_SILENCE_LIMIT, PORT_ABSENCE_LIMIT, PROGRAMMING_LIMIT,
};
use crate::lifecycle::Observations as _;
use crate::observed::Observed;
use crate::store::{ClusterRow, NodeRow};

/// Detects faults: remembers when each symptom was first observed, until it exceeds its limit.
#[derive(Debug, Default)]
pub struct Monitor {
    /// First check of each host, and first absence of its port.
    hosts: HashMap<Name, ClockReading>,
    absent: HashMap<Name, ClockReading>,
    manager: Option<ClockReading>,
    programming: Option<ClockReading>,
}

impl Monitor {
    /// The current faults. A fault that is in `before` keeps its start time, also across restarts of the controller.
    pub fn examine(
        &mut self,
        observed: &Observed,
        hosts: &[NewHost],
        before: &Faults,
        now: ClockReading,
    ) -> Faults {
        let mut faults = Faults::new();
        let mut note = |fault: Fault, since: Timestamp| {
            // A fault that began before this process keeps its start.
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
                // Ports missing before this process started count as missing until the first discovery.
                before.get(&fault).into_iter().for_each(|since| note(fault.clone(), *since));
            } else if is_absent {
                let first = *self.absent.entry(host.name.clone()).or_insert(now);
                if before.contains_key(&fault) || first.is_older(PORT_ABSENCE_LIMIT, &now) {
                    note(fault, first.wall);
                }
            } else {
                self.absent.remove(&host.name);
            }
            let fault = Fault::PortClosed(host.name.clone());
            let is_closed = host.port_guid.and_then(|port| observed.is_closed(port));
            // Until the devices match a plan again, a port counts as it did.
            if is_closed.unwrap_or_else(|| before.contains_key(&fault)) {
                note(fault, now.wall);
            }
        }
        for cluster in withdrawn_guarantees(observed, before) {
            note(Fault::GuaranteeWithdrawn(cluster), now.wall);
        }
        faults
    }
}

/// Clusters whose guarantee the current plan does not carry; those of before while there is none.
fn withdrawn_guarantees(observed: &Observed, before: &Faults) -> Vec<Uuid> {
    let Some(plan) = observed.fabric.plan.as_ref().filter(|_| observed.fabric.programmed.is_some()) else {
        let of_before = before.keys().filter_map(|fault| match fault {
            Fault::GuaranteeWithdrawn(cluster) => Some(*cluster),
            _ => None,
        });
        return of_before.collect();
    };
    let violated = plan.findings().iter().filter_map(|finding| match finding {
        PlanFinding::GuaranteeViolated { cluster, .. } => cluster.parse().ok(),
        _ => None,
    });
    violated.collect()
}

/// Reader of a message; tenants see nothing of hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// Sees host names.
    Operator,
    /// Sees no host names.
    Tenant,
}

/// Effect of a host fault on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFault {
    /// State that is shown for the node.
    pub state: NodeState,
    pub since: Timestamp,
    pub reason: String,
}

/// Effect of host faults on a node; a silent agent takes precedence over a missing port.
pub fn node_fault(node: &NodeRow, faults: &Faults, audience: Audience) -> Option<NodeFault> {
    if node.leaving {
        return None;
    }
    let found = |fault: Fault, state| {
        let since = *faults.get(&fault)?;
        Some(NodeFault { state, since, reason: fault.about_node(audience) })
    };
    let silent = found(Fault::AgentSilent(node.host.clone()), NodeState::Unknown);
    let absent = || found(Fault::OffFabric(node.host.clone()), NodeState::Degraded);
    let closed = || found(Fault::PortClosed(node.host.clone()), NodeState::Degraded);
    silent.or_else(absent).or_else(closed)
}

/// Health of a cluster: `unknown` if the state of no node is known, `degraded` if anything is faulty, else `ok`.
pub fn cluster_health(cluster: &ClusterRow, faults: &Faults, audience: Audience) -> Health {
    let nodes = cluster.nodes.iter().filter(|node| !node.leaving);
    let of_nodes: Vec<(u32, NodeFault)> =
        nodes.clone().filter_map(|node| Some((node.number, node_fault(node, faults, audience)?))).collect();
    let of_network =
        [Fault::ManagerSilent, Fault::FabricStuck, Fault::GuaranteeWithdrawn(cluster.id)].into_iter();
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
    let state = if sinces.is_empty() {
        HealthState::Ok
    } else if unknown > 0 && unknown == nodes.count() {
        HealthState::Unknown
    } else {
        HealthState::Degraded
    };
    Health { state, since: sinces.into_iter().min(), reasons }
}

impl Fault {
    /// Its effect on a node, without the name of the node.
    fn about_node(&self, audience: Audience) -> String {
        match (self, audience) {
            (Self::AgentSilent(_), Audience::Tenant) => "its host does not respond".to_owned(),
            (Self::OffFabric(_), Audience::Tenant) => "its host is not on the network".to_owned(),
            (Self::PortClosed(_), Audience::Tenant) => "its network is closed".to_owned(),
            (fault, _) => fault.to_string(),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ManagerSilent => f.write_str(
                "the subnet manager does not respond; the network keeps working, and changes wait",
            ),
            Self::FabricStuck => {
                f.write_str("the devices do not match the plan; changes of the network wait")
            }
            Self::AgentSilent(host) => write!(f, "the agent of {host} does not respond"),
            Self::OffFabric(host) => write!(f, "{host} is not on the fabric"),
            Self::PortClosed(host) => {
                write!(f, "the port of {host} is closed, because it cannot be isolated from others")
            }
            Self::GuaranteeWithdrawn(_) => f.write_str(
                "the guarantee is withdrawn, because the network cannot carry it; it has best effort",
            ),
        }
    }
}

#[cfg(test)]
mod tests;
