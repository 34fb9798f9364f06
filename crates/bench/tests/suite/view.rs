//! `heddle-bench view`, small enough to run in seconds: with stock tools, and where there are none.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Small networks, few requests and short floods.
const SMALL: [&str; 7] =
    ["--nodes=8", "--views=4", "--rounds=1", "--requests=200", "--outstanding=4", "--watch-s=0.2", "--json"];

fn measured(change: impl FnOnce(&mut Command)) -> Value {
    let mut command = Command::new("/usr/bin/timeout");
    command.args(["-k", "5", "110", env!("CARGO_BIN_EXE_heddle-bench"), "view"]).args(SMALL);
    change(&mut command);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Sides of rows, in order.
fn sides(rows: &Value) -> Vec<&str> {
    rows.as_array().unwrap().iter().map(|row| row["side"].as_str().unwrap()).collect()
}

#[test]
fn a_view_is_measured_next_to_ibsim_of_the_same_network() {
    let report = measured(|_| {});
    assert_eq!(report["missing"], serde_json::json!([]));
    // Directed route and LID, with client and server on one core and on two.
    assert_eq!(sides(&report["datagrams"]), [["ibsim"; 4], ["view"; 4]].concat());
    assert_eq!(sides(&report["bring_up"]), ["ibsim", "view"]);
    for row in report["datagrams"].as_array().unwrap() {
        assert!(row["requests_per_s"].as_f64().unwrap() > 0.0, "{row}");
    }
    assert!(report["idle"]["kib_each"].as_f64().unwrap() <= 1024.0, "{}", report["idle"]);
    for flooded in ["quiet", "elsewhere", "beside"] {
        let seen = &report["flood"][flooded];
        assert!(seen["gets"].as_u64().unwrap() > 0, "{seen}");
        assert_eq!(seen["flood_per_s"].as_f64().unwrap() > 0.0, flooded != "quiet", "{seen}");
    }
}

#[test]
fn without_stock_tools_it_says_so_and_measures_the_rest() {
    let programs = tempfile::tempdir().unwrap();
    for program in ["setpriv", "taskset"] {
        let found = Path::new("/usr/bin").join(program);
        std::os::unix::fs::symlink(found, programs.path().join(program)).unwrap();
    }
    let report = measured(|command| {
        command.env("PATH", programs.path());
    });
    let missing = report["missing"].as_array().unwrap();
    assert!(missing[0].as_str().unwrap().starts_with("ibsim is not installed"), "{missing:?}");
    assert!(missing[1].as_str().unwrap().starts_with("opensm is not installed"), "{missing:?}");
    assert_eq!(sides(&report["datagrams"]), ["view"; 4]);
    assert_eq!(report["bring_up"], serde_json::json!([]));
}
