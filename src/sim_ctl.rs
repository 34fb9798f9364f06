//! `heddle sim-ctl`: acts on a running emulation.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use fabric_model::MacAddress;
use fabric_sim::{FunctionKey, Probability};
use ib_wire::{MulticastLid, Pkey, PortNum, ServiceLevel};
use serde_json::Value;

use crate::sim::control::{self, SimRequest};

/// Act on a running emulation.
///
/// Nodes are named by their id in the topology file, their description or their GUID.
///
///     heddle sim-ctl demo link down leaf-01 3
///     heddle sim-ctl demo loss 0.01
///     heddle sim-ctl demo tables leaf-01
///     heddle sim-ctl /run/demo/sim.sock functions
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct SimCtlArgs {
    /// Name of the emulation (`heddle sim --name`), or the path of its control socket (`--control`) with a slash in it.
    name: String,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Pull a cable, plug it again, or both in turn.
    Link {
        change: LinkChange,
        /// Node at one end.
        node: String,
        /// Its port.
        port: PortNum,
        /// How long a flapping link stays down.
        #[arg(long, default_value_t = 100)]
        down_ms: u64,
    },
    /// Restart a node: it loses LIDs, tables, counters and keys.
    Reboot { node: String },
    /// Let a node call itself something else, as its own software can; commands go on naming it by its old name.
    Rename {
        node: String,
        /// Its new NodeDescription, up to 63 bytes.
        description: String,
    },
    /// Lose packets on every link, or on the link of one port; 0 ends it.
    Loss {
        /// Probability per link, 0 to 1.
        #[arg(value_parser = probability)]
        probability: Probability,
        #[arg(requires = "port")]
        node: Option<String>,
        port: Option<PortNum>,
        /// Lose data only: subnet management passes, and the device looks sound
        #[arg(long, requires = "port")]
        data: bool,
    },
    /// Handle requests twice; 0 ends it.
    Duplicate {
        /// Probability per request, 0 to 1.
        #[arg(value_parser = probability)]
        probability: Probability,
    },
    /// Hold answers back for a random time; 0 ends it.
    Delay {
        /// Longest time in milliseconds.
        longest_ms: u64,
    },
    /// Show the ports of a node, or one of them: state, violations, counters.
    Counters { node: String, port: Option<PortNum> },
    /// Show the tables of a node: partition keys, routes, service levels. Keys that guard are never shown.
    Tables { node: String },
    /// Show what was dropped and why, traps sent, what clients did, and which node asked for what.
    Status,
    /// Put a virtual machine on the fabric, in place of what the virtual function had before.
    ///
    /// QEMU gets `-netdev dgram,id=n0,local.type=unix,local.path=GUEST,remote.type=unix,remote.path=FABRIC` and a device
    /// with the same address; it may be started before or after.
    Attach(AttachArgs),
    /// Take a virtual machine off the fabric. Its socket goes.
    Detach {
        /// Node of the adapter.
        node: String,
        /// Port of the adapter.
        port: PortNum,
        /// Number of the virtual function.
        function: u8,
    },
    /// Show all virtual functions, and what became of their frames.
    Functions,
}

#[derive(Debug, Args)]
struct AttachArgs {
    /// Node of the adapter.
    node: String,
    /// Port of the adapter.
    port: PortNum,
    /// Number of the virtual function at that port.
    function: u8,
    /// Its Ethernet address: 02, the LID of the port in two bytes, the number of the function, 00:00.
    #[arg(long)]
    mac: MacAddress,
    /// Its partition key, such as 0x8001.
    #[arg(long)]
    pkey: Pkey,
    /// The service level of what it sends to one other, 0 to 15.
    #[arg(long, default_value = "0", value_parser = service_level)]
    sl: ServiceLevel,
    /// The multicast LID that broadcasts go to, such as 0xc001; without it, they are dropped.
    #[arg(long, value_parser = multicast_lid)]
    group: Option<MulticastLid>,
    /// A partition that it is in besides, as key and multicast LID, such as 0x8002:0xc002; may be repeated.
    #[arg(long, value_name = "PKEY[:GROUP]", value_parser = function_key)]
    further: Vec<FunctionKey>,
    /// The datagram socket that the virtual machine binds.
    #[arg(long)]
    guest: PathBuf,
    /// The datagram socket that it sends to, which is made here.
    #[arg(long)]
    fabric: PathBuf,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LinkChange {
    Down,
    Up,
    Flap,
}

pub fn run(args: SimCtlArgs) -> anyhow::Result<()> {
    match control::ask(&args.name, &request(args.action)?)? {
        Value::String(text) => crate::print_line(text)?,
        value => crate::print_line(serde_json::to_string_pretty(&value)?)?,
    }
    Ok(())
}

fn request(action: Action) -> anyhow::Result<SimRequest> {
    Ok(match action {
        Action::Link { change: LinkChange::Down, node, port, .. } => SimRequest::LinkDown { node, port },
        Action::Link { change: LinkChange::Up, node, port, .. } => SimRequest::LinkUp { node, port },
        Action::Link { change: LinkChange::Flap, node, port, down_ms } => {
            SimRequest::LinkFlap { node, port, down_ms }
        }
        Action::Reboot { node } => SimRequest::Reboot { node },
        Action::Rename { node, description } => SimRequest::Rename { node, description },
        Action::Loss { probability, node, port, data } => SimRequest::Loss { probability, node, port, data },
        Action::Duplicate { probability } => SimRequest::Duplicate { probability },
        Action::Delay { longest_ms } => SimRequest::Delay { longest_ms },
        Action::Counters { node, port } => SimRequest::Counters { node, port },
        Action::Tables { node } => SimRequest::Tables { node },
        Action::Status => SimRequest::Status {},
        Action::Attach(args) => SimRequest::Attach {
            node: args.node,
            port: args.port,
            function: args.function,
            mac: args.mac,
            pkey: args.pkey,
            sl: args.sl,
            group: args.group,
            further: args.further,
            // The emulation may run elsewhere in the file system.
            guest: std::path::absolute(args.guest)?,
            fabric: std::path::absolute(args.fabric)?,
        },
        Action::Detach { node, port, function } => SimRequest::Detach { node, port, function },
        Action::Functions => SimRequest::Functions {},
    })
}

fn service_level(text: &str) -> Result<ServiceLevel, String> {
    let level = text.parse().ok().and_then(ServiceLevel::from_wire);
    level.ok_or_else(|| "a number from 0 to 15".to_owned())
}

fn function_key(text: &str) -> Result<FunctionKey, String> {
    let (key, group) = text.split_once(':').map_or((text, None), |(key, group)| (key, Some(group)));
    let pkey = key.parse().map_err(|_| format!("{key:?} is not a partition key, such as 0x8001"))?;
    Ok(FunctionKey { pkey, group: group.map(multicast_lid).transpose()? })
}

fn multicast_lid(text: &str) -> Result<MulticastLid, String> {
    let raw = match text.strip_prefix("0x") {
        Some(digits) => u16::from_str_radix(digits, 16),
        None => text.parse(),
    };
    let lid = raw.ok().and_then(MulticastLid::from_wire);
    lid.ok_or_else(|| format!("{text:?} is not a multicast LID: 0xc000 to 0xfffe"))
}

fn probability(text: &str) -> Result<Probability, String> {
    let value: f64 = text.parse().map_err(|_| format!("{text:?} is not a number"))?;
    Probability::try_from(value).map_err(|error| error.to_string())
}
