//! What a cluster was granted on the links it uses.

use std::collections::{BTreeMap, HashMap};

use fabric_model::tenancy::{Bandwidth, ClusterNumber, LinkGrant, PairServiceLevel};
use ib_wire::{Guid, ServiceLevel, ServiceLevelSet, VirtualLane};

use super::link_graph::{HostIndex, LinkGraph, LinkIndex};
use super::tree::UpPorts;

/// The part of a directed link that a cluster was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkShare {
    pub link: LinkIndex,
    pub lane: VirtualLane,
    /// The service levels of the cluster on this link.
    pub service_levels: ServiceLevelSet,
    /// The rate reserved for the cluster on this link.
    pub share: Bandwidth,
    /// The longest time that its packets wait for other lanes on this link, in nanoseconds.
    pub wait_ns: u64,
}

/// The service level between the hosts of two switches, in both directions, and between hosts of one switch. Keys are
/// switch indices of the [`LinkGraph`], the lower one first.
pub type PairServiceLevels = BTreeMap<(u32, u32), ServiceLevel>;

/// The service level of the paths from all hosts of a switch to a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathServiceLevel {
    /// The index of the senders' switch.
    pub from: u32,
    pub to: HostIndex,
    pub service_level: ServiceLevel,
}

/// What a cluster was granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    pub cluster: ClusterNumber,
    /// In ascending order, each once.
    pub hosts: Vec<HostIndex>,
    /// Per host; see [`AdmissionRequest::bandwidth`](super::admission::AdmissionRequest::bandwidth).
    pub bandwidth: Bandwidth,
    /// See [`AdmissionRequest::latency_ns`](super::admission::AdmissionRequest::latency_ns).
    pub latency_ns: Option<u64>,
    /// The service level of all packets of the cluster; `None` with [`SlMode::Path`](fabric_model::tenancy::SlMode::Path).
    pub service_level: Option<ServiceLevel>,
    /// With [`SlMode::Path`](fabric_model::tenancy::SlMode::Path): the service level of each pair of switches.
    pub pairs: PairServiceLevels,
    /// The service level of each path and direction; empty unless the two directions have service levels of their own.
    pub paths: Vec<PathServiceLevel>,
    /// The up-ports towards each host, in the order of `hosts`; `None` if paths were not selected.
    pub up_ports: Option<Vec<UpPorts>>,
    /// In ascending order of links, each once.
    pub links: Vec<LinkShare>,
    /// An upper bound on the time of a packet between any two hosts if it finds its own lane empty, in nanoseconds. It
    /// holds whatever other clusters send and whichever are admitted later.
    pub bound_ns: u64,
}

impl Grant {
    /// The links of the grant as plans store them.
    pub fn link_grants<'a>(&'a self, graph: &'a LinkGraph) -> impl Iterator<Item = LinkGrant> + 'a {
        self.links.iter().map(|share| LinkGrant {
            port: graph.links()[share.link.index()].from,
            lane: share.lane,
            service_levels: share.service_levels.into(),
            share: share.share,
            wait_ns: Some(share.wait_ns),
        })
    }

    /// The service levels of pairs of switches as plans store them.
    pub fn pair_service_levels(&self, graph: &LinkGraph) -> Vec<PairServiceLevel> {
        if self.pairs.is_empty() {
            return Vec::new();
        }
        let guids: HashMap<u32, Guid> =
            self.hosts.iter().map(|host| (graph.switch_of(*host), graph.switch_guid(*host))).collect();
        let pairs = self.pairs.iter().map(|((a, b), sl)| PairServiceLevel {
            switches: PairServiceLevel::between(guids[a], guids[b]),
            service_level: *sl,
        });
        let mut pairs: Vec<PairServiceLevel> = pairs.collect();
        pairs.sort_unstable_by_key(|pair| pair.switches);
        pairs
    }

    /// The part of a link; `None` if the cluster does not use it.
    pub fn share(&self, link: LinkIndex) -> Option<&LinkShare> {
        let index = self.links.binary_search_by_key(&link, |share| share.link).ok()?;
        self.links.get(index)
    }
}
