//! Reads and writes that are not handed to the MAD window yet. Compact, because a large fabric has hundreds
//! of thousands of them.

use ib_wire::SMP_DATA_LEN;

use crate::attribute_key::AttributeRef;
use crate::manager::Manager;
use crate::purpose::Purpose;

/// Limit on requests waiting in the MAD window, for many devices: enough to keep the window of the whole fabric full.
const READY_MAX: usize = 1024;

/// A read or write of an attribute.
pub(crate) struct Job {
    pub target: AttributeRef,
    pub kind: JobKind,
}

pub(crate) enum JobKind {
    Read,
    /// A read whose result is compared with the known value.
    Audit,
    /// A read of what was just written.
    Verify,
    Write([u8; SMP_DATA_LEN]),
}

/// Pending jobs, the next one last.
#[derive(Default)]
pub(crate) struct Backlog(Vec<Job>);

impl Backlog {
    /// Adds jobs of one step. They are done in any order; devices take turns.
    pub fn fill(&mut self, jobs: impl IntoIterator<Item = Job>) {
        self.0.extend(jobs);
        self.0.shrink_to_fit();
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
    /// Prints only the number of jobs, because data to be written may contain an M_Key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Backlog({})", self.0.len())
    }
}

impl Manager {
    /// Moves jobs into the MAD window while it has room.
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
                JobKind::Verify => self.request_get(target, Purpose::Verify { target }),
                JobKind::Write(data) => self.write(target, data),
            }
        }
    }
}
