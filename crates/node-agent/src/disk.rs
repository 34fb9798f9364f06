//! The disks of a virtual machine: an overlay over its image's root, and the seed it starts from.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use controller_api::agent::VmOrder;
use controller_api::image::DiskFormat;
use guest::seed::{ClassLevel, KeyPair, NamedKey, Peer, Probes, Seed, SeedInput};
use thiserror::Error;
use tokio::process::Command;
use tokio::time::timeout;

use crate::durable;
use crate::image::VerifiedImage;
use crate::state_dir::{GroupOwner, QemuUser, StateDirError, VmFiles, chown_to_qemu};

/// How long a tool may take; on a busy machine they take a second.
const TOOL_TIMEOUT: Duration = Duration::from_secs(60);

/// Letters of what a tool said that are told on.
const TOOL_LETTERS_MAX: usize = 300;

/// Why there is no disk.
#[derive(Debug, Error)]
pub enum DiskError {
    /// A tool could not be started.
    #[error("{tool} cannot be run: {source}; it is in the package {package}")]
    NoTool {
        tool: &'static str,
        /// Where to get it.
        package: &'static str,
        source: io::Error,
    },
    #[error("{tool}: {said}")]
    Tool { tool: &'static str, said: String },
    /// A file cannot be used.
    #[error(transparent)]
    StateDir(#[from] StateDirError),
    /// A file cannot be written.
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

/// Makes the overlay, unless there is one: what a virtual machine wrote stays as long as it is ordered.
pub async fn make_overlay(
    files: &VmFiles,
    image: &VerifiedImage,
    user: Option<QemuUser>,
) -> Result<(), DiskError> {
    if files.overlay.exists() {
        return chown_to_qemu(&files.overlay, user, GroupOwner::Qemu).map_err(DiskError::from);
    }
    let beside = files.directory.join("overlay.new");
    let format = match image.root_format {
        DiskFormat::Raw => "raw",
        DiskFormat::Qcow2 => "qcow2",
    };
    let mut command = Command::new("qemu-img");
    command.args(["create", "-q", "-f", "qcow2", "-F", format, "-b"]).arg(&image.root).arg(&beside);
    run("qemu-img", "qemu-utils", command).await?;
    finish(&beside, &files.overlay, user)
}

/// Makes the seed from the order's context, in place of the one that was there.
pub async fn make_seed(files: &VmFiles, order: &VmOrder, user: Option<QemuUser>) -> Result<(), DiskError> {
    // Nobody else gets into it: documents and seed hold a private key, and tools make files as the mask has it.
    let private = files.directory.join("making");
    let made = async {
        let (documents, beside) = (private.join("documents"), private.join("seed.iso"));
        write_documents(&private, &documents, &seed(order)).map_err(io_error(&documents))?;
        let mut command = Command::new("genisoimage");
        command
            .args(["-quiet", "-volid", "cidata", "-joliet", "-rock", "-output"])
            .arg(&beside)
            .arg(&documents);
        run("genisoimage", "genisoimage", command).await?;
        finish(&beside, &files.seed, user)
    }
    .await;
    durable::remove(&private).map_err(io_error(&private))?;
    made
}

/// The documents of a seed.
pub fn seed(order: &VmOrder) -> Seed {
    let context = &order.context;
    let peer = |peer: &controller_api::agent::Peer| {
        let (hostname, address) = (peer.hostname.clone(), peer.address.clone());
        Peer { hostname, address, slots: peer.slots }
    };
    Seed::new(&SeedInput {
        instance_id: order.id.to_string(),
        mac: order.adapter.mac.to_string(),
        generation: context.generation,
        cluster: context.cluster.to_string(),
        hostname: context.hostname.clone(),
        address: context.address.clone(),
        mtu: context.mtu,
        peers: context.peers.iter().map(peer).collect(),
        authorized_keys: context.authorized_keys.clone(),
        cluster_key: KeyPair {
            public: context.cluster_key.public.clone(),
            private: context.cluster_key.private.clone(),
        },
        pkey: context.pkey,
        sl: context.sl,
        partitions: context.partitions.iter().map(named_key).collect(),
        classes: context.classes.iter().map(class_level).collect(),
        probes: context.probes.map(probes),
    })
}

fn named_key(key: &controller_api::agent::NamedKey) -> NamedKey {
    NamedKey { name: key.name.to_string(), pkey: key.pkey }
}

fn probes(probes: controller_api::agent::Probes) -> Probes {
    Probes { successor: probes.successor, broadcaster: probes.broadcaster }
}

fn class_level(class: &controller_api::agent::ClassLevel) -> ClassLevel {
    ClassLevel { view_sls: class.seen.clone(), sl: class.sl }
}

/// A private key is never an argument, and never readable for others.
fn write_documents(private: &Path, documents: &Path, seed: &Seed) -> io::Result<()> {
    durable::remove(private)?;
    for directory in [private, documents] {
        fs::DirBuilder::new().mode(0o700).create(directory)?;
    }
    let files = [
        ("meta-data", &seed.meta_data),
        ("user-data", &seed.user_data),
        ("network-config", &seed.network_config),
    ];
    for (name, text) in files {
        let mut file =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(documents.join(name))?;
        file.write_all(text.as_bytes())?;
    }
    Ok(())
}

/// Puts a file that was made beside its place into it, for QEMU alone.
fn finish(beside: &Path, path: &Path, user: Option<QemuUser>) -> Result<(), DiskError> {
    fs::set_permissions(beside, fs::Permissions::from_mode(0o600)).map_err(io_error(beside))?;
    chown_to_qemu(beside, user, GroupOwner::Qemu)?;
    fs::rename(beside, path).map_err(io_error(path))
}

async fn run(tool: &'static str, package: &'static str, mut command: Command) -> Result<(), DiskError> {
    let command = command.stdin(Stdio::null()).kill_on_drop(true);
    let ended = match timeout(TOOL_TIMEOUT, command.output()).await {
        Ok(ended) => ended.map_err(|source| DiskError::NoTool { tool, package, source })?,
        Err(_) => {
            let said = format!("gave no answer in {} s", TOOL_TIMEOUT.as_secs());
            return Err(DiskError::Tool { tool, said });
        }
    };
    if ended.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&ended.stderr);
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(TOOL_LETTERS_MAX).collect();
    Err(DiskError::Tool { tool, said })
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> DiskError + use<> {
    let path = path.to_owned();
    move |source| DiskError::Io { path, source }
}
