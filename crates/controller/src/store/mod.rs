//! Everything that has to survive: an SQLite file that only its owner can read.
//!
//! Calls are noun first. Changes that belong together are one transaction of the one connection that writes; the others read
//! what was committed, at the same time. Whoever reads, decides and writes holds [`crate::site::Site::writer`] meanwhile.
//! One process at a time has a store open: [`StoreLock`].

mod clusters;
mod codec;
mod faults;
mod identity;
mod lock;
mod numbers;
mod records;
mod seal;
mod site;
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
pub use records::EventRecord;
pub use site::{HostAllocation, ImageRow, TenantRef, TenantRow};
pub use tokens::Revoked;

/// The version of the schema that this code understands.
const SCHEMA: i64 = 6;

/// Connections that read: a few requests at once, each with a cache of pages of its own.
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

/// The tables of schema 5 that say which store this is and how new; made last, as they watch the others.
const IDENTITY: &str = include_str!("identity.sql");

/// The store.
#[derive(Clone, Debug)]
pub struct Store {
    /// One connection, the only one that may write.
    writer: SqlitePool,
    readers: SqlitePool,
    seal: Seal,
    hosts: Arc<RwLock<KnownHosts>>,
    clock: Arc<dyn Clock>,
    /// For how long the store was in use when it was opened, less what the clock said then.
    since: i64,
    _lock: Arc<StoreLock>,
}

/// What can go wrong with the store.
#[derive(Debug, Error)]
pub enum StoreError {
    /// SQLite says no.
    #[error("the store does not work")]
    Database(#[from] sqlx::Error),
    /// A value that this code did not write.
    #[error("the store holds {value:?} as {what}, which makes no sense")]
    InvalidValue {
        /// What it should be.
        what: &'static str,
        /// What is there.
        value: String,
    },
    /// Written by a newer version.
    #[error("{path} has schema {found}; this version understands {SCHEMA}")]
    Newer {
        /// Which file.
        path: PathBuf,
        /// Its schema.
        found: i64,
    },
    /// Something refers to what is not there.
    #[error(
        "{path} cannot be brought to schema {SCHEMA}: {count} references lead nowhere, the first in table {table}"
    )]
    Dangling {
        /// Which file.
        path: PathBuf,
        /// In which table the first one is.
        table: String,
        /// How many there are.
        count: usize,
    },
    /// Private keys cannot be read or kept.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// A partition number that another cluster has.
    #[error("partition number {number:#06x} belongs to another cluster")]
    NumberTaken {
        /// Which.
        number: u16,
    },
    /// The system gives no random numbers, so no token can be made.
    #[error("the system gives no random numbers")]
    Random,
    /// The file cannot be made private.
    #[error("cannot make {path} private")]
    Private {
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

impl StoreError {
    /// Whether something with this name, number or id is there already.
    pub fn is_taken(&self) -> bool {
        matches!(self, Self::Database(sqlx::Error::Database(error)) if error.is_unique_violation())
    }

    /// Whether something else still needs what was to be removed, or misses what was to be used.
    pub fn is_needed(&self) -> bool {
        matches!(self, Self::Database(sqlx::Error::Database(error)) if error.is_foreign_key_violation())
    }
}

impl Store {
    /// Opens a store, or makes one; private keys are sealed with the key in `key_file`. The lock is held for as long as anybody
    /// has the store.
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

    /// For how long controllers have run on this store.
    pub fn uptime(&self) -> Uptime {
        Uptime::from_ms(self.since + self.clock.monotonic().as_millis() as i64)
    }

    /// This instant.
    pub fn now(&self) -> Moment {
        Moment { wall: self.clock.wall(), uptime: self.uptime() }
    }

    /// Keeps for how long the store was in use. What was not kept when a process is killed has not passed.
    pub async fn clock_save(&self) -> Result<(), StoreError> {
        let mut change = self.writer.begin().await?;
        self.write_uptime(&mut change).await?;
        Ok(change.commit().await?)
    }

    /// Empties the log, so that nothing is left there of what was deleted.
    pub async fn log_empty(&self) -> Result<(), StoreError> {
        checkpoint(&mut *self.writer.acquire().await?).await
    }

    async fn write_uptime(&self, change: &mut Transaction<'_, Sqlite>) -> Result<(), StoreError> {
        let query = sqlx::query("UPDATE clock SET elapsed = ? WHERE one = 1").bind(self.uptime().ms());
        query.execute(&mut **change).await?;
        Ok(())
    }
}

/// Seals the private keys in a store with a new key, which takes the place of the one in `key_file`.
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

/// How a store is opened. Foreign keys are off, so that tables can be replaced without what refers to them being deleted.
fn options(path: &Path) -> Result<SqliteConnectOptions, StoreError> {
    make_private(path).map_err(|source| StoreError::Private { path: path.to_owned(), source })?;
    Ok(SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .foreign_keys(false)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        // What is deleted is not to be found in the file any more.
        .pragma("secure_delete", "on"))
}

/// Brings the log into the file and empties it: what was deleted is in neither.
async fn checkpoint(connection: &mut SqliteConnection) -> Result<(), StoreError> {
    sqlx::raw_sql("PRAGMA wal_checkpoint(TRUNCATE)").execute(connection).await?;
    Ok(())
}

/// Brings a store to the current schema, inside a transaction.
async fn migrate(connection: &mut SqliteConnection, path: &Path) -> Result<(), StoreError> {
    let found: i64 = sqlx::query_scalar("PRAGMA user_version").fetch_one(&mut *connection).await?;
    let steps: &[&str] = match found {
        SCHEMA => return Ok(()),
        0 => &[include_str!("schema.sql"), IDENTITY],
        1 => &[FROM_1_TO_2, FROM_2_TO_3, FROM_3_TO_4, FROM_4_TO_5, IDENTITY, FROM_5_TO_6],
        2 => &[FROM_2_TO_3, FROM_3_TO_4, FROM_4_TO_5, IDENTITY, FROM_5_TO_6],
        3 => &[FROM_3_TO_4, FROM_4_TO_5, IDENTITY, FROM_5_TO_6],
        4 => &[FROM_4_TO_5, IDENTITY, FROM_5_TO_6],
        5 => &[FROM_5_TO_6],
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
    sqlx::raw_sql("PRAGMA user_version = 6").execute(&mut *connection).await?;
    Ok(())
}

/// The file holds private keys: nobody else may read it, nor the files SQLite puts beside it, which inherit its mode.
fn make_private(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
    let file = std::fs::OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    file.set_permissions(std::fs::Permissions::from_mode(0o600))
}

/// Reads a value that was written as text.
fn parsed<T: FromStr>(what: &'static str, text: &str) -> Result<T, StoreError> {
    text.parse().map_err(|_| StoreError::InvalidValue { what, value: text.to_owned() })
}

#[cfg(test)]
mod tests;
