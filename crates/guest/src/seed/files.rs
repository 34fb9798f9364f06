//! The files that a seed writes into a guest.

use std::fmt::Write;

use super::{
    CONTEXT_FILE, ContextFile, GuestAdapter, INFINIBAND_MODULES, PROBE_KEY_FILE, SeedInput, WriteFile,
};
use crate::probe::ProbeKey;

/// Loads the modules of an InfiniBand adapter at every boot.
const MODULES: &str = "/etc/modules-load.d/heddle.conf";

/// Mode of files that every user may read.
const PUBLIC: &str = "0644";

/// Mode of files that only root may read. ssh refuses private keys that others can read.
const SECRET: &str = "0600";

/// The default host file of MPI.
const HOSTFILE: &str = "/etc/heddle/hostfile";

/// Nodes come and go, so known hosts are neither checked nor stored. The key exchange is the cheapest one: under emulation the
/// default takes seconds.
const SSH_CONFIG: &str = "\
StrictHostKeyChecking no
UserKnownHostsFile /dev/null
LogLevel ERROR
KexAlgorithms curve25519-sha256
";

const SERVICE: &str = "\
[Unit]
Description=Answers the host of this virtual machine
After=ssh.service
ConditionPathExists=/sbin/heddle-guest

[Service]
ExecStart=/sbin/heddle-guest serve
Restart=always
RestartSec=1
# Commands that people run are their own; a restart of the service does not end them.
KillMode=process

[Install]
WantedBy=multi-user.target
";

/// Commands for cloud-init: what the files ask for at every boot is done now, too.
pub(super) fn commands(input: &SeedInput) -> Vec<Vec<String>> {
    let modules = (input.adapter == GuestAdapter::Infiniband)
        .then(|| [&["modprobe", "-a"], &INFINIBAND_MODULES[..]].concat());
    let start = vec!["systemctl", "enable", "--now", "heddle-guest.service"];
    let commands = modules.into_iter().chain([start]);
    commands.map(|command| command.into_iter().map(str::to_owned).collect()).collect()
}

/// All files, in the order in which they are written.
pub(super) fn all(input: &SeedInput) -> Vec<WriteFile> {
    let environment = environment(input);
    let file = |path: &str, permissions: &str, content: String| WriteFile {
        path: path.to_owned(),
        permissions: permissions.to_owned(),
        content,
    };
    let probe_key = input.probes.map(|_| {
        file(PROBE_KEY_FILE, SECRET, with_newline(&ProbeKey::derive(&input.cluster_key.private).to_hex()))
    });
    let files = vec![
        file("/etc/hosts", PUBLIC, hosts(input)),
        file(HOSTFILE, PUBLIC, hostfile(input)),
        file("/etc/openmpi/openmpi-mca-params.conf", PUBLIC, open_mpi(&input.adapter)),
        file("/etc/environment", PUBLIC, lines(&environment, "")),
        file("/etc/profile.d/heddle.sh", PUBLIC, lines(&environment, "export ")),
        file("/etc/ssh/sshd_config.d/20-heddle.conf", PUBLIC, sshd_config(&environment)),
        file("/root/.ssh/config", SECRET, SSH_CONFIG.to_owned()),
        file("/root/.ssh/id_ed25519", SECRET, with_newline(&input.cluster_key.private)),
        file("/root/.ssh/id_ed25519.pub", PUBLIC, with_newline(&input.cluster_key.public)),
        file("/etc/systemd/system/heddle-guest.service", PUBLIC, SERVICE.to_owned()),
    ];
    // Last, so that its presence implies that the others are complete.
    let context = file(CONTEXT_FILE, PUBLIC, context(input));
    let modules = (input.adapter == GuestAdapter::Infiniband)
        .then(|| file(MODULES, PUBLIC, INFINIBAND_MODULES.map(|module| format!("{module}\n")).concat()));
    files.into_iter().chain(modules).chain(probe_key).chain([context]).collect()
}

fn hosts(input: &SeedInput) -> String {
    let mut text = "127.0.0.1 localhost\n::1 localhost\n".to_owned();
    for peer in &input.peers {
        writeln!(text, "{} {}", peer.address, peer.hostname).expect("writing to a String does not fail");
    }
    text
}

