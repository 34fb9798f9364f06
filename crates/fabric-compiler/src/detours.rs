//! Ways that owners of ports chose for packets to them, laid over the forwarding tables.
//!
//! They come last and are taken off first: what clusters are promised, and everything else, is decided on the ways that
//! packets have without wishes. Only the port's own LID goes another way, and turns as all packets may, so that every mix of
//! two plans stays free of loops and deadlocks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fabric_model::FabricPlan;
use fabric_model::intent::WishedRoutes;
use fabric_model::plan::{Draft, Finding, LinearTable};
use ib_wire::{Guid, Lid, PortNum};

use crate::fabric::{Fabric, Place};

/// Entries of forwarding tables by switch.
type Entries = BTreeMap<Place, Vec<(Lid, Option<PortNum>)>>;

/// Takes all detours off a plan.
pub(crate) fn leave(draft: &mut Draft, fabric: &Fabric) {
    let switches = draft.plan().decisions().detours.values().flat_map(BTreeMap::keys);
    let places: BTreeSet<Place> = switches.filter_map(|switch| fabric.place_of(*switch)).collect();
    for place in places {
        let usual = draft.plan().shared_switches().get(place).map(|switch| draft.plan().usual_table(switch));
        if let (Some(usual), Some(switch)) = (usual, draft.switch(place)) {
            switch.linear = usual;
        }
    }
    draft.decisions().detours.clear();
}

/// Sends packets by the ways that are wished. One that cannot be is a finding of the plan, and is not taken.
pub(crate) fn take(draft: &mut Draft, fabric: &Fabric, wished: &WishedRoutes) {
    let (mut detours, mut findings, mut entries) = (BTreeMap::new(), Vec::new(), Entries::new());
    for (port, exits) in wished {
        let detour = match Detour::of(draft.plan(), fabric, *port, exits) {
            Ok(detour) => detour,
            Err(reason) => {
                findings.push(Finding::RouteNotTaken { port: *port, reason });
                continue;
            }
        };
        let mut usual = BTreeMap::new();
        for (place, exit) in &detour.exits {
            let before = detour.usual(*place);
            if before != Some(*exit) {
                usual.insert(fabric.switches[*place].guid, before);
                entries.entry(*place).or_default().push((detour.lid, Some(*exit)));
            }
        }
        if !usual.is_empty() {
            detours.insert(*port, usual);
        }
    }
    put(draft, entries);
    draft.findings().extend(findings);
    draft.decisions().detours = detours;
}

fn lid(plan: &FabricPlan, port: Guid) -> Option<Lid> {
    plan.adapter_port(port).map(|port| port.lid)
}

fn put(draft: &mut Draft, entries: Entries) {
    for (place, entries) in entries {
        let Some(switch) = draft.switch(place) else { continue };
        let mut linear = LinearTable::clone(&switch.linear);
        entries.into_iter().for_each(|(lid, exit)| linear.set_exit(lid, exit));
        switch.linear = Arc::new(linear);
    }
}

/// A way to one port that can be.
struct Detour<'a> {
    plan: &'a FabricPlan,
    lid: Lid,
    exits: BTreeMap<Place, PortNum>,
}

/// Where packets come to behind a port of a switch.
enum Next {
    Switch(Place),
    /// The port they are for.
    There,
    Elsewhere,
}

impl<'a> Detour<'a> {
    /// What is wished, if packets arrive by it and nowhere turn upwards; why not otherwise.
    fn of(
        plan: &'a FabricPlan,
        fabric: &Fabric,
        port: Guid,
        wished: &BTreeMap<Guid, PortNum>,
    ) -> Result<Self, String> {
        let adapter = fabric.adapter_port(port).and_then(|adapter| adapter.attached);
        let (Some(access), Some(lid)) = (adapter, lid(plan, port)) else {
            return Err("the port is on no switch".to_owned());
        };
        let mut exits = BTreeMap::new();
        for (switch, exit) in wished {
            let place = fabric.place_of(*switch).ok_or_else(|| format!("there is no switch {switch}"))?;
            exits.insert(place, *exit);
        }
        let detour = Self { plan, lid, exits };
        for place in detour.exits.keys() {
            detour.arrives(fabric, *place, access)?;
        }
        for place in 0..fabric.switches.len() {
            detour.keeps_order(fabric, place, access)?;
        }
        Ok(detour)
    }

    fn usual(&self, place: Place) -> Option<PortNum> {
        self.plan.shared_switches().get(place)?.linear.exit(self.lid)
    }

    fn exit(&self, place: Place) -> Option<PortNum> {
        self.exits.get(&place).copied().or_else(|| self.usual(place))
    }

    fn next(&self, fabric: &Fabric, place: Place, access: (Place, PortNum)) -> Next {
        let Some(exit) = self.exit(place) else { return Next::Elsewhere };
        if (place, exit) == access {
            return Next::There;
        }
        let peer = self.plan.shared_switches().get(place).and_then(|switch| switch.port(exit));
        peer.and_then(|port| fabric.place_of(port.peer.node)).map_or(Next::Elsewhere, Next::Switch)
    }

    /// Whether packets from a switch arrive.
    fn arrives(&self, fabric: &Fabric, from: Place, access: (Place, PortNum)) -> Result<(), String> {
        let mut at = from;
        for _ in 0..fabric.switches.len() {
            match self.next(fabric, at, access) {
                Next::There => return Ok(()),
                Next::Switch(further) => at = further,
                Next::Elsewhere => {
                    return Err(format!("packets end at switch {}", fabric.switches[at].guid));
                }
            }
        }
        Err(format!("packets from switch {} go round in circles", fabric.switches[from].guid))
    }

    /// Whether packets from a switch do not turn upwards at the next: all that have gone down stay down, else links could
    /// wait for each other.
    fn keeps_order(&self, fabric: &Fabric, from: Place, access: (Place, PortNum)) -> Result<(), String> {
        let Next::Switch(at) = self.next(fabric, from, access) else { return Ok(()) };
        let Next::Switch(to) = self.next(fabric, at, access) else { return Ok(()) };
        // Where the wish has no say, packets turn as they did.
        if !self.exits.contains_key(&from) && !self.exits.contains_key(&at) {
            return Ok(());
        }
        let order = &self.plan.decisions().routing;
        let [from, at, to] = [from, at, to].map(|place| fabric.switches[place].guid);
        let is_above = |a, b| order.is_above(a, b).unwrap_or(true);
        match is_above(from, at) && is_above(to, at) {
            true => Err(format!("packets that came down to switch {at} would go up again to {to}")),
            false => Ok(()),
        }
    }
}
