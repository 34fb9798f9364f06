//! Hosts that run virtual machines.

use std::collections::HashMap;
use std::path::Path as FilePath;
use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use controller_api::host::{Host, HostBinding, HostState, NewHost};
use controller_api::{ApiProblem, MemorySize, Name};

use super::access::Caller;
use super::error::{ApiError, Json, Path};
use crate::faults::{Fault, Faults};
use crate::hosts;
use crate::observed::{Observed, ObservedAgent};
use crate::site::Site;
use crate::store::HostAllocation;

/// Least memory of a host.
const HOST_MEMORY_MIN: MemorySize = MemorySize::from_mib(1);

type Shared = State<Arc<Site>>;

/// List hosts
///
/// With their used and available resources. For operators.
#[utoipa::path(get, path = "/v1/hosts", operation_id = "host_list", responses((status = 200, body = Vec<Host>), (status = "4XX", body = ApiProblem, content_type = ApiProblem::MEDIA_TYPE)))]
pub async fn list(State(site): Shared, caller: Caller) -> Result<Json<Vec<Host>>, ApiError> {
    caller.operator()?;
    Ok(Json(statuses(&site).await?))
}

async fn statuses(site: &Site) -> Result<Vec<Host>, ApiError> {
    let mut allocations: HashMap<Name, HostAllocation> = HashMap::new();
    for cluster in site.store.cluster_list().await? {
        for node in &cluster.nodes {
            let allocation = allocations.entry(node.host.clone()).or_default();
            allocation.cores += cluster.cores;
            allocation.memory_mib += cluster.memory.mib();
            allocation.nodes += 1;
        }
    }
    let (hosts, faults) = (site.store.host_list().await?, site.faults());
    let allocation_of = |host: &NewHost| allocations.get(&host.name).copied().unwrap_or_default();
    Ok(site.with_observed(|observed| {
        hosts.iter().map(|host| host_view(host, allocation_of(host), observed, &faults)).collect()
    }))
}

/// Status of a host.
fn host_view(new: &NewHost, allocation: HostAllocation, observed: &Observed, faults: &Faults) -> Host {
    let place = observed.fabric.host_port(new);
    let agent = observed.agents.get(&new.name);
    let closed = Fault::PortClosed(new.name.clone());
    let state = match (agent.is_some_and(ObservedAgent::is_up), new.port_guid, place) {
        (false, _, _) => HostState::AgentSilent,
        (true, None, _) => HostState::Unbound,
        (true, Some(_), None) => HostState::OffFabric,
        (true, Some(_), Some(_)) if faults.contains_key(&closed) => HostState::PortClosed,
        (true, Some(_), Some(_)) => HostState::Up,
    };
    let since = match state {
        HostState::AgentSilent => faults.get(&Fault::AgentSilent(new.name.clone())),
        HostState::OffFabric => faults.get(&Fault::OffFabric(new.name.clone())),
        HostState::PortClosed => faults.get(&closed),
        HostState::Up | HostState::Unbound => None,
    };
    Host {
        name: new.name.clone(),
        port_guid: new.port_guid,
        state,
        since: since.copied(),
        accelerator: agent.and_then(|agent| agent.report.accelerator),
        cores: new.cores,
        memory: new.memory,
        cores_used: allocation.cores,
        memory_used: MemorySize::from_mib(allocation.memory_mib),
        nodes: allocation.nodes,
    }
}

/// Status of a host by name.
async fn host_status(site: &Site, name: &Name) -> Result<Host, ApiError> {
    let (allocation, faults) = (site.store.host_allocation(name).await?, site.faults());
    let hosts = site.store.host_list().await?;
    let row =
        hosts.iter().find(|host| host.name == *name).ok_or_else(|| ApiError::not_found("host", name))?;
    Ok(site.with_observed(|observed| host_view(row, allocation, observed, &faults)))
}

/// Add a host
///
/// Replaces the properties of a known host. For operators.
#[utoipa::path(post, path = "/v1/hosts", operation_id = "host_add", request_body = NewHost, responses((status = 201, body = Host), (status = "4XX", body = ApiProblem, content_type = ApiProblem::MEDIA_TYPE)))]
pub async fn add(
    State(site): Shared,
    caller: Caller,
    Json(new): Json<NewHost>,
) -> Result<(StatusCode, Json<Host>), ApiError> {
    caller.operator()?;
    check_host(&new)?;
    hosts::put(&site, std::slice::from_ref(&new)).await?;
    Ok((StatusCode::CREATED, Json(host_status(&site, &new.name).await?)))
}

/// Add hosts
///
/// All or none; replaces the properties of known hosts. Returns the names of those that are new or have changed. For
/// operators.
#[utoipa::path(put, path = "/v1/hosts", operation_id = "host_add_all", request_body = Vec<NewHost>, responses((status = 200, body = Vec<Name>), (status = "4XX", body = ApiProblem, content_type = ApiProblem::MEDIA_TYPE)))]
pub async fn add_all(
    State(site): Shared,
    caller: Caller,
    Json(new): Json<Vec<NewHost>>,
) -> Result<Json<Vec<Name>>, ApiError> {
    caller.operator()?;
    new.iter().try_for_each(check_host)?;
    Ok(Json(hosts::put(&site, &new).await?))
}

fn check_host(new: &NewHost) -> Result<(), ApiError> {
    if !FilePath::new(&new.agent).is_absolute() {
        return Err(ApiError::invalid(
            "agent",
            format!("agent must be an absolute path, got {:?}", new.agent),
        )
        .hint("pass the path given to heddle-agent --socket"));
    }
    if new.cores == 0 {
        return Err(ApiError::invalid("cores", "cores must be at least 1, got 0"));
    }
    if new.memory < HOST_MEMORY_MIN {
        let detail = format!("memory must be at least {HOST_MEMORY_MIN}, got {}", new.memory);
        return Err(ApiError::invalid("memory", detail));
    }
    Ok(())
}

/// Remove a host
///
/// Fails if nodes are placed on it. For operators.
#[utoipa::path(delete, path = "/v1/hosts/{name}", operation_id = "host_remove", params(("name" = String, Path)), responses((status = 204), (status = "4XX", body = ApiProblem, content_type = ApiProblem::MEDIA_TYPE)))]
pub async fn remove(
    State(site): Shared,
    caller: Caller,
    Path(name): Path<Name>,
) -> Result<StatusCode, ApiError> {
    caller.operator()?;
    hosts::remove(&site, &name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Bind a host to another port
///
/// After its adapter was replaced. Fails if nodes are placed on the host. For operators.
#[utoipa::path(put, path = "/v1/hosts/{name}/binding", operation_id = "host_bind", params(("name" = String, Path)), request_body = HostBinding, responses((status = 200, body = Host), (status = "4XX", body = ApiProblem, content_type = ApiProblem::MEDIA_TYPE)))]
pub async fn bind(
    State(site): Shared,
    caller: Caller,
    Path(name): Path<Name>,
    Json(HostBinding { port_guid }): Json<HostBinding>,
) -> Result<Json<Host>, ApiError> {
    caller.operator()?;
    hosts::bind(&site, &name, port_guid).await?;
    host_status(&site, &name).await.map(Json)
}
