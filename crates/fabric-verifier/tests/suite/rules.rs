//! Each rule on plans that break it in a known way.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fabric_model::generate::{FatTree, Torus};
use fabric_model::intent::{Member, MemberSelector, PartitionIntent, PkeyPlacement, PortName, Role};
use fabric_model::plan::{Enforcement, LinearTable, PkeyTable, PlanParts, PortQos};
use fabric_model::{Endpoint, FabricPlan, Intents, Topology};
use fabric_verifier::{
    Finding, PART_FINDINGS_MAX, PacketDestination, PkeyTableKind, Rule, SwitchExit, TableKind, Verified,
    verify, verify_rule,
};
use ib_wire::{
    DataLanes, Guid, Lid, Membership, PartitionNumber, Pkey, PortNum, SlToVl, VirtualLane, VlArbEntry,
};

use crate::world::{hosts, planned};

fn tree() -> Topology {
    FatTree { radix: 8, ..FatTree::with_hosts(16) }.generate().unwrap()
}

fn partition(raw: u16, members: &[(Guid, Role)]) -> PartitionIntent {
    let member = |(guid, role): &(Guid, Role)| Member {
        selector: MemberSelector::Port(*guid),
        role: *role,
        placement: PkeyPlacement::Anywhere,
    };
    PartitionIntent {
        name: format!("p{raw}"),
        number: PartitionNumber::from_wire(raw),
        members: members.iter().map(member).collect(),
        ipoib: None,
    }
}

fn changed(plan: &FabricPlan, change: impl FnOnce(&mut PlanParts)) -> FabricPlan {
    let mut parts = plan.parts().clone();
    change(&mut parts);
    FabricPlan::from_parts(parts)
}

fn lane(raw: u8) -> VirtualLane {
    VirtualLane::from_wire(raw).unwrap()
}

/// Maps service level 0 to lane 0 and `sl` to lane `raw`; the rest is discarded.
fn map(sl: usize, raw: u8) -> SlToVl {
    let mut map = SlToVl([VirtualLane::MANAGEMENT; 16]);
    map.0[0] = lane(0);
    map.0[sl] = lane(raw);
    map
}

fn shared_by(map: SlToVl) -> PortQos {
    let low = (0..8).map(|raw| VlArbEntry { lane: lane(raw), weight: 1 }).collect();
    PortQos { by_input: BTreeMap::new(), otherwise: map, low, high: Vec::new() }
}

/// A ring of five switches with a host each; all packets go round in the same direction.
fn one_way_round() -> (Topology, Intents, FabricPlan) {
    let ring = Torus { hosts_per_switch: 1, ..Torus::new([5]) }.generate().unwrap();
    let intents = Intents::new(hosts(&ring)[0]);
    let plan = planned(&ring, &intents);
    let nodes: Vec<_> = ring.switches().map(|(index, _)| index).collect();
    let round = |place: usize| {
        let there = nodes[(place + 1) % nodes.len()];
        ring[nodes[place]].cabled_ports().find(|(_, peer)| peer.node == there).unwrap().0
    };
    let plan = changed(&plan, |parts| {
        for switch in &mut parts.switches {
            let node = ring.by_guid(switch.guid).unwrap();
            let own: BTreeMap<Lid, PortNum> = (plan.adapter_ports())
                .filter(|port| port.peer.node == switch.guid)
                .map(|port| (port.lid, port.peer.port))
                .chain([(switch.lid, PortNum::MANAGEMENT)])
                .collect();
            let place = nodes.iter().position(|other| *other == node).unwrap();
            let mut exits = vec![0xff; switch.linear.len()];
            for (lid, _) in plan.lids() {
                exits[usize::from(lid.to_wire())] =
                    own.get(&lid).copied().unwrap_or_else(|| round(place)).to_wire();
            }
            switch.linear = Arc::new(LinearTable::from_exits(exits));
        }
    });
    (ring, intents, plan)
}

#[test]
fn one_way_routes_around_a_ring_are_a_credit_loop() {
    let (ring, intents, plan) = one_way_round();
    let findings = verify(&ring, &intents, &plan);
    let [Finding::CreditLoop { cycle: waits }] = &findings[..] else { panic!("{findings:?}") };
    let switches: BTreeSet<Guid> = waits.iter().map(|wait| wait.link.switch).collect();
    assert_eq!((waits.len(), switches.len()), (5, 5));
    assert!(
        waits.iter().all(|wait| wait.lane.is_none() && matches!(wait.packets, PacketDestination::Lid(_)))
    );
    assert!(
        findings[0]
            .to_string()
            .starts_with("credit loop: packets can wait for buffers in a cycle of 5 links: ")
    );
}

