//! Operations and events.

use controller_api::Name;
use controller_api::event::Event;
use controller_api::operation::Operation;
use jiff::Timestamp;
use sqlx::sqlite::SqliteRow;
use sqlx::{Sqlite, Transaction};
use uuid::Uuid;

use super::codec::{Columns, decode_enum, decode_json, encode_enum, encode_json};
use super::{Store, StoreError, TenantRef, parsed};
use crate::clock::Uptime;

/// Most events, and operations, kept per tenant and for the site: weeks of a busy tenant.
const RECORDS_MAX: i64 = 10_000;

/// Most operations or events in one answer.
const LISTED_MAX: i64 = 1000;

macro_rules! operation_columns {
    () => {
        "id, tenant, cluster, cluster_id, kind, state, reason, started, ended, steps"
    };
}
pub(super) use operation_columns;

macro_rules! event_columns {
    () => {
        "number, at, tenant, cluster, kind, text"
    };
}

/// An event before it has a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventRecord {
    pub at: Timestamp,
    /// `None` for an event of the site.
    pub tenant: Option<TenantRef>,
    pub cluster: Option<Name>,
    /// Stable machine-readable kind.
    pub kind: &'static str,
    pub text: String,
}

impl Store {
    /// Operation by id; with a tenant, only if it belongs to that tenant.
    pub async fn operation_show(
        &self,
        tenant: Option<Uuid>,
        id: Uuid,
    ) -> Result<Option<Operation>, StoreError> {
        let query = sqlx::query(OPERATION).bind(id.to_string()).bind(tenant.map(|id| id.to_string()));
        query.fetch_optional(&self.readers).await?.as_ref().map(operation).transpose()
    }

    /// Operations of a tenant, or all; newest first, at most [`LISTED_MAX`].
    pub async fn operation_list(&self, tenant: Option<Uuid>) -> Result<Vec<Operation>, StoreError> {
        let query = match tenant {
            Some(tenant) => sqlx::query(OPERATIONS_OF).bind(tenant.to_string()),
            None => sqlx::query(OPERATIONS),
        };
        query.bind(LISTED_MAX).fetch_all(&self.readers).await?.iter().map(operation).collect()
    }

    /// Records an event.
    pub async fn event_note(&self, event: &EventRecord) -> Result<(), StoreError> {
        let mut change = self.writer.begin().await?;
        write_event(&mut change, event).await?;
        Ok(change.commit().await?)
    }

    /// Deletes the oldest events and operations beyond [`RECORDS_MAX`], per tenant and for the site: the file stays
    /// bounded, and no tenant shortens the history of another.
    pub async fn record_trim(&self) -> Result<(), StoreError> {
        let mut owners: Vec<Option<String>> = vec![None];
        // Including deleted tenants.
        owners.extend(sqlx::query_scalar(RECORD_OWNERS).fetch_all(&self.readers).await?);
        for owner in &owners {
            sqlx::query(TRIM_EVENTS).bind(owner).bind(RECORDS_MAX).execute(&self.writer).await?;
            sqlx::query(TRIM_OPERATIONS).bind(owner).bind(RECORDS_MAX).execute(&self.writer).await?;
        }
        Ok(())
    }

    /// Events of a tenant, or all: those after a number, or the latest; at most [`LISTED_MAX`].
    pub async fn event_list(
        &self,
        tenant: Option<Uuid>,
        after: Option<i64>,
    ) -> Result<Vec<Event>, StoreError> {
        let tenant = tenant.map(|id| id.to_string());
        let query = match (&tenant, after) {
            (Some(tenant), Some(after)) => sqlx::query(EVENTS_OF_AFTER).bind(tenant).bind(after),
            (Some(tenant), None) => sqlx::query(LATEST_EVENTS_OF).bind(tenant),
            (None, Some(after)) => sqlx::query(EVENTS_AFTER).bind(after),
            (None, None) => sqlx::query(LATEST_EVENTS),
        };
        query.bind(LISTED_MAX).fetch_all(&self.readers).await?.iter().map(event).collect()
    }
}

const OPERATION: &str = concat!(
    "SELECT ",
    operation_columns!(),
    " FROM operations WHERE id = ?1 AND (?2 IS NULL OR tenant_id = ?2)"
);

/// Each reads one range of one index.
pub(super) const OPERATIONS: &str =
    concat!("SELECT ", operation_columns!(), " FROM operations ORDER BY started DESC LIMIT ?");
pub(super) const OPERATIONS_OF: &str = concat!(
    "SELECT ",
    operation_columns!(),
    " FROM operations WHERE tenant_id = ? ORDER BY started DESC LIMIT ?"
);
pub(super) const EVENTS_AFTER: &str =
    concat!("SELECT ", event_columns!(), " FROM events WHERE number > ? ORDER BY number LIMIT ?");
