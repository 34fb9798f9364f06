use controller_api::cluster::AdapterKind;
use fabric_model::generate::FatTree;
use fabric_model::intent::PartitionOwners;
use fabric_model::tenancy::{Bandwidth, Class};
use ib_wire::Guid;
use uuid::Uuid;

use super::*;
use crate::network::{adapter_guid, fabric_intent};
use crate::store::ClusterRow;

/// A fabric of 16 hosts, and the ports of those.
fn fabric() -> (Arc<DiscoveredFabric>, Vec<Guid>) {
    let topology = FatTree { radix: 8, ..FatTree::with_hosts(16) }.generate().unwrap();
    let ports: Vec<Guid> =
        topology.end_nodes().map(|(_, host)| host.ports().next().unwrap().1.guid).collect();
    let intents = Intents::new(ports[0]);
    (Arc::new(DiscoveredFabric { topology: Arc::new(topology), intents }), ports)
}

fn cluster(id: u16, partition: u16, ports: &[Guid]) -> ClusterRow {
    let mut row = crate::lifecycle::tests::cluster(ports.len() as u32);
    (row.id, row.partition) = (Uuid::from_u128(id.into()), PartitionNumber::from_wire(partition));
    row.nodes.iter_mut().zip(ports).for_each(|(node, port)| node.port_guid = *port);
    row
}

fn guaranteed(id: u16, ports: &[Guid]) -> ClusterRow {
    let bandwidth = Bandwidth::from_bits_per_s(1_000_000_000);
    ClusterRow { class: Class::Guaranteed { bandwidth, latency_ns: None }, ..cluster(id, 0x100 + id, ports) }
}

/// Proposes and commits the plan for each of the intents; a trial precedes each if there is one.
fn committed(
    discovered: &Arc<DiscoveredFabric>,
    steps: &[Vec<ClusterRow>],
    trial: Option<&[ClusterRow]>,
) -> (Planning, Vec<Arc<FabricPlan>>) {
    let planning = Planning::new(Arc::default());
    let mut plans = Vec::new();
    for step in steps {
        if let Some(trial) = trial {
            planning.propose_blocking(discovered, &fabric_intent(trial)).unwrap();
        }
        let candidate = planning.propose_blocking(discovered, &fabric_intent(step)).unwrap();
        plans.push(Arc::clone(candidate.plan()));
        planning.commit(candidate).unwrap();
    }
    (planning, plans)
}

#[test]
fn trials_leave_no_trace_in_later_plans() {
    let (discovered, ports) = fabric();
    let (one, two) = (guaranteed(1, &ports[1..4]), guaranteed(2, &ports[4..8]));
    let steps = [vec![one.clone()], vec![one.clone(), two.clone()], vec![two]];
    let trial = [guaranteed(9, &ports[1..8]), guaranteed(8, &ports[8..12])];
    let (_, without) = committed(&discovered, &steps, None);
    let (_, with) = committed(&discovered, &steps, Some(&trial));
    assert_eq!(with, without);
    // Control: a trial that is committed does change what follows.
    let other: Vec<Vec<ClusterRow>> = [vec![trial.to_vec()], steps.to_vec()].concat();
    let (_, after_commit) = committed(&discovered, &other, None);
    assert_ne!(after_commit[1..], without[..]);
}

#[test]
fn a_rejected_proposal_leaves_the_current_plan() {
    let (discovered, ports) = fabric();
    let one = guaranteed(1, &ports[1..4]);
    let (planning, plans) = committed(&discovered, &[vec![one.clone()]], None);
    let taken = [one.clone(), guaranteed(2, &ports[3..5])];
    let error = planning.propose_blocking(&discovered, &fabric_intent(&taken)).unwrap_err();
    assert!(matches!(error, PlanningError::Compile(CompileError::NotAdmitted { .. })), "{error}");
    let again = planning.propose_blocking(&discovered, &fabric_intent(&[one])).unwrap();
    assert_eq!(again.plan(), &plans[0]);
}

#[test]
fn a_trial_that_is_proposed_again_is_not_compiled_again() {
    let (discovered, ports) = fabric();
    let intent = fabric_intent(&[guaranteed(1, &ports[1..4])]);
    let planning = Planning::new(Arc::default());
    let trial = planning.propose_blocking(&discovered, &intent).unwrap();
    let candidate = planning.propose_blocking(&discovered, &intent).unwrap();
    assert!(Arc::ptr_eq(trial.plan(), candidate.plan()));
}

#[test]
fn a_stale_candidate_is_not_committed() {
    let (discovered, ports) = fabric();
    let planning = Planning::new(Arc::default());
    let of =
        |id| planning.propose_blocking(&discovered, &fabric_intent(&[cluster(id, 0x100 + id, &ports[1..3])]));
    let (first, second) = (of(1).unwrap(), of(2).unwrap());
    assert_eq!(planning.commit(second), Ok(()));
    assert_eq!(planning.commit(first), Err(StaleCandidate));
}

