//! Encoding and authentication of probe packets.

use std::fmt;
use std::net::Ipv4Addr;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

/// First bytes of every packet: protocol name and version.
const MAGIC: [u8; 5] = *b"HdNc\x01";

/// Bytes covered by the tag: magic, kind, two zero bytes, sender, generation, nonce.
const SIGNED_BYTES: usize = 28;

/// Bytes of the tag: an HMAC-SHA-256 truncated to its left half.
const TAG_BYTES: usize = 16;

/// Bytes of a packet.
pub(super) const PACKET_BYTES: usize = SIGNED_BYTES + TAG_BYTES;

/// Domain separation: a key derived for this purpose is useless for any other.
const PURPOSE: &[u8] = b"heddle network check 1\n";

/// Kind of a packet, as on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Probe = 1,
    Reply = 2,
    BroadcastRequest = 3,
    Broadcast = 4,
}

/// A packet whose tag was verified, or that is about to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packet {
    pub(super) kind: Kind,
    pub(super) from: Ipv4Addr,
    pub(super) generation: u64,
    pub(super) nonce: u64,
}

/// Key that authenticates the packets of one cluster. Its `Debug` output does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct ProbeKey([u8; 32]);

impl fmt::Debug for ProbeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProbeKey(set)")
    }
}

impl ProbeKey {
    /// Derives the key from a secret of the cluster by SHA-256; the secret cannot be recovered from it.
    pub fn derive(secret: &str) -> Self {
        Self(Sha256::new().chain_update(PURPOSE).chain_update(secret).finalize().into())
    }

    /// As 64 hexadecimal digits.
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Parses the output of [`ProbeKey::to_hex`]; trailing white space is ignored. `None` for any other text.
    pub fn from_hex(text: &str) -> Option<Self> {
        let digits = text.trim_end().as_bytes();
        let mut key = [0; 32];
        if digits.len() != 2 * key.len() {
            return None;
        }
        for (byte, pair) in key.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(Self(key))
    }

    fn mac(&self, signed: &[u8]) -> Hmac<Sha256> {
        let mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        mac.chain_update(signed)
    }
}

impl Packet {
    pub(super) fn seal(&self, key: &ProbeKey) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(PACKET_BYTES);
        bytes.extend(MAGIC);
        bytes.extend([self.kind as u8, 0, 0]);
        bytes.extend(self.from.octets());
        bytes.extend(self.generation.to_be_bytes());
        bytes.extend(self.nonce.to_be_bytes());
        let tag = key.mac(&bytes).finalize().into_bytes();
        bytes.extend(&tag[..TAG_BYTES]);
        bytes
    }

    /// Verifies and decodes a packet; `None` unless it was sealed with `key`.
    pub(super) fn open(bytes: &[u8], key: &ProbeKey) -> Option<Self> {
        let bytes: &[u8; PACKET_BYTES] = bytes.try_into().ok()?;
        let (signed, tag) = bytes.split_at(SIGNED_BYTES);
        key.mac(signed).verify_truncated_left(tag).ok()?;
        let rest = signed.strip_prefix(&MAGIC)?;
        let (kind, rest) = rest.split_first_chunk::<3>()?;
        let (from, rest) = rest.split_first_chunk::<4>()?;
        let (generation, nonce) = rest.split_first_chunk::<8>()?;
        let kind = match *kind {
            [1, 0, 0] => Kind::Probe,
            [2, 0, 0] => Kind::Reply,
            [3, 0, 0] => Kind::BroadcastRequest,
            [4, 0, 0] => Kind::Broadcast,
            _ => return None,
        };
        Some(Self {
            kind,
            from: Ipv4Addr::from(*from),
            generation: u64::from_be_bytes(*generation),
            nonce: u64::from_be_bytes(nonce.try_into().ok()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKET: Packet =
        Packet { kind: Kind::Probe, from: Ipv4Addr::new(10, 128, 0, 7), generation: 3, nonce: 0x1234 };

    #[test]
    fn packets_survive_a_round_trip() {
        let key = ProbeKey::derive("secret");
        for kind in [Kind::Probe, Kind::Reply, Kind::BroadcastRequest, Kind::Broadcast] {
            let packet = Packet { kind, ..PACKET };
            assert_eq!(Packet::open(&packet.seal(&key), &key), Some(packet));
        }
    }

    #[test]
    fn a_changed_packet_or_another_key_is_rejected() {
        let key = ProbeKey::derive("secret");
        let sealed = PACKET.seal(&key);
        for index in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[index] ^= 1;
            assert_eq!(Packet::open(&changed, &key), None, "byte {index}");
        }
        assert_eq!(Packet::open(&sealed[1..], &key), None);
        assert_eq!(Packet::open(&[sealed.as_slice(), &[0]].concat(), &key), None);
        assert_eq!(Packet::open(&sealed, &ProbeKey::derive("other")), None);
    }

    #[test]
    fn a_key_round_trips_through_hex_and_does_not_print() {
        let key = ProbeKey::derive("secret");
        assert_eq!(ProbeKey::from_hex(&format!("{}\n", key.to_hex())), Some(key.clone()));
        assert_eq!(ProbeKey::from_hex("12"), None);
        assert_eq!(ProbeKey::from_hex(&"g".repeat(64)), None);
        assert_eq!(ProbeKey::from_hex(&"é".repeat(32)), None);
        assert_eq!(format!("{key:?}"), "ProbeKey(set)");
    }
}
