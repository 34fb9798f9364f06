//! What is not well: kept so that a controller that comes back tells neither twice that it began nor forgets that it is over.

use sqlx::sqlite::SqliteRow;

use super::codec::Columns;
use super::records::EventRecord;
use super::{Store, StoreError, parsed};
use crate::health::{Fault, Faults};

impl Store {
    /// Everything that was not well when that last changed.
    pub async fn fault_list(&self) -> Result<Faults, StoreError> {
        let rows = sqlx::query("SELECT kind, host, since FROM faults").fetch_all(&self.readers).await?;
        rows.iter().map(|row| Ok((fault(row)?, row.time("since")?))).collect()
    }

    /// What is not well from now on, and what is told of it.
    pub async fn fault_save(&self, faults: &Faults, events: &[EventRecord]) -> Result<(), StoreError> {
        let mut change = self.writer.begin().await?;
        sqlx::query("DELETE FROM faults").execute(&mut *change).await?;
        for (fault, since) in faults {
            let (kind, host) = words(fault);
            sqlx::query("INSERT INTO faults (kind, host, since) VALUES (?, ?, ?)")
                .bind(kind)
                .bind(host)
                .bind(since.to_string())
                .execute(&mut *change)
                .await?;
        }
        for event in events {
            super::records::write_event(&mut change, event).await?;
        }
        Ok(change.commit().await?)
    }
}

fn words(fault: &Fault) -> (&'static str, &str) {
    match fault {
        Fault::ManagerSilent => ("manager-silent", ""),
        Fault::FabricStuck => ("fabric-stuck", ""),
        Fault::AgentSilent(host) => ("agent-silent", host.as_str()),
        Fault::OffFabric(host) => ("off-fabric", host.as_str()),
    }
}

fn fault(row: &SqliteRow) -> Result<Fault, StoreError> {
    let host = || parsed("name of a host", &row.text("host")?);
    match row.text("kind")?.as_str() {
        "manager-silent" => Ok(Fault::ManagerSilent),
        "fabric-stuck" => Ok(Fault::FabricStuck),
        "agent-silent" => Ok(Fault::AgentSilent(host()?)),
        "off-fabric" => Ok(Fault::OffFabric(host()?)),
        other => Err(StoreError::InvalidValue { what: "kind of a fault", value: other.to_owned() }),
    }
}
