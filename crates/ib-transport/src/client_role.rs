//! What a client is to the port it is attached to.

/// Whether a client speaks as the subnet manager of its port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientRole {
    /// It asks, and gets answers to what it asked.
    #[default]
    Ordinary,
    /// It is also handed the requests and traps that reach the port, and the port shows the IsSM capability.
    SubnetManager,
}

impl ClientRole {
    /// Whether it is the subnet manager.
    pub const fn is_subnet_manager(self) -> bool {
        matches!(self, Self::SubnetManager)
    }

    /// Reads the flag both socket protocols use; anything but 0 is the subnet manager.
    pub(crate) const fn from_flag(flag: u32) -> Self {
        if flag == 0 { Self::Ordinary } else { Self::SubnetManager }
    }

    /// The flag of both socket protocols.
    pub(crate) const fn to_flag(self) -> u32 {
        self.is_subnet_manager() as u32
    }
}
