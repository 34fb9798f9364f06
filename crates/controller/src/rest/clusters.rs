//! Clusters and operations.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use controller_api::agent::ImageSpec;
use controller_api::cluster::{
    Cluster, ClusterNode, ClusterShape, NewCluster, PartitionsUpdate, Phase, ResizeRequest, SubPartition,
    SubPartitionStatus, check_partitions,
};
use controller_api::operation::{Operation, OperationKind, OperationState, PhaseChange};
use controller_api::{MemorySize, Name, Problem};
use fabric_compiler::CompileError;
use fabric_model::tenancy::{Bandwidth, Class};
use jiff::Timestamp;
use serde::Deserialize;
use utoipa::IntoParams;
use uuid::Uuid;

use super::access::Caller;
use super::error::{ApiError, Json, Path, Query};
use crate::admission::{AdmissionError, admit};
use crate::faults::{Fault, Faults};
use crate::health::{Audience, cluster_health, node_fault};
use crate::lifecycle::{AdvanceOutcome, finish, network_state, node_name, packet_stop, reach, shortfall};
use crate::node_address::{CLUSTER_SIZE_MAX, address};
use crate::planning::PlanningError;
use crate::quota::usage;
use crate::reconcile::image_spec;
use crate::site::Site;
use crate::store::{ClusterKeys, ClusterNetwork, ClusterRow, EventRecord, NodeRow};
use crate::{keys, network, quota};

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
#[utoipa::path(get, path = "/v1/clusters", operation_id = "cluster_list", responses((status = 200, body = Vec<Cluster>), (status = "4XX", body = Problem, content_type = Problem::MEDIA_TYPE)))]
pub async fn list(State(site): Shared, caller: Caller) -> Result<Json<Vec<Cluster>>, ApiError> {
    let clusters = match caller.scope() {
        Some(tenant) => site.store.cluster_list_of(tenant).await?,
        None => site.store.cluster_list().await?,
    };
    Ok(Json(clusters.into_iter().map(|cluster| cluster_status(&site, cluster, &caller)).collect()))
}

/// Show a cluster
#[utoipa::path(get, path = "/v1/clusters/{name}", operation_id = "cluster_show", params(("name" = String, Path), TenantQuery), responses((status = 200, body = Cluster), (status = "4XX", body = Problem, content_type = Problem::MEDIA_TYPE)))]
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
#[utoipa::path(post, path = "/v1/clusters", operation_id = "cluster_create", request_body = NewCluster, responses((status = 202, body = Operation), (status = "4XX", body = Problem, content_type = Problem::MEDIA_TYPE)))]
pub async fn create(
    State(site): Shared,
    caller: Caller,
    Json(new): Json<NewCluster>,
) -> Result<Accepted, ApiError> {
    check(&new)?;
    let tenant = caller.tenant(&site, new.tenant.as_ref()).await.map_err(|error| error.field("tenant"))?;
    let key = keys::generate().map_err(|error| {
        tracing::error!("cannot generate the key pair of a cluster: {error:#}");
        ApiError::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "cannot generate the key pair of the cluster",
        )
    })?;
    let _writer = site.writer.lock().await;
    let image = image(&site, &new.image).await?;
    let clusters = site.store.cluster_list().await?;
    if clusters.iter().any(|cluster| cluster.tenant.id == tenant.id && cluster.name == new.name) {
        return Err(
            ApiError::conflict("name-taken", format!("cluster {} exists already", new.name)).field("name")
        );
    }
    let now = site.store.now().wall;
    let mut cluster = ClusterRow {
        id: Uuid::new_v4(),
        tenant,
        name: new.name,
        size: new.size,
        cores: new.cores,
        memory: new.memory,
        mode: new.mode,
        class: new.class,
        sl_mode: new.sl_mode,
        image,
        phase: Phase::Requested,
        reason: None,
        network: ClusterNetwork::default(),
        partition: None,
        inner: Vec::new(),
        overlay: None,
        generation: 1,
        created: now,
        nodes: Vec::new(),
        operation: None,
        began: site.store.uptime(),
    };
    let mut operation = operation(&cluster, OperationKind::Create, now);
    operation.steps.push(PhaseChange { phase: Phase::Requested, at: now });
    assign_partitions(&site, &mut cluster, &new.partitions).await?;
    cluster.nodes = place_nodes(&site, &caller, &cluster, new.size, &clusters).await?;
    check_quota(&site, None, &cluster, &clusters).await?;
    try_plan(&site, &caller, &cluster, &clusters).await?;
    cluster.phase = Phase::Placed;
    operation.steps.push(PhaseChange { phase: Phase::Placed, at: now });
    cluster.operation = Some(operation.clone());
    let event = EventRecord {
        at: now,
        tenant: Some(cluster.tenant.clone()),
        cluster: Some(cluster.name.clone()),
        kind: "cluster.placed",
        text: format!(
            "requested and placed: {} nodes with {} cores and {} each",
            cluster.size, cluster.cores, cluster.memory
        ),
    };
    let keys = ClusterKeys { ssh_keys: new.ssh_keys, key };
    site.store.cluster_create(&cluster, &keys, &event).await?;
    site.noted(Some(&cluster.tenant));
    site.wake();
    Ok((StatusCode::ACCEPTED, Json(operation)))
}