#[test]
fn two_clusters_with_one_number_are_never_planned() {
    let (discovered, ports) = fabric();
    let planned = |intent: &FabricIntent| {
        let candidate = Planning::new(Arc::default()).propose_blocking(&discovered, intent)?;
        Ok::<_, PlanningError>(Arc::clone(candidate.plan()))
    };
    let apart = fabric_intent(&[cluster(1, 0x101, &ports[1..2]), cluster(2, 0x102, &ports[2..3])]);
    let sound = planned(&apart).unwrap();
    assert_eq!(check_tables(&discovered, &apart, &sound), [""; 0]);

    let joined = fabric_intent(&[cluster(1, 0x101, &ports[1..2]), cluster(2, 0x101, &ports[2..3])]);
    let refused = planned(&joined).unwrap_err();
    assert!(matches!(refused, PlanningError::Compile(CompileError::NumberShared { .. })), "{refused}");
    // The verifier also finds it in tables that were read back.
    let merged = FabricIntent { owners: PartitionOwners::new(), ..joined.clone() };
    let held = planned(&merged).unwrap();
    let found = check_tables(&discovered, &joined, &held);
    assert!(found.len() == 1 && found[0].contains("partition number 0x0101 belongs to both"), "{found:?}");
}

#[test]
fn a_cluster_has_its_key_first_where_it_came_to_a_free_port() {
    let (discovered, ports) = fabric();
    let (one, two) = (cluster(1, 0x101, &ports[1..3]), cluster(2, 0x102, &ports[2..4]));
    let steps = [vec![one.clone()], vec![one, two.clone()], vec![two], Vec::new()];
    let (_, plans) = committed(&discovered, &steps, None);
    let keys = |step: usize, port: usize| -> Vec<u16> {
        let table = &plans[step].adapter_port(ports[port]).unwrap().pkeys;
        table.entries().iter().map(|key| key.map_or(0, |key| key.to_wire())).collect()
    };
    assert_eq!(
        (keys(0, 1), keys(0, 2), keys(0, 3)),
        (vec![0x8101, 0x7fff], vec![0x8101, 0x7fff], vec![0x7fff])
    );
    // Somebody else comes: no index changes.
    assert_eq!((keys(1, 1), keys(1, 2)), (vec![0x8101, 0x7fff], vec![0x8101, 0x7fff, 0x8102]));
    assert_eq!(keys(1, 3), [0x8102, 0x7fff]);
    // The first one leaves: the index of the other does not change while it is there.
    assert_eq!(
        (keys(2, 1), keys(2, 2), keys(2, 3)),
        (vec![0x7fff], vec![0x7fff, 0, 0x8102], vec![0x8102, 0x7fff])
    );
    assert_eq!((keys(3, 2), keys(3, 3)), (vec![0x7fff], vec![0x7fff]));
}

#[test]
fn nodes_with_infiniband_adapters_have_an_alias_of_their_port_while_they_are_carried() {
    let (discovered, ports) = fabric();
    let mut one = ClusterRow { adapter: AdapterKind::Infiniband, ..cluster(1, 0x101, &ports[1..4]) };
    // Two nodes behind one port.
    (one.nodes[1].port_guid, one.nodes[1].function) = (ports[1], one.nodes[0].function + 1);
    let mut fenced = one.clone();
    fenced.nodes[0].fenced = true;
    let ethernet = cluster(2, 0x102, &ports[4..6]);
    let (_, plans) =
        committed(&discovered, &[vec![one.clone(), ethernet.clone()], vec![fenced, ethernet]], None);
    let aliases = |plan: &FabricPlan, port: Guid| plan.adapter_port(port).unwrap().aliases.clone();
    let guids = [0, 1].map(|node| adapter_guid(&one, &one.nodes[node]).unwrap());
    assert_ne!(guids[0], guids[1]);
    assert!(guids.iter().all(|guid| guid.to_wire() >> 56 & 3 == 2), "local, and of one port");
    let both: Vec<Guid> = aliases(&plans[0], ports[1]).values().map(|alias| alias.guid).collect();
    assert_eq!(both, guids);
    let partitions = aliases(&plans[0], ports[1])[&one.nodes[0].function].partitions.clone();
    assert_eq!(partitions, [one.partition.unwrap(), PartitionNumber::DEFAULT].into());
    assert!(aliases(&plans[0], ports[4]).is_empty(), "an Ethernet card has none");
    let left: Vec<Guid> = aliases(&plans[1], ports[1]).values().map(|alias| alias.guid).collect();
    assert_eq!(left, [guids[1]]);
}
