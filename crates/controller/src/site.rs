//! What the loops and the requests share: the store, what is seen, and who is to be woken.

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

use crate::bell::Bell;
use crate::health::{AGENT_SILENCE_LIMIT, Faults, Heard};
use crate::lifecycle::{Sight, VmSight};
use crate::network::{Sighting, Wishes, Workshop, members};
use crate::recovery::Sidecar;
use crate::rest::Rates;
use crate::store::{ClusterKeys, ClusterRow, Happening, Identity, Sequences, Store, StoreError, TenantRef};
use crate::views::Views;

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
    pub views: Views,
    /// Which store this is.
    pub identity: Identity,
    /// The sequences of orders that this controller gives.
    pub sequences: Sequences,
    /// Where its newest revision is written a second time.
    pub sidecar: Sidecar,
    /// Where plans are made.
    pub workshop: Arc<Mutex<Option<Workshop>>>,
    /// Clusters may go on.
    pub changed: Notify,
    /// Counts what was asked for and seen: the fabric may have to change.
    pub woken: watch::Sender<u64>,
    /// Wakes those who wait for events.
    pub bell: Bell,
    /// Counts revoked tokens: what they have begun ends.
    pub revocations: watch::Sender<u64>,
    /// How fast tenants send requests, by their ids.
    pub rates: Rates<Uuid>,
    /// The keys of clusters, as they were read.
    pub keys: tokio::sync::Mutex<KeysOfClusters>,
    seen: Mutex<Seen>,
    faults: Mutex<Arc<Faults>>,
    orders: watch::Sender<Arc<AllOrders>>,
}

/// Keys by the ids of clusters.
pub type KeysOfClusters = HashMap<Uuid, Arc<ClusterKeys>>;

/// What every host is to run. `None` until it is known.
pub type AllOrders = Option<HashMap<Name, Arc<HostSpec>>>;

/// What is seen of hosts and the fabric.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// What agents told, by host.
    pub agents: HashMap<Name, AgentSight>,
    /// Why hosts cannot take their orders.
    pub refusals: HashMap<Name, String>,
    /// Set once an agent has refused orders because it had newer ones, or those of another site: the store is not the one that
    /// agents follow, so nothing is ordered any more.
    pub superseded: Option<String>,
    /// The fabric.
    pub fabric: FabricSight,
}

/// What an agent told.
#[derive(Clone, Debug)]
pub struct AgentSight {
    /// The orders it had acknowledged when it reported; the report says so.
    pub orders: Arc<HostSpec>,
    /// What it told.
    pub report: Arc<HostReport>,
    /// Whether the last question was answered.
    pub answers: bool,
    /// When it last answered anything.
    pub heard: Heard,
}

impl AgentSight {
    /// Whether it can be given something to do.
    pub fn is_up(&self) -> bool {
        self.answers && self.heard.at.elapsed() <= AGENT_SILENCE_LIMIT
    }
}

/// What is seen of the fabric.
#[derive(Clone, Debug, Default)]
pub struct FabricSight {
    /// How the manager stands.
    pub state: FabricState,
    /// When the manager last answered anything.
    pub heard: Option<Heard>,
    /// When the fabric was last made equal to a plan.
    pub settled: Option<Heard>,
    /// Counts sightings: what was programmed before another one does not count.
    pub epoch: u64,
    /// Nodes, cables, and what devices can hold.
    pub sighting: Option<Arc<Sighting>>,
    /// Cabled ports of adapters on it, by GUID.
    pub places: Arc<HashMap<Guid, Place>>,
    /// The plan that the fabric was last made equal to.
    pub plan: Option<Arc<FabricPlan>>,
    /// What has to stay as it was decided.
    pub decisions: Arc<Decisions>,
    /// What clusters wanted when the fabric was last made so in this epoch.
    pub programmed: Option<Arc<Wishes>>,
}

/// Where a host is on the fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its port.
    pub port_guid: Guid,
    /// The number of that port.
    pub port: PortNum,
    /// The switch it is cabled to.
    pub leaf: Guid,
}

