//! Route overrides of tenants, laid over the forwarding tables of a plan.
//!
//! A tenant may override, for a port of its own, the exit ports of some switches towards that port's LID. Overrides are
//! applied last and withdrawn first: guarantees and everything else are computed on the tables without them. An override
//! changes entries of its own LID only. It is accepted if packets still arrive and if it adds no hop from a downward to an
//! upward link, so any mixture of the old and the new tables stays free of loops and deadlocks.
//!
//! One override takes O(switches · path length) steps to check.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fabric_model::FabricPlan;
use fabric_model::intent::RouteOverrides;
use fabric_model::plan::{Draft, LinearTable, PlanFinding};
use ib_wire::{Guid, Lid, PortNum};
use thiserror::Error;

use crate::fabric::{Fabric, SwitchIndex};

/// Forwarding entries to be written, by switch.
type Entries = BTreeMap<SwitchIndex, Vec<(Lid, Option<PortNum>)>>;

/// Why a route override is rejected. Switches are named by node GUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
enum RouteOverrideError {
    #[error("the port is not attached to a switch")]
    NotAttached,
    #[error("there is no switch {switch}")]
    UnknownSwitch { switch: Guid },
    #[error("packets end at switch {switch} instead of arriving")]
    DeadEnd { switch: Guid },
    #[error("packets from switch {from} run in a loop")]
    Loop { from: Guid },
    /// A hop from a link down into `at` to a link up towards `to`: links could wait for each other in a cycle.
    #[error("packets that came down to switch {at} would go up again to {to}")]
    DownUpHop { at: Guid, to: Guid },
}

/// Restores the forwarding entries that overrides replaced, and forgets the overrides.
pub(crate) fn withdraw(draft: &mut Draft, fabric: &Fabric) {
    let switches = draft.plan().decisions().overridden_exits.values().flat_map(BTreeMap::keys);
    let indices: BTreeSet<SwitchIndex> = switches.filter_map(|switch| fabric.switch_index(*switch)).collect();
    for index in indices {
        let usual =
            draft.plan().shared_switches().get(index).map(|switch| draft.plan().default_linear_table(switch));
        if let (Some(usual), Some(switch)) = (usual, draft.switch(index)) {
            switch.linear = usual;
        }
    }
    draft.decisions().overridden_exits.clear();
}

/// Writes the overrides into the forwarding tables of a plan that has none. A rejected override becomes a finding of the
/// plan and changes nothing.
pub(crate) fn apply(draft: &mut Draft, fabric: &Fabric, overrides: &RouteOverrides) {
    let mut replaced = BTreeMap::new();
    let mut findings = Vec::new();
    let mut entries = Entries::new();
    for (port, exits) in overrides {
        let accepted = match RouteOverride::check(draft.plan(), fabric, *port, exits) {
            Ok(accepted) => accepted,
            Err(error) => {
                findings.push(PlanFinding::RouteOverrideRejected { port: *port, reason: error.to_string() });
                continue;
            }
        };
        let mut usual = BTreeMap::new();
        for (index, exit) in &accepted.exits {
            let before = accepted.usual(*index);
            if before != Some(*exit) {
                usual.insert(fabric.switches[*index].guid, before);
                entries.entry(*index).or_default().push((accepted.lid, Some(*exit)));
            }
        }
        if !usual.is_empty() {
            replaced.insert(*port, usual);
        }
    }
    put(draft, entries);
    draft.findings().extend(findings);
    draft.decisions().overridden_exits = replaced;
}

fn lid(plan: &FabricPlan, port: Guid) -> Option<Lid> {
    plan.adapter_port(port).map(|port| port.lid)
}

fn put(draft: &mut Draft, entries: Entries) {
    for (index, entries) in entries {
        let Some(switch) = draft.switch(index) else { continue };
        let mut linear = LinearTable::clone(&switch.linear);
        entries.into_iter().for_each(|(lid, exit)| linear.set_exit(lid, exit));
        switch.linear = Arc::new(linear);
    }
}

