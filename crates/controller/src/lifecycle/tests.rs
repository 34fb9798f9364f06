//! Clusters with simulated hosts and a simulated fabric that follow their specs sooner, later or not at all.

use std::collections::{BTreeMap, BTreeSet};

use controller_api::MemorySize;
use controller_api::agent::{ImageSpec, NetworkCheck, Probes};
use controller_api::cluster::{CpuMode, PacketStop, SubPartitionStatus};
use controller_api::operation::Operation;
use fabric_model::MacAddress;
use ib_wire::{Lid, PortNum};
use proptest::prelude::*;

use super::*;
use crate::network::{Members, members};
use crate::node_address::ipv4_address;
use crate::store::TenantRef;

/// Simulated hosts and fabric; each method makes them follow the desired state.
#[derive(Default)]
struct World {
    vms: BTreeMap<Uuid, VmReport>,
    ordered: BTreeSet<Uuid>,
    removed: BTreeSet<Uuid>,
    members: Option<Members>,
    /// Ports that are closed.
    closed: BTreeSet<Guid>,
    refusal: Option<String>,
    levels: Option<Vec<ServiceLevel>>,
}

impl Observations for World {
    fn vm(&self, _host: &Name, id: Uuid) -> VmObservation<'_> {
        match self.vms.get(&id) {
            Some(report) => VmObservation::Reported(report),
            None if self.ordered.contains(&id) => VmObservation::Unknown,
            None if self.removed.contains(&id) => VmObservation::Removed,
            None => VmObservation::NotInSpec,
        }
    }

    fn spec_rejection(&self, _host: &Name) -> Option<&str> {
        self.refusal.as_deref()
    }

    fn is_member(&self, partition: PartitionNumber, port: Guid) -> Option<bool> {
        let is_member = self.members.as_ref()?.contains_key(&(partition, port));
        Some(is_member && !self.closed.contains(&port))
    }

    fn is_closed(&self, port: Guid) -> Option<bool> {
        self.members.as_ref().map(|_| self.closed.contains(&port))
    }

    fn carries(&self, cluster: &ClusterRow) -> Option<bool> {
        let programmed = self.members.as_ref()?;
        let is_open = cluster.nodes.iter().all(|node| !self.closed.contains(&node.port_guid));
        Some(is_open && members(cluster).iter().all(|(member, role)| programmed.get(member) == Some(role)))
    }

    fn class_levels(&self, _: &ClusterRow) -> Option<Vec<ServiceLevel>> {
        self.levels.clone()
    }
}

impl World {
    fn program(&mut self, cluster: &ClusterRow) {
        self.members = Some(members(cluster));
    }

    /// The agents accept the desired state: new virtual machines are prepared, leaving ones are removed.
    fn order(&mut self, cluster: &ClusterRow) {
        let wanted = cluster.nodes.iter().filter(|node| node.networked && !node.leaving);
        self.ordered = wanted.map(|node| node.id).collect();
        let removed = cluster.nodes.iter().filter(|node| node.networked && node.leaving);
        self.removed = removed.map(|node| node.id).collect();
        self.vms.retain(|id, _| !self.removed.contains(id));
        for id in &self.ordered {
            self.vms.entry(*id).or_insert_with(|| report(*id, VmState::Preparing, None));
        }
    }

    fn boot(&mut self, cluster: &ClusterRow) {
        for vm in self.vms.values_mut().filter(|vm| vm.state != VmState::Failed) {
            (vm.state, vm.ready) = (VmState::Running, Some(cluster.generation));
        }
    }
}

fn report(id: Uuid, state: VmState, ready: Option<u64>) -> VmReport {
    VmReport { id, state, ready, reason: None, pinned: Vec::new(), network: None, stop: None, unlisted: None }
}

fn now(seconds: i64) -> Moment {
    let wall = Timestamp::from_second(1_700_000_000 + seconds).unwrap();
    Moment { wall, uptime: Uptime::from_ms(seconds * 1000) }
}

