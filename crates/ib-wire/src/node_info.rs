//! NodeInfo and NodeDescription: type, identifiers and name of a node.

use std::fmt;

use crate::address::{Guid, PortNum};
use crate::bits::{Field, WireValue, bytes};
use crate::smp::SMP_DATA_LEN;

wire_enum! {
    /// NodeType: the kind of a node.
    pub enum NodeKind {
        /// A channel adapter (HCA, CA).
        Adapter = 1,
        Switch = 2,
        Router = 3,
    }
}

layout! {
    /// NodeInfo (attribute 0x0011). `local_port` and `port_guid` are those of the port that received the request.
    pub struct NodeInfo[64] {
        /// Version of the MAD format, 1.
        base_version: u8 = bytes(0, 1),
        /// Version of the subnet management class, 1.
        class_version: u8 = bytes(1, 1),
        kind: NodeKind = bytes(2, 1),
        /// Number of ports, port 0 of a switch not counted.
        port_count: u8 = bytes(3, 1),
        /// SystemImageGUID: equal for all nodes of one device.
        system_guid: Option<Guid> = bytes(4, 8),
        node_guid: Guid = bytes(12, 8),
        /// On a switch the node GUID, for every port.
        port_guid: Guid = bytes(20, 8),
        /// PartitionCap: entries of the P_Key table of each adapter port, or of port 0 of a switch.
        partition_capacity: u16 = bytes(28, 2),
        device_id: u16 = bytes(30, 2),
        /// Revision of the device.
        revision: u32 = bytes(32, 4),
        local_port: PortNum = bytes(36, 1),
        /// IEEE OUI of the vendor, 24 bits.
        vendor_id: u32 = bytes(37, 3),
    }
}

/// NodeDescription (attribute 0x0010): up to 64 bytes of UTF-8 text, padded with zeros.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct NodeDescription(pub [u8; SMP_DATA_LEN]);

impl NodeDescription {
    /// Stores a text, truncated at a character border to 64 bytes.
    pub fn new(text: &str) -> Self {
        let mut end = text.len().min(SMP_DATA_LEN);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let mut raw = [0; SMP_DATA_LEN];
        raw[..end].copy_from_slice(&text.as_bytes()[..end]);
        Self(raw)
    }

    /// The text up to the first zero byte; invalid UTF-8 becomes U+FFFD.
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
