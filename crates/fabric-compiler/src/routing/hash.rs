//! Rendezvous hashing: the candidate with the highest hash is chosen. It needs no state, and when a candidate goes away,
//! only what had chosen it moves.

use ib_wire::{Guid, Lid, PortNum};

/// Mixes the bits of a number (the finaliser of splitmix64).
const fn scramble(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// The seed of a switch's hashes.
pub(crate) fn seed(switch: Guid) -> u64 {
    scramble(switch.to_wire())
}

/// Chooses a port of a switch for a LID; `None` if there is none.
#[inline]
pub(crate) fn choose(seed: u64, ports: &[PortNum], lid: Lid) -> Option<PortNum> {
    match ports {
        [only] => Some(*only),
        _ => choose_by(seed, ports, u64::from(lid.to_wire())),
    }
}

/// Chooses a port of a switch for a number; `None` if there is none.
pub(crate) fn choose_by(seed: u64, ports: &[PortNum], number: u64) -> Option<PortNum> {
    ports.iter().copied().max_by_key(|port| scramble(seed ^ (u64::from(port.to_wire()) << 32) ^ number))
}
