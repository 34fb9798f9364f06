//! Running emulations and the stock tools that attach to them.
#![allow(dead_code, reason = "every test file uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

pub mod adapter;
mod stock;
pub mod tree;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use bench::Programs;
use ib_transport::ibsim::{IbsimClient, SocketName};
use ib_transport::{ClientRole, Device, DeviceSpec};
use stock::signal;
pub use stock::{OpenSm, PATIENCE, Sockets, eventually, unique};

pub const HEDDLE: &str = env!("CARGO_BIN_EXE_heddle");

/// The programs of Heddle that the checks of `bench` start.
pub fn programs() -> Programs {
    // Only `heddle-bench sim` and `heddle-bench view` start servers of heddle-bench, and no test here uses those.
    Programs { heddle: HEDDLE.into(), heddle_bench: "heddle-bench".into() }
}

pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/topologies").join(name)
}

/// Writes a generated topology and returns its path.
pub fn generate(directory: &Path, arguments: &[&str]) -> PathBuf {
    let path = directory.join(unique("net"));
    let status = Command::new(HEDDLE)
        .args(["topology", "generate"])
        .args(arguments)
        .arg("-o")
        .arg(&path)
        .status()
        .unwrap();
    assert!(status.success(), "topology generate {arguments:?}");
    path
}

/// A server process under a name that tools attach to. Ended when dropped.
pub struct Server {
    child: Child,
    pub name: String,
    scratch: tempfile::TempDir,
}

impl Server {
    /// `heddle sim`, once it says that it is ready.
    pub fn heddle(net: &Path, options: &[&str]) -> Self {
        let name = unique("sim");
        let scratch = tempfile::tempdir().unwrap();
        let child = start_sim(net, &name, scratch.path(), options);
        Self { child, name, scratch }
    }

    /// The installed ibsim, once a client can attach.
    pub fn ibsim(net: &Path) -> Self {
        let name = unique("ibsim");
        let child = mortal("ibsim")
            .args(["-s", "-N", "16384", "-S", "2048", "-P", "90000"])
            .arg(net)
            .env("IBSIM_SOCKNAME", &name)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("ibsim is installed (Debian package ibsim-utils)");
        let server = Self { child, name, scratch: tempfile::tempdir().unwrap() };
        let name = SocketName::new(&server.name).unwrap();
        eventually("ibsim answers", || IbsimClient::connect(&name, "", ClientRole::Ordinary).is_ok());
        server
    }

    pub fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    /// A client of the own framing.
    pub fn device(&self, node: &str, role: ClientRole) -> Device {
        let door = self.scratch().join("door");
        let spec: DeviceSpec = format!("heddle:{}@{node}", door.display()).parse().unwrap();
        let mut device = Device::open(&spec).unwrap();
        device.set_role(role).unwrap();
        device
    }

    pub fn client(&self, node: &str, role: ClientRole) -> IbsimClient {
        IbsimClient::connect(&SocketName::new(&self.name).unwrap(), node, role).unwrap()
    }

    /// `heddle sim-ctl` on this emulation.
    pub fn control(&self, arguments: &[&str]) -> Printed {
        let output = Command::new(HEDDLE)
            .args(["sim-ctl", &self.name])
            .args(arguments)
            .env("XDG_RUNTIME_DIR", self.scratch())
            .output()
            .unwrap();
        Printed::of(output)
    }

    /// A stock tool that is attached to `node`.
    pub fn tool(&self, node: &str, program: &str, arguments: &[&str]) -> Printed {
        Printed::of(self.command(node, program, arguments).output().unwrap())
    }

    pub fn command(&self, node: &str, program: &str, arguments: &[&str]) -> Command {
        self.sockets().command(node, program, arguments)
    }