fn node(number: u32) -> NodeRow {
    NodeRow {
        id: Uuid::from_u128(number.into()),
        number,
        // Two nodes behind each port.
        host: format!("host-{}", number / 2).parse().unwrap(),
        port_guid: Guid::from_wire(0x100 + u64::from(number / 2)).unwrap(),
        port: PortNum::new(1).unwrap(),
        function: number as u8,
        mac: MacAddress::of_function(Lid::from_wire(1).unwrap(), number as u8),
        leaving: false,
        joined: true,
        networked: false,
        gone: false,
        state: NodeState::Placed,
        reason: None,
        ready: None,
        network: None,
        fenced: false,
    }
}

pub(crate) fn cluster(size: u32) -> ClusterRow {
    let name: Name = "blue".parse().unwrap();
    let mut cluster = ClusterRow {
        id: Uuid::from_u128(99),
        tenant: TenantRef { id: Uuid::from_u128(98), name: "tenant".parse().unwrap() },
        name: name.clone(),
        size,
        cores: 1,
        memory: MemorySize::from_mib(384),
        mode: CpuMode::Shared,
        class: Default::default(),
        sl_mode: Default::default(),
        adapter: Default::default(),
        image: ImageSpec { name, directory: "/image".into(), digest: String::new() },
        phase: Phase::Placed,
        reason: None,
        partition: PartitionNumber::from_wire(0x101),
        inner: Vec::new(),
        overlay: None,
        network: Default::default(),
        generation: 1,
        created: now(0).wall,
        nodes: (1..=size).map(node).collect(),
        operation: None,
        began: Uptime::default(),
    };
    ask(&mut cluster, OperationKind::Create);
    cluster
}

fn ask(cluster: &mut ClusterRow, kind: OperationKind) {
    cluster.operation = Some(Operation {
        id: Uuid::from_u128(7),
        tenant: cluster.tenant.name.clone(),
        cluster: cluster.name.clone(),
        cluster_id: cluster.id,
        kind,
        state: OperationState::Running,
        reason: None,
        started: now(0).wall,
        ended: None,
        steps: Vec::new(),
    });
}

fn state(cluster: &ClusterRow) -> OperationState {
    cluster.operation.as_ref().unwrap().state
}

/// A cluster that has become ready, in its world.
fn ready(size: u32) -> (ClusterRow, World) {
    let (mut cluster, mut world) = (cluster(size), World::default());
    for _ in 0..3 {
        world.program(&cluster);
        world.order(&cluster);
        world.boot(&cluster);
        advance(&mut cluster, &world, now(1));
    }
    assert_eq!((cluster.phase, state(&cluster)), (Phase::Ready, OperationState::Done));
    (cluster, world)
}

#[test]
fn changed_class_levels_are_announced_once() {
    let (mut cluster, mut world) = ready(2);
    let before = cluster.generation;
    world.levels = Some(vec![ServiceLevel::default()]);
    advance(&mut cluster, &world, now(2));
    assert_eq!(cluster.generation, before, "the overlay has no classes");
    cluster.overlay = Some(Default::default());
    for _ in 0..2 {
        advance(&mut cluster, &world, now(2));
        assert_eq!((cluster.generation, cluster.phase), (before + 1, Phase::Ready));
        assert_eq!(cluster.overlay.as_ref().map(|overlay| &overlay.wire_sls), world.levels.as_ref());
    }
    // Unknown is not empty.
    world.levels = None;
    advance(&mut cluster, &world, now(3));
    assert_eq!(cluster.generation, before + 1);
    world.levels = Some(Vec::new());
    advance(&mut cluster, &world, now(4));
    assert_eq!(cluster.generation, before + 2);
}

#[test]
fn a_cluster_passes_through_its_phases_in_order() {
    let (mut cluster, mut world) = (cluster(2), World::default());
    let mut phases = vec![cluster.phase];
    let mut step = |cluster: &mut ClusterRow, world: &World| {
        advance(cluster, world, now(1));
        if phases.last() != Some(&cluster.phase) {
            phases.push(cluster.phase);
        }
    };
    step(&mut cluster, &world);
    world.order(&cluster);
    assert!(world.ordered.is_empty(), "nothing runs before the fabric is programmed");
    world.program(&cluster);
    step(&mut cluster, &world);
    world.order(&cluster);
    step(&mut cluster, &world);
    world.boot(&cluster);
    step(&mut cluster, &world);
    assert_eq!(phases, [Phase::Placed, Phase::NetworkProgrammed, Phase::Starting, Phase::Ready]);
    assert_eq!(state(&cluster), OperationState::Done);
}

