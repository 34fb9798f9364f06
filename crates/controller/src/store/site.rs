//! Tenants, tokens, hosts, images, and what was decided about the fabric.

use controller_api::host::NewHost;
use controller_api::image::Image;
use controller_api::tenant::{Tenant, Token};
use controller_api::{MemorySize, Name};
use fabric_model::Decisions;
use ib_wire::PartitionNumber;
use jiff::Timestamp;
use uuid::Uuid;

use super::words::{Columns, json, read_json};
use super::{Store, StoreError, parsed};

/// SHA-256 of a token.
pub type TokenHash = [u8; 32];

impl Store {
    /// All tenants, by name.
    pub async fn tenant_list(&self) -> Result<Vec<Tenant>, StoreError> {
        let sql = "SELECT name, created, (SELECT count(*) FROM clusters WHERE tenant = tenants.name) AS clusters \
                   FROM tenants ORDER BY name";
        let rows = sqlx::query(sql).fetch_all(&self.pool).await?;
        rows.iter()
            .map(|row| {
                Ok(Tenant {
                    name: parsed("name of a tenant", &row.text("name")?)?,
                    created: row.time("created")?,
                    clusters: row.number("clusters")?,
                })
            })
            .collect()
    }

    /// A new tenant.
    pub async fn tenant_create(&self, name: &Name, now: Timestamp) -> Result<(), StoreError> {
        let query = sqlx::query("INSERT INTO tenants VALUES (?, ?)");
        query.bind(name.as_str()).bind(now.to_string()).execute(&self.pool).await?;
        Ok(())
    }

    /// Removes a tenant that has no clusters, with its tokens; whether there was one.
    pub async fn tenant_delete(&self, name: &Name) -> Result<bool, StoreError> {
        let query = sqlx::query("DELETE FROM tenants WHERE name = ?").bind(name.as_str());
        Ok(query.execute(&self.pool).await?.rows_affected() > 0)
    }

    /// Whether there is such a tenant.
    pub async fn tenant_exists(&self, name: &Name) -> Result<bool, StoreError> {
        let query = sqlx::query_scalar("SELECT count(*) FROM tenants WHERE name = ?").bind(name.as_str());
        Ok(query.fetch_one(&self.pool).await.map(|count: i64| count > 0)?)
    }

    /// All tokens, oldest first.
    pub async fn token_list(&self) -> Result<Vec<Token>, StoreError> {
        let query = sqlx::query("SELECT id, tenant, created FROM tokens ORDER BY created, id");
        query.fetch_all(&self.pool).await?.iter().map(token).collect()
    }

