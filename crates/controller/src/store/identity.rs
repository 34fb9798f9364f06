//! Which store this is and how new, and what is known of virtual machines that are no node's.

use controller_api::Name;
use ib_wire::PartitionNumber;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::codec::Columns;
use super::{Store, StoreError, parsed};

/// When a number was released that is still held: it never has rested.
const HELD: i64 = i64::MAX;

/// Which store this is, and how new.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoreIdentity {
    /// The site it belongs to: drawn when the store was made.
    pub site: Uuid,
    /// Grows when an operator accepts a store that was lost or restored.
    pub epoch: u64,
    /// Grows with every change that an older copy would undo, in the same transaction.
    pub revision: u64,
}

/// Least distance between the sequences of two controllers on a store, and how many bits more are random.
const SEQUENCE_GAP: u64 = 1 << 32;
const SEQUENCE_GAP_BITS: u32 = 40;

/// The sequences of orders of a controller that has started.
///
/// They begin a random distance behind what its store had reached. HostSpec that an agent has accepted from in between were given
/// by a controller whose store went on from the same point: this one is an older copy. Without the distance, a copy that is in
/// use for a while would reach the sequences of the lost store, and agents would take its orders for newer ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpecSequences {
    /// What the store had reached.
    inherited: u64,
    /// Those of this controller are behind it.
    begin: u64,
}

impl SpecSequences {
    /// Whether orders of this sequence were given neither by this controller nor by one before it on this store.
    pub fn is_foreign(&self, sequence: u64) -> bool {
        self.inherited < sequence && sequence <= self.begin
    }
}

/// A virtual machine of no node that an agent is told to remove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tombstone {
    /// The virtual machine.
    pub vm: Uuid,
    /// The host it is on.
    pub host: Name,
}

impl Store {
    /// Which store this is, and how new.
    pub async fn site_identity(&self) -> Result<StoreIdentity, StoreError> {
        let row = sqlx::query("SELECT id, epoch, revision FROM site").fetch_one(&self.writer).await?;
        Ok(StoreIdentity {
            site: parsed("id of the site", &row.text("id")?)?,
            epoch: row.number("epoch")?,
            revision: row.number("revision")?,
        })
    }

    /// Begins a new epoch behind everything that this store or `reached` has seen, and revokes all tokens; how many those were.
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

    /// The next sequence of orders. It is in the store when this returns: no orders are ever sent under one that is not.
    pub async fn spec_sequence_next(&self) -> Result<u64, StoreError> {
        let query = sqlx::query("UPDATE site SET sequence = sequence + 1 RETURNING sequence");
        query.fetch_one(&self.writer).await?.number("sequence")
    }

    /// All tombstones of virtual machines that are no node's.
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

    /// A virtual machine is to be removed from its host; fine if that is known already.
    pub async fn tombstone_add(&self, tombstone: &Tombstone, now: Timestamp) -> Result<(), StoreError> {
        write_tombstone(&self.writer, tombstone, now).await
    }

    /// The agent has reported that a virtual machine is gone: what it held rests from now on.
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

    /// Forgets what virtual machines hold that are nodes of clusters again.
    pub async fn held_partitions_settle(&self) -> Result<(), StoreError> {
        let sql = "DELETE FROM held_partitions WHERE vm IN (SELECT id FROM nodes)";
        sqlx::query(sql).execute(&self.writer).await?;
        Ok(())
    }

    /// Notes what a virtual machine of no cluster holds: it is given to nobody, and rests when it is gone.
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

/// Writes a tombstone; fine if it is there already.
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
