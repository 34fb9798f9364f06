//! The agent as a whole: orders come in, virtual machines follow.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use controller_api::Name;
use controller_api::agent::{ImageOrder, Orders, VmOrder};
use thiserror::Error;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use crate::capacity::Given;
use crate::durable;
use crate::hypervisor::HypervisorError;
use crate::image::Images;
use crate::link::Opener;
use crate::orders::{self, BadOrders};
use crate::place::QemuUser;
use crate::shared::{Shared, Snapshot, Survey};
use crate::vm::{self, Wanted};

/// How often libvirt is asked what runs.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// How long to wait for libvirt before asking again.
const HYPERVISOR_PAUSE: Duration = Duration::from_secs(1);

/// How long those who want a session wait for an agent that does not know yet what runs.
const SURVEY_PATIENCE: Duration = Duration::from_secs(5);

/// How long virtual machines have to stop when the agent ends.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// Longest file of orders.
const ORDERS_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// The agent as a whole.
#[derive(Debug)]
pub struct Agent {
    shared: Arc<Shared>,
    hosts: Vec<Name>,
    fleet: Mutex<Fleet>,
}

#[derive(Debug, Default)]
struct Fleet {
    orders: BTreeMap<Name, Orders>,
    vms: BTreeMap<Uuid, vm::Handle>,
    tasks: BTreeMap<Uuid, tokio::task::JoinHandle<()>>,
    /// The agent ends: nothing is started any more.
    ending: bool,
}

