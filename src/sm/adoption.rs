//! The report of `heddle sm --adopt`: the posture of a fabric that another manager configured, and how it differs from a plan.

use std::collections::{BTreeMap, BTreeSet};

use ib_wire::{Attribute, ForwardingBlock, Guid, PkeyBlock, PortInfo};
use serde::Serialize;
use subnet_manager::{AttributeDifference, Grade, PostureFinding};

/// Differences printed one by one; the others are only in the summary.
const SHOWN_MAX: usize = 20;

/// What is known before a takeover.
#[derive(Debug, Default, Serialize)]
pub struct AdoptionReport {
    pub posture: Vec<PostureFinding>,
    pub kept: Kept,
    /// What a takeover would write, by kind.
    pub changes: Vec<Change>,
    /// Attributes that a takeover would write.
    pub differences: usize,
}

/// What stays as the other manager configured it.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Kept {
    pub lids: usize,
    pub lids_total: usize,
    pub routes: usize,
    pub routes_total: usize,
}

/// A kind of change.
#[derive(Debug, Serialize)]
pub struct Change {
    /// The attribute, or a field of PortInfo.
    what: &'static str,
    /// Attributes with this change.
    count: usize,
    /// Devices with this change.
    devices: usize,
    /// Entries of tables that change; 0 where an attribute has none.
    entries: usize,
    why: &'static str,
}

impl AdoptionReport {
    /// Notes what a takeover would write.
    pub fn compare(&mut self, differences: &[AttributeDifference]) {
        #[derive(Default)]
        struct Sum {
            count: usize,
            devices: BTreeSet<Guid>,
            entries: usize,
        }
        let mut sums: BTreeMap<(&'static str, &'static str), Sum> = BTreeMap::new();
        for difference in differences {
            for kind in kinds(difference) {
                let sum = sums.entry(kind).or_default();
                sum.count += 1;
                sum.devices.insert(difference.node);
                sum.entries += changed_entries(difference);
            }
        }
        let change = |((what, why), sum): ((&'static str, &'static str), Sum)| Change {
            what,
            count: sum.count,
            devices: sum.devices.len(),
            entries: sum.entries,
            why,
        };
        self.changes = sums.into_iter().map(change).collect();
        self.differences = differences.len();
    }

    /// Prints the posture, as lines.
    pub fn print_posture(&self) -> anyhow::Result<()> {
        crate::print_line("posture:")?;
        for finding in &self.posture {
            let grade = match finding.grade {
                Grade::Good => "good",
                Grade::Notice => "notice",
                Grade::Risk => "risk",
            };
            let item = serde_json::to_value(finding.item)?;
            let item = item.as_str().unwrap_or_default();
            crate::print_line(format_args!("  {grade:<7} {item:<19} {}", finding.text))?;
            for example in &finding.examples {
                crate::print_line(format_args!("          {:<19} {example}", ""))?;
            }
        }
        Ok(())
    }

    /// Prints what a takeover would write and why, and the first differences one by one.
    pub fn print_changes(&self, differences: &[AttributeDifference]) -> anyhow::Result<()> {
        match self.differences {
            0 => crate::print_line("no differences: 0 Sets")?,
            count => {
                crate::print_line(format_args!("{count} differences: what a takeover writes, and why:"))?
            }
        }
        for Change { what, count, devices, entries, why } in &self.changes {
            let entries = if *entries > 0 { format!(", {entries} entries") } else { String::new() };
            crate::print_line(format_args!("  {what}: {count} at {devices} devices{entries}: {why}"))?;
        }
        for difference in differences.iter().take(SHOWN_MAX) {
            let what: Vec<&str> = kinds(difference).into_iter().map(|(what, _)| what).collect();
            crate::print_line(format_args!(
                "  {} {:#x}: {}",
                difference.node,
                difference.modifier,
                what.join(", ")
            ))?;
        }
        if differences.len() > SHOWN_MAX {
            crate::print_line(format_args!("  and {} more", differences.len() - SHOWN_MAX))?;
        }
        Ok(())
    }
}

