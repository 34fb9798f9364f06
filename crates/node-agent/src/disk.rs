//! The disks of a virtual machine: a qcow2 overlay over the root disk of its image, and the seed.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use controller_api::agent::VmSpec;
use controller_api::image::DiskFormat;
use guest::probe::Probes;
use guest::seed::{ClassLevel, GuestAdapter, KeyPair, NamedKey, Peer, Seed, SeedInput};
use thiserror::Error;
use tokio::process::Command;
use tokio::time::timeout;

use crate::image::VerifiedImage;
use crate::state_dir::{GroupOwner, QemuUser, StateDirError, VmFiles, chown_to_qemu};

/// Time limit of an external tool; on a busy machine they take about a second.
const TOOL_TIMEOUT: Duration = Duration::from_secs(60);

/// Most characters of a tool's standard error that are kept.
const TOOL_OUTPUT_CHARS_MAX: usize = 300;

/// Why a disk could not be created.
#[derive(Debug, Error)]
pub enum DiskError {
    #[error("cannot run {tool}, which is in the package {package}")]
    NoTool { tool: &'static str, package: &'static str, source: io::Error },
    #[error("{tool}: {message}")]
    Tool { tool: &'static str, message: String },
    #[error(transparent)]
    StateDir(#[from] StateDirError),
    #[error("{}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

/// Creates the overlay for `user`. An existing overlay is kept with its data; only its owner is set.
pub async fn make_overlay(
    files: &VmFiles,
    image: &VerifiedImage,
    user: Option<QemuUser>,
) -> Result<(), DiskError> {
    if files.overlay.exists() {
        return chown_to_qemu(&files.overlay, user, GroupOwner::Qemu).map_err(DiskError::from);
    }
    let temporary = files.directory.join("overlay.new");
    let format = match image.root_format {
        DiskFormat::Raw => "raw",
        DiskFormat::Qcow2 => "qcow2",
    };
    let mut command = Command::new("qemu-img");
    command.args(["create", "-q", "-f", "qcow2", "-F", format, "-b"]).arg(&image.root).arg(&temporary);
    run("qemu-img", "qemu-utils", command).await?;
    finish(&temporary, &files.overlay, user)
}

/// Writes the seed from the context of the spec, replacing an existing one.
pub async fn make_seed(files: &VmFiles, order: &VmSpec, user: Option<QemuUser>) -> Result<(), DiskError> {
    // In a directory with mode 0700: documents and seed hold a private key, and tools create files by the umask.
    let private = files.directory.join("making");
    let created = async {
        let (documents, temporary) = (private.join("documents"), private.join("seed.iso"));
        write_documents(&private, &documents, &seed(order)).map_err(io_error(&documents))?;
        let mut command = Command::new("genisoimage");
        command
            .args(["-quiet", "-volid", "cidata", "-joliet", "-rock", "-output"])
            .arg(&temporary)
            .arg(&documents);
        run("genisoimage", "genisoimage", command).await?;
        finish(&temporary, &files.seed, user)
    }
    .await;
    durable_file::remove(&private).map_err(io_error(&private))?;
    created
}

/// The seed documents for a VM spec.
pub fn seed(order: &VmSpec) -> Seed {
    let context = &order.context;
    let peer = |peer: &controller_api::agent::Peer| {
        let (hostname, address) = (peer.hostname.clone(), peer.address.clone());
        Peer { hostname, address, slots: peer.slots }
    };
    Seed::new(&SeedInput {
        instance_id: order.id.to_string(),
        adapter: match order.adapter.guid {
            Some(_) => GuestAdapter::Infiniband,
            None => GuestAdapter::Ethernet { mac: order.adapter.mac.to_string() },
        },
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
    ClassLevel { view_sls: class.view_sls.clone(), sl: class.sl }
}

/// Writes the documents readable by their owner only. A private key is never passed as an argument.
fn write_documents(private: &Path, documents: &Path, seed: &Seed) -> io::Result<()> {
    durable_file::remove(private)?;
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

/// Makes a new file accessible to QEMU only and moves it into place.
fn finish(temporary: &Path, path: &Path, user: Option<QemuUser>) -> Result<(), DiskError> {
    fs::set_permissions(temporary, fs::Permissions::from_mode(0o600)).map_err(io_error(temporary))?;
    chown_to_qemu(temporary, user, GroupOwner::Qemu)?;
    durable_file::install(temporary, path).map_err(io_error(path))
}

async fn run(tool: &'static str, package: &'static str, mut command: Command) -> Result<(), DiskError> {
    let command = command.stdin(Stdio::null()).kill_on_drop(true);
    let output = match timeout(TOOL_TIMEOUT, command.output()).await {
        Ok(output) => output.map_err(|source| DiskError::NoTool { tool, package, source })?,
        Err(_) => {
            let message = format!("did not finish within {} s", TOOL_TIMEOUT.as_secs());
            return Err(DiskError::Tool { tool, message });
        }
    };
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let message =
        stderr.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(TOOL_OUTPUT_CHARS_MAX).collect();
    Err(DiskError::Tool { tool, message })
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> DiskError + use<> {
    let path = path.to_owned();
    move |source| DiskError::Io { path, source }
}
