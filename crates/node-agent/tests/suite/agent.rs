//! The agent as a process, with libvirt's test driver: host specs, reports, rejections, and being killed.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use controller_api::Problem;
use controller_api::agent::{HostReport, HostSpec, VmState};
use controller_api::cluster::CpuMode;
use node_agent::host_spec::StoredSpec;
use tempfile::TempDir;
use uuid::Uuid;

/// Attempts and the pause in between; together longer than a start takes on a busy machine.
const ATTEMPTS: usize = 1800;
const BETWEEN: Duration = Duration::from_millis(50);

/// An agent process that is killed when the test ends.
pub(crate) struct Agent {
    pub(crate) process: Child,
    pub(crate) socket: PathBuf,
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: String,
}

impl Agent {
    pub(crate) fn start(scratch: &Path) -> Self {
        Self::start_with(scratch, &["--host", "one", "--host", "two"])
    }

    pub(crate) fn start_with(scratch: &Path, arguments: &[&str]) -> Self {
        let socket = scratch.join("agent.sock");
        let mut command = command(scratch);
        command.args(arguments);
        if !arguments.contains(&"--uri") {
            command.args(["--uri", "test:///default"]);
        }
        Self::spawn(command, socket)
    }

    pub(crate) fn spawn(mut command: Command, socket: PathBuf) -> Self {
        // A child of an agent that was killed has the agent's descriptors until it executes its own program.
        for _ in 0..ATTEMPTS {
            if UnixStream::connect(&socket).is_err() {
                break;
            }
            std::thread::sleep(BETWEEN);
        }
        let mut process = command.spawn().unwrap();
        for _ in 0..ATTEMPTS {
            if UnixStream::connect(&socket).is_ok() {
                return Self { process, socket };
            }
            if let Some(status) = process.try_wait().unwrap() {
                panic!("the agent has ended: {status}");
            }
            std::thread::sleep(BETWEEN);
        }
        panic!("the agent does not answer");
    }

    pub(crate) fn request(&self, method: &str, path: &str, body: &str) -> Answer {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: agent\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        // In one write: the agent may reject the request before it has read all of it.
        stream.write_all(request.as_bytes()).unwrap();
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let status = line.split(' ').nth(1).unwrap().parse().unwrap();
        while line != "\r\n" {
            line.clear();
            reader.read_line(&mut line).unwrap();
        }
        let mut body = String::new();
        reader.read_to_string(&mut body).unwrap();
        Answer { status, body }
    }

    pub(crate) fn put_spec(&self, host: &str, orders: &HostSpec) -> Answer {
        self.request("PUT", &format!("/v1/hosts/{host}"), &serde_json::to_string(orders).unwrap())
    }

    pub(crate) fn report(&self, host: &str, after: u64) -> HostReport {
        let answer = self.request("GET", &format!("/v1/hosts/{host}?after={after}"), "");
        assert_eq!(answer.status, 200, "{}", answer.body);
        serde_json::from_str(&answer.body).unwrap()
    }

    /// Reads reports of a host until one satisfies `wanted`.
    pub(crate) fn until(&self, host: &str, wanted: impl Fn(&HostReport) -> bool) -> HostReport {
        let mut report = self.report(host, 0);
        for _ in 0..24 {
            if wanted(&report) {
                return report;
            }
            report = self.report(host, report.number);
        }
        panic!("no matching report; the last one is {report:?}");
    }
}

impl Answer {
    pub(crate) fn problem(&self) -> Problem {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("no problem: {}", self.body))
    }
}

pub(crate) fn command(scratch: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_heddle-agent"));
    command
        .args(["--accelerator", "tcg", "--cores", "0-1", "--memory", "1G"])
        .arg("--state")
        .arg(scratch.join("state"))
        .arg("--socket")
        .arg(scratch.join("agent.sock"))
        .arg("--runtime")
        .arg(scratch.join("run"))
        .arg("--sim-control")
        .arg(scratch.join("nobody.sock"))
        .stderr(Stdio::null());
    command
}

pub(crate) fn host_spec(sequence: u64, numbers: impl IntoIterator<Item = u8>) -> HostSpec {
    let vms = numbers.into_iter().map(|number| crate::common::vm_order(number, CpuMode::Shared)).collect();
    crate::common::host_spec(sequence, vms)
}

