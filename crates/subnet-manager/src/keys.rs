//! Every node under a key of its own, all derived from one secret, and each sent only where its node is known to sit.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use ib_wire::{Guid, MKey, PortNum};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use thiserror::Error;

/// Bytes a site secret has at least: fewer could be guessed.
pub const SECRET_LEN_MIN: usize = 32;

/// What all management keys of a site are derived from. It never prints.
#[derive(Clone)]
pub struct SiteSecret(Vec<u8>);

/// A secret that could be guessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a site secret of {len} bytes could be guessed: {SECRET_LEN_MIN} random bytes at least")]
pub struct SecretTooShort {
    /// What was given.
    pub len: usize,
}

impl SiteSecret {
    /// Takes random bytes.
    pub fn new(bytes: Vec<u8>) -> Result<Self, SecretTooShort> {
        if bytes.len() < SECRET_LEN_MIN { Err(SecretTooShort { len: bytes.len() }) } else { Ok(Self(bytes)) }
    }

    /// The key of a node: different for every node, not to be guessed from any other.
    pub fn key(&self, guid: Guid) -> MKey {
        // Zero is no key; it comes up once in 2^64 nodes.
        (0..=u8::MAX)
            .find_map(|round| self.candidate(guid, round))
            .expect("one of 256 random numbers is not 0")
    }

    /// A number that tells this secret from others and nothing else about it.
    pub fn fingerprint(&self) -> u64 {
        self.number(&[b"heddle mark 1"])
    }

    fn candidate(&self, guid: Guid, round: u8) -> Option<MKey> {
        MKey::from_wire(self.number(&[b"heddle M_Key 1", &guid.to_wire().to_be_bytes(), &[round]]))
    }

    fn number(&self, parts: &[&[u8]]) -> u64 {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        parts.iter().for_each(|part| mac.update(part));
        let digest = mac.finalize().into_bytes();
        digest.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
    }
}

impl fmt::Debug for SiteSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SiteSecret(set)")
    }
}

/// Where a node sits: behind which port of which node. The manager's own node sits nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Location {
    /// The node before it.
    pub near: Guid,
    /// The port that leads to it.
    pub port: PortNum,
}

/// Which node was last met where. A key is shown only to whoever sits where its node was met: somebody who plugs in
/// another device learns nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Bindings {
    own: Option<Guid>,
    nodes: Vec<(Location, Guid)>,
}

impl Bindings {
    /// Says that a node was moved: its key may be shown at `location` from now on. `None` is where the manager sits.
    pub fn rebind(&mut self, location: Option<Location>, node: Guid) {
        let mut bound = BoundNodes::new(self);
        bound.bind(location, node);
        *self = bound.list();
    }
}

/// The same, while it is used.
#[derive(Clone, Debug, Default)]
pub(crate) struct BoundNodes {
    own: Option<Guid>,
    nodes: BTreeMap<Location, Guid>,
    /// Nodes that were put under their keys, or were bound before this manager began.
    sealed: BTreeSet<Guid>,
    /// Nodes that were bound since.
    unsealed: Vec<Guid>,
    /// As a list, while nothing changes.
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
        bound.seal();
        bound
    }

    /// Every node that is bound is about to be put under its key: from now on it has to know it.
    pub fn seal(&mut self) {
        self.sealed.extend(self.unsealed.drain(..));
    }

    /// Whether a node was put under its key.
    pub fn is_sealed(&self, node: Guid) -> bool {
        self.sealed.contains(&node)
    }

    /// The node that was last met at a location; `None` is where the manager itself sits.
    pub fn node(&self, location: Option<Location>) -> Option<Guid> {
        match location {
            None => self.own,
            Some(location) => self.nodes.get(&location).copied(),
        }
    }

    /// Binds a node to a location; whether that is news.
    pub fn bind(&mut self, location: Option<Location>, node: Guid) -> bool {
        let before = match location {
            None => self.own.replace(node),
            Some(location) => self.nodes.insert(location, node),
        };
        let is_news = before != Some(node);
        if is_news {
            self.unsealed.push(node);
            self.listed = None;
        }
        is_news
    }

    pub fn list(&mut self) -> Bindings {
        let (own, nodes) = (self.own, &self.nodes);
        let all =
            || Bindings { own, nodes: nodes.iter().map(|(location, node)| (*location, *node)).collect() };
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
    fn every_node_and_every_site_has_its_own_key() {
        let mut keys = std::collections::BTreeSet::new();
        for site in 0..3 {
            for node in 1..=1000 {
                assert!(keys.insert(secret(site).key(Guid::from_wire(node).unwrap()).to_wire()));
            }
        }
        let guid = Guid::from_wire(7).unwrap();
        assert_eq!(secret(1).key(guid), secret(1).key(guid), "and always the same");
    }

    #[test]
    fn a_short_secret_is_refused_and_none_prints() {
        assert_eq!(SiteSecret::new(vec![1; 31]).unwrap_err(), SecretTooShort { len: 31 });
        assert_eq!(format!("{:?}", secret(0x41)), "SiteSecret(set)");
    }
}
