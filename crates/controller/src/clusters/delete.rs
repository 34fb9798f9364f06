//! Deletes a cluster, gracefully or by force.

use controller_api::Name;
use controller_api::cluster::Phase;
use controller_api::operation::{Operation, OperationKind, OperationState};
use uuid::Uuid;

use super::ClusterError;
use super::steps::{RequestEvent, begin, find, save};
use crate::faults::{Fault, Faults};
use crate::lifecycle::{AdvanceOutcome, finish, reach};
use crate::site::Site;
use crate::store::ClusterRow;

/// How the nodes of a deleted cluster leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// Each when its host has reported that it is gone.
    Orderly,
    /// Those on silent hosts are dropped once their ports have left the partitions.
    Forced,
}

/// Deletes an owner's cluster, in whatever phase it is. A deletion in progress is continued, and may become a forced one.
pub async fn delete(
    site: &Site,
    owner: Uuid,
    name: &Name,
    deletion: Deletion,
) -> Result<Operation, ClusterError> {
    let _writer = site.writer.lock().await;
    let mut before = find(site, owner, name).await?;
    let now = site.store.now().wall;
    if let (Phase::Deleting, Some(operation)) = (before.phase, &before.operation) {
        if deletion == Deletion::Forced {
            let mut after = before.clone();
            let request = fence(&mut after, &site.faults());
            if after != before {
                save(site, &before, &after, request, AdvanceOutcome::default(), now).await?;
            }
        }
        return Ok(operation.clone());
    }
    if before.operation.is_some() {
        // End the operation in progress first: a cluster has at most one.
        let mut ended = before.clone();
        finish(&mut ended, OperationState::Failed, Some("the cluster was deleted".to_owned()), now);
        site.store.cluster_save(&before, &ended, false, &[]).await?;
        before = ended;
    }
    let mut after = before.clone();
    (after.operation, after.began) = (Some(begin(&after, OperationKind::Delete, now)), site.store.uptime());
    let mut outcome = AdvanceOutcome::default();
    reach(&mut after, Phase::Deleting, now, &mut outcome);
    let operation = after.operation.clone().expect("it was set above");
    let request = match deletion {
        Deletion::Forced => fence(&mut after, &site.faults()),
        Deletion::Orderly => {
            RequestEvent { kind: "cluster.delete-requested", text: "deletion requested".to_owned() }
        }
    };
    save(site, &before, &after, request, outcome, now).await?;
    Ok(operation)
}

/// Marks all nodes as leaving and fences those on silent hosts.
fn fence(cluster: &mut ClusterRow, faults: &Faults) -> RequestEvent {
    let mut fenced = Vec::new();
    for node in &mut cluster.nodes {
        node.leaving = true;
        node.fenced |= faults.contains_key(&Fault::AgentSilent(node.host.clone()));
        if node.fenced {
            fenced.push(node.number.to_string());
        }
    }
    let text = if fenced.is_empty() {
        "forced deletion requested; all its hosts respond".to_owned()
    } else {
        let nodes = fenced.join(", ");
        format!("forced deletion requested; nodes on silent hosts leave the network first: {nodes}")
    };
    RequestEvent { kind: "cluster.fenced", text }
}
