//! The state file of a manager: a line with the whole memory, then a line for each change since.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{ErrorKind, Write};
use std::mem;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use fabric_model::SharedMap;
use fabric_model::decisions::{Decisions, EndPortDecision};
use ib_wire::{Gid, Guid, PartitionNumber};
use serde::{Deserialize, Serialize};
use subnet_manager::{
    Bindings, DampedLink, KeyVersions, Lacks, PersistentState, RememberedGroup, Unsupported,
};

/// Bytes of appended changes after which the whole file is rewritten.
const CHANGES_BYTES_MAX: usize = 4 * 1024 * 1024;

/// The memory of a manager in a file, if it has one. The file holds no secret, but the topology, the addresses and the
/// partitions of all tenants, so only its owner can read it (mode 600).
#[derive(Debug)]
pub struct State {
    path: Option<PathBuf>,
    /// The memory that is certain to be in the file.
    kept: Option<PersistentState>,
    /// Bytes of changes appended since the file was last rewritten.
    appended: usize,
    /// Held as long as this process uses the file.
    _lock: Option<fs::File>,
}

/// The difference to the line before.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Change {
    /// Decisions of end ports that were added or changed; `None` removes one.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    end_ports: BTreeMap<Guid, Option<EndPortDecision>>,
    /// All decisions but those of end ports.
    #[serde(skip_serializing_if = "Option::is_none")]
    decisions: Option<Decisions>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bindings: Option<Bindings>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unsupported: Option<Unsupported>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lacks: Option<Lacks>,
    #[serde(skip_serializing_if = "Option::is_none")]
    multicast_blocks: Option<u16>,
    /// Groups that were added or changed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    groups: Vec<RememberedGroup>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ended_groups: Vec<(Gid, PartitionNumber)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    damped_links: Option<Vec<DampedLink>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    secret: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    keys: Option<KeyVersions>,
    #[serde(skip_serializing_if = "Option::is_none")]
    standbys: Option<BTreeSet<Guid>>,
    released: Option<bool>,
}

impl State {
    /// Locks the file for this process, and sets its mode to 600.
    pub fn at(path: Option<PathBuf>) -> anyhow::Result<Self> {
        path.as_deref().map_or(Ok(()), make_private)?;
        let lock = path.as_deref().map(lock).transpose()?;
        Ok(Self { path, kept: None, appended: 0, _lock: lock })
    }

