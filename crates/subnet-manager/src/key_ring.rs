//! Which M_Key each node holds. Nodes change from one version of the keys to the next one by one, so several versions are in
//! use at a time.

use std::collections::{BTreeMap, BTreeSet};

use fabric_model::intent::PortName;
use ib_wire::{Guid, MKey, MKeyProtection, PortInfo};
use serde::{Deserialize, Serialize};

use crate::keys::{BoundNodes, Location, OperatorKey, SiteSecret};

/// How many epochs after the last known one are tried at a node that does not answer: the manager may have been restored from
/// an old backup.
const EPOCHS_AHEAD: u32 = 3;

/// Where the M_Keys of a version come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeyKind {
    /// Every node has its own, derived from a site secret and an epoch.
    #[default]
    Derived,
    /// All nodes have the one of an operator: [`OperatorKey`].
    Operator,
    /// Nodes have none.
    Removed,
}

impl KeyKind {
    fn is_derived(&self) -> bool {
        *self == Self::Derived
    }
}

/// A version of the M_Keys of all nodes: the secret that they are derived from, and the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct KeyVersion {
    /// [`SiteSecret::fingerprint`] or [`OperatorKey::fingerprint`]; 0 if keys are removed.
    pub secret: u64,
    /// Of keys that are not derived: the last epoch of derived ones.
    pub epoch: u32,
    #[serde(default, skip_serializing_if = "KeyKind::is_derived")]
    pub kind: KeyKind,
}

/// A node that does not hold the current version, or is about to get it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyBehind {
    /// The version that it holds.
    pub version: KeyVersion,
    /// Whether its key is being changed: it holds `version` or the current one.
    pub is_changing: bool,
}

/// The versions that nodes hold, as they are stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KeyVersions {
    /// The epoch of the current version; its secret is stored beside.
    pub epoch: u32,
    /// The current version, if its keys are not derived.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub released: Option<KeyVersion>,
    /// Nodes that do not hold the current version.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub behind: BTreeMap<Guid, KeyBehind>,
    /// Further versions that these nodes may hold: they were changing when another change began, or another manager changed
    /// their keys.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub others: BTreeSet<KeyVersion>,
}

impl KeyVersions {
    /// Whether there was never a rotation.
    pub fn is_first(&self) -> bool {
        *self == Self::default()
    }

    /// The fingerprints of the secrets of nodes that do not hold the current version.
    pub fn older_secrets(&self) -> BTreeSet<u64> {
        let older = self.behind.values().map(|behind| &behind.version).chain(&self.others);
        older.filter(|version| version.kind == KeyKind::Derived).map(|version| version.secret).collect()
    }

    /// The fingerprints of operator keys that nodes may hold.
    pub fn operator_keys(&self) -> BTreeSet<u64> {
        let all =
            self.behind.values().map(|behind| &behind.version).chain(&self.others).chain(&self.released);
        all.filter(|version| version.kind == KeyKind::Operator).map(|version| version.secret).collect()
    }

    /// The version that a node holds, as far as it is known, if `secret` is the current one.
    pub fn of(&self, node: Guid, secret: u64) -> KeyVersion {
        self.behind.get(&node).map_or(self.current(secret), |behind| behind.version)
    }

    fn current(&self, secret: u64) -> KeyVersion {
        self.released.unwrap_or(KeyVersion { secret, epoch: self.epoch, kind: KeyKind::Derived })
    }
}

/// The secrets of a site, and the versions that nodes hold.
#[derive(Debug)]
pub(crate) struct KeyRing {
    /// The secrets of all versions in use, by their fingerprints.
    secrets: BTreeMap<u64, SiteSecret>,
    operator_keys: BTreeMap<u64, OperatorKey>,
    /// The fingerprint of the secret that keys are derived from, or were before they were released.
    site: u64,
    current: KeyVersion,
    behind: BTreeMap<Guid, KeyBehind>,
    /// [`KeyVersions::others`].
    others: BTreeSet<KeyVersion>,
    /// What ports of nodes that are changing were found to hold.
    found: BTreeMap<PortName, KeyVersion>,
}

impl KeyRing {
    /// The ring of a manager; `None` without secrets. `site` is the fingerprint of the current secret if one is known, else
    /// the first one is it.
    pub fn new(secrets: Vec<SiteSecret>, site: Option<u64>, versions: &KeyVersions) -> Option<Self> {
        let site = site.unwrap_or(secrets.first()?.fingerprint());
        Some(Self {
            secrets: secrets.into_iter().map(|secret| (secret.fingerprint(), secret)).collect(),
            operator_keys: BTreeMap::new(),
            site,
            current: versions.current(site),
            behind: versions.behind.clone(),
            others: versions.others.clone(),
            found: BTreeMap::new(),
        })
    }

