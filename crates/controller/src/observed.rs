//! Observed state of hosts and fabric.

use std::collections::HashMap;
use std::sync::Arc;

use controller_api::Name;
use controller_api::agent::{HostReport, HostSpec};
use controller_api::fabric::FabricState;
use controller_api::host::NewHost;
use fabric_model::intent::Role;
use fabric_model::{Decisions, FabricPlan};
use ib_wire::{Guid, Lid, PartitionNumber, PortNum, ServiceLevel};
use uuid::Uuid;

use crate::clock::ClockReading;
use crate::faults::AGENT_SILENCE_LIMIT;
use crate::lifecycle::{Observations, VmObservation};
use crate::network::{DiscoveredFabric, FabricIntent, members};
use crate::store::ClusterRow;

/// Observed state of hosts and fabric. Lost with the process and queried again.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// Latest report of each agent, by host.
    pub agents: HashMap<Name, ObservedAgent>,
    /// Why hosts reject their specs.
    pub spec_rejections: HashMap<Name, String>,
    /// Set once an agent has rejected a spec because it has a newer one or one of another site: agents do not follow this
    /// store, so no spec is sent any more.
    pub superseded: Option<String>,
    pub fabric: ObservedFabric,
}

/// Latest report of an agent.
#[derive(Clone, Debug)]
pub struct ObservedAgent {
    /// The spec that the report acknowledges.
    pub spec: Arc<HostSpec>,
    pub report: Arc<HostReport>,
    /// Whether the last request was answered.
    pub answers: bool,
    /// Time of the last answer.
    pub heard: ClockReading,
}

impl ObservedAgent {
    /// Whether the host can be given virtual machines.
    pub fn is_up(&self) -> bool {
        self.answers && self.heard.at.elapsed() <= AGENT_SILENCE_LIMIT
    }
}

/// Observed state of the fabric.
#[derive(Clone, Debug, Default)]
pub struct ObservedFabric {
    pub state: FabricState,
    /// Last answer of the subnet manager.
    pub heard: Option<ClockReading>,
    /// Last time at which the devices matched a plan.
    pub settled: Option<ClockReading>,
    /// Counts discoveries and losses of the subnet manager; a plan that was sent in an earlier epoch does not count as
    /// programmed.
    pub epoch: u64,
    pub discovered: Option<Arc<DiscoveredFabric>>,
    /// Cabled ports of adapters, by GUID.
    pub host_ports: Arc<HashMap<Guid, HostAttachment>>,
    /// Entries that devices did not take, as sentences for operators.
    pub lacks: Arc<Vec<String>>,
    /// The plan that was last programmed.
    pub plan: Option<Arc<FabricPlan>>,
    /// Decisions that later plans must keep.
    pub decisions: Arc<Decisions>,
    /// The intent that was last programmed in this epoch.
    pub programmed: Option<Arc<FabricIntent>>,
}

/// Port of a host on the fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostAttachment {
    pub port_guid: Guid,
    pub port: PortNum,
    /// GUID of the switch it is cabled to.
    pub leaf: Guid,
}

impl ObservedFabric {
    /// Port of a host, if the port it is bound to is on the fabric.
    pub fn host_port(&self, host: &NewHost) -> Option<&HostAttachment> {
        self.host_ports.get(&host.port_guid?)
    }

    /// LID assigned to a port.
    pub fn lid(&self, port: Guid) -> Option<Lid> {
        self.decisions.end_ports.get(&port).map(|decision| decision.lid)
    }
}

impl Observations for Observed {
    fn vm(&self, host: &Name, id: Uuid) -> VmObservation<'_> {
        let Some(agent) = self.agents.get(host) else { return VmObservation::Unknown };
        match agent.report.vms.iter().find(|vm| vm.id == id) {
            Some(vm) => VmObservation::Reported(vm),
            None if agent.spec.removed.contains(&id) => VmObservation::Removed,
            None if agent.spec.vms.iter().any(|order| order.id == id) => VmObservation::Unknown,
            None => VmObservation::NotInSpec,
        }
    }

    fn spec_rejection(&self, host: &Name) -> Option<&str> {
        self.spec_rejections.get(host).map(String::as_str)
    }

    fn is_member(&self, partition: PartitionNumber, port: Guid) -> Option<bool> {
        let programmed = self.fabric.programmed.as_ref()?;
        let is_closed = self.is_closed(port)?;
        Some(programmed.members.contains_key(&(partition, port)) && !is_closed)
    }

    fn is_closed(&self, port: Guid) -> Option<bool> {
        self.fabric.programmed.as_ref()?;
        let plan = self.fabric.plan.as_ref()?;
        Some(self.fabric.host_ports.contains_key(&port) && plan.adapter_port(port).is_none())
    }

    fn carries(&self, cluster: &ClusterRow) -> Option<bool> {
        let programmed = self.fabric.programmed.as_ref()?;
        let is_carried = |((partition, port), role): (&(PartitionNumber, Guid), &Role)| {
            programmed.members.get(&(*partition, *port)) == Some(role) && self.is_closed(*port) == Some(false)
        };
        Some(members(cluster).iter().all(is_carried))
    }

    fn class_levels(&self, cluster: &ClusterRow) -> Option<Vec<ServiceLevel>> {
        let (decisions, id) = (self.fabric.plan.as_ref()?.decisions(), cluster.id.to_string());
        let Some(divided) = decisions.classes.get(&id) else { return Some(Vec::new()) };
        let own = decisions.clusters.get(&id)?.service_level()?;
        let levels: Vec<_> = std::iter::once(own).chain(divided.service_levels.iter().copied()).collect();
        // Otherwise the plan predates the overlay.
        let wanted = cluster.overlay.as_ref().map_or(0, |overlay| overlay.classes.len());
        (levels.len() == wanted).then_some(levels)
    }
}
