//! Stock tools and stock opensm work with a view as with a real network.

use std::collections::BTreeMap;
use std::time::Instant;

use ib_wire::{Guid, PartitionNumber};
use tenant_view::{OverlayChange, UngrantedRoutes, Verdict, View, ViewManager};

use crate::served::{Served, eventually};
use crate::world::World;

/// The value of a key, as smpquery and saquery print it: `Key:....value` or `key.....value`.
fn value<'a>(printed: &'a str, key: &str) -> &'a str {
    let line = printed.lines().map(str::trim).find(|line| {
        line.strip_prefix(key).is_some_and(|rest| rest.starts_with(':') || rest.starts_with('.'))
    });
    let line = line.unwrap_or_else(|| panic!("no {key} in {printed}"));
    line[key.len()..].trim_start_matches([':', '.'])
}

/// LIDs of nodes by description, as ibnetdiscover prints them.
fn lids(found: &str) -> BTreeMap<String, u16> {
    let mut lids = BTreeMap::new();
    for line in found.lines().filter(|line| line.starts_with('[')) {
        // The far end of every cable: `# "switch-2" lid 3 4xEDR`, at adapters `# lid 1 lmc 0 "switch-1" lid 2`.
        let mut words = line.rsplit_once('"').unwrap().1.split_whitespace();
        let name = line.rsplit('"').nth(1).unwrap();
        assert_eq!(words.next(), Some("lid"), "{line}");
        lids.insert(name.to_owned(), words.next().unwrap().parse().unwrap());
    }
    lids
}

#[test]
fn stock_tools_agree_about_a_default_view() {
    let world = World::tree(32, 8);
    let served = Served::new(world.view(&[0, 1, 5, 9]));
    let found = served.tool("vm-0", "ibnetdiscover", &[]);
    assert_eq!(found.matches("\nCa\t").count(), 4, "{found}");
    let lids = lids(&found);
    let switches = lids.keys().filter(|name| name.starts_with("switch-")).count();
    assert_eq!(lids.len(), 4 + switches, "{lids:?}");
    assert_eq!(served.tool("vm-3", "ibhosts", &[]).lines().count(), 4);
    assert_eq!(served.tool("vm-3", "ibswitches", &[]).lines().count(), switches);
    let links = served.tool("vm-1", "iblinkinfo", &[]);
    assert!(links.contains("Active/  LinkUp") && !links.contains("Initialize"), "{links}");

    let manager = served.tool("vm-2", "sminfo", &[]);
    assert!(manager.contains("SMINFO_MASTER") && manager.contains("priority 0"), "{manager}");
    let manager: u16 = manager.split_whitespace().nth(3).unwrap().parse().unwrap();
    assert_eq!(manager, lids["switch-1"]);
    for (name, lid) in &lids {
        let (lid, node) = (lid.to_string(), if name == "vm-0" { "vm-1" } else { "vm-0" });
        let described = served.tool(node, "smpquery", &["nodedesc", &lid]);
        assert_eq!(value(&described, "Node Description"), *name);
        let info = served.tool(node, "smpquery", &["nodeinfo", &lid]);
        let record = served.tool(node, "saquery", &["NR", &lid]);
        assert_eq!(value(&record, "NodeDescription"), *name);
        assert_eq!(value(&record, "node_guid"), value(&info, "Guid"), "{name}");
        if name.starts_with("switch-") {
            let routes = served.tool(node, "ibroute", &[&lid]);
            assert!(routes.contains(&format!("{} valid lids dumped", lids.len())), "{routes}");
            served.tool(node, "smpquery", &["switchinfo", &lid]);
        } else {
            let keys = served.tool(node, "smpquery", &["pkeys", &lid]);
            assert!(keys.contains("0xffff 0x0000"), "{keys}");
            assert_eq!(
                value(&served.tool(node, "smpquery", &["portinfo", &lid, "1"]), "LinkState"),
                "Active"
            );
        }
    }
    for (from, to) in [("vm-0", "vm-2"), ("vm-3", "vm-1")] {
        let (from, to) = (lids[from].to_string(), lids[to].to_string());
        let path = served.tool("vm-0", "saquery", &["PR", "--slid", &from, "--dlid", &to]);
        assert_eq!((value(&path, "dlid"), value(&path, "pkey")), (to.as_str(), "0xFFFF"), "{path}");
        let traced = served.tool("vm-0", "ibtracert", &[&from, &to]);
        assert!(traced.contains("To ca {"), "{traced}");
        // Every step of the trace is an entry in the table of the switch before.
        let mut before = None;
        for line in traced.lines().filter(|line| line.starts_with('[')) {
            let exit: u8 = line[1..].split_once(']').unwrap().0.parse().unwrap();
            if let Some(switch) = before {
                let lid: u16 = lids[switch];
                let routes = served.tool("vm-0", "ibroute", &[&lid.to_string()]);
                let entry = format!("0x{:04x} {exit:03}", to.parse::<u16>().unwrap());
                assert!(routes.contains(&entry), "{entry} in {routes}");
            }
            before = line.rsplit('"').nth(1).filter(|name| name.starts_with("switch-"));
        }
    }
    served.tool("vm-0", "ibstat", &[]);
    served.tool("vm-0", "perfquery", &["-x", &lids["switch-1"].to_string(), "1"]);
}

