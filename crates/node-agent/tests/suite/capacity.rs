//! Allocation of cores and memory, and validation of host specs.

use controller_api::MemorySize;
use controller_api::agent::{HostSpec, ResourceUse};
use controller_api::cluster::CpuMode;
use node_agent::capacity::{Allocation, Allocations, HostCapacity};
use node_agent::host_spec;

fn allocations(cores: &str, reserve: u32, memory_mib: u32) -> Allocations {
    Allocations::new(
        HostCapacity::new(cores.parse().unwrap(), Vec::new(), reserve, MemorySize::from_mib(memory_mib))
            .unwrap(),
    )
}

#[test]
fn no_core_is_dedicated_twice() {
    let mut allocations = allocations("0-1", 1, 4096);
    let first = allocations.allocate(&crate::common::vm_order(1, CpuMode::Dedicated)).unwrap();
    assert_eq!(first.cores.to_string(), "1");
    assert_eq!(allocations.shared_cores().to_string(), "0");
    let refused = allocations.allocate(&crate::common::vm_order(2, CpuMode::Dedicated)).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "1 dedicated core requested, but 1 of 2 cores can be dedicated and 1 of these are in use"
    );
    assert_eq!(allocations.cores(), ResourceUse { total: 1, used: 1 });
    allocations.release(crate::common::vm_order(1, CpuMode::Dedicated).id);
    allocations.allocate(&crate::common::vm_order(2, CpuMode::Dedicated)).unwrap();
}

#[test]
fn a_dedicated_core_is_a_physical_one() {
    let siblings = || ["0,4", "1,5", "2,6", "3,7"].map(|threads| threads.parse().unwrap()).to_vec();
    let memory = MemorySize::from_mib(4096);
    let machine = HostCapacity::new("0-7".parse().unwrap(), siblings(), 1, memory).unwrap();
    let mut allocations = Allocations::new(machine);
    assert_eq!(allocations.cores(), ResourceUse { total: 3, used: 0 });
    let first = allocations.allocate(&crate::common::vm_order(1, CpuMode::Dedicated)).unwrap();
    assert_eq!(first.cores.to_string(), "1");
    assert_eq!(allocations.shared_cores().to_string(), "0,2-4,6-7", "its sibling 5 stays idle");
    // A virtual machine that was started on a sibling takes the whole core.
    let adopted = crate::common::vm_order(2, CpuMode::Dedicated);
    allocations.adopt(adopted.id, Allocation { cores: "6".parse().unwrap(), memory: adopted.memory });
    assert_eq!(allocations.cores(), ResourceUse { total: 3, used: 2 });
    let third = allocations.allocate(&crate::common::vm_order(3, CpuMode::Dedicated)).unwrap();
    assert_eq!(third.cores.to_string(), "3");
    assert!(allocations.allocate(&crate::common::vm_order(4, CpuMode::Dedicated)).is_err());

    // A core of which the agent may not use all threads is not dedicated.
    let machine = HostCapacity::new("0-5".parse().unwrap(), siblings(), 1, memory).unwrap();
    assert_eq!(Allocations::new(machine).cores(), ResourceUse { total: 1, used: 0 });
    // The control: threads count as cores if the operator says so.
    let machine = HostCapacity::new("0-7".parse().unwrap(), Vec::new(), 1, memory).unwrap();
    assert_eq!(Allocations::new(machine).cores(), ResourceUse { total: 7, used: 0 });
}

#[test]
fn memory_is_not_allocated_twice() {
    let mut allocations = allocations("0-1", 1, 700);
    allocations.allocate(&crate::common::vm_order(1, CpuMode::Shared)).unwrap();
    let refused = allocations.allocate(&crate::common::vm_order(2, CpuMode::Shared)).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "384M of memory requested, but 384 of 700 MiB for virtual machines are in use"
    );
    assert_eq!(allocations.memory(), ResourceUse { total: 700, used: 384 });
}

#[test]
fn adopted_allocations_are_kept_and_count() {
    let mut allocations = allocations("0-3", 1, 4096);
    let adopted = crate::common::vm_order(1, CpuMode::Dedicated);
    allocations.adopt(adopted.id, Allocation { cores: "2".parse().unwrap(), memory: adopted.memory });
    assert_eq!(allocations.allocate(&adopted).unwrap().cores.to_string(), "2");
    let next = allocations.allocate(&crate::common::vm_order(2, CpuMode::Dedicated)).unwrap();
    assert_eq!(next.cores.to_string(), "1");
}

#[test]
fn at_least_one_core_must_be_reserved() {
    let cores = || "0-1".parse().unwrap();
    let memory = MemorySize::from_mib(1024);
    assert!(HostCapacity::new(cores(), Vec::new(), 0, memory).is_err());
    assert!(HostCapacity::new(cores(), Vec::new(), 3, memory).is_err());
    assert!(HostCapacity::new(cores(), Vec::new(), 2, memory).is_ok());
}

#[test]
fn invalid_host_specs_are_rejected_by_field() {
    let good = || crate::common::vm_order(1, CpuMode::Shared);
    host_spec::check(crate::common::host_spec(1, vec![crate::common::vm_order(2, CpuMode::Shared), good()]))
        .unwrap();
    let refused = |change: &dyn Fn(&mut HostSpec)| {
        let mut bad = crate::common::host_spec(1, vec![good(), crate::common::vm_order(2, CpuMode::Shared)]);
        change(&mut bad);
        host_spec::check(bad).unwrap_err().field
    };
    assert_eq!(refused(&|spec| spec.vms[1] = good()), "vms[1].id");
    assert_eq!(refused(&|spec| spec.vms[0].cores = 0), "vms[0].cores");
    assert_eq!(refused(&|spec| spec.vms[0].memory = MemorySize::from_mib(1)), "vms[0].memory");
    assert_eq!(refused(&|spec| spec.vms[0].label = "a\0b".into()), "vms[0].label");
    assert_eq!(refused(&|spec| spec.vms[0].image.directory = "images".into()), "vms[0].image.directory");
    assert_eq!(refused(&|spec| spec.vms[0].image.digest = "zz".into()), "vms[0].image.digest");
    assert_eq!(refused(&|spec| spec.vms[1].adapter.function = 0), "vms[1].adapter");
    assert_eq!(refused(&|spec| spec.vms[1].adapter.function = 1), "vms[1].adapter.function");
    let many =
        (0..=255).chain([255]).map(|number| crate::common::vm_order(number, CpuMode::Shared)).collect();
    assert_eq!(host_spec::check(crate::common::host_spec(1, many)).unwrap_err().field, "vms");
    assert_eq!(refused(&|spec| spec.removed = vec![spec.vms[1].id]), "removed[0]");
}

#[test]
fn only_the_context_of_a_virtual_machine_may_change() {
    let before = crate::common::vm_order(1, CpuMode::Shared);
    let mut after = before.clone();
    after.context.generation = 2;
    assert_eq!(host_spec::immutable_change(&before, &after), None);
    after.memory = MemorySize::from_mib(512);
    assert_eq!(host_spec::immutable_change(&before, &after), Some("memory"));
}
