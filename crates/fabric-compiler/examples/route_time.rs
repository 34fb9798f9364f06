//! Prints the time to compute plans, and the entries that one failed link changes.
//!
//! `cargo run --release -p fabric-compiler --example route_time -- 324 1944 11664`

use std::time::Instant;

use fabric_compiler::compile;
use fabric_model::generate::{FatTree, without_links};
use fabric_model::{Decisions, FabricPlan, Intents, Topology};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let hosts: Vec<u32> = std::env::args().skip(1).map(|text| text.parse()).collect::<Result<_, _>>()?;
    println!(
        "{:>6} {:>8} {:>9} {:>9} {:>14} {:>15} {:>19}",
        "hosts", "switches", "fresh ms", "again ms", "entries moved", "blocks changed", "1 % links gone, ms"
    );
    for hosts in if hosts.is_empty() { vec![324, 648, 1944, 4860, 11664] } else { hosts } {
        measure(&FatTree::with_hosts(hosts).generate()?)?;
    }
    Ok(())
}

fn measure(tree: &Topology) -> Result<(), Box<dyn std::error::Error>> {
    let (_, host) = tree.end_nodes().next().ok_or("no host")?;
    let (_, port) = host.ports().next().ok_or("no port")?;
    let intents = Intents::new(port.guid);
    let (plan, fresh) = timed(tree, &intents, &Decisions::default())?;
    let (again, repeated) = timed(tree, &intents, plan.decisions())?;
    assert_eq!(plan, again, "a plan's own decisions keep it");

    let (after, _) = timed(&without_links(tree.clone(), 1, 1)?, &intents, plan.decisions())?;
    let (entries, blocks) = changes(&plan, &after);
    let missing = plan.adapter_ports().len() / 100;
    let (worn, damaged) = timed(&without_links(tree.clone(), missing, 1)?, &intents, plan.decisions())?;
    worn.findings().iter().for_each(|finding| println!("       {finding}"));
    println!(
        "{:>6} {:>8} {fresh:>9} {repeated:>9} {entries:>14} {blocks:>15} {damaged:>19}",
        plan.adapter_ports().len(),
        plan.switches().len()
    );
    Ok(())
}

fn timed(
    tree: &Topology,
    intents: &Intents,
    previous: &Decisions,
) -> Result<(FabricPlan, u128), fabric_compiler::CompileError> {
    let start = Instant::now();
    let plan = compile(tree, intents, previous)?;
    Ok((plan, start.elapsed().as_millis()))
}

/// Linear entries and blocks that differ.
fn changes(before: &FabricPlan, after: &FabricPlan) -> (usize, usize) {
    let (mut entries, mut blocks) = (0, 0);
    for (old, new) in before.switches().zip(after.switches()) {
        for block in 0..old.linear.block_count().max(new.linear.block_count()) {
            let (old, new) = (old.linear_block(block), new.linear_block(block));
            let moved = old.iter().zip(&new).filter(|(old, new)| old != new).count();
            entries += moved;
            blocks += usize::from(moved > 0);
        }
    }
    (entries, blocks)
}
