//! Sockets in the file system, and files that dead ones left behind.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// Why a socket cannot have a place in the file system.
#[derive(Debug, thiserror::Error)]
pub enum SocketBindError {
    /// Another server answers there.
    #[error("a server already answers at {}", path.display())]
    InUse {
        /// Where.
        path: PathBuf,
    },
    /// Something else is there, which is left alone.
    #[error("{} exists and is not a socket", path.display())]
    NotASocket {
        /// Where.
        path: PathBuf,
    },
    /// The operating system refused.
    #[error("cannot listen at {}", path.display())]
    Io {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Binds a socket at a path. A socket file is replaced if `probe` finds that nobody answers there.
pub(crate) fn bind<S>(
    path: &Path,
    bind: impl Fn(&Path) -> io::Result<S>,
    probe: impl Fn(&Path) -> io::Result<()>,
) -> Result<S, SocketBindError> {
    let system = |source| SocketBindError::Io { path: path.to_owned(), source };
    match bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
        result => return result.map_err(system),
    }
    if !fs::symlink_metadata(path).map_err(system)?.file_type().is_socket() {
        return Err(SocketBindError::NotASocket { path: path.to_owned() });
    }
    match probe(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
        _ => return Err(SocketBindError::InUse { path: path.to_owned() }),
    }
    fs::remove_file(path).map_err(system)?;
    bind(path).map_err(system)
}
