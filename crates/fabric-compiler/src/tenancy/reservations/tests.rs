use std::sync::Arc;

use fabric_model::generate::{FatTree, FatTreeSize};
use fabric_model::tenancy::{ClusterNumber, SlMode};
use fabric_model::{Decisions, Intents};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;

use super::*;
use crate::compile;
use crate::tenancy::admission::Admission;
use crate::tenancy::link_graph::TenancyLimits;
use crate::tenancy::placement::{Capacity, PlacementRequest, Placer};
use crate::tenancy::tree::UpPorts;

/// 64 hosts in three tiers.
fn graph() -> Arc<LinkGraph> {
    let size = FatTreeSize::Hosts { hosts: 64, tiers: Some(3) };
    let topology = FatTree { radix: 8, ..FatTree::new(size) }.generate().unwrap();
    let (_, host) = topology.end_nodes().next().unwrap();
    let (_, port) = host.ports().next().unwrap();
    let plan = compile(&topology, &Intents::new(port.guid), &Decisions::default()).unwrap();
    Arc::new(LinkGraph::of(&topology, &plan, TenancyLimits { lanes: Some(7), ..TenancyLimits::default() }))
}

/// Checks that the residuals of all links match the reservations. Returns the number of lanes in use.
fn check(reservations: &Reservations, graph: &LinkGraph) -> usize {
    let tree = graph.tree().unwrap();
    let mut taken = 0;
    let mut compare = |residual: &Residual, link: LinkIndex| {
        taken += usize::from(residual.lanes_taken);
        assert_eq!(*residual, super::residual(&reservations.links[link.index()], &mut HashMap::new()));
    };
    for leaf in 0..tree.leaves {
        for (up, residuals) in reservations.residuals().of_leaf(leaf).chunks(2).enumerate() {
            compare(&residuals[0], tree.leaf_up(leaf, up));
            compare(&residuals[1], tree.leaf_down(leaf, up));
        }
    }
    for pod in 0..tree.pods {
        for (number, residuals) in reservations.residuals().of_pod(pod).chunks(2).enumerate() {
            let ports =
                UpPorts { leaf_up: (number / tree.pod_ups) as u8, pod_up: (number % tree.pod_ups) as u8 };
            compare(&residuals[0], tree.pod_up(pod, ports));
            compare(&residuals[1], tree.pod_down(pod, ports));
        }
    }
    taken
}

#[test]
fn residuals_match_reservations_over_1000_changes() {
    let graph = graph();
    let mut placer = Placer::new(Admission::new(Arc::clone(&graph)), |_| Capacity::UNLIMITED);
    let usable = placer.admission().usable(LinkIndex(0));
    let mut random = Pcg64::seed_from_u64(1);
    let mut draw = |below: usize| random.next_u64() as usize % below;
    let (mut most, mut refused) = (0, 0);
    for number in 0..1000 {
        let clusters: Vec<ClusterNumber> = placer.admission().grants().keys().copied().collect();
        let someone = clusters.get(draw(clusters.len().max(1))).copied();
        let is_refused = match (draw(5), someone) {
            (0, Some(cluster)) => placer.release(cluster).is_none(),
            (1, Some(cluster)) => placer.grow(cluster, 1 + draw(6)).is_err(),
            (2, Some(cluster)) => {
                let first = placer.admission().grants()[&cluster].hosts[0];
                placer.shrink(cluster, &[first]).is_err()
            }
            _ => {
                let bandwidth = usable.part([0.0, 0.5, 1.0][draw(3)]);
                let mode = [SlMode::Cluster, SlMode::Path][draw(2)];
                let (cluster, needs) = (ClusterNumber(number), Capacity::NONE);
                placer
                    .place(PlacementRequest { cluster, nodes: 1 + draw(20), needs, bandwidth, mode })
                    .is_err()
            }
        };
        refused += usize::from(is_refused);
        most = most.max(check(placer.admission().reservations(), &graph));
    }
    assert!(most > 100 && refused > 100, "{most} lanes, {refused} refused");
}

#[test]
fn pair_demand_agrees_with_exact_division() {
    let mut random = Pcg64::seed_from_u64(2);
    // Numbers of every length, because rates and hosts differ by orders of magnitude.
    let mut number = || random.next_u64() >> (random.next_u64() % 64);
    for _ in 0..200_000 {
        let (rate, others, pairs, below) = (number(), number() >> 32, number() >> 48, number().max(1));
        let demand = PairDemand::new(rate, others + 1, pairs);
        let whole = (u128::from(below) * u128::from(others)).saturating_sub(1);
        let needed = u128::from(rate.saturating_mul(pairs.max(1)));
        let times = whole.checked_div(needed).map_or(u64::MAX, |times| times as u64);
        assert_eq!(demand.times(below), times, "{rate} to {others}, {pairs} pairs, below {below}");
    }
}
