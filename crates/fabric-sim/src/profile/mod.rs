//! Device profiles: what a kind of adapter and a kind of switch supports, and how its devices behave.
//!
//! A profile is data. [`Fabric::new`](crate::Fabric::new) builds all devices from one profile; a device has a
//! register or table only if its profile has it. [`DeviceProfile::furnish`] adds what a profile says about
//! nodes and cables to a topology. `docs/assumptions.md` marks where the values of the built-in profiles come
//! from.

mod built_in;
mod capability;
mod codec;
mod description;
mod furnish;

use std::ops::RangeInclusive;

use fabric_model::{LinkRate, Speed};
use ib_wire::{DataLanes, Lmc, Mtu};
use serde::{Deserialize, Serialize};

pub use built_in::BuiltInProfile;
pub use capability::{DeviceCapability, UnknownCapability};
pub use description::{AdapterDescription, SwitchDescription};

use crate::capacities::{BadCapacity, Capacities};

/// The adapters and switches of an emulated fabric: table sizes, optional features and behaviour.
///
/// [`DeviceProfile::check`] states the valid range of each size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceProfile {
    pub adapters: AdapterProfile,
    pub switches: SwitchProfile,
    pub links: LinkProfile,
    pub behaviour: DeviceBehaviour,
    pub inherited: InheritedState,
}

/// A kind of adapter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdapterProfile {
    /// NodeInfo:DeviceID where the topology gives none; 0 if it is unknown.
    pub device_id: u16,
    /// Data lanes of a port (VLCap).
    #[serde(with = "codec::lanes")]
    pub lanes: DataLanes,
    /// Entries of each VL arbitration table, high and low, 0 to 64. 0 means that there are no tables.
    pub arbitration_entries: u8,
    /// P_Key table entries of a port (PartitionCap), 1 to 32768.
    pub pkeys: u16,
    /// GUID table entries of a port, 1 to 255. Entry 0 is the port's own GUID.
    pub guids: u8,
    /// Largest MTU of a port (MTUCap).
    #[serde(with = "codec::mtu")]
    pub mtu: Mtu,
    #[serde(with = "codec::speed")]
    pub speed_max: Speed,
    /// Whether ports have an SLtoVLMappingTable. Without it, all service levels use lane 0, and requests are
    /// refused.
    pub sl_to_vl: bool,
    /// Whether software at a port registers again when a subnet manager asks for it (IsClientReregistrationSupported).
    #[serde(default = "default_client_reregister")]
    pub client_reregister: bool,
    /// Whether M_Keys are kept in non-volatile memory (IsM_KeyNVRAM): a reboot does not clear them (A-MKEY-6).
    #[serde(default)]
    pub m_key_nvram: bool,
    pub description: AdapterDescription,
}

/// Profiles of former versions do not have it, and every adapter of the field does.
fn default_client_reregister() -> bool {
    true
}

/// A kind of switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchProfile {
    /// NodeInfo:DeviceID where the topology gives none; 0 if it is unknown.
    pub device_id: u16,
    /// Data lanes of a port (VLCap).
    #[serde(with = "codec::lanes")]
    pub lanes: DataLanes,
    /// Entries of each VL arbitration table of external ports, high and low, 0 to 64. 0 means that there are
    /// no tables.
    pub arbitration_entries: u8,
    /// Whether port 0 reports arbitration tables, too, although it sends over no link.
    pub arbitration_at_port_0: bool,
    /// MTUCap of external ports.
    #[serde(with = "codec::mtu")]
    pub mtu: Mtu,
    #[serde(with = "codec::speed")]
    pub speed_max: Speed,
    /// P_Key table entries of port 0 (PartitionCap), 1 to 32768.
    pub own_pkeys: u16,
    /// P_Key table entries of an external port (PartitionEnforcementCap), 0 to 32768. With 0, the switch
    /// enforces nothing.
    pub enforced_pkeys: u16,
    pub inbound_enforcement: bool,
    pub outbound_enforcement: bool,
    pub filter_raw_inbound: bool,
    pub filter_raw_outbound: bool,
    /// Whether there are SLtoVLMappingTables. Without them, all service levels use lane 0, and requests are
    /// refused.
    pub sl_to_vl: bool,
    /// Whether one Set can write the SLtoVLMappingTables of all inputs or all hops.
    pub optimised_sl_to_vl: bool,
    /// Entries of the linear forwarding table, 1 to 49152.
    pub linear_forwarding: u16,
    /// Entries of the multicast forwarding table, 0 to 16383.
    pub multicast_forwarding: u16,
    /// Whether the table ends at MulticastFDBTop, as far as that is not 0.
    #[serde(default)]
    pub multicast_fdb_top: bool,
    /// Whether the M_Key is kept in non-volatile memory (IsM_KeyNVRAM): a reboot does not clear it (A-MKEY-6).
    #[serde(default)]
    pub m_key_nvram: bool,
    /// Whether HOQLife, VLStallCount and LifeTimeValue can be written. Otherwise they keep their values.
    pub writable_lifetimes: bool,
    /// HOQLife at power-on, 0 to 31.
    pub hoq_life: u8,
    /// VLStallCount at power-on, 0 to 7.
    pub vl_stall_count: u8,
    /// LifeTimeValue at power-on, 0 to 31.
    pub life_time: u8,
    /// Whether the switch has the vendor's attributes of adaptive routing.
    pub adaptive_routing: bool,
    /// Whether port 0 is enhanced: a port like that of an adapter, behind which software may run.
    pub enhanced_port_0: bool,
    /// Whether [`DeviceProfile::furnish`] adds an aggregation node to every switch, at a port after its last
    /// one.
    pub aggregation_nodes: bool,
    pub description: SwitchDescription,
}

