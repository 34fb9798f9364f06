//! Decisions that must stay stable from one compilation to the next: LIDs, P_Key indices, multicast LIDs, uplinks, QoS
//! grants.
//!
//! Tables are not stored; they follow from the topology, the intents and these decisions. A link failure changes no
//! decision: the tables route around the link, and once it is back they are the same as before.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ib_wire::{
    Guid, Lid, MulticastLid, PartitionNumber, Pkey, PortNum, ServiceLevel, ServiceLevelSet, VirtualLane,
};
use serde::{Deserialize, Serialize};

use crate::port_name::PortName;
use crate::serde_with::{packed_tables, shared_values};
use crate::shared_map::SharedMap;
use crate::tables::LinearTable;
use crate::tenancy::{Class, LinkGrant, PairServiceLevel, SlMode};

/// The decisions behind a plan. Passed to the next compilation, they keep everything stable that the intents do not
/// change. Clones are cheap: the large maps are shared until they are modified.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Decisions {
    /// Decisions per end port, by port GUID. Ports that are absent now keep theirs.
    pub end_ports: SharedMap<Guid, EndPortDecision>,
    pub routing: RoutingDecision,
    /// Numbers that were assigned to partitions without a number of their own, by partition name.
    pub partitions: SharedMap<String, PartitionNumber>,
    /// IPoIB broadcast groups, by partition number.
    pub groups: BTreeMap<PartitionNumber, GroupDecision>,
    /// Grants of guaranteed clusters, by cluster name.
    #[serde(skip_serializing_if = "SharedMap::is_empty", with = "shared_values")]
    pub clusters: SharedMap<String, Arc<ClusterDecision>>,
    /// Whether every port discards packets of service levels that no cluster was granted. Set with the first guaranteed
    /// cluster and never cleared.
    #[serde(rename = "guarded", skip_serializing_if = "std::ops::Not::not")]
    pub sl_enforcement: bool,
    /// Service level of traffic to and from the subnet manager. Decided with the first guaranteed cluster and never
    /// changed; `None` means that management shares service level 0 with all others.
    #[serde(rename = "management", skip_serializing_if = "Option::is_none")]
    pub management_sl: Option<ServiceLevel>,
    /// Number of the partition in which handed-over ports reach subnet administration while ports of the site are full
    /// members of the default partition. Kept while no partition of the intents has the number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub management_partition: Option<PartitionNumber>,
    /// Routes that were adopted from a fabric that another manager configured, by the node GUID of the switch: the output
    /// ports of the LIDs whose routes were adopted. They are kept as far as possible.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", with = "packed_tables")]
    pub adopted: BTreeMap<Guid, Arc<LinearTable>>,
    /// Default output ports that a route override of a tenant replaced: by the GUID of the destination port, then by the
    /// node GUID of the switch. `None` means that the switch had no default route.
    #[serde(rename = "detours", skip_serializing_if = "BTreeMap::is_empty")]
    pub overridden_exits: BTreeMap<Guid, BTreeMap<Guid, Option<PortNum>>>,
    /// How clusters divide their grants among traffic classes, by cluster name.
    #[serde(skip_serializing_if = "SharedMap::is_empty", with = "shared_values")]
    pub classes: SharedMap<String, Arc<ClassDivision>>,
}

/// Decisions about an end port: an adapter port, or port 0 of a switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndPortDecision {
    pub lid: Lid,
    /// The uplinks on the path on which packets come down to this port, listed upwards from its own switch. Each entry is
    /// an index into [`SwitchDecision::uplinks`] of the switch that the entries before lead to.
    #[serde(rename = "up", default, skip_serializing_if = "Vec::is_empty")]
    pub uplink_path: Vec<u8>,
    /// P_Key table by index.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pkeys: Vec<Option<Pkey>>,
}

