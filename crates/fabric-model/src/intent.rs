//! Intents: the desired state of a fabric. The manager's port, partitions, clusters with their guarantees, tenant
//! overrides, and the capabilities of the devices.

use std::collections::{BTreeMap, BTreeSet};

use ib_wire::{
    DataLanes, Guid, Membership, Mtu, OutOfRange, PartitionNumber, Pkey, PortNum, QKey, Rate, ServiceLevel,
};
use serde::{Deserialize, Serialize};

use crate::hardware::StatedHardware;
use crate::link_rate::LinkRate;
pub use crate::port_name::PortName;
use crate::serde_with::{known, pair_list, qkey};
use crate::tenancy::{Class, SlMode};

/// The desired state of a fabric. A plan follows from the topology, these intents and the previous decisions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Intents {
    /// Port GUID of the subnet manager's port.
    pub manager: Guid,
    /// Port GUIDs of the subnet managers that would take over. They may be absent. They are treated like the manager: full members
    /// of the default partition, and never hosts of tenants.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub standby_managers: BTreeSet<Guid>,
    /// The partitions in the order of the requests. Entries with the same number are merged: the first name and the first
    /// IPoIB setting win, members add up. The default partition always exists.
    pub partitions: Vec<PartitionIntent>,
    /// Owners of partitions. A partition without an entry has no particular owner.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub owners: PartitionOwners,
    /// Port GUIDs of the ports that carry tenants, or will. They hold the keys of partitions with an owner. Of other
    /// partitions, which belong to the site, they hold limited keys at most, and only if an entry names them.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub handed_over: BTreeSet<Guid>,
    /// Virtual clusters that request a class of service, in the order of the requests. Names are unique.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clusters: Vec<ClusterIntent>,
    /// Further addresses of adapter ports, such as those of virtual functions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub aliases: PortAliases,
    /// Routes that tenants chose for packets to their ports.
    #[serde(rename = "routes", default, skip_serializing_if = "BTreeMap::is_empty")]
    pub route_overrides: RouteOverrides,
    /// How tenants divide the bandwidth of their clusters among traffic classes.
    #[serde(rename = "classes", default, skip_serializing_if = "BTreeMap::is_empty")]
    pub class_weights: ClassWeights,
    /// Part of every link that is kept for best effort, in percent. With 0, best effort has the least that an arbitration
    /// table can give: one packet per round.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub best_effort_percent: u8,
    #[serde(default)]
    pub capabilities: Capabilities,
    /// What becomes of adapter ports whose partitions nothing but the adapter itself enforces.
    #[serde(default, skip_serializing_if = "UnenforcedPorts::are_closed")]
    pub unenforced_ports: UnenforcedPorts,
    /// What the operator states about the hardware. Guarantees hold for this.
    #[serde(default, skip_serializing_if = "StatedHardware::is_default")]
    pub hardware: StatedHardware,
}

fn is_zero(number: &u8) -> bool {
    *number == 0
}

impl Intents {
    /// Only the default partition, on devices with default capabilities.
    pub fn new(manager: Guid) -> Self {
        Self {
            manager,
            standby_managers: BTreeSet::new(),
            partitions: Vec::new(),
            owners: PartitionOwners::new(),
            handed_over: BTreeSet::new(),
            clusters: Vec::new(),
            aliases: PortAliases::new(),
            route_overrides: RouteOverrides::new(),
            class_weights: ClassWeights::new(),
            best_effort_percent: 0,
            capabilities: Capabilities::default(),
            unenforced_ports: UnenforcedPorts::default(),
            hardware: StatedHardware::default(),
        }
    }

    /// The ports of the subnet manager and of those that would take over. They answer for the subnet, and carry no tenants while
    /// there are site partitions.
    pub fn managers(&self) -> impl Iterator<Item = Guid> + '_ {
        std::iter::once(self.manager).chain(self.standby_managers.iter().copied())
    }

    /// Whether a port is that of the subnet manager, or of one that would take over.
    pub fn is_manager(&self, port: Guid) -> bool {
        port == self.manager || self.standby_managers.contains(&port)
    }
}

