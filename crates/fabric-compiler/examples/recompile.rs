//! Prints the time to plan one more partition of 16 ports, from scratch and from the previous plan.
//!
//! `cargo run --release -p fabric-compiler --example recompile -- 4860 11664`

use std::time::{Duration, Instant};

use fabric_compiler::{CompileError, compile, partitions_conf, recompile};
use fabric_model::generate::FatTree;
use fabric_model::{Decisions, FabricPlan, Intents};
use ib_wire::Guid;

/// Repetitions; the fastest one counts, because others use the machine as well.
const REPEATS: usize = 5;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let hosts: Vec<u32> = std::env::args().skip(1).map(|text| text.parse()).collect::<Result<_, _>>()?;
    println!(
        "{:>6} {:>10} {:>12} {:>14} {:>7}",
        "hosts", "partitions", "compile ms", "recompile ms", "ratio"
    );
    for hosts in if hosts.is_empty() { vec![324, 1944, 4860, 11664] } else { hosts } {
        for partitions in [0, 100] {
            measure(hosts, partitions)?;
        }
    }
    Ok(())
}

/// Times the addition of a partition to a tree that has some.
fn measure(hosts: u32, partitions: usize) -> Result<(), Box<dyn std::error::Error>> {
    let tree = FatTree::with_hosts(hosts).generate()?;
    let ports: Vec<Guid> =
        tree.end_nodes().filter_map(|(_, node)| Some(node.ports().next()?.1.guid)).collect();
    let mut intents = Intents::new(*ports.first().ok_or("no host")?);
    let rules: Vec<String> = (0..=partitions).map(|number| rule(number, &ports)).collect();
    intents.partitions = partitions_conf::parse(&rules[..partitions].concat())?;
    let before = compile(&tree, &intents, &Decisions::default())?;
    intents.partitions = partitions_conf::parse(&rules.concat())?;

    let (compiled, slow) = best(|| compile(&tree, &intents, before.decisions()))?;
    let (recompiled, fast) = best(|| recompile(&tree, &intents, &before))?;
    assert_eq!(compiled, recompiled, "both ways lead to the same plan");
    let [slow, fast] = [slow, fast].map(|time| time.as_secs_f64() * 1e3);
    println!("{:>6} {partitions:>10} {slow:>12.1} {fast:>14.2} {:>7.0}", ports.len(), slow / fast);
    Ok(())
}

/// A partition with IPoIB of 16 hosts all over the fabric.
fn rule(number: usize, ports: &[Guid]) -> String {
    let step = ports.len() / 16;
    let members: Vec<String> =
        (0..16).map(|member| ports[(member * step + number) % ports.len()].to_string()).collect();
    format!("p{number}={}, ipoib : {};\n", number + 1, members.join(", "))
}

fn best(make: impl Fn() -> Result<FabricPlan, CompileError>) -> Result<(FabricPlan, Duration), CompileError> {
    let mut shortest = Duration::MAX;
    let mut plan = make()?;
    for _ in 0..REPEATS {
        let start = Instant::now();
        let made = make()?;
        shortest = shortest.min(start.elapsed());
        plan = made;
    }
    Ok((plan, shortest))
}
