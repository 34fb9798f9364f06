//! `heddle sim`: serves an emulated fabric to stock tools and to Heddle's own parts.

mod adapter_wire;
pub mod control;
mod frames;
mod host;
pub mod link_model;
pub mod profile;
mod request_counts;
mod views;

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use clap::Args;
use fabric_model::ibnetdiscover;
use fabric_sim::{DeviceProfile, Fabric};
use ib_transport::{Server, SocketAccess};
use ib_wire::{DataLanes, Mtu};

use frames::GuestFrames;
use host::SimHost;
use link_model::LinkModelArgs;
use profile::ProfileArgs;
use views::FunctionViews;

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
///
/// A profile says what kind of devices to emulate: sizes of tables, lanes, speeds, what they support, and where they are
/// strict.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment, after_help = profile::help())]
pub struct SimArgs {
    /// Topology file in the format of ibnetdiscover or ibsim.
    #[arg(required_unless_present = "print_profile")]
    netfile: Option<PathBuf>,
    #[command(flatten)]
    profile: ProfileArgs,
    #[command(flatten)]
    link_model: LinkModelArgs,
    /// Print the profile as a file for --profile, and exit.
    #[arg(long)]
    print_profile: bool,
    /// Name of the emulation, which tools put into IBSIM_SOCKNAME.
    #[arg(long, default_value = "sim")]
    name: String,
    /// Seed of injected faults; the same seed and the same requests give the same faults.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Data virtual lanes of every port: 1, 2, 4, 8 or 15 [default: as in the profile]
    #[arg(long)]
    vls: Option<u8>,
    /// Entries of the P_Key tables of adapter ports and external switch ports [default: as in the profile]
    #[arg(long)]
    pkeys: Option<u16>,
    /// Entries of each VL arbitration table, 0 to 64 [default: as in the profile]
    #[arg(long)]
    vlarb: Option<u8>,
    /// Entries of the GUID table of an adapter port, its own GUID included [default: as in the profile]
    #[arg(long)]
    guids: Option<u8>,
    /// MTU in bytes: 256, 512, 1024, 2048 or 4096 [default: as in the profile]
    #[arg(long)]
    mtu: Option<u16>,
    /// Entries of the linear forwarding tables [default: as in the profile, or 49152 for larger fabrics]
    #[arg(long)]
    linear: Option<u16>,
    /// Entries of the multicast forwarding tables [default: as in the profile]
    #[arg(long)]
    multicast: Option<u16>,
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

/// The largest linear forwarding table, for fabrics with more nodes than the table of the profile has entries.
const LINEAR_MAX: u16 = 49_152;

pub fn run(args: SimArgs) -> anyhow::Result<()> {
    let profile = profile(&args)?;
    let link_model = args.link_model.model()?;
    let Some(netfile) = args.netfile.as_deref().filter(|_| !args.print_profile) else {
        return crate::print_line(format_args!("{}", profile::to_toml(&profile)?.trim_end()));
    };
    let path = netfile.display().to_string();
    let bytes = fs::read(netfile).with_context(|| format!("cannot read {path}"))?;
    let topology = ibnetdiscover::read(&bytes).with_context(|| format!("{path} is not a topology file"))?;
    drop(bytes);
    ensure!(topology.node_count() > 0, "{path} has no nodes");
    let topology =
        profile.furnish(&topology).context("the devices of the profile do not fit the topology")?;
    let profile = with_room_for(profile, topology.node_count(), args.linear);
    let (switches, adapters) = (topology.switches().count(), topology.end_nodes().count());
    let mut fabric = Fabric::new(topology, profile, args.seed)?;
    fabric.set_link_model(Duration::ZERO, link_model);
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
    let views = FunctionViews::new(server.waker())?;
    server.watch(&views).context("cannot watch the network views of virtual machines")?;
    let mut host = SimHost::new(fabric, frames, views, commands);
    crate::print_line(format_args!(
        "ready {}: {switches} switches, {adapters} adapters, {links} links; attach with IBSIM_SOCKNAME={}",
        args.name, args.name
    ))?;
    server.run(&mut host, &stop)?;
    Ok(())
}

/// The selected profile with the sizes that options name.
fn profile(args: &SimArgs) -> anyhow::Result<DeviceProfile> {
    let mut profile = args.profile.load()?;
    let DeviceProfile { adapters, switches, .. } = &mut profile;
    if let Some(count) = args.vls {
        let lanes = DataLanes::from_count(count);
        let lanes = lanes.ok_or_else(|| anyhow!("--vls must be 1, 2, 4, 8 or 15, got {count}"))?;
        (adapters.lanes, switches.lanes) = (lanes, lanes);
    }
    if let Some(entries) = args.pkeys {
        (adapters.pkeys, switches.enforced_pkeys) = (entries, entries);
    }
    if let Some(entries) = args.vlarb {
        (adapters.arbitration_entries, switches.arbitration_entries) = (entries, entries);
    }
    if let Some(bytes) = args.mtu {
        (adapters.mtu, switches.mtu) = (mtu(bytes)?, mtu(bytes)?);
    }
    adapters.guids = args.guids.unwrap_or(adapters.guids);
    switches.linear_forwarding = args.linear.unwrap_or(switches.linear_forwarding);
    switches.multicast_forwarding = args.multicast.unwrap_or(switches.multicast_forwarding);
    switches.optimised_sl_to_vl |= args.optimised_sl2vl;
    profile.check()?;
    Ok(profile)
}

/// Enlarges the linear forwarding tables for a fabric with more nodes than entries, unless an option gives their size.
fn with_room_for(mut profile: DeviceProfile, nodes: usize, linear: Option<u16>) -> DeviceProfile {
    let switches = &mut profile.switches;
    if linear.is_none() && nodes >= usize::from(switches.linear_forwarding) {
        switches.linear_forwarding = LINEAR_MAX;
    }
    profile
}

fn mtu(bytes: u16) -> anyhow::Result<Mtu> {
    let all = [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096];
    all.into_iter()
        .find(|mtu| mtu.bytes() == bytes)
        .ok_or_else(|| anyhow!("--mtu must be 256, 512, 1024, 2048 or 4096, got {bytes}"))
}
