//! Supervises programs: starts them, restarts them if they end or hang, and stops them in reverse order.

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::liveness::{self, LivenessProbe, ProbeTiming};
use super::site::SiteDir;
use crate::cli::output::{harmless, took};

/// First delay before a program is restarted.
const RESTART_FIRST: Duration = Duration::from_millis(250);

/// Longest delay before a restart.
const RESTART_MAX: Duration = Duration::from_secs(10);

/// Longest delay before the restart of a program that ended with `EXIT_OTHERS`.
const RESTART_MAX_FOR_OTHERS: Duration = Duration::from_secs(1);

/// Exit status of a program that ends because one it depends on has ended: `EX_TEMPFAIL` of sysexits.h.
pub const EXIT_OTHERS: u8 = 75;

/// Run time after which the delay starts again from `RESTART_FIRST`.
const STEADY: Duration = Duration::from_secs(5);

/// Size in bytes above which a log is rotated when its program starts; one old log is kept.
const LOG_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// Bytes at the end of a log that are searched for its last line.
const LOG_TAIL_BYTES: u64 = 4096;

/// Characters of the last line in a notice.
const LINE_CHARS_MAX: usize = 300;

/// A program to supervise.
#[derive(Clone, Debug)]
pub struct Program {
    /// Name in messages, of the log and of the pid file.
    pub name: &'static str,
    pub path: PathBuf,
    pub arguments: Vec<OsString>,
    /// Time from SIGTERM to SIGKILL.
    pub stop_limit: Duration,
    /// Run it in a new network namespace.
    pub own_network: bool,
    /// Liveness probe; without one the program is restarted only if it ends.
    pub probe: Option<LivenessProbe>,
}

/// Supervises programs until [`stop`](Self::stop). If it is dropped, or its process is killed, they are killed.
pub struct Supervisor {
    site: SiteDir,
    wrapper: Wrapper,
    notices: mpsc::UnboundedSender<ProgramNotice>,
    patience: ProbeTiming,
    kept: Vec<Supervised>,
}

/// A message about a program.
#[derive(Debug)]
pub struct ProgramNotice {
    pub text: String,
    /// Delay before the restart, if there is one.
    pub wait: Option<Duration>,
    /// Failures in a row, each soon after the start and not caused by another program.
    pub failures: u32,
}

impl From<String> for ProgramNotice {
    fn from(text: String) -> Self {
        Self { text, wait: None, failures: 0 }
    }
}

impl fmt::Display for ProgramNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        self.wait.map_or(Ok(()), |wait| write!(f, "; restarting in {}", took(wait)))
    }
}

/// Makes the command that runs a program and ends with this process.
pub type Wrapper = Arc<dyn Fn(&Program) -> std::process::Command + Send + Sync>;

#[derive(Debug)]
struct Supervised {
    name: &'static str,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Supervisor {
    /// Creates a supervisor for a site; notices about its programs go to the receiver.
    pub fn new(site: SiteDir, wrapper: Wrapper) -> (Self, mpsc::UnboundedReceiver<ProgramNotice>) {
        let (notices, received) = mpsc::unbounded_channel();
        (Self { site, wrapper, notices, patience: ProbeTiming::DEFAULT, kept: Vec::new() }, received)
    }

    /// Starts a program, and restarts it whenever it ends.
    ///
    /// Must be called on the one thread of the runtime: programs end with the thread that started them.
    pub fn start(&mut self, program: Program) {
        let (stop, stopped) = oneshot::channel();
        let name = program.name;
        let task = ProgramTask {
            program,
            site: self.site.clone(),
            wrapper: Arc::clone(&self.wrapper),
            notices: self.notices.clone(),
            patience: self.patience,
        };
        self.kept.push(Supervised { name, stop, task: tokio::spawn(task.keep(stopped)) });
    }

    /// Stops all programs, the last started first.
    pub async fn stop(&mut self) {
        while let Some(Supervised { name, stop, task }) = self.kept.pop() {
            let asked = Instant::now();
            // A task that is gone has nothing to stop.
            let _ = stop.send(());
            let _ = task.await;
            // The receiver may have been dropped.
            let _ = self.notices.send(format!("{name} stopped after {}", took(asked.elapsed())).into());
        }
    }
}

struct ProgramTask {
    program: Program,
    site: SiteDir,
    wrapper: Wrapper,
    notices: mpsc::UnboundedSender<ProgramNotice>,
    patience: ProbeTiming,
}

