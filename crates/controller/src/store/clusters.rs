//! Rows of clusters with their nodes and operations. Read and written as a whole, except for keys.

use std::collections::{BTreeMap, HashMap};

use controller_api::agent::{ClusterKey, ImageSpec, NetworkCheck};
use controller_api::cluster::{AdapterKind, CpuMode, NetworkState, NodeState, Phase, SubPartitionStatus};
use controller_api::operation::Operation;
use controller_api::{MemorySize, Name};
use fabric_model::MacAddress;
use fabric_model::intent::{Role, RouteOverrides};
use fabric_model::tenancy::{Class, SlMode};
use ib_wire::{Guid, PartitionNumber, PortNum, ServiceLevel};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sqlx::sqlite::SqliteRow;
use sqlx::{Sqlite, Transaction};
use tenant_view::{Names, OverlayClass};
use uuid::Uuid;

use super::codec::{Columns, decode_enum, decode_json, encode_enum, encode_json};
use super::identity::{Tombstone, write_tombstone};
use super::numbers::NumberKind;
use super::records::{EventRecord, operation_columns};
use super::site::{TenantRef, partition, tenant_ref};
use super::{Store, StoreError, parsed};
use crate::clock::Uptime;

/// A cluster: its desired shape and its current state.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterRow {
    pub id: Uuid,
    pub tenant: TenantRef,
    pub name: Name,
    pub size: u32,
    pub cores: u32,
    pub memory: MemorySize,
    pub mode: CpuMode,
    pub class: Class,
    pub sl_mode: SlMode,
    pub adapter: AdapterKind,
    /// The image as it was when the cluster was requested.
    pub image: ImageSpec,
    pub phase: Phase,
    pub reason: Option<String>,
    pub network: ClusterNetwork,
    pub partition: Option<PartitionNumber>,
    pub inner: Vec<SubPartitionStatus>,
    /// Changes of the tenant in its view that the fabric is to be programmed with.
    pub overlay: Option<StoredOverlay>,
    /// Generation of the context of its nodes.
    pub generation: u64,
    pub created: Timestamp,
    /// Ordered by number.
    pub nodes: Vec<NodeRow>,
    /// The operation in progress.
    pub operation: Option<Operation>,
    /// Start of that operation.
    pub began: Uptime,
}

/// Ssh keys of a cluster. They never change, and are read for host specs only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterKeys {
    /// Public keys that may log in.
    pub ssh_keys: Vec<String>,
    /// Key pair that the nodes use to log in to each other.
    pub key: ClusterKey,
}

impl ClusterRow {
    /// Numbers of all its partitions, its own first.
    pub fn partition_numbers(&self) -> impl Iterator<Item = PartitionNumber> {
        self.numbers().map(|(number, _)| number)
    }

    fn numbers(&self) -> impl Iterator<Item = (PartitionNumber, NumberKind)> {
        let own = self.partition.map(|number| (number, NumberKind::Own));
        let inner = self.inner.iter().map(|inner| (inner.number, NumberKind::Inner));
        let from_overlay = self.overlay.iter().flat_map(|overlay| &overlay.partitions);
        own.into_iter().chain(inner).chain(from_overlay.map(|partition| (partition.number, NumberKind::View)))
    }
}

/// State of the network check of a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterNetwork {
    pub state: NetworkState,
    /// Since when the cluster waits for nothing but the check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Uptime>,
}

/// Changes of a tenant in its view, in terms of the fabric.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredOverlay {
    /// Route overrides for ports of its nodes.
    #[serde(default, skip_serializing_if = "RouteOverrides::is_empty")]
    pub routes: RouteOverrides,
    /// Roles in the cluster's own partition, by node number.
    #[serde(rename = "own")]
    pub own_roles: BTreeMap<u32, Role>,
    /// Partitions that the tenant created.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partitions: Vec<ViewPartition>,
    /// Traffic classes with their service levels in the view; at most one if all packets are alike.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<OverlayClass>,
    /// Service levels of the classes on the wire, as announced to the nodes; empty until the fabric is programmed with
    /// them.
    #[serde(rename = "levels", default, skip_serializing_if = "Vec::is_empty")]
    pub wire_sls: Vec<ServiceLevel>,
}

impl StoredOverlay {
    /// Role of a node in the cluster's own partition. Nodes that joined later are full members if all others are, else
    /// limited.
    pub fn own_role(&self, node: u32) -> Role {
        let is_open = self.own_roles.values().all(|role| *role == Role::Full);
        let unsaid = if is_open { Role::Full } else { Role::Limited };
        self.own_roles.get(&node).copied().unwrap_or(unsaid)
    }
}

