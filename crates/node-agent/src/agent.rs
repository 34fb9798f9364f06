//! The agent as a whole: orders come in, virtual machines follow.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use controller_api::Name;
use controller_api::agent::{ImageOrder, Orders, Unlisted, Version, VmOrder};
use thiserror::Error;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use crate::capacity::Allocation;
use crate::context::{AgentContext, HypervisorSurvey, RunningVms};
use crate::durable;
use crate::host_spec::{self, InvalidHostSpec, StoredSpec};
use crate::hypervisor::HypervisorError;
use crate::image::ImageCache;
use crate::link::SessionOpener;
use crate::reports::SpecStatus;
use crate::state_dir::QemuUser;
use crate::vm::{self, DesiredState};

/// How often libvirt is asked what runs.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// How long to wait for libvirt before asking again.
const HYPERVISOR_PAUSE: Duration = Duration::from_secs(1);

/// How long those who want a session wait for an agent that does not know yet what runs.
const SURVEY_TIMEOUT: Duration = Duration::from_secs(5);

/// How often resting disks are looked at.
const RETENTION_INTERVAL: Duration = Duration::from_secs(60);

/// How long virtual machines have to stop when the agent ends.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// Longest file of orders.
const SPEC_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// The agent as a whole.
#[derive(Debug)]
pub struct Agent {
    context: Arc<AgentContext>,
    hosts: Vec<Name>,
    fleet: Mutex<Fleet>,
}

#[derive(Debug, Default)]
struct Fleet {
    /// What hosts keep on disk. Differs from the disk only for hosts in `unsynced`.
    specs: BTreeMap<Name, StoredSpec>,
    /// Hosts whose last write failed: their disk may hold either.
    unsynced: BTreeSet<Name>,
    vms: BTreeMap<Uuid, vm::VmHandle>,
    tasks: BTreeMap<Uuid, tokio::task::JoinHandle<()>>,
    /// The agent ends: nothing is started any more.
    ending: bool,
}

/// Why orders are not taken.
#[derive(Debug, Error)]
pub enum HostSpecError {
    /// This agent does not serve the host.
    #[error("this agent does not serve host {0}")]
    NoSuchHost(Name),
    /// They make no sense.
    #[error(transparent)]
    Invalid(#[from] InvalidHostSpec),
    /// They come from another site.
    #[error("the orders are those of site {found}, but this agent belongs to site {own}")]
    OtherSite {
        /// The site of the agent.
        own: Uuid,
        /// The site of the orders.
        found: Uuid,
    },
    #[error("the orders are {found}, but the agent has already accepted {kept}")]
    Older { kept: Version, found: Version },
    /// Two orders with one version.
    #[error("the agent has accepted other orders as {0}")]
    Ambiguous(Version),
    /// A virtual machine is elsewhere.
    #[error("virtual machine {id} is on host {host}, and not gone from there yet")]
    Elsewhere { id: Uuid, host: Name },
    /// A virtual machine is another one than before.
    #[error("virtual machine {id} is ordered with another {what} than before; only its context may change")]
    Changed { id: Uuid, what: &'static str },
    #[error("the agent is ending")]
    Ending,
    /// They cannot be kept.
    #[error("orders cannot be kept in {}: {source}", path.display())]
    NotStored { path: PathBuf, source: std::io::Error },
}

/// Why an agent cannot start.
#[derive(Debug, Error)]
pub enum AgentStartError {
    /// Orders cannot be read.
    #[error("orders in {} cannot be read: {what}", path.display())]
    UnreadableSpec { path: PathBuf, what: String },
    /// There are orders for somebody else.
    #[error(
        "{} holds orders for a host that is not served: add --host for it, or remove the file, and its virtual \
         machines with it",
        .0.display()
    )]
    NotServed(PathBuf),
}

impl Agent {
    /// With the orders that were kept. Nothing is started before [`Agent::run`].
    pub fn new(context: Arc<AgentContext>, hosts: Vec<Name>) -> Result<Self, AgentStartError> {
        let mut fleet = Fleet::default();
        check_served(&context, &hosts)?;
        for host in &hosts {
            let path = context.state_dir.spec_path(host);
            let unreadable = |what: String| AgentStartError::UnreadableSpec { path: path.clone(), what };
            let bytes =
                durable::read(&path, SPEC_BYTES_MAX).map_err(|error| unreadable(error.to_string()))?;
            let orders = match bytes {
                // What serde says may quote a secret: its state_dir is enough.
                Some(bytes) => serde_json::from_slice(&bytes).map_err(|error| {
                    unreadable(format!("line {}, column {} makes no sense", error.line(), error.column()))
                })?,
                None => StoredSpec::default(),
            };
            fleet.specs.insert(host.clone(), orders);
        }
        Ok(Self { context, hosts, fleet: Mutex::new(fleet) })
    }

