//! Steps that creating and changing a cluster have in common.

use std::sync::Arc;

use controller_api::Name;
use controller_api::cluster::{Phase, SubPartition, SubPartitionStatus};
use controller_api::operation::{Operation, OperationKind, OperationState};
use fabric_model::tenancy::Class;
use jiff::Timestamp;
use uuid::Uuid;

use super::{ClusterError, NotPlanned};
use crate::admission::{AdmissionError, NotExclusive, PlacedNodes, admit};
use crate::lifecycle::AdvanceOutcome;
use crate::quota::{self, usage};
use crate::site::Site;
use crate::site_partitions;
use crate::store::{ClusterRow, EventRecord, StoreError};

/// A cluster of an owner.
pub async fn find(site: &Site, owner: Uuid, name: &Name) -> Result<ClusterRow, ClusterError> {
    let found = site.store.cluster_find(owner, name).await?;
    found.ok_or_else(|| ClusterError::NoSuchCluster(name.clone()))
}

/// A ready cluster without an operation in progress.
pub async fn find_idle(site: &Site, owner: Uuid, name: &Name) -> Result<ClusterRow, ClusterError> {
    let cluster = find(site, owner, name).await?;
    if cluster.operation.is_some() || cluster.phase != Phase::Ready {
        return Err(ClusterError::Busy { name: name.clone(), phase: cluster.phase });
    }
    Ok(cluster)
}

/// Assigns partition numbers: one for the cluster if it has none, and one for each new sub-partition. Known names keep
/// theirs.
pub async fn assign_partitions(
    site: &Site,
    cluster: &mut ClusterRow,
    wanted: &[SubPartition],
) -> Result<(), ClusterError> {
    let had = std::mem::take(&mut cluster.inner);
    let kept = |name: &Name| had.iter().find(|inner| inner.name == *name).map(|inner| inner.number);
    let new = wanted.iter().filter(|partition| kept(&partition.name).is_none()).count();
    let count = new + usize::from(cluster.partition.is_none());
    let mut next = site.store.number_free(count).await??.into_iter();
    cluster.partition = cluster.partition.or_else(|| next.next());
    for SubPartition { name, full, limited } in wanted.iter().cloned() {
        if let Some(number) = kept(&name).or_else(|| next.next()) {
            cluster.inner.push(SubPartitionStatus { name, number, full, limited });
        }
    }
    Ok(())
}

/// Places `count` more nodes of a cluster; `all` are the clusters of the site.
pub async fn place_nodes(
    site: &Site,
    cluster: &ClusterRow,
    count: u32,
    all: &[ClusterRow],
) -> Result<PlacedNodes, ClusterError> {
    let mut hosts = site.store.host_list().await?;
    let observed = site.observed();
    // Beside partitions of the site, ports of subnet managers are not handed over to tenants.
    if !site_partitions::stored(&site.store).await?.is_empty()
        && let Some(discovered) = &observed.fabric.discovered
    {
        let hosts = Arc::make_mut(&mut hosts);
        hosts.retain(|host| !host.port_guid.is_some_and(|port| discovered.intents.is_manager(port)));
    }
    let placed = admit(cluster, count, &hosts, all, &observed);
    let not_exclusive = match &placed {
        Ok(PlacedNodes { not_exclusive, .. }) | Err(AdmissionError::NoCapacity { not_exclusive, .. }) => {
            *not_exclusive
        }
        Err(AdmissionError::NotYet | AdmissionError::NoHost { .. }) => None,
    };
    if let Some(reason) = not_exclusive {
        tracing::info!(cluster = %cluster.id, "new nodes have no hosts of their own: {reason}");
    }
    Ok(placed?)
}

/// Checks a cluster against the quota of its tenant, and that there is a verified plan for it beside all others.
///
/// `before` is the cluster so far, `all` are the clusters of the site, with or without it. `not_exclusive` is the result
/// of placing its new nodes.
pub async fn check(
    site: &Site,
    before: Option<&ClusterRow>,
    after: &ClusterRow,
    all: &[ClusterRow],
    not_exclusive: Option<NotExclusive>,
) -> Result<(), ClusterError> {
    check_quota(site, before, after, all).await?;
    try_plan(site, after, all, not_exclusive).await
}

async fn check_quota(
    site: &Site,
    before: Option<&ClusterRow>,
    after: &ClusterRow,
    all: &[ClusterRow],
) -> Result<(), ClusterError> {
    let tenant = &after.tenant;
    let row = site.store.tenant_show(tenant.id).await?;
    let quota = row.ok_or_else(|| ClusterError::NoSuchTenant(tenant.name.clone()))?.quota.quota();
    let own = || all.iter().filter(|cluster| cluster.tenant.id == tenant.id);
    let others = own().filter(|cluster| cluster.id != after.id);
    let numbers = site.store.number_count(tenant.id).await?;
    let had = |number| before.is_some_and(|before| before.partition_numbers().any(|it| it == number));
    let new = after.partition_numbers().filter(|number| !had(*number)).count() as u32;
    let has = usage(own(), numbers);
    let would_have = usage(others.chain([after]), numbers + new);
    let hosts = site.store.host_list().await?.len();
    Ok(quota::check(&tenant.name, &quota, hosts, &has, &would_have)?)
}

async fn try_plan(
    site: &Site,
    cluster: &ClusterRow,
    all: &[ClusterRow],
    not_exclusive: Option<NotExclusive>,
) -> Result<(), ClusterError> {
    if cluster.class == Class::BestEffort && cluster.inner.is_empty() {
        return Ok(());
    }
    let Some(discovered) = site.with_observed(|observed| observed.fabric.discovered.clone()) else {
        return Ok(());
    };
    let others = all.iter().filter(|other| other.id != cluster.id);
    let clusters: Vec<ClusterRow> = others.chain([cluster]).cloned().collect();
    let intent = Arc::new(site.fabric_intent(&clusters).await?);
    match site.planning.propose(discovered, intent).await {
        Ok(_trial) => Ok(()),
        Err(reason) => {
            let (nodes, class) = (cluster.size, cluster.class);
            Err(NotPlanned { reason, nodes, class, not_exclusive }.into())
        }
    }
}

/// An operation that begins now.
pub fn begin(cluster: &ClusterRow, kind: OperationKind, now: Timestamp) -> Operation {
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

/// The request itself, as an event.
pub struct RequestEvent {
    pub kind: &'static str,
    pub text: String,
}

/// Stores a changed cluster with its events, and wakes the control loops.
pub async fn save(
    site: &Site,
    before: &ClusterRow,
    after: &ClusterRow,
    request: RequestEvent,
    outcome: AdvanceOutcome,
    at: Timestamp,
) -> Result<(), StoreError> {
    let RequestEvent { kind, text } = request;
    let (tenant, cluster) = (Some(after.tenant.clone()), Some(after.name.clone()));
    let mut events = vec![EventRecord { at, tenant, cluster, kind, text }];
    events.extend(outcome.events);
    site.store.cluster_save(before, after, false, &events).await?;
    site.noted(Some(&after.tenant));
    site.wake();
    Ok(())
}
