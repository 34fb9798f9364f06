//! A whole site with real virtual machines: what `heddle up` starts, used by its command line.
#![allow(dead_code, reason = "every test file uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use controller_api::operation::{Operation, OperationState};
use controller_api::{ApiClient, ControllerAddress, TrustedUsers};
use serde_json::Value;

pub const HEDDLE: &str = env!("CARGO_BIN_EXE_heddle");

/// Longer than anything takes, with guests under TCG on a machine that also builds.
const PATIENCE: Duration = Duration::from_secs(600);

/// The tenant of all clusters.
pub const TENANT: &str = "blue";

/// A running site. Stopped when dropped.
pub struct Site {
    up: Child,
    /// Goes before the directory it is in.
    disk: Option<SmallDisk>,
    pub scratch: tempfile::TempDir,
    pub image: PathBuf,
    arguments: Vec<String>,
}

impl Site {
    /// Starts a site with a tenant.
    pub fn up() -> Self {
        Self::up_with(&[])
    }

    /// Starts a site with a tenant and additional arguments of `heddle up`.
    pub fn up_with(arguments: &[&str]) -> Self {
        // Sockets need a short path, and QEMU runs as another user, which must be able to traverse the directory.
        let scratch = tempfile::Builder::new().prefix("ht-").tempdir_in("/tmp").unwrap();
        fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o711)).unwrap();
        let image = image();
        let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let up = start(scratch.path(), &image, &arguments);
        let site = Self { up, disk: None, scratch, image, arguments };
        site.run(&["tenant", "create", TENANT]);
        site
    }

    /// Puts the directory of virtual machines on a disk of this many MiB. Call it before the first one is created.
    pub fn use_small_disk(&mut self, mib: u32) {
        self.disk = Some(SmallDisk::mount(self.disks(), mib));
    }

    /// Where the disks of virtual machines are.
    pub fn disks(&self) -> PathBuf {
        self.directory().join("agent/vms")
    }

    pub fn directory(&self) -> PathBuf {
        self.scratch.path().join("site")
    }

    /// Runs a command as operator, which has to succeed, and returns its output.
    pub fn run(&self, arguments: &[&str]) -> String {
        let output = self.attempt(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "heddle {arguments:?}: {error}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a command as operator.
    pub fn attempt(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new("timeout");
        command.arg(PATIENCE.as_secs().to_string()).arg(HEDDLE).args(arguments);
        command.env("HEDDLE_HOME", self.directory()).stdin(Stdio::null()).output().unwrap()
    }

    pub fn json(&self, arguments: &[&str]) -> Value {
        let text = self.run(&[arguments, &["-o", "json"]].concat());
        serde_json::from_str(&text).unwrap()
    }

    /// Waits until killed programs are back, because requests for nodes are rejected while no host answers.
    fn wait_hosts(&self) {
        eventually("hosts are up", || {
            self.reachable()
                && self.json(&["host", "list"]).as_array().unwrap().iter().all(|host| host["state"] == "up")
        });
    }

    /// Requests a cluster and does not wait for it.
    pub fn order(&self, name: &str, more: &[&str]) {
        self.wait_hosts();
        let mut wish = vec!["cluster", "create", name, "--tenant", TENANT, "--cores", "1", "--no-wait"];
        for default in [["--memory", "384M"], ["--image", "debian-mpi"]] {
            if !more.contains(&default[0]) {
                wish.extend(default);
            }
        }
        self.run(&[&wish, more].concat());
    }

    pub fn resize(&self, name: &str, nodes: u32) {
        self.wait_hosts();
        let nodes = nodes.to_string();
        self.run(&["cluster", "resize", name, "--tenant", TENANT, "--nodes", &nodes, "--no-wait"]);
    }

    pub fn delete(&self, name: &str) {
        self.run(&["cluster", "delete", name, "--tenant", TENANT, "--no-wait"]);
    }

    pub fn clusters(&self) -> Vec<Value> {
        self.json(&["cluster", "list"]).as_array().unwrap().clone()
    }

    pub fn cluster(&self, name: &str) -> Option<Value> {
        self.clusters().into_iter().find(|cluster| cluster["name"] == name)
    }

    /// Waits until a cluster is ready with this many nodes and its operation has ended: a cluster that grows stays
    /// ready meanwhile.
    pub fn wait_ready(&self, name: &str, nodes: usize) {
        eventually(&format!("{name} is ready with {nodes} nodes"), || {
            let Some(cluster) = self.reachable().then(|| self.cluster(name)).flatten() else { return false };
            assert_ne!(cluster["phase"], "failed", "{cluster}");
            let all = cluster["nodes"].as_array().unwrap();
            cluster["phase"] == "ready"
                && all.len() == nodes
                && all.iter().all(|node| node["state"] == "ready")
                && !self.is_changing(name)
        });
    }

    /// Whether an operation of a cluster is in progress, or the controller does not answer.
    fn is_changing(&self, name: &str) -> bool {
        let endpoint = ControllerAddress::Unix(self.directory().join("api/heddle.sock"));
        let token = fs::read_to_string(self.directory().join("operator.token")).unwrap();
        let client = ApiClient::new(endpoint, TrustedUsers::new(None), token.trim().to_owned());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let is_running = |operation: &Operation| {
            operation.cluster.as_str() == name && operation.state == OperationState::Running
        };
        runtime.block_on(client.operation_list()).map_or(true, |all| all.iter().any(is_running))
    }

    /// Waits until there is no such cluster.
    pub fn wait_gone(&self, name: &str) {
        eventually(&format!("{name} is gone"), || self.reachable() && self.cluster(name).is_none());
    }

    /// Whether the controller answers; it may just have been killed.
    pub fn reachable(&self) -> bool {
        self.attempt(&["cluster", "list"]).status.success()
    }

    /// Output of a command in a node.
    pub fn exec(&self, cluster: &str, node: u32, command: &[&str]) -> String {
        let node = node.to_string();
        let start = ["cluster", "exec", cluster, "--tenant", TENANT, "--node", &node, "--"];
        self.run(&[&start, command].concat()).trim().to_owned()
    }

    /// Registers the image with tools that measure as `debian-evaluation`.
    pub fn add_evaluation_image(&self) {
        self.run(&["image", "add", "debian-evaluation", image_of("evaluation").to_str().unwrap()]);
    }

    /// The boot id of a node, which changes with every boot.
    pub fn boot_id(&self, cluster: &str, node: u32) -> String {
        self.exec(cluster, node, &["cat", "/proc/sys/kernel/random/boot_id"])
    }

    /// Kills a program of the site; the supervisor restarts it.
    pub fn kill(&self, part: &str) {
        let path = self.directory().join("run").join(format!("{part}.pid"));
        let mut killed = None;
        eventually(&format!("{part} runs"), || {
            let Ok(pid) = fs::read_to_string(&path) else { return false };
            let status = Command::new("kill").args(["-KILL", pid.trim()]).stderr(Stdio::null()).status();
            killed = status.unwrap().success().then(|| pid.clone());
            killed.is_some()
        });
        // The next one may be killed only after it was born.
        eventually(&format!("{part} is started again"), || {
            fs::read_to_string(&path).is_ok_and(|pid| Some(&pid) != killed.as_ref())
        });
    }

    /// The virtual functions that are attached to the emulated fabric.
    pub fn functions(&self) -> Vec<Value> {
        let listed = ["functions", "adapters"].map(|kind| self.sim_ctl(&[kind]));
        listed.iter().flat_map(|text| serde_json::from_str::<Vec<Value>>(text).unwrap()).collect()
    }

    /// Runs `heddle sim-ctl` on the emulated fabric.
    pub fn sim_ctl(&self, arguments: &[&str]) -> String {
        let socket = self.directory().join("run/sim-control.sock");
        self.run(&[&["sim-ctl", socket.to_str().unwrap()], arguments].concat())
    }

    /// Directories of virtual machines.
    pub fn machine_directories(&self) -> BTreeSet<PathBuf> {
        let entries = fs::read_dir(self.disks()).into_iter().flatten().map(|entry| entry.unwrap().path());
        entries.filter(|path| !path.ends_with("resting")).collect()
    }

    /// Processes of QEMU that use this site's disks.
    pub fn machines(&self) -> Vec<Machine> {
        let disks = self.disks().display().to_string();
        processes()
            .filter(|(_, line)| line.contains("qemu-system") && line.contains(&disks))
            .map(|(pid, line)| Machine { pid, line })
            .collect()
    }

    /// Stops the site cleanly, as Ctrl-C does.
    pub fn stop(&mut self) {
        let pid = self.up.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        assert!(self.up.wait().unwrap().success(), "the site ends well");
    }

    /// Starts `heddle up` again in the same directory.
    pub fn start(&mut self) {
        self.up = start(self.scratch.path(), &self.image, &self.arguments);
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if matches!(self.up.try_wait(), Ok(None)) {
            let _ = Command::new("kill").args(["-TERM", &self.up.id().to_string()]).status();
            let _ = self.up.wait();
        }
        if std::thread::panicking() {
            let logs = self.directory().join("log");
            for entry in fs::read_dir(logs).into_iter().flatten().flatten() {
                let text = fs::read_to_string(entry.path()).unwrap_or_default();
                let last: Vec<&str> = text.lines().rev().take(15).collect();
                eprintln!("== {}", entry.path().display());
                last.iter().rev().for_each(|line| eprintln!("{line}"));
            }
        }
    }
}

/// A disk in memory. Gone when dropped.
struct SmallDisk {
    path: PathBuf,
}

impl SmallDisk {
    fn mount(path: PathBuf, mib: u32) -> Self {
        let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        let options = format!("size={mib}m,mode={mode:o}");
        let mut command = Command::new("mount");
        let status = command.args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(&path).status();
        assert!(status.unwrap().success(), "a disk in memory is mounted");
        Self { path }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.path).status();
    }
}

