//! Devices that consist of tables only: the writes of a transition are applied one by one, and each is judged.

use std::collections::{BTreeMap, BTreeSet};

use fabric_compiler::compile;
use fabric_model::plan::Enforcement;
use fabric_model::{Decisions, Endpoint, FabricPlan, Intents, NodeIndex, Topology, TopologyBuilder};
use ib_wire::{Guid, Lid, MulticastLid, PkeyBlock, PortMask, PortNum};
use subnet_manager::transition::{
    BlockWrite, GroupBlock, HeldRoutes, LINEAR_BLOCK, PkeyWrite, RouteStep, TwoPhases, groups, pkeys,
    route_steps,
};

use super::pairs::{PairSet, Pairs};
use super::tables::{Behind, End, Places, Port, Switch, Tables, Violation};

/// P_Keys a port holds at most.
const KEYS: u16 = 64;
/// Blocks of the multicast table that are checked.
const GROUP_BLOCKS: u16 = 1;

/// One write to one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Set {
    Lid { end: usize, lid: Lid },
    Routes(BlockWrite),
    Top { switch: Guid, top: u16 },
    Groups { switch: usize, write: GroupBlock },
    EndKeys { end: usize, write: PkeyWrite },
    PortKeys { switch: usize, port: u8, write: PkeyWrite },
    Enforce { switch: usize, port: u8, on: bool },
    Activate { switch: usize, port: u8 },
}

/// The steps from the current tables to a plan, by purpose.
#[derive(Clone, Debug, Default)]
pub struct Program {
    pub addresses: Vec<Set>,
    pub shrink: Vec<Set>,
    pub enforce: Vec<Set>,
    pub routes: Vec<RouteStep>,
    pub grow: Vec<Set>,
    pub release: Vec<Set>,
    pub activate: Vec<Set>,
}

impl Program {
    /// In the right order.
    pub fn steps(self) -> Vec<Vec<Set>> {
        let routes = route_sets(self.routes);
        let before = [self.addresses, self.shrink, self.enforce];
        let after = [self.grow, self.release, self.activate];
        before.into_iter().chain(routes).chain(after).filter(|step| !step.is_empty()).collect()
    }
}

pub fn route_sets(steps: Vec<RouteStep>) -> Vec<Vec<Set>> {
    let sets = |step: RouteStep| {
        let tops = step.tops.into_iter().map(|(switch, top)| Set::Top { switch, top });
        step.blocks.into_iter().map(Set::Routes).chain(tops).collect()
    };
    steps.into_iter().map(sets).collect()
}

/// A random generator with a fixed seed.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((mixed ^ mixed >> 31) % end.max(1) as u64) as usize
    }

    pub fn shuffle<T>(&mut self, things: &mut [T]) {
        for last in (1..things.len()).rev() {
            things.swap(last, self.below(last + 1));
        }
    }
}

/// The devices of a topology.
#[derive(Clone, Debug)]
pub struct Fleet {
    pub tables: Tables,
    pub places: Places,
    /// Cables that carry data, by the switch port at either end.
    live: BTreeSet<(usize, u8)>,
    /// The honest pairs of the plan that was reached last, and of those that were begun since.
    begun: PairSet,
    /// Writes applied and judged.
    pub judged: u64,
}

impl Fleet {
    /// Blank devices with the cables of a topology, none of them live.
    pub fn new(topology: &Topology) -> Self {
        let places = Places::of(topology);
        let behind = |end: Endpoint| {
            let node = &topology[end.node];
            if node.is_switch() {
                Behind::Switch(places.switches[&node.guid], end.port.to_wire())
            } else {
                Behind::End(places.ends[&topology.port(end).unwrap().guid])
            }
        };
        let port = |peer| Port { behind: Option::map(peer, behind), ..Port::default() };
        let switch = |(_, node): (NodeIndex, &fabric_model::Node)| Switch {
            ports: node.ports().map(|(_, end)| port(end.peer)).collect(),
            ..Switch::default()
        };
        let mut tables = Tables {
            switches: topology.switches().map(switch).collect(),
            ends: vec![End::default(); places.ends.len()],
        };
        for (place, switch) in tables.switches.iter().enumerate() {
            for (number, port) in switch.ports.iter().enumerate() {
                if let Some(Behind::End(end)) = port.behind {
                    tables.ends[end].at = Some((place, number as u8));
                }
            }
        }
        Self { tables, places, live: BTreeSet::new(), begun: PairSet::default(), judged: 0 }
    }

