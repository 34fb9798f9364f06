//! The subnet manager: what it sees of the fabric, and the plans it is given.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
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
use crate::health::{ClockReading, MANAGER_SILENCE_LIMIT};
use crate::lifecycle::{AdvanceOutcome, fail};
use crate::network::{self, DiscoveredFabric, FabricIntent, PlanError};
use crate::site::{ObservedFabric, Site};
use crate::views;

/// How long to wait before the manager is asked again.
const RETRY: Duration = Duration::from_millis(250);

/// How long the manager may take to make the fabric equal to a plan; a cold fabric of 11,664 hosts takes seconds.
const PLAN_TIMEOUT: Duration = Duration::from_secs(120);

/// How often the manager is asked whether it works.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(2);

/// Asks the manager again and again whether it works, for as long as it is polled. Answered by the thread that programs the fabric:
/// one that hangs is heard no more, though its socket takes connections.
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

/// Watches the fabric for as long as it is polled.
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
            tracing::warn!("the subnet manager does not answer: {error:#}");
        }
        was_silent = true;
        tokio::time::sleep(RETRY).await;
    }
}

async fn follow(site: &Site, control: &Path) -> anyhow::Result<()> {
    let stream = UnixStream::connect(control).await.context("nobody is there")?;
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

/// The word for an event of the fabric.
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
            format!("somebody changed attribute {} of {}; it is put back", event["attribute"], text("node"))
        }
        "stranger" => {
            format!("{} claims to be {}, which does not sit there", event["location"], text("claims"))
        }
        "silent-location" => format!("nobody answers at {}; it was {}", event["location"], event["last"]),
        "foreign-manager" => format!("another subnet manager sits on {}", text("node")),
        "state-unsaved" => {
            format!(
                "the subnet manager cannot keep what was decided, so it changes nothing: {}",
                text("error")
            )
        }
        "state-saved" => "the subnet manager can keep what is decided again".to_owned(),
        _ => format!("the other subnet manager on {} has gone", text("node")),
    }
}

/// The part of a discovered that is needed here.
#[derive(Deserialize)]
struct Discovered {
    manager: Guid,
    topology: String,
    capabilities: Capabilities,
}

