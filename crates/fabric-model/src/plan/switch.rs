//! What a switch is to hold.

use std::sync::Arc;

use ib_wire::{DataLanes, Guid, Lid, Mtu, MulticastBlock, PkeyBlock, PortNum};

use super::qos::PortQos;
use super::tables::{LinearTable, MulticastTable, PkeyTable};
use crate::intent::PortName;

/// What one switch is to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchPlan {
    /// Its node GUID.
    pub guid: Guid,
    /// GUID of its port 0.
    pub port_guid: Guid,
    /// LID of its port 0.
    pub lid: Lid,
    /// Where packets leave, by LID. Its top is LinearFDBTop.
    pub linear: Arc<LinearTable>,
    /// Where packets to groups leave.
    pub multicast: Arc<MulticastTable>,
    /// P_Key table of port 0.
    pub pkeys: Arc<PkeyTable>,
    /// The external ports that have a cable, by number. A switch that only forwards elsewhere shares them with what it was.
    pub ports: Arc<[SwitchPortPlan]>,
}

impl SwitchPlan {
    /// A block of 64 entries of the linear table, as a datagram carries it; 0xFF beyond the top.
    pub fn linear_block(&self, block: u16) -> [u8; LinearTable::BLOCK] {
        self.linear.block(block)
    }

    /// A block of 32 groups and 16 ports of the multicast table.
    pub fn multicast_block(&self, block: u16, position: u8) -> MulticastBlock {
        self.multicast.block(block, position)
    }

    /// A block of 32 entries of port 0's P_Key table.
    pub fn pkey_block(&self, block: u16) -> PkeyBlock {
        self.pkeys.block(block)
    }

    /// An external port that has a cable.
    pub fn port(&self, number: PortNum) -> Option<&SwitchPortPlan> {
        let place = self.ports.binary_search_by_key(&number, |port| port.number).ok()?;
        self.ports.get(place)
    }

    /// The same, to be changed.
    pub fn port_mut(&mut self, number: PortNum) -> Option<&mut SwitchPortPlan> {
        let place = self.ports.binary_search_by_key(&number, |port| port.number).ok()?;
        Arc::make_mut(&mut self.ports).get_mut(place)
    }
}

/// An external port of a switch. It is to be Active.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchPortPlan {
    /// Its number.
    pub number: PortNum,
    /// The port at the other end of its cable.
    pub peer: PortName,
    /// Largest packet of its link: the smaller of what both ends can.
    pub mtu: Mtu,
    /// Lanes of its link: the fewer of what both ends have.
    pub lanes: DataLanes,
    /// Which packets it lets pass.
    pub enforcement: Enforcement,
    /// How what leaves by it shares its link; `None` leaves that to the device.
    pub qos: Option<Arc<PortQos>>,
}

/// Which packets an external port lets pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Enforcement {
    /// All: the other end is a switch, and has checked what came in.
    Off,
    /// In both directions those with a key of this table: that of the adapter port at the other end.
    Both(Arc<PkeyTable>),
}
