//! `heddle tenant`: manages tenants and their quotas.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use controller_api::quota::QuotaChange;
use controller_api::tenant::{NewTenant, Tenant, TenantChange};
use controller_api::{MemorySize, Name};
use fabric_model::tenancy::Bandwidth;
use jiff::Timestamp;

use super::Noun;
use super::output::{age, facts, print, table};

/// Commands of `heddle tenant`, for operators; a tenant may show itself.
#[derive(Debug, Subcommand)]
pub enum TenantCommand {
    /// Create a tenant
    ///
    /// The options limit what its clusters may use. A limit that is not given has a default; `heddle tenant show` prints all
    /// of them.
    #[command(after_help = "Example:
  heddle tenant create acme --nodes 64
  heddle token create --tenant acme --save acme.token")]
    Create {
        /// Name of the tenant: lower-case letters, digits and hyphens
        name: Name,
        #[command(flatten)]
        quota: QuotaArgs,
    },
    /// List tenants
    #[command(after_help = "Example:
  heddle tenant list")]
    List,
    /// Show the quota of a tenant and how much of it is used
    ///
    /// A tenant may show itself.
    #[command(after_help = "Example:
  heddle tenant show acme")]
    Show {
        /// Name of the tenant
        name: Name,
    },
    /// Change the quota of a tenant
    ///
    /// Existing clusters stay, even if they exceed the new quota. A limit that is not given keeps its value.
    #[command(after_help = "Example:
  heddle tenant quota acme --nodes 128 --exclusive-share 25")]
    Quota {
        /// Name of the tenant
        name: Name,
        #[command(flatten)]
        quota: QuotaArgs,
    },
    /// Delete a tenant that has no clusters, and its tokens
    #[command(after_help = "Example:
  heddle tenant delete acme")]
    Delete {
        /// Name of the tenant
        name: Name,
    },
}

/// Limits of the resources of a tenant. A limit that is not given keeps its value.
#[derive(Debug, Args)]
pub struct QuotaArgs {
    /// Most clusters
    #[arg(long, value_name = "N")]
    clusters: Option<u32>,
    /// Most nodes of all clusters together
    #[arg(long, value_name = "N")]
    nodes: Option<u32>,
    /// Most virtual cores of all nodes together
    #[arg(long, value_name = "N")]
    cores: Option<u32>,
    /// Most memory of all nodes together, such as 512G
    #[arg(long, value_name = "SIZE")]
    memory: Option<MemorySize>,
    /// Most guaranteed bandwidth of all nodes together, in bit/s, such as 400G
    #[arg(long, value_name = "RATE")]
    bandwidth: Option<Bandwidth>,
    /// Most partition numbers, including those released in the last ten minutes
    #[arg(long, value_name = "N")]
    partitions: Option<u32>,
    /// Most hosts whose ports guaranteed clusters use exclusively, in percent of all hosts, 0 to 100
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(..=100))]
    exclusive_share: Option<u32>,
}

impl From<QuotaArgs> for QuotaChange {
    fn from(args: QuotaArgs) -> Self {
        let QuotaArgs { clusters, nodes, cores, memory, bandwidth, partitions, exclusive_share } = args;
        Self { clusters, nodes, cores, memory, bandwidth, partitions, exclusive_share }
    }
}

pub async fn run(noun: Noun<TenantCommand>) -> anyhow::Result<ExitCode> {
    let (client, format) = (noun.site.client()?, noun.site.format());
    match noun.command {
        TenantCommand::Create { name, quota } => {
            let tenant = client.tenant_create(&NewTenant { name, quota: quota.into() }).await?;
            format.print(&tenant, |tenant| format!("tenant {} is created", tenant.name))?;
        }
        TenantCommand::List => {
            let now = Timestamp::now();
            format.print(&client.tenant_list().await?, |tenants| list(tenants, now))?;
        }
        TenantCommand::Show { name } => format.print(&client.tenant_show(&name).await?, show)?,
        TenantCommand::Quota { name, quota } => {
            let change = TenantChange { quota: quota.into() };
            format.print(&client.tenant_change(&name, &change).await?, show)?;
        }
        TenantCommand::Delete { name } => {
            client.tenant_delete(&name).await?;
            if format.is_for_people() {
                print(&format!("tenant {name} deleted"))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn list(tenants: &[Tenant], now: Timestamp) -> String {
    let rows = tenants.iter().map(|tenant| {
        let (used, quota) = (&tenant.usage, &tenant.quota);
        [
            tenant.name.to_string(),
            format!("{}/{}", used.clusters, quota.clusters),
            format!("{}/{}", used.nodes, quota.nodes),
            format!("{}/{}", used.cores, quota.cores),
            format!("{}/{}", used.memory, quota.memory),
            age(tenant.created, now),
        ]
    });
    table(["name", "clusters", "nodes", "cores", "memory", "age"], rows)
}

fn show(tenant: &Tenant) -> String {
    let (used, quota) = (&tenant.usage, &tenant.quota);
    facts([
        ("name", tenant.name.to_string()),
        ("id", tenant.id.to_string()),
        ("clusters", format!("{} of {}", used.clusters, quota.clusters)),
        ("nodes", format!("{} of {}", used.nodes, quota.nodes)),
        ("cores", format!("{} of {}", used.cores, quota.cores)),
        ("memory", format!("{} of {}", used.memory, quota.memory)),
        ("guaranteed bandwidth", format!("{} of {}", used.bandwidth, quota.bandwidth)),
        ("partition numbers", format!("{} of {}", used.partitions, quota.partitions)),
        (
            "exclusive hosts",
            format!("{}; at most {} % of all hosts", used.exclusive_hosts, quota.exclusive_share),
        ),
    ])
}