/// Three sub-partitions, with the virtual machines distributed among them by index.
fn partitions_conf(aliases: &[(String, Guid)]) -> String {
    let members = |part: usize| {
        let own = aliases.iter().enumerate().filter(|(index, _)| index % 3 == part);
        own.map(|(_, (_, guid))| format!("{:#018x}=full", guid.to_wire())).collect::<Vec<_>>().join(", ")
    };
    (0..3).map(|part| format!("part{part}={:#06x}, ipoib : {};\n", part + 1, members(part))).collect()
}

fn opensm_takes_over(view: View) {
    let aliases: Vec<(String, Guid)> =
        view.aliases().into_iter().map(|alias| (alias.node, alias.port_guid)).collect();
    let served = Served::new(view);
    let partitions = served.scratch().join("partitions.conf");
    std::fs::write(&partitions, partitions_conf(&aliases)).unwrap();
    let started = Instant::now();
    let manager = served.opensm("vm-1", &["-Q", "-P", partitions.to_str().unwrap()]);
    manager.wait_for("SUBNET UP");
    println!("{} nodes: SUBNET UP after {:?}", aliases.len(), started.elapsed());
    let log = manager.log();
    assert!(
        log.contains("Entering MASTER") && !log.contains("STANDBY"),
        "no other manager was master: {log}"
    );
    let own = ViewManager::Tenant { node: "vm-1".to_owned() };
    eventually("the default SM yields", || served.with(|view, _| view.managed_by()) == own);
    let info = served.tool("vm-2", "sminfo", &[]);
    assert!(info.contains(&format!("{:#x}", aliases[1].1.to_wire())), "{info}");
    let found = served.tool("vm-0", "ibnetdiscover", &[]);
    assert_eq!(found.matches("\nCa\t").count(), aliases.len());
    let lids = lids(&found);

    // Members of one sub-partition have a path in it, members of different ones have none.
    let path = |from: &str, to: &str, key: &str| {
        let (from, to) = (lids[from].to_string(), lids[to].to_string());
        served.tool("vm-1", "saquery", &["PR", "--slid", &from, "--dlid", &to, "--pkey", key])
    };
    assert!(path("vm-0", "vm-3", "0x8001").contains("pkey....................0x8001"));
    assert!(!path("vm-0", "vm-2", "0x8001").contains("pkey..."));

    // What it wrote is an overlay: three sub-partitions, routes and classes.
    eventually("what opensm wrote is judged", || served.with(|view, _| view.status().last.is_some()));
    let status = served.with(|view, _| view.status());
    let judged = status.last.unwrap();
    assert!(!matches!(judged.verdict, Verdict::Refused { .. }), "{:?}", judged.verdict);
    for part in 0..3_u16 {
        let members = &judged.overlay.partitions[&PartitionNumber::from_wire(part + 1).unwrap()];
        assert_eq!(members.len(), (aliases.len() - usize::from(part)).div_ceil(3));
    }
    let Some(OverlayChange::Set { overlay, .. }) = served.with(|view, _| view.poll_overlay()) else {
        panic!("no overlay")
    };
    assert_eq!(overlay.classes.len(), 1, "best effort has one lane");

    drop(manager);
    eventually("the default returns", || served.with(|view, _| view.managed_by()) == ViewManager::Default);
    let info = served.tool("vm-2", "sminfo", &[]);
    assert!(
        info.contains("SMINFO_MASTER") && !info.contains(&format!("{:#x}", aliases[1].1.to_wire())),
        "{info}"
    );
    let keys = served.tool("vm-0", "smpquery", &["-D", "pkeys", "0"]);
    assert!(keys.contains("0xffff 0x0000"), "{keys}");
    assert!(matches!(served.with(|view, _| view.poll_overlay()), Some(OverlayChange::Withdrawn { .. })));
}

#[test]
fn a_standby_opensm_takes_over_from_another() {
    let served = Served::new(World::tree(32, 8).view(&[0, 1, 5, 9]));
    let first = served.opensm("vm-1", &["-p", "9"]);
    first.wait_for("SUBNET UP");
    let second = served.opensm("vm-2", &["-p", "3"]);
    second.wait_for("Entering STANDBY");
    drop(first);
    second.wait_for("SUBNET UP");
    let own = ViewManager::Tenant { node: "vm-2".to_owned() };
    eventually("it is master", || served.with(|view, _| view.managed_by()) == own);
}

#[test]
fn opensm_takes_over_4_nodes() {
    opensm_takes_over(World::tree(32, 8).view(&[0, 1, 5, 9]));
}

#[test]
fn opensm_takes_over_64_nodes() {
    opensm_takes_over(World::tree(324, 36).view(&(0..64).map(|host| host * 5).collect::<Vec<_>>()));
}

