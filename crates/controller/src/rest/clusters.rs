//! Clusters and operations.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use controller_api::cluster::{
    Cluster, ClusterNode, ClusterShape, NewCluster, PartitionsUpdate, ResizeRequest, check_partitions,
};
use controller_api::operation::Operation;
use controller_api::{ApiProblem, MemorySize, Name};
use fabric_model::tenancy::{Bandwidth, Class};
use serde::Deserialize;
use utoipa::IntoParams;
use uuid::Uuid;

use super::access::Caller;
use super::error::{ApiError, Json, Path, Query};
use crate::clusters::{self, ClusterError, Deletion};
use crate::health::{Audience, cluster_health, node_fault};
use crate::lifecycle::{network_state, node_name, packet_stop, shortfall};
use crate::node_address::{CLUSTER_SIZE_MAX, address};
use crate::site::Site;
use crate::store::{ClusterRow, NodeRow};

/// Least memory with which an image boots.
const MEMORY_MIN: MemorySize = MemorySize::from_mib(128);

/// Least guaranteed bandwidth. Every guarantee occupies whole ports, which less is not worth.
const GUARANTEE_MIN: Bandwidth = Bandwidth::from_bits_per_s(1_000_000);

/// Most virtual cores of a node: more than any common host has.
const CORES_MAX: u32 = 512;

/// Most public keys of a cluster.
const SSH_KEYS_MAX: usize = 64;

/// Longest public key: RSA with 16,384 bits and a comment.
const SSH_KEY_BYTES_MAX: usize = 4096;

type Shared = State<Arc<Site>>;
type Accepted = (StatusCode, Json<Operation>);

/// Tenant that a request concerns.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct TenantQuery {
    /// Name of the owning tenant; required from operators.
    #[param(value_type = Option<String>)]
    tenant: Option<Name>,
}

/// Parameters of a deletion.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct DeleteQuery {
    /// Name of the owning tenant; required from operators.
    #[param(value_type = Option<String>)]
    tenant: Option<Name>,
    /// Whether to drop nodes on silent hosts once their ports have left the partitions; for operators, who must know
    /// whether a host is dead or only disconnected.
    #[serde(default)]
    force: bool,
}

/// List clusters
///
/// Clusters of the caller, or all clusters for an operator.
#[utoipa::path(get, path = "/v1/clusters", operation_id = "cluster_list", responses((status = 200, body = Vec<Cluster>), (status = "4XX", body = ApiProblem, content_type = ApiProblem::MEDIA_TYPE)))]
pub async fn list(State(site): Shared, caller: Caller) -> Result<Json<Vec<Cluster>>, ApiError> {
    let clusters = match caller.scope() {
        Some(tenant) => site.store.cluster_list_of(tenant).await?,
        None => site.store.cluster_list().await?,
    };
    Ok(Json(clusters.into_iter().map(|cluster| cluster_status(&site, cluster, &caller)).collect()))
}

/// Show a cluster
#[utoipa::path(get, path = "/v1/clusters/{name}", operation_id = "cluster_show", params(("name" = String, Path), TenantQuery), responses((status = 200, body = Cluster), (status = "4XX", body = ApiProblem, content_type = ApiProblem::MEDIA_TYPE)))]
pub async fn show(
    State(site): Shared,
    caller: Caller,
    Path(name): Path<Name>,
    Query(tenant_query): Query<TenantQuery>,
) -> Result<Json<Cluster>, ApiError> {
    let cluster = find(&site, &caller, &name, &tenant_query).await?;
    let host_key = site.store.cluster_public_key(cluster.id).await?;
    Ok(Json(Cluster { host_key, ..cluster_status(&site, cluster, &caller) }))
}

/// Create a cluster
///
/// The request is rejected at once if the cluster cannot be placed.
#[utoipa::path(post, path = "/v1/clusters", operation_id = "cluster_create", request_body = NewCluster, responses((status = 202, body = Operation), (status = "4XX", body = ApiProblem, content_type = ApiProblem::MEDIA_TYPE)))]
pub async fn create(
    State(site): Shared,
    caller: Caller,
    Json(new): Json<NewCluster>,
) -> Result<Accepted, ApiError> {
    check(&new)?;
    let tenant = caller.tenant(&site, new.tenant.as_ref()).await.map_err(|error| error.field("tenant"))?;
    accepted(&caller, clusters::create(&site, tenant, new).await)
}

