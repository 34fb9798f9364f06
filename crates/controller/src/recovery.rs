//! Whether the store is the one that this site went on with, and how to go on if it is not.
//!
//! The store counts its revisions; the newest is also written to `site.json` beside it, before a change is answered. A copy that
//! is put back is then older than the file says, and a store that is missing is missed. The controller does not start on
//! either: it would order what was deleted, and forget what was created. An operator decides, by `heddle controller recover`.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use thiserror::Error;
use tokio::sync::Mutex;

use crate::clock::{Clock, SystemClock};
use crate::store::{Store, StoreIdentity, StoreLock};

/// The file beside the store.
const SIDECAR: &str = "site.json";

/// Longest such file: an id and two numbers.
const SIDECAR_BYTES_MAX: u64 = 4096;

/// Which losses an operator accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptedLoss {
    /// The store is an older copy: what came after it is lost.
    OlderStore,
    /// There is no store: everything in it is lost.
    EmptyStore,
}

/// What has become of a site by recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoverySummary {
    /// The epoch that agents accept from now on.
    pub epoch: u64,
    /// Tokens that were revoked.
    pub tokens: u64,
}

/// Why a store is not the one that the site went on with.
#[derive(Debug, Error)]
pub enum StoreMismatch {
    /// There is none.
    #[error(
        "{} is missing, but {} says that this site had reached revision {revision}: put the newest copy of the store back, or go \
         on without it by `heddle controller recover --state {} --accept-empty-store`",
        database.display(), sidecar.display(), directory(database).display()
    )]
    Missing {
        /// Where it should be.
        database: PathBuf,
        /// What says so.
        sidecar: PathBuf,
        /// The revision that was reached.
        revision: u64,
    },
    /// It is an older copy.
    #[error(
        "{} is at epoch {}, revision {}, but this site had reached epoch {}, revision {} ({}): it is an older copy. Put the newest \
         one back, or accept what is lost by `heddle controller recover --state {} --accept-older-store`",
        database.display(), found.epoch, found.revision, reached.epoch, reached.revision, sidecar.display(),
        directory(database).display()
    )]
    Older {
        /// Which store.
        database: PathBuf,
        /// What says so.
        sidecar: PathBuf,
        /// What the store says.
        found: StoreIdentity,
        /// What was reached.
        reached: StoreIdentity,
    },
    /// It is another site's.
    #[error(
        "{} belongs to site {}, but {} to site {}: put the right store back, or remove {2} if this directory is to become the \
         other site",
        database.display(), found.site, sidecar.display(), reached.site
    )]
    OtherSite {
        /// Which store.
        database: PathBuf,
        /// What says so.
        sidecar: PathBuf,
        /// What the store says.
        found: StoreIdentity,
        /// What was reached.
        reached: StoreIdentity,
    },
}

/// The file that says which revision was reached.
#[derive(Debug)]
pub struct Sidecar {
    path: PathBuf,
    /// What the file says. Held while it is written.
    written: Mutex<Option<StoreIdentity>>,
}

impl Sidecar {
    /// That of a store.
    pub fn of(database: &Path) -> anyhow::Result<Self> {
        let path = database.with_file_name(SIDECAR);
        let place = path.display();
        let written = match fs::metadata(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error).with_context(|| format!("cannot read {place}")),
            Ok(found) if found.len() > SIDECAR_BYTES_MAX => anyhow::bail!("{place} is too long"),
            Ok(_) => {
                let text = fs::read(&path).with_context(|| format!("cannot read {place}"))?;
                Some(serde_json::from_slice(&text).with_context(|| format!("{place} cannot be read"))?)
            }
        };
        Ok(Self { path, written: Mutex::new(written) })
    }

    /// Writes the revision that the store has reached, if the file does not say so yet. When this returns, it is on disk.
    pub async fn mirror(&self, store: &Store) -> anyhow::Result<()> {
        let mut written = self.written.lock().await;
        let reached = store.site_identity().await?;
        if *written != Some(reached) {
            let (path, text) = (self.path.clone(), serde_json::to_string(&reached)? + "\n");
            tokio::task::spawn_blocking(move || crate::write_file(&path, 0o600, &text)).await??;
            *written = Some(reached);
        }
        Ok(())
    }
}

/// Opens the store of a site, unless it is missing, older than the site, or another site's.
pub async fn open(
    database: &Path,
    key_file: &Path,
    clock: Arc<dyn Clock>,
) -> anyhow::Result<(Store, Sidecar)> {
    // Before anything is touched: another controller may be at work.
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

/// Goes on with a store that was lost or restored: a new epoch, which agents accept, and no tokens but one that the next start
/// issues to the operator. What hosts run and the store does not know keeps running, and is listed as unlisted.
pub async fn recover(
    database: &Path,
    key_file: &Path,
    accept: AcceptedLoss,
) -> anyhow::Result<RecoverySummary> {
    let lock = StoreLock::acquire(database)?;
    let sidecar = Sidecar::of(database)?;
    let reached = *sidecar.written.lock().await;
    if accept == AcceptedLoss::OlderStore && !is_there(database) {
        anyhow::bail!("there is no store at {}: put a copy there first", database.display());
    }
    let store = open_store(database, key_file, lock, SystemClock::start()).await?;
    let found = store.site_identity().await?;
    if accept == AcceptedLoss::EmptyStore && found.revision > 0 {
        anyhow::bail!(
            "{} is not empty: it is at revision {}. Use --accept-older-store to go on with it",
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

/// A file of no bytes is a store that was never written.
fn is_there(database: &Path) -> bool {
    fs::metadata(database).is_ok_and(|found| found.len() > 0)
}

fn directory(database: &Path) -> &Path {
    database.parent().unwrap_or(Path::new("."))
}