/// The total order of switches that keeps routes free of deadlocks (up*/down* routing: a path goes up in the order, then
/// down). While it does not change, routes can change without draining the fabric.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RoutingDecision {
    pub scheme: HeightScheme,
    /// By node GUID. Switches that are absent now keep their entry.
    pub switches: SharedMap<Guid, SwitchDecision>,
    /// The lowest switch at which packets that came down may go up again. Upper switches reach each other through it
    /// and the tree of switches above it.
    #[serde(rename = "turn")]
    pub down_up_switch: Option<Guid>,
    /// Further down-up turns that had to be allowed. They are computed anew for every plan and recorded because routes of
    /// plans that differ in them could deadlock with each other.
    #[serde(rename = "further_turns", skip_serializing_if = "BTreeSet::is_empty")]
    pub down_up_turns: BTreeSet<DownUpTurn>,
    /// Core tree for multicast, used if no single switch is above all adapters: a tree of switches that together are above
    /// all of them. Maps each switch to its parent, both by node GUID. The tree uses only turns that unicast may use, too.
    #[serde(rename = "crown", skip_serializing_if = "BTreeMap::is_empty")]
    pub core_tree: BTreeMap<Guid, Guid>,
}

impl RoutingDecision {
    /// The sort key of a switch in the order: its height, then its GUID. `None` if the switch is unknown.
    pub fn order_key(&self, guid: Guid) -> Option<(i32, Guid)> {
        self.switches.get(&guid).map(|switch| (switch.height, guid))
    }

    /// Whether switch `a` is above switch `b`; `None` if one of them is unknown. No switch is above itself.
    pub fn is_above(&self, a: Guid, b: Guid) -> Option<bool> {
        Some(self.order_key(a)? > self.order_key(b)?)
    }
}

/// A turn from down to up: three consecutive switches of a path, by node GUID, of which the middle one is the lowest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DownUpTurn {
    pub from: Guid,
    pub at: Guid,
    pub to: Guid,
}

/// How the heights of switches are defined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HeightScheme {
    /// Distance from the adapters: the tier of the switch in a tree with any number of roots.
    #[default]
    #[serde(rename = "levels")]
    Tiers,
    /// Negative distance from one root switch.
    Root,
}

/// Decisions about a switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchDecision {
    /// Position in the order, higher being closer to the roots; ties are broken by GUID.
    pub height: i32,
    /// Cables to higher switches, including absent ones. An entry never changes its index.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uplinks: Vec<Uplink>,
}

/// A cable from a switch to a higher one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uplink {
    /// Port number at the lower switch.
    pub port: PortNum,
    /// Node GUID of the upper switch.
    pub peer: Guid,
}

/// Decisions about a guaranteed cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterDecision {
    /// Port GUIDs of the nodes for which the grants were computed.
    pub ports: Vec<Guid>,
    pub class: Class,
    pub sl_mode: SlMode,
    /// Upper bound of the latency of a packet that finds its lane empty, in nanoseconds.
    pub bound_ns: u64,
    /// One grant for each direction of a link that the cluster uses.
    pub links: Vec<LinkGrant>,
    /// Service levels per pair of switches, sorted by switches; only with [`SlMode::Path`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pairs: Vec<PairServiceLevel>,
    /// Of a cluster whose guarantee is violated: the service levels it had. Connections that use them are carried in the
    /// lane of best effort, as long as they are free on all links between its nodes.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub former_sls: ServiceLevelSet,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde expects")]
fn is_empty(sls: &ServiceLevelSet) -> bool {
    sls.is_empty()
}

impl ClusterDecision {
    /// The service level of all packets of the cluster; `None` with [`SlMode::Path`], or if no service level is granted on
    /// all its links.
    pub fn service_level(&self) -> Option<ServiceLevel> {
        if self.sl_mode == SlMode::Path {
            return None;
        }
        let (first, rest) = self.links.split_first()?;
        let is_everywhere =
            |level: &&ServiceLevel| rest.iter().all(|grant| grant.service_levels.contains(level));
        first.service_levels.iter().find(is_everywhere).copied()
    }

    /// The service level of packets between ports on two switches, given by node GUID. The same in both directions.
    pub fn service_level_between(&self, a: Guid, b: Guid) -> Option<ServiceLevel> {
        let switches = PairServiceLevel::between(a, b);
        let pair = self.pairs.iter().find(|pair| pair.switches == switches);
        match self.sl_mode {
            SlMode::Cluster => self.service_level(),
            SlMode::Path => pair.map(|pair| pair.service_level),
        }
    }
}

/// How a cluster divides its grants among traffic classes. Class 0 has the cluster's own service level and lanes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassDivision {
    /// Service levels of classes 1 and up.
    pub service_levels: Vec<ServiceLevel>,
    /// One entry for each link direction that the cluster uses.
    pub links: Vec<DividedLink>,
}

