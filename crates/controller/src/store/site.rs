//! Tenants, hosts, images, and decisions about the fabric.

use std::sync::{Arc, PoisonError};

use controller_api::host::NewHost;
use controller_api::quota::QuotaChange;
use controller_api::{MemorySize, Name};
use fabric_model::Decisions;
use ib_wire::{Guid, PartitionNumber};
use jiff::Timestamp;
use uuid::Uuid;

use super::codec::{Columns, decode_json, encode_json};
use super::{Store, StoreError, parsed};

/// Id and name of a tenant. Ids are never reused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantRef {
    pub id: Uuid,
    pub name: Name,
}

/// Cache of the hosts table, by name; `None` until it is read.
#[derive(Debug, Default)]
pub(super) struct KnownHosts {
    /// Counts changes; rows read before a change are not cached.
    version: u64,
    hosts: Option<Arc<Vec<NewHost>>>,
}

/// Row of a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantRow {
    pub tenant: TenantRef,
    pub created: Timestamp,
    /// Limits that an operator has set.
    pub quota: QuotaChange,
}

/// Resources of a host that virtual machines placed on it have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostAllocation {
    pub cores: u32,
    pub memory_mib: u32,
    pub nodes: u32,
}

/// Row of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageRow {
    pub name: Name,
    pub directory: String,
    /// SHA-256 of `image.json`, in hexadecimal.
    pub digest: String,
    /// It has a driver for InfiniBand adapters.
    pub infiniband: bool,
    pub created: Timestamp,
}

impl Store {
    /// All tenants, by name.
    pub async fn tenant_list(&self) -> Result<Vec<TenantRow>, StoreError> {
        let rows = sqlx::query("SELECT id, name, created, quota FROM tenants ORDER BY name")
            .fetch_all(&self.readers)
            .await?;
        rows.iter().map(tenant).collect()
    }

    /// Tenant by id.
    pub async fn tenant_show(&self, id: Uuid) -> Result<Option<TenantRow>, StoreError> {
        let query =
            sqlx::query("SELECT id, name, created, quota FROM tenants WHERE id = ?").bind(id.to_string());
        query.fetch_optional(&self.readers).await?.as_ref().map(tenant).transpose()
    }

    /// Inserts a tenant; [`StoreError::is_taken`] if its name is used.
    pub async fn tenant_create(&self, row: &TenantRow) -> Result<(), StoreError> {
        sqlx::query("INSERT INTO tenants (id, name, created, quota) VALUES (?, ?, ?, ?)")
            .bind(row.tenant.id.to_string())
            .bind(row.tenant.name.as_str())
            .bind(row.created.to_string())
            .bind(encode_json(&row.quota))
            .execute(&self.writer)
            .await?;
        Ok(())
    }

    /// Replaces the limits of a tenant.
    pub async fn tenant_quota_set(&self, id: Uuid, quota: &QuotaChange) -> Result<(), StoreError> {
        let query = sqlx::query("UPDATE tenants SET quota = ? WHERE id = ?").bind(encode_json(quota));
        query.bind(id.to_string()).execute(&self.writer).await?;
        Ok(())
    }

    /// Deletes a tenant and its tokens; whether there was one. [`StoreError::is_needed`] if it has clusters.
    pub async fn tenant_delete(&self, name: &Name) -> Result<bool, StoreError> {
        let query = sqlx::query("DELETE FROM tenants WHERE name = ?").bind(name.as_str());
        Ok(query.execute(&self.writer).await?.rows_affected() > 0)
    }

    /// Tenant by name.
    pub async fn tenant_find(&self, name: &Name) -> Result<Option<TenantRef>, StoreError> {
        let query = sqlx::query(TENANT_OF).bind(name.as_str());
        let row = query.fetch_optional(&self.readers).await?;
        row.map(|row| tenant_ref(&row, "id", "name")).transpose()
    }

