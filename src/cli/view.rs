//! `heddle view`: inspects and manages the network view of a cluster.

use std::ffi::OsString;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use controller_api::ApiClient;
use controller_api::view::{ClassMapping, ViewStatus};
use ib_transport::framed;
use ib_transport::{Relay, Server};
use tokio::process::Command;

use super::Noun;
use super::cluster::ClusterArgs;
use super::output::{facts, or_dash, table};

/// Preload library that lets stock tools use sockets instead of an adapter, relative to the directory of this program: beside it,
/// where cargo leaves it for tests, and where packages install it.
const OWN_PRELOADS: [&str; 3] =
    ["libheddle_umad.so", "deps/libheddle_umad.so", "../lib/heddle/libheddle_umad.so"];

/// Paths of libumad2sim (Debian package libumad2sim0), for an installation without that library.
const PRELOADS: [&str; 2] =
    ["/usr/lib/x86_64-linux-gnu/umad2sim/libumad2sim.so", "/usr/lib64/umad2sim/libumad2sim.so"];

/// Interval of checking whether the stream is still open.
const TURN: Duration = Duration::from_millis(500);

/// Commands of `heddle view`.
#[derive(Debug, Subcommand)]
pub enum ViewCommand {
    /// Show the names and addresses of the view, and the partitions and service levels that applications use on the wire
    #[command(after_help = "Example:
  heddle view map blue")]
    Map(ClusterArgs),
    /// Show the subnet manager of the view, and the verdict on its latest changes
    #[command(after_help = "Example:
  heddle view status blue -o json")]
    Status(ClusterArgs),
    /// Submit pending changes now, without waiting for half a second without writes
    #[command(after_help = "Example:
  heddle view commit blue")]
    Commit(ClusterArgs),
    /// Run an InfiniBand tool on this machine, as if on an adapter of the cluster
    ///
    /// The tool sees only the view of the cluster. libheddle_umad.so is preloaded into it, if it is installed with this program;
    /// else libumad2sim (Debian package libumad2sim0), which cuts off long answers. The exit status is that of the tool.
    #[command(after_help = "Examples:
  heddle view exec blue -- ibnetdiscover
  heddle view exec blue --node 2 -- smpquery nodeinfo -D 0
  heddle view exec blue -- saquery PR
  heddle view exec blue -- opensm -f opensm.log")]
    Exec(ExecArgs),
}

#[derive(Debug, Args)]
pub struct ExecArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Number of the node whose adapter the tool uses, from 1
    #[arg(long, value_name = "N", default_value_t = 1)]
    node: u32,
    /// Preload library to use instead
    #[arg(long, value_name = "FILE")]
    preload: Option<PathBuf>,
    /// Tool to run, with its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub async fn run(noun: Noun<ViewCommand>) -> anyhow::Result<ExitCode> {
    let (client, format) = (noun.site.client()?, noun.site.format());
    match noun.command {
        ViewCommand::Map(cluster) => format.print(&client.view_show(&cluster.to_ref()?).await?, map)?,
        ViewCommand::Status(cluster) => format.print(&client.view_show(&cluster.to_ref()?).await?, status)?,
        ViewCommand::Commit(cluster) => {
            format.print(&client.view_commit(&cluster.to_ref()?).await?, status)?
        }
        ViewCommand::Exec(args) => return exec(&client, args).await,
    }
    Ok(ExitCode::SUCCESS)
}

fn map(view: &ViewStatus) -> String {
    let nodes = table(
        ["node", "lid", "adapter", "port"],
        view.nodes.iter().map(|node| {
            [node.node.clone(), node.lid.to_string(), node.guid.to_string(), node.port_guid.to_string()]
        }),
    );
    let wire = facts([
        ("partition", view.partition.to_string()),
        ("service level", view.service_level.to_wire().to_string()),
    ]);
    let inside = view.partitions.iter().map(|it| [it.view.to_string(), it.wire.to_string()]);
    let inside = match view.partitions.is_empty() {
        true => String::new(),
        false => format!("\n\n{}", table(["partition here", "on the wire"], inside)),
    };
    let class = |class: &ClassMapping| {
        let seen: Vec<String> = class.view_sls.iter().map(|level| level.to_wire().to_string()).collect();
        let part = format!("{:.1} % of the share", f64::from(class.min_share_permille) / 10.0);
        [seen.join(","), class.wire_sl.to_wire().to_string(), part]
    };
    let classes = match view.classes.is_empty() {
        true => String::new(),
        false => {
            let heads = ["service levels here", "on the wire", "at least"];
            format!("\n\n{}", table(heads, view.classes.iter().map(class)))
        }
    };
    format!("{nodes}\n\non the wire:\n{wire}{inside}{classes}")
}

