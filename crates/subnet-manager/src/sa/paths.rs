//! PathRecord: the path between two ports. By far the most frequent query. MultiPathRecord: paths between groups of ports.

use std::ops::ControlFlow;

use ib_wire::sa::{ComponentMask, MultiPathRecord, PathRecord, Pattern, Selector};
use ib_wire::{Gid, LidAddress, Mtu, Pkey, Rate, ServiceLevel, Status};

use crate::lifetimes::SUBNET_TIMEOUT;

use super::directory::EndPort;
use super::query::{Answer, Query};
use super::routes::PathCapability;

/// Finds paths. MTU and rate of a path are the minimum over its links in both directions. P_Key and service
/// level are those of a partition that both ends share; to and from the manager in the default partition it
/// is the management service level. ServiceID, flow label, hop limit, traffic class and QoS class of a
/// request are ignored: every path of a subnet serves them.
pub(super) fn find(query: &Query<'_>, answer: &mut Answer) -> Result<(), Status> {
    let pattern = Pattern::<PathRecord>::of(query.request);
    let from = ends(query, &pattern, PathRecord::SGID, PathRecord::SLID)?;
    let to = ends(query, &pattern, PathRecord::DGID, PathRecord::DLID)?;
    if let Some(criteria) = PathCriteria::read(query, &pattern) {
        let _ = collect(query, &criteria, from, to, answer);
    }
    Ok(())
}

/// Finds paths from several ports to several others, each pair once, as many as the request allows. Independence of paths is
/// not considered: there is one path between two ports.
pub(super) fn find_multi(query: &Query<'_>, answer: &mut Answer) -> Result<(), Status> {
    type M = MultiPathRecord;
    let pattern = Pattern::<M>::of(query.request);
    let count = |component| usize::from(pattern.value::<u8>(component).unwrap_or(0));
    let (sources, destinations) = (count(M::SOURCE_COUNT), count(M::DESTINATION_COUNT));
    if sources == 0 || destinations == 0 {
        return Err(Status::SA_INSUFFICIENT_COMPONENTS);
    }
    if sources + destinations > M::GIDS_MAX {
        return Err(Status::SA_NO_RESOURCES);
    }
    let mut ends: Vec<Option<&EndPort>> = Vec::with_capacity(sources + destinations);
    for gid in M::gids(query.request).take(sources + destinations) {
        if !query.directory.is_in_subnet(gid) {
            return Err(Status::SA_INVALID_GID);
        }
        ends.push(query.directory.port_by_gid(gid));
    }
    let Some(criteria) = PathCriteria::read_multi(&pattern) else { return Ok(()) };
    let most = pattern.value::<u8>(M::PATH_COUNT).map_or(usize::MAX, usize::from);
    let (from, to) = ends.split_at(sources);
    for source in from.iter().flatten().filter(|source| query.sees(source)) {
        for destination in to.iter().flatten() {
            if answer.records() >= most || answer.examine().is_break() {
                return Ok(());
            }
            if let Some(record) = path(query, &criteria, source, destination)
                && answer.add(&record.encode()).is_break()
            {
                return Ok(());
            }
        }
    }
    Ok(())
}

fn collect(
    query: &Query<'_>,
    criteria: &PathCriteria,
    from: &[EndPort],
    to: &[EndPort],
    answer: &mut Answer,
) -> ControlFlow<()> {
    for source in from {
        if !query.sees(source) {
            answer.examine()?;
            continue;
        }
        for destination in to {
            answer.examine()?;
            if let Some(record) = path(query, criteria, source, destination) {
                answer.add(&record.encode())?;
            }
        }
    }
    ControlFlow::Continue(())
}

/// The end ports that a request may mean as one end of a path. Ports that the requester must not see are
/// excluded later, together with those that do not exist.
fn ends<'a>(
    query: &Query<'a>,
    pattern: &Pattern<'_, PathRecord>,
    gid: ComponentMask,
    lid: ComponentMask,
) -> Result<&'a [EndPort], Status> {
    let at = || pattern.value::<Option<LidAddress>>(lid).flatten();
    if !pattern.selects(gid) {
        return Ok(query.ports_at(at(), !pattern.selects(lid)));
    }
    let gid: Gid = pattern.value(gid).unwrap_or_default();
    if !query.directory.is_in_subnet(gid) && !gid.is_multicast() {
        return Err(Status::SA_INVALID_GID);
    }
    let port = query.directory.port_by_gid(gid);
    let port = port.filter(|port| !pattern.selects(lid) || at() == Some(port.lid.into()));
    Ok(port.map_or(&[], std::slice::from_ref))
}

/// Hop limit of paths of aliases. Adapters find functions with the same LID by the GRH, which clients send if there is a hop limit.
const ALIAS_HOP_LIMIT: u8 = 64;

