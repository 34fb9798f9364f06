//! Adoption of a fabric that another subnet manager configured.

use std::collections::BTreeMap;

use fabric_model::decisions::EndPortDecision;
use fabric_model::plan::LinearTable;
use fabric_model::{Decisions, Intents, ObservedTables, Topology};
use ib_wire::{Guid, Lid};

use crate::fabric::Fabric;
use crate::routing::adopted::takeover;
use crate::routing::order::Order;
use crate::{CompileError, compile};

/// The state of a running fabric as decisions, and how much of it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adoption {
    /// For [`compile`](crate::compile), which then changes as little as possible.
    pub decisions: Decisions,
    /// The number of end ports that keep their LID.
    pub lids_kept: usize,
    /// The number of adapter ports attached to switches. The routes to each are kept or replaced as a whole.
    pub routes: usize,
    /// How many of them keep their routes. The others could close a cycle of links that wait for each other, do not arrive,
    /// or were not read.
    pub routes_kept: usize,
}

/// Turns the LIDs, forwarding tables and P_Key tables that were read from devices into decisions.
///
/// LIDs that two ports claim, or that switches cannot forward to, are replaced. So are routes that do not go up, then down
/// in the order of switches that the fabric gets. Changes nothing on devices.
pub fn adopt(
    topology: &Topology,
    intents: &Intents,
    found: &ObservedTables,
) -> Result<Adoption, CompileError> {
    let mut before = Decisions::default();
    for (guid, lid) in &found.lids {
        let pkeys = found.pkeys.get(guid).map_or(Vec::new(), |table| table.entries().to_vec());
        before.end_ports.insert(*guid, EndPortDecision { lid: *lid, uplink_path: Vec::new(), pkeys });
    }
    let plan = compile(topology, intents, &before)?;
    let fabric = Fabric::around(topology, intents)?;
    let lids: BTreeMap<Guid, Lid> = plan.lids().map(|(lid, guid)| (guid, lid)).collect();
    let mut adoption = Adoption {
        lids_kept: lids.iter().filter(|(guid, lid)| found.lids.get(guid) == Some(lid)).count(),
        decisions: plan.decisions().clone(),
        routes: 0,
        routes_kept: 0,
    };
    if let Some(order) = Order::kept(&fabric, &plan.decisions().routing) {
        let own: Vec<Option<&LinearTable>> = plan.switches().map(|switch| Some(&*switch.linear)).collect();
        let takeover = takeover(&fabric, &order, &lids, &found.linear, &own);
        adoption.decisions.adopted = takeover.routes;
        adoption.routes = takeover.ends;
        adoption.routes_kept = takeover.same + takeover.kept;
    }
    Ok(adoption)
}
