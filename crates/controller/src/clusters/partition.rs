//! Replaces the sub-partitions of a cluster.

use controller_api::Name;
use controller_api::cluster::{SubPartition, check_partitions};
use controller_api::operation::{Operation, OperationKind};
use uuid::Uuid;

use super::ClusterError;
use super::steps::{RequestEvent, assign_partitions, begin, check, find_idle, save};
use crate::lifecycle::AdvanceOutcome;
use crate::site::Site;

/// Replaces the sub-partitions of an owner's cluster. One whose name is known keeps its partition number.
pub async fn partition(
    site: &Site,
    owner: Uuid,
    name: &Name,
    wanted: &[SubPartition],
) -> Result<Operation, ClusterError> {
    let _writer = site.writer.lock().await;
    let before = find_idle(site, owner, name).await?;
    check_partitions(wanted, before.size)?;
    let now = site.store.now().wall;
    let mut after = before.clone();
    let clusters = site.store.cluster_list().await?;
    assign_partitions(site, &mut after, wanted).await?;
    check(site, Some(&before), &after, &clusters, None).await?;
    after.generation += 1;
    let operation = begin(&after, OperationKind::Partition, now);
    (after.operation, after.began) = (Some(operation.clone()), site.store.uptime());
    let text =
        format!("change to {} sub-partitions requested, from {}", after.inner.len(), before.inner.len());
    let request = RequestEvent { kind: "cluster.partitioning", text };
    save(site, &before, &after, request, AdvanceOutcome::default(), now).await?;
    Ok(operation)
}