/// Resize a cluster
///
/// Nodes that stay keep running.
#[utoipa::path(patch, path = "/v1/clusters/{name}", operation_id = "cluster_resize", params(("name" = String, Path), TenantQuery), request_body = ResizeRequest, responses((status = 202, body = Operation), (status = "4XX", body = Problem, content_type = Problem::MEDIA_TYPE)))]
pub async fn resize(
    State(site): Shared,
    caller: Caller,
    Path(name): Path<Name>,
    Query(tenant_query): Query<TenantQuery>,
    Json(resize): Json<ResizeRequest>,
) -> Result<Accepted, ApiError> {
    check_size(resize.size)?;
    let _writer = site.writer.lock().await;
    let before = find_idle(&site, &caller, &name, &tenant_query).await?;
    let (mut after, now) = (before.clone(), site.store.now().wall);
    after.size = resize.size;
    // The resized cluster may use other links: its subnet manager writes the routes again.
    let is_routed =
        after.overlay.as_mut().is_some_and(|overlay| !std::mem::take(&mut overlay.routes).is_empty());
    let staying = after.nodes.iter().filter(|node| !node.leaving).count() as u32;
    if resize.size > staying {
        let clusters = site.store.cluster_list().await?;
        let mut new = place_nodes(&site, &caller, &before, resize.size - staying, &clusters).await?;
        new.iter_mut().for_each(|node| node.joined = false);
        after.nodes.extend(new);
        check_quota(&site, Some(&before), &after, &clusters).await?;
        try_plan(&site, &caller, &after, &clusters).await?;
    } else if resize.size < staying {
        let leaving = after.nodes.iter_mut().rev().filter(|node| !node.leaving);
        leaving.take((staying - resize.size) as usize).for_each(|node| node.leaving = true);
        after.generation += 1;
    }
    let operation = operation(&after, OperationKind::Resize, now);
    (after.operation, after.began) = (Some(operation.clone()), site.store.uptime());
    let text = format!("resize from {} to {} nodes requested", before.size, after.size);
    save(&site, &before, &after, AdvanceOutcome::default(), ("cluster.resizing", text), now).await?;
    if is_routed {
        let id = after.id;
        site.views.with(move |server, now| server.with(id, |view| view.judge_again(now))).await;
    }
    Ok((StatusCode::ACCEPTED, Json(operation)))
}

