//! Partitions inside a cluster, in the notation `io=1-4,limited:5`.

use clap::Args;
use controller_api::Name;
use controller_api::cluster::{SubPartition, SubPartitionStatus};
use std::collections::BTreeSet;

use super::cluster::ClusterArgs;
use super::wait::WaitArgs;

/// Largest node number in a list.
const NODES_MAX: u32 = 65_535;

#[derive(Debug, Args)]
pub struct PartitionArgs {
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Partition to set, such as io=1-4,limited:5; may be repeated; replaces all existing partitions
    #[arg(long = "set", value_name = "NAME=NODES", value_parser = parse)]
    pub set: Vec<SubPartition>,
    /// Remove all partitions inside the cluster
    #[arg(long, conflicts_with = "set")]
    pub clear: bool,
    #[command(flatten)]
    pub wait: WaitArgs,
}

/// Parses `NAME=NODES`, where NODES is a list of numbers and ranges, some after `limited:`.
pub fn parse(text: &str) -> Result<SubPartition, &'static str> {
    read(text).ok_or("expected NAME=NODES, such as io=1-4 or io=1,limited:2-4")
}

fn read(text: &str) -> Option<SubPartition> {
    let (name, nodes) = text.split_once('=')?;
    let mut partition =
        SubPartition { name: name.parse::<Name>().ok()?, full: BTreeSet::new(), limited: BTreeSet::new() };
    for part in nodes.split(',') {
        let (members, range) = match part.trim().strip_prefix("limited:") {
            Some(range) => (&mut partition.limited, range),
            None => (&mut partition.full, part.trim()),
        };
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if first > last || last > NODES_MAX {
            return None;
        }
        members.extend(first..=last);
    }
    Some(partition)
}

/// A partition in one line: `io (0x0102): 1-4, limited: 5`.
pub fn describe(partition: &SubPartitionStatus) -> String {
    let mut parts = Vec::new();
    if !partition.full.is_empty() {
        parts.push(ranges(&partition.full));
    }
    if !partition.limited.is_empty() {
        parts.push(format!("limited: {}", ranges(&partition.limited)));
    }
    format!("{} ({}): {}", partition.name, partition.number, parts.join(", "))
}

/// Formats numbers as ranges: `1-4, 7`.
fn ranges(numbers: &BTreeSet<u32>) -> String {
    let mut rows: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match rows.last_mut() {
            Some((_, last)) if *last + 1 == *number => *last = *number,
            _ => rows.push((*number, *number)),
        }
    }
    let row = |(first, last): &(u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    rows.iter().map(row).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parsing_and_formatting_of_partitions_agree() {
        let partition = parse("io=1-3, 7,limited:4-5").unwrap();
        assert_eq!(partition.full, BTreeSet::from([1, 2, 3, 7]));
        assert_eq!(partition.limited, BTreeSet::from([4, 5]));
        let SubPartition { name, full, limited } = partition;
        let number = ib_wire::PartitionNumber::from_wire(0x102).unwrap();
        let inner = SubPartitionStatus { name, number, full, limited };
        assert_eq!(describe(&inner), format!("io ({number}): 1-3, 7, limited: 4-5"));
        for text in ["", "io", "io=", "=1", "io=1-", "io=3-1", "io=one", "io=1-4000000000", "io=limited:"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
