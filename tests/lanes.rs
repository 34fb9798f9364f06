//! Lanes of guaranteed clusters and of management on an emulated fabric, programmed and read back by the manager.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use fabric_compiler::compile;
use fabric_model::generate::FatTree;
use fabric_model::intent::ClusterIntent;
use fabric_model::tenancy::{Bandwidth, Class, SlMode};
use fabric_model::{Decisions, FabricPlan, Intents, Topology};
use fabric_sim::{Capacities, Fabric, Output, PortId};
use fabric_verifier::{Finding, verify};
use ib_wire::{
    Attribute, Datagram, Guid, LidAddress, Mad, Method, PortInfo, VirtualLane, VlArbBlock, VlArbEntry,
    VlArbPart,
};
use subnet_manager::{Discovery, Event, Manager, Memory, Settings};

/// A manager on an emulated fabric, and the Sets that it sent.
struct Site {
    topology: Topology,
    fabric: Fabric,
    manager: Manager,
    station: PortId,
    now: Duration,
    discovery: Option<Discovery>,
    intents: Option<Intents>,
    decisions: Decisions,
    held: Option<FabricPlan>,
    sets: Vec<Mad>,
    drifts: usize,
}

impl Site {
    fn new(capacities: Capacities) -> Self {
        let topology = FatTree { radix: 8, ..FatTree::with_hosts(16) }.generate().unwrap();
        let mut fabric = Fabric::new(topology.clone(), capacities, 1).unwrap();
        let (_, host) = topology.end_nodes().next().unwrap();
        let station = fabric.find_port(&host.id).unwrap();
        fabric.set_is_sm(Duration::ZERO, station, true);
        let mut site = Self {
            topology,
            fabric,
            manager: Manager::new(Settings::default(), None, &Memory::default()),
            station,
            now: Duration::ZERO,
            discovery: None,
            intents: None,
            decisions: Decisions::default(),
            held: None,
            sets: Vec::new(),
            drifts: 0,
        };
        site.run();
        site
    }

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
                    Event::ReadBack(held) => self.held = Some(*held),
                    Event::Drift { .. } => self.drifts += 1,
                    _ => {}
                }
            }
            let Some(datagram) = self.manager.poll_transmit(self.now) else { break };
            if datagram.mad.method() == Method::SET {
                self.sets.push(datagram.mad.clone());
            }
            self.fabric.handle_datagram(self.now, self.station, datagram);
        }
    }

    /// Has a plan done for some clusters, and forgets what was written before.
    fn apply(&mut self, clusters: &[ClusterIntent]) -> FabricPlan {
        let discovery = self.discovery.as_ref().unwrap();
        let mut intents = Intents::new(discovery.manager);
        intents.capabilities = discovery.capabilities.clone();
        intents.clusters = clusters.to_vec();
        let plan = compile(&discovery.topology, &intents, &self.decisions).unwrap();
        self.intents = Some(intents);
        self.decisions = plan.decisions().clone();
        self.sets.clear();
        self.manager.apply(self.now, Arc::new(plan.clone()));
        self.run();
        plan
    }

    /// What is found in the tables that devices hold.
    fn found(&mut self) -> Vec<Finding> {
        assert!(self.manager.read_back(self.now));
        self.run();
        let held = self.held.take().unwrap();
        verify(&self.discovery.as_ref().unwrap().topology, self.intents.as_ref().unwrap(), &held)
    }

    fn written(&self, attribute: Attribute) -> usize {
        self.sets.iter().filter(|mad| mad.attribute() == attribute).count()
    }

    fn cluster(&self) -> ClusterIntent {
        let ports: Vec<Guid> =
            self.topology.end_nodes().map(|(_, node)| node.ports().next().unwrap().1.guid).collect();
        let bandwidth = Bandwidth::from_bits_per_s(1_000_000_000);
        ClusterIntent {
            name: "c".to_owned(),
            ports: vec![ports[1], ports[2], ports[9]],
            class: Class::Guaranteed { bandwidth, latency_ns: None },
            sl_mode: SlMode::Cluster,
        }
    }
}

