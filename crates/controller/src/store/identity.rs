//! Identity and revision of the store, and virtual machines that belong to no node.

use controller_api::Name;
use ib_wire::PartitionNumber;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::codec::Columns;
use super::{Store, StoreError, parsed};

/// Release time of a number that is still in use: its quarantine never ends.
const HELD: i64 = i64::MAX;

/// Identity and revision of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoreIdentity {
    /// Random id of the site, drawn when the store was created.
    pub site: Uuid,
    /// Incremented when an operator accepts a lost or restored store.
    pub epoch: u64,
    /// Incremented with every change that an older copy would undo, in the same transaction.
    pub revision: u64,
}

/// Smallest distance between the sequences of two controllers on a store, and the number of random bits added to it.
const SEQUENCE_GAP: u64 = 1 << 32;
const SEQUENCE_GAP_BITS: u32 = 40;

/// Sequences of the host specs of a running controller.
///
/// They begin a random distance after the last one in the store. A spec that an agent accepted from in between was issued
/// by a controller whose store continued from the same point, so this store is an older copy. Without the distance, a
/// copy in use would eventually reach the sequences of the lost store, and agents would take its specs for newer ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpecSequences {
    /// Last sequence in the store at the start.
    inherited: u64,
    /// Sequences of this controller are greater.
    begin: u64,
}

impl SpecSequences {
    /// Whether a sequence was issued neither by this controller nor by an earlier one on this store.
    pub fn is_foreign(&self, sequence: u64) -> bool {
        self.inherited < sequence && sequence <= self.begin
    }
}

/// A virtual machine that belongs to no node and that its agent is to remove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tombstone {
    pub vm: Uuid,
    pub host: Name,
}

impl Store {
    /// Identity and revision of the store.
    pub async fn site_identity(&self) -> Result<StoreIdentity, StoreError> {
        let row = sqlx::query("SELECT id, epoch, revision FROM site").fetch_one(&self.writer).await?;
        Ok(StoreIdentity {
            site: parsed("id of the site", &row.text("id")?)?,
            epoch: row.number("epoch")?,
            revision: row.number("revision")?,
        })
    }

    /// Begins an epoch after those of this store and of `reached`, and revokes all tokens; returns how many.
    pub async fn site_recover(&self, reached: StoreIdentity) -> Result<(StoreIdentity, u64), StoreError> {
        let mut change = self.writer.begin().await?;
        let tokens = sqlx::query("DELETE FROM tokens").execute(&mut *change).await?.rows_affected();
        sqlx::query("UPDATE site SET id = ?, epoch = max(epoch, ?) + 1, revision = max(revision, ?) + 1")
            .bind(reached.site.to_string())
            .bind(reached.epoch.cast_signed())
            .bind(reached.revision.cast_signed())
            .execute(&mut *change)
            .await?;
        change.commit().await?;
        Ok((self.site_identity().await?, tokens))
    }

    /// Begins the sequences of a controller that starts.
    pub async fn spec_sequence_begin(&self) -> Result<SpecSequences, StoreError> {
        let random = getrandom::u64().map_err(|_| StoreError::Random)?;
        let gap = SEQUENCE_GAP + (random >> (u64::BITS - SEQUENCE_GAP_BITS));
        let query = sqlx::query("UPDATE site SET sequence = sequence + ? RETURNING sequence");
        let row = query.bind(gap.cast_signed()).fetch_one(&self.writer).await?;
        let begin: u64 = row.number("sequence")?;
        Ok(SpecSequences { inherited: begin - gap, begin })
    }

    /// The next sequence. It is in the store when this returns: no spec is ever sent under one that is not.
    pub async fn spec_sequence_next(&self) -> Result<u64, StoreError> {
        let query = sqlx::query("UPDATE site SET sequence = sequence + 1 RETURNING sequence");
        query.fetch_one(&self.writer).await?.number("sequence")
    }

    /// All tombstones, by id.
    pub async fn tombstone_list(&self) -> Result<Vec<Tombstone>, StoreError> {
        let rows =
            sqlx::query("SELECT vm, host FROM tombstones ORDER BY vm").fetch_all(&self.readers).await?;
        rows.iter()
            .map(|row| {
                Ok(Tombstone {
                    vm: parsed("id of a virtual machine", &row.text("vm")?)?,
                    host: parsed("name of a host", &row.text("host")?)?,
                })
            })
            .collect()
    }

    /// Adds a tombstone; no effect if there is one.
    pub async fn tombstone_add(&self, tombstone: &Tombstone, now: Timestamp) -> Result<(), StoreError> {
        write_tombstone(&self.writer, tombstone, now).await
    }

    /// Removes the tombstone of a virtual machine that is gone; its partition numbers go into quarantine.
    pub async fn tombstone_remove(&self, vm: Uuid) -> Result<(), StoreError> {
        let mut change = self.writer.begin().await?;
        sqlx::query(
            "UPDATE partition_numbers SET released = ? WHERE cluster IS NULL \
             AND number IN (SELECT number FROM held_partitions WHERE vm = ?)",
        )
        .bind(self.uptime().ms())
        .bind(vm.to_string())
        .execute(&mut *change)
        .await?;
        for sql in ["DELETE FROM held_partitions WHERE vm = ?", "DELETE FROM tombstones WHERE vm = ?"] {
            sqlx::query(sql).bind(vm.to_string()).execute(&mut *change).await?;
        }
        Ok(change.commit().await?)
    }

    /// Releases numbers held by virtual machines that belong to clusters again.
    pub async fn held_partitions_settle(&self) -> Result<(), StoreError> {
        let sql = "DELETE FROM held_partitions WHERE vm IN (SELECT id FROM nodes)";
        sqlx::query(sql).execute(&self.writer).await?;
        Ok(())
    }

    /// Withholds the numbers that an unlisted virtual machine may use; they go into quarantine when it is gone.
    pub async fn held_partitions_note(
        &self,
        host: &Name,
        vm: Uuid,
        numbers: &[PartitionNumber],
    ) -> Result<(), StoreError> {
        let mut change = self.writer.begin().await?;
        for number in numbers {
            sqlx::query("INSERT OR IGNORE INTO held_partitions (number, vm, host) VALUES (?, ?, ?)")
                .bind(number.to_wire())
                .bind(vm.to_string())
                .bind(host.as_str())
                .execute(&mut *change)
                .await?;
            sqlx::query(
                "INSERT INTO partition_numbers (number, released) VALUES (?1, ?2) \
                 ON CONFLICT (number) DO UPDATE SET released = ?2 WHERE cluster IS NULL",
            )
            .bind(number.to_wire())
            .bind(HELD)
            .execute(&mut *change)
            .await?;
        }
        Ok(change.commit().await?)
    }
}

/// Inserts a tombstone; no effect if there is one.
pub(super) async fn write_tombstone(
    to: impl sqlx::SqliteExecutor<'_>,
    tombstone: &Tombstone,
    now: Timestamp,
) -> Result<(), StoreError> {
    sqlx::query("INSERT OR IGNORE INTO tombstones (vm, host, ordered) VALUES (?, ?, ?)")
        .bind(tombstone.vm.to_string())
        .bind(tombstone.host.as_str())
        .bind(now.to_string())
        .execute(to)
        .await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_between_two_controllers_are_foreign_to_both() {
        let sequences = SpecSequences { inherited: 7, begin: 1000 };
        let foreign: Vec<u64> =
            [6, 7, 8, 999, 1000, 1001].into_iter().filter(|it| sequences.is_foreign(*it)).collect();
        assert_eq!(foreign, [8, 999, 1000]);
    }
}
