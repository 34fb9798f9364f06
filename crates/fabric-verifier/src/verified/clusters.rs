//! The clusters that are asked for, kept to be compared with the next ones.

use std::collections::BTreeSet;
use std::sync::Arc;

use fabric_model::intent::ClusterIntent;

/// Clusters in the order they are asked for. Copies share what they have in common.
#[derive(Clone, Debug)]
pub(super) struct Clusters {
    list: Vec<Arc<ClusterIntent>>,
}

impl Clusters {
    pub fn of(clusters: &[ClusterIntent]) -> Self {
        Self { list: clusters.iter().cloned().map(Arc::new).collect() }
    }

    /// What is asked for next, and the names of all between what both begin and end with alike.
    pub fn changed<'a>(&'a self, clusters: &'a [ClusterIntent]) -> (Self, BTreeSet<&'a str>) {
        let is_same = |(old, new): &(&Arc<ClusterIntent>, &ClusterIntent)| ***old == **new;
        let front = self.list.iter().zip(clusters).take_while(is_same).count();
        let (old, new) = (&self.list[front..], &clusters[front..]);
        let back = old.iter().rev().zip(new.iter().rev()).take_while(is_same).count();
        let (gone, kept) = old.split_at(old.len() - back);
        let come = &new[..new.len() - back];
        let names = gone.iter().map(|cluster| &**cluster).chain(come).map(|cluster| cluster.name.as_str());
        let middle = come.iter().cloned().map(Arc::new);
        let list = self.list[..front].iter().cloned().chain(middle).chain(kept.iter().cloned()).collect();
        (Self { list }, names.collect())
    }
}