/// Resize a cluster
///
/// Nodes that stay keep running.
#[utoipa::path(patch, path = "/v1/clusters/{name}", operation_id = "cluster_resize", params(("name" = String, Path), TenantQuery), request_body = ResizeRequest, responses((status = 202, body = Operation), (status = "4XX", body = ApiProblem, content_type = ApiProblem::MEDIA_TYPE)))]
pub async fn resize(
    State(site): Shared,
    caller: Caller,
    Path(name): Path<Name>,
    Query(tenant_query): Query<TenantQuery>,
    Json(resize): Json<ResizeRequest>,
) -> Result<Accepted, ApiError> {
    check_size(resize.size)?;
    let owner = owner(&site, &caller, &name, &tenant_query).await?;
    accepted(&caller, clusters::resize(&site, owner, &name, resize.size).await)
}

/// Replace the sub-partitions of a cluster
///
/// A sub-partition whose name is known keeps its partition number.
#[utoipa::path(put, path = "/v1/clusters/{name}/partitions", operation_id = "cluster_partition", params(("name" = String, Path), TenantQuery), request_body = PartitionsUpdate, responses((status = 202, body = Operation), (status = "4XX", body = ApiProblem, content_type = ApiProblem::MEDIA_TYPE)))]
pub async fn partition(
    State(site): Shared,
    caller: Caller,
    Path(name): Path<Name>,
    Query(tenant_query): Query<TenantQuery>,
    Json(wanted): Json<PartitionsUpdate>,
) -> Result<Accepted, ApiError> {
    let owner = owner(&site, &caller, &name, &tenant_query).await?;
    accepted(&caller, clusters::partition(&site, owner, &name, &wanted.partitions).await)
}

/// Delete a cluster
///
/// Allowed in every phase. An operator may force the deletion: nodes on silent hosts are then dropped once their ports
/// have left the partitions.
#[utoipa::path(delete, path = "/v1/clusters/{name}", operation_id = "cluster_delete", params(("name" = String, Path), DeleteQuery), responses((status = 202, body = Operation), (status = "4XX", body = ApiProblem, content_type = ApiProblem::MEDIA_TYPE)))]
pub async fn delete(
    State(site): Shared,
    caller: Caller,
    Path(name): Path<Name>,
    Query(DeleteQuery { tenant, force }): Query<DeleteQuery>,
) -> Result<Accepted, ApiError> {
    let deletion = if force { Deletion::Forced } else { Deletion::Orderly };
    if deletion == Deletion::Forced {
        caller.operator()?;
    }
    let owner = owner(&site, &caller, &name, &TenantQuery { tenant }).await?;
    accepted(&caller, clusters::delete(&site, owner, &name, deletion).await)
}

/// List operations
///
/// Newest first, at most 1000.
#[utoipa::path(get, path = "/v1/operations", operation_id = "operation_list", responses((status = 200, body = Vec<Operation>), (status = "4XX", body = ApiProblem, content_type = ApiProblem::MEDIA_TYPE)))]
pub async fn operation_list(State(site): Shared, caller: Caller) -> Result<Json<Vec<Operation>>, ApiError> {
    Ok(Json(site.store.operation_list(caller.scope()).await?))
}

/// Show an operation
#[utoipa::path(get, path = "/v1/operations/{id}", operation_id = "operation_show", params(("id" = Uuid, Path)), responses((status = 200, body = Operation), (status = "4XX", body = ApiProblem, content_type = ApiProblem::MEDIA_TYPE)))]
pub async fn operation_show(
    State(site): Shared,
    caller: Caller,
    Path(id): Path<Uuid>,
) -> Result<Json<Operation>, ApiError> {
    let operation = site.store.operation_show(caller.scope(), id).await?;
    operation.map(Json).ok_or_else(|| ApiError::not_found("operation", id))
}

/// A cluster that the caller may see; one of another tenant is reported as not found.
pub async fn find(
    site: &Site,
    caller: &Caller,
    name: &Name,
    tenant_query: &TenantQuery,
) -> Result<ClusterRow, ApiError> {
    let owner = owner(site, caller, name, tenant_query).await?;
    site.store.cluster_find(owner, name).await?.ok_or_else(|| ApiError::not_found("cluster", name))
}

/// Id of the tenant that a request for a cluster concerns, if the caller may act for it. A cluster of another tenant is
/// reported as not found.
async fn owner(
    site: &Site,
    caller: &Caller,
    name: &Name,
    tenant_query: &TenantQuery,
) -> Result<Uuid, ApiError> {
    let missing = || ApiError::not_found("cluster", name);
    match (caller, &tenant_query.tenant) {
        (Caller::Tenant(own), Some(named)) if own.name != *named => Err(missing()),
        (Caller::Tenant(own), _) => Ok(own.id),
        (Caller::Operator, Some(named)) => Ok(site.store.tenant_find(named).await?.ok_or_else(missing)?.id),
        (Caller::Operator, None) => Ok(caller.tenant(site, None).await?.id),
    }
}