    /// All hosts, by name. Cached, since the control loops read them after every event.
    pub async fn host_list(&self) -> Result<Arc<Vec<NewHost>>, StoreError> {
        let version = {
            let known = self.hosts.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(hosts) = &known.hosts {
                return Ok(Arc::clone(hosts));
            }
            known.version
        };
        let hosts = Arc::new(self.host_read().await?);
        let mut known = self.hosts.write().unwrap_or_else(PoisonError::into_inner);
        if known.version == version {
            known.hosts = Some(Arc::clone(&hosts));
        }
        Ok(hosts)
    }

    /// Invalidates the cache.
    fn host_changed(&self) {
        let mut known = self.hosts.write().unwrap_or_else(PoisonError::into_inner);
        *known = KnownHosts { version: known.version + 1, hosts: None };
    }

    async fn host_read(&self) -> Result<Vec<NewHost>, StoreError> {
        let rows = sqlx::query("SELECT name, agent, cores, memory_mib, port_guid FROM hosts ORDER BY name")
            .fetch_all(&self.readers)
            .await?;
        rows.iter()
            .map(|row| {
                Ok(NewHost {
                    name: parsed("name of a host", &row.text("name")?)?,
                    agent: row.text("agent")?,
                    cores: row.number("cores")?,
                    memory: MemorySize::from_mib(row.number("memory_mib")?),
                    port_guid: row
                        .optional_text("port_guid")?
                        .map(|guid| parsed("GUID of a port", &guid))
                        .transpose()?,
                })
            })
            .collect()
    }

    /// Resources of a host that its virtual machines have.
    pub async fn host_allocation(&self, name: &Name) -> Result<HostAllocation, StoreError> {
        let sql = "SELECT coalesce(sum(cores), 0) AS cores, coalesce(sum(memory_mib), 0) AS memory_mib, count(*) AS nodes \
                   FROM nodes JOIN clusters ON clusters.id = nodes.cluster WHERE host = ?";
        let row = sqlx::query(sql).bind(name.as_str()).fetch_one(&self.readers).await?;
        let (cores, memory_mib, nodes) =
            (row.number("cores")?, row.number("memory_mib")?, row.number("nodes")?);
        Ok(HostAllocation { cores, memory_mib, nodes })
    }

    /// Inserts or updates hosts, all or none.
    pub async fn host_put(&self, hosts: &[NewHost]) -> Result<(), StoreError> {
        let sql = "INSERT INTO hosts (name, agent, cores, memory_mib, port_guid) VALUES (?, ?, ?, ?, ?) \
                   ON CONFLICT (name) DO UPDATE SET agent = excluded.agent, cores = excluded.cores, \
                   memory_mib = excluded.memory_mib, port_guid = excluded.port_guid";
        let mut change = self.writer.begin().await?;
        for host in hosts {
            sqlx::query(sql)
                .bind(host.name.as_str())
                .bind(&host.agent)
                .bind(host.cores)
                .bind(host.memory.mib())
                .bind(host.port_guid.map(|guid| guid.to_string()))
                .execute(&mut *change)
                .await?;
        }
        change.commit().await?;
        let mut known = self.hosts.write().unwrap_or_else(PoisonError::into_inner);
        known.version += 1;
        if let Some(list) = &mut known.hosts {
            put(Arc::make_mut(list), hosts);
        }
        Ok(())
    }

    /// Binds hosts to ports, all or none.
    pub async fn host_bind(&self, bindings: &[(Name, Guid)]) -> Result<(), StoreError> {
        let mut change = self.writer.begin().await?;
        for (name, port) in bindings {
            let query = sqlx::query("UPDATE hosts SET port_guid = ? WHERE name = ?");
            query.bind(port.to_string()).bind(name.as_str()).execute(&mut *change).await?;
        }
        change.commit().await?;
        self.host_changed();
        Ok(())
    }

    /// Deletes a host; whether there was one. [`StoreError::is_needed`] if nodes are placed on it.
    pub async fn host_remove(&self, name: &Name) -> Result<bool, StoreError> {
        let query = sqlx::query("DELETE FROM hosts WHERE name = ?").bind(name.as_str());
        let removed = query.execute(&self.writer).await?.rows_affected() > 0;
        self.host_changed();
        Ok(removed)
    }

