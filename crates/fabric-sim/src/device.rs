//! State of the emulated devices: their registers and tables, without behaviour.

use std::time::Duration;

use fabric_model::{self as model, LinkRate, Width};
use ib_wire::{
    Capability, DataLanes, ExtendedSpeed, Guid, Lid, LinkDownDefault, LinkSpeed, LinkWidth, Lmc,
    MKeyProtection, Membership, Mtu, NodeDescription, NodeInfo, NodeKind, PhysicalState, Pkey, PortInfo,
    PortNum, PortState, ServiceLevel, SlToVl, SwitchInfo, VirtualLane, VlArbEntry,
};

use crate::counters::Counters;
use crate::lazy_table::{LazyTable, MulticastTable};
use crate::notices::PendingTraps;
use crate::profile::{DeviceProfile, SwitchProfile};
use crate::rates;

/// A port of the fabric. An id stays valid for the life of the fabric, across reboots and recabling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(pub(crate) u32);

impl PortId {
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A node of the fabric. An id stays valid for the life of the fabric, across reboots and recabling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub(crate) u32);

impl DeviceId {
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A switch, adapter or router.
#[derive(Debug)]
pub(crate) struct Device {
    pub id: String,
    pub description: NodeDescription,
    /// NodeInfo of the device. The fields that depend on the port are filled in per request.
    pub info: NodeInfo,
    /// The port with the lowest number: 0 on a switch, 1 on an adapter.
    pub first_port: PortId,
    pub switch: Option<Box<SwitchTables>>,
}

impl Device {
    /// The number of `first_port`.
    fn lowest_number(&self) -> u32 {
        u32::from(self.switch.is_none())
    }

    pub fn port(&self, number: PortNum) -> Option<PortId> {
        let number = u32::from(number.to_wire());
        let lowest = self.lowest_number();
        (number >= lowest && number <= u32::from(self.info.port_count))
            .then(|| PortId(self.first_port.0 + number - lowest))
    }

    /// The output port of a switch for a LID, by its linear forwarding table.
    pub fn exit(&self, dlid: Lid) -> Option<PortId> {
        let switch = self.switch.as_ref()?;
        let counts = dlid.to_wire() <= switch.info.linear_fdb_top;
        let exit = Some(switch.linear.get(usize::from(dlid.to_wire()))).filter(|_| counts)?;
        self.port(PortNum::new(exit)?)
    }

    /// All ports in ascending order of their numbers.
    pub fn ports(&self) -> impl Iterator<Item = PortId> + use<> {
        let count = u32::from(self.info.port_count) + 1 - self.lowest_number();
        let first = self.first_port.0;
        (first..first + count).map(PortId)
    }
}

/// Entry of a linear forwarding table without an output port.
pub(crate) const NO_EXIT: u8 = 0xff;

/// Tables that only switches have.
#[derive(Debug)]
pub(crate) struct SwitchTables {
    pub info: SwitchInfo,
    /// Output port by LID, or [`NO_EXIT`].
    pub linear: LazyTable<u8>,
    pub multicast: MulticastTable,
    /// SLtoVLMappingTable by input port, then by output port.
    pub sl_to_vl: LazyTable<[u8; SlToVl::LEN]>,
    /// Whether adaptive routing is on.
    pub adaptive_routing: bool,
}

/// State of a port.
#[derive(Debug)]
pub(crate) struct Port {
    pub device: DeviceId,
    pub number: PortNum,
    pub guid: Guid,
    pub peer: Option<PortId>,
    /// Whether the cable is plugged in. An unplugged cable stays assigned to its ports.
    pub plugged: bool,
    pub info: PortInfo,
    pub pkeys: LazyTable<Option<Pkey>>,
    /// Alias GUIDs; index 0 is entry 1 of the GUID table.
    pub aliases: LazyTable<Option<Guid>>,
    /// SLtoVLMappingTable of an adapter port.
    pub sl_to_vl: [u8; SlToVl::LEN],
    /// VL arbitration tables; `None` until they are first written.
    pub arbitration: Option<Box<Arbitration>>,
    pub counters: Counters,
    pub traps: PendingTraps,
    /// When the M_Key lease expires. `None` while no lease timer runs.
    pub lease_ends: Option<Duration>,
    /// Whether the software behind the port is a subnet manager.
    pub is_sm: bool,
    /// How often the software behind the port was asked to register again.
    pub registrations: u32,
}

impl Port {
    /// The P_Keys of the port's table in order of their index.
    pub fn keys(&self) -> impl Iterator<Item = Pkey> {
        self.pkeys.filled().filter_map(|(_, key)| key)
    }

    /// Whether the port's table accepts a packet with this P_Key.
    pub fn accepts(&self, key: Pkey) -> bool {
        self.keys().any(|held| key.is_accepted_by(held))
    }

