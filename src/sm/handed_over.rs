//! The file with the ports that were handed over to tenants, and the partitions that belong to them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, anyhow, ensure};
use fabric_model::intent::{Member, MemberSelector, PartitionIntent, PartitionOwners, Role};
use ib_wire::{Guid, PartitionNumber};

/// The longest file in bytes: more than a line with a comment for each port of the largest fabric.
const TEXT_BYTES_MAX: u64 = 4 << 20;

/// Reads port GUIDs, one per line. `#` starts a comment that ends with the line.
pub fn read(path: &Path) -> anyhow::Result<BTreeSet<Guid>> {
    let place = path.display();
    let length = fs::metadata(path).with_context(|| format!("cannot read {place}"))?.len();
    ensure!(length <= TEXT_BYTES_MAX, "{place} must have at most {TEXT_BYTES_MAX} bytes, got {length}");
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {place}"))?;
    let mut ports = BTreeSet::new();
    for (line, number) in text.lines().zip(1..) {
        let entry = line.split('#').next().unwrap_or_default().trim();
        if entry.is_empty() {
            continue;
        }
        let guid: Guid = entry.parse().map_err(|error| anyhow!("{place}, line {number}: {error}"))?;
        ensure!(ports.insert(guid), "{place}, line {number}: port {guid} is listed twice");
    }
    Ok(ports)
}

/// The owners of the partitions that belong to tenants: those whose members are handed-over ports named by GUID, and the
/// manager, with at least one full member. Each such partition needs a number; its name stands for its owner.
pub fn owners(
    partitions: &[PartitionIntent],
    handed_over: &BTreeSet<Guid>,
) -> anyhow::Result<PartitionOwners> {
    let mut by_number: BTreeMap<PartitionNumber, Vec<&PartitionIntent>> = BTreeMap::new();
    for (index, partition) in partitions.iter().enumerate() {
        let mut earlier = partitions[..index].iter().filter(|other| other.name == partition.name);
        let number = partition.number.or_else(|| earlier.find_map(|other| other.number));
        match number {
            Some(number) => by_number.entry(number).or_default().push(partition),
            None => ensure!(
                witness(&[partition], handed_over).is_none(),
                "partition {:?} of handed-over ports needs a number, such as {0}=0x101",
                partition.name
            ),
        }
    }
    let mut owners = PartitionOwners::new();
    for (number, rules) in by_number {
        if let Some(port) = witness(&rules, handed_over) {
            owners.insert(number, BTreeMap::from([(rules[0].name.clone(), port)]));
        }
    }
    Ok(owners)
}

/// A full member of a partition that belongs to tenants; `None` if it belongs to the site.
fn witness(rules: &[&PartitionIntent], handed_over: &BTreeSet<Guid>) -> Option<Guid> {
    let members = || rules.iter().flat_map(|rule| &rule.members);
    let port = |member: &Member| match member.selector {
        MemberSelector::Port(guid) => Some(guid).filter(|guid| handed_over.contains(guid)),
        _ => None,
    };
    let is_tenants = |member: &Member| member.selector == MemberSelector::Manager || port(member).is_some();
    if !members().all(is_tenants) {
        return None;
    }
    members().filter(|member| member.role != Role::Limited).find_map(port)
}

#[cfg(test)]
mod tests {
    use fabric_compiler::partitions_conf;

    use super::*;

    fn written(text: &str) -> anyhow::Result<BTreeSet<Guid>> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("handed-over");
        fs::write(&path, text).unwrap();
        read(&path)
    }

    fn owned(text: &str) -> anyhow::Result<Vec<u16>> {
        let handed_over = written("0x11\n0x12\n").unwrap();
        let owners = owners(&partitions_conf::parse(text).unwrap(), &handed_over)?;
        Ok(owners.into_keys().map(PartitionNumber::to_wire).collect())
    }

    #[test]
    fn comments_and_empty_lines_are_skipped() {
        let ports = written("# rack 1\n0x11 # node 1\n\n0x0000000000000012\n").unwrap();
        assert_eq!(ports.into_iter().map(Guid::to_wire).collect::<Vec<u64>>(), [0x11, 0x12]);
    }

    #[test]
    fn an_error_names_the_line() {
        for text in ["0x11\nnode-1\n", "0x11\n0x11\n", "0x11\n0\n"] {
            let error = format!("{:#}", written(text).unwrap_err());
            assert!(error.contains("handed-over, line 2: "), "{error}");
        }
    }

    #[test]
    fn partitions_of_handed_over_ports_belong_to_tenants() {
        let text = "blue=0x101 : 0x11=full, 0x12=full, SELF=full; site=0x20 : 0x11=limited, 0x99=full;";
        assert_eq!(owned(text).unwrap(), [0x101]);
    }

    #[test]
    fn one_port_of_the_site_makes_a_partition_the_sites() {
        assert!(owned("a=0x101 : 0x11=full, 0x99=limited;").unwrap().is_empty());
        assert!(owned("a=0x101 : 0x11=full; a=0x101 : ALL=limited;").unwrap().is_empty());
        assert!(owned("a=0x101 : 0x11=limited, 0x12=limited;").unwrap().is_empty());
    }

    #[test]
    fn a_partition_of_tenants_needs_a_number() {
        let error = format!("{:#}", owned("blue : 0x11=full;").unwrap_err());
        assert!(error.contains("\"blue\" of handed-over ports needs a number"), "{error}");
        assert_eq!(owned("blue=0x101 : 0x11=full; blue : 0x12=full;").unwrap(), [0x101]);
    }
}
