//! Use cases of the partitions of the site: those of storage, login nodes and bare metal beside clusters.

use std::collections::BTreeSet;
use std::sync::Arc;

use fabric_compiler::partitions_conf::{self, ConfError};
use fabric_model::intent::{MemberSelector, PartitionIntent, Role};
use ib_wire::{Guid, PartitionNumber};
use thiserror::Error;

use crate::planning::{PlanningError, check_undiscovered};
use crate::site::Site;
use crate::store::{POOL, Store, StoreError};

/// Why partitions of the site are rejected. Nothing is changed then.
#[derive(Debug, Error)]
pub enum SitePartitionsError {
    #[error(transparent)]
    Syntax(#[from] ConfError),
    /// Numbers are not assigned to partitions of the site: other software knows them by their numbers.
    #[error("partition {name:?} needs a number, such as {name}=0x20")]
    WithoutNumber { name: String },
    #[error("partition {name:?} has number {number}, which cluster {tenant}/{cluster} uses")]
    OfCluster { name: String, number: PartitionNumber, tenant: String, cluster: String },
    #[error(
        "partition {name:?} has number {number}, which a cluster used a few minutes ago; try again later"
    )]
    Quarantined { name: String, number: PartitionNumber },
    /// The management partition needs a number that clusters never get.
    #[error("all numbers from {} to 0x7ffe are used; the management partition needs one of them", POOL.end() + 1)]
    NoneForManagement,
    #[error(transparent)]
    Planning(#[from] PlanningError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The partitions in the store.
pub async fn stored(store: &Store) -> Result<Vec<PartitionIntent>, StoreError> {
    let conf = store.site_partitions().await?;
    let invalid = || StoreError::InvalidValue { what: "partitions of the site", value: String::new() };
    parse(&conf).map_err(|_| invalid())
}

/// Parses partitions, each of which has a number: its own or that of an earlier one of its name.
fn parse(conf: &str) -> Result<Vec<PartitionIntent>, SitePartitionsError> {
    let mut partitions: Vec<PartitionIntent> = Vec::new();
    for partition in partitions_conf::parse(conf)? {
        let earlier = || partitions.iter().find(|it| it.name == partition.name).and_then(|it| it.number);
        let number = partition.number.or_else(earlier);
        let number =
            number.ok_or_else(|| SitePartitionsError::WithoutNumber { name: partition.name.clone() })?;
        partitions.push(PartitionIntent { number: Some(number), ..partition });
    }
    Ok(partitions)
}

/// Replaces the partitions of the site, after a plan with them was compiled and verified. Before the fabric is discovered, only
/// what needs no fabric is checked, and a plan that cannot be made later is not sent.
pub async fn set(site: &Site, conf: &str) -> Result<(), SitePartitionsError> {
    let partitions = parse(conf)?;
    let writer = site.writer.lock().await;
    let clusters = site.store.cluster_list().await?;
    let mut numbers = BTreeSet::new();
    for (partition, number) in partitions.iter().filter_map(|it| Some((it, it.number?))) {
        let name = || partition.name.clone();
        if let Some(owner) = clusters.iter().find(|it| it.partition_numbers().any(|used| used == number)) {
            let (tenant, cluster) = (owner.tenant.name.to_string(), owner.name.to_string());
            return Err(SitePartitionsError::OfCluster { name: name(), number, tenant, cluster });
        }
        if site.store.number_is_quarantined(number).await? {
            return Err(SitePartitionsError::Quarantined { name: name(), number });
        }
        numbers.insert(number);
    }
    let discovered = site.with_observed(|observed| observed.fabric.discovered.clone());
    let intent = Arc::new(site.fabric_intent_with(partitions, &clusters).await?);
    // Partitions are set before the first plan of a fabric that is in use, and that follows its discovery at once.
    match discovered {
        None => check_undiscovered(&intent)?,
        Some(discovered) => {
            let candidate = site.planning.propose(discovered, intent).await?;
            let management = candidate.plan().management_partition();
            if management.is_some_and(|number| POOL.contains(&number.to_wire())) {
                return Err(SitePartitionsError::NoneForManagement);
            }
        }
    }
    site.store.site_partitions_set(conf, &numbers).await?;
    site.note("fabric.partitions", format!("the site has {} partitions beside clusters", numbers.len()))
        .await?;
    drop(writer);
    site.wake();
    Ok(())
}

/// A partition of the site that names a port in a way that keeps it from being handed over: as more than a limited member,
/// or in the default partition.
pub fn obstacle(partitions: &[PartitionIntent], port: Guid) -> Option<&str> {
    let is_obstacle = |partition: &&PartitionIntent| {
        let is_default = partition.number == Some(PartitionNumber::DEFAULT);
        let mut own = partition.members.iter().filter(|it| it.selector == MemberSelector::Port(port));
        own.any(|member| is_default || member.role != Role::Limited)
    };
    partitions.iter().find(is_obstacle).map(|partition| partition.name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_partition_has_a_number() {
        let numbers = |conf| -> Result<Vec<u16>, String> {
            let parsed = parse(conf).map_err(|error| error.to_string())?;
            Ok(parsed.iter().filter_map(|it| it.number).map(PartitionNumber::to_wire).collect())
        };
        assert_eq!(numbers("Default : ALL=full; a=0x20 : SELF; a : ALL;"), Ok(vec![0x7fff, 0x20, 0x20]));
        let refused = numbers("a : SELF; a=0x20 : ALL;").unwrap_err();
        assert_eq!(refused, "partition \"a\" needs a number, such as a=0x20");
    }

    #[test]
    fn a_limited_member_can_be_handed_over() {
        let port = Guid::from_wire(0x11).unwrap();
        let obstacle_of = |conf| obstacle(&parse(conf).unwrap(), port).map(str::to_owned);
        assert_eq!(obstacle_of("a=0x20 : 0x11=limited; b=0x21 : ALL=full, 0x12=full;"), None);
        assert_eq!(obstacle_of("a=0x20 : 0x11=full;").as_deref(), Some("a"));
        assert_eq!(obstacle_of("Default : 0x11=limited;").as_deref(), Some("Default"));
    }
}
