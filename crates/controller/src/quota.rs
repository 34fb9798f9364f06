//! Quota usage of tenants, and its limits. No I/O.

use std::collections::BTreeSet;

use controller_api::limit::QuotaResource;
use controller_api::quota::{Quota, QuotaUsage};
use controller_api::{MemorySize, Name};
use fabric_model::tenancy::{Bandwidth, Class};
use thiserror::Error;

use crate::store::ClusterRow;

/// A limit that would be exceeded. Memory is in MiB and bandwidth in bit/s; all others are counts.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "the quota of tenant {tenant} allows {} {}, but {} would be used",
    amount(*.resource, *.allowed),
    noun(*.resource),
    amount(*.resource, *.requested)
)]
pub struct QuotaExceeded {
    pub tenant: Name,
    pub resource: QuotaResource,
    pub allowed: u64,
    /// What would be used with the request.
    pub requested: u64,
}

fn amount(resource: QuotaResource, amount: u64) -> String {
    match resource {
        QuotaResource::Memory => MemorySize::from_mib(amount.try_into().unwrap_or(u32::MAX)).to_string(),
        QuotaResource::Bandwidth => Bandwidth::from_bits_per_s(amount).to_string(),
        _ => amount.to_string(),
    }
}

fn noun(resource: QuotaResource) -> &'static str {
    match resource {
        QuotaResource::Clusters => "clusters",
        QuotaResource::Nodes => "nodes",
        QuotaResource::Cores => "cores",
        QuotaResource::Partitions => "partition numbers (those released in the last ten minutes count)",
        QuotaResource::ExclusiveHosts => "hosts for guaranteed clusters alone",
        QuotaResource::Memory => "of memory",
        QuotaResource::Bandwidth => "of guaranteed bandwidth",
    }
}

/// Usage of a tenant with these clusters, and with `partitions` numbers in use or in quarantine.
pub fn usage<'a>(clusters: impl IntoIterator<Item = &'a ClusterRow>, partitions: u32) -> QuotaUsage {
    let mut usage = QuotaUsage { partitions, ..QuotaUsage::default() };
    let (mut memory, mut bandwidth) = (0_u64, 0_u64);
    let mut exclusive = BTreeSet::new();
    for cluster in clusters {
        // Leaving nodes use their resources until they are gone.
        let nodes = cluster.nodes.len() as u32;
        usage.clusters += 1;
        usage.nodes += nodes;
        usage.cores = usage.cores.saturating_add(nodes.saturating_mul(cluster.cores));
        memory += u64::from(nodes) * u64::from(cluster.memory.mib());
        if let Class::Guaranteed { bandwidth: each, .. } = cluster.class {
            bandwidth = bandwidth.saturating_add(each.bits_per_s().saturating_mul(nodes.into()));
            exclusive.extend(cluster.nodes.iter().map(|node| node.host.clone()));
        }
    }
    usage.memory = MemorySize::from_mib(memory.try_into().unwrap_or(u32::MAX));
    usage.bandwidth = Bandwidth::from_bits_per_s(bandwidth);
    usage.exclusive_hosts = exclusive.len() as u32;
    usage
}

/// Fails if `after` exceeds a limit. Usage above a limit that was lowered since is allowed as long as it does not grow.
pub fn check(
    tenant: &Name,
    quota: &Quota,
    site_hosts: usize,
    before: &QuotaUsage,
    after: &QuotaUsage,
) -> Result<(), QuotaExceeded> {
    let mib = |memory: MemorySize| u64::from(memory.mib());
    let amounts = |usage: &QuotaUsage| {
        [
            (QuotaResource::Clusters, usage.clusters.into()),
            (QuotaResource::Nodes, usage.nodes.into()),
            (QuotaResource::Cores, usage.cores.into()),
            (QuotaResource::Partitions, usage.partitions.into()),
            (QuotaResource::ExclusiveHosts, usage.exclusive_hosts.into()),
            (QuotaResource::Memory, mib(usage.memory)),
            (QuotaResource::Bandwidth, usage.bandwidth.bits_per_s()),
        ]
    };
    let allowed = |resource| match resource {
        QuotaResource::Clusters => quota.clusters.into(),
        QuotaResource::Nodes => quota.nodes.into(),
        QuotaResource::Cores => quota.cores.into(),
        QuotaResource::Partitions => quota.partitions.into(),
        QuotaResource::ExclusiveHosts => exclusive_max(quota, site_hosts).into(),
        QuotaResource::Memory => mib(quota.memory),
        QuotaResource::Bandwidth => quota.bandwidth.bits_per_s(),
    };
    for ((resource, requested), (_, had)) in amounts(after).into_iter().zip(amounts(before)) {
        let allowed = allowed(resource);
        if requested > allowed && requested > had {
            return Err(QuotaExceeded { tenant: tenant.clone(), resource, allowed, requested });
        }
    }
    Ok(())
}

/// Hosts that guaranteed clusters of a tenant may occupy exclusively: its share of the site's hosts, rounded up.
fn exclusive_max(quota: &Quota, site_hosts: usize) -> u32 {
    let hosts = u64::try_from(site_hosts).unwrap_or(u64::MAX);
    let share = hosts.saturating_mul(quota.exclusive_share.into()).div_ceil(100);
    u32::try_from(share).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_over_a_lowered_limit_cannot_grow() {
        let tenant = "blue".parse().unwrap();
        let quota = Quota { nodes: 4, ..Quota::default() };
        let nodes = |nodes| QuotaUsage { nodes, ..QuotaUsage::default() };
        assert_eq!(check(&tenant, &quota, 16, &nodes(3), &nodes(4)), Ok(()));
        assert_eq!(check(&tenant, &quota, 16, &nodes(9), &nodes(8)), Ok(()));
        let error = check(&tenant, &quota, 16, &nodes(8), &nodes(9)).unwrap_err();
        assert_eq!(error.to_string(), "the quota of tenant blue allows 4 nodes, but 9 would be used");
    }

    #[test]
    fn a_share_of_hosts_is_rounded_up() {
        let quota = Quota { exclusive_share: 50, ..Quota::default() };
        assert_eq!((exclusive_max(&quota, 4), exclusive_max(&quota, 5), exclusive_max(&quota, 0)), (2, 3, 0));
    }
}