pub(super) const EVENTS_OF_AFTER: &str = concat!(
    "SELECT ",
    event_columns!(),
    " FROM events WHERE tenant_id = ? AND number > ? ORDER BY number LIMIT ?"
);
pub(super) const LATEST_EVENTS: &str = concat!(
    "SELECT ",
    event_columns!(),
    " FROM (SELECT ",
    event_columns!(),
    " FROM events ORDER BY number DESC LIMIT ?) ORDER BY number"
);
pub(super) const LATEST_EVENTS_OF: &str = concat!(
    "SELECT ",
    event_columns!(),
    " FROM (SELECT ",
    event_columns!(),
    " FROM events WHERE tenant_id = ? ORDER BY number DESC LIMIT ?) ORDER BY number"
);

/// All tenants that have records, by jumps through the indices.
const RECORD_OWNERS: &str = "WITH RECURSIVE owners (id) AS ( \
        SELECT min(tenant_id) FROM events WHERE tenant_id IS NOT NULL \
        UNION ALL SELECT (SELECT min(tenant_id) FROM events WHERE tenant_id > owners.id) FROM owners WHERE owners.id IS NOT NULL \
    ) SELECT id FROM owners WHERE id IS NOT NULL \
    UNION SELECT id FROM tenants";

const TRIM_EVENTS: &str = "DELETE FROM events WHERE tenant_id IS ?1 AND number <= \
    (SELECT number FROM events WHERE tenant_id IS ?1 ORDER BY number DESC LIMIT 1 OFFSET ?2)";
const TRIM_OPERATIONS: &str = "DELETE FROM operations WHERE state <> 'running' AND tenant_id IS ?1 AND started <= \
    (SELECT started FROM operations WHERE tenant_id IS ?1 ORDER BY started DESC LIMIT 1 OFFSET ?2)";

pub(super) async fn write_event(
    change: &mut Transaction<'_, Sqlite>,
    event: &EventRecord,
) -> Result<(), StoreError> {
    sqlx::query("INSERT INTO events (at, tenant_id, tenant, cluster, kind, text) VALUES (?, ?, ?, ?, ?, ?)")
        .bind(event.at.to_string())
        .bind(event.tenant.as_ref().map(|tenant| tenant.id.to_string()))
        .bind(event.tenant.as_ref().map(|tenant| tenant.name.as_str()))
        .bind(event.cluster.as_ref().map(Name::as_str))
        .bind(event.kind)
        .bind(&event.text)
        .execute(&mut **change)
        .await?;
    Ok(())
}

pub(super) async fn write_operation(
    change: &mut Transaction<'_, Sqlite>,
    tenant: Uuid,
    operation: &Operation,
    began: Uptime,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO operations (id, tenant_id, tenant, cluster, cluster_id, kind, state, reason, started, ended, steps, began) \
               VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET \
               state = excluded.state, reason = excluded.reason, ended = excluded.ended, steps = excluded.steps";
    sqlx::query(sql)
        .bind(operation.id.to_string())
        .bind(tenant.to_string())
        .bind(operation.tenant.as_str())
        .bind(operation.cluster.as_str())
        .bind(operation.cluster_id.to_string())
        .bind(encode_enum(&operation.kind))
        .bind(encode_enum(&operation.state))
        .bind(&operation.reason)
        .bind(operation.started.to_string())
        .bind(operation.ended.map(|ended| ended.to_string()))
        .bind(encode_json(&operation.steps))
        .bind(began.ms())
        .execute(&mut **change)
        .await?;
    Ok(())
}

pub(super) fn operation(row: &SqliteRow) -> Result<Operation, StoreError> {
    Ok(Operation {
        id: parsed("id of an operation", &row.text("id")?)?,
        tenant: parsed("name of a tenant", &row.text("tenant")?)?,
        cluster: parsed("name of a cluster", &row.text("cluster")?)?,
        cluster_id: parsed("id of a cluster", &row.text("cluster_id")?)?,
        kind: decode_enum("kind of an operation", &row.text("kind")?)?,
        state: decode_enum("state of an operation", &row.text("state")?)?,
        reason: row.optional_text("reason")?,
        started: row.time("started")?,
        ended: row.optional_text("ended")?.map(|text| parsed("time", &text)).transpose()?,
        steps: decode_json("steps", &row.text("steps")?)?,
    })
}

fn event(row: &SqliteRow) -> Result<Event, StoreError> {
    let name = |column| {
        row.optional_text(column).and_then(|name| name.map(|name| parsed("name", &name)).transpose())
    };
    Ok(Event {
        number: row.number("number")?,
        at: row.time("at")?,
        tenant: name("tenant")?,
        cluster: name("cluster")?,
        kind: row.text("kind")?,
        text: row.text("text")?,
    })
}
