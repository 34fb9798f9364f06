//! The agent: accepts host specs and reconciles the virtual machines with them.
//!
//! A host spec is on disk before it is acknowledged. A virtual machine is removed only if a host spec lists it as removed; one
//! that is in no list keeps running and is reported as unlisted. A removed virtual machine is never started again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use controller_api::Name;
use controller_api::agent::{HostSpec, ImageSpec, SpecVersion, UnlistedVmDetails, VmSpec};
use thiserror::Error;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use crate::capacity::Allocation;
use crate::context::{AgentContext, HypervisorSurvey, RunningVms};
use crate::host_spec::{self, InvalidHostSpec, StoredSpec};
use crate::hypervisor::HypervisorError;
use crate::image::ImageCache;
use crate::link::SessionOpener;
use crate::reports::SpecStatus;
use crate::state_dir::QemuUser;
use crate::vm::{self, DesiredState};

/// Interval at which libvirt is asked for the running domains.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Pause before a failed call to libvirt is retried.
const HYPERVISOR_PAUSE: Duration = Duration::from_secs(1);

/// How long a request for a session waits for the survey of an agent that has just started.
const SURVEY_TIMEOUT: Duration = Duration::from_secs(5);

/// Interval at which the age of retained disks is updated.
const RETENTION_INTERVAL: Duration = Duration::from_secs(60);

/// How long the agent waits for virtual machines to stop when it exits.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// Most bytes of a stored host spec.
const SPEC_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// The agent. Call [`Agent::new`], then [`Agent::run`]; [`Agent::apply_spec`] and [`Agent::session_opener`] may be called at any time
/// in between, [`Agent::shut_down`] once at the end.
#[derive(Debug)]
pub struct Agent {
    context: Arc<AgentContext>,
    hosts: Vec<Name>,
    fleet: Mutex<Fleet>,
}

#[derive(Debug, Default)]
struct Fleet {
    /// The stored host specs. Equal to the files on disk, except for hosts in `unsynced`.
    specs: BTreeMap<Name, StoredSpec>,
    /// Hosts whose last write failed: the file may have the old or the new content.
    unsynced: BTreeSet<Name>,
    vms: BTreeMap<Uuid, vm::VmHandle>,
    tasks: BTreeMap<Uuid, tokio::task::JoinHandle<()>>,
    /// The agent shuts down: nothing is started any more.
    shutting_down: bool,
}

/// Why a host spec is not accepted.
#[derive(Debug, Error)]
pub enum HostSpecError {
    #[error("this agent does not serve host {0}")]
    NoSuchHost(Name),
    #[error(transparent)]
    Invalid(#[from] InvalidHostSpec),
    #[error("this agent belongs to site {own}, but the host spec is from site {found}")]
    OtherSite { own: Uuid, found: Uuid },
    /// The agent has accepted a newer host spec.
    #[error("the host spec must be newer than {stored}, got {found}")]
    Older { stored: SpecVersion, found: SpecVersion },
    /// Two different host specs with the same version.
    #[error("the agent has already accepted a different host spec with version {0}")]
    Ambiguous(SpecVersion),
    #[error("virtual machine {id} still exists on host {host}")]
    Elsewhere { id: Uuid, host: Name },
    /// A property that is immutable during the life of a virtual machine differs.
    #[error("the {property} of virtual machine {id} must not change; only its context may")]
    Changed { id: Uuid, property: &'static str },
    #[error("the agent is shutting down")]
    ShuttingDown,
    #[error("cannot store the host spec in {}", path.display())]
    NotStored { path: PathBuf, source: std::io::Error },
}

/// Why an agent cannot start.
#[derive(Debug, Error)]
pub enum AgentStartError {
    #[error("cannot read host specs from {}", path.display())]
    UnreadableSpec { path: PathBuf, source: std::io::Error },
    /// A stored host spec is not valid JSON. The message quotes nothing, because the file holds private keys.
    #[error("{} is not a valid host spec: error in line {line}, column {column}", path.display())]
    MalformedSpec { path: PathBuf, line: usize, column: usize },
    /// A stored host spec with virtual machines belongs to a host that is not served. Without its spec they would appear as
    /// unlisted.
    #[error(
        "{} is the spec of a host that is not served: add --host for it, or remove the file to give up its virtual \
         machines",
        .0.display()
    )]
    NotServed(PathBuf),
}