fn hostfile(input: &SeedInput) -> String {
    let line = |peer: &super::Peer| format!("{} slots={}\n", peer.hostname, peer.slots);
    input.peers.iter().map(line).collect()
}

/// Defaults of Open MPI, so that a plain `mpirun -np 2 program` uses the cluster.
fn open_mpi(adapter: &GuestAdapter) -> String {
    let transport = match adapter {
        GuestAdapter::Ethernet { .. } => {
            "# The adapter is an Ethernet device, and the only one that reaches other nodes.\n\
             pml = ob1\n"
        }
        GuestAdapter::Infiniband => {
            "# Ranks of different nodes exchange messages by reliable connections of the adapter, through UCX. With \"pml = ob1\",\n\
             # they use TCP.\n\
             pml = ucx\n"
        }
    };
    let device = adapter.device();
    format!(
        "orte_default_hostfile = {HOSTFILE}\n\
         # Every node is started from here; a tree of ssh connections is slower below hundreds of nodes.\n\
         plm_rsh_no_tree_spawn = 1\n\
         {transport}\
         btl = tcp,vader,self\n\
         btl_tcp_if_include = {device}\n\
         oob_tcp_if_include = {device}\n"
    )
}

/// Environment variables that tell communication libraries the partition and service level of the cluster. A node
/// in sub-partitions is only a limited member of the cluster's partition, where limited members do not reach each
/// other, so libraries get its first sub-partition.
fn environment(input: &SeedInput) -> Vec<(&'static str, String)> {
    let used = input.partitions.first().map_or(input.pkey, |first| first.pkey);
    let key = used.to_string();
    // UCX rejects the membership bit.
    let partition = format!("{:#06x}", used.partition().to_wire());
    let mut environment = vec![
        ("HEDDLE_CLUSTER", input.cluster.clone()),
        ("HEDDLE_PKEY", key.clone()),
        ("UCX_IB_PKEY", partition.clone()),
        // NCCL takes the index in the P_Key table of the port: the key of the cluster is at index 0, the limited membership
        // of the default partition at 1, and those of sub-partitions follow.
        ("NCCL_IB_PKEY", if input.partitions.is_empty() { 0 } else { 2 }.to_string()),
        ("OMPI_MCA_btl_openib_pkey", partition),
        ("MV2_DEFAULT_PKEY", key),
        // Users of a node are root.
        ("OMPI_ALLOW_RUN_AS_ROOT", "1".to_owned()),
        ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1".to_owned()),
    ];
    if input.adapter == GuestAdapter::Infiniband {
        let ucx = [("UCX_NET_DEVICES", "heddle0:1"), ("UCX_TLS", "rc,sm,self")];
        environment.extend(ucx.map(|(name, value)| (name, value.to_owned())));
    }
    let level = input.sl.map(|level| level.to_wire().to_string());
    let names = [
        "HEDDLE_SL",
        "UCX_IB_SL",
        "NCCL_IB_SL",
        "OMPI_MCA_btl_openib_ib_service_level",
        "MV2_DEFAULT_SERVICE_LEVEL",
    ];
    environment.extend(level.into_iter().flat_map(|level| names.map(|name| (name, level.clone()))));
    environment
}

fn lines(environment: &[(&str, String)], before: &str) -> String {
    environment.iter().map(|(name, value)| format!("{before}{name}={value}\n")).collect()
}

/// Commands run over ssh, such as the daemons of MPI, read neither /etc/profile nor /etc/environment.
fn sshd_config(environment: &[(&str, String)]) -> String {
    let values: Vec<String> = environment.iter().map(|(name, value)| format!("{name}={value}")).collect();
    format!("SetEnv {}\n", values.join(" "))
}

fn context(input: &SeedInput) -> String {
    super::json(&ContextFile {
        generation: input.generation,
        cluster: input.cluster.clone(),
        hostname: input.hostname.clone(),
        address: input.address.clone(),
        device: Some(input.adapter.device().to_owned()).filter(|_| input.adapter == GuestAdapter::Infiniband),
        pkey: input.pkey,
        sl: input.sl,
        partitions: input.partitions.clone(),
        classes: input.classes.clone(),
        peers: input.peers.clone(),
        probes: input.probes,
    })
}

/// The text with exactly one newline at its end, as ssh requires of key files.
pub(super) fn with_newline(text: &str) -> String {
    format!("{}\n", text.trim_end())
}
