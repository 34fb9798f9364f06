//! Clusters and operations: what tenants ask for.

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
use crate::health::{Audience, Fault, Faults, cluster_health, node_fault};
use crate::lifecycle::{AdvanceOutcome, finish, network_state, node_name, packet_stop, reach, shortfall};
use crate::network::PlanError;
use crate::quota::usage;
use crate::reconcile::{CLUSTER_SIZE_MAX, address, image_spec};
use crate::site::Site;
use crate::store::{ClusterKeys, ClusterNetwork, ClusterRow, EventRecord, NodeRow};
use crate::{keys, manager, network, quota};

/// The least with which an image boots.
const MEMORY_MIN: MemorySize = MemorySize::from_mib(128);

/// The least bandwidth that is guaranteed: less is not worth a port of its own, which is what every guarantee takes.
const GUARANTEE_MIN: Bandwidth = Bandwidth::from_bits_per_s(1_000_000);

/// Virtual cores of a node: more than any host of the field has.
const CORES_MAX: u32 = 512;

/// Keys that may log in.
const SSH_KEYS_MAX: usize = 64;

/// Longest key: RSA of 16,384 bits with a comment.
const SSH_KEY_BYTES_MAX: usize = 4096;

type Shared = State<Arc<Site>>;
type Accepted = (StatusCode, Json<Operation>);

/// TenantQuery cluster is meant, if not the asker's.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct TenantQuery {
    /// The tenant; operators have to say it.
    #[param(value_type = Option<String>)]
    tenant: Option<Name>,
}

/// Which cluster is to be deleted, and how.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct DeleteQuery {
    /// The tenant; operators have to say it.
    #[param(value_type = Option<String>)]
    tenant: Option<Name>,
    /// Let nodes go tenant_query hosts are silent, once their ports are closed. For operators: whether a host is dead or only cut off
    /// is theirs to know.
    #[serde(default)]
    force: bool,
}

/// Clusters: a tenant's own, or all for operators.
#[utoipa::path(get, path = "/v1/clusters", operation_id = "cluster_list", responses((status = 200, body = Vec<Cluster>), (status = "4XX", body = Problem, content_type = Problem::MEDIA_TYPE)))]
pub async fn list(State(site): Shared, caller: Caller) -> Result<Json<Vec<Cluster>>, ApiError> {
    let clusters = match caller.scope() {
        Some(tenant) => site.store.cluster_list_of(tenant).await?,
        None => site.store.cluster_list().await?,
    };
    Ok(Json(clusters.into_iter().map(|cluster| cluster_status(&site, cluster, &caller)).collect()))
}

/// A cluster.
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

/// Asks for a cluster. What cannot be placed is refused at once.
#[utoipa::path(post, path = "/v1/clusters", operation_id = "cluster_create", request_body = NewCluster, responses((status = 202, body = Operation), (status = "4XX", body = Problem, content_type = Problem::MEDIA_TYPE)))]
pub async fn create(
    State(site): Shared,
    caller: Caller,
    Json(new): Json<NewCluster>,
) -> Result<Accepted, ApiError> {
    check(&new)?;
    let tenant = caller.tenant(&site, new.tenant.as_ref()).await.map_err(|error| error.field("tenant"))?;
    let key = keys::generate().map_err(|error| {
        tracing::error!("no key for a cluster: {error:#}");
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "cannot make a key for the cluster")
    })?;
    let _writer = site.writer.lock().await;
    let image = image(&site, &new.image).await?;
    let clusters = site.store.cluster_list().await?;
    if clusters.iter().any(|cluster| cluster.tenant.id == tenant.id && cluster.name == new.name) {
        return Err(ApiError::conflict("name-taken", format!("there is a cluster {} already", new.name))
            .field("name"));
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
            "asked for and placed: {} nodes of {} cores, {}",
            cluster.size, cluster.cores, cluster.memory
        ),
    };
    let keys = ClusterKeys { ssh_keys: new.ssh_keys, key };
    site.store.cluster_create(&cluster, &keys, &event).await?;
    site.noted(Some(&cluster.tenant));
    site.wake();
    Ok((StatusCode::ACCEPTED, Json(operation)))
}