/// A partition that a tenant created in its view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ViewPartition {
    /// Partition number in the view.
    #[serde(rename = "seen")]
    pub view_number: PartitionNumber,
    /// Partition number on the wire.
    pub number: PartitionNumber,
    /// Roles by node number.
    pub members: BTreeMap<u32, Role>,
}

/// A node: its placement and its current state.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeRow {
    pub id: Uuid,
    /// Counted from 1.
    pub number: u32,
    pub host: Name,
    pub port_guid: Guid,
    pub port: PortNum,
    /// Number of its virtual function, from 1.
    pub function: u8,
    pub mac: MacAddress,
    /// Desired: it is to be removed.
    pub leaving: bool,
    /// It is announced to the other nodes.
    pub joined: bool,
    /// Observed: its port is, or was, a member of the partition.
    pub networked: bool,
    /// Observed: its virtual machine no longer exists.
    pub gone: bool,
    pub state: NodeState,
    pub reason: Option<String>,
    /// Generation that the guest is ready for.
    pub ready: Option<u64>,
    /// Result of its network check; `None` if it does not check.
    pub network: Option<NetworkCheck>,
    /// Desired: it leaves without confirmation by its host; its port leaves the partitions first.
    pub fenced: bool,
}

impl NodeRow {
    /// Whether its port is to be a member of its partitions: the virtual machine may still exist, and the node is not
    /// fenced.
    pub fn is_carried(&self) -> bool {
        !self.gone && !self.fenced
    }
}

impl Store {
    /// All clusters, oldest first. For the control loops, and for requests that need the placement of all nodes.
    pub async fn cluster_list(&self) -> Result<Vec<ClusterRow>, StoreError> {
        let mut read = self.readers.begin().await?;
        let rows = sqlx::query(CLUSTERS).fetch_all(&mut *read).await?;
        let mut operations = HashMap::new();
        for row in sqlx::query(RUNNING).fetch_all(&mut *read).await? {
            let (operation, began) = running(&row)?;
            operations.insert(operation.cluster_id, (operation, began));
        }
        let mut nodes: HashMap<String, Vec<NodeRow>> = HashMap::new();
        for row in sqlx::query(NODES).fetch_all(&mut *read).await? {
            nodes.entry(row.text("cluster")?).or_default().push(node(&row)?);
        }
        rows.iter()
            .map(|row| {
                let mut cluster = cluster(row)?;
                cluster.nodes = nodes.remove(&row.text("id")?).unwrap_or_default();
                cluster.set_operation(operations.remove(&cluster.id));
                Ok(cluster)
            })
            .collect()
    }

    /// Clusters of a tenant, oldest first.
    pub async fn cluster_list_of(&self, tenant: Uuid) -> Result<Vec<ClusterRow>, StoreError> {
        let mut read = self.readers.begin().await?;
        let query = sqlx::query(CLUSTERS_OF).bind(tenant.to_string());
        let rows = query.fetch_all(&mut *read).await?;
        let mut clusters = Vec::new();
        for row in &rows {
            clusters.push(whole(&mut read, row).await?);
        }
        Ok(clusters)
    }

    /// Cluster of a tenant by name.
    pub async fn cluster_find(&self, tenant: Uuid, name: &Name) -> Result<Option<ClusterRow>, StoreError> {
        let mut read = self.readers.begin().await?;
        let query = sqlx::query(CLUSTER_OF).bind(tenant.to_string()).bind(name.as_str());
        match query.fetch_optional(&mut *read).await? {
            Some(row) => whole(&mut read, &row).await.map(Some),
            None => Ok(None),
        }
    }

    /// Keys of a cluster; `None` if it is gone.
    pub async fn cluster_keys(&self, cluster: Uuid) -> Result<Option<ClusterKeys>, StoreError> {
        let query = sqlx::query(KEYS_OF).bind(cluster.to_string());
        let row = query.fetch_optional(&self.readers).await?;
        row.map(|row| {
            let private = self.seal.unseal(cluster, &row.bytes("key_private")?)?;
            let key = ClusterKey { public: row.text("key_public")?, private };
            Ok(ClusterKeys { ssh_keys: decode_json("ssh keys", &row.text("ssh_keys")?)?, key })
        })
        .transpose()
    }

