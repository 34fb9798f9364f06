//! PortInfo: state and settings of a port.

use std::fmt;

use crate::address::{Lid, Lmc, PortNum};
use crate::bits::{Field, WireValue, bits, bytes};
use crate::keys::MKey;
use crate::lanes::{DataLanes, ServiceLevel};
use crate::link::{ExtendedSpeed, LinkDownDefault, LinkSpeed, LinkWidth, Mtu, PhysicalState, PortState};
use crate::mad::{Attribute, Mad};
use crate::rate::Rate;

layout! {
    /// PortInfo (attribute 0x0015). The modifier is the port number; on an adapter 0 means the port that received the request.
    ///
    /// Fields ending in `supported`, `active` or `cap` are read-only. In a Set, code 0 (`NoChange`) keeps the current value of
    /// the fields that have it.
    pub struct PortInfo[64] {
        /// The M_Key that protects the port; that of port 0 protects the whole switch. `None` if there is no protection.
        m_key: Option<MKey> = bytes(0, 8),
        /// Subnet prefix, the upper half of the port's GIDs.
        gid_prefix: u64 = bytes(8, 8),
        /// The first of the 2^`lmc` LIDs of the port.
        lid: Option<Lid> = bytes(16, 2),
        master_sm_lid: Option<Lid> = bytes(18, 2),
        capability: Capability = bytes(20, 4),
        /// Vendor-specific diagnostic code; 0 if there is no problem.
        diag_code: u16 = bytes(24, 2),
        /// After an SMP with a wrong M_Key: seconds without one with the right M_Key until `m_key_protection` falls to
        /// `ReadAll`. 0 = the lease never expires.
        m_key_lease_period_s: u16 = bytes(26, 2),
        /// The port that received the request.
        local_port: PortNum = bytes(28, 1),
        link_width_enabled: LinkWidth = bytes(29, 1),
        link_width_supported: LinkWidth = bytes(30, 1),
        link_width_active: LinkWidth = bytes(31, 1),
        link_speed_supported: LinkSpeed = bits(32, 7, 4),
        state: PortState = bits(32, 3, 0),
        physical_state: PhysicalState = bits(33, 7, 4),
        link_down_default: LinkDownDefault = bits(33, 3, 0),
        m_key_protection: MKeyProtection = bits(34, 7, 6),
        lmc: Lmc = bits(34, 2, 0),
        link_speed_active: LinkSpeed = bits(35, 7, 4),
        link_speed_enabled: LinkSpeed = bits(35, 3, 0),
        /// Largest payload to send on this link: at most `mtu_cap` of both ends.
        neighbor_mtu: Mtu = bits(36, 7, 4),
        /// Service level of datagrams to the master subnet manager.
        master_sm_sl: ServiceLevel = bits(36, 3, 0),
        /// Data VLs that the port supports.
        vl_cap: DataLanes = bits(37, 7, 4),
        /// InitType: initialisation that the port requests, 4 bits.
        init_type: u8 = bits(37, 3, 0),
        /// VLHighLimit: bytes that high-priority VLs may send before a waiting low-priority packet gets its turn, in units of
        /// 4096 bytes. 0 = one packet, 255 = no limit.
        vl_high_limit: u8 = bytes(38, 1),
        /// Entries of the high-priority arbitration table, at most 64.
        vl_arb_high_cap: u8 = bytes(39, 1),
        /// Entries of the low-priority arbitration table, at most 64.
        vl_arb_low_cap: u8 = bytes(40, 1),
        /// InitTypeReply: initialisation that was done, 4 bits.
        init_type_reply: u8 = bits(41, 7, 4),
        mtu_cap: Mtu = bits(41, 3, 0),
        /// Consecutive packets dropped for `hoq_life` after which the VL enters the stalled state; 0 is undefined.
        vl_stall_count: u8 = bits(42, 7, 5),
        /// HOQLife: time that a packet may wait at the head of an output queue before it is dropped, 4.096 µs · 2ⁿ;
        /// from 20 on unlimited.
        hoq_life: u8 = bits(42, 4, 0),
        /// Data VLs in use: at most `vl_cap` of both ends.
        operational_vls: DataLanes = bits(43, 7, 4),
        /// PartitionEnforcementInbound: the switch port drops received packets whose P_Key is not in its table.
        enforce_inbound: bool = bits(43, 3, 3),
        /// PartitionEnforcementOutbound: the switch port does not send packets whose P_Key is not in its table.
        enforce_outbound: bool = bits(43, 2, 2),
        /// The switch port drops raw packets that it receives.
        filter_raw_inbound: bool = bits(43, 1, 1),
        /// The switch port sends no raw packets.
        filter_raw_outbound: bool = bits(43, 0, 0),
        /// SMPs received with a wrong M_Key; the three violation counters stop at 0xFFFF.
        m_key_violations: u16 = bytes(44, 2),
        /// Packets received with a wrong P_Key.
        pkey_violations: u16 = bytes(46, 2),
        /// Packets received with a wrong Q_Key.
        qkey_violations: u16 = bytes(48, 2),
        /// Entries of the GUIDInfo table.
        guid_cap: u8 = bytes(50, 1),
        /// In a Set: clients behind the port must renew their subscriptions and multicast memberships.
        client_reregister: bool = bits(51, 7, 7),
        /// Code of the multicast P_Key trap suppression, 2 bits; 0 = off.
        multicast_pkey_trap_suppression: u8 = bits(51, 6, 5),
        /// SubnetTimeOut: longest time that a packet takes through the subnet, 4.096 µs · 2ⁿ.
        subnet_timeout: u8 = bits(51, 4, 0),
        /// RespTimeValue: longest time between SMP request and response, 4.096 µs · 2ⁿ.
        response_time: u8 = bits(52, 4, 0),
        /// LocalPhyErrors: threshold of physical errors for trap 129.
        local_phy_errors: u8 = bits(53, 7, 4),
        /// OverrunErrors: threshold of consecutive buffer overruns for trap 130.
        overrun_errors: u8 = bits(53, 3, 0),
        /// MaxCreditHint: the most credits per VL that the other end may see, in blocks of 64 bytes.
        max_credit_hint: u16 = bytes(54, 2),
        /// LinkRoundTripLatency, in units of 4 ns.
        link_round_trip: u32 = bytes(57, 3),
        /// CapabilityMask2, valid if `capability` has [`Capability::CAPABILITY2`].
        capability2: u16 = bytes(60, 2),
        /// If not empty, the link runs at this speed and `link_speed_active` is not used.
        extended_speed_active: ExtendedSpeed = bits(62, 7, 4),
        extended_speed_supported: ExtendedSpeed = bits(62, 3, 0),
        extended_speed_enabled: ExtendedSpeed = bits(63, 4, 0),
    }
}