/// The ring with lanes: at the first switch, packets from the ring are mapped by `seam`, everywhere else by
/// `elsewhere`.
fn at_the_seam(ring: &Topology, plan: &FabricPlan, elsewhere: SlToVl, seam: SlToVl) -> FabricPlan {
    let nodes: BTreeSet<Guid> = ring.switches().map(|(_, node)| node.guid).collect();
    changed(plan, |parts| {
        let first = parts.switches[0].guid;
        for switch in &mut parts.switches {
            let inside: Vec<PortNum> = switch
                .ports
                .iter()
                .filter(|port| nodes.contains(&port.peer.node))
                .map(|port| port.number)
                .collect();
            for port in Arc::make_mut(&mut switch.ports) {
                let mut sharing = shared_by(elsewhere);
                if switch.guid == first && inside.contains(&port.number) {
                    sharing.by_input = inside.iter().map(|input| (*input, seam)).collect();
                }
                port.qos = Some(Arc::new(sharing));
            }
        }
        parts.adapter_ports.iter_mut().for_each(|port| port.qos = Some(Arc::new(shared_by(elsewhere))));
    })
}

#[test]
fn lanes_break_a_loop_only_if_every_level_changes_lane() {
    let (ring, intents, plan) = one_way_round();
    let rings = |plan: &FabricPlan| verify_rule(Rule::CreditLoops, &ring, &intents, plan);
    let best_effort = map(0, 0);
    // Service level 0 continues in lane 1 behind the seam: lane 0 waits for lane 1, and lane 1 for lane 0 on the next
    // link.
    let other_lane = at_the_seam(&ring, &plan, best_effort, map(0, 1));
    let [Finding::CreditLoop { cycle: waits }] = &rings(&other_lane)[..] else { panic!("a ring") };
    assert_eq!(waits.iter().filter(|wait| wait.lane == Some(lane(1))).count(), 1);
    // Nothing passes the seam.
    let mut shut = map(0, 15);
    let closed = at_the_seam(&ring, &plan, best_effort, shut);
    assert_eq!(rings(&closed), []);
    // Service level 3, which adapters send, passes it.
    shut.0[3] = lane(3);
    let open = at_the_seam(&ring, &plan, map(3, 3), shut);
    let [Finding::CreditLoop { cycle: waits }] = &rings(&open)[..] else { panic!("a ring") };
    assert!(waits.iter().all(|wait| wait.lane == Some(lane(3))), "{waits:?}");
}

#[test]
fn each_kind_of_pkey_table_must_isolate_alone() {
    let tree = tree();
    let hosts = hosts(&tree);
    let mut intents = Intents::new(hosts[0]);
    intents.partitions = vec![
        partition(1, &[(hosts[1], Role::Full), (hosts[2], Role::Limited), (hosts[3], Role::Limited)]),
        partition(2, &[(hosts[4], Role::Full)]),
    ];
    let plan = planned(&tree, &intents);
    assert_eq!(verify(&tree, &intents, &plan), []);
    let key = |raw| Pkey::from_wire(raw).unwrap();
    let names = |finding: &Finding, a: Guid, b: Guid, kind: PkeyTableKind| match finding {
        Finding::IsolationBroken { from, to, table: found, path, .. } => {
            *from == a && *to == b && *found == kind && !path.is_empty()
        }
        _ => false,
    };

    // A host with a key of another partition.
    let end =
        |parts: &PlanParts, guid| parts.adapter_ports.iter().position(|port| port.guid == guid).unwrap();
    let foreign = changed(&plan, |parts| {
        let port = end(parts, hosts[4]);
        let port = &mut parts.adapter_ports[port];
        let mut keys = port.pkeys.entries().to_vec();
        keys.push(Some(key(0x8001)));
        port.pkeys = Arc::new(PkeyTable::from_keys(keys));
    });
    let found = verify(&tree, &intents, &foreign);
    let name = foreign.adapter_port(hosts[4]).unwrap().name;
    assert_eq!(
        found[0],
        Finding::KeyUnwanted { port: name, key: key(0x8001), table: PkeyTableKind::EndPort }
    );
    assert!(found.len() == 2 && names(&found[1], hosts[4], hosts[1], PkeyTableKind::EndPort), "{found:?}");

    // The switch port treats a limited member as a full one: it reaches another limited member.
    let raised = changed(&plan, |parts| {
        let peer = parts.adapter_ports[end(parts, hosts[2])].peer;
        let switch = parts.switches.iter_mut().find(|switch| switch.guid == peer.node).unwrap();
        let port = switch.port_mut(peer.port).unwrap();
        let Enforcement::Both(keys) = &mut port.enforcement else { panic!("enforced") };
        let raised =
            keys.entries().iter().map(|held| if *held == Some(key(1)) { Some(key(0x8001)) } else { *held });
        *keys = Arc::new(PkeyTable::from_keys(raised.collect()));
    });
    let found = verify(&tree, &intents, &raised);
    assert!(
        found.iter().any(|finding| names(finding, hosts[2], hosts[3], PkeyTableKind::SwitchPort)),
        "{found:?}"
    );
    assert!(found.iter().all(|finding| finding.rule() == Rule::Isolation));
}

