//! M_Keys: derived per node from a site secret and an epoch, and presented only at the location that the node is bound to.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use fabric_model::intent::PortName;
use hmac::{Hmac, KeyInit, Mac};
use ib_wire::{Guid, MKey, PortNum};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use thiserror::Error;

/// Minimum length of a site secret in bytes.
pub const SECRET_LEN_MIN: usize = 32;

/// The secret that all M_Keys of a site are derived from. It cannot be printed.
#[derive(Clone)]
pub struct SiteSecret(Vec<u8>);

/// A secret shorter than [`SECRET_LEN_MIN`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a site secret must have at least {SECRET_LEN_MIN} random bytes, got {len}")]
pub struct SecretTooShort {
    pub len: usize,
}

impl SiteSecret {
    /// Takes at least [`SECRET_LEN_MIN`] random bytes.
    pub fn new(bytes: Vec<u8>) -> Result<Self, SecretTooShort> {
        if bytes.len() < SECRET_LEN_MIN { Err(SecretTooShort { len: bytes.len() }) } else { Ok(Self(bytes)) }
    }

    /// The M_Key of a node in an epoch: HMAC-SHA-256 of its GUID under the secret, truncated to 64 bits. Keys of other nodes
    /// and of other epochs do not reveal it.
    pub fn key(&self, guid: Guid, epoch: u32) -> MKey {
        let guid = guid.to_wire().to_be_bytes();
        match epoch {
            // As before there were epochs.
            0 => self.derive(&[b"heddle M_Key 1", &guid]),
            _ => self.derive(&[b"heddle M_Key 2", &guid, &epoch.to_be_bytes()]),
        }
    }

    /// The M_Key of a port of an adapter that was connected after the adapter got its key, so that a device which claims to be
    /// that port learns no key that another port holds.
    pub fn port_key(&self, guid: Guid, port: PortNum, epoch: u32) -> MKey {
        let (guid, port) = (guid.to_wire().to_be_bytes(), [port.to_wire()]);
        match epoch {
            0 => self.derive(&[b"heddle port M_Key 1", &guid, &port]),
            _ => self.derive(&[b"heddle port M_Key 2", &guid, &port, &epoch.to_be_bytes()]),
        }
    }

    /// A number that distinguishes this secret from others and reveals nothing else about it. Stored to
    /// detect a wrong secret.
    pub fn fingerprint(&self) -> u64 {
        self.number(&[b"heddle mark 1"])
    }

    fn derive(&self, parts: &[&[u8]]) -> MKey {
        // A key of 0 means no key; the next round is used for 1 in 2^64 nodes.
        (0..=u8::MAX)
            .find_map(|round| MKey::from_wire(self.number(&[parts, &[&[round]]].concat())))
            .expect("one of 256 random numbers is not 0")
    }

    fn number(&self, parts: &[&[u8]]) -> u64 {
        hash(&self.0, parts)
    }
}

impl fmt::Debug for SiteSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SiteSecret(set)")
    }
}

/// One M_Key that an operator gives to all nodes, for a manager that knows one key for the subnet. It cannot be printed.
#[derive(Clone)]
pub struct OperatorKey(MKey);

impl OperatorKey {
    pub fn new(key: MKey) -> Self {
        Self(key)
    }

    /// The key itself, the same for every node.
    pub fn key(&self) -> MKey {
        self.0
    }

    /// A number that distinguishes this key from others. Stored to detect a wrong key. It has 32 bits, so that it does not
    /// determine the key, however long somebody tries.
    pub fn fingerprint(&self) -> u64 {
        let key = self.0.to_wire().to_be_bytes();
        hash(&key, &[b"heddle operator key mark 1"]) >> 32
    }
}

impl fmt::Debug for OperatorKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OperatorKey(set)")
    }
}

/// The first 64 bits of an HMAC-SHA-256.
fn hash(key: &[u8], parts: &[&[u8]]) -> u64 {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    parts.iter().for_each(|part| mac.update(part));
    let digest = mac.finalize().into_bytes();
    digest.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// The location of a node: the port of a neighbour that leads to it. The manager's own node has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Location {
    /// GUID of the neighbour.
    pub near: Guid,
    pub port: PortNum,
}

/// Which node was last seen at which location. An M_Key is presented only at the location of its node, so
/// that a device plugged in elsewhere cannot learn it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Bindings {
    own: Option<Guid>,
    nodes: Vec<(Location, Guid)>,
    /// Ports of adapters that have a key of their own, by location.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    late_ports: Vec<(Location, PortName)>,
}

impl Bindings {
    /// Binds a node that was moved to a new location, where its M_Key may be presented from now on. `None` is
    /// the manager's own node.
    pub fn rebind(&mut self, location: Option<Location>, node: Guid) {
        let mut bound = BoundNodes::new(self);
        bound.bind(location, node);
        *self = bound.list();
    }
}

/// [`Bindings`] in the form that is used while running.
#[derive(Clone, Debug, Default)]
pub(crate) struct BoundNodes {
    own: Option<Guid>,
    nodes: BTreeMap<Location, Guid>,
    /// Ports of adapters that were connected after the adapter got its key.
    late_ports: BTreeMap<Location, PortName>,
    /// Nodes that hold their M_Key, or were bound before the start.
    sealed: BTreeSet<Guid>,
    /// Nodes bound since the last [`BoundNodes::seal`].
    unsealed: Vec<Guid>,
    /// The list form, cached until the next change.
    listed: Option<Bindings>,
}

