//! No more findings than are of use: tables that are wrong altogether, as they may come from devices, do not fill memory.

use crate::{Finding, Rule};

/// Findings that are kept of one part that a rule looks at: a LID, a port, a switch, a group or a cluster. The first ones tell
/// what is wrong; fabrics have tens of thousands of parts.
pub const PART_FINDINGS_MAX: usize = 16;

/// Findings that are kept of what a rule looks at as a whole.
pub const WHOLE_FINDINGS_MAX: usize = 4096;

/// Findings, with a number for those that are too many.
#[derive(Debug)]
pub(crate) struct BoundedFindings {
    rule: Rule,
    most: usize,
    kept: Vec<Finding>,
    more: usize,
}

impl BoundedFindings {
    pub fn part(rule: Rule) -> Self {
        Self { rule, most: PART_FINDINGS_MAX, kept: Vec::new(), more: 0 }
    }

    pub fn whole(rule: Rule) -> Self {
        Self { most: WHOLE_FINDINGS_MAX, ..Self::part(rule) }
    }

    pub fn push(&mut self, finding: Finding) {
        match self.kept.len() < self.most {
            true => self.kept.push(finding),
            false => self.more += 1,
        }
    }

    /// What is kept, and last how many there are besides.
    pub fn finish(mut self) -> Vec<Finding> {
        if self.more > 0 {
            self.kept.push(Finding::Omitted { rule: self.rule, count: self.more });
        }
        self.kept
    }
}

impl Extend<Finding> for BoundedFindings {
    fn extend<I: IntoIterator<Item = Finding>>(&mut self, findings: I) {
        findings.into_iter().for_each(|finding| self.push(finding));
    }
}

/// What is kept of the findings of a part.
pub(crate) fn bounded(rule: Rule, findings: Vec<Finding>) -> Vec<Finding> {
    if findings.len() <= PART_FINDINGS_MAX {
        return findings;
    }
    let mut kept = BoundedFindings::part(rule);
    kept.extend(findings);
    kept.finish()
}