/// An override for one port that was checked.
struct RouteOverride<'a> {
    plan: &'a FabricPlan,
    lid: Lid,
    exits: BTreeMap<SwitchIndex, PortNum>,
}

/// Where a packet is after leaving a switch by a port.
enum Next {
    Switch(SwitchIndex),
    /// At the port that owns the LID.
    Arrived,
    Elsewhere,
}

impl<'a> RouteOverride<'a> {
    /// Checks that packets arrive from every overridden switch, and that no down-up hop is added anywhere.
    fn check(
        plan: &'a FabricPlan,
        fabric: &Fabric,
        port: Guid,
        overrides: &BTreeMap<Guid, PortNum>,
    ) -> Result<Self, RouteOverrideError> {
        let adapter = fabric.adapter_port(port).and_then(|adapter| adapter.attached);
        let (Some(access), Some(lid)) = (adapter, lid(plan, port)) else {
            return Err(RouteOverrideError::NotAttached);
        };
        let mut exits = BTreeMap::new();
        for (switch, exit) in overrides {
            let index = fabric.switch_index(*switch);
            exits.insert(index.ok_or(RouteOverrideError::UnknownSwitch { switch: *switch })?, *exit);
        }
        let checked = Self { plan, lid, exits };
        for index in checked.exits.keys() {
            checked.check_arrival(fabric, *index, access)?;
        }
        for index in 0..fabric.switches.len() {
            checked.check_order(fabric, index, access)?;
        }
        Ok(checked)
    }

    /// The exit of a switch without the override.
    fn usual(&self, index: SwitchIndex) -> Option<PortNum> {
        self.plan.shared_switches().get(index)?.linear.exit(self.lid)
    }

    fn exit(&self, index: SwitchIndex) -> Option<PortNum> {
        self.exits.get(&index).copied().or_else(|| self.usual(index))
    }

    fn next(&self, fabric: &Fabric, index: SwitchIndex, access: (SwitchIndex, PortNum)) -> Next {
        let Some(exit) = self.exit(index) else { return Next::Elsewhere };
        if (index, exit) == access {
            return Next::Arrived;
        }
        let peer = self.plan.shared_switches().get(index).and_then(|switch| switch.port(exit));
        peer.and_then(|port| fabric.switch_index(port.peer.node)).map_or(Next::Elsewhere, Next::Switch)
    }

    /// Follows packets from a switch until they arrive.
    fn check_arrival(
        &self,
        fabric: &Fabric,
        from: SwitchIndex,
        access: (SwitchIndex, PortNum),
    ) -> Result<(), RouteOverrideError> {
        let guid = |index: SwitchIndex| fabric.switches[index].guid;
        let mut at = from;
        for _ in 0..fabric.switches.len() {
            match self.next(fabric, at, access) {
                Next::Arrived => return Ok(()),
                Next::Switch(next) => at = next,
                Next::Elsewhere => return Err(RouteOverrideError::DeadEnd { switch: guid(at) }),
            }
        }
        Err(RouteOverrideError::Loop { from: guid(from) })
    }

    /// Rejects a hop at the next switch that goes from a link down to a link up, if the override has a part in it.
    fn check_order(
        &self,
        fabric: &Fabric,
        from: SwitchIndex,
        access: (SwitchIndex, PortNum),
    ) -> Result<(), RouteOverrideError> {
        let Next::Switch(at) = self.next(fabric, from, access) else { return Ok(()) };
        let Next::Switch(to) = self.next(fabric, at, access) else { return Ok(()) };
        // Hops of the tables below the override were checked when those were computed.
        if !self.exits.contains_key(&from) && !self.exits.contains_key(&at) {
            return Ok(());
        }
        let order = &self.plan.decisions().routing;
        let [from, at, to] = [from, at, to].map(|index| fabric.switches[index].guid);
        let is_above = |a, b| order.is_above(a, b).unwrap_or(true);
        if is_above(from, at) && is_above(to, at) {
            return Err(RouteOverrideError::DownUpHop { at, to });
        }
        Ok(())
    }
}
