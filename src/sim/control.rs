//! The control socket of a running emulation: one line of JSON asks, one line of JSON answers.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use fabric_sim::{DeviceId, Fabric, PortId, Probability};
use ib_transport::{Counters, Waker};
use ib_wire::PortNum;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Longest request line: node names are short, so anything longer is nonsense.
const REQUEST_BYTES_MAX: u64 = 16 * 1024;

/// Connections served at once.
const CONNECTIONS_MAX: usize = 16;

/// How long a connection may keep the control socket waiting.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// What can be asked of a running emulation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Pull a cable.
    LinkDown { node: String, port: PortNum },
    /// Plug it again.
    LinkUp { node: String, port: PortNum },
    /// Pull it and plug it again after a while.
    LinkFlap { node: String, port: PortNum, down_ms: u64 },
    /// Restart a node: it loses its tables and keys.
    Reboot { node: String },
    /// Lose packets on every link, or on the link of one port.
    Loss { probability: Probability, node: Option<String>, port: Option<PortNum> },
    /// Handle requests twice.
    Duplicate { probability: Probability },
    /// Hold answers back.
    Delay { longest_ms: u64 },
    /// The ports of a node, or one of them, with their counters.
    Counters { node: String, port: Option<PortNum> },
    /// The tables of a node.
    Tables { node: String },
    /// What was dropped and reported, and what clients did.
    Status,
}

/// A request on its way to the thread that owns the fabric.
#[derive(Debug)]
pub struct Command {
    request: Request,
    reply: Sender<Result<Value, String>>,
}

impl Command {
    /// Carries the request out and answers it.
    pub fn answer(self, now: Duration, fabric: &mut Fabric, counters: &Counters) {
        let answer = carry_out(&self.request, now, fabric, counters).map_err(|error| format!("{error:#}"));
        // Whoever asked may have gone; what was done stays done.
        let _ = self.reply.send(answer);
    }
}

/// The control socket while it is served; removed when dropped.
#[derive(Debug)]
pub struct Control {
    path: PathBuf,
}

impl Drop for Control {
    fn drop(&mut self) {
        // A file that stays behind is replaced by the next emulation of the same name.
        let _ = fs::remove_file(&self.path);
    }
}

/// Opens the control socket of the emulation `name`; `waker` is used whenever a command waits.
pub fn listen(name: &str, waker: Waker) -> anyhow::Result<(Control, Receiver<Command>)> {
    let path = socket_path(name)?;
    if let Some(directory) = path.parent() {
        own_directory(directory)?;
    }
    // The name of the emulation is taken already, so a socket that is there belongs to a dead one.
    match fs::remove_file(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot replace {}", path.display()));
        }
        _ => {}
    }
    let listener =
        UnixListener::bind(&path).with_context(|| format!("cannot listen at {}", path.display()))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
    let (sender, commands) = mpsc::channel();
    let connections = Arc::new(());
    std::thread::Builder::new().name("control".into()).spawn(move || {
        for stream in listener.incoming().flatten() {
            let (sender, waker) = (sender.clone(), waker.clone());
            // One that dawdles is cut off by its time limit; the others need not wait for it.
            while Arc::strong_count(&connections) > CONNECTIONS_MAX {
                std::thread::sleep(Duration::from_millis(10));
            }
            let connection = Arc::clone(&connections);
            let served = std::thread::Builder::new().name("control".into()).spawn(move || {
                let _connection = connection;
                if let Err(error) = serve(stream, &sender, &waker) {
                    tracing::info!("control connection: {error:#}");
                }
            });
            if let Err(error) = served {
                tracing::warn!("cannot serve a control connection: {error}");
            }
        }
    })?;
    Ok((Control { path }, commands))
}

/// Asks a running emulation.
pub fn ask(name: &str, request: &Request) -> anyhow::Result<Value> {
    let path = socket_path(name)?;
    let mut stream = UnixStream::connect(&path)
        .with_context(|| format!("no emulation named {name:?} answers at {}", path.display()))?;
    stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
    writeln!(stream, "{}", serde_json::to_string(request)?)?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).context("the emulation did not answer")?;
    match serde_json::from_str(&line).context("the emulation answered nonsense")? {
        Reply::Ok(value) => Ok(value),
        Reply::Error(text) => Err(anyhow!(text)),
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Reply {
    Ok(Value),
    Error(String),
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
        _ => std::env::temp_dir().join(format!("heddle-{}", owner()?)),
    };
    Ok(directory.join(format!("sim-{name}.sock")))
}

