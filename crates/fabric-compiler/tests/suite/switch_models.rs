//! Guarantees sold for each switch model, and for stated cables.

use std::sync::Arc;

use fabric_compiler::{Planner, compile};
use fabric_model::generate::{FatTree, FatTreeSize};
use fabric_model::plan::PlanFinding;
use fabric_model::tenancy::Class;
use fabric_model::{
    Decisions, FabricPlan, Intents, LinkRate, Speedup, StatedHardware, SwitchModel, Topology,
};
use fabric_verifier::{Finding, verify};
use ib_wire::DataLanes;

use crate::clusters::{cluster, ports};

/// The largest packet at 100 Gb/s, in nanoseconds.
const PACKET_NS: f64 = 4222.0 * 0.08;

fn limited(speedup: u8) -> SwitchModel {
    SwitchModel::LimitedSpeedup(Speedup::new(speedup).unwrap())
}

/// A tree of two tiers whose links all have the rate.
fn tree(rate: &str) -> Topology {
    let size = FatTreeSize::Hosts { hosts: 32, tiers: Some(2) };
    let rate: LinkRate = rate.parse().unwrap();
    FatTree { radix: 8, rate, ..FatTree::new(size) }.generate().unwrap()
}

fn intents(topology: &Topology, hardware: StatedHardware, lanes: DataLanes, gbps: f64) -> Intents {
    let all = ports(topology);
    let mut intents = Intents::new(all[0]);
    intents.hardware = hardware;
    (intents.capabilities.default_port.lanes, intents.capabilities.default_port.arbitration) = (lanes, 64);
    intents.clusters.push(cluster("blue", &[all[4], all[9], all[17]], (gbps * 1e9) as u64));
    intents
}

fn planned(topology: &Topology, intents: &Intents) -> Option<FabricPlan> {
    let plan = compile(topology, intents, &Decisions::default()).ok()?;
    assert_eq!(verify(topology, intents, &plan), []);
    Some(plan)
}

fn stated(switch_model: SwitchModel) -> StatedHardware {
    StatedHardware { switch_model, ..StatedHardware::default() }
}

fn bound_ns(plan: &FabricPlan) -> f64 {
    plan.decisions().clusters["blue"].bound_ns as f64
}

/// The most that one cluster can be guaranteed, in tenths of a Gb/s.
fn most(topology: &Topology, model: SwitchModel, lanes: DataLanes) -> u32 {
    let fits = |tenths: u32| {
        planned(topology, &intents(topology, stated(model), lanes, f64::from(tenths) / 10.0)).is_some()
    };
    let (mut low, mut high) = (0, 1000);
    while high - low > 1 {
        let middle = (low + high) / 2;
        if fits(middle) { low = middle } else { high = middle }
    }
    low
}

#[test]
fn each_input_of_a_switch_adds_one_packet_of_each_other_lane() {
    let tree = tree("4xEDR");
    for lanes in [DataLanes::Four, DataLanes::Eight, DataLanes::Fifteen] {
        // A rate for which one entry is enough in every model.
        let bound = |model| bound_ns(&planned(&tree, &intents(&tree, stated(model), lanes, 0.01)).unwrap());
        let ideal = bound(SwitchModel::IdealOutputs);
        // More is reserved for the same rate, so that packets wait no longer.
        assert!(bound(SwitchModel::FifoInputs) <= ideal);
        for speedup in [1, 2, 5] {
            // Three switches are between the hosts.
            let inputs = 3.0 * f64::from(lanes.count() - 1) * PACKET_NS / f64::from(speedup);
            let added = bound(limited(speedup)) - ideal;
            assert!((added - inputs).abs() < 2.0, "{lanes:?}, {speedup}: {added} for {inputs}");
        }
    }
}

