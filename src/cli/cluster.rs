//! `heddle cluster`: manages virtual clusters.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::{Args, Subcommand};
use controller_api::cluster::{
    AdapterKind, Cluster, ClusterNode, HealthState, NetworkState, NewCluster, NodeState, PartitionsUpdate,
    Phase, ResizeRequest, SubPartition,
};
use controller_api::operation::{Operation, OperationKind};
use controller_api::{ApiClient, ClusterRef, MemorySize, Name};
use fabric_model::tenancy::{Bandwidth, Class, Nanoseconds};
use jiff::Timestamp;

use super::Noun;
use super::check::{self, CheckArgs};
use super::choices::{AdapterChoice, Levels, Mode};
use super::exec::{self, ExecArgs};
use super::output::{self, Format, age, count, facts, or_dash, table, took};
use super::partition::{self, PartitionArgs, describe};
use super::ssh::{self, ProxyArgs, SshArgs};
use super::wait::{self, Ended, WaitArgs};

/// Longest file of public keys in bytes.
const KEYS_BYTES_MAX: usize = 64 * 1024;

/// Default names of public keys of ssh-keygen, preferred first.
const USUAL_KEYS: [&str; 3] = ["id_ed25519.pub", "id_ecdsa.pub", "id_rsa.pub"];

/// The exit status of a program that Ctrl-C ended, as a shell reports it.
const STATUS_INTERRUPTED: u8 = 130;

/// Commands of `heddle cluster`.
#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Create a cluster and wait until every node is ready
    ///
    /// Its nodes are virtual machines on the hosts of the site, in an InfiniBand partition of their own. They resolve each
    /// other by name, log in to each other with an ssh key of the cluster, and have a host file for MPI.
    #[command(after_help = "Examples:
  heddle cluster create blue --nodes 2 --cores 1 --memory 384M --image debian-mpi
  heddle cluster create exact --nodes 4 --cores 2 --memory 2G --mode dedicated --ssh-key ~/.ssh/work.pub
  heddle cluster create later --no-wait

Ctrl-C stops waiting; the cluster is still created.")]
    Create(CreateArgs),
    /// List clusters
    #[command(after_help = "Examples:
  heddle cluster list
  heddle cluster list -o json")]
    List,
    /// Show a cluster and its nodes
    #[command(after_help = "Example:
  heddle cluster show blue")]
    Show(ClusterArgs),
    /// Change the number of nodes of a cluster; nodes with the highest numbers are removed first
    #[command(after_help = "Example:
  heddle cluster resize blue --nodes 3")]
    Resize(ResizeArgs),
    /// Show or change the partitions inside a cluster
    ///
    /// Nodes of a partition reach each other; limited members reach full members only. A node in a partition does not reach
    /// nodes of other partitions, but it does reach nodes that are in none.
    #[command(after_help = "Examples:
  heddle cluster partition blue
  heddle cluster partition blue --set io=1-2 --set compute=3-8
  heddle cluster partition blue --set storage=1,limited:2-8
  heddle cluster partition blue --clear")]
    Partition(PartitionArgs),
    /// Delete clusters and the disks of their nodes
    ///
    /// A node is deleted when its host has confirmed it. With --force, operators delete nodes whose hosts do not answer: their
    /// ports are closed on the fabric first, and a host that comes back removes its virtual machines first of all.
    #[command(after_help = "Examples:
  heddle cluster delete blue green
  heddle cluster delete blue --tenant acme --force")]
    Delete(DeleteArgs),
    /// Log in to a node as root
    ///
    /// The connection goes through the controller, so no network to the node is needed. Log in with an ssh key that the
    /// cluster was created with.
    #[command(after_help = "Examples:
  heddle cluster ssh blue
  heddle cluster ssh blue --node 2 -- uptime
  heddle cluster ssh blue -- -L 8080:localhost:80")]
    Ssh(SshArgs),
    /// Forward an ssh connection to a node, for ProxyCommand of ssh
    #[command(hide = true)]
    Proxy(ProxyArgs),
    /// Run a command in one node or in all nodes
    ///
    /// The exit status is that of the command, or 255 if it could not be run; with --all, that of the first node in which it
    /// failed. A node runs at most eight commands at a time.
    #[command(after_help = "Examples:
  heddle cluster exec blue -- mpirun -np 2 mpi-ring
  heddle cluster exec blue --all -- hostname
  tar c data | heddle cluster exec blue --node 2 -- tar x -C /root")]
    Exec(ExecArgs),
    /// Try out a cluster from inside its nodes: network, RDMA, MPI, rates and latencies, isolation
    ///
    /// The checks run commands in the nodes, one after the other, and load the cluster for some minutes. The exit status is 0 if
    /// none failed; tools that the image lacks do not count as failures. With --image debian-evaluation (`make image-evaluation`)
    /// a cluster has all of them. Isolation is tried with forged packets and guessed addresses, between the nodes of this cluster
    /// and towards others; nothing of it may get through.
    #[command(after_help = "Examples:
  heddle cluster check blue
  heddle cluster check blue --only mpi --only isolation
  heddle cluster check blue -o json

