//! PortInfo: the state of a port, and most of what a subnet manager sets.

use std::fmt;

use crate::address::{Lid, Lmc, PortNum};
use crate::bits::{Field, WireValue, bits, bytes};
use crate::keys::MKey;
use crate::lanes::{DataLanes, ServiceLevel};
use crate::link::{ExtendedSpeed, LinkDownDefault, LinkSpeed, LinkWidth, Mtu, PhysicalState, PortState};
use crate::sa::Rate;

layout! {
    /// PortInfo (attribute 0x0015). The modifier is the port; on an adapter 0 means the port that was reached.
    pub struct PortInfo[64] {
        /// The key that guards the node (adapter: the port).
        m_key: Option<MKey> = bytes(0, 8),
        /// Upper half of the port's GIDs.
        gid_prefix: u64 = bytes(8, 8),
        /// The port's first LID.
        lid: Option<Lid> = bytes(16, 2),
        /// The subnet manager.
        master_sm_lid: Option<Lid> = bytes(18, 2),
        /// What the port can do.
        capability: Capability = bytes(20, 4),
        /// Diagnostic code.
        diag_code: u16 = bytes(24, 2),
        /// Seconds until an attacked key opens; 0 = never.
        m_key_lease_period_s: u16 = bytes(26, 2),
        /// The port that answered.
        local_port: PortNum = bytes(28, 1),
        /// Widths allowed.
        link_width_enabled: LinkWidth = bytes(29, 1),
        /// Widths possible.
        link_width_supported: LinkWidth = bytes(30, 1),
        /// Width in use.
        link_width_active: LinkWidth = bytes(31, 1),
        /// Speeds possible.
        link_speed_supported: LinkSpeed = bits(32, 7, 4),
        /// Logical state.
        state: PortState = bits(32, 3, 0),
        /// Physical state.
        physical_state: PhysicalState = bits(33, 7, 4),
        /// What the port does when its link is down.
        link_down_default: LinkDownDefault = bits(33, 3, 0),
        /// How the key guards.
        m_key_protection: MKeyProtection = bits(34, 7, 6),
        /// LID mask control.
        lmc: Lmc = bits(34, 2, 0),
        /// Speed in use.
        link_speed_active: LinkSpeed = bits(35, 7, 4),
        /// Speeds allowed.
        link_speed_enabled: LinkSpeed = bits(35, 3, 0),
        /// Largest packet on this link.
        neighbor_mtu: Mtu = bits(36, 7, 4),
        /// Service level towards the subnet manager.
        master_sm_sl: ServiceLevel = bits(36, 3, 0),
        /// Lanes possible.
        vl_cap: DataLanes = bits(37, 7, 4),
        /// What initialisation the port asks for.
        init_type: u8 = bits(37, 3, 0),
        /// How much high-priority traffic may pass a waiting low-priority packet.
        vl_high_limit: u8 = bytes(38, 1),
        /// Entries of the high-priority arbitration table.
        vl_arb_high_cap: u8 = bytes(39, 1),
        /// Entries of the low-priority arbitration table.
        vl_arb_low_cap: u8 = bytes(40, 1),
        /// What initialisation the port got.
        init_type_reply: u8 = bits(41, 7, 4),
        /// Largest packet possible.
        mtu_cap: Mtu = bits(41, 3, 0),
        /// Packets dropped at the head of a queue before the lane stalls.
        vl_stall_count: u8 = bits(42, 7, 5),
        /// How long a packet may wait at the head of a queue, as an exponent.
        hoq_life: u8 = bits(42, 4, 0),
        /// Lanes in use.
        operational_vls: DataLanes = bits(43, 7, 4),
        /// Partitions are enforced on what comes in.
        enforce_inbound: bool = bits(43, 3, 3),
        /// Partitions are enforced on what goes out.
        enforce_outbound: bool = bits(43, 2, 2),
        /// Raw packets coming in are dropped.
        filter_raw_inbound: bool = bits(43, 1, 1),
        /// Raw packets going out are dropped.
        filter_raw_outbound: bool = bits(43, 0, 0),
        /// Datagrams with a wrong management key.
        m_key_violations: u16 = bytes(44, 2),
        /// Packets with a wrong partition key.
        pkey_violations: u16 = bytes(46, 2),
        /// Packets with a wrong queue key.
        qkey_violations: u16 = bytes(48, 2),
        /// GUIDs the port can hold.
        guid_cap: u8 = bytes(50, 1),
        /// Clients have to register again.
        client_reregister: bool = bits(51, 7, 7),
        /// Multicast P_Key traps are suppressed.
        multicast_pkey_trap_suppression: u8 = bits(51, 6, 5),
        /// How long the subnet may take, as an exponent.
        subnet_timeout: u8 = bits(51, 4, 0),
        /// How long an answer may take, as an exponent.
        response_time: u8 = bits(52, 4, 0),
        /// Physical errors until a trap.
        local_phy_errors: u8 = bits(53, 7, 4),
        /// Buffer overruns until a trap.
        overrun_errors: u8 = bits(53, 3, 0),
        /// Most credits the other side may see.
        max_credit_hint: u16 = bytes(54, 2),
        /// Round trip of the link in units of 4 ns.
        link_round_trip: u32 = bytes(57, 3),
        /// What the port can do, second part.
        capability2: u16 = bytes(60, 2),
        /// Extended speed in use.
        extended_speed_active: ExtendedSpeed = bits(62, 7, 4),
        /// Extended speeds possible.
        extended_speed_supported: ExtendedSpeed = bits(62, 3, 0),
        /// Extended speeds allowed.
        extended_speed_enabled: ExtendedSpeed = bits(63, 4, 0),
    }
}

