//! What the controller, its clients and the agents of hosts say to each other.
//!
//! * [`cluster`], [`tenant`], [`host`], [`image`], [`operation`], [`event`], [`fabric`] — the resources of the REST interface.
//! * [`quota`] — what a tenant may have at once, and what it has.
//! * [`intents`] — what is wanted of a whole fabric, as a file.
//! * [`Problem`] — how errors are told.
//! * [`agent`] — what the controller orders from the agent of a host, and what the agent reports.
//! * [`view`] — the network of a cluster as its tenant sees it.
//! * [`session`] — the stream behind `exec` and `ssh`, once a request was upgraded to it.
//! * [`ApiClient`] — asks the controller at an [`ControllerAddress`].
//!
//! One type serves the wire, the store and the command line; what has rules has a checked door.

mod address;
pub mod agent;
mod client;
pub mod cluster;
pub mod event;
pub mod fabric;
pub mod host;
pub mod image;
pub mod intents;
mod name;
pub mod operation;
mod problem;
mod quantity;
pub mod quota;
pub mod session;
pub mod tenant;
pub mod view;

pub use address::{ControllerAddress, InvalidControllerAddress, TrustedUsers, UntrustedSocket};
pub use client::{ApiClient, ClientError, ClusterRef, Upgraded};
pub use name::{InvalidName, Name};
pub use problem::Problem;
pub use quantity::{InvalidMemorySize, MemorySize};
