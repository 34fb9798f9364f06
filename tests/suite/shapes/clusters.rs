//! Clusters as tenants request them, and which nodes may communicate, computed without any table.

use std::collections::{BTreeMap, BTreeSet};

use fabric_model::Intents;
use fabric_model::intent::{
    ClusterIntent, Ipoib, Member, MemberSelector, PartitionIntent, PkeyPlacement, Role,
};
use fabric_model::tenancy::{Bandwidth, Class, SlMode};
use ib_wire::{Guid, PartitionNumber, Pkey};
use rand::RngExt as _;
use rand::seq::{IndexedRandom as _, SliceRandom as _};
use rand_pcg::Pcg64;

/// Virtual functions of a port at most, as the controller has it.
const FUNCTIONS_MAX: u8 = 15;

/// One of the partitions of a cluster, with the roles of its members by node number.
#[derive(Clone, Debug, Default)]
pub struct Partition {
    pub number: u16,
    pub roles: BTreeMap<u32, Role>,
}

/// Where a node runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    pub number: u32,
    pub port: Guid,
    pub function: u8,
}

#[derive(Clone, Debug)]
pub struct Cluster {
    pub name: String,
    pub class: Class,
    pub sl_mode: SlMode,
    pub nodes: Vec<Node>,
    /// Its own partition, then those inside it.
    pub partitions: Vec<Partition>,
}

impl Cluster {
    /// The partitions of a node, its cluster's own first.
    pub fn roles(&self, node: u32) -> impl Iterator<Item = (PartitionNumber, Role)> {
        let role = move |it: &Partition| {
            Some((PartitionNumber::from_wire(it.number).unwrap(), *it.roles.get(&node)?))
        };
        self.partitions.iter().filter_map(role)
    }

    /// The keys of a node.
    pub fn keys(&self, node: u32) -> Vec<Pkey> {
        self.roles(node).flat_map(|(number, role)| role.keys(number)).collect()
    }

    /// Whether two nodes are in one partition in which at least one of them is a full member.
    pub fn may_talk(&self, a: u32, b: u32) -> bool {
        let is_full = |role: &Role| *role != Role::Limited;
        self.partitions.iter().any(|it| match (it.roles.get(&a), it.roles.get(&b)) {
            (Some(a), Some(b)) => is_full(a) || is_full(b),
            _ => false,
        })
    }
}

/// All clusters of a site.
#[derive(Clone, Debug, Default)]
pub struct Clusters {
    pub each: Vec<Cluster>,
    last: u16,
}

impl Clusters {
    /// The intents for a fabric.
    pub fn intents(&self, fabric: &Intents) -> Intents {
        let mut intents = fabric.clone();
        for cluster in &self.each {
            for partition in &cluster.partitions {
                intents.partitions.push(partition_intent(cluster, partition));
            }
            if cluster.class != Class::BestEffort {
                let ports: BTreeSet<Guid> = cluster.nodes.iter().map(|node| node.port).collect();
                intents.clusters.push(ClusterIntent {
                    name: cluster.name.clone(),
                    ports: ports.into_iter().collect(),
                    class: cluster.class,
                    sl_mode: cluster.sl_mode,
                });
            }
        }
        intents
    }

    /// The same with one random change: a cluster more or less, larger or smaller, or divided in another way.
    pub fn changed(&self, dice: &mut Pcg64, hosts: &[Guid]) -> Self {
        let mut next = self.clone();
        let at = (!next.each.is_empty()).then(|| dice.random_range(0..next.each.len()));
        match (dice.random_range(0..8), at) {
            (0, Some(at)) => drop(next.each.remove(at)),
            (1, Some(at)) => next.grow(dice, hosts, at),
            (2, Some(at)) => next.shrink(dice, at),
            (3, Some(at)) => next.divide(dice, at),
            _ => next.create(dice, hosts),
        }
        next
    }

    fn create(&mut self, dice: &mut Pcg64, hosts: &[Guid]) {
        let class = match dice.random_range(0..2) {
            0 => Class::BestEffort,
            _ => {
                let bits = *[1_000_000, 50_000_000, 1_000_000_000].choose(dice).unwrap();
                let latency_ns = dice.random_bool(0.1).then_some(2_000_000);
                Class::Guaranteed { bandwidth: Bandwidth::from_bits_per_s(bits), latency_ns }
            }
        };
        let sl_mode = *[SlMode::Cluster, SlMode::Cluster, SlMode::Path].choose(dice).unwrap();
        let own = self.number();
        let name = format!("c{own:x}");
        let partitions = vec![Partition { number: own, ..Partition::default() }];
        self.each.push(Cluster { name, class, sl_mode, nodes: Vec::new(), partitions });
        let at = self.each.len() - 1;
        // Sometimes all on the first hosts, which are at low ports; sometimes a cluster over most of the site.
        let size = match dice.random_range(0..8) {
            0 => hosts.len().min(40),
            _ => dice.random_range(1..=6),
        };
        let mut ports = hosts.to_vec();
        if dice.random() {
            ports.shuffle(dice);
        }
        self.add_nodes(at, &ports, size);
        if dice.random_bool(0.3) {
            self.divide(dice, at);
        }
        if self.each[at].nodes.is_empty() {
            self.each.pop();
        }
    }

