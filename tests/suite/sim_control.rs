//! A running emulation: acted on from outside, fed nonsense, left by its clients.

use std::io::{BufRead, BufReader};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::Command;

use fabric_sim::BuiltInProfile;
use ib_transport::ClientRole;

use crate::rig::{self, Server};

const HOST: &str = "host-00001";

fn sim() -> Server {
    Server::heddle(&rig::fixture("tree-16.ibnetdiscover"), &[])
}

fn answers(server: &Server, path: &str) -> bool {
    server.tool(HOST, "smpquery", &["-D", "nodeinfo", path]).success
}

#[test]
fn a_cable_can_be_pulled_and_plugged() {
    let server = sim();
    assert!(answers(&server, "0,1,2"));
    assert!(server.control(&["link", "down", "leaf-01", "2"]).success);
    assert!(!answers(&server, "0,1,2"));
    assert!(answers(&server, "0,1,3"), "the others are not concerned");
    assert!(server.control(&["link", "up", "leaf-01", "2"]).success);
    assert!(answers(&server, "0,1,2"));
}

#[test]
fn a_running_opensm_learns_of_a_pulled_cable_by_trap_128() {
    let server = sim();
    let manager = server.opensm(HOST, &[]);
    assert!(server.control(&["link", "down", "leaf-02", "1"]).success);
    manager.wait_for("Removed port");
    assert!(server.control(&["link", "up", "leaf-02", "1"]).success);
    manager.wait_for("Discovered new port");
}

#[test]
fn a_rebooted_node_has_lost_its_lid() {
    let server = sim();
    server.bring_up(HOST, &[]);
    let lid = || server.tool(HOST, "smpquery", &["-D", "portinfo", "0,1,2"]).value("Lid").unwrap().to_owned();
    assert_ne!(lid(), "0");
    assert!(server.control(&["reboot", "host-00002"]).success);
    assert_eq!(lid(), "0");
}

#[test]
fn loss_can_be_set_for_one_link_and_for_all() {
    let server = sim();
    assert!(server.control(&["loss", "1", "leaf-01", "2"]).success);
    assert!(!answers(&server, "0,1,2"));
    assert!(answers(&server, "0,1,3"));
    assert!(server.control(&["loss", "0", "leaf-01", "2"]).success);
    assert!(server.control(&["loss", "1"]).success);
    assert!(!answers(&server, "0,1,3"));
    assert!(server.control(&["loss", "0"]).success);
    assert!(answers(&server, "0,1,3"));
    let status = server.control(&["status"]).stdout;
    assert!(status.contains("\"injected\""), "{status}");
}

#[test]
fn tables_show_what_opensm_programmed() {
    let server = sim();
    server.bring_up(HOST, &[]);
    let shown = server.control(&["tables", "leaf-01"]).stdout;
    let tables: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert!(tables["linear_forwarding"].as_object().unwrap().len() >= 19, "{shown}");
}

#[test]
fn commands_that_make_no_sense_are_refused_with_the_reason() {
    let server = sim();
    for (arguments, reason) in [
        (&["link", "down", "nobody", "1"][..], "no node has the id, description or GUID"),
        (&["link", "down", "", "1"], "no node has the id, description or GUID"),
        (&["link", "down", "leaf-01", "99999"], "\"99999\" is not a port number"),
        (&["link", "down", "leaf-01", "99"], "has no port 99"),
        (&["link", "down", "leaf-01", "0"], "has no cable"),
        (&["loss", "1.5"], "must be between 0 and 1"),
        (&["loss", "0.1", "leaf-01"], "required"),
    ] {
        let refused = server.control(arguments);
        assert!(!refused.success && refused.stderr.contains(reason), "{arguments:?}: {refused:?}");
    }
    let gone = Command::new(rig::HEDDLE).args(["sim-ctl", "no-such-sim", "status"]).output().unwrap();
    assert!(String::from_utf8_lossy(&gone.stderr).contains("no process listens"), "{gone:?}");
}

