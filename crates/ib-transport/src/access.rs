//! Which users of the machine may use the sockets of the ibsim protocol.

use std::fmt;

use crate::sys;

/// A user of the machine, as the kernel vouches for it in the credentials of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UserId(pub u32);

impl UserId {
    /// The superuser.
    pub const ROOT: Self = Self(0);

    /// The user this process acts as.
    pub fn own() -> Self {
        sys::effective_user()
    }
}

impl fmt::Display for UserId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Who may attach by the ibsim protocol, whose sockets have names but no permissions.
///
/// Whoever attaches is, to the fabric, root on any node it chooses: it can be the node's subnet manager and receives what
/// is sent to that. So the default is [`SocketAccess::OwnUser`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SocketAccess {
    /// The user the server runs as, and root.
    #[default]
    OwnUser,
    /// Every user of the machine. Other users have a limited number of the slots
    /// ([`CLIENTS_PER_USER_MAX`](crate::CLIENTS_PER_USER_MAX)), and stand back where the own user or root is the manager
    /// of a port.
    Everyone,
}
