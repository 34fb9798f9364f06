//! Guaranteed clusters come and go on an emulated fabric, and arbitration tables are looked at after every single write:
//! no lane of a cluster that stays is served more seldom on the way than before or after.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fabric_compiler::compile;
use fabric_model::generate::{FatTree, FatTreeSize, Oversubscription};
use fabric_model::intent::ClusterIntent;
use fabric_model::tenancy::{Bandwidth, Class, SlMode};
use fabric_model::{Decisions, Intents};
use fabric_sim::{Capacities, Fabric, Output, PortId};
use ib_wire::{Attribute, Guid, Method, VlArbBlock, VlArbEntry, VlArbPart};
use subnet_manager::{Discovery, Event, Manager, Memory, Settings};

const ENTRIES: usize = 64;

type Table = [VlArbEntry; ENTRIES];

/// Whose table it is: the ports by which datagrams get there, and the port of the modifier.
type Place = (Vec<u8>, u16);

/// A manager on an emulated fabric, and what it wrote into arbitration tables.
struct Watched {
    fabric: Fabric,
    manager: Manager,
    station: PortId,
    now: Duration,
    discovery: Option<Discovery>,
    decisions: Decisions,
    programmed: usize,
    tables: BTreeMap<Place, Table>,
    /// Every table after every write of it.
    instants: Vec<(Place, Table)>,
}

impl Watched {
    fn run(&mut self) {
        let end = self.now + Duration::from_secs(1);
        loop {
            self.exchange();
            let due = [self.manager.poll_timeout(), self.fabric.poll_timeout()].into_iter().flatten().min();
            let Some(due) = due.filter(|due| *due <= end) else { break };
            self.now = self.now.max(due);
            self.fabric.handle_timeout(self.now);
            self.manager.handle_timeout(self.now);
        }
        self.now = end;
    }

    fn exchange(&mut self) {
        loop {
            while let Some(output) = self.fabric.poll_output() {
                if let Output::Deliver { port, datagram } = output
                    && port == self.station
                {
                    self.manager.handle_datagram(self.now, &datagram);
                }
            }
            if self.manager.poll_persist().is_some() {
                self.manager.handle_persisted(self.now);
            }
            while let Some(event) = self.manager.poll_event() {
                match event {
                    Event::Discovered(discovery) => self.discovery = Some(*discovery),
                    Event::Programmed(_) => self.programmed += 1,
                    _ => {}
                }
            }
            let Some(datagram) = self.manager.poll_transmit(self.now) else { break };
            let mad = &datagram.mad;
            if mad.method() == Method::SET && mad.attribute() == Attribute::VL_ARBITRATION {
                let (part, port) = VlArbPart::from_modifier(mad.modifier()).unwrap();
                if !part.is_high() {
                    let route = (1..=mad.hop_count()).filter_map(|hop| mad.initial_path(hop)).collect();
                    let place = (route, port);
                    let table = self.tables.entry(place.clone()).or_insert([VlArbEntry::default(); ENTRIES]);
                    let block = VlArbBlock::decode(mad.smp_data());
                    table[part.first_entry()..][..VlArbBlock::ENTRIES].copy_from_slice(&block.0);
                    self.instants.push((place, *table));
                }
            }
            self.fabric.handle_datagram(self.now, self.station, datagram);
        }
    }

    /// Has a plan done for some clusters. Returns the most writes that one table took, after a look at every instant.
    fn apply(&mut self, clusters: &[ClusterIntent]) -> usize {
        let discovery = self.discovery.as_ref().unwrap();
        let mut intents = Intents::new(discovery.manager);
        intents.capabilities = discovery.capabilities.clone();
        intents.clusters = clusters.to_vec();
        let plan = compile(&discovery.topology, &intents, &self.decisions).unwrap();
        self.decisions = plan.decisions().clone();
        let (before, programmed) = (self.tables.clone(), self.programmed);
        self.instants.clear();
        self.manager.apply(self.now, Arc::new(plan));
        self.run();
        assert_eq!(self.programmed, programmed + 1);
        let mut writes: BTreeMap<&Place, usize> = BTreeMap::new();
        for (place, instant) in &self.instants {
            *writes.entry(place).or_default() += 1;
            let Some(before) = before.get(place) else { continue };
            let after = &self.tables[place];
            for lane in 1..15 {
                if let (Some(before), Some(after)) = (gap(before, lane), gap(after, lane)) {
                    let now = gap(instant, lane);
                    assert!(
                        now.is_some_and(|now| now <= before.max(after)),
                        "{place:?} lane {lane}: {now:?}"
                    );
                }
            }
        }
        writes.into_values().max().unwrap_or(0)
    }
}