#[test]
fn broken_topology_files_are_refused_with_line_and_column() {
    let directory = tempfile::tempdir().unwrap();
    for (text, reason) in [
        ("", "has no nodes"),
        ("Switch 36 \"s\"\n[37] \"h\"[1]\n", "line 2, column 2"),
        ("Switch 36 \"s\"\n[1] \"h\"[1]\n", "line 2"),
        ("Switch 36 \"s\n", "line 1"),
        ("Switch 999 \"s\"\n", "line 1"),
        ("Hca 1 \"a\"\n[1] \"b\"[1]\n\nHca 1 \"b\"\n[1] \"c\"[1]\n\nHca 1 \"c\"\n[1] \"b\"[1]\n", "line"),
        ("Hca 1 \"a\"\n\nHca 1 \"a\"\n", "line 3"),
    ] {
        let path = directory.path().join("broken");
        std::fs::write(&path, text).unwrap();
        let refused = Command::new(rig::HEDDLE)
            .arg("sim")
            .arg(&path)
            .args(["--name", &rig::unique("bad")])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && said.contains(reason), "{text:?}: {said}");
    }
    let refused = Command::new(rig::HEDDLE).args(["sim", "/no/such/file"]).output().unwrap();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("cannot read /no/such/file"));
}

#[test]
fn a_name_that_is_taken_is_refused_and_its_owner_served_on() {
    let server = sim();
    let net = rig::fixture("tree-16.ibnetdiscover");
    let second =
        Command::new(rig::HEDDLE).arg("sim").arg(net).args(["--name", &server.name]).output().unwrap();
    assert!(String::from_utf8_lossy(&second.stderr).contains("already running"), "{second:?}");
    assert!(answers(&server, "0,1"));
    assert!(server.control(&["status"]).success, "its control socket is still its own");
}

#[test]
fn invalid_messages_are_counted_and_do_not_stop_the_server() {
    let server = sim();
    // With a name, because messages from unnamed sockets are not read.
    let own = SocketAddr::from_abstract_name(format!("{}:ctl4242\0", server.name)).unwrap();
    let attacker = UnixDatagram::bind_addr(&own).unwrap();
    let control = SocketAddr::from_abstract_name(format!("{}:ctl\0", server.name)).unwrap();
    for length in [0, 1, 79, 80, 81, 288, 4096, 65_000] {
        attacker.send_to_addr(&vec![0xa5; length], &control).unwrap();
    }
    let mut client = server.client(HOST, ClientRole::Ordinary);
    assert!(client.node_info().is_ok());
    // A client that vanishes without a word while its slot is in use.
    for _ in 0..300 {
        std::mem::forget(server.client(HOST, ClientRole::Ordinary));
    }
    assert!(answers(&server, "0,1"));
    let status: serde_json::Value = serde_json::from_str(&server.control(&["status"]).stdout).unwrap();
    let count = |key: &str| status["clients"][key].as_u64().unwrap();
    assert!(count("control_wrong_length") >= 6 && count("control_wrong_magic") >= 1, "{status}");
}

#[test]
fn a_name_that_several_nodes_have_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let net = directory.path().join("net");
    std::fs::write(&net, "Switch 2 \"s\" # \"same\"\n[1] \"h\"[1]\n\nHca 1 \"h\" # \"same\"\n[1] \"s\"[1]\n")
        .unwrap();
    let server = Server::heddle(&net, &[]);
    let refused = server.control(&["link", "down", "same", "1"]);
    assert!(!refused.success && refused.stderr.contains("2 nodes are called"), "{refused:?}");
    assert!(server.control(&["link", "down", "h", "1"]).success, "an id is never ambiguous");
}

#[test]
fn stock_tools_survive_duplicated_requests() {
    let server = sim();
    assert!(server.control(&["duplicate", "0.3"]).success);
    for tool in ["ibnetdiscover", "iblinkinfo"] {
        let printed = server.tool(HOST, tool, &[]);
        assert!(printed.success, "{tool}: {printed:?}");
    }
}

