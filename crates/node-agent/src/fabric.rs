//! Virtual machines on the emulated fabric: asks `heddle sim` to carry their frames, and keeps it so when the
//! emulation was restarted.

mod stops;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use controller_api::Name;
use controller_api::agent::{AdapterOrder, KeyOrder, PacketStop};
use fabric_model::MacAddress;
use ib_wire::{MulticastLid, Pkey, PortNum, ServiceLevel};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;
use uuid::Uuid;

use crate::place::Place;
use stops::{FrameCounts, StopPlace};

/// How often to look whether everything is still attached: a restarted emulation knows nobody.
const INTERVAL: Duration = Duration::from_secs(1);

/// How long the emulation has for an answer: it serves many, one after the other.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest answer: a list of a few thousand functions.
const ANSWER_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// How long a virtual machine waits to be attached or detached. Later it is done without it.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(3);

/// A virtual machine on the fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// The host whose adapter it uses.
    pub node: Name,
    /// How.
    pub adapter: AdapterOrder,
    /// The service level of its packets.
    pub sl: ServiceLevel,
    /// The socket of the guest's end.
    pub guest: PathBuf,
    /// The socket of the fabric's end.
    pub fabric: PathBuf,
}

/// How the fabric was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Which of the versions of what is to be.
    version: u64,
    /// Whether the emulation answers.
    pub answers: bool,
    /// Who is on the fabric.
    attached: BTreeSet<Uuid>,
    /// Whom the emulation refuses, and why.
    refused: BTreeMap<Uuid, String>,
    /// Where packets of virtual machines stop.
    stops: BTreeMap<Uuid, PacketStop>,
}

/// Keeps virtual machines on the fabric.
#[derive(Debug)]
pub struct Fabric {
    control: PathBuf,
    place: Arc<Place>,
    wanted: Mutex<Wanted>,
    changed: Notify,
    seen: watch::Sender<Seen>,
    watched: Mutex<BTreeMap<Uuid, stops::Watched>>,
}

/// What is to be.
#[derive(Clone, Debug, Default)]
struct Wanted {
    /// Grows with every change.
    version: u64,
    attachments: BTreeMap<Uuid, Attachment>,
}

#[derive(Debug, Error)]
enum AskError {
    #[error("the emulation at {} does not answer: {source}", path.display())]
    Silent { path: PathBuf, source: io::Error },
    #[error("{0}")]
    Refused(String),
}

/// What is asked of the emulation; see `heddle sim-ctl`.
#[derive(Serialize)]
#[serde(tag = "command", rename_all = "kebab-case")]
enum Request<'a> {
    Attach {
        node: &'a str,
        port: PortNum,
        function: u8,
        mac: MacAddress,
        pkey: Pkey,
        sl: ServiceLevel,
        group: Option<MulticastLid>,
        further: &'a [KeyOrder],
        guest: &'a Path,
        fabric: &'a Path,
    },
    Detach {
        node: &'a str,
        port: PortNum,
        function: u8,
    },
    Functions {},
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Reply<T> {
    Ok(T),
    Error(String),
}

/// A function, as the emulation lists it. The rest of what it says is for people.
#[derive(Deserialize)]
struct Function {
    node: String,
    port: PortNum,
    function: u8,
    mac: MacAddress,
    pkey: Pkey,
    #[serde(default)]
    sl: ServiceLevel,
    group: Option<MulticastLid>,
    #[serde(default)]
    further: Vec<KeyOrder>,
    guest: Option<PathBuf>,
    #[serde(default)]
    frames: FrameCounts,
    #[serde(default)]
    stops: BTreeMap<String, StopPlace>,
}

impl Fabric {
    /// By the control socket of an emulation.
    pub fn new(control: PathBuf, place: Arc<Place>) -> Self {
        Self {
            control,
            place,
            wanted: Mutex::default(),
            changed: Notify::new(),
            seen: watch::Sender::new(Seen::default()),
            watched: Mutex::default(),
        }
    }

    /// How the fabric was found last.
    pub fn seen(&self) -> watch::Receiver<Seen> {
        self.seen.subscribe()
    }

    /// Puts a virtual machine on the fabric, and waits a little until it is there.
    pub async fn attach(&self, id: Uuid, attachment: Attachment) {
        self.change(|wanted| drop(wanted.insert(id, attachment))).await;
    }

    /// Takes a virtual machine off the fabric, also one that an agent before us put there, and waits a little until it is.
    pub async fn detach(&self, id: Uuid) {
        self.change(|wanted| drop(wanted.remove(&id))).await;
    }

    /// Why a virtual machine is not on the fabric.
    pub fn complaint(&self, id: Uuid) -> Option<String> {
        let seen = self.seen.borrow();
        let refused = seen.refused.get(&id).map(|why| format!("the fabric refuses its adapter: {why}"));
        refused.or_else(|| (!seen.answers).then(|| "the emulated fabric does not answer".to_owned()))
    }

    /// Where packets that a virtual machine sends stop, while they do.
    pub fn stop(&self, id: Uuid) -> Option<PacketStop> {
        self.seen.borrow().stops.get(&id).cloned()
    }

