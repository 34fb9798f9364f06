//! A management datagram together with the headers it travels in.

use crate::address::{Gid, LidAddress};
use crate::keys::{Pkey, QKey};
use crate::lanes::ServiceLevel;
use crate::mad::Mad;

/// A queue pair number, 24 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueuePair(u32);

impl QueuePair {
    /// QP0, the queue pair of subnet management packets.
    pub const SUBNET_MANAGEMENT: Self = Self(0);
    /// QP1, the queue pair of all other management classes (general services).
    pub const GENERAL_MANAGEMENT: Self = Self(1);

    /// `None` if the number has more than 24 bits.
    pub const fn from_wire(raw: u32) -> Option<Self> {
        if raw <= 0xff_ffff { Some(Self(raw)) } else { None }
    }

    /// The queue pair number, below 2²⁴.
    pub const fn to_wire(self) -> u32 {
        self.0
    }
}

identifier_wire_value!(QueuePair, u32);

/// The fields of a global route header that management datagrams use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grh {
    pub source: Gid,
    pub destination: Gid,
    pub traffic_class: u8,
    /// A number of 20 bits.
    pub flow_label: u32,
    /// Number of routers the packet may still pass.
    pub hop_limit: u8,
}

/// A MAD with the packet headers it travels in. Partition checks and decisions about the requester need the headers, not
/// only the 256 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Source LID; permissive if the sender has no LID yet.
    pub slid: LidAddress,
    pub dlid: LidAddress,
    pub sl: ServiceLevel,
    pub grh: Option<Grh>,
    /// Not checked on QP0.
    pub pkey: Pkey,
    /// Not checked on QP0.
    pub qkey: QKey,
    pub sqp: QueuePair,
    pub dqp: QueuePair,
    pub mad: Mad,
}

impl Datagram {
    /// A subnet management packet: QP0 to QP0, service level 0, without GRH. P_Key and Q_Key are placeholders.
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

    /// A general management datagram: QP1 to QP1 with the well-known Q_Key, service level 0, without GRH.
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
