//! `heddle sim-ctl`: controls a running emulation.

use std::path::PathBuf;

use anyhow::bail;
use clap::{Args, Subcommand, ValueEnum};
use control_protocol::SimRequest;
use fabric_model::tenancy::Nanoseconds;
use fabric_model::{FunctionKey, MacAddress};
use fabric_sim::{ModelledRate, ParseModelledRateError, Probability};
use ib_wire::{Guid, MulticastLid, Pkey, PortNum, ServiceLevel};
use serde_json::Value;

use crate::sim::control;

/// Control a running emulation.
///
/// A node is named by its id in the topology file, its NodeDescription or its GUID.
///
///     heddle sim-ctl demo link down leaf-01 3
///     heddle sim-ctl demo loss 0.01
///     heddle sim-ctl demo tables leaf-01
///     heddle sim-ctl /run/demo/sim.sock functions
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct SimCtlArgs {
    /// Name of the emulation (`heddle sim --name`), or the path of its control socket (`--control`), with a slash in it.
    name: String,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Unplug a cable, plug it in, or let the link flap.
    Link {
        change: LinkChange,
        /// Node at one end of the link.
        node: String,
        /// Port of that node.
        port: PortNum,
        /// Time that a flapping link stays down, in milliseconds.
        #[arg(long, default_value_t = 100)]
        down_ms: u64,
    },
    /// Reboot a node: it loses its LIDs, tables, counters and M_Key.
    Reboot { node: String },
    /// Change the NodeDescription of a node; commands keep using its old name.
    Rename {
        node: String,
        /// New NodeDescription, at most 63 bytes.
        description: String,
    },
    /// Drop packets at random on every link, or on the link of one port; 0 stops it.
    Loss {
        /// Probability of a drop on each link, 0 to 1.
        #[arg(value_parser = probability)]
        probability: Probability,
        #[arg(requires = "port")]
        node: Option<String>,
        port: Option<PortNum>,
        /// Drop data packets only: subnet management passes, so the device looks healthy
        #[arg(long, requires = "port")]
        data: bool,
    },
    /// Add to the error counters of a port, as a bad cable does.
    Errors {
        node: String,
        port: PortNum,
        /// Errors to add to SymbolErrorCounter.
        #[arg(long, default_value_t = 0)]
        symbol: u64,
        /// Errors to add to LinkErrorRecoveryCounter.
        #[arg(long, default_value_t = 0)]
        recovery: u64,
        /// Errors to add to PortRcvErrors.
        #[arg(long, default_value_t = 0)]
        receive: u64,
    },
    /// Handle requests twice at random; 0 stops it.
    Duplicate {
        /// Probability for each request, 0 to 1.
        #[arg(value_parser = probability)]
        probability: Probability,
    },
    /// Delay answers by a random time; 0 stops it.
    Delay {
        /// Longest delay in milliseconds.
        longest_ms: u64,
    },
    /// Show the ports of a node, or one port: state, violations, counters.
    Counters { node: String, port: Option<PortNum> },
    /// Show the tables of a node: P_Keys, routes, SL-to-VL maps. M_Keys are never shown.
    Tables { node: String },
    /// Show drops by reason, traps, counters of clients, and requests by node.
    Status,
    /// Show the rate and latency of links for what virtual machines send, change them, or switch them off.
    ///
    ///     heddle sim-ctl lab link-model 20M --latency 50us
    ///     heddle sim-ctl lab link-model 1/2000
    ///     heddle sim-ctl lab link-model off
    ///
    /// When it is switched off, everything that waits arrives at once.
    #[command(verbatim_doc_comment)]
    LinkModel {
        /// A rate of every link such as 20M, a part of the rate of each link such as 1/2000, or `off`.
        #[arg(value_name = "RATE|off", value_parser = link_change)]
        rate: Option<LinkModelChange>,
        /// Latency of every link, such as 50us [default: none]
        #[arg(long, value_name = "TIME", requires = "rate")]
        latency: Option<Nanoseconds>,
    },
    /// Attach a virtual machine to a virtual function, replacing the one that is attached.
    ///
    /// QEMU gets `-netdev dgram,id=n0,local.type=unix,local.path=GUEST,remote.type=unix,remote.path=FABRIC` and a device
    /// with the same MAC address. QEMU may be started before or after this command.
    Attach(AttachArgs),
    /// Attach a virtual machine with an InfiniBand adapter of software to a virtual function.
    ///
    /// The machine loads the module of guest-module/. QEMU gets a virtio-net device as for `attach`, with a MAC address that
    /// begins with 06:68:63. The adapter is Down until the subnet manager has put its GUID into the port's table (`heddle sm
    /// --aliases`).
    AttachAdapter(AttachAdapterArgs),
    /// Detach a virtual machine from the fabric and remove its socket.
    Detach {
        /// Node of the adapter.
        node: String,
        /// Port of the adapter.
        port: PortNum,
        /// Number of the virtual function.
        function: u8,
    },
    /// Show all virtual functions with the counters of their frames.
    Functions,
    /// Show all InfiniBand adapters of virtual machines with the counters of their packets.
    Adapters,
}

#[derive(Debug, Args)]
struct AttachAdapterArgs {
    /// Node of the adapter.
    node: String,
    /// Port of the adapter.
    port: PortNum,
    /// Number of the virtual function of that port, 1 to 31.
    function: u8,
    /// GUID of the virtual adapter, an alias of the port.
    #[arg(long)]
    guid: Guid,
    /// P_Key of the adapter, such as 0x8001; may be repeated. The first is that of ib0.
    #[arg(long = "pkey", value_name = "PKEY", required = true)]
    pkeys: Vec<Pkey>,
    /// Path of the datagram socket that the virtual machine binds.
    #[arg(long)]
    guest: PathBuf,
    /// Path of the datagram socket that the machine sends to; the emulation creates it.
    #[arg(long)]
    fabric: PathBuf,
}

