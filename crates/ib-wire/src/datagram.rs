//! A management datagram together with the headers it travels in.

use crate::address::{Gid, LidAddress};
use crate::keys::{Pkey, QKey};
use crate::lanes::ServiceLevel;
use crate::mad::Mad;

/// A queue pair number, 24 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueuePair(u32);

impl QueuePair {
    /// Subnet management.
    pub const SUBNET_MANAGEMENT: Self = Self(0);
    /// General management.
    pub const GENERAL_MANAGEMENT: Self = Self(1);

    /// Checks a number; `None` above 24 bits.
    pub const fn from_wire(raw: u32) -> Option<Self> {
        if raw <= 0xff_ffff { Some(Self(raw)) } else { None }
    }

    /// The number.
    pub const fn to_wire(self) -> u32 {
        self.0
    }
}

identifier_wire_value!(QueuePair, u32);

/// The global route header, where a datagram has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grh {
    /// Sender.
    pub source: Gid,
    /// Receiver.
    pub destination: Gid,
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hops left.
    pub hop_limit: u8,
}

/// What travels between ports: partition checks and trust in a requester need the headers, not just the 256 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Sender. Permissive where the sender has no LID yet.
    pub slid: LidAddress,
    /// Receiver.
    pub dlid: LidAddress,
    /// Service level.
    pub sl: ServiceLevel,
    /// Global route header.
    pub grh: Option<Grh>,
    /// Partition key; means nothing on QP0.
    pub pkey: Pkey,
    /// Queue key; means nothing on QP0.
    pub qkey: QKey,
    /// Sending queue pair.
    pub sqp: QueuePair,
    /// Receiving queue pair.
    pub dqp: QueuePair,
    /// The datagram itself.
    pub mad: Mad,
}

impl Datagram {
    /// A subnet management datagram: QP0 to QP0, no partition, no queue key.
    pub fn subnet_management(slid: LidAddress, dlid: LidAddress, mad: Mad) -> Self {
        Self {
            slid,
            dlid,
            sl: ServiceLevel::default(),
            grh: None,
            pkey: Pkey::DEFAULT_FULL,
            qkey: QKey::from_wire(0),
            sqp: QueuePair::SUBNET_MANAGEMENT,
            dqp: QueuePair::SUBNET_MANAGEMENT,
            mad,
        }
    }

    /// A general management datagram: QP1 to QP1 in a partition.
    pub fn general_management(slid: LidAddress, dlid: LidAddress, pkey: Pkey, mad: Mad) -> Self {
        Self {
            slid,
            dlid,
            sl: ServiceLevel::default(),
            grh: None,
            pkey,
            qkey: QKey::GENERAL_MANAGEMENT,
            sqp: QueuePair::GENERAL_MANAGEMENT,
            dqp: QueuePair::GENERAL_MANAGEMENT,
            mad,
        }
    }
}
