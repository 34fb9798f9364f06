//! Retention of the disks of removed virtual machines, so that a removal by mistake can be undone by hand.
//!
//! A retained disk is in a directory that no domain uses and QEMU cannot enter. Its age is counted by the monotonic clock while an
//! agent runs, so that neither downtime nor a change of the clock deletes a disk early. If space for a new disk is missing, the
//! oldest retained disks are deleted first.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use uuid::Uuid;

use crate::state_dir::{StateDir, VmFiles};

/// Most bytes of the file with the ages; an entry has 60 bytes.
const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// The retained disks of an agent.
#[derive(Debug)]
pub struct RetainedDisks {
    state_dir: Arc<StateDir>,
    grace: Duration,
    /// Age of each disk in seconds. Locked while files are moved or deleted.
    seconds: Mutex<BTreeMap<Uuid, u64>>,
}

impl RetainedDisks {
    /// Loads the retained disks. Each is kept for `grace`; 0 means that disks are deleted at once.
    pub fn open(state_dir: Arc<StateDir>, grace: Duration) -> io::Result<Self> {
        let kept = durable_file::read(&state_dir.retention_path(), FILE_BYTES_MAX)?;
        // An unreadable file only prolongs the retention.
        let mut kept: BTreeMap<Uuid, u64> =
            kept.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        let mut seconds = BTreeMap::new();
        for entry in fs::read_dir(state_dir.retained_directory())? {
            let name = entry?.file_name();
            if let Some(id) = name.to_str().and_then(|name| Uuid::parse_str(name).ok()) {
                seconds.insert(id, kept.remove(&id).unwrap_or(0));
            }
        }
        Ok(Self { state_dir, grace, seconds: Mutex::new(seconds) })
    }