/// What becomes of adapter ports at switch ports that cannot enforce partitions. The port of the subnet manager is always
/// open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnenforcedPorts {
    /// They carry no data: whoever controls such an adapter could use the P_Keys of others.
    #[default]
    Closed,
    /// They carry data, and only adapters enforce partitions. For fabrics on which nobody has to be isolated.
    Open,
}

impl UnenforcedPorts {
    fn are_closed(&self) -> bool {
        *self == Self::Closed
    }
}

/// Owners of partitions: by number, the opaque id of every owner that uses it (such as a cluster id), with one of its ports
/// as a witness. A number with two owners would merge their networks, since entries of [`Intents::partitions`] with the
/// same number are merged: the compiler rejects it, and the verifier reports it.
pub type PartitionOwners = BTreeMap<PartitionNumber, BTreeMap<String, Guid>>;

/// Alias GUIDs of adapter ports, by port GUID. A port that is absent may have some.
pub type PortAliases = BTreeMap<Guid, AliasTable>;

/// Alias GUIDs of a port, by index in its GUID table. Index 0 holds the GUID of the port itself.
pub type AliasTable = BTreeMap<u8, Alias>;

/// A further address of a port, for example that of a virtual function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Alias {
    /// No other port or alias has it.
    pub guid: Guid,
    /// Partitions in which subnet administration treats the alias as an address of the port. Devices do not know them: the
    /// P_Key table of the port holds those of all its aliases, and only the adapter keeps its functions apart.
    pub partitions: BTreeSet<PartitionNumber>,
}

/// Output ports for packets to a port: by the GUID of the destination port, then by the node GUID of the switch. Switches
/// that are not listed keep their default route.
pub type RouteOverrides = BTreeMap<Guid, BTreeMap<Guid, PortNum>>;

/// Relative weights of the traffic classes of a cluster, by cluster name. Class 0, the first, uses the cluster's own
/// service level.
pub type ClassWeights = BTreeMap<String, Vec<u32>>;

/// A virtual cluster with the ports that were assigned to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterIntent {
    /// Identifies the cluster across compilations.
    pub name: String,
    /// Port GUIDs of its nodes. A port of a guaranteed cluster belongs to no other cluster.
    pub ports: Vec<Guid>,
    pub class: Class,
    #[serde(default)]
    pub sl_mode: SlMode,
}

/// A requested partition with its members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartitionIntent {
    pub name: String,
    /// `None` keeps the number that a partition of this name had in the previous plan, or assigns a free one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<PartitionNumber>,
    /// If two entries select the same port, the later one wins.
    pub members: Vec<Member>,
    /// Settings of the IPoIB broadcast group; `None` creates no group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipoib: Option<Ipoib>,
}

/// An entry in the member list of a partition: a role for all ports that the selector matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Member {
    #[serde(alias = "who")]
    pub selector: MemberSelector,
    pub role: Role,
    /// Where the key goes in the P_Key table of each selected port.
    #[serde(default, alias = "place")]
    pub placement: PkeyPlacement,
}

/// Selects the ports that an entry of a member list applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemberSelector {
    /// Every end port of the subnet.
    All,
    /// Every port of an adapter.
    AllAdapters,
    /// Port 0 of every switch.
    AllSwitches,
    /// Every port of a router.
    AllRouters,
    /// The subnet manager's own port, and those of managers that would take over.
    Manager,
    /// The port with this port GUID, which may be absent.
    Port(Guid),
}

/// The role of a port in a partition. Unlike a [`Membership`], it includes holding both keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    Limited,
    Full,
    /// The port holds the full and the limited key.
    Both,
}

impl Role {
    /// The P_Keys that a port with this role holds, the full one first.
    pub fn keys(self, partition: PartitionNumber) -> impl Iterator<Item = Pkey> {
        let memberships: &[Membership] = match self {
            Self::Limited => &[Membership::Limited],
            Self::Full => &[Membership::Full],
            Self::Both => &[Membership::Full, Membership::Limited],
        };
        memberships.iter().map(move |membership| partition.key(*membership))
    }
}

