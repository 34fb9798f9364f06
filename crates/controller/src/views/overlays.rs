//! What tenants set in the networks of their clusters becomes part of the fabric's plan, if that can be.
//!
//! A wish is tried by making and proving the whole plan with it, kept in the store, and in force when the fabric is equal to
//! that plan. Why the physical network cannot be so is for operators: a tenant is told that much only as concerns its own
//! virtual machines.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use controller_api::cluster::Phase;
use fabric_model::FabricPlan;
use fabric_model::plan::Finding;
use ib_wire::PartitionNumber;
use tenant_view::{Adaptation, PhysicalWish, Rule, WishChange, fold_classes};
use thiserror::Error;
use tokio::sync::Notify;
use uuid::Uuid;

use crate::lifecycle::node_name;
use crate::network;
use crate::quota::{self, QuotaExceeded, usage};
use crate::site::Site;
use crate::store::{ClusterRow, EventRecord, StoredOverlay, ViewPartition};

/// How long the manager of a tenant has to come back after a controller started, before what it wire_number set is forgotten.
const GRACE: Duration = Duration::from_secs(120);

/// What was overlay_queue and not looked at. A newer wish takes the place of an older one of the same cluster.
#[derive(Debug, Default)]
pub struct OverlayQueue {
    changes: Mutex<BTreeMap<Uuid, WishChange>>,
    come: Notify,
}

