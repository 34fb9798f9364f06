//! The site secret, and the keys that are derived from it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::Args;
use ib_wire::Guid;
use subnet_manager::SiteSecret;

use super::state::replace_private;

/// Show the management key of a node, or write it to a file that stock tools read.
///
/// What is in the arguments of a process, every user of the machine can read: hand the key to tools by a file.
///
///     heddle node-key 0x0002c90300100000 --secret site.secret --config node.conf
///     smpquery -z node.conf -D nodeinfo 0
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct NodeKeyArgs {
    /// The node GUID.
    node: Guid,
    /// The site secret that the keys are derived from.
    #[arg(long)]
    secret: PathBuf,
    /// Write it to this file instead, with mode 600, as infiniband-diags read it (option -z of their tools)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

pub fn show_key(args: NodeKeyArgs) -> anyhow::Result<()> {
    let key = read(&args.secret)?.key(args.node).to_wire();
    match args.config {
        Some(path) => replace_private(&path, format!("m_key={key:#018x}\n").as_bytes()),
        None => crate::print_line(format_args!("{key:#018x}")),
    }
}

/// Reads the site secret, which nobody but its owner may be able to read.
pub fn read(path: &Path) -> anyhow::Result<SiteSecret> {
    let place = path.display();
    let mode = fs::metadata(path).with_context(|| format!("cannot read {place}"))?.permissions().mode();
    ensure!(mode & 0o077 == 0, "{place} can be read by others (mode {:o}): chmod 600 {place}", mode & 0o777);
    let bytes = fs::read(path).with_context(|| format!("cannot read {place}"))?;
    SiteSecret::new(bytes).with_context(|| format!("in {place}"))
}
