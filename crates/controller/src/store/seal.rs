//! Sealing of private keys: without the key file, the database, its write-ahead log and copies of them reveal nothing.
//! See decision 0022.
//!
//! The key is 32 random bytes in its own file. It is never replaced silently: the store holds a mark that identifies its
//! key.

use std::fmt;
use std::fs::{self, File};
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use chacha20poly1305::aead::{Aead as _, Payload};
use chacha20poly1305::{Key, KeyInit as _, XChaCha20Poly1305, XNonce};
use sqlx::sqlite::SqliteConnection;
use thiserror::Error;
use uuid::Uuid;

use super::StoreError;
use super::codec::Columns as _;

/// First byte of a sealed value: the version of its format.
const VERSION: u8 = 1;

/// Length of a nonce: random ones practically never repeat.
const NONCE_BYTES: usize = 24;

const KEY_BYTES: usize = 32;

/// Plaintext that is sealed to recognize the key.
const MARK: &[u8] = b"heddle store";

/// Why private keys cannot be sealed or unsealed.
#[derive(Debug, Error)]
pub enum SealError {
    /// The key file is missing.
    #[error(
        "the key file {path} is missing; restore it from its backup: without it the private keys of clusters in the store \
         cannot be read"
    )]
    Lost { path: PathBuf },
    /// The key file holds another key.
    #[error("{path} holds another key than the one that sealed the store; restore the right one")]
    Wrong { path: PathBuf },
    /// Other users may read the key file.
    #[error("other users may read {path} (mode {mode:04o}); its mode must be 0600 or 0400")]
    Open { path: PathBuf, mode: u32 },
    /// The key file holds no key.
    #[error("{path} does not hold a key of {} hexadecimal digits", 2 * KEY_BYTES)]
    NoKey { path: PathBuf },
    /// The key file cannot be read or written.
    #[error("cannot use the key file {path}")]
    Io {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// A sealed value was modified, or belongs to another cluster.
    #[error("a private key in the store is damaged")]
    Damaged,
}

/// Authenticated encryption of private keys. `Debug` does not print the key.
#[derive(Clone)]
pub struct Seal {
    cipher: XChaCha20Poly1305,
}

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seal(set)")
    }
}

impl Seal {
    /// Seals the private key of a cluster. It can be unsealed for the same cluster only.
    pub fn seal(&self, cluster: Uuid, private: &str) -> Result<Vec<u8>, StoreError> {
        self.seal_as(cluster.as_bytes(), private.as_bytes())
    }

    /// Unseals the private key of a cluster.
    pub fn unseal(&self, cluster: Uuid, sealed: &[u8]) -> Result<String, StoreError> {
        let open = self.unseal_as(cluster.as_bytes(), sealed).ok_or(SealError::Damaged)?;
        Ok(String::from_utf8(open).map_err(|_| SealError::Damaged)?)
    }

    fn of(key: [u8; KEY_BYTES]) -> Self {
        Self { cipher: XChaCha20Poly1305::new(&Key::from(key)) }
    }

    fn seal_as(&self, aad: &[u8], msg: &[u8]) -> Result<Vec<u8>, StoreError> {
        let mut nonce = [0; NONCE_BYTES];
        getrandom::fill(&mut nonce).map_err(|_| StoreError::Random)?;
        let sealed = self.cipher.encrypt(&XNonce::from(nonce), Payload { msg, aad });
        let sealed = sealed.map_err(|_| SealError::Damaged)?;
        Ok([[VERSION].as_slice(), nonce.as_slice(), sealed.as_slice()].concat())
    }

    fn unseal_as(&self, aad: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
        let (version, rest) = sealed.split_first()?;
        let (nonce, msg) = rest.split_first_chunk::<NONCE_BYTES>()?;
        if *version != VERSION {
            return None;
        }
        self.cipher.decrypt(&XNonce::from(*nonce), Payload { msg, aad }).ok()
    }

    fn knows(&self, mark: &[u8]) -> bool {
        self.unseal_as(MARK, mark).is_some_and(|open| open == MARK)
    }
}

