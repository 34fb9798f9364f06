//! What an adapter makes of what the software behind it hands over: the software says where to, the adapter says who.

use ib_wire::{Datagram, LidAddress, Mad, ManagementClass, Pkey, QueuePair};

use crate::device::PortId;
use crate::fabric::Fabric;

/// A datagram of software that knows of LIDs and queue pairs only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BareDatagram {
    /// The sender it claims to be, if it says so.
    pub slid: Option<LidAddress>,
    /// Where to; may be left out of what goes by a directed route.
    pub dlid: Option<LidAddress>,
    /// Sending queue pair.
    pub sqp: QueuePair,
    /// Receiving queue pair.
    pub dqp: QueuePair,
    /// The datagram itself.
    pub mad: Mad,
}

impl Fabric {
    /// A bare datagram as the adapter of a port sends it: from an address of its own, with the partition key of table index
    /// 0. `None` if it cannot be sent.
    pub fn complete_datagram(&self, port: PortId, bare: BareDatagram) -> Option<Datagram> {
        let class = bare.mad.class();
        let directed = class == ManagementClass::SUBNET_DIRECTED;
        let dlid = bare.dlid.or(directed.then_some(LidAddress::Permissive))?;
        let slid = match dlid {
            LidAddress::Permissive => LidAddress::Permissive,
            _ => self.source(port, bare.slid),
        };
        if class.is_subnet_management() {
            return Some(Datagram::subnet_management(slid, dlid, bare.mad));
        }
        let pkey: Pkey = self.first_pkey(port)?;
        let (sqp, dqp) = (bare.sqp, bare.dqp);
        Some(Datagram { sqp, dqp, ..Datagram::general_management(slid, dlid, pkey, bare.mad) })
    }

    /// A whole datagram as the adapter of a port sends it: from an address of its own, whatever it says. `None` if its
    /// partition key is not one that the port holds.
    pub fn with_own_source(&self, port: PortId, mut datagram: Datagram) -> Option<Datagram> {
        let general = !datagram.mad.class().is_subnet_management();
        if general && !self.holds_pkey(port, datagram.pkey) {
            return None;
        }
        if datagram.dlid != LidAddress::Permissive {
            datagram.slid = self.source(port, Some(datagram.slid));
        }
        Some(datagram)
    }

    /// Who a port really is: the address it claims if that is one of its own.
    fn source(&self, port: PortId, claimed: Option<LidAddress>) -> LidAddress {
        match (claimed, self.lid(port)) {
            (Some(LidAddress::Unicast(lid)), _) if self.owns(port, lid) => lid.into(),
            (_, Some(lid)) => lid.into(),
            (_, None) => LidAddress::Permissive,
        }
    }
}
