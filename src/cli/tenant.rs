//! `heddle tenant`: who owns clusters.

use std::process::ExitCode;

use clap::Subcommand;
use controller_api::Name;
use controller_api::tenant::NewTenant;
use jiff::Timestamp;

use super::Noun;
use super::output::{age, print, table};

/// What can be done with tenants. For operators.
#[derive(Debug, Subcommand)]
pub enum TenantCommand {
    /// Create a tenant
    #[command(after_help = "Example:
  heddle tenant create acme
  heddle token create --tenant acme --save acme.token")]
    Create {
        /// What it is called: lower-case letters, digits and hyphens
        name: Name,
    },
    /// List tenants
    #[command(after_help = "Example:
  heddle tenant list")]
    List,
    /// Delete a tenant that has no clusters, with its tokens
    #[command(after_help = "Example:
  heddle tenant delete acme")]
    Delete {
        /// Which
        name: Name,
    },
}

/// Runs a command.
pub async fn run(noun: Noun<TenantCommand>) -> anyhow::Result<ExitCode> {
    let (client, format) = (noun.site.client()?, noun.site.format());
    match noun.command {
        TenantCommand::Create { name } => {
            let tenant = client.tenant_create(&NewTenant { name }).await?;
            format.print(&tenant, |tenant| format!("tenant {} is created", tenant.name))?;
        }
        TenantCommand::List => {
            let now = Timestamp::now();
            format.print(&client.tenant_list().await?, |tenants| {
                let rows = tenants.iter().map(|tenant| {
                    [tenant.name.to_string(), tenant.clusters.to_string(), age(tenant.created, now)]
                });
                table(["name", "clusters", "age"], rows)
            })?;
        }
        TenantCommand::Delete { name } => {
            client.tenant_delete(&name).await?;
            if format.is_for_people() {
                print(&format!("tenant {name} is deleted"))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