    /// Cables that a plan does not have are pulled; new ones are plugged and wait to be activated.
    pub fn recable(&mut self, plan: &FabricPlan) {
        let cables: BTreeSet<(usize, u8)> = self.cabled(plan);
        self.live.retain(|port| cables.contains(port));
        self.show_live();
    }

    /// All cables of a plan carry data from the start.
    pub fn activate_all(&mut self, plan: &FabricPlan) {
        self.live = self.cabled(plan);
        self.show_live();
    }

    fn cabled(&self, plan: &FabricPlan) -> BTreeSet<(usize, u8)> {
        let place = |guid: &Guid| self.places.switches[guid];
        (plan.switches())
            .flat_map(|switch| {
                switch.ports.iter().map(move |port| (place(&switch.guid), port.number.to_wire()))
            })
            .collect()
    }

    fn show_live(&mut self) {
        for (place, switch) in self.tables.switches.iter_mut().enumerate() {
            for (number, port) in switch.ports.iter_mut().enumerate() {
                port.active = self.live.contains(&(place, number as u8));
            }
        }
    }

    /// What to write for a plan.
    pub fn program(&self, plan: &FabricPlan) -> Program {
        let mut program = Program::default();
        for port in plan.adapter_ports() {
            let end = self.places.ends[&port.guid];
            if self.tables.ends[end].lid != Some(port.lid.to_wire()) {
                program.addresses.push(Set::Lid { end, lid: port.lid });
            }
            let writes =
                pkeys(|block| Some(key_block(&self.tables.ends[end].keys, block)), &port.pkeys, KEYS);
            let set = |write| Set::EndKeys { end, write };
            push(&mut program, writes, set);
        }
        for planned in plan.switches() {
            let switch = self.places.switches[&planned.guid];
            let held = &self.tables.switches[switch];
            let masks = |block, position| Some(group_block(held, block, position));
            let count = (held.ports.len() - 1) as u8;
            let set = |write| Set::Groups { switch, write };
            push(&mut program, groups(masks, &planned.multicast, GROUP_BLOCKS, count), set);
            for port in planned.ports.iter() {
                let (number, held) = (port.number.to_wire(), &held.ports[port.number.index()]);
                if !held.active {
                    program.activate.push(Set::Activate { switch, port: number });
                }
                let set = |write| Set::PortKeys { switch, port: number, write };
                let enforce = |on| Set::Enforce { switch, port: number, on };
                match &port.enforcement {
                    Enforcement::Both(table) => {
                        let writes = pkeys(|block| Some(key_block(&held.keys, block)), table, KEYS);
                        if held.enforcing {
                            push(&mut program, writes, set);
                        } else {
                            // Nobody looks at it yet.
                            let blocks = 0..KEYS / PkeyBlock::ENTRIES as u16;
                            let whole = blocks.map(|block| PkeyWrite { block, keys: table.block(block) });
                            program.shrink.extend(whole.map(set));
                            program.enforce.push(enforce(true));
                        }
                    }
                    Enforcement::Off if held.enforcing => program.release.push(enforce(false)),
                    Enforcement::Off => {}
                }
            }
        }
        program.routes = route_steps(plan, self, plan.switches().map(|switch| switch.guid));
        program
    }

