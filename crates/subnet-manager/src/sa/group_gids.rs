//! GIDs of multicast groups.

use ib_wire::{Gid, Membership, PartitionNumber};

/// Signature of a GID that subnet administration assigned, in the third and fourth byte.
const ASSIGNED: [u8; 2] = [0xa0, 0x1b];
/// Signatures of IPv4 and IPv6 groups (RFC 4391); the P_Key follows.
const IP: [[u8; 2]; 2] = [[0x40, 0x1b], [0x60, 0x1b]];
/// Link-local scope of a group.
pub(super) const LINK_LOCAL: u8 = 2;

/// Whether a group is one of IP.
pub(super) fn is_ip(mgid: Gid) -> bool {
    IP.iter().any(|signature| mgid.0[2..4] == *signature)
}

/// Whether a group may have this GID. IP groups name their partition; link-local GIDs with the signature of assigned ones may
/// not be requested.
pub(super) fn is_valid_gid(mgid: Gid, partition: PartitionNumber, is_requested: bool) -> bool {
    let (flags, scope) = (mgid.0[1] >> 4, mgid.0[1] & 0xf);
    let key = partition.key(Membership::Full).to_wire().to_be_bytes();
    mgid.is_multicast()
        && flags <= 1
        && (!is_ip(mgid) || mgid.0[4..6] == key)
        && !(is_requested && mgid.0[2..4] == ASSIGNED && scope == LINK_LOCAL)
}

/// The GID with a number, as subnet administration assigns it.
pub(super) fn assigned_gid(prefix: u64, scope: u8, number: u32) -> Gid {
    let mut gid = [0; 16];
    gid[..4].copy_from_slice(&[0xff, 0x10 | scope & 0xf, ASSIGNED[0], ASSIGNED[1]]);
    gid[4..12].copy_from_slice(&prefix.to_be_bytes());
    gid[12..].copy_from_slice(&number.to_be_bytes());
    Gid(gid)
}

/// Whether subnet administration assigned a GID.
pub(super) fn is_assigned(mgid: Gid) -> bool {
    mgid.0[2..4] == ASSIGNED
}
