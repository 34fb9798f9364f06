//! `heddle traffic`, from a topology to a verdict.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

const SITE: &str = r#"
[[clusters]]
tenant = "acme"
name = "blue"
nodes = 6
class = { guaranteed = { bandwidth = "20G" } }

[[clusters]]
tenant = "umbra"
name = "red"
nodes = 9
class = { guaranteed = { bandwidth = "10G" } }

[[clusters]]
tenant = "umbra"
name = "rest"
nodes = 30
"#;

const ATTACK: &str = r#"
duration = "300us"
warm_up = "30us"

[[workloads]]
cluster = "acme/blue"
send = "all-to-all"
rate = "guaranteed"

[[workloads]]
cluster = "umbra/red"
send = "everything"

[[workloads]]
cluster = "*"
send = "random"
"#;

fn heddle(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_heddle"));
    command.current_dir(directory).args(arguments).output().unwrap()
}

fn planned() -> tempfile::TempDir {
    let (scratch, plan) = planned_for(SITE);
    assert!(plan.status.success(), "{}", String::from_utf8_lossy(&plan.stderr));
    scratch
}

fn planned_for(site: &str) -> (tempfile::TempDir, Output) {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path();
    fs::write(directory.join("site.toml"), site).unwrap();
    fs::write(directory.join("attack.toml"), ATTACK).unwrap();
    let made = heddle(
        directory,
        &["topology", "generate", "fat-tree", "--hosts", "32", "--radix", "8", "-o", "net"],
    );
    assert!(made.status.success());
    let plan =
        heddle(directory, &["plan", "--topology", "net", "--intents", "site.toml", "--out", "plan.json"]);
    (scratch, plan)
}

const TRAFFIC: [&str; 7] =
    ["traffic", "--topology", "net", "--plan", "plan.json", "--scenario", "attack.toml"];

