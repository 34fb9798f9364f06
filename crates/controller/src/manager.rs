//! Client of the subnet manager: records what it discovers, and gives it plans.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use controller_api::fabric::{FabricState, Proof};
use fabric_model::intent::Capabilities;
use fabric_model::{FabricPlan, Intents, Topology, ibnetdiscover};
use ib_wire::Guid;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

use crate::binding::{choose, host_ports, new_claims};
use crate::clock::ClockReading;
use crate::faults::MANAGER_SILENCE_LIMIT;
use crate::lifecycle::{AdvanceOutcome, fail};
use crate::network::{self, DiscoveredFabric, FabricIntent};
use crate::observed::ObservedFabric;
use crate::planning::{PlanningError, check_tables};
use crate::site::Site;
use crate::view_loops::overlays;

/// Pause before the next attempt to reach the subnet manager.
const RETRY: Duration = Duration::from_millis(250);

/// Longest time to program a plan; a cold fabric of 11,664 hosts takes seconds.
const PLAN_TIMEOUT: Duration = Duration::from_secs(120);

/// Interval of heartbeats.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(2);

/// Control loop: pings the subnet manager. The thread that programs the fabric answers, so a manager that hangs is
/// noticed although its socket still accepts connections.
pub async fn heartbeat(site: Arc<Site>, control: PathBuf) -> ! {
    loop {
        let request = json!({ "command": "ping" });
        let answer = tokio::time::timeout(MANAGER_SILENCE_LIMIT, answer_line(&control, &request)).await;
        if matches!(answer, Ok(Ok(_))) {
            site.observe_quietly(|observed| observed.fabric.heard = Some(ClockReading::now()));
        }
        tokio::time::sleep(HEARTBEAT_INTERVAL).await;
    }
}

