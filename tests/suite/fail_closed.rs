//! Devices that refuse what isolates tenants or carries guarantees, or confirm it without effect: the port is closed, or
//! the guarantee withdrawn, and neither happens silently.

use std::time::Duration;

use fabric_model::Topology;
use fabric_model::generate::FatTree;
use fabric_model::intent::{ClusterIntent, PortName};
use fabric_model::plan::PlanFinding;
use fabric_model::tenancy::{Bandwidth, Class, SlMode};
use fabric_sim::{Capacities, Fabric, PortId, SetConduct, SetFault, TakenEntries};
use ib_wire::{
    Attribute, Guid, Method, NodeKind, PkeyBlockSelector, PortInfo, PortState, SlToVlSelector, Status,
    VlArbPart,
};
use subnet_manager::{EntryClass, Lack, LackAnswer, PersistentState, SmEvent};

use crate::in_process::running_manager::RunningManager;

const SECOND: Duration = Duration::from_secs(1);

/// The status of a device that does not support an attribute.
const UNSUPPORTED: Status = Status::UNSUPPORTED_ATTRIBUTE;

const CONDUCTS: [SetConduct; 3] = [SetConduct::Refuses(UNSUPPORTED), SetConduct::Ignores, SetConduct::Feigns];

/// The host whose port has the fault, at the manager's own leaf switch.
const VICTIM: &str = "host-00002";

fn shapes() -> [Topology; 2] {
    [(4, 4), (6, 18)]
        .map(|(radix, hosts)| FatTree { radix, ..FatTree::with_hosts(hosts) }.generate().unwrap())
}

/// An entry that a device does not take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    SwitchKeys,
    AdapterKeys,
    Enforcement,
    RawFilters,
    ManagementKey,
    /// Weights of the lanes on the link to the victim.
    Weights,
    /// Lanes of packets from other switches on the link to the victim.
    Lanes,
    /// How long packets wait for the link to the victim.
    QueueLife,
    Routes,
}

const ISOLATION: [Entry; 4] = [Entry::SwitchKeys, Entry::AdapterKeys, Entry::Enforcement, Entry::RawFilters];
const GUARANTEE: [Entry; 3] = [Entry::Weights, Entry::Lanes, Entry::QueueLife];

fn port_info(change: impl Fn(&PortInfo, &mut PortInfo), held: &[u8; 64], requested: &[u8; 64]) -> [u8; 64] {
    let mut taken = PortInfo::decode(requested).unwrap();
    change(&PortInfo::decode(held).unwrap(), &mut taken);
    taken.encode()
}

impl Entry {
    fn takes(self) -> TakenEntries {
        match self {
            Self::Enforcement => |held, requested| {
                let keep = |held: &PortInfo, taken: &mut PortInfo| {
                    (taken.enforce_inbound, taken.enforce_outbound) =
                        (held.enforce_inbound, held.enforce_outbound);
                };
                port_info(keep, held, requested)
            },
            Self::RawFilters => |held, requested| {
                let keep = |held: &PortInfo, taken: &mut PortInfo| {
                    taken.filter_raw_inbound = held.filter_raw_inbound
                };
                port_info(keep, held, requested)
            },
            Self::ManagementKey => {
                |held, requested| port_info(|held, taken| taken.m_key = held.m_key, held, requested)
            }
            Self::QueueLife => {
                |held, requested| port_info(|held, taken| taken.hoq_life = held.hoq_life, held, requested)
            }
            _ => SetFault::TAKES_NOTHING,
        }
    }

