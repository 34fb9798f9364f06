//! Ownership: what belongs to a cluster (ports, partitions, lanes and service levels) is used by no other.
//!
//! On every link a service level and a lane belong to at most one cluster. A hop carries a service level only if the
//! same cluster holds it on the input link and on the output link, and only into the lane of that cluster there. So
//! packets with a cluster's service level stay on the cluster's links, wherever they are sent. Service level 0 and
//! that of management go everywhere, in lanes that belong to no cluster. A service level that no cluster holds on two
//! links may pass between them in the lane of best effort: a cluster that lost its guarantee stays connected so.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use fabric_model::intent::{ClusterIntent, PortName, Role};
use fabric_model::plan::PortQos;
use ib_wire::{Guid, PartitionNumber, PortNum, ServiceLevel, SlToVl, VirtualLane};

use super::holdings::{Holding, Holdings};
use super::is_guaranteed;
use crate::capacities::levels;
use crate::network::{Link, PORTS, PlannedNetwork, SwitchIndex};
use crate::{Finding, Reading};

/// Service level 0 may be used by every port.
const BEST_EFFORT: ServiceLevel = match ServiceLevel::from_wire(0) {
    Some(sl) => sl,
    None => unreachable!(),
};

/// Reports ports and partitions that two clusters share, and grants to clusters that are not guaranteed.
pub(super) fn of_tenants(read: &Reading<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let clusters = &read.intents.clusters;
    let mut owners: HashMap<Guid, usize> = HashMap::with_capacity(read.intended.present().len());
    let are_two = |a: usize, b: usize| a != b && (is_guaranteed(&clusters[a]) || is_guaranteed(&clusters[b]));
    let mut names: HashMap<&str, usize> = HashMap::with_capacity(clusters.len());
    for (index, cluster) in clusters.iter().enumerate() {
        if names.insert(&cluster.name, index).is_some() {
            findings.push(Finding::DuplicateCluster { cluster: cluster.name.clone() });
        }
        for port in &cluster.ports {
            let first = *owners.entry(*port).or_insert(index);
            if are_two(first, index) {
                let [first, second] = [first, index].map(|index| clusters[index].name.clone());
                findings.push(Finding::PortShared { port: *port, first, second });
            }
        }
    }
    let decisions = read.network.plan.decisions();
    let divided = decisions.classes.keys().filter(|name| !decisions.clusters.contains_key(*name));
    for name in decisions.clusters.keys().chain(divided) {
        if !names.get(name.as_str()).is_some_and(|index| is_guaranteed(&clusters[*index])) {
            findings.push(Finding::ClusterUnwanted { cluster: name.clone() });
        }
    }
    if let Some(switch) = read.intents.capabilities.adaptive_routing.first() {
        let granted = decisions.clusters.iter().filter(|(_, decision)| !decision.links.is_empty());
        let found = |name: &String| Finding::RoutedAdaptively { cluster: name.clone(), switch: *switch };
        findings.extend(granted.map(|(name, _)| found(name)));
    }
    for (number, partition) in &read.intended.partitions {
        let mut before: Option<(usize, Guid)> = None;
        for (port, role) in &partition.members {
            let Some(index) = (*role != Role::Limited).then(|| owners.get(port)).flatten() else { continue };
            match before {
                Some((first, first_port)) if are_two(first, *index) => {
                    let [first, second] = [first, *index].map(|index| clusters[index].name.clone());
                    let (partition, second_port) = (*number, *port);
                    findings.push(Finding::PartitionShared {
                        partition,
                        first,
                        first_port,
                        second,
                        second_port,
                    });
                    break;
                }
                Some(_) => {}
                None => before = Some((*index, *port)),
            }
        }
    }
    findings
}

