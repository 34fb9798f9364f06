//! `heddle sim`: serves an emulated fabric to stock tools and to Heddle's own parts.

pub mod control;
mod frames;
mod host;
mod request_counts;

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, anyhow, ensure};
use clap::Args;
use fabric_model::ibnetdiscover;
use fabric_sim::{Capacities, Fabric};
use ib_transport::{Server, SocketAccess};
use ib_wire::{DataLanes, Mtu};

use frames::GuestFrames;
use host::SimHost;

/// Emulate the fabric that a topology file describes.
///
/// Prints one line that starts with `ready` when tools can attach, then runs until SIGTERM or Ctrl-C. Tools attach
/// through libumad2sim, from any directory in which they may write:
///
///     IBSIM_SOCKNAME=NAME SIM_HOST=NODE LD_PRELOAD=/usr/lib/x86_64-linux-gnu/umad2sim/libumad2sim.so smpquery nodeinfo -D 0
///
/// Only the user who runs the emulation, and root, can attach. SIM_HOST names the node that a tool runs on, by id or
/// description; the default is the first node of the file. `heddle sim-ctl` controls the running emulation and attaches
/// virtual machines to it; their frames follow the forwarding and P_Key tables of the fabric.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct SimArgs {
    /// Topology file in the format of ibnetdiscover or ibsim.
    netfile: PathBuf,
    /// Name of the emulation, which tools put into IBSIM_SOCKNAME.
    #[arg(long, default_value = "sim")]
    name: String,
    /// Seed of injected faults; the same seed and the same requests give the same faults.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Data virtual lanes of every port: 1, 2, 4, 8 or 15.
    #[arg(long, default_value_t = 8)]
    vls: u8,
    /// Entries of the P_Key tables of adapter ports and external switch ports.
    #[arg(long, default_value_t = 64)]
    pkeys: u16,
    /// Entries of each VL arbitration table, 1 to 64.
    #[arg(long, default_value_t = 8)]
    vlarb: u8,
    /// Entries of the GUID table of an adapter port, its own GUID included.
    #[arg(long, default_value_t = 32)]
    guids: u8,
    /// MTU in bytes: 256, 512, 1024, 2048 or 4096.
    #[arg(long, default_value_t = 2048)]
    mtu: u16,
    /// Entries of the linear forwarding tables [default: 30720, or 49152 for larger fabrics]
    #[arg(long)]
    linear: Option<u16>,
    /// Entries of the multicast forwarding tables.
    #[arg(long, default_value_t = 1024)]
    multicast: u16,
    /// Let switches support optimised SL-to-VL mapping table programming.
    #[arg(long)]
    optimised_sl2vl: bool,
    /// Let every user of this machine attach, not only you and root. A user who attaches has root rights on every node of
    /// the fabric: it can run a subnet manager, and read and write everything that no M_Key protects
    #[arg(long)]
    open_to_everyone: bool,
    /// Also listen at this unix socket for clients of Heddle (`--device heddle:SOCKET`).
    #[arg(long)]
    socket: Option<PathBuf>,
    /// Listen for `heddle sim-ctl` at this unix socket [default: one in XDG_RUNTIME_DIR that is found by --name]
    #[arg(long, value_name = "SOCKET")]
    control: Option<PathBuf>,
}

/// Sizes of linear forwarding tables: that of ibsim, and the largest, for fabrics with more nodes.
const LINEAR_DEFAULT: u16 = 30_720;
const LINEAR_LARGE: u16 = 49_152;

pub fn run(args: SimArgs) -> anyhow::Result<()> {
    let path = args.netfile.display().to_string();
    let bytes = fs::read(&args.netfile).with_context(|| format!("cannot read {path}"))?;
    let topology = ibnetdiscover::read(&bytes).with_context(|| format!("{path} is not a topology file"))?;
    drop(bytes);
    ensure!(topology.node_count() > 0, "{path} has no nodes");
    let capacities = capacities(&args, topology.node_count())?;
    let (switches, adapters) = (topology.switches().count(), topology.end_nodes().count());
    let fabric = Fabric::new(topology, capacities, args.seed)?;
    let (_, _, links) = fabric.size();

    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot handle signals")?;
    }
    let mut server = Server::bind(&args.name)?;
    if args.open_to_everyone {
        server.set_access(SocketAccess::Everyone);
    }
    if let Some(socket) = &args.socket {
        server.listen(socket)?;
    }
    let (_control, commands) = match &args.control {
        Some(path) => control::listen_at(path, server.waker())?,
        None => control::listen(&args.name, server.waker())?,
    };
    let frames = GuestFrames::new()?;
    server.watch(frames.guests()).context("cannot watch the sockets of virtual machines")?;
    let mut host = SimHost::new(fabric, frames, commands);
    crate::print_line(format_args!(
        "ready {}: {switches} switches, {adapters} adapters, {links} links; attach with IBSIM_SOCKNAME={}",
        args.name, args.name
    ))?;
    server.run(&mut host, &stop)?;
    Ok(())
}

fn capacities(args: &SimArgs, nodes: usize) -> anyhow::Result<Capacities> {
    let default_linear = if nodes < usize::from(LINEAR_DEFAULT) { LINEAR_DEFAULT } else { LINEAR_LARGE };
    Ok(Capacities {
        lanes: DataLanes::from_count(args.vls)
            .ok_or_else(|| anyhow!("--vls must be 1, 2, 4, 8 or 15, got {}", args.vls))?,
        pkeys: args.pkeys,
        arbitration_entries: args.vlarb,
        linear_forwarding: args.linear.unwrap_or(default_linear),
        multicast_forwarding: args.multicast,
        guids: args.guids,
        mtu: mtu(args.mtu)?,
        optimised_sl_to_vl: args.optimised_sl2vl,
        ..Capacities::default()
    })
}

fn mtu(bytes: u16) -> anyhow::Result<Mtu> {
    let all = [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096];
    all.into_iter()
        .find(|mtu| mtu.bytes() == bytes)
        .ok_or_else(|| anyhow!("--mtu must be 256, 512, 1024, 2048 or 4096, got {bytes}"))
}