    pub fn apply(&mut self, set: &Set) {
        match set {
            Set::Lid { end, lid } => self.tables.ends[*end].lid = Some(lid.to_wire()),
            Set::Routes(write) => {
                let linear = &mut self.tables.switches[self.places.switches[&write.switch]].linear;
                let first = usize::from(write.block) * LINEAR_BLOCK;
                linear.resize(linear.len().max(first + LINEAR_BLOCK), 0xff);
                linear[first..first + LINEAR_BLOCK].copy_from_slice(&write.exits);
            }
            Set::Top { switch, top } => self.tables.switches[self.places.switches[switch]].top = *top,
            Set::Groups { switch, write } => write_groups(&mut self.tables.switches[*switch], write),
            Set::EndKeys { end, write } => write_keys(&mut self.tables.ends[*end].keys, write),
            Set::PortKeys { switch, port, write } => {
                write_keys(&mut self.tables.switches[*switch].ports[usize::from(*port)].keys, write);
            }
            Set::Enforce { switch, port, on } => {
                self.tables.switches[*switch].ports[usize::from(*port)].enforcing = *on;
            }
            Set::Activate { switch, port } => {
                self.live.insert((*switch, *port));
                self.tables.switches[*switch].ports[usize::from(*port)].active = true;
            }
        }
    }

    /// Applies steps, each in an order of the dice and some writes twice, up to `limit` writes. Returns whether it came to
    /// the end, or the first thing that went wrong.
    pub fn run(
        &mut self,
        steps: Vec<Vec<Set>>,
        allowed: &Pairs,
        dice: &mut Dice,
        limit: usize,
    ) -> Result<bool, Violation> {
        let mut left = limit;
        for mut step in steps {
            dice.shuffle(&mut step);
            let again = (0..step.len() / 4).map(|_| step[dice.below(step.len())].clone());
            let again: Vec<Set> = again.collect();
            for set in step.into_iter().chain(again) {
                if left == 0 {
                    return Ok(false);
                }
                left -= 1;
                self.apply(&set);
                self.judged += 1;
                if let Some(violation) = self.tables.violation(allowed) {
                    return Err(violation);
                }
            }
        }
        Ok(true)
    }

    /// Programs a plan, or a part of it. Pairs that reach each other now are allowed, those of the plan, and honest pairs of
    /// plans that are not over: where a manager stopped between the tables of a full member and of its switch port, the
    /// port is silent, and may for a moment speak as a limited member again.
    pub fn go(&mut self, plan: &FabricPlan, dice: &mut Dice, limit: usize) -> Result<bool, Violation> {
        self.recable(plan);
        let wanted = Pairs::of_plan(plan, &self.places);
        let mut allowed = self.tables.reachable().or(&wanted);
        allowed.honest.unite(&self.begun);
        let steps = self.program(plan).steps();
        let is_there = self.run(steps, &allowed, dice, limit)?;
        if is_there {
            self.begun = PairSet::default();
        }
        self.begun.unite(&wanted.honest);
        Ok(is_there)
    }

    /// Whether the devices match a plan.
    pub fn holds(&self, plan: &FabricPlan) -> bool {
        let program = self.program(plan);
        program.steps().is_empty()
    }
}

impl HeldRoutes for Fleet {
    fn top(&self, switch: Guid) -> u16 {
        self.tables.switches[self.places.switches[&switch]].top
    }

    fn block(&self, switch: Guid, block: u16) -> Option<[u8; LINEAR_BLOCK]> {
        let linear = &self.tables.switches[self.places.switches[&switch]].linear;
        let first = usize::from(block) * LINEAR_BLOCK;
        Some(std::array::from_fn(|entry| linear.get(first + entry).copied().unwrap_or(0xff)))
    }
}

fn push<W>(program: &mut Program, writes: TwoPhases<W>, set: impl Fn(W) -> Set + Copy) {
    program.shrink.extend(writes.shrink.into_iter().map(set));
    program.grow.extend(writes.grow.into_iter().map(set));
}

