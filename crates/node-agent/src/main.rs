//! `heddle-agent`: runs the virtual machines of one or more hosts.

use std::fs;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::Parser;
use controller_api::{MemorySize, Name};
use node_agent::accelerator::{AcceleratorChoice, AcceleratorProbe};
use node_agent::agent::Agent;
use node_agent::capacity::{Allocations, HostCapacity};
use node_agent::context::{AgentContext, FileTables};
use node_agent::cpu_set::CpuSet;
use node_agent::fabric::FabricAttachments;
use node_agent::http::{self, HttpLimits};
use node_agent::hypervisor::Hypervisor;
use node_agent::reports::{MachineStatus, Reports, next_report_number};
use node_agent::retention::RetainedDisks;
use node_agent::state_dir::StateDir;
use node_agent::users::QemuUsers;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// One part in this many of the machine's memory is reserved for the host and for QEMU's own memory.
const MEMORY_RESERVE: u64 = 8;

/// Run the virtual machines of this machine's hosts with libvirt and QEMU, as the controller specifies
#[derive(Debug, Parser)]
#[command(name = "heddle-agent", version)]
struct Args {
    /// Keep host specs, disks and logs in this directory, which QEMU's users must be able to traverse
    #[arg(long, value_name = "DIR")]
    state: PathBuf,
    /// Serve the controller on this Unix socket, created with mode 0600
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// Serve the host of this name; repeatable on an emulated fabric
    #[arg(long = "host", value_name = "NAME", required = true)]
    hosts: Vec<Name>,
    /// Attach virtual machines to the emulated fabric through this control socket of `heddle sim`
    #[arg(long, value_name = "PATH")]
    sim_control: PathBuf,
    /// Connect to libvirt at this URI
    #[arg(long, value_name = "URI", default_value = "qemu:///system")]
    uri: String,
    /// Run virtual machines with this accelerator
    #[arg(long, value_enum, default_value_t = AcceleratorChoice::Auto)]
    accelerator: AcceleratorChoice,
    /// Use these cores, such as 0-3,6 [default: the CPU affinity of this process]
    #[arg(long, value_name = "LIST")]
    cores: Option<CpuSet>,
    /// Reserve the lowest N physical cores for the host, QEMU's emulator threads and virtual machines without dedicated cores
    #[arg(long, value_name = "N", default_value_t = 1)]
    reserve_cores: u32,
    /// Dedicate hardware threads instead of physical cores: threads of one core may then belong to different tenants
    #[arg(long)]
    dedicate_threads: bool,
    /// Give guests at most this much memory in total, such as 16G [default: 7/8 of the machine's memory]
    #[arg(long, value_name = "SIZE")]
    memory: Option<MemorySize>,
    /// Create the sockets of virtual machines in this directory; it must be short, because socket paths have at most 107 bytes
    #[arg(long, value_name = "DIR", default_value = "/run/heddle")]
    runtime: PathBuf,
    /// Test KVM at startup with the kernel of the newest image in this directory
    #[arg(long, value_name = "DIR", default_value = "/var/cache/heddle/images")]
    images: PathBuf,
    /// Run each QEMU process with its own user id out of 65,536 from this one, which must not be used otherwise (1000 to 3999999999)
    #[arg(long, value_name = "UID", default_value_t = 2_000_000, value_parser = clap::value_parser!(u32).range(1000..4_000_000_000))]
    first_vm_uid: u32,
    /// Retain the disk of a removed virtual machine for this many hours; 0 deletes it at once. On lack of disk space, the oldest
    /// retained disks are deleted early
    #[arg(long, value_name = "HOURS", default_value_t = 24)]
    disk_grace_hours: u32,
    /// Stop the virtual machines on SIGTERM or SIGINT; the next start boots them from their disks
    #[arg(long)]
    stop_vms_at_exit: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let filter = EnvFilter::try_from_env("HEDDLE_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr)
        .init();
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("heddle-agent: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(mut args: Args) -> anyhow::Result<()> {
    args.hosts.sort();
    let given = args.hosts.len();
    args.hosts.dedup();
    ensure!(args.hosts.len() == given, "each --host must be given once");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let served = runtime.block_on(serve(args));
    // Pending libvirt calls are abandoned; their outcome is determined at the next start.
    runtime.shutdown_background();
    served
}

async fn serve(args: Args) -> anyhow::Result<()> {
    let cores = match args.cores {
        Some(cores) => cores,
        None => own_cores()?,
    };
    let memory = match args.memory {
        Some(memory) => memory,
        None => own_memory()?,
    };
    let siblings = match args.dedicate_threads {
        true => Vec::new(),
        false => siblings(Path::new("/sys/devices/system/cpu"), &cores)?,
    };
    let allocations = Allocations::new(HostCapacity::new(cores, siblings, args.reserve_cores, memory)?);
    let state_dir = Arc::new(StateDir::open(&args.state, &args.runtime)?);
    let machine = MachineStatus {
        cores: allocations.cores(),
        memory_mib: allocations.memory(),
        accelerator: args.accelerator.fixed(),
        fabric: false,
    };
    let number =
        next_report_number(&state_dir.report_number_path()).context("cannot store the report number")?;
    let reports = Arc::new(Reports::new(&args.hosts, machine, number));
    let hypervisor = Hypervisor::new(args.uri);
    let fabric = Arc::new(FabricAttachments::new(args.sim_control, Arc::clone(&state_dir)));
    let accelerator_probe = AcceleratorProbe::new(
        args.accelerator,
        Arc::clone(&state_dir),
        hypervisor.clone(),
        Arc::clone(&reports),
    );
    let grace = Duration::from_secs(u64::from(args.disk_grace_hours) * 3600);
    let retained_disks =
        RetainedDisks::open(Arc::clone(&state_dir), grace).context("cannot read the retained disks")?;
    let users = QemuUsers::open(Arc::clone(&state_dir), args.first_vm_uid)
        .context("cannot read the user ids of virtual machines")?;
    let context = AgentContext::new(
        state_dir,
        hypervisor,
        Arc::clone(&fabric),
        Arc::clone(&reports),
        Arc::new(accelerator_probe),
        allocations,
        FileTables { retained_disks, users },
    );
    let agent = Arc::new(Agent::new(Arc::new(context), args.hosts)?);
    let listener = http::listen(&args.socket)?;

    let (mut terminated, mut interrupted) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let mut fabric_status = fabric.status();
    // Runs until the process exits, because virtual machines that stop on exit must be detached.
    tokio::spawn(async move { fabric.run().await });
    let publish_fabric_status = async {
        while fabric_status.changed().await.is_ok() {
            let is_reachable = fabric_status.borrow_and_update().is_reachable;
            reports.set_machine(|machine| machine.fabric = is_reachable);
        }
    };
    tokio::select! {
        _ = http::serve(listener, http::router(Arc::clone(&agent)), HttpLimits::default()) => {}
        () = agent.run(args.images) => {}
        () = publish_fabric_status => {}
        _ = terminated.recv() => {}
        _ = interrupted.recv() => {}
    }
    // From here on, requests fail to connect and are repeated against the next agent.
    let _ = fs::remove_file(&args.socket);
    agent.shut_down(args.stop_vms_at_exit).await;
    agent.context().state_dir.remove_runtime_directory();
    Ok(())
}

/// The hardware threads of each physical core of the machine.
///
/// # Errors
///
/// If the core of one of `cores` is unknown: its other threads might belong to somebody else.
fn siblings(folder: &Path, cores: &CpuSet) -> anyhow::Result<Vec<CpuSet>> {
    let mut all: Vec<CpuSet> = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        // CPUs that are off, and folders of other things, have no such file.
        let Ok(list) = fs::read_to_string(entry?.path().join("topology/thread_siblings_list")) else {
            continue;
        };
        let threads: CpuSet = list.trim().parse()?;
        if !all.contains(&threads) {
            all.push(threads);
        }
    }
    let unknown = cores.iter().find(|cpu| !all.iter().any(|threads| threads.contains(*cpu)));
    if let Some(cpu) = unknown {
        bail!(
            "cannot tell which hardware threads share the core of CPU {cpu}; with --dedicate-threads, threads count as cores"
        );
    }
    Ok(all)
}

/// The CPU affinity of this process.
fn own_cores() -> anyhow::Result<CpuSet> {
    let status = fs::read_to_string("/proc/self/status").context("cannot read /proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    Ok(line.context("cannot determine the CPU affinity; use --cores")?.trim().parse()?)
}

/// The machine's memory without the reserve.
fn own_memory() -> anyhow::Result<MemorySize> {
    let text = fs::read_to_string("/proc/meminfo").context("cannot read /proc/meminfo")?;
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB"));
    let total: u64 = total.context("cannot determine the machine's memory; use --memory")?.trim().parse()?;
    let mib = (total - total / MEMORY_RESERVE) / 1024;
    Ok(MemorySize::from_mib(u32::try_from(mib).unwrap_or(u32::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_an_unknown_core_are_not_offered() {
        let folder = tempfile::tempdir().unwrap();
        for (cpu, threads) in [("cpu0", "0,2\n"), ("cpu1", "1,3\n"), ("cpu2", "0,2\n"), ("cpu3", "1,3\n")] {
            let topology = folder.path().join(cpu).join("topology");
            fs::create_dir_all(&topology).unwrap();
            fs::write(topology.join("thread_siblings_list"), threads).unwrap();
        }
        fs::create_dir(folder.path().join("cpufreq")).unwrap();
        let known = siblings(folder.path(), &"0-3".parse().unwrap()).unwrap();
        assert_eq!(known.len(), 2);
        let error = siblings(folder.path(), &"0-4".parse().unwrap()).unwrap_err();
        assert!(error.to_string().contains("CPU 4"), "{error}");
    }
}
