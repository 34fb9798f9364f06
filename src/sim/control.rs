//! The control socket of a running emulation: one line of JSON asks, one line of JSON answers.

use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use fabric_model::MacAddress;
use fabric_sim::{DeviceId, Fabric, FunctionId, FunctionKey, PortId, Probability, VirtualFunction};
use ib_transport::{Counters, Waker};
use ib_wire::{MulticastLid, Pkey, PortNum, ServiceLevel};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::frames::{GuestFrames, GuestSockets};
use super::request_counts::RequestCounts;
use crate::control_socket::{self, ControlSocket, PendingRequest};

/// Longest request line: node names are short, so anything longer is nonsense.
const REQUEST_BYTES_MAX: u64 = 16 * 1024;

/// What can be asked of a running emulation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", deny_unknown_fields)]
pub enum SimRequest {
    /// Pull a cable.
    LinkDown { node: String, port: PortNum },
    /// Plug it again.
    LinkUp { node: String, port: PortNum },
    /// Pull it and plug it again after a while.
    LinkFlap { node: String, port: PortNum, down_ms: u64 },
    /// Restart a node: it loses its tables and keys.
    Reboot { node: String },
    /// Let a node call itself something else, as its own software can.
    Rename { node: String, description: String },
    /// Lose packets on every link, or on the link of one port.
    Loss {
        probability: Probability,
        node: Option<String>,
        port: Option<PortNum>,
        #[serde(default)]
        data: bool,
    },
    /// Handle requests twice.
    Duplicate { probability: Probability },
    /// Hold answers back.
    Delay { longest_ms: u64 },
    /// Whether the emulation works.
    Ping {},
    /// The ports of a node, or one of them, with their counters.
    Counters { node: String, port: Option<PortNum> },
    /// The tables of a node.
    Tables { node: String },
    /// What was dropped and reported, what clients did, and what they asked for.
    Status {},
    /// Put a virtual machine behind a virtual function of an adapter, in place of the one that was there. The machine
    /// binds a datagram socket at `guest` and sends its frames to `fabric`.
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
        /// Partitions that it is in besides.
        #[serde(default)]
        further: Vec<FunctionKey>,
        guest: PathBuf,
        fabric: PathBuf,
    },
    /// Take it away again.
    Detach { node: String, port: PortNum, function: u8 },
    /// All virtual functions, with what became of their frames.
    Functions {},
}

/// Everything a request may look at and change.
pub struct EmulationState<'a> {
    pub now: Duration,
    pub fabric: &'a mut Fabric,
    pub frames: &'a mut GuestFrames,
    pub counters: &'a Counters,
    pub request_counts: &'a RequestCounts,
}

/// Carries a request out and answers it.
pub fn answer(command: PendingRequest<SimRequest>, emulation: EmulationState<'_>) {
    let answer = carry_out(command.request, emulation).map_err(|error| format!("{error:#}").into());
    command.answers.send(answer);
}

/// Opens the control socket of the emulation `name`; `waker` is used whenever a command waits. The name of the
/// emulation is taken already, so a socket that is there belongs to a dead one.
pub fn listen(
    name: &str,
    waker: Waker,
) -> anyhow::Result<(ControlSocket, Receiver<PendingRequest<SimRequest>>)> {
    let path = socket_path(name)?;
    if let Some(directory) = path.parent() {
        control_socket::create_private_directory(directory)?;
    }
    control_socket::listen(&path, REQUEST_BYTES_MAX, waker)
}

/// Opens a control socket at a place of the caller's choosing.
pub fn listen_at(
    path: &Path,
    waker: Waker,
) -> anyhow::Result<(ControlSocket, Receiver<PendingRequest<SimRequest>>)> {
    control_socket::listen(path, REQUEST_BYTES_MAX, waker)
}

/// Asks a running emulation, by its name or by the path of its control socket, which has a slash.
pub fn ask(name: &str, request: &SimRequest) -> anyhow::Result<Value> {
    let path = if name.contains('/') { PathBuf::from(name) } else { socket_path(name)? };
    control_socket::request_one(&path, request).with_context(|| format!("the emulation {name:?}"))
}

