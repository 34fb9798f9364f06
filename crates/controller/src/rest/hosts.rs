//! Hosts that run virtual machines.

use std::collections::HashMap;
use std::path::Path as FilePath;
use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use controller_api::host::{Host, HostBinding, HostState, NewHost};
use controller_api::{ApiProblem, MemorySize, Name};
use ib_wire::Guid;

use super::access::Caller;
use super::error::{ApiError, Json, Path};
use crate::binding::choose;
use crate::faults::{Fault, Faults};
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
    Ok(Json(hosts(&site).await?))
}

async fn hosts(site: &Site) -> Result<Vec<Host>, ApiError> {
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
    let state = match (agent.is_some_and(ObservedAgent::is_up), new.port_guid, place) {
        (false, _, _) => HostState::AgentSilent,
        (true, None, _) => HostState::Unbound,
        (true, Some(_), None) => HostState::OffFabric,
        (true, Some(_), Some(_)) => HostState::Up,
    };
    let since = match state {
        HostState::AgentSilent => faults.get(&Fault::AgentSilent(new.name.clone())),
        HostState::OffFabric => faults.get(&Fault::OffFabric(new.name.clone())),
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
    put_hosts(&site, std::slice::from_ref(&new)).await?;
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
    Ok(Json(put_hosts(&site, &new).await?))
}

/// Stores hosts; returns those that are new or have changed.
async fn put_hosts(site: &Site, hosts: &[NewHost]) -> Result<Vec<Name>, ApiError> {
    hosts.iter().try_for_each(check_host)?;
    let writer = site.writer.lock().await;
    let rows = site.store.host_list().await?;
    let known: HashMap<&Name, &NewHost> = rows.iter().map(|host| (&host.name, host)).collect();
    let mut new = bound(site, hosts, &rows)?;
    new.retain(|host| known.get(&host.name) != Some(&host));
    let text = match new.as_slice() {
        [] => return Ok(Vec::new()),
        [host] => {
            let port = host
                .port_guid
                .map_or_else(|| "not bound to a port".to_owned(), |port| format!("port {port}"));
            format!("host {} added or changed: {port}, {} cores, {}", host.name, host.cores, host.memory)
        }
        [first, .., last] => format!("{} hosts added or changed, {} to {}", new.len(), first.name, last.name),
    };
    site.store.host_put(&new).await?;
    site.note("host.added", text).await?;
    drop(writer);
    site.wake();
    Ok(new.into_iter().map(|host| host.name).collect())
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
    let _writer = site.writer.lock().await;
    let removed = site.store.host_remove(&name).await.map_err(|error| match error.is_needed() {
        true => ApiError::conflict("in-use", format!("host {name} runs nodes of clusters"))
            .hint("delete the clusters first"),
        false => error.into(),
    })?;
    if !removed {
        return Err(ApiError::not_found("host", name));
    }
    site.note("host.removed", format!("host {name} removed")).await?;
    site.wake();
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
    let writer = site.writer.lock().await;
    let rows = site.store.host_list().await?;
    let row = rows.iter().find(|host| host.name == name).ok_or_else(|| ApiError::not_found("host", &name))?;
    if row.port_guid != Some(port_guid) {
        let owner = rows.iter().find(|host| host.port_guid == Some(port_guid));
        owner.map_or(Ok(()), |owner| check_owner(port_guid, &owner.name, &name))?;
        let clusters = site.store.cluster_list().await?;
        let nodes =
            clusters.iter().flat_map(|cluster| &cluster.nodes).filter(|node| node.host == name).count();
        if nodes > 0 {
            let detail = format!("host {name} runs {nodes} nodes behind the port it is bound to");
            return Err(ApiError::conflict("in-use", detail).hint("delete the clusters first"));
        }
        site.store.host_bind(&[(name.clone(), port_guid)]).await?;
        site.note("host.bound", format!("host {name} bound to port {port_guid}")).await?;
    }
    drop(writer);
    site.wake();
    host_status(&site, &name).await.map(Json)
}

/// Hosts with their ports: the current one, the requested one, or that of the only adapter with the name of the host.
fn bound(site: &Site, hosts: &[NewHost], rows: &[NewHost]) -> Result<Vec<NewHost>, ApiError> {
    let known: HashMap<&Name, Guid> =
        rows.iter().filter_map(|host| Some((&host.name, host.port_guid?))).collect();
    let mut owners: HashMap<Guid, Name> = known.iter().map(|(name, port)| (*port, (*name).clone())).collect();
    let mut bound = hosts.to_vec();
    for host in &mut bound {
        match (host.port_guid, known.get(&host.name)) {
            (Some(requested), Some(known)) if requested != *known => {
                let detail = format!("host {} is bound to port {known}, not {requested}", host.name);
                return Err(ApiError::conflict("bound-elsewhere", detail)
                    .field("port_guid")
                    .hint("bind it to a new adapter with heddle host bind"));
            }
            (Some(requested), _) => {
                let owner = owners.entry(requested).or_insert_with(|| host.name.clone());
                check_owner(requested, owner, &host.name)?;
            }
            (None, known) => host.port_guid = known.copied(),
        }
    }
    if let Some(discovered) = site.with_observed(|observed| observed.fabric.discovered.clone()) {
        let pending = bound.iter().filter(|host| host.port_guid.is_none()).map(|host| &host.name);
        let others: Vec<NewHost> = rows.iter().chain(&bound).cloned().collect();
        let chosen: HashMap<Name, Guid> =
            choose(pending, &discovered.topology, &others).into_iter().collect();
        for host in bound.iter_mut().filter(|host| host.port_guid.is_none()) {
            host.port_guid = chosen.get(&host.name).copied();
        }
    }
    Ok(bound)
}

/// Rejects a port that another host is bound to.
fn check_owner(port: Guid, owner: &Name, name: &Name) -> Result<(), ApiError> {
    if owner == name {
        return Ok(());
    }
    Err(ApiError::conflict("port-taken", format!("host {owner} is bound to port {port}")).field("port_guid"))
}
