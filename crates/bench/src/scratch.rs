//! Names and directories that no other run has.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A name that no other process and no other call has, for sockets and directories.
pub fn unique(purpose: &str) -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    format!("heddle-{purpose}-{}-{number}", std::process::id()).to_lowercase()
}

/// A new directory below the temporary directory. Removed when dropped.
#[derive(Debug)]
pub struct ScratchDir(PathBuf);

impl ScratchDir {
    /// Creates the directory; `purpose` becomes part of its name.
    pub fn new(purpose: &str) -> anyhow::Result<Self> {
        let path = std::env::temp_dir().join(unique(purpose));
        std::fs::create_dir_all(&path)?;
        Ok(Self(path))
    }

    /// The directory, until this value is dropped.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        // Left behind it costs space in the temporary directory and nothing else.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