#[inline]
fn path(query: &Query<'_>, criteria: &PathCriteria, from: &EndPort, to: &EndPort) -> Option<PathRecord> {
    let directory = query.directory;
    // For its own paths a requester sees all partitions shared by the ends; for other paths only those that
    // it is in.
    let is_own = query.is_manager || [from, to].iter().any(|end| query.requester.speaks_for(end));
    let shared = match criteria.pkey {
        Some(key) if is_own || directory.is_member(query.requester, key.partition()) => {
            directory.shared_in(from, to, key.partition())?
        }
        Some(_) => return None,
        None if is_own => directory.shared(from, to)?,
        None => directory.shared_before(query.requester, from, to)?,
    };
    if !query.requester.speaks_for(from) && !query.sees(to) {
        return None;
    }
    let sl = directory.service_level(from, to, shared);
    if criteria.sl.is_some_and(|wanted| wanted != sl) {
        return None;
    }
    let is_loopback = from.lid == to.lid;
    let (capability, is_reversible) = if is_loopback {
        (directory.routes.own(from.start), true)
    } else {
        let there = directory.routes.walk(from.start, to.lid)?;
        match directory.routes.walk(to.start, from.lid) {
            Some(back) => (there.and(back), true),
            None => (there, false),
        }
    };
    if criteria.reversible && !is_reversible {
        return None;
    }
    let offer = criteria.offer(capability, if is_loopback { 0 } else { SUBNET_TIMEOUT })?;
    Some(PathRecord {
        service_id: 0,
        dgid: to.gid(),
        sgid: from.gid(),
        dlid: Some(to.lid.into()),
        slid: Some(from.lid.into()),
        is_raw: false,
        flow_label: 0,
        hop_limit: if from.is_alias() || to.is_alias() { ALIAS_HOP_LIMIT } else { 0 },
        traffic_class: 0,
        is_reversible,
        path_count: 0,
        // A requested P_Key is returned unchanged, whatever its membership bit: OpenSM does so, and software
        // ignores the bit when it looks the key up in its table.
        pkey: Some(criteria.pkey.unwrap_or(shared.key)),
        qos_class: 0,
        sl,
        mtu_selector: Selector::Exactly,
        mtu: offer.mtu,
        rate_selector: Selector::Exactly,
        rate: offer.rate,
        packet_life_time_selector: Selector::Exactly,
        packet_life_time: offer.life_time,
        preference: 0,
    })
}

/// The criteria of a request besides the ends of the path.
#[derive(Debug)]
struct PathCriteria {
    pkey: Option<Pkey>,
    sl: Option<ServiceLevel>,
    reversible: bool,
    mtu: Option<(Selector, Mtu)>,
    rate: Option<(Selector, Rate)>,
    life_time: Option<(Selector, u8)>,
}

/// The properties of a path, lowered to the requested ones.
#[derive(Debug)]
struct Offer {
    mtu: Mtu,
    rate: Rate,
    life_time: u8,
}

impl PathCriteria {
    /// Reads the criteria of a request; `None` if no path can meet them.
    fn read(query: &Query<'_>, pattern: &Pattern<'_, PathRecord>) -> Option<Self> {
        type P = PathRecord;
        let refuses_all = query.wants_table() && pattern.value(P::PATH_COUNT) == Some(0u8)
            || pattern.value(P::IS_RAW) == Some(true)
            || pattern.value::<u8>(P::PREFERENCE).is_some_and(|preference| preference != 0);
        if refuses_all {
            return None;
        }
        let pkey = match pattern.selects(P::PKEY) {
            true => Some(pattern.value::<Option<Pkey>>(P::PKEY).flatten()?),
            false => None,
        };
        Some(Self {
            pkey,
            sl: pattern.value(P::SL),
            // 0 means don't care. A selector without a value, or a value without a selector, is ignored.
            reversible: pattern.value(P::IS_REVERSIBLE) == Some(true),
            mtu: pattern.value(P::MTU_SELECTOR).zip(pattern.value(P::MTU)),
            rate: pattern.value(P::RATE_SELECTOR).zip(pattern.value(P::RATE)),
            life_time: pattern.value(P::PACKET_LIFE_TIME_SELECTOR).zip(pattern.value(P::PACKET_LIFE_TIME)),
        })
    }

    /// Reads the criteria of a request for paths between groups; `None` if no path can meet them.
    fn read_multi(pattern: &Pattern<'_, MultiPathRecord>) -> Option<Self> {
        type M = MultiPathRecord;
        if pattern.value(M::IS_RAW) == Some(true) {
            return None;
        }
        let pkey = match pattern.selects(M::PKEY) {
            true => Some(pattern.value::<Option<Pkey>>(M::PKEY).flatten()?),
            false => None,
        };
        Some(Self {
            pkey,
            sl: pattern.value(M::SL),
            reversible: pattern.value(M::IS_REVERSIBLE) == Some(true),
            mtu: pattern.value(M::MTU_SELECTOR).zip(pattern.value(M::MTU)),
            rate: pattern.value(M::RATE_SELECTOR).zip(pattern.value(M::RATE)),
            life_time: pattern.value(M::PACKET_LIFE_TIME_SELECTOR).zip(pattern.value(M::PACKET_LIFE_TIME)),
        })
    }

