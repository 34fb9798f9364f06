//! MCMemberRecord, read-only: the multicast groups of the plan. Joins are rejected, because they would change
//! the plan.

use std::ops::{BitOr, ControlFlow};

use fabric_model::plan::GroupPlan;
use ib_wire::sa::{ComponentMask, JoinState, McMemberRecord, Pattern, Selector};
use ib_wire::{Gid, Membership, Mtu, Rate};

use super::inventory::add_if;
use super::paths::is_selected;
use super::query::{Answer, Query};
use crate::lifetimes::SUBNET_TIMEOUT;

/// Components with a selector, which are not compared bit by bit.
const SELECTED: [ComponentMask; 6] = [
    McMemberRecord::MTU_SELECTOR,
    McMemberRecord::MTU,
    McMemberRecord::RATE_SELECTOR,
    McMemberRecord::RATE,
    McMemberRecord::PACKET_LIFE_TIME_SELECTOR,
    McMemberRecord::PACKET_LIFE_TIME,
];

/// Groups of the requester's partitions. A record stands for a group. It stands for a member if a port GID is
/// given, or if the manager's own port asks with an SM_Key.
pub(super) fn members(query: &Query<'_>, answer: &mut Answer) -> ControlFlow<()> {
    let pattern = Pattern::<McMemberRecord>::of(query.request);
    let selected = SELECTED.into_iter().fold(ComponentMask::NONE, ComponentMask::bitor);
    let matcher = pattern.without(selected).matcher();
    let directory = query.directory;
    let named = pattern.value::<Gid>(McMemberRecord::PORT_GID).filter(|gid| *gid != Gid::default());
    let all = query.is_manager && query.request.sm_key().is_some();
    for group in directory.groups() {
        answer.examine()?;
        let is_visible = query.is_manager || directory.is_member(query.requester, group.partition);
        if !is_visible || !is_wanted(&pattern, group) {
            continue;
        }
        if named.is_none() && !all {
            add_if(&matcher, &record(group, Gid::default(), JoinState::default()).encode(), answer)?;
            continue;
        }
        for guid in &group.members {
            answer.examine()?;
            let Some(port) = directory.port_by_guid(*guid).filter(|port| query.sees(port)) else {
                continue;
            };
            add_if(&matcher, &record(group, port.gid(), JoinState::FULL).encode(), answer)?;
        }
    }
    ControlFlow::Continue(())
}

fn is_wanted(pattern: &Pattern<'_, McMemberRecord>, group: &GroupPlan) -> bool {
    type M = McMemberRecord;
    let mtu = pattern.value(M::MTU_SELECTOR).zip(pattern.value::<Mtu>(M::MTU));
    let rate = pattern.value(M::RATE_SELECTOR).zip(pattern.value::<Rate>(M::RATE));
    let life = pattern.value(M::PACKET_LIFE_TIME_SELECTOR).zip(pattern.value::<u8>(M::PACKET_LIFE_TIME));
    mtu.is_none_or(|(selector, wanted)| is_selected(group.mtu.bytes(), selector, wanted.bytes()))
        && rate.is_none_or(|(selector, wanted)| {
            is_selected(group.rate.nominal_mbps(), selector, wanted.nominal_mbps())
        })
        && life.is_none_or(|(selector, wanted)| is_selected(SUBNET_TIMEOUT, selector, wanted))
}

fn record(group: &GroupPlan, port_gid: Gid, join_state: JoinState) -> McMemberRecord {
    McMemberRecord {
        mgid: group.mgid,
        port_gid,
        qkey: group.qkey,
        mlid: Some(group.mlid),
        mtu_selector: Selector::Exactly,
        mtu: group.mtu,
        traffic_class: 0,
        pkey: Some(group.partition.key(Membership::Full)),
        rate_selector: Selector::Exactly,
        rate: group.rate,
        packet_life_time_selector: Selector::Exactly,
        packet_life_time: SUBNET_TIMEOUT,
        sl: group.sl,
        flow_label: 0,
        hop_limit: 0,
        scope: group.scope.to_wire(),
        join_state,
        proxy_join: false,
    }
}
