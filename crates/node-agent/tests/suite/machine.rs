//! What the machine has is given once; orders are checked before they are taken.

use controller_api::MemorySize;
use controller_api::agent::{Orders, Share};
use controller_api::cluster::CpuMode;
use node_agent::capacity::{Given, Ledger, Machine};
use node_agent::orders;

fn ledger(cores: &str, reserve: u32, memory_mib: u32) -> Ledger {
    Ledger::new(Machine::new(cores.parse().unwrap(), reserve, MemorySize::from_mib(memory_mib)).unwrap())
}

#[test]
fn no_core_is_given_twice_and_the_refusal_has_numbers() {
    let mut ledger = ledger("0-1", 1, 4096);
    let first = ledger.take(&crate::common::order(1, CpuMode::Dedicated)).unwrap();
    assert_eq!(first.cores.to_string(), "1");
    assert_eq!(ledger.floating().to_string(), "0");
    let refused = ledger.take(&crate::common::order(2, CpuMode::Dedicated)).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "needs 1 core of its own; 1 of 2 cores are for virtual machines, 1 given away"
    );
    assert_eq!(ledger.cores(), Share { total: 1, used: 1 });
    ledger.release(crate::common::order(1, CpuMode::Dedicated).id);
    ledger.take(&crate::common::order(2, CpuMode::Dedicated)).unwrap();
}

#[test]
fn memory_is_not_given_twice_to_anybody() {
    let mut ledger = ledger("0-1", 1, 700);
    ledger.take(&crate::common::order(1, CpuMode::Shared)).unwrap();
    let refused = ledger.take(&crate::common::order(2, CpuMode::Shared)).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "needs 384M of memory; 700 MiB are for virtual machines, 384 MiB given away"
    );
    assert_eq!(ledger.memory(), Share { total: 700, used: 384 });
}

#[test]
fn who_has_something_keeps_it_and_what_was_adopted_is_taken() {
    let mut ledger = ledger("0-3", 1, 4096);
    let adopted = crate::common::order(1, CpuMode::Dedicated);
    ledger.adopt(adopted.id, Given { cores: "2".parse().unwrap(), memory: adopted.memory });
    assert_eq!(ledger.take(&adopted).unwrap().cores.to_string(), "2");
    let next = ledger.take(&crate::common::order(2, CpuMode::Dedicated)).unwrap();
    assert_eq!(next.cores.to_string(), "1");
}

#[test]
fn a_machine_keeps_a_core_to_itself() {
    let cores = || "0-1".parse().unwrap();
    let memory = MemorySize::from_mib(1024);
    assert!(Machine::new(cores(), 0, memory).is_err());
    assert!(Machine::new(cores(), 3, memory).is_err());
    assert!(Machine::new(cores(), 2, memory).is_ok());
}

#[test]
fn orders_that_make_no_sense_are_refused_with_their_place() {
    let good = || crate::common::order(1, CpuMode::Shared);
    orders::check(crate::common::orders(1, vec![crate::common::order(2, CpuMode::Shared), good()])).unwrap();
    let refused = |change: &dyn Fn(&mut Orders)| {
        let mut bad = crate::common::orders(1, vec![good(), crate::common::order(2, CpuMode::Shared)]);
        change(&mut bad);
        orders::check(bad).unwrap_err().place
    };
    assert_eq!(refused(&|orders| orders.vms[1] = good()), "vms[1].id");
    assert_eq!(refused(&|orders| orders.vms[0].cores = 0), "vms[0].cores");
    assert_eq!(refused(&|orders| orders.vms[0].memory = MemorySize::from_mib(1)), "vms[0].memory");
    assert_eq!(refused(&|orders| orders.vms[0].label = "a\0b".into()), "vms[0].label");
    assert_eq!(refused(&|orders| orders.vms[0].image.directory = "images".into()), "vms[0].image.directory");
    assert_eq!(refused(&|orders| orders.vms[0].image.digest = "zz".into()), "vms[0].image.digest");
    assert_eq!(refused(&|orders| orders.vms[1].adapter.function = 0), "vms[1].adapter");
    assert_eq!(refused(&|orders| orders.vms[1].adapter.function = 1), "vms[1].adapter.function");
    let many = (0..=255).chain([255]).map(|number| crate::common::order(number, CpuMode::Shared)).collect();
    assert_eq!(orders::check(crate::common::orders(1, many)).unwrap_err().place, "vms");
    assert_eq!(refused(&|orders| orders.removed = vec![orders.vms[1].id]), "removed[0]");
}

#[test]
fn only_the_context_of_a_virtual_machine_may_change() {
    let before = crate::common::order(1, CpuMode::Shared);
    let mut after = before.clone();
    after.context.generation = 2;
    assert_eq!(orders::difference(&before, &after), None);
    after.memory = MemorySize::from_mib(512);
    assert_eq!(orders::difference(&before, &after), Some("memory"));
}