impl PortInfo {
    /// Bit 31 of the modifier: the requester understands the extended speed fields.
    pub const EXTENDED_SPEEDS_KNOWN: u32 = 1 << 31;

    /// Whether a Set asks software at a port to register again at subnet administration (ClientReregister).
    pub fn asks_to_register(mad: &Mad) -> bool {
        mad.attribute() == Attribute::PORT_INFO
            && Self::decode(mad.smp_data()).is_ok_and(|info| info.client_reregister)
    }

    /// The rate of the link: active width times nominal active speed, rounded down to a rate that has a code. `None` if width
    /// or speed is empty.
    pub fn active_rate(&self) -> Option<Rate> {
        let extended = self.extended_speed_active.lane_mbps();
        let lane_mbps = if extended > 0 { extended } else { self.link_speed_active.lane_mbps() };
        Rate::at_most_mbps(self.link_width_active.lanes() * lane_mbps)
    }

    /// The port number in a modifier; `None` if it is above 254. [`Self::EXTENDED_SPEEDS_KNOWN`] is ignored.
    pub fn port_of_modifier(modifier: u32) -> Option<PortNum> {
        u8::try_from(modifier & !Self::EXTENDED_SPEEDS_KNOWN).ok().and_then(PortNum::new)
    }
}

wire_enum! {
    /// M_KeyProtectBits: which SMPs without the right M_Key are answered. A Set without it is never executed (IBA 14.2.4.1).
    pub enum MKeyProtection {
        /// Gets are answered, and show the M_Key.
        ReadAll = 0,
        /// Gets are answered, with 0 in place of the M_Key.
        ReadAllButKey = 1,
        /// Neither Get nor Set is answered.
        Closed = 2,
        /// The same as `Closed`, kept for compatibility.
        ClosedCompatible = 3,
    }
}

/// CapabilityMask of PortInfo, 32 bits.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Capability(pub u32);

impl Capability {
    /// A subnet manager runs behind this port.
    pub const IS_SM: Self = Self(0x2);
    pub const NOTICE: Self = Self(0x4);
    pub const TRAP: Self = Self(0x8);
    /// The port has an SLtoVLMappingTable.
    pub const SL_MAPPING: Self = Self(0x40);
    /// The M_Key is kept in non-volatile memory.
    pub const M_KEY_NVRAM: Self = Self(0x80);
    /// The P_Key table is kept in non-volatile memory.
    pub const PKEY_NVRAM: Self = Self(0x100);
    /// The port has a subnet manager that is disabled.
    pub const SM_DISABLED: Self = Self(0x400);
    /// The switch sends trap 259.
    pub const PKEY_SWITCH_EXTERNAL_TRAP: Self = Self(0x1000);
    pub const EXTENDED_SPEEDS: Self = Self(0x4000);
    /// PortInfo has a CapabilityMask2.
    pub const CAPABILITY2: Self = Self(0x8000);
    pub const DEVICE_NOTICE: Self = Self(0x10_0000);
    /// The port sends trap 144 when the mask changes.
    pub const CAPABILITY_NOTICE: Self = Self(0x40_0000);
    pub const CLIENT_REREGISTER: Self = Self(0x200_0000);
    /// The switch forwards multicast packets only up to MulticastFDBTop.
    pub const MULTICAST_FDB_TOP: Self = Self(0x4000_0000);

    /// Whether this mask has every bit of `other`.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// This mask with the bits of `other` added.
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// This mask with the bits of `other` cleared.
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
    /// ExtendedPortInfo of Mellanox (attribute 0xff90), which negotiates FDR10: bit 0 of each speed field.
    pub struct MlnxExtPortInfo[64] {
        /// StateChangeEnable: the fields that a Set writes.
        change_enable: u8 = bytes(3, 1),
        link_speed_supported: u8 = bytes(7, 1),
        link_speed_enabled: u8 = bytes(11, 1),
        link_speed_active: u8 = bytes(15, 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_of_a_link_is_width_times_speed() {
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