    /// A new token.
    pub async fn token_create(&self, token: &Token, hash: TokenHash) -> Result<(), StoreError> {
        sqlx::query("INSERT INTO tokens VALUES (?, ?, ?, ?)")
            .bind(token.id.to_string())
            .bind(token.tenant.as_ref().map(Name::as_str))
            .bind(hash.as_slice())
            .bind(token.created.to_string())
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    /// Removes a token; whether there was one.
    pub async fn token_revoke(&self, id: Uuid) -> Result<bool, StoreError> {
        let query = sqlx::query("DELETE FROM tokens WHERE id = ?").bind(id.to_string());
        Ok(query.execute(&self.pool).await?.rows_affected() > 0)
    }

    /// The token with a hash.
    pub async fn token_by_hash(&self, hash: TokenHash) -> Result<Option<Token>, StoreError> {
        let query =
            sqlx::query("SELECT id, tenant, created FROM tokens WHERE hash = ?").bind(hash.as_slice());
        query.fetch_optional(&self.pool).await?.as_ref().map(token).transpose()
    }

    /// All hosts, by name.
    pub async fn host_list(&self) -> Result<Vec<NewHost>, StoreError> {
        let rows = sqlx::query("SELECT * FROM hosts ORDER BY name").fetch_all(&self.pool).await?;
        rows.iter()
            .map(|row| {
                Ok(NewHost {
                    name: parsed("name of a host", &row.text("name")?)?,
                    agent: row.text("agent")?,
                    cores: row.number("cores")?,
                    memory: MemorySize::from_mib(row.number("memory_mib")?),
                })
            })
            .collect()
    }

    /// A host, new or with other properties than before.
    pub async fn host_put(&self, host: &NewHost) -> Result<(), StoreError> {
        let sql = "INSERT INTO hosts VALUES (?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET \
                   agent = excluded.agent, cores = excluded.cores, memory_mib = excluded.memory_mib";
        sqlx::query(sql)
            .bind(host.name.as_str())
            .bind(&host.agent)
            .bind(host.cores)
            .bind(host.memory.mib())
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    /// Removes a host on which nothing is placed; whether there was one.
    pub async fn host_remove(&self, name: &Name) -> Result<bool, StoreError> {
        let query = sqlx::query("DELETE FROM hosts WHERE name = ?").bind(name.as_str());
        Ok(query.execute(&self.pool).await?.rows_affected() > 0)
    }

    /// All images, by name.
    pub async fn image_list(&self) -> Result<Vec<Image>, StoreError> {
        let rows = sqlx::query("SELECT * FROM images ORDER BY name").fetch_all(&self.pool).await?;
        rows.iter()
            .map(|row| {
                Ok(Image {
                    name: parsed("name of an image", &row.text("name")?)?,
                    directory: row.text("directory")?,
                    digest: row.text("digest")?,
                    created: row.time("created")?,
                })
            })
            .collect()
    }

    /// An image, new or another one of that name.
    pub async fn image_put(&self, image: &Image) -> Result<(), StoreError> {
        let sql = "INSERT INTO images VALUES (?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET \
                   directory = excluded.directory, digest = excluded.digest, created = excluded.created";
        sqlx::query(sql)
            .bind(image.name.as_str())
            .bind(&image.directory)
            .bind(&image.digest)
            .bind(image.created.to_string())
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    /// Forgets an image; clusters that run keep theirs. Whether there was one.
    pub async fn image_remove(&self, name: &Name) -> Result<bool, StoreError> {
        let query = sqlx::query("DELETE FROM images WHERE name = ?").bind(name.as_str());
        Ok(query.execute(&self.pool).await?.rows_affected() > 0)
    }

    /// What was decided about the fabric.
    pub async fn fabric_decisions(&self) -> Result<Decisions, StoreError> {
        let query = sqlx::query_scalar("SELECT decisions FROM fabric");
        let text: Option<String> = query.fetch_optional(&self.pool).await?;
        text.map_or_else(|| Ok(Decisions::default()), |text| read_json("decisions", &text))
    }

    /// Keeps what was decided about the fabric.
    pub async fn fabric_decide(&self, decisions: &Decisions) -> Result<(), StoreError> {
        let sql = "INSERT INTO fabric VALUES (1, ?, 0) ON CONFLICT (one) DO UPDATE SET decisions = excluded.decisions";
        sqlx::query(sql).bind(json(decisions)).execute(&self.pool).await?;
        Ok(())
    }

    /// Numbers that rest, with since when, and the one that was given away last.
    pub async fn partition_pool(&self) -> Result<(Vec<(PartitionNumber, Timestamp)>, u16), StoreError> {
        let rows =
            sqlx::query("SELECT number, released FROM resting_partitions").fetch_all(&self.pool).await?;
        let resting = rows.iter().map(|row| Ok((partition(row.number("number")?)?, row.time("released")?)));
        let resting = resting.collect::<Result<_, StoreError>>()?;
        let last = sqlx::query_scalar("SELECT last_partition FROM fabric").fetch_optional(&self.pool).await?;
        Ok((resting, last.unwrap_or(0)))
    }
}

fn token(row: &sqlx::sqlite::SqliteRow) -> Result<Token, StoreError> {
    Ok(Token {
        id: parsed("id of a token", &row.text("id")?)?,
        tenant: row.maybe_text("tenant")?.map(|name| parsed("name of a tenant", &name)).transpose()?,
        created: row.time("created")?,
    })
}

/// A partition number that was stored.
pub fn partition(raw: u16) -> Result<PartitionNumber, StoreError> {
    let error = || StoreError::Nonsense { what: "partition number", value: raw.to_string() };
    PartitionNumber::from_wire(raw).ok_or_else(error)
}
