//! Link health: links that flap, or whose error counters grow, are damped. Plans leave them out until they were quiet for a
//! while, or until an operator restores them.
//!
//! Nothing is disabled: a link that no plan has carries no data, because its ports stay in Initialize, but it is still
//! discovered, and its counters are read.
//!
//! | module | content |
//! |---|---|
//! | `settings` | the limits |
//! | `counters` | the error counters of a port |
//! | `counter_poll` | reading them |
//! | `management_use` | data that ports send at the service level of management |
//! | `history` | flaps and growth of each link, and which are damped |
//! | `spare` | which damped links plans can do without |

mod counter_poll;
mod counters;
mod history;
mod management_use;
mod settings;
mod spare;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use fabric_model::intent::PortName;
use ib_wire::{Attribute, Guid, PortInfo, PortNum, PortState, SMP_DATA_LEN};

pub(crate) use counter_poll::CounterPoll;
pub use counter_poll::CounterPollCounts;
pub use counters::{ErrorCounts, LinkErrorCounter};
pub(crate) use history::LinkHealth;
pub use history::{DampedLink, DampingReason, LinkName};
pub(crate) use management_use::ManagementUse;
pub use settings::{LinkHealthError, LinkHealthSettings};
pub use spare::DampedLinkUse;

use crate::attribute_key::AttributeRef;
use crate::event::SmEvent;
use crate::manager::Manager;
use crate::observed::ObservedNode;

/// A damped link, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DampedLinkReport {
    pub damped: DampedLink,
    /// NodeDescriptions of the nodes at the ends, as far as they are known.
    pub descriptions: [Option<String>; 2],
    pub usage: DampedLinkUse,
}

impl DampedLinkReport {
    /// Both ends with their descriptions.
    pub fn name(&self) -> String {
        let [a, b] = [0, 1].map(|end| {
            let port = self.damped.link.ends()[end];
            match &self.descriptions[end] {
                Some(text) => format!("{text:?} {port}"),
                None => port.to_string(),
            }
        });
        format!("{a} - {b}")
    }
}

impl fmt::Display for DampedLinkReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DampedLink { reason, times, .. } = &self.damped;
        write!(f, "link {} is unhealthy: {reason}; {}", self.name(), self.usage)?;
        if *times > 1 {
            write!(f, "; damped {times} times in a row")?;
        }
        Ok(())
    }
}

impl Manager {
    /// Replaces the limits of link health. Links that are damped stay so.
    pub fn set_link_health(&mut self, settings: LinkHealthSettings) {
        self.health.set_settings(settings);
    }

    /// Lets the damped link at a port return to plans at once, and forgets its history. Returns its name; `None` if no link
    /// at this port is damped. [`SmEvent::LinkRestored`] follows, and [`SmEvent::Discovered`] if plans were without it.
    pub fn restore_link(&mut self, now: Duration, port: PortName) -> Option<LinkName> {
        let link = self.health.restore(port);
        self.proceed(now);
        link
    }

    /// Requests for counters since the start.
    pub fn counter_poll_counts(&self) -> CounterPollCounts {
        self.counter_poll.counts()
    }

    /// While idle: starts an empty discovery run if links were damped or have to return, so that the fabric is reported with
    /// other links. Returns whether it did.
    pub(crate) fn settle_link_health(&mut self, now: Duration) -> bool {
        let has_changed = self.health.take_changed(now);
        if has_changed {
            self.state_is_new = true;
            self.observed.changed = true;
            self.begin_discovery_run();
        }
        has_changed
    }

    /// A port was up, and is down or was down meanwhile.
    pub(crate) fn note_down(&mut self, node: Guid, port: PortNum) {
        let down = PortName { node, port };
        self.health.handle_down(self.now, down, self.peer(down));
    }

    /// If a Set takes a link down, that is no flap of the link.
    pub(crate) fn excuse_own_down(
        &mut self,
        (node, _, (attribute, modifier)): AttributeRef,
        data: &[u8; SMP_DATA_LEN],
    ) {
        let takes_down = || PortInfo::decode(data).is_ok_and(|info| info.state == PortState::Down);
        if attribute != Attribute::PORT_INFO || !takes_down() {
            return;
        }
        let Some(port) = PortInfo::port_of_modifier(modifier) else { return };
        let down = PortName { node, port };
        let peer = self.peer(down);
        self.health.expect_down([down].into_iter().chain(peer));
    }

    /// Decides which damped links the next report is without, and reports those whose use has changed.
    pub(crate) fn review_damped_links(&mut self) {
        let nodes = &self.observed.nodes;
        let damped: Vec<LinkName> = self.health.damped().map(|damped| damped.link).collect();
        let links = if damped.is_empty() { Vec::new() } else { switch_links(nodes) };
        let is_switch = |guid| nodes.get(&guid).is_some_and(ObservedNode::is_switch);
        let mut uses = spare::uses(&links, &damped, is_switch);
        // While a flapping link is down, nothing new is known about it.
        for (link, usage) in uses.iter_mut().filter(|(link, _)| !is_connected(nodes, link)) {
            *usage = self.reported_damped.get(link).copied().unwrap_or(*usage);
        }
        let left_out = uses.iter().filter(|(_, usage)| **usage == DampedLinkUse::LeftOut);
        let avoided: BTreeSet<PortName> = left_out.flat_map(|(link, _)| link.ends()).collect();
        let mut events = Vec::new();
        for damped in self.health.damped() {
            let usage = uses[&damped.link];
            if self.reported_damped.get(&damped.link) != Some(&usage) {
                let descriptions = damped.link.ends().map(|end| {
                    nodes.get(&end.node).and_then(|node| node.description.as_ref()).map(|text| text.text())
                });
                let report = DampedLinkReport { damped: *damped, descriptions, usage };
                events.push(SmEvent::LinkDamped(Box::new(report)));
            }
        }
        let gone = self.reported_damped.keys().filter(|link| !uses.contains_key(link));
        events.extend(gone.map(|link| SmEvent::LinkRestored { link: *link }));
        self.reported_damped = uses;
        self.observed.avoided = avoided;
        events.into_iter().for_each(|event| self.emit(event));
    }
}

fn is_connected(nodes: &BTreeMap<Guid, ObservedNode>, link: &LinkName) -> bool {
    let [a, b] = link.ends();
    let peer = nodes.get(&a.node).and_then(|node| node.links.get(&a.port));
    peer == Some(&(b.node, b.port))
}

/// The links between switches.
fn switch_links(nodes: &BTreeMap<Guid, ObservedNode>) -> Vec<LinkName> {
    let mut links = Vec::new();
    for (guid, node) in nodes.iter().filter(|(_, node)| node.is_switch()) {
        for (port, (peer, peer_port)) in &node.links {
            let is_switch = nodes.get(peer).is_some_and(ObservedNode::is_switch);
            let (here, there) =
                (PortName { node: *guid, port: *port }, PortName { node: *peer, port: *peer_port });
            // A cable is known at both of its ends.
            if is_switch && here < there {
                links.push(LinkName::new(here, there));
            }
        }
    }
    links
}
