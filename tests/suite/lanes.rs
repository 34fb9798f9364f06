//! Lanes of guaranteed clusters and of management on an emulated fabric, programmed and read back by the manager.

use fabric_model::generate::FatTree;
use fabric_model::intent::ClusterIntent;
use fabric_sim::{Capacities, Fabric};
use fabric_verifier::Finding;
use ib_wire::{
    Attribute, Datagram, LidAddress, Mad, Method, PortInfo, VirtualLane, VlArbBlock, VlArbEntry, VlArbPart,
};

use crate::in_process::recorded::RecordedManager;

fn site(capacities: Capacities) -> RecordedManager {
    RecordedManager::new(FatTree { radix: 8, ..FatTree::with_hosts(16) }.generate().unwrap(), capacities)
}

fn cluster(site: &RecordedManager) -> ClusterIntent {
    site.cluster("c", &[1, 2, 9], 1_000_000_000)
}

/// Sets of an attribute since the last plan.
fn written(site: &RecordedManager, attribute: Attribute) -> usize {
    site.sets.iter().filter(|mad| mad.attribute() == attribute).count()
}

#[test]
fn data_ports_get_the_management_sl_once_every_hop_maps_it() {
    let mut site = site(Capacities::default());
    assert_eq!(site.apply(&[]).management_service_level().to_wire(), 0);
    let plan = site.apply(&[cluster(&site)]);
    assert_eq!(plan.management_service_level().to_wire(), 15);
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
    site.apply(&[cluster(&site)]);
    assert_eq!(site.sets.len(), 0, "nothing is left to write");
}

#[test]
fn optimised_sl2vl_sets_fill_all_inputs_at_once() {
    let mut maps = Vec::new();
    for optimised_sl_to_vl in [false, true] {
        let mut site = site(Capacities { optimised_sl_to_vl, ..Capacities::default() });
        site.apply(&[]);
        let plan = site.apply(&[cluster(&site)]);
        maps.push(written(&site, Attribute::SL_TO_VL));
        assert_eq!(site.found(), [], "with optimised Sets: {optimised_sl_to_vl}");
        let granted = plan.switches().flat_map(|switch| switch.ports.iter());
        let granted = granted.filter(|port| !port.qos.as_ref().unwrap().by_input.is_empty()).count();
        assert!(granted > 0, "hops of clusters are written one by one");
        site.apply(&[]);
        assert_eq!(site.found(), []);
    }
    println!("Sets of maps one by one and together: {maps:?}");
    assert!(maps[1] * 4 < maps[0], "{maps:?}");
}

#[test]
fn a_high_priority_entry_is_found_named_and_taken_away() {
    let mut site = site(Capacities::default());
    site.apply(&[cluster(&site)]);
    assert_eq!(site.found(), []);
    // Another writer gives best effort high priority at the leaf of the manager.
    let route = ib_wire::DirectedRoute::default().then(ib_wire::PortNum::new(1).unwrap()).unwrap();
    let port = ib_wire::PortNum::new(1).unwrap();
    let modifier = VlArbPart::HighFirst.to_modifier(port);
    let mut mad = Mad::directed(Method::SET, Attribute::VL_ARBITRATION, modifier, &route);
    let mut block = VlArbBlock([VlArbEntry::default(); VlArbBlock::ENTRIES]);
    block.0[2] = VlArbEntry { lane: VirtualLane::from_wire(0).unwrap(), weight: 7 };
    *mad.smp_data_mut() = block.encode();
    site.fabric.handle_datagram(
        site.now,
        site.port,
        Datagram::subnet_management(LidAddress::Permissive, LidAddress::Permissive, mad),
    );
    site.sets.clear();
    let found = site.found();
    assert!(
        matches!(found[..], [Finding::HighPriorityWeight { port: at, lane, .. }]
            if at.port == port && lane.to_wire() == 0),
        "{found:?}"
    );
    site.run();
    assert_eq!((site.drifts, written(&site, Attribute::VL_ARBITRATION)), (1, 1));
    assert_eq!(site.found(), []);
}

#[test]
fn an_installed_plan_equals_what_the_manager_programs() {
    let mut site = site(Capacities::default());
    let plan = site.apply(&[cluster(&site)]);
    let mut installed = Fabric::new(site.topology.clone(), Capacities::default(), 1).unwrap();
    let before: Vec<_> = installed.device_ids().map(|device| installed.table_view(device)).collect();
    installed.install(&plan).unwrap();
    let [managed_network, network] = [&site.fabric, &installed].map(fabric_sim::traffic::TrafficNetwork::of);
    let mut written = 0;
    for (device, before) in installed.device_ids().zip(before) {
        let tables = installed.table_view(device);
        assert_eq!(tables, site.fabric.table_view(device));
        written += usize::from(tables != before);
        for port in installed.ports_of(device) {
            assert_eq!(installed.port_forwarding(port), site.fabric.port_forwarding(port));
            assert_eq!(network.arbitration(port), managed_network.arbitration(port));
        }
    }
    assert!(written >= plan.switches().len(), "the control: {written} devices were written");
}
