//! `heddle-bench guarantees`, short enough to run in a test.

use std::process::Command;

use serde_json::Value;

/// Every fabric and attack, one seed each; `heddle-bench guarantees` without arguments has five seeds and longer runs.
#[test]
fn full_fabrics_keep_every_guarantee_under_attack() {
    let arguments = ["guarantees", "--seeds", "1", "--lanes", "8", "--duration", "600us", "--json"];
    let output = Command::new(env!("CARGO_BIN_EXE_heddle-bench")).args(arguments).output().unwrap();
    let rows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert!(output.status.success(), "{rows:#?}");
    // Fabrics, tables, sizes of messages, attacks.
    assert_eq!(rows.len(), 4 * 2 * 2 * 3);
    assert!(rows.iter().all(|row| row["attacked"].as_u64() > Some(3)), "{rows:#?}");
    // Control: without lanes of their own, some clusters do not get their guaranteed rate.
    let broken = rows.iter().filter_map(|row| row["broken_one_class"].as_u64()).sum::<u64>();
    assert!(broken > 10, "{broken}");
    // Best effort gets the rest: with messages of one size, the tightest link of its paths is hardly ever idle.
    let rests = rows.iter().filter(|row| row["messages"] == "4096").filter_map(|row| row["of_rest"].as_f64());
    assert!(rests.clone().count() == 4 * 2 * 3 && rests.clone().all(|part| part > 0.9), "{rows:#?}");
}