    /// The version that all nodes get.
    pub fn current(&self) -> KeyVersion {
        self.current
    }

    /// The fingerprint of the site secret.
    pub fn site(&self) -> u64 {
        self.site
    }

    pub fn versions(&self) -> KeyVersions {
        KeyVersions {
            epoch: self.current.epoch,
            released: Some(self.current).filter(|current| current.kind != KeyKind::Derived),
            behind: self.behind.clone(),
            others: self.others.clone(),
        }
    }

    /// Nodes that do not hold the current version, or are about to get it.
    pub fn behind(&self) -> &BTreeMap<Guid, KeyBehind> {
        &self.behind
    }

    /// The version that a port holds, as far as it is known.
    pub fn version(&self, port: PortName) -> KeyVersion {
        let behind = self.behind.get(&port.node);
        let known = || behind.map_or(self.current, |behind| behind.version);
        self.found.get(&port).copied().unwrap_or_else(known)
    }

    /// The M_Key that a port holds, as far as it is known.
    pub fn key(&self, bound: &BoundNodes, port: PortName) -> Option<MKey> {
        self.key_in(self.version(port), bound, port)
    }

    /// Whether the keys of a version can be computed.
    pub fn holds(&self, version: KeyVersion) -> bool {
        match version.kind {
            KeyKind::Derived => self.secrets.contains_key(&version.secret),
            KeyKind::Operator => self.operator_keys.contains_key(&version.secret),
            KeyKind::Removed => true,
        }
    }

    /// The M_Key of a port in a version; `None` if keys are removed in it, or without its secret.
    pub fn key_in(&self, version: KeyVersion, bound: &BoundNodes, port: PortName) -> Option<MKey> {
        self.derive(version, port.node, bound.is_late(port).then_some(port))
    }

    /// The M_Key in a version of the node that was last seen at a location.
    pub fn key_at(
        &self,
        version: KeyVersion,
        bound: &BoundNodes,
        location: Option<Location>,
        node: Guid,
    ) -> Option<MKey> {
        self.derive(version, node, bound.late_port(location).filter(|port| port.node == node))
    }

    fn derive(&self, version: KeyVersion, node: Guid, late: Option<PortName>) -> Option<MKey> {
        let secret = match version.kind {
            KeyKind::Derived => self.secrets.get(&version.secret)?,
            KeyKind::Operator => return Some(self.operator_keys.get(&version.secret)?.key()),
            KeyKind::Removed => return None,
        };
        Some(match late {
            Some(port) => secret.port_key(node, port.port, version.epoch),
            None => secret.key(node, version.epoch),
        })
    }

    /// What to present to a node that was seen before, one after the other until it answers; `None` is no key: it may have lost
    /// its own.
    pub fn attempts(&self, node: Guid) -> Vec<Option<KeyVersion>> {
        let mut attempts: Vec<_> = self.candidates(node).into_iter().map(Some).collect();
        attempts.push(None);
        if self.current.kind == KeyKind::Derived {
            let next = (1..=EPOCHS_AHEAD).filter_map(|ahead| self.current.epoch.checked_add(ahead));
            attempts.extend(next.map(|epoch| Some(KeyVersion { epoch, ..self.current })));
        }
        attempts
    }

    /// The versions that a node may hold, the likeliest first.
    fn candidates(&self, node: Guid) -> Vec<KeyVersion> {
        let Some(behind) = self.behind.get(&node) else { return vec![self.current] };
        let mut candidates: Vec<_> = self.others.iter().copied().filter(|other| self.holds(*other)).collect();
        for version in [behind.version, self.current] {
            if !candidates.contains(&version) {
                candidates.push(version);
            }
        }
        candidates
    }

    /// PortInfo of a port was read. At protection levels 0 and 1 a port answers to every key; then what it shows tells which
    /// one it holds. Returns whether to read it again, with another key.
    ///
    /// A port at level 1 that shows no key may as well have none. It must not count as changed for that: the current version
    /// is found only if its key is shown.
    pub fn review(&mut self, port: PortName, info: &PortInfo, bound: &BoundNodes) -> bool {
        let presented = self.version(port);
        if !self.behind.contains_key(&port.node) || self.is_confirmed(port, presented, info, bound) {
            return false;
        }
        let candidates = self.candidates(port.node);
        let shown = candidates
            .iter()
            .find(|version| info.m_key.is_some() && self.key_in(**version, bound, port) == info.m_key);
        let known = candidates.iter().position(|version| *version == presented);
        let mut untried = candidates.iter().skip(known.map_or(0, |known| known + 1));
        let next = shown.or_else(|| untried.find(|version| **version != self.current));
        let Some(next) = next.copied().filter(|next| *next != presented) else { return false };
        self.found.insert(port, next);
        shown.is_none()
    }

