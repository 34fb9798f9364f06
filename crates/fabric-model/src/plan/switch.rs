//! Configuration of a switch.

use std::sync::Arc;

use ib_wire::{DataLanes, Guid, Lid, Mtu, MulticastBlock, PkeyBlock, PortNum};

use super::qos::PortQos;
use crate::intent::PortName;
use crate::tables::{LinearTable, MulticastTable, PkeyTable};

/// Configuration of a switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchPlan {
    pub guid: Guid,
    /// Port GUID of port 0.
    pub port_guid: Guid,
    /// LID of port 0.
    pub lid: Lid,
    /// Linear forwarding table. Its [`top`](LinearTable::top) is SwitchInfo:LinearFDBTop.
    pub linear: Arc<LinearTable>,
    pub multicast: Arc<MulticastTable>,
    /// P_Key table of port 0.
    pub pkeys: Arc<PkeyTable>,
    /// Cabled external ports, sorted by number. Shared with earlier plans in which only the forwarding tables differ.
    pub ports: Arc<[SwitchPortPlan]>,
}

impl SwitchPlan {
    /// A block of 64 entries of the linear table as LinearForwardingTable carries it; 0xFF beyond the top.
    pub fn linear_block(&self, block: u16) -> [u8; LinearTable::BLOCK] {
        self.linear.block(block)
    }

    /// A block of the multicast table as MulticastForwardingTable carries it: 32 groups, 16 ports from `16 * position`.
    pub fn multicast_block(&self, block: u16, position: u8) -> MulticastBlock {
        self.multicast.block(block, position)
    }

    /// A block of 32 entries of the P_Key table of port 0.
    pub fn pkey_block(&self, block: u16) -> PkeyBlock {
        self.pkeys.block(block)
    }

    /// A cabled external port by its number.
    pub fn port(&self, number: PortNum) -> Option<&SwitchPortPlan> {
        let index = self.ports.binary_search_by_key(&number, |port| port.number).ok()?;
        self.ports.get(index)
    }

    /// Mutable access to a cabled external port. Copies the list of ports if it is shared.
    pub fn port_mut(&mut self, number: PortNum) -> Option<&mut SwitchPortPlan> {
        let index = self.ports.binary_search_by_key(&number, |port| port.number).ok()?;
        Arc::make_mut(&mut self.ports).get_mut(index)
    }
}

/// Configuration of a cabled external port of a switch. The port becomes Active.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchPortPlan {
    pub number: PortNum,
    /// The port at the other end of the cable.
    pub peer: PortName,
    /// PortInfo:NeighborMTU: the smaller MTUCap of both ends.
    pub mtu: Mtu,
    /// PortInfo:OperationalVLs: the smaller VLCap of both ends.
    pub lanes: DataLanes,
    pub enforcement: Enforcement,
    /// SL-to-VL maps and arbitration tables for what the port sends; `None` leaves the device's own tables in place.
    pub qos: Option<Arc<PortQos>>,
}

impl SwitchPortPlan {
    /// Whether the port enforces partitions.
    pub fn is_enforced(&self) -> bool {
        matches!(self.enforcement, Enforcement::Both(_))
    }
}

/// Partition enforcement at an external port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Enforcement {
    /// No check: the peer is a switch, and packets were checked where they entered the fabric; or it is an adapter that
    /// nobody has to be protected from, and the port cannot check.
    Off,
    /// Inbound and outbound packets need a P_Key of this table, which is that of the adapter port at the other end. Raw
    /// packets, which have none, are filtered where the switch can.
    Both(Arc<PkeyTable>),
}