impl BoundNodes {
    pub fn new(bindings: &Bindings) -> Self {
        let mut bound = Self::default();
        if let Some(own) = bindings.own {
            bound.bind(None, own);
        }
        for (location, node) in &bindings.nodes {
            bound.bind(Some(*location), *node);
        }
        bound.late_ports = bindings.late_ports.iter().copied().collect();
        bound.seal();
        bound
    }

    /// Marks all bound nodes as holding their M_Key: it is about to be written.
    pub fn seal(&mut self) {
        self.sealed.extend(self.unsealed.drain(..));
    }

    /// Whether a node holds its M_Key.
    pub fn is_sealed(&self, node: Guid) -> bool {
        self.sealed.contains(&node)
    }

    /// The node that was last seen at a location; `None` is the manager's own node.
    pub fn node(&self, location: Option<Location>) -> Option<Guid> {
        match location {
            None => self.own,
            Some(location) => self.nodes.get(&location).copied(),
        }
    }

    /// Whether a node is bound to a location, or to none at all.
    pub fn is_at_home(&self, node: Guid, location: Option<Location>) -> bool {
        self.node(location) == Some(node) || !self.nodes.values().any(|known| *known == node)
    }

    /// Binds a node to a location. Returns whether that is new.
    pub fn bind(&mut self, location: Option<Location>, node: Guid) -> bool {
        let before = match location {
            None => self.own.replace(node),
            Some(location) => self.nodes.insert(location, node),
        };
        let is_new = before != Some(node);
        if is_new {
            self.unsealed.push(node);
            self.listed = None;
        }
        is_new
    }

    /// Binds a port of an adapter that holds its key already. The port gets a key of its own.
    pub fn bind_late_port(&mut self, location: Location, port: PortName) {
        self.late_ports.retain(|_, known| *known != port);
        self.late_ports.insert(location, port);
        self.listed = None;
    }

    /// Whether a port was connected after its adapter got its key, and has a key of its own.
    pub fn is_late(&self, port: PortName) -> bool {
        self.late_ports.values().any(|late| *late == port)
    }

    /// The late port at a location.
    pub fn late_port(&self, location: Option<Location>) -> Option<PortName> {
        self.late_ports.get(&location?).copied()
    }

    /// The nodes that are bound to a location.
    pub fn guids(&self) -> BTreeSet<Guid> {
        self.own.into_iter().chain(self.nodes.values().copied()).collect()
    }

    pub fn list(&mut self) -> Bindings {
        let (own, nodes, late_ports) = (self.own, &self.nodes, &self.late_ports);
        let all = || Bindings {
            own,
            nodes: nodes.iter().map(|(location, node)| (*location, *node)).collect(),
            late_ports: late_ports.iter().map(|(location, port)| (*location, *port)).collect(),
        };
        self.listed.get_or_insert_with(all).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(byte: u8) -> SiteSecret {
        SiteSecret::new(vec![byte; SECRET_LEN_MIN]).unwrap()
    }

    #[test]
    fn every_node_of_every_site_has_its_own_key() {
        let mut keys = std::collections::BTreeSet::new();
        for site in 0..3 {
            for node in 1..=1000 {
                assert!(keys.insert(secret(site).key(Guid::from_wire(node).unwrap(), 0).to_wire()));
            }
        }
        let guid = Guid::from_wire(7).unwrap();
        for epoch in 0..=3 {
            for port in 1..=2 {
                let key = secret(0).port_key(guid, PortNum::new(port).unwrap(), epoch);
                assert!(keys.insert(key.to_wire()), "nor do late ports share one");
            }
            let key = secret(0).key(guid, epoch);
            assert_eq!(keys.insert(key.to_wire()), epoch > 0, "every epoch has other keys");
            assert_eq!(key, secret(0).key(guid, epoch), "and always the same");
        }
    }

    #[test]
    fn keys_of_earlier_releases_are_those_of_epoch_0() {
        let key = secret(0x5a).key(Guid::from_wire(0x0002_c903_0010_0000).unwrap(), 0);
        let mut mac = Hmac::<Sha256>::new_from_slice(&[0x5a; 32]).unwrap();
        mac.update(b"heddle M_Key 1\x00\x02\xc9\x03\x00\x10\x00\x00\x00");
        let digest: [u8; 32] = mac.finalize().into_bytes().into();
        assert_eq!(key.to_wire().to_be_bytes(), digest[..8]);
    }

    #[test]
    fn a_short_secret_is_rejected_and_no_secret_prints() {
        assert_eq!(SiteSecret::new(vec![1; 31]).unwrap_err(), SecretTooShort { len: 31 });
        assert_eq!(format!("{:?}", secret(0x41)), "SiteSecret(set)");
        let operator = OperatorKey::new(MKey::from_wire(0x4142).unwrap());
        assert_eq!(format!("{operator:?}"), "OperatorKey(set)");
    }

    #[test]
    fn the_mark_of_an_operator_key_does_not_determine_it() {
        let mark = |key| OperatorKey::new(MKey::from_wire(key).unwrap()).fingerprint();
        let marks: std::collections::BTreeSet<u64> = (1..=1000).map(mark).collect();
        assert_eq!(marks.len(), 1000, "others have other marks");
        assert!(marks.iter().all(|mark| *mark < 1 << 32), "it has half of the bits");
    }
}
