//! Applies the overlays that tenants write into their views.
//!
//! A change is checked by compiling and verifying the whole plan with it, then stored; it is in force once the devices
//! match that plan. Why the physical network cannot carry it is logged for operators: a tenant learns only what concerns
//! its own nodes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use controller_api::cluster::Phase;
use fabric_model::FabricPlan;
use fabric_model::plan::PlanFinding;
use ib_wire::PartitionNumber;
use tenant_view::{Adaptation, OverlayChange, PhysicalOverlay, ViewManager, fold_classes};
use thiserror::Error;
use uuid::Uuid;

use crate::lifecycle::node_name;
use crate::network;
use crate::planning::PlanningError;
use crate::quota::{self, QuotaExceeded, usage};
use crate::site::Site;
use crate::store::{ClusterRow, EventRecord, StoredOverlay, ViewPartition};
use crate::views::ViewServer;

/// Time for a tenant's subnet manager to return after a start of the controller, before its overlay is withdrawn.
const GRACE: Duration = Duration::from_secs(120);

/// Control loop: applies changes, and reports to the views when the devices are programmed with them.
pub async fn run(site: Arc<Site>) -> ! {
    let mut woken = site.woken.subscribe();
    // Numbers of the changes that the fabric is being programmed with.
    let mut in_progress: HashMap<Uuid, u64> = HashMap::new();
    let mut forgetting = std::pin::pin!(tokio::time::sleep(GRACE));
    let mut is_grace_over = false;
    loop {
        tokio::select! {
            () = site.views.overlay_queue.wait() => {}
            // The sender lives in the site, so this never fails.
            _ = woken.changed() => {}
            () = &mut forgetting, if !is_grace_over => {
                is_grace_over = true;
                if let Err(error) = withdraw_unmanaged(&site).await {
                    tracing::warn!("cannot withdraw overlays without a subnet manager: {error:#}");
                }
            }
        }
        for (cluster, change) in site.views.overlay_queue.take() {
            match apply_change(&site, cluster, &change).await {
                Ok(Some(number)) => drop(in_progress.insert(cluster, number)),
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(%cluster, "cannot apply an overlay: {error:#}");
                    site.views.overlay_queue.put_back(cluster, change);
                }
            }
        }
        if let Err(error) = report_in_force(&site, &mut in_progress).await {
            tracing::warn!("cannot report overlays as in force: {error:#}");
        }
    }
}

/// Checks one change and stores it. Returns its number if the fabric is to be programmed with it; `None` if the cluster
/// is gone or the change is rejected.
async fn apply_change(site: &Site, id: Uuid, change: &OverlayChange) -> anyhow::Result<Option<u64>> {
    let _writer = site.writer.lock().await;
    let clusters = site.store.cluster_list().await?;
    let Some(before) = clusters.iter().find(|cluster| cluster.id == id) else { return Ok(None) };
    if matches!(before.phase, Phase::Deleting | Phase::Failed) {
        return Ok(None);
    }
    let now = site.store.now().wall;
    let mut after = before.clone();
    let (number, text) = match change {
        OverlayChange::Withdrawn { number } => {
            after.overlay = None;
            (*number, format!("change {number}: default configuration restored"))
        }
        OverlayChange::Set { number, overlay } => {
            let new = new_partitions(before, overlay);
            if let Err(error) = check_quota(site, before, new).await? {
                refuse(site, id, *number, error.to_string()).await;
                return Ok(None);
            }
            let numbers = match site.store.number_free(new).await? {
                Ok(numbers) => numbers,
                Err(error) => {
                    tracing::info!(cluster = %before.name, "overlay rejected: {error}");
                    refuse(site, id, *number, OverlayRejection::Numbers.to_string()).await;
                    return Ok(None);
                }
            };
            let overlay = stored_overlay(before, overlay, &mut numbers.into_iter());
            let (wanted, mut given) = (overlay.classes.len(), overlay.classes.len());
            after.overlay = Some(overlay);
            while let Err(short) = check_plan(site, &after, &clusters).await? {
                let classes = after.overlay.as_mut().map(|overlay| &mut overlay.classes);
                match (short, classes) {
                    (OverlayRejection::Classes, Some(classes)) if given > 1 => {
                        given -= 1;
                        *classes = fold_classes(classes, given);
                    }
                    (short, _) => {
                        refuse(site, id, *number, short.to_string()).await;
                        return Ok(None);
                    }
                }
            }
            if given < wanted {
                adapt(site, id, *number, Adaptation::ClassesFolded { wanted, given, link: None }).await;
            }
            (*number, format!("change {number}: overlay accepted"))
        }
    };
    if after.overlay != before.overlay {
        if keys(before) != keys(&after) || wire_sls(before) != wire_sls(&after) {
            after.generation += 1;
        }
        let (tenant, cluster) = (Some(after.tenant.clone()), Some(after.name.clone()));
        let event = EventRecord { at: now, tenant, cluster, kind: "cluster.overlay-accepted", text };
        site.store.cluster_save(before, &after, false, &[event]).await?;
        site.noted(Some(&after.tenant));
        site.wake();
    }
    Ok(Some(number))
}