/// Makes sure that a directory is there and that nobody but this user can enter it, or put something else in its place.
fn own_directory(directory: &Path) -> anyhow::Result<()> {
    let place = directory.display();
    match fs::DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            return Err(error).with_context(|| format!("cannot make {place}"));
        }
        _ => {}
    }
    let found = fs::symlink_metadata(directory).with_context(|| format!("cannot look at {place}"))?;
    let private = found.is_dir() && found.uid() == owner()? && found.mode() & 0o077 == 0;
    ensure!(private, "{place} is not a directory that only its owner can enter: remove it, or chmod 700");
    Ok(())
}

/// The user this process runs as.
fn owner() -> anyhow::Result<u32> {
    Ok(fs::metadata("/proc/self").context("cannot tell who runs this")?.uid())
}

fn serve(mut stream: UnixStream, commands: &Sender<Command>, waker: &Waker) -> anyhow::Result<()> {
    stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
    stream.set_write_timeout(Some(REQUEST_TIMEOUT))?;
    let mut line = String::new();
    BufReader::new(stream.try_clone()?.take(REQUEST_BYTES_MAX)).read_line(&mut line)?;
    let reply = match serde_json::from_str(&line) {
        Ok(request) => match hand_over(request, commands, waker) {
            Ok(value) => Reply::Ok(value),
            Err(error) => Reply::Error(error),
        },
        Err(error) => Reply::Error(format!("not a request: {error}")),
    };
    writeln!(stream, "{}", serde_json::to_string(&reply)?)?;
    Ok(())
}

fn hand_over(request: Request, commands: &Sender<Command>, waker: &Waker) -> Result<Value, String> {
    let (reply, answer) = mpsc::channel();
    let gone = || "the emulation is stopping".to_string();
    commands.send(Command { request, reply }).map_err(|_| gone())?;
    waker.wake();
    answer.recv_timeout(REQUEST_TIMEOUT).map_err(|_| gone())?
}

fn carry_out(
    request: &Request,
    now: Duration,
    fabric: &mut Fabric,
    counters: &Counters,
) -> anyhow::Result<Value> {
    let linked = |linked: bool, what: &str| {
        if linked { Ok(json!(what)) } else { bail!("that port has no cable") }
    };
    match request {
        Request::LinkDown { node, port } => {
            linked(fabric.unplug(now, find_port(fabric, node, *port)?), "link down")
        }
        Request::LinkUp { node, port } => {
            linked(fabric.plug(now, find_port(fabric, node, *port)?), "link up")
        }
        Request::LinkFlap { node, port, down_ms } => {
            let port = find_port(fabric, node, *port)?;
            linked(fabric.flap(now, port, Duration::from_millis(*down_ms)), "link flaps")
        }
        Request::Reboot { node } => {
            fabric.reboot(now, find_node(fabric, node)?);
            Ok(json!("rebooted"))
        }
        Request::Loss { probability, node, port } => {
            let port = match (node, port) {
                (Some(node), Some(port)) => Some(find_port(fabric, node, *port)?),
                (None, None) => None,
                _ => bail!("loss of one link needs both its node and its port"),
            };
            fabric.set_loss(port, *probability);
            Ok(json!("loss set"))
        }
        Request::Duplicate { probability } => {
            fabric.set_duplication(*probability);
            Ok(json!("duplication set"))
        }
        Request::Delay { longest_ms } => {
            fabric.set_delay_max(Duration::from_millis(*longest_ms));
            Ok(json!("delay set"))
        }
        Request::Counters { node, port: None } => Ok(json!(fabric.device_view(find_node(fabric, node)?))),
        Request::Counters { node, port: Some(port) } => {
            Ok(json!(fabric.port_view(find_port(fabric, node, *port)?)))
        }
        Request::Tables { node } => Ok(json!(fabric.table_view(find_node(fabric, node)?))),
        Request::Status => Ok(json!({ "fabric": fabric.statistics(), "clients": counters })),
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
