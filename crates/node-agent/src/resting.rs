//! Disks of removed virtual machines rest before they are deleted, so that a removal by mistake can be undone by hand.
//!
//! A disk rests in a directory that is excluded from boot and that QEMU cannot enter. Rest is counted while an agent runs, by
//! the monotonic clock: a machine that is off, or whose clock is set, deletes nothing early. If a new disk finds no room,
//! the disk that has rested longest goes first.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use uuid::Uuid;

use crate::durable;
use crate::place::{Place, VmPlace};

/// Longest file with how long disks have rested: 60 bytes each.
const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// The disks that rest.
#[derive(Debug)]
pub struct Resting {
    place: Arc<Place>,
    grace: Duration,
    /// Seconds that each has rested. Held while files are moved or deleted.
    seconds: Mutex<BTreeMap<Uuid, u64>>,
}

impl Resting {
    /// Disks that rest for `grace`, and those that rest already.
    pub fn open(place: Arc<Place>, grace: Duration) -> io::Result<Self> {
        let kept = durable::read(&place.resting(), FILE_BYTES_MAX)?;
        // A file that cannot be read only makes disks rest longer.
        let mut kept: BTreeMap<Uuid, u64> =
            kept.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        let mut seconds = BTreeMap::new();
        for entry in fs::read_dir(place.resting_directory())? {
            let name = entry?.file_name();
            if let Some(id) = name.to_str().and_then(|name| Uuid::parse_str(name).ok()) {
                seconds.insert(id, kept.remove(&id).unwrap_or(0));
            }
        }
        Ok(Self { place, grace, seconds: Mutex::new(seconds) })
    }