/// A virtual machine as the machine's own kernel sees it.
#[derive(Debug)]
pub struct Machine {
    pub pid: u32,
    pub line: String,
}

impl Machine {
    /// Values of `/proc/PID/status`, or of the status of a thread, in kB.
    pub fn status_kb(&self, field: &str) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{field}:"))).unwrap_or("0 kB");
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// The threads by name, with the cores they may run on.
    pub fn threads(&self) -> Vec<(String, String)> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid)).unwrap();
        tasks
            .map(|task| {
                let path = task.unwrap().path();
                let name = fs::read_to_string(path.join("comm")).unwrap().trim().to_owned();
                let status = fs::read_to_string(path.join("status")).unwrap();
                let cores = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
                (name, cores.trim().to_owned())
            })
            .collect()
    }
}

fn processes() -> impl Iterator<Item = (u32, String)> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        Some((pid, String::from_utf8_lossy(&line).replace('\0', " ")))
    })
}

fn start(scratch: &Path, image: &Path, more: &[String]) -> Child {
    let site = scratch.join("site");
    let mut child = Command::new(HEDDLE)
        .args(["up", "--dir"])
        .arg(&site)
        .args(["--image", &format!("debian-mpi={}", image.display())])
        .args(more)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let ready = lines.by_ref().map_while(Result::ok).find(|line| line.starts_with("ready in"));
    assert!(ready.is_some(), "the site does not become ready");
    std::thread::spawn(move || lines.for_each(drop));
    child
}

/// The image, built if it is not there.
fn image() -> PathBuf {
    image_of("base")
}

/// A variant of the image, built if it is not there.
fn image_of(variant: &str) -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/image.sh");
    let output = Command::new(script).arg(variant).stderr(Stdio::inherit()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "scripts/image.sh: {text}");
    PathBuf::from(text.lines().last().unwrap())
}

/// Waits until something holds.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "not after {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}
