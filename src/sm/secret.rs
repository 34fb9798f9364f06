//! The site secret, and the keys that are derived from it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::Args;
use ib_wire::{Guid, PortNum};
use subnet_manager::SiteSecret;

use crate::files::replace_private;

/// Print the management key (M_Key) of a node, or write it to a file that stock tools read.
///
/// Every user of a machine can read the arguments of a process, so pass the key to tools in a file.
///
///     heddle node-key 0x0002c90300100000 --secret site.secret --config node.conf
///     smpquery -z node.conf -D nodeinfo 0
///
/// After `heddle sm rotate-keys`, name the epoch, or the state file of the manager, which knows the epoch of every node.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct NodeKeyArgs {
    /// GUID of the node.
    node: Guid,
    /// Number of a port that was connected after its adapter got its key: such a port has a key of its own.
    #[arg(long, value_name = "N")]
    late_port: Option<PortNum>,
    /// File with the site secret that the keys are derived from.
    #[arg(long)]
    secret: PathBuf,
    /// Epoch of the key: how often keys were rotated since this secret was first used.
    #[arg(long, value_name = "N", default_value_t = 0)]
    epoch: u32,
    /// State file of the manager, to look the epoch up.
    #[arg(long, value_name = "FILE", conflicts_with = "epoch")]
    state: Option<PathBuf>,
    /// Write the key to this file instead, with mode 600, in the format of option -z of infiniband-diags.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

pub fn show_key(args: NodeKeyArgs) -> anyhow::Result<()> {
    let secret = read(&args.secret)?;
    let epoch = match &args.state {
        Some(path) => epoch_of(path, args.node, &secret)?,
        None => args.epoch,
    };
    let key = match args.late_port {
        Some(port) => secret.port_key(args.node, port, epoch),
        None => secret.key(args.node, epoch),
    };
    let key = key.to_wire();
    match args.config {
        Some(path) => replace_private(&path, format!("m_key={key:#018x}\n").as_bytes()),
        None => crate::print_line(format_args!("{key:#018x}")),
    }
}

/// The epoch of the key of a node, by the state of a manager.
fn epoch_of(path: &Path, node: Guid, secret: &SiteSecret) -> anyhow::Result<u32> {
    let memory = super::state::read_only(path)?;
    let current = memory.secret.with_context(|| format!("nodes in {} have no keys", path.display()))?;
    let version = memory.keys.of(node, current);
    ensure!(version.secret == secret.fingerprint(), "{node} has a key of another secret");
    Ok(version.epoch)
}

/// Reads the site secret.
///
/// # Errors
/// If the group or others can read the file, or it has fewer than 32 bytes.
pub fn read(path: &Path) -> anyhow::Result<SiteSecret> {
    let place = path.display();
    let mode = fs::metadata(path).with_context(|| format!("cannot read {place}"))?.permissions().mode();
    ensure!(mode & 0o077 == 0, "{place} can be read by others (mode {:o}): chmod 600 {place}", mode & 0o777);
    let bytes = fs::read(path).with_context(|| format!("cannot read {place}"))?;
    SiteSecret::new(bytes).with_context(|| format!("in {place}"))
}
