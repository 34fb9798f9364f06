//! Stock tools through Heddle's own preload library, on `heddle sim`. What the library does on stock ibsim is tested in its
//! crate.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::rig::{self, Printed, Server, SmDaemon, eventually, unique};

/// Hosts of the fabric: their NodeRecords need dozens of RMPP segments.
const HOSTS: usize = 144;

/// Descriptions of the node of the subnet manager and of the one that tools run on.
const MANAGER: &str = "host-00001";
const NODE: &str = "host-00002";

/// How a tool reaches the emulation.
#[derive(Clone, Copy, Debug)]
enum Protocol {
    Ibsim,
    Framed,
}

/// The library, which cargo builds next to the tests.
pub fn preload() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.parent().unwrap().join("libheddle_umad.so");
    assert!(path.exists(), "{} is not built", path.display());
    path
}

fn fabric() -> (Server, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let net = rig::generate(directory.path(), &["fat-tree", "--hosts", &HOSTS.to_string()]);
    (Server::heddle(&net, &[]), directory)
}

fn command(server: &Server, protocol: Protocol, node: &str, program: &str, arguments: &[&str]) -> Command {
    let mut command = server.command(node, program, arguments);
    command.env("LD_PRELOAD", preload());
    match protocol {
        Protocol::Ibsim => command.env_remove("HEDDLE_SOCKET"),
        Protocol::Framed => command.env("HEDDLE_SOCKET", server.file("door")).env_remove("IBSIM_SOCKNAME"),
    };
    command
}

fn tool(server: &Server, protocol: Protocol, program: &str, arguments: &[&str]) -> Printed {
    let printed = Printed::of(command(server, protocol, NODE, program, arguments).output().unwrap());
    assert!(printed.success, "{program} {arguments:?}: {printed:?}");
    printed
}

/// Queries the whole fabric with stock tools.
fn query_all(server: &Server, protocol: Protocol) {
    let count =
        |printed: &Printed, text: &str| printed.stdout.lines().filter(|line| line.contains(text)).count();
    let discovered = tool(server, protocol, "ibnetdiscover", &[]);
    assert_eq!(count(&discovered, "caguid="), HOSTS);
    let nodes = HOSTS + count(&discovered, "switchguid=");
    let records = tool(server, protocol, "saquery", &["NR"]);
    assert_eq!(count(&records, "NodeRecord dump"), nodes, "{protocol:?}");
    let ports = tool(server, protocol, "saquery", &["PIR"]);
    assert!(count(&ports, "PortInfoRecord dump") > nodes, "{protocol:?}");
    assert!(tool(server, protocol, "sminfo", &[]).stdout.contains("SMINFO_MASTER"));
    assert!(tool(server, protocol, "ibstat", &[]).stdout.contains("State: Active"));
    let info = tool(server, protocol, "smpquery", &["-D", "nodeinfo", "0,1"]);
    assert_eq!(info.value("NodeType"), Some("Switch"));
}

#[test]
fn tools_read_whole_tables_from_heddle_sm() {
    let (server, _directory) = fabric();
    // Limited members of the default partition would see full members only.
    let partitions = server.file("partitions.conf");
    std::fs::write(&partitions, "Default=0x7fff : ALL=full ;\n").unwrap();
    let _manager = SmDaemon::up(&server, MANAGER, &["--partitions", &partitions]);
    query_all(&server, Protocol::Ibsim);
    query_all(&server, Protocol::Framed);
}

#[test]
fn tools_read_whole_tables_from_opensm() {
    let (server, _directory) = fabric();
    let log = server.scratch().join(unique("opensm"));
    let arguments = ["-d", "2", "-f", log.to_str().unwrap()];
    let mut opensm = command(&server, Protocol::Framed, MANAGER, "opensm", &arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let is_up = |log: &Path| std::fs::read_to_string(log).unwrap_or_default().contains("SUBNET UP");
    eventually("opensm brings the subnet up", || is_up(&log));
    query_all(&server, Protocol::Ibsim);
    query_all(&server, Protocol::Framed);
    let _ = Command::new("kill").arg(opensm.id().to_string()).status();
    opensm.wait().unwrap();
}
