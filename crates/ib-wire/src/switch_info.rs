//! SwitchInfo: what a switch can do and how full its tables are.

use crate::bits::{bits, bytes};

layout! {
    /// SwitchInfo (attribute 0x0012).
    pub struct SwitchInfo[64] {
        /// Entries of the linear forwarding table.
        linear_fdb_capacity: u16 = bytes(0, 2),
        /// Entries of the random forwarding table.
        random_fdb_capacity: u16 = bytes(2, 2),
        /// Entries of the multicast forwarding table.
        multicast_fdb_capacity: u16 = bytes(4, 2),
        /// The highest LID the linear forwarding table is used for.
        linear_fdb_top: u16 = bytes(6, 2),
        /// Where unknown LIDs go in random tables.
        default_port: u8 = bytes(8, 1),
        /// Where unknown multicast goes.
        default_multicast_primary_port: u8 = bytes(9, 1),
        /// Where unknown multicast from the primary port goes.
        default_multicast_not_primary_port: u8 = bytes(10, 1),
        /// How long a packet may stay, as an exponent.
        life_time: u8 = bits(11, 7, 3),
        /// A port changed its state. Writing 1 clears it.
        port_state_change: bool = bits(11, 2, 2),
        /// Which form of service-level tables is programmed at once.
        optimised_sl_to_vl: u8 = bits(11, 1, 0),
        /// LIDs per port in random tables.
        lids_per_port: u16 = bytes(12, 2),
        /// P_Key table entries of each external port.
        partition_enforcement_capacity: u16 = bytes(14, 2),
        /// Can filter partitions on what comes in.
        inbound_enforcement: bool = bits(16, 7, 7),
        /// Can filter partitions on what goes out.
        outbound_enforcement: bool = bits(16, 6, 6),
        /// Can filter raw packets coming in.
        filter_raw_inbound: bool = bits(16, 5, 5),
        /// Can filter raw packets going out.
        filter_raw_outbound: bool = bits(16, 4, 4),
        /// Port 0 is an end port like an adapter's.
        enhanced_port_0: bool = bits(16, 3, 3),
        /// The highest multicast LID the table is used for; 0 = all.
        multicast_fdb_top: u16 = bytes(18, 2),
    }
}