    /// Reads the memory; the default if there is no file yet.
    pub fn read(&mut self) -> anyhow::Result<PersistentState> {
        let Some(path) = &self.path else { return Ok(PersistentState::default()) };
        match fs::read_to_string(path) {
            Ok(text) => {
                let memory =
                    parse(&text).with_context(|| format!("{} is not a state file", path.display()))?;
                // The writer may have been killed before its fsync.
                if fs::File::open(path).and_then(|file| file.sync_all()).is_ok() {
                    self.kept = Some(memory.clone());
                    // The first change writes everything anew: the last line may have been cut off.
                    self.appended = CHANGES_BYTES_MAX;
                }
                Ok(memory)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(PersistentState::default()),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    /// Writes the memory. When this returns `Ok`, it is on disk (fsync). After an error the file holds what it held before,
    /// and the write may be retried. Returns the change; `None` if there is none.
    pub fn write(&mut self, memory: PersistentState) -> anyhow::Result<Option<String>> {
        let Some(path) = &self.path else { return Ok(None) };
        if self.kept.as_ref() == Some(&memory) {
            return Ok(None);
        }
        let change;
        match &self.kept {
            Some(kept) if self.appended < CHANGES_BYTES_MAX => {
                let line = serde_json::to_string(&Change::between(kept, &memory))? + "\n";
                if let Err(error) = append(path, &line) {
                    // The file may end with a part of the line, so the next write has to rewrite it.
                    self.appended = CHANGES_BYTES_MAX;
                    return Err(error).with_context(|| format!("cannot write {}", path.display()));
                }
                self.appended += line.len();
                change = line;
            }
            kept => {
                let before = kept.clone().unwrap_or_default();
                change = serde_json::to_string(&Change::between(&before, &memory))? + "\n";
                crate::files::replace_private(path, (serde_json::to_string(&memory)? + "\n").as_bytes())?;
                self.appended = 0;
            }
        }
        self.kept = Some(memory);
        Ok(Some(change))
    }
}

/// A memory with a change applied, both as lines of a state file.
pub fn with_change(memory: &PersistentState, change: &str) -> anyhow::Result<PersistentState> {
    let mut memory = memory.clone();
    serde_json::from_str::<Change>(change).context("invalid change")?.apply(&mut memory);
    Ok(memory)
}

/// The memory in a state file that another process may use.
pub fn read_only(path: &Path) -> anyhow::Result<PersistentState> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    parse(&text).with_context(|| format!("{} is not a state file", path.display()))
}

/// The mark of the secret that the M_Keys of the nodes in a state file are derived from, if they have any
/// ([`SiteSecret::fingerprint`](subnet_manager::SiteSecret)).
pub fn secret_mark(path: &Path) -> anyhow::Result<Option<u64>> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    let memory = parse(&text).with_context(|| format!("{} is not a state file", path.display()))?;
    Ok(memory.secret)
}

/// Parses the memory and the changes since. A last line without a line end was never acknowledged and is ignored.
fn parse(text: &str) -> anyhow::Result<PersistentState> {
    let mut lines = text.split_inclusive('\n');
    let mut memory: PersistentState = serde_json::from_str(lines.next().unwrap_or_default())?;
    for line in lines {
        match serde_json::from_str::<Change>(line) {
            Ok(change) => change.apply(&mut memory),
            Err(_) if !line.ends_with('\n') => break,
            Err(error) => bail!("invalid change: {error}"),
        }
    }
    Ok(memory)
}

impl Change {
    fn between(old: &PersistentState, new: &PersistentState) -> Self {
        // Without `..`: a new field must not be forgotten here.
        let PersistentState {
            decisions,
            bindings,
            unsupported,
            lacks,
            multicast_blocks,
            groups,
            damped_links,
            secret,
            keys,
            standbys,
            released,
        } = new;
        let groups_before: BTreeMap<_, _> = old.groups.iter().map(|group| (key_of(group), group)).collect();
        let groups_after: BTreeSet<_> = groups.iter().map(key_of).collect();
        let (before, after) = (&old.decisions.end_ports, &decisions.end_ports);
        let decided = after.iter().filter(|(guid, port)| before.get(guid) != Some(port));
        let forgotten = before.keys().filter(|guid| !after.contains_key(guid));
        let rest = |decisions: &Decisions| Decisions {
            end_ports: SharedMap::new(),
            routing: decisions.routing.clone(),
            partitions: decisions.partitions.clone(),
            groups: decisions.groups.clone(),
            clusters: decisions.clusters.clone(),
            sl_enforcement: decisions.sl_enforcement,
            management_sl: decisions.management_sl,
            management_partition: decisions.management_partition,
            adopted: decisions.adopted.clone(),
            overridden_exits: decisions.overridden_exits.clone(),
            classes: decisions.classes.clone(),
        };
        Self {
            end_ports: (decided.map(|(guid, port)| (*guid, Some(port.clone()))))
                .chain(forgotten.map(|guid| (*guid, None)))
                .collect(),
            decisions: changed(&rest(&old.decisions), &rest(decisions)),
            bindings: changed(&old.bindings, bindings),
            unsupported: changed(&old.unsupported, unsupported),
            lacks: changed(&old.lacks, lacks),
            multicast_blocks: changed(&old.multicast_blocks, multicast_blocks),
            groups: (groups.iter().filter(|group| groups_before.get(&key_of(group)) != Some(group)))
                .cloned()
                .collect(),
            ended_groups: (groups_before.keys().filter(|key| !groups_after.contains(key))).copied().collect(),
            damped_links: changed(&old.damped_links, damped_links),
            secret: secret.filter(|_| *secret != old.secret),
            keys: changed(&old.keys, keys),
            standbys: changed(&old.standbys, standbys),
            released: changed(&old.released, released),
        }
    }

