//! Conformance of `heddle sm`: small fabrics of every topology on both emulators, checked like `heddle-bench judge`.

use bench::judge::{JudgeArgs, JudgedFabric, judge};

use crate::rig;

/// Runs the judge and returns its rows.
fn judged(fabrics: &[&str]) -> Vec<JudgedFabric> {
    let fabrics = fabrics.iter().map(|fabric| fabric.parse().unwrap()).collect();
    let args = JudgeArgs { fabrics, pairs: 10, check_hosts: 2000, alone: false, json: false };
    judge(&args, &rig::programs()).unwrap()
}

#[test]
fn generated_fabrics_are_programmed_on_both_emulators() {
    let rows = judged(&["fat-tree:54:6", "torus:3x3x3", "dragonfly-plus:3", "random:12:3:5"]);
    assert_eq!(rows.len(), 8);
    for row in rows {
        let adapters = row.adapters as u64;
        assert_eq!(row.pairs_reached, adapters * (adapters - 1), "{row:?}");
        assert_eq!(row.ibdmchk_paths, Some(row.pairs_reached), "{row:?}");
    }
}

#[test]
fn a_recorded_fabric_is_programmed_on_both_emulators() {
    let recorded = rig::fixture("loginoff-2014.ibnetdiscover");
    let rows = judged(&[recorded.to_str().unwrap()]);
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[0].ibdmchk_paths, rows[1].ibdmchk_paths);
    assert!(rows[0].ibdmchk_paths.is_some());
}

#[test]
fn the_emulation_counts_requests_by_node() {
    let server = rig::Server::heddle(&rig::fixture("tree-16.ibnetdiscover"), &[]);
    let asked = |node: &str, method: &str, attribute: &str| {
        let status: serde_json::Value = serde_json::from_str(&server.control(&["status"]).stdout).unwrap();
        status["requests"][node][method][attribute].as_u64().unwrap_or(0)
    };
    let (first, second) = ("H-0002c90300100000", "H-0002c90300100010");
    assert!(server.tool("host-00001", "smpquery", &["-D", "switchinfo", "0,1"]).success);
    assert_eq!(asked(first, "get", "SWITCH_INFO"), 1);
    assert_eq!((asked(second, "get", "SWITCH_INFO"), asked(first, "set", "SWITCH_INFO")), (0, 0));
    server.bring_up("host-00002", &[]);
    assert_eq!(asked(second, "set", "LINEAR_FORWARDING"), 6, "one block for each switch");
    assert_eq!(asked(first, "set", "LINEAR_FORWARDING"), 0);
}
