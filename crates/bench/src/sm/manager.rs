//! A subnet manager under test: starts opensm or `heddle sm`, makes it reload, and measures its CPU time and memory.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde::Serialize;

use bench::stock::Stock;

/// Longest bring-up: opensm with quality of service on 11,664 hosts on a busy machine.
const UP_TIMEOUT: Duration = Duration::from_secs(900);

/// Interval of reading the output of a manager: short compared with every time measured here.
const LOOK: Duration = Duration::from_millis(1);

/// Processor time in a window in which a manager does nothing but wait.
const IDLE_CPU: Duration = Duration::from_micros(50);
const IDLE_WINDOW: Duration = Duration::from_millis(5);

/// Windows without work after which a manager has finished: longer than any pause between its steps.
const IDLE_WINDOWS: u32 = 100;

/// The subnet manager under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    Opensm,
    Heddle,
}

/// How a manager is started.
#[derive(Clone, Debug)]
pub struct Setup<'a> {
    pub heddle: &'a Path,
    /// Socket name of the emulation (`IBSIM_SOCKNAME`).
    pub name: &'a str,
    /// The socket of the framed protocol, if it attaches with that.
    pub framed: Option<&'a Path>,
    /// The node it runs on.
    pub node: &'a str,
    /// Directory for its files.
    pub directory: &'a Path,
    /// The manager programs SL-to-VL and arbitration tables on every port.
    pub qos: bool,
    /// Routing engine of opensm, as its option -R takes it.
    pub engine: &'a str,
}

impl Setup<'_> {
    /// The file of partitions that a manager reads.
    pub fn partitions(&self) -> PathBuf {
        self.directory.join("partitions.conf")
    }
}

/// A running manager. Ended when dropped.
#[derive(Debug)]
pub struct ManagerProcess {
    side: Side,
    child: Child,
    said: PathBuf,
    started: Instant,
    peak_kib: u64,
}

/// A partition of all hosts, so that there are paths between them: in the default one they are limited members.
pub const ALL_HOSTS: &str = "all-hosts=0x7ffe : ALL_CAS=full;\n";

/// The same with a broadcast group, so that hosts can join others.
pub const ALL_HOSTS_IPOIB: &str = "all-hosts=0x7ffe, ipoib : ALL_CAS=full;\n";

impl ManagerProcess {
    /// Starts a manager without state.
    pub fn start(side: Side, setup: &Setup) -> anyhow::Result<Self> {
        fs::create_dir_all(setup.directory)?;
        if !setup.partitions().exists() {
            fs::write(setup.partitions(), ALL_HOSTS)?;
        }
        let said = setup.directory.join("said");
        let mut command = match side {
            Side::Opensm => opensm(setup, &said)?,
            Side::Heddle => heddle(setup, &said)?,
        };
        let started = Instant::now();
        let child = command.stdin(Stdio::null()).spawn().with_context(|| format!("cannot start {side:?}"))?;
        Ok(Self { side, child, said, started, peak_kib: 0 })
    }

    /// Waits until it reports that the fabric is up; returns the time since its start.
    pub fn wait_up(&mut self) -> anyhow::Result<Duration> {
        let mark = if self.side == Side::Opensm { "SUBNET UP" } else { "up:" };
        loop {
            let said = String::from_utf8_lossy(&fs::read(&self.said).unwrap_or_default()).into_owned();
            if said.contains(mark) {
                let elapsed = self.started.elapsed();
                self.note_peak();
                return Ok(elapsed);
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("{:?} ended early: {status}", self.side);
            }
            ensure!(self.started.elapsed() < UP_TIMEOUT, "{:?} does not bring the fabric up", self.side);
            self.note_peak();
            std::thread::sleep(LOOK);
        }
    }

    /// Waits until it has nothing left to do; returns when that was, and the CPU time it used since `before`.
    pub fn wait_idle(&mut self, before: Duration) -> anyhow::Result<(Instant, Duration)> {
        let (mut busy_until, mut last, mut idle) = (Instant::now(), self.cpu()?, 0);
        while idle < IDLE_WINDOWS {
            std::thread::sleep(IDLE_WINDOW);
            let now = self.cpu()?;
            if now - last > IDLE_CPU {
                (busy_until, idle) = (Instant::now(), 0);
            } else {
                idle += 1;
            }
            last = now;
        }
        self.note_peak();
        Ok((busy_until, last - before))
    }

