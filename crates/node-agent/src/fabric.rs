//! Attaches virtual machines to the emulated fabric through the control socket of `heddle sim`, and re-attaches them after the
//! emulation was restarted.
//!
//! Callers change the desired attachments; [`FabricAttachments::run`] reconciles the emulation with them every second.

mod packet_stops;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use control_protocol::sim::{AdapterStatus, FrameCounts, FunctionStatus, PortLocation};
use control_protocol::{SimRequest, read_reply};
use controller_api::Name;
use controller_api::agent::AdapterSpec;
use controller_api::cluster::PacketStop;
use fabric_model::{DropReason, FunctionKey};
use ib_wire::{Membership, PartitionNumber, Pkey, ServiceLevel};
use serde::de::DeserializeOwned;
use thiserror::Error;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;
use uuid::Uuid;

use crate::error_chain;
use crate::state_dir::StateDir;

/// Interval of reconciliation: a restarted emulation has no attachments.
const RECONCILE_INTERVAL: Duration = Duration::from_secs(1);

/// Time limit for a reply of the emulation, which serves requests one by one.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// Most bytes of a reply: a list of a few thousand functions.
const REPLY_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// How long attach and detach wait for completion; later, reconciliation completes them.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(3);

/// Attachment of a virtual machine to the fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// Host whose adapter it uses.
    pub node: Name,
    pub adapter: AdapterSpec,
    /// Service level of its packets.
    pub sl: ServiceLevel,
    /// Socket of the guest's end.
    pub guest: PathBuf,
    /// Socket of the fabric's end.
    pub fabric: PathBuf,
}

/// Result of the last reconciliation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttachmentStatus {
    /// Version of the desired attachments that it is based on.
    version: u64,
    /// Whether the emulation answers.
    pub is_reachable: bool,
    attached: BTreeSet<Uuid>,
    /// Virtual machines that the emulation rejects, with its error.
    refused: BTreeMap<Uuid, String>,
    /// Where packets of a virtual machine are dropped.
    stops: BTreeMap<Uuid, PacketStop>,
}

/// The attachments of all virtual machines of an agent.
#[derive(Debug)]
pub struct FabricAttachments {
    control: PathBuf,
    state_dir: Arc<StateDir>,
    desired: Mutex<DesiredAttachments>,
    changed: Notify,
    status: watch::Sender<AttachmentStatus>,
    drop_watches: Mutex<BTreeMap<Uuid, packet_stops::DropWatch>>,
}

/// The desired attachments.
#[derive(Clone, Debug, Default)]
struct DesiredAttachments {
    /// Incremented with every change.
    version: u64,
    attachments: BTreeMap<Uuid, Attachment>,
}

/// Why the emulation did not do what it was asked for.
#[derive(Debug, Error)]
pub enum SimControlError {
    #[error("the emulation at {} does not answer", path.display())]
    Unreachable { path: PathBuf, source: io::Error },
    #[error("{0}")]
    Refused(String),
    #[error("it has no InfiniBand adapter on the fabric")]
    NoAdapter,
}

impl FabricAttachments {
    /// Attachments through the control socket of an emulation. Nothing is sent before [`FabricAttachments::run`].
    pub fn new(control: PathBuf, state_dir: Arc<StateDir>) -> Self {
        Self {
            control,
            state_dir,
            desired: Mutex::default(),
            changed: Notify::new(),
            status: watch::Sender::new(AttachmentStatus::default()),
            drop_watches: Mutex::default(),
        }
    }

    /// Result of the last reconciliation, as it changes.
    pub fn status(&self) -> watch::Receiver<AttachmentStatus> {
        self.status.subscribe()
    }

    /// Attaches a virtual machine, and waits up to 3 s for completion. Replaces an earlier attachment.
    pub async fn attach(&self, id: Uuid, attachment: Attachment) {
        self.change(|desired| drop(desired.insert(id, attachment))).await;
    }

    /// Detaches a virtual machine, even if an earlier agent attached it, and waits up to 3 s for completion.
    pub async fn detach(&self, id: Uuid) {
        self.change(|desired| drop(desired.remove(&id))).await;
    }

    /// Why a virtual machine is not attached; `None` if it is.
    pub fn attach_error(&self, id: Uuid) -> Option<String> {
        let status = self.status.borrow();
        let refused =
            status.refused.get(&id).map(|error| format!("the emulated fabric rejects its adapter: {error}"));
        refused.or_else(|| (!status.is_reachable).then(|| "the emulated fabric does not answer".to_owned()))
    }

    /// Where packets of a virtual machine are dropped, for up to 30 s after the last drop.
    pub fn packet_stop(&self, id: Uuid) -> Option<PacketStop> {
        self.status.borrow().stops.get(&id).cloned()
    }