#[test]
fn full_default_members_are_reported_unless_intended() {
    let tree = tree();
    let hosts = hosts(&tree);
    let intents = Intents::new(hosts[0]);
    let mut open = intents.clone();
    open.partitions = vec![PartitionIntent {
        members: vec![Member {
            selector: MemberSelector::All,
            role: Role::Full,
            placement: PkeyPlacement::Anywhere,
        }],
        ..partition(PartitionNumber::DEFAULT.to_wire(), &[])
    }];
    let plan = planned(&tree, &open);
    assert_eq!(verify(&tree, &open, &plan), []);
    let found = verify(&tree, &intents, &plan);
    let full = PartitionNumber::DEFAULT.key(Membership::Full);
    let unwanted = |finding: &&Finding| matches!(finding, Finding::KeyUnwanted { key, .. } if *key == full);
    // Fifteen hosts, each with the switch port in front of it, and six switches.
    assert_eq!(found.iter().filter(unwanted).count(), 15 * 2 + 6);
}

#[test]
fn a_missing_port_and_a_moved_cable_are_reported() {
    let tree = tree();
    let hosts = hosts(&tree);
    let intents = Intents::new(hosts[0]);
    let plan = planned(&tree, &intents);
    let without = changed(&plan, |parts| parts.adapter_ports.retain(|port| port.guid != hosts[5]));
    let name = plan.adapter_port(hosts[5]).unwrap().name;
    assert!(verify(&tree, &intents, &without).contains(&Finding::PortMissing { port: name }));

    let mut builder = fabric_model::TopologyBuilder::from(tree.clone());
    let [a, b] = [hosts[5], hosts[14]].map(|guid| tree.by_port_guid(guid).unwrap());
    let [at_a, at_b] = [a, b].map(|end| tree.peer(end).unwrap());
    builder.disconnect(a).unwrap();
    builder.disconnect(b).unwrap();
    builder.connect(a, at_b, None).unwrap();
    builder.connect(b, at_a, None).unwrap();
    let moved = builder.build().unwrap();
    let found = verify(&moved, &intents, &plan);
    let cables = found.iter().filter(|finding| matches!(finding, Finding::CableDiffers { .. })).count();
    assert_eq!(cables, 4, "both ends of both cables");
    let lid = plan.adapter_port(hosts[5]).unwrap().lid;
    let astray =
        |finding: &Finding| matches!(finding, Finding::Misrouted { lid: found, .. } if *found == lid);
    assert!(found.iter().any(astray), "{found:?}");
}