    /// Whether PortInfo, read with the key of a version, does not contradict that the port holds that version.
    pub fn is_confirmed(
        &self,
        port: PortName,
        version: KeyVersion,
        info: &PortInfo,
        bound: &BoundNodes,
    ) -> bool {
        match (info.m_key, info.m_key_protection) {
            (Some(shown), _) => self.key_in(version, bound, port) == Some(shown),
            // The key is shown to those alone who present it.
            (None, MKeyProtection::ReadAllButKey) => false,
            _ => true,
        }
    }

    /// A port answered to the key of a version. Returns whether that changes what has to be stored.
    pub fn record_answer(&mut self, port: PortName, version: KeyVersion, bound: &BoundNodes) -> bool {
        let known = self.behind.get(&port.node).copied();
        if known.is_none() && version == self.current {
            return false;
        }
        self.found.insert(port, version);
        let is_newer = version.kind == KeyKind::Derived
            && version.secret == self.current.secret
            && version.epoch > self.current.epoch;
        if is_newer {
            self.begin(version, bound);
        }
        let held = known.map_or(version, |behind| behind.version);
        let behind = KeyBehind { version: held, is_changing: true };
        self.behind.insert(port.node, behind) != Some(behind) || is_newer
    }

    /// Starts to change all bound nodes to a version.
    pub fn begin(&mut self, version: KeyVersion, bound: &BoundNodes) {
        let before = std::mem::replace(&mut self.current, version);
        if version.kind == KeyKind::Derived {
            self.site = version.secret;
        }
        for behind in self.behind.values_mut().filter(|behind| behind.is_changing) {
            behind.is_changing = false;
            self.others.insert(before);
        }
        for node in bound.guids() {
            self.behind.entry(node).or_insert(KeyBehind { version: before, is_changing: false });
        }
    }

    /// Takes nodes back from another manager, which may have given them any of the operator keys or no key: starts to give
    /// every node its own key of the next epoch, because the other manager may know those of the last one.
    pub fn reclaim(&mut self, bound: &BoundNodes) {
        let epoch = self.current.epoch.saturating_add(1);
        let mark =
            |secret: &u64| KeyVersion { secret: *secret, epoch: self.current.epoch, kind: KeyKind::Operator };
        self.others.extend(self.operator_keys.keys().map(mark));
        self.begin(KeyVersion { secret: self.site, epoch, kind: KeyKind::Derived }, bound);
    }

    /// Holds another secret, besides those that are held.
    pub fn add_secret(&mut self, secret: SiteSecret) {
        self.secrets.insert(secret.fingerprint(), secret);
    }

    /// Holds another operator key.
    pub fn add_operator_key(&mut self, key: OperatorKey) {
        self.operator_keys.insert(key.fingerprint(), key);
    }

    /// Records that the key of a node is being changed. Returns whether that is new.
    pub fn mark_changing(&mut self, node: Guid) -> bool {
        let behind = self.behind.get_mut(&node);
        behind.is_some_and(|behind| !std::mem::replace(&mut behind.is_changing, true))
    }

    /// Records what a port of a node that is changing was found to hold.
    pub fn record_found(&mut self, port: PortName, version: KeyVersion) {
        self.found.insert(port, version);
    }

    /// Whether a port was found to hold the current version.
    pub fn is_changed(&self, port: PortName) -> bool {
        self.found.get(&port) == Some(&self.current)
    }