impl Agent {
    /// Loads the stored host specs. Starts nothing; see [`Agent::run`].
    pub fn new(context: Arc<AgentContext>, hosts: Vec<Name>) -> Result<Self, AgentStartError> {
        let mut fleet = Fleet::default();
        check_served(&context, &hosts)?;
        for host in &hosts {
            let path = context.state_dir.spec_path(host);
            let bytes = durable_file::read(&path, SPEC_BYTES_MAX)
                .map_err(|source| AgentStartError::UnreadableSpec { path: path.clone(), source })?;
            let stored = match bytes {
                Some(bytes) => serde_json::from_slice(&bytes).map_err(|error| {
                    let (line, column) = (error.line(), error.column());
                    AgentStartError::MalformedSpec { path, line, column }
                })?,
                None => StoredSpec::default(),
            };
            fleet.specs.insert(host.clone(), stored);
        }
        Ok(Self { context, hosts, fleet: Mutex::new(fleet) })
    }

    /// Names of the served hosts, sorted.
    pub fn hosts(&self) -> &[Name] {
        &self.hosts
    }

    /// State shared by all virtual machines.
    pub fn context(&self) -> &AgentContext {
        &self.context
    }

    /// Accepts a host spec. When it returns `Ok`, the spec is on disk, and the virtual machines are being reconciled with it
    /// unless the survey of libvirt is still pending. Accepting the current spec again is a no-op.
    ///
    /// Check, write and reconciliation are atomic with respect to other specs, and complete even if the caller is cancelled.
    pub async fn apply_spec(self: &Arc<Self>, host: &Name, spec: HostSpec) -> Result<(), HostSpecError> {
        if !self.hosts.contains(host) {
            return Err(HostSpecError::NoSuchHost(host.clone()));
        }
        let spec = host_spec::check(spec)?;
        let (this, host) = (Arc::clone(self), host.clone());
        let accepted = tokio::spawn(async move { this.accept(&host, spec).await });
        // The task is cancelled only by the exit of the process.
        accepted.await.unwrap_or(Err(HostSpecError::ShuttingDown))
    }

    async fn accept(self: &Arc<Self>, host: &Name, spec: HostSpec) -> Result<(), HostSpecError> {
        let mut fleet = self.fleet.lock().await;
        if fleet.shutting_down {
            return Err(HostSpecError::ShuttingDown);
        }
        fleet.check_version(host, &spec)?;
        fleet.check(host, &spec)?;
        let is_known = fleet.specs.get(host).is_some_and(|stored| stored.matches(&spec));
        if is_known && !fleet.unsynced.contains(host) {
            return Ok(());
        }
        let stored = fleet.specs.get(host).cloned().unwrap_or_default().updated_by(spec);
        let path = self.context.state_dir.spec_path(host);
        let bytes = serde_json::to_vec(&stored).expect("a host spec serializes to JSON");
        fleet.unsynced.insert(host.clone());
        let written = {
            let path = path.clone();
            tokio::task::spawn_blocking(move || durable_file::replace(&path, &bytes))
                .await
                .expect("writing does not panic")
        };
        written.map_err(|source| HostSpecError::NotStored { path, source })?;
        fleet.unsynced.remove(host);
        tokio::spawn(verify_images(Arc::clone(&self.context.images), stored.images.clone()));
        fleet.specs.insert(host.clone(), stored);
        // Before the survey it is unknown which domains exist, so the spec is only stored.
        if self.context.is_surveyed() {
            self.reconcile(&mut fleet);
        }
        durable_file::kill_point("before-reply", &self.context.state_dir.spec_path(host));
        Ok(())
    }

