//! From one plan to another, judged after every single write: in any order inside a step, some writes twice, and left
//! anywhere for a third plan. The same judge detects six wrong orders.

use fabric_model::generate::{DragonflyPlus, FatTree, FatTreeSize, RandomFabric, Torus, without_links};
use fabric_model::{Decisions, FabricPlan, Topology};
use proptest::prelude::*;
use subnet_manager::transition::StepKind;

use crate::in_process;
use crate::in_process::fleet::{Dice, Fleet, Program, Set, plan, reordered, route_sets, without_hosts};
use crate::in_process::pairs::Pairs;
use crate::in_process::tables::Violation;

/// More writes than any transition here takes.
const TO_THE_END: usize = usize::MAX;

fn fabric(shape: u8, seed: u64) -> Topology {
    let seeded = |bound: u64| seed % bound;
    match shape {
        0 => FatTree { radix: 4, ..FatTree::new(FatTreeSize::Pods(2 + seeded(3) as u16)) }.generate(),
        1 => FatTree { radix: 8, ..FatTree::new(FatTreeSize::Leaves(3 + seeded(4) as u16)) }.generate(),
        2 => Torus { hosts_per_switch: 1, ..Torus::new([3, 3 + seeded(2) as u16]) }.generate(),
        3 => DragonflyPlus { leaves: 2, spines: 2, hosts_per_leaf: 1, ..DragonflyPlus::new(3) }.generate(),
        _ => RandomFabric { hosts_per_switch: 1, ..RandomFabric::new(8 + seeded(6) as u32, 3, seed) }
            .generate(),
    }
    .unwrap()
}

/// Two hosts in three are in each partition; which, and as what, differs from one variant to the next.
fn partitions(topology: &Topology, variant: u64) -> String {
    let hosts: Vec<_> = topology.end_nodes().map(|(_, node)| node.ports().next().unwrap().1.guid).collect();
    let mut text = String::new();
    for number in 1..=3_u64 {
        let chosen = hosts.iter().enumerate().filter_map(|(place, guid)| {
            let dice = (place as u64 * 7 + number * 5 + variant * (3 + number)) % 9;
            (dice > 2).then(|| format!("{guid}={}", if dice > 5 { "full" } else { "limited" }))
        });
        let chosen: Vec<String> = chosen.collect();
        text += &format!("p{number}={number:#x}, ipoib : {};\n", chosen.join(", "));
    }
    text
}

/// A fabric's plans one after the other: links fail and return, hosts go and come, partitions change, and sometimes the
/// order of the switches.
fn plans(shape: u8, seed: u64, changes: [u8; 3]) -> (Topology, Vec<FabricPlan>) {
    let whole = fabric(shape, seed);
    let mut dice = Dice::new(seed);
    let mut decisions = Decisions::default();
    let plans = (0_u64..).zip(changes).map(|(generation, change)| {
        let links = usize::from(change % 4);
        let damaged = (0..=links)
            .rev()
            .find_map(|links| without_links(whole.clone(), links, seed.wrapping_add(generation)).ok());
        let topology = without_hosts(&damaged.unwrap(), &mut dice, usize::from(change / 4 % 3));
        if change / 12 % 4 == 3 {
            decisions = reordered(&topology, &decisions, dice.below(100));
        }
        let plan =
            plan(&topology, &partitions(&topology, seed + generation * u64::from(change / 48)), &decisions);
        decisions = plan.decisions().clone();
        plan
    });
    let plans = plans.collect();
    (whole, plans)
}

/// Goes through all plans, the second up to some write only, and once more to the last.
fn go_through(shape: u8, seed: u64, changes: [u8; 3], interrupted: usize) -> Result<u64, Violation> {
    let (whole, plans) = plans(shape, seed, changes);
    let mut dice = Dice::new(seed ^ 0xd1ce);
    let mut fleet = Fleet::new(&whole);
    // Blank tables under links that carry data already: harder than a bring-up.
    fleet.activate_all(&plans[0]);
    assert!(fleet.go(&plans[0], &mut dice, TO_THE_END)?);
    assert!(fleet.holds(&plans[0]));
    fleet.go(&plans[1], &mut dice, interrupted)?;
    fleet.go(&plans[0], &mut dice, interrupted / 2)?;
    assert!(fleet.go(&plans[2], &mut dice, TO_THE_END)?);
    assert!(fleet.holds(&plans[2]));
    Ok(fleet.judged)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn nothing_goes_wrong_between_plans_wherever_a_manager_stops(
        shape in 0_u8..5,
        seed in 0_u64..1000,
        changes in any::<[u8; 3]>(),
        interrupted in 0_usize..120,
    ) {
        let judged = go_through(shape, seed, changes, interrupted);
        prop_assert!(judged.is_ok(), "{judged:?}");
    }
}

