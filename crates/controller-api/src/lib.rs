//! Types that the controller, its clients and the agents of hosts exchange.
//!
//! * [`cluster`], [`tenant`], [`host`], [`image`], [`operation`], [`event`], [`fabric`]: resources of the REST interface.
//! * [`quota`]: resource limits of tenants and their usage.
//! * [`view`]: the network of a cluster as its tenant sees it.
//! * [`session`]: the stream behind `exec` and `ssh`.
//! * [`ApiProblem`]: errors of the REST interface, with the [`limit`] that a request exceeds; [`Problem`]: those of agents.
//! * [`agent`]: the protocol between the controller and the agent of a host.
//! * [`intents`]: the desired state of a whole fabric, as a file.
//! * [`ApiClient`]: sends requests to the controller at a [`ControllerAddress`].
//!
//! One type serves the wire, the store and the command line; values with rules have one checked constructor.

mod address;
pub mod agent;
mod client;
pub mod cluster;
pub mod event;
pub mod fabric;
pub mod host;
pub mod image;
pub mod intents;
pub mod limit;
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
pub use name::{InvalidResourceName, Name};
pub use problem::{ApiProblem, Problem};
pub use quantity::{InvalidMemorySize, MemorySize};