async fn discovered(site: &Site, event: Value) -> anyhow::Result<()> {
    let found: Discovered = serde_json::from_value(event).context("the manager tells nonsense")?;
    let topology = ibnetdiscover::parse(&found.topology).context("the manager tells nonsense")?;
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
    // A host that is added meanwhile is bound here, or finds what is observed here.
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

/// Binds hosts that were added without a GUID to the adapters that are observed now, and tells operators of adapters that call
/// themselves something new. The caller holds the writer.
async fn bind_hosts(site: &Site, before: Option<&Topology>, now: &Topology) -> anyhow::Result<()> {
    let hosts = site.store.host_list().await?;
    for claim in new_claims(before, now, &hosts) {
        site.note(claim.kind, claim.text).await?;
    }
    let pending = hosts.iter().filter(|host| host.port_guid.is_none()).map(|host| &host.name);
    let bindings = choose(pending, now, &hosts);
    let text = match bindings.as_slice() {
        [] => return Ok(()),
        [(name, port)] => format!("host {name} is port {port} from now on"),
        [(first, _), .., (last, _)] => {
            format!("{} hosts are bound to their ports, {first} to {last}", bindings.len())
        }
    };
    site.store.host_bind(&bindings).await?;
    site.note("host.bound", text).await?;
    Ok(())
}

/// Keeps the fabric equal to what clusters need, for as long as it is polled.
pub async fn program(site: Arc<Site>, control: PathBuf) -> ! {
    let mut woken = site.woken.subscribe();
    loop {
        woken.mark_unchanged();
        if let Err(error) = program_once(&site, &control).await {
            tracing::warn!("the fabric was not programmed: {error:#}");
            tokio::time::sleep(RETRY).await;
        } else {
            // The site keeps the sender for as long as this runs.
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
    let plan = match compile(site, discovered, Arc::clone(&intent), &fabric).await? {
        Ok(plan) => plan,
        Err(error) => {
            // Ways and classes of tenants come last: they never keep a plan from being made, only from being proved.
            let is_unsound = matches!(error, PlanError::Unsound { .. });
            if !is_unsound || !views::overlays::drop_overlays(site).await? {
                refuse_newest(site, &intent, &fabric, &error).await?;
            }
            return Err(error.into());
        }
    };
    // What is decided is safe before anybody hears of it.
    site.store.fabric_decide(plan.decisions()).await?;
    site.observe_quietly(|observed| observed.fabric.decisions = Arc::new(plan.decisions().clone()));
    send(control, &plan).await?;
    views::overlays::rejudge_undivided_classes(site, &plan).await;
    site.observe(|observed| {
        observed.fabric.plan = Some(plan);
        if observed.fabric.epoch == fabric.epoch {
            (observed.fabric.state, observed.fabric.programmed) = (FabricState::Programmed, Some(intent));
            observed.fabric.settled = Some(ClockReading::now());
        }
    });
    Ok(())
}

/// The plan by which intent come true, or why they cannot.
pub async fn compile(
    site: &Site,
    discovered: Arc<DiscoveredFabric>,
    intent: Arc<FabricIntent>,
    fabric: &ObservedFabric,
) -> anyhow::Result<Result<Arc<FabricPlan>, PlanError>> {
    let (previous, decisions) = (fabric.plan.clone(), Arc::clone(&fabric.decisions));
    let planner = Arc::clone(&site.planner);
    let work = move || {
        let mut planner = planner.lock().unwrap_or_else(PoisonError::into_inner);
        network::plan(&mut planner, &discovered, &intent, previous.as_deref(), &decisions)
    };
    tokio::task::spawn_blocking(work).await.context("the compiler broke")
}

/// What was asked for last is what the fabric cannot take: it fails, so that everything else goes on.
async fn refuse_newest(
    site: &Site,
    intent: &FabricIntent,
    fabric: &ObservedFabric,
    error: &PlanError,
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
            format!("the fabric cannot take it: {error}"),
        );
        fail(
            &mut after,
            "the network cannot carry it; operators see why in their events".to_owned(),
            now,
            &mut outcome,
        );
        site.store.cluster_save(&before, &after, false, &outcome.events).await?;
        site.noted(Some(&after.tenant));
        site.wake();
    }
    Ok(())
}

/// Gives the manager a plan; returns when the fabric is equal to it.
async fn send(control: &Path, plan: &FabricPlan) -> anyhow::Result<()> {
    let request = json!({ "command": "plan", "plan": plan });
    let answer = tokio::time::timeout(PLAN_TIMEOUT, ask(control, &request)).await;
    answer.with_context(|| format!("the fabric was not equal to the plan after {PLAN_TIMEOUT:?}"))??;
    Ok(())
}

/// Has every table read back from the devices, and judges what they hold. `None` while the fabric is not equal to its plan.
pub async fn proof(site: &Site) -> anyhow::Result<Option<Proof>> {
    let before = site.with_observed(|observed| observed.fabric.clone());
    let (Some(discovered), Some(intent)) = (before.discovered, before.programmed) else { return Ok(None) };
    let request = json!({ "command": "read-back" });
    let answer = tokio::time::timeout(PLAN_TIMEOUT, ask(&site.sm_control, &request)).await;
    let held = answer.context("the subnet manager takes too long")??;
    // If it has changed meanwhile, the tables are of neither plan.
    let after = site.with_observed(|observed| (observed.fabric.epoch, observed.fabric.programmed.clone()));
    if after.0 != before.epoch || after.1.as_ref() != Some(&intent) {
        return Ok(None);
    }
    let judged = tokio::task::spawn_blocking(move || -> anyhow::Result<Proof> {
        let held: FabricPlan = serde_json::from_value(held).context("the subnet manager tells nonsense")?;
        Ok(Proof {
            switches: held.switches().len() as u32,
            ports: held.adapter_ports().len() as u32,
            findings: network::check_tables(&discovered, &intent, &held),
        })
    });
    judged.await.context("the verifier broke")?.map(Some)
}

/// Asks the manager something; returns its first answer.
async fn ask(control: &Path, request: &Value) -> anyhow::Result<Value> {
    read_answer(&answer_line(control, request).await?)
}

async fn answer_line(control: &Path, request: &Value) -> anyhow::Result<String> {
    let mut stream = UnixStream::connect(control).await.context("the subnet manager does not answer")?;
    let mut request = serde_json::to_vec(request)?;
    request.push(b'\n');
    stream.write_all(&request).await?;
    let answer = BufReader::new(stream).lines().next_line().await?;
    answer.context("the subnet manager ended before it answered")
}

/// A line of the manager: something, or why not.
fn read_answer(line: &str) -> anyhow::Result<Value> {
    let mut answer: Value = serde_json::from_str(line).context("the subnet manager tells nonsense")?;
    if let Some(error) = answer["error"].as_str() {
        bail!("the subnet manager refuses: {error}");
    }
    let value = answer["ok"].take();
    ensure!(!value.is_null(), "the subnet manager tells nonsense");
    Ok(value)
}
