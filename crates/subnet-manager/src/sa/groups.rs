//! MCMemberRecord: the multicast groups of the plan and those that ports created.

use std::ops::{BitOr, ControlFlow};

use ib_wire::Gid;
use ib_wire::sa::{ComponentMask, McMemberRecord, Pattern};

use super::inventory::add_if;
use super::query::{Answer, Query};

type M = McMemberRecord;

/// Components with a selector, which are not compared bit by bit.
const SELECTED: [ComponentMask; 6] =
    [M::MTU_SELECTOR, M::MTU, M::RATE_SELECTOR, M::RATE, M::PACKET_LIFE_TIME_SELECTOR, M::PACKET_LIFE_TIME];

/// Groups of the requester's partitions. A record stands for a group. It stands for a member if a port GID is
/// given, or if the manager's own port asks with an SM_Key.
pub(super) fn members(query: &Query<'_>, answer: &mut Answer) -> ControlFlow<()> {
    let pattern = Pattern::<McMemberRecord>::of(query.request);
    let selected = SELECTED.into_iter().fold(ComponentMask::NONE, ComponentMask::bitor);
    let matcher = pattern.without(selected).matcher();
    let directory = query.directory;
    let named = pattern.value::<Gid>(M::PORT_GID).filter(|gid| *gid != Gid::default());
    let all = query.is_manager && query.request.sm_key().is_some();
    let mgid = pattern.value::<Gid>(M::MGID);
    for group in query.joins.groups(directory, mgid) {
        // Groups of others cost the requester nothing: it would learn how many there are.
        if !query.is_manager && !directory.is_member(query.requester, group.partition) {
            continue;
        }
        answer.examine()?;
        if !group.meets(&pattern) {
            continue;
        }
        if named.is_none() && !all {
            add_if(&matcher, &group.record(Gid::default(), None).encode(), answer)?;
            continue;
        }
        for (guid, member) in query.joins.members(&group) {
            answer.examine()?;
            let Some(port) = directory.port_by_guid(guid).filter(|port| query.sees(port)) else {
                continue;
            };
            add_if(&matcher, &group.record(port.gid(), Some(member)).encode(), answer)?;
        }
    }
    ControlFlow::Continue(())
}