/// Replace the sub-partitions of a cluster
///
/// A sub-partition whose name is known keeps its partition number.
#[utoipa::path(put, path = "/v1/clusters/{name}/partitions", operation_id = "cluster_partition", params(("name" = String, Path), TenantQuery), request_body = PartitionsUpdate, responses((status = 202, body = Operation), (status = "4XX", body = Problem, content_type = Problem::MEDIA_TYPE)))]
pub async fn partition(
    State(site): Shared,
    caller: Caller,
    Path(name): Path<Name>,
    Query(tenant_query): Query<TenantQuery>,
    Json(wanted): Json<PartitionsUpdate>,
) -> Result<Accepted, ApiError> {
    let _writer = site.writer.lock().await;
    let before = find_idle(&site, &caller, &name, &tenant_query).await?;
    check_sub_partitions(&wanted.partitions, before.size)?;
    let (mut after, now) = (before.clone(), site.store.now().wall);
    let clusters = site.store.cluster_list().await?;
    assign_partitions(&site, &mut after, &wanted.partitions).await?;
    check_quota(&site, Some(&before), &after, &clusters).await?;
    try_plan(&site, &caller, &after, &clusters).await?;
    after.generation += 1;
    let operation = operation(&after, OperationKind::Partition, now);
    (after.operation, after.began) = (Some(operation.clone()), site.store.uptime());
    let text =
        format!("change to {} sub-partitions requested, from {}", after.inner.len(), before.inner.len());
    save(&site, &before, &after, AdvanceOutcome::default(), ("cluster.partitioning", text), now).await?;
    Ok((StatusCode::ACCEPTED, Json(operation)))
}

/// Delete a cluster
///
/// Allowed in every phase. An operator may force the deletion: nodes on silent hosts are then dropped once their ports
/// have left the partitions.
#[utoipa::path(delete, path = "/v1/clusters/{name}", operation_id = "cluster_delete", params(("name" = String, Path), DeleteQuery), responses((status = 202, body = Operation), (status = "4XX", body = Problem, content_type = Problem::MEDIA_TYPE)))]
pub async fn delete(
    State(site): Shared,
    caller: Caller,
    Path(name): Path<Name>,
    Query(DeleteQuery { tenant, force }): Query<DeleteQuery>,
) -> Result<Accepted, ApiError> {
    if force {
        caller.operator()?;
    }
    let tenant_query = TenantQuery { tenant };
    let _writer = site.writer.lock().await;
    let mut before = find(&site, &caller, &name, &tenant_query).await?;
    if let (Phase::Deleting, Some(operation)) = (before.phase, before.operation.clone()) {
        if force {
            let mut after = before.clone();
            let text = fence(&mut after, &site.faults());
            if after != before {
                save(
                    &site,
                    &before,
                    &after,
                    AdvanceOutcome::default(),
                    ("cluster.fenced", text),
                    site.store.now().wall,
                )
                .await?;
            }
        }
        return Ok((StatusCode::ACCEPTED, Json(operation)));
    }
    let now = site.store.now().wall;
    if before.operation.is_some() {
        // End the operation in progress first: a cluster has at most one.
        let mut ended = before.clone();
        finish(&mut ended, OperationState::Failed, Some("the cluster was deleted".to_owned()), now);
        site.store.cluster_save(&before, &ended, false, &[]).await?;
        before = ended;
    }
    let mut after = before.clone();
    (after.operation, after.began) =
        (Some(operation(&after, OperationKind::Delete, now)), site.store.uptime());
    let mut outcome = AdvanceOutcome::default();
    reach(&mut after, Phase::Deleting, now, &mut outcome);
    let operation = after.operation.clone();
    let requested = match force {
        true => ("cluster.fenced", fence(&mut after, &site.faults())),
        false => ("cluster.delete-requested", "deletion requested".to_owned()),
    };
    save(&site, &before, &after, outcome, requested, now).await?;
    operation
        .map(|operation| (StatusCode::ACCEPTED, Json(operation)))
        .ok_or_else(|| ApiError::not_found("cluster", name))
}

/// List operations
///
/// Newest first, at most 1000.
#[utoipa::path(get, path = "/v1/operations", operation_id = "operation_list", responses((status = 200, body = Vec<Operation>), (status = "4XX", body = Problem, content_type = Problem::MEDIA_TYPE)))]
pub async fn operation_list(State(site): Shared, caller: Caller) -> Result<Json<Vec<Operation>>, ApiError> {
    Ok(Json(site.store.operation_list(caller.scope()).await?))
}

/// Show an operation
#[utoipa::path(get, path = "/v1/operations/{id}", operation_id = "operation_show", params(("id" = Uuid, Path)), responses((status = 200, body = Operation), (status = "4XX", body = Problem, content_type = Problem::MEDIA_TYPE)))]
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
    let missing = || ApiError::not_found("cluster", name);
    let tenant = match (caller, &tenant_query.tenant) {
        (Caller::Tenant(own), Some(named)) if own.name != *named => return Err(missing()),
        (Caller::Tenant(own), _) => own.id,
        (Caller::Operator, Some(named)) => site.store.tenant_find(named).await?.ok_or_else(missing)?.id,
        (Caller::Operator, None) => caller.tenant(site, None).await?.id,
    };
    site.store.cluster_find(tenant, name).await?.ok_or_else(missing)
}

