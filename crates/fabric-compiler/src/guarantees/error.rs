//! Why a cluster does not get its guarantee.

use ib_wire::Guid;
use thiserror::Error;

use crate::tenancy::admission::Refusal;

/// What keeps a guarantee from being given: a limit of a link, a host in use, or a latency bound that is too high.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum GuaranteeError {
    /// Admission control refuses the cluster on the routes of the plan, and on other routes where those may be chosen.
    #[error(transparent)]
    Refused(Refusal),
    /// A host belongs to another cluster; `host` is the GUID of its port.
    #[error("host {host} belongs to cluster {cluster}")]
    HostTaken { host: Guid, cluster: String },
    /// The worst-case latency that the network can guarantee exceeds the requested one.
    #[error(
        "a packet takes up to {:.1} µs under worst-case load, but {} µs were requested",
        *.bound_ns as f64 / 1000.0,
        *.requested_ns as f64 / 1000.0
    )]
    LatencyExceeded { bound_ns: u64, requested_ns: u64 },
}
