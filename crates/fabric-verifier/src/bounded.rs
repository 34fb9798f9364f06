//! Bounds on the number of findings, so that tables that are wrong throughout (for example read back from devices) do
//! not fill memory.

use crate::{Finding, Rule};

/// The most findings kept for one part that a rule examines: a LID, a port, a switch, a group or a cluster. The first
/// ones are enough to see what is wrong, and a fabric has tens of thousands of parts.
pub const PART_FINDINGS_MAX: usize = 16;

/// The most findings kept for a check that a rule makes over the whole fabric.
pub const WHOLE_FINDINGS_MAX: usize = 4096;

/// A list of findings up to a limit, and a count of those beyond it.
#[derive(Debug)]
pub(crate) struct BoundedFindings {
    rule: Rule,
    max: usize,
    kept: Vec<Finding>,
    omitted: usize,
}

impl BoundedFindings {
    pub fn part(rule: Rule) -> Self {
        Self { rule, max: PART_FINDINGS_MAX, kept: Vec::new(), omitted: 0 }
    }

    pub fn whole(rule: Rule) -> Self {
        Self { max: WHOLE_FINDINGS_MAX, ..Self::part(rule) }
    }

    pub fn push(&mut self, finding: Finding) {
        if self.kept.len() < self.max {
            self.kept.push(finding);
        } else {
            self.omitted += 1;
        }
    }

    /// Returns the kept findings, followed by [`Finding::Omitted`] if there were more.
    pub fn finish(mut self) -> Vec<Finding> {
        if self.omitted > 0 {
            self.kept.push(Finding::Omitted { rule: self.rule, count: self.omitted });
        }
        self.kept
    }
}

impl Extend<Finding> for BoundedFindings {
    fn extend<I: IntoIterator<Item = Finding>>(&mut self, findings: I) {
        findings.into_iter().for_each(|finding| self.push(finding));
    }
}

/// Bounds the findings of one part by [`PART_FINDINGS_MAX`].
pub(crate) fn bounded(rule: Rule, findings: Vec<Finding>) -> Vec<Finding> {
    if findings.len() <= PART_FINDINGS_MAX {
        return findings;
    }
    let mut kept = BoundedFindings::part(rule);
    kept.extend(findings);
    kept.finish()
}
