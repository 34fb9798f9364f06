//! A choice that needs no memory: the candidate with the highest hash. When one goes away, only what chose it moves.

use ib_wire::{Guid, Lid, PortNum};

/// Scrambles a number (the finaliser of splitmix64).
const fn scramble(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// What the choices of one switch begin with.
pub(crate) fn seed(switch: Guid) -> u64 {
    scramble(switch.to_wire())
}

/// The port of a switch for a destination.
#[inline]
pub(crate) fn choose(seed: u64, ports: &[PortNum], lid: Lid) -> Option<PortNum> {
    match ports {
        [only] => Some(*only),
        _ => choose_by(seed, ports, u64::from(lid.to_wire())),
    }
}

/// The port of a switch for anything that has a number.
pub(crate) fn choose_by(seed: u64, ports: &[PortNum], number: u64) -> Option<PortNum> {
    ports.iter().copied().max_by_key(|port| scramble(seed ^ (u64::from(port.to_wire()) << 32) ^ number))
}
