//! Prints the size of plans as JSON, and the time to write and to read them.
//!
//! `cargo run --release -p fabric-compiler --example plan_size -- 4860 11664`

use std::time::Instant;

use fabric_compiler::compile;
use fabric_model::generate::FatTree;
use fabric_model::{Decisions, FabricPlan, Intents};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let hosts: Vec<u32> = std::env::args().skip(1).map(|text| text.parse()).collect::<Result<_, _>>()?;
    println!("{:>6} {:>8} {:>9} {:>8}", "hosts", "MB", "write ms", "read ms");
    for hosts in if hosts.is_empty() { vec![324, 1944, 4860, 11664] } else { hosts } {
        let tree = FatTree::with_hosts(hosts).generate()?;
        let (_, host) = tree.end_nodes().next().ok_or("no host")?;
        let intents = Intents::new(host.ports().next().ok_or("no port")?.1.guid);
        let plan = compile(&tree, &intents, &Decisions::default())?;
        let start = Instant::now();
        let text = serde_json::to_string(&plan)?;
        let writing = start.elapsed().as_millis();
        let start = Instant::now();
        let read: FabricPlan = serde_json::from_str(&text)?;
        let reading = start.elapsed().as_millis();
        assert_eq!(read, plan, "plans read back equal");
        println!("{hosts:>6} {:>8.2} {writing:>9} {reading:>8}", text.len() as f64 / 1e6);
    }
    Ok(())
}
