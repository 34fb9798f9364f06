//! Records of the tables of ports and switches.

use super::record;
use crate::address::LidAddress;
use crate::bits::{bits, bits_from, bytes, field_named};
use crate::tables::{ForwardingBlock, MulticastBlock, PkeyBlock, SlToVl, VlArbBlock};

layout! {
    /// P_KeyTableRecord (attribute 0x0033): a block of the P_KeyTable of a port.
    pub struct PkeyTableRecord[72] {
        /// LID of the node.
        lid: Option<LidAddress> = bytes(0, 2),
        /// Block n has entries 32·n to 32·n + 31.
        block: u16 = bytes(2, 2),
        port: u8 = bytes(4, 1),
        pkeys: PkeyBlock = bytes(8, 64),
    }
}

record!(PkeyTableRecord, PKEY_TABLE_RECORD {
    LID = 0 => field_named(PkeyTableRecord::FIELDS, "lid"),
    BLOCK = 1 => field_named(PkeyTableRecord::FIELDS, "block"),
    PORT = 2 => field_named(PkeyTableRecord::FIELDS, "port"),
});

layout! {
    /// SLtoVLMappingTableRecord (attribute 0x0013): the table of one hop of a switch, or of an adapter port.
    pub struct SlToVlRecord[16] {
        /// LID of the node.
        lid: Option<LidAddress> = bytes(0, 2),
        /// Input port; not used on an adapter.
        input: u8 = bytes(2, 1),
        output: u8 = bytes(3, 1),
        mapping: SlToVl = bytes(8, 8),
    }
}

record!(SlToVlRecord, SL_TO_VL_RECORD {
    LID = 0 => field_named(SlToVlRecord::FIELDS, "lid"),
    INPUT = 1 => field_named(SlToVlRecord::FIELDS, "input"),
    OUTPUT = 2 => field_named(SlToVlRecord::FIELDS, "output"),
});

layout! {
    /// VLArbitrationTableRecord (attribute 0x0036): a block of an arbitration table of a port.
    pub struct VlArbitrationRecord[72] {
        /// LID of the node.
        lid: Option<LidAddress> = bytes(0, 2),
        port: u8 = bytes(2, 1),
        /// 1 and 2: the two blocks of the low-priority table, 3 and 4: those of the high-priority table.
        block: u8 = bytes(3, 1),
        entries: VlArbBlock = bytes(8, 64),
    }
}

record!(VlArbitrationRecord, VL_ARBITRATION_RECORD {
    LID = 0 => field_named(VlArbitrationRecord::FIELDS, "lid"),
    PORT = 1 => field_named(VlArbitrationRecord::FIELDS, "port"),
    BLOCK = 2 => field_named(VlArbitrationRecord::FIELDS, "block"),
});

layout! {
    /// LinearForwardingTableRecord (attribute 0x0015): a block of the forwarding table of a switch.
    pub struct LinearForwardingRecord[72] {
        /// LID of the switch.
        lid: Option<LidAddress> = bytes(0, 2),
        /// Block n has LIDs 64·n to 64·n + 63.
        block: u16 = bytes(2, 2),
        ports: ForwardingBlock = bytes(8, 64),
    }
}

record!(LinearForwardingRecord, LINEAR_FORWARDING_RECORD {
    LID = 0 => field_named(LinearForwardingRecord::FIELDS, "lid"),
    BLOCK = 1 => field_named(LinearForwardingRecord::FIELDS, "block"),
});

layout! {
    /// MulticastForwardingTableRecord (attribute 0x0017): a block of the multicast forwarding table of a switch.
    pub struct MulticastForwardingRecord[72] {
        /// LID of the switch.
        lid: Option<LidAddress> = bytes(0, 2),
        /// Position n has ports 16·n to 16·n + 15.
        position: u8 = bits(2, 7, 4),
        /// Block n has multicast LIDs from 0xC000 + 32·n on.
        block: u16 = bits_from(2, 0, 9),
        masks: MulticastBlock = bytes(8, 64),
    }
}

record!(MulticastForwardingRecord, MULTICAST_FORWARDING_RECORD {
    LID = 0 => field_named(MulticastForwardingRecord::FIELDS, "lid"),
    POSITION = 1 => field_named(MulticastForwardingRecord::FIELDS, "position"),
    BLOCK = 3 => field_named(MulticastForwardingRecord::FIELDS, "block"),
});
