//! Whether a dedicated virtual machine really has what it was guaranteed: read from the kernel, not from libvirt.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use controller_api::MemorySize;
use thiserror::Error;
use tokio::time::sleep;
use uuid::Uuid;

use crate::capacity::Allocation;
use crate::cpu_set::CpuSet;
use crate::domain::domain_name;
use crate::state_dir::StateDir;

/// Where libvirt writes the process ids of domains.
const PID_DIRECTORY: &str = "/run/libvirt/qemu";

/// Where the kernel tells of huge pages of 2 MiB.
const HUGE_PAGES: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";

/// Threads that carry out a virtual core are named so by QEMU: `CPU 0/KVM`, `CPU 1/TCG`.
const VCPU_THREAD: &str = "CPU ";

/// How often to look, and how long in between: threads get their names and cores a moment after they start.
const ATTEMPTS_MAX: u32 = 10;
const ATTEMPT_PAUSE: Duration = Duration::from_millis(200);

/// A promise that is not kept.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum PinningViolation {
    /// Its process is not found.
    #[error("its process is not found: {} says none", .0.display())]
    NoProcess(PathBuf),
    #[error("{resident} MiB of its memory are resident; it was guaranteed {guaranteed}")]
    Memory {
        resident: u64,
        /// What there is to be.
        guaranteed: MemorySize,
    },
    /// A virtual core runs elsewhere.
    #[error("its virtual cores may run on {found:?}; it was guaranteed {guaranteed} alone")]
    Cores {
        /// Where they may run, one after the other.
        found: Vec<String>,
        /// Where they are to.
        guaranteed: CpuSet,
    },
}

/// Looks whether a virtual machine that was started has its cores and its memory.
pub async fn check(state_dir: &StateDir, id: Uuid, allocation: &Allocation) -> Result<(), PinningViolation> {
    let file = Path::new(PID_DIRECTORY).join(format!("{}.pid", domain_name(state_dir.instance(), id)));
    let mut attempts = 1;
    loop {
        match check_process(&file, allocation) {
            Err(_) if attempts < ATTEMPTS_MAX => attempts += 1,
            result => return result,
        }
        sleep(ATTEMPT_PAUSE).await;
    }
}

/// Whether there are huge pages for so much memory.
pub fn huge_pages_suffice(memory: MemorySize) -> bool {
    let free: u32 =
        fs::read_to_string(HUGE_PAGES).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    free.saturating_mul(2) >= memory.mib()
}

fn check_process(pid_file: &Path, allocation: &Allocation) -> Result<(), PinningViolation> {
    let missing = || PinningViolation::NoProcess(pid_file.to_owned());
    let pid: u32 =
        fs::read_to_string(pid_file).ok().and_then(|text| text.trim().parse().ok()).ok_or_else(missing)?;
    let process = PathBuf::from(format!("/proc/{pid}"));
    let status = fs::read_to_string(process.join("status")).map_err(|_| missing())?;
    // What QEMU has besides does not count: guests' memory is shared memory or huge pages, whatever backs it.
    let resident = (kib(&status, "RssShmem:") + kib(&status, "HugetlbPages:")) / 1024;
    if resident < u64::from(allocation.memory.mib()) {
        return Err(PinningViolation::Memory { resident, guaranteed: allocation.memory });
    }
    let found = vcpu_cores(&process).ok_or_else(missing)?;
    let guaranteed: Vec<String> = allocation.cores.iter().map(|core| core.to_string()).collect();
    if found == guaranteed {
        Ok(())
    } else {
        Err(PinningViolation::Cores { found, guaranteed: allocation.cores.clone() })
    }
}

/// Where each virtual core may run, in their order.
fn vcpu_cores(process: &Path) -> Option<Vec<String>> {
    let mut threads = Vec::new();
    for thread in fs::read_dir(process.join("task")).ok()?.flatten() {
        // A thread may end while it is result at.
        let Ok(name) = fs::read_to_string(thread.path().join("comm")) else { continue };
        let Some(number) = name.strip_prefix(VCPU_THREAD).and_then(|rest| rest.split('/').next()) else {
            continue;
        };
        let status = fs::read_to_string(thread.path().join("status")).ok()?;
        threads.push((number.trim().parse::<u32>().ok()?, field(&status, "Cpus_allowed_list:")?.to_owned()));
    }
    threads.sort();
    Some(threads.into_iter().map(|(_, cores)| cores).collect())
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

fn kib(status: &str, name: &str) -> u64 {
    field(status, name).and_then(|text| text.split(' ').next()?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process with two virtual cores, as /proc shows it.
    fn process(scratch: &Path, cores: [&str; 2]) {
        for (thread, name, allowed) in
            [("10", "qemu-system-x86", "0"), ("11", "CPU 1/TCG", cores[1]), ("12", "CPU 0/TCG", cores[0])]
        {
            let thread = scratch.join("task").join(thread);
            fs::create_dir_all(&thread).unwrap();
            fs::write(thread.join("comm"), format!("{name}\n")).unwrap();
            fs::write(thread.join("status"), format!("Cpus_allowed:\t3\nCpus_allowed_list:\t{allowed}\n"))
                .unwrap();
        }
    }

    #[test]
    fn cores_are_read_in_the_order_of_virtual_cores() {
        let scratch = tempfile::tempdir().unwrap();
        process(scratch.path(), ["2", "5-6"]);
        assert_eq!(vcpu_cores(scratch.path()).unwrap(), ["2", "5-6"]);
    }

    #[test]
    fn memory_is_what_is_resident_with_huge_pages() {
        let status = "VmRSS:\t  303752 kB\nRssShmem:\t  262144 kB\nHugetlbPages:\t  2048 kB\n";
        assert_eq!(kib(status, "RssShmem:") + kib(status, "HugetlbPages:"), 264_192);
        assert_eq!(kib(status, "VmLck:"), 0);
    }
}