#[test]
fn readiness_counts_once_the_node_is_on_the_fabric() {
    let (mut cluster, mut world) = (cluster(2), World::default());
    world.program(&cluster);
    advance(&mut cluster, &world, now(1));
    world.order(&cluster);
    world.boot(&cluster);
    let members = world.members.take();
    advance(&mut cluster, &world, now(2));
    assert_eq!(cluster.phase, Phase::Starting, "the state of the fabric is unknown");
    world.members = members;
    advance(&mut cluster, &world, now(3));
    assert_eq!(cluster.phase, Phase::Ready);
    world.members = None;
    advance(&mut cluster, &world, now(4));
    assert_eq!(cluster.phase, Phase::Ready, "a loss of the fabric does not revoke readiness");
}

#[test]
fn a_failed_node_fails_its_cluster_and_frees_everything() {
    let (mut cluster, mut world) = (cluster(2), World::default());
    world.program(&cluster);
    advance(&mut cluster, &world, now(1));
    world.order(&cluster);
    let failed = VmReport {
        reason: Some("the disk is full".to_owned()),
        ..report(cluster.nodes[1].id, VmState::Failed, None)
    };
    world.vms.insert(failed.id, failed);
    let outcome = advance(&mut cluster, &world, now(2));
    assert_eq!((cluster.phase, state(&cluster)), (Phase::Failed, OperationState::Failed));
    let told: Vec<_> =
        outcome.events.iter().map(|it| (it.tenant.is_some(), it.text.contains("disk"))).collect();
    assert_eq!(told, [(false, true), (true, false)], "only operators see the reason given by the host");
    assert!(
        cluster.reason.as_deref().is_some_and(|reason| reason.starts_with("blue-2: its host cannot run it"))
    );
    assert_eq!(outcome.events.last().unwrap().kind, "cluster.failed");
    assert_eq!(cluster.nodes.len(), 2, "its virtual machines still exist");
    world.order(&cluster);
    advance(&mut cluster, &world, now(3));
    assert!(
        cluster.nodes.iter().all(|node| node.gone) && cluster.partition.is_some(),
        "ports still hold the key"
    );
    world.program(&cluster);
    advance(&mut cluster, &world, now(4));
    assert_eq!((cluster.nodes.len(), cluster.partition), (0, None));
}

#[test]
fn a_port_leaves_the_partition_after_its_last_vm() {
    let (mut cluster, mut world) = ready(3);
    cluster.phase = Phase::Deleting;
    ask(&mut cluster, OperationKind::Delete);
    let port = cluster.nodes[1].port_guid;
    assert_eq!(port, cluster.nodes[2].port_guid);
    advance(&mut cluster, &world, now(2));
    world.vms.remove(&cluster.nodes[2].id);
    world.ordered.clear();
    world.removed = cluster.nodes.iter().map(|node| node.id).collect();
    advance(&mut cluster, &world, now(3));
    assert!(members(&cluster).contains_key(&(cluster.partition.unwrap(), port)));
    world.vms.clear();
    assert!(!advance(&mut cluster, &world, now(4)).is_removed, "the port is still a member");
    assert!(members(&cluster).is_empty());
    world.program(&cluster);
    assert!(advance(&mut cluster, &world, now(5)).is_removed);
    assert_eq!(state(&cluster), OperationState::Done);
}

#[test]
fn new_nodes_are_announced_when_they_are_ready() {
    let (mut cluster, mut world) = ready(2);
    cluster.nodes.push(NodeRow { joined: false, ..node(3) });
    cluster.size = 3;
    ask(&mut cluster, OperationKind::Resize);
    world.program(&cluster);
    advance(&mut cluster, &world, now(2));
    world.order(&cluster);
    advance(&mut cluster, &world, now(3));
    assert_eq!((cluster.phase, cluster.generation), (Phase::Ready, 1), "running nodes stay up");
    world.boot(&cluster);
    advance(&mut cluster, &world, now(4));
    assert_eq!((cluster.generation, state(&cluster)), (2, OperationState::Running));
    world.boot(&cluster);
    advance(&mut cluster, &world, now(5));
    assert_eq!((cluster.phase, state(&cluster)), (Phase::Ready, OperationState::Done));
}

