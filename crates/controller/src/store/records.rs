//! Operations and events: what was asked for, and what happened.

use controller_api::Name;
use controller_api::event::Event;
use controller_api::operation::Operation;
use jiff::Timestamp;
use sqlx::sqlite::SqliteRow;
use sqlx::{Sqlite, Transaction};
use uuid::Uuid;

use super::words::{Columns, json, read_json, read_word, word};
use super::{Store, StoreError, parsed};

/// Events and operations that are kept; older ones are forgotten.
const RECORDS_MAX: i64 = 100_000;

/// Operations and events that are told at once.
const LISTED_MAX: i64 = 1000;

/// Something to be noted as an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Happening {
    /// When.
    pub at: Timestamp,
    /// Whom it concerns; `None` concerns the site.
    pub tenant: Option<Name>,
    /// Which cluster.
    pub cluster: Option<Name>,
    /// What, for programs.
    pub kind: &'static str,
    /// What, for people.
    pub text: String,
}

impl Store {
    /// An operation.
    pub async fn operation_show(&self, id: Uuid) -> Result<Option<Operation>, StoreError> {
        let query = sqlx::query("SELECT * FROM operations WHERE id = ?").bind(id.to_string());
        query.fetch_optional(&self.pool).await?.as_ref().map(operation).transpose()
    }

    /// Operations of a tenant, or all; the newest first.
    pub async fn operation_list(&self, tenant: Option<&Name>) -> Result<Vec<Operation>, StoreError> {
        let sql = "SELECT * FROM operations WHERE ? IS NULL OR tenant = ? ORDER BY started DESC LIMIT ?";
        let tenant = tenant.map(Name::as_str);
        let query = sqlx::query(sql).bind(tenant).bind(tenant).bind(LISTED_MAX);
        query.fetch_all(&self.pool).await?.iter().map(operation).collect()
    }

    /// Notes what happened.
    pub async fn event_note(&self, happening: &Happening) -> Result<(), StoreError> {
        let mut change = self.pool.begin().await?;
        write_event(&mut change, happening).await?;
        Ok(change.commit().await?)
    }

    /// Forgets the oldest events and operations, so that the file does not grow for ever.
    pub async fn record_trim(&self) -> Result<(), StoreError> {
        sqlx::query("DELETE FROM events WHERE number <= (SELECT max(number) FROM events) - ?")
            .bind(RECORDS_MAX)
            .execute(&self.pool)
            .await?;
        let sql = "DELETE FROM operations WHERE state <> 'running' AND id NOT IN \
                   (SELECT id FROM operations ORDER BY started DESC LIMIT ?)";
        sqlx::query(sql).bind(RECORDS_MAX).execute(&self.pool).await?;
        Ok(())
    }

    /// Events of a tenant, or all: those after a number, or the latest.
    pub async fn event_list(
        &self,
        tenant: Option<&Name>,
        after: Option<i64>,
    ) -> Result<Vec<Event>, StoreError> {
        let sql = "SELECT * FROM (SELECT * FROM events WHERE (?1 IS NULL OR tenant = ?1) AND (?2 IS NULL OR number > ?2) \
                   ORDER BY CASE WHEN ?2 IS NULL THEN -number ELSE number END LIMIT ?3) ORDER BY number";
        let query = sqlx::query(sql).bind(tenant.map(Name::as_str)).bind(after).bind(LISTED_MAX);
        query.fetch_all(&self.pool).await?.iter().map(event).collect()
    }
}

pub(super) async fn write_event(
    change: &mut Transaction<'_, Sqlite>,
    happening: &Happening,
) -> Result<(), StoreError> {
    sqlx::query("INSERT INTO events (at, tenant, cluster, kind, text) VALUES (?, ?, ?, ?, ?)")
        .bind(happening.at.to_string())
        .bind(happening.tenant.as_ref().map(Name::as_str))
        .bind(happening.cluster.as_ref().map(Name::as_str))
        .bind(happening.kind)
        .bind(&happening.text)
        .execute(&mut **change)
        .await?;
    Ok(())
}

pub(super) async fn write_operation(
    change: &mut Transaction<'_, Sqlite>,
    operation: &Operation,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO operations VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET \
               state = excluded.state, reason = excluded.reason, ended = excluded.ended, steps = excluded.steps";
    sqlx::query(sql)
        .bind(operation.id.to_string())
        .bind(operation.tenant.as_str())
        .bind(operation.cluster.as_str())
        .bind(operation.cluster_id.to_string())
        .bind(word(&operation.kind))
        .bind(word(&operation.state))
        .bind(&operation.reason)
        .bind(operation.started.to_string())
        .bind(operation.ended.map(|ended| ended.to_string()))
        .bind(json(&operation.steps))
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
        kind: read_word("kind of an operation", &row.text("kind")?)?,
        state: read_word("state of an operation", &row.text("state")?)?,
        reason: row.maybe_text("reason")?,
        started: row.time("started")?,
        ended: row.maybe_text("ended")?.map(|text| parsed("time", &text)).transpose()?,
        steps: read_json("steps", &row.text("steps")?)?,
    })
}

fn event(row: &SqliteRow) -> Result<Event, StoreError> {
    let name =
        |column| row.maybe_text(column).and_then(|name| name.map(|name| parsed("name", &name)).transpose());
    Ok(Event {
        number: row.number("number")?,
        at: row.time("at")?,
        tenant: name("tenant")?,
        cluster: name("cluster")?,
        kind: row.text("kind")?,
        text: row.text("text")?,
    })
}