/// Control loop: follows the events of the subnet manager and records discoveries.
pub async fn watch(site: Arc<Site>, control: PathBuf) -> ! {
    let mut was_silent = false;
    loop {
        let error = match follow(&site, &control).await {
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
        tokio::time::sleep(RETRY).await;
    }
}

async fn follow(site: &Site, control: &Path) -> anyhow::Result<()> {
    let stream = UnixStream::connect(control).await.context("cannot connect to the subnet manager")?;
    let (answers, mut requests) = stream.into_split();
    requests.write_all(b"{\"command\":\"watch\"}\n").await?;
    let mut lines = BufReader::new(answers).lines();
    while let Some(line) = lines.next_line().await? {
        let event = read_answer(&line)?;
        match event["event"].as_str() {
            Some("discovered") => discovered(site, event).await?,
            Some(
                kind @ ("drift"
                | "stranger"
                | "silent-location"
                | "foreign-manager"
                | "foreign-manager-gone"
                | "state-unsaved"
                | "state-saved"),
            ) => {
                let text = describe(kind, &event);
                site.note(fabric_event(kind), text).await?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Event kind for an event of the subnet manager.
fn fabric_event(kind: &str) -> &'static str {
    match kind {
        "drift" => "fabric.drift",
        "stranger" => "fabric.stranger",
        "silent-location" => "fabric.silent-location",
        "foreign-manager" => "fabric.foreign-manager",
        "state-unsaved" => "fabric.state-unsaved",
        "state-saved" => "fabric.state-saved",
        _ => "fabric.foreign-manager-gone",
    }
}

fn describe(kind: &str, event: &Value) -> String {
    let text = |field: &str| event[field].as_str().map_or_else(|| event[field].to_string(), str::to_owned);
    match kind {
        "drift" => {
            format!(
                "attribute {} of {} was changed from outside; it is restored",
                event["attribute"],
                text("node")
            )
        }
        "stranger" => {
            format!("the device at {} claims to be {}, which is elsewhere", event["location"], text("claims"))
        }
        "silent-location" => {
            format!("no device responds at {}; last known there: {}", event["location"], event["last"])
        }
        "foreign-manager" => format!("another subnet manager runs on {}", text("node")),
        "state-unsaved" => {
            format!(
                "the subnet manager cannot save its state and changes nothing until it can: {}",
                text("error")
            )
        }
        "state-saved" => "the subnet manager can save its state again".to_owned(),
        _ => format!("the other subnet manager on {} is gone", text("node")),
    }
}

/// The part of a `discovered` event that is used here.
#[derive(Deserialize)]
struct Discovered {
    manager: Guid,
    topology: String,
    capabilities: Capabilities,
}

async fn discovered(site: &Site, event: Value) -> anyhow::Result<()> {
    let found: Discovered =
        serde_json::from_value(event).context("unexpected event from the subnet manager")?;
    let topology =
        ibnetdiscover::parse(&found.topology).context("unexpected event from the subnet manager")?;
    let mut intents = Intents::new(found.manager);
    intents.capabilities = found.capabilities;
    let host_ports = host_ports(&topology);
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
    let bindings = choose(pending, now, &hosts);
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
pub async fn program(site: Arc<Site>, control: PathBuf) -> ! {
    let mut woken = site.woken.subscribe();
    loop {
        woken.mark_unchanged();
        if let Err(error) = program_once(&site, &control).await {
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
    let intent = Arc::new(network::fabric_intent(&clusters));
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
async fn send(control: &Path, plan: &FabricPlan) -> anyhow::Result<()> {
    let request = json!({ "command": "plan", "plan": plan });
    let answer = tokio::time::timeout(PLAN_TIMEOUT, ask(control, &request)).await;
    answer.with_context(|| format!("the devices did not match the plan after {PLAN_TIMEOUT:?}"))??;
    Ok(())
}

/// Reads all tables back from the devices and verifies them. `None` while the devices do not match their plan.
pub async fn proof(site: &Site) -> anyhow::Result<Option<Proof>> {
    let before = site.with_observed(|observed| observed.fabric.clone());
    let (Some(discovered), Some(intent)) = (before.discovered, before.programmed) else { return Ok(None) };
    let request = json!({ "command": "read-back" });
    let answer = tokio::time::timeout(PLAN_TIMEOUT, ask(&site.sm_control, &request)).await;
    let held = answer.context("the subnet manager did not reply in time")??;
    // If the plan has changed meanwhile, the tables belong to neither plan.
    let after = site.with_observed(|observed| observed.fabric.clone());
    if after.epoch != before.epoch || after.programmed.as_ref() != Some(&intent) {
        return Ok(None);
    }
    let judged = tokio::task::spawn_blocking(move || -> anyhow::Result<Proof> {
        let held: FabricPlan =
            serde_json::from_value(held).context("unexpected reply from the subnet manager")?;
        Ok(Proof {
            switches: held.switches().len() as u32,
            ports: held.adapter_ports().len() as u32,
            findings: check_tables(&discovered, &intent, &held),
        })
    });
    judged.await.context("the verifier panicked")?.map(Some)
}

/// Sends one request to the subnet manager; returns its first reply.
async fn ask(control: &Path, request: &Value) -> anyhow::Result<Value> {
    read_answer(&answer_line(control, request).await?)
}

async fn answer_line(control: &Path, request: &Value) -> anyhow::Result<String> {
    let mut stream = UnixStream::connect(control).await.context("cannot connect to the subnet manager")?;
    let mut request = serde_json::to_vec(request)?;
    request.push(b'\n');
    stream.write_all(&request).await?;
    let answer = BufReader::new(stream).lines().next_line().await?;
    answer.context("the subnet manager closed the connection without a reply")
}

/// Parses a reply of the subnet manager: `ok` with a value, or `error` with a reason.
fn read_answer(line: &str) -> anyhow::Result<Value> {
    let mut answer: Value = serde_json::from_str(line).context("unexpected reply from the subnet manager")?;
    if let Some(error) = answer["error"].as_str() {
        bail!("the subnet manager rejects the request: {error}");
    }
    let value = answer["ok"].take();
    ensure!(!value.is_null(), "unexpected reply from the subnet manager: neither ok nor error");
    Ok(value)
}
