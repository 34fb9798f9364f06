//! Whether the controller's store belongs to what runs on this machine, before anything is started.

use std::fs;
use std::io::ErrorKind;

use anyhow::{Context, bail};
use serde_json::Value;

use super::site::SiteDir;

/// Refuses to go on without the store, or with an older one, while the agent keeps virtual machines.
pub async fn check(site: &SiteDir) -> anyhow::Result<()> {
    let database = site.path("controller.db");
    if database.exists() || site.path("site.json").exists() {
        return controller::check_store(&database, &site.path("store.key")).await;
    }
    // Versions before `site.json`: what the agent was told to run says whether there was a store.
    let orders = site.path("agent/orders");
    let entries = match fs::read_dir(&orders) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries.with_context(|| format!("cannot read {}", orders.display()))?,
    };
    for entry in entries {
        let path = entry.with_context(|| format!("cannot read {}", orders.display()))?.path();
        let kept: Value = serde_json::from_slice(&fs::read(&path).unwrap_or_default()).unwrap_or_default();
        let is_empty = kept["vms"].as_array().is_none_or(Vec::is_empty);
        if !is_empty {
            bail!(
                "{} is missing, but {} lists virtual machines: put the newest copy of the store back, or go on without it by \
                 `heddle controller recover --state {} --accept-empty-store`",
                database.display(),
                path.display(),
                site.directory().display()
            );
        }
    }
    Ok(())
}
