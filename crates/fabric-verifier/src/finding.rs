//! What is wrong with a plan, each with the entry that shows it.

mod rules;
mod told;
mod witness;

use fabric_model::intent::{PortName, Role};
use fabric_model::tenancy::Bandwidth;
use ib_wire::{
    DataLanes, Gid, Guid, Lid, Mtu, MulticastLid, PartitionNumber, Pkey, PortNum, ServiceLevel, VirtualLane,
};

use crate::Rule;
pub use witness::{Destination, Guard, Hop, LaneWait, SharedNumber, Table, Wait};

/// Something that a plan does not keep. Adapter ports are named by port GUID in packets, by node and number in tables.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Finding {
    /// No port has the GUID that the manager's port is to have.
    ManagerMissing {
        /// The GUID.
        port: Guid,
    },
    /// Devices are told another manager than there is.
    ManagerDiffers {
        /// The port they are told.
        planned: Guid,
        /// The LID they are told.
        planned_lid: Lid,
        /// The manager's port.
        wanted: Guid,
        /// Its LID in the plan.
        held: Option<Lid>,
    },
    /// Two end ports have the same LID.
    LidTwice {
        /// The LID.
        lid: Lid,
        /// The first of them.
        first: Guid,
        /// Another one.
        second: Guid,
    },
    /// An end port that the manager reaches and the plan does not have.
    PortMissing {
        /// The port.
        port: PortName,
    },
    /// A port that the plan has and that is not there, or that nothing joins to the manager.
    PortUnknown {
        /// The port.
        port: PortName,
    },
    /// A port has another GUID than the plan says.
    GuidDiffers {
        /// The port.
        port: PortName,
        /// By the plan.
        planned: Guid,
        /// By the topology.
        found: Guid,
    },
    /// A cable ends elsewhere than the plan says.
    CableDiffers {
        /// The port.
        port: PortName,
        /// Its other end by the plan.
        planned: Option<PortName>,
        /// Its other end by the topology.
        found: Option<PortName>,
    },

    /// Packets to a LID circle.
    ForwardingLoop {
        /// The LID.
        lid: Lid,
        /// The exits they take, again and again.
        ring: Vec<Hop>,
    },
    /// Packets to a LID are to leave by a port that has no cable.
    ExitWithoutCable {
        /// The LID.
        lid: Lid,
        /// The exit.
        exit: Hop,
    },
    /// Packets of a port that may talk to the owner of a LID are dropped, since a switch has no entry for it.
    NotForwarded {
        /// The LID.
        lid: Lid,
        /// Who sends, by port GUID.
        from: Guid,
        /// The exits they take.
        path: Vec<Hop>,
        /// The switch without an entry.
        at: Guid,
    },
    /// Packets of a port that may talk to the owner of a LID come to somebody else.
    Astray {
        /// The LID.
        lid: Lid,
        /// Who sends, by port GUID.
        from: Guid,
        /// The exits they take; the last is the wrong one.
        path: Vec<Hop>,
        /// Where they come to.
        to: Option<PortName>,
    },
    /// A ring of links that can wait for each other for ever.
    CreditLoop {
        /// The links, each waiting for the next and the last for the first.
        ring: Vec<Wait>,
    },

    /// A partition without a number is asked for, and the plan gave it none.
    PartitionMissing {
        /// What people call it.
        name: String,
    },
    /// The plan's list of members is not what is asked for.
    MemberDiffers {
        /// The partition.
        partition: PartitionNumber,
        /// The port, by port GUID.
        port: Guid,
        /// What it is to be.
        wanted: Option<Role>,
        /// What the plan says.
        planned: Option<Role>,
    },
    /// A table lacks a key of its port.
    KeyMissing {
        /// The port: an end port, or the switch port in front of one.
        port: PortName,
        /// The key.
        key: Pkey,
        /// Which table.
        guard: Guard,
    },
    /// A table has a key that its port is not to have.
    KeyUnwanted {
        /// The port: an end port, or the switch port in front of one.
        port: PortName,
        /// The key.
        key: Pkey,
        /// Which table.
        guard: Guard,
    },
    /// A partition is to stand at index 0 of a port's table, and another stands there.
    IndexZero {
        /// The port.
        port: PortName,
        /// A partition that is to stand there.
        wanted: PartitionNumber,
        /// The key that does.
        holds: Option<Pkey>,
    },
    /// A switch port in front of an adapter lets everything pass.
    EnforcementOff {
        /// The switch port.
        port: PortName,
    },
    /// A switch port in front of another switch does not let everything pass.
    EnforcementInside {
        /// The switch port.
        port: PortName,
    },
    /// Two ports that may not talk are kept apart by one guard only, or by none.
    IsolationBroken {
        /// The port with a wrong table, by port GUID.
        from: Guid,
        /// Another port that it may not talk to.
        to: Guid,
        /// A key that the guard lets pass between them.
        key: Pkey,
        /// The guard that fails.
        guard: Guard,
        /// The exits that packets take.
        path: Vec<Hop>,
    },

    /// A partition is to carry IP and has no group.
    GroupMissing {
        /// The partition.
        partition: PartitionNumber,
    },
    /// A group that nobody asked for, or a second one of its partition.
    GroupUnwanted {
        /// Its address.
        mgid: Gid,
    },
    /// A group has other settings than were asked for.
    GroupDiffers {
        /// Its address.
        mgid: Gid,
        /// Its partition.
        partition: PartitionNumber,
    },
    /// A group's list of members is not that of the adapters in its partition.
    GroupMemberDiffers {
        /// The address of the group.
        mgid: Gid,
        /// The port, by port GUID.
        port: Guid,
        /// Whether it is to be in the list.
        wanted: bool,
    },
    /// Packets to a group can come to a switch twice.
    GroupLoop {
        /// The LID of the group.
        mlid: MulticastLid,
        /// The exits of the ring.
        ring: Vec<Hop>,
    },
    /// Packets to a group go from one switch to another but not back.
    GroupOneWay {
        /// The LID of the group.
        mlid: MulticastLid,
        /// The exit they take.
        exit: Hop,
        /// The port by which they come in, which is not an exit.
        to: Option<PortName>,
    },
    /// Packets to a group leave to a port that is not a member's, or that has no cable.
    GroupAstray {
        /// The LID of the group.
        mlid: MulticastLid,
        /// The exit.
        exit: Hop,
        /// What is there.
        to: Option<PortName>,
    },
    /// Packets to a group do not come to one of its members.
    GroupUnreached {
        /// The LID of the group.
        mlid: MulticastLid,
        /// The member, by port GUID.
        member: Guid,
        /// The port whose switch lacks the exit or the way.
        at: PortName,
    },
    /// Two groups that share a LID meet in a switch.
    GroupsMeet {
        /// The LID.
        mlid: MulticastLid,
        /// The switch.
        switch: Guid,
        /// One of their partitions.
        first: PartitionNumber,
        /// The other.
        second: PartitionNumber,
    },
    /// A table has more entries than its device can hold.
    TableTooLong {
        /// Which.
        table: Table,
        /// Whose.
        port: PortName,
        /// Entries up to the last one in use.
        entries: usize,
        /// Entries it can hold.
        capacity: usize,
    },
    /// A switch cannot hold the entry of a group.
    GroupBeyondTable {
        /// The switch.
        switch: Guid,
        /// The LID of the group.
        mlid: MulticastLid,
        /// Groups it can hold.
        capacity: u16,
    },
    /// A link is to carry larger packets or more lanes than one of its ends can.
    LinkBeyondEnds {
        /// The port.
        port: PortName,
        /// Planned packet size.
        mtu: Mtu,
        /// Planned lanes.
        lanes: DataLanes,
    },
    /// An arbitration entry has weight 0, or names a lane that its link does not have.
    ArbitrationEntry {
        /// The port.
        port: PortName,
        /// Its place in the table.
        index: usize,
        /// The lane it names.
        lane: VirtualLane,
        /// Its weight.
        weight: u8,
    },
    /// A service level maps to a lane that its link does not have.
    LaneBeyondLink {
        /// The port packets leave by.
        port: PortName,
        /// The port they came in by; `None` for all that are not listed.
        input: Option<PortNum>,
        /// The level.
        sl: ServiceLevel,
        /// The lane.
        lane: VirtualLane,
    },

    /// A service level maps to a lane that arbitration never serves.
    LaneWithoutWeight {
        /// The port packets leave by.
        port: PortName,
        /// The port they came in by; `None` for all that are not listed.
        input: Option<PortNum>,
        /// The level.
        sl: ServiceLevel,
        /// The lane.
        lane: VirtualLane,
    },
    /// Service level 0, which everybody may use, is discarded.
    BestEffortDiscarded {
        /// The port packets would leave by.
        port: PortName,
        /// The port they came in by; `None` for all that are not listed.
        input: Option<PortNum>,
    },
    /// A service level is carried from one port to another but not back.
    LevelOneWay {
        /// The level.
        sl: ServiceLevel,
        /// The port whose packets arrive, by port GUID.
        from: Guid,
        /// The port whose packets do not.
        to: Guid,
        /// The exits by which they arrive.
        path: Vec<Hop>,
        /// The exit where those on the way back are discarded.
        at: PortName,
        /// Where they came in there; `None` at the sender itself.
        input: Option<PortNum>,
    },
    /// A high-priority arbitration entry has weight: its lane goes before all that was promised.
    HighPriority {
        /// The port.
        port: PortName,
        /// The entry, counted among those with weight.
        index: usize,
        /// Its lane.
        lane: VirtualLane,
    },
    /// The service level of a group is discarded on the way to its members.
    GroupLevelDiscarded {
        /// The LID of the group.
        mlid: MulticastLid,
        /// The level.
        sl: ServiceLevel,
        /// The exit.
        at: PortName,
        /// Where packets came in; `None` at the sender itself.
        input: Option<PortNum>,
    },
    /// Two clusters have the same name.
    ClusterTwice {
        /// The name.
        cluster: String,
    },
    /// The plan speaks of a guaranteed cluster that nobody asked for.
    ClusterUnwanted {
        /// Its name.
        cluster: String,
    },
    /// A partition number belongs to two owners: their networks are one.
    NumberOfTwo(SharedNumber),
    /// A port is to be in two clusters, one of them guaranteed.
    PortOfTwo {
        /// The port, by port GUID.
        port: Guid,
        /// One of them.
        first: String,
        /// The other.
        second: String,
    },
    /// Two clusters, one of them guaranteed, have more than limited members in one partition.
    KeyOfTwo {
        /// The partition.
        partition: PartitionNumber,
        /// One of them.
        first: String,
        /// A port of it that is such a member.
        first_port: Guid,
        /// The other.
        second: String,
        /// A port of it.
        second_port: Guid,
    },
    /// Two clusters were given the same lane of a link.
    LaneOfTwo {
        /// The port packets leave by.
        port: PortName,
        /// The lane.
        lane: VirtualLane,
        /// One of them.
        first: String,
        /// The other.
        second: String,
    },
    /// Two clusters were given the same service level on a link.
    LevelOfTwo {
        /// The port packets leave by.
        port: PortName,
        /// The level.
        sl: ServiceLevel,
        /// One of them.
        first: String,
        /// The other.
        second: String,
    },
    /// A cluster was given level 0, which is for everybody.
    BestEffortGranted {
        /// The port packets leave by.
        port: PortName,
        /// Who was.
        cluster: String,
    },
    /// A cluster was given the level or the lane of management.
    ManagementGranted {
        /// The port packets leave by.
        port: PortName,
        /// Who was.
        cluster: String,
    },
    /// The level of management goes elsewhere than to its lane, or level 0 to the lane that management has to itself.
    ManagementAstray {
        /// The port packets leave by.
        port: PortName,
        /// The port they came in by; `None` for all that are not listed, and at adapters.
        input: Option<PortNum>,
        /// The level.
        sl: ServiceLevel,
        /// The lane it goes to; 15 if it is discarded.
        lane: VirtualLane,
    },
    /// Lanes are guarded, but what leaves by a port is left to the device.
    PortUnguarded {
        /// The port.
        port: PortName,
    },
    /// A turn takes a service level that no cluster has on both its links.
    LevelNotGranted {
        /// The port packets leave by.
        port: PortName,
        /// The port they came in by; `None` for all that are not listed, and at adapters.
        input: Option<PortNum>,
        /// The level.
        sl: ServiceLevel,
        /// The lane it goes to.
        lane: VirtualLane,
        /// Who has it on the link behind.
        here: Option<String>,
        /// Who has it on the link before.
        there: Option<String>,
    },
    /// A service level goes to a lane that is not the one of its cluster.
    LaneOfOther {
        /// The port packets leave by.
        port: PortName,
        /// The port they came in by; `None` for all that are not listed, and at adapters.
        input: Option<PortNum>,
        /// The level.
        sl: ServiceLevel,
        /// The lane it goes to.
        lane: VirtualLane,
        /// Whose lane that is.
        owner: Option<String>,
        /// Whose level it is; `None` for level 0.
        sender: Option<String>,
    },

    /// A cluster is to be promised something, and the plan has nothing for these ports and this promise.
    PromiseMissing {
        /// The cluster.
        cluster: String,
    },
    /// A port of a guaranteed cluster is not on the fabric.
    ClusterPortMissing {
        /// The cluster.
        cluster: String,
        /// The port, by port GUID.
        port: Guid,
    },
    /// A cluster has no service level that all its links know, or none between two switches of its ports.
    LevelMissing {
        /// The cluster.
        cluster: String,
        /// The switches, by node GUID, where every two are to have their own.
        between: Option<(Guid, Guid)>,
    },
    /// A cluster was given something on a link that is not there.
    GrantWithoutLink {
        /// The cluster.
        cluster: String,
        /// The port packets would leave by.
        port: PortName,
    },
    /// A cluster was given something on the cable of a port that is not its own.
    GrantAstray {
        /// The cluster.
        cluster: String,
        /// The port packets leave by.
        port: PortName,
    },
    /// Packets of a cluster take a link on which it was given nothing.
    GrantMissing {
        /// The cluster.
        cluster: String,
        /// The port they leave by.
        port: PortName,
        /// Who sends such packets, by port GUID.
        from: Guid,
        /// To whom.
        to: Guid,
    },
    /// Packets of a cluster do not come to one of its ports.
    ClusterUnreached {
        /// The cluster.
        cluster: String,
        /// Who sends, by port GUID.
        from: Guid,
        /// To whom.
        to: Guid,
    },
    /// A cluster's packets are not taken into its lane.
    LevelLost {
        /// The cluster.
        cluster: String,
        /// Its level, or that between the two ports' switches.
        sl: ServiceLevel,
        /// Who sends, by port GUID.
        from: Guid,
        /// To whom.
        to: Guid,
        /// The port they do not leave by.
        at: PortName,
        /// Where they came in; `None` at the sender itself.
        input: Option<PortNum>,
    },
    /// A cluster's lane is served by no arbitration entry.
    LaneUnserved {
        /// The cluster.
        cluster: String,
        /// The port packets leave by.
        port: PortName,
        /// The lane.
        lane: VirtualLane,
    },
    /// A cluster gets less of a link than it was promised, if others do their worst.
    ShareShort {
        /// The cluster.
        cluster: String,
        /// The port packets leave by.
        port: PortName,
        /// Its lane.
        lane: VirtualLane,
        /// The entry of the arbitration table that it waits for longest.
        entry: usize,
        /// What its packets need of the link.
        needed: Bandwidth,
        /// What the table gives it at least.
        given: Bandwidth,
    },
    /// A lane's buffer behind a link holds less than the cluster's share sends until credits come back, and a packet.
    BufferShort {
        /// The cluster.
        cluster: String,
        /// The port packets leave by.
        port: PortName,
        /// Bytes that are needed.
        needed: u64,
        /// Bytes that there are.
        held: u64,
    },
    /// A cluster's packet may be later than was promised, if others do their worst.
    TooLate {
        /// The cluster.
        cluster: String,
        /// Who sends, by port GUID.
        from: Guid,
        /// To whom.
        to: Guid,
        /// By when it has arrived, in nanoseconds.
        bound_ns: u64,
        /// By when it is to have.
        promised_ns: u64,
        /// Where it waits.
        hops: Vec<LaneWait>,
    },
    /// More findings about the same, which are not kept.
    More {
        /// The rule.
        rule: Rule,
        /// How many.
        count: usize,
    },
}
