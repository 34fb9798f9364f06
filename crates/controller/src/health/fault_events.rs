//! Events for the beginning and the end of faults: one each, for operators and for the tenants concerned.

use controller_api::Name;
use controller_api::cluster::Phase;
use jiff::Timestamp;

use crate::faults::Fault;
use crate::store::{ClusterRow, EventRecord};

/// Most host names in one event; the rest are counted.
const NAMED_MAX: usize = 4;

/// Beginning or end of a fault, for which an event is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultChange {
    Begins,
    Ends,
}

/// Events for faults that change together. Hosts with the same fault share one event, and so do nodes of one cluster.
pub fn fault_events(
    faults: &[&Fault],
    change: FaultChange,
    clusters: &[ClusterRow],
    at: Timestamp,
) -> Vec<EventRecord> {
    let mut events = Vec::new();
    let mut note = |cluster: Option<&ClusterRow>, is_whole_tenant: bool, kind: &'static str, text: String| {
        let tenant = cluster.map(|cluster| cluster.tenant.clone());
        let name = cluster.filter(|_| !is_whole_tenant).map(|cluster| cluster.name.clone());
        events.push(EventRecord { at, tenant, cluster: name, kind, text });
    };
    for fault in [Fault::ManagerSilent, Fault::FabricStuck].iter().filter(|fault| faults.contains(fault)) {
        let (of_site, of_tenant) = network_kinds(fault, change);
        let text = match change {
            FaultChange::Begins => fault.to_string(),
            FaultChange::Ends if *fault == Fault::ManagerSilent => {
                "the subnet manager responds again".to_owned()
            }
            FaultChange::Ends => "the devices match the plan again".to_owned(),
        };
        note(None, false, of_site, text.clone());
        let mut first_of_tenant: Vec<&ClusterRow> = Vec::new();
        for cluster in clusters {
            if first_of_tenant.iter().all(|known| known.tenant != cluster.tenant) {
                first_of_tenant.push(cluster);
            }
        }
        first_of_tenant.into_iter().for_each(|cluster| note(Some(cluster), true, of_tenant, text.clone()));
    }
    for cluster in clusters.iter().filter(|it| faults.contains(&&Fault::GuaranteeWithdrawn(it.id))) {
        let (kind, text) = match change {
            FaultChange::Begins => {
                ("cluster.guarantee-withdrawn", Fault::GuaranteeWithdrawn(cluster.id).to_string())
            }
            FaultChange::Ends => {
                ("cluster.guarantee-restored", "the network carries its guarantee again".to_owned())
            }
        };
        note(None, false, kind, format!("cluster {} of {}: {text}", cluster.name, cluster.tenant.name));
        note(Some(cluster), false, kind, text);
    }
    for kind in [HostFault::AgentSilent, HostFault::OffFabric, HostFault::PortClosed] {
        let hosts: Vec<&Name> = faults.iter().filter_map(|fault| kind.host(fault)).collect();
        if hosts.is_empty() {
            continue;
        }
        let (of_site, of_cluster) = kind.kinds(change);
        note(None, false, of_site, kind.about_hosts(&hosts, change));
        for cluster in clusters.iter().filter(|cluster| cluster.phase != Phase::Failed) {
            let concerned = cluster.nodes.iter().filter(|node| !node.leaving && hosts.contains(&&node.host));
            let numbers: Vec<u32> = concerned.map(|node| node.number).collect();
            if !numbers.is_empty() {
                note(Some(cluster), false, of_cluster, kind.about_nodes(&numbers, change));
            }
        }
    }
    events
}

fn network_kinds(fault: &Fault, change: FaultChange) -> (&'static str, &'static str) {
    match (fault, change) {
        (Fault::ManagerSilent, FaultChange::Begins) => ("fabric.manager-silent", "network.unmanaged"),
        (Fault::ManagerSilent, FaultChange::Ends) => ("fabric.manager-answers", "network.managed"),
        (_, FaultChange::Begins) => ("fabric.stuck", "network.stuck"),
        (_, FaultChange::Ends) => ("fabric.unstuck", "network.unstuck"),
    }
}

