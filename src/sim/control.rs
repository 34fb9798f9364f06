//! The control socket of a running emulation: a request is one line of JSON, a reply too.

use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use control_protocol::SimRequest;
use fabric_model::FunctionKey;
use fabric_sim::{
    AdapterFunction, DeviceId, Fabric, FunctionId, LinkErrors, PortId, Probability, VirtualFunction,
};
use ib_transport::{ServerCounters, Waker};
use ib_wire::PortNum;
use serde_json::{Value, json};

use super::frames::{GuestFrames, SocketPair};
use super::link_model;
use super::request_counts::RequestCounts;
use super::views::FunctionViews;
use crate::control_socket::{self, ControlSocket, PendingRequest};

/// Longest request line in bytes; requests hold little more than names and paths.
const REQUEST_BYTES_MAX: u64 = 16 * 1024;

/// Everything that a request may read and change.
pub struct EmulationState<'a> {
    pub now: Duration,
    pub fabric: &'a mut Fabric,
    pub frames: &'a mut GuestFrames,
    pub views: &'a mut FunctionViews,
    pub counters: &'a ServerCounters,
    pub request_counts: &'a RequestCounts,
}

/// Executes a request and replies.
pub fn answer(command: PendingRequest<SimRequest>, emulation: EmulationState<'_>) {
    if let SimRequest::AdapterView { node, port, function } = &command.request {
        match find_adapter(emulation.fabric, node, *port, *function) {
            Ok(id) => emulation.views.expect(id, command.answers),
            Err(error) => drop(command.answers.send(Err(format!("{error:#}").into()))),
        }
        return;
    }
    let answer = carry_out(command.request, emulation).map_err(|error| format!("{error:#}").into());
    command.answers.send(answer);
}

/// Listens at the control socket of the emulation `name`, and wakes `waker` for each request. Call it after the name of the
/// emulation is bound: a socket that exists then belongs to a process that has ended.
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

/// Listens at a control socket with the given path.
pub fn listen_at(
    path: &Path,
    waker: Waker,
) -> anyhow::Result<(ControlSocket, Receiver<PendingRequest<SimRequest>>)> {
    control_socket::listen(path, REQUEST_BYTES_MAX, waker)
}

/// Sends a request to the emulation of this name; a name with a slash is the path of its control socket.
pub fn request(name: &str, request: &SimRequest) -> anyhow::Result<Value> {
    let path = if name.contains('/') { PathBuf::from(name) } else { socket_path(name)? };
    control_socket::request_one(&path, request).with_context(|| format!("the emulation {name:?}"))
}

/// The path of the control socket, in a directory that only the user of the emulation can enter.
fn socket_path(name: &str) -> anyhow::Result<PathBuf> {
    let plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    ensure!(
        plain && !name.is_empty() && !name.starts_with('.'),
        "a name must consist of letters, digits, -, _ and ., and must not begin with a dot; got {name:?}"
    );
    let directory = match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(runtime) if Path::new(&runtime).is_absolute() => PathBuf::from(runtime).join("heddle"),
        _ => std::env::temp_dir().join(format!("heddle-{}", control_socket::effective_user()?)),
    };
    Ok(directory.join(format!("sim-{name}.sock")))
}

fn carry_out(request: SimRequest, emulation: EmulationState<'_>) -> anyhow::Result<Value> {
    let EmulationState { now, fabric, frames, counters, request_counts, views: _ } = emulation;
    let linked = |linked: bool, what: &str| {
        if linked { Ok(json!(what)) } else { bail!("the port has no cable") }
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
            let probability = Probability::try_from(probability)?;
            let port = match (node, port) {
                (Some(node), Some(port)) => Some(find_port(fabric, &node, port)?),
                (None, None) => None,
                _ => bail!("loss on one link needs both a node and a port"),
            };
            match (port, data) {
                (Some(port), true) => fabric.set_data_loss(port, probability),
                (None, true) => bail!("loss of data packets needs a node and a port"),
                (port, false) => fabric.set_loss(port, probability),
            }
            Ok(json!("loss set"))
        }
        SimRequest::LinkErrors { node, port, symbol, recovery, receive } => {
            let errors = LinkErrors {
                symbol_errors: symbol,
                link_recoveries: recovery,
                receive_errors: receive,
                ..LinkErrors::default()
            };
            fabric.add_link_errors(find_port(fabric, &node, port)?, &errors);
            Ok(json!("errors counted"))
        }
        SimRequest::Duplicate { probability } => {
            fabric.set_duplication(Probability::try_from(probability)?);
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
        SimRequest::LinkModel {} => Ok(json!(link_model::status(fabric))),
        SimRequest::SetLinkModel { rate, latency_ns } => {
            link_model::set(fabric, now, &rate, latency_ns)?;
            Ok(json!(link_model::status(fabric)))
        }
        SimRequest::ClearLinkModel {} => {
            fabric.set_link_model(now, None);
            Ok(json!("link model off"))
        }
        SimRequest::Attach { node, port, function, mac, pkey, sl, group, further, guest, fabric: socket } => {
            let id = FunctionId::new(find_port(fabric, &node, port)?, function);
            let sockets = SocketPair { guest, fabric: socket };
            let keys = [FunctionKey { pkey, group }].into_iter().chain(further).collect();
            frames.attach(fabric, VirtualFunction { id, mac, keys, sl }, &sockets)?;
            Ok(json!("attached"))
        }
        SimRequest::AttachAdapter { node, port, function, guid, pkeys, guest, fabric: socket } => {
            let id = FunctionId::new(find_port(fabric, &node, port)?, function);
            let sockets = SocketPair { guest, fabric: socket };
            frames.attach_adapter(fabric, AdapterFunction { id, guid, keys: pkeys.into() }, &sockets)?;
            Ok(json!("attached"))
        }
        SimRequest::AdapterView { .. } => bail!("it is answered with a stream"),
        SimRequest::Detach { node, port, function } => {
            let id = FunctionId::new(find_port(fabric, &node, port)?, function);
            Ok(json!(if frames.detach(fabric, id) { "detached" } else { "was not attached" }))
        }
        SimRequest::Functions {} => Ok(json!(frames.view(fabric))),
        SimRequest::Adapters {} => Ok(json!(frames.adapters(fabric))),
    }
}

fn find_node(fabric: &Fabric, name: &str) -> anyhow::Result<DeviceId> {
    let mut found = fabric.find_devices(name);
    match (found.next(), found.count()) {
        (Some(node), 0) => Ok(node),
        (Some(_), more) => bail!("{} nodes are called {name:?}: use an id or a GUID", more + 1),
        (None, _) => bail!("no node has the id, description or GUID {name:?}"),
    }
}

/// An attached adapter.
fn find_adapter(fabric: &Fabric, node: &str, port: PortNum, function: u8) -> anyhow::Result<FunctionId> {
    let id = FunctionId::new(find_port(fabric, node, port)?, function);
    ensure!(fabric.has_adapter_function(id), "function {function} of {node:?} has no InfiniBand adapter");
    Ok(id)
}

fn find_port(fabric: &Fabric, name: &str, port: PortNum) -> anyhow::Result<PortId> {
    let node = find_node(fabric, name)?;
    fabric.port_of(node, port).ok_or_else(|| anyhow!("{name:?} has no port {port}"))
}