/// Whether [`of_tenants`] still finds nothing, given that it found nothing before. `changed_names` names the clusters
/// whose intents or grants have changed since, `partitions` those with other members; only these are examined.
pub(super) fn are_tenants_apart(
    read: &Reading<'_>,
    partitions: &BTreeSet<PartitionNumber>,
    changed_names: &BTreeSet<&str>,
) -> bool {
    let clusters = &read.intents.clusters;
    let decisions = read.network.plan.decisions();
    let changed: Vec<&ClusterIntent> =
        clusters.iter().filter(|cluster| changed_names.contains(cluster.name.as_str())).collect();
    let names: BTreeMap<&str, bool> =
        changed.iter().map(|cluster| (cluster.name.as_str(), is_guaranteed(cluster))).collect();
    let is_wanted = |name: &&str| names.get(name).copied().unwrap_or(false);
    let is_given =
        |name: &&&str| decisions.clusters.contains_key(**name) || decisions.classes.contains_key(**name);
    let is_granted =
        |name: &&str| decisions.clusters.get(*name).is_some_and(|decision| !decision.links.is_empty());
    if !read.intents.capabilities.adaptive_routing.is_empty() && changed_names.iter().any(is_granted) {
        return false;
    }
    let mut given = changed_names.iter().filter(is_given);
    if names.len() < changed.len() || !given.all(is_wanted) {
        return false;
    }
    let mut ports: BTreeSet<Guid> =
        changed.iter().flat_map(|cluster| cluster.ports.iter().copied()).collect();
    let is_full = |role: Role| role != Role::Limited;
    let roles = ports.iter().filter_map(|port| read.intended.port(*port)).flat_map(|port| &port.roles);
    let roles = roles.filter(|(_, role)| is_full(*role)).map(|(number, _)| *number);
    let partitions: BTreeSet<PartitionNumber> = roles.chain(partitions.iter().copied()).collect();
    let full_members = |number: &PartitionNumber| {
        let members = read.intended.partitions.get(number).into_iter().flat_map(|intended| &intended.members);
        members.filter(|(_, role)| is_full(**role)).map(|(port, _)| *port)
    };
    ports.extend(partitions.iter().flat_map(full_members));
    let ports: Vec<Guid> = ports.into_iter().collect();
    let mut owners: Vec<Option<usize>> = vec![None; ports.len()];
    for (index, cluster) in clusters.iter().enumerate() {
        for at in cluster.ports.iter().filter_map(|port| ports.binary_search(port).ok()) {
            if owners[at].replace(index).is_some_and(|first| first != index) {
                return false;
            }
        }
    }
    partitions.iter().all(|number| {
        let owner = |port: Guid| ports.binary_search(&port).ok().and_then(|at| owners[at]);
        let mut owners = full_members(number).filter_map(owner);
        let first = owners.next();
        owners.all(|owner| Some(owner) == first)
    })
}

/// Checks the holdings and SL-to-VL maps at all output ports of a switch.
pub(super) fn of_switch(
    network: &PlannedNetwork<'_>,
    holdings: &Holdings,
    switch_index: SwitchIndex,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for port in network.switches[switch_index].ports.iter() {
        let name = network.port_name(switch_index, port.number);
        let exit = OutputPort::new(network, holdings, name, switch_index * PORTS + port.number.index());
        exit.holders(&mut findings);
        let Some(sharing) = &port.qos else {
            findings.push(Finding::SharingMissing { port: name });
            continue;
        };
        for (input, map) in &sharing.by_input {
            exit.check_map(Some(*input), network.link_into(switch_index, *input), map, &mut findings);
        }
        exit.check_map(None, None, &sharing.otherwise, &mut findings);
    }
    findings
}

/// Checks the holdings and the SL-to-VL map of an adapter port.
pub(super) fn of_end(network: &PlannedNetwork<'_>, holdings: &Holdings, end: usize) -> Vec<Finding> {
    let mut findings = Vec::new();
    let exit = OutputPort::new(network, holdings, network.ends()[end].name, network.link_of_end(end));
    exit.holders(&mut findings);
    match network.end_sharing(end) {
        Some(sharing) => exit.check_map(None, Some(exit.link), &sharing.otherwise, &mut findings),
        None => findings.push(Finding::SharingMissing { port: exit.name }),
    }
    findings
}

struct OutputPort<'a> {
    name: PortName,
    link: Link,
    holdings: &'a Holdings,
    /// The service level of management and its lane at this port.
    management: Option<(ServiceLevel, VirtualLane)>,
}

