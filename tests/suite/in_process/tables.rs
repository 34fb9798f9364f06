//! The tables of all devices at one moment, and the states that must not occur. This module reads tables as devices do
//! and shares no code with the writers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use fabric_model::Topology;
use ib_wire::{Guid, Pkey};

use super::pairs::Pairs;

/// Everything that decides where packets go.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tables {
    pub switches: Vec<Switch>,
    pub ends: Vec<End>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Switch {
    pub top: u16,
    /// Exit by LID, 0xFF for none, also beyond the end.
    pub linear: Vec<u8>,
    /// Ports by multicast LID.
    pub groups: BTreeMap<u16, BTreeSet<u8>>,
    /// By number; port 0 stands first and is not used.
    pub ports: Vec<Port>,
}

/// An external port of a switch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Port {
    pub behind: Option<Behind>,
    /// Whether data passes its link.
    pub active: bool,
    pub enforcing: bool,
    pub keys: Vec<Option<Pkey>>,
}

/// The other end of a switch port's cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Behind {
    /// A switch and the port there.
    Switch(usize, u8),
    End(usize),
}

/// An adapter port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct End {
    pub lid: Option<u16>,
    pub keys: Vec<Option<Pkey>>,
    /// The switch and the port there that it is cabled to.
    pub at: Option<(usize, u8)>,
}

impl Switch {
    /// The output port of a LID, whether or not there is such a port.
    fn entry(&self, lid: u16) -> Option<u8> {
        self.linear.get(usize::from(lid)).copied().filter(|_| lid <= self.top)
    }
}

/// What differs between two states of the same devices: LIDs and multicast LIDs whose packets may take other ways, and ends
/// that differ themselves or at the switch port that they are cabled to.
#[derive(Default)]
struct Changes {
    lids: BTreeSet<u16>,
    mlids: BTreeSet<u16>,
    ends: BTreeSet<usize>,
}

/// Where devices of a topology stand in [`Tables`].
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// Switches by node GUID.
    pub switches: BTreeMap<Guid, usize>,
    /// Adapter ports by port GUID.
    pub ends: BTreeMap<Guid, usize>,
}

/// A state that must never occur.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// Packets to a LID circle through a switch.
    Loop { lid: u16, switch: usize },
    /// Links wait for each other, one of them behind this port.
    CreditRing { switch: usize, port: u8 },
    /// Packets to a group circle.
    GroupRing { mlid: u16 },
    /// A packet reaches a port that it must not reach.
    Reaches { from: usize, to: usize, hostile: bool },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl Places {
    pub fn of(topology: &Topology) -> Self {
        let ends = topology.end_nodes().flat_map(|(_, node)| node.ports().map(|(_, port)| port.guid));
        Self {
            switches: topology.switches().map(|(_, node)| node.guid).zip(0..).collect(),
            ends: ends.zip(0..).collect(),
        }
    }
}

impl Tables {
    /// The first violation, if there is one.
    pub fn violation(&self, allowed: &Pairs) -> Option<Violation> {
        let ring = || {
            self.loops(self.lids()).or_else(|| self.credit_ring()).or_else(|| self.group_ring(self.mlids()))
        };
        self.reachable().beyond(allowed).or_else(ring)
    }

    /// The first violation in what differs from other tables of the same devices, in which there is none with the same
    /// permissions.
    pub fn violation_since(&self, before: &Self, allowed: &Pairs) -> Option<Violation> {
        let changes = self.changes_since(before);
        let is_affected = |to: &End| to.lid.is_some_and(|lid| changes.lids.contains(&lid));
        let receivers = self.ends.iter().enumerate().filter(|(_, to)| is_affected(to)).map(|(to, _)| to);
        let receivers: BTreeSet<usize> = receivers.chain(changes.ends.iter().copied()).collect();
        let all = 0..self.ends.len();
        let from_anywhere = receivers.iter().flat_map(|to| all.clone().map(|from| (from, *to)));
        let to_anywhere = changes.ends.iter().flat_map(|from| all.clone().map(|to| (*from, to)));
        let routes = |lids: BTreeSet<u16>| match lids.is_empty() {
            true => None,
            false => self.loops(lids).or_else(|| self.credit_ring()),
        };
        let reaches = self.reachable_among(from_anywhere.chain(to_anywhere)).beyond(allowed);
        reaches.or_else(|| routes(changes.lids)).or_else(|| self.group_ring(changes.mlids))
    }

