//! The networks of clusters as their tenants see and manage them.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use controller_api::view::{self, ClassMapping, PartitionMapping, ViewNode, ViewStatus};
use controller_api::{Name, Problem};

use super::access::Caller;
use super::clusters::{Whose, find};
use super::lease::Lease;
use super::refusal::{Json, Path, Query, Refusal};
use super::upgrade::Upgrade;
use crate::site::Site;
use crate::store::ClusterRow;

/// The network of a cluster: under which names its tenant sees it, who manages it, and what became of what was wished.
#[utoipa::path(get, path = "/v1/clusters/{name}/view", operation_id = "view_show", params(("name" = String, Path), Whose), responses((status = 200, body = ViewStatus), (status = "4XX", body = Problem, content_type = Problem::MEDIA_TYPE)))]
pub async fn show(
    State(site): State<Arc<Site>>,
    caller: Caller,
    Path(name): Path<Name>,
    Query(whose): Query<Whose>,
) -> Result<Json<ViewStatus>, Refusal> {
    let cluster = find(&site, &caller, &name, &whose).await?;
    told(&site, &cluster).await.map(Json)
}

/// Closes what is being written in the network of a cluster: it is judged now, not when nothing more was written for a while.
#[utoipa::path(post, path = "/v1/clusters/{name}/view/commit", operation_id = "view_commit", params(("name" = String, Path), Whose), responses((status = 200, body = ViewStatus), (status = "4XX", body = Problem, content_type = Problem::MEDIA_TYPE)))]
pub async fn commit(
    State(site): State<Arc<Site>>,
    caller: Caller,
    Path(name): Path<Name>,
    Query(whose): Query<Whose>,
) -> Result<Json<ViewStatus>, Refusal> {
    let cluster = find(&site, &caller, &name, &whose).await?;
    let id = cluster.id;
    site.views.with(move |gallery, now| gallery.with(id, |view| _ = view.commit(now))).await;
    told(&site, &cluster).await.map(Json)
}

/// Leads to the adapter of a node in the network of its cluster: the request is upgraded to `heddle-view`.
#[utoipa::path(
    post,
    path = "/v1/clusters/{name}/nodes/{number}/view",
    operation_id = "view_open",
    params(("name" = String, Path), ("number" = u32, Path), Whose),
    responses((status = 101, description = "frames from here on"), (status = "4XX", body = Problem, content_type = Problem::MEDIA_TYPE))
)]
pub async fn open(
    State(site): State<Arc<Site>>,
    caller: Caller,
    Path((name, number)): Path<(Name, u32)>,
    Query(whose): Query<Whose>,
    lease: Lease,
    mut request: Request,
) -> Result<Response, Refusal> {
    let upgrade = Upgrade::of(&mut request, view::PROTOCOL)?;
    let cluster = find(&site, &caller, &name, &whose).await?;
    if !cluster.nodes.iter().any(|node| node.number == number && !node.leaving) {
        return Err(Refusal::missing("node", format_args!("{number} in cluster {name}")));
    }
    told(&site, &cluster).await?;
    let far =
        site.views.seat(cluster.id, number).await.map_err(|error| {
            Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "no-view", format!("{error:#}"))
        })?;
    Ok(upgrade.join(far, lease))
}

async fn told(site: &Site, cluster: &ClusterRow) -> Result<ViewStatus, Refusal> {
    let id = cluster.id;
    let told = site.views.with(move |gallery, _| gallery.told(id)).await.flatten();
    let told = told.ok_or_else(|| {
        let detail = format!("cluster {} has no network to be seen yet", cluster.name);
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "not-yet", detail).hint("try again when it is ready")
    })?;
    let node = |alias: tenant_view::NodeAlias| ViewNode {
        node: alias.node,
        guid: alias.guid,
        port_guid: alias.port_guid,
        lid: alias.lid,
    };
    let json = |value| serde_json::to_value(value).unwrap_or_default();
    Ok(ViewStatus {
        partition: told.wire.partition,
        service_level: told.wire.service_level,
        partitions: (cluster.wish.iter())
            .flat_map(|wish| &wish.partitions)
            .map(|partition| PartitionMapping { view: partition.seen, wire: partition.number })
            .collect(),
        classes: (cluster.wish.iter())
            .flat_map(|wish| &wish.classes)
            .zip(&told.classes)
            .map(|(class, on_wire)| ClassMapping {
                view_sls: class.levels.clone(),
                wire_sl: on_wire.service_level,
                min_share_permille: on_wire.least_part,
            })
            .collect(),
        nodes: told.aliases.into_iter().map(node).collect(),
        managed_by: match told.status.rule {
            tenant_view::Rule::Default => None,
            tenant_view::Rule::Tenant { node } => Some(node),
        },
        pending: told.status.is_open,
        in_force: told.status.in_force,
        last_change: told.status.last.map(json),
    })
}
