//! Control loop that advances clusters and publishes the desired state of hosts.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use controller_api::Name;
use controller_api::agent::{
    AdapterSpec, ClassLevel, Context, HostSpec, ImageSpec, NamedKey, PartitionKeySpec, Peer, SpecVersion,
    VmSpec,
};
use controller_api::cluster::{AdapterKind, Phase, SubPartitionStatus};
use fabric_model::tenancy::SlMode;
use ib_wire::{Pkey, ServiceLevel};
use uuid::Uuid;

use crate::lifecycle::{Observations as _, VmObservation, advance, node_name, probes};
use crate::network::{adapter_guid, broadcast_group, inner_key, node_keys, overlay_keys};
use crate::node_address::address;
use crate::observed::ObservedFabric;
use crate::site::{KeysOfClusters, Site};
use crate::store::{
    ClusterKeys, ClusterRow, ImageRow, NodeRow, StoreError, StoreIdentity, StoredOverlay, ViewPartition,
};

/// Longest pause between two passes: deadlines expire without an event.
const INTERVAL: Duration = Duration::from_secs(5);

/// Pause after an event: one pass covers everything that happened meanwhile.
pub const SETTLE: Duration = Duration::from_millis(10);

/// MTU of Ethernet cards: with the Ethernet header, a packet fits the 2048 bytes of an InfiniBand packet.
const ETHERNET_MTU: u16 = 2030;

/// MTU of `ib0`: IPoIB precedes a packet with 4 bytes.
const IPOIB_MTU: u16 = 2044;