    /// Changes what is to be, and waits a little until the fabric is so, or is known not to be.
    async fn change(&self, change: impl FnOnce(&mut BTreeMap<Uuid, Attachment>)) {
        let version = {
            let mut wanted = self.wanted();
            change(&mut wanted.attachments);
            wanted.version += 1;
            wanted.version
        };
        self.changed.notify_one();
        let mut seen = self.seen.subscribe();
        // Later it is done without us.
        let _ = timeout(SETTLE_TIMEOUT, seen.wait_for(|seen| seen.version >= version)).await;
    }

    /// Keeps everything attached that is to be, for ever.
    pub async fn keep(&self) {
        loop {
            let wanted = self.wanted().clone();
            let next = match self.turn(&wanted.attachments).await {
                Ok(seen) => Seen { version: wanted.version, ..seen },
                Err(error) => {
                    if self.seen.borrow().answers {
                        tracing::warn!("{error}");
                    }
                    Seen { version: wanted.version, ..Seen::default() }
                }
            };
            self.seen.send_replace(next);
            // Whichever comes first.
            let _ = timeout(INTERVAL, self.changed.notified()).await;
        }
    }

    async fn turn(&self, wanted: &BTreeMap<Uuid, Attachment>) -> Result<Seen, AskError> {
        let found: Vec<Function> = self.ask(&Request::Functions {}).await?;
        let mut next = Seen { answers: true, ..Seen::default() };
        let by_guest: BTreeMap<&Path, Uuid> =
            wanted.iter().map(|(id, attachment)| (attachment.guest.as_path(), *id)).collect();
        for function in &found {
            let Some(guest) = function.guest.as_deref().filter(|guest| self.place.owns_socket(guest)) else {
                continue;
            };
            match by_guest.get(guest) {
                Some(id) if wanted.get(id).is_some_and(|wanted| function.is(wanted)) => {
                    next.attached.insert(*id);
                    next.stops.extend(self.watch(*id, function).map(|stop| (*id, stop)));
                }
                // One that is to be otherwise is replaced.
                Some(_) => {}
                None => self.take_off(function).await?,
            }
        }
        self.watched().retain(|id, _| next.attached.contains(id));
        for (id, attachment) in
            wanted.iter().filter(|(id, _)| !next.attached.contains(id)).collect::<Vec<_>>()
        {
            match self.ask::<serde_json::Value>(&attachment.request()).await {
                Ok(_) => drop(next.attached.insert(*id)),
                Err(AskError::Refused(why)) => drop(next.refused.insert(*id, why)),
                Err(error) => return Err(error),
            }
        }
        Ok(next)
    }

    /// Compares what a function counts with what it did a moment ago.
    fn watch(&self, id: Uuid, function: &Function) -> Option<PacketStop> {
        let mut watched = self.watched();
        watched.entry(id).or_default().look(&function.frames, &function.stops, Instant::now())
    }

    fn watched(&self) -> std::sync::MutexGuard<'_, BTreeMap<Uuid, stops::Watched>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn take_off(&self, function: &Function) -> Result<(), AskError> {
        let (node, port, function) = (function.node.as_str(), function.port, function.function);
        match self.ask::<serde_json::Value>(&Request::Detach { node, port, function }).await {
            Err(AskError::Refused(why)) => tracing::warn!("cannot take {node} off the fabric: {why}"),
            Err(error) => return Err(error),
            Ok(_) => {}
        }
        Ok(())
    }

    async fn ask<T: DeserializeOwned>(&self, request: &Request<'_>) -> Result<T, AskError> {
        let silent = |source| AskError::Silent { path: self.control.clone(), source };
        let asked = timeout(ANSWER_TIMEOUT, converse(&self.control, request)).await;
        let line = asked.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map_err(silent)?;
        match serde_json::from_str(&line) {
            Ok(Reply::Ok(answer)) => Ok(answer),
            Ok(Reply::Error(why)) => Err(AskError::Refused(why)),
            Err(error) => Err(silent(error.into())),
        }
    }

    fn wanted(&self) -> std::sync::MutexGuard<'_, Wanted> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn converse(control: &Path, request: &Request<'_>) -> io::Result<String> {
    let mut stream = UnixStream::connect(control).await?;
    let mut line = serde_json::to_string(request)?;
    line.push('\n');
    stream.write_all(line.as_bytes()).await?;
    let mut answer = String::new();
    BufReader::new(stream.take(ANSWER_BYTES_MAX)).read_line(&mut answer).await?;
    Ok(answer)
}

impl Attachment {
    fn request(&self) -> Request<'_> {
        let AdapterOrder { port, function, mac, pkey, group, ref further, .. } = self.adapter;
        let (guest, fabric) = (self.guest.as_path(), self.fabric.as_path());
        let (node, sl) = (self.node.as_str(), self.sl);
        Request::Attach { node, port, function, mac, pkey, sl, group, further, guest, fabric }
    }
}

impl Function {
    fn is(&self, wanted: &Attachment) -> bool {
        let AdapterOrder { port, function, mac, pkey, group, ref further, .. } = wanted.adapter;
        (self.port, self.function, self.mac, self.pkey, self.sl, self.group, &self.further)
            == (port, function, mac, pkey, wanted.sl, group, further)
    }
}