    /// Whether the table of a switch port permits its neighbour to send packets with this P_Key.
    pub fn lets_send(&self, key: Pkey) -> bool {
        self.keys().any(|held| is_allowed_by(key, held))
    }

    /// Whether a LID is one of the 2^LMC LIDs of the port.
    pub fn owns(&self, lid: ib_wire::Lid) -> bool {
        self.info.lid.is_some_and(|base| {
            let offset = lid.to_wire().wrapping_sub(base.to_wire());
            offset < self.info.lmc.lid_count()
        })
    }

    /// The lane of a service level when a packet leaves an adapter.
    pub fn injection_lane(&self, sl: ServiceLevel) -> VirtualLane {
        SlToVl::decode(&self.sl_to_vl).lane(sl)
    }
}

/// Whether an entry `held` of a switch port's table permits the neighbour to send with `key`. A full-member
/// entry permits both membership types, a limited one only limited.
pub(crate) fn is_allowed_by(key: Pkey, held: Pkey) -> bool {
    let is_limited = key.membership() == Membership::Limited;
    held.partition() == key.partition() && (is_limited || held.membership() == Membership::Full)
}

/// VL arbitration tables of a port.
#[derive(Clone, Debug)]
pub(crate) struct Arbitration {
    pub low: [VlArbEntry; 64],
    pub high: [VlArbEntry; 64],
}

/// Factory defaults as in ibsim: lane 0 in the high-priority table, all others in the low-priority one.
impl Default for Arbitration {
    fn default() -> Self {
        let entry = |lane: usize, weight| VlArbEntry {
            lane: VirtualLane::from_wire(lane as u8).unwrap_or_default(),
            weight,
        };
        let table = |weight: fn(usize) -> u8| {
            std::array::from_fn(|i| if i < 15 { entry(i, weight(i)) } else { VlArbEntry::default() })
        };
        Self {
            low: table(|lane| if lane == 0 { 0 } else { 4 }),
            high: table(|lane| if lane == 0 { 4 } else { 0 }),
        }
    }
}

/// Each service level to the lane of its number; service level 15 to lane 7, because lane 15 discards data.
pub(crate) const DEFAULT_SL_TO_VL: [u8; SlToVl::LEN] = [0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xe7];

/// Every service level to lane 0: devices without SLtoVLMappingTable (A-PROF-2).
pub(crate) const SINGLE_LANE: [u8; SlToVl::LEN] = [0; SlToVl::LEN];

/// CapabilityMask2: width 2x, speed HDR.
const CAPABILITY2: u16 = 0x30;

/// Vendor id of all devices of profiles that have a device id.
const VENDOR: u32 = model::Node::AGGREGATION_VENDOR;

/// Hardware revision in NodeInfo.
const REVISION: u32 = 0xa1;

/// A device with factory defaults.
pub(crate) fn new_device(
    node: &model::Node,
    description: &str,
    first_port: PortId,
    profile: &DeviceProfile,
) -> Device {
    let is_switch = node.kind == NodeKind::Switch;
    let usual_device = if is_switch { profile.switches.device_id } else { profile.adapters.device_id };
    let info = NodeInfo {
        base_version: 1,
        class_version: 1,
        kind: node.kind,
        port_count: node.port_count(),
        system_guid: Some(node.system_guid.unwrap_or(node.guid)),
        node_guid: node.guid,
        port_guid: node.guid,
        partition_capacity: if is_switch { profile.switches.own_pkeys } else { profile.adapters.pkeys },
        device_id: node.device_id.unwrap_or(usual_device),
        revision: REVISION,
        local_port: PortNum::MANAGEMENT,
        vendor_id: node.vendor_id.unwrap_or(if usual_device == 0 { 0 } else { VENDOR }),
    };
    let switch = is_switch.then(|| Box::new(new_switch_tables(node, profile)));
    Device {
        id: node.id.clone(),
        description: NodeDescription::new(cut(description)),
        info,
        first_port,
        switch,
    }
}

/// Truncates a node description to 63 bytes, so that stock software can append a terminating zero.
pub(crate) fn cut(description: &str) -> &str {
    let mut end = description.len().min(63);
    while !description.is_char_boundary(end) {
        end -= 1;
    }
    &description[..end]
}

/// The tables of a switch with factory defaults.
fn new_switch_tables(node: &model::Node, profile: &DeviceProfile) -> SwitchTables {
    let sl_to_vl = if profile.switches.sl_to_vl { DEFAULT_SL_TO_VL } else { SINGLE_LANE };
    SwitchTables {
        info: switch_info(&profile.switches, node.port_0 == model::PortZero::Enhanced),
        linear: LazyTable::new(NO_EXIT),
        multicast: MulticastTable::new(node.port_count()),
        sl_to_vl: LazyTable::new(sl_to_vl),
        adaptive_routing: profile.switches.adaptive_routing && profile.inherited.adaptive_routing,
    }
}

/// SwitchInfo with factory defaults.
fn switch_info(profile: &SwitchProfile, enhanced_port_0: bool) -> SwitchInfo {
    let enforces = profile.enforced_pkeys > 0;
    SwitchInfo {
        linear_fdb_capacity: profile.linear_forwarding,
        random_fdb_capacity: 0,
        multicast_fdb_capacity: profile.multicast_forwarding,
        linear_fdb_top: 0,
        default_port: 0,
        default_multicast_primary_port: 0,
        default_multicast_not_primary_port: 0,
        life_time: profile.life_time,
        port_state_change: false,
        optimised_sl_to_vl: u8::from(profile.optimised_sl_to_vl && profile.sl_to_vl),
        lids_per_port: 0,
        partition_enforcement_capacity: profile.enforced_pkeys,
        inbound_enforcement: profile.inbound_enforcement && enforces,
        outbound_enforcement: profile.outbound_enforcement && enforces,
        filter_raw_inbound: profile.filter_raw_inbound,
        filter_raw_outbound: profile.filter_raw_outbound,
        enhanced_port_0,
        multicast_fdb_top: 0,
    }
}

/// A port with factory defaults, not connected.
pub(crate) fn new_port(
    device: DeviceId,
    kind: NodeKind,
    number: PortNum,
    port: &model::Port,
    profile: &DeviceProfile,
) -> Port {
    let mut pkeys = LazyTable::new(None);
    let has_table =
        kind != NodeKind::Switch || number == PortNum::MANAGEMENT || profile.switches.enforced_pkeys > 0;
    if has_table {
        pkeys.put(0, Some(Pkey::DEFAULT_FULL));
    }
    Port {
        device,
        number,
        guid: port.guid,
        peer: None,
        plugged: true,
        info: port_info(kind, number, port, profile),
        pkeys,
        aliases: LazyTable::new(None),
        sl_to_vl: if profile.adapters.sl_to_vl { DEFAULT_SL_TO_VL } else { SINGLE_LANE },
        arbitration: None,
        counters: Counters::default(),
        traps: PendingTraps::default(),
        lease_ends: None,
        is_sm: false,
        registrations: 0,
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PortRole {
    Adapter,
    SwitchManagement,
    SwitchExternal,
}

/// PortInfo with factory defaults: external ports are down, switch port 0 is active.
fn port_info(kind: NodeKind, number: PortNum, port: &model::Port, profile: &DeviceProfile) -> PortInfo {
    let role = match (kind, number) {
        (NodeKind::Switch, PortNum::MANAGEMENT) => PortRole::SwitchManagement,
        (NodeKind::Switch, _) => PortRole::SwitchExternal,
        _ => PortRole::Adapter,
    };
    let is_end_port = role != PortRole::SwitchExternal;
    let is_internal = role == PortRole::SwitchManagement;
    let size = PortSize::of(role, profile);
    let speed_max = profile.speed_max(kind == NodeKind::Switch);
    let rate = port.rate.map(|rate| rates::at_most(rate, speed_max));
    PortInfo {
        m_key: None,
        gid_prefix: if is_end_port { ib_wire::Gid::DEFAULT_PREFIX } else { 0 },
        lid: if is_end_port { port.lid } else { None },
        master_sm_lid: None,
        capability: capability(role, profile),
        diag_code: 0,
        m_key_lease_period_s: if is_end_port { 0x0ff9 } else { 0 },
        local_port: if role == PortRole::Adapter { number } else { PortNum::MANAGEMENT },
        link_width_enabled: rate.map_or(port.enabled_width, rates::enabled_width),
        link_width_supported: LinkWidth(0x1f),
        link_width_active: LinkWidth::X4,
        link_speed_supported: rates::enabled_speed(LinkRate { speed: speed_max, width: Width::X4 }),
        state: if is_internal { PortState::Active } else { PortState::Down },
        physical_state: if is_internal { PhysicalState::LinkUp } else { PhysicalState::Polling },
        link_down_default: LinkDownDefault::Polling,
        m_key_protection: MKeyProtection::ReadAll,
        lmc: if is_end_port { lmc(port, profile) } else { Lmc::default() },
        link_speed_active: LinkSpeed::SDR,
        link_speed_enabled: rate.map_or(port.enabled_speed, rates::enabled_speed),
        neighbor_mtu: if is_internal { Mtu::B256 } else { size.mtu },
        master_sm_sl: ServiceLevel::default(),
        vl_cap: size.lanes,
        init_type: 0,
        vl_high_limit: 0,
        vl_arb_high_cap: size.arbitration_entries,
        vl_arb_low_cap: size.arbitration_entries,
        init_type_reply: 0,
        mtu_cap: size.mtu,
        vl_stall_count: match role {
            PortRole::Adapter => 7,
            PortRole::SwitchManagement => 0,
            PortRole::SwitchExternal => profile.switches.vl_stall_count,
        },
        hoq_life: if role == PortRole::SwitchExternal { profile.switches.hoq_life } else { 0 },
        operational_vls: size.lanes,
        enforce_inbound: false,
        enforce_outbound: false,
        filter_raw_inbound: false,
        filter_raw_outbound: false,
        m_key_violations: 0,
        pkey_violations: 0,
        qkey_violations: 0,
        guid_cap: match role {
            PortRole::Adapter => profile.adapters.guids,
            PortRole::SwitchManagement => 1,
            PortRole::SwitchExternal => 0,
        },
        client_reregister: false,
        multicast_pkey_trap_suppression: 0,
        subnet_timeout: if is_end_port { 0x1f } else { 0 },
        response_time: if is_internal { 8 } else { 0 },
        local_phy_errors: 0,
        overrun_errors: 0,
        max_credit_hint: 0,
        link_round_trip: 0,
        capability2: if is_end_port { CAPABILITY2 } else { 0 },
        extended_speed_active: ExtendedSpeed::default(),
        extended_speed_supported: rate
            .map(|rate| rates::supported_extended_speed(rate, speed_max))
            .unwrap_or_default(),
        extended_speed_enabled: rate.map(rates::enabled_extended_speed).unwrap_or_default(),
    }
}

/// MTU, lanes and arbitration tables of a port.
struct PortSize {
    mtu: Mtu,
    lanes: DataLanes,
    arbitration_entries: u8,
}

impl PortSize {
    fn of(role: PortRole, profile: &DeviceProfile) -> Self {
        let DeviceProfile { adapters, switches, .. } = profile;
        match role {
            PortRole::Adapter => Self {
                mtu: adapters.mtu,
                lanes: adapters.lanes,
                arbitration_entries: adapters.arbitration_entries,
            },
            PortRole::SwitchExternal => Self {
                mtu: switches.mtu,
                lanes: switches.lanes,
                arbitration_entries: switches.arbitration_entries,
            },
            // Port 0 sends over no link.
            PortRole::SwitchManagement => Self {
                mtu: Mtu::B1024,
                lanes: switches.lanes,
                arbitration_entries: if switches.arbitration_at_port_0 {
                    switches.arbitration_entries
                } else {
                    0
                },
            },
        }
    }
}

/// The LMC of the topology, else the one that an earlier manager left, if the LID permits it.
fn lmc(port: &model::Port, profile: &DeviceProfile) -> Lmc {
    let inherited = profile.inherited_lmc();
    let fits = port.lid.is_none_or(|lid| lid.to_wire() % inherited.lid_count() == 0);
    if port.lmc == Lmc::default() && fits { inherited } else { port.lmc }
}

/// The capability masks of ibsim's ports; in addition switches send trap 259.
fn capability(role: PortRole, profile: &DeviceProfile) -> Capability {
    let has_sl_to_vl = match role {
        PortRole::Adapter => profile.adapters.sl_to_vl,
        PortRole::SwitchManagement => profile.switches.sl_to_vl,
        PortRole::SwitchExternal => return Capability::default(),
    };
    let mut mask = Capability::TRAP.with(Capability::CAPABILITY2);
    if has_sl_to_vl {
        mask = mask.with(Capability::SL_MAPPING);
    }
    if profile.links.extended_speeds {
        mask = mask.with(Capability::EXTENDED_SPEEDS);
    }
    if role == PortRole::Adapter && profile.adapters.client_reregister {
        mask = mask.with(Capability::CLIENT_REREGISTER);
    }
    if role == PortRole::SwitchManagement && profile.switches.multicast_fdb_top {
        mask = mask.with(Capability::MULTICAST_FDB_TOP);
    }
    let is_key_kept = match role {
        PortRole::Adapter => profile.adapters.m_key_nvram,
        _ => profile.switches.m_key_nvram,
    };
    if is_key_kept {
        mask = mask.with(Capability::M_KEY_NVRAM);
    }
    match role {
        PortRole::Adapter => mask.with(Capability::CAPABILITY_NOTICE).with(Capability::DEVICE_NOTICE),
        _ => mask.with(Capability::PKEY_SWITCH_EXTERNAL_TRAP),
    }
}

/// Number of data lanes that a code means, at least 1: every port has lane 0.
pub(crate) fn lane_count(lanes: DataLanes) -> u8 {
    lanes.count().max(1)
}
