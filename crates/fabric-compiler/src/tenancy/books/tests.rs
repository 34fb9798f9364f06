use std::sync::Arc;

use fabric_model::generate::{FatTree, FatTreeSize};
use fabric_model::tenancy::{ClusterNumber, SlMode};
use fabric_model::{Decisions, Intents};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;

use super::*;
use crate::compile;
use crate::tenancy::ledger::Ledger;
use crate::tenancy::network::Limits;
use crate::tenancy::placement::{Capacity, Places, Wish};
use crate::tenancy::tree::Way;

/// 64 hosts in three levels.
fn network() -> Arc<Network> {
    let size = FatTreeSize::Hosts { hosts: 64, levels: Some(3) };
    let topology = FatTree { radix: 8, ..FatTree::new(size) }.generate().unwrap();
    let (_, host) = topology.end_nodes().next().unwrap();
    let (_, port) = host.ports().next().unwrap();
    let plan = compile(&topology, &Intents::new(port.guid), &Decisions::default()).unwrap();
    Arc::new(Network::of(&topology, &plan, Limits { lanes: Some(7), ..Limits::default() }))
}

/// What is left of every link of a tree is what its books say.
fn check(books: &Books, network: &Network) -> usize {
    let tree = network.tree().unwrap();
    let mut taken = 0;
    let mut compare = |room: &Room, link: LinkIndex| {
        taken += usize::from(room.lanes_taken);
        assert_eq!(*room, books.links[link.index()].room());
    };
    for leaf in 0..tree.leaves {
        for (up, rooms) in books.rooms().of_leaf(leaf).chunks(2).enumerate() {
            compare(&rooms[0], tree.leaf_up(leaf, up));
            compare(&rooms[1], tree.leaf_down(leaf, up));
        }
    }
    for pod in 0..tree.pods {
        for (number, rooms) in books.rooms().of_pod(pod).chunks(2).enumerate() {
            let way = Way { leaf_up: (number / tree.pod_ups) as u8, pod_up: (number % tree.pod_ups) as u8 };
            compare(&rooms[0], tree.pod_up(pod, way));
            compare(&rooms[1], tree.pod_down(pod, way));
        }
    }
    taken
}

#[test]
fn rooms_are_what_the_books_say_over_a_thousand_changes() {
    let network = network();
    let mut places = Places::new(Ledger::new(Arc::clone(&network)), |_| Capacity::UNLIMITED);
    let usable = places.ledger().usable(LinkIndex(0));
    let mut random = Pcg64::seed_from_u64(1);
    let mut draw = |below: usize| random.next_u64() as usize % below;
    let (mut most, mut refused) = (0, 0);
    for number in 0..1000 {
        let clusters: Vec<ClusterNumber> = places.ledger().grants().keys().copied().collect();
        let someone = clusters.get(draw(clusters.len().max(1))).copied();
        let is_refused = match (draw(5), someone) {
            (0, Some(cluster)) => places.release(cluster).is_none(),
            (1, Some(cluster)) => places.grow(cluster, 1 + draw(6)).is_err(),
            (2, Some(cluster)) => {
                let first = places.ledger().grants()[&cluster].hosts[0];
                places.shrink(cluster, &[first]).is_err()
            }
            _ => {
                let bandwidth = usable.part([0.0, 0.5, 1.0][draw(3)]);
                let mode = [SlMode::Cluster, SlMode::Path][draw(2)];
                let (cluster, needs) = (ClusterNumber(number), Capacity::NONE);
                places.place(Wish { cluster, nodes: 1 + draw(20), needs, bandwidth, mode }).is_err()
            }
        };
        refused += usize::from(is_refused);
        most = most.max(check(places.ledger().books(), &network));
    }
    assert!(most > 100 && refused > 100, "{most} lanes, {refused} refused");
}

#[test]
fn demands_are_held_as_often_as_division_says() {
    let mut random = Pcg64::seed_from_u64(2);
    // Numbers of every length, since rates and hosts are of very different ones.
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
