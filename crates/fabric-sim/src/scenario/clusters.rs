//! Clusters of a plan as endpoints on a fabric that holds it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use fabric_model::FabricPlan;
use fabric_model::decisions::ClusterDecision;
use fabric_model::intent::PortName;
use fabric_model::plan::AdapterPortPlan;
use fabric_model::tenancy::{Bandwidth, Class, LinkGrant, PairServiceLevel};
use ib_wire::{Guid, Lid, Membership, Pkey, ServiceLevel};
use thiserror::Error;

use crate::device::PortId;
use crate::fabric::Fabric;
use crate::traffic::Time;
use crate::vf_frames::FunctionId;

/// The clusters that take part in a scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterSet {
    /// In ascending order of their names.
    pub clusters: Vec<SimCluster>,
    /// LIDs of all adapter ports: what a hostile guest can address.
    pub addresses: Vec<Lid>,
}

/// A cluster that takes part in a scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimCluster {
    pub name: String,
    pub nodes: Vec<SimNode>,
    /// The P_Key of its partition, with full membership.
    pub pkey: Pkey,
    /// Service level of its packets, unless `pairs` has one for the two switches.
    pub sl: ServiceLevel,
    /// Service levels by pair of switches, as node GUIDs.
    pub pairs: BTreeMap<(Guid, Guid), ServiceLevel>,
    /// Guaranteed rate of each node.
    pub guarantee: Option<Bandwidth>,
    /// Upper bound on the latency of a packet that finds its lane empty on the whole path.
    pub latency_bound: Option<Time>,
    /// Its largest weight in a VL arbitration table, in units of 64 bytes.
    pub weight: u8,
}

/// A node of a cluster: a virtual function on an adapter port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimNode {
    pub function: FunctionId,
    pub lid: Lid,
    /// All P_Keys of its port.
    pub keys: Vec<Pkey>,
    /// Node GUID of the switch that its port is connected to.
    pub switch: Option<Guid>,
}

impl SimCluster {
    /// The service level of packets between two nodes, by their indices.
    pub(super) fn service_level(&self, from: usize, to: usize) -> ServiceLevel {
        let switches = self.nodes[from].switch.zip(self.nodes[to].switch);
        let pair = switches.and_then(|(a, b)| self.pairs.get(&PairServiceLevel::between(a, b)).copied());
        pair.unwrap_or(self.sl)
    }
}

/// Why clusters cannot be found on a fabric.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ClusterSetError {
    /// The fabric has no adapter port with this GUID, or the port has no LID.
    #[error("cluster {cluster}: the fabric has no adapter port {port} with a LID")]
    NoPort { cluster: String, port: Guid },
    /// The plan has no partition for the cluster, and its ports hold no P_Key.
    #[error("cluster {0}: neither the plan nor its ports have a P_Key for it")]
    NoKey(String),
}

impl ClusterSet {
    /// Locates clusters on a fabric that holds `plan`. `port_guids` has the adapter ports of the nodes of each
    /// cluster, by cluster name; a port may belong to several.
    pub fn of(
        fabric: &Fabric,
        plan: &FabricPlan,
        port_guids: &BTreeMap<String, Vec<Guid>>,
    ) -> Result<Self, ClusterSetError> {
        let all = || fabric.device_ids().flat_map(|device| fabric.ports_of(device));
        let by_guid: HashMap<Guid, PortId> =
            all().filter(|port| !fabric.is_switch(*port)).map(|port| (fabric.guid_of(port), port)).collect();
        let mut taken: HashMap<PortId, u8> = HashMap::new();
        let mut clusters = Vec::new();
        for (name, ports) in port_guids {
            let mut nodes = Vec::with_capacity(ports.len());
            for guid in ports {
                let found = by_guid.get(guid).and_then(|port| Some((*port, fabric.lid(*port)?)));
                let absent = || ClusterSetError::NoPort { cluster: name.clone(), port: *guid };
                let (port, lid) = found.ok_or_else(absent)?;
                let number = taken.entry(port).or_insert(0);
                *number = number.saturating_add(1);
                let keys = fabric.keys_of(port);
                let switch = plan.adapter_port(*guid).map(|port| port.peer.node);
                nodes.push(SimNode { function: FunctionId::new(port, *number), lid, keys, switch });
            }
            clusters.push(sim_cluster(plan, name, nodes)?);
        }
        let mut addresses: Vec<Lid> = by_guid.values().filter_map(|port| fabric.lid(*port)).collect();
        addresses.sort_unstable();
        Ok(Self { clusters, addresses })
    }
}