#[derive(Debug, Args)]
struct AttachArgs {
    /// Node of the adapter.
    node: String,
    /// Port of the adapter.
    port: PortNum,
    /// Number of the virtual function of that port.
    function: u8,
    /// MAC address of the machine: 02, the LID of the port in two bytes, the number of the function, 00:00.
    #[arg(long)]
    mac: MacAddress,
    /// P_Key of the machine, such as 0x8001.
    #[arg(long)]
    pkey: Pkey,
    /// Service level of unicast packets, 0 to 15.
    #[arg(long, default_value = "0", value_parser = service_level)]
    sl: ServiceLevel,
    /// Multicast LID of broadcasts, 0xc000 to 0xfffe; without it, broadcasts are dropped.
    #[arg(long, value_parser = multicast_lid)]
    group: Option<MulticastLid>,
    /// Additional partition, as P_Key and multicast LID, such as 0x8002:0xc002; may be repeated.
    #[arg(long, value_name = "PKEY[:GROUP]", value_parser = function_key)]
    further: Vec<FunctionKey>,
    /// Path of the datagram socket that the virtual machine binds.
    #[arg(long)]
    guest: PathBuf,
    /// Path of the datagram socket that the machine sends to; the emulation creates it.
    #[arg(long)]
    fabric: PathBuf,
}

#[derive(Clone, Copy, Debug)]
enum LinkModelChange {
    Off,
    Rate(ModelledRate),
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LinkChange {
    Down,
    Up,
    Flap,
}

pub fn run(args: SimCtlArgs) -> anyhow::Result<()> {
    match control::request(&args.name, &request(args.action)?)? {
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
        Action::Loss { probability, node, port, data } => {
            SimRequest::Loss { probability: probability.into(), node, port, data }
        }
        Action::Errors { node, port, symbol, recovery, receive } => {
            SimRequest::LinkErrors { node, port, symbol, recovery, receive }
        }
        Action::Duplicate { probability } => SimRequest::Duplicate { probability: probability.into() },
        Action::Delay { longest_ms } => SimRequest::Delay { longest_ms },
        Action::Counters { node, port } => SimRequest::Counters { node, port },
        Action::Tables { node } => SimRequest::Tables { node },
        Action::Status => SimRequest::Status {},
        Action::LinkModel { rate: None, .. } => SimRequest::LinkModel {},
        Action::LinkModel { rate: Some(LinkModelChange::Off), latency: None } => {
            SimRequest::ClearLinkModel {}
        }
        Action::LinkModel { rate: Some(LinkModelChange::Off), .. } => {
            bail!("--latency needs a rate of links: without the link model there is no latency")
        }
        Action::LinkModel { rate: Some(LinkModelChange::Rate(rate)), latency } => SimRequest::SetLinkModel {
            rate: rate.to_string(),
            latency_ns: latency.map_or(0, Nanoseconds::ns),
        },
        Action::Attach(args) => SimRequest::Attach {
            node: args.node,
            port: args.port,
            function: args.function,
            mac: args.mac,
            pkey: args.pkey,
            sl: args.sl,
            group: args.group,
            further: args.further,
            // The emulation may have another working directory.
            guest: std::path::absolute(args.guest)?,
            fabric: std::path::absolute(args.fabric)?,
        },
        Action::AttachAdapter(args) => SimRequest::AttachAdapter {
            node: args.node,
            port: args.port,
            function: args.function,
            guid: args.guid,
            pkeys: args.pkeys,
            guest: std::path::absolute(args.guest)?,
            fabric: std::path::absolute(args.fabric)?,
        },
        Action::Detach { node, port, function } => SimRequest::Detach { node, port, function },
        Action::Functions => SimRequest::Functions {},
        Action::Adapters => SimRequest::Adapters {},
    })
}

fn link_change(text: &str) -> Result<LinkModelChange, String> {
    if text == "off" {
        return Ok(LinkModelChange::Off);
    }
    text.parse().map(LinkModelChange::Rate).map_err(|error: ParseModelledRateError| error.to_string())
}

fn service_level(text: &str) -> Result<ServiceLevel, String> {
    let level = text.parse().ok().and_then(ServiceLevel::from_wire);
    level.ok_or_else(|| "a service level must be between 0 and 15".to_owned())
}

fn function_key(text: &str) -> Result<FunctionKey, String> {
    let (key, group) = text.split_once(':').map_or((text, None), |(key, group)| (key, Some(group)));
    let pkey = key.parse().map_err(|_| format!("a P_Key must be a number such as 0x8001, got {key:?}"))?;
    Ok(FunctionKey { pkey, group: group.map(multicast_lid).transpose()? })
}

fn multicast_lid(text: &str) -> Result<MulticastLid, String> {
    let raw = match text.strip_prefix("0x") {
        Some(digits) => u16::from_str_radix(digits, 16),
        None => text.parse(),
    };
    let lid = raw.ok().and_then(MulticastLid::from_wire);
    lid.ok_or_else(|| format!("a multicast LID must be between 0xc000 and 0xfffe, got {text:?}"))
}

fn probability(text: &str) -> Result<Probability, String> {
    let value: f64 = text.parse().map_err(|_| format!("{text:?} is not a number"))?;
    Probability::try_from(value).map_err(|error| error.to_string())
}