impl PortInfo {
    /// In the modifier: the sender knows extended speeds.
    pub const EXTENDED_SPEEDS_KNOWN: u32 = 1 << 31;

    /// How fast the link runs: width times speed in use, by nominal rate. `None` where the port does not say.
    pub fn active_rate(&self) -> Option<Rate> {
        let extended = self.extended_speed_active.lane_mbps();
        let lane_mbps = if extended > 0 { extended } else { self.link_speed_active.lane_mbps() };
        Rate::at_most_mbps(self.link_width_active.lanes() * lane_mbps)
    }

    /// The port a modifier means; `None` if it cannot be one.
    pub fn port_of_modifier(modifier: u32) -> Option<PortNum> {
        u8::try_from(modifier & !Self::EXTENDED_SPEEDS_KNOWN).ok().and_then(PortNum::new)
    }
}

wire_enum! {
    /// What a datagram without the right key gets: Sets are refused at every level.
    pub enum MKeyProtection {
        /// Reads are answered, the key included.
        ReadAll = 0,
        /// Reads are answered, the key reads as 0.
        ReadAllButKey = 1,
        /// Nothing is answered.
        Closed = 2,
        /// The same as `Closed`.
        ClosedCompatible = 3,
    }
}

/// CapabilityMask of PortInfo.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Capability(pub u32);

impl Capability {
    /// A subnet manager runs behind this port.
    pub const IS_SM: Self = Self(0x2);
    /// Notices are supported.
    pub const NOTICE: Self = Self(0x4);
    /// Traps are supported.
    pub const TRAP: Self = Self(0x8);
    /// Service levels are mapped.
    pub const SL_MAPPING: Self = Self(0x40);
    /// The management key survives a restart.
    pub const M_KEY_NVRAM: Self = Self(0x80);
    /// The partition keys survive a restart.
    pub const PKEY_NVRAM: Self = Self(0x100);
    /// A subnet manager is there but switched off.
    pub const SM_DISABLED: Self = Self(0x400);
    /// Trap 259 is supported.
    pub const PKEY_SWITCH_EXTERNAL_TRAP: Self = Self(0x1000);
    /// Extended speeds are supported.
    pub const EXTENDED_SPEEDS: Self = Self(0x4000);
    /// CapabilityMask2 is supported.
    pub const CAPABILITY2: Self = Self(0x8000);
    /// Device management notices are supported.
    pub const DEVICE_NOTICE: Self = Self(0x10_0000);
    /// Trap 144 is supported.
    pub const CAPABILITY_NOTICE: Self = Self(0x40_0000);
    /// Client reregistration is supported.
    pub const CLIENT_REREGISTER: Self = Self(0x200_0000);

    /// Whether all of `other` is in this mask.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// This mask with `other`.
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// This mask without `other`.
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl fmt::Debug for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Capability({:#010x})", self.0)
    }
}

impl WireValue for Capability {
    const MAX_BITS: usize = 32;
    fn read(raw: &[u8], field: Field) -> Option<Self> {
        u32::read(raw, field).map(Self)
    }
    fn write(&self, raw: &mut [u8], field: Field) {
        self.0.write(raw, field);
    }
}

layout! {
    /// ExtendedPortInfo of Mellanox (attribute 0xff90): where FDR10 is negotiated.
    pub struct MlnxExtPortInfo[64] {
        /// Which of the fields a Set means.
        change_enable: u8 = bytes(3, 1),
        /// Bit 0: FDR10 possible.
        link_speed_supported: u8 = bytes(7, 1),
        /// Bit 0: FDR10 allowed.
        link_speed_enabled: u8 = bytes(11, 1),
        /// Bit 0: FDR10 in use.
        link_speed_active: u8 = bytes(15, 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_of_a_link_is_its_width_times_its_speed() {
        let rate = |width, speed, extended| {
            let mut info = PortInfo::decode(&[0; 64]).expect("all zeros can be read");
            info.link_width_active = width;
            info.link_speed_active = speed;
            info.extended_speed_active = extended;
            info.active_rate()
        };
        let none = ExtendedSpeed::default();
        assert_eq!(rate(LinkWidth::X4, LinkSpeed::QDR, none), Some(Rate::G40));
        assert_eq!(rate(LinkWidth::X1, LinkSpeed::SDR, none), Some(Rate::G2_5));
        assert_eq!(rate(LinkWidth::X12, LinkSpeed::DDR, none), Some(Rate::G60));
        assert_eq!(rate(LinkWidth::X4, LinkSpeed::QDR, ExtendedSpeed::EDR), Some(Rate::G100));
        assert_eq!(rate(LinkWidth::X2, LinkSpeed::QDR, ExtendedSpeed::HDR), Some(Rate::G100));
        assert_eq!(rate(LinkWidth::X8, LinkSpeed::QDR, ExtendedSpeed::NDR), Some(Rate::G800));
        assert_eq!(rate(LinkWidth::default(), LinkSpeed::SDR, none), None);
        assert_eq!(rate(LinkWidth::X4, LinkSpeed::default(), none), None);
    }
}
