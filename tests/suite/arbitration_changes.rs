//! Guaranteed clusters come and go on an emulated fabric; after every single write, an arbitration table is that of the plan
//! before or that of the plan after the change.

use std::collections::BTreeMap;
use std::sync::Arc;

use fabric_compiler::compile;
use fabric_model::Intents;
use fabric_model::generate::{FatTree, FatTreeSize, Oversubscription};
use fabric_model::intent::ClusterIntent;
use fabric_sim::Capacities;
use ib_wire::{Attribute, Mad, VlArbBlock, VlArbEntry, VlArbPart};

use crate::in_process::recorded::RecordedManager;

const ENTRIES: usize = 64;

type Table = [VlArbEntry; ENTRIES];

/// The table: the directed route to its node, and the port of the modifier.
type Place = (Vec<u8>, u16);

/// A manager, and the low-priority arbitration tables that result from its writes.
struct Site {
    recorded: RecordedManager,
    tables: BTreeMap<Place, Table>,
}

impl Site {
    /// Programs a plan for some clusters and checks every table after every write. Returns the number of tables written.
    fn apply(&mut self, clusters: &[ClusterIntent]) -> usize {
        let programmed = self.recorded.programmed;
        self.recorded.apply(clusters);
        assert_eq!(self.recorded.programmed, programmed + 1);
        let before = self.tables.clone();
        // Every table after every write of it.
        let instants: Vec<(Place, Table)> =
            self.recorded.sets.iter().filter_map(|mad| written(&mut self.tables, mad)).collect();
        for (place, instant) in &instants {
            let Some(before) = before.get(place) else { continue };
            assert!(instant == before || *instant == self.tables[place], "{place:?}");
            assert!(instant[VlArbBlock::ENTRIES..].iter().all(|entry| entry.weight == 0), "{place:?}");
        }
        instants.len()
    }
}

/// The table that a Set has changed, with its new content.
fn written(tables: &mut BTreeMap<Place, Table>, mad: &Mad) -> Option<(Place, Table)> {
    if mad.attribute() != Attribute::VL_ARBITRATION {
        return None;
    }
    let (part, port) = VlArbPart::from_modifier(mad.modifier()).unwrap();
    if part.is_high() {
        return None;
    }
    let route = (1..=mad.hop_count()).filter_map(|hop| mad.initial_path(hop)).collect();
    let place = (route, port);
    let table = tables.entry(place.clone()).or_insert([VlArbEntry::default(); ENTRIES]);
    let block = VlArbBlock::decode(mad.smp_data());
    table[part.first_entry()..][..VlArbBlock::ENTRIES].copy_from_slice(&block.0);
    Some((place, *table))
}

#[test]
fn tables_change_in_one_write_while_clusters_come_and_go() {
    // Two leaves with one cable each to the spine: all traffic between them shares these links.
    let oversubscription = Oversubscription { down: 11, up: 1 };
    let size = FatTreeSize::Leaves(2);
    let topology = FatTree { radix: 12, oversubscription, ..FatTree::new(size) }.generate().unwrap();
    let capacities = Capacities { arbitration_entries: ENTRIES as u8, ..Capacities::default() };
    let recorded = RecordedManager::new(topology, capacities);
    let mut site = Site { recorded, tables: BTreeMap::new() };
    // A host of each leaf.
    let pair = |site: &Site, name: &str, at: usize, bandwidth: u64| {
        site.recorded.cluster(name, &[at, 11 + at], bandwidth)
    };
    assert_eq!(site.apply(&[]), 0, "there are no guarantees");
    let parts = [308, 150, 72, 1, 1, 1];
    let usable = usable_bits_per_s(&site.recorded);
    let mut clusters: Vec<ClusterIntent> =
        (1..).zip(parts).map(|(at, part)| pair(&site, &format!("c{at}"), at, usable / 1000 * part)).collect();
    for count in 1..=clusters.len() {
        assert!(site.apply(&clusters[..count]) > 0, "the shared links change");
    }
    clusters = vec![clusters[3].clone(), clusters[5].clone()];
    assert!(site.apply(&clusters) > 0);
    clusters.push(pair(&site, "wide", 1, usable / 1000 * 620));
    assert!(site.apply(&clusters) > 0);
    clusters.remove(0);
    assert!(site.apply(&clusters) > 0);
}

/// The rate of a link that guaranteed clusters may use.
fn usable_bits_per_s(recorded: &RecordedManager) -> u64 {
    use fabric_compiler::tenancy::admission::Admission;
    use fabric_compiler::tenancy::link_graph::{LinkGraph, TenancyLimits};
    let discovery = recorded.discovery.as_ref().unwrap();
    let plan = compile(&discovery.topology, &Intents::new(discovery.manager), &recorded.decisions).unwrap();
    let graph = Arc::new(LinkGraph::of(&discovery.topology, &plan, TenancyLimits::default()));
    let link = graph.hosts()[0].inward;
    Admission::new(graph).usable(link).bits_per_s()
}
