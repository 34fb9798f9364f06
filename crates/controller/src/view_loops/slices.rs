//! Gives every cluster on the fabric its view: the slice of the plan that its nodes use.

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::Context as _;
use controller_api::cluster::Phase;
use fabric_model::FabricPlan;
use tenant_view::{ClusterPlacement, Names, NodePlacement, Slice, ViewShape};
use uuid::Uuid;

use crate::lifecycle::node_name;
use crate::network::{self, DiscoveredFabric};
use crate::site::Site;
use crate::store::{ClusterRow, NodeRow};
use crate::views::{ViewOwner, ViewServer};

/// Inputs of a view.
#[derive(Debug)]
struct Source {
    plan: Arc<FabricPlan>,
    cluster: ClusterPlacement,
    slice: Slice,
}

/// Control loop: creates, changes and removes views as clusters and plans change.
pub async fn run(site: Arc<Site>) -> ! {
    let mut woken = site.woken.subscribe();
    let mut sources = HashMap::new();
    loop {
        woken.mark_unchanged();
        if let Err(error) = update_once(&site, &mut sources).await {
            tracing::warn!("cannot update views: {error:#}");
        }
        // The sender lives in the site, so this never fails.
        let _ = woken.changed().await;
    }
}

async fn update_once(site: &Site, sources: &mut HashMap<Uuid, Source>) -> anyhow::Result<()> {
    let fabric = site.with_observed(|observed| observed.fabric.clone());
    let (Some(discovered), Some(plan), Some(_)) = (fabric.discovered, fabric.plan, fabric.programmed) else {
        return Ok(());
    };
    let clusters = site.store.cluster_list().await?;
    let gone: Vec<Uuid> =
        sources.keys().filter(|id| clusters.iter().all(|cluster| cluster.id != **id)).copied().collect();
    for id in gone {
        sources.remove(&id);
        site.views.with(move |server, _| server.remove(id)).await;
    }
    for row in &clusters {
        let Some(cluster) = seats(row, &clusters) else { continue };
        let is_known = |source: &Source| Arc::ptr_eq(&source.plan, &plan) && source.cluster == cluster;
        if sources.get(&row.id).is_some_and(is_known) {
            continue;
        }
        let slice = slice(&discovered, &plan, &cluster).await?;
        let Some(slice) = slice else { continue };
        let is_same = sources.get(&row.id).is_some_and(|source| source.slice == slice);
        if !is_same {
            show(site, row, slice.clone()).await?;
        }
        sources.insert(row.id, Source { plan: Arc::clone(&plan), cluster, slice });
    }
    Ok(())
}

/// The nodes of a cluster that are on the fabric; `None` if there are none.
fn seats(row: &ClusterRow, all: &[ClusterRow]) -> Option<ClusterPlacement> {
    if matches!(row.phase, Phase::Deleting | Phase::Failed) {
        return None;
    }
    let others = || all.iter().filter(|other| other.id != row.id).flat_map(|other| &other.nodes);
    let carried = row.nodes.iter().filter(|node| node.networked && !node.leaving);
    let seat = |node: &NodeRow| NodePlacement {
        node: node_name(row, node),
        port: node.port_guid,
        shared: others().any(|other| other.port_guid == node.port_guid),
        guid: network::adapter_guid(row, node),
    };
    let seats: Vec<NodePlacement> = carried.map(seat).collect();
    let cluster = ClusterPlacement { name: row.id.to_string(), partition: row.partition?, nodes: seats };
    (!cluster.nodes.is_empty()).then_some(cluster)
}

async fn slice(
    discovered: &Arc<DiscoveredFabric>,
    plan: &Arc<FabricPlan>,
    cluster: &ClusterPlacement,
) -> anyhow::Result<Option<Slice>> {
    let (discovered, plan, cluster) = (Arc::clone(discovered), Arc::clone(plan), cluster.clone());
    let work = move || Slice::of(&discovered.topology, &plan, &cluster, ViewShape::Network);
    match tokio::task::spawn_blocking(work).await.context("slicing the plan panicked")? {
        Ok(slice) => Ok(Some(slice)),
        Err(error) => {
            tracing::warn!("cannot create the view of a cluster: {error}");
            Ok(None)
        }
    }
}

/// Serves a slice under the permanent names of the cluster. New names are stored before they are served.
async fn show(site: &Site, row: &ClusterRow, slice: Slice) -> anyhow::Result<()> {
    let before: Names = site.store.view_names(row.id).await?;
    let mut names = before.clone();
    names.learn(&slice)?;
    if names != before {
        site.store.view_save(row.id, &names).await?;
    }
    let numbers = row.nodes.iter().map(|node| (node.number, node_name(row, node))).collect();
    let owner = ViewOwner { cluster: row.id, tenant: row.tenant.id };
    let put = move |server: &mut ViewServer, now| server.put(now, owner, slice, names, numbers);
    let shown = site.views.with(put).await;
    Ok(shown.context("views are no longer served")??)
}
