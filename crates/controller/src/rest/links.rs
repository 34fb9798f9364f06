//! What is guaranteed on each link.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use axum::extract::State;
use controller_api::ApiProblem;
use controller_api::fabric::{ClusterShare, LinkEnd, LinkStatus};
use fabric_model::intent::PortName;
use fabric_model::{Decisions, Endpoint, LinkRate, Topology};
use serde::Deserialize;
use utoipa::IntoParams;

use super::access::Caller;
use super::error::{ApiError, Json, Query};
use crate::site::Site;
use crate::store::ClusterRow;

/// Parameters of a query for links.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct LinkQuery {
    /// Whether to list all links; otherwise only those on which something is guaranteed are listed.
    #[serde(default)]
    all: bool,
}

/// List links
///
/// Each direction of each link with its rate and the shares that are guaranteed to clusters. For operators.
#[utoipa::path(get, path = "/v1/fabric/links", operation_id = "fabric_links", params(LinkQuery), responses((status = 200, body = Vec<LinkStatus>), (status = "4XX", body = ApiProblem, content_type = ApiProblem::MEDIA_TYPE)))]
pub async fn list(
    State(site): State<Arc<Site>>,
    caller: Caller,
    Query(query): Query<LinkQuery>,
) -> Result<Json<Vec<LinkStatus>>, ApiError> {
    caller.operator()?;
    let fabric = site.with_observed(|observed| observed.fabric.clone());
    let clusters = site.store.cluster_list().await?;
    let Some(discovered) = fabric.discovered else { return Ok(Json(Vec::new())) };
    let shares = shares(&fabric.decisions, &clusters);
    let mut links = directions(&discovered.topology, shares);
    links.retain(|link| query.all || !link.guaranteed.is_empty());
    Ok(Json(links))
}

/// The guaranteed shares by the port that sends.
fn shares(decisions: &Decisions, clusters: &[ClusterRow]) -> BTreeMap<PortName, Vec<ClusterShare>> {
    let by_id: HashMap<String, &ClusterRow> =
        clusters.iter().map(|cluster| (cluster.id.to_string(), cluster)).collect();
    let mut shares: BTreeMap<PortName, Vec<ClusterShare>> = BTreeMap::new();
    for (id, decision) in decisions.clusters.iter() {
        // A cluster that was deleted a moment ago is still in the decisions.
        let Some(cluster) = by_id.get(id) else { continue };
        for grant in &decision.links {
            shares.entry(grant.port).or_default().push(ClusterShare {
                tenant: cluster.tenant.name.clone(),
                cluster: cluster.name.clone(),
                share: grant.share,
            });
        }
    }
    shares
}

/// Both directions of every link, in the order of the topology.
fn directions(topology: &Topology, mut shares: BTreeMap<PortName, Vec<ClusterShare>>) -> Vec<LinkStatus> {
    let mut direction = |from: Endpoint, to: Endpoint, rate: Option<LinkRate>| {
        let (from, to) = (end(topology, from)?, end(topology, to)?);
        let guaranteed =
            shares.remove(&PortName { node: from.node_guid, port: from.port }).unwrap_or_default();
        Some(LinkStatus { from, to, rate, guaranteed })
    };
    let both = topology
        .links()
        .flat_map(|link| [direction(link.a, link.b, link.rate), direction(link.b, link.a, link.rate)]);
    both.flatten().collect()
}

fn end(topology: &Topology, end: Endpoint) -> Option<LinkEnd> {
    let node = topology.node(end.node)?;
    Some(LinkEnd { node: node.description.clone(), node_guid: node.guid, port: end.port })
}