    /// Puts the disk of a virtual machine to rest, and deletes its other files; fine if there are none.
    pub fn put(&self, id: Uuid, files: &VmPlace) -> io::Result<()> {
        let mut seconds = self.seconds();
        if self.grace.is_zero() || !files.overlay.exists() {
            return durable::remove(&files.directory);
        }
        // It holds a private key, and can be made again from the order.
        durable::remove(&files.seed)?;
        // A file system may have been mounted since.
        self.place.make_resting_directory().map_err(io::Error::other)?;
        let target = self.place.resting_directory().join(id.to_string());
        match fs::rename(&files.directory, &target) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
            Ok(()) => {
                seconds.insert(id, 0);
                self.write(&seconds)
            }
        }
    }

    /// Counts time in which the agent ran, and deletes disks that have rested long enough.
    pub fn pass(&self, elapsed: Duration) -> io::Result<()> {
        let mut seconds = self.seconds();
        if seconds.is_empty() {
            return Ok(());
        }
        seconds.values_mut().for_each(|rested| *rested = rested.saturating_add(elapsed.as_secs()));
        let is_over = |rested: &u64| *rested >= self.grace.as_secs();
        let over: Vec<Uuid> = seconds.iter().filter(|(_, it)| is_over(it)).map(|(id, _)| *id).collect();
        for id in over {
            self.delete(&mut seconds, id)?;
        }
        self.write(&seconds)
    }

    /// Deletes the disk that has rested longest, to make room; which one, if there was any.
    pub fn evict(&self) -> io::Result<Option<Uuid>> {
        let mut seconds = self.seconds();
        let oldest = seconds.iter().max_by_key(|(_, rested)| **rested).map(|(id, _)| *id);
        if let Some(id) = oldest {
            self.delete(&mut seconds, id)?;
            self.write(&seconds)?;
        }
        Ok(oldest)
    }

    fn delete(&self, seconds: &mut BTreeMap<Uuid, u64>, id: Uuid) -> io::Result<()> {
        durable::remove(&self.place.resting_directory().join(id.to_string()))?;
        seconds.remove(&id);
        tracing::info!(vm = %id, "the disk of a removed virtual machine is deleted");
        Ok(())
    }

    fn write(&self, seconds: &BTreeMap<Uuid, u64>) -> io::Result<()> {
        let text = serde_json::to_vec(seconds).map_err(io::Error::other)?;
        durable::write(&self.place.resting(), &text)
    }

    fn seconds(&self) -> MutexGuard<'_, BTreeMap<Uuid, u64>> {
        self.seconds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn disk(place: &Place, number: u128) -> (Uuid, VmPlace) {
        let id = Uuid::from_u128(number);
        let files = place.vm(id);
        fs::create_dir_all(&files.directory).unwrap();
        fs::write(&files.overlay, "a disk").unwrap();
        fs::write(&files.seed, "a private key").unwrap();
        (id, files)
    }

    fn rested(place: &Place) -> Vec<String> {
        let entries = fs::read_dir(place.resting_directory()).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_disk_rests_over_restarts_and_is_then_deleted() {
        let scratch = tempfile::tempdir().unwrap();
        let place =
            Arc::new(Place::open(&scratch.path().join("state"), &scratch.path().join("run")).unwrap());
        let (id, files) = disk(&place, 1);
        let resting = Resting::open(Arc::clone(&place), 2 * HOUR).unwrap();
        resting.put(id, &files).unwrap();
        assert!(!files.directory.exists());
        let kept = place.resting_directory().join(id.to_string());
        assert!(kept.join("overlay.qcow2").exists() && !kept.join("seed.iso").exists());
        resting.pass(HOUR).unwrap();
        drop(resting);
        let resting = Resting::open(Arc::clone(&place), 2 * HOUR).unwrap();
        resting.pass(HOUR - Duration::from_secs(1)).unwrap();
        assert!(kept.exists());
        resting.pass(Duration::from_secs(1)).unwrap();
        assert!(!kept.exists());
    }

    #[test]
    fn the_disk_that_has_rested_longest_makes_room_first() {
        let scratch = tempfile::tempdir().unwrap();
        let place =
            Arc::new(Place::open(&scratch.path().join("state"), &scratch.path().join("run")).unwrap());
        let resting = Resting::open(Arc::clone(&place), 24 * HOUR).unwrap();
        for number in [2, 1] {
            let (id, files) = disk(&place, number);
            resting.put(id, &files).unwrap();
            resting.pass(HOUR).unwrap();
        }
        assert_eq!(resting.evict().unwrap(), Some(Uuid::from_u128(2)));
        assert_eq!(rested(&place), [Uuid::from_u128(1).to_string()]);
        assert_eq!(resting.evict().unwrap(), Some(Uuid::from_u128(1)));
        assert_eq!(resting.evict().unwrap(), None);
    }

    #[test]
    fn a_disk_rests_where_disks_are_also_if_that_came_later() {
        let scratch = tempfile::tempdir().unwrap();
        let place =
            Arc::new(Place::open(&scratch.path().join("state"), &scratch.path().join("run")).unwrap());
        let resting = Resting::open(Arc::clone(&place), HOUR).unwrap();
        // As if an empty file system were mounted there: files cannot be moved from it to another one.
        fs::remove_dir_all(place.vms_directory()).unwrap();
        let (id, files) = disk(&place, 1);
        resting.put(id, &files).unwrap();
        assert!(!files.directory.exists() && place.resting_directory().starts_with(place.vms_directory()));
        assert_eq!(rested(&place), [id.to_string()]);
        assert!(place.vms().unwrap().is_empty(), "a directory of disks that rest is no virtual machine");
    }

    #[test]
    fn without_a_grace_period_nothing_rests() {
        let scratch = tempfile::tempdir().unwrap();
        let place =
            Arc::new(Place::open(&scratch.path().join("state"), &scratch.path().join("run")).unwrap());
        let (id, files) = disk(&place, 1);
        Resting::open(Arc::clone(&place), Duration::ZERO).unwrap().put(id, &files).unwrap();
        assert!(!files.directory.exists() && rested(&place).is_empty());
    }
}
