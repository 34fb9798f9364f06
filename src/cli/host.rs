//! `heddle host`: manages the hosts of virtual machines.

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

/// Commands of `heddle host`, for operators.
#[derive(Debug, Subcommand)]
pub enum HostCommand {
    /// List hosts with their state and the resources in use
    #[command(after_help = "Example:
  heddle host list")]
    List,
    /// Add a host for virtual machines
    ///
    /// Its agent must be running. The port GUID identifies the host on the fabric; without --guid, the host is bound to the
    /// adapter whose NodeDescription is its name, as soon as exactly one has it, and stays bound to that one.
    #[command(after_help = "Example:
  heddle host add host-00017 --guid 0x0002c90300100021 --agent /run/heddle/agent.sock --cores 4 --memory 4G")]
    Add(AddArgs),
    /// Bind a host to another port after its adapter was replaced; rejected while virtual machines run on it
    #[command(after_help = "Example:
  heddle host bind host-00017 0x0002c90300100021")]
    Bind {
        /// Name of the host
        name: Name,
        /// GUID of the new port
        guid: Guid,
    },
    /// Remove a host; rejected while virtual machines run on it
    #[command(after_help = "Example:
  heddle host remove host-00017")]
    Remove {
        /// Name of the host
        name: Name,
    },
    /// List virtual machines that run on hosts but belong to no cluster of the store
    ///
    /// They exist after the store of the controller was lost or restored from an older copy. They keep running, and their
    /// partition numbers stay reserved.
    #[command(after_help = "Example:
  heddle host unlisted")]
    Unlisted,
    /// Remove a virtual machine that belongs to no cluster; its disk is kept for the grace period
    #[command(after_help = "Example:
  heddle host remove-unlisted 0d0c5f1e-8b0a-4c52-9a3e-2f0a0c9b7d11")]
    RemoveUnlisted {
        /// Id of the virtual machine
        id: Uuid,
    },
}

#[derive(Debug, Args)]
pub struct AddArgs {
    /// Name of the host
    name: Name,
    /// GUID of the port of the host on the fabric, such as 0x0002c90300100021
    #[arg(long)]
    guid: Option<Guid>,
    /// Unix socket of the agent of the host
    #[arg(long, value_name = "SOCKET")]
    agent: PathBuf,
    /// Cores for virtual machines, at least 1
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    cores: u32,
    /// Memory for virtual machines, such as 4G
    #[arg(long, value_name = "SIZE")]
    memory: MemorySize,
}

pub async fn run(noun: Noun<HostCommand>) -> anyhow::Result<ExitCode> {
    let (client, format) = (noun.site.client()?, noun.site.format());
    match noun.command {
        HostCommand::List => format.print(&client.host_list().await?, |hosts| list(hosts))?,
        HostCommand::Add(AddArgs { name, guid, agent, cores, memory }) => {
            let agent = std::path::absolute(&agent).context("--agent is not a path")?;
            let agent =
                agent.into_os_string().into_string().ok().context("the path of --agent is not UTF-8")?;
            let host = client.host_add(&NewHost { name, port_guid: guid, agent, cores, memory }).await?;
            format.print(&host, |host| format!("host {} added", host.name))?;
        }
        HostCommand::Bind { name, guid } => {
            let host = client.host_bind(&name, HostBinding { port_guid: guid }).await?;
            format.print(&host, |host| format!("host {} bound to port {guid}", host.name))?;
        }
        HostCommand::Remove { name } => {
            client.host_remove(&name).await?;
            if format.is_for_people() {
                print(&format!("host {name} removed"))?;
            }
        }
        HostCommand::Unlisted => format.print(&client.unlisted_list().await?, |vms| unlisted(vms))?,
        HostCommand::RemoveUnlisted { id } => {
            client.unlisted_remove(id).await?;
            if format.is_for_people() {
                print(&format!("removing virtual machine {id}"))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn list(hosts: &[Host]) -> String {
    table(
        ["name", "state", "nodes", "cores", "memory", "accelerator", "port"],
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
        HostState::PortClosed => "port-closed",
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
    fn a_list_shows_used_and_total_resources() {
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
            "NAME        STATE       NODES  CORES  MEMORY   ACCELERATOR  PORT\n\
             host-00001  off-fabric  1      1/4    384M/4G  tcg          -"
        );
    }
}
