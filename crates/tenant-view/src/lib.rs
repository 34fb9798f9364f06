//! The network of one virtual cluster, as its tenant sees and manages it.
//!
//! A [`View`] is a machine without I/O that behaves, towards the programs of one tenant, like a network that is the
//! tenant's alone: the switches and cables on which the cluster has a share, and an adapter for every virtual machine, all
//! under names of its own. Without a manager of the tenant's it is up and configured; a manager of the tenant's may take
//! it over by the ordinary negotiation. What that manager writes is read as a [`ViewOverlay`], judged, and handed out for the
//! physical network; the physical network itself is never touched from here.
//!
//! | module | what it does |
//! |---|---|
//! | `slice` | the part of a plan that a cluster uses |
//! | `names` | aliases, the same for good |
//! | `projection` | a slice under its aliases, and back |
//! | `view` | the machine: datagrams and time in, deliveries and overlays out |
//! | `growth` | what changes when the slice does |
//! | `default_sm` | the subnet manager that is there when the tenant has none |
//! | `wish` | what the tables of a view ask for |
//! | `wishing` | when what was written counts as a wish |
//! | `judge`, `classes` | whether it can be |
//! | `verdict` | what was said about it |
//! | `bucket` | how much a tenant may ask of its view |
//!
//! ```
//! use std::time::Duration;
//!
//! use fabric_compiler::compile;
//! use fabric_model::{Decisions, Intents, generate::FatTree};
//! use ib_wire::PartitionNumber;
//! use tenant_view::{ClusterPlacement, Names, ViewManager, NodePlacement, ViewShape, Slice, View};
//!
//! let tree = FatTree { radix: 8, ..FatTree::with_hosts(16) }.generate()?;
//! let ports: Vec<_> = tree.end_nodes().filter_map(|(_, host)| host.ports().next()).map(|(_, port)| port.guid).collect();
//! let plan = compile(&tree, &Intents::new(ports[0]), &Decisions::default())?;
//! let seat = |node: &str, port| NodePlacement { node: node.to_owned(), port, shared: false };
//! let nodes = vec![seat("head", ports[1]), seat("worker", ports[9])];
//! let cluster = ClusterPlacement { name: "blue".to_owned(), partition: PartitionNumber::DEFAULT, nodes };
//!
//! let slice = Slice::of(&tree, &plan, &cluster, ViewShape::Network)?;
//! let mut view = View::new(slice, Names::default())?;
//! assert_eq!((view.aliases().len(), view.managed_by()), (2, ViewManager::Default));
//! view.handle_timeout(Duration::from_secs(1));
//! assert_eq!(view.poll_overlay(), None);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod change_set;
mod classes;
mod default_sm;
mod judge;
mod names;
mod overlay;
mod projection;
mod slice;
mod slice_update;
mod token_bucket;
mod verdict;
mod view;

pub use classes::fold_classes;
pub use names::{Names, NamesError};
pub use overlay::{OverlayChange, OverlayClass, PhysicalOverlay, ViewOverlay};
pub use projection::NodeAlias;
pub use slice::{ClusterPlacement, NodePlacement, Slice, SliceError, ViewShape, WireClass, WireParameters};
pub use token_bucket::TokenBucket;
pub use verdict::{
    Adaptation, EgressPort, JudgedOverlay, OverlayRefusal, UngrantedRoutes, Verdict, ViewStatus,
};
pub use view::{AdapterId, DatagramCounts, View, ViewError, ViewManager, ViewOutput, ViewSendError};
