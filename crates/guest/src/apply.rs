//! Makes files of documents.

use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use crate::seed::{UserData, WriteFile};

/// Files that a seed may write: many more than there are, and few enough to never fill a disk.
const FILES_MAX: usize = 256;

/// Modes that files may have: no set-user-id among them.
const MODE_MAX: u32 = 0o777;

/// Why a document could not be applied.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// More files than a seed may have.
    #[error("user-data writes {count} files; at most {FILES_MAX} are taken")]
    TooMany {
        /// How many.
        count: usize,
    },
    /// Not a place to write to.
    #[error("user-data writes to {path:?}; a path is absolute and has no '..'")]
    Path {
        /// As it was given.
        path: String,
    },
    /// Not a mode.
    #[error("user-data gives {path} the mode {permissions:?}; modes are octal, from 0000 to 0777")]
    Mode {
        /// Of the file.
        path: String,
        /// As it was given.
        permissions: String,
    },
    /// It could not be written.
    #[error("{path} could not be written")]
    Write {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        error: io::Error,
    },
}

/// Writes what `user-data` asks for below `root`, which is `/` but in tests. Everything is checked before anything is
/// written, each file is replaced as a whole, and one that is as it should be is left alone.
pub fn write_files(root: &Path, user: &UserData) -> Result<(), ApplyError> {
    if user.write_files.len() > FILES_MAX {
        return Err(ApplyError::TooMany { count: user.write_files.len() });
    }
    let mut writes = Vec::new();
    for file in &user.write_files {
        writes.push((target_path(root, file)?, mode(file)?, file.content.as_str()));
    }
    let keys: String = user.ssh_authorized_keys.iter().map(|key| format!("{key}\n")).collect();
    let hostname = format!("{}\n", user.hostname);
    if let Some(keys) = &user.ssh_keys {
        writes.push((root.join("etc/ssh/ssh_host_ed25519_key"), 0o600, keys.ed25519_private.as_str()));
        writes.push((root.join("etc/ssh/ssh_host_ed25519_key.pub"), 0o644, keys.ed25519_public.as_str()));
    }
    writes.push((root.join("root/.ssh/authorized_keys"), 0o600, &keys));
    writes.push((root.join("etc/hostname"), 0o644, &hostname));
    for (path, mode, content) in writes {
        replace(&path, mode, content).map_err(|error| ApplyError::Write { path, error })?;
    }
    Ok(())
}

fn target_path(root: &Path, file: &WriteFile) -> Result<PathBuf, ApplyError> {
    let invalid = || ApplyError::Path { path: file.path.clone() };
    let below = Path::new(&file.path).strip_prefix("/").map_err(|_| invalid())?;
    let plain = below.components().all(|part| matches!(part, Component::Normal(_)));
    if !plain || below.file_name().is_none() || file.path.contains('\0') {
        return Err(invalid());
    }
    Ok(root.join(below))
}

fn mode(file: &WriteFile) -> Result<u32, ApplyError> {
    let mode = u32::from_str_radix(&file.permissions, 8).ok().filter(|mode| *mode <= MODE_MAX);
    mode.ok_or_else(|| ApplyError::Mode { path: file.path.clone(), permissions: file.permissions.clone() })
}

fn replace(path: &Path, mode: u32, content: &str) -> io::Result<()> {
    if is_up_to_date(path, mode, content) {
        return Ok(());
    }
    let directory = path.parent().expect("a checked path has a directory");
    // ssh reads nothing in a directory that others may write to; a private key's directory is nobody else's to read.
    let private = directory.file_name().is_some_and(|name| name == ".ssh");
    DirBuilder::new().recursive(true).mode(if private { 0o700 } else { 0o755 }).create(directory)?;
    let mut name = path.file_name().expect("a checked path has a name").to_owned();
    name.push(".heddle-new");
    let new = directory.join(name);
    // A secret never lies there readable, not even for a moment: the mode is there before the content.
    let _ = fs::remove_file(&new);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    let written = file
        .write_all(content.as_bytes())
        .and_then(|()| file.set_permissions(Permissions::from_mode(mode)))
        .and_then(|()| fs::rename(&new, path));
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written
}

fn is_up_to_date(path: &Path, mode: u32, content: &str) -> bool {
    // A link is replaced by a file: what it leads to is not ours.
    fs::symlink_metadata(path).is_ok_and(|found| {
        found.is_file()
            && found.permissions().mode() & 0o7777 == mode
            && found.len() == content.len() as u64
            && fs::read(path).is_ok_and(|bytes| bytes == content.as_bytes())
    })
}