#[test]
fn every_write_of_some_transitions_may_be_the_last() {
    let mut judged = 0;
    for (shape, seed, changes) in [(0, 1, [0, 53, 98]), (1, 2, [1, 51, 0]), (4, 3, [2, 145, 38])] {
        for interrupted in 0..40 {
            judged += go_through(shape, seed, changes, interrupted * 3).unwrap();
        }
    }
    println!("{judged} writes judged");
}

/// Tries an order on many transitions; returns on how many the judge found something wrong, and the first.
fn caught(order: impl Fn(&Fleet, Program, &FabricPlan) -> Vec<Vec<Set>>) -> (usize, Option<Violation>) {
    let (mut count, mut first) = (0, None);
    for seed in 0..30 {
        let (whole, plans) = plans((seed % 5) as u8, seed, [1, 98, 0]);
        let mut dice = Dice::new(seed);
        let mut fleet = Fleet::new(&whole);
        fleet.activate_all(&plans[0]);
        assert!(fleet.go(&plans[0], &mut dice, TO_THE_END).unwrap());
        fleet.recable(&plans[1]);
        let allowed = fleet.tables.reachable().or(&Pairs::of_plan(&plans[1], &fleet.places));
        let steps = order(&fleet, fleet.program(&plans[1]), &plans[1]);
        if let Err(violation) = fleet.run(steps, &allowed, &mut dice, TO_THE_END) {
            count += 1;
            first.get_or_insert(violation);
        }
    }
    (count, first)
}

/// Writes of random transitions in any order, so that many are wrong: what differs from tables that are right is judged as all
/// of them are.
#[test]
fn what_differs_is_judged_like_the_whole() {
    let (mut judged, mut wrong) = (0, 0);
    for seed in 0..30 {
        let (whole, plans) = plans((seed % 5) as u8, seed, [1, 98, 0]);
        let mut dice = Dice::new(seed);
        let mut fleet = Fleet::new(&whole);
        fleet.activate_all(&plans[0]);
        assert!(fleet.go(&plans[0], &mut dice, TO_THE_END).unwrap());
        fleet.recable(&plans[1]);
        let allowed = fleet.tables.reachable().or(&Pairs::of_plan(&plans[1], &fleet.places));
        if fleet.tables.violation(&allowed).is_some() {
            continue;
        }
        let mut sets: Vec<Set> = fleet.program(&plans[1]).steps().into_iter().flatten().collect();
        dice.shuffle(&mut sets);
        for set in sets {
            let before = fleet.tables.clone();
            fleet.apply(&set);
            let (all, since) =
                (fleet.tables.violation(&allowed), fleet.tables.violation_since(&before, &allowed));
            assert_eq!(all.is_some(), since.is_some(), "{set:?}: {all:?}, {since:?}");
            judged += 1;
            if all.is_some() {
                wrong += 1;
                fleet.tables = before;
            }
        }
    }
    println!("{judged} writes judged, {wrong} of them wrong");
    assert!(judged > 1000 && wrong > 20, "{judged} writes judged, {wrong} of them wrong");
}

#[test]
fn the_right_order_is_not_caught() {
    assert_eq!(caught(|_, program, _| program.steps()), (0, None));
}

#[test]
fn keys_grown_before_others_shrank_are_caught() {
    let is_keys = |set: &Set| matches!(set, Set::EndKeys { .. } | Set::PortKeys { .. });
    let (count, first) = caught(|_, mut program, _| {
        let grown: Vec<Set> = program.grow.extract_if(.., |set| is_keys(set)).collect();
        let shrunk: Vec<Set> = program.shrink.extract_if(.., |set| is_keys(set)).collect();
        [grown, shrunk].into_iter().chain(program.steps()).collect()
    });
    println!("{count} of 30: {first:?}");
    assert!(matches!(first, Some(Violation::Reaches { .. })), "{first:?}");
}

