//! The store: an SQLite file that only its owner can read, with everything that must survive a restart.
//!
//! Methods are named noun first. Changes that belong together are one transaction of the only writing connection; readers
//! see committed rows concurrently. Read-decide-write sequences hold [`crate::site::Site::writer`]. One process at a time
//! opens a store: [`StoreLock`].

mod clusters;
mod codec;
mod faults;
mod identity;
mod lock;
mod numbers;
mod records;
mod seal;
mod site;
mod site_partitions;
mod tokens;

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, RwLock};

use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePool, SqlitePoolOptions,
    SqliteSynchronous,
};
use sqlx::{ConnectOptions as _, Connection as _, Sqlite, Transaction};
use thiserror::Error;

use self::seal::{Seal, SealError};
use self::site::KnownHosts;
use crate::clock::{Clock, Moment, Uptime};

pub use clusters::{ClusterKeys, ClusterNetwork, ClusterRow, NodeRow, StoredOverlay, ViewPartition};
pub use identity::{SpecSequences, StoreIdentity, Tombstone};
pub use lock::StoreLock;
pub use numbers::{POOL, PartitionNumbersExhausted};
pub use records::EventRecord;
pub use site::{HostAllocation, ImageRow, TenantRef, TenantRow};
pub use tokens::Revoked;

/// Schema version of this code.
const SCHEMA: i64 = 8;

/// Connections for readers: a few concurrent requests, each connection with its own page cache.
const READERS_MAX: u32 = 4;

/// Migrates schema 1 to 2.
const FROM_1_TO_2: &str = r#"ALTER TABLE clusters ADD COLUMN class TEXT NOT NULL DEFAULT '"best-effort"'"#;

/// Migrates schema 2 to 3.
const FROM_2_TO_3: &str = "ALTER TABLE clusters ADD COLUMN sl_mode TEXT NOT NULL DEFAULT 'cluster'; \
                           ALTER TABLE clusters ADD COLUMN inner_partitions TEXT NOT NULL DEFAULT '[]'; \
                           CREATE TABLE views (cluster TEXT PRIMARY KEY REFERENCES clusters (id) ON DELETE CASCADE, \
                           names TEXT NOT NULL) STRICT";

/// Migrates schema 3 to 4.
const FROM_3_TO_4: &str = "ALTER TABLE clusters ADD COLUMN view_wish TEXT";

/// Migrates schema 4 to 5.
const FROM_4_TO_5: &str = include_str!("from_4_to_5.sql");

/// Migrates schema 5 to 6.
const FROM_5_TO_6: &str = "ALTER TABLE clusters RENAME COLUMN view_wish TO view_overlay";

/// Migrates schema 6 to 7, and is the last part of a new store: its triggers count changes in a table of [`IDENTITY`].
const FROM_6_TO_7: &str = include_str!("from_6_to_7.sql");

/// Migrates schema 7 to 8.
const FROM_7_TO_8: &str = "ALTER TABLE images ADD COLUMN infiniband INTEGER NOT NULL DEFAULT 0; \
                           ALTER TABLE clusters ADD COLUMN adapter TEXT NOT NULL DEFAULT 'ethernet'";

/// Tables of schema 5 with the identity of the store; created last, since their triggers watch the other tables.
const IDENTITY: &str = include_str!("identity.sql");

/// Handle of an open store; cheap to clone.
#[derive(Clone, Debug)]
pub struct Store {
    /// The only connection that may write.
    writer: SqlitePool,
    readers: SqlitePool,
    seal: Seal,
    hosts: Arc<RwLock<KnownHosts>>,
    clock: Arc<dyn Clock>,
    /// Uptime when the store was opened, minus the reading of the clock then, in ms.
    since: i64,
    _lock: Arc<StoreLock>,
}

