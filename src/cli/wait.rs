//! Waits for an operation of the controller.

use std::time::Duration;

use anyhow::{bail, ensure};
use clap::Args;
use controller_api::cluster::{Cluster, NodeState};
use controller_api::operation::{Operation, OperationKind, OperationState};
use controller_api::{ApiClient, ClientError, ClusterRef};
use jiff::SignedDuration;
use tokio::time::Instant;

use super::output::took;
use super::progress::WaitProgress;

/// Interval of polling the controller.
const POLL_INTERVAL: Duration = Duration::from_millis(300);

/// Longest time that the controller may be unreachable: it may be restarting, and then continues the operation.
const AWAY_MAX: Duration = Duration::from_secs(60);

/// Arguments of commands that wait for an operation.
#[derive(Debug, Args)]
pub struct WaitArgs {
    /// Wait until the operation is done; this is the default
    #[arg(long, overrides_with = "no_wait")]
    wait: bool,
    /// Return as soon as the controller has accepted the request
    #[arg(long)]
    no_wait: bool,
    /// Longest time to wait, such as 90s, 15m or 1h; the operation continues afterwards
    #[arg(long, value_name = "TIME", default_value = "15m", value_parser = duration)]
    timeout: Duration,
}

impl WaitArgs {
    /// The longest time to wait; `None` with --no-wait.
    pub fn limit(&self) -> Option<Duration> {
        (self.wait || !self.no_wait).then_some(self.timeout)
    }
}

/// The result of waiting for an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The operation has succeeded.
    Done(Operation),
    /// Ctrl-C was pressed; the operation continues.
    Interrupted,
}

/// Waits for an operation and shows its progress; an operation that fails is an error.
pub async fn follow(client: &ApiClient, operation: Operation, limit: Duration) -> anyhow::Result<Ended> {
    tokio::select! {
        ended = watch(client, operation, limit) => ended.map(Ended::Done),
        _ = tokio::signal::ctrl_c() => Ok(Ended::Interrupted),
    }
}

async fn watch(client: &ApiClient, operation: Operation, limit: Duration) -> anyhow::Result<Operation> {
    let cluster = ClusterRef { name: operation.cluster.clone(), tenant: Some(operation.tenant.clone()) };
    let progress = WaitProgress::new(&format!("{}: {}", operation.cluster, doing(operation.kind)));
    let (mut latest, mut shown, mut answered) = (operation, 0, Instant::now());
    let mut state_line = doing(latest.kind).to_owned();
    loop {
        for step in latest.steps.iter().skip(shown) {
            let since = Duration::try_from(step.at.duration_since(latest.started)).unwrap_or_default();
            progress.reached_after(since, &format!("{} {}", latest.cluster, step.phase));
        }
        shown = shown.max(latest.steps.len());
        match latest.state {
            OperationState::Running => {}
            OperationState::Done => return Ok(latest),
            OperationState::Failed => bail!("{}", failure(&latest)),
        }
        ensure!(
            progress.elapsed() < limit,
            "{} of {} is not done after {} ({state_line}); it continues: see `heddle cluster show {}`",
            noun(latest.kind),
            latest.cluster,
            took(limit),
            latest.cluster
        );
        tokio::time::sleep(POLL_INTERVAL).await;
        match client.operation_show(latest.id).await {
            Ok(operation) => (latest, answered) = (operation, Instant::now()),
            Err(error @ ClientError::Unreachable { .. }) if answered.elapsed() > AWAY_MAX => {
                return Err(error.into());
            }
            Err(ClientError::Unreachable { .. }) => {
                progress.waits_for("the controller does not answer; it may be restarting");
                continue;
            }
            Err(error) => return Err(error.into()),
        }
        // A deleted cluster has no state; the operation says how it ended.
        if latest.state == OperationState::Running
            && let Ok(cluster) = client.cluster_show(&cluster).await
        {
            state_line = progress_line(&cluster);
            progress.waits_for(&state_line);
        }
    }
}

/// The state of a cluster and what it waits for, in one line.
fn progress_line(cluster: &Cluster) -> String {
    let ready = cluster.nodes.iter().filter(|node| node.state == NodeState::Ready).count();
    let (name, phase, size) = (&cluster.name, cluster.phase, cluster.shape.size);
    let reason = cluster.reason.as_ref().map_or_else(String::new, |reason| format!(", {reason}"));
    format!("{name} {phase}: {ready} of {size} nodes ready{reason}")
}

fn doing(kind: OperationKind) -> &'static str {
    match kind {
        OperationKind::Create => "creating",
        OperationKind::Resize => "resizing",
        OperationKind::Partition => "partitioning",
        OperationKind::Delete => "deleting",
    }
}

fn noun(kind: OperationKind) -> &'static str {
    match kind {
        OperationKind::Create => "creation",
        OperationKind::Resize => "resizing",
        OperationKind::Partition => "partitioning",
        OperationKind::Delete => "deletion",
    }
}

fn failure(operation: &Operation) -> String {
    let what = match operation.kind {
        OperationKind::Create => "created",
        OperationKind::Resize => "resized",
        OperationKind::Partition => "partitioned",
        OperationKind::Delete => "deleted",
    };
    let reason = operation.reason.as_deref().unwrap_or("the controller did not say why");
    format!("cluster {} could not be {what}: {reason}", operation.cluster)
}

/// Parses `90s`, `15m`, `1h 30m`.
fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("expected a time such as 90s, 15m or 1h, got {text:?}");
    let parsed: SignedDuration = text.parse().map_err(|_| wrong())?;
    Duration::try_from(parsed).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Waiting {
        #[command(flatten)]
        wait: WaitArgs,
    }

    fn limit(arguments: &[&str]) -> Option<Duration> {
        Waiting::try_parse_from([&["x"], arguments].concat()).unwrap().wait.limit()
    }

    #[test]
    fn commands_wait_unless_told_not_to_and_the_last_word_counts() {
        assert_eq!(limit(&[]), Some(Duration::from_secs(900)));
        assert_eq!(limit(&["--wait", "--timeout", "90s"]), Some(Duration::from_secs(90)));
        assert_eq!(limit(&["--no-wait"]), None);
        assert_eq!(limit(&["--no-wait", "--wait"]), Some(Duration::from_secs(900)));
    }

    #[test]
    fn times_are_written_with_their_unit() {
        assert_eq!(duration("1h 30m"), Ok(Duration::from_secs(5400)));
        for bad in ["", "90", "-5s", "soon"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }
}
