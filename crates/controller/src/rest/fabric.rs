//! The fabric and events.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use controller_api::ApiProblem;
use controller_api::event::Event;
use controller_api::fabric::{
    FabricState, FabricStatus, PartitionMember, PartitionStatus, Proof, SitePartitions,
};
use fabric_model::ibnetdiscover;
use serde::Deserialize;
use utoipa::IntoParams;

use super::access::Caller;
use super::error::{ApiError, Json, Query};
use super::lease::Lease;
use crate::event_waiters::WAITING_MAX;
use crate::faults::Fault;
use crate::manager;
use crate::network::{broadcast_group, node_keys};
use crate::site::Site;
use crate::site_partitions;
use crate::store::NodeRow;

/// Longest wait of an event query.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// Show the fabric
///
/// As last discovered and programmed. For operators.
#[utoipa::path(get, path = "/v1/fabric", operation_id = "fabric_show", responses((status = 200, body = FabricStatus), (status = "4XX", body = ApiProblem, content_type = ApiProblem::MEDIA_TYPE)))]
pub async fn show(State(site): State<Arc<Site>>, caller: Caller) -> Result<Json<FabricStatus>, ApiError> {
    caller.operator()?;
    let fabric = site.with_observed(|observed| observed.fabric.clone());
    let mut partitions = Vec::new();
    for cluster in site.store.cluster_list().await? {
        for number in cluster.partition_numbers() {
            let is_member = |node: &&NodeRow| {
                node_keys(&cluster, node.number).iter().any(|key| key.partition() == number)
            };
            let members = cluster.nodes.iter().filter(is_member);
            let members: BTreeMap<_, _> = members.map(|node| (node.port_guid, &node.host)).collect();
            let member = |(port_guid, host): (_, &controller_api::Name)| PartitionMember {
                host: host.clone(),
                port_guid,
                lid: fabric.lid(port_guid),
            };
            partitions.push(PartitionStatus {
                number,
                group: broadcast_group(&fabric.decisions, number),
                members: members.into_iter().map(member).collect(),
                tenant: cluster.tenant.name.clone(),
                cluster: cluster.name.clone(),
            });
        }
    }
    let topology = fabric.discovered.as_ref().map(|discovered| &discovered.topology);
    let of_plan = fabric.plan.iter().flat_map(|plan| plan.findings()).map(ToString::to_string);
    let findings = of_plan.chain(fabric.lacks.iter().cloned()).collect();
    let faults = site.faults();
    let (silent, stuck) = (faults.get(&Fault::ManagerSilent), faults.get(&Fault::FabricStuck));
    let (state, since) = match (silent, stuck) {
        (Some(since), _) => (FabricState::ManagerSilent, Some(*since)),
        (None, Some(since)) => (FabricState::Stuck, Some(*since)),
        (None, None) => (fabric.state, None),
    };
    Ok(Json(FabricStatus {
        state,
        since,
        switches: topology.map_or(0, |topology| topology.switches().count() as u32),
        adapters: topology.map_or(0, |topology| topology.end_nodes().count() as u32),
        links: topology.map_or(0, |topology| topology.links().count() as u32),
        partitions,
        findings,
        topology: topology.map(|topology| ibnetdiscover::write(topology)).unwrap_or_default(),
    }))
}

/// Verify the fabric
///
/// Reads all tables back from the devices and verifies them. For operators.
#[utoipa::path(get, path = "/v1/fabric/proof", operation_id = "fabric_proof", responses((status = 200, body = Proof), (status = "4XX", body = ApiProblem, content_type = ApiProblem::MEDIA_TYPE)))]
pub async fn proof(State(site): State<Arc<Site>>, caller: Caller) -> Result<Json<Proof>, ApiError> {
    caller.operator()?;
    match manager::proof(&site).await {
        Ok(Some(proof)) => Ok(Json(proof)),
        Ok(None) => Err(ApiError::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "not-yet",
            "the devices do not match the plan yet".to_owned(),
        )
        .hint("try again in a moment")),
        Err(error) => {
            tracing::warn!("cannot read the fabric back: {error:#}");
            let text = "the subnet manager could not read the fabric back".to_owned();
            Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "no-manager", text))
        }
    }
}

/// Show the partitions of the site
///
/// Those beside clusters, as they were set. For operators.
#[utoipa::path(get, path = "/v1/fabric/partitions", operation_id = "fabric_partitions", responses((status = 200, body = SitePartitions), (status = "4XX", body = ApiProblem, content_type = ApiProblem::MEDIA_TYPE)))]
pub async fn partitions(
    State(site): State<Arc<Site>>,
    caller: Caller,
) -> Result<Json<SitePartitions>, ApiError> {
    caller.operator()?;
    Ok(Json(SitePartitions { conf: site.store.site_partitions().await? }))
}

/// Replace the partitions of the site
///
/// Ports of hosts are handed over to tenants: `ALL` and the like do not select them, and they may be named as limited members
/// only. Accepted after a plan of the fabric was compiled and verified; otherwise nothing changes. For operators.
#[utoipa::path(put, path = "/v1/fabric/partitions", operation_id = "fabric_partitions_set", request_body = SitePartitions, responses((status = 200, body = SitePartitions), (status = "4XX", body = ApiProblem, content_type = ApiProblem::MEDIA_TYPE)))]
pub async fn partitions_set(
    State(site): State<Arc<Site>>,
    caller: Caller,
    Json(new): Json<SitePartitions>,
) -> Result<Json<SitePartitions>, ApiError> {
    caller.operator()?;
    site_partitions::set(&site, &new.conf).await?;
    Ok(Json(new))
}

/// Parameters of an event query.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct EventQuery {
    /// Number of the last known event; without it, the latest events are returned.
    after: Option<i64>,
    /// Whether to wait a few seconds for the next event if there is none.
    #[serde(default)]
    wait: bool,
}

/// List events
///
/// Events of the caller, or all events for an operator; at most 1000.
#[utoipa::path(get, path = "/v1/events", operation_id = "event_list", params(EventQuery), responses((status = 200, body = Vec<Event>), (status = "4XX", body = ApiProblem, content_type = ApiProblem::MEDIA_TYPE)))]
pub async fn event_list(
    State(site): State<Arc<Site>>,
    caller: Caller,
    mut lease: Lease,
    Query(query): Query<EventQuery>,
) -> Result<Json<Vec<Event>>, ApiError> {
    if !query.wait {
        return Ok(Json(site.store.event_list(caller.scope(), query.after).await?));
    }
    let mut waiter = site.event_waiters.wait(caller.scope()).ok_or_else(|| {
        let detail = format!("at most {WAITING_MAX} requests may wait for events at once");
        ApiError::new(StatusCode::TOO_MANY_REQUESTS, "too-many-waiting", detail)
            .hint("end one of them, or query without wait")
    })?;
    let until = tokio::time::Instant::now() + WAIT_MAX;
    let wait = async {
        loop {
            let events = site.store.event_list(caller.scope(), query.after).await?;
            if !events.is_empty() || tokio::time::timeout_at(until, waiter.woken()).await.is_err() {
                return Ok::<_, ApiError>(Json(events));
            }
        }
    };
    tokio::select! {
        events = wait => events,
        () = lease.ended() => {
            Err(ApiError::new(StatusCode::UNAUTHORIZED, "not-known", "the token is no longer valid"))
        }
    }
}
