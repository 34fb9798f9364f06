//! `heddle-agent`: runs the virtual machines of hosts.

use std::fs;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
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

/// Part of the memory that is left to the host and to what QEMU needs besides guests' memory: one in so many.
const MEMORY_RESERVE: u64 = 8;

/// Runs the virtual machines of hosts.
#[derive(Debug, Parser)]
#[command(name = "heddle-agent", version)]
struct Args {
    /// Directory for orders, disks and logs. QEMU's user must be able to enter it.
    #[arg(long, value_name = "DIR")]
    state: PathBuf,
    /// Socket at which the controller is served.
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// Name of a host that is served; may be given several times on an emulated fabric.
    #[arg(long = "host", value_name = "NAME", required = true)]
    hosts: Vec<Name>,
    /// Control socket of `heddle sim`.
    #[arg(long, value_name = "PATH")]
    sim_control: PathBuf,
    #[arg(long, value_name = "URI", default_value = "qemu:///system")]
    uri: String,
    /// How virtual machines run; `auto` is KVM if a probe guest runs by it.
    #[arg(long, value_enum, default_value_t = AcceleratorChoice::Auto)]
    accelerator: AcceleratorChoice,
    /// CpuSet that may be used, such as 0-3,6; all that this process may use if not given.
    #[arg(long, value_name = "LIST")]
    cores: Option<CpuSet>,
    /// CpuSet that no virtual machine has to itself: emulation, context virtual machines and the host run there.
    #[arg(long, value_name = "N", default_value_t = 1)]
    reserve_cores: u32,
    /// Memory for guests in all, such as 16G; seven eighths of the machine's if not given.
    #[arg(long, value_name = "SIZE")]
    memory: Option<MemorySize>,
    /// Directory for sockets. Short: paths of sockets have room for 107 bytes.
    #[arg(long, value_name = "DIR", default_value = "/run/heddle")]
    runtime: PathBuf,
    /// Where images usually are: the kernel of the newest is used to find out early whether KVM works.
    #[arg(long, value_name = "DIR", default_value = "/var/cache/heddle/images")]
    images: PathBuf,
    /// First of 65,536 user ids, which nobody else on this machine has: each QEMU runs as one of its own.
    #[arg(long, value_name = "UID", default_value_t = 2_000_000, value_parser = clap::value_parser!(u32).range(1000..4_000_000_000))]
    first_vm_uid: u32,
    /// Hours for which the disk of a removed virtual machine is kept before it is deleted; 0 deletes it at once. If the disk of
    /// the host is full, those that were kept longest go first.
    #[arg(long, value_name = "HOURS", default_value_t = 24)]
    disk_grace_hours: u32,
    /// Stops virtual machines when the agent is told to end. The next start boots them from their disks.
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
    ensure!(args.hosts.len() == given, "a host is named twice");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let served = runtime.block_on(serve(args));
    // Calls of libvirt may hang; what they did is found out at the next start.
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
    let allocations = Allocations::new(HostCapacity::new(cores, args.reserve_cores, memory)?);
    let state_dir = Arc::new(StateDir::open(&args.state, &args.runtime)?);
    let machine = MachineStatus {
        cores: allocations.cores(),
        memory_mib: allocations.memory(),
        accelerator: args.accelerator.fixed(),
        fabric: false,
    };
    let number =
        next_report_number(&state_dir.report_number_path()).context("cannot keep the number of reports")?;
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
        RetainedDisks::open(Arc::clone(&state_dir), grace).context("cannot look at disks that rest")?;
    let users = QemuUsers::open(Arc::clone(&state_dir), args.first_vm_uid)
        .context("cannot tell who has which user")?;
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
    // Also while the agent ends: virtual machines that stop are taken off the fabric.
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
    // Whoever asks now finds nobody, and asks the next agent.
    let _ = fs::remove_file(&args.socket);
    agent.shut_down(args.stop_vms_at_exit).await;
    agent.context().state_dir.remove_runtime_directory();
    Ok(())
}

/// CpuSet this process may use.
fn own_cores() -> anyhow::Result<CpuSet> {
    let status = fs::read_to_string("/proc/self/status").context("cannot tell which cores there are")?;
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    Ok(line.context("cannot tell which cores there are: use --cores")?.trim().parse()?)
}

/// What the machine has, less a part for itself.
fn own_memory() -> anyhow::Result<MemorySize> {
    let text = fs::read_to_string("/proc/meminfo").context("cannot tell how much memory there is")?;
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB"));
    let total: u64 = total.context("cannot tell how much memory there is: use --memory")?.trim().parse()?;
    let mib = (total - total / MEMORY_RESERVE) / 1024;
    Ok(MemorySize::from_mib(u32::try_from(mib).unwrap_or(u32::MAX)))
}
