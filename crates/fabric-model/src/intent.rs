//! What is wanted of a fabric: who manages it, which partitions it has, and what its devices can hold.

use std::collections::BTreeMap;
use std::fmt;

use ib_wire::OutOfRange;
use ib_wire::sa::Rate;
use ib_wire::{DataLanes, Guid, Membership, Mtu, PartitionNumber, Pkey, PortNum, QKey, ServiceLevel};
use serde::{Deserialize, Serialize};

use crate::serde_with::{known, listed, written_qkey};
use crate::tenancy::{Class, SlMode};

/// Everything a plan is made from besides the cables and the decisions of before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Intents {
    /// GUID of the port behind which the subnet manager sits.
    pub manager: Guid,
    /// The partitions, in the order they were asked for. Entries with the same number count as one: the first name and
    /// the first IPoIB setting hold, members add up. The default partition exists even if none speaks of it.
    pub partitions: Vec<PartitionIntent>,
    /// To whom partitions belong. A partition that is not named here belongs to nobody in particular.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub owners: PartitionOwners,
    /// The virtual clusters that are promised something, in the order they were asked for; names are unique.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clusters: Vec<ClusterIntent>,
    /// Ways that owners of ports chose for packets to them.
    #[serde(rename = "routes", default, skip_serializing_if = "BTreeMap::is_empty")]
    pub route_overrides: RouteOverrides,
    /// How owners of clusters divide what these have.
    #[serde(rename = "classes", default, skip_serializing_if = "BTreeMap::is_empty")]
    pub class_weights: ClassWeights,
    /// What the devices can hold.
    #[serde(default)]
    pub capabilities: Capabilities,
}

impl Intents {
    /// The default partition only, on devices of which nothing is known.
    pub fn new(manager: Guid) -> Self {
        Self {
            manager,
            partitions: Vec::new(),
            owners: PartitionOwners::new(),
            clusters: Vec::new(),
            route_overrides: RouteOverrides::new(),
            class_weights: ClassWeights::new(),
            capabilities: Capabilities::default(),
        }
    }
}

/// To whom partitions belong: by number, every owner that uses it, with one of its ports as a witness. Owners are told apart
/// by an opaque id, such as that of a cluster. A number with two owners joins their networks, since entries of
/// [`Intents::partitions`] with one number count as one; it is never compiled, and found in whatever was.
pub type PartitionOwners = BTreeMap<PartitionNumber, BTreeMap<String, Guid>>;

/// Where packets to a port are to leave switches, by port GUID, then by the switch's node GUID. At switches that are not
/// named they go as without a wish.
pub type RouteOverrides = BTreeMap<Guid, BTreeMap<Guid, PortNum>>;

/// What classes of packets are to get of what their cluster has, relative to each other, by the cluster's name. The first is
/// that of the cluster's own level.
pub type ClassWeights = BTreeMap<String, Vec<u32>>;

/// A virtual cluster that is asked for, on ports that were chosen for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterIntent {
    /// What it is called; also by the next compilation.
    pub name: String,
    /// The ports of its nodes, by port GUID. A guaranteed cluster has them to itself.
    pub ports: Vec<Guid>,
    /// What it is promised.
    pub class: Class,
    /// How its packets are told from others'.
    #[serde(default)]
    pub sl_mode: SlMode,
}

/// A partition that is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartitionIntent {
    /// What people call it.
    pub name: String,
    /// Its number; `None` takes the number of the partition of this name, or a free one if there is none yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<PartitionNumber>,
    /// MemberSelector is in it. Where a port is named twice, the later entry holds.
    pub members: Vec<Member>,
    /// IP over InfiniBand: the partition gets a broadcast group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipoib: Option<Ipoib>,
}

/// One entry of a partition's list of members.
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

/// Whom an entry of a list of members names.
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
    /// The subnet manager's port.
    Manager,
    /// The port with this GUID, which may be absent.
    Port(Guid),
}

/// What a port is in a partition. More than a [`Membership`]: a port may hold both keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Holds the limited key.
    Limited,
    /// Holds the full key.
    Full,
    /// Holds both.
    Both,
}

impl Role {
    /// The keys a port with this role holds, the full one first.
    pub fn keys(self, partition: PartitionNumber) -> impl Iterator<Item = Pkey> {
        let memberships: &[Membership] = match self {
            Self::Limited => &[Membership::Limited],
            Self::Full => &[Membership::Full],
            Self::Both => &[Membership::Full, Membership::Limited],
        };
        memberships.iter().map(move |membership| partition.key(*membership))
    }
}

