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

/// The hosts that were asked since the last time.
fn asked_hosts(run: &mut RunningManager) -> Vec<usize> {
    let asked: Vec<Datagram> = std::mem::take(&mut run.sent).into_iter().filter(asks).collect();
    let host = |info: &PortInfo| (0..HOSTS).find(|host| run.fabric.lid(port(run, *host)) == info.lid);
    let infos = asked.iter().map(|sent| PortInfo::decode(sent.mad.smp_data()).unwrap());
    let mut hosts: Vec<usize> = infos.map(|info| host(&info).unwrap()).collect();
    hosts.sort_unstable();
    hosts
}

/// Software keeps paths by GID, and nothing else makes the kernel's IPoIB ask again.
#[test]
fn the_peers_of_an_alias_that_moves_are_asked() {
    let mut run = up(true);
    let guids = [1, 2, 3, 4, 5].map(|host| guid(&run, host));
    let member = |host: usize| format!("{}=full", guids[host - 1]);
    run.partitions = format!("a=0x1: {}, {}, {};\nb=0x2: {};", member(1), member(2), member(3), member(5));
    let alias = |guid: u64| Alias { partitions: BTreeSet::from([PartitionNumber::MIN]), ..alias(guid) };
    run.aliases.insert(guids[0], [(1, alias(0xa1)), (2, alias(0xa2))].into());
    run.decide();
    run.run_for(SECOND);
    asked_hosts(&mut run);
    // It moves at once: all of its partition are asked, and nobody else.
    run.aliases.insert(guids[0], [(2, alias(0xa2))].into());
    run.aliases.insert(guids[1], [(1, alias(0xa1))].into());
    run.decide();
    run.run_for(SECOND);
    assert_eq!(asked_hosts(&mut run), [1, 2, 3]);
    // It leaves: nobody is asked. It comes elsewhere: a path to where it was may be known.
    run.aliases.remove(&guids[1]);
    run.decide();
    run.run_for(SECOND);
    assert_eq!(asked_hosts(&mut run), [0; 0]);
    run.aliases.insert(guids[2], [(7, alias(0xa1))].into());
    run.decide();
    run.run_for(SECOND);
    assert_eq!(asked_hosts(&mut run), [1, 2, 3]);
    // One that never was elsewhere, and the same port by another index.
    run.aliases.insert(guids[1], [(1, alias(0xa3))].into());
    run.aliases.insert(guids[2], [(8, alias(0xa1))].into());
    run.decide();
    run.run_for(SECOND);
    assert_eq!(asked_hosts(&mut run), [0; 0]);
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