#[test]
fn opensm_takes_over_256_nodes() {
    opensm_takes_over(World::tree(324, 36).view(&(0..256).collect::<Vec<_>>()));
}

#[test]
fn opensm_learns_of_new_nodes() {
    let world = World::tree(32, 8);
    let served = Served::new(world.view(&[0, 1, 5, 9]));
    let manager = served.opensm("vm-0", &[]);
    manager.wait_for("SUBNET UP");
    let grown = world.slice(&world.cluster(&[0, 1, 5, 9, 13]));
    served.with(move |view, now| view.set_slice(now, grown)).unwrap();
    let state = |served: &Served| {
        served.with(|view, _| {
            let port = view.port(view.adapter("vm-4")?)?;
            Some(view.fabric().state_of(port))
        })
    };
    eventually("the new node is active", || state(&served) == Some(ib_wire::PortState::Active));
    let found = served.tool("vm-4", "ibnetdiscover", &[]);
    assert_eq!(found.matches("\nCa\t").count(), 5, "{found}");
}

#[test]
fn two_tenants_with_equal_aliases_are_independent() {
    let world = World::tree(32, 8);
    let (red, blue) = (Served::new(world.view(&[0, 1, 5, 9])), Served::new(world.view(&[2, 3, 6, 10])));
    let managers = [red.opensm("vm-0", &["-Q"]), blue.opensm("vm-0", &["-Q"])];
    managers.iter().for_each(|manager| manager.wait_for("SUBNET UP"));
    let body = |served: &Served| {
        let found = served.tool("vm-1", "ibnetdiscover", &[]);
        found.lines().filter(|line| !line.starts_with("# Topology")).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(body(&red), body(&blue), "both are built alike, and look alike");
}

#[test]
fn opensm_sets_classes_and_granted_routes_are_kept() {
    let mut view = World::guaranteed(&[0, 1, 4, 8], &[]).view(&[0, 1, 4, 8]);
    view.set_ungranted_routes(UngrantedRoutes::KeepDefault);
    let served = Served::new(view);
    let manager = served.opensm("vm-0", &["-Q"]);
    manager.wait_for("SUBNET UP");
    eventually("what opensm wrote is judged", || served.with(|view, _| view.status().last.is_some()));
    let last = served.with(|view, _| view.status()).last.unwrap();
    assert!(matches!(last.verdict, Verdict::Adapted { .. }), "{:?}", last.verdict);
    let Some(OverlayChange::Set { overlay, .. }) = served.with(|view, _| view.poll_overlay()) else {
        panic!("no overlay")
    };
    assert!(overlay.classes.len() > 1, "{:?}", overlay.classes);
    assert!(last.all_to_all.is_some_and(|rate| rate.bits_per_s() > 0));
}

#[test]
fn opensm_partitions_a_guaranteed_cluster_that_has_grown() {
    let world = World::guaranteed(&[0, 4, 8], &[]);
    let mut view = world.view(&[0, 4]);
    view.set_ungranted_routes(UngrantedRoutes::KeepDefault);
    let served = Served::new(view);
    let first = served.opensm("vm-0", &[]);
    first.wait_for("SUBNET UP");
    drop(first);
    eventually("the default returns", || served.with(|view, _| view.managed_by()) == ViewManager::Default);
    let grown = world.slice(&world.cluster(&[0, 4, 8]));
    served.with(move |view, now| view.set_slice(now, grown)).unwrap();
    let aliases = served.with(|view, _| view.aliases());
    let partitions = served.scratch().join("partitions.conf");
    let of = |number: usize| aliases[number].port_guid;
    let text = format!(
        "Default=0x7fff : ALL=limited, SELF=full;\none=0x1 : {}=full;\ntwo=0x2 : {}=full;\n",
        of(1),
        of(2)
    );
    std::fs::write(&partitions, text).unwrap();
    let manager = served.opensm("vm-0", &["-P", partitions.to_str().unwrap()]);
    manager.wait_for("SUBNET UP");
    let number = |raw| PartitionNumber::from_wire(raw).unwrap();
    // What the first manager wrote may be judged later than the second one starts.
    let mut judged = None;
    eventually("what opensm wrote is judged", || {
        if let Some(OverlayChange::Set { overlay, .. }) = served.with(|view, _| view.poll_overlay()) {
            judged = Some(overlay);
        }
        judged.as_ref().is_some_and(|overlay| overlay.partitions.contains_key(&number(1)))
    });
    let last = served.with(|view, _| view.status()).last.unwrap();
    assert!(!matches!(last.verdict, Verdict::Refused { .. }), "{:?}", last.verdict);
    let overlay = judged.unwrap();
    let members = |raw| &overlay.partitions[&number(raw)];
    assert_eq!((members(1).len(), members(2).len(), members(0x7fff).len()), (1, 1, 3));
    assert_eq!(overlay.routes, [].into(), "links without grant are not used");
}