/// P_Keys of all nodes.
fn keys(cluster: &ClusterRow) -> Vec<Vec<ib_wire::Pkey>> {
    cluster.nodes.iter().map(|node| network::node_keys(cluster, node.number)).collect()
}

/// Service levels of the traffic classes on the wire.
fn wire_sls(cluster: &ClusterRow) -> &[ib_wire::ServiceLevel] {
    cluster.overlay.as_ref().map_or(&[], |overlay| &overlay.wire_sls)
}

/// Whether the tenant's quota allows `new` more partitions.
async fn check_quota(
    site: &Site,
    cluster: &ClusterRow,
    new: usize,
) -> anyhow::Result<Result<(), QuotaExceeded>> {
    let tenant = &cluster.tenant;
    let row = site.store.tenant_show(tenant.id).await?.context("the tenant does not exist")?;
    let numbers = site.store.number_count(tenant.id).await?;
    let (has, would_have) = (usage([], numbers), usage([], numbers + new as u32));
    Ok(quota::check(&tenant.name, &row.quota.quota(), 0, &has, &would_have))
}

/// Number on the wire of a partition that the tenant created before.
fn wire_number(cluster: &ClusterRow, view_number: PartitionNumber) -> Option<PartitionNumber> {
    let wire_number = cluster.overlay.iter().flat_map(|overlay| &overlay.partitions);
    wire_number
        .filter(|wire_number| wire_number.view_number == view_number)
        .map(|wire_number| wire_number.number)
        .next()
}

/// Number of partitions that need a new number.
fn new_partitions(cluster: &ClusterRow, overlay: &PhysicalOverlay) -> usize {
    let inner = overlay.partitions.keys().filter(|view_number| **view_number != PartitionNumber::DEFAULT);
    inner.filter(|view_number| wire_number(cluster, **view_number).is_none()).count()
}

/// An overlay as it is stored: nodes by number, partitions with their numbers on the wire. Known partitions keep their
/// numbers; `next` yields one for each other.
fn stored_overlay(
    cluster: &ClusterRow,
    overlay: &PhysicalOverlay,
    next: &mut impl Iterator<Item = PartitionNumber>,
) -> StoredOverlay {
    let number = |name: &String| {
        let node = cluster.nodes.iter().find(|node| node_name(cluster, node) == *name)?;
        Some(node.number)
    };
    let (routes, classes) = (overlay.routes.clone(), overlay.classes.clone());
    // Unchanged classes keep their service levels until the fabric assigns others.
    let wire_sls = cluster
        .overlay
        .iter()
        .filter(|overlay| overlay.classes == classes)
        .flat_map(|overlay| &overlay.wire_sls);
    let wire_sls = wire_sls.copied().collect();
    let mut kept = StoredOverlay { routes, classes, wire_sls, ..StoredOverlay::default() };
    for (view_number, members) in &overlay.partitions {
        let members = members.iter().filter_map(|(name, role)| Some((number(name)?, *role))).collect();
        if *view_number == PartitionNumber::DEFAULT {
            kept.own_roles = members;
        } else if let Some(number) = wire_number(cluster, *view_number).or_else(|| next.next()) {
            kept.partitions.push(ViewPartition { view_number: *view_number, number, members });
        }
    }
    kept
}

/// Why an overlay is rejected, in terms of the tenant's own nodes. The full reason is logged for operators.
#[derive(Debug, Error)]
enum OverlayRejection {
    #[error("no partition number is free now")]
    Numbers,
    #[error("the network cannot divide its packets into traffic classes")]
    Classes,
    #[error("the route to {node} is not allowed: it takes a down-to-up hop, which could deadlock the fabric")]
    Route { node: String },
    #[error("the physical network cannot carry this beside its other clusters")]
    Fabric,
}