/// Control loop: advances all clusters and publishes the host specs.
pub async fn run(site: Arc<Site>) -> ! {
    loop {
        match pass(&site).await {
            Ok(true) => {
                site.mirror().await;
                site.wake();
            }
            Ok(false) => {}
            Err(error) => {
                tracing::error!("{}", crate::chain(&error));
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
        // Whichever comes first; a wake-up during the pass is not lost.
        let _ = tokio::time::timeout(INTERVAL, site.changed.notified()).await;
        tokio::time::sleep(SETTLE).await;
    }
}

/// Advances every cluster as far as it can go and publishes the host specs; whether any row changed.
pub async fn pass(site: &Site) -> Result<bool, StoreError> {
    let _writer = site.writer.lock().await;
    let observed = site.observed();
    let now = site.store.now();
    let mut is_changed = false;
    let mut clusters = site.store.cluster_list().await?;
    for cluster in &mut clusters {
        let before = cluster.clone();
        let outcome = advance(cluster, &observed, now);
        if outcome.is_removed || *cluster != before {
            let save = site.store.cluster_save(&before, cluster, outcome.is_removed, &outcome.events);
            save.await?;
            is_changed = true;
        }
        if !outcome.events.is_empty() {
            site.noted(Some(&cluster.tenant));
        }
    }
    let hosts = site.store.host_list().await?;
    let images: Vec<ImageSpec> = site.store.image_list().await?.into_iter().map(image_spec).collect();
    let nothing = hosts.iter().map(|host| {
        (host.name.clone(), DesiredHost { vms: Vec::new(), removed: Vec::new(), images: images.clone() })
    });
    site.store.held_partitions_settle().await?;
    let keys = keys(site, &clusters).await?;
    let mut desired = desired(&clusters, &keys, nothing.collect(), &observed.fabric);
    for tombstone in site.store.tombstone_list().await? {
        if observed.vm(&tombstone.host, tombstone.vm) == VmObservation::Removed {
            site.store.tombstone_remove(tombstone.vm).await?;
        } else if let Some(desired) = desired.get_mut(&tombstone.host) {
            desired.removed.push(tombstone.vm);
        }
    }
    publish_specs(site, desired).await?;
    Ok(is_changed)
}

/// Keys of all clusters. They never change, so each is read once.
async fn keys(site: &Site, clusters: &[ClusterRow]) -> Result<KeysOfClusters, StoreError> {
    let mut known = site.keys.lock().await;
    let all: HashSet<Uuid> = clusters.iter().map(|cluster| cluster.id).collect();
    known.retain(|id, _| all.contains(id));
    for id in all {
        if !known.contains_key(&id)
            && let Some(keys) = site.store.cluster_keys(id).await?
        {
            known.insert(id, Arc::new(keys));
        }
    }
    Ok(known.clone())
}

/// Publishes specs for hosts whose desired state has changed, under a version that is in the store before.
async fn publish_specs(site: &Site, desired: HashMap<Name, DesiredHost>) -> Result<(), StoreError> {
    let last = site.specs().borrow().clone();
    let last_of = |host: &Name| last.as_ref().as_ref().and_then(|all| all.get(host));
    let is_given =
        |host: &Name, desired: &DesiredHost| last_of(host).is_some_and(|spec| desired.matches(spec));
    let is_changed = desired.iter().any(|(host, desired)| !is_given(host, desired));
    let sequence = if is_changed { site.store.spec_sequence_next().await? } else { 0 };
    let StoreIdentity { site: id, epoch, .. } = site.identity;
    let specs = desired.into_iter().map(|(host, desired)| {
        let spec = match last_of(&host) {
            Some(spec) if desired.matches(spec) => Arc::clone(spec),
            _ => {
                let DesiredHost { vms, removed, images } = desired;
                Arc::new(HostSpec {
                    version: SpecVersion { site: id, epoch, sequence },
                    vms,
                    removed,
                    images,
                })
            }
        };
        (host, spec)
    });
    site.publish_specs(specs.collect());
    Ok(())
}

/// Desired state of a host: its spec without a version.
#[derive(Debug)]
struct DesiredHost {
    vms: Vec<VmSpec>,
    removed: Vec<Uuid>,
    images: Vec<ImageSpec>,
}

impl DesiredHost {
    fn matches(&self, spec: &HostSpec) -> bool {
        (&self.vms, &self.removed, &self.images) == (&spec.vms, &spec.removed, &spec.images)
    }
}

/// Desired state of every host, derived from the store alone: what is temporarily not observed keeps running. A leaving
/// node is a tombstone until its agent has reported that it is gone.
fn desired(
    clusters: &[ClusterRow],
    keys: &KeysOfClusters,
    mut all: HashMap<Name, DesiredHost>,
    fabric: &ObservedFabric,
) -> HashMap<Name, DesiredHost> {
    for cluster in clusters {
        for node in cluster.nodes.iter().filter(|node| node.networked && !node.gone) {
            let Some(desired) = all.get_mut(&node.host) else { continue };
            if node.leaving || cluster.phase == Phase::Failed {
                desired.removed.push(node.id);
            } else if let Some(keys) = keys.get(&cluster.id) {
                desired.vms.extend(vm_spec(cluster, keys, node, fabric));
            }
        }
    }
    all
}

/// The image of a row as agents need it.
pub fn image_spec(image: ImageRow) -> ImageSpec {
    ImageSpec { name: image.name, directory: image.directory.into(), digest: image.digest }
}

fn vm_spec(
    cluster: &ClusterRow,
    keys_of: &ClusterKeys,
    node: &NodeRow,
    fabric: &ObservedFabric,
) -> Option<VmSpec> {
    let key =
        |pkey: Pkey| PartitionKeySpec { pkey, group: broadcast_group(&fabric.decisions, pkey.partition()) };
    let mut keys = node_keys(cluster, node.number).into_iter().map(key);
    let PartitionKeySpec { pkey, group } = keys.next()?;
    let from_overlay = cluster.overlay.iter().flat_map(|overlay| &overlay.partitions);
    let inner = cluster.inner.iter().filter_map(|inner| named_key(inner, node));
    Some(VmSpec {
        id: node.id,
        label: format!("{}/{}", cluster.tenant.name, node_name(cluster, node)),
        cores: cluster.cores,
        memory: cluster.memory,
        mode: cluster.mode,
        image: cluster.image.clone(),
        adapter: AdapterSpec {
            port_guid: node.port_guid,
            port: node.port,
            function: node.function,
            mac: node.mac,
            pkey,
            group,
            inner_keys: keys.collect(),
            guid: adapter_guid(cluster, node),
        },
        context: Context {
            generation: cluster.generation,
            cluster: cluster.name.clone(),
            hostname: node_name(cluster, node),
            address: format!("{}/16", address(node.number)),
            mtu: match cluster.adapter {
                AdapterKind::Ethernet => ETHERNET_MTU,
                AdapterKind::Infiniband => IPOIB_MTU,
            },
            peers: peers(cluster, node),
            authorized_keys: keys_of.ssh_keys.clone(),
            cluster_key: keys_of.key.clone(),
            pkey,
            sl: service_level(cluster, fabric),
            partitions: inner.chain(from_overlay.filter_map(|it| seen_key(it, node))).collect(),
            classes: cluster.overlay.iter().flat_map(class_levels).collect(),
            probes: Some(probes(cluster, node)),
        },
    })
}

fn named_key(inner: &SubPartitionStatus, node: &NodeRow) -> Option<NamedKey> {
    inner_key(inner, node.number).map(|pkey| NamedKey { name: inner.name.clone(), pkey })
}

/// P_Key in a partition that the tenant created in the view, named after its number there.
fn seen_key(partition: &ViewPartition, node: &NodeRow) -> Option<NamedKey> {
    let name = format!("view-{:04x}", partition.view_number.to_wire()).parse().ok()?;
    Some(NamedKey { name, pkey: overlay_keys(partition, node.number).next()? })
}

/// Traffic classes that the fabric is programmed with, as nodes learn them.
fn class_levels(overlay: &StoredOverlay) -> impl Iterator<Item = ClassLevel> {
    let classes = overlay.classes.iter().zip(&overlay.wire_sls);
    classes.map(|(class, level)| ClassLevel { view_sls: class.service_levels.clone(), sl: *level })
}

/// Service level of a cluster: its own if it has a guarantee, else the best-effort one. `None` if each path has its own.
fn service_level(cluster: &ClusterRow, fabric: &ObservedFabric) -> Option<ServiceLevel> {
    let decision = fabric.decisions.clusters.get(&cluster.id.to_string());
    let own = decision.and_then(|decision| decision.service_level());
    own.or((cluster.sl_mode == SlMode::Cluster).then(ServiceLevel::default))
}

/// The nodes that a node knows: those that have joined; a new node knows all others. A job that starts now does not wait
/// for nodes that are not there yet.
fn peers(cluster: &ClusterRow, node: &NodeRow) -> Vec<Peer> {
    let known = cluster.nodes.iter().filter(|peer| !peer.leaving && (peer.joined || !node.joined));
    let peer = |peer: &NodeRow| Peer {
        hostname: node_name(cluster, peer),
        address: address(peer.number),
        slots: cluster.cores,
    };
    known.map(peer).collect()
}
