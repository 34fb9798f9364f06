//! What packets do under a plan, by brute force over every pair of end ports, every P_Key and some service levels.
//! Shares no code with the rules.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};

use fabric_model::plan::{Enforcement, PkeyTable, PortQos};
use fabric_model::tenancy::SlMode;
use fabric_model::{Endpoint, FabricPlan, Intents, Topology};
use ib_wire::{Guid, Lid, Membership, MulticastLid, Pkey, PortNum, VirtualLane};

use super::level;

/// Service levels that the plans of the tests use, and one that none does.
const LEVELS: u8 = 5;

/// Everything that can be observed of a plan from outside.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Behaviour {
    /// Sender, receiver, P_Key and service level of packets that arrive.
    arrived: BTreeSet<(Guid, Guid, Pkey, u8)>,
    /// Those that arrive if only one kind of P_Key tables separated partitions: end ports', or switch ports'.
    by_ends: BTreeSet<(Guid, Guid, Pkey, u8)>,
    by_switches: BTreeSet<(Guid, Guid, Pkey, u8)>,
    /// Switch and LID of packets that loop.
    circling: BTreeSet<(Guid, Lid)>,
    /// Whether there is a credit loop.
    waiting: bool,
    /// Sender, group and receiver with the number of copies; 255 for endless multiplication.
    flooded: BTreeMap<(Guid, MulticastLid, Guid), u8>,
}

impl Behaviour {
    /// Whether packets do the same under another plan, and neither kind of P_Key tables lets more pass than before.
    pub fn is_kept_by(&self, other: &Self) -> bool {
        let same = |b: &Self| (b.arrived.clone(), b.circling.clone(), b.waiting, b.flooded.clone());
        same(self) == same(other)
            && other.by_ends.is_subset(&self.by_ends)
            && other.by_switches.is_subset(&self.by_switches)
    }
}

struct EndPort<'a> {
    guid: Guid,
    lid: Lid,
    end: Endpoint,
    pkeys: &'a PkeyTable,
    sharing: Option<&'a PortQos>,
}

pub struct Fabric<'a> {
    topology: &'a Topology,
    plan: &'a FabricPlan,
    ends: Vec<EndPort<'a>>,
}

impl<'a> Fabric<'a> {
    pub fn new(topology: &'a Topology, plan: &'a FabricPlan) -> Self {
        let adapters = plan.adapter_ports().map(|port| EndPort {
            guid: port.guid,
            lid: port.lid,
            end: topology.by_port_guid(port.guid).unwrap(),
            pkeys: &port.pkeys,
            sharing: port.qos.as_deref(),
        });
        let switches = plan.switches().map(|switch| EndPort {
            guid: switch.port_guid,
            lid: switch.lid,
            end: Endpoint::new(topology.by_guid(switch.guid).unwrap(), PortNum::MANAGEMENT),
            pkeys: &switch.pkeys,
            sharing: None,
        });
        Self { topology, plan, ends: adapters.chain(switches).collect() }
    }

    /// All P_Keys in the tables.
    pub fn keys(&self) -> BTreeSet<Pkey> {
        let own = self.ends.iter().flat_map(|end| end.pkeys.keys());
        let ports = self.plan.switches().flat_map(|switch| switch.ports.iter());
        let enforced = ports.filter_map(|port| match &port.enforcement {
            Enforcement::Both(keys) => Some(keys),
            Enforcement::Off => None,
        });
        own.chain(enforced.flat_map(|keys| keys.keys())).collect()
    }

    /// What packets with any of these P_Keys do.
    pub fn behaviour(&self, keys: &BTreeSet<Pkey>) -> Behaviour {
        let mut seen = Behaviour { waiting: self.waits(), ..Behaviour::default() };
        for from in &self.ends {
            for to in self.ends.iter().filter(|to| to.guid != from.guid) {
                // Service levels are granted to adapters; for switches themselves only best effort counts.
                let are_adapters = [from, to].iter().all(|end| end.end.port != PortNum::MANAGEMENT);
                for sl in (0..LEVELS).filter(|sl| *sl == 0 || are_adapters) {
                    let Some(path) = self.path(from, to, sl) else { continue };
                    for key in keys {
                        let packet = (from.guid, to.guid, *key, sl);
                        let by_ends = may_send(from.pkeys, *key) && accepts(to.pkeys, *key);
                        let by_switches = self.passes(from, &path, *key);
                        if by_ends && by_switches {
                            seen.arrived.insert(packet);
                        }
                        if by_ends {
                            seen.by_ends.insert(packet);
                        }
                        // No switch port is in front of a switch's own port.
                        if by_switches && are_adapters {
                            seen.by_switches.insert(packet);
                        }
                    }
                }
            }
        }
        for switch in self.plan.switches() {
            for lid in (1..=self.top()).filter_map(Lid::from_wire) {
                if self.circles(switch.guid, lid) {
                    seen.circling.insert((switch.guid, lid));
                }
            }
        }
        for mlid in self.groups() {
            for from in self.ends.iter().filter(|end| end.end.port != PortNum::MANAGEMENT) {
                self.flood(from, mlid, &mut seen.flooded);
            }
        }
        seen
    }