#[test]
fn failed_growth_is_undone_and_the_rest_keeps_running() {
    let (mut cluster, mut world) = ready(2);
    cluster.nodes.push(NodeRow { joined: false, ..node(3) });
    cluster.size = 3;
    ask(&mut cluster, OperationKind::Resize);
    world.program(&cluster);
    advance(&mut cluster, &world, now(2));
    world.order(&cluster);
    world.vms.get_mut(&Uuid::from_u128(3)).unwrap().state = VmState::Failed;
    advance(&mut cluster, &world, now(3));
    assert_eq!((cluster.phase, state(&cluster), cluster.size), (Phase::Ready, OperationState::Failed, 2));
    world.order(&cluster);
    advance(&mut cluster, &world, now(4));
    world.program(&cluster);
    advance(&mut cluster, &world, now(5));
    assert_eq!((cluster.nodes.len(), cluster.phase), (2, Phase::Ready));
}

#[test]
fn a_rejected_spec_fails_only_the_nodes_that_wait_for_it() {
    let (mut cluster, mut world) = (cluster(1), World::default());
    world.program(&cluster);
    advance(&mut cluster, &world, now(1));
    world.refusal = Some("the spec cannot be stored: no space left".to_owned());
    let (mut running, others) = ready(1);
    let others = World { refusal: world.refusal.clone(), ..others };
    let outcome = advance(&mut cluster, &world, now(2));
    advance(&mut running, &others, now(2));
    assert!(outcome.events[0].text.ends_with(": the spec cannot be stored: no space left"));
    assert!(cluster.reason.as_deref().is_some_and(|reason| reason.starts_with("blue-1: ")));
    assert_eq!((cluster.phase, running.phase), (Phase::Failed, Phase::Ready));
}

#[test]
fn unobserved_nodes_are_not_aborted() {
    let (mut cluster, mut world) = (cluster(1), World::default());
    world.program(&cluster);
    advance(&mut cluster, &world, now(1));
    world.ordered.insert(cluster.nodes[0].id);
    let late = START_TIMEOUT.as_secs() as i64 + 1;
    advance(&mut cluster, &world, now(late));
    assert_ne!(cluster.phase, Phase::Failed);
    world.order(&cluster);
    advance(&mut cluster, &world, now(late));
    assert_eq!(cluster.phase, Phase::Failed, "observed, and not ready");
}

#[test]
fn a_closed_port_revokes_readiness_until_it_is_open() {
    let (mut cluster, mut world) = ready(4);
    let port = cluster.nodes[1].port_guid;
    assert_ne!(cluster.nodes[0].port_guid, port);
    world.closed.insert(port);
    advance(&mut cluster, &world, now(50));
    assert_eq!(cluster.phase, Phase::Starting);
    let states: Vec<bool> = cluster.nodes.iter().map(|node| node.state == NodeState::Ready).collect();
    let open: Vec<bool> = cluster.nodes.iter().map(|node| node.port_guid != port).collect();
    assert_eq!(states, open, "only nodes behind the closed port");

    // While nothing is known, nothing changes.
    let members = world.members.take();
    advance(&mut cluster, &world, now(51));
    assert_eq!(cluster.phase, Phase::Starting);
    (world.members, world.closed) = (members, BTreeSet::new());
    advance(&mut cluster, &world, now(52));
    assert_eq!(cluster.phase, Phase::Ready);
}

#[test]
fn a_cluster_on_a_closed_port_does_not_become_ready() {
    let mut world = World::default();
    let mut cluster = cluster(2);
    world.closed.insert(cluster.nodes[1].port_guid);
    for _ in 0..4 {
        world.program(&cluster);
        advance(&mut cluster, &world, now(1));
        world.order(&cluster);
        world.boot(&cluster);
    }
    assert_ne!(cluster.phase, Phase::Ready);
    assert!(!cluster.nodes[1].networked, "no virtual machine is started behind it");
    world.closed.clear();
    for _ in 0..4 {
        advance(&mut cluster, &world, now(2));
        world.order(&cluster);
        world.boot(&cluster);
    }
    assert_eq!(cluster.phase, Phase::Ready, "the control");
}

