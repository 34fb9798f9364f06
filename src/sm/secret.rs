//! The site secret, and the keys that are derived from it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::Args;
use ib_wire::Guid;
use subnet_manager::SiteSecret;

/// Shows the management key of a node, for tools that ask for one (`smpquery -y`).
#[derive(Debug, Args)]
pub struct NodeKeyArgs {
    /// The node GUID.
    node: Guid,
    /// The site secret that the keys are derived from.
    #[arg(long)]
    secret: PathBuf,
}

pub fn show_key(args: NodeKeyArgs) -> anyhow::Result<()> {
    crate::say(format_args!("{:#018x}", read(&args.secret)?.key(args.node).to_wire()))?;
    Ok(())
}

/// Reads the site secret, which nobody but its owner may be able to read.
pub fn read(path: &Path) -> anyhow::Result<SiteSecret> {
    let place = path.display();
    let mode = fs::metadata(path).with_context(|| format!("cannot read {place}"))?.permissions().mode();
    ensure!(mode & 0o077 == 0, "{place} can be read by others (mode {:o}): chmod 600 {place}", mode & 0o777);
    let bytes = fs::read(path).with_context(|| format!("cannot read {place}"))?;
    SiteSecret::new(bytes).with_context(|| format!("in {place}"))
}