    /// Opens sessions in the guest of a virtual machine. `None` if the host has no such virtual machine, `Some(None)` if it does not
    /// run. Waits up to 5 s for the survey after the start of the agent.
    pub async fn session_opener(&self, host: &Name, id: Uuid) -> Option<Option<SessionOpener>> {
        let _ = timeout(SURVEY_TIMEOUT, self.context.ready()).await;
        let fleet = self.fleet.lock().await;
        let vm = fleet.vms.get(&id).filter(|vm| vm.host == *host)?;
        Some(vm.opener.borrow().clone())
    }

    /// Whether a host has a virtual machine. Waits up to 5 s for the survey after the start of the agent.
    pub async fn has_vm(&self, host: &Name, id: Uuid) -> bool {
        let _ = timeout(SURVEY_TIMEOUT, self.context.ready()).await;
        self.fleet.lock().await.vms.get(&id).is_some_and(|vm| vm.host == *host)
    }

    /// Surveys libvirt, then reconciles and polls for ever. Retries while libvirt does not answer.
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

    /// Shuts down. With `stop_vms`, syncs and stops the virtual machines, waiting up to 30 s; disks and host specs are kept.
    pub async fn shut_down(&self, stop_vms: bool) {
        let mut fleet = self.fleet.lock().await;
        fleet.shutting_down = true;
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
                let is_kept = !matches!(desired, DesiredState::Removed);
                if is_kept {
                    *desired = DesiredState::Stop;
                }
                is_kept
            });
        }
        let stopped = async {
            for (_, task) in tasks {
                let _ = task.await;
            }
        };
        if timeout(STOP_TIMEOUT, stopped).await.is_err() {
            tracing::warn!("some virtual machines did not stop within {} s", STOP_TIMEOUT.as_secs());
        }
    }

    /// Sets the desired state of every virtual machine and starts tasks for new ones. Failed virtual machines are retried.
    fn reconcile(self: &Arc<Self>, fleet: &mut Fleet) {
        let mut ordered: BTreeMap<Uuid, (Name, VmSpec)> = BTreeMap::new();
        for (host, spec) in &fleet.specs {
            ordered.extend(spec.all().map(|order| (order.id, (host.clone(), order.clone()))));
        }
        let desired = |fleet: &Fleet, order: VmSpec| match fleet.start_blocker(&order) {
            Some(reason) => DesiredState::Blocked(reason.into()),
            None => DesiredState::Run(Arc::new(order)),
        };
        for (id, vm) in &fleet.vms {
            let desired = match ordered.remove(id) {
                _ if matches!(*vm.desired.borrow(), DesiredState::Removed) => continue,
                _ if fleet.is_removed(*id) && !matches!(*vm.desired.borrow(), DesiredState::Blocked(_)) => {
                    DesiredState::Removed
                }
                // A conflict that arises later does not stop a running virtual machine.
                Some((_, order)) if matches!(*vm.desired.borrow(), DesiredState::Run(_)) => {
                    DesiredState::Run(Arc::new(order))
                }
                Some((_, order)) => desired(fleet, order),
                // Absence from the host spec is no reason to remove it.
                None => DesiredState::Unmanaged,
            };
            vm.desired.send_replace(desired);
        }
        for (id, (host, order)) in ordered {
            let desired = desired(fleet, order);
            self.spawn_vm(fleet, host, id, desired);
        }
        // Last, so that a report that acknowledges a spec lists every virtual machine in it.
        for host in &self.hosts {
            self.context.reports.set_spec_status(host, fleet.spec_status(host));
        }
    }

    /// Starts the task of a virtual machine and watches for its end.
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

    /// Handles the end of a virtual machine's task. If the virtual machine is desired again, a new task is started.
    async fn vm_ended(self: &Arc<Self>, id: Uuid) {
        let mut fleet = self.fleet.lock().await;
        fleet.vms.remove(&id);
        fleet.tasks.remove(&id);
        if !fleet.shutting_down {
            self.reconcile(&mut fleet);
        }
    }

    /// Lists the agent's domains in libvirt. Domains with a known spec keep their allocation, removed ones are torn
    /// down, and others are left running and reported as unlisted. May be repeated after an error.
    async fn survey_domains(self: &Arc<Self>) -> Result<Option<QemuUser>, HypervisorError> {
        let AgentContext { hypervisor, state_dir, .. } = &*self.context;
        let user = hypervisor.qemu_user().await?;
        let mut fleet = self.fleet.lock().await;
        let domains = hypervisor.domains(state_dir.instance()).await?;
        // A survey that failed midway may have started tasks for some.
        for metadata in
            domains.into_iter().filter(|metadata| !fleet.vms.contains_key(&metadata.id)).collect::<Vec<_>>()
        {
            if fleet.order_of(metadata.id).is_some_and(|(host, order)| metadata.matches(host, order)) {
                self.context
                    .adopt(metadata.id, Allocation { cores: metadata.cores, memory: metadata.memory });
            } else if fleet.order_of(metadata.id).is_none() && self.hosts.contains(&metadata.host) {
                // Its cores and memory stay allocated until it is gone.
                self.context
                    .adopt(metadata.id, Allocation { cores: metadata.cores, memory: metadata.memory });
                let desired = fleet.desired_without_order(metadata.id);
                tracing::info!(vm = %metadata.id, ?desired, "found running without a spec");
                self.spawn_vm(&mut fleet, metadata.host, metadata.id, desired);
            } else {
                // A leftover probe guest, or a domain that differs from its spec.
                hypervisor.destroy(state_dir.instance(), metadata.id).await?;
            }
        }
        self.adopt_unlisted_files(&mut fleet);
        self.reconcile(&mut fleet);
        if let Some(Err(error)) = user.map(|user| state_dir.check_reachable(user)) {
            tracing::warn!("{}", crate::error_chain(&error));
        }
        // While the fleet is locked: from here on, specs are reconciled at once.
        self.context.set_survey(HypervisorSurvey { user });
        Ok(user)
    }

    /// Handles files of virtual machines without a spec: an interrupted removal is completed, other disks are kept and
    /// reported.
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
                // Without a disk there is no data to keep.
                if let Err(error) = files.remove() {
                    tracing::warn!(
                        "cannot remove the leftover files of {id}: {}",
                        crate::error_chain(&error)
                    );
                }
                continue;
            }
            // The host of an unknown disk is arbitrary.
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
                        tracing::info!("libvirt is reachable again");
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