    /// The hosts it serves.
    pub fn hosts(&self) -> &[Name] {
        &self.hosts
    }

    /// What virtual machines have in common.
    pub fn context(&self) -> &AgentContext {
        &self.context
    }

    /// Accepts the orders of a host. When this returns, they are on disk and followed.
    ///
    /// Check, write and acceptance are one step: it runs to its end in a task of its own, whether or not the caller is still
    /// there, and nothing else reads or changes orders meanwhile.
    pub async fn apply_spec(self: &Arc<Self>, host: &Name, orders: Orders) -> Result<(), HostSpecError> {
        if !self.hosts.contains(host) {
            return Err(HostSpecError::NoSuchHost(host.clone()));
        }
        let orders = host_spec::check(orders)?;
        let (this, host) = (Arc::clone(self), host.clone());
        let accepted = tokio::spawn(async move { this.accept(&host, orders).await });
        // Nobody cancels it but the end of the process.
        accepted.await.unwrap_or(Err(HostSpecError::Ending))
    }

    async fn accept(self: &Arc<Self>, host: &Name, orders: Orders) -> Result<(), HostSpecError> {
        let mut fleet = self.fleet.lock().await;
        if fleet.ending {
            return Err(HostSpecError::Ending);
        }
        fleet.check_version(host, &orders)?;
        fleet.check(host, &orders)?;
        let is_known = fleet.specs.get(host).is_some_and(|kept| kept.matches(&orders));
        if is_known && !fleet.unsynced.contains(host) {
            return Ok(());
        }
        let kept = fleet.specs.get(host).cloned().unwrap_or_default().updated_by(orders);
        let path = self.context.state_dir.spec_path(host);
        let bytes = serde_json::to_vec(&kept).expect("orders came in as JSON");
        fleet.unsynced.insert(host.clone());
        let written = {
            let path = path.clone();
            tokio::task::spawn_blocking(move || durable::replace(&path, &bytes))
                .await
                .expect("writing does not panic")
        };
        written.map_err(|source| HostSpecError::NotStored { path, source })?;
        fleet.unsynced.remove(host);
        tokio::spawn(verify_images(Arc::clone(&self.context.images), kept.images.clone()));
        fleet.specs.insert(host.clone(), kept);
        // Before libvirt was asked what is there, orders are only kept.
        if self.context.is_surveyed() {
            self.reconcile(&mut fleet);
        }
        durable::kill_point("before-reply", &self.context.state_dir.spec_path(host));
        Ok(())
    }

    /// By which a virtual machine's guest is reached; `None` if there is no such virtual machine, or it does not run.
    pub async fn session_opener(&self, host: &Name, id: Uuid) -> Option<Option<SessionOpener>> {
        // Whoever asks an agent that has just been started waits until it knows what runs.
        let _ = timeout(SURVEY_TIMEOUT, self.context.ready()).await;
        let fleet = self.fleet.lock().await;
        let vm = fleet.vms.get(&id).filter(|vm| vm.host == *host)?;
        Some(vm.opener.borrow().clone())
    }

    /// Makes virtual machines follow orders, for ever.
    pub async fn run(self: &Arc<Self>, early_images: PathBuf) {
        let mut silent = false;
        let user = loop {
            match self.survey_domains().await {
                Ok(user) => break user,
                Err(error) if !silent => tracing::warn!("{error}"),
                Err(_) => {}
            }
            silent = true;
            sleep(HYPERVISOR_PAUSE).await;
        };
        self.context.accelerator_probe.probe_early(&early_images, user);
        self.poll().await
    }

