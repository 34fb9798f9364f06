//! One controller per store.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// The right to open a store. Given back when dropped, also by a process that is killed.
///
/// Two processes on one store would each decide on what the other is changing: see decision 0021.
#[derive(Debug)]
pub struct StoreLock {
    _file: File,
}

/// Why a store cannot be locked.
#[derive(Debug, Error)]
pub enum StoreLockError {
    /// Another controller has it.
    #[error("another controller ({}) uses {database}; stop it first, or use another state directory", holder(*pid))]
    InUse {
        /// The store.
        database: PathBuf,
        /// Process id of the other one, if it has written it.
        pid: Option<u32>,
    },
    /// The lock file cannot be used.
    #[error("cannot lock {path}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

impl StoreLock {
    /// Locks the store at `database` by the file `database.lock` beside it, which is left there.
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
        // The number is for people; a full disk does not keep a controller from its store.
        let _ = file.set_len(0).and_then(|()| write!(file, "{}", std::process::id()));
        Ok(Self { _file: file })
    }
}

fn holder(pid: Option<u32>) -> String {
    pid.map_or_else(|| "its process id is not known".to_owned(), |pid| format!("process {pid}"))
}

fn read_pid(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.take(16).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}
