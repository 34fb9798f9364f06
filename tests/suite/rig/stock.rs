//! Stock tools on whatever serves ibsim's sockets. Tests of other packages include this file too.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "every test file uses its own part")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Longer than any one tool takes on a busy machine.
const TOOL_LIMIT_S: &str = "300";

/// How long a tool waits for one answer. Their own limits (1 s, opensm 200 ms) are for hardware, not for an emulation
/// that shares two cores with others. A loss costs no such wait: it is reported to the sender at once.
const ANSWER_LIMIT_MS: &str = "60000";

/// Longer than anything takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// A name no other test and no other run has.
pub fn unique(purpose: &str) -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    format!("ht-{purpose}-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// Waits until a condition holds; a change of the fabric may take a sweep or two to be noticed.
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Sends a signal to a program that was started here.
pub fn signal(name: &str, child: &Child) {
    let _ = Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status();
}

/// The sockets that tools are to attach to, and where they leave their files.
#[derive(Clone, Copy, Debug)]
pub struct Sockets<'a> {
    pub name: &'a str,
    pub scratch: &'a Path,
}

impl Sockets<'_> {
    /// A tool that is attached to `node`.
    pub fn command(self, node: &str, program: &str, arguments: &[&str]) -> Command {
        // libumad2sim writes a directory where it is started: a scratch directory for every tool.
        let directory = self.scratch.join(unique("tool"));
        std::fs::create_dir_all(&directory).unwrap();
        let mut command = Command::new("timeout");
        command
            .arg(TOOL_LIMIT_S)
            .arg(program)
            .args(patience(program))
            .args(arguments)
            .current_dir(directory)
            .env("LD_PRELOAD", preload())
            .env("IBSIM_SOCKNAME", self.name)
            .env("SIM_HOST", node)
            .env("OSM_TMP_DIR", self.scratch)
            .env("OSM_CACHE_DIR", self.scratch);
        command
    }

    /// opensm as a service; does not wait for it. Ended when dropped.
    pub fn opensm(self, node: &str, options: &[&str]) -> OpenSm {
        self.opensm_through(Path::new(preload()), node, options)
    }

    /// The same with another preload library.
    pub fn opensm_through(self, preload: &Path, node: &str, options: &[&str]) -> OpenSm {
        self.opensm_process(preload, self.scratch, node, options)
    }

    /// The same with another cache directory (`guid2lid`, `guid2mkey`, `neighbors`).
    pub fn opensm_with_cache(self, node: &str, cache: &Path, options: &[&str]) -> OpenSm {
        self.opensm_process(Path::new(preload()), cache, node, options)
    }

    fn opensm_process(self, preload: &Path, cache: &Path, node: &str, options: &[&str]) -> OpenSm {
        let log = self.scratch.join(unique("opensm"));
        // -d 2 flushes the log after every line.
        let mut command = self.command(node, "opensm", &["-d", "2", "-f", log.to_str().unwrap()]);
        let child = command
            .args(options)
            .env("LD_PRELOAD", preload)
            .env("OSM_CACHE_DIR", cache)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        OpenSm { child, log }
    }
}

/// A running opensm.
pub struct OpenSm {
    child: Child,
    log: PathBuf,
}

impl OpenSm {
    pub fn wait_for(&self, text: &str) {
        let started = Instant::now();
        while !self.log().contains(text) {
            assert!(started.elapsed() < PATIENCE, "opensm never says {text:?}:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for OpenSm {
    fn drop(&mut self) {
        // `timeout` passes the signal on to opensm.
        signal("TERM", &self.child);
        let _ = self.child.wait();
    }
}

/// The arguments by which a program waits for answers as long as a busy machine may need.
fn patience(program: &str) -> &'static [&'static str] {
    match program {
        // Asks no other node, and knows no such option.
        "ibstat" => &[],
        _ => &["-t", ANSWER_LIMIT_MS],
    }
}

fn preload() -> &'static str {
    let places = ["/usr/lib/x86_64-linux-gnu/umad2sim/libumad2sim.so", "/usr/lib/umad2sim/libumad2sim.so"];
    places.into_iter().find(|path| Path::new(path).exists()).expect("libumad2sim is installed (libumad2sim0)")
}
