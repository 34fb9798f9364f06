//! Access control of the ibsim sockets, by user id.

use std::fmt;

use crate::sys;

/// A user id as the kernel reports it in the credentials of a message (`SCM_CREDENTIALS`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UserId(pub u32);

impl UserId {
    pub const ROOT: Self = Self(0);

    /// The effective user id of this process.
    pub fn own() -> Self {
        sys::effective_user()
    }
}

impl fmt::Display for UserId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The users that may attach through the ibsim protocol, whose abstract sockets have no file permissions.
///
/// A client acts as root on the node that it attaches to: it can become the subnet manager of the node's port and receives
/// the requests to it. The default is therefore [`SocketAccess::OwnUser`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SocketAccess {
    /// The user that the server runs as, and root.
    #[default]
    OwnUser,
    /// Every local user. A user other than the server's own and root may have at most
    /// [`CLIENTS_PER_USER_MAX`](crate::CLIENTS_PER_USER_MAX) clients, and receives the requests to a port only if no client of
    /// the own user or root is the subnet manager of the port.
    Everyone,
}
