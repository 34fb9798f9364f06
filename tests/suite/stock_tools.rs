//! Stock tools print the same on `heddle sim` as on ibsim, except for the differences that
//! `docs/sim-differences.md` lists.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::rig::{self, Server};

/// Regular and irregular, short form and long, every rate that ibsim 0.10 knows.
fn topologies(directory: &Path) -> Vec<PathBuf> {
    let generated: [&[&str]; 9] = [
        &["fat-tree", "--hosts", "324"],
        &["fat-tree", "--hosts", "54", "--radix", "6", "--rate", "4xQDR"],
        &["fat-tree", "--hosts", "16", "--rate", "4xFDR"],
        &["fat-tree", "--hosts", "40", "--radix", "12", "--missing-links", "5", "--seed", "3"],
        &["torus", "--dimensions", "4x4", "--rate", "1xSDR"],
        &["mesh", "--dimensions", "3x3x2", "--rate", "12xDDR"],
        &["dragonfly-plus", "--groups", "3", "--rate", "4xFDR10"],
        &[
            "random",
            "--switches",
            "20",
            "--degree",
            "4",
            "--hosts-per-switch",
            "2",
            "--seed",
            "7",
            "--rate",
            "2xHDR",
        ],
        &["random", "--switches", "9", "--degree", "3", "--seed", "8", "--radix", "16"],
    ];
    let fixtures =
        ["loginoff-2014.ibnetdiscover", "modules.ibsim", "short-form.ibsim", "tree-16.ibnetdiscover"];
    let mut all: Vec<PathBuf> =
        generated.iter().map(|arguments| rig::generate(directory, arguments)).collect();
    all.extend(fixtures.map(rig::fixture));
    all
}

/// The output of a tool, without the header with time and place of its start.
fn body(server: &Server, tool: &str, arguments: &[&str]) -> String {
    let printed = server.tool("", tool, arguments);
    assert!(printed.success, "{tool}: {printed:?}");
    let header = |line: &&str| !line.starts_with("# Topology file: generated on");
    printed.stdout.lines().filter(header).collect::<Vec<_>>().join("\n")
}

#[test]
fn discovery_tools_print_exactly_what_they_print_on_ibsim() {
    let directory = tempfile::tempdir().unwrap();
    let mut lines = 0;
    for net in topologies(directory.path()) {
        let (ours, theirs) = (Server::heddle(&net, &["--profile", "ibsim"]), Server::ibsim(&net));
        for (tool, arguments) in [
            ("ibnetdiscover", &[][..]),
            ("ibnetdiscover", &["-p"]),
            ("ibhosts", &[]),
            ("ibswitches", &[]),
            ("iblinkinfo", &[]),
        ] {
            let (seen, expected) = (body(&ours, tool, arguments), body(&theirs, tool, arguments));
            assert!(
                seen == expected,
                "{tool} {arguments:?} on {net:?} differs:\n{}",
                differing(&seen, &expected)
            );
            lines += seen.lines().count();
        }
    }
    assert!(lines > 5_000, "the comparison saw only {lines} lines");
}

fn differing(seen: &str, expected: &str) -> String {
    let pairs = seen.lines().zip(expected.lines()).filter(|(a, b)| a != b).take(5);
    pairs.map(|(a, b)| format!("  ours:  {a}\n  ibsim: {b}\n")).collect()
}

/// Queries compared line by line before and after opensm configured the fabric, on adapters and on switches.
const QUERIES: &[(&str, &[&str])] = &[
    ("smpquery", &["-D", "nodeinfo", "0"]),
    ("smpquery", &["-D", "nodeinfo", "0,1"]),
    ("smpquery", &["-D", "nodedesc", "0,1"]),
    ("smpquery", &["-D", "portinfo", "0", "1"]),
    ("smpquery", &["-D", "portinfo", "0,1", "0"]),
    ("smpquery", &["-D", "portinfo", "0,1", "1"]),
    ("smpquery", &["-D", "portinfo", "0,1", "36"]),
    ("smpquery", &["-D", "switchinfo", "0,1"]),
    ("smpquery", &["-D", "pkeys", "0"]),
    ("smpquery", &["-D", "pkeys", "0,1", "1"]),
    ("smpquery", &["-D", "sl2vl", "0"]),
    ("smpquery", &["-D", "sl2vl", "0,1", "1"]),
    ("smpquery", &["-D", "vlarb", "0"]),
    ("smpquery", &["-D", "vlarb", "0,1", "1"]),
    ("smpquery", &["-D", "guidinfo", "0"]),
    ("smpquery", &["-D", "-K", "portinfo", "0", "1"]),
    ("smpquery", &["-D", "-K", "portinfo", "0,1", "0"]),
    ("smpquery", &["-D", "mepi", "0,1", "1"]),
    ("ibstat", &[]),
    ("ibaddr", &[]),
];

