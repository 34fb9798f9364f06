//! The network of one virtual cluster, as its tenant sees and manages it.
//!
//! A [`View`] is a machine without I/O that behaves, towards the programs of one tenant, like a network that is the
//! tenant's alone: the switches and cables on which the cluster has a share, and an adapter for every virtual machine, all
//! under names of its own. Without a manager of the tenant's it is up and configured; a manager of the tenant's may take
//! it over by the ordinary negotiation. What that manager writes is read as a [`Wish`], judged, and handed out for the
//! physical network; the physical network itself is never touched from here.
//!
//! | module | what it does |
//! |---|---|
//! | `slice` | the part of a plan that a cluster uses |
//! | `names` | aliases, the same for good |
//! | `projection` | a slice under its aliases, and back |
//! | `view` | the machine: datagrams and time in, deliveries and wishes out |
//! | `growth` | what changes when the slice does |
//! | `steward` | the subnet manager that is there when the tenant has none |
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
//! use tenant_view::{Cluster, Names, Rule, Seat, Shape, Slice, View};
//!
//! let tree = FatTree { radix: 8, ..FatTree::with_hosts(16) }.generate()?;
//! let ports: Vec<_> = tree.end_nodes().filter_map(|(_, host)| host.ports().next()).map(|(_, port)| port.guid).collect();
//! let plan = compile(&tree, &Intents::new(ports[0]), &Decisions::default())?;
//! let seat = |node: &str, port| Seat { node: node.to_owned(), port, shared: false };
//! let seats = vec![seat("head", ports[1]), seat("worker", ports[9])];
//! let cluster = Cluster { name: "blue".to_owned(), partition: PartitionNumber::DEFAULT, seats };
//!
//! let slice = Slice::of(&tree, &plan, &cluster, Shape::Network)?;
//! let mut view = View::new(slice, Names::default())?;
//! assert_eq!((view.aliases().len(), view.rule()), (2, Rule::Default));
//! view.handle_timeout(Duration::from_secs(1));
//! assert_eq!(view.poll_wish(), None);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bucket;
mod classes;
mod growth;
mod judge;
mod names;
mod projection;
mod slice;
mod steward;
mod verdict;
mod view;
mod wish;
mod wishing;

pub use bucket::Bucket;
pub use classes::fold_classes;
pub use names::{Names, NamesError};
pub use projection::NodeAlias;
pub use slice::{Cluster, Seat, Shape, Slice, SliceError, Wire, WireClass};
pub use verdict::{Adaptation, Exit, Judged, Refusal, Status, Unshared, Verdict};
pub use view::{AdapterId, Counts, Output, Rule, Unsent, View, ViewError};
pub use wish::{PhysicalWish, Wish, WishChange, WishedClass};
