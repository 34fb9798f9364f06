//! A port of a known adapter that is connected later belongs to the adapter, and learns no key of its other ports.

use std::time::Duration;

use fabric_model::{Endpoint, NewNode, Topology, TopologyBuilder};
use fabric_sim::{Fabric, PortId};
use ib_wire::{Datagram, Guid, MKey, NodeKind, PortNum, PortState};
use subnet_manager::{PersistentState, SECRET_LEN_MIN, SiteSecret, SmEvent};

use crate::in_process::running_manager::RunningManager;

const SECOND: Duration = Duration::from_secs(1);
const ADAPTER: u64 = 0x0200;

fn guid(raw: u64) -> Guid {
    Guid::from_wire(raw).unwrap()
}

/// Two switches, the manager's host, another host, and an adapter with a port at each switch: at the port with this number.
fn topology(at: u8) -> Topology {
    let mut builder = TopologyBuilder::new();
    let mut add =
        |kind, id: &str, raw, ports| builder.add_node(NewNode::new(kind, id, guid(raw), ports)).unwrap();
    let near = add(NodeKind::Switch, "near", 0x1000, 8);
    let far = add(NodeKind::Switch, "far", 0x1100, 8);
    let hosts = [add(NodeKind::Adapter, "manager", 0x0100, 1), add(NodeKind::Adapter, "other", 0x0180, 1)];
    let adapter = add(NodeKind::Adapter, "dual", ADAPTER, 2);
    let end = |node, number| Endpoint { node, port: PortNum::new(number).unwrap() };
    let cables = [
        (end(hosts[0], 1), end(near, 1)),
        (end(hosts[1], 1), end(far, 1)),
        (end(near, 5), end(far, 5)),
        (end(adapter, 1), end(near, at)),
        (end(adapter, 2), end(far, at)),
    ];
    for (a, b) in cables {
        builder.connect(a, b, None).unwrap();
    }
    builder.build().unwrap()
}

fn port(fabric: &Fabric, id: &str, number: u8) -> PortId {
    let first = fabric.find_port(id).unwrap();
    let mut ports = fabric.ports_of(fabric.device_id_of(first));
    ports.find(|port| fabric.number_of(*port).to_wire() == number).unwrap()
}

/// The secret of [`RunningManager`].
fn secret() -> SiteSecret {
    SiteSecret::new(vec![0x5a; SECRET_LEN_MIN]).unwrap()
}

/// A manager that has protected the fabric while the second port was not connected.
fn protected() -> (RunningManager, PortId) {
    let mut run = RunningManager::new(topology(2), true, PersistentState::default());
    let (first, second) = (port(&run.fabric, "dual", 1), port(&run.fabric, "dual", 2));
    assert!(run.fabric.unplug(run.now, second));
    run.run_for(10 * SECOND);
    assert_eq!(run.fabric.state_of(first), PortState::Active);
    (run, second)
}

fn strangers(run: &RunningManager) -> usize {
    run.told(|event| matches!(event, SmEvent::Stranger { .. }))
}

/// How often a manager presented a key.
fn presented(sent: &[Datagram], key: MKey) -> usize {
    sent.iter().filter(|datagram| datagram.mad.m_key() == Some(key)).count()
}

/// Whether a directed route ends behind the second port: by port 2 of the far switch.
fn enters_second(sent: &Datagram) -> bool {
    let mad = &sent.mad;
    mad.hop_count() == 3 && (1..=3).map(|hop| mad.initial_path(hop)).eq([1, 5, 2].map(Some))
}

#[test]
fn a_second_port_that_comes_later_is_used() {
    let (mut run, second) = protected();
    run.sent.clear();
    assert!(run.fabric.plug(run.now, second));
    run.run_for(60 * SECOND);
    assert_eq!(strangers(&run), 0);
    assert_eq!(run.fabric.state_of(second), PortState::Active);
    assert!(run.fabric.port_view(second).m_key_set);
    assert!(presented(&run.sent, secret().port_key(guid(ADAPTER), PortNum::new(2).unwrap(), 0)) > 0);
    let by_far = run.sent.iter().filter(|sent| enters_second(sent));
    assert!(by_far.clone().count() > 5);
    let first_key = Some(secret().key(guid(ADAPTER), 0));
    assert_eq!(by_far.filter(|sent| sent.mad.m_key() == first_key).count(), 0, "it learns no other key");
    // The next manager knows both keys.
    let RunningManager { fabric, kept, .. } = run;
    let mut next = RunningManager::on(fabric, &topology(2), true, kept);
    next.run_for(60 * SECOND);
    assert_eq!(
        next.told(|event| matches!(event, SmEvent::SilentLocation { .. } | SmEvent::Stranger { .. })),
        0
    );
    let discovered = &next.discovery.as_ref().unwrap().topology;
    let (_, adapter) = discovered.end_nodes().find(|(_, node)| node.guid == guid(ADAPTER)).unwrap();
    assert_eq!(adapter.cabled_ports().count(), 2);
}

#[test]
fn a_known_port_that_appears_elsewhere_is_a_stranger() {
    let (mut run, second) = protected();
    run.fabric.plug(run.now, second);
    run.run_for(60 * SECOND);
    assert_eq!(strangers(&run), 0, "both ports are known");
    let kept = run.kept.clone();
    // The same adapter, cabled to other ports of the switches, by somebody without the keys.
    let mut moved = RunningManager::new(topology(7), true, kept);
    moved.run_for(60 * SECOND);
    assert_eq!(strangers(&moved), 2);
    assert_eq!(presented(&moved.sent, secret().key(guid(ADAPTER), 0)), 0, "it gets no key");
    assert_eq!(presented(&moved.sent, secret().port_key(guid(ADAPTER), PortNum::new(2).unwrap(), 0)), 0);
}
