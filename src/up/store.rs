//! Checks, before any program is started, that the store of the controller fits the virtual machines on this machine.

use std::fs;
use std::io::ErrorKind;

use anyhow::{Context, bail};
use serde_json::Value;

use super::site::SiteDir;

/// Checks the store.
///
/// # Errors
/// If the store is missing or older than the specs of the agent, while the agent has virtual machines.
pub async fn check(site: &SiteDir) -> anyhow::Result<()> {
    let database = site.path("controller.db");
    if database.exists() || site.path("site.json").exists() {
        return controller::check_store(&database, &site.path("store.key")).await;
    }
    // Versions before `site.json`: the host specs of the agent show whether there was a store.
    let specs = site.path("agent/orders");
    let entries = match fs::read_dir(&specs) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries.with_context(|| format!("cannot read {}", specs.display()))?,
    };
    for entry in entries {
        let path = entry.with_context(|| format!("cannot read {}", specs.display()))?.path();
        let kept: Value = serde_json::from_slice(&fs::read(&path).unwrap_or_default()).unwrap_or_default();
        let is_empty = kept["vms"].as_array().is_none_or(Vec::is_empty);
        if !is_empty {
            bail!(
                "{} is missing, but {} lists virtual machines: restore the newest copy of the store, or continue without it with \
                 `heddle controller recover --state {} --accept-empty-store`",
                database.display(),
                path.display(),
                site.directory().display()
            );
        }
    }
    Ok(())
}
