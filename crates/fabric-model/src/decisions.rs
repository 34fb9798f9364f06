//! What was decided and has to stay: who has which LID, key index, group LID and up-port.
//!
//! Tables are not stored; they follow from the topology, the intents and these decisions. A link that fails changes no
//! decision: the tables avoid it, and when it returns they are what they were.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ib_wire::{Guid, Lid, MulticastLid, PartitionNumber, Pkey, PortNum, ServiceLevel, VirtualLane};
use serde::{Deserialize, Serialize};

use crate::intent::PortName;
use crate::plan::LinearTable;
use crate::serde_with::{shared_tables, shared_values};
use crate::shared_map::SharedMap;
use crate::tenancy::{Class, LinkGrant, PairServiceLevel, SlMode};

/// The decisions behind a plan. Handed to the next compilation, they keep what nobody asked to change. Copies share what
/// they have in common.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Decisions {
    /// What end ports got, by port GUID; also ports that are absent now.
    pub end_ports: SharedMap<Guid, EndPortDecision>,
    /// How packets may turn.
    pub routing: RoutingDecision,
    /// Numbers given to partitions that asked for none, by name.
    pub partitions: SharedMap<String, PartitionNumber>,
    /// Broadcast groups, by partition.
    pub groups: BTreeMap<PartitionNumber, GroupDecision>,
    /// What guaranteed clusters got, by name.
    #[serde(skip_serializing_if = "SharedMap::is_empty", with = "shared_values")]
    pub clusters: SharedMap<String, Arc<ClusterDecision>>,
    /// Whether lanes are sl_enforcement: every port discards service levels that nobody was granted. From the first guaranteed
    /// cluster on, and for good.
    #[serde(rename = "guarded", skip_serializing_if = "std::ops::Not::not")]
    pub sl_enforcement: bool,
    /// The service level of what goes to and from the subnet manager, where management has lanes of its own. Decided with
    /// the first guaranteed cluster, and for good; without it management shares level 0 with everybody.
    #[serde(rename = "management", skip_serializing_if = "Option::is_none")]
    pub management_sl: Option<ServiceLevel>,
    /// Routes that were found on the fabric and stay as far as they can, by the switch's node GUID: where packets leave,
    /// for the LIDs whose routes were taken over. Without them, the routes are our own.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", with = "shared_tables")]
    pub adopted: BTreeMap<Guid, Arc<LinearTable>>,
    /// Where packets go other ways because the owner of their port wishes it: by port GUID, then by the switch's node GUID,
    /// where they would leave without the wish.
    #[serde(rename = "detours", skip_serializing_if = "BTreeMap::is_empty")]
    pub overridden_exits: BTreeMap<Guid, BTreeMap<Guid, Option<PortNum>>>,
    /// How clusters' owners divide what these have, by the cluster's name.
    #[serde(skip_serializing_if = "SharedMap::is_empty", with = "shared_values")]
    pub classes: SharedMap<String, Arc<ClassDivision>>,
}

/// What an end port got: an adapter port, or port 0 of a switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndPortDecision {
    /// Its LID.
    pub lid: Lid,
    /// The cables by which packets for it come down, from its own switch upwards: each an index into the up-links of
    /// the switch that the ones before lead to.
    #[serde(rename = "up", default, skip_serializing_if = "Vec::is_empty")]
    pub uplink_path: Vec<u8>,
    /// Its P_Key table.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pkeys: Vec<Option<Pkey>>,
}

/// The order of switches that keeps routes free of deadlocks. While it stays, routes may change without a drain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RoutingDecision {
    /// What heights mean.
    pub scheme: HeightScheme,
    /// The switches, by node GUID; also absent ones.
    pub switches: SharedMap<Guid, SwitchDecision>,
    /// The lowest switch by which packets may turn upwards again, so that upper switches reach each other.
    #[serde(rename = "turn")]
    pub down_up_switch: Option<Guid>,
    /// Other places where packets had to be let turn upwards again. They are found anew for every plan, and kept here
    /// because plans that differ in them cannot be mixed.
    #[serde(rename = "further_turns", skip_serializing_if = "BTreeSet::is_empty")]
    pub down_up_turns: BTreeSet<DownUpTurn>,
    /// A tree of switches below which all adapters are, where no single switch is above them: each with the one it is joined
    /// to. Packets to groups go by it, and turn only where all may.
    #[serde(rename = "crown", skip_serializing_if = "BTreeMap::is_empty")]
    pub core_tree: BTreeMap<Guid, Guid>,
}

