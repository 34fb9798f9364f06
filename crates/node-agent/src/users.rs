//! A user of its own for every QEMU: one that is taken over opens the files of no other virtual machine.
//!
//! QemuUsers are numbers of a range that nobody else on the machine has. Which virtual machine has which is kept in a file, for as
//! long as there are files that belong to it, also while its disk rests: a number never meets files of an earlier owner.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use uuid::Uuid;

use crate::durable;
use crate::state_dir::{QemuUser, StateDir};

/// QemuUsers in the range: many times what one machine runs, with disks that rest.
const UID_COUNT: u32 = 65_536;

/// Longest file with who has which: 60 bytes each.
const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// The users that virtual machines have.
#[derive(Debug)]
pub struct QemuUsers {
    state_dir: Arc<StateDir>,
    first: u32,
    assignments: Mutex<Assignments>,
}

#[derive(Debug)]
struct Assignments {
    /// As in the file.
    users: BTreeMap<Uuid, u32>,
    /// Those that were asked for since the agent started: they may have no files yet.
    active: BTreeSet<Uuid>,
}

impl QemuUsers {
    /// QemuUsers from `first` on, and who has which.
    pub fn open(state_dir: Arc<StateDir>, first: u32) -> io::Result<Self> {
        let users = match durable::read(&state_dir.users_path(), FILE_BYTES_MAX)? {
            Some(bytes) => serde_json::from_slice(&bytes).map_err(io::Error::other)?,
            None => BTreeMap::new(),
        };
        Ok(Self { state_dir, first, assignments: Mutex::new(Assignments { users, active: BTreeSet::new() }) })
    }

    /// The user of a virtual machine's QEMU, in the group that QEMU runs in. The same for as long as it has files.
    pub fn user_for(&self, id: Uuid, qemu: QemuUser) -> io::Result<QemuUser> {
        let mut assignments = self.assignments();
        assignments.active.insert(id);
        if let Some(uid) = assignments.users.get(&id) {
            return Ok(QemuUser { uid: *uid, ..qemu });
        }
        let Assignments { users, active } = &mut *assignments;
        users.retain(|id, _| active.contains(id) || self.state_dir.has_files(*id));
        let taken: BTreeSet<u32> = users.values().copied().collect();
        let last = self.first.saturating_add(UID_COUNT - 1);
        let uid = (self.first..=last).find(|uid| !taken.contains(uid));
        let uid = uid
            .ok_or_else(|| io::Error::other(format!("all users from {} to {last} are taken", self.first)))?;
        users.insert(id, uid);
        let text = serde_json::to_vec(users).map_err(io::Error::other)?;
        // On disk before there is a file of it.
        durable::replace(&self.state_dir.users_path(), &text)?;
        Ok(QemuUser { uid, ..qemu })
    }

    /// A virtual machine is gone; what is left of it keeps its user.
    pub fn release(&self, id: Uuid) {
        self.assignments().active.remove(&id);
    }

    fn assignments(&self) -> MutexGuard<'_, Assignments> {
        self.assignments.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const QEMU: QemuUser = QemuUser { uid: 64055, gid: 108 };

    #[test]
    fn a_user_is_given_to_nobody_else_while_files_of_it_exist() {
        let scratch = tempfile::tempdir().unwrap();
        let state_dir =
            Arc::new(StateDir::open(&scratch.path().join("state"), &scratch.path().join("run")).unwrap());
        let [one, two, three, four] = [1, 2, 3, 4].map(Uuid::from_u128);
        let users = QemuUsers::open(Arc::clone(&state_dir), 2_000_000).unwrap();
        assert_eq!(users.user_for(one, QEMU).unwrap(), QemuUser { uid: 2_000_000, gid: 108 });
        assert_eq!(users.user_for(two, QEMU).unwrap().uid, 2_000_001);
        assert_eq!(users.user_for(one, QEMU).unwrap().uid, 2_000_000);
        // One rests, the other has no files.
        fs::create_dir(state_dir.retained_directory().join(one.to_string())).unwrap();
        drop(users);
        let users = QemuUsers::open(Arc::clone(&state_dir), 2_000_000).unwrap();
        assert_eq!(users.user_for(three, QEMU).unwrap().uid, 2_000_001);
        fs::remove_dir(state_dir.retained_directory().join(one.to_string())).unwrap();
        assert_eq!(users.user_for(four, QEMU).unwrap().uid, 2_000_000);
    }
}
