//! What is wrong with a plan, each with the entry that shows it.

mod told;

use fabric_model::intent::{PortName, Role};
use ib_wire::{
    DataLanes, Gid, Guid, Lid, Mtu, MulticastLid, PartitionNumber, Pkey, PortNum, ServiceLevel, VirtualLane,
};

use crate::Rule;

/// An exit of a switch that a packet takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hop {
    /// The switch, by node GUID.
    pub switch: Guid,
    /// The port it leaves by.
    pub exit: PortNum,
}

/// A link whose buffers are full while packets in them wait for the next link of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Wait {
    /// The link, by the switch that sends on it.
    pub link: Hop,
    /// The lane; `None` where that is left to the device.
    pub lane: Option<VirtualLane>,
    /// Whose packets wait here for the next link.
    pub packets: Destination,
}

/// Where packets are to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Destination {
    /// To a port, or to a LID that nobody has.
    Lid(Lid),
    /// To a group.
    Group(MulticastLid),
}

/// One of the two guards between partitions. Each has to hold without the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Guard {
    /// The P_Key tables of end ports.
    Ends,
    /// What switch ports in front of adapters let pass.
    Switches,
}

/// A table that has a length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// Where packets leave, by LID.
    Linear,
    /// The P_Keys of an end port.
    Pkeys,
    /// The P_Keys that a switch port lets pass.
    EnforcedPkeys,
    /// The low-priority arbitration table.
    Arbitration,
}

/// Something that a plan does not keep. Ports of adapters are named by port GUID where packets are meant, by node and
/// number where tables are.
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
}

impl Finding {
    /// The rule that is broken.
    pub const fn rule(&self) -> Rule {
        match self {
            Self::ManagerMissing { .. }
            | Self::ManagerDiffers { .. }
            | Self::LidTwice { .. }
            | Self::PortMissing { .. }
            | Self::PortUnknown { .. }
            | Self::GuidDiffers { .. }
            | Self::CableDiffers { .. } => Rule::Addresses,
            Self::ForwardingLoop { .. }
            | Self::ExitWithoutCable { .. }
            | Self::NotForwarded { .. }
            | Self::Astray { .. } => Rule::Forwarding,
            Self::CreditLoop { .. } => Rule::CreditLoops,
            Self::PartitionMissing { .. }
            | Self::MemberDiffers { .. }
            | Self::KeyMissing { .. }
            | Self::KeyUnwanted { .. }
            | Self::IndexZero { .. }
            | Self::EnforcementOff { .. }
            | Self::EnforcementInside { .. }
            | Self::IsolationBroken { .. } => Rule::Isolation,
            Self::GroupMissing { .. }
            | Self::GroupUnwanted { .. }
            | Self::GroupDiffers { .. }
            | Self::GroupMemberDiffers { .. }
            | Self::GroupLoop { .. }
            | Self::GroupOneWay { .. }
            | Self::GroupAstray { .. }
            | Self::GroupUnreached { .. }
            | Self::GroupsMeet { .. } => Rule::Multicast,
            Self::TableTooLong { .. }
            | Self::GroupBeyondTable { .. }
            | Self::LinkBeyondEnds { .. }
            | Self::ArbitrationEntry { .. }
            | Self::LaneBeyondLink { .. } => Rule::Capacities,
            Self::LaneWithoutWeight { .. }
            | Self::BestEffortDiscarded { .. }
            | Self::LevelOneWay { .. }
            | Self::GroupLevelDiscarded { .. } => Rule::Sharing,
        }
    }
}
