//! What the loops and the requests share: the store, what is observed, and who is to be woken.

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
use crate::network::{DiscoveredFabric, FabricIntent, VerifiedPlanner, members};
use crate::recovery::Sidecar;
use crate::rest::Rates;
use crate::store::{
    ClusterKeys, ClusterRow, EventRecord, SpecSequences, Store, StoreError, StoreIdentity, TenantRef,
};
use crate::views::ViewService;

/// Everything there is.
#[derive(Debug)]
pub struct Site {
    /// What has to survive.
    pub store: Store,
    /// The control socket of the subnet manager.
    pub sm_control: PathBuf,
    /// Held by whoever reads, decides and writes, so that nobody decides on what is changing.
    pub writer: tokio::sync::Mutex<()>,
    /// The networks of clusters as tenants see them.
    pub views: ViewService,
    /// Which store this is.
    pub identity: StoreIdentity,
    /// The sequences of orders that this controller gives.
    pub sequences: SpecSequences,
    /// Where its newest revision is written a second time.
    pub sidecar: Sidecar,
    /// Where plans are made.
    pub planner: Arc<Mutex<Option<VerifiedPlanner>>>,
    /// Clusters may go on.
    pub changed: Notify,
    /// Counts what was asked for and seen: the fabric may have to change.
    pub woken: watch::Sender<u64>,
    /// Wakes those who wait for events.
    pub event_waiters: EventWaiters,
    /// Counts revoked tokens: what they have begun ends.
    pub revocations: watch::Sender<u64>,
    /// How fast tenants send requests, by their ids.
    pub rates: Rates<Uuid>,
    /// The keys of clusters, as they were read.
    pub keys: tokio::sync::Mutex<KeysOfClusters>,
    observed: Mutex<Observed>,
    faults: Mutex<Arc<Faults>>,
    specs: watch::Sender<Arc<AllHostSpecs>>,
}

/// Keys by the ids of clusters.
pub type KeysOfClusters = HashMap<Uuid, Arc<ClusterKeys>>;

/// What every host is to run. `None` until it is known.
pub type AllHostSpecs = Option<HashMap<Name, Arc<HostSpec>>>;

/// What is observed of hosts and the fabric.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// What agents told, by host.
    pub agents: HashMap<Name, ObservedAgent>,
    /// Why hosts cannot take their orders.
    pub spec_rejections: HashMap<Name, String>,
    /// Set once an agent has refused orders because it had newer ones, or those of another site: the store is not the one that
    /// agents follow, so nothing is ordered any more.
    pub superseded: Option<String>,
    /// The fabric.
    pub fabric: ObservedFabric,
}

/// What an agent told.
#[derive(Clone, Debug)]
pub struct ObservedAgent {
    /// The orders it had acknowledged when it reported; the report says so.
    pub spec: Arc<HostSpec>,
    /// What it told.
    pub report: Arc<HostReport>,
    /// Whether the last question was answered.
    pub answers: bool,
    /// When it last answered anything.
    pub heard: ClockReading,
}

impl ObservedAgent {
    /// Whether it can be given something to do.
    pub fn is_up(&self) -> bool {
        self.answers && self.heard.at.elapsed() <= AGENT_SILENCE_LIMIT
    }
}

/// What is observed of the fabric.
#[derive(Clone, Debug, Default)]
pub struct ObservedFabric {
    /// How the manager stands.
    pub state: FabricState,
    /// When the manager last answered anything.
    pub heard: Option<ClockReading>,
    /// When the fabric was last made equal to a plan.
    pub settled: Option<ClockReading>,
    /// Counts sightings: what was programmed before another one does not count.
    pub epoch: u64,
    /// Nodes, cables, and what devices can hold.
    pub discovered: Option<Arc<DiscoveredFabric>>,
    /// Cabled ports of adapters on it, by GUID.
    pub host_ports: Arc<HashMap<Guid, HostPort>>,
    /// The plan that the fabric was last made equal to.
    pub plan: Option<Arc<FabricPlan>>,
    /// What has to stay as it was decided.
    pub decisions: Arc<Decisions>,
    /// What clusters wanted when the fabric was last made so in this epoch.
    pub programmed: Option<Arc<FabricIntent>>,
}

