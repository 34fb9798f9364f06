//! NodeInfo and NodeDescription: what a node is and what it is called.

use std::fmt;

use crate::address::{Guid, PortNum};
use crate::bits::{Field, WireValue, bytes};
use crate::smp::SMP_DATA_LEN;

wire_enum! {
    /// The kind of a node.
    pub enum NodeKind {
        /// A channel adapter.
        Adapter = 1,
        /// A switch.
        Switch = 2,
        /// A router.
        Router = 3,
    }
}

layout! {
    /// NodeInfo (attribute 0x0011). The port number and port GUID are those of the port that answered.
    pub struct NodeInfo[64] {
        /// Version of the datagram format.
        base_version: u8 = bytes(0, 1),
        /// Version of the subnet management class.
        class_version: u8 = bytes(1, 1),
        /// What it is.
        kind: NodeKind = bytes(2, 1),
        /// Ports, a switch's port 0 not counted.
        port_count: u8 = bytes(3, 1),
        /// The box the node sits in.
        system_guid: Option<Guid> = bytes(4, 8),
        /// The node.
        node_guid: Guid = bytes(12, 8),
        /// The port that answered (a switch's node GUID).
        port_guid: Guid = bytes(20, 8),
        /// P_Key table entries of each end port.
        partition_capacity: u16 = bytes(28, 2),
        /// Device.
        device_id: u16 = bytes(30, 2),
        /// Revision of the device.
        revision: u32 = bytes(32, 4),
        /// The port that answered.
        local_port: PortNum = bytes(36, 1),
        /// Maker.
        vendor_id: u32 = bytes(37, 3),
    }
}

/// NodeDescription (attribute 0x0010): up to 64 bytes of text, padded with zeros.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct NodeDescription(pub [u8; SMP_DATA_LEN]);

impl NodeDescription {
    /// Takes a name; what does not fit in 64 bytes is cut off at a character border.
    pub fn new(text: &str) -> Self {
        let mut end = text.len().min(SMP_DATA_LEN);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let mut raw = [0; SMP_DATA_LEN];
        raw[..end].copy_from_slice(&text.as_bytes()[..end]);
        Self(raw)
    }

    /// The text up to the first zero; what is not UTF-8 is replaced.
    pub fn text(&self) -> String {
        let end = self.0.iter().position(|b| *b == 0).unwrap_or(SMP_DATA_LEN);
        String::from_utf8_lossy(&self.0[..end]).into_owned()
    }
}

impl WireValue for NodeDescription {
    const MIN_BITS: usize = SMP_DATA_LEN * 8;
    const MAX_BITS: usize = SMP_DATA_LEN * 8;
    fn read(raw: &[u8], field: Field) -> Option<Self> {
        <[u8; SMP_DATA_LEN]>::read(raw, field).map(Self)
    }
    fn write(&self, raw: &mut [u8], field: Field) {
        self.0.write(raw, field);
    }
}

impl fmt::Debug for NodeDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeDescription({:?})", self.text())
    }
}
