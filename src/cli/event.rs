//! `heddle event`: lists and follows events.

use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use controller_api::event::Event;
use controller_api::{ApiClient, ClientError};

use super::Noun;
use super::output::{self, Format, harmless, or_dash, table};

/// Interval of retries while the controller does not answer.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Commands of `heddle event`.
#[derive(Debug, Subcommand)]
pub enum EventCommand {
    /// List the latest events
    #[command(after_help = "Examples:
  heddle event list
  heddle event list --after 120")]
    List {
        /// Show only events after this number
        #[arg(long, value_name = "NUMBER")]
        after: Option<i64>,
    },
    /// Print events as they happen, until Ctrl-C
    #[command(after_help = "Examples:
  heddle event watch
  heddle event watch -o json | jq -r .text")]
    Watch {
        /// Begin with the event after this number [default: new events only]
        #[arg(long, value_name = "NUMBER")]
        after: Option<i64>,
    },
}

pub async fn run(noun: Noun<EventCommand>) -> anyhow::Result<ExitCode> {
    let (client, format) = (noun.site.client()?, noun.site.format());
    match noun.command {
        EventCommand::List { after } => {
            format.print(&client.event_list(after, false).await?, |events| list(events))?
        }
        EventCommand::Watch { after } => watch(&client, format, after).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn watch(client: &ApiClient, format: Format, after: Option<i64>) -> anyhow::Result<()> {
    let mut last = match after {
        Some(after) => after,
        None => client.event_list(None, false).await?.iter().map(|event| event.number).max().unwrap_or(0),
    };
    loop {
        match client.event_list(Some(last), true).await {
            Ok(events) => {
                for event in events {
                    last = last.max(event.number);
                    format.print_next(&event, line)?;
                }
            }
            // The controller may be restarting; the number says where to continue.
            Err(ClientError::Unreachable { .. }) => tokio::time::sleep(RETRY_INTERVAL).await,
            Err(error) => return Err(error.into()),
        }
    }
}

fn list(events: &[Event]) -> String {
    table(
        ["number", "time", "tenant", "cluster", "kind", "text"],
        events.iter().map(|event| {
            [
                event.number.to_string(),
                output::time(event.at),
                or_dash(event.tenant.as_ref()),
                or_dash(event.cluster.as_ref()),
                event.kind.clone(),
                event.text.clone(),
            ]
        }),
    )
}

fn line(event: &Event) -> String {
    let whose = match (&event.tenant, &event.cluster) {
        (Some(tenant), Some(cluster)) => format!("{tenant}/{cluster} "),
        (Some(tenant), None) => format!("{tenant} "),
        (None, _) => String::new(),
    };
    let text = harmless(&event.text).replace('\n', " ");
    format!("{} {} {whose}{text}", output::time(event.at), harmless(&event.kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_whatever_its_text_has() {
        let event: Event = serde_json::from_value(serde_json::json!({
            "number": 7, "at": "2026-01-02T03:04:05Z", "tenant": "acme", "cluster": "blue",
            "kind": "cluster.ready", "text": "two\nlines\u{1b}[2J",
        }))
        .unwrap();
        let text = line(&event);
        assert!(text.ends_with("cluster.ready acme/blue two lines\u{fffd}[2J"), "{text}");
    }
}
