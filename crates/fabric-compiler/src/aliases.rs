//! Alias GUIDs: puts the requested ones into the plans of their ports.

use std::collections::BTreeMap;
use std::sync::Arc;

use fabric_model::intent::{AliasTable, PortAliases};
use fabric_model::plan::Draft;
use fabric_model::{FabricPlan, Intents};
use ib_wire::Guid;

use crate::CompileError;

/// Gives every adapter port of a draft the aliases of the intents, and no others. Aliases of absent ports wait for them.
pub(crate) fn apply(draft: &mut Draft, intents: &Intents) {
    let none = AliasTable::new();
    let wanted = |guid: Guid| intents.aliases.get(&guid).unwrap_or(&none);
    let differing: Vec<Guid> = (draft.plan().adapter_ports())
        .filter(|port| *port.aliases != *wanted(port.guid))
        .map(|port| port.guid)
        .collect();
    for guid in differing {
        if let Some(port) = draft.adapter_port(guid) {
            port.aliases = Arc::new(wanted(guid).clone());
        }
    }
}

/// Checks that no GUID belongs to two addresses, and that no alias takes the place of a port's own GUID.
pub(crate) fn check(plan: &FabricPlan, aliases: &PortAliases) -> Result<(), CompileError> {
    let mut owners: BTreeMap<Guid, Guid> = BTreeMap::new();
    for (port, table) in aliases {
        if table.contains_key(&0) {
            return Err(CompileError::AliasAtIndexZero { port: *port });
        }
        for alias in table.values().map(|alias| alias.guid) {
            let is_port = plan.adapter_port(alias).is_some() || aliases.contains_key(&alias);
            let other = owners.insert(alias, *port).or(is_port.then_some(alias));
            if let Some(other) = other {
                return Err(CompileError::AliasShared { alias, first: other, second: *port });
            }
        }
    }
    match plan.switches().find(|switch| owners.contains_key(&switch.port_guid)) {
        Some(switch) => Err(CompileError::AliasShared {
            alias: switch.port_guid,
            first: switch.port_guid,
            second: owners.get(&switch.port_guid).copied().unwrap_or(switch.port_guid),
        }),
        None => Ok(()),
    }
}
