//! Client of the subnet manager: records what it discovers, and gives it plans. Of several managers it follows the master.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use control_protocol::sm::{EntryLack, LackPurpose};
use control_protocol::{FabricEvent, SmRequest, read_reply, sm};
use controller_api::fabric::{FabricState, Proof};
use fabric_model::intent::PortName;
use fabric_model::{FabricPlan, Intents, Topology, ibnetdiscover};
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

use crate::binding::{choose, host_ports, new_claims};
use crate::clock::ClockReading;
use crate::faults::MANAGER_SILENCE_LIMIT;
use crate::lifecycle::{AdvanceOutcome, fail};
use crate::network::{DiscoveredFabric, FabricIntent};
use crate::observed::ObservedFabric;
use crate::planning::{PlanningError, check_tables};
use crate::site::Site;
use crate::site_partitions;
use crate::view_loops::overlays;

/// Pause before the next attempt to reach the subnet manager.
const RETRY: Duration = Duration::from_millis(250);

/// Longest time to program a plan; a cold fabric of 11,664 hosts takes seconds.
const PLAN_TIMEOUT: Duration = Duration::from_secs(120);

/// Context of an error in what the subnet manager sends.
const UNEXPECTED: &str = "unexpected reply from the subnet manager";

/// Time between two heartbeats of the subnet manager.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(2);

/// The control sockets of the subnet managers of a site.
#[derive(Debug)]
pub struct ManagerSockets {
    sockets: Vec<PathBuf>,
    current: AtomicUsize,
}

impl ManagerSockets {
    /// The sockets of all managers, at least one.
    pub fn new(sockets: Vec<PathBuf>) -> Self {
        Self { sockets, current: AtomicUsize::new(0) }
    }

    /// The socket of the manager that is the master, as far as is known.
    pub fn current(&self) -> PathBuf {
        let index = self.current.load(Ordering::Relaxed);
        self.sockets.get(index).cloned().unwrap_or_default()
    }

    /// The current manager is not the master: tries the next one.
    fn look_further(&self) {
        let next = (self.current.load(Ordering::Relaxed) + 1) % self.sockets.len().max(1);
        self.current.store(next, Ordering::Relaxed);
    }
}

/// Control loop: pings the subnet manager. The thread that programs the fabric answers, so a manager that hangs is
/// noticed although its socket still accepts connections.
pub async fn heartbeat(site: Arc<Site>) -> ! {
    loop {
        let control = site.managers.current();
        let reply =
            tokio::time::timeout(MANAGER_SILENCE_LIMIT, reply_line(&control, &SmRequest::Ping {})).await;
        if matches!(reply, Ok(Ok(_))) {
            site.observe_quietly(|observed| observed.fabric.heard = Some(ClockReading::now()));
        }
        tokio::time::sleep(HEARTBEAT_INTERVAL).await;
    }
}

/// Control loop: follows the events of the subnet manager and records discoveries.
pub async fn watch(site: Arc<Site>) -> ! {
    let mut was_silent = false;
    loop {
        let error = match follow(&site, &site.managers.current()).await {
            Ok(()) => anyhow!("the connection was closed"),
            Err(error) => error,
        };
        let has_gone = site.observe(|observed| {
            let had = observed.fabric.state != FabricState::ManagerSilent;
            (observed.fabric.state, observed.fabric.programmed) = (FabricState::ManagerSilent, None);
            observed.fabric.epoch += 1;
            had
        });
        if has_gone || !was_silent {
            tracing::warn!("the subnet manager does not respond: {error:#}");
        }
        was_silent = true;
        site.managers.look_further();
        tokio::time::sleep(RETRY).await;
    }
}

async fn follow(site: &Site, control: &Path) -> anyhow::Result<()> {
    let stream = UnixStream::connect(control).await.context("cannot connect to the subnet manager")?;
    let (replies, mut requests) = stream.into_split();
    requests.write_all(&request_line(&SmRequest::Watch {})?).await?;
    let mut lines = BufReader::new(replies).lines();
    while let Some(line) = lines.next_line().await? {
        let event = read_reply(&line).context(UNEXPECTED)??;
        if let Some((kind, text)) = describe(&event) {
            site.note(kind, text).await?;
        }
        match event {
            FabricEvent::Discovered(found) => discovered(site, *found).await?,
            FabricEvent::Standby { master: Some(master) } => bail!("it waits: {master} is the master"),
            FabricEvent::Standby { master: None } => bail!("it waits to become the master"),
            FabricEvent::Yielded { .. } => bail!("it is not the master any more"),
            _ => {}
        }
    }
    Ok(())
}

