//! Clusters that grow and shrink in place.

use fabric_model::tenancy::{ClusterNumber, SlMode};

use super::admission::{AdmissionRequest, Grant, Refusal, RouteChoice};
use super::candidates::few_leaves;
use super::link_graph::HostIndex;
use super::placement::{PlacementError, Placer};

impl Placer {
    /// Adds `nodes` hosts to a cluster, near those it has: in its own leaves first, then in its pods. Its hosts, rate and
    /// service level stay. If it is refused, everything stays as before.
    pub fn grow(&mut self, cluster: ClusterNumber, nodes: usize) -> Result<&Grant, PlacementError> {
        let (needs, had) = self.current(cluster, nodes)?;
        let free = self.free_for(needs);
        let total: u32 = free.iter().sum();
        if nodes == 0 || (total as usize) < nodes {
            return Err(PlacementError::TooFewHosts { requested: nodes, free: total as usize });
        }
        let mut refusal = None;
        for candidate in self.nearby_candidates(&had, &free, nodes as u32) {
            let more = self.hosts_of(&candidate, needs);
            let hosts: Vec<HostIndex> = had.iter().copied().chain(more).collect();
            match self.change_hosts(cluster, &hosts) {
                Ok(()) => return Ok(&self.admission.grants()[&cluster]),
                Err(why) => refusal = refusal.or(Some(why)),
            }
        }
        Err(PlacementError::Refused(refusal.unwrap_or(Refusal::InvalidHosts)))
    }

    /// Removes hosts from a cluster, and ignores those that it does not have. The other hosts stay. Each sends the same rate
    /// to fewer hosts, so a link may need more than before; then the request is refused and everything stays as before.
    pub fn shrink(&mut self, cluster: ClusterNumber, hosts: &[HostIndex]) -> Result<&Grant, PlacementError> {
        let (_, had) = self.current(cluster, 0)?;
        let rest: Vec<HostIndex> = had.into_iter().filter(|host| !hosts.contains(host)).collect();
        self.change_hosts(cluster, &rest).map_err(PlacementError::Refused)?;
        Ok(&self.admission.grants()[&cluster])
    }

    /// The most hosts, up to `nodes`, that [`Self::grow`] would add now. Changes nothing.
    pub fn largest_growth(&mut self, cluster: ClusterNumber, nodes: usize) -> Result<usize, PlacementError> {
        let (needs, had) = self.current(cluster, nodes)?;
        let free = self.free_for(needs);
        let total: u32 = free.iter().sum();
        let (mut fits, mut fails) = (0, nodes.min(total as usize) + 1);
        while fits + 1 < fails {
            let nodes = fits + (fails - fits) / 2;
            let candidates = self.nearby_candidates(&had, &free, nodes as u32);
            let is_possible = candidates.iter().any(|candidate| {
                let more = self.hosts_of(candidate, needs);
                let hosts: Vec<HostIndex> = had.iter().copied().chain(more).collect();
                self.change_requests(cluster, &hosts)
                    .iter()
                    .any(|request| self.admission.check_change(*request).is_ok())
            });
            if is_possible { fits = nodes } else { fails = nodes }
        }
        Ok(fits)
    }

    /// Candidates for further hosts: its own leaves first, then its pods, then anywhere; as few leaves of its pods as
    /// possible; as few leaves of the fabric as possible.
    fn nearby_candidates(&self, had: &[HostIndex], free: &[u32], nodes: u32) -> Vec<Vec<(usize, u32)>> {
        let own: Vec<usize> = {
            let mut leaves: Vec<usize> = had.iter().map(|host| self.leaf_of(*host)).collect();
            leaves.dedup();
            leaves
        };
        let in_pods: Vec<usize> = (self.layout.pods.iter())
            .filter(|pod| pod.iter().any(|leaf| own.contains(leaf)))
            .flatten()
            .copied()
            .collect();
        let all: Vec<usize> = (0..free.len()).collect();
        let mut nearest = Vec::new();
        let mut rest = nodes;
        let mut left = free.to_vec();
        for among in [&own, &in_pods, &all] {
            let here: u32 = among.iter().map(|leaf| left[*leaf]).sum();
            for (leaf, count) in few_leaves(&left, among, rest.min(here)) {
                nearest.push((leaf, count));
                left[leaf] = 0;
                rest -= count;
            }
        }
        let mut candidates = vec![nearest];
        for among in [&in_pods, &all] {
            if among.iter().map(|leaf| free[*leaf]).sum::<u32>() >= nodes {
                candidates.push(few_leaves(free, among, nodes));
            }
        }
        candidates
    }

    fn change_hosts(&mut self, cluster: ClusterNumber, hosts: &[HostIndex]) -> Result<(), Refusal> {
        let [first, then] = self.change_requests(cluster, hosts);
        let before: Vec<HostIndex> =
            self.admission.grants().get(&cluster).map(|grant| grant.hosts.clone()).unwrap_or_default();
        let changed = self.admission.change(first).map(drop);
        changed.or_else(|refusal| self.admission.change(then).map(drop).map_err(|_| refusal))?;
        before.iter().for_each(|host| self.count_free(*host, 1));
        hosts.iter().for_each(|host| self.count_free(*host, -1));
        Ok(())
    }

    /// The requests for other hosts: with the choice of routes that the cluster has, then with the other one.
    fn change_requests<'a>(
        &self,
        cluster: ClusterNumber,
        hosts: &'a [HostIndex],
    ) -> [AdmissionRequest<'a>; 2] {
        let grant = self.admission.grants().get(&cluster);
        let is_path = grant.is_some_and(|grant| grant.service_level.is_none());
        let (bandwidth, latency_ns) = grant.map_or_else(Default::default, |it| (it.bandwidth, it.latency_ns));
        let mode = if is_path { SlMode::Path } else { SlMode::Cluster };
        let [first, then] = match grant.is_some_and(|grant| grant.up_ports.is_some()) {
            true => [RouteChoice::Selected, RouteChoice::Existing],
            false => [RouteChoice::Existing, RouteChoice::Selected],
        };
        [first, then].map(|routes| AdmissionRequest { cluster, hosts, bandwidth, latency_ns, mode, routes })
    }
}