/// What changes in an attribute, and why.
fn kinds(difference: &AttributeDifference) -> Vec<(&'static str, &'static str)> {
    match difference.attribute {
        Attribute::PORT_INFO => port_info_kinds(difference),
        Attribute::SWITCH_INFO => vec![("SwitchInfo", "lifetimes, tops of tables, and PortStateChange")],
        Attribute::PKEY_TABLE => {
            vec![(
                "P_Key blocks",
                "members of the planned partitions, and no others, at ports and their switches",
            )]
        }
        Attribute::LINEAR_FORWARDING => {
            vec![(
                "linear forwarding blocks",
                "routes that could deadlock, do not arrive, or lead to new LIDs",
            )]
        }
        Attribute::MULTICAST_FORWARDING => {
            vec![("multicast forwarding blocks", "one tree for each partition with IPoIB")]
        }
        Attribute::SL_TO_VL => vec![("SL-to-VL tables", "every service level on its planned lane")],
        Attribute::VL_ARBITRATION => vec![("arbitration tables", "the planned weights of lanes")],
        Attribute::GUID_INFO => vec![("GUIDInfo", "the planned alias GUIDs")],
        _ => vec![("other", "the plan has other values")],
    }
}

fn port_info_kinds(difference: &AttributeDifference) -> Vec<(&'static str, &'static str)> {
    let held = difference.held.and_then(|held| PortInfo::decode(&held).ok());
    let (Some(held), Ok(wanted)) = (held, PortInfo::decode(&difference.wanted)) else {
        return vec![("PortInfo", "the plan has other values")];
    };
    let fields = [
        (
            held.lid != wanted.lid,
            ("PortInfo LID", "the LID is not kept: two ports claimed it, or it had none"),
        ),
        (
            held.m_key_protection != wanted.m_key_protection
                || held.m_key_lease_period_s != wanted.m_key_lease_period_s,
            ("PortInfo M_Key protection", "only this manager may configure the device"),
        ),
        (held.lmc != wanted.lmc, ("PortInfo LMC", "each port has one LID")),
        (
            held.master_sm_lid != wanted.master_sm_lid || held.master_sm_sl != wanted.master_sm_sl,
            ("PortInfo MasterSM", "this manager serves the subnet"),
        ),
        (
            held.enforce_inbound != wanted.enforce_inbound
                || held.enforce_outbound != wanted.enforce_outbound,
            ("PortInfo partition enforcement", "switches check the partitions of adapters"),
        ),
        (
            held.filter_raw_inbound != wanted.filter_raw_inbound
                || held.filter_raw_outbound != wanted.filter_raw_outbound,
            ("PortInfo raw filters", "raw packets carry no partition"),
        ),
        (
            held.operational_vls != wanted.operational_vls || held.vl_high_limit != wanted.vl_high_limit,
            ("PortInfo lanes", "both ends of a link use the same lanes"),
        ),
        (held.neighbor_mtu != wanted.neighbor_mtu, ("PortInfo MTU", "the largest that both ends support")),
        (
            held.hoq_life != wanted.hoq_life
                || held.vl_stall_count != wanted.vl_stall_count
                || held.subnet_timeout != wanted.subnet_timeout,
            ("PortInfo lifetimes", "a stalled link does not stop others for long"),
        ),
        (held.gid_prefix != wanted.gid_prefix, ("PortInfo GID prefix", "the prefix of the site")),
        (held.state != wanted.state, ("PortInfo state", "ports of the plan are active, others are not")),
    ];
    let found: Vec<_> = fields.into_iter().filter(|(differs, _)| *differs).map(|(_, kind)| kind).collect();
    match found.is_empty() {
        // M_Keys are never shown.
        true => vec![("PortInfo M_Key or other fields", "keys of the site secret, and settings of the plan")],
        false => found,
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
