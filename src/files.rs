//! Files that are replaced atomically, with their path in errors.

use std::path::Path;

use anyhow::Context;

/// Replaces a file that every user may read.
pub fn replace_public(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    replace(path, bytes, durable_file::PUBLIC)
}

/// Replaces a file that only its owner may read.
pub fn replace_private(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    replace(path, bytes, durable_file::PRIVATE)
}

fn replace(path: &Path, bytes: &[u8], mode: u32) -> anyhow::Result<()> {
    durable_file::replace_with_mode(path, bytes, mode)
        .with_context(|| format!("cannot write {}", path.display()))
}
