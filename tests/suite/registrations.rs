//! Alias GUIDs in the tables of adapters, and the request to register again at subnet administration.

use std::collections::BTreeSet;
use std::time::Duration;

use fabric_model::Topology;
use fabric_model::generate::FatTree;
use fabric_model::intent::{Alias, AliasTable};
use fabric_sim::PortId;
use ib_wire::{
    Attribute, Datagram, Guid, GuidBlock, Method, PartitionNumber, PortInfo, PortState, SMP_DATA_LEN,
};
use subnet_manager::PersistentState;

use crate::in_process::running_manager::RunningManager;

const SECOND: Duration = Duration::from_secs(1);
const HOSTS: usize = 6;

fn tree() -> Topology {
    FatTree { radix: 4, ..FatTree::with_hosts(HOSTS as u32) }.generate().unwrap()
}

fn up(is_guarding: bool) -> RunningManager {
    let mut run = RunningManager::new(tree(), is_guarding, PersistentState::default());
    run.run_for(SECOND);
    run
}

/// The port of a host.
fn port(run: &RunningManager, host: usize) -> PortId {
    run.fabric.find_port(&format!("host-{:05}", host + 1)).unwrap()
}

fn guid(run: &RunningManager, host: usize) -> Guid {
    run.fabric.guid_of(port(run, host))
}

/// Whether a datagram asks the software at a port to register again.
fn asks(sent: &Datagram) -> bool {
    sent.mad.method() == Method::SET
        && sent.mad.attribute() == Attribute::PORT_INFO
        && PortInfo::decode(sent.mad.smp_data()).is_ok_and(|info| info.client_reregister)
}

fn asked(run: &RunningManager) -> usize {
    run.sent.iter().filter(|sent| asks(sent)).count()
}

#[test]
fn every_port_is_asked_to_register_once() {
    let mut run = up(true);
    assert_eq!(asked(&run), HOSTS);
    let last_activation = run.sent.iter().rposition(|sent| {
        sent.mad.method() == Method::SET
            && sent.mad.attribute() == Attribute::PORT_INFO
            && PortInfo::decode(sent.mad.smp_data()).is_ok_and(|info| info.state == PortState::Active)
    });
    let first_question = run.sent.iter().position(asks);
    assert!(last_activation < first_question, "only when subnet administration answers");
    run.run_for(300 * SECOND);
    run.partitions = "a=0x1, ipoib: ALL=full;".to_owned();
    run.decide();
    run.run_for(10 * SECOND);
    assert_eq!(asked(&run), HOSTS, "once");
}

#[test]
fn a_manager_without_memory_asks_again() {
    let run = up(true);
    let RunningManager { fabric, kept, .. } = run;
    let mut next = RunningManager::on(fabric, &tree(), true, kept);
    next.run_for(10 * SECOND);
    let sets: Vec<&Datagram> = next.sent.iter().filter(|sent| sent.mad.method() == Method::SET).collect();
    assert_eq!((asked(&next), sets.len()), (HOSTS, HOSTS), "and writes nothing else");
}

#[test]
fn a_port_whose_link_was_down_is_asked_again() {
    let mut run = up(true);
    let host = port(&run, 3);
    assert!(run.fabric.unplug(run.now, host));
    run.run_for(60 * SECOND);
    assert!(run.fabric.plug(run.now, host));
    run.run_for(60 * SECOND);
    assert_eq!(asked(&run), HOSTS + 1);
}

fn alias(guid: u64) -> Alias {
    let partitions = BTreeSet::from([PartitionNumber::DEFAULT]);
    Alias { guid: Guid::from_wire(guid).unwrap(), partitions }
}

/// The aliases that a port holds.
fn held(run: &RunningManager, host: usize) -> Vec<u64> {
    run.fabric.aliases_of(port(run, host)).map(Guid::to_wire).collect()
}

#[test]
fn aliases_are_in_the_tables_of_adapters() {
    let mut run = up(true);
    let guids = [0, 1, 2].map(|host| guid(&run, host));
    run.aliases.insert(guids[1], [(1, alias(0xa1)), (9, alias(0xa9))].into());
    run.decide();
    run.run_for(SECOND);
    assert_eq!(held(&run, 1), [0xa1, 0xa9]);
    // One stays, one moves to another port.
    run.sent.clear();
    run.aliases.insert(guids[1], [(1, alias(0xa1))].into());
    run.aliases.insert(guids[2], [(4, alias(0xa9))].into());
    run.decide();
    run.run_for(SECOND);
    assert_eq!((held(&run, 1), held(&run, 2)), (vec![0xa1], vec![0xa9]));
    let blocks: Vec<GuidBlock> = (run.sent.iter())
        .filter(|sent| sent.mad.method() == Method::SET && sent.mad.attribute() == Attribute::GUID_INFO)
        .map(|sent| GuidBlock::decode(sent.mad.smp_data()))
        .collect();
    assert_eq!(blocks.len(), 2, "{blocks:?}");
    assert!(!blocks[0].0.contains(&Guid::from_wire(0xa9)), "it is gone before it comes elsewhere");
    // Nothing is written again, and all is removed in the end.
    let before = run.manager.counts();
    run.run_for(300 * SECOND);
    assert_eq!(run.sent_since(before).1, 0);
    run.aliases.clear();
    run.decide();
    run.run_for(SECOND);
    assert_eq!((held(&run, 1), held(&run, 2)), (vec![], vec![]));
}

/// Another writes an alias into an adapter that has planned ones.
#[test]
fn foreign_aliases_are_removed() {
    let mut run = up(false);
    run.aliases.insert(guid(&run, 1), AliasTable::from([(1, alias(0xa1))]));
    run.decide();
    run.run_for(SECOND);
    let mut data = [0; SMP_DATA_LEN];
    data[8..16].copy_from_slice(&0xdead_u64.to_be_bytes());
    run.write_from("host-00002", &[], (Attribute::GUID_INFO, 0), data);
    assert_eq!(held(&run, 1), [0xdead]);
    run.manager.rediscover(run.now);
    run.run_for(60 * SECOND);
    assert_eq!(held(&run, 1), [0xa1]);
}