impl ProgramTask {
    async fn keep(self, mut stopped: oneshot::Receiver<()>) {
        let mut patience = RestartBackoff::default();
        loop {
            let started = Instant::now();
            let (ended, code) = match self.launch() {
                Ok(mut child) => {
                    let pid = child.id();
                    tokio::select! {
                        ended = child.wait() => match ended {
                            Ok(status) => (status.to_string(), status.code()),
                            Err(error) => (error.to_string(), None),
                        },
                        hung = self.until_hung(pid) => {
                            // By its process id: it is not waited for yet, so the number is still its own.
                            let _ = child.kill().await;
                            (format!("killed: it {hung}"), None)
                        }
                        _ = &mut stopped => {
                            self.end(child).await;
                            return self.site.remove_pid(self.program.name);
                        }
                    }
                }
                Err(error) => (format!("{error:#}"), None),
            };
            self.site.remove_pid(self.program.name);
            let wait = patience.after(started.elapsed(), code == Some(EXIT_OTHERS.into()));
            self.notify_ended(&ended, wait, patience.failures);
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                _ = &mut stopped => return,
            }
        }
    }

    /// Returns when the liveness probe fails for too long; never without a probe.
    async fn until_hung(&self, pid: Option<u32>) -> liveness::Hung {
        match (pid, &self.program.probe) {
            (Some(pid), Some(probe)) => liveness::until_hung(pid, probe, self.patience).await,
            _ => std::future::pending().await,
        }
    }

    fn launch(&self) -> anyhow::Result<Child> {
        let name = self.program.name;
        let log = open_log(&self.log())?;
        let mut command = Command::from((self.wrapper)(&self.program));
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("cannot share a log")?)
            .stderr(log)
            // Ctrl-C must reach only the supervisor, which stops the programs in order.
            .process_group(0)
            .kill_on_drop(true);
        if std::env::var_os("HEDDLE_LOG").is_none() {
            command.env("HEDDLE_LOG", "info");
        }
        let child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        if let Some(pid) = child.id() {
            self.site.write_pid(name, pid)?;
        }
        Ok(child)
    }

    async fn end(&self, mut child: Child) {
        if let Some(pid) = child.id() {
            // It is not waited for yet, so the number is still its own.
            let _ = kill(Pid::from_raw(pid as i32), Signal::SIGTERM);
        }
        if tokio::time::timeout(self.program.stop_limit, child.wait()).await.is_err() {
            let limit = took(self.program.stop_limit);
            let _ = self
                .notices
                .send(format!("{} did not end within {limit} and was killed", self.program.name).into());
            let _ = child.kill().await;
        }
    }

    fn notify_ended(&self, ended: &str, wait: Duration, failures: u32) {
        let name = self.program.name;
        let said =
            last_line(&self.log()).map_or_else(String::new, |line| format!("; last line of its log: {line}"));
        let text = format!("{name} ended ({ended}){said}");
        let _ = self.notices.send(ProgramNotice { text, wait: Some(wait), failures });
    }

    fn log(&self) -> PathBuf {
        self.site.path(&format!("log/{}.log", self.program.name))
    }
}

/// Exponential delay of restarts.
#[derive(Debug, Default)]
struct RestartBackoff {
    last: Option<Duration>,
    failures: u32,
}

impl RestartBackoff {
    fn after(&mut self, ran: Duration, for_others: bool) -> Duration {
        let max = if for_others { RESTART_MAX_FOR_OTHERS } else { RESTART_MAX };
        let wait = match self.last {
            Some(last) if ran < STEADY => (2 * last).min(max),
            _ => RESTART_FIRST,
        };
        self.failures = match (for_others, ran < STEADY) {
            (true, _) => self.failures,
            (false, true) => self.failures + 1,
            (false, false) => 1,
        };
        self.last = Some(wait);
        wait
    }
}

fn open_log(path: &Path) -> anyhow::Result<File> {
    if fs::metadata(path).is_ok_and(|log| log.len() > LOG_BYTES_MAX) {
        fs::rename(path, path.with_extension("log.1"))
            .with_context(|| format!("cannot rotate {}", path.display()))?;
    }
    let log = OpenOptions::new().create(true).append(true).mode(0o600).open(path);
    log.with_context(|| format!("cannot write {}", path.display()))
}

/// The last line of a log that is not blank.
pub fn last_line(path: &Path) -> Option<String> {
    let mut log = File::open(path).ok()?;
    let length = log.metadata().ok()?.len();
    log.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL_BYTES))).ok()?;
    let mut tail = Vec::new();
    log.take(LOG_TAIL_BYTES).read_to_end(&mut tail).ok()?;
    let tail = String::from_utf8_lossy(&tail);
    let line = tail.lines().rev().map(str::trim).find(|line| !line.is_empty())?;
    Some(harmless(line).chars().take(LINE_CHARS_MAX).collect())
}

#[cfg(test)]
#[path = "supervisor_tests.rs"]
mod tests;
