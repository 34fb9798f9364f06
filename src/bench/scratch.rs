//! A directory of its own for every run.

use std::path::{Path, PathBuf};

/// A new directory that goes with its owner.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new(purpose: &str) -> anyhow::Result<Self> {
        let path = std::env::temp_dir().join(format!("heddle-{purpose}-{}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        Ok(Self(path))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Left behind it costs space in the temporary directory and nothing else.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