/// A host spec that removes one virtual machine.
pub(crate) fn removing(sequence: u64, id: Uuid) -> HostSpec {
    HostSpec { removed: vec![id], ..crate::common::host_spec(sequence, Vec::new()) }
}

pub(crate) fn failed(report: &HostReport) -> bool {
    report.vms.len() == 1 && report.vms[0].state == VmState::Failed
}

#[test]
fn only_served_hosts_have_reports() {
    let scratch = TempDir::new().unwrap();
    let agent = Agent::start(scratch.path());
    let answer = agent.request("GET", "/v1/hosts", "");
    assert_eq!((answer.status, answer.body.as_str()), (200, r#"["one","two"]"#));
    let report = agent.report("one", 0);
    assert_eq!((report.cores.total, report.memory_mib.total), (1, 1024));
    assert!(report.vms.is_empty() && !report.fabric);
    for (method, path) in
        [("GET", "/v1/hosts/three"), ("PUT", "/v1/hosts/three"), ("GET", "/v1/hosts/%2e%2e")]
    {
        let answer = agent.request(method, path, &serde_json::to_string(&host_spec(1, [])).unwrap());
        assert_eq!((answer.status, answer.problem().kind.as_str()), (404, "no-such-host"), "{method} {path}");
    }
    let mode = std::fs::metadata(&agent.socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn acknowledged_specs_survive_a_kill() {
    let scratch = TempDir::new().unwrap();
    let mut number = 0;
    for round in 1..=8 {
        let mut agent = Agent::start(scratch.path());
        let first = agent.until("one", |report| report.vms.len() == usize::from(round - 1));
        assert!(first.number > number, "report numbers increase over restarts");
        number = first.number;
        assert_eq!(agent.put_spec("one", &host_spec(round.into(), 1..=round)).status, 204);
        // Killed at once: reconciliation continues after the restart.
        agent.process.kill().unwrap();
        agent.process.wait().unwrap();
    }
}

#[test]
fn an_unusable_image_is_reported_and_leaves_no_files() {
    let scratch = TempDir::new().unwrap();
    let agent = Agent::start(scratch.path());
    assert_eq!(agent.put_spec("one", &host_spec(1, [1])).status, 204);
    let report = agent.until("one", failed);
    let reason = report.vms[0].reason.clone().unwrap();
    assert!(reason.starts_with("image debian-mpi: cannot read /images/debian-mpi/image.json"), "{reason}");
    assert_eq!(files_of_vms(scratch.path()), Vec::<PathBuf>::new());
    assert_eq!(report.memory_mib.used, 0);
    assert_eq!(agent.put_spec("one", &removing(2, report.vms[0].id)).status, 204);
    agent.until("one", |report| report.vms.is_empty());
}

pub(crate) fn with_image(scratch: &Path, mode: CpuMode) -> HostSpec {
    let images = scratch.join("images");
    std::fs::create_dir_all(&images).unwrap();
    let mut order = crate::common::vm_order(1, mode);
    order.image = crate::common::image(&images);
    crate::common::host_spec(1, vec![order])
}

/// Files of virtual machines in the state and runtime directories, without retained disks.
pub(crate) fn files_of_vms(scratch: &Path) -> Vec<PathBuf> {
    let entries = |directory: &Path| -> Vec<PathBuf> {
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect()
    };
    let sockets =
        entries(&scratch.join("run")).iter().flat_map(|instance| entries(instance)).collect::<Vec<_>>();
    let disks = entries(&scratch.join("state/vms")).into_iter().filter(|path| !path.ends_with("resting"));
    disks.chain(sockets).collect()
}

/// libvirt's test driver accepts every domain and starts nothing.
#[test]
fn a_removed_virtual_machine_leaves_only_its_disk() {
    let scratch = TempDir::new().unwrap();
    let agent = Agent::start(scratch.path());
    let spec = with_image(scratch.path(), CpuMode::Shared);
    assert_eq!(agent.put_spec("one", &spec).status, 204);
    let report = agent.until("one", |report| report.vms.iter().any(|vm| vm.state == VmState::Running));
    assert_eq!(report.memory_mib.used, 384);
    assert_eq!(report.vms[0].reason.as_deref(), Some("the emulated fabric does not answer"));
    let directory = scratch.path().join("state/vms").join(spec.vms[0].id.to_string());
    let mode = |file: &str| std::fs::metadata(directory.join(file)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("overlay.qcow2"), mode("seed.iso")), (0o600, 0o600));
    assert!(!directory.join("making").exists(), "documents with a private key remain");
    assert_eq!(agent.put_spec("one", &removing(2, spec.vms[0].id)).status, 204);
    let report = agent.until("one", |report| report.vms.is_empty());
    assert_eq!((report.memory_mib.used, report.acknowledged.unwrap().sequence), (0, 2));
    assert_eq!(files_of_vms(scratch.path()), Vec::<PathBuf>::new());
    let retained = scratch.path().join("state/vms/resting").join(spec.vms[0].id.to_string());
    assert!(retained.join("overlay.qcow2").exists() && !retained.join("seed.iso").exists());
}

#[test]
fn a_start_that_fails_midway_is_rolled_back() {
    let scratch = TempDir::new().unwrap();
    let agent = Agent::start(scratch.path());
    let spec = with_image(scratch.path(), CpuMode::Dedicated);
    assert_eq!(agent.put_spec("one", &spec).status, 204);
    // Disks, sockets and domain are created; then the pinning check fails, because there is no process.
    let report = agent.until("one", failed);
    let reason = report.vms[0].reason.clone().unwrap();
    assert!(reason.starts_with("no running process in "), "{reason}");
    assert_eq!((report.memory_mib.used, report.cores.used), (0, 0));
    assert_eq!(files_of_vms(scratch.path()), Vec::<PathBuf>::new());
}

#[test]
fn an_unknown_disk_is_kept_and_reported() {
    let scratch = TempDir::new().unwrap();
    let agent = Agent::start(scratch.path());
    assert_eq!(agent.put_spec("one", &host_spec(1, [])).status, 204);
    drop(agent);
    let id = crate::common::vm_order(9, CpuMode::Shared).id;
    let stray = scratch.path().join("state/vms").join(id.to_string());
    std::fs::create_dir(&stray).unwrap();
    std::fs::write(stray.join("overlay.qcow2"), "a disk").unwrap();
    let agent = Agent::start(scratch.path());
    let report = agent.until("one", |report| report.vms.len() == 1);
    assert_eq!((report.vms[0].id, report.vms[0].state), (id, VmState::Stopped));
    assert!(report.vms[0].unlisted.is_some() && stray.exists());
    assert_eq!(agent.put_spec("one", &removing(2, id)).status, 204);
    agent.until("one", |report| report.vms.is_empty());
    assert!(!stray.exists() && scratch.path().join("state/vms/resting").join(id.to_string()).exists());
}

#[test]
fn rejected_specs_change_nothing() {
    let scratch = TempDir::new().unwrap();
    let agent = Agent::start(scratch.path());
    assert_eq!(agent.put_spec("one", &host_spec(1, [1])).status, 204);
    let refused = |answer: Answer| (answer.status, answer.problem().kind);
    let malformed = agent.request("PUT", "/v1/hosts/one", r#"{"vms":[{"id":7}]}"#);
    assert_eq!(refused(malformed), (400, "not-orders".to_owned()));
    let mut changed = host_spec(2, [1]);
    changed.vms[0].cores = 2;
    assert_eq!(refused(agent.put_spec("one", &changed)), (409, "vm-changed".to_owned()));
    assert_eq!(refused(agent.put_spec("two", &host_spec(2, [1]))), (409, "vm-elsewhere".to_owned()));
    changed.vms[0].cores = 0;
    let answer = agent.put_spec("one", &changed);
    assert_eq!((answer.status, answer.problem().field.as_deref()), (422, Some("vms[0].cores")));
    let kept = std::fs::read(scratch.path().join("state/orders/one.json")).unwrap();
    assert!(serde_json::from_slice::<StoredSpec>(&kept).unwrap().matches(&host_spec(1, [1])));
}

#[test]
fn secrets_are_neither_returned_nor_readable() {
    let scratch = TempDir::new().unwrap();
    let agent = Agent::start(scratch.path());
    // A private key where an id belongs: the error gives only the position.
    let misplaced = format!(r#"{{"vms":[{{"id":{:?}}}]}}"#, crate::common::PRIVATE_KEY);
    let answer = agent.request("PUT", "/v1/hosts/one", &misplaced);
    assert_eq!(answer.status, 400);
    assert!(!answer.body.contains("PRIVATE KEY"), "{}", answer.body);
    assert_eq!(agent.put_spec("one", &host_spec(1, [1])).status, 204);
    let mode =
        |path: &str| std::fs::metadata(scratch.path().join(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("state/orders"), mode("state/orders/one.json")), (0o700, 0o600));
}

#[test]
fn sessions_require_a_running_virtual_machine() {
    let scratch = TempDir::new().unwrap();
    let agent = Agent::start(scratch.path());
    assert_eq!(agent.put_spec("one", &host_spec(1, [1])).status, 204);
    let id = crate::common::vm_order(1, CpuMode::Shared).id;
    let open = |path: String, upgrade: bool, body: &str| {
        let mut stream = UnixStream::connect(&agent.socket).unwrap();
        let upgrade = if upgrade {
            "connection: upgrade\r\nupgrade: heddle-session\r\n"
        } else {
            "connection: close\r\n"
        };
        let length = body.len();
        // In one write: the agent may close the connection before it has read all of it.
        let request =
            format!("POST {path} HTTP/1.1\r\nhost: a\r\n{upgrade}content-length: {length}\r\n\r\n{body}");
        stream.write_all(request.as_bytes()).unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        line.split(' ').nth(1).unwrap().parse::<u16>().unwrap()
    };
    let ask = |path: String, upgrade: bool| open(path, upgrade, r#"{"ssh":{}}"#);
    assert_eq!(ask(format!("/v1/hosts/one/vms/{id}/sessions"), false), 426);
    assert_eq!(ask(format!("/v1/hosts/one/vms/{id}/sessions"), true), 409);
    assert_eq!(ask(format!("/v1/hosts/two/vms/{id}/sessions"), true), 404);
    assert_eq!(ask("/v1/hosts/one/vms/nonsense/sessions".to_owned(), true), 404);
    // One with its adapter does not need the guest, but the adapter.
    let view = |path: String| open(path, true, r#"{"view":{}}"#);
    assert_eq!(view(format!("/v1/hosts/one/vms/{id}/sessions")), 409);
    assert_eq!(view(format!("/v1/hosts/two/vms/{id}/sessions")), 404);
    assert_eq!(open(format!("/v1/hosts/one/vms/{id}/sessions"), true, r#"{"elsewhere":{}}"#), 400);
}

#[test]
fn without_libvirt_specs_are_stored_and_reports_withheld() {
    let scratch = TempDir::new().unwrap();
    let nowhere = "qemu+unix:///system?socket=/nowhere/libvirt-sock";
    let agent = Agent::start_with(scratch.path(), &["--host", "one", "--uri", nowhere]);
    assert_eq!(agent.put_spec("one", &host_spec(1, [1])).status, 204);
    let answer = agent.request("GET", "/v1/hosts/one?after=0", "");
    assert_eq!((answer.status, answer.problem().kind.as_str()), (503, "not-known-yet"));
    drop(agent);
    let agent = Agent::start_with(scratch.path(), &["--host", "one"]);
    agent.until("one", failed);
}

#[test]
fn a_locked_state_or_an_unserved_host_prevents_the_start() {
    let scratch = TempDir::new().unwrap();
    let agent = Agent::start(scratch.path());
    let ended = |arguments: &[&str]| {
        let output = command(scratch.path()).args(arguments).stderr(Stdio::piped()).output().unwrap();
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    let (success, said) = ended(&["--host", "one"]);
    assert!(!success && said.contains("another agent uses"), "{said}");
    assert_eq!(agent.put_spec("two", &host_spec(1, [1])).status, 204);
    drop(agent);
    let (success, said) = ended(&["--host", "one"]);
    assert!(!success && said.contains("two.json is the spec of a host that is not served"), "{said}");
    drop(Agent::start(scratch.path()));
}