impl ClassDivision {
    /// The smallest part of the cluster's share that a class has on any link, in thousandths. `None` if the cluster has no
    /// links or no such class. Classes are counted from 0.
    pub fn min_share_permille(&self, class: usize) -> Option<u32> {
        let part = |link: &DividedLink| {
            let all: u32 = link.weights.iter().sum();
            Some(link.weights.get(class)? * 1000 / all.max(1))
        };
        self.links.iter().filter_map(part).min()
    }
}

/// One direction of a link, divided among the classes of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DividedLink {
    /// The port that sends in this direction.
    pub port: PortName,
    /// Lanes of classes 1 and up.
    pub lanes: Vec<VirtualLane>,
    /// Arbitration weight of each class, from class 0, in units of 64 bytes per round.
    pub weights: Vec<u32>,
}

/// Decisions about a broadcast group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupDecision {
    /// Groups whose trees share no switch may have the same multicast LID.
    pub mlid: MulticastLid,
    /// Node GUID of the root of its tree; `None` if the tree has no switch.
    pub root: Option<Guid>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_survive_a_json_round_trip() {
        let guid = |raw| Guid::from_wire(raw).unwrap();
        let number = PartitionNumber::from_wire(0x101).unwrap();
        let port = EndPortDecision {
            lid: Lid::from_wire(7).unwrap(),
            uplink_path: vec![3, 11],
            pkeys: vec![Some(Pkey::DEFAULT_FULL), None, Pkey::from_wire(0x101)],
        };
        let uplinks = vec![Uplink { port: PortNum::new(19).unwrap(), peer: guid(9) }];
        let mut decisions = Decisions::default();
        decisions.end_ports.insert(guid(1), port);
        decisions.routing.switches.insert(guid(2), SwitchDecision { height: -1, uplinks });
        decisions.routing.down_up_switch = Some(guid(2));
        decisions.routing.down_up_turns.insert(DownUpTurn { from: guid(9), at: guid(2), to: guid(8) });
        decisions.partitions.insert("one".to_owned(), number);
        let mlid = MulticastLid::from_wire(0xc001).unwrap();
        decisions.groups.insert(number, GroupDecision { mlid, root: Some(guid(9)) });

        decisions.adopted.insert(guid(2), Arc::new(LinearTable::from_exits(vec![0xff, 3, 3, 3, 4])));

        decisions.routing.core_tree.insert(guid(8), guid(9));
        decisions.overridden_exits.insert(guid(1), [(guid(2), None)].into());
        decisions.sl_enforcement = true;
        decisions.management_sl = Some(ServiceLevel::default());

        let json = serde_json::to_string(&decisions).unwrap();
        for stored in ["up", "turn", "further_turns", "crown", "detours", "guarded", "management", "levels"] {
            assert!(json.contains(&format!("\"{stored}\"")), "the stored name {stored}: {json}");
        }
        assert_eq!(serde_json::from_str::<Decisions>(&json).unwrap(), decisions);
        assert_eq!(serde_json::from_str::<Decisions>("{}").unwrap(), Decisions::default());
    }

    #[test]
    fn decisions_without_pairs_are_still_read() {
        let old = r#"{"ports":["0x1"],"class":"best-effort","sl_mode":"cluster","bound_ns":7,"links":[]}"#;
        let decision: ClusterDecision = serde_json::from_str(old).unwrap();
        assert_eq!(decision.pairs, []);
        assert!(!serde_json::to_string(&decision).unwrap().contains("pairs"));

        let [a, b] = [1, 2].map(|raw| Guid::from_wire(raw).unwrap());
        let service_level = ServiceLevel::from_wire(3).unwrap();
        let pairs = vec![PairServiceLevel { switches: (a, b), service_level }];
        let decision = ClusterDecision { sl_mode: SlMode::Path, pairs, ..decision };
        assert_eq!(decision.service_level_between(b, a), Some(service_level));
        assert_eq!((decision.service_level_between(a, a), decision.service_level()), (None, None));
        let json = serde_json::to_string(&decision).unwrap();
        assert_eq!(serde_json::from_str::<ClusterDecision>(&json).unwrap(), decision);
    }
}
