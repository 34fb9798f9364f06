//! Acknowledged host specs are on disk whatever happens to the agent or its client, and removed virtual machines do not return.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use controller_api::agent::{HostReport, HostSpec, SpecVersion, VmState};
use controller_api::cluster::CpuMode;
use durable_file::KILL_POINTS;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use node_agent::host_spec::StoredSpec;
use tempfile::TempDir;
use uuid::Uuid;

use crate::agent::{Agent, Answer, command, host_spec, removing, with_image};
use crate::common::SITE;

/// An agent that aborts at a step of storing the spec of host one.
fn doomed(scratch: &Path, point: &str) -> Agent {
    let mut command = command(scratch);
    command.args(["--host", "one", "--host", "two", "--uri", "test:///default"]);
    command.env("HEDDLE_KILL_AT", format!("{point}:one.json"));
    Agent::spawn(command, scratch.join("agent.sock"))
}

fn killed(mut agent: Agent) {
    agent.process.kill().unwrap();
    agent.process.wait().unwrap();
}

/// Sends a host spec to an agent that aborts before it answers.
fn order_unanswered(agent: &mut Agent, orders: &HostSpec) {
    let body = serde_json::to_string(orders).unwrap();
    let mut stream = UnixStream::connect(&agent.socket).unwrap();
    stream.write_all(put("one", &body).as_bytes()).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(
        answer.is_empty(),
        "the agent answered instead of aborting: {}",
        String::from_utf8_lossy(&answer)
    );
    agent.process.wait().unwrap();
}

