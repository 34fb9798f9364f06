//! From inside virtual machines to the network of their cluster: a session of the controller's own in every node that is
//! ready, in which `heddle-guest view` offers tools the sockets they look for. Where a stream ends is said here, so that
//! nothing a guest sends comes from another adapter than its own.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use controller_api::cluster::{NodeState, Phase};
use controller_api::host::NewHost;
use controller_api::session::{FrameKind, SessionRequest, read_frame, write_frame};
use ib_transport::framed::Frame;
use ib_wire::TransactionId;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use uuid::Uuid;

use crate::agents::AgentClient;
use crate::site::Site;

/// What offers the sockets.
const COMMAND: [&str; 2] = ["/sbin/heddle-guest", "view"];

/// How long to wait before a door that closed is opened again, at first and at most: a guest may have nothing that opens it.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(300);

/// A door that was open for so long was well.
const GOOD: Duration = Duration::from_secs(30);

/// How often a guest is told something: one that was started anew says then that it knows of no such session.
const PROBE: Duration = Duration::from_secs(15);

/// Bytes that are carried at once.
const PIECE: usize = 16 * 1024;

/// A door that is kept open.
struct Tunnel {
    task: JoinHandle<()>,
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Keeps a door open in every node that is ready, for as long as it is polled.
pub async fn run(site: Arc<Site>) -> ! {
    let mut woken = site.woken.subscribe();
    let mut tunnels: HashMap<Uuid, Tunnel> = HashMap::new();
    loop {
        woken.mark_unchanged();
        if let Err(error) = update_once(&site, &mut tunnels).await {
            tracing::warn!("tunnels of guests were not brought up to date: {error:#}");
        }
        // The site keeps the sender for as long as this runs.
        let _ = woken.changed().await;
    }
}

async fn update_once(site: &Arc<Site>, tunnels: &mut HashMap<Uuid, Tunnel>) -> anyhow::Result<()> {
    let (clusters, hosts) = (site.store.cluster_list().await?, site.store.host_list().await?);
    let clusters = clusters.iter().filter(|it| !matches!(it.phase, Phase::Deleting | Phase::Failed));
    let nodes = clusters.flat_map(|cluster| cluster.nodes.iter().map(move |node| (cluster.id, node)));
    let staying: HashMap<Uuid, _> =
        nodes.filter(|(_, node)| !node.leaving).map(|(cluster, node)| (node.id, (cluster, node))).collect();
    // One that is open stays while its node is told something new: a manager behind it would lose its network, and what it has
    // set in it.
    tunnels.retain(|node, _| staying.contains_key(node));
    for (cluster, node) in staying.into_values().filter(|(_, node)| node.state == NodeState::Ready) {
        let Some(host) = hosts.iter().find(|known| known.name == node.host) else { continue };
        tunnels.entry(node.id).or_insert_with(|| {
            let (site, host, vm, number) = (Arc::clone(site), host.clone(), node.id, node.number);
            Tunnel { task: tokio::spawn(async move { keep_open(&site, &host, vm, cluster, number).await }) }
        });
    }
    Ok(())
}

/// Opens a door, and again whenever it closes.
async fn keep_open(site: &Site, host: &NewHost, vm: Uuid, cluster: Uuid, node: u32) {
    let mut pause = PAUSE;
    loop {
        let opened = Instant::now();
        if let Err(error) = forward(site, host, vm, cluster, node).await {
            tracing::debug!(%vm, "the door to a view closed: {error:#}");
        }
        pause = if opened.elapsed() >= GOOD { PAUSE } else { (2 * pause).min(PAUSE_MAX) };
        sleep(pause).await;
    }
}

/// Carries what a guest sends to its adapter, and back, until either ends.
async fn forward(site: &Site, host: &NewHost, vm: Uuid, cluster: Uuid, node: u32) -> anyhow::Result<()> {
    let argv = COMMAND.map(str::to_owned).to_vec();
    let guest = AgentClient::new(host)?.session(vm, &SessionRequest::Exec { argv }).await?;
    let (mut from_guest, mut to_guest) = tokio::io::split(guest);
    let (mut from_view, mut to_view) = site.views.attach(cluster, node).await?.into_split();
    let inward = async {
        loop {
            match read_frame(&mut from_guest).await? {
                Some((FrameKind::Output, bytes)) => {
                    to_view.write_all(&bytes).await.context("the view is gone")?
                }
                Some((FrameKind::Error, _)) => {}
                Some((FrameKind::Refused, why)) => bail!("{}", String::from_utf8_lossy(&why)),
                Some((FrameKind::Exit | FrameKind::Input, _)) | None => return anyhow::Ok(()),
            }
        }
    };
    let outward = async {
        let mut probe = interval(PROBE);
        probe.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut nothing = Vec::new();
        Frame::Lost(TransactionId(0)).encode(&mut nothing);
        let mut buffer = vec![0; PIECE];
        // The first frame is the view's own.
        let mut has_spoken = false;
        loop {
            tokio::select! {
                read = from_view.read(&mut buffer) => match read? {
                    0 => return Ok(()),
                    count => {
                        has_spoken = true;
                        write_frame(&mut to_guest, FrameKind::Input, &buffer[..count]).await?;
                    }
                },
                _ = probe.tick() => {
                    if has_spoken {
                        write_frame(&mut to_guest, FrameKind::Input, &nothing).await?;
                    }
                }
            }
        }
    };
    tokio::select! { ended = inward => ended, ended = outward => ended }
}
