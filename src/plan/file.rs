//! Plan files and intents files.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use controller_api::intents::SiteIntents;
use fabric_compiler::arrangement::Arrangement;
use fabric_model::{FabricPlan, Intents};
use ib_wire::Guid;
use serde::{Deserialize, Serialize};

/// Value of the field `format` of a plan file.
const FORMAT: &str = "heddle-plan-1";

/// A plan with the intents it was compiled from. It holds P_Keys and Q_Keys of groups, but no M_Key.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanFile {
    format: String,
    /// The intents file.
    pub site: SiteIntents,
    /// Port GUIDs of the nodes of each cluster, in the order of node numbers.
    pub seats: BTreeMap<String, Vec<Guid>>,
    /// The intents with placement.
    pub intents: Intents,
    pub plan: FabricPlan,
}

impl PlanFile {
    pub fn of(site: SiteIntents, arranged: Arrangement) -> Self {
        let Arrangement { node_ports: seats, intents, plan } = arranged;
        Self { format: FORMAT.to_owned(), site, seats, intents, plan }
    }

    pub fn into_arrangement(self) -> Arrangement {
        Arrangement { node_ports: self.seats, intents: self.intents, plan: self.plan }
    }

    pub fn read(path: &Path) -> Result<Self> {
        let place = path.display();
        let bytes = fs::read(path).with_context(|| format!("cannot read {place}"))?;
        let file: Self = serde_json::from_slice(&bytes)
            .with_context(|| format!("{place} is not a plan file of heddle plan"))?;
        ensure!(file.format == FORMAT, "{place} has the format {:?}, expected {FORMAT:?}", file.format);
        Ok(file)
    }

    /// Replaces the file atomically.
    pub fn write(&self, path: &Path) -> Result<()> {
        let mut bytes = serde_json::to_vec(self)?;
        bytes.push(b'\n');
        crate::files::replace_public(path, &bytes)
    }
}

/// Reads and checks an intents file.
pub fn read_intents(path: &Path) -> Result<SiteIntents> {
    let place = path.display();
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {place}"))?;
    let site: SiteIntents = toml::from_str(&text).with_context(|| format!("in {place}"))?;
    site.check().with_context(|| format!("in {place}"))?;
    Ok(site)
}
