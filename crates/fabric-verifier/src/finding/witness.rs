//! What findings point at: exits, lanes, tables.

use std::fmt;

use fabric_model::intent::PortName;
use ib_wire::{Guid, Lid, MulticastLid, PortNum, VirtualLane};

/// An output port of a switch, or the directed link behind it. Prints as `0x0002c90300001234[7]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SwitchExit {
    /// Node GUID of the switch.
    pub switch: Guid,
    pub exit: PortNum,
}

impl fmt::Display for SwitchExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", self.switch, self.exit)
    }
}

/// A link of a credit loop: its receive buffers are full of packets that wait for the next link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkWait {
    pub link: SwitchExit,
    /// `None` if the plan leaves the mapping to lanes to the device.
    pub lane: Option<VirtualLane>,
    /// Destination of packets that take this link and then the next one.
    pub packets: PacketDestination,
}

impl fmt::Display for LinkWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.link)?;
        if let Some(lane) = self.lane {
            write!(f, " lane {lane}")?;
        }
        write!(f, " with packets to {}", self.packets)
    }
}

/// A unicast or multicast destination that some forwarding table has an entry for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PacketDestination {
    /// No port needs to own the LID.
    Lid(Lid),
    Group(MulticastLid),
}

impl fmt::Display for PacketDestination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lid(lid) => write!(f, "LID {lid}"),
            Self::Group(mlid) => write!(f, "group {mlid}"),
        }
    }
}

/// The two kinds of P_Key tables that separate partitions. Each must do so without the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PkeyTableKind {
    /// The table of an end port: the P_Keys with which it sends and accepts packets.
    EndPort,
    /// The table that a switch port in front of an end node enforces in both directions.
    SwitchPort,
}

impl fmt::Display for PkeyTableKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::EndPort => "P_Key table",
            Self::SwitchPort => "enforced P_Key table",
        })
    }
}

/// A table of limited length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TableKind {
    Linear,
    Pkeys,
    EnforcedPkeys,
    Arbitration,
}

impl fmt::Display for TableKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Linear => "linear forwarding table",
            Self::Pkeys => "P_Key table",
            Self::EnforcedPkeys => "enforced P_Key table",
            Self::Arbitration => "low-priority arbitration table",
        })
    }
}

/// The longest time that a packet waits at an output port for other lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneWait {
    pub port: PortName,
    pub lane: VirtualLane,
    /// Index of the low-priority arbitration entry that the packet waits for.
    pub entry: usize,
    pub wait_ns: u64,
}

impl fmt::Display for LaneWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { port, lane, entry, wait_ns } = self;
        write!(f, "{port} lane {lane} for {wait_ns} ns (entry {entry})")
    }
}
