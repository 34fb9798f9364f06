//! Why a cluster does not get its guarantee.

use ib_wire::Guid;
use thiserror::Error;

use crate::tenancy::admission::Refusal;

/// What keeps a guarantee from being given: a limit of a link, a latency that is too short, or a host in use.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum GuaranteeError {
    /// Admission control refuses the cluster on the routes of the plan, and on other routes where those may be chosen.
    #[error(transparent)]
    Refused(Refusal),
    /// A host belongs to another cluster; `host` is the GUID of its port.
    #[error("host {host} belongs to cluster {cluster}")]
    HostTaken { host: Guid, cluster: String },
}
