//! Lock that admits one controller per store.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Exclusive right to open a store; released when dropped, also if the process is killed.
///
/// Two processes on one store would each decide on rows that the other changes: see decision 0021.
#[derive(Debug)]
pub struct StoreLock {
    _file: File,
}

/// Why a store cannot be locked.
#[derive(Debug, Error)]
pub enum StoreLockError {
    /// Another controller holds the lock.
    #[error("another controller ({}) uses {database}; stop it first, or use another state directory", holder(*pid))]
    InUse {
        database: PathBuf,
        /// Process id of the holder, if it could be read.
        pid: Option<u32>,
    },
    /// The lock file cannot be opened or locked.
    #[error("cannot lock {path}")]
    Io {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

impl StoreLock {
    /// Locks the file `DATABASE.lock` beside the store; the file is never removed.
    pub fn acquire(database: &Path) -> Result<Self, StoreLockError> {
        let mut path = database.as_os_str().to_owned();
        path.push(".lock");
        let path = PathBuf::from(path);
        let io = |source| StoreLockError::Io { path: path.clone(), source };
        let options =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).clone();
        let mut file = options.open(&path).map_err(io)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let pid = read_pid(&mut file);
                return Err(StoreLockError::InUse { database: database.to_owned(), pid });
            }
            Err(TryLockError::Error(source)) => return Err(io(source)),
        }
        // The process id is informational; a full disk must not prevent the start.
        let _ = file.set_len(0).and_then(|()| write!(file, "{}", std::process::id()));
        Ok(Self { _file: file })
    }
}

fn holder(pid: Option<u32>) -> String {
    pid.map_or_else(|| "unknown process id".to_owned(), |pid| format!("process {pid}"))
}

fn read_pid(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.take(16).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}