    /// The faults of the devices at the victim's link.
    fn faults(self, fabric: &Fabric, conduct: SetConduct) -> Vec<SetFault> {
        let (host, leaf) = link(fabric, VICTIM);
        let (adapter, switch) = (fabric.node_of(host).node_guid, fabric.node_of(leaf).node_guid);
        let number = fabric.number_of(leaf);
        let wire = number.to_wire();
        let hops = || {
            let inputs = fabric.ports_of(fabric.device_id_of(leaf)).filter(|port| {
                let peer = fabric.port_forwarding(*port).peer;
                peer.is_some_and(|peer| fabric.node_of(peer).kind == NodeKind::Switch)
            });
            inputs.map(|port| fabric.number_of(port).to_wire())
        };
        let (node, attribute, modifiers) = match self {
            Self::SwitchKeys => {
                let block = PkeyBlockSelector { port: wire.into(), block: 0 };
                (switch, Attribute::PKEY_TABLE, vec![Some(block.to_modifier())])
            }
            Self::AdapterKeys => (adapter, Attribute::PKEY_TABLE, vec![None]),
            Self::Enforcement | Self::RawFilters | Self::QueueLife => {
                (switch, Attribute::PORT_INFO, vec![Some(wire.into())])
            }
            Self::ManagementKey => (adapter, Attribute::PORT_INFO, vec![None]),
            Self::Weights => {
                (switch, Attribute::VL_ARBITRATION, vec![Some(VlArbPart::LowFirst.to_modifier(number))])
            }
            Self::Lanes => {
                let hop = |input| Some(SlToVlSelector::Hop { input, output: wire }.to_modifier());
                (switch, Attribute::SL_TO_VL, hops().map(hop).collect())
            }
            Self::Routes => (switch, Attribute::LINEAR_FORWARDING, vec![None]),
        };
        let takes = self.takes();
        modifiers.into_iter().map(|modifier| SetFault { node, attribute, modifier, takes, conduct }).collect()
    }
}

/// The adapter port of a host, and the switch port in front of it.
fn link(fabric: &Fabric, host: &str) -> (PortId, PortId) {
    let port = fabric.find_port(host).unwrap();
    (port, fabric.port_forwarding(port).peer.unwrap())
}

fn name(fabric: &Fabric, port: PortId) -> PortName {
    PortName { node: fabric.node_of(port).node_guid, port: fabric.number_of(port) }
}

fn guids(fabric: &Fabric, hosts: std::ops::RangeInclusive<usize>) -> Vec<Guid> {
    hosts.map(|number| fabric.guid_of(fabric.find_port(&format!("host-{number:05}")).unwrap())).collect()
}

/// A fabric with tenants: the hosts but the first are in a partition, and those from the second to the fourth have a
/// guarantee if asked for.
fn manager(topology: &Topology, is_guarding: bool, is_guaranteed: bool) -> RunningManager {
    let fabric = Fabric::new(topology.clone(), Capacities::default(), 1).unwrap();
    let mut run = RunningManager::on(fabric, topology, is_guarding, PersistentState::default());
    let members = guids(&run.fabric, 2..=4).into_iter().map(|guid| format!("{guid:#x}=full"));
    run.partitions = format!("blue=0x101 : {};", members.collect::<Vec<_>>().join(", "));
    if is_guaranteed {
        let bandwidth = Bandwidth::from_bits_per_s(1_000_000_000);
        run.clusters = vec![ClusterIntent {
            name: "blue".to_owned(),
            ports: guids(&run.fabric, 2..=4),
            class: Class::Guaranteed { bandwidth, latency_ns: None },
            sl_mode: SlMode::Cluster,
        }];
    }
    run
}

fn state(run: &RunningManager, port: PortId) -> PortState {
    run.fabric.state_of(port)
}

fn is_open(run: &RunningManager, host: &str) -> bool {
    let (adapter, leaf) = link(&run.fabric, host);
    [adapter, leaf].into_iter().all(|port| state(run, port) == PortState::Active)
}

fn carries_nothing(run: &RunningManager, host: &str) -> bool {
    let (_, leaf) = link(&run.fabric, host);
    !matches!(state(run, leaf), PortState::Armed | PortState::Active)
}

