//! The unix socket at which users of this machine reach the controller.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use anyhow::{Context as _, ensure};
use tokio::net::UnixListener;

/// Everybody may pass through and see the socket; nobody else may put one there.
const DIRECTORY_MODE: u32 = 0o755;

/// Everybody may connect: tokens say who may do what.
const SOCKET_MODE: u32 = 0o666;

/// Listens at a socket, in a directory that nobody else can write to. Clients rely on that, and check it.
pub fn listen(path: &Path) -> anyhow::Result<UnixListener> {
    let directory = path.parent().with_context(|| format!("{} has no directory", path.display()))?;
    let place = directory.display();
    fs::DirBuilder::new()
        .recursive(true)
        .mode(DIRECTORY_MODE)
        .create(directory)
        .with_context(|| format!("cannot make {place}"))?;
    let found = fs::metadata(directory).with_context(|| format!("cannot look at {place}"))?;
    let own = nix::unistd::geteuid().as_raw();
    ensure!(
        found.uid() == own,
        "{place} belongs to user {}, not to {own}, who runs the controller",
        found.uid()
    );
    // The umask may have taken more away than intended, and an older directory may allow more.
    fs::set_permissions(directory, fs::Permissions::from_mode(DIRECTORY_MODE))
        .with_context(|| format!("cannot set the mode of {place}"))?;
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot replace {}", path.display()));
        }
        // One that a killed controller left. The store is locked: no other controller serves there.
        _ => {}
    }
    let listener =
        UnixListener::bind(path).with_context(|| format!("cannot listen at {}", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(SOCKET_MODE))
        .with_context(|| format!("cannot open {} to users", path.display()))?;
    Ok(listener)
}
