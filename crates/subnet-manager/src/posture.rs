//! The posture of a fabric that another manager configured: what an operator wants to know before a takeover. It is made from
//! what was read, and from nothing else.

use std::collections::{BTreeMap, BTreeSet};

use fabric_model::intent::PortName;
use ib_wire::{
    Attribute, Capability, Guid, Lmc, MKeyProtection, Membership, PartitionNumber, PortInfo, PortNum,
    PortState, SlToVl, SlToVlSelector, SmState,
};
use serde::Serialize;

use crate::foreign_managers::ForeignManager;
use crate::link_health::{ErrorCounts, LinkErrorCounter, LinkHealthSettings};
use crate::manager::Manager;
use crate::observed::ObservedNode;
use crate::read_back::pkeys;

/// Examples that a finding names.
const EXAMPLES_MAX: usize = 5;

/// What a finding is about. Every item has a finding, whatever it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PostureItem {
    /// Which devices have M_Keys.
    Keys,
    /// Protection levels and leases of M_Keys.
    KeyLevels,
    /// Members of the default partition, and other partitions.
    Partitions,
    /// Whether switches enforce partitions at the ports of adapters.
    Enforcement,
    /// Whether service levels use several lanes.
    Qos,
    AdaptiveRouting,
    CongestionControl,
    /// Ports with several LIDs.
    Lmc,
    /// Other subnet managers, embedded ones included.
    Managers,
    /// Rates of links.
    Rates,
    LinkErrors,
}

/// How good a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Grade {
    Good,
    /// To be known before a takeover.
    Notice,
    /// A tenant, or anybody with a port, can harm others.
    Risk,
}

/// A statement about a fabric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PostureFinding {
    pub item: PostureItem,
    pub grade: Grade,
    /// A sentence for operators.
    pub text: String,
    /// Some of the places that it is about.
    pub examples: Vec<String>,
}

/// What was read from agents that answer by LID.
#[derive(Debug, Default)]
pub(crate) struct SurveyNotes {
    pub errors: BTreeMap<PortName, ErrorCounts>,
    /// Switches, and whether they mark packets.
    pub marking: BTreeMap<Guid, bool>,
}

impl Manager {
    /// States the posture of the fabric.
    pub(crate) fn posture(&self, notes: &SurveyNotes) -> Vec<PostureFinding> {
        let view = View { manager: self, notes };
        vec![
            view.keys(),
            view.key_levels(),
            view.partitions(),
            view.enforcement(),
            view.qos(),
            view.adaptive_routing(),
            view.congestion_control(),
            view.lmc(),
            view.managers(),
            view.rates(),
            view.link_errors(),
        ]
    }
}

/// The fabric as it was read.
struct View<'a> {
    manager: &'a Manager,
    notes: &'a SurveyNotes,
}