fn others_are_open(run: &RunningManager, topology: &Topology) -> bool {
    topology
        .end_nodes()
        .all(|(_, node)| node.id == VICTIM || node.description == VICTIM || is_open(run, &node.id))
}

fn lacks(run: &RunningManager) -> Vec<&Lack> {
    run.events
        .iter()
        .filter_map(|event| if let SmEvent::Lacking(lack) = event { Some(lack) } else { None })
        .collect()
}

fn is_in_force(run: &RunningManager) -> bool {
    matches!(
        run.events.iter().rfind(|event| matches!(
            event,
            SmEvent::Programmed(_) | SmEvent::Discovered(_) | SmEvent::Interrupted
        )),
        Some(SmEvent::Programmed(_))
    )
}

fn findings(run: &RunningManager) -> &[PlanFinding] {
    run.plan.as_ref().unwrap().findings()
}

fn assert_closed(run: &RunningManager, topology: &Topology, case: &str) {
    let (host, leaf) = link(&run.fabric, VICTIM);
    assert!(carries_nothing(run, VICTIM), "{case}: {:?}", state(run, leaf));
    assert!(others_are_open(run, topology), "{case}: one weak device harms no other");
    assert!(is_in_force(run), "{case}: the rest is programmed: {:?}", run.events);
    let concerned = [name(&run.fabric, host), name(&run.fabric, leaf)];
    let lacks = lacks(run);
    assert!(!lacks.is_empty(), "{case}: not silently");
    for lack in lacks {
        assert!(concerned.contains(&lack.port), "{case}: {lack}");
        assert_eq!(lack.class, EntryClass::Isolation, "{case}: {lack}");
    }
    let expected = [PlanFinding::Unenforced { ports: 1, witness: name(&run.fabric, host) }];
    assert_eq!(findings(run), expected, "{case}");
}

fn assert_untouched(run: &RunningManager, topology: &Topology, case: &str) {
    assert!(is_open(run, VICTIM) && others_are_open(run, topology), "{case}");
    assert!(is_in_force(run), "{case}: {:?}", run.events);
    assert_eq!(lacks(run), Vec::<&Lack>::new(), "{case}");
    assert_eq!(findings(run), [], "{case}");
}

#[test]
fn a_new_port_without_isolation_stays_closed() {
    for topology in shapes() {
        let mut control = manager(&topology, true, false);
        control.run_for(5 * SECOND);
        assert_untouched(&control, &topology, "control");
        for entry in ISOLATION.into_iter().chain([Entry::ManagementKey]) {
            for conduct in CONDUCTS {
                let case = format!("{entry:?} {conduct:?}");
                let mut run = manager(&topology, true, false);
                run.fabric.set_set_faults(entry.faults(&run.fabric, conduct));
                run.run_for(20 * SECOND);
                assert_closed(&run, &topology, &case);
                let answers: Vec<LackAnswer> = lacks(&run).iter().map(|lack| lack.answer).collect();
                let expected = match conduct {
                    SetConduct::Refuses(status) => LackAnswer::Refused(status),
                    SetConduct::Ignores | SetConduct::Feigns => LackAnswer::Ineffective,
                };
                assert!(answers.contains(&expected), "{case}: {answers:?}");
            }
        }
    }
}

#[test]
fn a_port_without_isolation_is_never_active() {
    let [topology, _] = shapes();
    for entry in ISOLATION {
        for conduct in CONDUCTS {
            let mut run = manager(&topology, false, false);
            run.fabric.set_set_faults(entry.faults(&run.fabric, conduct));
            for _ in 0..4000 {
                run.exchange_at_most(1);
                let (_, leaf) = link(&run.fabric, VICTIM);
                assert_ne!(state(&run, leaf), PortState::Active, "{entry:?} {conduct:?}");
            }
            assert!(!lacks(&run).is_empty(), "{entry:?} {conduct:?}: the run went far enough");
        }
    }
}

