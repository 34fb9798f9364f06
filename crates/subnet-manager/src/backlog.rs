//! Reads and writes that wait for their turn: small, because there are hundreds of thousands of them.

use ib_wire::SMP_DATA_LEN;

use crate::manager::Manager;
use crate::unsupported::AttributeRef;

/// Requests that are made ready to be sent at most; enough for every device of the largest fabrics to have its share.
const READY_MAX: usize = 8192;

/// An attribute, and what is to be done with it.
pub(crate) struct Job {
    pub target: AttributeRef,
    pub kind: JobKind,
}

/// What is done with an attribute.
pub(crate) enum JobKind {
    /// It is read.
    Read,
    /// It is read, and should hold what is known.
    Audit,
    /// It is to hold this.
    Write([u8; SMP_DATA_LEN]),
}

/// Jobs, the last one first.
#[derive(Default)]
pub(crate) struct Backlog(Vec<Job>);

impl Backlog {
    /// Takes jobs of one step, which may be done in any order: devices take turns.
    pub fn fill(&mut self, jobs: impl IntoIterator<Item = Job>) {
        self.0.extend(jobs);
        self.0.sort_unstable_by_key(|Job { target: (node, _, key), .. }| std::cmp::Reverse((key.1, *node)));
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn clear(&mut self) {
        self.0 = Vec::new();
    }
}

impl std::fmt::Debug for Backlog {
    /// What is to be written may be a key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Backlog({})", self.0.len())
    }
}

impl Manager {
    /// Makes some of what waits ready to be sent.
    pub(crate) fn refill(&mut self) {
        if self.window.waiting() > READY_MAX / 2 {
            return;
        }
        while self.window.waiting() < READY_MAX
            && let Some(Job { target, kind }) = self.backlog.0.pop()
        {
            match kind {
                JobKind::Read => self.read(target),
                JobKind::Audit => self.audit(target),
                JobKind::Write(data) => self.write(target, data),
            }
        }
    }
}
