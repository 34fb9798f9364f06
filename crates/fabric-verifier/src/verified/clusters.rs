//! The cluster intents of a verified plan, kept to be compared with those of the next.

use std::collections::BTreeSet;
use std::sync::Arc;

use fabric_model::intent::ClusterIntent;

/// Cluster intents in order. Clones share unchanged ones.
#[derive(Clone, Debug)]
pub(super) struct Clusters {
    list: Vec<Arc<ClusterIntent>>,
}

impl Clusters {
    pub fn of(clusters: &[ClusterIntent]) -> Self {
        Self { list: clusters.iter().cloned().map(Arc::new).collect() }
    }

    /// The state for another list, and the names of all clusters between the common beginning and the common end of
    /// both lists.
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