    /// All images, by name.
    pub async fn image_list(&self) -> Result<Vec<ImageRow>, StoreError> {
        let rows =
            sqlx::query("SELECT name, directory, digest, infiniband, created FROM images ORDER BY name")
                .fetch_all(&self.readers)
                .await?;
        rows.iter()
            .map(|row| {
                Ok(ImageRow {
                    name: parsed("name of an image", &row.text("name")?)?,
                    directory: row.text("directory")?,
                    digest: row.text("digest")?,
                    infiniband: row.flag("infiniband")?,
                    created: row.time("created")?,
                })
            })
            .collect()
    }

    /// Inserts or replaces an image.
    pub async fn image_put(&self, image: &ImageRow) -> Result<(), StoreError> {
        let sql = "INSERT INTO images (name, directory, digest, infiniband, created) VALUES (?, ?, ?, ?, ?) \
                   ON CONFLICT (name) DO UPDATE SET directory = excluded.directory, digest = excluded.digest, \
                   infiniband = excluded.infiniband, created = excluded.created";
        sqlx::query(sql)
            .bind(image.name.as_str())
            .bind(&image.directory)
            .bind(&image.digest)
            .bind(image.infiniband)
            .bind(image.created.to_string())
            .execute(&self.writer)
            .await?;
        Ok(())
    }

    /// Deletes an image; whether there was one. Running clusters keep theirs.
    pub async fn image_remove(&self, name: &Name) -> Result<bool, StoreError> {
        let query = sqlx::query("DELETE FROM images WHERE name = ?").bind(name.as_str());
        Ok(query.execute(&self.writer).await?.rows_affected() > 0)
    }

    /// Decisions of the last plan; empty for a new store.
    pub async fn fabric_decisions(&self) -> Result<Decisions, StoreError> {
        let query = sqlx::query_scalar("SELECT decisions FROM fabric");
        let text: Option<String> = query.fetch_optional(&self.readers).await?;
        text.map_or_else(|| Ok(Decisions::default()), |text| decode_json("decisions", &text))
    }

    /// Stores the decisions of a plan.
    pub async fn fabric_decide(&self, decisions: &Decisions) -> Result<(), StoreError> {
        let sql = "INSERT INTO fabric (one, decisions, last_partition) VALUES (1, ?, 0) ON CONFLICT (one) DO UPDATE SET decisions = excluded.decisions";
        sqlx::query(sql).bind(encode_json(decisions)).execute(&self.writer).await?;
        Ok(())
    }
}

/// Read by requests, through an index.
pub(super) const TENANT_OF: &str = "SELECT id, name FROM tenants WHERE name = ?";

/// Inserts or replaces hosts in a list that is sorted by name.
fn put(list: &mut Vec<NewHost>, new: &[NewHost]) {
    for host in new {
        match list.binary_search_by(|known| known.name.cmp(&host.name)) {
            Ok(at) => list[at] = host.clone(),
            Err(at) => list.insert(at, host.clone()),
        }
    }
}

fn tenant(row: &sqlx::sqlite::SqliteRow) -> Result<TenantRow, StoreError> {
    Ok(TenantRow {
        tenant: tenant_ref(row, "id", "name")?,
        created: row.time("created")?,
        quota: decode_json("quota", &row.text("quota")?)?,
    })
}

/// Tenant by the names of its id and name columns.
pub(super) fn tenant_ref(
    row: &sqlx::sqlite::SqliteRow,
    id: &'static str,
    name: &'static str,
) -> Result<TenantRef, StoreError> {
    let (id, name) = (row.text(id)?, row.text(name)?);
    Ok(TenantRef { id: parsed("id of a tenant", &id)?, name: parsed("name of a tenant", &name)? })
}

/// Checks a partition number of a column.
pub fn partition(raw: u16) -> Result<PartitionNumber, StoreError> {
    let error = || StoreError::InvalidValue { what: "partition number", value: raw.to_string() };
    PartitionNumber::from_wire(raw).ok_or_else(error)
}