Rates and latencies on an emulated fabric are those of the emulation.")]
    Check(CheckArgs),
}

/// Arguments that name a cluster.
#[derive(Clone, Debug, Args)]
pub struct ClusterArgs {
    /// Name of the cluster
    name: Name,
    #[command(flatten)]
    tenant: TenantArgs,
}

/// The tenant that owns the cluster.
#[derive(Clone, Debug, Args)]
pub struct TenantArgs {
    /// Tenant that owns the cluster; required for operators only [env: HEDDLE_TENANT]
    #[arg(long)]
    tenant: Option<Name>,
}

impl TenantArgs {
    /// The tenant of the argument or the environment, if any.
    fn tenant(&self) -> anyhow::Result<Option<Name>> {
        match (&self.tenant, env::var("HEDDLE_TENANT")) {
            (Some(tenant), _) => Ok(Some(tenant.clone())),
            (None, Ok(tenant)) if !tenant.is_empty() => Ok(Some(tenant.parse().context("in HEDDLE_TENANT")?)),
            (None, _) => Ok(None),
        }
    }
}

impl ClusterArgs {
    /// The name of the cluster and its tenant, for the controller.
    pub fn to_ref(&self) -> anyhow::Result<ClusterRef> {
        Ok(ClusterRef { name: self.name.clone(), tenant: self.tenant.tenant()? })
    }
}

#[derive(Debug, Args)]
pub struct CreateArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Number of nodes (virtual machines), at least 1
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    nodes: u32,
    /// Virtual cores of each node, 1 to 512
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    cores: u32,
    /// Memory of each node, such as 384M or 2G
    #[arg(long, value_name = "SIZE", default_value = "512M")]
    memory: MemorySize,
    /// Image that the nodes boot from; see `heddle image list`
    #[arg(long, default_value = "debian-mpi")]
    image: Name,
    /// How cores and memory are assigned
    #[arg(long, value_enum, default_value_t)]
    mode: Mode,
    /// Network adapter of each node [default: infiniband if the image has a driver, else ethernet]
    #[arg(long, value_enum)]
    adapter: Option<AdapterChoice>,
    /// Guaranteed rate of every node while all send to all, in bit/s, such as 2.5G; the cluster gets ports and lanes of its
    /// own [default: best effort]
    #[arg(long, value_name = "RATE")]
    bandwidth: Option<Bandwidth>,
    /// Guaranteed latency of a packet that finds its own lane empty, on the wire, such as 80us; needs --bandwidth
    #[arg(long, value_name = "TIME", requires = "bandwidth")]
    latency: Option<Nanoseconds>,
    /// Service levels of a guaranteed cluster: one for all paths, or one for each path, for software that uses path records
    #[arg(long, value_enum, default_value_t, requires = "bandwidth")]
    sl_mode: Levels,
    /// Partition inside the cluster, such as io=1-4,limited:5; may be repeated
    #[arg(long = "partition", value_name = "NAME=NODES", value_parser = partition::parse)]
    partitions: Vec<SubPartition>,
    /// File with public ssh keys that may log in; may be repeated [default: id_ed25519, id_ecdsa and id_rsa in ~/.ssh]
    #[arg(long, value_name = "FILE")]
    ssh_key: Vec<PathBuf>,
    #[command(flatten)]
    wait: WaitArgs,
}