/// Kind and text of the event that operators see for an event of the subnet manager; `None` if they see none.
fn describe(event: &FabricEvent) -> Option<(&'static str, String)> {
    let at = |location: &Option<PortName>| match location {
        Some(port) => port.to_string(),
        None => "the port of the subnet manager".to_owned(),
    };
    Some(match event {
        FabricEvent::Drift { node, attribute, .. } => (
            "fabric.drift",
            format!("attribute {attribute} of {node} was changed from outside; it is restored"),
        ),
        FabricEvent::Lacking(EntryLack { purpose, text, .. }) => match purpose {
            LackPurpose::Isolation => {
                ("fabric.not-isolated", format!("{text}; no tenant can use the port until it does"))
            }
            LackPurpose::Guarantee => {
                ("fabric.not-guaranteed", format!("{text}; nothing is guaranteed on its link until it does"))
            }
        },
        FabricEvent::LackEnded(EntryLack { port, .. }) => {
            ("fabric.recovered", format!("port {port} takes an entry that it did not take before"))
        }
        FabricEvent::LinkDamped { text, .. } => ("fabric.link-damped", text.clone()),
        FabricEvent::LinkRestored { link: [a, b] } => {
            ("fabric.link-restored", format!("link {a} - {b} counts as healthy again"))
        }
        FabricEvent::Stranger { location, claims } => (
            "fabric.stranger",
            format!("the device at {} claims to be {claims}, which is elsewhere", at(location)),
        ),
        FabricEvent::SilentLocation { location, last } => {
            let last = last.map_or_else(|| "nothing".to_owned(), |node| node.to_string());
            (
                "fabric.silent-location",
                format!("no device responds at {}; last known there: {last}", at(location)),
            )
        }
        FabricEvent::PortOverload { port } => (
            "fabric.overload",
            format!("port {port} asks subnet administration for more than its share and gets BUSY"),
        ),
        FabricEvent::ManagementFlood { port, bytes_per_second } => (
            "fabric.management-flood",
            format!(
                "port {port} sends {:.0} MB/s at the service level of management and may delay others there",
                *bytes_per_second as f64 / 1e6
            ),
        ),
        FabricEvent::ForeignManager { node, .. } => {
            ("fabric.foreign-manager", format!("another subnet manager runs on {node}"))
        }
        FabricEvent::ClaimRefused { text } => ("fabric.claim-refused", text.clone()),
        FabricEvent::ForeignManagerGone { node, .. } => {
            ("fabric.foreign-manager-gone", format!("the other subnet manager on {node} is gone"))
        }
        FabricEvent::KeysRotated { epoch, absent } => (
            "fabric.keys-rotated",
            format!(
                "all nodes that answer hold M_Keys of epoch {epoch}; {absent} that do not answer will get theirs later"
            ),
        ),
        FabricEvent::StateUnsaved { error } => (
            "fabric.state-unsaved",
            format!("the subnet manager cannot save its state and changes nothing until it can: {error}"),
        ),
        FabricEvent::StateSaved => {
            ("fabric.state-saved", "the subnet manager can save its state again".to_owned())
        }
        _ => return None,
    })
}

