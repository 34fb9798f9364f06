//! Resource quotas of tenants, and their usage.

use fabric_model::tenancy::Bandwidth;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::MemorySize;

/// Limits on the resources of a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Quota {
    /// Maximum number of clusters.
    pub clusters: u32,
    /// Maximum number of nodes in all clusters together.
    pub nodes: u32,
    /// Maximum virtual cores of all nodes together.
    pub cores: u32,
    /// Maximum memory of all nodes together.
    pub memory: MemorySize,
    /// Maximum guaranteed bandwidth summed over all nodes, in bit/s.
    #[schema(value_type = u64)]
    pub bandwidth: Bandwidth,
    /// Maximum partition numbers of all clusters, including those in quarantine after release.
    pub partitions: u32,
    /// Maximum share of the site's hosts whose ports guaranteed clusters of the tenant may occupy exclusively, 0 to 100
    /// percent.
    pub exclusive_share: u32,
}

impl Default for Quota {
    /// Enough for the daily work of a group, too little for one tenant to occupy a large site.
    fn default() -> Self {
        Self {
            clusters: 64,
            nodes: 1024,
            cores: 4096,
            memory: MemorySize::from_mib(16 * 1024 * 1024),
            bandwidth: Bandwidth::from_bits_per_s(100_000_000_000_000),
            partitions: 512,
            exclusive_share: 50,
        }
    }
}

/// Limits set by an operator; an absent limit keeps its previous value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct QuotaChange {
    /// Maximum number of clusters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clusters: Option<u32>,
    /// Maximum number of nodes in all clusters together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u32>,
    /// Maximum virtual cores of all nodes together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<u32>,
    /// Maximum memory of all nodes together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemorySize>,
    /// Maximum guaranteed bandwidth summed over all nodes, in bit/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub bandwidth: Option<Bandwidth>,
    /// Maximum partition numbers of all clusters, including those in quarantine after release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partitions: Option<u32>,
    /// Maximum share of the site's hosts whose ports guaranteed clusters of the tenant may occupy exclusively, 0 to 100
    /// percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exclusive_share: Option<u32>,
}

impl QuotaChange {
    /// Combines two changes; limits of `later` replace those of `self`.
    pub fn then(self, later: Self) -> Self {
        Self {
            clusters: later.clusters.or(self.clusters),
            nodes: later.nodes.or(self.nodes),
            cores: later.cores.or(self.cores),
            memory: later.memory.or(self.memory),
            bandwidth: later.bandwidth.or(self.bandwidth),
            partitions: later.partitions.or(self.partitions),
            exclusive_share: later.exclusive_share.or(self.exclusive_share),
        }
    }

    /// Resulting limits: those set, and the default for the others.
    pub fn quota(self) -> Quota {
        let default = Quota::default();
        Quota {
            clusters: self.clusters.unwrap_or(default.clusters),
            nodes: self.nodes.unwrap_or(default.nodes),
            cores: self.cores.unwrap_or(default.cores),
            memory: self.memory.unwrap_or(default.memory),
            bandwidth: self.bandwidth.unwrap_or(default.bandwidth),
            partitions: self.partitions.unwrap_or(default.partitions),
            exclusive_share: self.exclusive_share.unwrap_or(default.exclusive_share),
        }
    }
}

/// Resources of a tenant that count against its quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QuotaUsage {
    /// Number of clusters.
    pub clusters: u32,
    /// Number of nodes in all clusters.
    pub nodes: u32,
    /// Virtual cores of all nodes together.
    pub cores: u32,
    /// Memory of all nodes together.
    pub memory: MemorySize,
    /// Guaranteed bandwidth summed over all nodes, in bit/s.
    #[schema(value_type = u64)]
    pub bandwidth: Bandwidth,
    /// Partition numbers of all clusters, including those in quarantine after release.
    pub partitions: u32,
    /// Hosts whose ports guaranteed clusters of the tenant occupy exclusively.
    pub exclusive_hosts: u32,
}