    /// Public key of a cluster; `None` if it is gone.
    pub async fn cluster_public_key(&self, cluster: Uuid) -> Result<Option<String>, StoreError> {
        let query = sqlx::query_scalar("SELECT key_public FROM cluster_keys WHERE cluster = ?");
        Ok(query.bind(cluster.to_string()).fetch_optional(&self.readers).await?)
    }

    /// Names that a view uses; empty for a new view.
    pub async fn view_names(&self, cluster: Uuid) -> Result<Names, StoreError> {
        let query = sqlx::query_scalar("SELECT names FROM views WHERE cluster = ?").bind(cluster.to_string());
        let text: Option<String> = query.fetch_optional(&self.readers).await?;
        text.map_or_else(|| Ok(Names::default()), |text| decode_json("names of a view", &text))
    }

    /// Stores the names that a view uses; no effect if the cluster is gone.
    pub async fn view_save(&self, cluster: Uuid, names: &Names) -> Result<(), StoreError> {
        let sql = "INSERT INTO views (cluster, names) SELECT id, ? FROM clusters WHERE id = ? \
                   ON CONFLICT (cluster) DO UPDATE SET names = excluded.names";
        sqlx::query(sql).bind(encode_json(names)).bind(cluster.to_string()).execute(&self.writer).await?;
        Ok(())
    }

    /// Inserts a cluster, its keys and its partition numbers in one transaction.
    ///
    /// # Errors
    /// [`StoreError::NumberTaken`] if another cluster has one of the numbers.
    pub async fn cluster_create(
        &self,
        cluster: &ClusterRow,
        keys: &ClusterKeys,
        event: &EventRecord,
    ) -> Result<(), StoreError> {
        let mut change = self.writer.begin().await?;
        write_cluster(&mut change, cluster).await?;
        sqlx::query(
            "INSERT INTO cluster_keys (cluster, ssh_keys, key_public, key_private) VALUES (?, ?, ?, ?)",
        )
        .bind(cluster.id.to_string())
        .bind(encode_json(&keys.ssh_keys))
        .bind(&keys.key.public)
        .bind(self.seal.seal(cluster.id, &keys.key.private)?)
        .execute(&mut *change)
        .await?;
        write_rest(&mut change, cluster).await?;
        self.write_numbers(&mut change, cluster, &BTreeMap::new(), &cluster.numbers().collect()).await?;
        super::records::write_event(&mut change, event).await?;
        self.write_uptime(&mut change).await?;
        Ok(change.commit().await?)
    }

    /// Updates or, if `is_removed`, deletes a cluster in one transaction. Numbers that it no longer has go into
    /// quarantine.
    ///
    /// # Errors
    /// [`StoreError::NumberTaken`] if another cluster has one of its new numbers.
    pub async fn cluster_save(
        &self,
        before: &ClusterRow,
        after: &ClusterRow,
        is_removed: bool,
        events: &[EventRecord],
    ) -> Result<(), StoreError> {
        let mut change = self.writer.begin().await?;
        sqlx::query("DELETE FROM nodes WHERE cluster = ?")
            .bind(after.id.to_string())
            .execute(&mut *change)
            .await?;
        // The virtual machine of a fenced node may still run: its host removes it as soon as it responds.
        let stays = |node: &NodeRow| !is_removed && after.nodes.iter().any(|kept| kept.id == node.id);
        for node in before.nodes.iter().filter(|node| node.fenced && !node.gone && !stays(node)) {
            let tombstone = Tombstone { vm: node.id, host: node.host.clone() };
            write_tombstone(&mut *change, &tombstone, self.now().wall).await?;
        }
        let had = before.numbers().collect();
        if is_removed {
            self.write_numbers(&mut change, after, &had, &BTreeMap::new()).await?;
            sqlx::query("DELETE FROM clusters WHERE id = ?")
                .bind(after.id.to_string())
                .execute(&mut *change)
                .await?;
            write_operation_of(&mut change, after).await?;
        } else {
            write_cluster(&mut change, after).await?;
            write_rest(&mut change, after).await?;
            self.write_numbers(&mut change, after, &had, &after.numbers().collect()).await?;
        }
        for event in events {
            super::records::write_event(&mut change, event).await?;
        }
        self.write_uptime(&mut change).await?;
        Ok(change.commit().await?)
    }
}

