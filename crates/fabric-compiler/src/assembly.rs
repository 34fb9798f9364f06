//! Assembles the results of all steps into a plan, device by device.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fabric_model::decisions::{Decisions, EndPortDecision};
use fabric_model::intent::{Capabilities, PortName};
use fabric_model::plan::{
    AdapterPortPlan, Enforcement, FabricPlan, LinearTable, ManagerPort, MulticastTable, PartitionPlan,
    PkeyTable, PlanFinding, PlanParts, SwitchPlan, SwitchPortPlan,
};
use fabric_model::{Endpoint, Link, LinkRate, SharedMap, Topology};
use ib_wire::{DataLanes, Guid, Lid, Mtu, PartitionNumber};

use crate::addressing::Lids;
use crate::fabric::{AdapterPort, Fabric, SwitchIndex};
use crate::multicast::Groups;
use crate::partitions::{KeyTables, Partition, Partitions};
use crate::routing::Routes;

/// The results of all steps.
#[derive(Debug)]
pub(crate) struct Parts<'a> {
    pub topology: &'a Topology,
    pub fabric: &'a Fabric,
    pub lids: Lids,
    pub partitions: &'a Partitions,
    pub numbers: SharedMap<String, PartitionNumber>,
    pub keys: &'a KeyTables,
    pub routes: Routes,
    pub groups: Groups,
}

impl Parts<'_> {
    pub fn assemble(mut self, capabilities: &Capabilities, previous: &Decisions) -> FabricPlan {
        let rows = std::mem::take(&mut self.routes.rows);
        let mut multicast = std::mem::take(&mut self.groups.tables);
        let switches = (rows.into_iter().enumerate())
            .map(|(index, row)| SwitchPlan {
                guid: self.fabric.switches[index].guid,
                port_guid: self.fabric.switches[index].port_guid,
                lid: self.lid(self.fabric.switches[index].port_guid),
                linear: Arc::new(LinearTable::from_exits(row)),
                multicast: Arc::new(MulticastTable::from_exits(multicast.remove(&index).unwrap_or_default())),
                pkeys: self.table(self.fabric.switches[index].port_guid),
                ports: self.switch_ports(index, capabilities),
            })
            .collect();
        let adapter_ports =
            self.fabric.adapter_ports.iter().map(|port| self.adapter_port(port, capabilities)).collect();
        let manager = ManagerPort { guid: self.fabric.manager, lid: self.lid(self.fabric.manager) };
        let decisions = self.decisions(previous);
        FabricPlan::from_parts(PlanParts {
            manager,
            switches,
            adapter_ports,
            findings: self.findings(capabilities),
            partitions: self.partitions.by_number.values().map(partition_plan).collect(),
            groups: self.groups.plans,
            decisions,
        })
    }

    fn lid(&self, port_guid: Guid) -> Lid {
        self.lids.present[&port_guid]
    }

    fn table(&self, port_guid: Guid) -> Arc<PkeyTable> {
        Arc::clone(self.keys.of(self.fabric, port_guid))
    }

    fn switch_ports(&self, index: SwitchIndex, capabilities: &Capabilities) -> Arc<[SwitchPortPlan]> {
        let switch = &self.fabric.switches[index];
        let adapters = self.fabric.adapter_ports[switch.adapters.clone()].iter();
        let adapters: BTreeMap<_, _> = adapters.map(|port| (port.peer.port, port)).collect();
        (self.topology[switch.node].cabled_ports())
            // A port without a plan stays closed.
            .filter(|(number, peer)| self.topology[peer.node].is_switch() || adapters.contains_key(number))
            .map(|(number, peer)| {
                let link = self.link(Endpoint::new(switch.node, number), peer, capabilities);
                let enforcement = match adapters.get(&number) {
                    Some(port) if port.enforced_pkeys > 0 => Enforcement::Both(self.table(port.guid)),
                    Some(_) | None => Enforcement::Off,
                };
                let peer = self.name(peer);
                SwitchPortPlan { number, peer, mtu: link.mtu, lanes: link.lanes, enforcement, qos: None }
            })
            .collect()
    }

    fn adapter_port(&self, port: &AdapterPort, capabilities: &Capabilities) -> AdapterPortPlan {
        let link = self.link(port.end, port.peer, capabilities);
        AdapterPortPlan {
            guid: port.guid,
            name: port.name,
            peer: self.name(port.peer),
            lid: self.lid(port.guid),
            mtu: link.mtu,
            lanes: link.lanes,
            pkeys: self.table(port.guid),
            qos: None,
            aliases: Arc::default(),
        }
    }

    fn name(&self, end: Endpoint) -> PortName {
        PortName { node: self.topology[end.node].guid, port: end.port }
    }

    /// The MTU and lanes that both ends of a link support.
    fn link(&self, a: Endpoint, b: Endpoint, capabilities: &Capabilities) -> CommonCapability {
        let [a, b] = [a, b].map(|end| capabilities.port(self.name(end)));
        CommonCapability {
            mtu: if a.mtu.bytes() <= b.mtu.bytes() { a.mtu } else { b.mtu },
            lanes: if a.lanes.count() <= b.lanes.count() { a.lanes } else { b.lanes },
        }
    }

    fn findings(&mut self, capabilities: &Capabilities) -> Vec<PlanFinding> {
        let unreached =
            self.fabric.unreached.map(|(nodes, witness)| PlanFinding::Unreachable { nodes, witness });
        let routes = self.routes.finding.take();
        let keys = self.keys.findings().cloned();
        let unenforced = self.fabric.unenforced.clone();
        let adaptive = adaptive_routing(capabilities);
        let slow = slow_links(self.topology, capabilities);
        let unfiltered = raw_unfiltered(self.topology, capabilities);
        let of_fabric = unreached.into_iter().chain(unenforced).chain(unfiltered).chain(adaptive).chain(slow);
        of_fabric.chain(routes).chain(keys).collect()
    }

    fn decisions(&mut self, previous: &Decisions) -> Decisions {
        let mut ups = std::mem::take(&mut self.routes.ups);
        let present = self.lids.present.iter().map(|(guid, lid)| {
            let up = ups.remove(guid).unwrap_or_default();
            let pkeys = self.keys.of(self.fabric, *guid).entries().to_vec();
            (*guid, EndPortDecision { lid: *lid, uplink_path: up, pkeys })
        });
        let absent = self.lids.absent.iter().filter_map(|(guid, lid)| {
            let before = previous.end_ports.get(guid)?;
            Some((*guid, EndPortDecision { lid: *lid, ..before.clone() }))
        });
        Decisions {
            end_ports: present.chain(absent).collect(),
            routing: self.routes.decision.clone(),
            partitions: std::mem::take(&mut self.numbers),
            groups: std::mem::take(&mut self.groups.decisions),
            clusters: previous.clusters.clone(),
            sl_enforcement: previous.sl_enforcement,
            management_sl: previous.management_sl,
            management_partition: self.partitions.management.or(previous.management_partition),
            adopted: std::mem::take(&mut self.routes.adopted),
            overridden_exits: BTreeMap::new(),
            classes: previous.classes.clone(),
        }
    }
}