    /// The properties of a path under these criteria; `None` if it cannot meet them. A path can be used with
    /// a smaller MTU and a lower rate, but its packet lifetime is fixed.
    fn offer(&self, capability: PathCapability, life_time: u8) -> Option<Offer> {
        Some(Offer {
            mtu: self.mtu.map_or(Some(capability.mtu()), |(selector, wanted)| {
                lower_mtu(capability.mtu(), selector, wanted)
            })?,
            rate: self.rate.map_or(Some(capability.rate()), |(selector, wanted)| {
                lower_rate(capability.rate(), selector, wanted)
            })?,
            life_time: self
                .life_time
                .is_none_or(|(selector, wanted)| is_selected(life_time, selector, wanted))
                .then_some(life_time)?,
        })
    }
}

/// Whether a value meets a selector.
pub(super) fn is_selected<T: Ord>(value: T, selector: Selector, wanted: T) -> bool {
    match selector {
        Selector::GreaterThan => value > wanted,
        Selector::LessThan => value < wanted,
        Selector::Exactly => value == wanted,
        Selector::Best | Selector::Unknown(_) => true,
    }
}

/// The largest MTU up to `capability` that a selector permits.
pub(super) fn lower_mtu(capability: Mtu, selector: Selector, wanted: Mtu) -> Option<Mtu> {
    let sizes = [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096];
    highest(&sizes, capability, selector, wanted, |mtu| mtu.bytes().into())
}

/// The highest rate up to `capability` that a selector permits.
pub(super) fn lower_rate(capability: Rate, selector: Selector, wanted: Rate) -> Option<Rate> {
    highest(&Rate::SLOWEST_FIRST, capability, selector, wanted, Rate::nominal_mbps)
}

fn highest<T: Copy>(
    ascending: &[T],
    capability: T,
    selector: Selector,
    wanted: T,
    size: fn(T) -> u32,
) -> Option<T> {
    if selector == Selector::Best {
        return Some(capability);
    }
    // Unknown codes have size 0; every value would be greater.
    let wanted = Some(size(wanted)).filter(|wanted| *wanted > 0)?;
    let allowed =
        |value: &&T| size(**value) <= size(capability) && is_selected(size(**value), selector, wanted);
    ascending.iter().rev().find(allowed).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_lowered_to_the_request_but_never_raised() {
        use Selector::{Best, Exactly, GreaterThan, LessThan};
        let mtu = |selector, wanted| lower_mtu(Mtu::B2048, selector, wanted);
        assert_eq!(mtu(GreaterThan, Mtu::B1024), Some(Mtu::B2048));
        assert_eq!(mtu(GreaterThan, Mtu::B2048), None);
        assert_eq!(mtu(LessThan, Mtu::B4096), Some(Mtu::B2048));
        assert_eq!(mtu(LessThan, Mtu::B2048), Some(Mtu::B1024));
        assert_eq!(mtu(LessThan, Mtu::B256), None);
        assert_eq!(mtu(Exactly, Mtu::B512), Some(Mtu::B512));
        assert_eq!(mtu(Exactly, Mtu::B4096), None);
        assert_eq!(mtu(Best, Mtu::NoChange), Some(Mtu::B2048));
        assert_eq!(mtu(Exactly, Mtu::Unknown(9)), None);
    }

    #[test]
    fn rates_compare_by_speed_and_not_by_code() {
        use Selector::{Exactly, GreaterThan, LessThan};
        let rate = |selector, wanted| lower_rate(Rate::G100, selector, wanted);
        assert_eq!(rate(GreaterThan, Rate::G28), Some(Rate::G100), "the code of 28 Gb/s is the higher one");
        assert_eq!(rate(GreaterThan, Rate::G112), None, "the code of 112 Gb/s is the lower one");
        assert_eq!(rate(LessThan, Rate::G100), Some(Rate::G80));
        assert_eq!(rate(LessThan, Rate::G200), Some(Rate::G100));
        assert_eq!(rate(Exactly, Rate::G40), Some(Rate::G40));
        assert_eq!(rate(Exactly, Rate::G200), None);
    }

    #[test]
    fn the_packet_lifetime_cannot_be_chosen() {
        assert!(is_selected(18, Selector::LessThan, 19) && !is_selected(18, Selector::LessThan, 18));
        assert!(is_selected(18, Selector::GreaterThan, 17) && !is_selected(18, Selector::GreaterThan, 18));
        assert!(is_selected(18, Selector::Exactly, 18) && !is_selected(18, Selector::Exactly, 17));
        assert!(is_selected(18, Selector::Best, 0));
    }
}
