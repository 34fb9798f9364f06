//! Addresses of controllers, and the check before a token is sent.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use thiserror::Error;
use tokio::net::{TcpStream, UnixStream};

/// Address of a controller: `unix:/PATH` or `http://HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControllerAddress {
    /// A socket on this machine. The client checks the user that serves it before it sends a token.
    Unix(PathBuf),
    /// Plain HTTP, without authentication of the server: only for addresses that the user named and trusts, such as the
    /// near end of a tunnel.
    Http {
        /// Host and port, as in the `Host` header.
        authority: String,
    },
}

/// Default port of an `http://` address.
const HTTP_PORT: u16 = 80;

/// The text is not an address of a controller.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{0:?} is not the address of a controller: expected unix:/PATH or http://HOST:PORT")]
pub struct InvalidControllerAddress(String);

impl FromStr for ControllerAddress {
    type Err = InvalidControllerAddress;

    fn from_str(text: &str) -> Result<Self, InvalidControllerAddress> {
        let wrong = || InvalidControllerAddress(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            let path = PathBuf::from(path);
            return if path.is_absolute() { Ok(Self::Unix(path)) } else { Err(wrong()) };
        }
        let authority = text.strip_prefix("http://").ok_or_else(wrong)?.trim_end_matches('/');
        // No path, no user, nothing that could end a header.
        let is_plain = |c: char| c.is_ascii_alphanumeric() || ".-_:[]".contains(c);
        if authority.is_empty() || !authority.chars().all(is_plain) {
            return Err(wrong());
        }
        let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let authority = if has_port { authority.to_owned() } else { format!("{authority}:{HTTP_PORT}") };
        Ok(Self::Http { authority })
    }
}

impl fmt::Display for ControllerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Http { authority } => write!(f, "http://{authority}"),
        }
    }
}

/// User ids that may serve the controller socket: root, the user of this process, and optionally one more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrustedUsers {
    own: u32,
    named: Option<u32>,
}

impl TrustedUsers {
    /// Root, the user of this process, and `named`.
    pub fn new(named: Option<u32>) -> Self {
        Self { own: nix::unistd::geteuid().as_raw(), named }
    }

    fn include(self, uid: u32) -> bool {
        uid == 0 || uid == self.own || Some(uid) == self.named
    }
}

/// Why no token is sent to a socket.
#[derive(Debug, Error)]
pub enum UntrustedSocket {
    /// Other users can replace the socket.
    #[error(
        "other users can change {} (owner {uid}, mode {mode:o}): it must belong to root or to you and have mode 755", path.display()
    )]
    Directory { path: PathBuf, uid: u32, mode: u32 },
    /// The listening process belongs to an untrusted user.
    #[error(
        "the socket is served by user {uid}, who is neither root nor you; to trust that user, pass --controller-uid {uid}"
    )]
    Server { uid: u32 },
}

/// Why a connection was not established.
#[derive(Debug)]
pub(crate) enum ConnectError {
    Unreachable(io::Error),
    Distrusted(UntrustedSocket),
}

impl From<io::Error> for ConnectError {
    fn from(error: io::Error) -> Self {
        Self::Unreachable(error)
    }
}

/// Connects to a socket that a trusted user serves.
///
/// The kernel records the user that called `listen` and reports it for this very connection (`SO_PEERCRED`), so nothing
/// can be swapped between check and use: if the socket is replaced in between, the user id read is that of the replacer.
/// The directory is checked first, so that a socket that only an untrusted user could have placed is not connected to at
/// all.
pub(crate) async fn connect_unix(path: &Path, trusted: TrustedUsers) -> Result<UnixStream, ConnectError> {
    if let Some(directory) = path.parent() {
        let found = fs::metadata(directory)?;
        let mode = found.mode() & 0o7777;
        if !trusted.include(found.uid()) || mode & 0o022 != 0 {
            let path = directory.to_owned();
            return Err(ConnectError::Distrusted(UntrustedSocket::Directory {
                path,
                uid: found.uid(),
                mode,
            }));
        }
    }
    let stream = UnixStream::connect(path).await?;
    let uid = stream.peer_cred()?.uid();
    if trusted.include(uid) {
        Ok(stream)
    } else {
        Err(ConnectError::Distrusted(UntrustedSocket::Server { uid }))
    }
}

pub(crate) async fn connect_tcp(authority: &str) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(authority).await?;
    // Frames of sessions are small and must not be delayed.
    stream.set_nodelay(true)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_unix_sockets_or_plain_http() {
        for (text, printed) in [
            ("unix:/var/lib/heddle/api/heddle.sock", "unix:/var/lib/heddle/api/heddle.sock"),
            ("http://127.0.0.1:7420/", "http://127.0.0.1:7420"),
            ("http://[::1]:7420", "http://[::1]:7420"),
            ("http://localhost", "http://localhost:80"),
        ] {
            assert_eq!(text.parse::<ControllerAddress>().unwrap().to_string(), printed);
        }
        for wrong in
            ["", "unix:", "unix:relative", "https://example.org", "http://", "http://a/b", "http://u@h:1"]
        {
            assert!(wrong.parse::<ControllerAddress>().is_err(), "{wrong}");
        }
    }
}