/// Somebody clears the entries of a live port, so that the manager has to write them again.
fn clear(run: &mut RunningManager, entry: Entry) {
    let (_, leaf) = link(&run.fabric, VICTIM);
    let number = run.fabric.number_of(leaf).to_wire();
    let mut info = PortInfo::decode(&run.fabric.port_info_of(leaf, number).unwrap()).unwrap();
    (info.enforce_inbound, info.enforce_outbound) = (false, false);
    (info.filter_raw_inbound, info.filter_raw_outbound) = (false, false);
    (info.state, info.hoq_life) = (PortState::NoChange, 1);
    info.physical_state = ib_wire::PhysicalState::NoChange;
    if matches!(entry, Entry::Enforcement | Entry::RawFilters | Entry::QueueLife) {
        run.write_from("host-00001", &[1], (Attribute::PORT_INFO, number.into()), info.encode());
    }
}

#[test]
fn a_live_port_that_loses_isolation_is_taken_down() {
    for topology in shapes() {
        for entry in ISOLATION {
            for conduct in [None, Some(CONDUCTS[0]), Some(CONDUCTS[1]), Some(CONDUCTS[2])] {
                let case = format!("{entry:?} {conduct:?}");
                let mut run = manager(&topology, false, false);
                run.run_for(5 * SECOND);
                assert_untouched(&run, &topology, &case);
                clear(&mut run, entry);
                let faults = conduct.map(|conduct| entry.faults(&run.fabric, conduct)).unwrap_or_default();
                run.fabric.set_set_faults(faults);
                run.partitions = run.partitions.replace("0x101", "0x102");
                run.decide();
                run.run_for(30 * SECOND);
                match conduct {
                    None => assert_untouched(&run, &topology, &case),
                    Some(_) => assert_closed(&run, &topology, &case),
                }
            }
        }
    }
}

#[test]
fn a_closed_port_opens_when_its_device_takes_the_entries() {
    let [topology, _] = shapes();
    for entry in ISOLATION {
        for conduct in CONDUCTS {
            let case = format!("{entry:?} {conduct:?}");
            let mut run = manager(&topology, false, false);
            run.fabric.set_set_faults(entry.faults(&run.fabric, conduct));
            run.run_for(70 * SECOND);
            assert_closed(&run, &topology, &case);
            assert_eq!(run.told(|event| matches!(event, SmEvent::LackEnded(_))), 0, "{case}");
            run.fabric.set_set_faults(Vec::new());
            run.run_for(300 * SECOND);
            assert!(is_open(&run, VICTIM), "{case}: {:?}", run.events);
            assert!(is_in_force(&run), "{case}");
            assert_eq!(
                run.told(|event| matches!(event, SmEvent::LackEnded(_))),
                lacks(&run).len(),
                "{case}: each is reported once, and so is its end"
            );
            assert_eq!(findings(&run), [], "{case}");
        }
    }
}

#[test]
fn an_operator_can_ask_for_another_try() {
    let [topology, _] = shapes();
    let mut run = manager(&topology, true, false);
    run.fabric.set_set_faults(Entry::SwitchKeys.faults(&run.fabric, CONDUCTS[0]));
    run.run_for(5 * SECOND);
    assert_closed(&run, &topology, "before");
    run.manager.retry_lacks(run.now);
    run.run_for(5 * SECOND);
    assert_closed(&run, &topology, "the device refuses again");
    run.fabric.set_set_faults(Vec::new());
    run.manager.retry_lacks(run.now);
    run.run_for(5 * SECOND);
    assert!(is_open(&run, VICTIM) && is_in_force(&run), "{:?}", run.events);
}

#[test]
fn a_device_that_restarts_is_tried_again() {
    let [topology, _] = shapes();
    let mut run = manager(&topology, false, false);
    run.fabric.set_set_faults(Entry::AdapterKeys.faults(&run.fabric, CONDUCTS[0]));
    run.run_for(5 * SECOND);
    assert_closed(&run, &topology, "before");
    run.fabric.set_set_faults(Vec::new());
    let (host, _) = link(&run.fabric, VICTIM);
    run.fabric.reboot(run.now, run.fabric.device_id_of(host));
    run.run_for(15 * SECOND);
    assert!(is_open(&run, VICTIM) && is_in_force(&run), "{:?}", run.events);
}

