//! Isolation: ports hold exactly the P_Keys of their partitions. Checked twice, in the tables of end ports and in the
//! tables that switch ports in front of them enforce; each must separate partitions without the other.

use std::collections::{BTreeMap, BTreeSet};

use fabric_model::intent::{PortName, Role, UnenforcedPorts};
use fabric_model::plan::{Enforcement, PkeyTable, SwitchPortPlan};
use ib_wire::{Guid, Membership, PartitionNumber, Pkey};

use crate::bounded::bounded;
use crate::network::{Link, NextHop, PORTS, SwitchIndex, enforces};
use crate::{Finding, PkeyTableKind, Reading, Rule};

/// Findings about P_Key tables and member lists.
#[derive(Clone, Debug, Default)]
pub(crate) struct Keys {
    /// By end port; tables without findings are absent.
    own: BTreeMap<usize, TableResult>,
    /// By the link on which the switch port sends; tables without findings are absent.
    enforced: BTreeMap<Link, TableResult>,
    /// Differences in the plan's member lists; partitions without findings are absent.
    members: BTreeMap<PartitionNumber, Vec<Finding>>,
}

#[derive(Clone, Debug, Default)]
struct TableResult {
    findings: Vec<Finding>,
    suspects: Vec<Suspect>,
}

impl Keys {
    pub fn of(read: &Reading<'_>) -> Self {
        let mut keys = Self::default();
        for end in 0..read.network.ends().len() {
            keys.check_end(read, end);
        }
        for (switch_index, switch) in read.network.switches.iter().enumerate() {
            for port in switch.ports.iter() {
                keys.check_port(read, switch_index, port);
            }
        }
        let planned = read.network.plan.partitions().map(|partition| partition.number);
        let numbers: BTreeSet<PartitionNumber> =
            planned.chain(read.intended.partitions.keys().copied()).collect();
        numbers.into_iter().for_each(|number| keys.check_members(read, number));
        keys
    }

    pub fn check_end(&mut self, read: &Reading<'_>, end: usize) {
        put(&mut self.own, end, own_table(read, end));
    }

    /// Checks the table that a switch port enforces, and whether it should enforce one.
    pub fn check_port(&mut self, read: &Reading<'_>, switch_index: SwitchIndex, port: &SwitchPortPlan) {
        put(
            &mut self.enforced,
            switch_index * PORTS + port.number.index(),
            enforced_table(read, switch_index, port),
        );
    }

    /// Checks the plan's member list of a partition, from which the subnet administration answers queries.
    pub fn check_members(&mut self, read: &Reading<'_>, number: PartitionNumber) {
        let findings = members(read, number);
        if findings.is_empty() {
            self.members.remove(&number);
        } else {
            self.members.insert(number, findings);
        }
    }

    /// All findings, including pairs of ports that a wrong table lets talk.
    pub fn findings(&self, read: &Reading<'_>) -> Vec<Finding> {
        let missing = read.intended.missing();
        let mut findings: Vec<Finding> =
            missing.map(|name| Finding::PartitionMissing { name: name.to_owned() }).collect();
        findings.extend(self.members.values().flatten().cloned());
        let tables = || self.own.values().chain(self.enforced.values());
        findings.extend(tables().flat_map(|table| table.findings.iter().cloned()));
        let suspects = tables().flat_map(|table| &table.suspects);
        findings.extend(suspects.filter_map(|suspect| broken(read, *suspect)));
        findings
    }
}

fn put<K: Ord>(kept: &mut BTreeMap<K, TableResult>, key: K, found: TableResult) {
    // A table with suspects also has findings.
    if found.findings.is_empty() {
        kept.remove(&key);
    } else {
        kept.insert(key, found);
    }
}

/// A table that lets more pass than it should.
#[derive(Clone, Copy, Debug)]
struct Suspect {
    /// Index of the end port that the table protects.
    end: usize,
    kind: PkeyTableKind,
    /// The surplus key; `None` if the table lets everything pass.
    key: Option<Pkey>,
}

/// Compares the plan's member list of a partition with the intents.
fn members(read: &Reading<'_>, partition: PartitionNumber) -> Vec<Finding> {
    let intended = read.intended.partitions.get(&partition).map(|intended| &intended.members);
    let planned = read.network.plan.partition(partition).map(|planned| &planned.members);
    if intended == planned {
        return Vec::new();
    }
    let role = |members: Option<&BTreeMap<Guid, Role>>, port: &Guid| {
        members.and_then(|members| members.get(port)).copied()
    };
    let ports: BTreeSet<Guid> =
        intended.into_iter().chain(planned).flat_map(|members| members.keys().copied()).collect();
    let roles = ports.into_iter().map(|port| (port, role(intended, &port), role(planned, &port)));
    let differing = roles.filter(|(_, intended, planned)| intended != planned);
    let findings = differing.map(|(port, intended, planned)| Finding::MemberDiffers {
        partition,
        port,
        intended,
        planned,
    });
    bounded(Rule::Isolation, findings.collect())
}

