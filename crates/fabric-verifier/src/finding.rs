//! Violations that the verifier reports, each with the table entry or the path that shows it.

mod rules;
mod text;
mod witness;

use fabric_model::intent::{PortName, Role};
use fabric_model::tenancy::Bandwidth;
use ib_wire::{
    DataLanes, Gid, Guid, Lid, Mtu, MulticastLid, PartitionNumber, Pkey, PortNum, ServiceLevel, VirtualLane,
};
use thiserror::Error;

use crate::Rule;
use text::{came_in, list, map_input, or, role};
pub use witness::{LaneWait, LinkWait, PacketDestination, PkeyTableKind, SwitchExit, TableKind};

/// A violation of a [`Rule`] by a plan.
///
/// A `Guid` that names a port is a port GUID, one that names a switch is a node GUID. [`PortName`] is used where the
/// finding concerns a table of a device. `Display` prints one sentence with all values that an operator needs to find
/// the entry.
#[derive(Clone, Debug, Error, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Finding {
    #[error("no port of the topology has the subnet manager's port GUID {port}")]
    ManagerMissing { port: Guid },
    /// `held` is the LID that the plan gives the intended manager port.
    #[error(
        "the plan programs {planned} at LID {planned_lid} as subnet manager, but the subnet manager is {intended} at LID {}",
        or(.held, "(none)")
    )]
    ManagerDiffers { planned: Guid, planned_lid: Lid, intended: Guid, held: Option<Lid> },
    #[error("ports {first} and {second} both have LID {lid}")]
    DuplicateLid { lid: Lid, first: Guid, second: Guid },
    /// An end port that cables connect to the subnet manager, but that the plan does not contain.
    #[error("end port {port} is connected to the subnet manager, but the plan does not contain it")]
    PortMissing { port: PortName },
    /// An end port of the plan that the topology lacks, or that no cable connects to the subnet manager.
    #[error("the plan contains end port {port}, which is not connected to the subnet manager")]
    PortUnknown { port: PortName },
    #[error("port {port} has GUID {found}, but the plan says {planned}")]
    GuidDiffers { port: PortName, planned: Guid, found: Guid },
    /// `planned` and `found` are the other end of the cable.
    #[error("port {port} is cabled to {}, but the plan says {}", or(.found, "nothing"), or(.planned, "nothing"))]
    CableDiffers { port: PortName, planned: Option<PortName>, found: Option<PortName> },
    #[error("entry {index} of the GUID table of port {port} differs from the intents")]
    AliasDiffers { port: Guid, index: u8 },
    /// `first` and `second` are the port GUIDs of the owners.
    #[error("alias GUID {alias} of port {second} is also an address of port {first}")]
    AliasShared { alias: Guid, first: Guid, second: Guid },

    #[error("forwarding loop: packets to LID {lid} pass {} again and again", list(.cycle))]
    ForwardingLoop { lid: Lid, cycle: Vec<SwitchExit> },
    #[error("the forwarding table sends packets to LID {lid} to {exit}, which has no cable")]
    ExitWithoutCable { lid: Lid, exit: SwitchExit },
    /// A switch on the path has no entry for the LID, although the partitions let `from` talk to its owner.
    #[error(
        "packets from {from} to LID {lid} take [{}] and are dropped at switch {at}, which has no entry for the LID",
        list(.path)
    )]
    NotForwarded { lid: Lid, from: Guid, path: Vec<SwitchExit>, at: Guid },
    /// The last exit of the path leads to `to` instead of the owner of the LID, to which the partitions let `from` talk.
    #[error(
        "packets from {from} to LID {lid} take [{}] and arrive at {}, which does not own the LID",
        list(.path), or(.to, "no port")
    )]
    Misrouted { lid: Lid, from: Guid, path: Vec<SwitchExit>, to: Option<PortName> },
    /// Each link waits for buffer credits of the next, and the last for those of the first.
    #[error("credit loop: packets can wait for buffers in a cycle of {} links: {}", .cycle.len(), list(.cycle))]
    CreditLoop { cycle: Vec<LinkWait> },

    #[error("the plan gives partition {name:?} no number")]
    PartitionMissing { name: String },
    /// The member list of a partition, from which the subnet administration answers queries, differs from the intents.
    #[error("port {port} should be {} of partition {partition}, but the plan says {}", role(.intended), role(.planned))]
    MemberDiffers { partition: PartitionNumber, port: Guid, intended: Option<Role>, planned: Option<Role> },
    /// `port` is an end port, or the switch port in front of one.
    #[error("the {table} of {port} lacks P_Key {key}")]
    KeyMissing { port: PortName, key: Pkey, table: PkeyTableKind },
    /// `port` is an end port, or the switch port in front of one.
    #[error("the {table} of {port} holds P_Key {key}, which the intents do not give it")]
    KeyUnwanted { port: PortName, key: Pkey, table: PkeyTableKind },
    #[error("index 0 of the P_Key table of {port} should hold partition {intended}, but holds {}", or(.holds, "nothing"))]
    IndexZeroDiffers { port: PortName, intended: PartitionNumber, holds: Option<Pkey> },
    #[error("switch port {port} faces an end node, but does not enforce P_Keys")]
    EnforcementOff { port: PortName },
    #[error("switch port {port} faces another switch, but enforces P_Keys")]
    EnforcementBetweenSwitches { port: PortName },
    /// Two ports that may not talk are separated by one of the two kinds of tables only, or by none: `table` lets `key`
    /// pass between them.
    #[error("{from} and {to} may not talk, but the {table}s let P_Key {key} pass between them on path [{}]", list(.path))]
    IsolationBroken { from: Guid, to: Guid, key: Pkey, table: PkeyTableKind, path: Vec<SwitchExit> },

    /// `reached` is a port of the site that is a full member of the default partition.
    #[error(
        "the {table} of {port}, which is handed over, holds a key of the default partition, whose full member {reached} is a \
         port of the site"
    )]
    HandedOverInDefault { port: Guid, table: PkeyTableKind, reached: Guid },
    /// The partition of the key has no owner.
    #[error(
        "the {table} of {port}, which is handed over, holds key {key} of a partition of the site, but may only hold a limited key"
    )]
    HandedOverFull { port: Guid, key: Pkey, table: PkeyTableKind },
    #[error("the {table} of {port}, which is not handed over, holds key {key} of the partition of {owner:?}")]
    SitePortInOwnedPartition { port: Guid, key: Pkey, table: PkeyTableKind, owner: String },
    #[error("the {table} of {port}, which is not handed over, holds key {key} of the management partition")]
    SitePortInManagement { port: Guid, key: Pkey, table: PkeyTableKind },

    #[error("partition {partition} should carry IP, but has no broadcast group")]
    GroupMissing { partition: PartitionNumber },
    #[error("the intents do not ask for multicast group {mgid}, or its partition has another one")]
    GroupUnwanted { mgid: Gid },
    #[error(
        "MGID, rate, MTU, service level, scope or Q_Key of group {mgid} of partition {partition} differ from the intents"
    )]
    GroupDiffers { mgid: Gid, partition: PartitionNumber },
    /// `intended` is true if the port should be a member.
    #[error(
        "group {mgid} {} port {port}, which is {} its partition",
        if *.intended { "does not list" } else { "lists" },
        if *.intended { "in" } else { "not in" }
    )]
    GroupMemberDiffers { mgid: Gid, port: Guid, intended: bool },
    #[error("multicast loop: packets to group {mlid} pass {} again and again", list(.cycle))]
    GroupLoop { mlid: MulticastLid, cycle: Vec<SwitchExit> },
    /// The switch behind the exit does not send the group back by `to`, the port at which the packets enter.
    #[error("packets to group {mlid} go out at {exit}, but none come back by {}", or(.to, "any port"))]
    GroupOneWay { mlid: MulticastLid, exit: SwitchExit, to: Option<PortName> },
    #[error("packets to group {mlid} go out at {exit} to {}, which is not a member", or(.to, "a port without cable"))]
    GroupMisrouted { mlid: MulticastLid, exit: SwitchExit, to: Option<PortName> },
    /// `at` is the switch port in front of the member.
    #[error("packets to group {mlid} do not reach its member {member} behind {at}")]
    GroupMemberUnreached { mlid: MulticastLid, member: Guid, at: PortName },
    #[error(
        "the groups of partitions {first} and {second} share multicast LID {mlid}, and their trees meet at switch {switch}"
    )]
    GroupTreesMeet { mlid: MulticastLid, switch: Guid, first: PartitionNumber, second: PartitionNumber },

    /// `entries` counts up to the last entry in use.
    #[error("the {table} of {port} needs {entries} entries, but has {capacity}")]
    TableTooLong { table: TableKind, port: PortName, entries: usize, capacity: usize },
    #[error("switch {switch} holds {capacity} multicast groups, and {mlid} is beyond them")]
    GroupBeyondTable { switch: Guid, mlid: MulticastLid, capacity: u16 },
    #[error(
        "port {port} should run MTU {} with {} data lanes, which one end of the link does not support",
        .mtu.bytes(), .lanes.count()
    )]
    LinkBeyondEnds { port: PortName, mtu: Mtu, lanes: DataLanes },
    #[error(
        "arbitration entry {index} of {port} has lane {lane} and weight {weight}; the weight must not be 0, and the link must have the lane"
    )]
    ArbitrationEntryInvalid { port: PortName, index: usize, lane: VirtualLane, weight: u8 },
    #[error("{port} maps service level {sl} to lane {lane}, which its link does not have, {}", map_input(.input))]
    LaneBeyondLink { port: PortName, input: Option<PortNum>, sl: ServiceLevel, lane: VirtualLane },

    #[error("{port} maps service level {sl} to lane {lane}, which has no arbitration weight, {}", map_input(.input))]
    LaneWithoutWeight { port: PortName, input: Option<PortNum>, sl: ServiceLevel, lane: VirtualLane },
    #[error("{port} discards service level 0, which every port may use, {}", map_input(.input))]
    BestEffortDiscarded { port: PortName, input: Option<PortNum> },
    /// Packets from `from` to `to` arrive; those from `to` to `from` are discarded at `at`.
    #[error(
        "service level {sl} is carried from {from} to {to} on path [{}], but on the way back it is discarded at {at}{}",
        list(.path), came_in(.input)
    )]
    ServiceLevelOneWay {
        sl: ServiceLevel,
        from: Guid,
        to: Guid,
        path: Vec<SwitchExit>,
        at: PortName,
        input: Option<PortNum>,
    },
    /// A lane in the high-priority table is served before every guaranteed lane. `index` counts entries with weight.
    #[error(
        "high-priority arbitration entry {index} of {port} serves lane {lane} before every guaranteed lane"
    )]
    HighPriorityWeight { port: PortName, index: usize, lane: VirtualLane },
    #[error("service level {sl} of group {mlid} is discarded at {at}{}", came_in(.input))]
    GroupServiceLevelDiscarded { mlid: MulticastLid, sl: ServiceLevel, at: PortName, input: Option<PortNum> },

    #[error("the intents contain two clusters named {cluster:?}")]
    DuplicateCluster { cluster: String },
    #[error(
        "the plan grants cluster {cluster:?} links, but the intents contain no guaranteed cluster of that name"
    )]
    ClusterUnwanted { cluster: String },
    /// Packets need not follow the planned routes, so that nothing can be guaranteed.
    #[error("cluster {cluster:?} has a guarantee, although switch {switch} routes adaptively")]
    RoutedAdaptively { cluster: String, switch: Guid },
    /// The intents give one partition number to two owners, which makes their partitions one. Each has the port in it.
    #[error(
        "partition number {partition} belongs to both {first:?} (port {first_port}) and {second:?} (port {second_port})"
    )]
    PartitionNumberShared {
        partition: PartitionNumber,
        first: String,
        first_port: Guid,
        second: String,
        second_port: Guid,
    },
    /// At least one of the clusters is guaranteed.
    #[error("port {port} is in both cluster {first:?} and cluster {second:?}")]
    PortShared { port: Guid, first: String, second: String },
    /// Two clusters, at least one of them guaranteed, have members that are not limited in one partition.
    #[error(
        "port {first_port} of cluster {first:?} and port {second_port} of cluster {second:?} are both more than limited \
         members of partition {partition}"
    )]
    PartitionShared {
        partition: PartitionNumber,
        first: String,
        first_port: Guid,
        second: String,
        second_port: Guid,
    },
    #[error("lane {lane} of {port} is granted to both cluster {first:?} and cluster {second:?}")]
    LaneShared { port: PortName, lane: VirtualLane, first: String, second: String },
    #[error("service level {sl} of {port} is granted to both cluster {first:?} and cluster {second:?}")]
    ServiceLevelShared { port: PortName, sl: ServiceLevel, first: String, second: String },
    #[error("service level 0 of {port}, which every port may use, is granted to cluster {cluster:?}")]
    BestEffortGranted { port: PortName, cluster: String },
    #[error("the service level or the lane of management on {port} is granted to cluster {cluster:?}")]
    ManagementGranted { port: PortName, cluster: String },
    /// The service level of management is mapped to another lane than its own (15 if discarded), or service level 0 to the
    /// lane that is reserved for management.
    #[error("{port} maps service level {sl} to lane {lane}, so that management has no lane of its own, {}", map_input(.input))]
    ManagementLaneDiffers { port: PortName, input: Option<PortNum>, sl: ServiceLevel, lane: VirtualLane },
    /// While any cluster is guaranteed, every port must have planned SL-to-VL and arbitration tables.
    #[error(
        "the plan contains no SL-to-VL and arbitration tables for {port}, although clusters are guaranteed"
    )]
    SharingMissing { port: PortName },
    /// A hop carries a service level that no cluster was granted on both its links. `here` owns it on the output link,
    /// `there` on the input link.
    #[error(
        "{port} carries service level {sl} in lane {lane} {}; it is granted to {} on this link and to {} on the link before",
        map_input(.input), or(.here, "no cluster"), or(.there, "no cluster")
    )]
    ServiceLevelNotGranted {
        port: PortName,
        input: Option<PortNum>,
        sl: ServiceLevel,
        lane: VirtualLane,
        here: Option<String>,
        there: Option<String>,
    },
    /// `owner` was granted the lane; `sender` was granted the service level, or is `None` for service level 0.
    #[error(
        "{port} maps service level {sl} of {} to lane {lane}, which belongs to {}, {}",
        or(.sender, "best effort"), or(.owner, "no cluster"), map_input(.input)
    )]
    ForeignLane {
        port: PortName,
        input: Option<PortNum>,
        sl: ServiceLevel,
        lane: VirtualLane,
        owner: Option<String>,
        sender: Option<String>,
    },

    /// The plan decides nothing for a guaranteed cluster, or for other ports, another class or other weights than intended.
    #[error(
        "the plan contains no guarantee for cluster {cluster:?} with the ports, class and weights of the intents"
    )]
    GuaranteeMissing { cluster: String },
    #[error("port {port} of cluster {cluster:?} is not connected to the fabric")]
    ClusterPortMissing { cluster: String, port: Guid },
    /// `between` names two switches, by node GUID, where the cluster should have a service level per pair of switches.
    #[error("cluster {cluster:?} has no service level {}", match .between {
        Some((a, b)) => format!("between switches {a} and {b}"),
        None => "that all its links carry".to_owned(),
    })]
    ServiceLevelMissing { cluster: String, between: Option<(Guid, Guid)> },
    #[error("cluster {cluster:?} is granted a share of the link out of {port}, which does not exist")]
    GrantWithoutLink { cluster: String, port: PortName },
    #[error(
        "cluster {cluster:?} is granted a share of the cable at {port}, whose end node is not in the cluster"
    )]
    GrantOnForeignPort { cluster: String, port: PortName },
    #[error(
        "packets of cluster {cluster:?} from {from} to {to} leave by {port}, where the cluster is granted nothing"
    )]
    GrantMissing { cluster: String, port: PortName, from: Guid, to: Guid },
    #[error("packets of cluster {cluster:?} from {from} do not arrive at {to}")]
    ClusterPortUnreached { cluster: String, from: Guid, to: Guid },
    /// `at` does not map `sl` to the lane that the cluster was granted there.
    #[error(
        "packets of cluster {cluster:?} from {from} to {to} with service level {sl} do not get the cluster's lane at {at}{}",
        came_in(.input)
    )]
    ServiceLevelDiscarded {
        cluster: String,
        sl: ServiceLevel,
        from: Guid,
        to: Guid,
        at: PortName,
        input: Option<PortNum>,
    },
    #[error("lane {lane} of cluster {cluster:?} at {port} has no arbitration entry")]
    LaneUnserved { cluster: String, port: PortName, lane: VirtualLane },
    /// `given` is the worst case over what the other lanes send; `entry` is the arbitration entry with the longest wait.
    #[error(
        "cluster {cluster:?} needs {needed} of the link out of {port}, but lane {lane} gets only {given} in the worst case \
         (longest wait: arbitration entry {entry})"
    )]
    ShareTooSmall {
        cluster: String,
        port: PortName,
        lane: VirtualLane,
        entry: usize,
        needed: Bandwidth,
        given: Bandwidth,
    },
    /// A lane's receive buffer must hold what the share sends in one credit round trip, and one packet of the largest size.
    #[error(
        "cluster {cluster:?} needs {needed} bytes of lane buffer behind the link out of {port}, but there are {held}"
    )]
    BufferTooSmall { cluster: String, port: PortName, needed: u64, held: u64 },
    /// `bound_ns` is the worst case over what the other lanes send; `waits` holds its part at each port of the path.
    #[error(
        "a packet of cluster {cluster:?} from {from} to {to} may take {bound_ns} ns, but {guaranteed_ns} ns are guaranteed; \
         it waits at {}",
        list(.waits)
    )]
    LatencyExceeded {
        cluster: String,
        from: Guid,
        to: Guid,
        bound_ns: u64,
        guaranteed_ns: u64,
        waits: Vec<LaneWait>,
    },
    /// Stands for `count` findings of the same part that are not kept, see [`PART_FINDINGS_MAX`](crate::PART_FINDINGS_MAX).
    #[error("{count} more findings of the same kind are not listed")]
    Omitted { rule: Rule, count: usize },
}