impl<'a> OutputPort<'a> {
    fn new(network: &PlannedNetwork<'_>, holdings: &'a Holdings, name: PortName, link: Link) -> Self {
        let (_, lanes) = network.link_sharing(link);
        let level = network.plan.decisions().management_sl;
        let management = level.map(|level| (level, PortQos::management_lane(lanes)));
        Self { name, link, holdings, management }
    }

    /// The lane that is reserved for management at this port; `None` if it shares that of best effort.
    fn management_lane(&self) -> Option<VirtualLane> {
        let best_effort = PortQos::management_lane(1);
        self.management.map(|(_, lane)| lane).filter(|lane| *lane != best_effort)
    }

    /// Reports lanes and service levels that two clusters hold, and those that no cluster may hold.
    fn holders(&self, findings: &mut Vec<Finding>) {
        let port = self.name;
        let mut lanes: BTreeMap<VirtualLane, &Holding> = BTreeMap::new();
        let mut owners: [Option<&Holding>; 16] = [None; 16];
        for holding in self.holdings.of(self.link) {
            let names = |first: &Holding| (first.cluster.to_string(), holding.cluster.to_string());
            if let Some(first) = lanes.insert(holding.lane, holding) {
                let ((first, second), lane) = (names(first), holding.lane);
                findings.push(Finding::LaneShared { port, lane, first, second });
            }
            if holding.has(BEST_EFFORT) {
                findings.push(Finding::BestEffortGranted { port, cluster: holding.cluster.to_string() });
            }
            let is_managements = self.management.is_some_and(|(level, _)| holding.has(level))
                || self.management_lane() == Some(holding.lane);
            if is_managements {
                findings.push(Finding::ManagementGranted { port, cluster: holding.cluster.to_string() });
            }
            for sl in (1..16).filter_map(ServiceLevel::from_wire).filter(|sl| holding.has(*sl)) {
                if let Some(first) = owners[sl.index()].replace(holding) {
                    let (first, second) = names(first);
                    findings.push(Finding::ServiceLevelShared { port, sl, first, second });
                }
            }
        }
    }

    /// Checks one SL-to-VL map: a service level is carried only if one cluster holds it on both links, and into that
    /// cluster's lane.
    fn check_map(
        &self,
        input: Option<PortNum>,
        before: Option<Link>,
        map: &SlToVl,
        findings: &mut Vec<Finding>,
    ) {
        let port = self.name;
        let best_effort = PortQos::management_lane(1);
        let name = |holding: Option<&Holding>| holding.map(|holding| holding.cluster.to_string());
        let (level, own) = self.management.unzip();
        if let Some((sl, lane)) = levels(map).find(|(sl, lane)| Some(*sl) == level && Some(*lane) != own) {
            findings.push(Finding::ManagementLaneDiffers { port, input, sl, lane });
        }
        let used = levels(map).filter(|(_, lane)| *lane != VirtualLane::MANAGEMENT);
        for (sl, lane) in used.filter(|(sl, _)| Some(*sl) != level) {
            let lane_owner = || self.holdings.lane_owner(self.link, lane);
            if sl == BEST_EFFORT {
                if let Some(owner) = lane_owner() {
                    let (owner, sender) = (Some(owner.cluster.to_string()), None);
                    findings.push(Finding::ForeignLane { port, input, sl, lane, owner, sender });
                }
                if self.management_lane() == Some(lane) {
                    findings.push(Finding::ManagementLaneDiffers { port, input, sl, lane });
                }
                continue;
            }
            let here = self.holdings.owner(self.link, sl);
            let there = before.and_then(|before| self.holdings.owner(before, sl));
            match (here, there) {
                (Some(here), Some(there)) if here.cluster == there.cluster => {
                    if here.lane != lane {
                        let (owner, sender) = (name(lane_owner()), Some(here.cluster.to_string()));
                        findings.push(Finding::ForeignLane { port, input, sl, lane, owner, sender });
                    }
                }
                (None, None) if before.is_some() && lane == best_effort && lane_owner().is_none() => {}
                _ => {
                    let (here, there) = (name(here), name(there));
                    findings.push(Finding::ServiceLevelNotGranted { port, input, sl, lane, here, there });
                }
            }
        }
    }
}