    /// Whether every service level but 0 passes in both directions or in neither between every two adapters that
    /// reach each other. With a service level for each pair of switches, only that one is followed.
    pub fn levels_come_back(&self, intents: &Intents) -> bool {
        let adapters = || self.ends.iter().filter(|end| end.end.port != PortNum::MANAGEMENT);
        let switch = |guid: Guid| self.plan.adapter_port(guid).unwrap().peer.node;
        let own = |a: Guid, b: Guid| {
            let mut by_pairs = intents.clusters.iter().filter(|cluster| cluster.sl_mode == SlMode::Path);
            let both = by_pairs.find(|cluster| cluster.ports.contains(&a) && cluster.ports.contains(&b))?;
            self.plan.decisions().clusters.get(&both.name)?.service_level_between(switch(a), switch(b))
        };
        adapters().all(|a| {
            adapters().filter(|b| a.guid < b.guid).all(|b| {
                let passes = |sl| (self.path(a, b, sl).is_some(), self.path(b, a, sl).is_some());
                let own = own(a.guid, b.guid).map(|level| level.to_wire());
                let mut followed = (1..16).filter(|sl| own.is_none_or(|own| own == *sl)).map(passes);
                passes(0) != (true, true) || followed.all(|(there, back)| there == back)
            })
        })
    }

    fn top(&self) -> u16 {
        self.plan.switches().map(|switch| switch.linear.top()).max().unwrap()
    }

    fn groups(&self) -> BTreeSet<MulticastLid> {
        self.plan.switches().flat_map(|switch| switch.multicast.exits().map(|(mlid, _)| mlid)).collect()
    }

    fn exit(&self, here: Endpoint, lid: Lid) -> Option<PortNum> {
        self.plan.switch(self.topology[here.node].guid)?.linear.exit(lid)
    }

    /// Where packets enter the first switch.
    fn start(&self, from: &EndPort<'_>) -> Option<Endpoint> {
        if from.end.port == PortNum::MANAGEMENT { Some(from.end) } else { self.topology.peer(from.end) }
    }

    /// The exits of a packet that arrives; `None` if it is dropped or misrouted.
    fn path(&self, from: &EndPort<'_>, to: &EndPort<'_>, sl: u8) -> Option<Vec<Endpoint>> {
        if let Some(sharing) = from.sharing
            && sharing.otherwise.lane(level(sl)) == VirtualLane::MANAGEMENT
        {
            return None;
        }
        let mut here = self.start(from)?;
        let mut path = Vec::new();
        while self.topology[here.node].is_switch() {
            let exit = self.exit(here, to.lid)?;
            if exit == PortNum::MANAGEMENT {
                let arrived = Endpoint::new(here.node, exit);
                return (arrived == to.end).then_some(path);
            }
            if let Some(port) = self.plan.switch(self.topology[here.node].guid)?.port(exit)
                && let Some(sharing) = &port.qos
            {
                let lane = sharing.lane(here.port, level(sl))?;
                if lane.to_wire() >= port.lanes.count() || sharing.weight(lane) == 0 {
                    return None;
                }
            }
            path.push(Endpoint::new(here.node, exit));
            if path.len() > 2 * self.topology.node_count() {
                return None;
            }
            here = self.topology.peer(Endpoint::new(here.node, exit))?;
        }
        (here == to.end).then_some(path)
    }

