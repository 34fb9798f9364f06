//! Rows of API tokens.

use controller_api::tenant::Token;
use jiff::Timestamp;
use uuid::Uuid;

use super::codec::Columns;
use super::site::{TenantRef, tenant_ref};
use super::{Store, StoreError, parsed};

/// SHA-256 of a token secret.
pub type TokenHash = [u8; 32];

macro_rules! token_columns {
    () => {
        "tokens.id, tokens.tenant, tokens.created, tokens.name, tokens.expires, tokens.last_used, \
         tenants.name AS tenant_name"
    };
}

/// Read by every request, through an index.
pub(super) const TOKEN_OF: &str = concat!(
    "SELECT ",
    token_columns!(),
    " FROM tokens LEFT JOIN tenants ON tenants.id = tokens.tenant WHERE hash = ?"
);
const TOKENS: &str = concat!(
    "SELECT ",
    token_columns!(),
    " FROM tokens LEFT JOIN tenants ON tenants.id = tokens.tenant \
     WHERE ?1 IS NULL OR tokens.tenant = ?1 ORDER BY tokens.created, tokens.id"
);

/// Result of a revocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revoked {
    Done,
    Missing,
    /// It is the last valid operator token, and stays.
    Last,
}

impl Store {
    /// Tokens of a tenant, or all; oldest first.
    pub async fn token_list(&self, tenant: Option<Uuid>) -> Result<Vec<Token>, StoreError> {
        let query = sqlx::query(TOKENS).bind(tenant.map(|id| id.to_string()));
        query.fetch_all(&self.readers).await?.iter().map(token).collect()
    }

    /// Inserts a token.
    pub async fn token_create(
        &self,
        token: &Token,
        tenant: Option<Uuid>,
        hash: TokenHash,
    ) -> Result<(), StoreError> {
        sqlx::query(
            "INSERT INTO tokens (id, tenant, hash, created, name, expires) VALUES (?, ?, ?, ?, ?, ?)",
        )
        .bind(token.id.to_string())
        .bind(tenant.map(|id| id.to_string()))
        .bind(hash.as_slice())
        .bind(token.created.to_string())
        .bind(token.name.as_str())
        .bind(token.expires.map(Timestamp::as_millisecond))
        .execute(&self.writer)
        .await?;
        Ok(())
    }

    /// Deletes a token; with `of`, only if it belongs to that tenant. The last valid operator token stays.
    pub async fn token_revoke(
        &self,
        id: Uuid,
        of: Option<Uuid>,
        now: Timestamp,
    ) -> Result<Revoked, StoreError> {
        let sql = "DELETE FROM tokens WHERE id = ?1 AND (?2 IS NULL OR tenant = ?2) AND (tenant IS NOT NULL OR EXISTS \
                   (SELECT 1 FROM tokens WHERE tenant IS NULL AND id <> ?1 AND (expires IS NULL OR expires > ?3)))";
        let of = of.map(|id| id.to_string());
        let removed = sqlx::query(sql).bind(id.to_string()).bind(&of).bind(now.as_millisecond());
        if removed.execute(&self.writer).await?.rows_affected() > 0 {
            return Ok(Revoked::Done);
        }
        let sql = "SELECT count(*) FROM tokens WHERE id = ?1 AND (?2 IS NULL OR tenant = ?2)";
        let found: i64 =
            sqlx::query_scalar(sql).bind(id.to_string()).bind(of).fetch_one(&self.writer).await?;
        Ok(if found > 0 { Revoked::Last } else { Revoked::Missing })
    }

    /// Records the last use of a token.
    pub async fn token_used(&self, id: Uuid, at: Timestamp) -> Result<(), StoreError> {
        let query = sqlx::query("UPDATE tokens SET last_used = ? WHERE id = ?").bind(at.as_millisecond());
        query.bind(id.to_string()).execute(&self.writer).await?;
        Ok(())
    }

    /// Whether a token exists and has not expired.
    pub async fn token_is_valid(&self, id: Uuid, now: Timestamp) -> Result<bool, StoreError> {
        let sql = "SELECT count(*) FROM tokens WHERE id = ? AND (expires IS NULL OR expires > ?)";
        let query = sqlx::query_scalar(sql).bind(id.to_string()).bind(now.as_millisecond());
        Ok(query.fetch_one(&self.readers).await.map(|count: i64| count > 0)?)
    }

    /// Token by the hash of its secret, with its tenant unless it is an operator token.
    pub async fn token_by_hash(
        &self,
        hash: TokenHash,
    ) -> Result<Option<(Token, Option<TenantRef>)>, StoreError> {
        let row = sqlx::query(TOKEN_OF).bind(hash.as_slice()).fetch_optional(&self.readers).await?;
        row.map(|row| {
            let is_tenants = row.optional_text("tenant")?.is_some();
            let tenant = is_tenants.then(|| tenant_ref(&row, "tenant", "tenant_name")).transpose()?;
            Ok((token(&row)?, tenant))
        })
        .transpose()
    }
}

fn token(row: &sqlx::sqlite::SqliteRow) -> Result<Token, StoreError> {
    let time = |name| {
        let ms: Option<i64> = row.optional_number(name)?;
        let read = |ms: i64| {
            Timestamp::from_millisecond(ms)
                .map_err(|_| StoreError::InvalidValue { what: name, value: ms.to_string() })
        };
        ms.map(read).transpose()
    };
    Ok(Token {
        id: parsed("id of a token", &row.text("id")?)?,
        name: parsed("name of a token", &row.text("name")?)?,
        tenant: row
            .optional_text("tenant_name")?
            .map(|name| parsed("name of a tenant", &name))
            .transpose()?,
        created: row.time("created")?,
        expires: time("expires")?,
        last_used: time("last_used")?,
    })
}
