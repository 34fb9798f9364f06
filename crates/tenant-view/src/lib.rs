//! The network of one virtual cluster, as its tenant sees and manages it.
//!
//! A [`View`] is a state machine without I/O. To the programs of one tenant it is an InfiniBand network of their own: the
//! switches and cables that the cluster uses, and an adapter for every virtual machine, all under aliases. While the
//! tenant runs no subnet manager, the view is up and configured by its default SM; a subnet manager of the tenant takes
//! over by the ordinary SMInfo negotiation. What that manager writes is read as a [`ViewOverlay`], judged, and handed out
//! as a [`PhysicalOverlay`]. The view itself never touches the physical network.
//!
//! | module | contents |
//! |---|---|
//! | `slice` | the part of a plan that a cluster uses |
//! | `names` | persistent aliases |
//! | `projection` | a slice under its aliases, and the mapping back |
//! | `view` | the state machine: datagrams and time in, deliveries and overlays out |
//! | `slice_update` | updates when the slice changes |
//! | `default_sm` | the view's own subnet manager |
//! | `overlay` | what a tenant writes into the tables of its view |
//! | `change_set` | when writes count as an overlay |
//! | `judge`, `classes` | checks of an overlay |
//! | `verdict` | the result of the checks |
//! | `token_bucket` | rate limit for a tenant's datagrams |
//!
//! ```
//! use std::time::Duration;
//!
//! use fabric_compiler::compile;
//! use fabric_model::{Decisions, Intents, generate::FatTree};
//! use ib_wire::PartitionNumber;
//! use tenant_view::{ClusterPlacement, Names, NodePlacement, Slice, View, ViewManager, ViewShape};
//!
//! let tree = FatTree { radix: 8, ..FatTree::with_hosts(16) }.generate()?;
//! let ports: Vec<_> = tree.end_nodes().filter_map(|(_, host)| host.ports().next()).map(|(_, port)| port.guid).collect();
//! let plan = compile(&tree, &Intents::new(ports[0]), &Decisions::default())?;
//! let placement = |node: &str, port| NodePlacement { node: node.to_owned(), port, shared: false, guid: None };
//! let nodes = vec![placement("head", ports[1]), placement("worker", ports[9])];
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
    Adaptation, EgressPort, JudgedOverlay, OverlayRefusal, OverlayStatus, UngrantedRoutes, Verdict,
};
pub use view::{AdapterId, DatagramCounts, View, ViewError, ViewManager, ViewOutput, ViewSendError};
