//! Takes over a fabric that somebody else configured.

use std::collections::BTreeMap;

use fabric_model::decisions::EndPortDecision;
use fabric_model::plan::LinearTable;
use fabric_model::{Decisions, Found, Intents, Topology};
use ib_wire::{Guid, Lid};

use crate::fabric::Fabric;
use crate::routing::adopted::takeover;
use crate::routing::order::Order;
use crate::{CompileError, compile};

/// What was taken over from a running fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adoption {
    /// To be handed to [`compile`](crate::compile), which then changes as little as it can.
    pub decisions: Decisions,
    /// End ports that keep the LID they have.
    pub lids_kept: usize,
    /// Adapter ports that a switch has routes to: of so many routes each is kept or replaced as a whole.
    pub routes: usize,
    /// Those that stay as they were found. The others could close a ring of links that wait for each other, do not
    /// arrive, or were not read.
    pub routes_kept: usize,
}

/// Takes LIDs, routes and places in P_Key tables that devices hold for decisions of before. LIDs that two ports claim or
/// that switches cannot forward to give way; so do routes that do not go up, then down in the order of switches that
/// the fabric gets.
pub fn adopt(topology: &Topology, intents: &Intents, found: &Found) -> Result<Adoption, CompileError> {
    let mut before = Decisions::default();
    for (guid, lid) in &found.lids {
        let pkeys = found.pkeys.get(guid).map_or(Vec::new(), |table| table.entries().to_vec());
        before.end_ports.insert(*guid, EndPortDecision { lid: *lid, up: Vec::new(), pkeys });
    }
    let plan = compile(topology, intents, &before)?;
    let fabric = Fabric::around(topology, intents.manager)?;
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
