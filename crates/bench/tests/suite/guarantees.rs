//! `heddle-bench guarantees`, short enough to run in a test.

use std::process::Command;

use serde_json::Value;

/// Every switch model, fabric and attack, one seed each; `heddle-bench guarantees` without arguments has five seeds and longer runs.
#[test]
fn full_fabrics_keep_every_guarantee_under_attack() {
    let arguments = ["guarantees", "--seeds", "1", "--lanes", "8", "--duration", "600us", "--json"];
    let output = Command::new(env!("CARGO_BIN_EXE_heddle-bench")).args(arguments).output().unwrap();
    let rows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert!(output.status.success(), "{rows:#?}");
    // Switch models, fabrics, tables, sizes of messages, attacks. Each guarantee was sold for the model it is measured on.
    assert_eq!(rows.len(), 3 * 4 * 2 * 2 * 3);
    assert!(rows.iter().all(|row| row["sold_for"] == row["switch_model"]), "{rows:#?}");
    let least = |row: &Value| if row["switch_model"] == "fifo-inputs" { Some(0) } else { Some(3) };
    assert!(rows.iter().all(|row| row["attacked"].as_u64() > least(row)), "{rows:#?}");
    // Control: without lanes of their own, some clusters do not get their guaranteed rate.
    let broken = rows.iter().filter_map(|row| row["broken_one_class"].as_u64()).sum::<u64>();
    assert!(broken > 10, "{broken}");
    // Best effort gets the rest: with messages of one size, the tightest link of its paths is hardly ever idle.
    let ideal = rows.iter().filter(|row| row["switch_model"] == "ideal-outputs");
    let rests = ideal.filter(|row| row["messages"] == "4096").filter_map(|row| row["of_rest"].as_f64());
    assert!(rests.clone().count() == 4 * 2 * 3 && rests.clone().all(|part| part > 0.9), "{rows:#?}");
}