    /// All ports of a node hold the current version.
    pub fn finish(&mut self, node: Guid) {
        self.behind.remove(&node);
        self.found.retain(|port, _| port.node != node);
        if self.behind.is_empty() {
            self.others.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::SECRET_LEN_MIN;
    use ib_wire::PortNum;

    fn guid(raw: u64) -> Guid {
        Guid::from_wire(raw).unwrap()
    }

    fn port(node: u64) -> PortName {
        PortName { node: guid(node), port: PortNum::new(1).unwrap() }
    }

    fn ring() -> (KeyRing, BoundNodes) {
        let secret = SiteSecret::new(vec![1; SECRET_LEN_MIN]).unwrap();
        let mut bound = BoundNodes::default();
        bound.bind(None, guid(1));
        bound.bind(Some(Location { near: guid(1), port: PortNum::new(1).unwrap() }), guid(2));
        (KeyRing::new(vec![secret], None, &KeyVersions::default()).unwrap(), bound)
    }

    #[test]
    fn a_node_holds_the_old_key_until_it_is_found_to_hold_the_new_one() {
        let (mut ring, bound) = ring();
        let old = ring.current();
        let new = KeyVersion { epoch: 1, ..old };
        ring.begin(new, &bound);
        assert_eq!((ring.version(port(1)), ring.version(port(2))), (old, old));
        assert_eq!(ring.version(port(3)), new, "a node that comes gets the new one");
        assert!(ring.mark_changing(guid(1)) && !ring.mark_changing(guid(1)));
        assert_eq!(ring.attempts(guid(1))[..2], [Some(old), Some(new)]);
        ring.record_found(port(1), new);
        assert!(ring.is_changed(port(1)) && ring.version(port(1)) == new);
        ring.finish(guid(1));
        assert_eq!(ring.versions().behind.keys().copied().collect::<Vec<_>>(), [guid(2)]);
        assert_ne!(ring.key(&bound, port(1)), ring.key_in(old, &bound, port(1)));
    }

    #[test]
    fn a_manager_restored_from_an_old_backup_learns_the_epoch_from_nodes() {
        let (mut ring, bound) = ring();
        let old = ring.current();
        let ahead = KeyVersion { epoch: 2, ..old };
        assert!(ring.attempts(guid(1)).contains(&Some(ahead)), "it is tried");
        assert!(ring.attempts(guid(1)).contains(&None), "and so is no key");
        assert!(!ring.record_answer(port(1), old, &bound), "as expected");
        assert!(ring.record_answer(port(1), ahead, &bound));
        assert_eq!((ring.current(), ring.version(port(1)), ring.version(port(2))), (ahead, ahead, old));
        assert!(ring.attempts(guid(2)).starts_with(&[Some(old), Some(ahead)]), "others may hold either");
    }

    #[test]
    fn a_key_needs_its_secret() {
        let (mut ring, bound) = ring();
        let other = SiteSecret::new(vec![2; SECRET_LEN_MIN]).unwrap();
        let version = KeyVersion { secret: other.fingerprint(), epoch: 0, kind: KeyKind::Derived };
        assert_eq!(ring.key_in(version, &bound, port(1)), None);
        ring.add_secret(other);
        assert!(ring.key_in(version, &bound, port(1)).is_some());
    }

    #[test]
    fn a_node_that_vanished_while_changing_is_asked_with_every_version_it_may_hold() {
        let (mut ring, bound) = ring();
        let first = ring.current();
        let [second, third] = [1, 2].map(|epoch| KeyVersion { epoch, ..first });
        ring.begin(second, &bound);
        ring.mark_changing(guid(2));
        ring.finish(guid(1));
        ring.begin(third, &bound);
        for version in [first, second, third] {
            assert!(ring.attempts(guid(2)).contains(&Some(version)), "{version:?}");
        }
        let stored = ring.versions();
        assert_eq!(stored.others, [second].into());
        ring.finish(guid(1));
        ring.finish(guid(2));
        assert_eq!(ring.versions().others.len(), 0, "once all have changed");
    }

    #[test]
    fn what_a_port_shows_counts_more_than_what_it_answers_to() {
        let (mut ring, bound) = ring();
        let own = ring.current();
        let operator = OperatorKey::new(MKey::from_wire(7).unwrap());
        let shown = PortInfo { m_key: Some(operator.key()), ..sample(MKeyProtection::ReadAll) };
        ring.add_operator_key(operator);
        ring.reclaim(&bound);
        let version = |ring: &KeyRing| ring.version(port(1)).kind;
        ring.record_found(port(1), own);
        assert!(!ring.review(port(1), &shown, &bound), "it is known now");
        assert_eq!(version(&ring), KeyKind::Operator);
        assert!(!ring.review(port(1), &shown, &bound) && !ring.is_changed(port(1)));

        // A key that is hidden is another one than the one presented, or there is none: in no case the next one.
        let hidden = sample(MKeyProtection::ReadAllButKey);
        assert!(ring.review(port(1), &hidden, &bound));
        assert_eq!(version(&ring), KeyKind::Derived);
        assert!(!ring.review(port(1), &hidden, &bound) && !ring.is_changed(port(1)));
        let closed = sample(MKeyProtection::Closed);
        assert!(!ring.review(port(1), &closed, &bound), "the answer itself tells");
    }

    fn sample(level: MKeyProtection) -> PortInfo {
        let mut info = PortInfo::decode(&[0; ib_wire::SMP_DATA_LEN]).unwrap();
        info.m_key_protection = level;
        info
    }
}