/// Where a P_Key goes in the table of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PkeyPlacement {
    /// At index 0, which software uses by default.
    First,
    /// At index 0 if the key comes to a port to which no other key of this placement comes or came before. Afterwards it
    /// keeps its index as long as the port has it.
    FirstIfAlone,
    /// The compiler chooses the index.
    #[default]
    Anywhere,
}

/// IP over InfiniBand in a partition: the properties of its broadcast group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ipoib {
    /// Minimum rate of a member port.
    #[serde(deserialize_with = "known::rate")]
    pub rate: Rate,
    #[serde(deserialize_with = "known::mtu")]
    pub mtu: Mtu,
    pub sl: ServiceLevel,
    pub scope: MulticastScope,
    #[serde(with = "qkey")]
    pub qkey: QKey,
}

impl Ipoib {
    /// Default Q_Key of IPoIB groups.
    pub const DEFAULT_QKEY: QKey = QKey::from_wire(0x0b1b);
}

/// The defaults of opensm.
impl Default for Ipoib {
    fn default() -> Self {
        Self {
            rate: Rate::G10,
            mtu: Mtu::B2048,
            sl: ServiceLevel::default(),
            scope: MulticastScope::LINK_LOCAL,
            qkey: Self::DEFAULT_QKEY,
        }
    }
}

/// Scope of a multicast GID, 1..=15.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct MulticastScope(u8);

impl MulticastScope {
    /// Scope 2: the local subnet.
    pub const LINK_LOCAL: Self = Self(2);

    /// `None` if the value is 0 or above 15.
    pub const fn from_wire(raw: u8) -> Option<Self> {
        if raw >= 1 && raw <= 15 { Some(Self(raw)) } else { None }
    }

    /// The scope as it stands in a GID.
    pub const fn to_wire(self) -> u8 {
        self.0
    }
}

impl TryFrom<u8> for MulticastScope {
    type Error = OutOfRange;
    fn try_from(raw: u8) -> Result<Self, OutOfRange> {
        let error = OutOfRange { what: "multicast scope", raw: raw.into(), allowed: "1..=15" };
        Self::from_wire(raw).ok_or(error)
    }
}

impl From<MulticastScope> for u8 {
    fn from(scope: MulticastScope) -> u8 {
        scope.0
    }
}

/// Capabilities of the devices of a fabric. Devices that did not report theirs have the defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Capabilities {
    /// Ports whose capabilities differ from `default_port`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", with = "pair_list")]
    pub ports: BTreeMap<PortName, PortCapability>,
    /// Switches whose capabilities differ from `default_switch`, by node GUID.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub switches: BTreeMap<Guid, SwitchCapability>,
    /// Switches that route adaptively, by node GUID: their packets need not follow the planned routes.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub adaptive_routing: BTreeSet<Guid>,
    /// Capabilities of ports that are not in `ports`.
    #[serde(alias = "usual_port")]
    pub default_port: PortCapability,
    /// Capabilities of switches that are not in `switches`.
    #[serde(alias = "usual_switch")]
    pub default_switch: SwitchCapability,
}

impl Capabilities {
    /// The capabilities of a port, or the default.
    pub fn port(&self, name: PortName) -> PortCapability {
        self.ports.get(&name).copied().unwrap_or(self.default_port)
    }

    /// The capabilities of a switch, or the default.
    pub fn switch(&self, guid: Guid) -> SwitchCapability {
        self.switches.get(&guid).copied().unwrap_or(self.default_switch)
    }

    /// The number of P_Keys that a switch port enforces on the adapter port behind it. 0 if it cannot: the switch has no
    /// enforcement in both directions, or one of the two ports or the switch does not take what isolates tenants.
    pub fn enforced_pkeys(&self, switch_port: PortName, adapter_port: PortName) -> u16 {
        let switch = PortName { node: switch_port.node, port: PortNum::MANAGEMENT };
        let isolates = [switch, switch_port, adapter_port].into_iter().all(|name| self.port(name).isolates);
        if isolates { self.switch(switch_port.node).enforced_pkeys } else { 0 }
    }
}