/// Why orders are not taken.
#[derive(Debug, Error)]
pub enum OrdersError {
    /// This agent does not serve the host.
    #[error("this agent does not serve host {0}")]
    NoSuchHost(Name),
    /// They make no sense.
    #[error(transparent)]
    Bad(#[from] BadOrders),
    /// A virtual machine is elsewhere.
    #[error("virtual machine {id} is on host {host}, and not gone from there yet")]
    Elsewhere {
        /// Which.
        id: Uuid,
        /// Where.
        host: Name,
    },
    /// A virtual machine is another one than before.
    #[error("virtual machine {id} is ordered with another {what} than before; only its context may change")]
    Changed {
        /// Which.
        id: Uuid,
        /// What of it.
        what: &'static str,
    },
    /// The agent ends.
    #[error("the agent is ending")]
    Ending,
    /// They cannot be kept.
    #[error("orders cannot be kept in {}: {source}", path.display())]
    NotKept {
        /// Where.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// Why an agent cannot start.
#[derive(Debug, Error)]
pub enum StartError {
    /// Orders cannot be read.
    #[error("orders in {} cannot be read: {what}", path.display())]
    Orders {
        /// Where.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
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
    pub fn new(shared: Arc<Shared>, hosts: Vec<Name>) -> Result<Self, StartError> {
        let mut fleet = Fleet::default();
        check_served(&shared, &hosts)?;
        for host in &hosts {
            let path = shared.place.orders(host);
            let unreadable = |what: String| StartError::Orders { path: path.clone(), what };
            let bytes =
                durable::read(&path, ORDERS_BYTES_MAX).map_err(|error| unreadable(error.to_string()))?;
            let orders = match bytes {
                // What serde says may quote a secret: its place is enough.
                Some(bytes) => serde_json::from_slice(&bytes).map_err(|error| {
                    unreadable(format!("line {}, column {} makes no sense", error.line(), error.column()))
                })?,
                None => Orders::default(),
            };
            fleet.orders.insert(host.clone(), orders);
        }
        Ok(Self { shared, hosts, fleet: Mutex::new(fleet) })
    }

    /// The hosts it serves.
    pub fn hosts(&self) -> &[Name] {
        &self.hosts
    }

    /// What virtual machines have in common.
    pub fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Takes what a host is to run. When this returns, it is on disk.
    pub async fn order(self: &Arc<Self>, host: &Name, orders: Orders) -> Result<(), OrdersError> {
        if !self.hosts.contains(host) {
            return Err(OrdersError::NoSuchHost(host.clone()));
        }
        let orders = orders::check(orders)?;
        let mut fleet = self.fleet.lock().await;
        if fleet.ending {
            return Err(OrdersError::Ending);
        }
        fleet.check(host, &orders)?;
        if fleet.orders.get(host) == Some(&orders) {
            return Ok(());
        }
        let path = self.shared.place.orders(host);
        let bytes = serde_json::to_vec(&orders).expect("orders came in as JSON");
        let kept = {
            let path = path.clone();
            tokio::task::spawn_blocking(move || durable::write(&path, &bytes))
                .await
                .expect("writing does not panic")
        };
        kept.map_err(|source| OrdersError::NotKept { path, source })?;
        tokio::spawn(look_at(Arc::clone(&self.shared.images), orders.images.clone()));
        fleet.orders.insert(host.clone(), orders);
        // Before libvirt was asked what is there, orders are only kept.
        if self.shared.is_surveyed() {
            self.follow(&mut fleet);
        }
        Ok(())
    }

    /// By which a virtual machine's guest is reached; `None` if there is no such virtual machine, or it does not run.
    pub async fn opener(&self, host: &Name, id: Uuid) -> Option<Option<Opener>> {
        // Whoever asks an agent that has just been started waits until it knows what runs.
        let _ = timeout(SURVEY_PATIENCE, self.shared.ready()).await;
        let fleet = self.fleet.lock().await;
        let vm = fleet.vms.get(&id).filter(|vm| vm.host == *host)?;
        Some(vm.opener.borrow().clone())
    }

    /// Makes virtual machines follow orders, for ever.
    pub async fn run(self: &Arc<Self>, early_images: PathBuf) {
        let mut silent = false;
        let user = loop {
            match self.survey().await {
                Ok(user) => break user,
                Err(error) if !silent => tracing::warn!("{error}"),
                Err(_) => {}
            }
            silent = true;
            sleep(HYPERVISOR_PAUSE).await;
        };
        self.shared.accelerators.probe_early(&early_images, user);
        self.poll().await
    }

    /// Ends; if asked for, stops virtual machines first. Their disks and orders stay.
    pub async fn end(&self, stop_vms: bool) {
        let mut fleet = self.fleet.lock().await;
        fleet.ending = true;
        self.shared.accelerators.end().await;
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
            vm.wanted.send_if_modified(|wanted| {
                let keeps = matches!(wanted, Wanted::Run(_));
                if keeps {
                    *wanted = Wanted::Stop;
                }
                keeps
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

    /// Tells every virtual machine what is wanted of it, and starts tasks for new ones. Those that failed take it as
    /// the word to try again.
    fn follow(self: &Arc<Self>, fleet: &mut Fleet) {
        let mut ordered: BTreeMap<Uuid, (Name, VmOrder)> = BTreeMap::new();
        for (host, orders) in &fleet.orders {
            ordered.extend(orders.vms.iter().map(|order| (order.id, (host.clone(), order.clone()))));
        }
        for (id, vm) in &fleet.vms {
            let wanted = match ordered.remove(id) {
                // One that is on its way out is made anew when it is gone.
                _ if matches!(*vm.wanted.borrow(), Wanted::Gone) => continue,
                Some((_, order)) => Wanted::Run(Arc::new(order)),
                None => Wanted::Gone,
            };
            vm.wanted.send_replace(wanted);
        }
        for (id, (host, order)) in ordered {
            self.begin(fleet, host, id, Wanted::Run(Arc::new(order)));
        }
    }

    /// Starts the task of a virtual machine.
    fn begin(self: &Arc<Self>, fleet: &mut Fleet, host: Name, id: Uuid, wanted: Wanted) {
        let (handle, task) = vm::spawn(Arc::clone(&self.shared), host, id, wanted);
        let this = Arc::clone(self);
        let task = tokio::spawn(async move {
            let _ = task.await;
            this.ended(id).await;
        });
        fleet.vms.insert(id, handle);
        fleet.tasks.insert(id, task);
    }

    /// The task of a virtual machine has ended: it is gone. If it was ordered again meanwhile, it is made anew.
    async fn ended(self: &Arc<Self>, id: Uuid) {
        let mut fleet = self.fleet.lock().await;
        fleet.vms.remove(&id);
        fleet.tasks.remove(&id);
        if !fleet.ending {
            self.follow(&mut fleet);
        }
    }

    /// Asks libvirt what is there: what is ordered keeps what it has, what is not is removed with its files.
    async fn survey(self: &Arc<Self>) -> Result<Option<QemuUser>, HypervisorError> {
        let Shared { hypervisor, place, .. } = &*self.shared;
        let user = hypervisor.qemu_user().await?;
        let mut fleet = self.fleet.lock().await;
        let marks = hypervisor.marks(place.instance()).await?;
        // A survey that broke off may have begun with some.
        for mark in marks.into_iter().filter(|mark| !fleet.vms.contains_key(&mark.id)).collect::<Vec<_>>() {
            if fleet.order_of(mark.id).is_some_and(|(host, order)| mark.is_for(host, order)) {
                self.shared.adopt(mark.id, Given { cores: mark.cores, memory: mark.memory });
            } else if fleet.order_of(mark.id).is_none() && self.hosts.contains(&mark.host) {
                tracing::info!(vm = %mark.id, "is not ordered any more");
                // What it has stays its own until it is gone.
                self.shared.adopt(mark.id, Given { cores: mark.cores, memory: mark.memory });
                self.begin(&mut fleet, mark.host, mark.id, Wanted::Gone);
            } else {
                // A probe, or not what is ordered.
                hypervisor.destroy(place.instance(), mark.id).await?;
            }
        }
        self.follow(&mut fleet);
        self.remove_strays(&fleet);
        if let Some(Err(error)) = user.map(|user| place.check_reachable(user)) {
            tracing::warn!("{error}");
        }
        // While the fleet is held: from here on, orders are followed at once.
        self.shared.set_surveyed(Survey { user });
        Ok(user)
    }

    /// Removes files of virtual machines that nobody knows.
    fn remove_strays(&self, fleet: &Fleet) {
        let place = &self.shared.place;
        let found = match place.vms() {
            Ok(found) => found,
            Err(error) => return tracing::warn!("{}", crate::told_whole(&error)),
        };
        for id in found.into_iter().filter(|id| !fleet.vms.contains_key(id)) {
            if let Err(error) = place.vm(id).remove() {
                tracing::warn!("what is left of {id} cannot be removed: {}", crate::told_whole(&error));
            }
            crate::shared::remove_logs(place.instance(), id);
        }
    }

    async fn poll(&self) {
        let Shared { hypervisor, place, .. } = &*self.shared;
        let mut silent = false;
        loop {
            let taken = Instant::now();
            match hypervisor.running(place.instance()).await {
                Ok(running) => {
                    if silent {
                        tracing::info!("libvirt answers again");
                    }
                    silent = false;
                    self.shared.set_snapshot(Snapshot { taken, running: Arc::new(running) });
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
async fn look_at(images: Arc<Mutex<Images>>, orders: Vec<ImageOrder>) {
    for order in orders {
        let mut images = Arc::clone(&images).lock_owned().await;
        let looked = tokio::task::spawn_blocking(move || images.check(&order).map(drop));
        if let Ok(Err(error)) = looked.await {
            tracing::warn!("an image that may be asked for: {error}");
        }
    }
}

impl Fleet {
    fn order_of(&self, id: Uuid) -> Option<(&Name, &VmOrder)> {
        self.orders.iter().find_map(|(host, orders)| {
            let order = orders.vms.iter().find(|order| order.id == id)?;
            Some((host, order))
        })
    }

    /// Whether orders for a host fit to what there is.
    fn check(&self, host: &Name, orders: &Orders) -> Result<(), OrdersError> {
        for order in &orders.vms {
            let id = order.id;
            let elsewhere = self.vms.get(&id).map(|vm| &vm.host).or(self.order_of(id).map(|(host, _)| host));
            if let Some(elsewhere) = elsewhere.filter(|elsewhere| *elsewhere != host) {
                return Err(OrdersError::Elsewhere { id, host: elsewhere.clone() });
            }
            if let Some((_, before)) = self.order_of(id)
                && let Some(what) = orders::difference(before, order)
            {
                return Err(OrdersError::Changed { id, what });
            }
        }
        Ok(())
    }
}

/// Orders for hosts that are not served would make their virtual machines look like nobody's.
fn check_served(shared: &Shared, hosts: &[Name]) -> Result<(), StartError> {
    let any: Name = "any".parse().expect("a name");
    let path = shared.place.orders(&any);
    let directory = path.parent().expect("a file is in a directory").to_owned();
    let unreadable =
        |error: std::io::Error| StartError::Orders { path: directory.clone(), what: error.to_string() };
    for entry in std::fs::read_dir(&directory).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        let host =
            path.file_name().and_then(|name| name.to_str()?.strip_suffix(".json")?.parse::<Name>().ok());
        let Some(host) = host.filter(|host| !hosts.contains(host)) else { continue };
        let bytes = durable::read(&path, ORDERS_BYTES_MAX).map_err(unreadable)?.unwrap_or_default();
        let empty = serde_json::from_slice::<Orders>(&bytes).is_ok_and(|orders| orders.vms.is_empty());
        if !empty {
            tracing::debug!("orders for {host}");
            return Err(StartError::NotServed(path));
        }
    }
    Ok(())
}
