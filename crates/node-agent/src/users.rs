//! A separate user id for every QEMU process, so that a compromised one cannot open files of other virtual machines.
//!
//! Ids come from a range that is used for nothing else. The assignment is stored for as long as files of the virtual machine exist,
//! including a retained disk, so that a reused id never owns files of an earlier virtual machine.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use uuid::Uuid;

use crate::state_dir::{QemuUser, StateDir};

/// Number of ids in the range: many times the virtual machines and retained disks of a machine.
const UID_COUNT: u32 = 65_536;

/// Most bytes of the file with the assignments; an entry has 60 bytes.
const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// User ids of an agent's QEMU processes.
#[derive(Debug)]
pub struct QemuUsers {
    state_dir: Arc<StateDir>,
    first: u32,
    assignments: Mutex<Assignments>,
}

#[derive(Debug)]
struct Assignments {
    /// Content of the file.
    users: BTreeMap<Uuid, u32>,
    /// Assigned since the agent started; these may have no files yet.
    active: BTreeSet<Uuid>,
}

impl QemuUsers {
    /// Loads the assignments; new ids are assigned from `first` on.
    pub fn open(state_dir: Arc<StateDir>, first: u32) -> io::Result<Self> {
        let users = match durable_file::read(&state_dir.users_path(), FILE_BYTES_MAX)? {
            Some(bytes) => serde_json::from_slice(&bytes).map_err(io::Error::other)?,
            None => BTreeMap::new(),
        };
        Ok(Self { state_dir, first, assignments: Mutex::new(Assignments { users, active: BTreeSet::new() }) })
    }

    /// The user of a virtual machine's QEMU process, in the group `qemu.gid`. Stable while the virtual machine has files; on disk before it
    /// is returned. Fails if all ids are in use or the assignment cannot be stored.
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
        let uid = uid.ok_or_else(|| {
            io::Error::other(format!("all user ids from {} to {last} are in use", self.first))
        })?;
        users.insert(id, uid);
        let text = serde_json::to_vec(users).map_err(io::Error::other)?;
        // Stored before a file owned by this id exists.
        durable_file::replace(&self.state_dir.users_path(), &text)?;
        Ok(QemuUser { uid, ..qemu })
    }

    /// Releases a removed virtual machine's id, which is reused once no files of it exist.
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
    fn an_id_is_not_reused_while_its_files_exist() {
        let scratch = tempfile::tempdir().unwrap();
        let state_dir =
            Arc::new(StateDir::open(&scratch.path().join("state"), &scratch.path().join("run")).unwrap());
        let [one, two, three, four] = [1, 2, 3, 4].map(Uuid::from_u128);
        let users = QemuUsers::open(Arc::clone(&state_dir), 2_000_000).unwrap();
        assert_eq!(users.user_for(one, QEMU).unwrap(), QemuUser { uid: 2_000_000, gid: 108 });
        assert_eq!(users.user_for(two, QEMU).unwrap().uid, 2_000_001);
        assert_eq!(users.user_for(one, QEMU).unwrap().uid, 2_000_000);
        // The first has a retained disk, the second has no files.
        fs::create_dir(state_dir.retained_directory().join(one.to_string())).unwrap();
        drop(users);
        let users = QemuUsers::open(Arc::clone(&state_dir), 2_000_000).unwrap();
        assert_eq!(users.user_for(three, QEMU).unwrap().uid, 2_000_001);
        fs::remove_dir(state_dir.retained_directory().join(one.to_string())).unwrap();
        assert_eq!(users.user_for(four, QEMU).unwrap().uid, 2_000_000);
    }
}
