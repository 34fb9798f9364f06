//! Prints how a fabric differs from a plan, for `heddle sm --adopt`.

use std::collections::BTreeMap;

use ib_wire::{Attribute, ForwardingBlock, PkeyBlock};
use subnet_manager::AttributeDifference;

/// Differences printed one by one; the others are only in the summary.
const SHOWN_MAX: usize = 20;

/// Prints a summary by kind, and the first differences one by one.
pub fn print_differences(differences: &[AttributeDifference]) -> anyhow::Result<()> {
    let mut kinds: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for difference in differences {
        let (count, entries) = kinds.entry(kind(difference.attribute)).or_default();
        *count += 1;
        *entries += changed_entries(difference);
    }
    let summary: Vec<String> = (kinds.into_iter())
        .map(|(kind, (count, entries))| match entries {
            0 => format!("{count} {kind}"),
            _ => format!("{count} {kind} ({entries} entries)"),
        })
        .collect();
    match differences.len() {
        0 => crate::print_line("no differences: 0 Sets")?,
        count => crate::print_line(format_args!("{count} differences: {}", summary.join(", ")))?,
    }
    for difference in differences.iter().take(SHOWN_MAX) {
        let entries = match changed_entries(difference) {
            0 => String::new(),
            entries => format!(", {entries} entries"),
        };
        crate::print_line(format_args!(
            "  {} {} {:#x}{entries}",
            difference.node,
            kind(difference.attribute),
            difference.modifier
        ))?;
    }
    if differences.len() > SHOWN_MAX {
        crate::print_line(format_args!("  and {} more", differences.len() - SHOWN_MAX))?;
    }
    Ok(())
}

fn kind(attribute: Attribute) -> &'static str {
    match attribute {
        Attribute::PORT_INFO => "PortInfo",
        Attribute::SWITCH_INFO => "SwitchInfo",
        Attribute::PKEY_TABLE => "P_Key blocks",
        Attribute::LINEAR_FORWARDING => "linear forwarding blocks",
        Attribute::MULTICAST_FORWARDING => "multicast forwarding blocks",
        _ => "other",
    }
}

/// Entries of a table that differ; 0 where an attribute has none.
fn changed_entries(difference: &AttributeDifference) -> usize {
    let held = difference.held.unwrap_or(match difference.attribute {
        Attribute::LINEAR_FORWARDING => [0xff; ForwardingBlock::ENTRIES],
        _ => [0; ForwardingBlock::ENTRIES],
    });
    match difference.attribute {
        Attribute::LINEAR_FORWARDING => held.iter().zip(&difference.wanted).filter(|(a, b)| a != b).count(),
        Attribute::PKEY_TABLE => {
            let (held, wanted) = (PkeyBlock::decode(&held), PkeyBlock::decode(&difference.wanted));
            held.0.iter().zip(&wanted.0).filter(|(a, b)| a != b).count()
        }
        _ => 0,
    }
}
