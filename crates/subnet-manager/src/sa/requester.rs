//! The sender of a request, and the headers of its response.

use ib_wire::{Datagram, Gid, Grh, LidAddress, Mad, ManagementClass, Method, Pkey, QKey, QueuePair};

use super::directory::{Directory, EndPort};

/// The sender of a request.
#[derive(Debug)]
pub(super) struct Requester<'a> {
    pub port: &'a EndPort,
    pub is_manager: bool,
    pub queue_pair: QueuePair,
    /// The P_Key of the response.
    key: Pkey,
}

impl<'a> Requester<'a> {
    /// Identifies the sender; `None` for an unknown one. It must be a port of the plan by LID, and by GID if
    /// the datagram has a GRH, and a member of the partition of the datagram. Only the partition counts: if
    /// the P_Key comes from an index into the receiver's table, its membership bit is the receiver's.
    pub fn of(directory: &'a Directory, datagram: &Datagram) -> Option<Self> {
        if datagram.mad.class() != ManagementClass::SUBNET_ADMINISTRATION {
            return None;
        }
        let LidAddress::Unicast(lid) = datagram.slid else { return None };
        let at_lid = directory.port_by_lid(lid)?;
        let manager = directory.manager_port()?;
        let port = match datagram.grh {
            None => at_lid,
            // An alias is believed only from the port that it belongs to.
            Some(grh) => directory.port_by_gid(grh.source).filter(|port| port.port_guid == at_lid.guid)?,
        };
        let partition = datagram.pkey.partition();
        let is_manager = port.guid == manager.guid;
        // An alias may be in fewer partitions than its port, whose keys the packet was sent and filtered by.
        let key = match directory.shared_in(manager, at_lid, partition) {
            Some(shared) => shared.key,
            // A port may send to itself in any of its partitions.
            None if is_manager && directory.is_member(port, partition) => datagram.pkey,
            None => return None,
        };
        Some(Self { port, is_manager, queue_pair: datagram.sqp, key })
    }

    /// The response to a request, without records.
    pub fn reply(&self, directory: &Directory, request: &Datagram) -> Datagram {
        let requested = &request.mad;
        let method = match requested.method() {
            Method::SET => Method::GET_RESP,
            other => Method(other.0 | Method::RESPONSE_BIT),
        };
        let mut mad = Mad::new(requested.class(), method, requested.attribute(), requested.modifier());
        mad.set_transaction(requested.transaction());
        mad.set_component_mask(requested.component_mask());
        let manager = directory.plan.manager();
        let source = Gid::unicast(directory.manager.gid_prefix, manager.guid);
        Datagram {
            slid: manager.lid.into(),
            dlid: request.slid,
            sl: request.sl,
            grh: request.grh.map(|grh| Grh { source, destination: grh.source, hop_limit: u8::MAX, ..grh }),
            pkey: self.key,
            qkey: QKey::GENERAL_MANAGEMENT,
            sqp: QueuePair::GENERAL_MANAGEMENT,
            dqp: request.sqp,
            mad,
        }
    }
}