    /// Ends; if asked for, stops virtual machines first. Their disks and orders stay.
    pub async fn shut_down(&self, stop_vms: bool) {
        let mut fleet = self.fleet.lock().await;
        fleet.ending = true;
        self.context.accelerator_probe.shut_down().await;
        if !stop_vms {
            return;
        }
        let (handles, tasks) = (std::mem::take(&mut fleet.vms), std::mem::take(&mut fleet.tasks));
        drop(fleet);
        let openers = handles.values().filter_map(|vm| vm.opener.borrow().clone());
        let quiescing: Vec<_> = openers.map(|opener| tokio::spawn(vm::quiesce(opener))).collect();
        for guest in quiescing {
            let _ = guest.await;
        }
        for vm in handles.values() {
            vm.desired.send_if_modified(|desired| {
                let stays = !matches!(desired, DesiredState::Removed);
                if stays {
                    *desired = DesiredState::Stop;
                }
                stays
            });
        }
        let stopped = async {
            for (_, task) in tasks {
                let _ = task.await;
            }
        };
        if timeout(STOP_TIMEOUT, stopped).await.is_err() {
            tracing::warn!("not every virtual machine has stopped in {} s", STOP_TIMEOUT.as_secs());
        }
    }

    /// Tells every virtual machine what is desired of it, and starts tasks for new ones. Those that failed take it as
    /// the word to try again.
    fn reconcile(self: &Arc<Self>, fleet: &mut Fleet) {
        let mut ordered: BTreeMap<Uuid, (Name, VmOrder)> = BTreeMap::new();
        for (host, orders) in &fleet.specs {
            ordered.extend(orders.all().map(|order| (order.id, (host.clone(), order.clone()))));
        }
        let desired = |fleet: &Fleet, order: VmOrder| match fleet.start_blocker(&order) {
            Some(why) => DesiredState::Blocked(why.into()),
            None => DesiredState::Run(Arc::new(order)),
        };
        for (id, vm) in &fleet.vms {
            let desired = match ordered.remove(id) {
                _ if matches!(*vm.desired.borrow(), DesiredState::Removed) => continue,
                _ if fleet.is_removed(*id) && !matches!(*vm.desired.borrow(), DesiredState::Blocked(_)) => {
                    DesiredState::Removed
                }
                // What runs is not stopped for what was found out later.
                Some((_, order)) if matches!(*vm.desired.borrow(), DesiredState::Run(_)) => {
                    DesiredState::Run(Arc::new(order))
                }
                Some((_, order)) => desired(fleet, order),
                // Nothing is removed because nobody speaks of it.
                None => DesiredState::Unmanaged,
            };
            vm.desired.send_replace(desired);
        }
        for (id, (host, order)) in ordered {
            let desired = desired(fleet, order);
            self.spawn_vm(fleet, host, id, desired);
        }
        // Last, so that a report that acknowledges orders tells of every virtual machine in them.
        for host in &self.hosts {
            self.context.reports.set_spec_status(host, fleet.spec_status(host));
        }
    }

    /// Starts the task of a virtual machine.
    fn spawn_vm(self: &Arc<Self>, fleet: &mut Fleet, host: Name, id: Uuid, desired: DesiredState) {
        let (handle, task) = vm::spawn(Arc::clone(&self.context), host, id, desired);
        let this = Arc::clone(self);
        let task = tokio::spawn(async move {
            let _ = task.await;
            this.vm_ended(id).await;
        });
        fleet.vms.insert(id, handle);
        fleet.tasks.insert(id, task);
    }

    /// The task of a virtual machine has ended: it is gone. If it was ordered again meanwhile, it is made anew.
    async fn vm_ended(self: &Arc<Self>, id: Uuid) {
        let mut fleet = self.fleet.lock().await;
        fleet.vms.remove(&id);
        fleet.tasks.remove(&id);
        if !fleet.ending {
            self.reconcile(&mut fleet);
        }
    }

