//! Prints how long verification takes: whole plans rule by rule, then one cluster added or removed (CPU time of the
//! thread). First with best-effort clusters, then with guaranteed ones.
//!
//! `cargo run --release -p fabric-verifier --example verify_time -- 324 1944 11664`

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabric_compiler::{CompileError, Planner, compile};
use fabric_model::generate::FatTree;
use fabric_model::intent::{
    ClusterIntent, Ipoib, Member, MemberSelector, PartitionIntent, PkeyPlacement, Role,
};
use fabric_model::plan::{Basis, PlanParts, PortQos};
use fabric_model::tenancy::{Bandwidth, Class, SlMode};
use fabric_model::{Decisions, FabricPlan, Intents, Topology};
use fabric_verifier::{Rule, Verified, verify, verify_rule};
use ib_wire::{Guid, PortNum, SlToVl, VirtualLane, VlArbEntry};
use nix::time::{ClockId, clock_gettime};

/// Nodes of a cluster: with 11,664 hosts that makes 1,458 of them.
const CLUSTER: usize = 8;

/// Clusters that are removed and added again.
const DELTAS: usize = 100;

/// One in this many hosts, the last of each leaf, is in a cluster that is spread over the fabric.
const APART: usize = 18;

/// Guaranteed bandwidth of each node, in bits per second.
const BANDWIDTH: u64 = 1_000_000_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let hosts: Vec<u32> = std::env::args().skip(1).map(|text| text.parse()).collect::<Result<_, _>>()?;
    print!("{:>6} {:>8} {:>8} {:>7} {:>7}", "hosts", "switches", "clusters", "shared", "all ms");
    Rule::ALL.iter().for_each(|rule| print!(" {:>12}", rule.to_string()));
    println!();
    for hosts in if hosts.is_empty() { vec![324, 648, 1944, 4860, 11664] } else { hosts } {
        measure(&Arc::new(FatTree::with_hosts(hosts).generate()?))?;
    }
    Ok(())
}

fn measure(tree: &Arc<Topology>) -> Result<(), Box<dyn std::error::Error>> {
    let ports: Vec<Guid> =
        tree.end_nodes().filter_map(|(_, host)| Some(host.ports().next()?.1.guid)).collect();
    let mut intents = Intents::new(*ports.first().ok_or("no host")?);
    // Every cluster has one node in each of eight parts of the fabric, so that its tree is large.
    let step = ports.len().div_ceil(CLUSTER);
    intents.partitions = (0..step)
        .map(|cluster| PartitionIntent {
            name: format!("cluster-{cluster}"),
            number: None,
            members: (ports.iter().skip(cluster).step_by(step))
                .map(|port| Member {
                    selector: MemberSelector::Port(*port),
                    role: Role::Full,
                    placement: PkeyPlacement::First,
                })
                .collect(),
            ipoib: Some(Ipoib::default()),
        })
        .collect();
    // Clusters that are everywhere meet in every top switch, each as a group.
    intents.capabilities.default_switch.multicast = 4096;
    let plan = compile(tree, &intents, &Decisions::default())?;
    report(tree, &intents, &plan, false);
    report(tree, &intents, &with_sharings(&plan), true);
    one_cluster(tree, &intents, plan)?;
    measure_guaranteed(tree, &ports)
}

/// Measures plans with guaranteed clusters.
fn measure_guaranteed(tree: &Arc<Topology>, ports: &[Guid]) -> Result<(), Box<dyn std::error::Error>> {
    let mut intents = Intents::new(*ports.first().ok_or("no host")?);
    intents.capabilities.default_switch.multicast = 4096;
    intents.capabilities.default_port.arbitration = 64;
    let is_apart = |index: usize| index % APART == APART - 1;
    let part = |wanted: bool| -> Vec<Guid> {
        let indices = (0..ports.len()).filter(|index| is_apart(*index) == wanted);
        indices.map(|index| ports[index]).collect()
    };
    let (together, apart) = (part(false), part(true));
    let step = apart.len() / CLUSTER;
    let spread = (0..step).map(|cluster| apart.iter().copied().skip(cluster).step_by(step).take(CLUSTER));
    let clusters = together.chunks_exact(CLUSTER).map(<[Guid]>::to_vec);
    for (index, ports) in clusters.chain(spread.map(Iterator::collect)).enumerate() {
        let name = format!("cluster-{index:05}");
        let member = |port: &Guid| Member {
            selector: MemberSelector::Port(*port),
            role: Role::Full,
            placement: PkeyPlacement::First,
        };
        let (members, ipoib) = (ports.iter().map(member).collect(), Some(Ipoib::default()));
        intents.partitions.push(PartitionIntent { name: name.clone(), number: None, members, ipoib });
        let bandwidth = Bandwidth::from_bits_per_s(BANDWIDTH);
        let class = Class::Guaranteed { bandwidth, latency_ns: None };
        intents.clusters.push(ClusterIntent { name, ports, class, sl_mode: SlMode::Cluster });
    }
    // Clusters that are not admitted are left out.
    let plan = loop {
        match compile(tree, &intents, &Decisions::default()) {
            Err(CompileError::NotAdmitted { cluster, .. }) => {
                intents.clusters.retain(|other| other.name != cluster);
                intents.partitions.retain(|other| other.name != cluster);
            }
            plan => break plan?,
        }
    };
    report(tree, &intents, &plan, true);
    one_cluster(tree, &intents, plan)
}

