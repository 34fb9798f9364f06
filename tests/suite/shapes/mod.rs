//! Any fabric, any clusters: what tenants ask for is planned, proved, programmed by datagrams and then tried with frames
//! between all their virtual functions.
//!
//! Each case is made by its seed alone. `HEDDLE_SHAPES=2000` runs more cases, `HEDDLE_SHAPES_FROM=7000` begins at another
//! seed; a failure names the seed and the shape.

mod clusters;
mod fabrics;
mod site;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use clusters::Clusters;
use fabric_compiler::CompileError;
use fabrics::Size;
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64;
use site::{Site, Tally};

/// Default number of cases with small fabrics; there is one case with a large fabric for every [`LARGE_EVERY`] of them.
const CASES: u64 = 400;

const LARGE_EVERY: u64 = 20;

/// Totals of all cases of a kind.
#[derive(Debug, Default)]
struct Totals {
    cases: u64,
    changes: u64,
    frames: Tally,
    refused: BTreeMap<&'static str, u64>,
}

fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |value| value.parse().unwrap())
}

/// One case: clusters come, grow, shrink and go, and after some of these changes everybody sends to everybody.
fn run(seed: u64, size: &Size, totals: &mut Totals) {
    let mut dice = Pcg64::seed_from_u64(seed);
    let shape = fabrics::fabric(&mut dice, size);
    let mut at = (0, Clusters::default());
    let tried = catch_unwind(AssertUnwindSafe(|| {
        let mut site = Site::new(&shape);
        let hosts = site.hosts();
        let count = dice.random_range(3..=10);
        for change in 1..=count {
            let next = site.clusters.changed(&mut dice, &hosts);
            at = (change, next.clone());
            match site.change(next) {
                Ok(()) => totals.changes += 1,
                Err(error) => *totals.refused.entry(reason(&error)).or_default() += 1,
            }
            if change == count || dice.random_bool(0.3) {
                let Tally { talking, silent } = site.judge();
                totals.frames.talking += talking;
                totals.frames.silent += silent;
            }
        }
        site.judge_tables();
        totals.cases += 1;
    }));
    if let Err(panic) = tried {
        eprintln!("seed {seed}: {}\nchange {} to {:#?}", shape.description, at.0, at.1);
        resume_unwind(panic);
    }
}

/// Errors for requests beyond the capacity of a fabric are expected; every other error is a defect.
fn reason(error: &CompileError) -> &'static str {
    match error {
        CompileError::NotAdmitted { .. } => "not admitted",
        CompileError::PkeyTableFull { .. } => "P_Key table full",
        CompileError::MlidsExhausted { .. } => "no multicast LID left",
        error => panic!("{error}"),
    }
}

#[test]
fn frames_reach_only_their_cluster_on_small_fabrics() {
    let mut totals = Totals::default();
    let size = Size { hosts: 2..=40, switch_ports_max: 1_000 };
    let from = setting("HEDDLE_SHAPES_FROM", 0);
    for seed in from..from + setting("HEDDLE_SHAPES", CASES) {
        run(seed, &size, &mut totals);
    }
    println!("{totals:#?}");
    assert!(totals.frames.talking > 0 && totals.frames.silent > 0);
}

#[test]
fn frames_reach_only_their_cluster_on_large_fabrics() {
    let mut totals = Totals::default();
    let size = Size { hosts: 41..=400, switch_ports_max: 6_000 };
    let from = setting("HEDDLE_SHAPES_FROM", 0) + 1_000_000;
    for seed in from..from + setting("HEDDLE_SHAPES", CASES).div_ceil(LARGE_EVERY) {
        run(seed, &size, &mut totals);
    }
    println!("{totals:#?}");
    assert!(totals.frames.talking > 0 && totals.frames.silent > 0);
}
