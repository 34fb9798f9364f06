//! `heddle controller`: keeps what tenants asked for, and makes it so.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::connection::{ENDPOINT_FILE, OPERATOR_TOKEN_FILE};

/// Run the controller: keep what tenants asked for, and make it so.
///
/// Needs a subnet manager that takes its plans (`heddle sm --guided`) and the agents of hosts; `heddle up` starts them
/// all on one machine. The first start writes a token for the operator to `operator.token` in the state directory.
///
///     heddle controller --state /var/lib/heddle --sm-control /run/heddle/sm.sock
///
/// It may be killed at any instant: started again, it goes on where it was.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct ControllerArgs {
    /// Directory of its database, the operator's token, and the address it listens at.
    #[arg(long, value_name = "DIR")]
    state: PathBuf,
    /// Where to listen: on this machine only, as tokens travel in the clear. Others reach it through a tunnel.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7420")]
    listen: SocketAddr,
    /// The control socket of the subnet manager.
    #[arg(long, value_name = "SOCKET")]
    sm_control: PathBuf,
    /// Where to serve the networks of clusters as tenants see them, for agents of hosts [default: views.sock in the state
    /// directory]
    #[arg(long, value_name = "SOCKET")]
    views: Option<PathBuf>,
}

pub fn run(args: ControllerArgs) -> anyhow::Result<ExitCode> {
    fs::create_dir_all(&args.state).with_context(|| format!("cannot make {}", args.state.display()))?;
    let settings = controller::Settings {
        database: args.state.join("controller.db"),
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
