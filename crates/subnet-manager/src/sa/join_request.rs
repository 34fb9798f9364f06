//! Requests to join or leave a multicast group: for which port, and on whose behalf.

use ib_wire::sa::{JoinState, McMemberRecord, Pattern};
use ib_wire::{Gid, Mad, PartitionNumber, Pkey, Status};

use super::directory::{Directory, EndPort};

type M = McMemberRecord;

/// A request to join or leave.
pub struct MembershipRequest<'a> {
    pub pattern: Pattern<'a, M>,
    pub mgid: Gid,
    pub state: JoinState,
    /// The address that joins or leaves.
    pub named: &'a EndPort,
    /// The address whose partitions count: that of the requester if it speaks for others.
    pub speaker: &'a EndPort,
    /// Whether the requester does not speak for the address that it names (IBA: proxy join). Software speaks for its own
    /// address; that of a port also for the port's aliases, whose requests some adapters send without a GRH.
    pub is_proxy: bool,
}

impl<'a> MembershipRequest<'a> {
    pub fn read(directory: &'a Directory, requester: &'a EndPort, request: &'a Mad) -> Result<Self, Status> {
        let pattern = Pattern::<M>::of(request);
        if !pattern.selects(M::MGID | M::PORT_GID | M::JOIN_STATE) {
            return Err(Status::SA_INSUFFICIENT_COMPONENTS);
        }
        let gid: Gid = pattern.value(M::PORT_GID).unwrap_or_default();
        if !directory.is_in_subnet(gid) {
            return Err(Status::SA_INVALID_GID);
        }
        let state: JoinState = pattern.value(M::JOIN_STATE).unwrap_or_default();
        let named = directory.port_by_gid(gid).filter(|_| state != JoinState::default());
        // Otherwise the status would tell whether a port exists.
        let named = named.filter(|named| directory.is_visible_to(requester.guid, named.guid));
        let named = named.ok_or(Status::SA_REQUEST_INVALID)?;
        let is_proxy = !requester.speaks_for(named);
        let speaker = if is_proxy { requester } else { named };
        let mgid = pattern.value(M::MGID).unwrap_or_default();
        Ok(Self { pattern, mgid, state, named, speaker, is_proxy })
    }
}

/// The partition that a request names.
pub fn partition_of(pattern: &Pattern<'_, M>) -> Option<PartitionNumber> {
    pattern.value::<Option<Pkey>>(M::PKEY).flatten().map(Pkey::partition)
}
