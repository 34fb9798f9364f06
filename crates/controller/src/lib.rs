//! The controller: stores the desired clusters of tenants, and reconciles hosts and fabric with them.
//!
//! ```text
//!  REST requests ──► store ──► reconcile: lifecycle ──► host specs ──► agents of hosts ──► reports ─┐
//!       ▲              │             ▲                                                              │
//!       │              └► manager: planning ─► plan ──► subnet manager ──► discovery ──► observed ◄─┘
//!       └── operations, events                                                              │
//!                                    └──────────────────────────────────────────────────────┘
//! ```
//!
//! Desired state is in the store before anybody acts on it; observed state is queried again after a restart. The
//! controller can therefore be killed at any time and continues where it was. `lifecycle`, `placement`, `admission`,
//! `network` and `planning` decide and do no I/O.

mod admission;
mod agents;
mod binding;
mod clock;
mod clusters;
mod event_waiters;
mod faults;
mod health;
mod hosts;
mod keys;
mod lifecycle;
mod loops;
mod manager;
mod network;
mod node_address;
mod observed;
mod placement;
mod planning;
mod quota;
mod rate;
mod reconcile;
mod recovery;
mod rest;
mod server;
mod site;
mod site_partitions;
mod socket;
mod store;
mod view_loops;
mod views;

use std::future::Future;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use controller_api::tenant::TokenLifetime;
use fabric_model::StatedHardware;
use loops::ControlLoops;
use manager::ManagerSockets;
pub use recovery::{AcceptedLoss, RecoverySummary, StoreMismatch, recover};
use server::Connections;
use site::Site;
use store::StoreLock;
use tokio::net::TcpListener;
use views::ViewService;

pub use clock::{Clock, SystemClock};

/// How often old records are deleted. A tenant can add a few thousand in this time.
const TRIM_INTERVAL: Duration = Duration::from_secs(60);

/// How often the store's clock is saved. Time since the last save is lost when the process is killed.
const CLOCK_INTERVAL: Duration = Duration::from_secs(5);

/// Name of the first operator token. It does not expire: it is kept in a file that only its owner can read.
const OPERATOR_TOKEN_NAME: &str = "operator-file";

/// Paths, addresses and the clock of a controller.
#[derive(Clone, Debug)]
pub struct ControllerSettings {
    /// SQLite file of the store.
    pub database: PathBuf,
    /// Unix socket of the REST interface. The controller must own its directory.
    pub socket: PathBuf,
    /// Additional TCP address of the REST interface; loopback only, because tokens are sent in the clear and clients
    /// cannot authenticate the server.
    pub listen: Option<SocketAddr>,
    /// Control sockets of the subnet managers, at least one. The controller follows whichever is the master.
    pub sm_controls: Vec<PathBuf>,
    /// What the operator states about the hardware of the fabric.
    pub hardware: StatedHardware,
    /// Unix socket at which views are served to the tunnels of agents.
    pub view_socket: PathBuf,
    /// File with the key that seals private keys in the store; created with a new store.
    pub key_file: PathBuf,
    /// File for the first operator token; written unless it holds a valid one.
    pub operator_token_file: PathBuf,
    /// File for the URL of `listen`, for people; clients do not read it.
    pub address_file: PathBuf,
    /// Part of every link that is kept for best effort beside guaranteed clusters, in percent.
    pub best_effort_percent: u8,
    pub clock: Arc<dyn Clock>,
}