    fn sockets(&self) -> Sockets<'_> {
        Sockets { name: &self.name, scratch: self.scratch() }
    }

    /// Configures the fabric with opensm, once, and returns its log.
    pub fn bring_up(&self, node: &str, options: &[&str]) -> String {
        let log = self.scratch().join("opensm.log");
        let mut arguments = vec!["-o", "-f", log.to_str().unwrap()];
        arguments.extend(options);
        let printed = self.tool(node, "opensm", &arguments);
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        assert!(text.contains("SUBNET UP"), "{printed:?}\n{text}");
        text
    }

    /// opensm as a service, once the subnet is up. Ended when dropped.
    pub fn opensm(&self, node: &str, options: &[&str]) -> OpenSm {
        let manager = self.opensm_beside(node, options);
        manager.wait_for("SUBNET UP");
        manager
    }

    /// The same with another preload library than libumad2sim, which knows no answers of several datagrams.
    pub fn opensm_through(&self, preload: &Path, node: &str, options: &[&str]) -> OpenSm {
        let manager = self.sockets().opensm_through(preload, node, options);
        manager.wait_for("SUBNET UP");
        manager
    }

    /// opensm as a service with a cache directory, once the subnet is up. Ended when dropped.
    pub fn opensm_with_cache(&self, node: &str, cache: &Path, options: &[&str]) -> OpenSm {
        let manager = self.sockets().opensm_with_cache(node, cache, options);
        manager.wait_for("SUBNET UP");
        manager
    }

    /// opensm as a service; does not wait for it. Ended when dropped.
    pub fn opensm_beside(&self, node: &str, options: &[&str]) -> OpenSm {
        self.sockets().opensm(node, options)
    }

    /// The device specification of `node`, for `heddle sm`.
    pub fn device_spec(&self, node: &str) -> String {
        match self.scratch().join("door") {
            door if door.exists() => format!("heddle:{}@{node}", door.display()),
            _ => format!("ibsim:{}@{node}", self.name),
        }
    }

    /// A file of this server's own, to be handed to a program.
    pub fn file(&self, name: &str) -> String {
        self.scratch().join(name).to_str().unwrap().to_owned()
    }

    /// A site secret that only its owner can read.
    pub fn secret(&self, bytes: &[u8]) -> String {
        let path = self.file("site.secret");
        std::fs::write(&path, bytes).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path
    }
}

impl Server {
    /// Ends it by SIGKILL, without cleanup; its directory stays.
    pub fn crash(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Ends it by SIGTERM.
    pub fn stop(&mut self) {
        signal("TERM", &self.child);
        assert!(self.child.wait().unwrap().success());
    }

    /// `heddle sim` again, in the same directory and under the same name, with nothing in its tables.
    pub fn restart(&mut self, net: &Path) {
        let scratch = self.scratch.path();
        self.child = start_sim(net, &self.name, scratch, &[]);
    }
}

/// Starts `heddle sim`, and returns once it says that it is ready.
fn start_sim(net: &Path, name: &str, scratch: &Path, options: &[&str]) -> Child {
    let mut child = mortal(HEDDLE)
        .arg("sim")
        .arg(net)
        .args(["--name", name])
        .arg("--socket")
        .arg(scratch.join("door"))
        .args(options)
        .env("XDG_RUNTIME_DIR", scratch)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("ready"), "{line:?}");
    child
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `heddle sm` as a daemon with a control socket of its own. Ended by SIGTERM when dropped.
pub struct SmDaemon {
    child: Child,
    control: PathBuf,
    stdout: PathBuf,
    stderr: PathBuf,
}

impl SmDaemon {
    /// Starts it on `node` with the state of this server and frequent sweeps.
    pub fn start(server: &Server, node: &str, options: &[&str]) -> Self {
        Self::start_by(&[], server, node, (&server.file("state.json"), options))
    }

    /// The same by a program that becomes it, with a state elsewhere.
    pub fn start_by(
        wrapper: &[&str],
        server: &Server,
        node: &str,
        (state, options): (&str, &[&str]),
    ) -> Self {
        Self::start_at(wrapper, &server.device_spec(node), server.scratch(), (state, options))
    }

    /// The same on any device, with its files in a directory.
    pub fn start_at(
        wrapper: &[&str],
        device: &str,
        scratch: &Path,
        (state, options): (&str, &[&str]),
    ) -> Self {
        let control = scratch.join(unique("control"));
        Self::start_controlled(wrapper, device, scratch, control, (state, options))
    }