#[test]
fn too_small_tables_are_reported_with_the_size_needed() {
    let tree = tree();
    let hosts = hosts(&tree);
    let mut intents = Intents::new(hosts[0]);
    intents.partitions = (1..6).map(|raw| partition(raw, &[(hosts[3], Role::Full)])).collect();
    let plan = planned(&tree, &intents);
    let host = plan.adapter_port(hosts[3]).unwrap();
    let switch = plan.switches().next().unwrap();

    intents.capabilities.default_port.pkeys = 5;
    let full = Finding::TableTooLong { table: TableKind::Pkeys, port: host.name, entries: 6, capacity: 5 };
    assert_eq!(verify(&tree, &intents, &plan), [full]);
    intents.capabilities.default_port.pkeys = 64;
    intents.capabilities.default_switch.enforced_pkeys = 4;
    let full =
        Finding::TableTooLong { table: TableKind::EnforcedPkeys, port: host.peer, entries: 6, capacity: 4 };
    assert_eq!(verify(&tree, &intents, &plan), [full]);
    intents.capabilities.default_switch.enforced_pkeys = 64;
    let own = PortName { node: switch.guid, port: PortNum::MANAGEMENT };
    let small = fabric_model::intent::SwitchCapability { linear: 22, ..intents.capabilities.default_switch };
    intents.capabilities.switches.insert(switch.guid, small);
    let full = Finding::TableTooLong { table: TableKind::Linear, port: own, entries: 23, capacity: 22 };
    assert_eq!(verify(&tree, &intents, &plan), [full]);
    intents.capabilities.switches.clear();
    intents.capabilities.ports.insert(
        host.peer,
        fabric_model::intent::PortCapability { lanes: DataLanes::Four, ..intents.capabilities.default_port },
    );
    let found = verify(&tree, &intents, &plan);
    assert_eq!(found.len(), 2, "both ends: {found:?}");
    assert!(found.iter().all(|finding| matches!(finding, Finding::LinkBeyondEnds { .. })));
}

#[test]
fn more_arbitration_entries_than_a_port_has_are_reported() {
    let tree = tree();
    let hosts = hosts(&tree);
    for capacity in [8_usize, 64] {
        let mut intents = Intents::new(hosts[0]);
        intents.capabilities.default_port.arbitration = capacity as u8;
        let found = |entries: usize| {
            let plan = changed(&planned(&tree, &intents), |parts| {
                let mut sharing = shared_by(map(0, 0));
                sharing.low = vec![VlArbEntry { lane: lane(0), weight: 1 }; entries];
                parts.adapter_ports[2].qos = Some(Arc::new(sharing));
            });
            let (port, table) = (plan.parts().adapter_ports[2].name, TableKind::Arbitration);
            let too_long = Finding::TableTooLong { table, port, entries, capacity };
            verify(&tree, &intents, &plan).contains(&too_long)
        };
        assert!(found(capacity + 1) && !found(capacity), "{capacity}");
    }
}

#[test]
fn a_forwarding_loop_is_reported_once_with_its_cycle() {
    let tree = tree();
    let hosts = hosts(&tree);
    let intents = Intents::new(hosts[0]);
    let plan = planned(&tree, &intents);
    // The spine sends packets back to a leaf that does not have the host.
    let host = plan.adapter_port(hosts[15]).unwrap();
    let (spine, leaf, back) = tree
        .switches()
        .filter(|(_, node)| node.description.starts_with("spine"))
        .find_map(|(spine, node)| {
            let near = |port: PortNum, end: Endpoint| {
                let exit = plan.switch(tree[end.node].guid)?.linear.exit(host.lid)?;
                (exit == end.port).then_some((spine, end, port))
            };
            node.cabled_ports().find_map(|(port, end)| near(port, end))
        })
        .unwrap();
    let guid = tree[spine].guid;
    let wrong = changed(&plan, |parts| {
        let switch = parts.switches.iter_mut().find(|switch| switch.guid == guid).unwrap();
        let mut exits = switch.linear.to_exits();
        exits[usize::from(host.lid.to_wire())] = back.to_wire();
        switch.linear = Arc::new(LinearTable::from_exits(exits));
    });
    let found = verify_rule(Rule::Forwarding, &tree, &intents, &wrong);
    let [Finding::ForwardingLoop { lid, cycle }] = &found[..] else { panic!("{found:?}") };
    let hops = [
        SwitchExit { switch: guid, exit: back },
        SwitchExit { switch: tree[leaf.node].guid, exit: leaf.port },
    ];
    assert_eq!((*lid, cycle.iter().copied().collect::<BTreeSet<_>>()), (host.lid, BTreeSet::from(hops)));
}

#[test]
fn every_rule_cites_documented_assumptions() {
    let page = include_str!("../../../../docs/assumptions.md");
    for rule in Rule::ALL {
        assert!(!rule.assumptions().is_empty());
        for id in rule.assumptions() {
            assert!(page.contains(&format!("| {id} |")), "{rule}: {id}");
        }
    }
}