#[test]
fn a_stopped_node_returns_its_cluster_to_starting() {
    let (mut cluster, mut world) = ready(2);
    let vm = world.vms.values_mut().next().unwrap();
    (vm.state, vm.ready) = (VmState::Stopped, None);
    advance(&mut cluster, &world, now(9));
    assert_eq!(cluster.phase, Phase::Starting);
    world.boot(&cluster);
    advance(&mut cluster, &world, now(10));
    assert_eq!(cluster.phase, Phase::Ready);
}

/// Sets the result of the network check of all guests.
fn check(world: &mut World, reached: bool, heard: bool) {
    for vm in world.vms.values_mut() {
        vm.network = Some(NetworkCheck { reached, heard });
    }
}

/// A cluster whose guests are up with this result of the network check, one second after the request.
fn checking(size: u32, reached: bool, heard: bool) -> (ClusterRow, World) {
    let (mut cluster, mut world) = (cluster(size), World::default());
    world.program(&cluster);
    advance(&mut cluster, &world, now(1));
    world.order(&cluster);
    world.boot(&cluster);
    check(&mut world, reached, heard);
    advance(&mut cluster, &world, now(1));
    (cluster, world)
}

const TIMEOUT: i64 = network::CHECK_TIMEOUT.as_secs() as i64;

#[test]
fn a_cluster_is_ready_when_its_network_check_passes() {
    let (mut cluster, mut world) = checking(3, true, false);
    assert_eq!((cluster.phase, cluster.network.state), (Phase::Starting, NetworkState::Checking));
    let reason = cluster.reason.as_deref().unwrap_or_default();
    assert!(reason.starts_with("checking the network: blue-1 has not yet received a broadcast"), "{reason}");
    check(&mut world, true, true);
    let outcome = advance(&mut cluster, &world, now(2));
    assert_eq!((cluster.phase, cluster.network.state), (Phase::Ready, NetworkState::Carries));
    let ready = outcome.events.last().unwrap();
    assert_eq!(ready.text, "3 nodes have reported that they are ready and reach each other");
}

#[test]
fn without_checks_a_cluster_is_ready_and_unchecked() {
    let (cluster, _) = ready(2);
    assert_eq!((cluster.phase, cluster.network.state), (Phase::Ready, NetworkState::Unchecked));
}

#[test]
fn a_failed_network_check_names_the_unreached_nodes() {
    let (mut cluster, mut world) = checking(3, true, false);
    check(&mut world, true, true);
    let second = cluster.nodes[1].id;
    let vm = world.vms.get_mut(&second).unwrap();
    vm.network = Some(NetworkCheck { reached: false, heard: true });
    let stop =
        PacketStop { node: "leaf".to_owned(), port: PortNum::new(4).unwrap(), reason: "no_route".to_owned() };
    vm.stop = Some(stop);
    let early = advance(&mut cluster, &world, now(TIMEOUT));
    assert_eq!((cluster.network.state, early.events.len()), (NetworkState::Checking, 0));
    let late = advance(&mut cluster, &world, now(1 + TIMEOUT));
    assert_eq!((cluster.phase, cluster.network.state), (Phase::Starting, NetworkState::Broken));
    let reason = "the network check fails: blue-2 does not reach blue-3";
    assert_eq!(cluster.reason.as_deref(), Some(reason));
    let told: Vec<_> = late.events.iter().map(|it| (it.tenant.is_some(), it.text.as_str())).collect();
    let place = "cluster blue of tenant: packets are dropped: blue-2 at leaf port 4 (no_route)";
    assert_eq!(told, [(true, reason), (false, place)], "only operators see where packets are dropped");
    assert!(advance(&mut cluster, &world, now(11 + TIMEOUT)).events.is_empty(), "reported once");
    check(&mut world, true, true);
    let well = advance(&mut cluster, &world, now(12 + TIMEOUT));
    assert_eq!((cluster.phase, cluster.reason.as_deref()), (Phase::Ready, None));
    assert_eq!(well.events[0].kind, "cluster.network-carries");
}

