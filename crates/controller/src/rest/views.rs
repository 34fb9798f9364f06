//! Tenant views of clusters.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use controller_api::view::{self, ClassMapping, PartitionMapping, ViewNode, ViewStatus};
use controller_api::{ApiProblem, Name};

use super::access::Caller;
use super::clusters::{TenantQuery, find};
use super::error::{ApiError, Json, Path, Query};
use super::lease::Lease;
use super::upgrade::Upgrade;
use crate::site::Site;
use crate::store::ClusterRow;

/// Show the view of a cluster
///
/// Its network under the names of its tenant, the node that manages it, and the verdict on the last change.
#[utoipa::path(get, path = "/v1/clusters/{name}/view", operation_id = "view_show", params(("name" = String, Path), TenantQuery), responses((status = 200, body = ViewStatus), (status = "4XX", body = ApiProblem, content_type = ApiProblem::MEDIA_TYPE)))]
pub async fn show(
    State(site): State<Arc<Site>>,
    caller: Caller,
    Path(name): Path<Name>,
    Query(tenant_query): Query<TenantQuery>,
) -> Result<Json<ViewStatus>, ApiError> {
    let cluster = find(&site, &caller, &name, &tenant_query).await?;
    view_status(&site, &cluster).await.map(Json)
}

/// Commit pending changes of a view
///
/// Evaluates them now instead of after half a second without writes.
#[utoipa::path(post, path = "/v1/clusters/{name}/view/commit", operation_id = "view_commit", params(("name" = String, Path), TenantQuery), responses((status = 200, body = ViewStatus), (status = "4XX", body = ApiProblem, content_type = ApiProblem::MEDIA_TYPE)))]
pub async fn commit(
    State(site): State<Arc<Site>>,
    caller: Caller,
    Path(name): Path<Name>,
    Query(tenant_query): Query<TenantQuery>,
) -> Result<Json<ViewStatus>, ApiError> {
    let cluster = find(&site, &caller, &name, &tenant_query).await?;
    let id = cluster.id;
    site.views.with(move |server, now| server.with(id, |view| _ = view.commit(now))).await;
    view_status(&site, &cluster).await.map(Json)
}

/// Open a stream to a node's adapter in its view
///
/// The connection is upgraded to `heddle-view`.
#[utoipa::path(
    post,
    path = "/v1/clusters/{name}/nodes/{number}/view",
    operation_id = "view_open",
    params(("name" = String, Path), ("number" = u32, Path), TenantQuery),
    responses((status = 101, description = "Switching protocols; frames follow"), (status = "4XX", body = ApiProblem, content_type = ApiProblem::MEDIA_TYPE))
)]
pub async fn open(
    State(site): State<Arc<Site>>,
    caller: Caller,
    Path((name, number)): Path<(Name, u32)>,
    Query(tenant_query): Query<TenantQuery>,
    lease: Lease,
    mut request: Request,
) -> Result<Response, ApiError> {
    let upgrade = Upgrade::of(&mut request, view::PROTOCOL)?;
    let cluster = find(&site, &caller, &name, &tenant_query).await?;
    if !cluster.nodes.iter().any(|node| node.number == number && !node.leaving) {
        return Err(ApiError::not_found("node", format_args!("{number} in cluster {name}")));
    }
    view_status(&site, &cluster).await?;
    let far =
        site.views.attach(cluster.id, number).await.map_err(|error| {
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "no-view", format!("{error:#}"))
        })?;
    Ok(upgrade.join(far, lease))
}

async fn view_status(site: &Site, cluster: &ClusterRow) -> Result<ViewStatus, ApiError> {
    let id = cluster.id;
    let summary = site.views.with(move |server, _| server.summary(id)).await.flatten();
    let summary = summary.ok_or_else(|| {
        let detail = format!("cluster {} has no view yet", cluster.name);
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "not-yet", detail)
            .hint("try again when the cluster is ready")
    })?;
    let node = |alias: tenant_view::NodeAlias| ViewNode {
        node: alias.node,
        guid: alias.guid,
        port_guid: alias.port_guid,
        lid: alias.lid,
    };
    let json = |value| serde_json::to_value(value).unwrap_or_default();
    Ok(ViewStatus {
        partition: summary.wire.partition,
        service_level: summary.wire.service_level,
        partitions: (cluster.overlay.iter())
            .flat_map(|overlay| &overlay.partitions)
            .map(|partition| PartitionMapping { view: partition.view_number, wire: partition.number })
            .collect(),
        classes: (cluster.overlay.iter())
            .flat_map(|overlay| &overlay.classes)
            .zip(&summary.classes)
            .map(|(class, on_wire)| ClassMapping {
                view_sls: class.service_levels.clone(),
                wire_sl: on_wire.service_level,
                min_share_permille: on_wire.min_share_permille,
            })
            .collect(),
        nodes: summary.aliases.into_iter().map(node).collect(),
        managed_by: match summary.status.managed_by {
            tenant_view::ViewManager::Default => None,
            tenant_view::ViewManager::Tenant { node } => Some(node),
        },
        pending: summary.status.is_open,
        in_force: summary.status.in_force,
        last_change: summary.status.last.map(json),
    })
}