#[test]
fn a_one_way_service_level_is_reported_where_discarded() {
    let tree = tree();
    let hosts = hosts(&tree);
    let intents = Intents::new(hosts[0]);
    let plan = changed(&planned(&tree, &intents), |parts| {
        for port in &mut parts.adapter_ports {
            let own = if port.guid == hosts[9] { map(0, 0) } else { map(2, 1) };
            port.qos = Some(Arc::new(shared_by(own)));
        }
    });
    let found = verify(&tree, &intents, &plan);
    let [Finding::ServiceLevelOneWay { sl, to, at, input, .. }] = &found[..] else { panic!("{found:?}") };
    let host = plan.adapter_port(hosts[9]).unwrap();
    assert_eq!((sl.to_wire(), *to, *at, *input), (2, host.guid, host.name, None));
}

#[test]
fn findings_are_bounded_if_all_tables_are_wrong() {
    let tree = FatTree { radix: 8, ..FatTree::with_hosts(128) }.generate().unwrap();
    let intents = Intents::new(hosts(&tree)[0]);
    let plan = planned(&tree, &intents);
    let switches = plan.switches().len();
    let wrong = changed(&plan, |parts| {
        for switch in &mut parts.switches {
            let exits = vec![200; switch.linear.len()];
            switch.linear = Arc::new(LinearTable::from_exits(exits));
        }
    });
    let found = verify_rule(Rule::Forwarding, &tree, &intents, &wrong);
    let lids = plan.switches().map(|switch| switch.linear.top()).max().unwrap();
    assert_eq!(
        found.len(),
        usize::from(lids) * (PART_FINDINGS_MAX + 1),
        "as many of every LID, and how many more"
    );
    let more = Finding::Omitted { rule: Rule::Forwarding, count: switches - PART_FINDINGS_MAX };
    assert_eq!(found.iter().filter(|finding| **finding == more).count(), lids.into());
    assert!(more.to_string().contains("more findings") && more.rule() == Rule::Forwarding);
}

/// Three clusters of two hosts, each with its own partition number and owner.
fn owned() -> (Arc<Topology>, Intents) {
    let topology = Arc::new(tree());
    let guids = hosts(&topology);
    let mut intents = Intents::new(guids[0]);
    for (raw, members) in (0x101..).zip(guids[1..7].chunks(2)) {
        let full: Vec<_> = members.iter().map(|guid| (*guid, Role::Full)).collect();
        intents.partitions.push(partition(raw, &full));
        let number = PartitionNumber::from_wire(raw).unwrap();
        intents.owners.insert(number, [(format!("cluster-{raw}"), members[0])].into());
    }
    (topology, intents)
}

/// The intents after one cluster got the number of another: members are merged by number.
fn with_number_of(intents: &Intents, taker: usize, giver: usize) -> Intents {
    let mut merged = intents.clone();
    let numbers: Vec<PartitionNumber> = intents.owners.keys().copied().collect();
    let members = merged.partitions[taker].members.clone();
    merged.partitions[giver].members.extend(members);
    merged.partitions.remove(taker);
    let owner = merged.owners.remove(&numbers[taker]).unwrap();
    merged.owners.get_mut(&numbers[giver]).unwrap().extend(owner);
    merged
}

#[test]
fn a_partition_number_belongs_to_one_owner() {
    let (topology, intents) = owned();
    let verified = Verified::of(&topology, &intents, Arc::new(planned(&topology, &intents)));
    assert_eq!(verified.findings().count(), 0, "each has a number of its own");
    for (taker, giver) in [(0, 1), (1, 0), (2, 0), (0, 2), (1, 2), (2, 1)] {
        let merged = with_number_of(&intents, taker, giver);
        // The tables are right for the merged partition: without owners there are no findings.
        let unowned = Intents { owners: [].into(), ..merged.clone() };
        let plan = Arc::new(planned(&topology, &unowned));
        assert_eq!(verify(&topology, &unowned, &plan), []);
        let found = verify(&topology, &merged, &plan);
        let [Finding::PartitionNumberShared { partition, first, first_port, second, second_port }] =
            &found[..]
        else {
            panic!("{taker} {giver}: {found:?}")
        };
        let owners = &merged.owners[partition];
        assert!(first < second && owners[first] == *first_port && owners[second] == *second_port);
        assert_eq!(found[0].rule(), Rule::Ownership);
        assert!(found[0].to_string().contains(&first_port.to_string()), "{}", found[0]);
        let delta = verified.delta(&topology, &merged, plan);
        assert_eq!(delta.findings().cloned().collect::<Vec<_>>(), found, "also plan by plan");
    }
}