#[test]
fn a_silent_control_connection_does_not_keep_others_waiting() {
    let server = sim();
    let socket = server.scratch().join(format!("heddle/sim-{}.sock", server.name));
    let _silent = [(); 3].map(|()| std::os::unix::net::UnixStream::connect(&socket).unwrap());
    assert!(server.control(&["status"]).success);
}

#[test]
fn a_runtime_directory_that_others_can_enter_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let runtime = directory.path().join("heddle");
    let start = || {
        Command::new(rig::HEDDLE)
            .arg("sim")
            .arg(rig::fixture("tree-16.ibnetdiscover"))
            .args(["--name", &rig::unique("dir")])
            .env("XDG_RUNTIME_DIR", directory.path())
            .output()
            .unwrap()
    };
    std::fs::create_dir(&runtime).unwrap();
    std::fs::set_permissions(&runtime, std::fs::Permissions::from_mode(0o777)).unwrap();
    let refused = start();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("only its owner can enter"), "{refused:?}");
    std::fs::remove_dir(&runtime).unwrap();
    std::os::unix::fs::symlink("/etc", &runtime).unwrap();
    let refused = start();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("only its owner can enter"), "{refused:?}");
}

#[test]
fn a_closed_output_pipe_is_an_error_and_not_a_panic() {
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    for arguments in
        [&["completion", "bash"][..], &["topology", "show", "fixtures/topologies/tree-16.ibnetdiscover"]]
    {
        let output = Command::new(rig::HEDDLE)
            .args(arguments)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .stdout(full())
            .stderr(std::process::Stdio::piped())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
    }
}

#[test]
fn a_terminated_emulation_leaves_nothing_behind() {
    let directory = tempfile::tempdir().unwrap();
    let name = rig::unique("end");
    let mut child = Command::new(rig::HEDDLE)
        .arg("sim")
        .arg(rig::fixture("tree-16.ibnetdiscover"))
        .args(["--name", &name])
        .env("XDG_RUNTIME_DIR", directory.path())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("ready"), "{line:?}");
    let socket = directory.path().join(format!("heddle/sim-{name}.sock"));
    assert!(socket.exists(), "its control socket is there");
    assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    assert!(child.wait().unwrap().success(), "it ends as asked");
    assert!(!socket.exists());
}

#[test]
fn stock_opensm_brings_up_devices_of_every_profile() {
    for built_in in BuiltInProfile::ALL {
        let server = Server::heddle(&rig::fixture("tree-16.ibnetdiscover"), &["--profile", built_in.name()]);
        server.bring_up(HOST, &[]);
        let described = server.tool(HOST, "smpquery", &["-D", "nodedesc", "0"]);
        assert!(described.success && described.stdout.contains(HOST), "{}: {described:?}", built_in.name());
        let status = server.control(&["counters", "host-00016"]);
        assert!(status.stdout.contains("Active"), "{}: {status:?}", built_in.name());
    }
}

#[test]
fn profiles_are_printed_and_unknown_ones_are_rejected() {
    let run = |arguments: &[&str]| Command::new(rig::HEDDLE).arg("sim").args(arguments).output().unwrap();
    let printed =
        run(&["--profile", "connectx6-quantum", "--without", "outbound-enforcement", "--print-profile"]);
    let text = String::from_utf8(printed.stdout).unwrap();
    assert!(text.contains("outbound_enforcement = false") && text.contains("speed_max = \"HDR\""), "{text}");
    let net = rig::fixture("tree-16.ibnetdiscover");
    for (arguments, named) in [
        (["--profile", "loose"], "strict, ibsim, connectx3-switchx, connectx6-quantum, old-and-odd"),
        (["--without", "wings"], "outbound-enforcement"),
        (["--vlarb", "65"], "0 to 64 entries, got 65"),
    ] {
        let refused = run(&[net.to_str().unwrap(), arguments[0], arguments[1]]);
        let error = String::from_utf8(refused.stderr).unwrap();
        assert!(!refused.status.success() && error.contains(named), "{arguments:?}: {error}");
    }
}