/// In a directory only its owner can enter: whoever may act on a fabric is whoever runs it.
fn socket_path(name: &str) -> anyhow::Result<PathBuf> {
    let plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    ensure!(
        plain && !name.is_empty() && !name.starts_with('.'),
        "{name:?} is not a name: letters, digits, - _ ."
    );
    let directory = match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(runtime) if Path::new(&runtime).is_absolute() => PathBuf::from(runtime).join("heddle"),
        _ => std::env::temp_dir().join(format!("heddle-{}", control_socket::effective_user()?)),
    };
    Ok(directory.join(format!("sim-{name}.sock")))
}

fn carry_out(request: SimRequest, emulation: EmulationState<'_>) -> anyhow::Result<Value> {
    let EmulationState { now, fabric, frames, counters, request_counts } = emulation;
    let linked = |linked: bool, what: &str| {
        if linked { Ok(json!(what)) } else { bail!("that port has no cable") }
    };
    match request {
        SimRequest::LinkDown { node, port } => {
            linked(fabric.unplug(now, find_port(fabric, &node, port)?), "link down")
        }
        SimRequest::LinkUp { node, port } => {
            linked(fabric.plug(now, find_port(fabric, &node, port)?), "link up")
        }
        SimRequest::LinkFlap { node, port, down_ms } => {
            let port = find_port(fabric, &node, port)?;
            linked(fabric.flap(now, port, Duration::from_millis(down_ms)), "link flaps")
        }
        SimRequest::Reboot { node } => {
            fabric.reboot(now, find_node(fabric, &node)?);
            Ok(json!("rebooted"))
        }
        SimRequest::Rename { node, description } => {
            fabric.rename(now, find_node(fabric, &node)?, &description);
            Ok(json!("renamed"))
        }
        SimRequest::Loss { probability, node, port, data } => {
            let port = match (node, port) {
                (Some(node), Some(port)) => Some(find_port(fabric, &node, port)?),
                (None, None) => None,
                _ => bail!("loss of one link needs both its node and its port"),
            };
            match (port, data) {
                (Some(port), true) => fabric.set_data_loss(port, probability),
                (None, true) => bail!("loss of data needs a node and its port"),
                (port, false) => fabric.set_loss(port, probability),
            }
            Ok(json!("loss set"))
        }
        SimRequest::Duplicate { probability } => {
            fabric.set_duplication(probability);
            Ok(json!("duplication set"))
        }
        SimRequest::Delay { longest_ms } => {
            fabric.set_delay_max(Duration::from_millis(longest_ms));
            Ok(json!("delay set"))
        }
        SimRequest::Ping {} => Ok(json!("pong")),
        SimRequest::Counters { node, port: None } => Ok(json!(fabric.device_view(find_node(fabric, &node)?))),
        SimRequest::Counters { node, port: Some(port) } => {
            Ok(json!(fabric.port_view(find_port(fabric, &node, port)?)))
        }
        SimRequest::Tables { node } => Ok(json!(fabric.table_view(find_node(fabric, &node)?))),
        SimRequest::Status {} => {
            let (statistics, requests) = (fabric.statistics(), request_counts.view(fabric));
            Ok(json!({ "fabric": statistics, "clients": counters, "requests": requests }))
        }
        SimRequest::Attach { node, port, function, mac, pkey, sl, group, further, guest, fabric: socket } => {
            let id = FunctionId::new(find_port(fabric, &node, port)?, function);
            let sockets = GuestSockets { guest, fabric: socket };
            let keys = [FunctionKey { pkey, group }].into_iter().chain(further).collect();
            frames.attach(fabric, VirtualFunction { id, mac, keys, sl }, &sockets)?;
            Ok(json!("attached"))
        }
        SimRequest::Detach { node, port, function } => {
            let id = FunctionId::new(find_port(fabric, &node, port)?, function);
            Ok(json!(if frames.detach(fabric, id) { "detached" } else { "was not attached" }))
        }
        SimRequest::Functions {} => Ok(frames.view(fabric)),
    }
}

fn find_node(fabric: &Fabric, name: &str) -> anyhow::Result<DeviceId> {
    let mut found = fabric.find_devices(name);
    match (found.next(), found.count()) {
        (Some(node), 0) => Ok(node),
        (Some(_), more) => bail!("{} nodes are called {name:?}: name one by its id or GUID", more + 1),
        (None, _) => bail!("no node has the id, description or GUID {name:?}"),
    }
}

fn find_port(fabric: &Fabric, name: &str, port: PortNum) -> anyhow::Result<PortId> {
    let node = find_node(fabric, name)?;
    fabric.port_of(node, port).ok_or_else(|| anyhow!("{name:?} has no port {port}"))
}
