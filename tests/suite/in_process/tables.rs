//! The tables of all devices at one moment, and the states that must not occur. This module reads tables as devices do
//! and shares no code with the writers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use fabric_model::{FabricPlan, Topology};
use ib_wire::{Guid, Pkey};

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

/// Where devices of a topology stand in [`Tables`].
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// Switches by node GUID.
    pub switches: BTreeMap<Guid, usize>,
    /// Adapter ports by port GUID.
    pub ends: BTreeMap<Guid, usize>,
}

/// Pairs of ports that reach each other: from adapters that obey their tables, and from adapters that send with any
/// key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pairs {
    pub honest: BTreeSet<(usize, usize)>,
    pub hostile: BTreeSet<(usize, usize)>,
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

impl Pairs {
    /// The pairs that a plan allows.
    pub fn of_plan(plan: &FabricPlan, places: &Places) -> Self {
        let mut pairs = Self::default();
        for from in plan.adapter_ports() {
            for to in plan.adapter_ports().filter(|to| to.guid != from.guid) {
                let pair = (places.ends[&from.guid], places.ends[&to.guid]);
                let any = |meets: fn(Pkey, Pkey) -> bool| {
                    from.pkeys.keys().any(|sent| to.pkeys.keys().any(|held| meets(sent, held)))
                };
                if any(|sent, held| sent.is_accepted_by(held)) {
                    pairs.honest.insert(pair);
                }
                if any(|sent, held| sent.partition() == held.partition()) {
                    pairs.hostile.insert(pair);
                }
            }
        }
        pairs
    }

    pub fn or(mut self, other: &Self) -> Self {
        self.honest.extend(&other.honest);
        self.hostile.extend(&other.hostile);
        self
    }

    fn beyond(&self, allowed: &Self) -> Option<Violation> {
        let first = |pairs: &BTreeSet<(usize, usize)>, allowed: &BTreeSet<(usize, usize)>| {
            pairs.difference(allowed).next().copied()
        };
        let honest = first(&self.honest, &allowed.honest).map(|pair| (pair, false));
        let reaches = honest.or_else(|| first(&self.hostile, &allowed.hostile).map(|pair| (pair, true)));
        reaches.map(|((from, to), hostile)| Violation::Reaches { from, to, hostile })
    }
}

impl Tables {
    /// The first violation, if there is one.
    pub fn violation(&self, allowed: &Pairs) -> Option<Violation> {
        let ring = || self.loops().or_else(|| self.credit_ring()).or_else(|| self.group_ring());
        self.reachable().beyond(allowed).or_else(ring)
    }

    /// The port by which a switch sends to a LID.
    fn exit(&self, switch: usize, lid: u16) -> Option<(u8, &Port)> {
        let switch = &self.switches[switch];
        let exit = *switch.linear.get(usize::from(lid)).filter(|_| lid <= switch.top)?;
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

    fn loops(&self) -> Option<Violation> {
        for lid in self.lids() {
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
        let mut waits: BTreeSet<((usize, u8), (usize, u8))> = BTreeSet::new();
        for lid in self.lids() {
            for switch in 0..self.switches.len() {
                if let Some((exit, next)) = self.next_switch(switch, lid)
                    && let Some((onward, _)) = self.next_switch(next, lid)
                {
                    waits.insert(((switch, exit), (next, onward)));
                }
            }
        }
        // Channels that wait for no other cannot be on a cycle; remove them until none is left.
        let mut waiting: BTreeMap<(usize, u8), usize> = BTreeMap::new();
        let mut waited_for: BTreeMap<(usize, u8), Vec<(usize, u8)>> = BTreeMap::new();
        for (holder, wanted) in waits {
            *waiting.entry(holder).or_default() += 1;
            waiting.entry(wanted).or_default();
            waited_for.entry(wanted).or_default().push(holder);
        }
        let mut free: Vec<(usize, u8)> = waiting.iter().filter(|(_, n)| **n == 0).map(|(c, _)| *c).collect();
        while let Some(channel) = free.pop() {
            waiting.remove(&channel);
            for holder in waited_for.remove(&channel).unwrap_or_default() {
                let left = waiting.get_mut(&holder).unwrap();
                *left -= 1;
                if *left == 0 {
                    free.push(holder);
                }
            }
        }
        waiting.keys().next().map(|(switch, port)| Violation::CreditRing { switch: *switch, port: *port })
    }

    /// The cables of a group, those in the entry of one end included, have to be a forest.
    fn group_ring(&self) -> Option<Violation> {
        let mlids: BTreeSet<u16> =
            self.switches.iter().flat_map(|switch| switch.groups.keys()).copied().collect();
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
        let mut pairs = Pairs::default();
        for (from, sender) in self.ends.iter().enumerate() {
            for (to, receiver) in self.ends.iter().enumerate().filter(|(to, _)| *to != from) {
                let Some((entry, exit)) = self.way(sender, receiver, to) else { continue };
                let passes = |key: Pkey| {
                    (!entry.enforcing || permits(&entry.keys, key))
                        && (!exit.enforcing || accepts(&exit.keys, key))
                        && accepts(&receiver.keys, key)
                };
                if sender.keys.iter().flatten().any(|key| passes(*key)) {
                    pairs.honest.insert((from, to));
                }
                let full = |key: &Pkey| key.partition().key(ib_wire::Membership::Full);
                if receiver.keys.iter().flatten().any(|key| passes(full(key)) || passes(*key)) {
                    pairs.hostile.insert((from, to));
                }
            }
        }
        pairs
    }

    /// The switch ports by which packets from one end come in and go out to another, if they get there.
    fn way(&self, from: &End, to: &End, to_place: usize) -> Option<(&Port, &Port)> {
        let ((mut here, number), lid) = (from.at?, to.lid?);
        let entry = self.switches[here].ports.get(usize::from(number)).filter(|port| port.active)?;
        for _ in 0..=self.switches.len() {
            let (_, port) = self.exit(here, lid)?;
            match port.behind? {
                Behind::Switch(next, _) => here = next,
                Behind::End(end) => return (end == to_place).then_some((entry, port)),
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
fn permits(keys: &[Option<Pkey>], sent: Pkey) -> bool {
    keys.iter()
        .flatten()
        .any(|held| *held == sent || *held == sent.partition().key(ib_wire::Membership::Full))
}

fn accepts(keys: &[Option<Pkey>], sent: Pkey) -> bool {
    keys.iter().flatten().any(|held| sent.is_accepted_by(*held))
}