    /// Asks libvirt what is there: what is ordered keeps what it has, what was removed is cleared away, and the rest is left
    /// alone and reported.
    async fn survey_domains(self: &Arc<Self>) -> Result<Option<QemuUser>, HypervisorError> {
        let AgentContext { hypervisor, state_dir, .. } = &*self.context;
        let user = hypervisor.qemu_user().await?;
        let mut fleet = self.fleet.lock().await;
        let domains = hypervisor.domains(state_dir.instance()).await?;
        // A survey that broke off may have begun with some.
        for metadata in
            domains.into_iter().filter(|metadata| !fleet.vms.contains_key(&metadata.id)).collect::<Vec<_>>()
        {
            if fleet.order_of(metadata.id).is_some_and(|(host, order)| metadata.matches(host, order)) {
                self.context
                    .adopt(metadata.id, Allocation { cores: metadata.cores, memory: metadata.memory });
            } else if fleet.order_of(metadata.id).is_none() && self.hosts.contains(&metadata.host) {
                // What it has stays its own until it is gone.
                self.context
                    .adopt(metadata.id, Allocation { cores: metadata.cores, memory: metadata.memory });
                let desired = fleet.desired_without_order(metadata.id);
                tracing::info!(vm = %metadata.id, ?desired, "runs, and is not ordered");
                self.spawn_vm(&mut fleet, metadata.host, metadata.id, desired);
            } else {
                // A probe, or not what is ordered.
                hypervisor.destroy(state_dir.instance(), metadata.id).await?;
            }
        }
        self.adopt_unlisted_files(&mut fleet);
        self.reconcile(&mut fleet);
        if let Some(Err(error)) = user.map(|user| state_dir.check_reachable(user)) {
            tracing::warn!("{error}");
        }
        // While the fleet is held: from here on, orders are followed at once.
        self.context.set_survey(HypervisorSurvey { user });
        Ok(user)
    }

    /// Files of virtual machines that are not ordered: a removal that was interrupted goes on, other disks are left alone.
    fn adopt_unlisted_files(self: &Arc<Self>, fleet: &mut Fleet) {
        let state_dir = &self.context.state_dir;
        let found = match state_dir.vm_ids() {
            Ok(found) => found,
            Err(error) => return tracing::warn!("{}", crate::error_chain(&error)),
        };
        for id in found {
            if fleet.vms.contains_key(&id) || fleet.order_of(id).is_some() {
                continue;
            }
            let files = state_dir.vm(id);
            if !files.overlay.exists() {
                // Nothing on it is anybody's.
                if let Err(error) = files.remove() {
                    tracing::warn!("what is left of {id} cannot be removed: {}", crate::error_chain(&error));
                }
                continue;
            }
            // Whose it was is not known any more.
            let host = fleet.host_of_removed(id).or(self.hosts.first()).cloned();
            let Some(host) = host else { continue };
            let desired = fleet.desired_without_order(id);
            self.spawn_vm(fleet, host, id, desired);
        }
    }

    async fn poll(&self) {
        let AgentContext { hypervisor, state_dir, .. } = &*self.context;
        let mut silent = false;
        let mut aged_at = Instant::now();
        loop {
            if aged_at.elapsed() >= RETENTION_INTERVAL {
                self.context.age_retained_disks(aged_at.elapsed()).await;
                aged_at = Instant::now();
            }
            let taken = Instant::now();
            match hypervisor.running(state_dir.instance()).await {
                Ok(running) => {
                    if silent {
                        tracing::info!("libvirt answers again");
                    }
                    silent = false;
                    self.context.set_running_vms(RunningVms { taken, running: Arc::new(running) });
                    sleep(POLL_INTERVAL).await;
                }
                Err(error) => {
                    if !silent {
                        tracing::warn!("{error}");
                    }
                    silent = true;
                    sleep(HYPERVISOR_PAUSE).await;
                }
            }
        }
    }
}

/// Reads images before a virtual machine waits for them; what is wrong with them is told when one does.
async fn verify_images(images: Arc<Mutex<ImageCache>>, orders: Vec<ImageOrder>) {
    for order in orders {
        let mut images = Arc::clone(&images).lock_owned().await;
        let looked = tokio::task::spawn_blocking(move || images.verify(&order).map(drop));
        if let Ok(Err(error)) = looked.await {
            tracing::warn!("an image that may be asked for: {error}");
        }
    }
}

impl Fleet {
    fn order_of(&self, id: Uuid) -> Option<(&Name, &VmOrder)> {
        self.specs.iter().find_map(|(host, orders)| {
            let order = orders.all().find(|order| order.id == id)?;
            Some((host, order))
        })
    }

    fn host_of_removed(&self, id: Uuid) -> Option<&Name> {
        self.specs.iter().find(|(_, orders)| orders.removed.contains(&id)).map(|(host, _)| host)
    }

    fn is_removed(&self, id: Uuid) -> bool {
        self.host_of_removed(id).is_some()
    }

    /// What is desired of a virtual machine that is there and not ordered.
    fn desired_without_order(&self, id: Uuid) -> DesiredState {
        if self.is_removed(id) { DesiredState::Removed } else { DesiredState::Unmanaged }
    }

