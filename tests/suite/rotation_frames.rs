//! M_Keys rotate on 324 hosts while virtual functions exchange frames.

use std::time::Duration;

use fabric_model::MacAddress;
use fabric_model::generate::FatTree;
use fabric_sim::{BuiltInProfile, FunctionId, FunctionKey, PortId, VirtualFunction};
use ib_wire::{NodeKind, Pkey, ServiceLevel};
use subnet_manager::{PersistentState, SmEvent};

use crate::in_process::running_manager::RunningManager;
use crate::rotation::{NEW, OLD, held, holding, secret};

const SECOND: Duration = Duration::from_secs(1);
const HOSTS: usize = 324;

/// Datagrams of the manager between two rounds of pings.
const DATAGRAMS_PER_ROUND: usize = 8;

/// A frame there and one back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Pings {
    sent: u64,
    lost: u64,
}

/// 324 hosts with a virtual function each.
struct Hosts {
    run: RunningManager,
    seats: Vec<(FunctionId, MacAddress)>,
    rounds: usize,
}

impl Hosts {
    fn up() -> Self {
        let topology = FatTree::with_hosts(HOSTS as u32).generate().unwrap();
        let profile = BuiltInProfile::Strict.profile();
        let mut run = RunningManager::with_devices(&topology, &profile, true, PersistentState::default());
        run.partitions = "blue=0x101, ipoib : ALL_CAS=full;\n".to_owned();
        run.run_for(30 * SECOND);
        assert!(run.told(|event| matches!(event, SmEvent::Programmed(_))) > 0);
        let pkey = Pkey::from_wire(0x8101).unwrap();
        let ports: Vec<PortId> =
            topology.end_nodes().map(|(_, node)| run.fabric.find_port(&node.id).unwrap()).collect();
        assert_eq!(ports.len(), HOSTS);
        let mut seats = Vec::new();
        for port in ports {
            let id = FunctionId::new(port, 1);
            let mac = MacAddress::of_function(run.fabric.lid(port).unwrap(), 1);
            let keys = [FunctionKey { pkey, group: None }].into();
            run.fabric.attach(VirtualFunction { id, mac, keys, sl: ServiceLevel::default() }).unwrap();
            seats.push((id, mac));
        }
        Self { run, seats, rounds: 0 }
    }

    /// A port of the leaf of the first host that leads to a spine.
    fn uplink(&self) -> PortId {
        let fabric = &self.run.fabric;
        let leaf = fabric.device_id_of(fabric.port_forwarding(self.seats[0].0.port()).peer.unwrap());
        let is_up = |port: &PortId| {
            let peer = fabric.port_forwarding(*port).peer;
            peer.is_some_and(|peer| fabric.node_of(peer).kind == NodeKind::Switch)
        };
        fabric.ports_of(leaf).find(is_up).unwrap()
    }

    /// Every host pings another one, each time another.
    fn ping(&mut self, pings: &mut Pings) {
        self.rounds += 1;
        let shift = 1 + self.rounds * 37 % (HOSTS - 1);
        for index in 0..HOSTS {
            let (here, there) = (self.seats[index], self.seats[(index + shift) % HOSTS]);
            let arrived = self.carry(here, there) && self.carry(there, here);
            pings.sent += 1;
            pings.lost += u64::from(!arrived);
        }
    }

    fn carry(&mut self, from: (FunctionId, MacAddress), to: (FunctionId, MacAddress)) -> bool {
        let mut frame = [to.1.bytes(), from.1.bytes()].concat();
        frame.resize(64, 0);
        let mut receivers = Vec::new();
        self.run.fabric.send_frame(self.run.now, from.0, &frame, &mut receivers);
        receivers == [to.0]
    }

    /// Pings all the time, until something is so or the time is over. Returns whether it became so.
    fn ping_until(
        &mut self,
        time: Duration,
        pings: &mut Pings,
        is_so: impl Fn(&RunningManager) -> bool,
    ) -> bool {
        let end = self.run.now + time;
        while self.run.now < end {
            let before = self.run.sent.len();
            self.run.exchange_at_most(DATAGRAMS_PER_ROUND);
            self.ping(pings);
            if is_so(&self.run) {
                return true;
            }
            if self.run.sent.len() == before {
                self.run.run_for(Duration::from_millis(100));
            }
        }
        false
    }
}

fn is_rotated(run: &RunningManager) -> bool {
    run.told(|event| matches!(event, SmEvent::KeysRotated { absent: 0, .. })) > 0
}

#[test]
fn no_ping_is_lost_while_the_keys_of_324_hosts_rotate() {
    let mut hosts = Hosts::up();
    let nodes = held(&hosts.run.fabric).len();
    for new_secret in [None, Some(secret(NEW))] {
        let what = if new_secret.is_some() { "new secret" } else { "next epoch" };
        hosts.run.events.clear();
        let (before, sent) = (hosts.run.manager.counts(), hosts.run.sent.len());
        let mut pings = Pings::default();
        hosts.run.manager.rotate_keys(hosts.run.now, new_secret.clone()).unwrap();
        assert!(hosts.ping_until(60 * SECOND, &mut pings, is_rotated), "{what}");
        let reached = if new_secret.is_some() {
            holding(&hosts.run.fabric, NEW, 0)
        } else {
            holding(&hosts.run.fabric, OLD, 1)
        };
        assert_eq!(reached, nodes, "{what}");
        let (gets, sets) = hosts.run.sent_since(before);
        let datagrams = hosts.run.sent.len() - sent;
        println!(
            "{HOSTS} hosts, {nodes} nodes, {what}: {} pings, {} lost; {datagrams} datagrams, {gets} Gets, {sets} Sets",
            pings.sent, pings.lost
        );
        assert_eq!(pings.lost, 0, "{what}");
        assert!(
            pings.sent as usize >= HOSTS * (datagrams / (DATAGRAMS_PER_ROUND + 1)),
            "all the time: {pings:?}"
        );
        assert_eq!(sets, nodes as u64, "one Set for each node");
        assert!(datagrams < 3 * nodes, "{datagrams} datagrams for {nodes} nodes");
    }
}

/// The control.
#[test]
fn a_link_that_goes_down_during_a_rotation_loses_pings() {
    let mut hosts = Hosts::up();
    let mut pings = Pings::default();
    hosts.run.manager.rotate_keys(hosts.run.now, None).unwrap();
    hosts.ping(&mut pings);
    assert_eq!(pings.lost, 0);
    let uplink = hosts.uplink();
    assert!(hosts.run.fabric.unplug(hosts.run.now, uplink));
    hosts.ping(&mut pings);
    println!("{pings:?}");
    assert!(pings.lost > 0 && pings.lost < pings.sent, "{pings:?}");
}