/// A ready cluster without an operation in progress.
async fn find_idle(
    site: &Site,
    caller: &Caller,
    name: &Name,
    tenant_query: &TenantQuery,
) -> Result<ClusterRow, ApiError> {
    let cluster = find(site, caller, name, tenant_query).await?;
    if cluster.operation.is_some() || cluster.phase != Phase::Ready {
        let detail = format!("cluster {name} is {}; only a ready cluster can be changed", cluster.phase);
        return Err(ApiError::conflict("busy", detail).hint("wait until it is ready: heddle cluster show"));
    }
    Ok(cluster)
}

fn check(new: &NewCluster) -> Result<(), ApiError> {
    check_size(new.size)?;
    check_sub_partitions(&new.partitions, new.size)?;
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
    match (1..=CLUSTER_SIZE_MAX).contains(&size) {
        true => Ok(()),
        false => Err(ApiError::invalid(
            "size",
            format!("size must be between 1 and {CLUSTER_SIZE_MAX} nodes, got {size}"),
        )),
    }
}

fn check_sub_partitions(partitions: &[SubPartition], size: u32) -> Result<(), ApiError> {
    check_partitions(partitions, size).map_err(|error| ApiError::invalid("partitions", error.to_string()))
}

async fn image(site: &Site, name: &Name) -> Result<ImageSpec, ApiError> {
    let images = site.store.image_list().await?;
    let names: Vec<String> = images.iter().map(|image| image.name.to_string()).collect();
    let image = images.into_iter().find(|image| image.name == *name).ok_or_else(|| {
        let hint = if names.is_empty() {
            "there are no images yet".to_owned()
        } else {
            format!("images: {}", names.join(", "))
        };
        ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "no-such-image", format!("there is no image {name}"))
            .field("image")
            .hint(hint)
    })?;
    Ok(image_spec(image))
}

/// Assigns partition numbers: one for the cluster if it has none, and one for each new sub-partition. Known names keep
/// theirs.
async fn assign_partitions(
    site: &Site,
    cluster: &mut ClusterRow,
    wanted: &[SubPartition],
) -> Result<(), ApiError> {
    let had = std::mem::take(&mut cluster.inner);
    let kept = |name: &Name| had.iter().find(|inner| inner.name == *name).map(|inner| inner.number);
    let new = wanted.iter().filter(|partition| kept(&partition.name).is_none()).count();
    let count = new + usize::from(cluster.partition.is_none());
    let numbers = site.store.number_free(count).await?.map_err(|error| {
        ApiError::conflict("no-capacity", error.to_string()).hint("delete a cluster, or wait ten minutes")
    })?;
    let mut next = numbers.into_iter();
    cluster.partition = cluster.partition.or_else(|| next.next());
    for SubPartition { name, full, limited } in wanted.iter().cloned() {
        if let Some(number) = kept(&name).or_else(|| next.next()) {
            cluster.inner.push(SubPartitionStatus { name, number, full, limited });
        }
    }
    Ok(())
}

/// Rejects a cluster that exceeds the quota of its tenant.
async fn check_quota(
    site: &Site,
    before: Option<&ClusterRow>,
    after: &ClusterRow,
    clusters: &[ClusterRow],
) -> Result<(), ApiError> {
    let tenant = &after.tenant;
    let row = site.store.tenant_show(tenant.id).await?;
    let quota = row.ok_or_else(|| ApiError::not_found("tenant", &tenant.name))?.quota.quota();
    let own = || clusters.iter().filter(|cluster| cluster.tenant.id == tenant.id);
    let others = own().filter(|cluster| cluster.id != after.id);
    let numbers = site.store.number_count(tenant.id).await?;
    let had = |number| before.is_some_and(|before| before.partition_numbers().any(|it| it == number));
    let new = after.partition_numbers().filter(|number| !had(*number)).count() as u32;
    let (has, would_have) = (usage(own(), numbers), usage(others.chain([after]), numbers + new));
    let hosts = site.store.host_list().await?.len();
    quota::check(&tenant.name, &quota, hosts, &has, &would_have).map_err(|error| {
        ApiError::conflict("quota-exceeded", error.to_string())
            .hint("request less or delete something; heddle tenant show lists the usage, and operators change quotas with heddle tenant quota")
    })
}

