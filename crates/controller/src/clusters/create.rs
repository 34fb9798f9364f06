//! Creates a cluster: places it, and stores it.

use controller_api::Name;
use controller_api::cluster::{AdapterKind, NewCluster, Phase};
use controller_api::operation::{Operation, OperationKind, PhaseChange};
use uuid::Uuid;

use super::ClusterError;
use super::steps::{assign_partitions, begin, check, place_nodes};
use crate::keys;
use crate::reconcile::image_spec;
use crate::site::Site;
use crate::store::{ClusterKeys, ClusterNetwork, ClusterRow, EventRecord, ImageRow, TenantRef};

/// Places a new cluster of a tenant, and stores it. `new` is valid; its `tenant` is ignored.
pub async fn create(site: &Site, tenant: TenantRef, new: NewCluster) -> Result<Operation, ClusterError> {
    let key = keys::generate().map_err(ClusterError::NoKeys)?;
    let _writer = site.writer.lock().await;
    let image = image(site, &new.image).await?;
    let adapter =
        adapter(&image, new.adapter).ok_or_else(|| ClusterError::NoInfinibandDriver(image.name.clone()))?;
    let clusters = site.store.cluster_list().await?;
    if clusters.iter().any(|cluster| cluster.tenant.id == tenant.id && cluster.name == new.name) {
        return Err(ClusterError::NameTaken(new.name));
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
        adapter,
        image: image_spec(image),
        phase: Phase::Placed,
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
    assign_partitions(site, &mut cluster, &new.partitions).await?;
    let placed = place_nodes(site, &cluster, new.size, &clusters).await?;
    cluster.nodes = placed.nodes;
    check(site, None, &cluster, &clusters, placed.not_exclusive).await?;
    let mut operation = begin(&cluster, OperationKind::Create, now);
    let steps = [Phase::Requested, Phase::Placed].map(|phase| PhaseChange { phase, at: now });
    operation.steps.extend(steps);
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
    Ok(operation)
}

/// The adapter that is asked for, or the best that the image can drive. `None` if it cannot drive what is asked for.
fn adapter(image: &ImageRow, wanted: Option<AdapterKind>) -> Option<AdapterKind> {
    let best = if image.infiniband { AdapterKind::Infiniband } else { AdapterKind::Ethernet };
    let wanted = wanted.unwrap_or(best);
    (wanted == AdapterKind::Ethernet || image.infiniband).then_some(wanted)
}

async fn image(site: &Site, name: &Name) -> Result<ImageRow, ClusterError> {
    let mut images = site.store.image_list().await?;
    match images.iter().position(|image| image.name == *name) {
        Some(index) => Ok(images.swap_remove(index)),
        None => {
            let known = images.into_iter().map(|image| image.name).collect();
            Err(ClusterError::NoSuchImage { name: name.clone(), known })
        }
    }
}
