//! Names of ports.

use std::fmt;

use ib_wire::{Guid, PortNum};
use serde::{Deserialize, Serialize};

/// A port, identified by node GUID and port number. Unlike the port GUID this distinguishes the ports of a switch, which
/// share one port GUID. Prints as `0x0002c90300100000[1]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PortName {
    pub node: Guid,
    pub port: PortNum,
}

impl fmt::Display for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", self.node, self.port)
    }
}
