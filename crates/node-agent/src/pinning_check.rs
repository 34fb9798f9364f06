//! Checks that a dedicated virtual machine has its guaranteed cores and memory, by /proc and not by what libvirt reports.

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

/// Directory of libvirt's pid files.
const PID_DIRECTORY: &str = "/run/libvirt/qemu";

/// Number of free huge pages of 2 MiB.
const HUGE_PAGES: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";

/// Prefix of the names of QEMU's vCPU threads: `CPU 0/KVM`, `CPU 1/TCG`.
const VCPU_THREAD: &str = "CPU ";

/// Most attempts, and the pause in between: threads get their names and affinity shortly after they start.
const ATTEMPTS_MAX: u32 = 10;
const ATTEMPT_PAUSE: Duration = Duration::from_millis(200);

/// A guarantee that is not met.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum PinningViolation {
    #[error("no running process in {}", .0.display())]
    NoProcess(PathBuf),
    #[error("guaranteed memory is {guaranteed}, but only {resident} MiB are resident")]
    Memory { resident: u64, guaranteed: MemorySize },
    #[error("vCPUs must be pinned to the cores {guaranteed}, but their affinities are {found:?}")]
    Cores {
        /// CPU affinity of each vCPU.
        found: Vec<String>,
        guaranteed: CpuSet,
    },
}

/// Checks a domain that was just started, for up to 2 s: every vCPU must be pinned to its core, and all memory be resident.
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

/// Whether enough huge pages are free for this much memory.
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
    // QEMU's own memory does not count: guest memory is always shared memory or huge pages.
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

/// CPU affinity of each vCPU, by vCPU number.
fn vcpu_cores(process: &Path) -> Option<Vec<String>> {
    let mut threads = Vec::new();
    for thread in fs::read_dir(process.join("task")).ok()?.flatten() {
        // The thread may end in the meantime.
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

    /// A process with two vCPUs, as in /proc.
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
    fn affinities_are_ordered_by_vcpu() {
        let scratch = tempfile::tempdir().unwrap();
        process(scratch.path(), ["2", "5-6"]);
        assert_eq!(vcpu_cores(scratch.path()).unwrap(), ["2", "5-6"]);
    }

    #[test]
    fn resident_memory_includes_huge_pages() {
        let status = "VmRSS:\t  303752 kB\nRssShmem:\t  262144 kB\nHugetlbPages:\t  2048 kB\n";
        assert_eq!(kib(status, "RssShmem:") + kib(status, "HugetlbPages:"), 264_192);
        assert_eq!(kib(status, "VmLck:"), 0);
    }
}