#[test]
fn slower_inputs_sell_less() {
    let tree = tree("4xEDR");
    for (lanes, at_two) in [(DataLanes::Four, 0.943), (DataLanes::Eight, 0.857), (DataLanes::Fifteen, 0.784)]
    {
        let ideal = f64::from(most(&tree, SwitchModel::IdealOutputs, lanes));
        let part = |model| f64::from(most(&tree, model, lanes)) / ideal;
        assert_eq!(part(limited(15)), 1.0);
        assert!((part(limited(2)) - at_two).abs() < 0.01, "{lanes:?}: {}", part(limited(2)));
        let fifo = part(SwitchModel::FifoInputs);
        assert!((fifo - 0.126).abs() < 0.01, "three nodes, {lanes:?}: {fifo}");
    }
}

#[test]
fn long_cables_and_error_correction_add_to_the_bound() {
    let bound = |rate, cable_metres| {
        let tree = tree(rate);
        let hardware = StatedHardware { cable_metres, ..StatedHardware::default() };
        bound_ns(&planned(&tree, &intents(&tree, hardware, DataLanes::Eight, 1.0)).unwrap())
    };
    // Four links of 5 ns per metre.
    assert_eq!(bound("4xEDR", 110) - bound("4xEDR", 10), 2000.0);
    // 2xHDR has the same data rate as 4xEDR, and error correction on each link.
    assert_eq!(bound("2xHDR", 10) - bound("4xEDR", 10), 480.0);
}

#[test]
fn a_plan_for_better_switches_is_found_to_promise_too_much() {
    let tree = tree("4xEDR");
    let better = intents(&tree, stated(SwitchModel::IdealOutputs), DataLanes::Eight, 1.0);
    let plan = planned(&tree, &better).unwrap();
    let real = Intents { hardware: stated(limited(1)), ..better.clone() };
    // The bound of the compiler is for the largest weights, so it is not exceeded by the present tables.
    assert_eq!(verify(&tree, &real, &plan), []);
    let tight = bound_ns(&plan) as u64;
    let mut draft = plan.draft();
    Arc::make_mut(draft.decisions().clusters.get_mut("blue").unwrap()).bound_ns = tight / 40;
    let wrong = draft.finish();
    let exceeded = |intents: &Intents| {
        verify(&tree, intents, &wrong).iter().find_map(|finding| match finding {
            Finding::LatencyExceeded { bound_ns, .. } => Some(*bound_ns),
            _ => None,
        })
    };
    let (ideal, slow) = (exceeded(&better).unwrap(), exceeded(&real).unwrap());
    assert!(slow > ideal, "{slow} {ideal}");
}

#[test]
fn another_statement_changes_the_bounds_of_existing_clusters() {
    let tree = Arc::new(tree("4xEDR"));
    let mut intents = intents(&tree, stated(SwitchModel::IdealOutputs), DataLanes::Eight, 1.0);
    let mut planner = Planner::new(Arc::clone(&tree), intents.clone(), &Decisions::default()).unwrap();
    let sold = bound_ns(planner.plan());
    intents.hardware = stated(limited(2));
    let plan = Arc::clone(planner.change(&intents).unwrap());
    assert!(bound_ns(&plan) > sold);
    assert_eq!(verify(&tree, &intents, &plan), []);

    // A latency that was asked for and no longer holds is a violated guarantee; the control keeps it.
    for (requested_ns, is_kept) in [(bound_ns(&plan) as u64, true), (sold as u64, false)] {
        let mut intents = intents.clone();
        intents.hardware = stated(SwitchModel::IdealOutputs);
        let Class::Guaranteed { latency_ns, .. } = &mut intents.clusters[0].class else {
            panic!("guaranteed")
        };
        *latency_ns = Some(requested_ns);
        let mut planner = Planner::new(Arc::clone(&tree), intents.clone(), &Decisions::default()).unwrap();
        assert!(planner.plan().findings().is_empty());
        intents.hardware = stated(limited(2));
        let plan = planner.change(&intents).unwrap();
        let is_violated = |finding: &PlanFinding| matches!(finding, PlanFinding::GuaranteeViolated { .. });
        assert_eq!(!plan.findings().iter().any(is_violated), is_kept);
    }
}