impl View<'_> {
    fn nodes(&self) -> impl Iterator<Item = (Guid, &ObservedNode)> {
        self.manager.observed.nodes.iter().map(|(guid, node)| (*guid, node))
    }

    fn name(&self, guid: Guid) -> String {
        let node = self.manager.observed.nodes.get(&guid);
        match node.and_then(|node| node.description.as_ref()) {
            Some(text) => format!("{:?} {guid}", text.text()),
            None => guid.to_string(),
        }
    }

    fn port_name(&self, port: PortName) -> String {
        format!("{}[{}]", self.name(port.node), port.port)
    }

    /// The ports that hold the M_Key of a device: port 0 of a switch, and each cabled port of an adapter.
    fn guards(&self) -> impl Iterator<Item = (Guid, &PortInfo)> {
        self.nodes().flat_map(|(guid, node)| end_ports(node).map(move |(_, info)| (guid, info)))
    }

    fn finding<T>(
        &self,
        item: PostureItem,
        grade: Grade,
        text: String,
        places: &[T],
        name: impl Fn(&T) -> String,
    ) -> PostureFinding {
        let examples = places.iter().take(EXAMPLES_MAX).map(name).collect();
        PostureFinding { item, grade, text, examples }
    }

    fn plain(&self, item: PostureItem, grade: Grade, text: impl Into<String>) -> PostureFinding {
        PostureFinding { item, grade, text: text.into(), examples: Vec::new() }
    }

    fn keys(&self) -> PostureFinding {
        let total = self.guards().count();
        let guards = |is: fn(&PortInfo) -> bool| -> Vec<Guid> {
            self.guards().filter(|(_, info)| is(info)).map(|(guid, _)| guid).collect()
        };
        let open = guards(|info| info.m_key.is_none() && info.m_key_protection == MKeyProtection::ReadAll);
        // Whoever presents the right key sees it at every level.
        let shown = guards(|info| info.m_key.is_some() && info.m_key_protection == MKeyProtection::ReadAll);
        let name = |guid: &Guid| self.name(*guid);
        if !open.is_empty() {
            let text = format!(
                "{} of {total} ports have no M_Key: whoever reaches them can configure them",
                open.len()
            );
            return self.finding(PostureItem::Keys, Grade::Risk, text, &open, name);
        }
        if !shown.is_empty() {
            let text = format!("{} of {total} ports show their M_Key to everybody", shown.len());
            return self.finding(PostureItem::Keys, Grade::Risk, text, &shown, name);
        }
        self.plain(
            PostureItem::Keys,
            Grade::Good,
            format!("all {total} ports have an M_Key that is not shown"),
        )
    }

    fn key_levels(&self) -> PostureFinding {
        let mut levels: BTreeMap<u8, usize> = BTreeMap::new();
        let mut leases = 0;
        for (_, info) in self.guards() {
            *levels.entry(info.m_key_protection.to_wire()).or_default() += 1;
            leases += usize::from(info.m_key_lease_period_s > 0);
        }
        let silent = self.manager.unresolved.values().filter(|claims| claims.is_none()).count();
        let counts: Vec<String> =
            levels.iter().map(|(level, count)| format!("level {level} at {count}")).collect();
        let text = format!(
            "{}; leases that expire at {leases}; {silent} places do not answer, as with level 2 or 3",
            counts.join(", ")
        );
        let grade = match () {
            () if silent > 0 => Grade::Notice,
            () if levels.keys().all(|level| *level > 0) => Grade::Good,
            () => Grade::Notice,
        };
        self.plain(PostureItem::KeyLevels, grade, text)
    }

    fn partitions(&self) -> PostureFinding {
        let own = self.manager.observed.own;
        let mut full: Vec<PortName> = Vec::new();
        let mut others: BTreeSet<PartitionNumber> = BTreeSet::new();
        let mut count = 0;
        for (guid, node) in self.nodes().filter(|(_, node)| !node.is_switch()) {
            for (port, _) in end_ports(node) {
                count += 1;
                let table = pkeys(node, port, 0);
                let keys: Vec<_> = table.entries().iter().flatten().collect();
                others.extend(keys.iter().map(|key| key.partition()));
                let is_full = keys.iter().any(|key| {
                    key.partition() == PartitionNumber::DEFAULT && key.membership() == Membership::Full
                });
                let is_own = own.is_some_and(|own| (own.node, own.number) == (guid, port));
                if is_full && !is_own {
                    full.push(PortName { node: guid, port });
                }
            }
        }
        others.remove(&PartitionNumber::DEFAULT);
        let text = format!(
            "{} of {count} adapter ports are full members of the default partition, besides this manager's; {} other partitions",
            full.len(),
            others.len()
        );
        let (grade, text) = match full.len() {
            0 => (Grade::Good, text),
            _ => (Grade::Risk, text + ": the full members reach every port"),
        };
        self.finding(PostureItem::Partitions, grade, text, &full, |port| self.port_name(*port))
    }

    fn enforcement(&self) -> PostureFinding {
        let ports: Vec<(PortName, &PortInfo)> = self
            .nodes()
            .filter(|(_, node)| node.is_switch())
            .flat_map(|(guid, node)| node.links.iter().map(move |(port, peer)| (guid, node, *port, peer.0)))
            .filter(|(_, _, _, peer)| {
                self.manager.observed.nodes.get(peer).is_some_and(|peer| !peer.is_switch())
            })
            .filter_map(|(guid, node, port, _)| Some((PortName { node: guid, port }, node.ports.get(&port)?)))
            .collect();
        let lacking = |is: fn(&PortInfo) -> bool| -> Vec<PortName> {
            ports.iter().filter(|(_, info)| !is(info)).map(|(port, _)| *port).collect()
        };
        let partitions = lacking(|info| info.enforce_inbound && info.enforce_outbound);
        let raw = lacking(|info| info.filter_raw_inbound && info.filter_raw_outbound);
        let text = format!(
            "{} of {} switch ports of adapters do not enforce partitions in both directions, {} let raw packets pass",
            partitions.len(),
            ports.len(),
            raw.len()
        );
        let grade = match (partitions.len(), raw.len()) {
            (0, 0) => Grade::Good,
            (0, _) => Grade::Notice,
            _ => Grade::Risk,
        };
        self.finding(PostureItem::Enforcement, grade, text, &partitions, |port| self.port_name(*port))
    }

    fn qos(&self) -> PostureFinding {
        let (mut read, mut several) = (0, Vec::new());
        for (guid, node) in self.nodes() {
            for (port, data) in lane_maps(node) {
                let lanes: BTreeSet<u8> = SlToVl::decode(&data).0.iter().map(|lane| lane.to_wire()).collect();
                read += 1;
                if lanes.iter().filter(|lane| **lane != 15).count() > 1 {
                    several.push(PortName { node: guid, port });
                }
            }
        }
        let text = match (read, several.len()) {
            (0, _) => "no port has SL-to-VL mapping tables".to_owned(),
            (_, 0) => format!("all service levels share a lane at {read} of {read} ports"),
            (_, count) => format!(
                "service levels use several lanes at {count} of {read} ports; a plan with QoS replaces their tables"
            ),
        };
        let grade = if several.is_empty() { Grade::Good } else { Grade::Notice };
        self.finding(PostureItem::Qos, grade, text, &several, |port| self.port_name(*port))
    }

    fn adaptive_routing(&self) -> PostureFinding {
        let on: Vec<Guid> =
            self.nodes().filter(|(_, node)| node.routes_adaptively).map(|(guid, _)| guid).collect();
        let name = |guid: &Guid| self.name(*guid);
        match on.len() {
            0 => self.plain(PostureItem::AdaptiveRouting, Grade::Good, "off at all switches"),
            count => self.finding(
                PostureItem::AdaptiveRouting,
                Grade::Notice,
                format!("on at {count} switches: nothing can be guaranteed until it is switched off"),
                &on,
                name,
            ),
        }
    }

    fn congestion_control(&self) -> PostureFinding {
        let marking = &self.notes.marking;
        let on: Vec<Guid> = marking.iter().filter(|(_, on)| **on).map(|(guid, _)| *guid).collect();
        let switches = self.nodes().filter(|(_, node)| node.is_switch()).count();
        let unknown = switches.saturating_sub(marking.len());
        let text = format!("{} of {switches} switches mark packets; {unknown} did not answer", on.len());
        let grade = if on.is_empty() && unknown == 0 { Grade::Good } else { Grade::Notice };
        self.finding(PostureItem::CongestionControl, grade, text, &on, |guid| self.name(*guid))
    }

    fn lmc(&self) -> PostureFinding {
        let several: Vec<Guid> =
            self.guards().filter(|(_, info)| info.lmc != Lmc::default()).map(|(guid, _)| guid).collect();
        match several.len() {
            0 => self.plain(PostureItem::Lmc, Grade::Good, "every port has one LID"),
            count => self.finding(
                PostureItem::Lmc,
                Grade::Notice,
                format!("{count} ports have several LIDs (LMC above 0); the plan gives each port one"),
                &several,
                |guid| self.name(*guid),
            ),
        }
    }

    fn managers(&self) -> PostureFinding {
        let found: Vec<String> = self
            .manager
            .managers
            .iter()
            .map(|((guid, port), known)| {
                let is_switch = self.manager.observed.nodes.get(guid).is_some_and(ObservedNode::is_switch);
                let kind = if is_switch { "embedded, " } else { "" };
                let says = match known {
                    ForeignManager::Known { state, priority } => {
                        format!("{} with priority {priority}", state_name(*state))
                    }
                    ForeignManager::New | ForeignManager::Silent { .. } => "does not answer".to_owned(),
                };
                format!("{}: {kind}{says}", self.port_name(PortName { node: *guid, port: *port }))
            })
            .collect();
        match found.len() {
            0 => self.plain(PostureItem::Managers, Grade::Good, "no other subnet manager runs"),
            count => self.finding(
                PostureItem::Managers,
                Grade::Notice,
                format!("{count} other subnet managers run: stop them before a takeover"),
                &found,
                String::clone,
            ),
        }
    }

    /// The links, each with the port at one end.
    fn links(&self) -> Vec<(PortName, &PortInfo)> {
        let mut links = Vec::new();
        for (guid, node) in self.nodes() {
            for (port, (peer, peer_port)) in &node.links {
                let here = PortName { node: guid, port: *port };
                if here < (PortName { node: *peer, port: *peer_port })
                    && let Some(info) = node.ports.get(port)
                {
                    links.push((here, info));
                }
            }
        }
        links
    }

    fn rates(&self) -> PostureFinding {
        let mut rates: BTreeMap<u32, Vec<PortName>> = BTreeMap::new();
        for (port, info) in self.links() {
            rates.entry(info.active_rate().map_or(0, |rate| rate.nominal_mbps())).or_default().push(port);
        }
        let counts: Vec<String> = rates
            .iter()
            .rev()
            .map(|(mbps, links)| format!("{} links at {} Gb/s", links.len(), f64::from(*mbps) / 1000.0))
            .collect();
        let slow = rates.iter().next().map_or(&[][..], |(_, links)| links);
        match rates.len() {
            0 | 1 => self.plain(PostureItem::Rates, Grade::Good, counts.join(", ")),
            _ => self.finding(PostureItem::Rates, Grade::Notice, counts.join(", "), slow, |port| {
                self.port_name(*port)
            }),
        }
    }

    fn link_errors(&self) -> PostureFinding {
        let limits = LinkHealthSettings::default().errors;
        let is_bad = |counts: &ErrorCounts| {
            LinkErrorCounter::ALL.iter().any(|counter| counts.get(*counter) >= limits.get(*counter))
        };
        let errors = &self.notes.errors;
        let bad: Vec<PortName> =
            errors.iter().filter(|(_, counts)| is_bad(counts)).map(|(port, _)| *port).collect();
        let cabled = 2 * self.links().len();
        let text = format!(
            "{} of {cabled} ports have high error counters; those of {} were not read",
            bad.len(),
            cabled.saturating_sub(errors.len())
        );
        let grade = if bad.is_empty() && errors.len() >= cabled { Grade::Good } else { Grade::Notice };
        self.finding(PostureItem::LinkErrors, grade, text, &bad, |port| self.port_name(*port))
    }
}

