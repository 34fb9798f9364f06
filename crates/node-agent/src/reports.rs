//! Reports of the agent: one per host, with a number that increases with every change.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use controller_api::Name;
use controller_api::agent::{Accelerator, HostReport, ResourceUse, SpecVersion, UnlistedVmDetails, VmReport};
use tokio::sync::watch;
use uuid::Uuid;

/// Report numbers per millisecond of the clock, so that a restart usually continues above all earlier numbers.
const NUMBERS_PER_MS: u64 = 1 << 20;

/// The part of a report that concerns the machine and is the same for all its hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineStatus {
    /// Cores that can be dedicated.
    pub cores: ResourceUse,
    pub memory_mib: ResourceUse,
    /// Accelerator of virtual machines, once determined.
    pub accelerator: Option<Accelerator>,
    /// Whether the emulated fabric is reachable.
    pub fabric: bool,
}

/// The current reports of all hosts.
#[derive(Debug)]
pub struct Reports {
    inner: Mutex<Inner>,
    hosts: BTreeMap<Name, watch::Sender<Arc<HostReport>>>,
}

/// The part of a report that follows from the host spec.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecStatus {
    /// Version of the host spec that is on disk and being reconciled.
    pub acknowledged: Option<SpecVersion>,
    /// Virtual machines that the host spec does not list.
    pub unlisted: BTreeMap<Uuid, UnlistedVmDetails>,
}

#[derive(Debug)]
struct Inner {
    machine: MachineStatus,
    vms: BTreeMap<(Name, Uuid), VmReport>,
    hosts: BTreeMap<Name, SpecStatus>,
    number: u64,
    /// Reports composed so far, whether they had changed or not.
    #[cfg(test)]
    composed: u64,
}

impl Reports {
    /// Empty reports with this number.
    pub fn new(hosts: &[Name], machine: MachineStatus, number: u64) -> Self {
        let empty = report(&machine, &SpecStatus::default(), Vec::new(), number);
        let hosts = hosts.iter().map(|host| (host.clone(), watch::Sender::new(Arc::new(empty.clone()))));
        let inner = Inner {
            machine,
            vms: BTreeMap::new(),
            hosts: BTreeMap::new(),
            number,
            #[cfg(test)]
            composed: 0,
        };
        Self { inner: Mutex::new(inner), hosts: hosts.collect() }
    }

    /// The reports of a host, as they change; `None` if the host is not served.
    pub fn subscribe(&self, host: &Name) -> Option<watch::Receiver<Arc<HostReport>>> {
        self.hosts.get(host).map(watch::Sender::subscribe)
    }

    /// Sets the report of a virtual machine.
    pub fn set_vm(&self, host: &Name, vm: VmReport) {
        let mut inner = self.inner();
        inner.vms.insert((host.clone(), vm.id), vm);
        self.publish(&mut inner, host);
    }

    /// Removes the report of a virtual machine of which nothing is left.
    pub fn remove_vm(&self, host: &Name, id: Uuid) {
        let mut inner = self.inner();
        inner.vms.remove(&(host.clone(), id));
        self.publish(&mut inner, host);
    }

    /// Acknowledges a host spec. Every virtual machine in it must have been reported by `set_vm` before.
    pub fn set_spec_status(&self, host: &Name, report: SpecStatus) {
        let mut inner = self.inner();
        inner.hosts.insert(host.clone(), report);
        self.publish(&mut inner, host);
    }

    /// Changes the part that concerns the machine.
    pub fn set_machine(&self, change: impl FnOnce(&mut MachineStatus)) {
        let mut inner = self.inner();
        change(&mut inner.machine);
        for host in self.hosts.keys() {
            self.publish(&mut inner, host);
        }
    }

