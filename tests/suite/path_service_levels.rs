//! In clusters with service levels by pairs of switches, path records name the service level that the tables of the
//! plan carry, in both directions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use fabric_compiler::{CompileError, Planner};
use fabric_model::generate::{FatTree, FatTreeSize};
use fabric_model::intent::{
    ClusterIntent, Member, MemberSelector, PartitionIntent, PkeyPlacement, PortName, Role,
};
use fabric_model::tenancy::{Bandwidth, Class, SlMode};
use fabric_model::{Decisions, FabricPlan, Intents};
use fabric_verifier::verify;
use ib_wire::sa::{PathRecord, Record};
use ib_wire::{
    Datagram, Guid, LidAddress, Mad, ManagementClass, Method, Pkey, ServiceLevel, Status, TransactionId,
    VirtualLane,
};
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use subnet_manager::{Directory, ManagerFacts, SubnetAdministration};

const SEED: u64 = 20_261_115;

/// The service level in the path record from one port to another.
fn told(administration: &mut SubnetAdministration, plan: &FabricPlan, from: Guid, to: Guid) -> ServiceLevel {
    let lid = |port: Guid| plan.adapter_port(port).unwrap().lid;
    let mut mad = Mad::new(ManagementClass::SUBNET_ADMINISTRATION, Method::GET, PathRecord::ATTRIBUTE, 0);
    mad.set_transaction(TransactionId(1));
    mad.sa_data_mut()[40..42].copy_from_slice(&lid(to).to_wire().to_be_bytes());
    mad.sa_data_mut()[42..44].copy_from_slice(&lid(from).to_wire().to_be_bytes());
    mad.set_component_mask(PathRecord::DLID | PathRecord::SLID);
    let manager = LidAddress::Unicast(plan.manager().lid);
    let question = Datagram::general_management(
        LidAddress::Unicast(lid(from)),
        manager,
        Pkey::from_wire(0x7fff).unwrap(),
        mad,
    );
    administration.handle_datagram(Duration::ZERO, &question);
    let answer = administration.poll_transmit(Duration::ZERO).unwrap();
    assert_eq!(answer.mad.status(), Status::OK);
    PathRecord::decode(answer.mad.sa_data()).unwrap().sl
}

/// The output ports and lanes of packets from one port to another; `None` if they are discarded.
fn way(plan: &FabricPlan, from: Guid, to: Guid, sl: ServiceLevel) -> Option<Vec<(PortName, VirtualLane)>> {
    let (start, end) = (plan.adapter_port(from)?, plan.adapter_port(to)?);
    let mut way = vec![(start.name, start.qos.as_ref()?.otherwise.lane(sl))];
    let mut here = start.peer;
    while here != end.name {
        let switch = plan.switch(here.node)?;
        let exit = switch.port(switch.linear.exit(end.lid)?)?;
        way.push((PortName { node: here.node, port: exit.number }, exit.qos.as_ref()?.lane(here.port, sl)?));
        here = exit.peer;
    }
    Some(way)
}

#[test]
fn path_records_and_tables_agree_on_service_levels() {
    let mut random = Pcg64::seed_from_u64(SEED);
    let oversubscription = "7:1".parse().unwrap();
    let tree = FatTree { radix: 8, oversubscription, ..FatTree::new(FatTreeSize::Leaves(8)) };
    let tree = Arc::new(tree.generate().unwrap());
    let mut free: Vec<Guid> = tree.end_nodes().map(|(_, node)| node.ports().next().unwrap().1.guid).collect();
    let mut intents = Intents::new(free.remove(0));
    free.shuffle(&mut random);
    let mut planner = Planner::new(Arc::clone(&tree), intents.clone(), &Decisions::default()).unwrap();
    while free.len() > 4 {
        let ports = free.split_off(free.len() - random.random_range(2..=4));
        let (name, mut more) = (format!("c{}", free.len()), intents.clone());
        let member = |port: &Guid| Member {
            selector: MemberSelector::Port(*port),
            role: Role::Full,
            placement: PkeyPlacement::Anywhere,
        };
        let members = ports.iter().map(member).collect();
        more.partitions.push(PartitionIntent { name: name.clone(), number: None, members, ipoib: None });
        let class = Class::Guaranteed { bandwidth: Bandwidth::ZERO, latency_ns: None };
        more.clusters.push(ClusterIntent { name, ports, class, sl_mode: SlMode::Path });
        match planner.change(&more) {
            Ok(_) => intents = more,
            Err(error) => assert!(matches!(error, CompileError::NotAdmitted { .. }), "{error}"),
        }
    }
    let plan = Arc::clone(planner.plan());
    assert_eq!(verify(&tree, &intents, &plan), []);

    let mut administration = SubnetAdministration::new();
    let manager = ManagerFacts::default();
    administration.publish(Arc::new(Directory::new(Arc::clone(&plan), manager, [])));
    let mut levels: Vec<usize> = Vec::new();
    for (name, decision) in &plan.decisions().clusters {
        let lanes: BTreeMap<PortName, VirtualLane> =
            decision.links.iter().map(|link| (link.port, link.lane)).collect();
        let mut seen = BTreeSet::new();
        for from in &decision.ports {
            for to in decision.ports.iter().filter(|to| *to != from) {
                let sl = told(&mut administration, &plan, *from, *to);
                assert_eq!(told(&mut administration, &plan, *to, *from), sl, "{name}: {from} and {to}");
                for (port, lane) in way(&plan, *from, *to, sl).unwrap() {
                    assert_eq!(lanes.get(&port), Some(&lane), "{name}: {from} to {to} at {port}");
                }
                seen.insert(sl);
            }
        }
        levels.push(seen.len());
    }
    assert!(levels.len() >= 10 && levels.iter().any(|count| *count > 1), "{levels:?}");
}
