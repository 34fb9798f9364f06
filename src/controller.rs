//! `heddle controller`: stores the clusters that tenants request, and reconciles hosts and fabric with them.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use controller::AcceptedLoss;
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::connection::{API_SOCKET, ENDPOINT_FILE, OPERATOR_TOKEN_FILE};
use crate::cli::output::{count, print};
use crate::hardware::HardwareArgs;

/// Run the controller: store the clusters that tenants request, and reconcile hosts and fabric with them.
///
/// It needs a subnet manager that takes its plans (`heddle sm --external-plans`) and an agent on each host; `heddle up`
/// starts all of them on one machine. Local users connect to the socket `api/heddle.sock` in the state directory; the
/// first start writes a token for the operator to `operator.token` there.
///
///     heddle controller --state /var/lib/heddle --sm-control /run/heddle/sm.sock
///
/// It may be killed at any time: after a restart it continues where it was.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct ControllerArgs {
    #[command(subcommand)]
    command: Option<ControllerCommand>,
    #[command(flatten)]
    serve: Option<ServeArgs>,
    // Inside of the optional arguments, clap would not notice that any of them are given.
    #[command(flatten)]
    hardware: HardwareArgs,
}

/// Maintenance commands.
#[derive(Debug, Subcommand)]
pub enum ControllerCommand {
    /// Encrypt the private keys in the store with a new key
    ///
    /// The controller must be stopped. The new key replaces the old one in the key file. If the command is interrupted, the
    /// next start finishes or undoes the change.
    #[command(after_help = "Example:
  heddle controller rekey --state /var/lib/heddle")]
    Rekey(RekeyArgs),
    /// Continue with a store that was lost or restored from an older copy
    ///
    /// The controller must be stopped. Agents accept its host specs again; all tokens are revoked, and the next start writes a
    /// new one for the operator. Virtual machines that the store does not list keep running: see `heddle host unlisted`.
    #[command(after_help = "Example:
  heddle controller recover --state /var/lib/heddle --accept-older-store")]
    Recover(RecoverArgs),
}

#[derive(Debug, Args)]
pub struct RekeyArgs {
    /// State directory of the controller
    #[arg(long, value_name = "DIR")]
    state: PathBuf,
    /// Key file [default: store.key in the state directory]
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct RecoverArgs {
    /// State directory of the controller
    #[arg(long, value_name = "DIR")]
    state: PathBuf,
    /// Key file [default: store.key in the state directory]
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Accept that everything after this copy of the store is lost
    #[arg(long, conflicts_with = "accept_empty_store", required_unless_present = "accept_empty_store")]
    accept_older_store: bool,
    /// Accept that everything in the store is lost
    #[arg(long)]
    accept_empty_store: bool,
}

/// Arguments of the controller itself.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// State directory: database, token of the operator, and socket.
    #[arg(long, value_name = "DIR")]
    state: PathBuf,
    /// Also listen at this loopback address, such as 127.0.0.1:8080, for tunnels. There is no TLS: a program that listens
    /// there while the controller is down receives the tokens of clients
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Control socket of the subnet manager. Given several times, once for each declared manager: the controller follows the master.
    #[arg(long, value_name = "SOCKET", required = true)]
    sm_control: Vec<PathBuf>,
    /// Unix socket that serves the network views of clusters to agents [default: views.sock in the state directory]
    #[arg(long, value_name = "SOCKET")]
    views: Option<PathBuf>,
    /// Part of every link that is kept for best effort beside guaranteed clusters, in percent; with 0, best effort has one
    /// packet per round of a link's arbitration table
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=90))]
    best_effort_share: u8,
    /// File with the key that encrypts private keys in the database; keep it out of backups of the state directory
    /// [default: the service credential store.key if there is one, else store.key in the state directory]
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
}

/// Name of the file with the key that encrypts private keys.
const KEY_FILE: &str = "store.key";

pub fn run(args: ControllerArgs) -> anyhow::Result<ExitCode> {
    match (args.command, args.serve) {
        (Some(ControllerCommand::Rekey(args)), _) => rekey(args),
        (Some(ControllerCommand::Recover(args)), _) => recover(args),
        (None, Some(serve_args)) => serve(serve_args, args.hardware),
        (None, None) => bail!("--state and --sm-control are required"),
    }
}

fn rekey(args: RekeyArgs) -> anyhow::Result<ExitCode> {
    let key_file = args.key_file.unwrap_or_else(|| args.state.join(KEY_FILE));
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?;
    runtime.block_on(controller::rekey(&args.state.join("controller.db"), &key_file))?;
    print(&format!("private keys are encrypted with a new key, which is in {}", key_file.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// The key file: the argument, else the credential of systemd, else the one in the state directory.
fn key_file(args: &ServeArgs) -> PathBuf {
    let credential = || {
        let directory = std::env::var_os("CREDENTIALS_DIRECTORY")?;
        Some(PathBuf::from(directory).join(KEY_FILE)).filter(|path| path.exists())
    };
    args.key_file.clone().or_else(credential).unwrap_or_else(|| args.state.join(KEY_FILE))
}

fn recover(args: RecoverArgs) -> anyhow::Result<ExitCode> {
    let accept = if args.accept_older_store { AcceptedLoss::OlderStore } else { AcceptedLoss::EmptyStore };
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?;
    let key_file = args.key_file.unwrap_or_else(|| args.state.join(KEY_FILE));
    let database = args.state.join("controller.db");
    let recovered = runtime.block_on(controller::recover(&database, &key_file, accept))?;
    print(&format!(
        "epoch {} begins; {} revoked, the next start writes a new one for the operator to {}; \
         `heddle host unlisted` then lists virtual machines that are not in the store",
        recovered.epoch,
        count(usize::try_from(recovered.tokens).unwrap_or(usize::MAX), "token"),
        args.state.join(OPERATOR_TOKEN_FILE).display(),
    ))?;
    Ok(ExitCode::SUCCESS)
}

fn serve(args: ServeArgs, hardware: HardwareArgs) -> anyhow::Result<ExitCode> {
    fs::create_dir_all(&args.state).with_context(|| format!("cannot create {}", args.state.display()))?;
    let settings = controller::ControllerSettings {
        key_file: key_file(&args),
        database: args.state.join("controller.db"),
        socket: args.state.join(API_SOCKET),
        listen: args.listen,
        sm_controls: args.sm_control,
        hardware: hardware.stated(),
        view_socket: args.views.unwrap_or_else(|| args.state.join("views.sock")),
        operator_token_file: args.state.join(OPERATOR_TOKEN_FILE),
        address_file: args.state.join(ENDPOINT_FILE),
        best_effort_percent: args.best_effort_share,
        clock: controller::SystemClock::start(),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.context("cannot start")?.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let stop = async move {
            tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
        };
        controller::serve(settings, stop).await
    })?;
    Ok(ExitCode::SUCCESS)
}
