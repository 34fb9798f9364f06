//! The order in which packets hold links is part of a plan.

use fabric_compiler::compile;
use fabric_model::decisions::DownUpTurn;
use fabric_model::generate::{FatTree, FatTreeSize, RandomFabric, without_links};
use fabric_model::{FabricPlan, NodeIndex, Topology};
use ib_wire::Guid;

use crate::world::{Walk, Walker, again, fresh, guid, intents, switch_cables, without_cable};

fn tree() -> Topology {
    FatTree { radix: 8, ..FatTree::new(FatTreeSize::Pods(3)) }.generate().unwrap()
}

/// The number of hops, on all routes between hosts, that go up after going down by the order of the plan.
fn down_up_hops(topology: &Topology, plan: &FabricPlan) -> usize {
    let walker = Walker::new(topology, plan);
    let guid = |node: NodeIndex| topology[node].guid;
    let mut hops = 0;
    for (lid, home) in walker.hosts() {
        for (_, from) in walker.hosts() {
            let Walk::Arrived(channels) = walker.walk(from, lid) else { panic!("{lid} is not reached") };
            let nodes: Vec<Guid> = channels.iter().map(|(node, _)| guid(*node)).chain([guid(home)]).collect();
            let ups: Vec<bool> = nodes.windows(2).map(|w| plan.is_above(w[1], w[0]).unwrap()).collect();
            hops += ups.windows(2).filter(|pair| !pair[0] && pair[1]).count();
        }
    }
    hops
}

#[test]
fn routes_follow_the_channel_order_of_the_plan() {
    for topology in [tree(), RandomFabric::new(20, 4, 1).generate().unwrap()] {
        let plan = fresh(&topology);
        assert_eq!(down_up_hops(&topology, &plan), 0);
        let switch = plan.switches().next().unwrap().guid;
        assert_eq!(plan.is_above(switch, switch), Some(false));
        assert_eq!(plan.is_above(switch, guid(1)), None);

        // Control: with heights reversed, routes do not follow the order.
        let mut decisions = plan.decisions().clone();
        decisions.routing.switches.values_mut().for_each(|switch| switch.height = -switch.height);
        let flipped = FabricPlan::from_parts(fabric_model::plan::PlanParts {
            manager: plan.manager(),
            switches: plan.switches().cloned().collect(),
            adapter_ports: plan.adapter_ports().cloned().collect(),
            partitions: Vec::new(),
            groups: Vec::new(),
            findings: Vec::new(),
            decisions,
        });
        assert!(down_up_hops(&topology, &flipped) > 0);
        assert!(!plan.same_channel_order(&flipped));
    }
}

#[test]
fn a_failed_cable_keeps_the_order_but_another_root_does_not() {
    let tree = tree();
    let plan = fresh(&tree);
    let cut = without_cable(&tree, switch_cables(&tree)[5].0);
    let after = again(&cut, &plan);
    assert!(plan.same_channel_order(&after) && after.same_channel_order(&plan));
    assert_ne!(plan, after);

    let mut decisions = plan.decisions().clone();
    let lifted = decisions.routing.switches.values_mut().next().unwrap();
    lifted.height += 5;
    let other = compile(&tree, &intents(&tree), &decisions).unwrap();
    assert!(!plan.same_channel_order(&other));
}

#[test]
fn heights_may_change_while_the_order_stays() {
    let tree = tree();
    let plan = fresh(&tree);
    let mut decisions = plan.decisions().clone();
    decisions.routing.switches.values_mut().for_each(|switch| switch.height += 7);
    let raised = compile(&tree, &intents(&tree), &decisions).unwrap();
    assert_ne!(plan.decisions().routing, raised.decisions().routing);
    assert!(plan.same_channel_order(&raised));
}

#[test]
fn plans_with_different_pivots_have_different_orders() {
    let tree = tree();
    let plan = fresh(&tree);
    let mut decisions = plan.decisions().clone();
    let pivot = decisions.routing.down_up_switch.unwrap();
    let height = decisions.routing.switches[&pivot].height;
    let leaf = decisions.routing.switches.iter().find(|(guid, s)| **guid != pivot && s.height == height);
    decisions.routing.down_up_switch = Some(*leaf.unwrap().0);
    let elsewhere = compile(&tree, &intents(&tree), &decisions).unwrap();
    assert_ne!(elsewhere.decisions().routing.down_up_switch, plan.decisions().routing.down_up_switch);
    assert!(!plan.same_channel_order(&elsewhere));
}

#[test]
fn hops_around_missing_cables_are_listed_and_compared() {
    let tree = FatTree { radix: 8, ..FatTree::new(FatTreeSize::Pods(8)) }.generate().unwrap();
    let whole = fresh(&tree);
    assert!(whole.decisions().routing.down_up_turns.is_empty());
    // Enough missing cables that the pivot tree does not connect all core switches.
    let degraded = (1..40).find_map(|seed| {
        let degraded = without_links(tree.clone(), 60, seed).ok()?;
        let plan = compile(&degraded, &intents(&degraded), whole.decisions()).ok()?;
        (!plan.decisions().routing.down_up_turns.is_empty()).then_some(plan)
    });
    let degraded = degraded.expect("one of these fabrics needs further hops");
    for DownUpTurn { from, at, to } in &degraded.decisions().routing.down_up_turns {
        assert_eq!((degraded.is_above(*from, *at), degraded.is_above(*to, *at)), (Some(true), Some(true)));
    }
    assert!(!whole.same_channel_order(&degraded));
    assert!(degraded.same_channel_order(&degraded));
}