    /// Opens the network view of a virtual machine's InfiniBand adapter. The emulation is the client of the framed protocol on the
    /// stream; the stream must be attached to an adapter of the view before anything is sent on it.
    ///
    /// # Errors
    ///
    /// The virtual machine has no such adapter, or the emulation rejects the view or does not answer.
    pub async fn open_view(&self, id: Uuid) -> Result<BufReader<UnixStream>, SimControlError> {
        let request = self.desired().attachments.get(&id).and_then(Attachment::view_request);
        let request = request.ok_or(SimControlError::NoAdapter)?;
        let (stream, line) = self.exchange(&request).await?;
        self.read_reply::<String>(&line)?;
        Ok(stream)
    }

    /// Changes the desired attachments and waits up to 3 s for a reconciliation that includes the change.
    async fn change(&self, change: impl FnOnce(&mut BTreeMap<Uuid, Attachment>)) {
        let version = {
            let mut desired = self.desired();
            change(&mut desired.attachments);
            desired.version += 1;
            desired.version
        };
        self.changed.notify_one();
        let mut status = self.status.subscribe();
        // After the timeout, reconciliation completes the change without the caller.
        let _ = timeout(SETTLE_TIMEOUT, status.wait_for(|status| status.version >= version)).await;
    }

    /// Reconciles the emulation with the desired attachments, for ever.
    pub async fn run(&self) {
        loop {
            let desired = self.desired().clone();
            let next = match self.reconcile(&desired.attachments).await {
                Ok(status) => AttachmentStatus { version: desired.version, ..status },
                Err(error) => {
                    if self.status.borrow().is_reachable {
                        tracing::warn!("{}", error_chain(&error));
                    }
                    AttachmentStatus { version: desired.version, ..AttachmentStatus::default() }
                }
            };
            self.status.send_replace(next);
            // Until the interval ends or the desired attachments change.
            let _ = timeout(RECONCILE_INTERVAL, self.changed.notified()).await;
        }
    }

    async fn reconcile(
        &self,
        desired: &BTreeMap<Uuid, Attachment>,
    ) -> Result<AttachmentStatus, SimControlError> {
        let cards: Vec<FunctionStatus> = self.request(&SimRequest::Functions {}).await?;
        let adapters: Vec<AdapterStatus> = self.request(&SimRequest::Adapters {}).await?;
        let found: Vec<Function> = cards
            .into_iter()
            .map(Function::Card)
            .chain(adapters.into_iter().map(Function::Adapter))
            .collect();
        let mut next = AttachmentStatus { is_reachable: true, ..AttachmentStatus::default() };
        let by_guest: BTreeMap<&Path, Uuid> =
            desired.iter().map(|(id, attachment)| (attachment.guest.as_path(), *id)).collect();
        for function in &found {
            let Some(guest) = function.guest().filter(|guest| self.state_dir.owns_socket(guest)) else {
                continue;
            };
            match by_guest.get(guest) {
                Some(id) if desired.get(id).is_some_and(|desired| desired.matches(function)) => {
                    next.attached.insert(*id);
                    next.stops.extend(self.update_drop_watch(*id, function).map(|stop| (*id, stop)));
                }
                // An attachment that differs is replaced below.
                Some(_) => {}
                None => self.detach_function(function).await?,
            }
        }
        self.drop_watches().retain(|id, _| next.attached.contains(id));
        for (id, attachment) in
            desired.iter().filter(|(id, _)| !next.attached.contains(id)).collect::<Vec<_>>()
        {
            match self.request::<String>(&attachment.request()).await {
                Ok(_) => drop(next.attached.insert(*id)),
                Err(SimControlError::Refused(why)) => drop(next.refused.insert(*id, why)),
                Err(error) => return Err(error),
            }
        }
        Ok(next)
    }

    /// Updates the drop counters of a function; returns where its packets are dropped now.
    fn update_drop_watch(&self, id: Uuid, function: &Function) -> Option<PacketStop> {
        let mut drop_watches = self.drop_watches();
        let (counts, stops) = function.counts();
        drop_watches.entry(id).or_default().update(counts, stops, Instant::now())
    }

    fn drop_watches(&self) -> std::sync::MutexGuard<'_, BTreeMap<Uuid, packet_stops::DropWatch>> {
        self.drop_watches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn detach_function(&self, function: &Function) -> Result<(), SimControlError> {
        match self.request::<String>(&function.detach_request()).await {
            Err(SimControlError::Refused(error)) => {
                tracing::warn!("cannot detach a virtual machine: {error}");
            }
            Err(error) => return Err(error),
            Ok(_) => {}
        }
        Ok(())
    }

    async fn request<T: DeserializeOwned>(&self, request: &SimRequest) -> Result<T, SimControlError> {
        let (_, line) = self.exchange(request).await?;
        self.read_reply(&line)
    }

