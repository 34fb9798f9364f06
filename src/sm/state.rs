//! What has to be known the next time, in a file.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use subnet_manager::Memory;

/// The memory of a manager in a file, if it has one.
#[derive(Debug)]
pub struct State {
    path: Option<PathBuf>,
}

impl State {
    pub fn at(path: Option<PathBuf>) -> Self {
        Self { path }
    }

    /// What was kept; nothing if there is no file yet.
    pub fn read(&self) -> anyhow::Result<Memory> {
        let Some(path) = &self.path else { return Ok(Memory::default()) };
        match fs::read(path) {
            Ok(text) => {
                serde_json::from_slice(&text).with_context(|| format!("{} holds no state", path.display()))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Memory::default()),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    /// Keeps it. When this returns, it survives whatever happens.
    pub fn write(&self, memory: &Memory) -> anyhow::Result<()> {
        match &self.path {
            Some(path) => replace(path, &serde_json::to_vec(memory)?),
            None => Ok(()),
        }
    }
}

/// Replaces a file whole: whoever is killed in the middle leaves the old one.
pub fn replace(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let draft = path.with_file_name(name);
    let write = || -> std::io::Result<()> {
        let mut file = fs::File::create(&draft)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&draft, path)?;
        // The new name is safe only when the directory is.
        let directory = path.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."));
        fs::File::open(directory)?.sync_all()
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}
