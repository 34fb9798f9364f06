//! The tables of ports and switches, as the subnet administration answers them.

use super::record;
use crate::address::LidAddress;
use crate::bits::{bits, bits_from, bytes, field_named};
use crate::tables::{ForwardingBlock, MulticastBlock, PkeyBlock, SlToVl, VlArbBlock};

layout! {
    /// P_KeyTableRecord (attribute 0x0033).
    pub struct PkeyTableRecord[72] {
        /// The node.
        lid: Option<LidAddress> = bytes(0, 2),
        /// The block of 32 entries.
        block: u16 = bytes(2, 2),
        /// The port.
        port: u8 = bytes(4, 1),
        /// The entries.
        pkeys: PkeyBlock = bytes(8, 64),
    }
}

record!(PkeyTableRecord, PKEY_TABLE_RECORD {
    LID = 0 => field_named(PkeyTableRecord::FIELDS, "lid"),
    BLOCK = 1 => field_named(PkeyTableRecord::FIELDS, "block"),
    PORT = 2 => field_named(PkeyTableRecord::FIELDS, "port"),
});

layout! {
    /// SLtoVLMappingTableRecord (attribute 0x0013).
    pub struct SlToVlRecord[16] {
        /// The node.
        lid: Option<LidAddress> = bytes(0, 2),
        /// Where packets come in; means nothing on an adapter.
        input: u8 = bytes(2, 1),
        /// Where they leave.
        output: u8 = bytes(3, 1),
        /// Which lane each service level takes.
        mapping: SlToVl = bytes(8, 8),
    }
}

record!(SlToVlRecord, SL_TO_VL_RECORD {
    LID = 0 => field_named(SlToVlRecord::FIELDS, "lid"),
    INPUT = 1 => field_named(SlToVlRecord::FIELDS, "input"),
    OUTPUT = 2 => field_named(SlToVlRecord::FIELDS, "output"),
});

layout! {
    /// VLArbitrationTableRecord (attribute 0x0036).
    pub struct VlArbitrationRecord[72] {
        /// The node.
        lid: Option<LidAddress> = bytes(0, 2),
        /// The port.
        port: u8 = bytes(2, 1),
        /// 1 and 2: low priority, 3 and 4: high priority.
        block: u8 = bytes(3, 1),
        /// The entries.
        entries: VlArbBlock = bytes(8, 64),
    }
}

record!(VlArbitrationRecord, VL_ARBITRATION_RECORD {
    LID = 0 => field_named(VlArbitrationRecord::FIELDS, "lid"),
    PORT = 1 => field_named(VlArbitrationRecord::FIELDS, "port"),
    BLOCK = 2 => field_named(VlArbitrationRecord::FIELDS, "block"),
});

layout! {
    /// LinearForwardingTableRecord (attribute 0x0015).
    pub struct LinearForwardingRecord[72] {
        /// The switch.
        lid: Option<LidAddress> = bytes(0, 2),
        /// The block of 64 LIDs.
        block: u16 = bytes(2, 2),
        /// The exit ports.
        ports: ForwardingBlock = bytes(8, 64),
    }
}

record!(LinearForwardingRecord, LINEAR_FORWARDING_RECORD {
    LID = 0 => field_named(LinearForwardingRecord::FIELDS, "lid"),
    BLOCK = 1 => field_named(LinearForwardingRecord::FIELDS, "block"),
});

layout! {
    /// MulticastForwardingTableRecord (attribute 0x0017).
    pub struct MulticastForwardingRecord[72] {
        /// The switch.
        lid: Option<LidAddress> = bytes(0, 2),
        /// Which 16 ports.
        position: u8 = bits(2, 7, 4),
        /// The block of 32 groups.
        block: u16 = bits_from(2, 0, 9),
        /// The ports of each group.
        masks: MulticastBlock = bytes(8, 64),
    }
}

record!(MulticastForwardingRecord, MULTICAST_FORWARDING_RECORD {
    LID = 0 => field_named(MulticastForwardingRecord::FIELDS, "lid"),
    POSITION = 1 => field_named(MulticastForwardingRecord::FIELDS, "position"),
    BLOCK = 3 => field_named(MulticastForwardingRecord::FIELDS, "block"),
});
