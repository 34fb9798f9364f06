//! Whether ports hold the keys of their partitions and no others, twice: in their own tables, and in those of the switch
//! ports in front of them.

use std::collections::BTreeSet;

use fabric_model::intent::{PortName, Role};
use fabric_model::plan::{Enforcement, PkeyTable};
use ib_wire::{Guid, Membership, PartitionNumber, Pkey};

use crate::network::{Next, Place};
use crate::{Finding, Guard, Reading};

pub(crate) fn check(read: &Reading<'_>) -> Vec<Finding> {
    let missing = read.wanted.missing.iter();
    let mut findings: Vec<Finding> =
        missing.map(|name| Finding::PartitionMissing { name: name.clone() }).collect();
    members(read, &mut findings);
    let mut suspects = own_tables(read, &mut findings);
    suspects.extend(enforced_tables(read, &mut findings));
    findings.extend(suspects.into_iter().filter_map(|suspect| broken(read, suspect)));
    findings
}

/// A table that lets pass more than it should.
struct Suspect {
    /// The end port, by its place among all.
    end: usize,
    guard: Guard,
    /// What it lets pass; `None` for everything.
    key: Option<Pkey>,
}

/// The lists that queries are answered by.
fn members(read: &Reading<'_>, findings: &mut Vec<Finding>) {
    let plan = read.network.plan;
    let numbers: BTreeSet<PartitionNumber> =
        plan.partitions().map(|p| p.number).chain(read.wanted.partitions.keys().copied()).collect();
    for partition in numbers {
        let wanted = read.wanted.partitions.get(&partition).map(|wanted| &wanted.members);
        let planned = plan.partition(partition).map(|planned| &planned.members);
        if wanted == planned {
            continue;
        }
        let ports: BTreeSet<Guid> =
            wanted.into_iter().chain(planned).flat_map(|m| m.keys().copied()).collect();
        for port in ports {
            let role = |members: Option<&std::collections::BTreeMap<Guid, Role>>| {
                members.and_then(|members| members.get(&port)).copied()
            };
            let (wanted, planned) = (role(wanted), role(planned));
            if wanted != planned {
                findings.push(Finding::MemberDiffers { partition, port, wanted, planned });
            }
        }
    }
}

/// The tables of end ports.
fn own_tables(read: &Reading<'_>, findings: &mut Vec<Finding>) -> Vec<Suspect> {
    let mut suspects = Vec::new();
    for (index, end) in read.network.ends().iter().enumerate() {
        let more = compare(read, index, end.name, read.network.pkeys(index), Guard::Ends, findings);
        suspects.extend(more);
        let claims = read.wanted.port(end.guid).map_or(&[][..], |wanted| &wanted.first);
        let holds = read.network.pkeys(index).entries().first().copied().flatten();
        if let Some(wanted) = claims.first()
            && !holds.is_some_and(|key| claims.contains(&key.partition()))
        {
            findings.push(Finding::IndexZero { port: end.name, wanted: *wanted, holds });
        }
    }
    suspects
}

/// The tables of switch ports.
fn enforced_tables(read: &Reading<'_>, findings: &mut Vec<Finding>) -> Vec<Suspect> {
    let mut suspects = Vec::new();
    for (place, switch) in read.network.switches.iter().enumerate() {
        for port in &switch.ports {
            let name = read.network.port_name(place, port.number);
            match (read.network.next(place, port.number), &port.enforcement) {
                (Next::End(end), Enforcement::Both(keys)) => {
                    suspects.extend(compare(read, end as usize, name, keys, Guard::Switches, findings));
                }
                (Next::End(end), Enforcement::Off) => {
                    findings.push(Finding::EnforcementOff { port: name });
                    suspects.push(Suspect { end: end as usize, guard: Guard::Switches, key: None });
                }
                (Next::Stranger, Enforcement::Off) => findings.push(Finding::EnforcementOff { port: name }),
                (Next::Switch(..), Enforcement::Both(_)) => {
                    findings.push(Finding::EnforcementInside { port: name });
                }
                _ => {}
            }
        }
    }
    suspects
}

/// A table against what the intents ask for the end port behind it.
fn compare(
    read: &Reading<'_>,
    end: usize,
    port: PortName,
    table: &PkeyTable,
    guard: Guard,
    findings: &mut Vec<Finding>,
) -> Vec<Suspect> {
    let wanted = read.wanted.port(read.network.ends()[end].guid).map_or(Vec::new(), |wanted| wanted.keys());
    let mut held: Vec<Pkey> = table.keys().collect();
    held.sort_unstable();
    held.dedup();
    if held == wanted {
        return Vec::new();
    }
    let missing = wanted.iter().filter(|key| !held.contains(key));
    findings.extend(missing.map(|key| Finding::KeyMissing { port, key: *key, guard }));
    let more: Vec<Pkey> = held.into_iter().filter(|key| !wanted.contains(key)).collect();
    findings.extend(more.iter().map(|key| Finding::KeyUnwanted { port, key: *key, guard }));
    more.into_iter().map(|key| Suspect { end, guard, key: Some(key) }).collect()
}

/// Another port with which a suspect could exchange packets against the intents, if one guard were all there is.
fn broken(read: &Reading<'_>, suspect: Suspect) -> Option<Finding> {
    let network = &read.network;
    let from = network.ends()[suspect.end].guid;
    let others = network.ends().iter().enumerate().filter(|(index, _)| *index != suspect.end);
    let mut strangers = others.filter(|(_, other)| !read.wanted.may_talk(from, other.guid));
    let (to, key) = strangers.find_map(|(index, other)| {
        let table = match suspect.guard {
            Guard::Ends => Some(network.pkeys(index)),
            Guard::Switches if other.is_switch() => None,
            Guard::Switches => enforced(read, index),
        };
        Some((other, passing(suspect.key, table?.keys())?))
    })?;
    let start: Option<Place> = network.ends()[suspect.end].home.map(|(place, _)| place);
    let path = start.map_or(Vec::new(), |start| network.path(start, usize::from(to.lid.to_wire())).0);
    Some(Finding::IsolationBroken { from, to: to.guid, key, guard: suspect.guard, path })
}

/// A key that two tables let pass between them; `None` as the first stands for every key.
fn passing(one: Option<Pkey>, mut other: impl Iterator<Item = Pkey>) -> Option<Pkey> {
    match one {
        Some(key) => other.any(|held| key.is_accepted_by(held)).then_some(key),
        None => other.next().map(|held| held.partition().key(Membership::Full)),
    }
}

/// What the switch port in front of an adapter lets pass.
fn enforced<'a>(read: &'a Reading<'_>, end: usize) -> Option<&'a PkeyTable> {
    let (place, port) = read.network.ends()[end].home?;
    match &read.network.switches[place].port(port)?.enforcement {
        Enforcement::Both(keys) => Some(keys),
        Enforcement::Off => None,
    }
}
