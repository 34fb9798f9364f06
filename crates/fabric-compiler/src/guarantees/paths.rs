//! Writes the paths that were selected for clusters into forwarding tables.

use std::collections::BTreeSet;
use std::sync::Arc;

use fabric_model::intent::PortName;
use fabric_model::plan::{Draft, LinearTable};
use fabric_model::{Decisions, FabricPlan};
use ib_wire::{Guid, Lid, PortNum};

use crate::fabric::{Fabric, SwitchIndex};
use crate::routing::{NO_PORT, RoutingContext, reroute};
use crate::tenancy::admission::Grant;
use crate::tenancy::link_graph::LinkGraph;

/// Routes packets to hosts by the selected paths. Returns the switches whose tables changed; `None`, and nothing is changed,
/// if other columns would have to change as well.
pub(super) fn put_paths(
    draft: &mut Draft,
    fabric: &Fabric,
    context: Option<&RoutingContext>,
    paths: &[ChosenPath],
) -> Option<Vec<SwitchIndex>> {
    let decisions = draft.decisions();
    let ups: Vec<Vec<u8>> = paths.iter().map(|path| path.up(decisions)).collect::<Option<_>>()?;
    let mut moved: Vec<(Guid, Vec<u8>)> = Vec::new();
    for (path, up) in paths.iter().zip(ups) {
        if decisions.end_ports.get(&path.port).is_some_and(|decision| decision.uplink_path != up)
            && let Some(decision) = decisions.end_ports.get_mut(&path.port)
        {
            moved.push((path.port, std::mem::replace(&mut decision.uplink_path, up)));
        }
    }
    if moved.is_empty() {
        return Some(Vec::new());
    }
    let lids: Vec<Lid> = moved.iter().map(|(port, _)| decisions.end_ports[port].lid).collect();
    let rows = context.and_then(|context| {
        let rows = rows(draft.plan(), fabric, &lids);
        reroute(fabric, context, draft.plan().decisions(), &moved, rows)
    });
    let Some(rows) = rows else {
        let decisions = draft.decisions();
        for (port, up) in moved {
            if let Some(decision) = decisions.end_ports.get_mut(&port) {
                decision.uplink_path = up;
            }
        }
        return None;
    };
    let mut changed_switches = Vec::new();
    for (index, row) in rows.into_iter().enumerate() {
        let Some(before) = draft.plan().shared_switches().get(index) else { continue };
        let exits = lids.iter().copied().zip(row.into_iter().map(PortNum::new));
        let mut changed = exits.filter(|(lid, exit)| before.linear.exit(*lid) != *exit).peekable();
        if changed.peek().is_none() {
            continue;
        }
        let mut linear = LinearTable::clone(&before.linear);
        changed.for_each(|(lid, exit)| linear.set_exit(lid, exit));
        if let Some(switch) = draft.switch(index) {
            switch.linear = Arc::new(linear);
            changed_switches.push(index);
        }
    }
    Some(changed_switches)
}

/// By switch: the exit ports for some LIDs.
fn rows(plan: &FabricPlan, fabric: &Fabric, lids: &[Lid]) -> Vec<Vec<u8>> {
    let row = |index: SwitchIndex| {
        let table = plan.shared_switches().get(index).map(|switch| &switch.linear);
        let exit = |lid: &Lid| table.and_then(|table| table.exit(*lid)).map_or(NO_PORT, PortNum::to_wire);
        lids.iter().map(exit).collect()
    };
    (0..fabric.switches.len()).map(row).collect()
}

/// The selected path to a host: the ports through which packets go up, from the host's own leaf upwards.
#[derive(Debug)]
pub(super) struct ChosenPath {
    port: Guid,
    climbs: Vec<PortName>,
}

impl ChosenPath {
    /// The paths to the hosts of a cluster, up to the tier that the cluster uses.
    pub fn of<'a>(grant: &'a Grant, graph: &'a LinkGraph) -> impl Iterator<Item = Self> + 'a {
        let chosen = graph.tree().zip(grant.up_ports.as_ref()).into_iter();
        chosen.flat_map(move |(tree, up_ports)| {
            let leaves: BTreeSet<usize> = grant.hosts.iter().map(|host| tree.leaf_of(*host)).collect();
            let pods: BTreeSet<usize> = leaves.iter().map(|leaf| tree.pod_of(*leaf)).collect();
            let hosts = grant.hosts.iter().zip(up_ports).filter(move |_| leaves.len() > 1);
            hosts.map(move |(host, path)| {
                let leaf = tree.leaf_of(*host);
                let near = tree.leaf_up(leaf, path.leaf_up.into());
                let far = (pods.len() > 1).then(|| tree.pod_up(tree.pod_of(leaf), *path));
                let climbs = [Some(near), far].into_iter().flatten();
                Self {
                    port: graph.hosts()[host.index()].port,
                    climbs: climbs.map(|link| graph.links()[link.index()].from).collect(),
                }
            })
        })
    }

    /// The path as indices of up-links, as decisions store it. Tiers above the path stay as they were.
    fn up(&self, decisions: &Decisions) -> Option<Vec<u8>> {
        let mut up = decisions.end_ports.get(&self.port)?.uplink_path.clone();
        for (tier, climb) in self.climbs.iter().enumerate() {
            let uplinks = &decisions.routing.switches.get(&climb.node)?.uplinks;
            let index = uplinks.iter().position(|uplink| uplink.port == climb.port)?;
            *up.get_mut(tier)? = u8::try_from(index).ok()?;
        }
        Some(up)
    }
}
