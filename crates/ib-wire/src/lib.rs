//! InfiniBand identifiers and management datagrams, byte for byte.
//!
//! The crate has three layers, each usable without the next:
//!
//! 1. **Identifiers** ([`Lid`], [`Guid`], [`Pkey`], [`MKey`], [`ServiceLevel`] …): each has one checked constructor, which
//!    decoding, serde and parsing share. Where the wire uses 0 for "none", the type is an `Option`.
//! 2. **Layouts** ([`PortInfo`], [`NodeInfo`], [`sa::PathRecord`] …): each attribute is declared once, as the table
//!    of its fields; `decode` and `encode` are generated from it. Reserved bits are ignored when decoding and 0 when encoding.
//! 3. **Datagrams** ([`Mad`], [`Datagram`]): the 256 bytes, and the headers they travel in.
//!
//! Modules per class: [`notice`] (traps and subscriptions), [`perf`] (counters), [`sa`] (records of the subnet
//! administration) and [`rmpp`] (responses of several datagrams).
//!
//! Values are in host byte order; only this crate deals with wire order. No input makes the crate panic.
//!
//! # Encodings
//!
//! | kind of field | encoding |
//! |---|---|
//! | times (`response_time`, `subnet_timeout`, `hoq_life`, `life_time`, `packet_life_time`) | 4.096 µs · 2ⁿ, 5 or 6 bits |
//! | [`Mtu`] | code n is 128 · 2ⁿ bytes: 1 = 256 … 5 = 4096 |
//! | [`DataLanes`] (VLCap, OperationalVLs) | 1 = VL0, 2 = VL0-1, 3 = VL0-3, 4 = VL0-7, 5 = VL0-14 |
//! | [`LinkWidth`], [`LinkSpeed`], [`ExtendedSpeed`] | one bit per width or speed |
//! | [`Rate`] | code per nominal rate, not in ascending order |
//! | data counters ([`perf`]) | units of 4 bytes |
//! | arbitration weights ([`VlArbEntry`]) | units of 64 bytes |
//! | `vl_high_limit` | units of 4096 bytes, 0 = one packet, 255 = no limit |
//! | `link_round_trip` | units of 4 ns |
//!
//! In a Set, code 0 of a state, MTU or lane field (`NoChange`) keeps the current value.
//!
//! # Example
//!
//! ```
//! use ib_wire::{Attribute, DirectedRoute, Mad, Method, NodeInfo, PortNum};
//!
//! let route = DirectedRoute::new([PortNum::new(1).unwrap(), PortNum::new(4).unwrap()]).unwrap();
//! let request = Mad::directed(Method::GET, Attribute::NODE_INFO, 0, &route);
//! assert_eq!(request.hop_count(), 2);
//! assert!(NodeInfo::decode(request.smp_data()).is_err(), "NodeInfo requires a GUID");
//! ```

#[macro_use]
mod bits;
mod address;
mod class_port_info;
pub mod congestion;
mod datagram;
mod keys;
mod lane_sets;
mod lanes;
mod link;
mod mad;
mod node_info;
pub mod notice;
pub mod packet;
pub mod perf;
mod port_info;
mod rate;
pub mod rmpp;
pub mod sa;
mod sm_info;
mod smp;
mod switch_info;
mod tables;

pub use address::{
    Gid, Guid, Lid, LidAddress, Lmc, MulticastLid, ParseGidError, ParseGuidError, ParsePortNumError, PortNum,
};
pub use bits::{Field, LayoutError, OutOfRange, WireValue, bits, bits_from, bytes};
pub use class_port_info::{ClassCapability, ClassCapability2, ClassPortInfo};
pub use datagram::{Datagram, Grh, QueuePair};
pub use keys::{MKey, Membership, ParsePkeyError, PartitionNumber, Pkey, QKey, SmKey};
pub use lane_sets::{LaneSet, LaneSetIter, ServiceLevelSet, ServiceLevelSetIter};
pub use lanes::{DataLanes, ServiceLevel, VirtualLane};
pub use link::{ExtendedSpeed, LinkDownDefault, LinkSpeed, LinkWidth, Mtu, PhysicalState, PortState};
pub use mad::{Attribute, MAD_LEN, Mad, ManagementClass, Method, Status, TransactionId};
pub use node_info::{NodeDescription, NodeInfo, NodeKind};
pub use packet::{Packet, PacketError, set_packet_source};
pub use port_info::{Capability, MKeyProtection, MlnxExtPortInfo, PortInfo};
pub use rate::Rate;
pub use sm_info::{SmInfo, SmState};
pub use smp::{DIRECTED_HOPS_MAX, DirectedRoute, SMP_DATA_LEN};
pub use switch_info::{AdaptiveRoutingInfo, SwitchInfo};
pub use tables::{
    ForwardingBlock, GuidBlock, MulticastBlock, PkeyBlock, PkeyBlockSelector, PortMask, SlToVl,
    SlToVlSelector, VlArbBlock, VlArbEntry, VlArbPart,
};

/// Compiles the example in README.md.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExample;