/// Asks for a cluster to place_nodes or shrink; what runs goes on.
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
    // Links may be others then: ways are wished anew.
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
    let text = format!("from {} to {} nodes", before.size, after.size);
    save(&site, &before, &after, AdvanceOutcome::default(), ("cluster.resizing", text), now).await?;
    if is_routed {
        let id = after.id;
        site.views.with(move |server, now| server.with(id, |view| view.judge_again(now))).await;
    }
    Ok((StatusCode::ACCEPTED, Json(operation)))
}

/// Asks for other partitions inside a cluster, in place of all that are there. Those that keep their name keep their number.
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
    let text = format!("{} partitions inside instead of {}", after.inner.len(), before.inner.len());
    save(&site, &before, &after, AdvanceOutcome::default(), ("cluster.partitioning", text), now).await?;
    Ok((StatusCode::ACCEPTED, Json(operation)))
}

/// Asks for a cluster to be taken down, whatever it is doing. An operator may force it: nodes tenant_query hosts are silent then go without
/// the word of their hosts, once their ports are taken out of the partitions of the cluster.
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
        // The one that is under way ends first; each cluster has one at most.
        let mut ended = before.clone();
        finish(&mut ended, OperationState::Failed, Some("the cluster was deleted meanwhile".to_owned()), now);
        site.store.cluster_save(&before, &ended, false, &[]).await?;
        before = ended;
    }
    let mut after = before.clone();
    (after.operation, after.began) =
        (Some(operation(&after, OperationKind::Delete, now)), site.store.uptime());
    let mut outcome = AdvanceOutcome::default();
    reach(&mut after, Phase::Deleting, now, &mut outcome);
    let operation = after.operation.clone();
    let asked = match force {
        true => ("cluster.fenced", fence(&mut after, &site.faults())),
        false => ("cluster.delete-asked", "to be deleted".to_owned()),
    };
    save(&site, &before, &after, outcome, asked, now).await?;
    operation
        .map(|operation| (StatusCode::ACCEPTED, Json(operation)))
        .ok_or_else(|| ApiError::not_found("cluster", name))
}

/// Operations, the newest first.
#[utoipa::path(get, path = "/v1/operations", operation_id = "operation_list", responses((status = 200, body = Vec<Operation>), (status = "4XX", body = Problem, content_type = Problem::MEDIA_TYPE)))]
pub async fn operation_list(State(site): Shared, caller: Caller) -> Result<Json<Vec<Operation>>, ApiError> {
    Ok(Json(site.store.operation_list(caller.scope()).await?))
}

/// An operation.
#[utoipa::path(get, path = "/v1/operations/{id}", operation_id = "operation_show", params(("id" = Uuid, Path)), responses((status = 200, body = Operation), (status = "4XX", body = Problem, content_type = Problem::MEDIA_TYPE)))]
pub async fn operation_show(
    State(site): Shared,
    caller: Caller,
    Path(id): Path<Uuid>,
) -> Result<Json<Operation>, ApiError> {
    let operation = site.store.operation_show(caller.scope(), id).await?;
    operation.map(Json).ok_or_else(|| ApiError::not_found("operation", id))
}

/// A cluster that the caller may know of; somebody else's is not there.
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

/// A cluster of the caller's that has nothing under way.
async fn find_idle(
    site: &Site,
    caller: &Caller,
    name: &Name,
    tenant_query: &TenantQuery,
) -> Result<ClusterRow, ApiError> {
    let cluster = find(site, caller, name, tenant_query).await?;
    if cluster.operation.is_some() || cluster.phase != Phase::Ready {
        let detail = format!("cluster {name} is {}; only a ready one can be changed", cluster.phase);
        return Err(ApiError::conflict("busy", detail).hint("wait until it is ready: heddle cluster show"));
    }
    Ok(cluster)
}