#[test]
fn a_manager_that_restarts_keeps_ports_closed() {
    let [topology, _] = shapes();
    let mut run = manager(&topology, true, false);
    run.fabric.set_set_faults(Entry::Enforcement.faults(&run.fabric, CONDUCTS[2]));
    run.run_for(5 * SECOND);
    assert_closed(&run, &topology, "before");
    let (partitions, kept) = (run.partitions.clone(), run.kept.clone());
    assert_eq!(kept.lacks.len(), 1);
    let mut next = RunningManager::on(run.fabric, &topology, true, kept);
    next.partitions = partitions;
    next.run_for(5 * SECOND);
    assert_closed(&next, &topology, "after");
    assert_eq!(next.manager.counts().sets, 0, "nothing is left to write");
}

#[test]
fn a_plan_cannot_open_a_closed_port() {
    let [topology, _] = shapes();
    let mut run = manager(&topology, false, false);
    run.run_for(5 * SECOND);
    let open = run.plan.clone().unwrap();
    run.fabric.set_set_faults(Entry::SwitchKeys.faults(&run.fabric, CONDUCTS[0]));
    run.partitions = run.partitions.replace("0x101", "0x102");
    run.decide();
    run.run_for(5 * SECOND);
    assert!(carries_nothing(&run, VICTIM));
    run.manager.apply(run.now, open);
    run.run_for(5 * SECOND);
    assert!(carries_nothing(&run, VICTIM), "whoever sends the plan");
}

#[test]
fn the_port_of_the_manager_stays_open() {
    let [topology, _] = shapes();
    let mut run = manager(&topology, false, false);
    // Without another partition, the table of the port would be as it comes.
    run.partitions = run.partitions.replace(" : ", " : SELF=full, ");
    let (_, leaf) = link(&run.fabric, "host-00001");
    let (node, number) = (run.fabric.node_of(leaf).node_guid, run.fabric.number_of(leaf));
    let modifier = PkeyBlockSelector { port: number.to_wire().into(), block: 0 }.to_modifier();
    let fault = SetFault {
        node,
        attribute: Attribute::PKEY_TABLE,
        modifier: Some(modifier),
        takes: SetFault::TAKES_NOTHING,
        conduct: CONDUCTS[0],
    };
    run.fabric.set_set_faults(vec![fault]);
    run.run_for(10 * SECOND);
    assert!(is_open(&run, "host-00001") && others_are_open(&run, &topology));
    assert_eq!(lacks(&run).len(), 1, "but it is reported");
    assert!(is_in_force(&run), "{:?}", run.events);
}

fn assert_withdrawn(run: &RunningManager, topology: &Topology, case: &str) {
    assert!(is_open(run, VICTIM) && others_are_open(run, topology), "{case}: best effort goes on");
    assert!(is_in_force(run), "{case}: {:?}", run.events);
    let (_, leaf) = link(&run.fabric, VICTIM);
    let lacks = lacks(run);
    assert!(!lacks.is_empty(), "{case}: not silently");
    for lack in lacks {
        assert_eq!(
            (lack.port, lack.class),
            (name(&run.fabric, leaf), EntryClass::Guarantee),
            "{case}: {lack}"
        );
    }
    let is_violated = |finding: &PlanFinding| matches!(finding, PlanFinding::GuaranteeViolated { cluster, .. } if cluster == "blue");
    assert!(findings(run).iter().any(is_violated), "{case}: {:?}", findings(run));
}