/// The same, by LID, once there are LIDs and a subnet manager.
const CONFIGURED_QUERIES: &[(&str, &[&str])] = &[
    ("smpquery", &["nodeinfo", "2"]),
    ("smpquery", &["portinfo", "2", "1"]),
    ("sminfo", &[]),
    ("ibroute", &["2"]),
    ("ibroute", &["-M", "2"]),
    ("dump_fts", &[]),
    ("ibtracert", &["1", "9"]),
    ("iblinkinfo", &[]),
    ("perfquery", &["4", "1"]),
    ("perfquery", &["-x", "4", "1"]),
    ("saquery", &["-s"]),
    ("saquery", &["-c"]),
    ("saquery", &["NR", "4"]),
    ("saquery", &["PIR", "4"]),
    ("saquery", &["PR", "--slid", "1", "--dlid", "9"]),
    ("saquery", &["-g"]),
    ("ibqueryerrors", &[]),
];

/// Values that may differ, and the row of `docs/sim-differences.md` with the reason.
const DIFFERENCES: &[(&str, &str)] = &[
    ("GidPrefix:", "GidPrefix of end ports"),
    ("GID ", "GidPrefix of end ports"),
    ("CapMask:", "CapMask of switch port 0"),
    ("IsPkeySwitchExternalPortTrapSupported", "CapMask of switch port 0"),
    ("LocalPhysErr:", "LocalPhysErr, OverrunErr"),
    ("OverrunErr:", "LocalPhysErr, OverrunErr"),
    ("LocalPort:", "LocalPort in NodeInfo and PortInfo"),
    ("SubnetTimeout:", "M_KeyLeasePeriod, SubnetTimeout"),
    ("NeighborMTU:", "NeighborMTU of switch port 0"),
    ("LinkWidthEnabled:", "LinkWidthEnabled of end ports"),
    ("LinkSpeedEnabled:", "LinkSpeedEnabled of switch port 0"),
    ("LinkSpeedExtEnabled:", "LinkSpeedExtEnabled"),
    ("# Port counters:", "CapMask of the performance class"),
    ("# Port extended counters:", "CapMask of the performance class"),
    ("PortUnicastXmitPkts:", "PortUnicastXmitPkts, PortUnicastRcvPkts"),
    ("PortUnicastRcvPkts:", "PortUnicastXmitPkts, PortUnicastRcvPkts"),
];

/// Those that only strict devices show.
const STRICT_DIFFERENCES: &[(&str, &str)] = &[
    ("InboundPartEnf:", "InboundPartEnf, OutboundPartEnf °"),
    ("OutboundPartEnf:", "InboundPartEnf, OutboundPartEnf °"),
    ("MkeyLeasePeriod:", "M_KeyLeasePeriod, SubnetTimeout"),
    ("PartEnforceInb:", "PartEnforceInb, PartEnforceOutb of switch ports towards hosts °"),
    ("PartEnforceOutb:", "PartEnforceInb, PartEnforceOutb of switch ports towards hosts °"),
    ("VLArbHighCap:", "VLArbHighCap, VLArbLowCap of switch port 0 °"),
    ("VLArbLowCap:", "VLArbHighCap, VLArbLowCap of switch port 0 °"),
    ("IsMulticastFDBTopSupported", "IsMulticastFDBTopSupported of switches °"),
    ("IsClientRegistrationSupported", "IsClientReregistrationSupported of adapters °"),
    ("Capability mask:", "IsClientReregistrationSupported of adapters °"),
    ("capability_mask..", "IsClientReregistrationSupported of adapters °"),
    ("LinkSpeedExtActive:", "extended speeds of a PortInfo that was requested without bit 31 °"),
    ("LinkSpeedExtSupported:", "extended speeds of a PortInfo that was requested without bit 31 °"),
    ("rate..", "extended speeds of a PortInfo that was requested without bit 31 °"),
];

#[test]
fn every_difference_from_ibsim_stands_in_the_table() {
    assert_explained("ibsim", &[], DIFFERENCES, DIFFERENCES);
    // iblinkinfo shows a speed in every line, and opensm sends more requests to strict devices, which counters show.
    let other = ["iblinkinfo", "perfquery"];
    assert_explained("strict", &other, &[DIFFERENCES, STRICT_DIFFERENCES].concat(), STRICT_DIFFERENCES);
}