/// Opens the seal with the key in `path`, which is created if the store was never sealed. Runs inside a transaction.
pub(super) async fn open(change: &mut SqliteConnection, path: &Path) -> Result<Seal, StoreError> {
    let mark = mark(change).await?;
    let key = read_key(path)?;
    let seal = match (mark, key) {
        (Some(mark), Some(seal)) if seal.knows(&mark) => seal,
        // A rekey was killed before the new key got its final name.
        (Some(mark), _) if read_key(&beside(path))?.is_some_and(|next| next.knows(&mark)) => {
            finish(path)?;
            return Ok(read_key(path)?.ok_or_else(|| SealError::Lost { path: path.to_owned() })?);
        }
        (Some(_), Some(_)) => return Err(SealError::Wrong { path: path.to_owned() }.into()),
        (Some(_), None) => return Err(SealError::Lost { path: path.to_owned() }.into()),
        (None, Some(seal)) => seal_all(change, None, seal).await?,
        (None, None) => seal_all(change, None, new_key(path)?).await?,
    };
    Ok(seal)
}

/// Seals everything with a new key, which lies beside the old one until [`finish`]. The caller commits in between.
pub(super) async fn change(change: &mut SqliteConnection, path: &Path) -> Result<(), StoreError> {
    let old = open(change, path).await?;
    let next = beside(path);
    match fs::remove_file(&next) {
        Err(source) if source.kind() != ErrorKind::NotFound => {
            return Err(SealError::Io { path: next, source }.into());
        }
        _ => {}
    }
    seal_all(change, Some(&old), new_key(&next)?).await?;
    Ok(())
}

/// Gives the new key its final name, after the transaction is committed.
pub(super) fn finish(path: &Path) -> Result<(), StoreError> {
    durable_file::install(&beside(path), path)
        .map_err(|source| SealError::Io { path: path.to_owned(), source })?;
    Ok(())
}

async fn mark(read: &mut SqliteConnection) -> Result<Option<Vec<u8>>, StoreError> {
    Ok(sqlx::query_scalar("SELECT mark FROM seal WHERE one = 1").fetch_optional(read).await?)
}

/// Seals every private key that is in plain text, or sealed with the old key.
async fn seal_all(change: &mut SqliteConnection, old: Option<&Seal>, seal: Seal) -> Result<Seal, StoreError> {
    for row in sqlx::query("SELECT cluster, key_private FROM cluster_keys").fetch_all(&mut *change).await? {
        let cluster: Uuid = super::parsed("id of a cluster", &row.text("cluster")?)?;
        let held = row.bytes("key_private")?;
        let private = match old {
            Some(old) => old.unseal(cluster, &held)?,
            None => String::from_utf8(held).map_err(|_| SealError::Damaged)?,
        };
        sqlx::query("UPDATE cluster_keys SET key_private = ? WHERE cluster = ?")
            .bind(seal.seal(cluster, &private)?)
            .bind(cluster.to_string())
            .execute(&mut *change)
            .await?;
    }
    sqlx::query("INSERT OR REPLACE INTO seal (one, mark) VALUES (1, ?)")
        .bind(seal.seal_as(MARK, MARK)?)
        .execute(&mut *change)
        .await?;
    Ok(seal)
}

/// The key in a file; `None` if there is no file.
fn read_key(path: &Path) -> Result<Option<Seal>, StoreError> {
    let io = |source| SealError::Io { path: path.to_owned(), source };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io(error).into()),
    };
    let mode = file.metadata().map_err(io)?.permissions().mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(SealError::Open { path: path.to_owned(), mode }.into());
    }
    let mut text = String::new();
    file.take(1024).read_to_string(&mut text).map_err(io)?;
    let no_key = || SealError::NoKey { path: path.to_owned() };
    let text = text.trim().as_bytes();
    let mut key = [0; KEY_BYTES];
    if text.len() != 2 * KEY_BYTES {
        return Err(no_key().into());
    }
    for (byte, digits) in key.iter_mut().zip(text.chunks(2)) {
        let digits = str::from_utf8(digits).map_err(|_| no_key())?;
        *byte = u8::from_str_radix(digits, 16).map_err(|_| no_key())?;
    }
    Ok(Some(Seal::of(key)))
}

/// Draws a key and writes it to a new file; on disk before anything is sealed with it.
fn new_key(path: &Path) -> Result<Seal, StoreError> {
    let io = |source| SealError::Io { path: path.to_owned(), source };
    let mut key = [0; KEY_BYTES];
    getrandom::fill(&mut key).map_err(|_| StoreError::Random)?;
    let text: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    durable_file::replace(path, text.as_bytes()).map_err(io)?;
    Ok(Seal::of(key))
}

/// Path of a new key until it is in use.
fn beside(path: &Path) -> PathBuf {
    let mut next = path.as_os_str().to_owned();
    next.push(".next");
    next.into()
}
