//! `heddle host`: machines that virtual machines run on.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Subcommand};
use controller_api::agent::{Accelerator, VmState};
use controller_api::host::{Host, HostBinding, HostState, NewHost, UnlistedVm};
use controller_api::{MemorySize, Name};
use ib_wire::Guid;
use uuid::Uuid;

use super::Noun;
use super::output::{or_dash, print, table, time};

/// What can be done with hosts. For operators.
#[derive(Debug, Subcommand)]
pub enum HostCommand {
    /// List hosts, and what is given away of them
    #[command(after_help = "Example:
  heddle host list")]
    List,
    /// Let virtual machines run on a host
    ///
    /// Its agent must serve it. The GUID of its port identifies it on the fabric; without --guid, it is bound to the adapter
    /// that calls itself by its name, as soon as exactly one does, and to no other afterwards.
    #[command(after_help = "Example:
  heddle host add host-00017 --guid 0x0002c90300100021 --agent /run/heddle/agent.sock --cores 4 --memory 4G")]
    Add(AddArgs),
    /// Bind a host to another port after its adapter was replaced; refused while a virtual machine is on it
    #[command(after_help = "Example:
  heddle host bind host-00017 0x0002c90300100021")]
    Bind {
        /// ClusterArgs
        name: Name,
        /// GUID of its port
        guid: Guid,
    },
    /// Let no virtual machine run on a host any more; refused while one does
    #[command(after_help = "Example:
  heddle host remove host-00017")]
    Remove {
        /// ClusterArgs
        name: Name,
    },
    /// List virtual machines that hosts run and no cluster knows
    ///
    /// There are some after the controller's store was lost or restored from an older copy. They keep running; their partition
    /// numbers are given to nobody else.
    #[command(after_help = "Example:
  heddle host unlisted")]
    Unlisted,
    /// Remove a virtual machine that no cluster knows; its disk rests on its host for the grace period
    #[command(after_help = "Example:
  heddle host remove-unlisted 0d0c5f1e-8b0a-4c52-9a3e-2f0a0c9b7d11")]
    RemoveUnlisted {
        /// Id of the virtual machine
        id: Uuid,
    },
}

/// Arguments of `add`.
#[derive(Debug, Args)]
pub struct AddArgs {
    /// Name of the host
    name: Name,
    /// GUID of its port on the fabric, such as 0x0002c90300100021
    #[arg(long)]
    guid: Option<Guid>,
    /// The socket of its agent
    #[arg(long, value_name = "SOCKET")]
    agent: PathBuf,
    /// Cores for virtual machines
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    cores: u32,
    /// Memory for virtual machines, such as 4G
    #[arg(long, value_name = "SIZE")]
    memory: MemorySize,
}

/// Runs a command.
pub async fn run(noun: Noun<HostCommand>) -> anyhow::Result<ExitCode> {
    let (client, format) = (noun.site.client()?, noun.site.format());
    match noun.command {
        HostCommand::List => format.print(&client.host_list().await?, |hosts| list(hosts))?,
        HostCommand::Add(AddArgs { name, guid, agent, cores, memory }) => {
            let agent = std::path::absolute(&agent).context("the agent's socket has no path")?;
            let agent =
                agent.into_os_string().into_string().ok().context("the agent's socket is not text")?;
            let host = client.host_add(&NewHost { name, port_guid: guid, agent, cores, memory }).await?;
            format.print(&host, |host| format!("host {} is added", host.name))?;
        }
        HostCommand::Bind { name, guid } => {
            let host = client.host_bind(&name, HostBinding { port_guid: guid }).await?;
            format.print(&host, |host| format!("host {} is bound to port {guid}", host.name))?;
        }
        HostCommand::Remove { name } => {
            client.host_remove(&name).await?;
            if format.is_for_people() {
                print(&format!("host {name} is removed"))?;
            }
        }
        HostCommand::Unlisted => format.print(&client.unlisted_list().await?, |vms| unlisted(vms))?,
        HostCommand::RemoveUnlisted { id } => {
            client.unlisted_remove(id).await?;
            if format.is_for_people() {
                print(&format!("virtual machine {id} is being removed"))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn list(hosts: &[Host]) -> String {
    table(
        ["name", "state", "nodes", "cores", "memory", "runs by", "port"],
        hosts.iter().map(|host| {
            [
                host.name.to_string(),
                match host.since {
                    Some(since) => format!("{} since {}", state(host.state), time(since)),
                    None => state(host.state).to_owned(),
                },
                host.nodes.to_string(),
                format!("{}/{}", host.cores_used, host.cores),
                format!("{}/{}", host.memory_used, host.memory),
                or_dash(host.accelerator.map(accelerator)),
                or_dash(host.port_guid),
            ]
        }),
    )
}

fn unlisted(vms: &[UnlistedVm]) -> String {
    table(
        ["id", "host", "label", "state", "partitions"],
        vms.iter().map(|vm| {
            let numbers: Vec<String> = vm.partitions.iter().map(ToString::to_string).collect();
            let state = match vm.state {
                VmState::Preparing => "preparing",
                VmState::Running => "running",
                VmState::Stopped => "stopped",
                VmState::Failed => "failed",
                VmState::Removing => "removing",
            };
            let label = Some(&vm.label).filter(|label| !label.is_empty());
            [vm.id.to_string(), vm.host.to_string(), or_dash(label), state.to_owned(), numbers.join(",")]
        }),
    )
}

fn state(state: HostState) -> &'static str {
    match state {
        HostState::Up => "up",
        HostState::AgentSilent => "agent-silent",
        HostState::OffFabric => "off-fabric",
        HostState::Unbound => "unbound",
    }
}

fn accelerator(accelerator: Accelerator) -> &'static str {
    match accelerator {
        Accelerator::Kvm => "kvm",
        Accelerator::Tcg => "tcg",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_says_what_is_used_of_what_there_is() {
        let host = Host {
            name: "host-00001".parse().unwrap(),
            port_guid: None,
            state: HostState::OffFabric,
            since: None,
            accelerator: Some(Accelerator::Tcg),
            cores: 4,
            memory: MemorySize::from_mib(4096),
            cores_used: 1,
            memory_used: MemorySize::from_mib(384),
            nodes: 1,
        };
        assert_eq!(
            list(&[host]),
            "NAME        STATE       NODES  CORES  MEMORY   RUNS BY  PORT\n\
             host-00001  off-fabric  1      1/4    384M/4G  tcg      -"
        );
    }
}