/// Profiles of former versions do not have it.
fn default_sl_counters() -> bool {
    true
}

/// Speeds and counters of ports, and rates of cables.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkProfile {
    /// Whether devices have the extended speeds, FDR and above. Without them links train at QDR at most.
    pub extended_speeds: bool,
    /// Whether devices have the vendor's ExtendedPortInfo, which tells FDR10 from QDR.
    pub extended_port_info: bool,
    /// Whether ports count data by service level (PortXmitDataSL, PortRcvDataSL).
    #[serde(default = "default_sl_counters")]
    pub sl_counters: bool,
    /// Rates that [`DeviceProfile::furnish`] gives to cables, in turn. Empty: cables keep the rates of the
    /// topology.
    pub rates: Vec<LinkRate>,
}

/// Where devices are strict. All of it is off in ibsim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceBehaviour {
    /// PortInfo shows extended speeds only to requests with bit 31 of the modifier (A-PORT-4).
    pub extended_speeds_on_request: bool,
    /// MTU and lanes of a link change only below Armed (A-PORT-10).
    pub resize_below_armed: bool,
    /// A Set of Active to an Active port is refused (A-PORT-9).
    pub active_twice_is_refused: bool,
    /// Data activate an Armed port (A-PORT-9).
    pub data_activate_armed: bool,
    /// A TrapRepress needs the M_Key (A-TRAP-6).
    pub trap_repress_needs_key: bool,
    /// A switch drops data that leave through a port whose HOQLife is 0, or if its LifeTimeValue is 0
    /// (A-PROF-3).
    pub zero_lifetimes_drop: bool,
    /// M_Keys are kept and checked. Otherwise a Set of one is ignored.
    pub management_keys: bool,
    /// End ports check the P_Key and the Q_Key of packets.
    pub receivers_check_keys: bool,
    /// A packet whose service level has no lane is discarded (A-LANE-1, A-LANE-2).
    pub lanes_are_checked: bool,
}

/// What an earlier subnet manager left in the devices. A reboot clears it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InheritedState {
    /// LMC of end ports for which the topology gives none, 0 to 7.
    pub lmc: u8,
    /// Whether adaptive routing is on, at switches that have it.
    pub adaptive_routing: bool,
    /// Whether switches mark packets for congestion control.
    #[serde(default)]
    pub congestion_control: bool,
}

impl DeviceBehaviour {
    /// Strict in everything.
    pub const STRICT: Self = Self::all(true);

    /// As forgiving as the devices of ibsim.
    pub const FORGIVING: Self = Self::all(false);

    const fn all(on: bool) -> Self {
        Self {
            extended_speeds_on_request: on,
            resize_below_armed: on,
            active_twice_is_refused: on,
            data_activate_armed: on,
            trap_repress_needs_key: on,
            zero_lifetimes_drop: on,
            management_keys: on,
            receivers_check_keys: on,
            lanes_are_checked: on,
        }
    }
}

/// [`BuiltInProfile::Strict`].
impl Default for DeviceProfile {
    fn default() -> Self {
        Capacities::default().into()
    }
}

