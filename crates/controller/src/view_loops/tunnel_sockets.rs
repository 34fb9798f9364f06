//! Tunnels from virtual machines into the view of their cluster: a session of the controller with every ready node. In a node with an
//! InfiniBand adapter, it is one with the adapter, and the guest needs nothing; in one with an Ethernet card, `heddle-guest view`
//! offers the sockets that preloaded tools expect. The controller attaches each stream to its adapter, so nothing a guest sends can
//! come from another one.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use controller_api::cluster::{AdapterKind, NodeState, Phase};
use controller_api::host::NewHost;
use controller_api::session::{FrameKind, NewSession, read_frame, write_frame};
use ib_transport::framed::Frame;
use ib_wire::TransactionId;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use uuid::Uuid;

use crate::agents::AgentClient;
use crate::site::Site;

/// Guest program that offers the sockets.
const COMMAND: [&str; 2] = ["/sbin/heddle-guest", "view"];

/// Pause before a closed tunnel is opened again, initially and at most: a guest may lack the program.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(300);

/// A tunnel that was open for this long resets the pause.
const GOOD: Duration = Duration::from_secs(30);

/// Interval of empty frames to a guest: one that has restarted then answers that it knows no such session.
const PROBE: Duration = Duration::from_secs(15);

/// Most bytes per read.
const PIECE: usize = 16 * 1024;

/// A tunnel that is kept open; closed when dropped.
struct Tunnel {
    task: JoinHandle<()>,
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Control loop: keeps a tunnel open to every node that is ready.
pub async fn run(site: Arc<Site>) -> ! {
    let mut woken = site.woken.subscribe();
    let mut tunnels: HashMap<Uuid, Tunnel> = HashMap::new();
    loop {
        woken.mark_unchanged();
        if let Err(error) = update_once(&site, &mut tunnels).await {
            tracing::warn!("cannot update the tunnels of guests: {error:#}");
        }
        // The sender lives in the site, so this never fails.
        let _ = woken.changed().await;
    }
}

async fn update_once(site: &Arc<Site>, tunnels: &mut HashMap<Uuid, Tunnel>) -> anyhow::Result<()> {
    let (clusters, hosts) = (site.store.cluster_list().await?, site.store.host_list().await?);
    let clusters = clusters.iter().filter(|it| !matches!(it.phase, Phase::Deleting | Phase::Failed));
    let nodes = clusters.flat_map(|cluster| cluster.nodes.iter().map(move |node| (cluster, node)));
    let staying: HashMap<Uuid, _> =
        nodes.filter(|(_, node)| !node.leaving).map(|(cluster, node)| (node.id, (cluster, node))).collect();
    // An open tunnel stays while its node gets a new context: a subnet manager behind it would lose its view and its
    // overlay.
    tunnels.retain(|node, _| staying.contains_key(node));
    for (cluster, node) in staying.into_values().filter(|(_, node)| node.state == NodeState::Ready) {
        let Some(host) = hosts.iter().find(|known| known.name == node.host) else { continue };
        tunnels.entry(node.id).or_insert_with(|| {
            let end =
                TunnelEnd { vm: node.id, adapter: cluster.adapter, cluster: cluster.id, node: node.number };
            let (site, host) = (Arc::clone(site), host.clone());
            Tunnel { task: tokio::spawn(async move { keep_open(&site, &host, end).await }) }
        });
    }
    Ok(())
}

/// The node at one end of a tunnel, and its place in the view at the other.
#[derive(Clone, Copy)]
struct TunnelEnd {
    vm: Uuid,
    adapter: AdapterKind,
    cluster: Uuid,
    node: u32,
}

/// Opens a tunnel, and again whenever it closes.
async fn keep_open(site: &Site, host: &NewHost, end: TunnelEnd) {
    let vm = end.vm;
    let mut pause = PAUSE;
    loop {
        let opened = Instant::now();
        if let Err(error) = forward(site, host, end).await {
            tracing::debug!(%vm, "a tunnel to a view closed: {error:#}");
        }
        pause = if opened.elapsed() >= GOOD { PAUSE } else { (2 * pause).min(PAUSE_MAX) };
        sleep(pause).await;
    }
}

/// Copies bytes between a node and its adapter in the view until either side ends.
async fn forward(site: &Site, host: &NewHost, end: TunnelEnd) -> anyhow::Result<()> {
    let agent = AgentClient::new(host)?;
    let guest = match end.adapter {
        AdapterKind::Infiniband => agent.adapter_view(end.vm).await?,
        AdapterKind::Ethernet => {
            let argv = COMMAND.map(str::to_owned).to_vec();
            agent.session(end.vm, &NewSession::Exec { argv }).await?
        }
    };
    let (mut from_guest, mut to_guest) = tokio::io::split(guest);
    let (mut from_view, mut to_view) = site.views.attach(end.cluster, end.node).await?.into_split();
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
