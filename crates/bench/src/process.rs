//! A server under test: starts it, measures its CPU time and memory, and ends it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use ib_transport::ClientRole;
use ib_transport::ibsim::{IbsimClient, SocketName};
use serde::Serialize;

use crate::Programs;

/// Longest time to load the largest fabric, on a busy machine.
const READY_TIMEOUT: Duration = Duration::from_secs(120);

/// A server of the fabric under ibsim's sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Emulator {
    Ibsim,
    Heddle,
    /// [`Self::Heddle`] with a socket for clients of the framed protocol besides.
    HeddleFramed,
    /// A server that answers every request with itself.
    Echo,
}

impl Emulator {
    /// The command that serves the topology `net` under `name`, with tables of the same size.
    pub fn command(self, programs: &Programs, net: &Path, name: &str) -> Command {
        // Ends with this process even if that is killed: ibsim without a console would spin forever.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]);
        match self {
            Self::Ibsim => command
                .arg("ibsim")
                .args(["-s", "-N", "16384", "-S", "2048", "-P", "90000", "-L", "49152"])
                .arg(net)
                .env("IBSIM_SOCKNAME", name),
            // In the scratch directory, because the server is killed and cannot remove its control socket.
            Self::Heddle | Self::HeddleFramed => command
                .arg(&programs.heddle)
                .arg("sim")
                .arg(net)
                .args(["--linear", "49152", "--name", name])
                .env("XDG_RUNTIME_DIR", net.parent().unwrap_or(net)),
            Self::Echo => command.arg(&programs.heddle_bench).args(["echo", name]),
        };
        if let Some(socket) = self.framed_socket(net, name) {
            command.arg("--socket").arg(socket);
        }
        command
    }

    /// The socket for clients of the framed protocol; `None` if this server has none.
    pub fn framed_socket(self, net: &Path, name: &str) -> Option<PathBuf> {
        (self == Self::HeddleFramed).then(|| net.with_file_name(name).with_extension("sock"))
    }
}

/// A server process behind ibsim's sockets. Ended when dropped.
#[derive(Debug)]
pub struct ServerProcess {
    child: Child,
    name: SocketName,
    /// Time from the start until the first client could attach.
    pub load_time: Duration,
    /// CPU time used until then.
    pub load_cpu: Duration,
}

impl ServerProcess {
    /// Starts a server and waits until a client can attach.
    ///
    /// # Errors
    /// If the program ends, or no client can attach within 120 seconds.
    pub fn start(command: &mut Command, name: &SocketName) -> anyhow::Result<Self> {
        let program = command.get_program().to_string_lossy().into_owned();
        // ibsim reads a console from its standard input and ends with it: keep the pipe open.
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let started = Instant::now();
        let child = command.spawn().with_context(|| format!("cannot start {program}"))?;
        let mut server =
            Self { child, name: name.clone(), load_time: Duration::ZERO, load_cpu: Duration::ZERO };
        while IbsimClient::connect(name, "", ClientRole::Ordinary).is_err() {
            if let Some(status) = server.child.try_wait()? {
                bail!("{program} ended early: {status}");
            }
            if started.elapsed() > READY_TIMEOUT {
                bail!("{program} does not answer");
            }
            std::thread::sleep(Duration::from_micros(500));
        }
        server.load_time = started.elapsed();
        server.load_cpu = server.cpu_time()?;
        Ok(server)
    }

    /// A new client on the first node.
    pub fn client(&self) -> anyhow::Result<IbsimClient> {
        Ok(IbsimClient::connect(&self.name, "", ClientRole::Ordinary)?)
    }

    /// Pins the server to one core.
    pub fn pin(&self, core: u32) -> anyhow::Result<()> {
        pin(self.child.id(), core)
    }

    /// CPU time of all threads of the server so far.
    pub fn cpu_time(&self) -> anyhow::Result<Duration> {
        let mut nanoseconds = 0;
        for task in fs::read_dir(self.proc("task"))? {
            let text = fs::read_to_string(task?.path().join("schedstat"))?;
            nanoseconds += text.split(' ').next().unwrap_or_default().parse::<u64>()?;
        }
        Ok(Duration::from_nanos(nanoseconds))
    }

    /// Resident memory of the server, in KiB.
    pub fn resident_kib(&self) -> anyhow::Result<u64> {
        let status = fs::read_to_string(self.proc("status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        Ok(line.trim().trim_end_matches(" kB").parse()?)
    }

    fn proc(&self, entry: &str) -> impl AsRef<Path> + use<> {
        std::path::PathBuf::from(format!("/proc/{}/{entry}", self.child.id()))
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Pins a process to one core: the cost of a message depends on the cores of both sides of a socket.
pub fn pin(process: u32, core: u32) -> anyhow::Result<()> {
    let arguments = ["-a", "-p", "-c", &core.to_string(), &process.to_string()];
    let output = Command::new("taskset").args(arguments).output().context("cannot run taskset")?;
    if !output.status.success() {
        bail!("cannot use core {core}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