/// The strict profile with other sizes.
impl From<Capacities> for DeviceProfile {
    fn from(sizes: Capacities) -> Self {
        Self {
            adapters: AdapterProfile {
                device_id: 0,
                lanes: sizes.lanes,
                arbitration_entries: sizes.arbitration_entries,
                pkeys: sizes.pkeys,
                guids: sizes.guids,
                mtu: sizes.mtu,
                speed_max: Speed::Ndr,
                sl_to_vl: true,
                client_reregister: true,
                m_key_nvram: false,
                description: AdapterDescription::Topology,
            },
            switches: SwitchProfile {
                device_id: 0,
                lanes: sizes.lanes,
                arbitration_entries: sizes.arbitration_entries,
                arbitration_at_port_0: false,
                mtu: sizes.mtu,
                speed_max: Speed::Ndr,
                own_pkeys: sizes.switch_pkeys,
                enforced_pkeys: sizes.pkeys,
                inbound_enforcement: true,
                outbound_enforcement: true,
                filter_raw_inbound: true,
                filter_raw_outbound: true,
                sl_to_vl: true,
                optimised_sl_to_vl: sizes.optimised_sl_to_vl,
                linear_forwarding: sizes.linear_forwarding,
                multicast_forwarding: sizes.multicast_forwarding,
                multicast_fdb_top: true,
                m_key_nvram: false,
                writable_lifetimes: true,
                hoq_life: 0,
                vl_stall_count: 7,
                life_time: 0,
                adaptive_routing: false,
                enhanced_port_0: false,
                aggregation_nodes: false,
                description: SwitchDescription::Topology,
            },
            links: LinkProfile {
                extended_speeds: true,
                extended_port_info: true,
                sl_counters: true,
                rates: Vec::new(),
            },
            behaviour: DeviceBehaviour::STRICT,
            inherited: InheritedState::default(),
        }
    }
}

impl DeviceProfile {
    /// Checks that every size can be expressed in the attribute layouts. Reports the first that cannot.
    pub fn check(&self) -> Result<(), BadCapacity> {
        let Self { adapters, switches, inherited, .. } = self;
        for lanes in [adapters.lanes, switches.lanes] {
            within("the number of data lanes", lanes.count().into(), 1..=15, "1, 2, 4, 8 or 15")?;
        }
        for entries in [adapters.arbitration_entries, switches.arbitration_entries] {
            within("a VL arbitration table", entries.into(), 0..=64, "0 to 64 entries")?;
        }
        let sizes = [
            ("the P_Key table of an adapter port", adapters.pkeys, 1..=32768, "1 to 32768 entries"),
            ("the P_Key table of switch port 0", switches.own_pkeys, 1..=32768, "1 to 32768 entries"),
            ("the P_Key table of a switch port", switches.enforced_pkeys, 0..=32768, "0 to 32768 entries"),
            ("the linear forwarding table", switches.linear_forwarding, 1..=49152, "1 to 49152 entries"),
            (
                "the multicast forwarding table",
                switches.multicast_forwarding,
                0..=16383,
                "0 to 16383 entries",
            ),
            ("the GUID table", adapters.guids.into(), 1..=255, "1 to 255 entries"),
            ("HOQLife", switches.hoq_life.into(), 0..=31, "0 to 31"),
            ("VLStallCount", switches.vl_stall_count.into(), 0..=7, "0 to 7"),
            ("LifeTimeValue", switches.life_time.into(), 0..=31, "0 to 31"),
            ("LMC", inherited.lmc.into(), 0..=7, "0 to 7"),
        ];
        for (what, value, range, allowed) in sizes {
            within(what, value.into(), range, allowed)?;
        }
        Ok(())
    }

    /// The fastest speed at which ports of this kind train.
    pub(crate) fn speed_max(&self, is_switch: bool) -> Speed {
        let speed_max = if is_switch { self.switches.speed_max } else { self.adapters.speed_max };
        if self.links.extended_speeds { speed_max } else { speed_max.min(Speed::Qdr) }
    }

    /// The LMC that an end port has from an earlier manager.
    pub(crate) fn inherited_lmc(&self) -> Lmc {
        Lmc::from_wire(self.inherited.lmc).unwrap_or_default()
    }
}

fn within(
    what: &'static str,
    value: u32,
    range: RangeInclusive<u32>,
    allowed: &'static str,
) -> Result<(), BadCapacity> {
    if range.contains(&value) { Ok(()) } else { Err(BadCapacity { what, value, allowed }) }
}