/// Removes clusters and adds them again, one at a time.
fn one_cluster(
    tree: &Arc<Topology>,
    intents: &Intents,
    plan: FabricPlan,
) -> Result<(), Box<dyn std::error::Error>> {
    let basis = Basis::of(tree, intents);
    let mut planner = Planner::resume(Arc::clone(tree), intents.clone(), &plan)?;
    let mut verified = Verified::of(tree, intents, Arc::clone(planner.plan()));
    let mut times = Vec::new();
    for cluster in (0..intents.partitions.len()).step_by(intents.partitions.len().div_ceil(DELTAS)) {
        let mut fewer = intents.clone();
        let gone = fewer.partitions.remove(cluster);
        fewer.clusters.retain(|other| other.name != gone.name);
        for intents in [&fewer, intents] {
            let plan = Arc::clone(planner.change(intents)?);
            let start = processor_time()?;
            let next = verified.delta_with_basis(basis, tree, intents, plan);
            times.push((processor_time()? - start).as_micros());
            verified = next;
            assert_eq!(verified.findings().count(), 0, "one cluster more or less verifies clean");
        }
    }
    times.sort_unstable();
    let part = |part: usize| times[(times.len() - 1) * part / 100];
    let (count, median, late, most) = (times.len(), part(50), part(99), part(100));
    println!(
        "       one cluster more or less, {count} times: median {median} µs, 99 % {late} µs, most {most} µs"
    );
    Ok(())
}

/// CPU time of this thread: other programs may use the machine at the same time.
fn processor_time() -> Result<Duration, nix::Error> {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from)
}

fn report(tree: &Topology, intents: &Intents, plan: &FabricPlan, is_shared: bool) {
    let start = Instant::now();
    let findings = verify(tree, intents, plan);
    let all = start.elapsed().as_millis();
    assert_eq!(findings, [], "compiled plans verify clean");
    let (hosts, switches) = (plan.adapter_ports().len(), plan.switches().len());
    print!("{hosts:>6} {switches:>8} {:>8} {is_shared:>7} {all:>7}", intents.partitions.len());
    for rule in Rule::ALL {
        let start = Instant::now();
        verify_rule(rule, tree, intents, plan);
        print!(" {:>12}", start.elapsed().as_millis());
    }
    println!();
}

/// The same plan with service levels 0 and 1 granted everywhere, and a map for every hop.
fn with_sharings(plan: &FabricPlan) -> FabricPlan {
    let lane = |raw| VirtualLane::from_wire(raw).unwrap_or_default();
    let mut map = SlToVl([VirtualLane::MANAGEMENT; 16]);
    (map.0[0], map.0[1]) = (lane(0), lane(1));
    let low = vec![VlArbEntry { lane: lane(0), weight: 8 }, VlArbEntry { lane: lane(1), weight: 64 }];
    let inputs = (1..=36).filter_map(PortNum::new).map(|input| (input, map));
    let hops =
        Arc::new(PortQos { by_input: inputs.collect(), otherwise: map, low: low.clone(), high: Vec::new() });
    let own = Arc::new(PortQos { by_input: BTreeMap::new(), otherwise: map, low, high: Vec::new() });
    let mut parts: PlanParts = plan.parts().clone();
    for port in parts.switches.iter_mut().flat_map(|switch| Arc::make_mut(&mut switch.ports)) {
        port.qos = Some(Arc::clone(&hops));
    }
    parts.adapter_ports.iter_mut().for_each(|port| port.qos = Some(Arc::clone(&own)));
    FabricPlan::from_parts(parts)
}