/// Where a key stands in a port's table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PkeyPlacement {
    /// At index 0: what software takes that does not choose.
    First,
    /// Anywhere.
    #[default]
    Anywhere,
}

/// How IP travels in a partition: the properties of its broadcast group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ipoib {
    /// The slowest port that may take part.
    #[serde(deserialize_with = "known::rate")]
    pub rate: Rate,
    /// Largest packet.
    #[serde(deserialize_with = "known::mtu")]
    pub mtu: Mtu,
    /// Service level of the group.
    pub sl: ServiceLevel,
    /// How far the group reaches.
    pub scope: MulticastScope,
    /// Queue key of the group.
    #[serde(with = "written_qkey")]
    pub qkey: QKey,
}

impl Ipoib {
    /// The queue key that IP over InfiniBand uses where nobody chose another.
    pub const DEFAULT_QKEY: QKey = QKey::from_wire(0x0b1b);
}

/// The values opensm has.
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

/// How far a multicast group reaches, 1..=15.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct MulticastScope(u8);

impl MulticastScope {
    /// This subnet.
    pub const LINK_LOCAL: Self = Self(2);

    /// Checks a number; `None` if it is 0 or above 15.
    pub const fn from_wire(raw: u8) -> Option<Self> {
        if raw >= 1 && raw <= 15 { Some(Self(raw)) } else { None }
    }

    /// The number.
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

/// A port by its node's GUID and its number: names every port, also those of switches, which share one port GUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PortName {
    /// GUID of its node.
    pub node: Guid,
    /// Its number.
    pub port: PortNum,
}

impl fmt::Display for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", self.node, self.port)
    }
}

/// What the devices of a fabric can hold. What was not learnt from a device is assumed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Capabilities {
    /// Ports other than the usual.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", with = "listed")]
    pub ports: BTreeMap<PortName, PortCapability>,
    /// Switches other than the usual, by node GUID.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub switches: BTreeMap<Guid, SwitchCapability>,
    /// Capabilities of ports that are not in `ports`.
    #[serde(alias = "usual_port")]
    pub default_port: PortCapability,
    /// Capabilities of switches that are not in `switches`.
    #[serde(alias = "usual_switch")]
    pub default_switch: SwitchCapability,
}

impl Capabilities {
    /// What a port can do.
    pub fn port(&self, name: PortName) -> PortCapability {
        self.ports.get(&name).copied().unwrap_or(self.default_port)
    }

    /// What a switch can do.
    pub fn switch(&self, guid: Guid) -> SwitchCapability {
        self.switches.get(&guid).copied().unwrap_or(self.default_switch)
    }
}

/// What a port can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortCapability {
    /// Entries of an adapter port's P_Key table. Ports of switches have what [`SwitchCapability`] says.
    pub pkeys: u16,
    /// Largest packet.
    #[serde(deserialize_with = "known::mtu")]
    pub mtu: Mtu,
    /// Data lanes.
    #[serde(deserialize_with = "known::lanes")]
    pub lanes: DataLanes,
    /// Entries of its low-priority arbitration table: VLArbLowCap.
    #[serde(default = "default_arbitration")]
    pub arbitration: u8,
    /// What each lane has for packets that come in. Devices do not tell: where nobody knows it, `None`, and it is not looked
    /// at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lane_buffer: Option<LaneBuffer>,
}

/// The buffer of a lane behind a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaneBuffer {
    /// Bytes.
    pub bytes: u32,
    /// Nanoseconds from when a packet is sent until the sender may use its room again, if it goes on at once.
    #[serde(default = "default_round_trip_ns")]
    pub round_trip_ns: u32,
}

/// What a vendor's system shows for a link (NVOS, 248 ns).
const fn default_round_trip_ns() -> u32 {
    248
}

const fn default_arbitration() -> u8 {
    8
}

/// What `ibsim` emulates: small enough for every adapter in the field.
impl Default for PortCapability {
    fn default() -> Self {
        Self {
            pkeys: 64,
            mtu: Mtu::B2048,
            lanes: DataLanes::Eight,
            arbitration: default_arbitration(),
            lane_buffer: None,
        }
    }
}

/// What a switch can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchCapability {
    /// Entries of its linear forwarding table: one more than the highest LID it can forward to.
    pub linear: u16,
    /// Entries of its multicast forwarding table.
    pub multicast: u16,
    /// P_Keys that each external port can enforce.
    pub enforced_pkeys: u16,
    /// P_Keys of its own port 0.
    pub own_pkeys: u16,
}

impl Default for SwitchCapability {
    fn default() -> Self {
        Self { linear: 0xc000, multicast: 1024, enforced_pkeys: 64, own_pkeys: 8 }
    }
}
