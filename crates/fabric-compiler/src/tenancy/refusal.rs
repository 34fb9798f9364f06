//! Why admission control turns a request down.

use fabric_model::intent::PortName;
use fabric_model::tenancy::{Bandwidth, ClusterNumber};
use ib_wire::Guid;
use thiserror::Error;

/// The limit that a request exceeds, and where. A link is named by the port that sends into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// The cluster number is in use.
    #[error("cluster {0} is already admitted")]
    AlreadyAdmitted(ClusterNumber),
    /// The cluster to be changed was never admitted, or was released.
    #[error("cluster {0} is not admitted")]
    UnknownCluster(ClusterNumber),
    /// The list of hosts is empty, names a host twice, or names one that does not exist.
    #[error("a cluster needs at least one host, and each host may be named once")]
    InvalidHosts,
    /// A host is owned by another cluster; `host` is the GUID of its port.
    #[error("host {host} belongs to cluster {cluster}")]
    HostTaken { host: Guid, cluster: ClusterNumber },
    /// The forwarding tables lead from some host of the cluster to nowhere, or elsewhere than to the port `to`.
    #[error("no route leads to host {to}")]
    NoRoute { to: Guid },
    /// Each of the `lanes` that a link has for guaranteed clusters is owned by another cluster.
    #[error("all {lanes} lanes of the link out of port {port} belong to other clusters")]
    NoLaneFree { port: PortName, lanes: u8 },
    /// No service level is free on every link of the cluster, or of one of its paths. `port` is the link with the fewest
    /// free: `free` of the `usable` ones.
    #[error(
        "no service level is free on every link; the link out of port {port} has {free} of {usable} service levels left"
    )]
    NoServiceLevelFree { port: PortName, free: u8, usable: u8 },
    /// The rate of a link is unknown, its port cannot share it, or switches route adaptively, so that nothing can be
    /// guaranteed on it.
    #[error(
        "nothing can be guaranteed on the link out of port {port}: its rate is unknown, its port has no arbitration table, or switches route adaptively"
    )]
    RateUnknown { port: PortName },
    /// A link has less rate left than the cluster needs there. A request that needs at most `free` would fit.
    #[error("the link out of port {port} has {free} left, {needed} are needed")]
    BandwidthShort { port: PortName, needed: Bandwidth, free: Bandwidth },
    /// The arbitration table of a link has too few free entries.
    #[error(
        "the arbitration table of the link out of port {port} has {free} entries left, {needed} are needed"
    )]
    ArbitrationTableFull { port: PortName, needed: u8, free: u8 },
    /// The buffer of a lane at the far end of a link holds fewer bytes than the cluster sends in a credit round trip, plus
    /// one packet of the largest size.
    #[error("a lane's buffer behind the link out of port {port} has {held} bytes, {needed} are needed")]
    BufferTooSmall { port: PortName, needed: u64, held: u64 },
    /// No choice of up-ports leaves a lane and `bandwidth` for each host on every link to the host's port `to`.
    #[error("no path to host {to} has a lane and {bandwidth} per host left")]
    NoPath { to: Guid, bandwidth: Bandwidth },
}
