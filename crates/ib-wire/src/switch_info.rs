//! SwitchInfo: capabilities and table sizes of a switch.

use crate::bits::{bits, bytes};

layout! {
    /// SwitchInfo (attribute 0x0012). A Set changes `linear_fdb_top`, `life_time`, the default ports, `multicast_fdb_top` and
    /// clears `port_state_change`; the other fields are read-only.
    pub struct SwitchInfo[64] {
        /// LinearFDBCap: entries of the linear forwarding table.
        linear_fdb_capacity: u16 = bytes(0, 2),
        /// RandomFDBCap: entries of the random forwarding table.
        random_fdb_capacity: u16 = bytes(2, 2),
        /// MulticastFDBCap: entries of the multicast forwarding table.
        multicast_fdb_capacity: u16 = bytes(4, 2),
        /// LinearFDBTop: the highest LID that is forwarded; packets to higher LIDs are dropped.
        linear_fdb_top: u16 = bytes(6, 2),
        /// Output port for LIDs that are not in the random forwarding table.
        default_port: u8 = bytes(8, 1),
        /// Output port for multicast LIDs that are not in the table.
        default_multicast_primary_port: u8 = bytes(9, 1),
        /// Output port for such packets that came in by the primary port.
        default_multicast_not_primary_port: u8 = bytes(10, 1),
        /// LifeTimeValue: time that a packet may stay in the switch before it is dropped, 4.096 µs · 2ⁿ; from 20 on unlimited.
        life_time: u8 = bits(11, 7, 3),
        /// The state of a port changed since the flag was cleared. A Set with 1 clears it.
        port_state_change: bool = bits(11, 2, 2),
        /// OptimizedSLtoVLMappingProgramming, 2 bits: bit 0 set if one Set may program several SL-to-VL tables
        /// ([`SlToVlSelector`](crate::SlToVlSelector)).
        optimised_sl_to_vl: u8 = bits(11, 1, 0),
        /// LIDs per port in the random forwarding table.
        lids_per_port: u16 = bytes(12, 2),
        /// PartitionEnforcementCap: entries of the P_Key table of each external port.
        partition_enforcement_capacity: u16 = bytes(14, 2),
        /// Whether ports can enforce partitions on received packets.
        inbound_enforcement: bool = bits(16, 7, 7),
        /// Whether ports can enforce partitions on sent packets.
        outbound_enforcement: bool = bits(16, 6, 6),
        /// Whether ports can drop received raw packets.
        filter_raw_inbound: bool = bits(16, 5, 5),
        /// Whether ports can refuse to send raw packets.
        filter_raw_outbound: bool = bits(16, 4, 4),
        /// Port 0 has the capabilities of an adapter port.
        enhanced_port_0: bool = bits(16, 3, 3),
        /// MulticastFDBTop: the highest multicast LID that is forwarded; 0 = no limit.
        multicast_fdb_top: u16 = bytes(18, 2),
    }
}

layout! {
    /// AdaptiveRoutingInfo of Mellanox (attribute 0xff20), without its limits and sub-features.
    pub struct AdaptiveRoutingInfo[64] {
        /// Whether the switch may send packets through other ports than its linear forwarding table says.
        enabled: bool = bits(3, 0, 0),
    }
}