#[derive(Debug, Args)]
pub struct ResizeArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// New number of nodes, at least 1
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    nodes: u32,
    #[command(flatten)]
    wait: WaitArgs,
}

#[derive(Debug, Args)]
pub struct DeleteArgs {
    /// Names of the clusters
    #[arg(required = true)]
    names: Vec<Name>,
    /// Do not wait for hosts that do not answer; operators only
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    tenant: TenantArgs,
    #[command(flatten)]
    wait: WaitArgs,
}

pub async fn run(noun: Noun<ClusterCommand>) -> anyhow::Result<ExitCode> {
    let (client, format) = (noun.site.client()?, noun.site.format());
    match noun.command {
        ClusterCommand::Create(args) => create(&client, format, args).await,
        ClusterCommand::List => {
            format.print(&client.cluster_list().await?, |clusters| list(clusters, Timestamp::now()))?;
            Ok(ExitCode::SUCCESS)
        }
        ClusterCommand::Show(cluster) => {
            format.print(&client.cluster_show(&cluster.to_ref()?).await?, show)?;
            Ok(ExitCode::SUCCESS)
        }
        ClusterCommand::Resize(args) => {
            let operation =
                client.cluster_resize(&args.cluster.to_ref()?, ResizeRequest { size: args.nodes }).await?;
            conclude(&client, format, operation, &args.wait).await
        }
        ClusterCommand::Partition(args) => partitions(&client, format, args).await,
        ClusterCommand::Delete(args) => delete(&client, format, args).await,
        ClusterCommand::Ssh(args) => ssh::run(&client, &noun.site, args).await,
        ClusterCommand::Proxy(args) => ssh::proxy(&client, args).await,
        ClusterCommand::Exec(args) => exec::run(&client, args).await,
        ClusterCommand::Check(args) => check::run(&client, format, args).await,
    }
}

async fn create(client: &ApiClient, format: Format, args: CreateArgs) -> anyhow::Result<ExitCode> {
    let ClusterRef { name, tenant } = args.cluster.to_ref()?;
    let new = NewCluster {
        name,
        size: args.nodes,
        cores: args.cores,
        memory: args.memory,
        mode: args.mode.into(),
        image: args.image,
        class: class(args.bandwidth, args.latency),
        sl_mode: args.sl_mode.into(),
        adapter: args.adapter.map(AdapterKind::from),
        partitions: args.partitions,
        ssh_keys: ssh_keys(&args.ssh_key)?,
        tenant,
    };
    let operation = client.cluster_create(&new).await?;
    conclude(client, format, operation, &args.wait).await
}

fn class(bandwidth: Option<Bandwidth>, latency: Option<Nanoseconds>) -> Class {
    let latency_ns = latency.map(Nanoseconds::ns);
    bandwidth.map_or(Class::BestEffort, |bandwidth| Class::Guaranteed { bandwidth, latency_ns })
}