/// Whether there is a verified plan with this overlay and all other clusters.
async fn check_plan(
    site: &Site,
    cluster: &ClusterRow,
    all: &[ClusterRow],
) -> anyhow::Result<Result<(), OverlayRejection>> {
    let discovered = site.with_observed(|observed| observed.fabric.discovered.clone());
    let discovered = discovered.context("the fabric has not been discovered")?;
    let changed = |other: &ClusterRow| if other.id == cluster.id { cluster.clone() } else { other.clone() };
    let clusters: Vec<ClusterRow> = all.iter().map(changed).collect();
    let intent = Arc::new(site.fabric_intent(&clusters).await?);
    let candidate = match site.planning.propose(discovered, intent).await {
        Ok(candidate) => candidate,
        Err(error @ PlanningError::Panicked) => return Err(error.into()),
        Err(error) => {
            tracing::info!(cluster = %cluster.name, "overlay rejected: {error}");
            return Ok(Err(OverlayRejection::Fabric));
        }
    };
    let own = cluster.overlay.as_ref().map(|overlay| &overlay.routes);
    let id = cluster.id.to_string();
    let left = candidate.plan().findings().iter().find_map(|finding| match finding {
        PlanFinding::RouteOverrideRejected { port, .. } if own.is_some_and(|own| own.contains_key(port)) => {
            let node = cluster.nodes.iter().find(|node| node.port_guid == *port);
            let node = node.map(|node| node_name(cluster, node)).unwrap_or_default();
            Some((finding, OverlayRejection::Route { node }))
        }
        PlanFinding::ClassWeightsRejected { cluster, .. } if *cluster == id => {
            Some((finding, OverlayRejection::Classes))
        }
        _ => None,
    });
    Ok(match left {
        Some((finding, short)) => {
            tracing::info!(cluster = %cluster.name, "overlay rejected: {finding}");
            Err(short)
        }
        None => Ok(()),
    })
}

async fn adapt(site: &Site, cluster: Uuid, number: u64, adaptation: Adaptation) {
    let tell = move |server: &mut ViewServer, _| {
        server.with(cluster, |view| view.adapt(number, adaptation));
    };
    site.views.with(tell).await;
}

async fn refuse(site: &Site, cluster: Uuid, number: u64, reason: String) {
    let tell = move |server: &mut ViewServer, _| {
        server.with(cluster, |view| view.refuse(number, reason));
    };
    site.views.with(tell).await;
}

/// Reports to the views which changes are in force, once the devices match the intent of all clusters.
async fn report_in_force(site: &Site, in_progress: &mut HashMap<Uuid, u64>) -> anyhow::Result<()> {
    if in_progress.is_empty() {
        return Ok(());
    }
    let clusters = site.store.cluster_list().await?;
    let programmed = site.with_observed(|observed| observed.fabric.programmed.clone());
    let intent = site.fabric_intent(&clusters).await?;
    if programmed.is_none_or(|programmed| *programmed != intent) {
        return Ok(());
    }
    for (cluster, number) in in_progress.drain() {
        let tell = move |server: &mut ViewServer, _| {
            server.with(cluster, |view| view.put_in_force(number));
        };
        site.views.with(tell).await;
    }
    Ok(())
}

/// Withdraws overlays whose subnet manager has not returned: their views started with the default configuration.
async fn withdraw_unmanaged(site: &Site) -> anyhow::Result<()> {
    for cluster in site.store.cluster_list().await?.into_iter().filter(|cluster| cluster.overlay.is_some()) {
        let id = cluster.id;
        let summary = site.views.with(move |server, _| server.summary(id)).await.flatten();
        if summary.is_none_or(|summary| summary.status.managed_by == ViewManager::Default) {
            apply_change(site, id, &OverlayChange::Withdrawn { number: 0 }).await?;
        }
    }
    Ok(())
}

/// Makes views evaluate their traffic classes again if the plan could not apply them because other clusters have come.
pub async fn rejudge_undivided_classes(site: &Site, plan: &FabricPlan) {
    for finding in plan.findings() {
        let PlanFinding::ClassWeightsRejected { cluster, .. } = finding else { continue };
        if let Ok(id) = cluster.parse() {
            site.views.with(move |server, now| server.with(id, |view| view.judge_again(now))).await;
        }
    }
}

/// Drops route overrides and traffic classes of all tenants when no plan exists with them; the views evaluate them again.
/// Whether there were any.
pub async fn drop_overlays(site: &Site) -> anyhow::Result<bool> {
    let _writer = site.writer.lock().await;
    let mut were_any = false;
    for before in site.store.cluster_list().await? {
        let mut after = before.clone();
        let Some(overlay) = after.overlay.as_mut() else { continue };
        let (routes, classes) = (std::mem::take(&mut overlay.routes), std::mem::take(&mut overlay.classes));
        if routes.is_empty() && classes.len() < 2 {
            continue;
        }
        were_any = true;
        site.store.cluster_save(&before, &after, false, &[]).await?;
        let id = after.id;
        site.views.with(move |server, now| server.with(id, |view| view.judge_again(now))).await;
    }
    Ok(were_any)
}
