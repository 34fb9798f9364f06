//! What findings point at.

use fabric_model::intent::PortName;
use ib_wire::{Guid, Lid, MulticastLid, PartitionNumber, PortNum, VirtualLane};

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

/// A partition number with two owners, each with a port of its own in the partition.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SharedNumber {
    /// The number.
    pub partition: PartitionNumber,
    /// One of them.
    pub first: String,
    /// A port of it.
    pub first_port: Guid,
    /// The other.
    pub second: String,
    /// A port of it.
    pub second_port: Guid,
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

/// How long a packet waits at a port for other lanes, if they do their worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneWait {
    /// The port it leaves by.
    pub port: PortName,
    /// Its lane.
    pub lane: VirtualLane,
    /// The entry of the arbitration table that it waits for.
    pub entry: usize,
    /// How long, in nanoseconds.
    pub wait_ns: u64,
}