    /// CPU time of all its threads so far.
    pub fn cpu(&self) -> anyhow::Result<Duration> {
        let mut nanoseconds = 0;
        for task in fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            // A thread may end between the two reads.
            let text = fs::read_to_string(task?.path().join("schedstat")).unwrap_or_default();
            nanoseconds += text.split(' ').next().and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
        }
        Ok(Duration::from_nanos(nanoseconds))
    }

    /// The part of its CPU time so far that it spent outside the kernel, in steps of 10 ms.
    pub fn user_cpu(&self) -> anyhow::Result<Duration> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        // The name in field 2 ends with the last parenthesis; utime is field 14, in hundredths of a second.
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        let ticks: u64 = fields.split_whitespace().nth(11).context("a process without utime")?.parse()?;
        Ok(Duration::from_millis(ticks * 10))
    }

    /// Its peak resident memory, in KiB.
    pub fn peak_kib(&self) -> u64 {
        self.peak_kib
    }

    /// The process id of the manager.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    fn note_peak(&mut self) {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let peak = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
        self.peak_kib = self.peak_kib.max(peak.unwrap_or(0));
    }
}

impl Drop for ManagerProcess {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn opensm(setup: &Setup, said: &Path) -> anyhow::Result<Command> {
    let stock = Stock::new(setup.name, setup.node, setup.directory)?;
    // Ends with this process; -d 2 writes every line of its log at once; -s 0: no periodic sweeps.
    let mut command = stock.command("setpriv");
    if let Some(socket) = setup.framed {
        let preload = setup.heddle.with_file_name("libheddle_umad.so");
        ensure!(preload.exists(), "{} is missing: build the whole workspace", preload.display());
        command.env("LD_PRELOAD", preload).env("HEDDLE_SOCKET", socket);
    }
    command.args(["--pdeathsig", "KILL", "--", "opensm", "-d", "2", "-s", "0", "-R", setup.engine, "-P"]);
    command.arg(setup.partitions()).arg("-f").arg(said);
    if setup.qos {
        command.arg("-Q");
    }
    command.stdout(Stdio::null()).stderr(Stdio::null());
    Ok(command)
}

fn heddle(setup: &Setup, said: &Path) -> anyhow::Result<Command> {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(setup.heddle).arg("sm");
    let device = match setup.framed {
        Some(socket) => format!("heddle:{}@{}", socket.display(), setup.node),
        None => format!("ibsim:{}@{}", setup.name, setup.node),
    };
    command.args([
        "--device",
        &device,
        "--sweep",
        "3600",
        // Switches of ibsim cannot enforce partitions; opensm opens their ports in any case.
        "--allow-unenforced",
        "--partitions",
    ]);
    command.arg(setup.partitions()).arg("--state").arg(setup.directory.join("state.json"));
    if setup.qos {
        command.arg("--qos");
    }
    command.stdout(File::create(said)?).stderr(File::create(said.with_extension("err"))?);
    Ok(command)
}

/// A shell that sends signals: starting a program for each would take longer than what is measured.
#[derive(Debug)]
pub struct Signaller {
    shell: Child,
}

impl Signaller {
    /// Starts the shell; it ends when this value is dropped.
    pub fn start() -> anyhow::Result<Self> {
        let shell = Command::new("sh").stdin(Stdio::piped()).spawn().context("cannot start a shell")?;
        Ok(Self { shell })
    }

    /// Makes a manager read its files again.
    pub fn reload(&mut self, manager: &ManagerProcess) -> anyhow::Result<()> {
        let shell = self.shell.stdin.as_mut().context("the shell has no input")?;
        Ok(writeln!(shell, "kill -HUP {}", manager.id())?)
    }
}

impl Drop for Signaller {
    fn drop(&mut self) {
        // Without input it ends by itself.
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}