    /// Retains the disk of a removed virtual machine and deletes its other files. Succeeds if there are none.
    pub fn retain(&self, id: Uuid, files: &VmFiles) -> io::Result<()> {
        let mut seconds = self.seconds();
        if self.grace.is_zero() || !files.overlay.exists() {
            return durable_file::remove(&files.directory);
        }
        // The seed holds a private key and can be recreated from the spec.
        durable_file::remove(&files.seed)?;
        // Another file system may have been mounted since the start.
        self.state_dir.make_retained_directory().map_err(io::Error::other)?;
        let target = self.state_dir.retained_directory().join(id.to_string());
        match fs::rename(&files.directory, &target) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
            Ok(()) => {
                seconds.insert(id, 0);
                self.write(&seconds)
            }
        }
    }

    /// Adds `elapsed` to the age of all disks and deletes those older than the grace period.
    pub fn advance(&self, elapsed: Duration) -> io::Result<()> {
        let mut seconds = self.seconds();
        if seconds.is_empty() {
            return Ok(());
        }
        seconds.values_mut().for_each(|age| *age = age.saturating_add(elapsed.as_secs()));
        let is_expired = |age: &u64| *age >= self.grace.as_secs();
        let expired: Vec<Uuid> = seconds.iter().filter(|(_, it)| is_expired(it)).map(|(id, _)| *id).collect();
        for id in expired {
            self.delete(&mut seconds, id)?;
        }
        self.write(&seconds)
    }

    /// Deletes the oldest disk to free space. Returns its id, if there was one.
    pub fn evict_oldest(&self) -> io::Result<Option<Uuid>> {
        let mut seconds = self.seconds();
        let oldest = seconds.iter().max_by_key(|(_, age)| **age).map(|(id, _)| *id);
        if let Some(id) = oldest {
            self.delete(&mut seconds, id)?;
            self.write(&seconds)?;
        }
        Ok(oldest)
    }

    fn delete(&self, seconds: &mut BTreeMap<Uuid, u64>, id: Uuid) -> io::Result<()> {
        durable_file::remove(&self.state_dir.retained_directory().join(id.to_string()))?;
        seconds.remove(&id);
        tracing::info!(vm = %id, "deleted a retained disk");
        Ok(())
    }

    fn write(&self, seconds: &BTreeMap<Uuid, u64>) -> io::Result<()> {
        let text = serde_json::to_vec(seconds).map_err(io::Error::other)?;
        durable_file::replace(&self.state_dir.retention_path(), &text)
    }

    fn seconds(&self) -> MutexGuard<'_, BTreeMap<Uuid, u64>> {
        self.seconds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn disk(state_dir: &StateDir, number: u128) -> (Uuid, VmFiles) {
        let id = Uuid::from_u128(number);
        let files = state_dir.vm(id);
        fs::create_dir_all(&files.directory).unwrap();
        fs::write(&files.overlay, "a disk").unwrap();
        fs::write(&files.seed, "a private key").unwrap();
        (id, files)
    }

    fn retained_ids(state_dir: &StateDir) -> Vec<String> {
        let entries = fs::read_dir(state_dir.retained_directory()).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_disk_is_retained_over_restarts_and_then_deleted() {
        let scratch = tempfile::tempdir().unwrap();
        let state_dir =
            Arc::new(StateDir::open(&scratch.path().join("state"), &scratch.path().join("run")).unwrap());
        let (id, files) = disk(&state_dir, 1);
        let retained_disks = RetainedDisks::open(Arc::clone(&state_dir), 2 * HOUR).unwrap();
        retained_disks.retain(id, &files).unwrap();
        assert!(!files.directory.exists());
        let kept = state_dir.retained_directory().join(id.to_string());
        assert!(kept.join("overlay.qcow2").exists() && !kept.join("seed.iso").exists());
        retained_disks.advance(HOUR).unwrap();
        drop(retained_disks);
        let retained_disks = RetainedDisks::open(Arc::clone(&state_dir), 2 * HOUR).unwrap();
        retained_disks.advance(HOUR - Duration::from_secs(1)).unwrap();
        assert!(kept.exists());
        retained_disks.advance(Duration::from_secs(1)).unwrap();
        assert!(!kept.exists());
    }

    #[test]
    fn the_oldest_disk_is_evicted_first() {
        let scratch = tempfile::tempdir().unwrap();
        let state_dir =
            Arc::new(StateDir::open(&scratch.path().join("state"), &scratch.path().join("run")).unwrap());
        let retained_disks = RetainedDisks::open(Arc::clone(&state_dir), 24 * HOUR).unwrap();
        for number in [2, 1] {
            let (id, files) = disk(&state_dir, number);
            retained_disks.retain(id, &files).unwrap();
            retained_disks.advance(HOUR).unwrap();
        }
        assert_eq!(retained_disks.evict_oldest().unwrap(), Some(Uuid::from_u128(2)));
        assert_eq!(retained_ids(&state_dir), [Uuid::from_u128(1).to_string()]);
        assert_eq!(retained_disks.evict_oldest().unwrap(), Some(Uuid::from_u128(1)));
        assert_eq!(retained_disks.evict_oldest().unwrap(), None);
    }

    #[test]
    fn disks_are_retained_on_a_file_system_mounted_later() {
        let scratch = tempfile::tempdir().unwrap();
        let state_dir =
            Arc::new(StateDir::open(&scratch.path().join("state"), &scratch.path().join("run")).unwrap());
        let retained_disks = RetainedDisks::open(Arc::clone(&state_dir), HOUR).unwrap();
        // As if an empty file system were mounted there: files cannot be renamed to another file system.
        fs::remove_dir_all(state_dir.vms_directory()).unwrap();
        let (id, files) = disk(&state_dir, 1);
        retained_disks.retain(id, &files).unwrap();
        assert!(
            !files.directory.exists()
                && state_dir.retained_directory().starts_with(state_dir.vms_directory())
        );
        assert_eq!(retained_ids(&state_dir), [id.to_string()]);
        assert!(
            state_dir.vm_ids().unwrap().is_empty(),
            "the directory of retained disks is not a virtual machine"
        );
    }

    #[test]
    fn without_a_grace_period_nothing_is_retained() {
        let scratch = tempfile::tempdir().unwrap();
        let state_dir =
            Arc::new(StateDir::open(&scratch.path().join("state"), &scratch.path().join("run")).unwrap());
        let (id, files) = disk(&state_dir, 1);
        RetainedDisks::open(Arc::clone(&state_dir), Duration::ZERO).unwrap().retain(id, &files).unwrap();
        assert!(!files.directory.exists() && retained_ids(&state_dir).is_empty());
    }
}
