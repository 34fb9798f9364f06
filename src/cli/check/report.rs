//! The report of `heddle cluster check`.

use std::time::Duration;

use controller_api::Name;
use controller_api::cluster::{AdapterKind, Cluster};
use serde::Serialize;

use super::super::output::{count, table, took};
use super::plan::{Check, Group};

/// Registered name of the image that has all tools.
const EVALUATION_IMAGE: &str = "debian-evaluation";

/// A measured value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    pub name: &'static str,
    pub value: f64,
    /// Empty for counts.
    pub unit: &'static str,
}

impl Figure {
    pub fn new(name: &'static str, value: f64, unit: &'static str) -> Self {
        Self { name, value, unit }
    }

    fn render(&self) -> String {
        let Self { name, value, unit } = self;
        let digits = if unit.is_empty() { 0 } else { 1 + usize::from(*value < 10.0) };
        format!("{name} {value:.digits$} {unit}").trim_end().to_owned()
    }
}

/// What a check that passed has found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CheckFinding {
    pub figures: Vec<Figure>,
    pub note: Option<String>,
}

impl CheckFinding {
    pub fn note(note: impl Into<String>) -> Self {
        Self { figures: Vec::new(), note: Some(note.into()) }
    }
}

/// How a check ended.
#[derive(Clone, Debug, PartialEq)]
pub enum CheckVerdict {
    Passed(CheckFinding),
    Failed(String),
    /// The image lacks these tools.
    Missing(String),
    Skipped(String),
}

/// The word for how a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum CheckOutcome {
    Ok,
    Failed,
    NotInImage,
    Skipped,
}

impl CheckOutcome {
    const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed => "FAILED",
            Self::NotInImage => "not in this image",
            Self::Skipped => "skipped",
        }
    }
}

/// A check with its result, a row of the report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CheckedItem {
    group: Group,
    name: String,
    outcome: CheckOutcome,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    figures: Vec<Figure>,
    /// What was found, or why it failed or was not tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    seconds: f64,
}

impl CheckedItem {
    pub fn new(check: &Check, verdict: CheckVerdict, elapsed: Duration) -> Self {
        let (outcome, figures, note) = match verdict {
            CheckVerdict::Passed(CheckFinding { figures, note }) => (CheckOutcome::Ok, figures, note),
            CheckVerdict::Failed(reason) => (CheckOutcome::Failed, Vec::new(), Some(reason)),
            CheckVerdict::Missing(tools) => {
                (CheckOutcome::NotInImage, Vec::new(), Some(format!("{tools}; use {EVALUATION_IMAGE}")))
            }
            CheckVerdict::Skipped(reason) => (CheckOutcome::Skipped, Vec::new(), Some(reason)),
        };
        let seconds = (elapsed.as_secs_f64() * 10.0).round() / 10.0;
        Self { group: check.group, name: check.name.clone(), outcome, figures, note, seconds }
    }

    fn details(&self) -> String {
        let figures = self.figures.iter().map(Figure::render);
        figures.chain(self.note.clone()).collect::<Vec<_>>().join(", ")
    }

    /// One line, for the progress.
    pub fn line(&self) -> String {
        let line =
            format!("{}: {}: {} {}", self.group.word(), self.name, self.outcome.word(), self.details());
        line.trim_end().to_owned()
    }
}

/// The result of all checks of a cluster.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CheckReport {
    cluster: Name,
    adapter: AdapterKind,
    image: Name,
    nodes: usize,
    /// Whether the fabric is emulated: rates and latencies are then those of an emulation.
    emulated: bool,
    seconds: f64,
    pub passed: usize,
    pub failed: usize,
    pub not_in_image: usize,
    pub skipped: usize,
    checks: Vec<CheckedItem>,
}

impl CheckReport {
    pub fn new(cluster: &Cluster, emulated: bool, checks: Vec<CheckedItem>, elapsed: Duration) -> Self {
        let with = |outcome| checks.iter().filter(|check| check.outcome == outcome).count();
        Self {
            cluster: cluster.name.clone(),
            adapter: cluster.shape.adapter,
            image: cluster.shape.image.clone(),
            nodes: cluster.nodes.len(),
            emulated,
            seconds: elapsed.as_secs_f64().round(),
            passed: with(CheckOutcome::Ok),
            failed: with(CheckOutcome::Failed),
            not_in_image: with(CheckOutcome::NotInImage),
            skipped: with(CheckOutcome::Skipped),
            checks,
        }
    }

    /// The report for people.
    pub fn render(&self) -> String {
        let rows = self.checks.iter().map(|check| {
            [
                check.group.word().to_owned(),
                check.name.clone(),
                check.outcome.word().to_owned(),
                check.details(),
            ]
        });
        let head = format!(
            "cluster {}: {} with {} adapters, image {}",
            self.cluster,
            count(self.nodes, "node"),
            self.adapter,
            self.image
        );
        let emulated = "\n\nThe fabric is emulated: rates and latencies are those of an emulation, not of InfiniBand hardware.";
        format!(
            "{head}\n\n{}{}\n\n{}",
            table(["group", "check", "result", "details"], rows),
            if self.emulated { emulated } else { "" },
            self.summary()
        )
    }

    fn summary(&self) -> String {
        let further = [(self.not_in_image, "not in this image"), (self.skipped, "skipped")];
        let further =
            further.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!(", {count} {what}"));
        let further: String = further.collect();
        let hint = match self.not_in_image {
            0 => String::new(),
            _ => format!(
                "\nTools are missing in the image {}: create the cluster with --image {EVALUATION_IMAGE}.",
                self.image
            ),
        };
        let time = took(Duration::from_secs_f64(self.seconds));
        format!("{} passed, {} failed{further}, after {time}{hint}", self.passed, self.failed)
    }
}