    fn changes_since(&self, before: &Self) -> Changes {
        let mut changes = Changes::default();
        let ends = before.ends.iter().zip(&self.ends).enumerate();
        changes.ends.extend(ends.filter(|(_, (was, is))| was != is).map(|(place, _)| place));
        for (was, is) in before.switches.iter().zip(&self.switches).filter(|(was, is)| was != is) {
            let lids = 1..was.linear.len().max(is.linear.len()) as u16;
            changes.lids.extend(lids.clone().filter(|lid| was.entry(*lid) != is.entry(*lid)));
            let mlids = was.groups.keys().chain(is.groups.keys()).copied();
            changes.mlids.extend(mlids.filter(|mlid| was.groups.get(mlid) != is.groups.get(mlid)));
            for (number, (port, now)) in was.ports.iter().zip(&is.ports).enumerate() {
                if port == now {
                    continue;
                }
                for behind in [port.behind, now.behind] {
                    if let Some(Behind::End(end)) = behind {
                        changes.ends.insert(end);
                    }
                }
                if (port.active, port.behind) != (now.active, now.behind) {
                    let number = number as u8;
                    changes.lids.extend(lids.clone().filter(|lid| is.entry(*lid) == Some(number)));
                    let with_port = is.groups.iter().filter(|(_, ports)| ports.contains(&number));
                    changes.mlids.extend(with_port.map(|(mlid, _)| *mlid));
                }
            }
        }
        changes
    }

    /// The port by which a switch sends to a LID.
    fn exit(&self, switch: usize, lid: u16) -> Option<(u8, &Port)> {
        let switch = &self.switches[switch];
        let exit = switch.entry(lid)?;
        let port = switch.ports.get(usize::from(exit))?;
        (exit != 0 && port.active).then_some((exit, port))
    }

    fn next_switch(&self, switch: usize, lid: u16) -> Option<(u8, usize)> {
        match self.exit(switch, lid)? {
            (exit, Port { behind: Some(Behind::Switch(next, _)), .. }) => Some((exit, *next)),
            _ => None,
        }
    }

    fn lids(&self) -> std::ops::Range<u16> {
        1..self.switches.iter().map(|switch| switch.linear.len()).max().unwrap_or(1) as u16
    }

    fn mlids(&self) -> BTreeSet<u16> {
        self.switches.iter().flat_map(|switch| switch.groups.keys()).copied().collect()
    }

    fn loops(&self, lids: impl IntoIterator<Item = u16>) -> Option<Violation> {
        for lid in lids {
            // The last walk that came by, counted from 1.
            let mut seen = vec![0; self.switches.len()];
            for start in 0..self.switches.len() {
                let mut here = start;
                while seen[here] == 0 {
                    seen[here] = start + 1;
                    match self.next_switch(here, lid) {
                        Some((_, next)) if seen[next] == start + 1 => {
                            return Some(Violation::Loop { lid, switch: next });
                        }
                        Some((_, next)) => here = next,
                        None => break,
                    }
                }
            }
        }
        None
    }

    /// Looks for a cycle in the relation "a packet that holds this channel may wait for that one", for any sender and
    /// receiver.
    fn credit_ring(&self) -> Option<Violation> {
        let ports = self.switches.iter().map(|switch| switch.ports.len()).max().unwrap_or(0);
        let channel = |switch: usize, port: u8| switch * ports + usize::from(port);
        let count = self.switches.len() * ports;
        // For each channel: whether a packet that holds it may wait for each port of the next switch.
        let mut known = vec![false; count * ports];
        let (mut waiting, mut waited_for) = (vec![0; count], vec![Vec::new(); count]);
        let mut is_used = vec![false; count];
        for lid in self.lids() {
            for switch in 0..self.switches.len() {
                let Some((exit, next)) = self.next_switch(switch, lid) else { continue };
                let Some((onward, _)) = self.next_switch(next, lid) else { continue };
                let (holder, wanted) = (channel(switch, exit), channel(next, onward));
                if !std::mem::replace(&mut known[holder * ports + usize::from(onward)], true) {
                    waiting[holder] += 1;
                    waited_for[wanted].push(holder);
                    (is_used[holder], is_used[wanted]) = (true, true);
                }
            }
        }
        // Channels that wait for no other cannot be on a cycle; remove them until none is left.
        let mut free: Vec<usize> = (0..count).filter(|it| is_used[*it] && waiting[*it] == 0).collect();
        while let Some(channel) = free.pop() {
            is_used[channel] = false;
            for holder in std::mem::take(&mut waited_for[channel]) {
                waiting[holder] -= 1;
                if waiting[holder] == 0 {
                    free.push(holder);
                }
            }
        }
        let stuck = (0..count).find(|channel| is_used[*channel])?;
        Some(Violation::CreditRing { switch: stuck / ports, port: (stuck % ports) as u8 })
    }