    /// Whether the switch ports on a path let a P_Key pass: inbound at the first, outbound at the others.
    fn passes(&self, from: &EndPort<'_>, path: &[Endpoint], key: Pkey) -> bool {
        let table = |end: Endpoint| {
            let port = self.plan.switch(self.topology[end.node].guid).unwrap().port(end.port);
            match port.map(|port| &port.enforcement) {
                Some(Enforcement::Both(keys)) => Some(keys),
                _ => None,
            }
        };
        let first = self.topology.peer(from.end).filter(|_| from.end.port != PortNum::MANAGEMENT);
        let inwards = first.into_iter().filter_map(table).all(|keys| {
            keys.keys().any(|held| {
                held.partition() == key.partition()
                    && (held.membership() == Membership::Full || key.membership() == Membership::Limited)
            })
        });
        inwards && path.iter().filter_map(|end| table(*end)).all(|keys| accepts(keys, key))
    }

    fn circles(&self, from: Guid, lid: Lid) -> bool {
        let mut here = self.topology.by_guid(from).unwrap();
        for _ in 0..=self.topology.node_count() {
            let Some(exit) = self.exit(Endpoint::new(here, PortNum::MANAGEMENT), lid) else { return false };
            match self.topology.peer(Endpoint::new(here, exit)) {
                Some(peer) if self.topology[peer.node].is_switch() => here = peer.node,
                _ => return false,
            }
        }
        true
    }

    /// Whether links between switches can wait for each other, without regard to lanes: removes links that wait for
    /// none until nothing is left, or a cycle.
    fn waits(&self) -> bool {
        let is_link = |end: &Endpoint| {
            self.topology.peer(*end).is_some_and(|peer| self.topology[peer.node].is_switch())
        };
        let mut after: BTreeMap<Endpoint, BTreeSet<Endpoint>> = BTreeMap::new();
        for switch in self.plan.switches() {
            let node = self.topology.by_guid(switch.guid).unwrap();
            let unicast = (1..=self.top()).filter_map(Lid::from_wire).filter_map(|lid| {
                let link = Endpoint::new(node, switch.linear.exit(lid)?);
                let peer = self.topology.peer(link)?;
                Some((link, Endpoint::new(peer.node, self.exit(peer, lid)?)))
            });
            let mut joints: Vec<(Endpoint, Endpoint)> = unicast.collect();
            for (mlid, exits) in switch.multicast.exits() {
                for link in exits.iter().map(|exit| Endpoint::new(node, exit)).filter(is_link) {
                    let peer = self.topology.peer(link).unwrap();
                    let further =
                        self.plan.switch(self.topology[peer.node].guid).unwrap().multicast.exit(mlid);
                    let further = further.iter().filter(|exit| *exit != peer.port);
                    joints.extend(further.map(|exit| (link, Endpoint::new(peer.node, exit))));
                }
            }
            for (link, next) in joints.into_iter().filter(|(link, next)| is_link(link) && is_link(next)) {
                after.entry(link).or_default().insert(next);
                after.entry(next).or_default();
            }
        }
        loop {
            let free: BTreeSet<Endpoint> =
                after.iter().filter(|(_, next)| next.is_empty()).map(|(link, _)| *link).collect();
            if free.is_empty() {
                return !after.is_empty();
            }
            after.retain(|link, next| {
                next.retain(|next| !free.contains(next));
                !free.contains(link)
            });
        }
    }

    fn flood(
        &self,
        from: &EndPort<'_>,
        mlid: MulticastLid,
        flooded: &mut BTreeMap<(Guid, MulticastLid, Guid), u8>,
    ) {
        let mut open: Vec<Endpoint> = self.start(from).into_iter().collect();
        let mut steps = 0;
        while let Some(end) = open.pop() {
            steps += 1;
            if steps > 8 * self.topology.node_count() {
                flooded.insert((from.guid, mlid, from.guid), u8::MAX);
                return;
            }
            if end.port == PortNum::MANAGEMENT || !self.topology[end.node].is_switch() {
                let guid = self.topology.port(end).unwrap().guid;
                *flooded.entry((from.guid, mlid, guid)).or_default() += 1;
                continue;
            }
            let exits = self.plan.switch(self.topology[end.node].guid).unwrap().multicast.exit(mlid);
            for exit in exits.iter().filter(|exit| *exit != end.port) {
                let here = Endpoint::new(end.node, exit);
                let next = if exit == PortNum::MANAGEMENT { Some(here) } else { self.topology.peer(here) };
                open.extend(next);
            }
        }
    }
}

fn may_send(table: &PkeyTable, key: Pkey) -> bool {
    table.index_of(key).is_some()
}

fn accepts(table: &PkeyTable, key: Pkey) -> bool {
    table.keys().any(|held| key.is_accepted_by(held))
}
