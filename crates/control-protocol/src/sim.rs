//! The control socket of `heddle sim`: faults, counters, and the virtual functions of VMs.

use std::collections::BTreeMap;
use std::path::PathBuf;

use fabric_model::{DropReason, FunctionKey, MacAddress};
use ib_wire::{Guid, MulticastLid, Pkey, PortNum, ServiceLevel};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A request to a running emulated fabric. Nodes are named by id, description, node GUID or port GUID.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", deny_unknown_fields)]
pub enum SimRequest {
    /// Pull a cable.
    LinkDown { node: String, port: PortNum },
    /// Plug a cable again.
    LinkUp { node: String, port: PortNum },
    /// Pull a cable, and plug it again after a while.
    LinkFlap { node: String, port: PortNum, down_ms: u64 },
    /// Restart a node: it loses its tables and keys.
    Reboot { node: String },
    /// Change the NodeDescription of a node, as its own software can.
    Rename { node: String, description: String },
    /// Lose packets on every link or, with `node` and `port`, on one. `probability` is between 0 and 1. With `data`, subnet
    /// management is not lost; this needs `node` and `port`.
    Loss {
        probability: f64,
        node: Option<String>,
        port: Option<PortNum>,
        #[serde(default)]
        data: bool,
    },
    /// Add to the error counters of a port, as a bad cable does.
    LinkErrors {
        node: String,
        port: PortNum,
        #[serde(default)]
        symbol: u64,
        #[serde(default)]
        recovery: u64,
        #[serde(default)]
        receive: u64,
    },
    /// Process requests twice, with a probability between 0 and 1.
    Duplicate { probability: f64 },
    /// Delay replies by a random time of up to `longest_ms`.
    Delay { longest_ms: u64 },
    /// Check that the emulation works; answered with `"pong"`.
    Ping {},
    /// Ports of a node, or one of them, with their counters.
    Counters { node: String, port: Option<PortNum> },
    /// Tables of a node.
    Tables { node: String },
    /// Drops, traps, clients and their requests since the start.
    Status {},
    /// Show the link model: [`LinkModelStatus`].
    LinkModel {},
    /// Switch the link model on, or change it. `rate` is a rate such as `20M`, that of every link, or a part of the rate of each
    /// link such as `1/2000`.
    SetLinkModel {
        rate: String,
        #[serde(default)]
        latency_ns: u64,
    },
    /// Switch the link model off.
    ClearLinkModel {},
    /// Attach a VM to a virtual function of an adapter, in place of the VM attached there. The VM binds a datagram socket at
    /// `guest` and sends its frames to `fabric`. Attaching the same VM again changes nothing.
    Attach {
        node: String,
        port: PortNum,
        function: u8,
        mac: MacAddress,
        pkey: Pkey,
        #[serde(default)]
        sl: ServiceLevel,
        #[serde(default)]
        group: Option<MulticastLid>,
        /// Further partitions of the function.
        #[serde(default)]
        further: Vec<FunctionKey>,
        guest: PathBuf,
        fabric: PathBuf,
    },
    /// Attach a VM with an InfiniBand adapter of software to a virtual function, as [`Attach`](Self::Attach). It has the GUID only
    /// while the port has it as an alias.
    AttachAdapter {
        node: String,
        port: PortNum,
        function: u8,
        guid: Guid,
        /// In the order of the adapter's table.
        pkeys: Vec<Pkey>,
        guest: PathBuf,
        fabric: PathBuf,
    },
    /// Open the network view of the VM at a virtual function with an InfiniBand adapter, in place of the one opened before. After the
    /// reply, the connection carries the framed protocol, with the emulation as the client of an adapter of the view that the peer has
    /// attached it to. The peer sends nothing before the reply. The view ends with the connection.
    AdapterView { node: String, port: PortNum, function: u8 },
    /// Detach the VM from a virtual function.
    Detach { node: String, port: PortNum, function: u8 },
    /// List all virtual functions with Ethernet frames: [`FunctionStatus`].
    Functions {},
    /// List all virtual functions with InfiniBand adapters: [`AdapterStatus`].
    Adapters {},
}

/// Rate and latency of links for what VMs send, and what waits there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkModelStatus {
    /// The rate of links, as [`SimRequest::SetLinkModel`] has it; none while the model is off.
    pub rate: Option<String>,
    pub latency_ns: u64,
    /// Frames and packets inside the fabric.
    pub packets: u64,
    /// Bytes of those that wait at ports.
    pub waiting_bytes: u64,
    /// Functions from which nothing is taken until some of that has been sent.
    pub congested_functions: u64,
}

/// A virtual function with an InfiniBand adapter, and the counters of its packets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdapterStatus {
    /// Id of the node in the topology file.
    pub node: String,
    pub port: PortNum,
    pub function: u8,
    pub guid: Guid,
    pub pkeys: Vec<Pkey>,
    pub guest: Option<PathBuf>,
    /// Whether a network view is open for it.
    #[serde(default)]
    pub view: bool,
    pub packets: FrameCounts,
    /// The port at which the last packet stopped, by reason.
    #[serde(default)]
    pub stops: BTreeMap<DropReason, PortLocation>,
}

/// A virtual function with its counters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FunctionStatus {
    /// Id of the node in the topology file.
    pub node: String,
    pub port: PortNum,
    pub function: u8,
    pub mac: MacAddress,
    /// The first P_Key; none if the function has none.
    pub pkey: Option<Pkey>,
    #[serde(default)]
    pub sl: ServiceLevel,
    /// Multicast LID of its broadcasts.
    pub group: Option<MulticastLid>,
    /// Its other P_Keys.
    #[serde(default)]
    pub further: Vec<FunctionKey>,
    /// Sockets of the VM and of the emulator; none while no VM is attached.
    pub guest: Option<PathBuf>,
    #[serde(default)]
    pub fabric: Option<PathBuf>,
    #[serde(default)]
    pub frames: FrameCounts,
    /// The port at which the last frame stopped, by reason.
    #[serde(default)]
    pub stops: BTreeMap<DropReason, PortLocation>,
    /// Events at the VM's socket, for people.
    #[serde(default)]
    pub socket: Value,
}

/// Frames of a virtual function.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FrameCounts {
    pub sent: u64,
    pub received: u64,
    /// Frames it sent, or copies of them, that were not delivered, by reason.
    pub drops: BTreeMap<DropReason, u64>,
}

/// A port of the emulated fabric, by the id of its node in the topology file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortLocation {
    pub node: String,
    pub port: PortNum,
}
