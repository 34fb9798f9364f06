//! Who was given what on every link, by the decisions of a plan.

use std::sync::Arc;

use fabric_model::Decisions;
use fabric_model::decisions::{ClassesDecision, ClusterDecision, DividedLink};
use fabric_model::intent::PortName;
use ib_wire::{ServiceLevel, VirtualLane};

use crate::network::{Link, PORTS, PlannedNetwork};

/// What a cluster has of a link.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Holding {
    pub cluster: Arc<str>,
    /// A bit for each level.
    pub levels: u16,
    pub lane: VirtualLane,
}

impl Holding {
    pub fn has(&self, sl: ServiceLevel) -> bool {
        self.levels >> sl.to_wire() & 1 != 0
    }
}

/// What stands for links that lie together, by the last part of the link.
type Page = Vec<(u8, Holding)>;

/// What clusters have of all links. Copies share what they have in common.
#[derive(Clone, Debug)]
pub(crate) struct Holdings {
    /// In order, so that they do not tell in which order they were filled.
    pages: Vec<Arc<Page>>,
}

impl Holdings {
    /// Nobody has anything of so many links.
    pub fn new(links: usize) -> Self {
        Self { pages: vec![Arc::default(); links.div_ceil(PORTS)] }
    }

    /// What clusters have of a link.
    pub fn of(&self, link: Link) -> impl Iterator<Item = &Holding> {
        let (page, offset) = (&self.pages[link / PORTS], offset(link));
        let first = page.partition_point(|(at, _)| *at < offset);
        page[first..].iter().take_while(move |(at, _)| *at == offset).map(|(_, holding)| holding)
    }

    /// Who has a level on a link.
    pub fn owner(&self, link: Link, sl: ServiceLevel) -> Option<&Holding> {
        self.of(link).find(|holding| holding.has(sl))
    }

    /// Who has a lane on a link.
    pub fn lane_owner(&self, link: Link, lane: VirtualLane) -> Option<&Holding> {
        self.of(link).find(|holding| holding.lane == lane)
    }

    /// Gives a cluster what a plan says it has. Ports that the network lacks are left out.
    pub fn give(&mut self, network: &PlannedNetwork<'_>, name: &Arc<str>, given: ClusterGrants<'_>) {
        for (port, levels, lane) in given.parts() {
            let Some(link) = network.link(port) else { continue };
            let entry = (offset(link), Holding { cluster: Arc::clone(name), levels, lane });
            let page = Arc::make_mut(&mut self.pages[link / PORTS]);
            page.insert(page.partition_point(|other| *other < entry), entry);
        }
    }

    /// Takes back what a plan says that a cluster had.
    pub fn take(&mut self, network: &PlannedNetwork<'_>, name: &str, given: ClusterGrants<'_>) {
        for link in given.parts().filter_map(|(port, ..)| network.link(port)) {
            let page = Arc::make_mut(&mut self.pages[link / PORTS]);
            page.retain(|(at, holding)| *at != offset(link) || *holding.cluster != *name);
        }
    }
}

/// What a plan says that a cluster has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClusterGrants<'a> {
    pub decision: Option<&'a ClusterDecision>,
    /// How that is divided.
    pub classes: Option<&'a ClassesDecision>,
}

impl<'a> ClusterGrants<'a> {
    /// By a plan.
    pub fn of(decisions: &'a Decisions, name: &str) -> Self {
        Self {
            decision: decisions.clusters.get(name).map(|decision| &**decision),
            // Nothing is not divided.
            classes: decisions
                .classes
                .get(name)
                .filter(|_| decisions.clusters.contains_key(name))
                .map(|it| &**it),
        }
    }

    /// Levels and lanes on all links: the cluster's own, and those of its further classes.
    pub fn parts(self) -> impl Iterator<Item = (PortName, u16, VirtualLane)> + 'a {
        let own = self.decision.into_iter().flat_map(|decision| &decision.links);
        let own = own.map(|grant| (grant.port, bits(&grant.service_levels), grant.lane));
        own.chain((0..self.further_classes()).flat_map(move |class| self.class(class)))
    }

    /// How many classes it has beside the first.
    pub fn further_classes(self) -> usize {
        self.classes.map_or(0, |classes| classes.service_levels.len())
    }

    /// The level and the lanes of a further class.
    pub fn class(self, class: usize) -> impl Iterator<Item = (PortName, u16, VirtualLane)> + 'a {
        self.classes.into_iter().flat_map(move |classes| {
            let levels = bits(&classes.service_levels[class..=class]);
            let lane = move |link: &'a DividedLink| Some((link.port, levels, *link.lanes.get(class)?));
            classes.links.iter().filter_map(lane)
        })
    }
}

/// A bit for each level.
pub(crate) fn bits(levels: &[ServiceLevel]) -> u16 {
    levels.iter().fold(0, |bits, level| bits | 1 << level.to_wire())
}

fn offset(link: Link) -> u8 {
    (link % PORTS) as u8
}