fn check(new: &NewCluster) -> Result<(), ApiError> {
    check_size(new.size)?;
    check_sub_partitions(&new.partitions, new.size)?;
    if !(1..=CORES_MAX).contains(&new.cores) {
        return Err(ApiError::invalid("cores", format!("{} cores; 1 to {CORES_MAX} can be", new.cores)));
    }
    if let Class::Guaranteed { bandwidth, .. } = new.class
        && bandwidth < GUARANTEE_MIN
    {
        let detail = format!("a guaranteed bandwidth must be at least {GUARANTEE_MIN}, got {bandwidth}");
        return Err(ApiError::invalid("class", detail).hint("ask for more, or for best effort"));
    }
    if new.memory < MEMORY_MIN {
        return Err(ApiError::invalid(
            "memory",
            format!("{} is too little; {MEMORY_MIN} at least", new.memory),
        ));
    }
    if new.ssh_keys.len() > SSH_KEYS_MAX {
        return Err(ApiError::invalid(
            "ssh_keys",
            format!("{} keys; at most {SSH_KEYS_MAX}", new.ssh_keys.len()),
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
            Err(ApiError::invalid("ssh_keys", format!("key {} is no public key of ssh", index + 1))
                .hint("the one line of a file such as id_ed25519.pub"))
        }
        None => Ok(()),
    }
}

fn check_size(size: u32) -> Result<(), ApiError> {
    match (1..=CLUSTER_SIZE_MAX).contains(&size) {
        true => Ok(()),
        false => Err(ApiError::invalid("size", format!("{size} nodes; 1 to {CLUSTER_SIZE_MAX} can be"))),
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
            "there are none yet".to_owned()
        } else {
            format!("there is {}", names.join(", "))
        };
        ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "no-such-image", format!("there is no image {name}"))
            .field("image")
            .hint(hint)
    })?;
    Ok(image_spec(image))
}

/// Gives a cluster a partition of its own if it has none, and those inside that are wanted: what it had by a name it keeps.
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

/// Refuses what the quota of its tenant does not let a cluster be.
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
            .hint("ask for less or delete something; heddle tenant show tells what is used, operators set it with heddle tenant quota")
    })
}

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
                .hint("try again later; heddle host list tells operators more")
        }
        AdmissionError::PlacementError(_) => ApiError::conflict("no-capacity", caller.disclose(&error))
            .hint("ask for less, or for less memory or cores per node; heddle host list tells operators what is left"),
    })
}

/// Whether the fabric can be what a cluster wants, beside what others have: by making the plan.
async fn try_plan(
    site: &Site,
    caller: &Caller,
    cluster: &ClusterRow,
    others: &[ClusterRow],
) -> Result<(), ApiError> {
    if cluster.class == Class::BestEffort && cluster.inner.is_empty() {
        return Ok(());
    }
    let fabric = site.with_observed(|observed| observed.fabric.clone());
    let Some(discovered) = fabric.discovered.clone() else { return Ok(()) };
    let others = others.iter().filter(|other| other.id != cluster.id);
    let clusters: Vec<ClusterRow> = others.chain([cluster]).cloned().collect();
    let planned =
        manager::compile(site, discovered, Arc::new(network::fabric_intent(&clusters)), &fabric).await;
    match planned {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error @ PlanError::Compile(CompileError::NotAdmitted { .. }))) => {
            Err(ApiError::conflict("cannot-promise", caller.disclose(&error))
                .field("class")
                .hint("ask for less bandwidth, fewer nodes, or best effort"))
        }
        Ok(Err(error)) => Err(ApiError::conflict("cannot-be-planned", caller.disclose(&error))),
        Err(error) => {
            tracing::error!("a promise was not tried: {error:#}");
            Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the plan cannot be made"))
        }
    }
}

/// Lets the nodes go tenant_query hosts are silent, without their hosts' word; what is told of it.
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
        [] => "to be deleted by force; all its hosts answer".to_owned(),
        fenced => format!(
            "to be deleted by force: nodes tenant_query hosts are silent are cut off from the network first: {}",
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

/// A cluster as it is told: where its nodes run, and where their packets stop, is for operators.
fn cluster_status(site: &Site, cluster: ClusterRow, caller: &Caller) -> Cluster {
    let packets_stop = |node: &NodeRow| {
        caller.fact(site.with_observed(|observed| packet_stop(observed, node).cloned())).flatten()
    };
    let faults = site.faults();
    let audience = if *caller == Caller::Operator { Audience::Operator } else { Audience::Tenant };
    let node = |node: &NodeRow| {
        let fault = node_fault(node, &faults, audience);
        // What a host says of it may name paths and what others have there.
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