/// Devices of a profile differ from those of ibsim in no values but the given ones, as all but some tools show, and in all of
/// the last ones.
fn assert_explained(profile: &str, without: &[&str], differences: &[(&str, &str)], always: &[(&str, &str)]) {
    let directory = tempfile::tempdir().unwrap();
    let net = rig::generate(directory.path(), &["fat-tree", "--hosts", "16"]);
    let (ours, theirs) = (Server::heddle(&net, &["--profile", profile]), Server::ibsim(&net));
    let host = "host-00001";
    let table =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/sim-differences.md"))
            .unwrap();
    let mut unexplained = Vec::new();
    let mut seen = BTreeSet::new();
    let mut compare = |queries: &[(&str, &[&str])]| {
        for (tool, arguments) in queries.iter().filter(|(tool, _)| !without.contains(tool)) {
            let (a, b) = (ours.tool(host, tool, arguments), theirs.tool(host, tool, arguments));
            let describe = format!("{tool} {}", arguments.join(" "));
            assert!(a.success, "{describe} fails on heddle sim: {a:?}");
            for line in symmetric_difference(&comparable(&a.stdout), &comparable(&b.stdout)) {
                match differences.iter().find(|(prefix, _)| line.trim_start().starts_with(prefix)) {
                    Some((prefix, row)) => {
                        assert!(table.contains(row), "docs/sim-differences.md has no row {row}");
                        seen.insert(*prefix);
                    }
                    None => unexplained.push(format!("{describe}: {line}")),
                }
            }
        }
    };
    compare(QUERIES);
    let _managers = (ours.opensm(host, &[]), theirs.opensm(host, &[]));
    compare(QUERIES);
    compare(CONFIGURED_QUERIES);
    assert!(unexplained.is_empty(), "{profile}: differences without a row:\n{}", unexplained.join("\n"));
    let stale: Vec<_> = always.iter().filter(|(prefix, _)| !seen.contains(prefix)).collect();
    assert!(stale.is_empty(), "{profile}: no longer different: {stale:?}");
}

/// A tool's output without the activity count of the manager: opensm counts the SMPs it sent, repeated ones included.
fn comparable(output: &str) -> String {
    let (mut kept, mut rest) = (String::new(), output);
    while let Some((before, after)) = rest.split_once("activity count ") {
        kept.push_str(before);
        rest = after.trim_start_matches(|digit: char| digit.is_ascii_digit());
    }
    kept + rest
}

/// Lines that only one side has.
fn symmetric_difference(a: &str, b: &str) -> Vec<String> {
    let only = |these: &str, those: &str, mark: &str| -> Vec<String> {
        let known: BTreeSet<&str> = those.lines().collect();
        these.lines().filter(|line| !known.contains(line)).map(|line| format!("{line} {mark}")).collect()
    };
    let mut lines = only(a, b, "<- heddle");
    lines.extend(only(b, a, "<- ibsim"));
    lines
}

#[test]
fn ibportstate_disables_and_enables_a_port() {
    let ours = Server::heddle(&rig::fixture("tree-16.ibnetdiscover"), &[]);
    let host = "host-00001";
    ours.bring_up(host, &[]);
    let printed = ours.tool(host, "ibportstate", &["2", "2"]);
    assert!(printed.success && printed.stdout.contains("Peer PortInfo:"), "{printed:?}");
    let state = |server: &Server| {
        server.tool(host, "smpquery", &["portinfo", "2", "2"]).value("LinkState").unwrap().to_owned()
    };
    assert_eq!(state(&ours), "Active");
    assert!(ours.tool(host, "ibportstate", &["2", "2", "disable"]).success);
    assert_eq!(state(&ours), "Down");
    assert!(ours.tool(host, "ibportstate", &["2", "2", "enable"]).success);
    assert_eq!(state(&ours), "Initialize");
}

#[test]
fn opensm_brings_324_hosts_up_and_others_confirm_it() {
    let args = bench::bring_up::BringUpArgs {
        hosts: vec![324],
        pairs: 20,
        check_hosts: 2000,
        alone: true,
        json: false,
    };
    let rows = bench::bring_up::measure(&args, &rig::programs()).unwrap();
    assert_eq!(rows[0].paths_scanned, Some(324 * 323), "ibdmchk scanned every path and found no credit loop");
    assert_eq!(rows[0].pairs_traced, 20);
}

#[test]
fn ibnetdiscover_of_back_to_back_adapters_is_read_again() {
    let directory = tempfile::tempdir().unwrap();
    let net = directory.path().join("net");
    std::fs::write(&net, "Hca 1 \"a\"\n[1] \"b\"[1]\n\nHca 1 \"b\"\n[1] \"a\"[1]\n").unwrap();
    let printed = Server::heddle(&net, &[]).tool("a", "ibnetdiscover", &[]).stdout;
    assert_eq!(printed.matches("\nCa\t").count(), 2, "{printed}");
    std::fs::write(&net, &printed).unwrap();
    assert_eq!(Server::heddle(&net, &[]).tool("", "ibhosts", &[]).stdout.lines().count(), 2);
}