/// Why a store operation failed.
#[derive(Debug, Error)]
pub enum StoreError {
    #[error("the store failed")]
    Database(#[from] sqlx::Error),
    /// A column holds a value that this code did not write.
    #[error("invalid value in the store: {value:?} as {what}")]
    InvalidValue { what: &'static str, value: String },
    /// The store was written by a newer version.
    #[error("{path} has schema {found}; this version supports schemas up to {SCHEMA}")]
    Newer { path: PathBuf, found: i64 },
    /// A migration left foreign keys without a target.
    #[error(
        "{path} cannot be migrated to schema {SCHEMA}: {count} foreign keys have no target, the first in table {table}"
    )]
    Dangling {
        path: PathBuf,
        /// Table of the first one.
        table: String,
        count: usize,
    },
    #[error(transparent)]
    Seal(#[from] SealError),
    #[error("partition number {number:#06x} belongs to another cluster")]
    NumberTaken { number: u16 },
    #[error("the operating system provides no random numbers")]
    Random,
    /// The file mode cannot be restricted to the owner.
    #[error("cannot restrict {path} to its owner")]
    Private {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

impl StoreError {
    /// Whether a unique value exists already.
    pub fn is_taken(&self) -> bool {
        matches!(self, Self::Database(sqlx::Error::Database(error)) if error.is_unique_violation())
    }

    /// Whether a foreign key forbids the change.
    pub fn is_needed(&self) -> bool {
        matches!(self, Self::Database(sqlx::Error::Database(error)) if error.is_foreign_key_violation())
    }
}

impl Store {
    /// Opens or creates a store, and migrates it to [`SCHEMA`]. Private keys are sealed with the key in `key_file`. The
    /// lock is held until the last clone of the store is dropped.
    pub async fn open(
        path: &Path,
        key_file: &Path,
        lock: StoreLock,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, StoreError> {
        let options = options(path)?;
        let mut connection = options.clone().connect().await?;
        let mut change = connection.begin().await?;
        migrate(&mut change, path).await?;
        let seal = seal::open(&mut change, key_file).await?;
        change.commit().await?;
        checkpoint(&mut connection).await?;
        connection.close().await?;
        let options = options.foreign_keys(true);
        let writer = SqlitePoolOptions::new().max_connections(1).connect_with(options.clone()).await?;
        let reading = options.pragma("query_only", "on");
        let readers = SqlitePoolOptions::new().max_connections(READERS_MAX).connect_with(reading).await?;
        let elapsed: i64 =
            sqlx::query_scalar("SELECT elapsed FROM clock WHERE one = 1").fetch_one(&readers).await?;
        let since = elapsed - clock.monotonic().as_millis() as i64;
        Ok(Self { writer, readers, seal, hosts: Arc::default(), clock, since, _lock: Arc::new(lock) })
    }

    /// Total time that controllers have run on this store.
    pub fn uptime(&self) -> Uptime {
        Uptime::from_ms(self.since + self.clock.monotonic().as_millis() as i64)
    }

    /// This instant by both clocks.
    pub fn now(&self) -> Moment {
        Moment { wall: self.clock.wall(), uptime: self.uptime() }
    }

    /// Saves the uptime. Time since the last save is lost when the process is killed.
    pub async fn clock_save(&self) -> Result<(), StoreError> {
        let mut change = self.writer.begin().await?;
        self.write_uptime(&mut change).await?;
        Ok(change.commit().await?)
    }

    /// Empties the write-ahead log, so that it holds nothing that was deleted.
    pub async fn log_empty(&self) -> Result<(), StoreError> {
        checkpoint(&mut *self.writer.acquire().await?).await
    }

    async fn write_uptime(&self, change: &mut Transaction<'_, Sqlite>) -> Result<(), StoreError> {
        let query = sqlx::query("UPDATE clock SET elapsed = ? WHERE one = 1").bind(self.uptime().ms());
        query.execute(&mut **change).await?;
        Ok(())
    }
}

/// Seals all private keys with a new key, which replaces the one in `key_file`.
pub async fn rekey(path: &Path, key_file: &Path, _lock: StoreLock) -> Result<(), StoreError> {
    let mut connection = options(path)?.create_if_missing(false).connect().await?;
    let mut change = connection.begin().await?;
    migrate(&mut change, path).await?;
    seal::change(&mut change, key_file).await?;
    change.commit().await?;
    seal::finish(key_file)?;
    checkpoint(&mut connection).await?;
    Ok(connection.close().await?)
}

/// Connection options. Foreign keys are off, so that a migration can replace tables without cascading deletes.
fn options(path: &Path) -> Result<SqliteConnectOptions, StoreError> {
    make_private(path).map_err(|source| StoreError::Private { path: path.to_owned(), source })?;
    Ok(SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .foreign_keys(false)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        // Deleted rows are overwritten in the file.
        .pragma("secure_delete", "on"))
}

/// Copies the write-ahead log into the file and truncates it, so that neither holds what was deleted.
async fn checkpoint(connection: &mut SqliteConnection) -> Result<(), StoreError> {
    sqlx::raw_sql("PRAGMA wal_checkpoint(TRUNCATE)").execute(connection).await?;
    Ok(())
}

/// Migrates a store to [`SCHEMA`] inside the transaction of the caller.
async fn migrate(connection: &mut SqliteConnection, path: &Path) -> Result<(), StoreError> {
    let found: i64 = sqlx::query_scalar("PRAGMA user_version").fetch_one(&mut *connection).await?;
    let steps: &[&str] = match found {
        SCHEMA => return Ok(()),
        0 => &[include_str!("schema.sql"), IDENTITY, FROM_6_TO_7, FROM_7_TO_8],
        1 => &[
            FROM_1_TO_2,
            FROM_2_TO_3,
            FROM_3_TO_4,
            FROM_4_TO_5,
            IDENTITY,
            FROM_5_TO_6,
            FROM_6_TO_7,
            FROM_7_TO_8,
        ],
        2 => &[FROM_2_TO_3, FROM_3_TO_4, FROM_4_TO_5, IDENTITY, FROM_5_TO_6, FROM_6_TO_7, FROM_7_TO_8],
        3 => &[FROM_3_TO_4, FROM_4_TO_5, IDENTITY, FROM_5_TO_6, FROM_6_TO_7, FROM_7_TO_8],
        4 => &[FROM_4_TO_5, IDENTITY, FROM_5_TO_6, FROM_6_TO_7, FROM_7_TO_8],
        5 => &[FROM_5_TO_6, FROM_6_TO_7, FROM_7_TO_8],
        6 => &[FROM_6_TO_7, FROM_7_TO_8],
        7 => &[FROM_7_TO_8],
        found => return Err(StoreError::Newer { path: path.to_owned(), found }),
    };
    for sql in steps {
        sqlx::raw_sql(*sql).execute(&mut *connection).await?;
    }
    let dangling = sqlx::query("PRAGMA foreign_key_check").fetch_all(&mut *connection).await?;
    if let Some(first) = dangling.first() {
        let (path, table) = (path.to_owned(), codec::Columns::text(first, "table")?);
        return Err(StoreError::Dangling { path, table, count: dangling.len() });
    }
    sqlx::raw_sql("PRAGMA user_version = 8").execute(&mut *connection).await?;
    Ok(())
}

/// Restricts the file to its owner: it holds private keys. Files that SQLite creates beside it inherit its mode.
fn make_private(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
    let file = std::fs::OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    file.set_permissions(std::fs::Permissions::from_mode(0o600))
}

/// Parses a column that holds text.
fn parsed<T: FromStr>(what: &'static str, text: &str) -> Result<T, StoreError> {
    text.parse().map_err(|_| StoreError::InvalidValue { what, value: text.to_owned() })
}

#[cfg(test)]
mod tests;