async fn discovered(site: &Site, found: sm::DiscoveredTopology) -> anyhow::Result<()> {
    let topology = ibnetdiscover::parse(&found.topology).context(UNEXPECTED)?;
    let mut intents = Intents::new(found.manager);
    intents.standby_managers.clone_from(&found.standby_managers);
    intents.capabilities = found.capabilities;
    intents.best_effort_percent = site.best_effort_percent;
    intents.hardware = site.hardware;
    let host_ports = host_ports(&topology);
    let lacks = Arc::new(found.lacks.into_iter().map(|lack| lack.text).collect());
    let text = format!(
        "{} switches, {} adapters, {} links",
        topology.switches().count(),
        topology.end_nodes().count(),
        topology.links().count()
    );
    let topology = Arc::new(topology);
    // A host that is added concurrently is bound either here, or against this discovery.
    let _writer = site.writer.lock().await;
    let before = site.with_observed(|observed| observed.fabric.discovered.clone());
    bind_hosts(site, before.as_ref().map(|discovered| &*discovered.topology), &topology).await?;
    site.observe(|observed| {
        let fabric = &mut observed.fabric;
        fabric.epoch += 1;
        fabric.state = FabricState::Programming;
        fabric.discovered = Some(Arc::new(DiscoveredFabric { topology: Arc::clone(&topology), intents }));
        fabric.host_ports = Arc::new(host_ports);
        fabric.lacks = lacks;
        fabric.programmed = None;
    });
    site.note("fabric.discovered", text).await?;
    Ok(())
}

/// Binds hosts that were added without a GUID to adapters discovered now, and records contradicting NodeDescriptions. The
/// caller holds [`Site::writer`].
async fn bind_hosts(site: &Site, before: Option<&Topology>, now: &Topology) -> anyhow::Result<()> {
    let hosts = site.store.host_list().await?;
    for claim in new_claims(before, now, &hosts) {
        site.note(claim.kind, claim.text).await?;
    }
    let pending = hosts.iter().filter(|host| host.port_guid.is_none()).map(|host| &host.name);
    let mut bindings = choose(pending, now, &hosts);
    let partitions = site_partitions::stored(&site.store).await?;
    // A port that the site keeps waits for an operator.
    bindings.retain(|(_, port)| site_partitions::obstacle(&partitions, *port).is_none());
    let text = match bindings.as_slice() {
        [] => return Ok(()),
        [(name, port)] => format!("host {name} bound to port {port}"),
        [(first, _), .., (last, _)] => {
            format!("{} hosts bound to their ports, {first} to {last}", bindings.len())
        }
    };
    site.store.host_bind(&bindings).await?;
    site.note("host.bound", text).await?;
    Ok(())
}

/// Control loop: compiles the desired state into plans and has them programmed.
pub async fn program(site: Arc<Site>) -> ! {
    let mut woken = site.woken.subscribe();
    loop {
        woken.mark_unchanged();
        if let Err(error) = program_once(&site, &site.managers.current()).await {
            tracing::warn!("cannot program the fabric: {error:#}");
            tokio::time::sleep(RETRY).await;
        } else {
            // The sender lives in the site, so this never fails.
            let _ = woken.changed().await;
        }
    }
}

async fn program_once(site: &Site, control: &Path) -> anyhow::Result<()> {
    let fabric = site.with_observed(|observed| observed.fabric.clone());
    let Some(discovered) = fabric.discovered.clone() else { return Ok(()) };
    if fabric.state == FabricState::ManagerSilent {
        return Ok(());
    }
    let clusters = site.store.cluster_list().await?;
    let intent = Arc::new(site.fabric_intent(&clusters).await?);
    if fabric.programmed.as_ref() == Some(&intent) {
        return Ok(());
    }
    site.observe_quietly(|observed| observed.fabric.state = FabricState::Programming);
    let candidate = match site.planning.propose(discovered, Arc::clone(&intent)).await {
        Ok(candidate) => candidate,
        Err(error) => {
            match error {
                // Route overrides and traffic classes have the lowest priority: they cannot prevent a plan, only its
                // verification.
                PlanningError::Unsound { .. } if overlays::drop_overlays(site).await? => {}
                PlanningError::Unsound { .. } | PlanningError::Compile(_) => {
                    refuse_newest(site, &intent, &fabric, &error).await?;
                }
                PlanningError::Panicked => {}
            }
            return Err(error.into());
        }
    };
    let plan = Arc::clone(candidate.plan());
    // Decisions are stored before the plan is current, and it is current before it is sent.
    site.store.fabric_decide(plan.decisions()).await?;
    site.planning.commit(candidate)?;
    site.observe_quietly(|observed| observed.fabric.decisions = Arc::new(plan.decisions().clone()));
    send(control, &plan).await?;
    overlays::rejudge_undivided_classes(site, &plan).await;
    site.observe(|observed| {
        observed.fabric.plan = Some(plan);
        if observed.fabric.epoch == fabric.epoch {
            (observed.fabric.state, observed.fabric.programmed) = (FabricState::Programmed, Some(intent));
            observed.fabric.settled = Some(ClockReading::now());
        }
    });
    Ok(())
}

