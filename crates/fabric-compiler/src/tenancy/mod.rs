//! Who gets which share of which link: lanes, service levels, arbitration weights and places of virtual clusters, decided
//! one request after the other.
//!
//! * [`arbitration`] — how the lanes of a port take turns, and what that promises to each.
//! * [`network`] — the fabric as seen from here: hosts, directed links, routes.
//! * [`ledger`] — who owns what on every link; admits clusters and takes back what they had.
//! * [`placement`] — where clusters go, and how they grow and shrink there.
//!
//! The same requests in the same order give the same answers, and what a cluster was given stays until it is released.

pub mod arbitration;
mod balance;
mod books;
mod choice;
mod growth;
pub mod ledger;
mod level;
pub mod network;
pub mod placement;
mod proposals;
mod refusal;
mod refused;
mod rooms;
mod shares;
pub mod tree;