/// The most entries of others between two of a lane's; `None` if it has none.
fn gap(table: &Table, lane: u8) -> Option<usize> {
    let served: Vec<&VlArbEntry> = table.iter().filter(|entry| entry.weight != 0).collect();
    let first = served.iter().position(|entry| entry.lane.to_wire() == lane)?;
    let (before, after) = served.split_at(first);
    let around: Vec<bool> = after.iter().chain(before).map(|entry| entry.lane.to_wire() == lane).collect();
    around.split(|is_own| *is_own).map(<[bool]>::len).max()
}

#[test]
fn lanes_of_clusters_that_stay_are_served_as_often_as_ever_while_others_come_and_go() {
    // Two leaves with one cable each to the spine: all that is between them meets there.
    let oversubscription = Oversubscription { down: 11, up: 1 };
    let size = FatTreeSize::Leaves(2);
    let topology = FatTree { radix: 12, oversubscription, ..FatTree::new(size) }.generate().unwrap();
    let capacities = Capacities { arbitration_entries: ENTRIES as u8, ..Capacities::default() };
    let mut fabric = Fabric::new(topology.clone(), capacities, 1).unwrap();
    let (_, host) = topology.end_nodes().next().unwrap();
    let station = fabric.find_port(&host.id).unwrap();
    fabric.set_is_sm(Duration::ZERO, station, true);
    let mut watched = Watched {
        fabric,
        manager: Manager::new(Settings::default(), None, &Memory::default()),
        station,
        now: Duration::ZERO,
        discovery: None,
        decisions: Decisions::default(),
        programmed: 0,
        tables: BTreeMap::new(),
        instants: Vec::new(),
    };
    watched.run();
    let hosts: Vec<Guid> =
        topology.end_nodes().map(|(_, node)| node.ports().next().unwrap().1.guid).collect();
    let (near, far) = hosts.split_at(11);
    let pair = |name: &str, at: usize, bandwidth: u64| {
        let class = Class::Guaranteed { bandwidth: Bandwidth::from_bits_per_s(bandwidth), latency_ns: None };
        ClusterIntent {
            name: name.to_owned(),
            ports: vec![near[at], far[at]],
            class,
            sl_mode: SlMode::Cluster,
        }
    };
    assert_eq!(watched.apply(&[]), 0, "nobody was promised anything");
    // The first five fill half a table, which is every second entry; the sixth is beyond.
    let parts = [308, 150, 72, 1, 1, 1];
    let usable = usable_bits_per_s(&watched);
    let mut clusters: Vec<ClusterIntent> =
        (1..).zip(parts).map(|(at, part)| pair(&format!("c{at}"), at, usable / 1000 * part)).collect();
    for count in 1..=clusters.len() {
        // As devices come, management's lane is served elsewhere.
        let most = if count == 1 { 3 } else { 2 };
        assert!(watched.apply(&clusters[..count]) <= most, "whoever comes needs no table in between");
    }
    // What is left for the sixth to move to is in the other part of the table.
    clusters = vec![clusters[3].clone(), clusters[5].clone()];
    assert!(watched.apply(&clusters) <= 2, "nor does whoever goes");
    clusters.push(pair("wide", 1, usable / 1000 * 620));
    assert!(watched.apply(&clusters) > 2, "one is moved to make room, in steps");
    clusters.remove(0);
    assert!(watched.apply(&clusters) <= 2);
}

/// What guaranteed clusters may have of a link.
fn usable_bits_per_s(watched: &Watched) -> u64 {
    use fabric_compiler::tenancy::ledger::Ledger;
    use fabric_compiler::tenancy::network::{Limits, Network};
    let discovery = watched.discovery.as_ref().unwrap();
    let plan = compile(&discovery.topology, &Intents::new(discovery.manager), &watched.decisions).unwrap();
    let network = Arc::new(Network::of(&discovery.topology, &plan, Limits::default()));
    let link = network.hosts()[0].inward;
    Ledger::new(network).usable(link).bits_per_s()
}