impl ClusterSet {
    /// The same clusters with all packets on service level 0, for a fabric that does not distinguish
    /// clusters.
    #[must_use]
    pub fn on_default_service_level(mut self) -> Self {
        for cluster in &mut self.clusters {
            cluster.sl = ServiceLevel::default();
            cluster.pairs.clear();
            cluster.weight = 1;
        }
        self
    }
}

/// A plan with the same LIDs, routes and partitions, but without lane sharing: every port keeps the factory
/// defaults for service levels and arbitration.
pub fn without_classes(plan: &FabricPlan) -> FabricPlan {
    let mut draft = plan.draft();
    let adapters: Vec<Guid> = plan.adapter_ports().map(|port| port.guid).collect();
    for port in adapters {
        draft.adapter_port(port).into_iter().for_each(|port| port.qos = None);
    }
    for index in 0..plan.shared_switches().len() {
        let ports = draft.switch(index).into_iter().flat_map(|switch| Arc::make_mut(&mut switch.ports));
        ports.for_each(|port| port.qos = None);
    }
    draft.finish()
}

fn sim_cluster(plan: &FabricPlan, name: &str, nodes: Vec<SimNode>) -> Result<SimCluster, ClusterSetError> {
    let decisions = plan.decisions();
    let decision = decisions.clusters.get(name);
    let own = decisions.partitions.get(name).map(|number| number.key(Membership::Full));
    let first = nodes.first().and_then(|node| node.keys.first().copied());
    let pkey = own.or(first).ok_or_else(|| ClusterSetError::NoKey(name.to_owned()))?;
    let guarantee = decision.and_then(|decision| match decision.class {
        Class::Guaranteed { bandwidth, .. } if bandwidth > Bandwidth::ZERO => Some(bandwidth),
        _ => None,
    });
    let pairs = decision.into_iter().flat_map(|decision| &decision.pairs);
    Ok(SimCluster {
        name: name.to_owned(),
        nodes,
        pkey,
        sl: decision.and_then(|decision| decision.service_level()).unwrap_or_default(),
        pairs: pairs.map(|pair| (pair.switches, pair.service_level)).collect(),
        guarantee,
        latency_bound: decision.map(|decision| Time::from_ns(decision.bound_ns)),
        weight: decision.and_then(|decision| largest_weight(plan, decision)).unwrap_or(1),
    })
}

/// The largest weight of a cluster's lanes in the arbitration tables of a plan.
fn largest_weight(plan: &FabricPlan, decision: &ClusterDecision) -> Option<u8> {
    let adapters = decision.ports.iter().filter_map(|port| plan.adapter_port(*port));
    let adapters: HashMap<PortName, &AdapterPortPlan> = adapters.map(|port| (port.name, port)).collect();
    let weight = |link: &LinkGrant| {
        let of_adapter = adapters.get(&link.port).map(|port| &port.qos);
        let of_switch = || Some(&plan.switch(link.port.node)?.port(link.port.port)?.qos);
        let low = &of_adapter.or_else(of_switch)?.as_ref()?.low;
        low.iter().filter(|entry| entry.lane == link.lane).map(|entry| entry.weight).max()
    };
    decision.links.iter().filter_map(weight).max()
}