/// Places `wanted` more nodes.
async fn place_nodes(
    site: &Site,
    caller: &Caller,
    cluster: &ClusterRow,
    wanted: u32,
    clusters: &[ClusterRow],
) -> Result<Vec<NodeRow>, ApiError> {
    let hosts = site.store.host_list().await?;
    admit(cluster, wanted, &hosts, clusters, &site.observed()).map_err(|error| match error {
        AdmissionError::NotYet => {
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "not-yet", error.to_string()).hint("try again in a moment")
        }
        AdmissionError::NoHost { .. } => {
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "no-usable-host", caller.disclose(&error))
                .hint("try again later; operators see details with heddle host list")
        }
        AdmissionError::NoCapacity(_) => ApiError::conflict("no-capacity", caller.disclose(&error))
            .hint("request fewer nodes, or less memory or cores per node; operators see what is left with heddle host list"),
    })
}

/// Rejects a cluster for which there is no verified plan beside all others.
async fn try_plan(
    site: &Site,
    caller: &Caller,
    cluster: &ClusterRow,
    others: &[ClusterRow],
) -> Result<(), ApiError> {
    if cluster.class == Class::BestEffort && cluster.inner.is_empty() {
        return Ok(());
    }
    let Some(discovered) = site.with_observed(|observed| observed.fabric.discovered.clone()) else {
        return Ok(());
    };
    let others = others.iter().filter(|other| other.id != cluster.id);
    let clusters: Vec<ClusterRow> = others.chain([cluster]).cloned().collect();
    let intent = Arc::new(network::fabric_intent(&clusters));
    match site.planning.propose(discovered, intent).await {
        Ok(_) => Ok(()),
        Err(error @ PlanningError::Compile(CompileError::NotAdmitted { .. })) => {
            Err(ApiError::conflict("cannot-guarantee", caller.disclose(&error))
                .field("class")
                .hint("request less bandwidth, fewer nodes, or best effort"))
        }
        Err(PlanningError::Panicked) => {
            Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the plan cannot be checked"))
        }
        Err(error) => Err(ApiError::conflict("cannot-be-planned", caller.disclose(&error))),
    }
}

/// Marks all nodes as leaving and fences those on silent hosts; returns the text of the event.
fn fence(cluster: &mut ClusterRow, faults: &Faults) -> String {
    let mut fenced = Vec::new();
    for node in &mut cluster.nodes {
        node.leaving = true;
        node.fenced |= faults.contains_key(&Fault::AgentSilent(node.host.clone()));
        if node.fenced {
            fenced.push(node.number.to_string());
        }
    }
    match fenced.as_slice() {
        [] => "forced deletion requested; all its hosts respond".to_owned(),
        fenced => format!(
            "forced deletion requested; nodes on silent hosts leave the network first: {}",
            fenced.join(", ")
        ),
    }
}

fn operation(cluster: &ClusterRow, kind: OperationKind, now: Timestamp) -> Operation {
    Operation {
        id: Uuid::new_v4(),
        tenant: cluster.tenant.name.clone(),
        cluster: cluster.name.clone(),
        cluster_id: cluster.id,
        kind,
        state: OperationState::Running,
        reason: None,
        started: now,
        ended: None,
        steps: Vec::new(),
    }
}

async fn save(
    site: &Site,
    before: &ClusterRow,
    after: &ClusterRow,
    mut outcome: AdvanceOutcome,
    (kind, text): (&'static str, String),
    at: Timestamp,
) -> Result<(), ApiError> {
    let (tenant, cluster) = (Some(after.tenant.clone()), Some(after.name.clone()));
    outcome.events.insert(0, EventRecord { at, tenant, cluster, kind, text });
    site.store.cluster_save(before, after, false, &outcome.events).await?;
    site.noted(Some(&after.tenant));
    site.wake();
    Ok(())
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