/// Verifies images in advance, so that starts do not have to wait. Errors are only logged; a start reports them again.
async fn verify_images(images: Arc<Mutex<ImageCache>>, spec: Vec<ImageSpec>) {
    for order in spec {
        let mut images = Arc::clone(&images).lock_owned().await;
        let name = order.name.clone();
        let verified = tokio::task::spawn_blocking(move || images.verify(&order).map(drop));
        if let Ok(Err(error)) = verified.await {
            tracing::warn!("image {name}: {}", crate::error_chain(&error));
        }
    }
}

impl Fleet {
    fn order_of(&self, id: Uuid) -> Option<(&Name, &VmSpec)> {
        self.specs.iter().find_map(|(host, spec)| {
            let order = spec.all().find(|order| order.id == id)?;
            Some((host, order))
        })
    }

    fn host_of_removed(&self, id: Uuid) -> Option<&Name> {
        self.specs.iter().find(|(_, spec)| spec.removed.contains(&id)).map(|(host, _)| host)
    }

    fn is_removed(&self, id: Uuid) -> bool {
        self.host_of_removed(id).is_some()
    }

    /// Desired state of a virtual machine that exists without a spec.
    fn desired_without_order(&self, id: Uuid) -> DesiredState {
        if self.is_removed(id) { DesiredState::Removed } else { DesiredState::Unmanaged }
    }

