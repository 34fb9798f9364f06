//! Partitions of the site: those of ports that were not handed over to tenants.

use std::collections::BTreeSet;

use ib_wire::PartitionNumber;

use super::{Store, StoreError};

/// Reads one row by its key.
pub(super) const CONF: &str = "SELECT conf FROM site_partitions WHERE one = 1";

impl Store {
    /// The partitions of the site in the format of partitions.conf; empty if there are none.
    pub async fn site_partitions(&self) -> Result<String, StoreError> {
        Ok(sqlx::query_scalar(CONF).fetch_one(&self.readers).await?)
    }

    /// Replaces the partitions of the site. `numbers` are those that they request.
    pub async fn site_partitions_set(
        &self,
        conf: &str,
        numbers: &BTreeSet<PartitionNumber>,
    ) -> Result<(), StoreError> {
        let mut change = self.writer.begin().await?;
        sqlx::query("UPDATE site_partitions SET conf = ? WHERE one = 1")
            .bind(conf)
            .execute(&mut *change)
            .await?;
        sqlx::query("DELETE FROM site_partition_numbers").execute(&mut *change).await?;
        for number in numbers {
            let query = sqlx::query("INSERT INTO site_partition_numbers VALUES (?)").bind(number.to_wire());
            query.execute(&mut *change).await?;
        }
        Ok(change.commit().await?)
    }
}
