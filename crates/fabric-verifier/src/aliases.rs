//! Alias GUIDs: ports have exactly those of the intents, and no GUID is an address of two ports.

use std::collections::BTreeMap;

use fabric_model::intent::AliasTable;
use fabric_model::{FabricPlan, Intents};
use ib_wire::Guid;

use crate::Finding;

pub(crate) fn check(intents: &Intents, plan: &FabricPlan) -> Vec<Finding> {
    let none = AliasTable::new();
    let mut findings = Vec::new();
    let mut owners: BTreeMap<Guid, Guid> = BTreeMap::new();
    for port in plan.adapter_ports() {
        let intended = intents.aliases.get(&port.guid).unwrap_or(&none);
        if port.aliases.is_empty() && intended.is_empty() {
            continue;
        }
        if let Some(index) = first_difference(&port.aliases, intended) {
            findings.push(Finding::AliasDiffers { port: port.guid, index });
        }
        for alias in port.aliases.values().map(|alias| alias.guid) {
            let is_port = plan.adapter_port(alias).is_some();
            let other = owners.insert(alias, port.guid).or(is_port.then_some(alias));
            findings.extend(other.map(|first| Finding::AliasShared { alias, first, second: port.guid }));
        }
    }
    let switches = plan.switches().map(|switch| switch.port_guid);
    findings.extend(switches.filter_map(|guid| {
        let second = *owners.get(&guid)?;
        Some(Finding::AliasShared { alias: guid, first: guid, second })
    }));
    findings
}

/// The first index at which two tables differ. Index 0 belongs to the port itself.
fn first_difference(planned: &AliasTable, intended: &AliasTable) -> Option<u8> {
    let indices = planned.keys().chain(intended.keys()).copied();
    indices.filter(|index| *index == 0 || planned.get(index) != intended.get(index)).min()
}