#[test]
fn ports_that_carry_data_are_told_the_level_of_management_when_every_turn_has_it() {
    let mut site = Site::new(Capacities::default());
    assert_eq!(site.apply(&[]).management_level().to_wire(), 0);
    let plan = site.apply(&[site.cluster()]);
    assert_eq!(plan.management_level().to_wire(), 15);
    let level = |mad: &Mad| {
        let info = PortInfo::decode(mad.smp_data()).ok().filter(|_| mad.attribute() == Attribute::PORT_INFO);
        info.map_or(0, |info| info.master_sm_sl.to_wire())
    };
    let is_map = |mad: &&Mad| mad.attribute() == Attribute::SL_TO_VL;
    let last_map = site.sets.iter().rposition(|mad| is_map(&mad)).unwrap();
    // Switches' own ports do not ask, and come first; all adapters come behind the last map.
    let (before, after) = site.sets.split_at(last_map);
    let told = |sets: &[Mad]| sets.iter().filter(|mad| level(mad) == 15).count();
    assert_eq!((told(before), told(after)), (plan.switches().len(), plan.adapter_ports().len()));
    assert_eq!(site.found(), []);
    site.apply(&[site.cluster()]);
    assert_eq!(site.sets.len(), 0, "nothing is left to write");
}

#[test]
fn one_set_fills_all_inputs_of_an_output_where_switches_take_that() {
    let mut maps = Vec::new();
    for optimised_sl_to_vl in [false, true] {
        let mut site = Site::new(Capacities { optimised_sl_to_vl, ..Capacities::default() });
        site.apply(&[]);
        let plan = site.apply(&[site.cluster()]);
        maps.push(site.written(Attribute::SL_TO_VL));
        assert_eq!(site.found(), [], "with optimised Sets: {optimised_sl_to_vl}");
        let granted = plan.switches().flat_map(|switch| switch.ports.iter());
        let granted = granted.filter(|port| !port.sharing.as_ref().unwrap().by_input.is_empty()).count();
        assert!(granted > 0, "turns of clusters are written one by one");
        site.apply(&[]);
        assert_eq!(site.found(), []);
    }
    println!("Sets of maps one by one and together: {maps:?}");
    assert!(maps[1] * 4 < maps[0], "{maps:?}");
}

#[test]
fn a_high_priority_entry_is_found_named_and_taken_away() {
    let mut site = Site::new(Capacities::default());
    site.apply(&[site.cluster()]);
    assert_eq!(site.found(), []);
    // Somebody gives best effort the way before all others, at the leaf of the manager.
    let route = ib_wire::DirectedRoute::default().then(ib_wire::PortNum::new(1).unwrap()).unwrap();
    let port = ib_wire::PortNum::new(1).unwrap();
    let modifier = VlArbPart::HighFirst.to_modifier(port);
    let mut mad = Mad::directed(Method::SET, Attribute::VL_ARBITRATION, modifier, &route);
    let mut block = VlArbBlock([VlArbEntry::default(); VlArbBlock::ENTRIES]);
    block.0[2] = VlArbEntry { lane: VirtualLane::from_wire(0).unwrap(), weight: 7 };
    *mad.smp_data_mut() = block.encode();
    site.fabric.handle_datagram(
        site.now,
        site.station,
        Datagram::subnet_management(LidAddress::Permissive, LidAddress::Permissive, mad),
    );
    site.sets.clear();
    let found = site.found();
    assert!(
        matches!(found[..], [Finding::HighPriority { port: at, lane, .. }]
            if at.port == port && lane.to_wire() == 0),
        "{found:?}"
    );
    site.run();
    assert_eq!((site.drifts, site.written(Attribute::VL_ARBITRATION)), (1, 1));
    assert_eq!(site.found(), []);
}

#[test]
fn a_plan_that_is_installed_at_once_is_what_the_manager_leaves() {
    let mut site = Site::new(Capacities::default());
    let plan = site.apply(&[site.cluster()]);
    let mut installed = Fabric::new(site.topology.clone(), Capacities::default(), 1).unwrap();
    let before: Vec<_> = installed.device_ids().map(|device| installed.table_view(device)).collect();
    installed.install(&plan).unwrap();
    let [managed_network, network] = [&site.fabric, &installed].map(fabric_sim::traffic::Network::of);
    let mut written = 0;
    for (device, before) in installed.device_ids().zip(before) {
        let tables = installed.table_view(device);
        assert_eq!(tables, site.fabric.table_view(device));
        written += usize::from(tables != before);
        for port in installed.ports_of(device) {
            assert_eq!(installed.gate(port), site.fabric.gate(port));
            assert_eq!(network.arbitration(port), managed_network.arbitration(port));
        }
    }
    assert!(written >= plan.switches().len(), "the control: {written} devices were written");
}
