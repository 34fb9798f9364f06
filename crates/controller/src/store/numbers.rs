//! Partition numbers: assignment and quarantine.
//!
//! Every number that was ever assigned is a row; the primary key assigns it to at most one cluster. Fresh numbers come
//! first, in order, then the one that was released longest ago: two index lookups, however many there are.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ib_wire::PartitionNumber;
use sqlx::{Sqlite, Transaction};
use thiserror::Error;
use uuid::Uuid;

use super::clusters::ClusterRow;
use super::site::partition;
use super::{Store, StoreError};

/// Partition numbers for clusters. Lower numbers are left to operators; the highest is the default partition.
pub const POOL: std::ops::RangeInclusive<u16> = 0x0100..=0x7eff;

/// Time before a released number is assigned again: longer than any packet in flight or cached path.
pub const QUARANTINE: Duration = Duration::from_secs(10 * 60);

/// Too few free partition numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{in_use} of {} partition numbers are in use and {quarantined} are in quarantine", POOL.len())]
pub struct PartitionNumbersExhausted {
    pub in_use: u32,
    /// Released less than [`QUARANTINE`] ago.
    pub quarantined: u32,
}

/// Each reads one index.
pub(super) const LAST_NUMBER: &str = "SELECT last_partition FROM fabric WHERE one = 1";
pub(super) const REUSABLE_NUMBERS: &str =
    "SELECT number FROM partition_numbers WHERE released <= ? ORDER BY released, number LIMIT ?";
/// Scans two tables: one is empty except after a recovery, the other has few rows.
const WITHHELD_NUMBERS: &str =
    "SELECT number FROM held_partitions UNION SELECT number FROM site_partition_numbers";
pub(super) const NUMBERS_OF: &str = "SELECT \
    (SELECT count(*) FROM partition_numbers WHERE tenant = ?1 AND released IS NULL) + \
    (SELECT count(*) FROM partition_numbers WHERE tenant = ?1 AND released > ?2)";

/// Use of a partition number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberKind {
    /// The cluster's own partition.
    Own,
    Inner,
    /// A partition created in the view.
    View,
}

impl NumberKind {
    const fn word(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::Inner => "inner",
            Self::View => "view",
        }
    }
}

impl Store {
    /// Distinct numbers that can be assigned now. They are taken when they are written with a cluster; until then the
    /// caller holds [`crate::site::Site::writer`].
    pub async fn number_free(
        &self,
        count: usize,
    ) -> Result<Result<Vec<PartitionNumber>, PartitionNumbersExhausted>, StoreError> {
        let mut read = self.readers.begin().await?;
        let last: Option<u16> = sqlx::query_scalar(LAST_NUMBER).fetch_optional(&mut *read).await?;
        let first = last.map_or(*POOL.start(), |last| last.saturating_add(1).max(*POOL.start()));
        let withheld: BTreeSet<u16> =
            sqlx::query_scalar(WITHHELD_NUMBERS).fetch_all(&mut *read).await?.into_iter().collect();
        let mut raw: Vec<u16> =
            (first..=*POOL.end()).filter(|number| !withheld.contains(number)).take(count).collect();
        let rested = self.uptime().before(QUARANTINE);
        let missing = count - raw.len();
        let limit = if missing == 0 { 0 } else { missing + withheld.len() };
        let query = sqlx::query_scalar(REUSABLE_NUMBERS).bind(rested.ms()).bind(limit as i64);
        let oldest: Vec<u16> = query.fetch_all(&mut *read).await?;
        raw.extend(oldest.into_iter().filter(|number| !withheld.contains(number)).take(missing));
        if raw.len() < count {
            let sql = "SELECT (SELECT count(*) FROM partition_numbers WHERE released IS NULL), \
                       (SELECT count(*) FROM partition_numbers WHERE released > ?)";
            let (in_use, quarantined): (u32, u32) =
                sqlx::query_as(sql).bind(rested.ms()).fetch_one(&mut *read).await?;
            return Ok(Err(PartitionNumbersExhausted { in_use, quarantined }));
        }
        raw.into_iter().map(partition).collect::<Result<_, _>>().map(Ok)
    }

    /// Whether a number was released less than [`QUARANTINE`] ago.
    pub async fn number_is_quarantined(&self, number: PartitionNumber) -> Result<bool, StoreError> {
        let sql = "SELECT count(*) FROM partition_numbers WHERE number = ? AND released > ?";
        let rested = self.uptime().before(QUARANTINE);
        let query = sqlx::query_scalar(sql).bind(number.to_wire()).bind(rested.ms());
        let count: i64 = query.fetch_one(&self.readers).await?;
        Ok(count > 0)
    }

    /// Numbers that count against the quota of a tenant: in use, or in quarantine after its clusters released them.
    pub async fn number_count(&self, tenant: Uuid) -> Result<u32, StoreError> {
        let query = sqlx::query_scalar(NUMBERS_OF)
            .bind(tenant.to_string())
            .bind(self.uptime().before(QUARANTINE).ms());
        Ok(query.fetch_one(&self.readers).await?)
    }

    /// Releases numbers that are in `had` only, and takes those that are in `has` only.
    pub(super) async fn write_numbers(
        &self,
        change: &mut Transaction<'_, Sqlite>,
        cluster: &ClusterRow,
        had: &BTreeMap<PartitionNumber, NumberKind>,
        has: &BTreeMap<PartitionNumber, NumberKind>,
    ) -> Result<(), StoreError> {
        for number in had.keys().filter(|number| !has.contains_key(number)) {
            let sql =
                "UPDATE partition_numbers SET cluster = NULL, released = ? WHERE number = ? AND cluster = ?";
            let query = sqlx::query(sql).bind(self.uptime().ms()).bind(number.to_wire());
            query.bind(cluster.id.to_string()).execute(&mut **change).await?;
        }
        for (number, kind) in has.iter().filter(|(number, kind)| had.get(number) != Some(kind)) {
            let sql = "INSERT INTO partition_numbers (number, tenant, cluster, kind) VALUES (?1, ?2, ?3, ?4) ON CONFLICT (number) DO UPDATE \
                       SET tenant = ?2, cluster = ?3, kind = ?4, released = NULL WHERE cluster IS NULL OR cluster = ?3";
            let query = sqlx::query(sql).bind(number.to_wire()).bind(cluster.tenant.id.to_string());
            let query = query.bind(cluster.id.to_string()).bind(kind.word());
            if query.execute(&mut **change).await?.rows_affected() != 1 {
                return Err(StoreError::NumberTaken { number: number.to_wire() });
            }
            let sql = "INSERT INTO fabric (one, decisions, last_partition) VALUES (1, '{}', ?) \
                       ON CONFLICT (one) DO UPDATE SET last_partition = max(last_partition, excluded.last_partition)";
            sqlx::query(sql).bind(number.to_wire()).execute(&mut **change).await?;
        }
        Ok(())
    }
}
