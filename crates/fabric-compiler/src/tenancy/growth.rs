//! Clusters that grow and shrink where they are.

use fabric_model::tenancy::{ClusterNumber, SlMode};

use super::ledger::{Grant, Refusal, Request, Routes};
use super::network::HostIndex;
use super::placement::{NoPlace, Places};
use super::proposals::few_leaves;

impl Places {
    /// Gives a cluster more hosts, near those it has. Nothing moves, its service level stays, and if it is refused all is as
    /// before.
    pub fn grow(&mut self, cluster: ClusterNumber, nodes: usize) -> Result<&Grant, NoPlace> {
        let (needs, had) = self.had(cluster)?;
        let free = self.free_for(needs);
        let total: u32 = free.iter().sum();
        if nodes == 0 || (total as usize) < nodes {
            return Err(NoPlace::Hosts { asked: nodes, free: total as usize });
        }
        let mut refusal = None;
        for place in self.near(&had, &free, nodes as u32) {
            let more = self.hosts_of(&place, needs);
            let hosts: Vec<HostIndex> = had.iter().copied().chain(more).collect();
            match self.change(cluster, &hosts) {
                Ok(()) => return Ok(&self.ledger.grants()[&cluster]),
                Err(why) => refusal = refusal.or(Some(why)),
            }
        }
        Err(NoPlace::Links(refusal.unwrap_or(Refusal::Hosts)))
    }

    /// Takes hosts back from a cluster; those that it does not have are passed over. The others stay with all they have but
    /// a rate that is shared out among fewer. If it is refused, which happens where that rate does not fit on a link, all is
    /// as before.
    pub fn shrink(&mut self, cluster: ClusterNumber, hosts: &[HostIndex]) -> Result<&Grant, NoPlace> {
        let (_, had) = self.had(cluster)?;
        let rest: Vec<HostIndex> = had.into_iter().filter(|host| !hosts.contains(host)).collect();
        self.change(cluster, &rest).map_err(NoPlace::Links)?;
        Ok(&self.ledger.grants()[&cluster])
    }

    /// The most hosts, up to some, that a cluster would be given in addition now, without giving them.
    pub fn largest_growth(&mut self, cluster: ClusterNumber, nodes: usize) -> Result<usize, NoPlace> {
        let (needs, had) = self.had(cluster)?;
        let free = self.free_for(needs);
        let total: u32 = free.iter().sum();
        let (mut fits, mut fails) = (0, nodes.min(total as usize) + 1);
        while fits + 1 < fails {
            let nodes = fits + (fails - fits) / 2;
            let places = self.near(&had, &free, nodes as u32);
            let is_possible = places.iter().any(|place| {
                let more = self.hosts_of(place, needs);
                let hosts: Vec<HostIndex> = had.iter().copied().chain(more).collect();
                self.changed(cluster, &hosts).iter().any(|request| self.ledger.check_change(*request).is_ok())
            });
            if is_possible { fits = nodes } else { fails = nodes }
        }
        Ok(fits)
    }

    /// Places for more hosts of a cluster: its own leaves first, then its pods, then anywhere; or few leaves of its pods, or
    /// of all.
    fn near(&self, had: &[HostIndex], free: &[u32], nodes: u32) -> Vec<Vec<(usize, u32)>> {
        let own: Vec<usize> = {
            let mut leaves: Vec<usize> = had.iter().map(|host| self.leaf_of(*host)).collect();
            leaves.dedup();
            leaves
        };
        let in_pods: Vec<usize> = (self.shape.pods.iter())
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
        let mut places = vec![nearest];
        for among in [&in_pods, &all] {
            if among.iter().map(|leaf| free[*leaf]).sum::<u32>() >= nodes {
                places.push(few_leaves(free, among, nodes));
            }
        }
        places
    }

    fn change(&mut self, cluster: ClusterNumber, hosts: &[HostIndex]) -> Result<(), Refusal> {
        let [first, then] = self.changed(cluster, hosts);
        let before: Vec<HostIndex> =
            self.ledger.grants().get(&cluster).map(|grant| grant.hosts.clone()).unwrap_or_default();
        let changed = self.ledger.change(first).map(drop);
        changed.or_else(|refusal| self.ledger.change(then).map(drop).map_err(|_| refusal))?;
        before.iter().for_each(|host| self.count_free(*host, 1));
        hosts.iter().for_each(|host| self.count_free(*host, -1));
        Ok(())
    }

    /// What a cluster has, with other hosts: by the routes it has, or else by others.
    fn changed<'a>(&self, cluster: ClusterNumber, hosts: &'a [HostIndex]) -> [Request<'a>; 2] {
        let grant = self.ledger.grants().get(&cluster);
        let is_path = grant.is_some_and(|grant| grant.service_level.is_none());
        let bandwidth = grant.map_or(Default::default(), |grant| grant.bandwidth);
        let mode = if is_path { SlMode::Path } else { SlMode::Cluster };
        let [first, then] = match grant.is_some_and(|grant| grant.ways.is_some()) {
            true => [Routes::Chosen, Routes::Given],
            false => [Routes::Given, Routes::Chosen],
        };
        [first, then].map(|routes| Request { cluster, hosts, bandwidth, mode, routes })
    }
}
