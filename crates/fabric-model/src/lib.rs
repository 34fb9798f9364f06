//! The data model that the crates of Heddle share: topologies, intents, decisions and plans.
//!
//! * [`Topology`] — nodes, ports and cables; built and checked by [`TopologyBuilder`].
//! * [`ibnetdiscover`] — reads and writes the text format of `ibnetdiscover`, which `ibsim` reads, too.
//! * [`generate`] — fat-trees, tori, Dragonfly+ and random fabrics, deterministic for a seed.
//! * [`Intents`] — the desired state of a fabric, [`Decisions`] — what must stay stable between compilations, [`plan`] — the
//!   resulting configuration of every device.
//! * [`TopologySummary`] — counts, rates and shape of a fabric; [`SwitchGraph`] — its switches as a graph.
//!
//! The crate does no I/O and uses no clock or random source: text and seeds are arguments.
//!
//! ```
//! use fabric_model::{generate::FatTree, ibnetdiscover, TopologySummary};
//!
//! let tree = FatTree::with_hosts(324).generate()?;
//! let text = ibnetdiscover::write(&tree);
//! assert_eq!(ibnetdiscover::parse(&text)?, tree);
//! assert_eq!(TopologySummary::of(&tree).switches, 27);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod builder;
pub mod decisions;
mod document;
mod function;
pub mod generate;
mod hardware;
pub mod ibnetdiscover;
pub mod intent;
mod link_rate;
mod mac;
mod node_role;
mod observed;
mod packed;
pub mod plan;
mod port_name;
mod serde_with;
mod shared_map;
mod summary;
mod switch_graph;
mod tables;
pub mod tenancy;
mod topology;

pub use builder::{BuildError, NewNode, TopologyBuilder};
pub use decisions::Decisions;
pub use document::Document;
pub use function::{DropReason, FunctionKey};
pub use hardware::{ParseSwitchModelError, PassageTimes, Speedup, StatedHardware, SwitchModel};
pub use intent::Intents;
pub use link_rate::{LinkRate, ParseLinkRateError, Speed, Width};
pub use mac::{MacAddress, ParseMacAddressError};
pub use observed::ObservedTables;
pub use plan::FabricPlan;
pub use shared_map::{MapDifference, SharedMap};
pub use summary::{RateCount, TopologySummary};
pub use switch_graph::{SwitchGraph, SwitchIndex};
pub use topology::{
    DESCRIPTION_BYTES_MAX, Endpoint, Link, MODULE_BYTES_MAX, NODE_ID_BYTES_MAX, NODE_PORTS_MAX, NODES_MAX,
    Node, NodeIndex, PORTS_MAX, Port, PortZero, Topology,
};
