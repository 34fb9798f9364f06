//! The unix socket of the REST interface.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use anyhow::{Context as _, ensure};
use tokio::net::UnixListener;

/// Everybody may traverse the directory; only its owner may create a socket in it.
const DIRECTORY_MODE: u32 = 0o755;

/// Everybody may connect; tokens decide on access.
const SOCKET_MODE: u32 = 0o666;

/// Listens at a unix socket in a directory that only this user can write to. Clients check that before they send a token.
pub fn listen(path: &Path) -> anyhow::Result<UnixListener> {
    let directory = path.parent().with_context(|| format!("{} has no directory", path.display()))?;
    let place = directory.display();
    fs::DirBuilder::new()
        .recursive(true)
        .mode(DIRECTORY_MODE)
        .create(directory)
        .with_context(|| format!("cannot create {place}"))?;
    let found = fs::metadata(directory).with_context(|| format!("cannot inspect {place}"))?;
    let own = nix::unistd::geteuid().as_raw();
    ensure!(
        found.uid() == own,
        "{place} belongs to user {}; it must belong to user {own}, who runs the controller",
        found.uid()
    );
    // The umask may have removed bits, and an existing directory may have more.
    fs::set_permissions(directory, fs::Permissions::from_mode(DIRECTORY_MODE))
        .with_context(|| format!("cannot set the mode of {place}"))?;
    // It gets its name when it listens with the right mode: until then clients find no socket, or that of a killed
    // controller, which refuses connections. The store is locked, so no other controller serves it.
    let unnamed = directory.join("new");
    match fs::remove_file(&unnamed) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot replace {}", unnamed.display()));
        }
        _ => {}
    }
    let listener =
        UnixListener::bind(&unnamed).with_context(|| format!("cannot listen at {}", unnamed.display()))?;
    fs::set_permissions(&unnamed, fs::Permissions::from_mode(SOCKET_MODE))
        .with_context(|| format!("cannot set the mode of {}", unnamed.display()))?;
    fs::rename(&unnamed, path).with_context(|| format!("cannot create {}", path.display()))?;
    Ok(listener)
}