/// Where a host is on the fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostPort {
    /// Its port.
    pub port_guid: Guid,
    /// The number of that port.
    pub port: PortNum,
    /// The switch it is cabled to.
    pub leaf: Guid,
}

impl Site {
    /// A site of which nothing is observed yet.
    pub fn new(
        store: Store,
        (identity, sequences): (StoreIdentity, SpecSequences),
        sidecar: Sidecar,
        decisions: Decisions,
        sm_control: PathBuf,
        views: ViewService,
    ) -> Self {
        let fabric = ObservedFabric {
            state: FabricState::ManagerSilent,
            heard: None,
            settled: None,
            epoch: 0,
            discovered: None,
            host_ports: Arc::default(),
            plan: None,
            decisions: Arc::new(decisions),
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
            planner: Arc::default(),
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

    /// What is observed now.
    pub fn observed(&self) -> Observed {
        self.with_observed(Clone::clone)
    }

    /// Looks at what is observed.
    pub fn with_observed<T>(&self, look: impl FnOnce(&Observed) -> T) -> T {
        look(&self.observed.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes what is observed, and wakes those who wait for it.
    pub fn observe<T>(&self, see: impl FnOnce(&mut Observed) -> T) -> T {
        let observed = self.observe_quietly(see);
        self.wake();
        observed
    }

    /// Notes what is on its way to be observed.
    pub fn observe_quietly<T>(&self, see: impl FnOnce(&mut Observed) -> T) -> T {
        see(&mut self.observed.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A token was revoked.
    pub fn revoked(&self) {
        self.revocations.send_modify(|count| *count += 1);
    }

    /// Something was asked for or observed.
    pub fn wake(&self) {
        self.changed.notify_one();
        self.woken.send_modify(|count| *count += 1);
    }

    /// Says what every host is to run.
    pub fn publish_specs(&self, specs: HashMap<Name, Arc<HostSpec>>) {
        self.specs.send_if_modified(|now| {
            let is_new = now.as_ref().as_ref() != Some(&specs);
            if is_new {
                *now = Arc::new(Some(specs));
            }
            is_new
        });
    }

    /// What hosts are to run, as it changes.
    pub fn specs(&self) -> watch::Receiver<Arc<AllHostSpecs>> {
        self.specs.subscribe()
    }

    /// Writes the revision of the store a second time, where a copy that is put back does not change it.
    pub async fn mirror(&self) {
        if let Err(error) = self.sidecar.mirror(&self.store).await {
            // What was changed is in the store; the next change tries again.
            tracing::error!("{error:#}");
        }
    }

    /// What is not well, with since when.
    pub fn faults(&self) -> Arc<Faults> {
        Arc::clone(&self.faults.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Says what is not well from now on; what has to survive is in the store.
    pub fn set_faults(&self, faults: Faults) {
        *self.faults.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(faults);
    }

    /// Wakes those who wait for events of a tenant, or of the site.
    pub fn noted(&self, tenant: Option<&TenantRef>) {
        self.event_waiters.notify(tenant.map(|tenant| tenant.id));
    }

    /// Notes an event that concerns no cluster.
    pub async fn note(&self, kind: &'static str, text: String) -> Result<(), StoreError> {
        tracing::info!(kind, "{text}");
        let event = EventRecord { at: self.store.now().wall, tenant: None, cluster: None, kind, text };
        self.store.event_note(&event).await?;
        self.noted(None);
        Ok(())
    }
}

impl ObservedFabric {
    /// Where a host is, if the port that it is bound to is observed.
    pub fn host_port(&self, host: &NewHost) -> Option<&HostPort> {
        self.host_ports.get(&host.port_guid?)
    }

    /// The LID of a port, as it was decided.
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
        // Else the plan is one of before the wish.
        let wanted = cluster.overlay.as_ref().map_or(0, |overlay| overlay.classes.len());
        (levels.len() == wanted).then_some(levels)
    }
}
