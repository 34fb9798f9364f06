//! State shared by the REST handlers and the control loops.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use controller_api::Name;
use controller_api::agent::HostSpec;
use fabric_model::intent::PartitionIntent;
use fabric_model::{Decisions, StatedHardware};
use tokio::sync::{Notify, watch};
use uuid::Uuid;

use crate::event_waiters::EventWaiters;
use crate::faults::Faults;
use crate::manager::ManagerSockets;
use crate::network::{self, FabricIntent, SiteFabric};
use crate::observed::{Observed, ObservedFabric};
use crate::planning::Planning;
use crate::rate::Rates;
use crate::recovery::Sidecar;
use crate::site_partitions;
use crate::store::{
    ClusterKeys, ClusterRow, EventRecord, SpecSequences, Store, StoreError, StoreIdentity, TenantRef,
};
use crate::views::ViewService;

/// State shared by the REST handlers and the control loops.
#[derive(Debug)]
pub struct Site {
    pub store: Store,
    pub managers: ManagerSockets,
    /// See [`ControllerSettings`](crate::ControllerSettings).
    pub best_effort_percent: u8,
    /// What the operator states about the hardware of the fabric.
    pub hardware: StatedHardware,
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

impl Site {
    /// A site of which nothing has been observed yet.
    pub fn new(
        store: Store,
        identity: StoreIdentity,
        sequences: SpecSequences,
        sidecar: Sidecar,
        decisions: Decisions,
        managers: ManagerSockets,
        views: ViewService,
    ) -> Self {
        let decisions = Arc::new(decisions);
        let fabric = ObservedFabric { decisions: Arc::clone(&decisions), ..ObservedFabric::default() };
        Self {
            store,
            identity,
            sequences,
            sidecar,
            managers,
            best_effort_percent: 0,
            hardware: StatedHardware::default(),
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
            observed: Mutex::new(Observed { fabric, ..Observed::default() }),
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

    /// The desired state of the fabric for a set of clusters.
    pub async fn fabric_intent(&self, clusters: &[ClusterRow]) -> Result<FabricIntent, StoreError> {
        let partitions = site_partitions::stored(&self.store).await?;
        self.fabric_intent_with(partitions, clusters).await
    }

    /// The same with other partitions of the site.
    pub async fn fabric_intent_with(
        &self,
        partitions: Vec<PartitionIntent>,
        clusters: &[ClusterRow],
    ) -> Result<FabricIntent, StoreError> {
        let hosts = self.store.host_list().await?;
        let discovered = self.with_observed(|observed| observed.fabric.discovered.clone());
        let is_manager =
            |port| discovered.as_ref().is_some_and(|discovered| discovered.intents.is_manager(port));
        let site = SiteFabric::new(partitions, &hosts, clusters, is_manager);
        Ok(FabricIntent { site, ..network::fabric_intent(clusters) })
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