/// The end ports of a node: port 0 of a switch, and each port of an adapter that a cable leads to.
fn end_ports(node: &ObservedNode) -> impl Iterator<Item = (PortNum, &PortInfo)> {
    let is_switch = node.is_switch();
    let is_end = move |port: PortNum, info: &PortInfo| match is_switch {
        true => port == PortNum::MANAGEMENT,
        false => info.state != PortState::Down,
    };
    node.ports.iter().filter(move |(port, info)| is_end(**port, info)).map(|(port, info)| (*port, info))
}

/// The modifiers of the SL-to-VL mapping tables that show how ports use lanes: for each output, that of one input.
pub(crate) fn lane_map_modifiers(node: &ObservedNode) -> Vec<(PortNum, PortNum, u32)> {
    let has_maps =
        |port: PortNum| node.ports.get(&port).is_some_and(|info| info.capability.has(Capability::SL_MAPPING));
    if node.is_switch() {
        let hop = |output: &PortNum| {
            let selector = SlToVlSelector::Hop { input: 0, output: output.to_wire() };
            (PortNum::MANAGEMENT, *output, selector.to_modifier())
        };
        let outputs = node.links.keys().filter(|_| has_maps(PortNum::MANAGEMENT));
        return outputs.map(hop).collect();
    }
    node.routes.keys().filter(|port| has_maps(**port)).map(|port| (*port, *port, 0)).collect()
}

/// The tables of [`lane_map_modifiers`] that were read, by output port.
fn lane_maps(node: &ObservedNode) -> Vec<(PortNum, [u8; SlToVl::LEN])> {
    let read = |(reached, output, modifier): (PortNum, PortNum, u32)| {
        let data = node.held(reached, (Attribute::SL_TO_VL, modifier))?;
        let mut map = [0; SlToVl::LEN];
        map.copy_from_slice(&data[..SlToVl::LEN]);
        Some((output, map))
    };
    lane_map_modifiers(node).into_iter().filter_map(read).collect()
}

fn state_name(state: SmState) -> &'static str {
    match state {
        SmState::NotActive => "not active",
        SmState::Discovering => "discovering",
        SmState::Standby => "standby",
        SmState::Master => "master",
        SmState::Unknown(_) => "in an unknown state",
    }
}