    /// The cables of a group, those in the entry of one end included, have to be a forest.
    fn group_ring(&self, mlids: BTreeSet<u16>) -> Option<Violation> {
        for mlid in mlids {
            let mut tree: Vec<usize> = (0..self.switches.len()).collect();
            let mut cables: BTreeSet<[(usize, u8); 2]> = BTreeSet::new();
            for (place, switch) in self.switches.iter().enumerate() {
                for number in switch.groups.get(&mlid).into_iter().flatten() {
                    let port = switch.ports.get(usize::from(*number)).filter(|port| port.active);
                    if let Some(Port { behind: Some(Behind::Switch(next, far)), .. }) = port {
                        let mut ends = [(place, *number), (*next, *far)];
                        ends.sort_unstable();
                        cables.insert(ends);
                    }
                }
            }
            for [(a, _), (b, _)] in cables {
                let (a, b) = (root(&tree, a), root(&tree, b));
                if a == b {
                    return Some(Violation::GroupRing { mlid });
                }
                tree[a] = b;
            }
        }
        None
    }

    /// The pairs that reach each other over links, routes, and the keys of switch ports and adapters.
    pub fn reachable(&self) -> Pairs {
        let all = 0..self.ends.len();
        self.reachable_among(all.clone().flat_map(|from| all.clone().map(move |to| (from, to))))
    }

    /// Those of some pairs that reach each other.
    fn reachable_among(&self, among: impl Iterator<Item = (usize, usize)>) -> Pairs {
        let compact = |keys: &[Option<Pkey>]| keys.iter().flatten().copied().collect::<Vec<Pkey>>();
        let held: Vec<Vec<Pkey>> = self.ends.iter().map(|end| compact(&end.keys)).collect();
        let guards: Vec<Option<Vec<Pkey>>> = self
            .ends
            .iter()
            .map(|end| {
                let (switch, number) = end.at?;
                let port = self.switches[switch].ports.get(usize::from(number))?;
                port.enforcing.then(|| compact(&port.keys))
            })
            .collect();
        let mut pairs = Pairs::new(self.ends.len());
        for (from, to) in among.filter(|(from, to)| from != to && self.has_way(*from, *to)) {
            let passes = |key: Pkey| {
                guards[from].as_ref().is_none_or(|keys| permits(keys, key))
                    && guards[to].as_ref().is_none_or(|keys| accepts(keys, key))
                    && accepts(&held[to], key)
            };
            if held[from].iter().any(|key| passes(*key)) {
                pairs.honest.insert((from, to));
            }
            let full = |key: &Pkey| key.partition().key(ib_wire::Membership::Full);
            if held[to].iter().any(|key| passes(full(key)) || passes(*key)) {
                pairs.hostile.insert((from, to));
            }
        }
        pairs
    }

    /// Whether links and routes lead from one end to another.
    fn has_way(&self, from: usize, to: usize) -> bool {
        self.last_exit(from, to).is_some()
    }

    fn last_exit(&self, from: usize, to: usize) -> Option<()> {
        let ((mut here, number), lid) = (self.ends[from].at?, self.ends[to].lid?);
        self.switches[here].ports.get(usize::from(number)).filter(|port| port.active)?;
        for _ in 0..=self.switches.len() {
            let (_, port) = self.exit(here, lid)?;
            match port.behind? {
                Behind::Switch(next, _) => here = next,
                Behind::End(end) => return (end == to).then_some(()),
            }
        }
        None
    }
}

fn root(tree: &[usize], mut place: usize) -> usize {
    while tree[place] != place {
        place = tree[place];
    }
    place
}

/// Whether a switch port lets its neighbour send with a key: a full entry permits both keys of its partition, a limited one
/// only the limited key (A-PART-4).
fn permits(keys: &[Pkey], sent: Pkey) -> bool {
    keys.iter().any(|held| *held == sent || *held == sent.partition().key(ib_wire::Membership::Full))
}

fn accepts(keys: &[Pkey], sent: Pkey) -> bool {
    keys.iter().any(|held| sent.is_accepted_by(*held))
}