    /// Publishes the report of one host if it has changed. The cost does not depend on the number of hosts.
    fn publish(&self, inner: &mut Inner, host: &Name) {
        let Some(reports) = self.hosts.get(host) else { return };
        let of_host = inner.hosts.entry(host.clone()).or_default();
        let vms = inner.vms.range((host.clone(), Uuid::nil())..=(host.clone(), Uuid::max()));
        let vms =
            vms.map(|((_, id), vm)| VmReport { unlisted: of_host.unlisted.get(id).cloned(), ..vm.clone() });
        let next = report(&inner.machine, of_host, vms.collect(), inner.number + 1);
        #[cfg(test)]
        {
            inner.composed += 1;
        }
        reports.send_if_modified(|last| {
            let changed = HostReport { number: next.number, ..HostReport::clone(last) } != next;
            if changed {
                inner.number = next.number;
                *last = Arc::new(next);
            }
            changed
        });
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn report(machine: &MachineStatus, host: &SpecStatus, vms: Vec<VmReport>, number: u64) -> HostReport {
    let MachineStatus { cores, memory_mib, accelerator, fabric } = machine.clone();
    HostReport { number, acknowledged: host.acknowledged, cores, memory_mib, accelerator, fabric, vms }
}

/// A number above all earlier report numbers, even if the clock was set back. Stored in the file `path`.
pub fn next_report_number(path: &Path) -> std::io::Result<u64> {
    let kept =
        durable_file::read(path, 64)?.and_then(|bytes| String::from_utf8(bytes).ok()?.trim().parse().ok());
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let by_clock = u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX).saturating_mul(NUMBERS_PER_MS);
    // Far more than one run of the agent uses.
    let by_file = kept.map_or(0, |kept: u64| kept.saturating_add(1 << 40));
    let number = by_clock.max(by_file);
    durable_file::replace(path, number.to_string().as_bytes())?;
    Ok(number)
}

#[cfg(test)]
mod tests {
    use controller_api::agent::VmState;

    use super::*;

    const MACHINE: MachineStatus = MachineStatus {
        cores: ResourceUse { total: 1, used: 0 },
        memory_mib: ResourceUse { total: 1024, used: 0 },
        accelerator: Some(Accelerator::Tcg),
        fabric: false,
    };

    fn running(id: Uuid) -> VmReport {
        VmReport {
            id,
            state: VmState::Running,
            ready: None,
            reason: None,
            pinned: vec![],
            network: None,
            stop: None,
            unlisted: None,
        }
    }

    #[test]
    fn a_change_of_one_host_costs_the_same_with_many_hosts() {
        for count in [1, 1_000] {
            let hosts: Vec<Name> = (0..count).map(|index| format!("host-{index}").parse().unwrap()).collect();
            let reports = Reports::new(&hosts, MACHINE, 100);
            let id = Uuid::new_v4();
            reports.set_vm(&hosts[0], running(id));
            reports.set_spec_status(&hosts[0], SpecStatus::default());
            reports.remove_vm(&hosts[0], id);
            assert_eq!(reports.inner().composed, 3, "{count} hosts");
            reports.set_machine(|machine| machine.fabric = true);
            assert_eq!(reports.inner().composed, 3 + count, "the machine concerns all of {count} hosts");
        }
    }

    #[test]
    fn the_number_increases_only_with_changes() {
        let [one, two] = ["one", "two"].map(|name| name.parse::<Name>().unwrap());
        let reports = Reports::new(&[one.clone(), two.clone()], MACHINE, 100);
        let number = |host| reports.subscribe(host).unwrap().borrow().number;
        assert_eq!((number(&one), number(&two)), (100, 100));
        let id = Uuid::new_v4();
        let vm = running(id);
        reports.set_vm(&one, vm.clone());
        assert_eq!((number(&one), number(&two)), (101, 100));
        reports.set_vm(&one, vm);
        assert_eq!((number(&one), number(&two)), (101, 100));
        reports.set_machine(|machine| machine.fabric = true);
        assert!(number(&one) > 101 && number(&two) > 100);
        reports.remove_vm(&one, id);
        assert!(reports.subscribe(&one).unwrap().borrow().vms.is_empty());
    }

    #[test]
    fn numbers_increase_over_restarts_despite_the_clock() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("number");
        let first = next_report_number(&path).unwrap();
        let future = first + (1 << 60);
        std::fs::write(&path, future.to_string()).unwrap();
        let next = next_report_number(&path).unwrap();
        assert!(next > future);
        assert!(next_report_number(&path).unwrap() > next);
    }
}
