//! `heddle-bench guarantees`, short enough to run in a test: one seed; without arguments it has five, and longer runs.

use std::process::Command;

use serde_json::Value;

/// Runs the benchmark, and returns one row for each fabric, table, size of messages and attack. It fails if a guarantee
/// was broken in the model of the switches that it was sold for.
fn measure(arguments: &[&str]) -> Vec<Value> {
    let always = ["guarantees", "--seeds", "1", "--lanes", "8", "--json"];
    let command = [&always, arguments].concat();
    let output = Command::new(env!("CARGO_BIN_EXE_heddle-bench")).args(command).output().unwrap();
    let rows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert!(output.status.success(), "{rows:#?}");
    assert!(rows.iter().all(|row| row["sold_for"] == row["switch_model"]), "{rows:#?}");
    rows
}

#[test]
fn full_fabrics_keep_every_guarantee_under_attack() {
    let rows = measure(&["--switch-models", "ideal-outputs", "--duration", "600us"]);
    assert_eq!(rows.len(), 4 * 2 * 2 * 3);
    assert!(rows.iter().all(|row| row["attacked"].as_u64() > Some(3)), "{rows:#?}");
    // Control: without lanes of their own, some clusters do not get their guaranteed rate.
    let broken = rows.iter().filter_map(|row| row["broken_one_class"].as_u64()).sum::<u64>();
    assert!(broken > 10, "{broken}");
    // Best effort gets most of the rest: with messages of one size, the tightest link of its paths is seldom idle.
    let rests = rows.iter().filter(|row| row["messages"] == "4096").filter_map(|row| row["of_rest"].as_f64());
    assert!(rests.clone().count() == 4 * 2 * 3 && rests.clone().all(|part| part > 0.8), "{rows:#?}");
}

#[test]
fn switches_with_shared_inputs_keep_what_is_sold_for_them() {
    let models = ["--switch-models", "limited-speedup:2,fifo-inputs", "--fabrics", "two-levels,torus"];
    let rows = measure(&[&models[..], &["--entries", "16", "--duration", "300us"]].concat());
    assert_eq!(rows.len(), 2 * 2 * 2 * 3);
    assert!(rows.iter().all(|row| row["attacked"].as_u64() > Some(0)), "{rows:#?}");
}
