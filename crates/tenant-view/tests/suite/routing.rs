//! Routes from a tenant's file, loaded by stock opensm in its view, on the physical network.

use std::collections::BTreeSet;

use fabric_compiler::{compile, partitions_conf, recompile};
use fabric_model::generate::FatTree;
use fabric_model::{Decisions, FabricPlan, Intents};
use fabric_verifier::{is_acknowledged, verify};
use ib_wire::{Guid, Lid, ServiceLevel};
use tenant_view::{OverlayChange, Verdict};

use crate::flows::{Flow, rates};
use crate::served::{Served, eventually};
use crate::world::{World, partition, ports};

/// Hosts of one leaf that send, hosts of two others that receive.
const HOSTS: [usize; 8] = [0, 1, 4, 5, 6, 8, 9, 10];

/// A physical network with one partition for all hosts.
fn world() -> (World, Intents) {
    let topology = FatTree { radix: 8, ..FatTree::with_hosts(32) }.generate().unwrap();
    let mut intents = Intents::new(ports(&topology)[0]);
    intents.partitions = partitions_conf::parse("blue=0x123 : ALL_CAS=full;").unwrap();
    let plan = compile(&topology, &intents, &Decisions::default()).unwrap();
    (World { topology, plan }, intents)
}

/// The switches and exits on the path from one virtual machine to another, as ibtracert prints them.
fn trace(served: &Served, from: u16, to: u16) -> Vec<(String, u8)> {
    let traced = served.tool("vm-0", "ibtracert", &[&from.to_string(), &to.to_string()]);
    let steps = traced.lines().filter(|line| line.starts_with('['));
    let mut at = None;
    let mut path = Vec::new();
    for step in steps {
        let exit: u8 = step[1..].split_once(']').unwrap().0.parse().unwrap();
        path.extend(at.take().map(|switch| (switch, exit)));
        at = Some(step.rsplit('"').nth(1).unwrap().to_owned());
    }
    path
}

/// The tables of all switches, as ibroute prints them and opensm reads them.
fn dump(served: &Served, switches: &[(String, u16)]) -> Vec<(String, String)> {
    let route =
        |(name, lid): &(String, u16)| (name.clone(), served.tool("vm-0", "ibroute", &[&lid.to_string()]));
    switches.iter().map(route).collect()
}

/// Changes the exit of a switch for a LID.
fn redirect(tables: &mut [(String, String)], switch: &str, lid: u16, exit: u8) {
    let (_, table) = tables.iter_mut().find(|(name, _)| name == switch).unwrap();
    let line = table.lines().find(|line| line.starts_with(&format!("0x{lid:04x} "))).unwrap().to_owned();
    *table = table.replace(
        &line,
        &format!("0x{lid:04x} {exit:03} : ({})", line.split_once('(').unwrap().1.trim_end_matches(')')),
    );
}

/// LIDs that some switch forwards differently.
fn changed(before: &FabricPlan, after: &FabricPlan) -> BTreeSet<Lid> {
    let switches = before.switches().zip(after.switches());
    switches.flat_map(|(old, new)| old.linear.differences(&new.linear).collect::<Vec<_>>()).collect()
}

#[test]
fn routes_from_a_file_double_the_rate_of_a_pattern() {
    let (world, intents) = world();
    let view = world.view(&HOSTS);
    let lids: Vec<u16> = view.aliases().iter().map(|alias| alias.lid.to_wire()).collect();
    let served = Served::new(view);
    // Two receivers on different leaves that share an up-link, and a third beside the second with another up-link.
    let paths: Vec<Vec<(String, u8)>> = lids.iter().map(|lid| trace(&served, lids[0], *lid)).collect();
    let climb = |node: usize| paths[node][0].clone();
    let pairs = (2..5).flat_map(|near| (5..8).map(move |far| (near, far)));
    let (near, far) = pairs.into_iter().find(|(near, far)| climb(*near) == climb(*far)).unwrap();
    let beside = (5..8).find(|node| climb(*node) != climb(far)).unwrap();

    let found = served.tool("vm-0", "ibswitches", &[]);
    let switch = |line: &str| {
        let name = line.split('"').nth(1).unwrap().to_owned();
        let lid = line.rsplit("lid ").next().unwrap().split_whitespace().next().unwrap().parse().unwrap();
        (name, lid)
    };
    let switches: Vec<(String, u16)> = found.lines().map(switch).collect();
    let mut tables = dump(&served, &switches);
    for (switch, exit) in &paths[beside][..2] {
        redirect(&mut tables, switch, lids[far], *exit);
    }
    let file = served.scratch().join("routes");
    let text: String = tables.into_iter().map(|(_, table)| table + "\n").collect();
    std::fs::write(&file, text).unwrap();
    let manager = served.opensm("vm-0", &["-R", "file", "-U", file.to_str().unwrap()]);
    manager.wait_for("SUBNET UP");
    eventually("what opensm wrote is judged", || served.with(|view, _| view.status().last.is_some()));
    let judged = served.with(|view, _| view.status()).last.unwrap();
    assert_eq!(judged.verdict, Verdict::Approved);
    let Some(OverlayChange::Set { overlay, .. }) = served.with(|view, _| view.poll_overlay()) else {
        panic!("no overlay")
    };

    let ports: Vec<Guid> = HOSTS.iter().map(|host| world.ports()[*host]).collect();
    let intents_with_overlay = Intents { route_overrides: overlay.routes, ..intents };
    let after = recompile(&world.topology, &intents_with_overlay, &world.plan).unwrap();
    let lid = after.adapter_port(ports[far]).unwrap().lid;
    assert_eq!(
        changed(&world.plan, &after),
        BTreeSet::from([lid]),
        "{:?}",
        intents_with_overlay.route_overrides
    );
    let findings = verify(&world.topology, &intents_with_overlay, &after);
    assert!(findings.iter().all(|finding| is_acknowledged(finding, &after)), "{findings:?}");

    // Both pairs had to share the cable; a pair of another tenant gets what it got before.
    let others = (world.ports()[12], world.ports()[16]);
    let pattern = [(ports[0], ports[near]), (ports[1], ports[far]), others];
    let level = ServiceLevel::default();
    let flows = pattern.map(|(from, to)| Flow { from, to, partition: partition(), level });
    let [slow, fast] = [&world.plan, &after].map(|plan| rates(&world.topology, plan, &flows));
    println!("before {slow:?}, after {fast:?} b/s");
    let own = |rates: &[u64]| rates[0] + rates[1];
    assert!(own(&fast) * 10 > own(&slow) * 19, "{slow:?} {fast:?}");
    assert_eq!(fast[2], slow[2]);
}