fn put(host: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "PUT /v1/hosts/{host} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

fn kept(scratch: &Path) -> StoredSpec {
    let text = std::fs::read(scratch.join("state/orders/one.json"));
    text.map(|text| serde_json::from_slice(&text).unwrap()).unwrap_or_default()
}

fn runs(report: &HostReport) -> bool {
    report.vms.iter().any(|vm| vm.state == VmState::Running)
}

fn is_there(scratch: &Path, id: Uuid) -> bool {
    scratch.join("state/vms").join(id.to_string()).exists()
}

fn kind(answer: Answer) -> (u16, String) {
    (answer.status, answer.problem().kind)
}

#[test]
fn a_kill_during_a_removal_neither_loses_nor_revives() {
    for point in KILL_POINTS {
        let scratch = TempDir::new().unwrap();
        let first = with_image(scratch.path(), CpuMode::Shared);
        let id = first.vms[0].id;
        let agent = Agent::start(scratch.path());
        assert_eq!(agent.put_spec("one", &first).status, 204);
        agent.until("one", runs);
        killed(agent);

        let mut agent = doomed(scratch.path(), point);
        order_unanswered(&mut agent, &removing(2, id));
        let sequence = kept(scratch.path()).version.unwrap().sequence;
        let is_renamed = ["after-rename", "after-directory-sync", "before-reply"].contains(&point);
        assert_eq!(sequence, if is_renamed { 2 } else { 1 }, "{point}");

        // Without the controller, the agent reconciles with the stored spec.
        let agent = Agent::start(scratch.path());
        let report =
            agent.until("one", |report| if is_renamed { report.vms.is_empty() } else { runs(report) });
        assert_eq!(report.acknowledged.unwrap().sequence, sequence, "{point}");
        // The controller repeats the spec that was not acknowledged.
        assert_eq!(agent.put_spec("one", &removing(2, id)).status, 204, "{point}");
        agent.until("one", |report| report.vms.is_empty());
        killed(agent);
        let agent = Agent::start(scratch.path());
        let report = agent.report("one", 0);
        assert!(report.vms.is_empty() && !is_there(scratch.path(), id), "{point}: {report:?}");
    }
}

#[test]
fn a_removal_holds_after_a_kill_during_the_creation() {
    for point in KILL_POINTS {
        let scratch = TempDir::new().unwrap();
        let wanted = with_image(scratch.path(), CpuMode::Shared);
        let id = wanted.vms[0].id;
        let mut agent = doomed(scratch.path(), point);
        order_unanswered(&mut agent, &wanted);
        let agent = Agent::start(scratch.path());
        assert_eq!(agent.put_spec("one", &removing(2, id)).status, 204, "{point}");
        killed(agent);
        let agent = Agent::start(scratch.path());
        agent.until("one", |report| report.vms.is_empty());
        assert!(!is_there(scratch.path(), id), "{point}");
        assert!(kept(scratch.path()).all().next().is_none(), "{point}");
    }
}

/// The controller disconnects from a stopped agent, which reads the requests when it continues.
#[test]
fn specs_of_a_disconnected_client_are_stored() {
    let scratch = TempDir::new().unwrap();
    let wanted = with_image(scratch.path(), CpuMode::Shared);
    let id = wanted.vms[0].id;
    let agent = Agent::start(scratch.path());
    assert_eq!(agent.put_spec("one", &host_spec(0, [])).status, 204);
    let pid = Pid::from_raw(agent.process.id().cast_signed());
    kill(pid, Signal::SIGSTOP).unwrap();
    let body = serde_json::to_string(&wanted).unwrap();
    for _ in 0..8 {
        let mut stream = UnixStream::connect(&agent.socket).unwrap();
        stream.write_all(put("one", &body).as_bytes()).unwrap();
        // Dropped without waiting for the answer.
    }
    kill(pid, Signal::SIGCONT).unwrap();
    // After the answer to a later request, everything that the report acknowledges is on disk.
    let report = agent.report("one", 0);
    let on_disk = kept(scratch.path());
    assert!(on_disk.version.map(|it| it.precedence()) >= report.acknowledged.map(|it| it.precedence()));
    assert_eq!(agent.put_spec("one", &removing(2, id)).status, 204);
    killed(agent);
    assert!(kept(scratch.path()).matches(&removing(2, id)));
    let agent = Agent::start(scratch.path());
    agent.until("one", |report| report.vms.is_empty());
    assert!(!is_there(scratch.path(), id));
}

#[test]
fn older_and_foreign_specs_are_rejected() {
    let scratch = TempDir::new().unwrap();
    let agent = Agent::start(scratch.path());
    let of = |host, site, epoch, sequence, numbers: &[u8]| {
        let version = SpecVersion { site, epoch, sequence };
        agent.put_spec(host, &HostSpec { version, ..host_spec(0, numbers.iter().copied()) })
    };
    assert_eq!(of("one", SITE, 1, 5, &[1]).status, 204);
    assert_eq!(of("one", SITE, 1, 5, &[1]).status, 204, "a repeated spec is accepted");
    assert_eq!(kind(of("one", SITE, 1, 5, &[])), (409, "ambiguous-orders".to_owned()));
    assert_eq!(kind(of("one", SITE, 1, 4, &[1])), (409, "older-orders".to_owned()));
    for host in ["one", "two"] {
        assert_eq!(kind(of(host, Uuid::from_u128(7), 9, 9, &[])), (409, "other-site".to_owned()));
    }
    assert_eq!(of("one", SITE, 2, 1, &[1]).status, 204, "sequence numbers restart with a newer epoch");
    assert_eq!(kind(of("one", SITE, 1, 9, &[1])), (409, "older-orders".to_owned()));
    assert_eq!(
        kind(of("two", SITE, 1, 9, &[])),
        (409, "older-orders".to_owned()),
        "the epoch applies to all hosts of the agent"
    );
    assert_eq!(of("two", SITE, 2, 1, &[]).status, 204);
    let acknowledged = agent.report("one", 0).acknowledged.unwrap();
    assert_eq!(acknowledged, SpecVersion { site: SITE, epoch: 2, sequence: 1 });
    let unversioned = agent.request("PUT", "/v1/hosts/one", r#"{"vms":[]}"#);
    assert_eq!(kind(unversioned), (400, "not-orders".to_owned()));
}

#[test]
fn an_unlisted_virtual_machine_keeps_running() {
    let scratch = TempDir::new().unwrap();
    let wanted = with_image(scratch.path(), CpuMode::Shared);
    let (id, number) = (wanted.vms[0].id, wanted.vms[0].adapter.pkey.partition());
    let mut agent = Agent::start(scratch.path());
    assert_eq!(agent.put_spec("one", &wanted).status, 204);
    agent.until("one", runs);
    assert_eq!(agent.put_spec("one", &host_spec(2, [])).status, 204);
    for _ in 0..2 {
        let report = agent.until("one", |report| runs(report) && report.vms[0].unlisted.is_some());
        let unlisted = report.vms[0].unlisted.clone().unwrap();
        assert_eq!((unlisted.label.as_str(), unlisted.partitions.as_slice()), ("blue/red/1", &[number][..]));
        assert!(is_there(scratch.path(), id));
        // Also after a restart.
        killed(agent);
        agent = Agent::start(scratch.path());
    }
    // A virtual machine of another cluster with the same partition is not started.
    let mut other = with_image(scratch.path(), CpuMode::Shared).vms.remove(0);
    (other.id, other.context.cluster_key.public) = (Uuid::from_u128(77), "another cluster's".to_owned());
    let mut next = host_spec(3, []);
    next.vms.push(other);
    assert_eq!(agent.put_spec("one", &next).status, 204);
    let report = agent.until("one", |report| report.vms.iter().any(|vm| vm.state == VmState::Failed));
    let reason = report.vms.iter().find_map(|vm| vm.reason.clone()).unwrap();
    assert!(reason.contains("partition") && reason.contains("blue/red/1"), "{reason}");
    let gone = HostSpec { removed: vec![id], version: SpecVersion { sequence: 4, ..next.version }, ..next };
    assert_eq!(agent.put_spec("one", &gone).status, 204);
    agent.until("one", |report| report.vms.len() == 1 && runs(report));
}

#[test]
fn specs_stored_by_earlier_versions_are_read() {
    let scratch = TempDir::new().unwrap();
    let wanted = with_image(scratch.path(), CpuMode::Shared);
    std::fs::create_dir_all(scratch.path().join("state/orders")).unwrap();
    let old = serde_json::json!({ "vms": wanted.vms, "images": [] });
    std::fs::write(scratch.path().join("state/orders/one.json"), old.to_string()).unwrap();
    let agent = Agent::start(scratch.path());
    let report = agent.until("one", runs);
    assert_eq!(report.acknowledged, None);
    assert_eq!(agent.put_spec("one", &host_spec(1, [])).status, 204);
    let report = agent.until("one", |report| report.vms.iter().any(|vm| vm.unlisted.is_some()));
    assert!(runs(&report) && report.acknowledged.is_some());
    assert_eq!(agent.put_spec("one", &HostSpec { version: host_spec(2, []).version, ..wanted }).status, 204);
    agent.until("one", |report| runs(report) && report.vms[0].unlisted.is_none());
}

#[test]
fn a_restored_store_does_not_revive_removed_vms() {
    let scratch = TempDir::new().unwrap();
    let wanted = with_image(scratch.path(), CpuMode::Shared);
    let id = wanted.vms[0].id;
    let mut agent = Agent::start(scratch.path());
    assert_eq!(agent.put_spec("one", &wanted).status, 204);
    agent.until("one", runs);
    assert_eq!(agent.put_spec("one", &removing(2, id)).status, 204);
    agent.until("one", |report| report.vms.is_empty());
    assert_eq!(agent.put_spec("one", &host_spec(3, [])).status, 204);
    let again = HostSpec { version: SpecVersion { site: SITE, epoch: 2, sequence: 1 }, ..wanted };
    assert_eq!(agent.put_spec("one", &again).status, 204);
    for _ in 0..2 {
        let report = agent.until("one", |report| report.vms.len() == 1);
        assert_eq!(report.vms[0].state, VmState::Failed);
        assert!(report.vms[0].reason.as_ref().unwrap().contains("removed by an earlier host spec"));
        assert!(!is_there(scratch.path(), id));
        killed(agent);
        agent = Agent::start(scratch.path());
    }
}