impl Site {
    /// A site of which nothing is seen yet.
    pub fn new(
        store: Store,
        (identity, sequences): (Identity, Sequences),
        sidecar: Sidecar,
        decisions: Decisions,
        sm_control: PathBuf,
        views: Views,
    ) -> Self {
        let fabric = FabricSight {
            state: FabricState::ManagerSilent,
            heard: None,
            settled: None,
            epoch: 0,
            sighting: None,
            places: Arc::default(),
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
            workshop: Arc::default(),
            changed: Notify::new(),
            woken: watch::Sender::new(0),
            bell: Bell::default(),
            revocations: watch::Sender::new(0),
            rates: Rates::default(),
            keys: tokio::sync::Mutex::default(),
            faults: Mutex::default(),
            seen: Mutex::new(Seen {
                agents: HashMap::new(),
                refusals: HashMap::new(),
                superseded: None,
                fabric,
            }),
            orders: watch::Sender::new(Arc::new(None)),
        }
    }

    /// What is seen now.
    pub fn seen(&self) -> Seen {
        self.look(Clone::clone)
    }

    /// Looks at what is seen.
    pub fn look<T>(&self, look: impl FnOnce(&Seen) -> T) -> T {
        look(&self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes what is seen, and wakes those who wait for it.
    pub fn see<T>(&self, see: impl FnOnce(&mut Seen) -> T) -> T {
        let seen = self.see_quietly(see);
        self.wake();
        seen
    }

    /// Notes what is on its way to be seen.
    pub fn see_quietly<T>(&self, see: impl FnOnce(&mut Seen) -> T) -> T {
        see(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A token was revoked.
    pub fn revoked(&self) {
        self.revocations.send_modify(|count| *count += 1);
    }

    /// Something was asked for or seen.
    pub fn wake(&self) {
        self.changed.notify_one();
        self.woken.send_modify(|count| *count += 1);
    }

    /// Says what every host is to run.
    pub fn order(&self, orders: HashMap<Name, Arc<HostSpec>>) {
        self.orders.send_if_modified(|now| {
            let is_new = now.as_ref().as_ref() != Some(&orders);
            if is_new {
                *now = Arc::new(Some(orders));
            }
            is_new
        });
    }

    /// What hosts are to run, as it changes.
    pub fn orders(&self) -> watch::Receiver<Arc<AllOrders>> {
        self.orders.subscribe()
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
        self.bell.ring(tenant.map(|tenant| tenant.id));
    }

    /// Notes an event that concerns no cluster.
    pub async fn note(&self, kind: &'static str, text: String) -> Result<(), StoreError> {
        tracing::info!(kind, "{text}");
        let happening = Happening { at: self.store.now().wall, tenant: None, cluster: None, kind, text };
        self.store.event_note(&happening).await?;
        self.noted(None);
        Ok(())
    }
}

impl FabricSight {
    /// Where a host is, if the port that it is bound to is seen.
    pub fn place(&self, host: &NewHost) -> Option<&Place> {
        self.places.get(&host.port_guid?)
    }

    /// The LID of a port, as it was decided.
    pub fn lid(&self, port: Guid) -> Option<Lid> {
        self.decisions.end_ports.get(&port).map(|decision| decision.lid)
    }
}

impl Sight for Seen {
    fn vm(&self, host: &Name, id: Uuid) -> VmSight<'_> {
        let Some(agent) = self.agents.get(host) else { return VmSight::Unknown };
        match agent.report.vms.iter().find(|vm| vm.id == id) {
            Some(vm) => VmSight::Reported(vm),
            None if agent.orders.removed.contains(&id) => VmSight::Removed,
            None if agent.orders.vms.iter().any(|order| order.id == id) => VmSight::Unknown,
            None => VmSight::Unordered,
        }
    }

    fn refusal(&self, host: &Name) -> Option<&str> {
        self.refusals.get(host).map(String::as_str)
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
        let wished = cluster.wish.as_ref().map_or(0, |wish| wish.classes.len());
        (levels.len() == wished).then_some(levels)
    }
}
