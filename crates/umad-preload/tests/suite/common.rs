//! Stock servers and tools.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ib_transport::ClientRole;
use ib_transport::ibsim::{IbsimClient, SocketName};

/// Longer than anything here takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// Time that a tool waits for a response, in milliseconds: their own limits are for hardware, not for a busy machine.
const ANSWER_LIMIT_MS: &str = "20000";

/// Adapters of [`Ibsim::large`].
pub const ADAPTERS: usize = 120;

/// Nodes of [`Ibsim::large`]: the adapters, 8 leaf switches and 2 spines.
pub const NODES: usize = ADAPTERS + 10;

/// The library, which cargo builds next to the tests.
pub fn preload() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.parent().unwrap().join("libheddle_umad.so");
    assert!(path.exists(), "{} is not built", path.display());
    path
}

/// The example with this name, which cargo builds together with the tests.
pub fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.parent().and_then(Path::parent).unwrap().join("examples").join(name);
    assert!(path.exists(), "{} is not built", path.display());
    path
}

/// Waits until a condition holds.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The stock server with a directory for itself and the tools. Ended when dropped.
pub struct Ibsim {
    process: Child,
    name: String,
    udp_port: Option<u16>,
    directory: tempfile::TempDir,
}

impl Ibsim {
    /// Two adapters, `H-0000000000000b01` and `H-0000000000000c01`, on one switch.
    pub fn small() -> Self {
        Self::start(&topology(1, 0, 2), None)
    }

    /// [`NODES`] nodes in two tiers.
    pub fn large() -> Self {
        Self::start(&topology(8, 2, ADAPTERS / 8), None)
    }

    /// The same as [`Self::small`], reached by UDP at the loopback address.
    pub fn by_udp() -> Self {
        // Ports below the range that the kernel gives to clients; tests of one run differ in their process id.
        let port = 10_000 + (std::process::id() % 1000) as u16 * 16;
        Self::start(&topology(1, 0, 2), Some(port))
    }

    fn start(net: &str, udp_port: Option<u16>) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("umad-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("net"), net).unwrap();
        let mut command = Command::new("ibsim");
        if let Some(port) = udp_port {
            command.args(["-r", "-l", &port.to_string()]);
        }
        let process = command
            .args(["-s", "net"])
            .env("IBSIM_SOCKNAME", &name)
            .current_dir(directory.path())
            // It ends with its standard input.
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("ibsim is installed (Debian: ibsim-utils)");
        let ibsim = Self { process, name, udp_port, directory };
        if udp_port.is_none() {
            let name = SocketName::new(&ibsim.name).unwrap();
            eventually("ibsim answers", || IbsimClient::connect(&name, "", ClientRole::Ordinary).is_ok());
        }
        ibsim
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// A program that is attached to `node` through the library.
    pub fn command(&self, node: &str, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        command
            .current_dir(self.directory())
            .env("LD_PRELOAD", preload())
            .env("SIM_HOST", node)
            .env("OSM_TMP_DIR", self.directory())
            .env("OSM_CACHE_DIR", self.directory())
            .env_remove("HEDDLE_SOCKET")
            .stdin(Stdio::null());
        match self.udp_port {
            Some(port) => {
                command.env("IBSIM_SERVER_NAME", "127.0.0.1").env("IBSIM_SERVER_PORT", port.to_string())
            }
            None => command.env("IBSIM_SOCKNAME", &self.name),
        };
        command
    }

    /// What a tool on `node` prints; it must succeed.
    pub fn tool(&self, node: &str, program: &str, arguments: &[&str]) -> String {
        let mut command = self.command(node, program);
        if program != "ibstat" {
            command.args(["-t", ANSWER_LIMIT_MS]);
        }
        let output = command.args(arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
        text
    }

    /// opensm on `node`, once the subnet is up.
    pub fn opensm(&self, node: &str) -> OpenSm {
        let log = self.directory().join("opensm.log");
        // -d 2 flushes the log after every line.
        let mut command = self.command(node, "opensm");
        let process = command
            .args(["-d", "2", "-t", "2000", "-f", log.to_str().unwrap()])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("opensm is installed");
        let opensm = OpenSm { process, log };
        eventually("opensm brings the subnet up", || opensm.log().contains("SUBNET UP"));
        opensm
    }
}

impl Drop for Ibsim {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A running opensm. Ended when dropped.
pub struct OpenSm {
    process: Child,
    log: PathBuf,
}

impl OpenSm {
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub fn is_running(&mut self) -> bool {
        self.process.try_wait().unwrap().is_none()
    }
}

impl Drop for OpenSm {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A topology file of ibsim: leaf switches with adapters, each linked to every spine once.
fn topology(leaves: usize, spines: usize, adapters_per_leaf: usize) -> String {
    let mut text = String::new();
    let leaf_id = |leaf: usize| format!("S-{:016x}", 0xa01 + leaf);
    let spine_id = |spine: usize| format!("S-{:016x}", 0x9001 + spine);
    // Adapters of one port have port GUIDs one above their node GUIDs.
    let adapter_guid = |leaf: usize, index: usize| 0xb01 + 0x100 * (leaf * adapters_per_leaf + index);
    let adapter_id = |leaf, index| format!("H-{:016x}", adapter_guid(leaf, index));
    for leaf in 0..leaves {
        writeln!(text, "switchguid={:#x}\nSwitch 36 \"{}\"", 0xa01 + leaf, leaf_id(leaf)).unwrap();
        for index in 0..adapters_per_leaf {
            writeln!(text, "[{}] \"{}\"[1]", index + 1, adapter_id(leaf, index)).unwrap();
        }
        for spine in 0..spines {
            writeln!(text, "[{}] \"{}\"[{}]", 30 + spine, spine_id(spine), leaf + 1).unwrap();
        }
        text.push('\n');
    }
    for spine in 0..spines {
        writeln!(text, "switchguid={:#x}\nSwitch 36 \"{}\"", 0x9001 + spine, spine_id(spine)).unwrap();
        for leaf in 0..leaves {
            writeln!(text, "[{}] \"{}\"[{}]", leaf + 1, leaf_id(leaf), 30 + spine).unwrap();
        }
        text.push('\n');
    }
    for leaf in 0..leaves {
        for index in 0..adapters_per_leaf {
            writeln!(text, "caguid={:#x}\nHca 1 \"{}\"", adapter_guid(leaf, index), adapter_id(leaf, index))
                .unwrap();
            writeln!(text, "[1] \"{}\"[{}]\n", leaf_id(leaf), index + 1).unwrap();
        }
    }
    text
}