impl OverlayQueue {
    pub fn put(&self, cluster: Uuid, change: WishChange) {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner).insert(cluster, change);
        self.come.notify_one();
    }

    /// Has a change looked at again later, if there is none that is newer.
    fn put_back(&self, cluster: Uuid, change: WishChange) {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner).entry(cluster).or_insert(change);
    }

    fn take(&self) -> BTreeMap<Uuid, WishChange> {
        std::mem::take(&mut *self.changes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Carries out intent, for as long as it is polled.
pub async fn apply_overlays(site: Arc<Site>) -> ! {
    let mut woken = site.woken.subscribe();
    // Numbers of intent that the fabric is to be equal to.
    let mut in_progress: HashMap<Uuid, u64> = HashMap::new();
    let mut forgetting = std::pin::pin!(tokio::time::sleep(GRACE));
    let mut is_grace_over = false;
    loop {
        tokio::select! {
            () = site.views.overlay_queue.come.notified() => {}
            // The site keeps the sender for as long as this runs.
            _ = woken.changed() => {}
            () = &mut forgetting, if !is_grace_over => {
                is_grace_over = true;
                if let Err(error) = withdraw_unmanaged(&site).await {
                    tracing::warn!("intent of before were not forgotten: {error:#}");
                }
            }
        }
        for (cluster, change) in site.views.overlay_queue.take() {
            match apply_change(&site, cluster, &change).await {
                Ok(Some(number)) => drop(in_progress.insert(cluster, number)),
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(%cluster, "a wish was not carried out: {error:#}");
                    site.views.overlay_queue.put_back(cluster, change);
                }
            }
        }
        if let Err(error) = report_in_force(&site, &mut in_progress).await {
            tracing::warn!("intent were not put in force: {error:#}");
        }
    }
}

/// Tries a wish and keeps it; its number if the fabric is to become so.
async fn apply_change(site: &Site, id: Uuid, change: &WishChange) -> anyhow::Result<Option<u64>> {
    let _writer = site.writer.lock().await;
    let clusters = site.store.cluster_list().await?;
    let Some(before) = clusters.iter().find(|cluster| cluster.id == id) else { return Ok(None) };
    if matches!(before.phase, Phase::Deleting | Phase::Failed) {
        return Ok(None);
    }
    let now = site.store.now().wall;
    let mut after = before.clone();
    let (number, text) = match change {
        WishChange::Withdrawn { number } => {
            after.overlay = None;
            (*number, format!("wish {number}: the network is as by default"))
        }
        WishChange::Wished { number, wish: overlay } => {
            let new = new_partitions(before, overlay);
            if let Err(error) = check_quota(site, before, new).await? {
                refuse(site, id, *number, error.to_string()).await;
                return Ok(None);
            }
            let numbers = match site.store.number_free(new).await? {
                Ok(numbers) => numbers,
                Err(error) => {
                    refuse(site, id, *number, error.to_string()).await;
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
            (*number, format!("wish {number}: the network is to be as its tenant set it"))
        }
    };
    if after.overlay != before.overlay {
        if keys(before) != keys(&after) || wire_sls(before) != wire_sls(&after) {
            after.generation += 1;
        }
        let (tenant, cluster) = (Some(after.tenant.clone()), Some(after.name.clone()));
        let event = EventRecord { at: now, tenant, cluster, kind: "cluster.network-overlay_queue", text };
        site.store.cluster_save(before, &after, false, &[event]).await?;
        site.noted(Some(&after.tenant));
        site.wake();
    }
    Ok(Some(number))
}

/// The keys of all nodes.
fn keys(cluster: &ClusterRow) -> Vec<Vec<ib_wire::Pkey>> {
    cluster.nodes.iter().map(|node| network::node_keys(cluster, node.number)).collect()
}

/// The wire_sls of its classes, of which nodes are told.
fn wire_sls(cluster: &ClusterRow) -> &[ib_wire::ServiceLevel] {
    cluster.overlay.as_ref().map_or(&[], |overlay| &overlay.wire_sls)
}

/// Whether the quota of its tenant lets a cluster have more partitions.
async fn check_quota(
    site: &Site,
    cluster: &ClusterRow,
    new: usize,
) -> anyhow::Result<Result<(), QuotaExceeded>> {
    let tenant = &cluster.tenant;
    let row = site.store.tenant_show(tenant.id).await?.context("the tenant is gone")?;
    let numbers = site.store.number_count(tenant.id).await?;
    let (has, would_have) = (usage([], numbers), usage([], numbers + new as u32));
    Ok(quota::check(&tenant.name, &row.quota.quota(), 0, &has, &would_have))
}

/// The number on the wire of a partition that a tenant has made before.
fn wire_number(cluster: &ClusterRow, view_number: PartitionNumber) -> Option<PartitionNumber> {
    let wire_number = cluster.overlay.iter().flat_map(|overlay| &overlay.partitions);
    wire_number
        .filter(|wire_number| wire_number.view_number == view_number)
        .map(|wire_number| wire_number.number)
        .next()
}

/// Partitions that need a number.
fn new_partitions(cluster: &ClusterRow, overlay: &PhysicalWish) -> usize {
    let inner = overlay.partitions.keys().filter(|view_number| **view_number != PartitionNumber::DEFAULT);
    inner.filter(|view_number| wire_number(cluster, **view_number).is_none()).count()
}

/// A wish as it is kept: nodes by their numbers, partitions with numbers of their own on the wire. What was there before keeps
/// its number; `next` has one for each of the others.
fn stored_overlay(
    cluster: &ClusterRow,
    overlay: &PhysicalWish,
    next: &mut impl Iterator<Item = PartitionNumber>,
) -> StoredOverlay {
    let number = |name: &String| {
        let node = cluster.nodes.iter().find(|node| node_name(cluster, node) == *name)?;
        Some(node.number)
    };
    let (routes, classes) = (overlay.routes.clone(), overlay.classes.clone());
    // Levels of the same classes stay until the fabric says otherwise.
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

/// Why the fabric cannot be as a tenant intent, as that tenant may know it.
#[derive(Debug, Error)]
enum OverlayRejection {
    #[error("its packets cannot be divided into classes")]
    Classes,
    #[error(
        "packets to {node} cannot go that way: they would turn where no packet may, and links could wait for each other for \
         ever"
    )]
    Route { node: String },
    #[error("the physical network cannot be so beside what others have of it")]
    Fabric,
}

/// Whether the fabric can be as a cluster is overlay_queue, beside what others have.
async fn check_plan(
    site: &Site,
    cluster: &ClusterRow,
    all: &[ClusterRow],
) -> anyhow::Result<Result<(), OverlayRejection>> {
    let fabric = site.with_observed(|observed| observed.fabric.clone());
    let discovered = fabric.discovered.clone().context("the fabric is not known")?;
    let changed = |other: &ClusterRow| if other.id == cluster.id { cluster.clone() } else { other.clone() };
    let clusters: Vec<ClusterRow> = all.iter().map(changed).collect();
    let intent = Arc::new(network::fabric_intent(&clusters));
    let plan = match crate::manager::compile(site, discovered, intent, &fabric).await? {
        Ok(plan) => plan,
        Err(error) => {
            tracing::info!(cluster = %cluster.name, "a wish cannot be: {error}");
            return Ok(Err(OverlayRejection::Fabric));
        }
    };
    let own = cluster.overlay.as_ref().map(|overlay| &overlay.routes);
    let id = cluster.id.to_string();
    let left = plan.findings().iter().find_map(|finding| match finding {
        Finding::RouteNotTaken { port, .. } if own.is_some_and(|own| own.contains_key(port)) => {
            let node = cluster.nodes.iter().find(|node| node.port_guid == *port);
            let node = node.map(|node| node_name(cluster, node)).unwrap_or_default();
            Some((finding, OverlayRejection::Route { node }))
        }
        Finding::ClassesNotTaken { cluster, .. } if *cluster == id => {
            Some((finding, OverlayRejection::Classes))
        }
        _ => None,
    });
    Ok(match left {
        Some((finding, short)) => {
            tracing::info!(cluster = %cluster.name, "a wish cannot be: {finding}");
            Err(short)
        }
        None => Ok(()),
    })
}

async fn adapt(site: &Site, cluster: Uuid, number: u64, adaptation: Adaptation) {
    let tell = move |server: &mut super::ViewServer, _| {
        server.with(cluster, |view| view.adapt(number, adaptation));
    };
    site.views.with(tell).await;
}

async fn refuse(site: &Site, cluster: Uuid, number: u64, reason: String) {
    let tell = move |server: &mut super::ViewServer, _| {
        server.with(cluster, |view| view.refuse(number, reason));
    };
    site.views.with(tell).await;
}

/// Tells views what is in force, once the fabric is as all clusters want it.
async fn report_in_force(site: &Site, in_progress: &mut HashMap<Uuid, u64>) -> anyhow::Result<()> {
    if in_progress.is_empty() {
        return Ok(());
    }
    let clusters = site.store.cluster_list().await?;
    let programmed = site.with_observed(|observed| observed.fabric.programmed.clone());
    if programmed.is_none_or(|programmed| *programmed != network::fabric_intent(&clusters)) {
        return Ok(());
    }
    for (cluster, number) in in_progress.drain() {
        let tell = move |server: &mut super::ViewServer, _| {
            server.with(cluster, |view| view.put_in_force(number));
        };
        site.views.with(tell).await;
    }
    Ok(())
}

/// Forgets what tenants wire_number set whose manager has not come back: views started as by default.
async fn withdraw_unmanaged(site: &Site) -> anyhow::Result<()> {
    for cluster in site.store.cluster_list().await?.into_iter().filter(|cluster| cluster.overlay.is_some()) {
        let id = cluster.id;
        let told = site.views.with(move |server, _| server.summary(id)).await.flatten();
        if told.is_none_or(|told| told.status.rule == Rule::Default) {
            apply_change(site, id, &WishChange::Withdrawn { number: 0 }).await?;
        }
    }
    Ok(())
}

/// What tenants have divided and a plan could not, because others have come, is judged anew on what there is now.
pub async fn rejudge_undivided_classes(site: &Site, plan: &FabricPlan) {
    for finding in plan.findings() {
        let Finding::ClassesNotTaken { cluster, .. } = finding else { continue };
        if let Ok(id) = cluster.parse() {
            site.views.with(move |server, now| server.with(id, |view| view.judge_again(now))).await;
        }
    }
}

/// Ways and classes that tenants chose give way when there is no plan with them: they are judged anew on what there is then.
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