    /// The same with a control socket that others know.
    pub fn start_controlled(
        wrapper: &[&str],
        device: &str,
        scratch: &Path,
        control: PathBuf,
        (state, options): (&str, &[&str]),
    ) -> Self {
        let place = |what: &str| scratch.join(unique(what));
        let (stdout, stderr) = (place("stdout"), place("stderr"));
        let create = |path: &Path| std::fs::File::create(path).unwrap();
        let (program, arguments) = wrapper.split_first().unwrap_or((&HEDDLE, &[]));
        let child = mortal(program)
            .args(arguments)
            .args((!wrapper.is_empty()).then_some(HEDDLE))
            .args(["sm", "--device", device, "--state", state])
            .args(["--sweep", "1", "--control"])
            .arg(&control)
            .args(options)
            .env("HEDDLE_LOG", "trace")
            .stdout(create(&stdout))
            .stderr(create(&stderr))
            .spawn()
            .unwrap();
        Self { child, control, stdout, stderr }
    }

    /// Starts it, and returns once the fabric matches the plan.
    pub fn up(server: &Server, node: &str, options: &[&str]) -> Self {
        let mut daemon = Self::start(server, node, options);
        daemon.wait_for_up(1);
        daemon
    }

    /// Waits until it has reported `times` times that the fabric matches the plan, and returns the last of these
    /// reports.
    pub fn wait_for_up(&mut self, times: usize) -> String {
        let mut told = Vec::new();
        eventually("the manager is up", || {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "the manager ended: {ended:?}\n{}", self.stderr());
            told = self.ups();
            told.len() >= times
        });
        told.remove(times - 1)
    }

    /// The lines that report that the fabric matches the plan.
    pub fn ups(&self) -> Vec<String> {
        self.stdout().lines().filter(|line| line.starts_with("up:")).map(str::to_owned).collect()
    }

    pub fn stdout(&self) -> String {
        std::fs::read_to_string(&self.stdout).unwrap()
    }

    pub fn stderr(&self) -> String {
        std::fs::read_to_string(&self.stderr).unwrap()
    }

    pub fn socket(&self) -> &Path {
        &self.control
    }

    /// `heddle sm COMMAND --control` on this manager.
    pub fn control(&self, arguments: &[&str]) -> Printed {
        Printed::of(self.command(arguments).output().unwrap())
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = mortal(HEDDLE);
        command.arg("sm").args(arguments).arg("--control").arg(&self.control);
        command
    }

    /// Its statistics so far.
    pub fn status(&self) -> serde_json::Value {
        let printed = self.control(&["status"]);
        serde_json::from_str(&printed.stdout).unwrap_or_else(|_| panic!("{printed:?}\n{}", self.stderr()))
    }

    /// Waits until it has ended by itself, and returns its status.
    pub fn wait_for_end(&mut self) -> Option<i32> {
        let mut ended = None;
        eventually("the manager ends", || {
            ended = self.child.try_wait().unwrap();
            ended.is_some()
        });
        ended.and_then(|status| status.code())
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn hang_up(&self) {
        signal("HUP", &self.child);
    }

    /// Stops the process with SIGSTOP, so that the state before its next action can be checked.
    pub fn pause(&self) {
        signal("STOP", &self.child);
    }

    /// Continues the process.
    pub fn resume(&self) {
        signal("CONT", &self.child);
    }

    /// Ends it by SIGKILL: nothing is tidied up.
    pub fn crash(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for SmDaemon {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            signal("TERM", &self.child);
            // A failed test may leave the process stopped.
            signal("CONT", &self.child);
            let _ = self.child.wait();
        }
    }
}

/// Output and exit status of a program.
#[derive(Debug)]
pub struct Printed {
    pub stdout: String,
    pub stderr: String,
    pub success: bool,
}

impl Printed {
    pub fn of(output: std::process::Output) -> Self {
        Self {
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            success: output.status.success(),
        }
    }

    /// The value behind a key, as smpquery prints it: `Key:....value`.
    pub fn value(&self, key: &str) -> Option<&str> {
        let line =
            self.stdout.lines().find(|line| line.starts_with(key) && line[key.len()..].starts_with(':'))?;
        Some(line[key.len() + 1..].trim_start_matches('.'))
    }
}

/// A program that ends with the test that starts it, even if the test is killed: ibsim without a console would spin.
fn mortal(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--", program]);
    command
}
