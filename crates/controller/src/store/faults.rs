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
            let (kind, subject) = words(fault);
            sqlx::query("INSERT INTO faults (kind, host, since) VALUES (?, ?, ?)")
                .bind(kind)
                .bind(subject)
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

/// Kind of a fault, and the host or cluster that it is about.
fn words(fault: &Fault) -> (&'static str, String) {
    match fault {
        Fault::ManagerSilent => ("manager-silent", String::new()),
        Fault::FabricStuck => ("fabric-stuck", String::new()),
        Fault::AgentSilent(host) => ("agent-silent", host.to_string()),
        Fault::OffFabric(host) => ("off-fabric", host.to_string()),
        Fault::PortClosed(host) => ("port-closed", host.to_string()),
        Fault::GuaranteeWithdrawn(cluster) => ("guarantee-withdrawn", cluster.to_string()),
    }
}

fn fault(row: &SqliteRow) -> Result<Fault, StoreError> {
    let host = || parsed("name of a host", &row.text("host")?);
    match row.text("kind")?.as_str() {
        "manager-silent" => Ok(Fault::ManagerSilent),
        "fabric-stuck" => Ok(Fault::FabricStuck),
        "agent-silent" => Ok(Fault::AgentSilent(host()?)),
        "off-fabric" => Ok(Fault::OffFabric(host()?)),
        "port-closed" => Ok(Fault::PortClosed(host()?)),
        "guarantee-withdrawn" => {
            Ok(Fault::GuaranteeWithdrawn(parsed("id of a cluster", &row.text("host")?)?))
        }
        other => Err(StoreError::InvalidValue { what: "kind of a fault", value: other.to_owned() }),
    }
}
