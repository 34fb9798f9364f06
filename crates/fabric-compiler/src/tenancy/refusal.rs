//! Why a cluster is not given what it wants.

use fabric_model::tenancy::{Bandwidth, ClusterNumber};
use ib_wire::Guid;
use thiserror::Error;

use super::network::{LinkIndex, Network};

/// Why a cluster was not admitted: the limit that binds, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// A cluster has that number.
    #[error("cluster {0} is admitted already")]
    Known(ClusterNumber),
    /// No cluster has that number.
    #[error("cluster {0} is not admitted")]
    Unknown(ClusterNumber),
    /// A cluster has at least one host, each named once.
    #[error("a cluster of no hosts, or with a host named twice")]
    Hosts,
    /// A host belongs to another cluster.
    #[error("host {host} belongs to cluster {cluster}")]
    HostTaken {
        /// GUID of its port.
        host: Guid,
        /// Whose it is.
        cluster: ClusterNumber,
    },
    /// No route leads from a host to another.
    #[error("no route leads to host {to}")]
    NoRoute {
        /// GUID of the port that is not reached.
        to: Guid,
    },
    /// All lanes of a link belong to others.
    #[error("all {lanes} lanes of link {} belong to other clusters", .link.0)]
    Lanes {
        /// The link.
        link: LinkIndex,
        /// Its lanes for guaranteed clusters.
        lanes: u8,
    },
    /// No service level is free on every link of the cluster, or of one of its paths.
    #[error("no service level is free on every link; link {} has {free} of {levels} left", .link.0)]
    ServiceLevels {
        /// The link with the fewest left.
        link: LinkIndex,
        /// Levels that are free there.
        free: u8,
        /// Levels for guaranteed clusters.
        levels: u8,
    },
    /// A link has not enough rate left.
    #[error("link {} has {free} left, {needed} are needed", .link.0)]
    Bandwidth {
        /// The link.
        link: LinkIndex,
        /// What is needed.
        needed: Bandwidth,
        /// What is left of the usable rate.
        free: Bandwidth,
    },
    /// A link's arbitration table has not enough entries left.
    #[error("the arbitration table of link {} has {free} entries left, {needed} are needed", .link.0)]
    Arbitration {
        /// The link.
        link: LinkIndex,
        /// Entries.
        needed: u8,
        /// Entries left.
        free: u8,
    },
    /// A lane's buffer behind a link cannot hold what the cluster sends until credits come back, and a packet.
    #[error("a lane's buffer behind link {} has {held} bytes, {needed} are needed", .link.0)]
    Buffer {
        /// The link.
        link: LinkIndex,
        /// Bytes that are needed.
        needed: u64,
        /// Bytes that there are.
        held: u64,
    },
    /// Of all ways that could be chosen, none has lanes and rate left up to a host.
    #[error("no way to host {to} has a lane and {bandwidth} a host left")]
    NoWay {
        /// GUID of the host's port.
        to: Guid,
        /// What was asked for.
        bandwidth: Bandwidth,
    },
}

impl Refusal {
    /// The same with the link by the port it leaves.
    pub fn told(&self, network: &Network) -> String {
        let link = match self {
            Self::Lanes { link, .. }
            | Self::ServiceLevels { link, .. }
            | Self::Bandwidth { link, .. }
            | Self::Arbitration { link, .. }
            | Self::Buffer { link, .. } => Some(*link),
            _ => None,
        };
        let port = link.and_then(|link| Some((link, network.links().get(link.index())?.from)));
        let text = self.to_string();
        port.map_or(text.clone(), |(link, from)| {
            text.replacen(&format!("link {}", link.0), &format!("the link out of port {from}"), 1)
        })
    }
}
