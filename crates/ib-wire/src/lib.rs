//! InfiniBand identifiers and management datagrams, byte for byte.
//!
//! The crate has three layers, each usable without the next:
//!
//! 1. **Identifiers** ([`Lid`], [`Guid`], [`Pkey`], [`MKey`], [`ServiceLevel`] …): one checked door per value,
//!    used alike by the wire, by serde and by the command line. Zero is never a value: it is `None`.
//! 2. **Layouts** ([`PortInfo`], [`NodeInfo`], [`sa::PathRecord`] …): each attribute is declared once, as the table
//!    of its fields; reading and writing follow from the table. Reserved bits read as anything and are written as 0.
//! 3. **Datagrams** ([`Mad`], [`Datagram`]): the 256 bytes, and the headers they travel in.
//!
//! The classes have modules of their own: [`notice`] (events and subscriptions), [`perf`] (counters), [`sa`] (the
//! records of the subnet administration) and [`rmpp`] (answers of several datagrams).
//!
//! Everything is in host order inside; wire order exists only here. Nothing in this crate panics on any input.
//!
//! ```
//! use ib_wire::{Attribute, DirectedRoute, Mad, Method, NodeInfo, PortNum};
//!
//! let route = DirectedRoute::new([PortNum::new(1).unwrap(), PortNum::new(4).unwrap()]).unwrap();
//! let request = Mad::directed(Method::GET, Attribute::NODE_INFO, 0, &route);
//! assert_eq!(request.hop_count(), 2);
//! assert!(NodeInfo::decode(request.smp_data()).is_err(), "a node without a GUID is not a node");
//! ```

#[macro_use]
mod bits;
mod address;
mod class_port_info;
mod datagram;
mod keys;
mod lane_sets;
mod lanes;
mod link;
mod mad;
mod node_info;
pub mod notice;
pub mod perf;
mod port_info;
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
pub use keys::{MKey, Membership, PartitionNumber, Pkey, QKey, SmKey};
pub use lane_sets::{LaneSet, LaneSetIter, ServiceLevelSet, ServiceLevelSetIter};
pub use lanes::{DataLanes, ServiceLevel, VirtualLane};
pub use link::{ExtendedSpeed, LinkDownDefault, LinkSpeed, LinkWidth, Mtu, PhysicalState, PortState};
pub use mad::{Attribute, MAD_LEN, Mad, ManagementClass, Method, Status, TransactionId};
pub use node_info::{NodeDescription, NodeInfo, NodeKind};
pub use port_info::{Capability, MKeyProtection, MlnxExtPortInfo, PortInfo};
pub use sm_info::{SmInfo, SmState};
pub use smp::{DIRECTED_HOPS_MAX, DirectedRoute, SMP_DATA_LEN};
pub use switch_info::SwitchInfo;
pub use tables::{
    ForwardingBlock, GuidBlock, MulticastBlock, PkeyBlock, PkeyBlockSelector, PortMask, SlToVl,
    SlToVlSelector, VlArbBlock, VlArbEntry, VlArbPart,
};
