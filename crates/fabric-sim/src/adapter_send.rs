//! Datagrams as the adapter of a port sends them: the software names the destination, the adapter fills in
//! the source.

use ib_wire::{Datagram, LidAddress, Mad, ManagementClass, Pkey, QueuePair};

use crate::device::PortId;
use crate::fabric::Fabric;

/// A MAD from software that supplies LIDs and queue pairs but no other headers, such as an ibsim client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BareDatagram {
    /// Source LID that the software claims. Used only if the port owns it.
    pub slid: Option<LidAddress>,
    /// Destination. May be absent for a directed route; a datagram of another class without a destination is
    /// not sent.
    pub dlid: Option<LidAddress>,
    pub sqp: QueuePair,
    pub dqp: QueuePair,
    pub mad: Mad,
}

impl Fabric {
    /// Completes a MAD with the headers that the adapter of `port` would send: a source LID that the port
    /// owns and, for general management, the P_Key at index 0 of its table.
    ///
    /// Returns `None` if there is no destination, or if general management has no P_Key to send with.
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

    /// Replaces the source LID by one that `port` owns, whatever the datagram claims.
    ///
    /// Returns `None` if the datagram is general management and the port does not hold its P_Key.
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

    /// The claimed source if the port owns it, else the base LID of the port, else the permissive LID.
    fn source(&self, port: PortId, claimed: Option<LidAddress>) -> LidAddress {
        match (claimed, self.lid(port)) {
            (Some(LidAddress::Unicast(lid)), _) if self.owns(port, lid) => lid.into(),
            (_, Some(lid)) => lid.into(),
            (_, None) => LidAddress::Permissive,
        }
    }
}
