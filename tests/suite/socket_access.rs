//! Access to the sockets of the ibsim protocol: those of an emulation, and those through which a tenant's tools reach
//! its view.
//!
//! The other user is `nobody`, so these tests run as root.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use controller_api::operation::OperationState;

use crate::rig::tree::{HOST, json, tree};
use crate::rig::{HEDDLE, Printed, Server, fixture};
use crate::site::{Site, by_name, eventually, new_cluster};

/// A user who owns nothing.
const NOBODY: [&str; 6] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "timeout", "120"];

/// A directory in which everybody may write, as libumad2sim wants to.
fn common_ground() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    directory
}

/// A stock tool of another user on a node of the emulation.
fn as_nobody(server: &Server, arguments: &[&str]) -> Printed {
    let directory = common_ground();
    let tool = server.command(HOST, arguments[0], &arguments[1..]);
    let mut command = Command::new(NOBODY[0]);
    command.args(&NOBODY[1..]).arg(tool.get_program()).args(tool.get_args()).current_dir(directory.path());
    for (name, value) in tool.get_envs() {
        command.env(name, value.unwrap());
    }
    Printed::of(command.output().unwrap())
}

const WHO_IS_THERE: [&str; 4] = ["smpquery", "-D", "nodeinfo", "0"];

#[test]
fn other_users_cannot_attach_to_an_emulation() {
    let server = tree();
    assert!(server.tool(HOST, WHO_IS_THERE[0], &WHO_IS_THERE[1..]).success, "its own user can");
    let refused = as_nobody(&server, &WHO_IS_THERE);
    assert!(!refused.success && !refused.stdout.contains("Guid"), "{refused:?}");
    let status = json(&server.control(&["status"]));
    assert!(status["clients"]["control_foreign_user"].as_u64() > Some(0), "{status}");
    assert!(server.tool(HOST, WHO_IS_THERE[0], &WHO_IS_THERE[1..]).success, "and still can");
}

#[test]
fn an_emulation_is_open_to_everyone_only_by_choice() {
    let server = Server::heddle(&fixture("tree-16.ibnetdiscover"), &["--open-to-everyone"]);
    let answered = as_nobody(&server, &WHO_IS_THERE);
    assert!(answered.success && answered.stdout.contains("Guid"), "{answered:?}");
    let status = json(&server.control(&["status"]));
    assert_eq!(status["clients"]["control_foreign_user"], 0, "{status}");
}

/// Attaches clients until one is refused, keeps them, and prints their number.
const HOARD: &str = r#"
import os, socket, struct, sys
name, held = os.environ["IBSIM_SOCKNAME"], []
for number in range(1000, 2100):
    def bound(what):
        at = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        at.bind(f"\0{name}:{what}{number}\0")
        return at
    control, data = bound("ctl"), bound("in")
    control.settimeout(60)
    control.connect(f"\0{name}:ctl\0")
    connect = struct.pack("=IIII64s", 0xdeadbeef, 0, 1, 64, struct.pack("=III", number, 0, 1))
    control.send(connect)
    if struct.unpack_from("=I", control.recv(80), 8)[0] == 0:
        break
    held.append((control, data))
print("held", len(held), flush=True)
sys.stdin.read()
"#;

#[test]
fn another_user_cannot_take_all_slots_of_an_open_emulation() {
    let server = Server::heddle(&fixture("tree-16.ibnetdiscover"), &["--open-to-everyone"]);
    let directory = common_ground();
    let mut hoarder = Command::new(NOBODY[0])
        .args(&NOBODY[1..])
        .args(["/usr/bin/python3", "-c", HOARD])
        .current_dir(directory.path())
        .env("IBSIM_SOCKNAME", &server.name)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut output = std::io::BufReader::new(hoarder.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut output, &mut line).unwrap();
    let held: usize =
        line.trim().strip_prefix("held ").unwrap_or_else(|| panic!("{line:?}")).parse().unwrap();
    assert!(held > 10, "it has some: {held}");
    // They are attached to the first node as subnet managers, and still the server's own user can attach there and gets
    // the requests.
    assert!(
        server.tool(HOST, WHO_IS_THERE[0], &WHO_IS_THERE[1..]).success,
        "beside {held} clients of nobody"
    );
    server.bring_up(HOST, &[]);
    drop(hoarder.stdin.take());
    hoarder.wait().unwrap();
}

#[test]
fn other_users_cannot_use_the_network_a_tenants_tool_runs_in() {
    let site = Site::new(4);
    let token = site.tenant_token("blue");
    let client = site.client(token.clone());
    let operation = site.ask(client.cluster_create(&new_cluster("one", 2))).unwrap();
    assert_eq!(site.wait(&client, &operation).state, OperationState::Done);
    eventually("there is a view", || {
        site.ask(client.view_show(&by_name("one"))).is_ok_and(|view| view.nodes.len() == 2)
    });
    let directory = common_ground();
    let url = site.controller_address().to_string();
    let tool = WHO_IS_THERE.join(" ");
    let script = format!(
        "{tool} > own 2>&1; echo $? >> own; {} {tool} > others 2>&1; echo $? >> others",
        NOBODY.join(" ")
    );
    let status = Command::new(HEDDLE)
        .args(["view", "exec", "one", "--", "sh", "-c", &script])
        .current_dir(directory.path())
        .env("HEDDLE_URL", url.trim())
        .env("HEDDLE_TOKEN", &token)
        .status()
        .unwrap();
    assert!(status.success());
    let told = |file: &str| std::fs::read_to_string(directory.path().join(file)).unwrap();
    assert!(told("own").contains("Guid") && told("own").ends_with("\n0\n"), "its own user: {}", told("own"));
    let others = told("others");
    assert!(!others.contains("Guid") && !others.ends_with("\n0\n"), "another user: {others}");
}
