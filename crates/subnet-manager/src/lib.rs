//! Makes a fabric equal to a plan, and nothing else: no LID, route or lane is chosen here.
//!
//! A [`Manager`] is a machine without I/O. It discovers the fabric along directed routes, many requests in flight at
//! once; hands out what it found ([`Event::Discovered`]); takes a [`FabricPlan`](fabric_model::FabricPlan) that somebody
//! compiled from it ([`Manager::apply`]); reads the tables that are there, and writes those that differ, in an order in
//! which every step is safe: addresses and keys, routes, partitions, and only then ports become active.
//!
//! | module | what it does |
//! |---|---|
//! | `manager` | the phases, and the verbs the caller uses |
//! | `exchange` | requests in flight: windows, retries, time limits |
//! | `keys` | a management key for every node, derived; where each may be shown |
//! | `discovery` | from answers to a topology |
//! | `observed` | what devices were last seen to hold |
//! | `program` | what has to be read and written for a plan |
//! | [`transition`] | the safe order from tables that are held to those of a plan |

mod discovery;
mod exchange;
mod keys;
mod manager;
mod observed;
mod program;
pub mod transition;

pub use exchange::{Counts, Limits};
pub use keys::{Bindings, Location, SECRET_LEN_MIN, SecretTooShort, SiteSecret};
pub use manager::{Discovery, Event, Manager};
