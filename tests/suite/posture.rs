//! What `heddle sm --adopt` says of a fabric before a takeover, and that it only reads.

use serde_json::Value;

use crate::rig::tree::{HOST, host, json, once, sets_asked};
use crate::rig::{self, Server, SmDaemon};

/// All items, in the order of the report.
const ITEMS: [&str; 11] = [
    "keys",
    "key-levels",
    "partitions",
    "enforcement",
    "qos",
    "adaptive-routing",
    "congestion-control",
    "lmc",
    "managers",
    "rates",
    "link-errors",
];

/// The report of a fabric. Nothing is written meanwhile.
fn report(server: &Server, options: &[&str]) -> Value {
    let before = sets_asked(server);
    let printed = once(server, &[&["--adopt", "--json"], options].concat());
    assert!(printed.success, "{printed:?}");
    assert_eq!(sets_asked(server), before, "a report sends Gets only");
    let report = json(&printed);
    let items: Vec<&str> = findings(&report).iter().map(|it| it["item"].as_str().unwrap()).collect();
    assert_eq!(items, ITEMS, "every item is named");
    report
}

fn findings(report: &Value) -> &Vec<Value> {
    report["posture"].as_array().unwrap()
}

/// Grade and text of an item.
fn finding<'a>(report: &'a Value, item: &str) -> (&'a str, &'a str, String) {
    let it = findings(report).iter().find(|it| it["item"] == item).unwrap();
    (it["grade"].as_str().unwrap(), it["text"].as_str().unwrap(), it["examples"].to_string())
}

fn grades<'a>(report: &'a Value, grade: &str) -> Vec<&'a str> {
    let of_grade = findings(report).iter().filter(|it| it["grade"] == grade);
    of_grade.map(|it| it["item"].as_str().unwrap()).collect()
}

#[test]
fn a_fabric_of_ours_has_a_good_posture() {
    let server = rig::tree::tree();
    let (secret, state) = (server.secret(&[7; 32]), server.file("state.json"));
    drop(SmDaemon::up(&server, HOST, &["--secret", &secret]));
    let report = report(&server, &["--secret", &secret, "--state", &state]);
    assert_eq!(grades(&report, "risk"), Vec::<&str>::new(), "{report:#}");
    for item in ["keys", "key-levels", "partitions", "enforcement", "adaptive-routing", "congestion-control"]
    {
        assert_eq!(finding(&report, item).0, "good", "{report:#}");
    }
    assert_eq!(report["differences"], 0);
    assert_eq!(report["kept"]["lids"], report["kept"]["lids_total"]);
}

#[test]
fn ibccquery_reads_what_switches_mark() {
    for (profile, threshold) in [("strict", "0x00"), ("old-and-odd", "0x0f")] {
        let directory = tempfile::tempdir().unwrap();
        let net = rig::generate(directory.path(), &["fat-tree", "--hosts", "14", "--radix", "8"]);
        let server = Server::heddle(&net, &["--profile", profile]);
        server.bring_up("host-00001", &[]);
        let own = server.tool("host-00001", "smpquery", &["-D", "portinfo", "0,1", "0"]);
        let printed =
            server.tool("host-00001", "ibccquery", &["SwitchCongestionSetting", own.value("Lid").unwrap()]);
        assert_eq!(printed.value("Threshold"), Some(threshold), "{printed:?}");
    }
}

#[test]
fn a_careless_fabric_is_called_so() {
    let server = rig::tree::tree();
    server.bring_up(HOST, &["-Z", "off"]);
    let report = report(&server, &[]);
    assert_eq!(grades(&report, "risk"), ["keys", "partitions", "enforcement"], "{report:#}");
    let (_, text, examples) = finding(&report, "partitions");
    assert!(text.starts_with("15 of 16 adapter ports are full members"), "{text}");
    assert!(examples.contains(&host(2)), "{examples}");
    assert_eq!(finding(&report, "link-errors").0, "good", "{report:#}");
    assert_eq!(finding(&report, "managers").0, "good", "{report:#}");
    let changes = report["changes"].as_array().unwrap();
    let why = |what: &str| changes.iter().find(|it| it["what"] == what).unwrap()["why"].as_str().unwrap();
    assert_eq!(why("PortInfo partition enforcement"), "switches check the partitions of adapters");
    assert!(changes.iter().all(|it| it["count"].as_u64() > Some(0) && it["devices"].as_u64() > Some(0)));

    let text = once(&server, &["--adopt"]).stdout;
    assert!(text.contains("posture:\n  risk    keys") && text.contains("and why:"), "{text}");
}

#[test]
fn a_hostile_fabric_hides_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let net = rig::generate(directory.path(), &["fat-tree", "--hosts", "14", "--radix", "8"]);
    let server = Server::heddle(&net, &["--profile", "old-and-odd"]);
    let _opensm = server.opensm("host-00003", &["-p", "15", "-l", "2"]);
    assert!(server.control(&["errors", "host-00005", "1", "--symbol", "60000"]).success);
    let command = ["sm", "--device", &server.device_spec("host-00001"), "--adopt", "--json"];
    let output = std::process::Command::new(rig::programs().heddle).args(command).output().unwrap();
    let report = json(&rig::Printed::of(output));
    // OpenSM may send some meanwhile.
    let sent = &json(&server.control(&["status"]))["requests"]["H-0002c90300100000"];
    assert_eq!((sent["get"].as_object().unwrap().is_empty(), &sent["set"]), (false, &serde_json::json!({})));
    for (item, words) in [
        ("adaptive-routing", "nothing can be guaranteed"),
        ("congestion-control", "mark packets"),
        ("lmc", "several LIDs"),
        ("managers", "1 other subnet managers"),
        ("rates", "Gb/s, "),
        ("link-errors", "high error counters"),
    ] {
        let (grade, text, _) = finding(&report, item);
        assert_eq!(grade, "notice", "{item}: {report:#}");
        assert!(text.contains(words), "{item}: {text}");
    }
    assert!(finding(&report, "managers").2.contains("master with priority 15"), "{report:#}");
    assert!(finding(&report, "link-errors").2.contains("[1]"), "{report:#}");
    assert_eq!(finding(&report, "keys").0, "risk");
}