    /// Sends a request. Returns the connection and the first line of the reply.
    async fn exchange(
        &self,
        request: &SimRequest,
    ) -> Result<(BufReader<UnixStream>, String), SimControlError> {
        let asked = timeout(REPLY_TIMEOUT, exchange(&self.control, request)).await;
        asked
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            .map_err(|source| self.unreachable(source))
    }

    fn read_reply<T: DeserializeOwned>(&self, line: &str) -> Result<T, SimControlError> {
        let malformed = |error| self.unreachable(io::Error::new(io::ErrorKind::InvalidData, error));
        read_reply(line).map_err(malformed)?.map_err(|error| SimControlError::Refused(error.text))
    }

    fn unreachable(&self, source: io::Error) -> SimControlError {
        SimControlError::Unreachable { path: self.control.clone(), source }
    }

    fn desired(&self) -> std::sync::MutexGuard<'_, DesiredAttachments> {
        self.desired.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn exchange(control: &Path, request: &SimRequest) -> io::Result<(BufReader<UnixStream>, String)> {
    let mut stream = UnixStream::connect(control).await?;
    let mut line = serde_json::to_string(request)?;
    line.push('\n');
    stream.write_all(line.as_bytes()).await?;
    let mut answer = String::new();
    let mut stream = BufReader::new(stream);
    (&mut stream).take(REPLY_BYTES_MAX).read_line(&mut answer).await?;
    Ok((stream, answer))
}

/// A virtual function as the emulation has it.
enum Function {
    /// With an Ethernet card.
    Card(FunctionStatus),
    /// With an InfiniBand adapter.
    Adapter(AdapterStatus),
}

impl Function {
    /// Socket of the guest's end; `None` while no virtual machine is attached.
    fn guest(&self) -> Option<&Path> {
        match self {
            Self::Card(card) => card.guest.as_deref(),
            Self::Adapter(adapter) => adapter.guest.as_deref(),
        }
    }

    /// Its packets, and where the last ones stopped.
    fn counts(&self) -> (&FrameCounts, &BTreeMap<DropReason, PortLocation>) {
        match self {
            Self::Card(card) => (&card.frames, &card.stops),
            Self::Adapter(adapter) => (&adapter.packets, &adapter.stops),
        }
    }

    fn detach_request(&self) -> SimRequest {
        let (node, port, function) = match self {
            Self::Card(card) => (&card.node, card.port, card.function),
            Self::Adapter(adapter) => (&adapter.node, adapter.port, adapter.function),
        };
        SimRequest::Detach { node: node.clone(), port, function }
    }
}

impl Attachment {
    fn request(&self) -> SimRequest {
        let (guest, fabric) = (self.guest.clone(), self.fabric.clone());
        if let AdapterSpec { port, function, guid: Some(guid), .. } = self.adapter {
            let (node, pkeys) = (self.node.to_string(), self.adapter_keys());
            return SimRequest::AttachAdapter { node, port, function, guid, pkeys, guest, fabric };
        }
        let AdapterSpec { port, function, mac, pkey, group, .. } = self.adapter;
        SimRequest::Attach {
            node: self.node.to_string(),
            port,
            function,
            mac,
            pkey,
            sl: self.sl,
            group,
            further: self.inner_keys(),
            guest,
            fabric,
        }
    }

    /// The request for the view of its adapter; `None` if it has an Ethernet card.
    fn view_request(&self) -> Option<SimRequest> {
        let AdapterSpec { port, function, guid, .. } = self.adapter;
        let node = self.node.to_string();
        guid.map(|_| SimRequest::AdapterView { node, port, function })
    }

    /// P_Key table of an InfiniBand adapter, in the order that libraries expect: the key of the cluster, then the limited
    /// membership of the default partition, in which subnet administration is asked.
    fn adapter_keys(&self) -> Vec<Pkey> {
        let default = PartitionNumber::DEFAULT.key(Membership::Limited);
        let inner = self.adapter.inner_keys.iter().map(|key| key.pkey);
        [self.adapter.pkey, default].into_iter().chain(inner).collect()
    }

    fn inner_keys(&self) -> Vec<FunctionKey> {
        self.adapter.inner_keys.iter().map(|key| FunctionKey { pkey: key.pkey, group: key.group }).collect()
    }

    /// Whether the emulation has this attachment.
    fn matches(&self, found: &Function) -> bool {
        let AdapterSpec { port, function, mac, pkey, group, guid, .. } = self.adapter;
        match found {
            Function::Card(found) => {
                guid.is_none()
                    && (
                        found.port,
                        found.function,
                        found.mac,
                        found.pkey,
                        found.sl,
                        found.group,
                        &found.further,
                    ) == (port, function, mac, Some(pkey), self.sl, group, &self.inner_keys())
            }
            Function::Adapter(found) => {
                (found.port, found.function, Some(found.guid), &found.pkeys)
                    == (port, function, guid, &self.adapter_keys())
            }
        }
    }
}
