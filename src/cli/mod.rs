//! Commands that use the controller, one file per noun.

mod check;
mod choices;
pub mod cluster;
pub mod connection;
pub mod event;
pub mod exec;
pub mod fabric;
pub mod host;
pub mod image;
pub mod output;
pub mod partition;
pub mod progress;
pub mod ssh;
pub mod tenant;
pub mod token;
pub mod view;
mod wait;

use std::error::Error;
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use clap::{Args, Subcommand};
use controller_api::ClientError;

use connection::SiteArgs;

/// A noun with its command and the controller to use.
#[derive(Debug, Args)]
pub struct Noun<C: Subcommand> {
    #[command(subcommand)]
    pub command: C,
    #[command(flatten)]
    pub site: SiteArgs,
}

/// Runs a command on a single-threaded runtime.
pub fn block_on(command: impl Future<Output = anyhow::Result<ExitCode>>) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("cannot start the async runtime")?;
    let outcome = runtime.block_on(command);
    // A thread may still be reading standard input.
    runtime.shutdown_background();
    outcome.map_err(plain)
}

/// Adds a hint to an unreachable controller.
fn plain(error: anyhow::Error) -> anyhow::Error {
    match error.downcast_ref::<ClientError>() {
        Some(unreachable @ ClientError::Unreachable { source, .. }) => {
            anyhow!("{unreachable} ({}): `heddle up` starts one on this machine", innermost(source.as_ref()))
        }
        _ => error,
    }
}

fn innermost<'a>(error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    error.source().map_or(error, innermost)
}

#[cfg(test)]
mod tests {
    use super::*;
    use controller_api::{ApiClient, TrustedUsers};

    #[test]
    fn an_unreachable_controller_is_one_line_with_a_hint() {
        // Bound and dropped: no program listens there.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let endpoint = format!("http://127.0.0.1:{port}").parse().unwrap();
        let client = ApiClient::new(endpoint, TrustedUsers::new(None), "token".into());
        let outcome = block_on(async move {
            client.cluster_list().await?;
            Ok(ExitCode::SUCCESS)
        });
        let text = format!("{:#}", outcome.unwrap_err());
        let expected = format!("cannot reach a controller at http://127.0.0.1:{port} (Connection refused");
        assert!(text.starts_with(&expected) && text.contains("heddle up"), "{text}");
    }
}
