//! The shared words of Heddle about a fabric: what is cabled to what, and how that is written down.
//!
//! * [`Topology`] — nodes, ports and cables, made by a [`TopologyBuilder`] that refuses what cannot be.
//! * [`ibnetdiscover`] — the text format of the tool of that name, which `ibsim` reads too.
//! * [`generate`] — fat-trees, tori, dragonflies and random fabrics, the same for the same seed.
//! * [`Intents`] — what is wanted, [`Decisions`] — what has to stay, [`plan`] — what every device is to hold.
//! * [`TopologySummary`] — counts, rates and shape of a fabric; [`SwitchGraph`] — its switches as a graph.
//!
//! Nothing here reads a file, a clock or a dice: text and seeds are arguments.
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
pub mod generate;
pub mod ibnetdiscover;
pub mod intent;
mod link_rate;
mod mac;
mod observed;
mod packed;
pub mod plan;
mod serde_with;
mod shared_map;
mod summary;
mod switch_graph;
pub mod tenancy;
mod topology;

pub use builder::{BuildError, NewNode, TopologyBuilder};
pub use decisions::Decisions;
pub use document::Document;
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
