//! Current faults. Stored so that a restarted controller neither reports the beginning of a fault twice nor misses its
//! end.

use sqlx::sqlite::SqliteRow;

use super::codec::Columns;
use super::records::EventRecord;
use super::{Store, StoreError, parsed};
use crate::faults::{Fault, Faults};

impl Store {
    /// Faults as last saved.
    pub async fn fault_list(&self) -> Result<Faults, StoreError> {
        let rows = sqlx::query("SELECT kind, host, since FROM faults").fetch_all(&self.readers).await?;
        rows.iter().map(|row| Ok((fault(row)?, row.time("since")?))).collect()
    }

    /// Replaces the faults and records their events in one transaction.
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