#[test]
fn a_cluster_stays_ready_while_its_network_is_rechecked() {
    let (mut cluster, mut world) = checking(2, true, true);
    cluster.generation += 1;
    advance(&mut cluster, &world, now(2));
    assert_eq!((cluster.phase, cluster.network.state), (Phase::Ready, NetworkState::Carries));
    world.boot(&cluster);
    check(&mut world, false, false);
    advance(&mut cluster, &world, now(3));
    assert_eq!((cluster.phase, cluster.network.state), (Phase::Ready, NetworkState::Checking));
    advance(&mut cluster, &world, now(3 + TIMEOUT));
    assert_eq!((cluster.phase, cluster.network.state), (Phase::Starting, NetworkState::Broken));
}

#[test]
fn new_nodes_are_not_announced_before_their_check_passes() {
    let (mut cluster, mut world) = checking(2, true, true);
    cluster.nodes.push(NodeRow { joined: false, ..node(3) });
    cluster.size = 3;
    ask(&mut cluster, OperationKind::Resize);
    world.program(&cluster);
    advance(&mut cluster, &world, now(2));
    world.order(&cluster);
    world.boot(&cluster);
    let third = world.vms.get_mut(&Uuid::from_u128(3)).unwrap();
    third.network = Some(NetworkCheck { reached: false, heard: false });
    for seconds in [3, 4, 4 + TIMEOUT] {
        advance(&mut cluster, &world, now(seconds));
        assert_eq!((cluster.phase, cluster.generation), (Phase::Ready, 1), "running nodes stay up");
    }
    let reason = "the network check fails: blue-3 does not reach blue-1 and receives no broadcast";
    assert_eq!(cluster.reason.as_deref(), Some(reason));
    // Control: they are announced once the check passes.
    check(&mut world, true, true);
    advance(&mut cluster, &world, now(5 + TIMEOUT));
    assert_eq!((cluster.phase, cluster.generation), (Phase::Ready, 2));
}

#[test]
fn nodes_probe_only_nodes_of_a_common_partition() {
    let mut cluster = cluster(5);
    let asked = |cluster: &ClusterRow, index: usize| {
        let Probes { successor, broadcaster } = probes(cluster, &cluster.nodes[index]);
        [successor, broadcaster].map(|address| address.map(|address| address.octets()[3]))
    };
    assert_eq!(asked(&cluster, 0), [Some(2), Some(2)]);
    assert_eq!(asked(&cluster, 1), [Some(3), Some(1)]);
    assert_eq!(asked(&cluster, 4), [Some(1), Some(1)]);
    let inner = |number: u16, full: &[u32]| SubPartitionStatus {
        name: format!("p{number}").parse().unwrap(),
        number: PartitionNumber::from_wire(number).unwrap(),
        full: full.iter().copied().collect(),
        limited: BTreeSet::new(),
    };
    cluster.inner = vec![inner(0x201, &[1, 3]), inner(0x202, &[2, 4]), inner(0x203, &[5])];
    assert_eq!(asked(&cluster, 0), [Some(3), Some(3)]);
    assert_eq!(asked(&cluster, 3), [Some(2), Some(2)]);
    assert_eq!(asked(&cluster, 4), [None, None], "it may reach no other node");
}

/// A cluster of an earlier image that grows: the new node checks, and the others cannot answer.
#[test]
fn nodes_do_not_probe_guests_that_do_not_check() {
    let mut cluster = cluster(4);
    let asked = |cluster: &ClusterRow, index: usize| probes(cluster, &cluster.nodes[index]);
    let some = asked(&cluster, 3);
    assert!(
        some.successor.is_some() && some.broadcaster.is_some(),
        "control: guests that are not up yet may check"
    );
    for node in &mut cluster.nodes[..3] {
        (node.ready, node.network) = (Some(1), None);
    }
    assert_eq!(asked(&cluster, 3), Probes { successor: None, broadcaster: None });
    // One that checks is probed again.
    cluster.nodes[1].network = Some(NetworkCheck { reached: false, heard: false });
    assert_eq!(
        asked(&cluster, 3),
        Probes { successor: Some(ipv4_address(2)), broadcaster: Some(ipv4_address(2)) }
    );
}