    fn grow(&mut self, dice: &mut Pcg64, hosts: &[Guid], at: usize) {
        let mut ports = hosts.to_vec();
        ports.shuffle(dice);
        self.add_nodes(at, &ports, dice.random_range(1..=3));
    }

    fn shrink(&mut self, dice: &mut Pcg64, at: usize) {
        let cluster = &mut self.each[at];
        if cluster.nodes.len() > 1 {
            let gone = cluster.nodes.remove(dice.random_range(0..cluster.nodes.len()));
            for partition in &mut cluster.partitions {
                partition.roles.remove(&gone.number);
            }
        }
    }

    /// Other partitions inside, and other roles: nodes that are in one are limited in their cluster's own, as the
    /// controller has it, or whatever a tenant says in its view.
    fn divide(&mut self, dice: &mut Pcg64, at: usize) {
        self.each[at].partitions.truncate(1);
        let numbers: Vec<u32> = self.each[at].nodes.iter().map(|node| node.number).collect();
        for _ in 0..dice.random_range(0..=2) {
            let number = self.number();
            let of =
                |dice: &mut Pcg64| *[Role::Full, Role::Full, Role::Limited, Role::Both].choose(dice).unwrap();
            let mut inner = Partition { number, ..Partition::default() };
            for node in &numbers {
                if dice.random() {
                    inner.roles.insert(*node, of(dice));
                }
            }
            self.each[at].partitions.push(inner);
        }
        let is_free = dice.random_bool(0.3);
        for node in numbers {
            let is_inside = self.each[at].partitions[1..].iter().any(|it| it.roles.contains_key(&node));
            let own = if is_inside { Role::Limited } else { Role::Full };
            let said = *[Role::Full, Role::Limited, Role::Both].choose(dice).unwrap();
            self.each[at].partitions[0].roles.insert(node, if is_free { said } else { own });
        }
        self.each[at].partitions.retain(|partition| !partition.roles.is_empty());
    }

    /// Puts nodes on ports in their order, one on each before a second, as far as others leave room.
    fn add_nodes(&mut self, at: usize, ports: &[Guid], count: usize) {
        let usable: Vec<Guid> = ports.iter().copied().filter(|port| self.may_use(at, *port)).collect();
        for port in usable.iter().chain(&usable).take(count) {
            let taken: BTreeSet<u8> = (self.each.iter().flat_map(|cluster| &cluster.nodes))
                .filter(|node| node.port == *port)
                .map(|node| node.function)
                .collect();
            let Some(function) = (1..=FUNCTIONS_MAX).find(|function| !taken.contains(function)) else {
                continue;
            };
            let cluster = &mut self.each[at];
            let number =
                (1..).find(|number| cluster.nodes.iter().all(|node| node.number != *number)).unwrap();
            cluster.nodes.push(Node { number, port: *port, function });
            cluster.partitions[0].roles.insert(number, Role::Full);
        }
    }

    /// The port of a guaranteed cluster is its own.
    fn may_use(&self, at: usize, port: Guid) -> bool {
        let is_guaranteed = |cluster: &Cluster| cluster.class != Class::BestEffort;
        let others = self.each.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, it)| it);
        let mut there = others.filter(|it| it.nodes.iter().any(|node| node.port == port));
        there.all(|other| !is_guaranteed(other) && !is_guaranteed(&self.each[at]))
    }

    fn number(&mut self) -> u16 {
        self.last += 1;
        0x0fff + self.last
    }
}

fn partition_intent(cluster: &Cluster, partition: &Partition) -> PartitionIntent {
    let mut roles: BTreeMap<Guid, Role> = BTreeMap::new();
    for node in &cluster.nodes {
        // A port behind which some are full and others limited has both keys.
        if let Some(role) = partition.roles.get(&node.number) {
            let held = roles.entry(node.port).or_insert(*role);
            if held != role {
                *held = Role::Both;
            }
        }
    }
    let member = |(port, role)| Member {
        selector: MemberSelector::Port(port),
        role,
        placement: PkeyPlacement::Anywhere,
    };
    PartitionIntent {
        name: format!("{}-{:x}", cluster.name, partition.number),
        number: PartitionNumber::from_wire(partition.number),
        members: roles.into_iter().map(member).collect(),
        ipoib: Some(Ipoib::default()),
    }
}
