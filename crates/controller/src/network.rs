//! What the fabric is to be: the partitions of clusters, numbers for new ones, and the plan. No I/O.

use std::collections::{BTreeMap, BTreeSet};

use fabric_compiler::{CompileError, compile, recompile};
use fabric_model::intent::{ClusterIntent, Ipoib, KeyPlace, Member, PartitionIntent, Role, Who};
use fabric_model::plan::Finding as Known;
use fabric_model::tenancy::{Class, SlMode};
use fabric_model::{Decisions, FabricPlan, Intents, Topology};
use fabric_verifier::{Finding, verify};
use ib_wire::{Guid, MulticastLid, PartitionNumber};
use jiff::{SignedDuration, Timestamp};
use thiserror::Error;

use crate::store::ClusterRow;

/// Partition numbers for clusters. Low numbers stay for operators, the highest is the default partition.
const POOL: std::ops::RangeInclusive<u16> = 0x0100..=0x7eff;

/// How long a number rests before it is used again: longer than anything that may still be on its way or cached.
pub const REST: SignedDuration = SignedDuration::from_mins(10);

/// Who is to be, or is, in which partition.
pub type Membership = BTreeSet<(PartitionNumber, Guid)>;

/// What clusters want of the fabric.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// Who is to be in which partition.
    pub members: Membership,
    /// Who is promised something, oldest first.
    pub promised: Vec<ClusterIntent>,
}

/// What all clusters want.
pub fn wishes(clusters: &[ClusterRow]) -> Wishes {
    Wishes { members: membership(clusters), promised: clusters.iter().filter_map(promised).collect() }
}

/// What a cluster is promised, if it is anything, by its id: names may be used again.
fn promised(cluster: &ClusterRow) -> Option<ClusterIntent> {
    let present = cluster.nodes.iter().filter(|node| !node.gone);
    let ports: BTreeSet<Guid> = present.map(|node| node.port_guid).collect();
    let is_promised = cluster.class != Class::BestEffort && !ports.is_empty();
    is_promised.then(|| ClusterIntent {
        name: cluster.id.to_string(),
        ports: ports.into_iter().collect(),
        class: cluster.class,
        sl_mode: SlMode::Cluster,
    })
}

/// A fabric as the subnet manager sees it.
#[derive(Clone, Debug)]
pub struct Sighting {
    /// Nodes and cables.
    pub topology: Topology,
    /// Where the manager sits, and what devices can hold; no partitions.
    pub intents: Intents,
}

/// Who is to be in which partition: every node that has a partition and whose virtual machine may still be there.
pub fn membership(clusters: &[ClusterRow]) -> Membership {
    let with_partition = clusters.iter().filter_map(|cluster| Some((cluster.partition?, cluster)));
    with_partition
        .flat_map(|(partition, cluster)| {
            let present = cluster.nodes.iter().filter(|node| !node.gone);
            present.map(move |node| (partition, node.port_guid))
        })
        .collect()
}

/// Why there is no plan by which wishes come true.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoPlan {
    /// It cannot be made.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// It was made, and does not keep what it should: it is not sent.
    #[error("the plan does not keep what it should, and is not sent: {first} ({count} findings)")]
    Unsound {
        /// The first finding.
        first: String,
        /// How many there are.
        count: usize,
    },
}

/// The plan for a fabric on which these wishes come true, proved to keep what it should.
pub fn plan(
    sighting: &Sighting,
    wishes: &Wishes,
    previous: Option<&FabricPlan>,
    decisions: &Decisions,
) -> Result<FabricPlan, NoPlan> {
    let mut intents = sighting.intents.clone();
    intents.partitions = partitions(&wishes.members);
    intents.clusters.clone_from(&wishes.promised);
    let plan = match previous {
        Some(previous) => recompile(&sighting.topology, &intents, previous),
        None => compile(&sighting.topology, &intents, decisions),
    }?;
    let findings = verify(&sighting.topology, &intents, &plan);
    match findings.iter().find(|finding| !is_known(finding, &plan)) {
        None => Ok(plan),
        Some(first) => Err(NoPlan::Unsound { first: first.to_string(), count: findings.len() }),
    }
}

/// Whether a plan says so itself: what cannot be made good, because cables are missing.
fn is_known(finding: &Finding, plan: &FabricPlan) -> bool {
    match finding {
        Finding::NotForwarded { .. } => says(plan, |it| matches!(it, Known::NoRoute { .. })),
        Finding::CreditLoop { .. } => says(plan, |it| matches!(it, Known::GroupTurns { .. })),
        _ => false,
    }
}

fn says(plan: &FabricPlan, kind: impl Fn(&Known) -> bool) -> bool {
    plan.findings().iter().any(kind)
}

fn partitions(members: &Membership) -> Vec<PartitionIntent> {
    let mut ports: BTreeMap<PartitionNumber, Vec<Member>> = BTreeMap::new();
    for (partition, port) in members {
        let member = Member { who: Who::Port(*port), role: Role::Full, place: KeyPlace::Anywhere };
        ports.entry(*partition).or_default().push(member);
    }
    let intent = |(number, members): (PartitionNumber, Vec<Member>)| PartitionIntent {
        name: format!("cluster-{number}"),
        number: Some(number),
        members,
        ipoib: Some(Ipoib::default()),
    };
    ports.into_iter().map(intent).collect()
}

/// The LID to which broadcasts of a partition go.
pub fn broadcast_group(decisions: &Decisions, partition: PartitionNumber) -> Option<MulticastLid> {
    decisions.groups.get(&partition).map(|group| group.mlid)
}

/// A partition number for a new cluster: the next behind the last one given away that is neither in use nor resting.
pub fn next_partition(
    in_use: &BTreeSet<PartitionNumber>,
    resting: &[(PartitionNumber, Timestamp)],
    last: u16,
    now: Timestamp,
) -> Option<PartitionNumber> {
    let rests = |number: PartitionNumber| {
        resting.iter().any(|(resting, since)| *resting == number && now.duration_since(*since) < REST)
    };
    let behind = POOL.filter(|raw| *raw > last);
    let before = POOL.filter(|raw| *raw <= last);
    behind
        .chain(before)
        .filter_map(PartitionNumber::from_wire)
        .find(|number| !in_use.contains(number) && !rests(*number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_given_in_turn_and_rest_before_they_come_again() {
        let number = |raw| PartitionNumber::from_wire(raw).unwrap();
        let now: Timestamp = "2024-01-01T00:00:00Z".parse().unwrap();
        let none = BTreeSet::new();
        assert_eq!(next_partition(&none, &[], 0, now), Some(number(0x100)));
        assert_eq!(next_partition(&none, &[], 0x100, now), Some(number(0x101)));
        assert_eq!(next_partition(&none, &[], 0x7eff, now), Some(number(0x100)), "round and round");
        let used = BTreeSet::from([number(0x101)]);
        assert_eq!(next_partition(&used, &[(number(0x102), now)], 0x100, now), Some(number(0x103)));
        assert_eq!(next_partition(&used, &[(number(0x102), now - REST)], 0x100, now), Some(number(0x102)));
        let all: BTreeSet<_> = POOL.filter_map(PartitionNumber::from_wire).collect();
        assert_eq!(next_partition(&all, &[], 0, now), None);
    }
}
