//! Access control of the ibsim sockets, by user id.

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