#[test]
fn a_guarantee_holds_and_both_runs_are_printed_and_drawn() {
    let scratch = planned();
    let output = heddle(scratch.path(), &[&TRAFFIC[..], &["--out", "pictures", "-o", "json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    let blue = |run: &str| {
        let clusters = told[run]["clusters"].as_array().unwrap();
        clusters.iter().find(|cluster| cluster["cluster"] == "acme/blue").unwrap().clone()
    };
    let (apart, together) = (blue("planned"), blue("one_class"));
    assert_eq!((&apart["keeps_rate"], &apart["keeps_bound"]), (&Value::Bool(true), &Value::Bool(true)));
    assert!(apart["alone_max_us"].as_f64() < apart["bound_us"].as_f64());
    assert!(together["latency_us"][1].as_f64() > Some(0.0), "the other run is told too");
    for picture in ["latency", "throughput", "links"] {
        for run in ["planned", "one-class"] {
            let svg =
                fs::read_to_string(scratch.path().join(format!("pictures/{picture}-{run}.svg"))).unwrap();
            assert!(svg.starts_with("<svg") && svg.contains("</svg>"), "{picture}-{run}");
        }
    }
    let people = heddle(scratch.path(), &[&TRAFFIC[..], &["--plan-only"]].concat());
    let text = String::from_utf8(people.stdout).unwrap();
    assert!(text.contains("as planned: every guarantee held"), "{text}");
}

#[test]
fn traffic_uses_service_levels_by_pairs_of_switches() {
    let site = SITE.replacen("nodes = 6\n", "nodes = 6\nsl_mode = \"path\"\n", 1);
    let (scratch, plan) = planned_for(&site);
    assert!(plan.status.success(), "{}", String::from_utf8_lossy(&plan.stderr));
    let explain = ["plan", "explain", "acme/blue", "--topology", "net", "--plan", "plan.json"];
    let text = String::from_utf8(heddle(scratch.path(), &explain).stdout).unwrap();
    for part in ["one for each pair of switches", "SL, BOTH DIRECTIONS"] {
        assert!(text.contains(part), "{text}");
    }
    let people = heddle(scratch.path(), &[&TRAFFIC[..], &["--plan-only"]].concat());
    let text = String::from_utf8(people.stdout).unwrap();
    assert!(text.contains("as planned: every guarantee held"), "{text}");
}

#[test]
fn a_guarantee_beyond_the_lane_buffers_is_rejected() {
    let with = |bytes: u32| format!("[devices]\nlane_buffer = {{ bytes = {bytes} }}\n{SITE}");
    let (_scratch, plan) = planned_for(&with(65536));
    assert!(plan.status.success(), "the control: {}", String::from_utf8_lossy(&plan.stderr));
    let (_scratch, plan) = planned_for(&with(4121));
    let told = String::from_utf8_lossy(&plan.stderr);
    assert!(!plan.status.success() && told.contains("cluster acme/blue cannot be placed"), "{told}");
}

#[test]
fn a_plan_says_what_its_guarantees_presuppose() {
    let with = |devices: &str| format!("[devices]\n{devices}\n{SITE}");
    let cases = [
        ("", "limited-speedup:2 and cables up to 10 m; buffers unknown"),
        (
            "switch_model = \"ideal-outputs\"\ncable_metres = 80",
            "ideal-outputs and cables up to 80 m; buffers unknown",
        ),
        ("lane_buffer = { bytes = 65536 }", "limited-speedup:2 and cables up to 10 m\n"),
    ];
    for (devices, terms) in cases {
        let (scratch, plan) = planned_for(&with(devices));
        let text = String::from_utf8(plan.stdout).unwrap();
        assert!(plan.status.success() && text.contains(terms), "{text}");
        assert!(text.contains("WIRE BOUND"), "{text}");
        let explain = ["plan", "explain", "acme/blue", "--topology", "net", "--plan", "plan.json"];
        let text = String::from_utf8(heddle(scratch.path(), &explain).stdout).unwrap();
        assert!(text.contains("wire bound") && text.contains(terms.trim_end()), "{text}");
    }
    let (_scratch, plan) = planned_for(&with("switch_model = \"magic\""));
    let error = String::from_utf8_lossy(&plan.stderr);
    assert!(!plan.status.success() && error.contains("invalid switch model"), "{error}");
}

#[test]
fn traffic_runs_on_the_switches_of_the_plan_unless_another_model_is_named() {
    let scratch = planned();
    let model = |arguments: &[&str]| {
        let all = [&TRAFFIC[..], &["--plan-only", "-o", "json"], arguments].concat();
        let output = heddle(scratch.path(), &all);
        let told: Value = serde_json::from_slice(&output.stdout).unwrap();
        told["switch_model"].as_str().unwrap().to_owned()
    };
    assert_eq!(model(&[]), "limited-speedup:2");
    assert_eq!(model(&["--switch-model", "fifo-inputs"]), "fifo-inputs");
    fs::write(scratch.path().join("attack.toml"), format!("switch_model = \"ideal-outputs\"\n{ATTACK}"))
        .unwrap();
    assert_eq!(model(&[]), "ideal-outputs");
    assert_eq!(model(&["--switch-model", "limited-speedup"]), "limited-speedup:2");
}

#[test]
fn an_invalid_scenario_is_rejected_in_one_line() {
    let scratch = planned();
    let cases = [
        ("", "missing field `duration`"),
        (
            "duration = \"1ms\"\nworkloads = [{ cluster = \"nobody\", send = \"shift\" }]",
            "cluster nobody does not exist",
        ),
        (
            "duration = \"1ms\"\nworkloads = [{ cluster = \"acme/blue\", send = \"dance\" }]",
            "unknown variant `dance`",
        ),
        ("duration = \"1ms\"\nbuffer = 64\nworkloads = []", "must have at least 66 blocks"),
        ("duration = \"soon\"\nworkloads = []", "invalid time"),
    ];
    for (scenario, why) in cases {
        fs::write(scratch.path().join("attack.toml"), scenario).unwrap();
        let output = heddle(scratch.path(), &TRAFFIC);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && error.contains(why), "{scenario}: {error}");
    }
}