async fn partitions(client: &ApiClient, format: Format, args: PartitionArgs) -> anyhow::Result<ExitCode> {
    let cluster = args.cluster.to_ref()?;
    if args.set.is_empty() && !args.clear {
        let partitions = client.cluster_show(&cluster).await?.partitions;
        format.print(&partitions, |partitions| match partitions.as_slice() {
            [] => format!("cluster {} has no partitions of its own", cluster.name),
            partitions => partitions.iter().map(describe).collect::<Vec<_>>().join("\n"),
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    let operation = client.cluster_partition(&cluster, &PartitionsUpdate { partitions: args.set }).await?;
    conclude(client, format, operation, &args.wait).await
}

async fn delete(client: &ApiClient, format: Format, args: DeleteArgs) -> anyhow::Result<ExitCode> {
    let tenant = args.tenant.tenant()?;
    let mut operations = Vec::new();
    let mut refused = None;
    for name in args.names {
        let cluster = ClusterRef { name, tenant: tenant.clone() };
        let asked = match args.force {
            true => client.cluster_force_delete(&cluster).await,
            false => client.cluster_delete(&cluster).await,
        };
        match asked {
            Ok(operation) => operations.push(operation),
            Err(error) => {
                refused = Some(error);
                break;
            }
        }
    }
    // Operations that were accepted before one was rejected are waited for.
    for operation in operations {
        let ended = conclude(client, format, operation, &args.wait).await?;
        if ended != ExitCode::SUCCESS {
            return Ok(ended);
        }
    }
    refused.map_or(Ok(ExitCode::SUCCESS), |error| Err(error.into()))
}

/// Waits for an operation unless --no-wait is given, and prints its result.
async fn conclude(
    client: &ApiClient,
    format: Format,
    operation: Operation,
    wait: &WaitArgs,
) -> anyhow::Result<ExitCode> {
    let (name, kind) = (operation.cluster.clone(), operation.kind);
    let goes_on = match kind {
        OperationKind::Create => format!("cluster {name} is being created"),
        OperationKind::Resize => format!("cluster {name} is being resized"),
        OperationKind::Partition => format!("cluster {name} is being partitioned"),
        OperationKind::Delete => format!("cluster {name} is being deleted"),
    };
    let goes_on = format!("{goes_on}; see `heddle cluster show {name}`");
    let Some(limit) = wait.limit() else {
        format.print(&operation, |_| goes_on)?;
        return Ok(ExitCode::SUCCESS);
    };
    let whose = ClusterRef { name: name.clone(), tenant: Some(operation.tenant.clone()) };
    let done = match wait::follow(client, operation, limit).await? {
        Ended::Done(done) => done,
        Ended::Interrupted => {
            eprintln!("stopped waiting: {goes_on}");
            return Ok(ExitCode::from(STATUS_INTERRUPTED));
        }
    };
    let time = done.ended.unwrap_or_else(Timestamp::now).duration_since(done.started);
    let time = took(time.try_into().unwrap_or_default());
    if kind == OperationKind::Delete {
        format.print(&done, |_| format!("cluster {name} is deleted, after {time}"))?;
    } else {
        let cluster = client.cluster_show(&whose).await?;
        format.print(&cluster, |cluster| {
            let nodes = count(cluster.nodes.len(), "node");
            format!("cluster {name} is {} with {nodes}, after {time}", phase(cluster))
        })?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The phase, with the state of the network check and the health, so that an unchecked network is visible.
fn phase(cluster: &Cluster) -> String {
    let phase = checked_phase(cluster);
    match cluster.health.state {
        HealthState::Ok => phase,
        state => format!("{phase}, {state}"),
    }
}

fn checked_phase(cluster: &Cluster) -> String {
    match (cluster.phase, cluster.network) {
        (Phase::Ready, NetworkState::Unchecked) => "ready (network unchecked)".to_owned(),
        (Phase::Ready | Phase::Starting, NetworkState::Broken) => {
            format!("{} (network broken)", cluster.phase)
        }
        (phase, _) => phase.to_string(),
    }
}

/// Why a node is not ready, and where its packets stop while its network is broken.
fn reason(node: &ClusterNode) -> String {
    let is_checked = matches!(node.network, NetworkState::Carries | NetworkState::Unchecked);
    let stop = node.stop.as_ref().filter(|_| !is_checked).map(|stop| format!("packets stop at {stop}"));
    node.reason.clone().into_iter().chain(stop).collect::<Vec<_>>().join("; ")
}

fn list(clusters: &[Cluster], now: Timestamp) -> String {
    table(
        ["name", "tenant", "phase", "nodes", "cores", "memory", "mode", "image", "age"],
        clusters.iter().map(|cluster| {
            let shape = &cluster.shape;
            let ready = cluster.nodes.iter().filter(|node| node.state == NodeState::Ready).count();
            [
                cluster.name.to_string(),
                cluster.tenant.to_string(),
                phase(cluster),
                format!("{ready}/{}", shape.size),
                shape.cores.to_string(),
                shape.memory.to_string(),
                shape.mode.to_string(),
                shape.image.to_string(),
                age(cluster.created, now),
            ]
        }),
    )
}

/// The state of a node, with the time since which its host does not answer.
fn node_state(node: &ClusterNode) -> String {
    match node.since {
        Some(since) => format!("{} since {}", node.state, output::time(since)),
        None => node.state.to_string(),
    }
}

fn show(cluster: &Cluster) -> String {
    let shape = &cluster.shape;
    let mut known = vec![
        ("name", cluster.name.to_string()),
        ("tenant", cluster.tenant.to_string()),
        ("id", cluster.id.to_string()),
        ("phase", phase(cluster)),
    ];
    known.extend(cluster.health.since.map(|since| ("since", output::time(since))));
    known.extend(cluster.health.reasons.iter().map(|reason| ("health", reason.clone())));
    let inside: Vec<String> = cluster.partitions.iter().map(describe).collect();
    known.extend(cluster.reason.clone().map(|reason| ("reason", reason)));
    known.extend([
        (
            "shape",
            format!(
                "{} of {} and {}, {}",
                count(shape.size as usize, "node"),
                count(shape.cores as usize, "core"),
                shape.memory,
                shape.mode
            ),
        ),
        ("image", shape.image.to_string()),
        ("adapter", shape.adapter.to_string()),
        ("network", network(shape.class)),
        ("partition", or_dash(cluster.partition)),
        ("inside", or_dash((!inside.is_empty()).then(|| inside.join("; ")))),
        ("created", output::time(cluster.created)),
    ]);
    let nodes = table(
        ["node", "name", "address", "state", "network", "host", "reason"],
        cluster.nodes.iter().map(|node| {
            [
                node.number.to_string(),
                node.name.clone(),
                node.address.clone(),
                node_state(node),
                node.network.to_string(),
                or_dash(node.host.as_ref()),
                reason(node),
            ]
        }),
    );
    format!("{}\n\n{nodes}", facts(known))
}

/// The class of a cluster. Devices do not report the sizes of their buffers, so guarantees of a running site do not account
/// for them.
fn network(class: Class) -> String {
    match class {
        Class::BestEffort => class.to_string(),
        Class::Guaranteed { .. } => format!("{class}; on the wire, buffers unknown"),
    }
}

/// The public keys in these files, or the default keys of the user.
fn ssh_keys(files: &[PathBuf]) -> anyhow::Result<Vec<String>> {
    let mut keys = Vec::new();
    if files.is_empty() {
        let ssh = env::home_dir().unwrap_or_default().join(".ssh");
        for file in USUAL_KEYS.map(|name| ssh.join(name)).iter().filter(|file| file.exists()) {
            keys.extend(read_keys(file)?);
        }
    }
    for file in files {
        let found = read_keys(file)?;
        ensure!(!found.is_empty(), "{} has no public key", file.display());
        keys.extend(found);
    }
    Ok(keys)
}

fn read_keys(file: &Path) -> anyhow::Result<Vec<String>> {
    let place = file.display();
    let bytes = fs::read(file).with_context(|| format!("cannot read {place}"))?;
    ensure!(
        bytes.len() <= KEYS_BYTES_MAX,
        "{place} is not a file of public keys: it has {} bytes, at most {KEYS_BYTES_MAX} are allowed",
        bytes.len()
    );
    let text = String::from_utf8(bytes)
        .ok()
        .with_context(|| format!("{place} is not a file of public keys: it is not UTF-8"))?;
    // A private key must not leave the machine.
    ensure!(!text.contains("PRIVATE KEY"), "{place} is a private key; the public key is usually {place}.pub");
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    Ok(lines.map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn cluster() -> Cluster {
        serde_json::from_value(json!({
            "id": "6f1b7c7e-3b1c-4b8e-9f0e-0a4d8f4b2a11", "tenant": "acme", "name": "blue",
            "size": 2, "cores": 1, "memory": "384M", "mode": "shared", "image": "debian-mpi",
            "phase": "starting", "partition": null, "created": "2026-01-02T03:04:05Z",
            "nodes": [
                {"id": "6f1b7c7e-3b1c-4b8e-9f0e-0a4d8f4b2a12", "number": 1, "name": "blue-1",
                 "address": "10.128.0.1", "host": "host-00001", "state": "ready"},
                {"id": "6f1b7c7e-3b1c-4b8e-9f0e-0a4d8f4b2a13", "number": 2, "name": "blue-2",
                 "address": "10.128.0.2", "state": "failed", "reason": "no memory"}
            ]
        }))
        .unwrap()
    }

    #[test]
    fn a_list_shows_ready_and_requested_nodes() {
        let now = "2026-01-02T03:14:05Z".parse().unwrap();
        assert_eq!(
            list(&[cluster()], now),
            "NAME  TENANT  PHASE     NODES  CORES  MEMORY  MODE    IMAGE       AGE\n\
             blue  acme    starting  1/2    1      384M    shared  debian-mpi  10 min"
        );
    }

    #[test]
    fn a_cluster_is_shown_with_its_nodes_and_their_errors() {
        let text = show(&cluster());
        assert!(text.contains("shape      2 nodes of 1 core and 384M, shared"), "{text}");
        let line = "2     blue-2  10.128.0.2  failed  unchecked  -           no memory";
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn the_phase_shows_an_unchecked_or_broken_network() {
        let told = |ready: Phase, network| phase(&Cluster { phase: ready, network, ..cluster() });
        assert_eq!(told(Phase::Ready, NetworkState::Carries), "ready");
        assert_eq!(told(Phase::Ready, NetworkState::Checking), "ready");
        assert_eq!(told(Phase::Ready, NetworkState::Unchecked), "ready (network unchecked)");
        assert_eq!(told(Phase::Starting, NetworkState::Unchecked), "starting");
        assert_eq!(told(Phase::Starting, NetworkState::Broken), "starting (network broken)");
    }

    #[test]
    fn a_broken_network_shows_where_packets_stop() {
        let mut cluster = cluster();
        let stop = json!({"node": "leaf-2", "port": 7, "reason": "no_route"});
        cluster.nodes[0].stop = serde_json::from_value(stop).unwrap();
        let place = "packets stop at leaf-2 port 7 (no_route)";
        cluster.nodes[0].network = NetworkState::Broken;
        assert!(show(&cluster).contains(place), "{}", show(&cluster));
        // Control: packets of a node whose network carries may be dropped by the node's own fault.
        cluster.nodes[0].network = NetworkState::Carries;
        assert!(!show(&cluster).contains(place), "{}", show(&cluster));
    }

    #[test]
    fn public_keys_are_read_and_private_keys_rejected() {
        let directory = tempfile::tempdir().unwrap();
        let (public, private) = (directory.path().join("id.pub"), directory.path().join("id"));
        fs::write(&public, "# mine\nssh-ed25519 AAAA me@there\n\n").unwrap();
        fs::write(&private, "-----BEGIN OPENSSH PRIVATE KEY-----\nsecret\n").unwrap();
        assert_eq!(ssh_keys(&[public]).unwrap(), ["ssh-ed25519 AAAA me@there"]);
        let error = ssh_keys(&[private]).unwrap_err().to_string();
        assert!(error.contains("private key") && !error.contains("secret"), "{error}");
        let empty = directory.path().join("empty");
        fs::write(&empty, "\n").unwrap();
        assert!(ssh_keys(&[empty]).is_err());
    }
}