macro_rules! cluster_columns {
    () => {
        "clusters.id, clusters.tenant, clusters.name, clusters.size, clusters.cores, clusters.memory_mib, clusters.mode, \
         clusters.image, clusters.phase, clusters.reason, clusters.partition, clusters.generation, clusters.created, \
         clusters.class, clusters.sl_mode, clusters.inner_partitions, clusters.view_overlay, clusters.network, \
         clusters.adapter, tenants.name AS tenant_name"
    };
}

macro_rules! node_columns {
    () => {
        "id, cluster, number, host, port_guid, port, function, mac, leaving, joined, networked, gone, state, reason, ready, \
         network, fenced"
    };
}

/// All clusters with the names of their tenants, all nodes, and all operations in progress.
const CLUSTERS: &str = concat!(
    "SELECT ",
    cluster_columns!(),
    " FROM clusters JOIN tenants ON tenants.id = clusters.tenant ORDER BY clusters.created, clusters.id"
);
const NODES: &str = concat!("SELECT ", node_columns!(), " FROM nodes ORDER BY cluster, number");
const RUNNING: &str =
    concat!("SELECT ", operation_columns!(), ", began FROM operations WHERE state = 'running'");

const INSERT_NODE: &str = concat!(
    "INSERT INTO nodes (",
    node_columns!(),
    ") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
);

/// Queries of requests. Each uses an index.
pub(super) const CLUSTERS_OF: &str = concat!(
    "SELECT ",
    cluster_columns!(),
    " FROM clusters JOIN tenants ON tenants.id = clusters.tenant \
     WHERE clusters.tenant = ? ORDER BY clusters.created, clusters.id"
);
pub(super) const CLUSTER_OF: &str = concat!(
    "SELECT ",
    cluster_columns!(),
    " FROM clusters JOIN tenants ON tenants.id = clusters.tenant WHERE clusters.tenant = ? AND clusters.name = ?"
);
pub(super) const NODES_OF: &str =
    concat!("SELECT ", node_columns!(), " FROM nodes WHERE cluster = ? ORDER BY number");
pub(super) const RUNNING_OF: &str = concat!(
    "SELECT ",
    operation_columns!(),
    ", began FROM operations WHERE cluster_id = ? AND state = 'running'"
);
pub(super) const KEYS_OF: &str =
    "SELECT ssh_keys, key_public, key_private FROM cluster_keys WHERE cluster = ?";

impl ClusterRow {
    fn set_operation(&mut self, running: Option<(Operation, Uptime)>) {
        if let Some((operation, began)) = running {
            (self.operation, self.began) = (Some(operation), began);
        }
    }
}

/// A cluster with its nodes and its operation in progress.
async fn whole(read: &mut Transaction<'_, Sqlite>, row: &SqliteRow) -> Result<ClusterRow, StoreError> {
    let mut cluster = cluster(row)?;
    let id = cluster.id.to_string();
    let query = sqlx::query(NODES_OF).bind(&id);
    cluster.nodes = query.fetch_all(&mut **read).await?.iter().map(node).collect::<Result<_, _>>()?;
    let query = sqlx::query(RUNNING_OF).bind(&id);
    let operation = query.fetch_optional(&mut **read).await?;
    cluster.set_operation(operation.as_ref().map(running).transpose()?);
    Ok(cluster)
}

/// An operation in progress, and its start.
fn running(row: &SqliteRow) -> Result<(Operation, Uptime), StoreError> {
    Ok((super::records::operation(row)?, Uptime::from_ms(row.number("began")?)))
}

async fn write_cluster(change: &mut Transaction<'_, Sqlite>, cluster: &ClusterRow) -> Result<(), StoreError> {
    let sql = "INSERT INTO clusters (id, tenant, name, size, cores, memory_mib, mode, image, phase, reason, partition, generation, \
               created, class, sl_mode, inner_partitions, view_overlay, network, adapter) \
               VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET \
               size = excluded.size, phase = excluded.phase, reason = excluded.reason, \
               partition = excluded.partition, generation = excluded.generation, \
               inner_partitions = excluded.inner_partitions, view_overlay = excluded.view_overlay, \
               network = excluded.network";
    sqlx::query(sql)
        .bind(cluster.id.to_string())
        .bind(cluster.tenant.id.to_string())
        .bind(cluster.name.as_str())
        .bind(cluster.size)
        .bind(cluster.cores)
        .bind(cluster.memory.mib())
        .bind(encode_enum(&cluster.mode))
        .bind(encode_json(&cluster.image))
        .bind(encode_enum(&cluster.phase))
        .bind(&cluster.reason)
        .bind(cluster.partition.map(PartitionNumber::to_wire))
        .bind(cluster.generation as i64)
        .bind(cluster.created.to_string())
        .bind(encode_json(&cluster.class))
        .bind(encode_enum(&cluster.sl_mode))
        .bind(encode_json(&cluster.inner))
        .bind(cluster.overlay.as_ref().map(encode_json))
        .bind(encode_json(&cluster.network))
        .bind(encode_enum(&cluster.adapter))
        .execute(&mut **change)
        .await?;
    Ok(())
}