fn key_block(keys: &[Option<ib_wire::Pkey>], block: u16) -> PkeyBlock {
    let first = usize::from(block) * PkeyBlock::ENTRIES;
    PkeyBlock(std::array::from_fn(|entry| keys.get(first + entry).copied().flatten()))
}

fn write_keys(keys: &mut Vec<Option<ib_wire::Pkey>>, write: &PkeyWrite) {
    keys.resize(usize::from(KEYS), None);
    let first = usize::from(write.block) * PkeyBlock::ENTRIES;
    keys[first..first + PkeyBlock::ENTRIES].copy_from_slice(&write.keys.0);
}

fn group_block(switch: &Switch, block: u16, position: u8) -> ib_wire::MulticastBlock {
    ib_wire::MulticastBlock(std::array::from_fn(|entry| {
        let mlid = MulticastLid::MIN + block * 32 + entry as u16;
        let ports = switch.groups.get(&mlid).into_iter().flatten();
        let here = ports.filter(|port| **port / 16 == position);
        PortMask(here.fold(0, |mask, port| mask | 1 << (port % 16)))
    }))
}

fn write_groups(switch: &mut Switch, write: &GroupBlock) {
    for (entry, mask) in write.masks.0.iter().enumerate() {
        let mlid = MulticastLid::MIN + write.block * 32 + entry as u16;
        let ports = switch.groups.entry(mlid).or_default();
        ports.retain(|port| port / 16 != write.position);
        ports.extend((0..16).filter(|bit| mask.0 >> bit & 1 == 1).map(|bit| write.position * 16 + bit));
        if ports.is_empty() {
            switch.groups.remove(&mlid);
        }
    }
}

/// The manager is at the first host.
pub fn manager(topology: &Topology) -> Guid {
    let (_, host) = topology.end_nodes().next().unwrap();
    host.ports().next().unwrap().1.guid
}

pub fn plan(topology: &Topology, partitions: &str, previous: &Decisions) -> FabricPlan {
    let mut intents = Intents::new(manager(topology));
    intents.partitions = fabric_compiler::partitions_conf::parse(partitions).unwrap();
    compile(topology, &intents, previous).unwrap()
}

/// The same decisions, but for another order of switches: by the distance from one of them.
pub fn reordered(topology: &Topology, decisions: &Decisions, root: usize) -> Decisions {
    let mut decisions = decisions.clone();
    let switches: Vec<NodeIndex> = topology.switches().map(|(index, _)| index).collect();
    let root = switches[root % switches.len()];
    let mut depth: BTreeMap<NodeIndex, i32> = BTreeMap::from([(root, 0)]);
    let mut open = std::collections::VecDeque::from([root]);
    while let Some(here) = open.pop_front() {
        for (_, peer) in topology[here].cabled_ports().filter(|(_, peer)| topology[peer.node].is_switch()) {
            if !depth.contains_key(&peer.node) {
                depth.insert(peer.node, depth[&here] + 1);
                open.push_back(peer.node);
            }
        }
    }
    decisions.routing = Default::default();
    decisions.routing.scheme = fabric_model::decisions::HeightScheme::Root;
    for (index, depth) in depth {
        let switch = fabric_model::decisions::SwitchDecision { height: -depth, uplinks: Vec::new() };
        decisions.routing.switches.insert(topology[index].guid, switch);
    }
    decisions
}

/// Removes the cables of some hosts, but not of the first, which has the manager.
pub fn without_hosts(topology: &Topology, dice: &mut Dice, count: usize) -> Topology {
    let hosts: Vec<NodeIndex> = topology.end_nodes().map(|(index, _)| index).collect();
    let mut builder = TopologyBuilder::from(topology.clone());
    for _ in 0..count {
        let host = hosts[1 + dice.below(hosts.len() - 1)];
        let _ = builder.disconnect(Endpoint::new(host, PortNum::new(1).unwrap()));
    }
    builder.build().unwrap()
}
