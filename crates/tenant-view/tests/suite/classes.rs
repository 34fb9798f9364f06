//! Classes that stock opensm sets in a view, on the physical network.

use fabric_compiler::{compile, partitions_conf, recompile};
use fabric_model::generate::{FatTree, Oversubscription};
use fabric_model::intent::ClusterIntent;
use fabric_model::tenancy::{Class, SlMode};
use fabric_model::{Decisions, FabricPlan, Intents};
use fabric_verifier::{is_acknowledged, verify};
use ib_wire::{Guid, PartitionNumber, ServiceLevel};
use tenant_view::{OverlayChange, UngrantedRoutes, Verdict};

use crate::flows::{Flow, rates};
use crate::served::{Served, eventually};
use crate::world::{World, partition, ports};

/// Hosts of the cluster whose tenant divides its share; seven are on a leaf.
const BLUE: [usize; 4] = [0, 1, 7, 8];
/// Hosts of another guaranteed cluster.
const RED: [usize; 2] = [2, 9];
/// Hosts of best-effort traffic.
const GREY: [usize; 6] = [3, 4, 5, 10, 11, 12];
const RED_PARTITION: u16 = 0x124;
const GREY_PARTITION: u16 = 0x125;

/// Options for opensm: service levels 0 and 1 with weights three to one.
const THREE_TO_ONE: &str = "qos TRUE
qos_max_vls 2
qos_high_limit 0
qos_vlarb_high 0:0
qos_vlarb_low 0:192,1:64
qos_sl2vl 0,1,0,0,0,0,0,0,0,0,0,0,0,0,0,0
";

/// Two leaves with one cable each to a spine.
fn world() -> (World, Intents) {
    let oversubscription: Oversubscription = "7:1".parse().unwrap();
    let topology = FatTree { radix: 8, oversubscription, ..FatTree::with_hosts(14) }.generate().unwrap();
    let ports = ports(&topology);
    let mut intents = Intents::new(ports[6]);
    let members = |name: &str, number: u16, hosts: &[usize]| {
        let hosts: Vec<String> = hosts.iter().map(|host| format!("{}=full", ports[*host])).collect();
        format!("{name}={number:#x} : {};\n", hosts.join(", "))
    };
    let partitions = [
        members("blue", partition().to_wire(), &BLUE),
        members("red", RED_PARTITION, &RED),
        members("grey", GREY_PARTITION, &GREY),
    ];
    intents.partitions = partitions_conf::parse(&partitions.concat()).unwrap();
    let cluster = |name: &str, hosts: &[usize]| ClusterIntent {
        name: name.to_owned(),
        ports: hosts.iter().map(|host| ports[*host]).collect(),
        class: Class::Guaranteed { bandwidth: "15G".parse().unwrap(), latency_ns: None },
        sl_mode: SlMode::Cluster,
    };
    intents.clusters = vec![cluster("blue", &BLUE), cluster("red", &RED)];
    intents.capabilities.default_port.arbitration = 64;
    let plan = compile(&topology, &intents, &Decisions::default()).unwrap();
    (World { topology, plan }, intents)
}

/// The share of a cluster on the cable out of the first leaf.
fn share(plan: &FabricPlan, cluster: &str, leaf: Guid) -> u64 {
    let links = &plan.decisions().clusters[cluster].links;
    let up = links.iter().find(|grant| {
        let switch = plan.switch(leaf).unwrap();
        grant.port.node == leaf && plan.switch(switch.port(grant.port.port).unwrap().peer.node).is_some()
    });
    up.unwrap().share.bits_per_s()
}

#[test]
fn class_weights_hold_inside_a_share_and_spare_others() {
    let (world, intents) = world();
    let mut view = world.view(&BLUE);
    view.set_ungranted_routes(UngrantedRoutes::KeepDefault);
    let served = Served::new(view);
    let options = served.scratch().join("qos.conf");
    std::fs::write(&options, THREE_TO_ONE).unwrap();
    let manager = served.opensm("vm-0", &["-F", options.to_str().unwrap()]);
    manager.wait_for("SUBNET UP");
    eventually("what opensm wrote is judged", || served.with(|view, _| view.status().last.is_some()));
    let judged = served.with(|view, _| view.status()).last.unwrap();
    assert_eq!(judged.verdict, Verdict::Approved, "{:?}", judged.overlay.classes);
    let Some(OverlayChange::Set { overlay, .. }) = served.with(|view, _| view.poll_overlay()) else {
        panic!("no overlay")
    };
    let weights: Vec<u32> = overlay.classes.iter().map(|class| class.weight).collect();
    assert_eq!((weights.len(), weights[0]), (2, 3 * weights[1]), "{:?}", overlay.classes);

    let intents_with_overlay = Intents { class_weights: [("blue".to_owned(), weights)].into(), ..intents };
    let after = recompile(&world.topology, &intents_with_overlay, &world.plan).unwrap();
    let findings = verify(&world.topology, &intents_with_overlay, &after);
    assert!(findings.iter().all(|finding| is_acknowledged(finding, &after)), "{findings:?}");
    assert_eq!(after.findings(), world.plan.findings());
    let divided = World { topology: world.topology.clone(), plan: after };
    let slice = divided.slice(&divided.cluster(&BLUE));
    let levels: Vec<ServiceLevel> = slice.classes().iter().map(|class| class.service_level).collect();
    assert_eq!(levels.len(), 2);

    // Every flow takes the one cable between the leaves, and sends more than its share.
    let red = divided.plan.decisions().clusters["red"].service_level().unwrap();
    let flows = |levels: [ServiceLevel; 2]| {
        let (blue, grey) = (partition().to_wire(), ServiceLevel::default());
        let flow = |(host, partition, level)| Flow {
            from: world.ports()[host],
            to: world.ports()[host + 7],
            partition: PartitionNumber::from_wire(partition).unwrap(),
            level,
        };
        [
            (0, blue, levels[0]),
            (1, blue, levels[1]),
            (2, RED_PARTITION, red),
            (3, GREY_PARTITION, grey),
            (4, GREY_PARTITION, grey),
            (5, GREY_PARTITION, grey),
        ]
        .map(flow)
    };
    let (alike, apart) = (
        rates(&world.topology, &world.plan, &flows([levels[0]; 2])),
        rates(&world.topology, &divided.plan, &flows([levels[0], levels[1]])),
    );
    println!("all alike {alike:?}, in classes {apart:?} b/s");
    let ratio = |rates: &[u64]| rates[0] as f64 / rates[1] as f64;
    assert!((0.95..1.05).contains(&ratio(&alike)), "the control: {alike:?}");
    assert!((2.8..3.2).contains(&ratio(&apart)), "{apart:?}");
    let leaf = divided.plan.adapter_port(world.ports()[0]).unwrap().peer.node;
    // Headers are not counted.
    let promised = |cluster: &str| share(&divided.plan, cluster, leaf) * 98 / 100;
    assert!(apart[0] + apart[1] >= promised("blue"), "{apart:?}");
    assert!(apart[2] >= promised("red"), "{apart:?}");
    assert!(apart[3..].iter().all(|rate| *rate > 0), "{apart:?}");

    // Without the overlay nothing passes with that service level: it was granted for the tenant's classes.
    let before = rates(&world.topology, &world.plan, &flows([levels[0], levels[1]]));
    assert_eq!(before[1], 0, "{before:?}");
}