#[test]
fn a_new_cluster_across_a_port_without_guarantees_has_none() {
    for topology in shapes() {
        let mut control = manager(&topology, true, true);
        control.run_for(5 * SECOND);
        assert_untouched(&control, &topology, "control");
        for entry in GUARANTEE {
            for conduct in CONDUCTS {
                let mut run = manager(&topology, true, true);
                run.fabric.set_set_faults(entry.faults(&run.fabric, conduct));
                run.run_for(20 * SECOND);
                assert_withdrawn(&run, &topology, &format!("{entry:?} {conduct:?}"));
            }
        }
    }
}

#[test]
fn a_guarantee_is_withdrawn_from_a_live_port_and_restored() {
    for topology in shapes() {
        for entry in GUARANTEE {
            for conduct in CONDUCTS {
                let case = format!("{entry:?} {conduct:?}");
                let mut run = manager(&topology, false, false);
                let clusters = std::mem::take(&mut manager(&topology, false, true).clusters);
                run.run_for(5 * SECOND);
                clear(&mut run, entry);
                run.fabric.set_set_faults(entry.faults(&run.fabric, conduct));
                run.clusters = clusters;
                run.decide();
                run.run_for(30 * SECOND);
                assert_withdrawn(&run, &topology, &case);
                run.fabric.set_set_faults(Vec::new());
                run.run_for(300 * SECOND);
                assert!(is_in_force(&run), "{case}: {:?}", run.events);
                assert_eq!(findings(&run), [], "{case}");
            }
        }
    }
}

#[test]
fn entries_of_no_class_close_nothing() {
    for topology in shapes() {
        for conduct in CONDUCTS {
            let case = format!("{conduct:?}");
            let mut run = manager(&topology, false, false);
            run.fabric.set_set_faults(Entry::Routes.faults(&run.fabric, conduct));
            run.run_for(20 * SECOND);
            assert_eq!(lacks(&run), Vec::<&Lack>::new(), "{case}");
            assert!(is_in_force(&run), "{case}");
            assert!(is_open(&run, VICTIM), "{case}");
            let is_told = |event: &SmEvent| match event {
                SmEvent::RequestRefused { attribute, .. } | SmEvent::Unsupported { attribute, .. } => {
                    *attribute == Attribute::LINEAR_FORWARDING
                }
                _ => false,
            };
            assert!(run.told(is_told) > 0, "{case}: {:?}", run.events);
        }
    }
}

#[test]
fn everything_that_was_written_is_read_back() {
    for topology in shapes() {
        for is_guaranteed in [false, true] {
            let mut run = manager(&topology, true, is_guaranteed);
            run.run_for(5 * SECOND);
            let activates = |sent: &ib_wire::Datagram| {
                sent.mad.attribute() == Attribute::PORT_INFO
                    && PortInfo::decode(sent.mad.smp_data()).is_ok_and(|info| info.state == PortState::Active)
            };
            let of = |method, sent: &ib_wire::Datagram| sent.mad.method() == method;
            let key = |sent: &ib_wire::Datagram| {
                let route: Vec<_> =
                    (0..=sent.mad.hop_count()).map(|hop| sent.mad.initial_path(hop)).collect();
                (sent.mad.attribute(), sent.mad.modifier(), route)
            };
            let first_active =
                run.sent.iter().position(|sent| of(Method::SET, sent) && activates(sent)).unwrap();
            let (before, after) = run.sent.split_at(first_active);
            let mut sets = 0;
            for (index, set) in before.iter().enumerate().filter(|(_, sent)| of(Method::SET, sent)) {
                let is_read = before[index..].iter().any(|get| of(Method::GET, get) && key(get) == key(set));
                assert!(is_read, "{:?} {:#x}", set.mad.attribute(), set.mad.modifier());
                sets += 1;
            }
            assert!(sets > 50);
            assert!(
                (after.iter().filter(|sent| of(Method::SET, sent)))
                    .all(|sent| activates(sent) || PortInfo::asks_to_register(&sent.mad)),
                "ports become active last"
            );
        }
    }
}