    /// Why a virtual machine must not be started, whatever is ordered.
    fn start_blocker(&self, order: &VmOrder) -> Option<String> {
        if self.is_removed(order.id) {
            return Some("it was removed by earlier orders, and is not started again".to_owned());
        }
        let is_listed = self.specs.values().any(|kept| kept.vms.iter().any(|it| it.id == order.id));
        if !is_listed {
            return None;
        }
        // Nodes of one cluster share its numbers, and its key.
        let foreign = self
            .specs
            .values()
            .flat_map(|kept| &kept.unlisted)
            .filter(|other| other.context.cluster_key.public != order.context.cluster_key.public);
        foreign.into_iter().find_map(|other| {
            let number = order
                .adapter
                .partitions()
                .find(|it| other.adapter.partitions().any(|theirs| theirs == *it))?;
            let (id, label) = (other.id, &other.label);
            Some(format!(
                "its partition {number} is held by virtual machine {id} ({label}), which no orders list"
            ))
        })
    }

    /// What a report of a host says besides its virtual machines.
    fn spec_status(&self, host: &Name) -> SpecStatus {
        let Some(kept) = self.specs.get(host) else { return SpecStatus::default() };
        let known = kept.unlisted.iter().map(|order| (order.id, host_spec::unlisted_vm(order)));
        let unknown = self.vms.iter().filter(|(id, vm)| vm.host == *host && self.order_of(**id).is_none());
        let unknown =
            unknown.filter(|(id, _)| !self.is_removed(**id)).map(|(id, _)| (*id, Unlisted::default()));
        SpecStatus { acknowledged: kept.version, unlisted: known.chain(unknown).collect() }
    }

    /// Whether orders are newer than what the host has, or the same, and of the same site as all of the agent's.
    fn check_version(&self, host: &Name, orders: &Orders) -> Result<(), HostSpecError> {
        let found = orders.version;
        for (of, kept) in &self.specs {
            let Some(kept) = kept.version else { continue };
            if kept.site != found.site {
                return Err(HostSpecError::OtherSite { own: kept.site, found: found.site });
            }
            let is_older = if of == host { found.age() < kept.age() } else { found.epoch < kept.epoch };
            if is_older {
                return Err(HostSpecError::Older { kept, found });
            }
        }
        match self.specs.get(host) {
            Some(kept) if kept.version == Some(found) && !kept.matches(orders) => {
                Err(HostSpecError::Ambiguous(found))
            }
            _ => Ok(()),
        }
    }

    /// Whether orders for a host fit to what there is.
    fn check(&self, host: &Name, orders: &Orders) -> Result<(), HostSpecError> {
        for order in &orders.vms {
            let id = order.id;
            let elsewhere = self.vms.get(&id).map(|vm| &vm.host).or(self.order_of(id).map(|(host, _)| host));
            if let Some(elsewhere) = elsewhere.filter(|elsewhere| *elsewhere != host) {
                return Err(HostSpecError::Elsewhere { id, host: elsewhere.clone() });
            }
            if let Some((_, before)) = self.order_of(id)
                && let Some(what) = host_spec::immutable_change(before, order)
            {
                return Err(HostSpecError::Changed { id, what });
            }
        }
        Ok(())
    }
}

/// Orders for hosts that are not served would make their virtual machines look like nobody's.
fn check_served(context: &AgentContext, hosts: &[Name]) -> Result<(), AgentStartError> {
    let any: Name = "any".parse().expect("a name");
    let path = context.state_dir.spec_path(&any);
    let directory = path.parent().expect("a file is in a directory").to_owned();
    let unreadable = |error: std::io::Error| AgentStartError::UnreadableSpec {
        path: directory.clone(),
        what: error.to_string(),
    };
    for entry in std::fs::read_dir(&directory).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        let host =
            path.file_name().and_then(|name| name.to_str()?.strip_suffix(".json")?.parse::<Name>().ok());
        let Some(host) = host.filter(|host| !hosts.contains(host)) else { continue };
        let bytes = durable::read(&path, SPEC_BYTES_MAX).map_err(unreadable)?.unwrap_or_default();
        let empty =
            serde_json::from_slice::<StoredSpec>(&bytes).is_ok_and(|kept| kept.all().next().is_none());
        if !empty {
            tracing::debug!("orders for {host}");
            return Err(AgentStartError::NotServed(path));
        }
    }
    Ok(())
}