/// The answer to a request that the control loops complete.
fn accepted(caller: &Caller, operation: Result<Operation, ClusterError>) -> Result<Accepted, ApiError> {
    match operation {
        Ok(operation) => Ok((StatusCode::ACCEPTED, Json(operation))),
        Err(error) => Err(caller.refuse(error)),
    }
}

fn check(new: &NewCluster) -> Result<(), ApiError> {
    check_size(new.size)?;
    check_partitions(&new.partitions, new.size)
        .map_err(|error| ApiError::invalid("partitions", error.to_string()))?;
    if !(1..=CORES_MAX).contains(&new.cores) {
        return Err(ApiError::invalid(
            "cores",
            format!("cores must be between 1 and {CORES_MAX}, got {}", new.cores),
        ));
    }
    if let Class::Guaranteed { bandwidth, .. } = new.class
        && bandwidth < GUARANTEE_MIN
    {
        let detail = format!("the guaranteed bandwidth must be at least {GUARANTEE_MIN}, got {bandwidth}");
        return Err(ApiError::invalid("class", detail).hint("request more bandwidth, or best effort"));
    }
    if new.memory < MEMORY_MIN {
        return Err(ApiError::invalid(
            "memory",
            format!("memory must be at least {MEMORY_MIN}, got {}", new.memory),
        ));
    }
    if new.ssh_keys.len() > SSH_KEYS_MAX {
        return Err(ApiError::invalid(
            "ssh_keys",
            format!("ssh_keys must have at most {SSH_KEYS_MAX} keys, got {}", new.ssh_keys.len()),
        ));
    }
    let is_key = |key: &String| {
        let mut words = key.split(' ');
        let kind = words
            .next()
            .is_some_and(|kind| ["ssh-", "ecdsa-", "sk-"].iter().any(|start| kind.starts_with(start)));
        let body = words.next().is_some_and(|body| body.len() > 16);
        kind && body && key.len() <= SSH_KEY_BYTES_MAX && !key.chars().any(char::is_control)
    };
    match new.ssh_keys.iter().position(|key| !is_key(key)) {
        Some(index) => {
            Err(ApiError::invalid("ssh_keys", format!("key {} is not an OpenSSH public key", index + 1))
                .hint("pass the line of a file such as id_ed25519.pub"))
        }
        None => Ok(()),
    }
}

fn check_size(size: u32) -> Result<(), ApiError> {
    if (1..=CLUSTER_SIZE_MAX).contains(&size) {
        return Ok(());
    }
    let detail = format!("size must be between 1 and {CLUSTER_SIZE_MAX} nodes, got {size}");
    Err(ApiError::invalid("size", detail))
}

/// A cluster as the caller sees it; hosts and packet drops are for operators.
fn cluster_status(site: &Site, cluster: ClusterRow, caller: &Caller) -> Cluster {
    let packets_stop = |node: &NodeRow| {
        caller.fact(site.with_observed(|observed| packet_stop(observed, node).cloned())).flatten()
    };
    let faults = site.faults();
    let audience = if *caller == Caller::Operator { Audience::Operator } else { Audience::Tenant };
    let node = |node: &NodeRow| {
        let fault = node_fault(node, &faults, audience);
        // The reason given by a host may name paths and resources of others.
        let reason = || caller.fact(node.reason.clone()).flatten().or_else(|| shortfall(&cluster, node));
        ClusterNode {
            id: node.id,
            number: node.number,
            name: node_name(&cluster, node),
            address: address(node.number),
            host: caller.fact(node.host.clone()),
            state: fault.as_ref().map_or(node.state, |fault| fault.state),
            since: fault.as_ref().map(|fault| fault.since),
            reason: fault.map(|fault| fault.reason).or_else(reason),
            network: network_state(&cluster, node),
            stop: packets_stop(node),
        }
    };
    Cluster {
        health: cluster_health(&cluster, &faults, audience),
        nodes: cluster.nodes.iter().map(node).collect(),
        id: cluster.id,
        tenant: cluster.tenant.name,
        name: cluster.name,
        shape: ClusterShape {
            size: cluster.size,
            cores: cluster.cores,
            memory: cluster.memory,
            mode: cluster.mode,
            image: cluster.image.name,
            class: cluster.class,
            sl_mode: cluster.sl_mode,
            adapter: cluster.adapter,
        },
        phase: cluster.phase,
        reason: cluster.reason,
        network: cluster.network.state,
        partition: cluster.partition,
        partitions: cluster.inner,
        host_key: None,
        created: cluster.created,
    }
}