/// Writes the nodes and the operation.
async fn write_rest(change: &mut Transaction<'_, Sqlite>, cluster: &ClusterRow) -> Result<(), StoreError> {
    for node in &cluster.nodes {
        sqlx::query(INSERT_NODE)
            .bind(node.id.to_string())
            .bind(cluster.id.to_string())
            .bind(node.number)
            .bind(node.host.as_str())
            .bind(node.port_guid.to_string())
            .bind(node.port.to_wire())
            .bind(node.function)
            .bind(node.mac.to_string())
            .bind(node.leaving)
            .bind(node.joined)
            .bind(node.networked)
            .bind(node.gone)
            .bind(encode_enum(&node.state))
            .bind(&node.reason)
            .bind(node.ready.map(|ready| ready as i64))
            .bind(node.network.as_ref().map(encode_json))
            .bind(node.fenced)
            .execute(&mut **change)
            .await?;
    }
    write_operation_of(change, cluster).await
}

async fn write_operation_of(
    change: &mut Transaction<'_, Sqlite>,
    cluster: &ClusterRow,
) -> Result<(), StoreError> {
    match &cluster.operation {
        Some(operation) => {
            super::records::write_operation(change, cluster.tenant.id, operation, cluster.began).await
        }
        None => Ok(()),
    }
}

fn cluster(row: &SqliteRow) -> Result<ClusterRow, StoreError> {
    Ok(ClusterRow {
        id: parsed("id of a cluster", &row.text("id")?)?,
        tenant: tenant_ref(row, "tenant", "tenant_name")?,
        name: parsed("name of a cluster", &row.text("name")?)?,
        size: row.number("size")?,
        cores: row.number("cores")?,
        memory: MemorySize::from_mib(row.number("memory_mib")?),
        mode: decode_enum("mode", &row.text("mode")?)?,
        class: decode_json("class", &row.text("class")?)?,
        sl_mode: decode_enum("service level mode", &row.text("sl_mode")?)?,
        adapter: decode_enum("adapter", &row.text("adapter")?)?,
        image: decode_json("image", &row.text("image")?)?,
        phase: decode_enum("phase", &row.text("phase")?)?,
        reason: row.optional_text("reason")?,
        partition: row.optional_number("partition")?.map(partition).transpose()?,
        inner: decode_json("partitions", &row.text("inner_partitions")?)?,
        overlay: row
            .optional_text("view_overlay")?
            .map(|text| decode_json("overlay of a view", &text))
            .transpose()?,
        generation: row.number("generation")?,
        network: decode_json("network of a cluster", &row.text("network")?)?,
        created: row.time("created")?,
        nodes: Vec::new(),
        operation: None,
        began: Uptime::default(),
    })
}

fn node(row: &SqliteRow) -> Result<NodeRow, StoreError> {
    Ok(NodeRow {
        id: parsed("id of a node", &row.text("id")?)?,
        number: row.number("number")?,
        host: parsed("name of a host", &row.text("host")?)?,
        port_guid: parsed("GUID of a port", &row.text("port_guid")?)?,
        port: port(row.number("port")?)?,
        function: row.number("function")?,
        mac: parsed("address", &row.text("mac")?)?,
        leaving: row.flag("leaving")?,
        joined: row.flag("joined")?,
        networked: row.flag("networked")?,
        gone: row.flag("gone")?,
        state: decode_enum("state of a node", &row.text("state")?)?,
        reason: row.optional_text("reason")?,
        ready: row.optional_number("ready")?,
        network: row
            .optional_text("network")?
            .map(|text| decode_json("network of a node", &text))
            .transpose()?,
        fenced: row.flag("fenced")?,
    })
}

fn port(raw: u8) -> Result<PortNum, StoreError> {
    PortNum::new(raw)
        .ok_or_else(|| StoreError::InvalidValue { what: "number of a port", value: raw.to_string() })
}
