//! Binding unix sockets to paths, replacing the files of dead sockets.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// Why a unix socket could not be bound to a path.
#[derive(Debug, thiserror::Error)]
pub enum SocketBindError {
    /// Another process has a socket there.
    #[error("another process uses the socket {}", path.display())]
    InUse { path: PathBuf },
    /// The path exists and is not a socket; it is left unchanged.
    #[error("{} exists and is not a socket", path.display())]
    NotASocket { path: PathBuf },
    #[error("cannot listen at {}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

/// Binds a socket to a path. If there is a socket file already, `probe` connects to it; the file is replaced if the
/// connection is refused, which means that its process is gone.
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
