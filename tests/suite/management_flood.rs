//! Ports that send data at the service level of management: they are named, and nobody else is.

use std::time::Duration;

use fabric_model::Topology;
use fabric_model::generate::{FatTree, Torus};
use fabric_model::intent::ClusterIntent;
use fabric_model::tenancy::{Bandwidth, Class, SlMode};
use fabric_sim::{BuiltInProfile, DeviceCapability, DeviceProfile, PortId};
use ib_wire::{Attribute, Datagram, Guid, Mad, ManagementClass, Method, Pkey, ServiceLevel};
use subnet_manager::{LinkHealthSettings, PersistentState, SmEvent};

use crate::in_process::running_manager::RunningManager;
use crate::rig::tree::{HOST, host, tree};

const SECOND: Duration = Duration::from_secs(1);

/// Limit in bytes per second.
const LIMIT: u64 = 10_000;

fn shapes() -> [Topology; 2] {
    let torus = Torus { hosts_per_switch: 2, ..Torus::new([3, 3]) };
    [FatTree { radix: 6, ..FatTree::with_hosts(11) }.generate().unwrap(), torus.generate().unwrap()]
}

fn ports(topology: &Topology) -> Vec<Guid> {
    topology.end_nodes().map(|(_, node)| node.ports().next().unwrap().1.guid).collect()
}

/// A manager with a guaranteed cluster of hosts 1 and 2 if there is one, and a low limit.
fn up(topology: &Topology, profile: &DeviceProfile, is_guaranteed: bool) -> RunningManager {
    let mut run = RunningManager::with_devices(topology, profile, true, PersistentState::default());
    let cluster = ClusterIntent {
        name: "paid".to_owned(),
        ports: ports(topology)[1..3].to_vec(),
        class: Class::Guaranteed { bandwidth: Bandwidth::from_bits_per_s(1_000_000), latency_ns: None },
        sl_mode: SlMode::Cluster,
    };
    run.clusters = if is_guaranteed { vec![cluster] } else { Vec::new() };
    run.manager.set_link_health(LinkHealthSettings {
        management_bytes_per_second: LIMIT,
        ..LinkHealthSettings::default()
    });
    // Every port is read once, so that there is something to compare with.
    run.run_for(60 * SECOND);
    run.events.clear();
    run
}

/// A host sends packets to the manager for 60 seconds.
fn send(run: &mut RunningManager, from: Guid, sl: ServiceLevel, per_second: usize) {
    let ports = run.fabric.device_ids().flat_map(|device| run.fabric.ports_of(device));
    let port: PortId = ports.into_iter().find(|port| run.fabric.guid_of(*port) == from).unwrap();
    let lid = |port| run.fabric.port_forwarding(port).lid.unwrap().into();
    let (slid, dlid) = (lid(port), lid(run.port));
    // No agent answers this class.
    let mad = Mad::new(ManagementClass(0x0f), Method::SEND, Attribute(0x10), 0);
    let packet =
        Datagram { sl, ..Datagram::general_management(slid, dlid, Pkey::from_wire(0x7fff).unwrap(), mad) };
    for _ in 0..60 {
        for _ in 0..per_second {
            run.fabric.handle_datagram(run.now, port, packet.clone());
        }
        run.run_for(SECOND);
    }
}

/// The ports that were named, and at what rate.
fn named(run: &RunningManager) -> Vec<(Guid, u64)> {
    let event = |event: &SmEvent| match event {
        SmEvent::ManagementFlood { port, bytes_per_second } => Some((*port, *bytes_per_second)),
        _ => None,
    };
    run.events.iter().filter_map(event).collect()
}

#[test]
fn a_port_that_floods_the_management_level_is_named() {
    for topology in shapes() {
        let hosts = ports(&topology);
        let mut run = up(&topology, &DeviceProfile::default(), true);
        let management = run.plan.as_ref().unwrap().management_service_level();
        assert_ne!(management, ServiceLevel::default());
        send(&mut run, hosts[3], ServiceLevel::default(), 200);
        assert_eq!(named(&run), [], "data at other levels are nobody's business");
        // A packet has 288 bytes.
        send(&mut run, hosts[4], management, 30);
        assert_eq!(named(&run), [], "8640 bytes a second are below the limit");
        send(&mut run, hosts[5], management, 100);
        let found = named(&run);
        assert!(!found.is_empty() && found.len() <= 2, "at most once a minute: {found:?}");
        for (port, rate) in found {
            assert_eq!(port, hosts[5]);
            assert!((LIMIT..40_000).contains(&rate), "{rate}");
        }
    }
}

#[test]
fn counters_by_level_are_read_only_where_a_level_is_reserved() {
    let [topology, _] = shapes();
    let reads = |run: &RunningManager| {
        let asked =
            run.sent.iter().filter(|datagram| datagram.mad.attribute() == Attribute::PORT_RCV_DATA_SL);
        asked.filter(|datagram| datagram.mad.class() == ManagementClass::PERFORMANCE).count()
    };
    assert_eq!(reads(&up(&topology, &DeviceProfile::default(), false)), 0);
    let with = reads(&up(&topology, &DeviceProfile::default(), true));
    assert!(with > 10, "{with}");
    let without = DeviceProfile::default().without(DeviceCapability::SlCounters);
    let switches = topology.switches().count();
    let without = reads(&up(&topology, &without, true));
    assert!((1..=switches).contains(&without), "a switch that refuses is not asked again: {without}");
    let fields = BuiltInProfile::ConnectX6Quantum.profile();
    assert!(reads(&up(&topology, &fields, true)) > 10);
}

#[test]
fn perfquery_reads_data_by_service_level() {
    let server = tree();
    server.bring_up(HOST, &[]);
    let lid = server.tool(&host(2), "smpquery", &["-D", "portinfo", "0"]).value("Lid").unwrap().to_owned();
    // Each request and its answer, with service level 0, are counted.
    for option in ["-X", "-S"] {
        let before = server.tool(HOST, "perfquery", &[option, &lid, "1"]);
        assert!(before.success, "{before:?}");
        let after = server.tool(HOST, "perfquery", &[option, &lid, "1"]);
        let key = if option == "-X" { "XmtDataSL" } else { "RcvDataSL" };
        let words = |printed: &crate::rig::Printed, sl: u8| -> u64 {
            printed.value(&format!("{key}{sl}")).unwrap_or_else(|| panic!("{printed:?}")).parse().unwrap()
        };
        assert!(words(&after, 0) > words(&before, 0), "{before:?} {after:?}");
        assert!((1..16).all(|sl| words(&after, sl) == 0));
        let reset = server.tool(HOST, "perfquery", &[option, "-R", &lid, "1"]);
        assert!(reset.success, "{reset:?}");
    }
}