#[test]
fn groups_grown_before_others_shrank_are_caught() {
    let is_group = |set: &Set| matches!(set, Set::Groups { .. });
    let (count, first) = caught(|_, mut program, _| {
        let grown: Vec<Set> = program.grow.extract_if(.., |set| is_group(set)).collect();
        [grown].into_iter().chain(program.steps()).collect()
    });
    println!("{count} of 30: {first:?}");
    assert!(matches!(first, Some(Violation::GroupRing { .. })), "{first:?}");
}

#[test]
fn columns_changed_from_their_far_end_are_caught() {
    let (count, first) = caught(|_, mut program, _| {
        let moves = |kind: StepKind| kind == StepKind::Move;
        let first = program.routes.iter().position(|step| moves(step.kind)).unwrap_or(0);
        let last = program.routes.iter().rposition(|step| moves(step.kind)).map_or(0, |last| last + 1);
        program.routes[first..last].reverse();
        program.steps()
    });
    println!("{count} of 30: {first:?}");
    assert!(first.is_some_and(|first| !matches!(first, Violation::Reaches { .. })));
}

#[test]
fn turns_that_were_not_withdrawn_are_caught() {
    let (count, first) = caught(|fleet, mut program, plan| {
        program.routes.retain(|step| step.kind != StepKind::Withdraw);
        for write in program.routes.iter_mut().flat_map(|step| &mut step.blocks) {
            let held =
                subnet_manager::transition::HeldRoutes::block(fleet, write.switch, write.block).unwrap();
            let wanted = plan.switch(write.switch).unwrap().linear_block(write.block);
            for (entry, exit) in write.exits.iter_mut().enumerate() {
                if *exit == 0xff && wanted[entry] != 0xff {
                    *exit = held[entry];
                }
            }
        }
        program.steps()
    });
    println!("{count} of 30: {first:?}");
    assert!(first.is_some_and(|first| !matches!(first, Violation::Reaches { .. })));
}

#[test]
fn a_top_raised_over_what_somebody_left_there_is_caught() {
    let (whole, plans) = plans(2, 5, [0, 0, 0]);
    let (plan, mut dice) = (&plans[0], Dice::new(5));
    let mut stale = Fleet::new(&whole);
    stale.activate_all(plan);
    // Above the top, where it does no harm: everybody sends everything to a neighbour.
    for switch in &mut stale.tables.switches {
        let is_cable = |port: &&in_process::tables::Port| {
            matches!(port.behind, Some(in_process::tables::Behind::Switch(..)))
        };
        let number = switch.ports.iter().position(|port| is_cable(&port)).unwrap();
        switch.linear = vec![number as u8; 64];
    }
    let allowed = Pairs::of_plan(plan, &stale.places);
    assert_eq!(stale.tables.violation(&allowed), None);
    let mut right = stale.clone();
    assert!(right.go(plan, &mut dice, TO_THE_END).unwrap() && right.holds(plan));
    let mut steps = route_sets(stale.program(plan).routes);
    steps.reverse();
    let wrong = stale.run(steps, &allowed, &mut dice, TO_THE_END);
    assert!(matches!(wrong, Err(Violation::Loop { .. })), "{wrong:?}");
}

#[test]
fn ports_activated_before_their_tables_are_there_are_caught() {
    let (whole, plans) = plans(1, 4, [0, 0, 0]);
    let plan = &plans[0];
    let fresh = || {
        let mut fleet = Fleet::new(&whole);
        // As adapters come out of the box: full members of the default partition.
        for end in &mut fleet.tables.ends {
            end.keys = vec![Some(ib_wire::Pkey::DEFAULT_FULL)];
        }
        fleet
    };
    let allowed = Pairs::of_plan(plan, &fresh().places);
    let mut right = fresh();
    let steps = right.program(plan).steps();
    assert_eq!(right.run(steps, &allowed, &mut Dice::new(1), TO_THE_END), Ok(true));
    let mut wrong = fresh();
    let mut program = wrong.program(plan);
    let early = [std::mem::take(&mut program.activate), std::mem::take(&mut program.addresses)];
    let routes = route_sets(std::mem::take(&mut program.routes));
    let steps = early.into_iter().chain(routes).chain(program.steps()).collect();
    let wrong = wrong.run(steps, &allowed, &mut Dice::new(1), TO_THE_END);
    assert!(matches!(wrong, Err(Violation::Reaches { .. })), "{wrong:?}");
}
