//! Admission control and placement: which virtual cluster gets which lane, service level, rate and arbitration entries
//! on which link, and on which hosts it runs.
//!
//! # Model
//!
//! A guaranteed cluster owns its hosts. Each host may send `b` bit/s while all hosts send to all others evenly (uniform
//! all-to-all). A directed link that carries `p` ordered pairs of a cluster of `n` hosts therefore needs `p·b/(n−1)` for
//! it. On each directed link a lane (VL) and a service level (SL) have at most one owner. SL-to-VL tables discard every
//! other combination, so a guest that sends at a foreign service level is dropped and never enters a foreign lane.
//!
//! # Method
//!
//! 1. [`placement`] proposes hosts by best fit: one leaf, one pod, several pods; the fullest that can hold the request
//!    first. Candidates that were refused are cached (`negative_cache`) until one of their leaves or pods changes.
//! 2. `path_selection` chooses, in regular trees, the up-ports of every destination. A guaranteed cluster owns its hosts,
//!    so the forwarding columns of their LIDs are its own and no LMC is needed. With a rate, each destination goes where
//!    most is left; without, where the cluster needs the fewest further links. A destination without a path takes the
//!    up-port of another one that has an alternative (at most 20,000 attempts). Other topologies keep their routes.
//! 3. [`admission`] counts the pairs per link (`demand`), compares them with what is left (`reservations`, `residual`),
//!    picks the lowest free service level, and takes a lane and arbitration entries on each link, on all links or none.
//! 4. [`arbitration`] fills the low-priority VL arbitration table of each link.
//! 5. [`switch_inputs`] says what the inputs of switches cost: a part of each link, and a wait of each packet.
//!
//! The methods are greedy. `tests/suite/tenancy_exact.rs` compares them with an exhaustive search on small trees: without
//! a rate no refusal is wrong, with a rate at most one in five is.
//!
//! # Complexity
//!
//! With `n` hosts on `l` leaves and `u` up-ports per leaf (and `v` per pod switch, for clusters that span pods), selecting
//! paths takes O(n·u·v) table lookups plus O(l·u) to read what is left. An admission then takes O(k) for the `k` links the
//! cluster uses. Placement tries candidates with at most 2,048 hosts in total, or two candidates for larger clusters.
//!
//! # Sources
//!
//! - One lane per tenant, weighted by VL arbitration: Hillenbrand, Mauch, Stoess, Miller, Bellosa, *Virtual InfiniBand
//!   Clusters for HPC Clouds* (2012). There SL = VL for the whole fabric; here lanes are chosen per link, which the
//!   SL-to-VL tables per input and output port make possible.
//! - Entries at power-of-two distances in bit-reversed order: Alfaro et al. (IEEE Transactions on Computers, 2007). See
//!   [`arbitration`].
//! - Up-port choice generalises d-mod-k routing of fat trees (Zahavi). Link-exclusive placement (LaaS, Zahavi et al.,
//!   ANCS 2016) is the baseline that the placement benchmark compares with.
//! - Delay bounds are rate-latency service curves of network calculus (Le Boudec and Thiran).
//!
//! # Guarantees
//!
//! The same requests in the same order give the same answers: no clock, no randomness, iteration in index order. What a
//! cluster was granted stays until it is released. The one exception is the position of arbitration entries, which may
//! move to make room; every move is reported.

pub mod admission;
pub mod arbitration;
mod balance;
mod candidates;
mod demand;
mod grant;
pub mod link_graph;
mod negative_cache;
mod path_selection;
pub mod placement;
mod refusal;
mod reservations;
mod residual;
mod resize;
pub mod switch_inputs;
mod tier;
pub mod tree;
