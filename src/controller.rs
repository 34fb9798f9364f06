//! `heddle controller`: keeps what tenants asked for, and makes it so.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use controller::Accept;
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::connection::{API_SOCKET, ENDPOINT_FILE, OPERATOR_TOKEN_FILE};
use crate::cli::output::{count, print};

/// Run the controller: keep what tenants asked for, and make it so.
///
/// Needs a subnet manager that takes its plans (`heddle sm --external-plans`) and the agents of hosts; `heddle up` starts them
/// all on one machine. Users of this machine reach it at the socket `api/heddle.sock` in the state directory; the first
/// start writes a token for the operator to `operator.token` there.
///
///     heddle controller --state /var/lib/heddle --sm-control /run/heddle/sm.sock
///
/// It may be killed at any instant: started again, it goes on where it was.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct ControllerArgs {
    #[command(subcommand)]
    command: Option<ControllerCommand>,
    #[command(flatten)]
    serve: Option<ServeArgs>,
}

/// What can be done besides running the controller.
#[derive(Debug, Subcommand)]
pub enum ControllerCommand {
    /// Seal the private keys in the store with a new key
    ///
    /// The controller must be stopped. The new key takes the place of the old one in the key file; a change that was
    /// interrupted is finished or undone by the next start.
    #[command(after_help = "Example:
  heddle controller rekey --state /var/lib/heddle")]
    Rekey(RekeyArgs),
    /// Go on with a store that was lost or restored from an older copy
    ///
    /// The controller must be stopped. Agents of hosts accept its orders again; all tokens are revoked, and the next start writes
    /// a new one for the operator. Virtual machines that the store does not know keep running: `heddle host unlisted` lists them.
    #[command(after_help = "Example:
  heddle controller recover --state /var/lib/heddle --accept-older-store")]
    Recover(RecoverArgs),
}

/// Arguments of `rekey`.
#[derive(Debug, Args)]
pub struct RekeyArgs {
    /// Directory of the controller's database
    #[arg(long, value_name = "DIR")]
    state: PathBuf,
    /// The key file [default: store.key in the state directory]
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
}

/// Arguments of `recover`.
#[derive(Debug, Args)]
pub struct RecoverArgs {
    /// Directory of the controller's database
    #[arg(long, value_name = "DIR")]
    state: PathBuf,
    /// The key file [default: store.key in the state directory]
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
    /// Directory of its database, the operator's token and the socket it listens at.
    #[arg(long, value_name = "DIR")]
    state: PathBuf,
    /// Listen at this loopback address too, for tunnels. Without TLS, commands cannot tell the controller from another
    /// program that listens there: whoever takes the address while the controller is down receives the tokens
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// The control socket of the subnet manager.
    #[arg(long, value_name = "SOCKET")]
    sm_control: PathBuf,
    /// Where to serve the networks of clusters as tenants see them, for agents of hosts [default: views.sock in the state
    /// directory]
    #[arg(long, value_name = "SOCKET")]
    views: Option<PathBuf>,
    /// The key that private keys in the database are sealed with; keep it where no backup of the state directory goes
    /// [default: the service credential store.key if there is one, else store.key in the state directory]
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
}

/// The file of the key that private keys are sealed with.
const KEY_FILE: &str = "store.key";

pub fn run(args: ControllerArgs) -> anyhow::Result<ExitCode> {
    match (args.command, args.serve) {
        (Some(ControllerCommand::Rekey(args)), _) => rekey(args),
        (Some(ControllerCommand::Recover(args)), _) => recover(args),
        (None, Some(args)) => serve(args),
        (None, None) => bail!("--state and --sm-control are needed"),
    }
}

fn rekey(args: RekeyArgs) -> anyhow::Result<ExitCode> {
    let key_file = args.key_file.unwrap_or_else(|| args.state.join(KEY_FILE));
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?;
    runtime.block_on(controller::rekey(&args.state.join("controller.db"), &key_file))?;
    print(&format!("private keys are sealed with a new key, which is in {}", key_file.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Where the key is: as said, as systemd provides it, or beside the database.
fn key_file(args: &ServeArgs) -> PathBuf {
    let credential = || {
        let directory = std::env::var_os("CREDENTIALS_DIRECTORY")?;
        Some(PathBuf::from(directory).join(KEY_FILE)).filter(|path| path.exists())
    };
    args.key_file.clone().or_else(credential).unwrap_or_else(|| args.state.join(KEY_FILE))
}

fn recover(args: RecoverArgs) -> anyhow::Result<ExitCode> {
    let accept = if args.accept_older_store { Accept::OlderStore } else { Accept::EmptyStore };
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?;
    let key_file = args.key_file.unwrap_or_else(|| args.state.join(KEY_FILE));
    let database = args.state.join("controller.db");
    let recovered = runtime.block_on(controller::recover(&database, &key_file, accept))?;
    print(&format!(
        "epoch {} begins; {} revoked, the next start writes a new one for the operator to {}; \
         `heddle host unlisted` then lists virtual machines that the store does not know",
        recovered.epoch,
        count(usize::try_from(recovered.tokens).unwrap_or(usize::MAX), "token"),
        args.state.join(OPERATOR_TOKEN_FILE).display(),
    ))?;
    Ok(ExitCode::SUCCESS)
}

fn serve(args: ServeArgs) -> anyhow::Result<ExitCode> {
    fs::create_dir_all(&args.state).with_context(|| format!("cannot make {}", args.state.display()))?;
    let settings = controller::Settings {
        key_file: key_file(&args),
        database: args.state.join("controller.db"),
        socket: args.state.join(API_SOCKET),
        listen: args.listen,
        sm_control: args.sm_control,
        views: args.views.unwrap_or_else(|| args.state.join("views.sock")),
        operator_token: args.state.join(OPERATOR_TOKEN_FILE),
        endpoint: args.state.join(ENDPOINT_FILE),
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
