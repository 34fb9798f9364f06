//! The keys of a scenario file, and the error for a key that was renamed.

use fabric_model::SwitchModel;
use serde::de::Error;
use serde::{Deserialize, Deserializer};

use super::quantities::{Size, Span};
use super::{Scenario, WorkloadSpec, usual_buffer};

/// A scenario as a file contains it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ScenarioFile {
    duration: Span,
    #[serde(default)]
    warm_up: Span,
    #[serde(default = "usual_buffer")]
    buffer: Size,
    switch_model: Option<SwitchModel>,
    workloads: Vec<WorkloadSpec>,
    #[serde(default, rename = "acts")]
    _acts: RenamedToWorkloads,
}

/// The value of the key `acts`, the former name of `workloads`. Reading it fails, whatever it is.
#[derive(Default)]
struct RenamedToWorkloads;

impl<'de> Deserialize<'de> for RenamedToWorkloads {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(D::Error::custom("the key `acts` was renamed to `workloads`"))
    }
}

impl From<ScenarioFile> for Scenario {
    fn from(file: ScenarioFile) -> Self {
        let ScenarioFile { duration, warm_up, buffer, switch_model, workloads, .. } = file;
        Self { duration, warm_up, buffer, switch_model, workloads }
    }
}
