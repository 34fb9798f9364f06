//! What a tenant may have at once, and what it has.

use fabric_model::tenancy::Bandwidth;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::MemorySize;

/// Limits of what a tenant may have at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Quota {
    /// Clusters.
    pub clusters: u32,
    /// Nodes of all its clusters.
    pub nodes: u32,
    /// Virtual cores of all its nodes.
    pub cores: u32,
    /// Memory of all its nodes.
    pub memory: MemorySize,
    /// Guaranteed bandwidth, summed over nodes, in bits per second.
    #[schema(value_type = u64)]
    pub bandwidth: Bandwidth,
    /// Partition numbers of its clusters, and those that rest after its clusters had them.
    pub partitions: u32,
    /// Hosts whose ports its guaranteed clusters may have to themselves, in percent of the hosts of the site.
    pub exclusive_share: u32,
}

impl Default for Quota {
    /// Enough for the daily work of a group, and too little for one tenant to be the only one.
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

/// Limits that an operator sets; those that are not given stay as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct QuotaChange {
    /// Clusters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clusters: Option<u32>,
    /// Nodes of all its clusters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u32>,
    /// Virtual cores of all its nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<u32>,
    /// Memory of all its nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemorySize>,
    /// Guaranteed bandwidth, summed over nodes, in bits per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub bandwidth: Option<Bandwidth>,
    /// Partition numbers, with those that rest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partitions: Option<u32>,
    /// Hosts whose ports its guaranteed clusters may have to themselves, in percent of the hosts of the site.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exclusive_share: Option<u32>,
}

impl QuotaChange {
    /// The limits that were set, later ones in place of earlier ones.
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

    /// The limits that follow: what was set, and the default for the rest.
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

/// What a tenant has of what its quota limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QuotaUsage {
    /// Clusters.
    pub clusters: u32,
    /// Nodes of all its clusters.
    pub nodes: u32,
    /// Virtual cores of all its nodes.
    pub cores: u32,
    /// Memory of all its nodes.
    pub memory: MemorySize,
    /// Guaranteed bandwidth, summed over nodes, in bits per second.
    #[schema(value_type = u64)]
    pub bandwidth: Bandwidth,
    /// Partition numbers of its clusters, and those that rest after its clusters had them.
    pub partitions: u32,
    /// Hosts whose ports its guaranteed clusters have to themselves.
    pub exclusive_hosts: u32,
}
