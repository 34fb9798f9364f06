//! The service levels and lanes that the plan grants to clusters, by link.

use std::sync::Arc;

use fabric_model::Decisions;
use fabric_model::decisions::{ClassDivision, ClusterDecision, DividedLink};
use fabric_model::intent::PortName;
use ib_wire::{ServiceLevel, ServiceLevelSet, VirtualLane};

use crate::network::{Link, PORTS, PlannedNetwork};

/// The service levels and the lane that a cluster holds on a link.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Holding {
    pub cluster: Arc<str>,
    pub levels: ServiceLevelSet,
    pub lane: VirtualLane,
}

impl Holding {
    pub fn has(&self, sl: ServiceLevel) -> bool {
        self.levels.contains(sl)
    }
}

/// The holdings of [`PORTS`] adjacent links, by the link number modulo [`PORTS`].
type Page = Vec<(u8, Holding)>;

/// The holdings of all clusters on all links. Clones share unchanged pages.
#[derive(Clone, Debug)]
pub(crate) struct Holdings {
    /// Sorted, so that the order of insertion does not show.
    pages: Vec<Arc<Page>>,
}

impl Holdings {
    /// Makes empty holdings for link numbers below `links`.
    pub fn new(links: usize) -> Self {
        Self { pages: vec![Arc::default(); links.div_ceil(PORTS)] }
    }

    /// All holdings on a link.
    pub fn of(&self, link: Link) -> impl Iterator<Item = &Holding> {
        let (page, offset) = (&self.pages[link / PORTS], offset(link));
        let first = page.partition_point(|(at, _)| *at < offset);
        page[first..].iter().take_while(move |(at, _)| *at == offset).map(|(_, holding)| holding)
    }

    /// The holding that includes a service level on a link.
    pub fn owner(&self, link: Link, sl: ServiceLevel) -> Option<&Holding> {
        self.of(link).find(|holding| holding.has(sl))
    }

    /// The holding that includes a lane on a link.
    pub fn lane_owner(&self, link: Link, lane: VirtualLane) -> Option<&Holding> {
        self.of(link).find(|holding| holding.lane == lane)
    }

    /// Adds what a plan grants to a cluster. Grants on ports that the network lacks are skipped.
    pub fn add(&mut self, network: &PlannedNetwork<'_>, name: &Arc<str>, grants: ClusterGrants<'_>) {
        for (port, levels, lane) in grants.parts() {
            let Some(link) = network.link(port) else { continue };
            let entry = (offset(link), Holding { cluster: Arc::clone(name), levels, lane });
            let page = Arc::make_mut(&mut self.pages[link / PORTS]);
            page.insert(page.partition_point(|other| *other < entry), entry);
        }
    }

    /// Removes what a plan granted to a cluster.
    pub fn remove(&mut self, network: &PlannedNetwork<'_>, name: &str, grants: ClusterGrants<'_>) {
        for link in grants.parts().filter_map(|(port, ..)| network.link(port)) {
            let page = Arc::make_mut(&mut self.pages[link / PORTS]);
            page.retain(|(at, holding)| *at != offset(link) || *holding.cluster != *name);
        }
    }
}

/// What a plan grants to a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClusterGrants<'a> {
    pub decision: Option<&'a ClusterDecision>,
    /// The division of the grant into classes of service.
    pub classes: Option<&'a ClassDivision>,
}

impl<'a> ClusterGrants<'a> {
    pub fn of(decisions: &'a Decisions, name: &str) -> Self {
        Self {
            decision: decisions.clusters.get(name).map(|decision| &**decision),
            // Classes without a grant do not count.
            classes: decisions
                .classes
                .get(name)
                .filter(|_| decisions.clusters.contains_key(name))
                .map(|it| &**it),
        }
    }

    /// Service levels and lanes on all links, first of the cluster itself, then of its further classes.
    pub fn parts(self) -> impl Iterator<Item = (PortName, ServiceLevelSet, VirtualLane)> + 'a {
        let own = self.decision.into_iter().flat_map(|decision| &decision.links);
        let own = own.map(|grant| (grant.port, grant.service_levels.iter().copied().collect(), grant.lane));
        own.chain((0..self.further_classes()).flat_map(move |class| self.class(class)))
    }

    /// Number of classes after the first.
    pub fn further_classes(self) -> usize {
        self.classes.map_or(0, |classes| classes.service_levels.len())
    }

    /// Service level and lanes of a class after the first.
    pub fn class(self, class: usize) -> impl Iterator<Item = (PortName, ServiceLevelSet, VirtualLane)> + 'a {
        self.classes.into_iter().flat_map(move |classes| {
            let levels = ServiceLevelSet::of(classes.service_levels[class]);
            let lane = move |link: &'a DividedLink| Some((link.port, levels, *link.lanes.get(class)?));
            classes.links.iter().filter_map(lane)
        })
    }
}

fn offset(link: Link) -> u8 {
    (link % PORTS) as u8
}
