//! Virtual functions of adapters and the reasons why packets are dropped, under the names that all crates use.

use std::fmt;

use ib_wire::{MulticastLid, Pkey};
use serde::{Deserialize, Serialize};

/// A partition that a function belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FunctionKey {
    /// The P_Key for sending and receiving. Has effect only while the port's table contains it.
    pub pkey: Pkey,
    /// The multicast group that the function sends multicast frames to and receives them from.
    #[serde(default)]
    pub group: Option<MulticastLid>,
}

/// Why a datagram or a frame was dropped. Every drop has a reason and is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DropReason {
    /// The port has no cable, the cable is unplugged, or the link is not physically up.
    LinkDown,
    /// The port state does not permit data.
    NotActive,
    /// A switch has no forwarding entry for the destination.
    NoRoute,
    /// The packet reached a port that does not own the destination LID.
    WrongPort,
    /// The packet passed too many switches: a forwarding loop.
    HopLimit,
    /// A directed route names a missing port, passes through an adapter, or has too many hops.
    BadDirectedRoute,
    /// The M_Key of a subnet management datagram was wrong.
    ManagementKey,
    /// Partition enforcement of a switch port filtered the packet.
    PartitionAtSwitch,
    /// The receiving port does not hold the P_Key of the packet.
    PartitionAtReceiver,
    /// The Q_Key is not the one of the destination queue pair.
    QueueKey,
    /// The service level has no lane on a hop.
    ServiceLevel,
    /// An injected fault dropped it.
    Injected,
    /// The datagram needs no response, or there is no software to respond.
    Unanswered,
    /// The response has no destination address.
    NoReturnAddress,
    /// The management class is unknown, or a frame is shorter than its header.
    Malformed,
    /// The payload exceeds the MTU of a link.
    TooLarge,
    /// The buffer for subnet management of the next port is full; lane 15 has no flow control.
    NoRoom,
    /// A switch gives packets no time to wait at an output: HOQLife or LifeTimeValue is 0.
    Expired,
    /// The source address of a frame is not that of the sending function.
    Spoofed,
    /// The port does not hold any P_Key of the sending function.
    PartitionAtSender,
    /// A frame is for a group, and the sending function has joined none.
    NoGroup,
    /// The destination address of a frame is not that of a virtual function.
    UnknownAddress,
    /// A frame reached its port, and no function of the port has the destination address.
    NoFunction,
}

/// The serialized name, such as `no_route`.
impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}