/// Fails the newest cluster that is not programmed yet, because the fabric cannot carry it; all others proceed.
async fn refuse_newest(
    site: &Site,
    intent: &FabricIntent,
    fabric: &ObservedFabric,
    error: &PlanningError,
) -> anyhow::Result<()> {
    let _writer = site.writer.lock().await;
    let is_new =
        |member: (_, _)| fabric.programmed.as_ref().is_none_or(|known| !known.members.contains_key(&member));
    let clusters = site.store.cluster_list().await?;
    let newest = clusters.into_iter().rev().find(|cluster| {
        let Some(partition) = cluster.partition else { return false };
        let waits = |node: &crate::store::NodeRow| {
            !node.networked && intent.members.contains_key(&(partition, node.port_guid))
        };
        cluster.nodes.iter().any(|node| waits(node) && is_new((partition, node.port_guid)))
    });
    if let Some(before) = newest {
        let (mut after, now) = (before.clone(), site.store.now().wall);
        let mut outcome = AdvanceOutcome::default();
        outcome.note_for_operators(
            &after,
            now,
            "cluster.not-planned",
            format!("there is no plan for it: {error}"),
        );
        fail(
            &mut after,
            "the network cannot carry it; operators find the reason in their events".to_owned(),
            now,
            &mut outcome,
        );
        site.store.cluster_save(&before, &after, false, &outcome.events).await?;
        site.noted(Some(&after.tenant));
        site.wake();
    }
    Ok(())
}

/// Sends a plan to the subnet manager; returns when the devices match it.
async fn send(control: &Path, plan: &Arc<FabricPlan>) -> anyhow::Result<()> {
    let request = SmRequest::Plan { plan: Arc::clone(plan) };
    let reply = tokio::time::timeout(PLAN_TIMEOUT, send_request::<String>(control, &request)).await;
    reply.with_context(|| format!("the devices did not match the plan after {PLAN_TIMEOUT:?}"))??;
    Ok(())
}

/// Reads all tables back from the devices and verifies them. `None` while the devices do not match their plan.
pub async fn proof(site: &Site) -> anyhow::Result<Option<Proof>> {
    let before = site.with_observed(|observed| observed.fabric.clone());
    let (Some(discovered), Some(intent)) = (before.discovered, before.programmed) else { return Ok(None) };
    let request = SmRequest::ReadBack {};
    let reply =
        tokio::time::timeout(PLAN_TIMEOUT, send_request::<FabricPlan>(&site.managers.current(), &request))
            .await;
    let held = reply.context("the subnet manager did not reply in time")??;
    // If the plan has changed meanwhile, the tables belong to neither plan.
    let after = site.with_observed(|observed| observed.fabric.clone());
    if after.epoch != before.epoch || after.programmed.as_ref() != Some(&intent) {
        return Ok(None);
    }
    let judged = tokio::task::spawn_blocking(move || Proof {
        switches: held.switches().len() as u32,
        ports: held.adapter_ports().len() as u32,
        findings: check_tables(&discovered, &intent, &held),
    });
    judged.await.context("the verifier panicked").map(Some)
}

/// Sends one request to the subnet manager; returns its first reply.
async fn send_request<T: DeserializeOwned>(control: &Path, request: &SmRequest) -> anyhow::Result<T> {
    let reply = read_reply(&reply_line(control, request).await?).context(UNEXPECTED)?;
    reply.context("the subnet manager rejects the request")
}

async fn reply_line(control: &Path, request: &SmRequest) -> anyhow::Result<String> {
    let mut stream = UnixStream::connect(control).await.context("cannot connect to the subnet manager")?;
    stream.write_all(&request_line(request)?).await?;
    let reply = BufReader::new(stream).lines().next_line().await?;
    reply.context("the subnet manager closed the connection without a reply")
}

fn request_line(request: &SmRequest) -> anyhow::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    Ok(line)
}