#[derive(Clone, Copy, Debug)]
enum Turn {
    Look,
    Program,
    Order,
    Boot,
    /// The state of the fabric is unknown for a while.
    Forget,
    Shrink,
    Grow,
    Delete,
}

fn turn() -> impl Strategy<Value = Turn> {
    prop_oneof![
        4 => Just(Turn::Look),
        2 => Just(Turn::Program),
        2 => Just(Turn::Order),
        2 => Just(Turn::Boot),
        1 => Just(Turn::Forget),
        1 => Just(Turn::Shrink),
        1 => Just(Turn::Grow),
        1 => Just(Turn::Delete),
    ]
}

proptest! {
    /// For every order of events: no virtual machine is in a spec before its port is in the partition, no port leaves
    /// the partition before its virtual machines are gone, and in the end the cluster is as requested or removed.
    #[test]
    fn every_order_of_events_is_safe_and_converges(turns in prop::collection::vec(turn(), 0..60)) {
        let (mut cluster, mut world) = (cluster(3), World::default());
        let (mut is_removed, mut next) = (false, 4);
        for turn in turns {
            match turn {
                Turn::Look => is_removed |= advance(&mut cluster, &world, now(1)).is_removed,
                Turn::Program => world.program(&cluster),
                Turn::Order => world.order(&cluster),
                Turn::Boot => world.boot(&cluster),
                Turn::Forget => world.members = None,
                Turn::Shrink | Turn::Grow if cluster.phase != Phase::Ready || state(&cluster) == OperationState::Running => {}
                Turn::Shrink => {
                    if let Some(last) = cluster.nodes.iter_mut().rev().find(|node| !node.leaving && node.number > 1) {
                        last.leaving = true;
                        cluster.size -= 1;
                        cluster.generation += 1;
                        ask(&mut cluster, OperationKind::Resize);
                    }
                }
                Turn::Grow => {
                    cluster.nodes.push(NodeRow { joined: false, ..node(next) });
                    (cluster.size, next) = (cluster.size + 1, next + 1);
                    ask(&mut cluster, OperationKind::Resize);
                }
                Turn::Delete => {
                    cluster.phase = Phase::Deleting;
                    ask(&mut cluster, OperationKind::Delete);
                }
            }
            let partition = cluster.partition.unwrap();
            let wanted = members(&cluster);
            for id in world.vms.keys().filter(|_| !is_removed) {
                let owner = cluster.nodes.iter().find(|node| node.id == *id);
                prop_assert!(owner.is_some(), "a virtual machine without a node");
                prop_assert!(wanted.contains_key(&(partition, owner.unwrap().port_guid)), "its port leaves the partition");
            }
            prop_assert!(!is_removed || world.vms.is_empty());
            if is_removed {
                return Ok(());
            }
        }
        for _ in 0..8 {
            world.program(&cluster);
            world.order(&cluster);
            world.boot(&cluster);
            is_removed |= advance(&mut cluster, &world, now(2)).is_removed;
        }
        prop_assert_eq!(is_removed, cluster.phase == Phase::Deleting);
        if !is_removed {
            prop_assert_eq!(cluster.phase, Phase::Ready);
            prop_assert_eq!(cluster.nodes.len() as u32, cluster.size);
            prop_assert_eq!(state(&cluster), OperationState::Done);
        }
    }
}

#[test]
fn a_step_of_the_wall_clock_fails_nothing() {
    for hours in [-1, 1, 24] {
        let (mut cluster, mut world) = (cluster(1), World::default());
        world.program(&cluster);
        advance(&mut cluster, &world, now(1));
        world.order(&cluster);
        let stepped = Moment { wall: now(3600 * hours).wall, uptime: now(2).uptime };
        advance(&mut cluster, &world, stepped);
        assert_eq!(state(&cluster), OperationState::Running, "{hours} h");
        // Control: time on the uptime clock counts.
        advance(&mut cluster, &world, Moment { wall: now(0).wall, uptime: now(901).uptime });
        assert_eq!(state(&cluster), OperationState::Failed);
    }
}