    /// Why a listed virtual machine must not be started: it was removed before, or its partition is used by an unlisted
    /// one.
    fn start_blocker(&self, order: &VmSpec) -> Option<String> {
        if self.is_removed(order.id) {
            return Some("it was removed by an earlier host spec and must not be started again".to_owned());
        }
        let is_listed = self.specs.values().any(|stored| stored.vms.iter().any(|it| it.id == order.id));
        if !is_listed {
            return None;
        }
        // Nodes of the same cluster share its partitions and its SSH key.
        let foreign = self
            .specs
            .values()
            .flat_map(|stored| &stored.unlisted)
            .filter(|other| other.context.cluster_key.public != order.context.cluster_key.public);
        foreign.into_iter().find_map(|other| {
            let number = order
                .adapter
                .partitions()
                .find(|it| other.adapter.partitions().any(|theirs| theirs == *it))?;
            let (id, label) = (other.id, &other.label);
            Some(format!(
                "partition {number} is in use by virtual machine {id} ({label}), which is not in the host spec"
            ))
        })
    }

    /// The part of a host's report that follows from its stored spec.
    fn spec_status(&self, host: &Name) -> SpecStatus {
        let Some(stored) = self.specs.get(host) else { return SpecStatus::default() };
        let known = stored.unlisted.iter().map(|order| (order.id, host_spec::unlisted_vm(order)));
        let unknown = self.vms.iter().filter(|(id, vm)| vm.host == *host && self.order_of(**id).is_none());
        let unknown = unknown
            .filter(|(id, _)| !self.is_removed(**id))
            .map(|(id, _)| (*id, UnlistedVmDetails::default()));
        SpecStatus { acknowledged: stored.version, unlisted: known.chain(unknown).collect() }
    }

    /// Checks that a spec is of the agent's site, not older than the host's stored spec or any other host's epoch, and not
    /// different from a stored spec of the same version.
    fn check_version(&self, host: &Name, spec: &HostSpec) -> Result<(), HostSpecError> {
        let found = spec.version;
        for (of, stored) in &self.specs {
            let Some(stored) = stored.version else { continue };
            if stored.site != found.site {
                return Err(HostSpecError::OtherSite { own: stored.site, found: found.site });
            }
            let is_older = if of == host {
                found.precedence() < stored.precedence()
            } else {
                found.epoch < stored.epoch
            };
            if is_older {
                return Err(HostSpecError::Older { stored, found });
            }
        }
        match self.specs.get(host) {
            Some(stored) if stored.version == Some(found) && !stored.matches(spec) => {
                Err(HostSpecError::Ambiguous(found))
            }
            _ => Ok(()),
        }
    }

    /// Checks that no virtual machine exists on another host or has changed an immutable property.
    fn check(&self, host: &Name, spec: &HostSpec) -> Result<(), HostSpecError> {
        for order in &spec.vms {
            let id = order.id;
            let elsewhere = self.vms.get(&id).map(|vm| &vm.host).or(self.order_of(id).map(|(host, _)| host));
            if let Some(elsewhere) = elsewhere.filter(|elsewhere| *elsewhere != host) {
                return Err(HostSpecError::Elsewhere { id, host: elsewhere.clone() });
            }
            if let Some((_, before)) = self.order_of(id)
                && let Some(property) = host_spec::immutable_change(before, order)
            {
                return Err(HostSpecError::Changed { id, property });
            }
        }
        Ok(())
    }
}

/// Fails if the state directory has a non-empty spec of a host that is not served.
fn check_served(context: &AgentContext, hosts: &[Name]) -> Result<(), AgentStartError> {
    let any: Name = "any".parse().expect("a name");
    let path = context.state_dir.spec_path(&any);
    let directory = path.parent().expect("a file is in a directory").to_owned();
    let unreadable = |source| AgentStartError::UnreadableSpec { path: directory.clone(), source };
    for entry in std::fs::read_dir(&directory).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        let host =
            path.file_name().and_then(|name| name.to_str()?.strip_suffix(".json")?.parse::<Name>().ok());
        if host.is_none_or(|host| hosts.contains(&host)) {
            continue;
        }
        let bytes = durable_file::read(&path, SPEC_BYTES_MAX).map_err(unreadable)?.unwrap_or_default();
        let empty =
            serde_json::from_slice::<StoredSpec>(&bytes).is_ok_and(|stored| stored.all().next().is_none());
        if !empty {
            return Err(AgentStartError::NotServed(path));
        }
    }
    Ok(())
}
