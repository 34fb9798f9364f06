//! Everything that has to survive: an SQLite file that only its owner can read.
//!
//! Calls are noun first. Changes that belong together are one transaction; there is one connection, so nobody sees half of
//! one. Whoever reads, decides and writes holds [`crate::site::Site::writer`] meanwhile.

mod clusters;
mod records;
mod site;
mod words;

use std::path::{Path, PathBuf};
use std::str::FromStr;

use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use thiserror::Error;

pub use clusters::{ClusterRow, NodeRow, ViewPartition, ViewWish};
pub use records::Happening;

/// The version of the schema that this code understands.
const SCHEMA: i64 = 4;

/// What makes schema 2 of schema 1.
const FROM_1_TO_2: &str = r#"ALTER TABLE clusters ADD COLUMN class TEXT NOT NULL DEFAULT '"best-effort"'"#;

/// What makes schema 3 of schema 2.
const FROM_2_TO_3: &str = "ALTER TABLE clusters ADD COLUMN sl_mode TEXT NOT NULL DEFAULT 'cluster'; \
                           ALTER TABLE clusters ADD COLUMN inner_partitions TEXT NOT NULL DEFAULT '[]'; \
                           CREATE TABLE views (cluster TEXT PRIMARY KEY REFERENCES clusters (id) ON DELETE CASCADE, \
                           names TEXT NOT NULL) STRICT";

/// What makes schema 4 of schema 3.
const FROM_3_TO_4: &str = "ALTER TABLE clusters ADD COLUMN view_wish TEXT";

/// The store.
#[derive(Clone, Debug)]
pub struct Store {
    pool: SqlitePool,
}

/// What can go wrong with the store.
#[derive(Debug, Error)]
pub enum StoreError {
    /// SQLite says no.
    #[error("the store does not work")]
    Database(#[from] sqlx::Error),
    /// A value that this code did not write.
    #[error("the store holds {value:?} as {what}, which makes no sense")]
    Nonsense {
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
    /// Opens a store, or makes one.
    pub async fn open(path: &Path) -> Result<Self, StoreError> {
        make_private(path).map_err(|source| StoreError::Private { path: path.to_owned(), source })?;
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .foreign_keys(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            // Keys of clusters that are deleted are not to be found in the file any more.
            .pragma("secure_delete", "on");
        let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options).await?;
        let store = Self { pool };
        store.migrate(path).await?;
        Ok(store)
    }

    async fn migrate(&self, path: &Path) -> Result<(), StoreError> {
        let found: i64 = sqlx::query_scalar("PRAGMA user_version").fetch_one(&self.pool).await?;
        let steps: &[&str] = match found {
            SCHEMA => return Ok(()),
            0 => &[include_str!("schema.sql")],
            1 => &[FROM_1_TO_2, FROM_2_TO_3, FROM_3_TO_4],
            2 => &[FROM_2_TO_3, FROM_3_TO_4],
            3 => &[FROM_3_TO_4],
            found => return Err(StoreError::Newer { path: path.to_owned(), found }),
        };
        self.change_schema(steps).await
    }
}

impl Store {
    /// Makes a schema the current one, or leaves it as it was.
    async fn change_schema(&self, steps: &[&'static str]) -> Result<(), StoreError> {
        let mut change = self.pool.begin().await?;
        for sql in steps {
            sqlx::raw_sql(*sql).execute(&mut *change).await?;
        }
        sqlx::raw_sql("PRAGMA user_version = 4").execute(&mut *change).await?;
        Ok(change.commit().await?)
    }
}

/// The file holds private keys: nobody else may read it, nor the files SQLite puts beside it, which inherit its mode.
fn make_private(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
    let file = std::fs::OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    file.set_permissions(std::fs::Permissions::from_mode(0o600))
}

/// Reads a value that was written as text.
fn parsed<T: FromStr>(what: &'static str, text: &str) -> Result<T, StoreError> {
    text.parse().map_err(|_| StoreError::Nonsense { what, value: text.to_owned() })
}