fn status(view: &ViewStatus) -> String {
    let last = view.last_change.as_ref();
    let word = |name: &str| last.and_then(|last| last[name].as_str()).map(str::to_owned);
    let mut known = vec![
        ("manager", view.managed_by.clone().unwrap_or_else(|| "default".to_owned())),
        ("changes pending", if view.pending { "yes" } else { "no" }.to_owned()),
        ("last change", or_dash(last.map(|last| last["number"].to_string()))),
        ("verdict", or_dash(word("verdict"))),
        ("in force", view.in_force.map_or_else(|| "default".to_owned(), |number| format!("change {number}"))),
    ];
    for part in ["refusal", "adaptations"] {
        let value = last.map(|last| &last[part]).filter(|value| !value.is_null());
        known.extend(value.map(|value| (part, value.to_string())));
    }
    facts(known)
}

async fn exec(client: &ApiClient, args: ExecArgs) -> anyhow::Result<ExitCode> {
    let preload = match args.preload {
        Some(path) => path,
        None => default_preload().context(
            "libheddle_umad.so not found beside this program: name it with --preload, or install the package libumad2sim0",
        )?,
    };
    let stream = client.view_open(&args.cluster.to_ref()?, args.node).await?;
    let (near, far) = UnixStream::pair()?;
    far.set_nonblocking(true)?;
    let mut far = tokio::net::UnixStream::from_std(far)?;
    let mut stream = stream;
    let carried = tokio::spawn(async move {
        // Either side may close the connection at any time.
        let _ = tokio::io::copy_bidirectional(&mut stream, &mut far).await;
    });
    let name = format!("heddle-view-{}", std::process::id());
    let served = name.clone();
    let (ready, is_ready) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || serve(near, &served, ready));
    is_ready.await.context("the view of the cluster does not answer")??;
    let (program, arguments) = args.command.split_first().context("the command is missing")?;
    let child = Command::new(program)
        .args(arguments)
        .env("LD_PRELOAD", preload)
        .env("IBSIM_SOCKNAME", &name)
        .spawn()
        .with_context(|| format!("cannot run {}", program.display()))?;
    let process = child.id();
    let mut child = child;
    let status = child.wait().await?;
    carried.abort();
    if let Some(process) = process {
        // libumad2sim leaves this directory in the working directory.
        let _ = std::fs::remove_dir_all(format!("sys-{process}"));
    }
    match status.code() {
        Some(code) => Ok(ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))),
        None => bail!("{} was terminated: {status}", program.display()),
    }
}

fn default_preload() -> Option<PathBuf> {
    let program = std::env::current_exe().ok();
    let directory = program.as_deref().and_then(Path::parent);
    let own = OWN_PRELOADS.iter().filter_map(|path| Some(directory?.join(path)));
    own.chain(PRELOADS.map(PathBuf::from)).find(|path| path.exists())
}

/// Serves ibsim's sockets for tools until the stream ends.
fn serve(near: UnixStream, name: &str, ready: tokio::sync::oneshot::Sender<anyhow::Result<()>>) {
    let start = || -> anyhow::Result<_> {
        let relay = Relay::new(framed::FramedClient::from_attached_stream(near)?)?;
        let server = Server::bind(name)?;
        server.watch(&relay)?;
        Ok((server, relay))
    };
    let (mut server, mut relay) = match start() {
        Ok(started) => started,
        Err(error) => return drop(ready.send(Err(error))),
    };
    let _ = ready.send(Ok(()));
    while relay.error().is_none() && server.poll_once(&mut relay, TURN).is_ok() {}
}
