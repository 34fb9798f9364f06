//! Writes the files that a seed's `user-data` lists.

use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use crate::seed::{UserData, WriteFile};

/// Most entries of `write_files` in one document. Seeds of the agent have about a dozen.
const FILES_MAX: usize = 256;

/// Highest file mode that is accepted: excludes set-user-id, set-group-id and sticky.
const MODE_MAX: u32 = 0o777;

/// Why `user-data` could not be applied. Only [`ApplyError::Write`] occurs after something was written.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    #[error("write_files must have at most {FILES_MAX} entries, got {count}")]
    TooMany { count: usize },
    #[error("paths in write_files must be absolute and without '..', got {path:?}")]
    Path { path: String },
    #[error("permissions of {path} must be octal, from 0000 to 0777, got {permissions:?}")]
    Mode { path: String, permissions: String },
    #[error("cannot write {path}")]
    Write {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
}

/// Writes `write_files`, the SSH host key, `authorized_keys` and the host name below `root` (`/` except in tests).
///
/// All entries are validated before the first write. Each file is replaced atomically; a file that already has the wanted
/// content and mode is not touched. Symbolic links at the target are replaced, not followed.
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
    let directory = path.parent().expect("a validated path has a parent directory");
    // ssh ignores files in a directory that others can write to, and private keys must not be readable by others.
    let private = directory.file_name().is_some_and(|name| name == ".ssh");
    DirBuilder::new().recursive(true).mode(if private { 0o700 } else { 0o755 }).create(directory)?;
    let mut name = path.file_name().expect("a validated path has a file name").to_owned();
    name.push(".heddle-new");
    let new = directory.join(name);
    // Created with mode 0600, so that a secret is never readable by others, not even before the mode is set.
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
    // symlink_metadata: a link is never up to date, so it is replaced instead of followed.
    fs::symlink_metadata(path).is_ok_and(|found| {
        found.is_file()
            && found.permissions().mode() & 0o7777 == mode
            && found.len() == content.len() as u64
            && fs::read(path).is_ok_and(|bytes| bytes == content.as_bytes())
    })
}
