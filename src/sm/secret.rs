//! The site secret, and the keys that are derived from it.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use clap::Args;
use ib_wire::{Guid, MKey, PortNum};
use subnet_manager::{KeyKind, OperatorKey, SiteSecret};

use crate::files::replace_private;

/// The largest secret file in bytes: whoever names a device by mistake gets an error.
const SECRET_BYTES_MAX: u64 = 4096;

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
    match version.kind {
        KeyKind::Derived => {}
        KeyKind::Operator => bail!("{node} has the operator key that it was released with"),
        KeyKind::Removed => bail!("{node} has no key: keys were removed when the fabric was released"),
    }
    ensure!(version.secret == secret.fingerprint(), "{node} has a key of another secret");
    Ok(version.epoch)
}

/// Reads the site secret.
///
/// # Errors
/// If the group or others can read the file, or it has fewer than 32 bytes.
pub fn read(path: &Path) -> anyhow::Result<SiteSecret> {
    SiteSecret::new(read_private(path)?).with_context(|| format!("in {}", path.display()))
}

/// Reads the one key that an operator gives to all nodes: 8 bytes, or `0x` and 16 hexadecimal digits.
///
/// # Errors
/// If the group or others can read the file, or it holds something else.
pub fn read_operator_key(path: &Path) -> anyhow::Result<OperatorKey> {
    let key = operator_key(&read_private(path)?);
    key.with_context(|| {
        format!("{} must hold 8 bytes, or 0x and 16 hexadecimal digits; a key of 0 is none", path.display())
    })
}

fn operator_key(bytes: &[u8]) -> Option<OperatorKey> {
    let raw = match <[u8; 8]>::try_from(bytes) {
        Ok(binary) => u64::from_be_bytes(binary),
        Err(_) => {
            let text = std::str::from_utf8(bytes).ok()?;
            let digits = text.strip_suffix('\n').unwrap_or(text).strip_prefix("0x")?;
            let is_hex = digits.len() == 16 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
            u64::from_str_radix(digits, 16).ok().filter(|_| is_hex)?
        }
    };
    MKey::from_wire(raw).map(OperatorKey::new)
}

/// Reads a file that only its owner can read.
fn read_private(path: &Path) -> anyhow::Result<Vec<u8>> {
    let place = path.display();
    let mode = fs::metadata(path).with_context(|| format!("cannot read {place}"))?.permissions().mode();
    ensure!(mode & 0o077 == 0, "{place} can be read by others (mode {:o}): chmod 600 {place}", mode & 0o777);
    durable_file::read(path, SECRET_BYTES_MAX)
        .and_then(|bytes| bytes.ok_or_else(|| ErrorKind::NotFound.into()))
        .with_context(|| format!("cannot read {place}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operator_key_is_binary_or_hexadecimal_and_not_0() {
        let read = |bytes: &[u8]| operator_key(bytes).map(|key| key.key().to_wire());
        assert_eq!(read(&[0, 1, 2, 3, 4, 5, 6, 7]), Some(0x0001_0203_0405_0607));
        assert_eq!(read(b"0x0001020304050607\n"), Some(0x0001_0203_0405_0607));
        let others: [&[u8]; 7] = [
            &[0; 8],
            &[1; 9],
            b"",
            b"0x0000000000000000",
            b"0x1234",
            b"0001020304050607",
            b"0x+001020304050607",
        ];
        for bytes in others {
            assert_eq!(read(bytes), None, "{bytes:?}");
        }
    }
}