fn raw_unfiltered(topology: &Topology, capabilities: &Capabilities) -> Option<PlanFinding> {
    let of_hosts =
        topology.links().filter_map(|link| match (&topology[link.a.node], &topology[link.b.node]) {
            (switch, host) | (host, switch) if switch.is_switch() && !host.is_switch() => Some(switch.guid),
            _ => None,
        });
    let unfiltered: BTreeSet<Guid> =
        of_hosts.filter(|guid| !capabilities.switch(*guid).filters_raw).collect();
    Some(PlanFinding::RawUnfiltered { switches: unfiltered.len(), witness: *unfiltered.first()? })
}

fn slow_links(topology: &Topology, capabilities: &Capabilities) -> Option<PlanFinding> {
    let slow = |link: &Link| {
        let [a, b] = [link.a, link.b].map(|end| PortName { node: topology[end.node].guid, port: end.port });
        let [enabled_a, enabled_b] = [a, b].map(|port| capabilities.port(port).enabled_rate);
        let gbps = LinkRate::data_rate_gbps;
        let enabled = if gbps(enabled_a?) < gbps(enabled_b?) { enabled_a? } else { enabled_b? };
        let active = link.rate.filter(|active| gbps(*active) < gbps(enabled))?;
        Some((a, active, enabled))
    };
    let mut links = topology.links().filter_map(|link| slow(&link));
    let (witness, active, enabled) = links.next()?;
    Some(PlanFinding::SlowLinks { links: 1 + links.count(), witness, active, enabled })
}

fn adaptive_routing(capabilities: &Capabilities) -> Option<PlanFinding> {
    let adaptive = &capabilities.adaptive_routing;
    let witness = *adaptive.first()?;
    Some(PlanFinding::AdaptiveRouting { switches: adaptive.len(), witness })
}

struct CommonCapability {
    mtu: Mtu,
    lanes: DataLanes,
}

pub(crate) fn partition_plan(partition: &Partition) -> PartitionPlan {
    let members = partition.members.iter().map(|(guid, (role, _))| (*guid, *role)).collect();
    PartitionPlan { number: partition.number, name: partition.name.clone(), members }
}