    fn apply(self, memory: &mut PersistentState) {
        if let Some(rest) = self.decisions {
            let end_ports = mem::take(&mut memory.decisions.end_ports);
            memory.decisions = Decisions { end_ports, ..rest };
        }
        for (guid, port) in self.end_ports {
            match port {
                Some(port) => drop(memory.decisions.end_ports.insert(guid, port)),
                None => drop(memory.decisions.end_ports.remove(&guid)),
            }
        }
        memory.bindings = self.bindings.unwrap_or(mem::take(&mut memory.bindings));
        memory.secret = self.secret.or(memory.secret);
        memory.keys = self.keys.unwrap_or(mem::take(&mut memory.keys));
        memory.standbys = self.standbys.unwrap_or(mem::take(&mut memory.standbys));
        memory.released = self.released.unwrap_or(memory.released);
        memory.unsupported = self.unsupported.unwrap_or(mem::take(&mut memory.unsupported));
        memory.lacks = self.lacks.unwrap_or(mem::take(&mut memory.lacks));
        memory.multicast_blocks = self.multicast_blocks.unwrap_or(memory.multicast_blocks);
        memory.damped_links = self.damped_links.unwrap_or(mem::take(&mut memory.damped_links));
        if !self.groups.is_empty() || !self.ended_groups.is_empty() {
            let mut groups: BTreeMap<_, _> =
                mem::take(&mut memory.groups).into_iter().map(|group| (key_of(&group), group)).collect();
            self.ended_groups.iter().for_each(|key| drop(groups.remove(key)));
            groups.extend(self.groups.into_iter().map(|group| (key_of(&group), group)));
            memory.groups = groups.into_values().collect();
        }
    }
}

/// A group, in the order in which they are remembered.
fn key_of(group: &RememberedGroup) -> (Gid, PartitionNumber) {
    (group.mgid, group.partition)
}

/// Locks the file: two managers that write one file would lose each other's nodes.
fn lock(path: &Path) -> anyhow::Result<fs::File> {
    let beside = beside(path, ".lock");
    let file = fs::OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(durable_file::PRIVATE)
        .open(&beside);
    let file = file.with_context(|| format!("cannot write {}", beside.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => bail!("another manager uses {}", path.display()),
        Err(fs::TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("cannot lock {}", beside.display()))
        }
    }
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(ending);
    path.with_file_name(name)
}

fn changed<T: PartialEq + Clone>(old: &T, new: &T) -> Option<T> {
    (old != new).then(|| new.clone())
}

fn append(path: &Path, line: &str) -> std::io::Result<()> {
    let mut file = fs::OpenOptions::new().append(true).open(path)?;
    file.write_all(line.as_bytes())?;
    file.sync_data()
}

/// Sets the mode to 600: earlier versions wrote the file readable for all.
fn make_private(path: &Path) -> anyhow::Result<()> {
    let mode = match fs::metadata(path) {
        Ok(found) => found.permissions().mode(),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).with_context(|| format!("cannot stat {}", path.display())),
    };
    if mode & 0o077 != 0 {
        fs::set_permissions(path, fs::Permissions::from_mode(durable_file::PRIVATE))
            .with_context(|| format!("cannot set the mode of {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use fabric_model::intent::PortName;
    use ib_wire::{Lid, MulticastLid, PortNum};
    use subnet_manager::{DampingReason, LinkName, MemberKind};

    fn memory(ports: &[(u64, u16)], partitions: &[(&str, u16)]) -> PersistentState {
        let mut memory = PersistentState::default();
        for (guid, lid) in ports {
            let (lid, up, pkeys) = (Lid::from_wire(*lid).unwrap(), vec![1], Vec::new());
            let guid = Guid::from_wire(*guid).unwrap();
            memory.decisions.end_ports.insert(guid, EndPortDecision { lid, uplink_path: up, pkeys });
        }
        for (name, number) in partitions {
            let number = PartitionNumber::from_wire(*number).unwrap();
            memory.decisions.partitions.insert((*name).to_owned(), number);
        }
        memory.bindings.rebind(None, Guid::from_wire(ports.len() as u64 + 1).unwrap());
        memory
    }

    #[test]
    fn changes_add_up_to_what_was_last_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        let mut state = State::at(Some(path.clone())).unwrap();
        assert_eq!(state.read().unwrap(), PersistentState::default());
        let steps = [
            memory(&[(1, 1), (2, 2)], &[]),
            memory(&[(1, 1), (2, 7), (3, 3)], &[("blue", 5)]),
            memory(&[(3, 3)], &[("blue", 5)]),
        ];
        for step in &steps {
            state.write(step.clone()).unwrap();
            assert_eq!(parse(&fs::read_to_string(&path).unwrap()).unwrap(), *step);
            assert!(State::at(Some(path.clone())).is_err(), "it is in use");
        }
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 3, "only changes are appended");
    }

    #[test]
    fn groups_change_one_by_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        let mut state = State::at(Some(path.clone())).unwrap();
        state.read().unwrap();
        let group = |number: u8, members: &[u64]| RememberedGroup {
            mgid: Gid([number; 16]),
            partition: PartitionNumber::from_wire(u16::from(number)).unwrap(),
            mlid: MulticastLid::from_table_index(usize::from(number)).unwrap(),
            members: (members.iter())
                .map(|guid| (Guid::from_wire(*guid).unwrap(), MemberKind::Receives))
                .collect(),
        };
        let many: Vec<u64> = (1..100).collect();
        let steps = [
            vec![group(1, &many), group(2, &[1])],
            vec![group(1, &many), group(2, &[1, 2]), group(3, &[1])],
            vec![group(1, &many), group(3, &[1])],
            vec![],
        ];
        for groups in steps {
            let step = PersistentState { groups, ..memory(&[(1, 1)], &[]) };
            state.write(step.clone()).unwrap();
            assert_eq!(parse(&fs::read_to_string(&path).unwrap()).unwrap(), step);
        }
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.lines().skip(1).all(|line| line.len() < 400), "a change names what changed: {text}");
    }

    #[test]
    fn what_links_and_groups_left_is_kept_and_files_without_it_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        let plain = memory(&[(1, 1)], &[]);
        let text = serde_json::to_string(&plain).unwrap();
        let is_plain = |word| !text.contains(word);
        assert!(
            ["damped", "multicast", "released"].into_iter().all(is_plain),
            "as earlier versions wrote it"
        );
        let end = |raw| PortName { node: Guid::from_wire(raw).unwrap(), port: PortNum::new(3).unwrap() };
        let damped = DampedLink {
            link: LinkName::new(end(1), end(2)),
            reason: DampingReason::Flaps { count: 5, window_seconds: 600 },
            times: 2,
        };
        let mut state = State::at(Some(path.clone())).unwrap();
        let with_link = PersistentState { damped_links: vec![damped], ..plain.clone() };
        let with_groups = PersistentState { multicast_blocks: 2, ..plain.clone() };
        let released = PersistentState { released: true, ..plain.clone() };
        for step in [plain.clone(), with_link, with_groups, released, plain] {
            state.write(step.clone()).unwrap();
            assert_eq!(parse(&fs::read_to_string(&path).unwrap()).unwrap(), step);
        }
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn the_file_is_its_owners_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        let mut state = State::at(Some(path.clone())).unwrap();
        state.write(memory(&[(1, 1)], &[])).unwrap();
        assert_eq!(
            (mode(&path), mode(&beside(&path, ".lock"))),
            (durable_file::PRIVATE, durable_file::PRIVATE)
        );
        drop(state);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        State::at(Some(path.clone())).unwrap();
        assert_eq!(mode(&path), durable_file::PRIVATE, "one that an earlier version wrote");
    }

    #[test]
    fn what_the_file_says_already_is_not_written_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        let mut state = State::at(Some(path.clone())).unwrap();
        let kept = memory(&[(1, 1)], &[]);
        state.write(kept.clone()).unwrap();
        drop(state);
        let mut next = State::at(Some(path.clone())).unwrap();
        assert_eq!(next.read().unwrap(), kept);
        fs::rename(&path, directory.path().join("elsewhere")).unwrap();
        next.write(kept).unwrap();
        assert!(!path.exists(), "nothing was written");
        next.write(memory(&[(2, 2)], &[])).unwrap();
        assert!(path.exists());
    }

    #[test]
    fn a_change_that_failed_half_way_spoils_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        let mut state = State::at(Some(path.clone())).unwrap();
        state.write(memory(&[(1, 1)], &[])).unwrap();
        // Appending fails: the file is not there under its name.
        let aside = directory.path().join("aside");
        fs::rename(&path, &aside).unwrap();
        let next = memory(&[(1, 1), (2, 2)], &[]);
        state.write(next.clone()).unwrap_err();
        let half = fs::read_to_string(&aside).unwrap() + "{\"end_ports\":";
        fs::write(&path, half).unwrap();
        state.write(next.clone()).unwrap();
        assert_eq!(parse(&fs::read_to_string(&path).unwrap()).unwrap(), next);
    }

    #[test]
    fn a_truncated_change_is_ignored_and_garbage_rejected() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        let mut state = State::at(Some(path.clone())).unwrap();
        let (first, second) = (memory(&[(1, 1)], &[]), memory(&[(1, 1), (2, 2)], &[]));
        state.write(first.clone()).unwrap();
        let whole = fs::read_to_string(&path).unwrap();
        state.write(second).unwrap();
        let both = fs::read_to_string(&path).unwrap();
        for cut in whole.len()..both.len() - 1 {
            assert_eq!(parse(&both[..cut]).unwrap(), first, "{cut}");
        }
        assert!(parse(&format!("{whole}nonsense\n{{}}\n")).is_err());
        assert!(parse("").is_err());
    }
}