fn own_table(read: &Reading<'_>, index: usize) -> TableResult {
    let (end, table) = (&read.network.ends()[index], read.network.pkeys(index));
    let mut found = compare(read, index, end.name, table, PkeyTableKind::EndPort);
    let claims = read.intended.port(end.guid).map_or(&[][..], |intended| &intended.first);
    let holds = table.entries().first().copied().flatten();
    if let Some(intended) = claims.first()
        && !holds.is_some_and(|key| claims.contains(&key.partition()))
    {
        found.findings.push(Finding::IndexZeroDiffers { port: end.name, intended: *intended, holds });
    }
    found
}

fn enforced_table(read: &Reading<'_>, switch_index: SwitchIndex, port: &SwitchPortPlan) -> TableResult {
    let name = read.network.port_name(switch_index, port.number);
    let off = || vec![Finding::EnforcementOff { port: name }];
    match (read.network.next(switch_index, port.number), &port.enforcement) {
        (NextHop::EndPort(end), Enforcement::Both(keys)) => {
            compare(read, end as usize, name, keys, PkeyTableKind::SwitchPort)
        }
        (NextHop::EndPort(end), Enforcement::Off) if may_be_off(read, name, end as usize) => {
            TableResult::default()
        }
        (NextHop::EndPort(end), Enforcement::Off) => {
            let suspect = Suspect { end: end as usize, kind: PkeyTableKind::SwitchPort, key: None };
            TableResult { findings: off(), suspects: vec![suspect] }
        }
        (NextHop::UnknownPort, Enforcement::Off) => TableResult { findings: off(), suspects: Vec::new() },
        (NextHop::Switch(..), Enforcement::Both(_)) => TableResult {
            findings: vec![Finding::EnforcementBetweenSwitches { port: name }],
            suspects: Vec::new(),
        },
        _ => TableResult::default(),
    }
}

/// Whether a switch port need not enforce the partitions of an end port: it cannot, and the port is the manager's own or
/// open by the intents.
fn may_be_off(read: &Reading<'_>, switch_port: PortName, end: usize) -> bool {
    let (intents, end) = (read.intents, &read.network.ends()[end]);
    let is_allowed = intents.is_manager(end.guid) || intents.unenforced_ports == UnenforcedPorts::Open;
    is_allowed && !enforces(&intents.capabilities, switch_port, end.name)
}

/// Compares a table with the P_Keys that the intents give the end port behind it.
fn compare(
    read: &Reading<'_>,
    end: usize,
    port: PortName,
    table: &PkeyTable,
    kind: PkeyTableKind,
) -> TableResult {
    let intended =
        read.intended.port(read.network.ends()[end].guid).map_or(Vec::new(), |intended| intended.keys());
    let mut held: Vec<Pkey> = table.keys().collect();
    held.sort_unstable();
    held.dedup();
    if held == intended {
        return TableResult::default();
    }
    let missing = intended.iter().filter(|key| !held.contains(key));
    let mut findings: Vec<Finding> =
        missing.map(|key| Finding::KeyMissing { port, key: *key, table: kind }).collect();
    let more: Vec<Pkey> = held.into_iter().filter(|key| !intended.contains(key)).collect();
    findings.extend(more.iter().map(|key| Finding::KeyUnwanted { port, key: *key, table: kind }));
    let suspects = more.into_iter().map(|key| Suspect { end, kind, key: Some(key) }).collect();
    TableResult { findings, suspects }
}

/// Finds a port with which the suspect may not talk, but could if only tables of this kind separated partitions.
fn broken(read: &Reading<'_>, suspect: Suspect) -> Option<Finding> {
    let network = &read.network;
    let from = network.ends()[suspect.end].guid;
    let others = network.ends().iter().enumerate().filter(|(index, _)| *index != suspect.end);
    let mut strangers = others.filter(|(_, other)| !read.intended.may_talk(from, other.guid));
    let (to, key) = strangers.find_map(|(index, other)| {
        let table = match suspect.kind {
            PkeyTableKind::EndPort => Some(network.pkeys(index)),
            PkeyTableKind::SwitchPort if other.is_switch() => None,
            PkeyTableKind::SwitchPort => enforced(read, index),
        };
        Some((other, passing(suspect.key, table?.keys())?))
    })?;
    let start: Option<SwitchIndex> = network.ends()[suspect.end].home.map(|(switch_index, _)| switch_index);
    let path = start.map_or(Vec::new(), |start| network.path(start, to.lid).0);
    Some(Finding::IsolationBroken { from, to: to.guid, key, table: suspect.kind, path })
}

/// A P_Key that passes between two tables. `None` as the first means that every key passes there.
fn passing(one: Option<Pkey>, mut other: impl Iterator<Item = Pkey>) -> Option<Pkey> {
    match one {
        Some(key) => other.any(|held| key.is_accepted_by(held)).then_some(key),
        None => other.next().map(|held| held.partition().key(Membership::Full)),
    }
}

/// The table that the switch port in front of an adapter enforces.
pub(crate) fn enforced<'a>(read: &'a Reading<'_>, end: usize) -> Option<&'a PkeyTable> {
    let (switch_index, port) = read.network.ends()[end].home?;
    match &read.network.switches[switch_index].port(port)?.enforcement {
        Enforcement::Both(keys) => Some(keys),
        Enforcement::Off => None,
    }
}