impl RoutingDecision {
    /// What tells which of two switches is above the other: the height, then the GUID.
    pub fn order_key(&self, guid: Guid) -> Option<(i32, Guid)> {
        self.switches.get(&guid).map(|switch| (switch.height, guid))
    }

    /// Whether the first of two switches is above the second; `None` if one of them is not known.
    pub fn is_above(&self, a: Guid, b: Guid) -> Option<bool> {
        Some(self.order_key(a)? > self.order_key(b)?)
    }
}

/// Where packets turn upwards again: three switches in a row, the middle one being the lowest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DownUpTurn {
    /// Where packets come down from.
    pub from: Guid,
    /// Where they turn.
    pub at: Guid,
    /// Where they go up to.
    pub to: Guid,
}

/// What the height of a switch means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HeightScheme {
    /// Its distance from the adapters: a tree with many tops.
    #[default]
    #[serde(rename = "levels")]
    Tiers,
    /// Its distance from one root, counted downwards.
    Root,
}

/// A switch's place in the order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchDecision {
    /// Packets go up, then down, never up again; ties are broken by GUID.
    pub height: i32,
    /// The cables to higher switches, known or remembered. An entry keeps its index for good.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uplinks: Vec<Uplink>,
}

/// A cable to a higher switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uplink {
    /// The port at the lower end.
    pub port: PortNum,
    /// The switch at the upper end.
    pub peer: Guid,
}

/// What a guaranteed cluster got.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterDecision {
    /// Its ports at that time, by port GUID.
    pub ports: Vec<Guid>,
    /// What it was promised.
    pub class: Class,
    /// How its packets are told from others'.
    pub sl_mode: SlMode,
    /// By when a packet that finds its own lane empty has arrived at the latest, in nanoseconds.
    pub bound_ns: u64,
    /// What it has of every link it uses.
    pub links: Vec<LinkGrant>,
    /// The levels between the switches of its ports, where every two have their own; in order of the switches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pairs: Vec<PairServiceLevel>,
}

impl ClusterDecision {
    /// The service level of all its packets; `None` if it has none that every link knows, or every two switches have
    /// their own.
    pub fn service_level(&self) -> Option<ServiceLevel> {
        if self.sl_mode == SlMode::Path {
            return None;
        }
        let (first, rest) = self.links.split_first()?;
        let is_everywhere =
            |level: &&ServiceLevel| rest.iter().all(|grant| grant.service_levels.contains(level));
        first.service_levels.iter().find(is_everywhere).copied()
    }

    /// The service level of its packets between ports on two switches, in both directions.
    pub fn service_level_between(&self, a: Guid, b: Guid) -> Option<ServiceLevel> {
        let switches = PairServiceLevel::between(a, b);
        let pair = self.pairs.iter().find(|pair| pair.switches == switches);
        match self.sl_mode {
            SlMode::Cluster => self.service_level(),
            SlMode::Path => pair.map(|pair| pair.service_level),
        }
    }
}

/// How what a cluster has is divided among classes of its packets. The first has the cluster's own level and lanes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassDivision {
    /// The service levels of the others.
    pub service_levels: Vec<ServiceLevel>,
    /// Every link of the cluster.
    pub links: Vec<DividedLink>,
}

impl ClassDivision {
    /// What a class has of the cluster's share where it has least, in thousandths; the first is 0.
    pub fn min_share_permille(&self, class: usize) -> Option<u32> {
        let part = |link: &DividedLink| {
            let all: u32 = link.weights.iter().sum();
            Some(link.weights.get(class)? * 1000 / all.max(1))
        };
        self.links.iter().filter_map(part).min()
    }
}

/// A link that is divided among classes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DividedLink {
    /// The port by which packets leave.
    pub port: PortName,
    /// The lanes of all classes but the first.
    pub lanes: Vec<VirtualLane>,
    /// What each class may send in a round, in units of 64 bytes.
    pub weights: Vec<u32>,
}

/// What a broadcast group got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupDecision {
    /// Its LID, which groups on other switches may have too.
    pub mlid: MulticastLid,
    /// Top of its tree, unless no switch takes part.
    pub root: Option<Guid>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_read_back_from_json_as_written() {
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

        let json = serde_json::to_string(&decisions).unwrap();
        assert_eq!(serde_json::from_str::<Decisions>(&json).unwrap(), decisions);
        assert_eq!(serde_json::from_str::<Decisions>("{}").unwrap(), Decisions::default());
    }

    #[test]
    fn what_was_decided_before_pairs_had_levels_reads_as_it_was() {
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
