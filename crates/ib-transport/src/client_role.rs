//! The role of a client at the port it is attached to.

/// The role of a client at its port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientRole {
    /// Sends requests and receives the responses to them.
    #[default]
    Ordinary,
    /// Also receives the requests and traps that reach the port; PortInfo of the port has the IsSM capability.
    SubnetManager,
}

impl ClientRole {
    /// Whether the client is the subnet manager of its port.
    pub const fn is_subnet_manager(self) -> bool {
        matches!(self, Self::SubnetManager)
    }

    /// Decodes the flag of both socket protocols: 0 is ordinary, any other number the subnet manager.
    pub(crate) const fn from_flag(flag: u32) -> Self {
        if flag == 0 { Self::Ordinary } else { Self::SubnetManager }
    }

    /// Encodes the flag of both socket protocols.
    pub(crate) const fn to_flag(self) -> u32 {
        self.is_subnet_manager() as u32
    }
}
