//! Grows or shrinks a cluster.

use controller_api::Name;
use controller_api::operation::{Operation, OperationKind};
use uuid::Uuid;

use super::ClusterError;
use super::steps::{RequestEvent, begin, check, find_idle, place_nodes, save};
use crate::lifecycle::AdvanceOutcome;
use crate::site::Site;

/// Changes the number of nodes of an owner's cluster. `size` is valid. Nodes that stay keep running.
pub async fn resize(site: &Site, owner: Uuid, name: &Name, size: u32) -> Result<Operation, ClusterError> {
    let _writer = site.writer.lock().await;
    let before = find_idle(site, owner, name).await?;
    let now = site.store.now().wall;
    let mut after = before.clone();
    after.size = size;
    // The resized cluster may use other links: its subnet manager writes the routes again.
    let is_routed =
        after.overlay.as_mut().is_some_and(|overlay| !std::mem::take(&mut overlay.routes).is_empty());
    let staying = after.nodes.iter().filter(|node| !node.leaving).count() as u32;
    if size > staying {
        let clusters = site.store.cluster_list().await?;
        let mut placed = place_nodes(site, &before, size - staying, &clusters).await?;
        placed.nodes.iter_mut().for_each(|node| node.joined = false);
        after.nodes.extend(placed.nodes);
        check(site, Some(&before), &after, &clusters, placed.not_exclusive).await?;
    } else if size < staying {
        let leaving = after.nodes.iter_mut().rev().filter(|node| !node.leaving);
        leaving.take((staying - size) as usize).for_each(|node| node.leaving = true);
        after.generation += 1;
    }
    let operation = begin(&after, OperationKind::Resize, now);
    (after.operation, after.began) = (Some(operation.clone()), site.store.uptime());
    let text = format!("resize from {} to {} nodes requested", before.size, after.size);
    let request = RequestEvent { kind: "cluster.resizing", text };
    save(site, &before, &after, request, AdvanceOutcome::default(), now).await?;
    if is_routed {
        let id = after.id;
        site.views.with(move |server, now| server.with(id, |view| view.judge_again(now))).await;
    }
    Ok(operation)
}