/// Capabilities of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortCapability {
    /// Entries of the P_Key table of an adapter port. For ports of switches see [`SwitchCapability`].
    pub pkeys: u16,
    /// Largest MTU of the port: PortInfo:MTUCap.
    #[serde(deserialize_with = "known::mtu")]
    pub mtu: Mtu,
    /// Data lanes of the port: PortInfo:VLCap.
    #[serde(deserialize_with = "known::lanes")]
    pub lanes: DataLanes,
    /// PortInfo:VLArbitrationLowCap: entries of the low-priority arbitration table.
    #[serde(default = "default_arbitration")]
    pub arbitration: u8,
    /// Receive buffer of each lane. Devices do not report it; `None` disables the checks that need it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lane_buffer: Option<LaneBuffer>,
    /// Whether the port takes the entries that isolate tenants. False once its device refused one of them, or took it
    /// without effect. Port 0 of a switch speaks for the whole switch.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub isolates: bool,
    /// Whether the port maps service levels to lanes and arbitrates between them: PortInfo:IsSLMappingSupported, unless its
    /// device refused such an entry, or took it without effect.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub divides_lanes: bool,
    /// Fastest rate that is enabled at the port: PortInfo:LinkWidthEnabled with the fastest enabled speed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled_rate: Option<LinkRate>,
}

const fn yes() -> bool {
    true
}

fn is_yes(flag: &bool) -> bool {
    *flag
}

/// Receive buffer of a lane at the end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaneBuffer {
    pub bytes: u32,
    /// Credit round trip: the time from sending a packet until its credits return, if it is forwarded at once.
    #[serde(default = "default_round_trip_ns")]
    pub round_trip_ns: u32,
}

/// The value that NVIDIA's NVOS shows for a link.
const fn default_round_trip_ns() -> u32 {
    248
}

const fn default_arbitration() -> u8 {
    8
}

/// The values of `ibsim`, which no adapter in the field falls below.
impl Default for PortCapability {
    fn default() -> Self {
        Self {
            pkeys: 64,
            mtu: Mtu::B2048,
            lanes: DataLanes::Eight,
            arbitration: default_arbitration(),
            lane_buffer: None,
            isolates: true,
            divides_lanes: true,
            enabled_rate: None,
        }
    }
}

/// Capabilities of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchCapability {
    /// SwitchInfo:LinearFDBCap: one more than the highest LID it can forward to.
    pub linear: u16,
    /// SwitchInfo:MulticastFDBCap: entries of the multicast forwarding table.
    pub multicast: u16,
    /// SwitchInfo:PartitionEnforcementCap: P_Keys that each external port can enforce.
    pub enforced_pkeys: u16,
    /// Entries of the P_Key table of port 0.
    pub own_pkeys: u16,
    /// SwitchInfo:FilterRawInboundCap and FilterRawOutboundCap: whether external ports can discard raw packets, which have no
    /// P_Key.
    #[serde(default = "filters_raw_by_default")]
    pub filters_raw: bool,
}

/// Intents of earlier versions do not say it.
fn filters_raw_by_default() -> bool {
    SwitchCapability::default().filters_raw
}

impl Default for SwitchCapability {
    fn default() -> Self {
        Self { linear: 0xc000, multicast: 1024, enforced_pkeys: 64, own_pkeys: 8, filters_raw: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_earlier_versions_are_still_read() {
        let old = r#"{ "who": "all-adapters", "role": "full", "place": "first" }"#;
        let expected = Member {
            selector: MemberSelector::AllAdapters,
            role: Role::Full,
            placement: PkeyPlacement::First,
        };
        assert_eq!(serde_json::from_str::<Member>(old).unwrap(), expected);

        let capabilities = Capabilities::default();
        let json = serde_json::to_string(&capabilities).unwrap();
        let old = json.replace("default_port", "usual_port").replace("default_switch", "usual_switch");
        assert_ne!(old, json);
        assert_eq!(serde_json::from_str::<Capabilities>(&old).unwrap(), capabilities);
    }
}