/// Serves the REST interface and runs the control loops until `shutdown` resolves.
///
/// # Errors
/// If the store cannot be opened or is not the latest one of its site, if a socket cannot be bound, or if a control
/// loop ends or panics.
pub async fn serve(
    settings: ControllerSettings,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> anyhow::Result<()> {
    if let Some(address) = settings.listen {
        ensure!(
            address.ip().is_loopback(),
            "{address} is not a loopback address: tokens are sent in the clear; listen at 127.0.0.1"
        );
    }
    let (store, sidecar) = recovery::open(&settings.database, &settings.key_file, settings.clock).await?;
    let decisions = store.fabric_decisions().await?;
    let views = ViewService::start(&settings.view_socket)?;
    let identity = store.site_identity().await?;
    let sequences = store.spec_sequence_begin().await?;
    let managers = ManagerSockets::new(settings.sm_controls.clone());
    let mut site = Site::new(store, identity, sequences, sidecar, decisions, managers, views);
    site.best_effort_percent = settings.best_effort_percent;
    site.hardware = settings.hardware;
    let site = Arc::new(site);
    site.set_faults(site.store.fault_list().await?);
    let tcp = match settings.listen {
        Some(address) => {
            Some(TcpListener::bind(address).await.with_context(|| format!("cannot listen at {address}"))?)
        }
        None => None,
    };
    provide_operator_token(&site, &settings.operator_token_file).await?;
    let unix = socket::listen(&settings.socket)?;
    let mut loops = control_loops(&site);
    match &tcp {
        Some(tcp) => write_file(
            &settings.address_file,
            durable_file::PUBLIC,
            &format!("http://{}\n", tcp.local_addr()?),
        )?,
        None => remove_file(&settings.address_file)?,
    }
    let router = rest::router(site);
    let connections = Connections::new(nix::unistd::geteuid().as_raw());
    // A task for each listener: a flood at one must not delay the other.
    loops.spawn("unix connections", server::serve_unix(unix, router.clone(), Arc::clone(&connections)));
    if let Some(tcp) = tcp {
        loops.spawn("TCP connections", server::serve_tcp(tcp, router, connections));
    }
    let ended = tokio::select! {
        () = shutdown => Ok(()),
        failure = loops.failure() => Err(failure),
    };
    // Open streams and event queries are cut: they would delay the end, and nothing is lost with them.
    loops.stop().await;
    // From here on, connection attempts fail at once.
    let removed = remove_file(&settings.socket);
    ended?;
    removed
}

/// Starts all control loops.
fn control_loops(site: &Arc<Site>) -> ControlLoops {
    let mut loops = ControlLoops::default();
    loops.spawn("reconcile", reconcile::run(Arc::clone(site)));
    loops.spawn("agents", agents::run(Arc::clone(site)));
    loops.spawn("health", health::watch::run(Arc::clone(site)));
    loops.spawn("subnet manager heartbeat", manager::heartbeat(Arc::clone(site)));
    loops.spawn("subnet manager events", manager::watch(Arc::clone(site)));
    loops.spawn("fabric programming", manager::program(Arc::clone(site)));
    loops.spawn("views", view_loops::slices::run(Arc::clone(site)));
    loops.spawn("tunnel sockets", view_loops::tunnel_sockets::run(Arc::clone(site)));
    loops.spawn("view overlays", view_loops::overlays::run(Arc::clone(site)));
    loops.spawn("record trimming", trim(Arc::clone(site)));
    loops.spawn("clock", save_clock(Arc::clone(site)));
    loops
}

/// Seals the private keys in the store with a new key, which replaces the one in `key_file`. No controller may use the
/// store meanwhile.
pub async fn rekey(database: &Path, key_file: &Path) -> anyhow::Result<()> {
    ensure!(database.exists(), "there is no store at {}", database.display());
    let lock = StoreLock::acquire(database)?;
    store::rekey(database, key_file, lock)
        .await
        .with_context(|| format!("cannot rekey {}", database.display()))
}

/// Checks that the store is the latest one of its site; the error says what is wrong and how to proceed.
pub async fn check_store(database: &Path, key_file: &Path) -> anyhow::Result<()> {
    recovery::open(database, key_file, SystemClock::start()).await.map(drop)
}

/// The OpenAPI document of the REST interface, as committed in `docs/openapi.json`.
pub fn openapi() -> String {
    let text = rest::openapi().to_pretty_json();
    text.expect("the description has names as keys only") + "\n"
}

async fn provide_operator_token(site: &Site, path: &Path) -> anyhow::Result<()> {
    if let Ok(secret) = std::fs::read_to_string(path)
        && rest::read_token(site, &secret).await?.is_some()
    {
        return Ok(());
    }
    let name = OPERATOR_TOKEN_NAME.parse().ok();
    let new = rest::NewSecret { tenant: None, name, lifetime: TokenLifetime::Never };
    let issued = rest::issue(site, new).await?;
    write_file(path, durable_file::PRIVATE, &format!("{}\n", issued.secret))
}

/// Replaces a file, with the path in the error.
fn write_file(path: &Path, mode: u32, text: &str) -> anyhow::Result<()> {
    let written = durable_file::replace_with_mode(path, text.as_bytes(), mode);
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// Removes a file that an earlier process may have left.
fn remove_file(path: &Path) -> anyhow::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

async fn trim(site: Arc<Site>) -> ! {
    loop {
        let trimmed = site.store.record_trim().await;
        for result in [trimmed, site.store.log_empty().await] {
            if let Err(error) = result {
                tracing::warn!("{}", chain(&error));
            }
        }
        tokio::time::sleep(TRIM_INTERVAL).await;
    }
}

async fn save_clock(site: Arc<Site>) -> ! {
    loop {
        tokio::time::sleep(CLOCK_INTERVAL).await;
        if let Err(error) = site.store.clock_save().await {
            tracing::warn!("{}", chain(&error));
        }
    }
}

/// An error with all its causes, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}
