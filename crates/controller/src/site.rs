//! State shared by the REST handlers and the control loops.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use controller_api::Name;
use controller_api::agent::{HostReport, HostSpec};
use controller_api::fabric::FabricState;
use controller_api::host::NewHost;
use fabric_model::{Decisions, FabricPlan};
use ib_wire::{Guid, Lid, PartitionNumber, PortNum, ServiceLevel};
use tokio::sync::{Notify, watch};
use uuid::Uuid;

use crate::event_waiters::EventWaiters;
use crate::health::{AGENT_SILENCE_LIMIT, ClockReading, Faults};
use crate::lifecycle::{Observations, VmObservation};
use crate::network::{DiscoveredFabric, FabricIntent, members};
use crate::planning::Planning;
use crate::recovery::Sidecar;
use crate::rest::Rates;
use crate::store::{
    ClusterKeys, ClusterRow, EventRecord, SpecSequences, Store, StoreError, StoreIdentity, TenantRef,
};
use crate::views::ViewService;

/// State shared by the REST handlers and the control loops.
#[derive(Debug)]
pub struct Site {
    pub store: Store,
    /// Control socket of the subnet manager.
    pub sm_control: PathBuf,
    /// Held while reading, deciding and writing, so that no decision is based on rows that change.
    pub writer: tokio::sync::Mutex<()>,
    pub views: ViewService,
    pub identity: StoreIdentity,
    /// Sequences of the specs that this controller issues.
    pub sequences: SpecSequences,
    pub sidecar: Sidecar,
    pub planning: Arc<Planning>,
    /// Wakes [`crate::reconcile`].
    pub changed: Notify,
    /// Counts requests and observations; the other control loops wait for it to change.
    pub woken: watch::Sender<u64>,
    pub event_waiters: EventWaiters,
    /// Counts revoked tokens; streams re-check their lease when it changes.
    pub revocations: watch::Sender<u64>,
    /// Request rates by tenant id.
    pub rates: Rates<Uuid>,
    /// Cache of the keys of clusters.
    pub keys: tokio::sync::Mutex<KeysOfClusters>,
    observed: Mutex<Observed>,
    faults: Mutex<Arc<Faults>>,
    specs: watch::Sender<Arc<AllHostSpecs>>,
}

/// Keys by cluster id.
pub type KeysOfClusters = HashMap<Uuid, Arc<ClusterKeys>>;

/// Specs by host name; `None` until the first pass.
pub type AllHostSpecs = Option<HashMap<Name, Arc<HostSpec>>>;

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

impl Site {
    /// A site of which nothing has been observed yet.
    pub fn new(
        store: Store,
        (identity, sequences): (StoreIdentity, SpecSequences),
        sidecar: Sidecar,
        decisions: Decisions,
        sm_control: PathBuf,
        views: ViewService,
    ) -> Self {
        let decisions = Arc::new(decisions);
        let fabric = ObservedFabric {
            state: FabricState::ManagerSilent,
            heard: None,
            settled: None,
            epoch: 0,
            discovered: None,
            host_ports: Arc::default(),
            plan: None,
            decisions: Arc::clone(&decisions),
            programmed: None,
        };
        Self {
            store,
            identity,
            sequences,
            sidecar,
            sm_control,
            views,
            writer: tokio::sync::Mutex::new(()),
            planning: Arc::new(Planning::new(Arc::clone(&decisions))),
            changed: Notify::new(),
            woken: watch::Sender::new(0),
            event_waiters: EventWaiters::default(),
            revocations: watch::Sender::new(0),
            rates: Rates::default(),
            keys: tokio::sync::Mutex::default(),
            faults: Mutex::default(),
            observed: Mutex::new(Observed {
                agents: HashMap::new(),
                spec_rejections: HashMap::new(),
                superseded: None,
                fabric,
            }),
            specs: watch::Sender::new(Arc::new(None)),
        }
    }

    /// A copy of the observed state.
    pub fn observed(&self) -> Observed {
        self.with_observed(Clone::clone)
    }

    /// Reads the observed state under its lock.
    pub fn with_observed<T>(&self, look: impl FnOnce(&Observed) -> T) -> T {
        look(&self.observed.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes the observed state, and wakes the control loops.
    pub fn observe<T>(&self, see: impl FnOnce(&mut Observed) -> T) -> T {
        let observed = self.observe_quietly(see);
        self.wake();
        observed
    }

    /// Changes the observed state without waking anybody.
    pub fn observe_quietly<T>(&self, see: impl FnOnce(&mut Observed) -> T) -> T {
        see(&mut self.observed.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes all streams re-check their tokens.
    pub fn revoked(&self) {
        self.revocations.send_modify(|count| *count += 1);
    }

    /// Wakes the control loops after a request or an observation.
    pub fn wake(&self) {
        self.changed.notify_one();
        self.woken.send_modify(|count| *count += 1);
    }

    /// Publishes the specs of all hosts; wakes the agents' tasks if any changed.
    pub fn publish_specs(&self, specs: HashMap<Name, Arc<HostSpec>>) {
        self.specs.send_if_modified(|now| {
            let is_new = now.as_ref().as_ref() != Some(&specs);
            if is_new {
                *now = Arc::new(Some(specs));
            }
            is_new
        });
    }

    /// The specs of all hosts, as they change.
    pub fn specs(&self) -> watch::Receiver<Arc<AllHostSpecs>> {
        self.specs.subscribe()
    }

    /// Mirrors the revision of the store to the sidecar. An error is logged: the change itself is in the store, and the
    /// next one tries again.
    pub async fn mirror(&self) {
        if let Err(error) = self.sidecar.mirror(&self.store).await {
            // The change is in the store; the next change tries again.
            tracing::error!("{error:#}");
        }
    }

    /// The current faults.
    pub fn faults(&self) -> Arc<Faults> {
        Arc::clone(&self.faults.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the current faults; the store has them already.
    pub fn set_faults(&self, faults: Faults) {
        *self.faults.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(faults);
    }

    /// Wakes event queries of a tenant, or of operators only.
    pub fn noted(&self, tenant: Option<&TenantRef>) {
        self.event_waiters.notify(tenant.map(|tenant| tenant.id));
    }

    /// Records an event of the site.
    pub async fn note(&self, kind: &'static str, text: String) -> Result<(), StoreError> {
        tracing::info!(kind, "{text}");
        let event = EventRecord { at: self.store.now().wall, tenant: None, cluster: None, kind, text };
        self.store.event_note(&event).await?;
        self.noted(None);
        Ok(())
    }
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
        Some(self.fabric.programmed.as_ref()?.members.contains_key(&(partition, port)))
    }

    fn carries(&self, cluster: &ClusterRow) -> Option<bool> {
        let programmed = self.fabric.programmed.as_ref()?;
        Some(members(cluster).iter().all(|(member, role)| programmed.members.get(member) == Some(role)))
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