/// Kind of a host fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HostFault {
    AgentSilent,
    OffFabric,
    PortClosed,
}

impl HostFault {
    fn host(self, fault: &Fault) -> Option<&Name> {
        match (self, fault) {
            (Self::AgentSilent, Fault::AgentSilent(host))
            | (Self::OffFabric, Fault::OffFabric(host))
            | (Self::PortClosed, Fault::PortClosed(host)) => Some(host),
            _ => None,
        }
    }

    /// Event kinds for operators and for tenants.
    fn kinds(self, change: FaultChange) -> (&'static str, &'static str) {
        match (self, change) {
            (Self::AgentSilent, FaultChange::Begins) => ("host.agent-silent", "cluster.nodes-unknown"),
            (Self::AgentSilent, FaultChange::Ends) => ("host.agent-answers", "cluster.nodes-known"),
            (Self::OffFabric, FaultChange::Begins) => ("host.off-fabric", "cluster.nodes-cut-off"),
            (Self::OffFabric, FaultChange::Ends) => ("host.on-fabric", "cluster.nodes-connected"),
            (Self::PortClosed, FaultChange::Begins) => ("host.port-closed", "cluster.nodes-closed"),
            (Self::PortClosed, FaultChange::Ends) => ("host.port-open", "cluster.nodes-open"),
        }
    }

    fn about_hosts(self, hosts: &[&Name], change: FaultChange) -> String {
        if let ([host], FaultChange::Begins) = (hosts, change) {
            let host = (*host).clone();
            return match self {
                Self::AgentSilent => Fault::AgentSilent(host).to_string(),
                Self::OffFabric => Fault::OffFabric(host).to_string(),
                Self::PortClosed => Fault::PortClosed(host).to_string(),
            };
        }
        let named: Vec<&str> = hosts.iter().take(NAMED_MAX).map(|host| host.as_str()).collect();
        let more = hosts.len().saturating_sub(NAMED_MAX);
        let named = named.join(", ") + &if more > 0 { format!(" and {more} more") } else { String::new() };
        match (self, change) {
            (Self::AgentSilent, FaultChange::Begins) => {
                format!("the agents of these hosts do not respond: {named}")
            }
            (Self::AgentSilent, FaultChange::Ends) => format!("agents respond again: {named}"),
            (Self::OffFabric, FaultChange::Begins) => format!("these hosts are not on the fabric: {named}"),
            (Self::OffFabric, FaultChange::Ends) => format!("back on the fabric: {named}"),
            (Self::PortClosed, FaultChange::Begins) => {
                format!(
                    "the ports of these hosts are closed, because they cannot be isolated from others: {named}"
                )
            }
            (Self::PortClosed, FaultChange::Ends) => format!("ports are open again: {named}"),
        }
    }

    /// Text for tenants, without host names.
    fn about_nodes(self, numbers: &[u32], change: FaultChange) -> String {
        let list = numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        if self == Self::PortClosed {
            let nodes = if numbers.len() == 1 { "node" } else { "nodes" };
            return match change {
                FaultChange::Begins => format!("the network of {nodes} {list} is closed"),
                FaultChange::Ends => format!("the network of {nodes} {list} is open again"),
            };
        }
        let (nodes, host) = match numbers {
            [_] => (format!("node {list}"), "its host"),
            _ => (format!("nodes {list}"), "their hosts"),
        };
        let is_one = numbers.len() == 1;
        let what = match (self, change) {
            (Self::AgentSilent, FaultChange::Begins) => {
                if is_one {
                    "does not respond"
                } else {
                    "do not respond"
                }
            }
            (Self::AgentSilent, FaultChange::Ends) => {
                if is_one {
                    "responds again"
                } else {
                    "respond again"
                }
            }
            (Self::OffFabric | Self::PortClosed, FaultChange::Begins) => {
                if is_one {
                    "is not on the network"
                } else {
                    "are not on the network"
                }
            }
            (Self::OffFabric | Self::PortClosed, FaultChange::Ends) => {
                if is_one {
                    "is on the network again"
                } else {
                    "are on the network again"
                }
            }
        };
        format!("{nodes}: {host} {what}")
    }
}
