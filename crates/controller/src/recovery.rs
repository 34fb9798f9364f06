//! Detection of lost and restored stores, and recovery from them.
//!
//! The store counts its revisions; the latest is also written to `site.json` beside it before a change is answered. A
//! restored copy is then older than the file says, and a missing store is noticed. The controller starts on neither: it
//! would start what was deleted and forget what was created. An operator decides, with `heddle controller recover`.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use thiserror::Error;
use tokio::sync::Mutex;

use crate::clock::{Clock, SystemClock};
use crate::store::{Store, StoreIdentity, StoreLock};

/// Name of the file beside the store.
const SIDECAR: &str = "site.json";

/// Most bytes of that file: an id and two numbers.
const SIDECAR_BYTES_MAX: u64 = 4096;

/// Loss that an operator accepts by a recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptedLoss {
    /// The store is an older copy; later changes are lost.
    OlderStore,
    /// There is no store; its whole content is lost.
    EmptyStore,
}

/// Result of a recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoverySummary {
    /// Epoch that agents accept from now on.
    pub epoch: u64,
    /// Number of revoked tokens.
    pub tokens: u64,
}

/// Why a store is not the latest one of its site.
#[derive(Debug, Error)]
pub enum StoreMismatch {
    /// There is no store, although the site had one.
    #[error(
        "{} is missing, but {} says that this site had reached revision {revision}: restore the newest copy of the store, or \
         continue without it with `heddle controller recover --state {} --accept-empty-store`",
        database.display(), sidecar.display(), directory(database).display()
    )]
    Missing { database: PathBuf, sidecar: PathBuf, revision: u64 },
    /// The store is an older copy.
    #[error(
        "{} is at epoch {}, revision {}, but this site had reached epoch {}, revision {} ({}): it is an older copy. Restore the newest \
         one, or accept the loss with `heddle controller recover --state {} --accept-older-store`",
        database.display(), found.epoch, found.revision, reached.epoch, reached.revision, sidecar.display(),
        directory(database).display()
    )]
    Older {
        database: PathBuf,
        sidecar: PathBuf,
        /// Identity in the store.
        found: StoreIdentity,
        /// Identity in the sidecar.
        reached: StoreIdentity,
    },
    /// The store belongs to another site.
    #[error(
        "{} belongs to site {}, but {} to site {}: restore the right store, or remove {2} if this directory is to become the \
         other site",
        database.display(), found.site, sidecar.display(), reached.site
    )]
    OtherSite {
        database: PathBuf,
        sidecar: PathBuf,
        /// Identity in the store.
        found: StoreIdentity,
        /// Identity in the sidecar.
        reached: StoreIdentity,
    },
}

/// The file that mirrors the identity and revision of the store.
#[derive(Debug)]
pub struct Sidecar {
    path: PathBuf,
    /// Content of the file. Locked while it is written.
    written: Mutex<Option<StoreIdentity>>,
}

impl Sidecar {
    /// Reads the sidecar of the store at `database`.
    pub fn of(database: &Path) -> anyhow::Result<Self> {
        let path = database.with_file_name(SIDECAR);
        let place = path.display();
        let written = match fs::metadata(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error).with_context(|| format!("cannot read {place}")),
            Ok(found) if found.len() > SIDECAR_BYTES_MAX => {
                anyhow::bail!("{place} has more than {SIDECAR_BYTES_MAX} bytes")
            }
            Ok(_) => {
                let text = fs::read(&path).with_context(|| format!("cannot read {place}"))?;
                Some(serde_json::from_slice(&text).with_context(|| format!("cannot parse {place}"))?)
            }
        };
        Ok(Self { path, written: Mutex::new(written) })
    }

    /// Writes the current identity of the store unless the file has it already. On disk when this returns.
    pub async fn mirror(&self, store: &Store) -> anyhow::Result<()> {
        let mut written = self.written.lock().await;
        let reached = store.site_identity().await?;
        if *written != Some(reached) {
            let (path, text) = (self.path.clone(), serde_json::to_string(&reached)? + "\n");
            tokio::task::spawn_blocking(move || crate::write_file(&path, durable_file::PRIVATE, &text))
                .await??;
            *written = Some(reached);
        }
        Ok(())
    }
}

/// Opens the store of a site.
///
/// # Errors
/// [`StoreMismatch`] if it is missing, older than the sidecar says, or of another site.
pub async fn open(
    database: &Path,
    key_file: &Path,
    clock: Arc<dyn Clock>,
) -> anyhow::Result<(Store, Sidecar)> {
    // First of all: another controller may be running.
    let lock = StoreLock::acquire(database)?;
    let sidecar = Sidecar::of(database)?;
    let reached = *sidecar.written.lock().await;
    let path = || (database.to_owned(), sidecar.path.clone());
    if let Some(StoreIdentity { revision, .. }) = reached
        && !is_there(database)
    {
        let (database, sidecar) = path();
        return Err(StoreMismatch::Missing { database, sidecar, revision }.into());
    }
    let store = open_store(database, key_file, lock, clock).await?;
    let found = store.site_identity().await?;
    if let Some(reached) = reached {
        let (database, sidecar) = path();
        if found.site != reached.site {
            return Err(StoreMismatch::OtherSite { database, sidecar, found, reached }.into());
        }
        if (found.epoch, found.revision) < (reached.epoch, reached.revision) {
            return Err(StoreMismatch::Older { database, sidecar, found, reached }.into());
        }
    }
    sidecar.mirror(&store).await?;
    Ok((store, sidecar))
}

/// Accepts a lost or restored store: begins a new epoch, which agents accept, and revokes all tokens; the next start
/// issues a new operator token. Virtual machines that the store does not know keep running and are listed as unlisted.
pub async fn recover(
    database: &Path,
    key_file: &Path,
    accept: AcceptedLoss,
) -> anyhow::Result<RecoverySummary> {
    let lock = StoreLock::acquire(database)?;
    let sidecar = Sidecar::of(database)?;
    let reached = *sidecar.written.lock().await;
    if accept == AcceptedLoss::OlderStore && !is_there(database) {
        anyhow::bail!("there is no store at {}: restore a copy first", database.display());
    }
    let store = open_store(database, key_file, lock, SystemClock::start()).await?;
    let found = store.site_identity().await?;
    if accept == AcceptedLoss::EmptyStore && found.revision > 0 {
        anyhow::bail!(
            "{} is not empty: it is at revision {}. Use --accept-older-store to accept it",
            database.display(),
            found.revision
        );
    }
    let (recovered, tokens) = store.site_recover(reached.unwrap_or(found)).await?;
    sidecar.mirror(&store).await?;
    Ok(RecoverySummary { epoch: recovered.epoch, tokens })
}

async fn open_store(
    database: &Path,
    key_file: &Path,
    lock: StoreLock,
    clock: Arc<dyn Clock>,
) -> anyhow::Result<Store> {
    let opened = Store::open(database, key_file, lock, clock).await;
    opened.with_context(|| format!("cannot open {}", database.display()))
}

/// Whether the file has content; an empty one was never written.
fn is_there(database: &Path) -> bool {
    fs::metadata(database).is_ok_and(|found| found.len() > 0)
}

fn directory(database: &Path) -> &Path {
    database.parent().unwrap_or(Path::new("."))
}
