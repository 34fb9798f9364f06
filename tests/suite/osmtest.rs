//! osmtest, the test program of OpenSM, through the preload library: against `heddle sm` on `heddle sim`, and against OpenSM on
//! ibsim.

use crate::preload::preload;
use crate::rig::{self, Printed, Server, SmDaemon};

/// All ports of all switches are cabled: the QoS flow asks for the tables of each.
const FABRIC: [&str; 5] = ["fat-tree", "--hosts", "32", "--radix", "8"];
/// Descriptions of the node of the subnet manager, and of another one.
const MANAGER: &str = "host-00001";
const OTHER: &str = "host-00002";

/// osmtest tests the default partition, and expects a broadcast group of IPoIB.
const PARTITIONS: &str = "Default=0x7fff, ipoib : ALL=full;\n";

/// A flow of osmtest.
struct Flow {
    arguments: &'static [&'static str],
    name: &'static str,
    /// The node that it runs on.
    node: &'static str,
    /// Whether it passes with `heddle sm`.
    passes: bool,
}

const fn flow(arguments: &'static [&'static str], name: &'static str) -> Flow {
    Flow { arguments, name, node: OTHER, passes: true }
}

/// In this order: the first one writes the inventory that others read.
const FLOWS: [Flow; 11] = [
    flow(&["-f", "c"], "create inventory"),
    flow(&["-f", "v"], "validate inventory"),
    flow(&["-f", "e"], "event forwarding"),
    flow(&["-f", "m"], "multicast"),
    // Tenants do not see the lanes of switches: it runs where the manager does.
    Flow { node: MANAGER, ..flow(&["-f", "q"], "QoS: arbitration and SL to VL") },
    flow(&["-f", "f", "-s1"], "stress: single MADs"),
    flow(&["-f", "f", "-s2"], "stress: RMPP"),
    flow(&["-f", "f", "-s3"], "stress: RMPP, path records"),
    flow(&["-f", "f", "-s4"], "stress: single MADs, path records"),
    // ServiceRecords are not supported, and refused as such. The flow of all validations begins with them.
    Flow { passes: false, ..flow(&["-f", "s"], "service registration") },
    Flow { passes: false, ..flow(&["-f", "a"], "all validations") },
];

fn osmtest(server: &Server, flow: &Flow, options: &[&str]) -> Printed {
    let inventory = server.file("inventory.dat");
    let log = server.file("osmtest.log");
    let arguments = [flow.arguments, options, &["-i", &inventory, "-l", &log]].concat();
    let mut command = server.command(flow.node, "osmtest", &arguments);
    Printed::of(command.env("LD_PRELOAD", preload()).output().unwrap())
}

fn has_passed(printed: &Printed) -> bool {
    printed.stdout.lines().any(|line| line.starts_with("OSMTEST: TEST") && line.ends_with("PASS"))
}

fn partitions(server: &Server) -> String {
    let path = server.file("partitions.conf");
    std::fs::write(&path, PARTITIONS).unwrap();
    path
}

/// Runs flows; the name of each, whether it passed, and its log.
fn outcomes(
    server: &Server,
    flows: impl Iterator<Item = &'static Flow>,
    options: &[&str],
) -> Vec<(&'static Flow, bool, String)> {
    let outcome = |flow: &'static Flow| {
        let printed = osmtest(server, flow, options);
        println!("{}: {}", flow.name, if has_passed(&printed) { "passed" } else { "failed" });
        let log = std::fs::read_to_string(server.file("osmtest.log")).unwrap_or_default();
        (flow, has_passed(&printed), log)
    };
    flows.map(outcome).collect()
}

fn end(log: &str) -> Vec<&str> {
    log.lines().rev().take(12).collect()
}

#[test]
fn flows_of_osmtest_pass() {
    let directory = tempfile::tempdir().unwrap();
    let net = rig::generate(directory.path(), &FABRIC);
    let server = Server::heddle(&net, &[]);
    let partitions = partitions(&server);
    let _manager = SmDaemon::up(&server, MANAGER, &["--qos", "--partitions", &partitions]);
    for (flow, has_passed, log) in outcomes(&server, FLOWS.iter(), &[]) {
        assert_eq!(has_passed, flow.passes, "{}: {:#?}", flow.name, end(&log));
        let is_refused = log.contains("UNSUP_METHOD_ATTR");
        assert!(has_passed || is_refused, "{}: it is refused as unsupported", flow.name);
    }
}

/// To run all flows with OpenSM, too: `HEDDLE_OSMTEST_FLOWS=all cargo nextest run …`. It takes two minutes: OpenSM drops some
/// requests, and osmtest waits for a second each time.
const ALL_FLOWS: &str = "HEDDLE_OSMTEST_FLOWS";

/// The control: what fails with `heddle sm` fails for no other reason.
#[test]
fn flows_of_osmtest_pass_with_opensm() {
    let directory = tempfile::tempdir().unwrap();
    let net = rig::generate(directory.path(), &FABRIC);
    let server = Server::ibsim(&net);
    let partitions = partitions(&server);
    let _manager = server.opensm_through(&preload(), MANAGER, &["-Q", "-P", &partitions]);
    let all = std::env::var_os(ALL_FLOWS).is_some();
    let is_quick = |flow: &&Flow| all || ["c", "e", "m", "q"].contains(&flow.arguments[1]);
    for (flow, has_passed, log) in outcomes(&server, FLOWS.iter().filter(is_quick), &["-t", "1000"]) {
        assert!(has_passed, "{}: {:#?}", flow.name, end(&log));
    }
}
