//! Liveness probes: requests at the socket of a program, and its CPU time in `/proc`.
//!
//! A busy machine must not cause restarts. A program that does not answer is considered hung after one minute if it used
//! no CPU time meanwhile, and after ten minutes if it computes, waits for a disk, or waits for a core.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fmt, fs};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};

use crate::cli::output::took;

/// CPU usage in percent above which a program counts as busy: an idle one wakes up now and then.
const BUSY_PERCENT: u64 = 1;

/// Ticks of CPU time in a second: `USER_HZ`, the same on all Linux machines.
const TICKS_PER_SECOND: u64 = 100;

/// A liveness probe. Any reply counts as success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LivenessProbe {
    /// A `ping` at a control socket, answered by the main loop of the program.
    Ping(PathBuf),
    /// An HTTP GET of `path` at a unix socket.
    Get { socket: PathBuf, path: &'static str },
}

/// Intervals and limits of liveness probes.
#[derive(Clone, Copy, Debug)]
pub struct ProbeTiming {
    /// Time between two probes.
    pub interval: Duration,
    /// Timeout of a probe.
    pub answer: Duration,
    /// Failed probes in a row after which an idle program is hung.
    pub idle_misses: u32,
    /// Failed probes in a row after which a busy program is hung.
    pub busy_misses: u32,
}

impl ProbeTiming {
    /// One minute for an idle program, ten minutes for a busy one.
    pub const DEFAULT: Self = Self {
        interval: Duration::from_secs(5),
        answer: Duration::from_secs(5),
        idle_misses: 6,
        busy_misses: 60,
    };

    fn of_misses(&self, misses: u32) -> Duration {
        (self.interval + self.answer) * misses
    }
}

/// A program that does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hung {
    silent: Duration,
    is_busy: bool,
}

impl fmt::Display for Hung {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let meanwhile = if self.is_busy { "was busy" } else { "was idle" };
        write!(f, "did not answer for {} and {meanwhile}", took(self.silent))
    }
}

/// Probes a process until it is hung. Probes count only after the first success: the start of a program is not limited here.
pub async fn until_hung(pid: u32, probe: &LivenessProbe, timing: ProbeTiming) -> Hung {
    while !answers(probe, timing.answer).await {
        sleep(timing.interval).await;
    }
    let (mut misses, mut idle_misses) = (0, 0);
    let mut before = Activity::of(pid);
    loop {
        sleep(timing.interval).await;
        if answers(probe, timing.answer).await {
            (misses, idle_misses) = (0, 0);
            before = Activity::of(pid);
            continue;
        }
        let now = Activity::of(pid);
        if now.is_traced {
            // A debugger has stopped it.
            (misses, idle_misses, before) = (0, 0, now);
            continue;
        }
        let least = timing.of_misses(1).as_secs() * TICKS_PER_SECOND * BUSY_PERCENT / 100;
        let is_busy = now.wants_to_run || now.ticks.saturating_sub(before.ticks) > least;
        misses += 1;
        idle_misses = if is_busy { 0 } else { idle_misses + 1 };
        before = now;
        if idle_misses >= timing.idle_misses || misses >= timing.busy_misses {
            return Hung { silent: timing.of_misses(misses), is_busy };
        }
    }
}

async fn answers(probe: &LivenessProbe, limit: Duration) -> bool {
    matches!(timeout(limit, send(probe)).await, Ok(Ok(1..)))
}

async fn send(probe: &LivenessProbe) -> std::io::Result<usize> {
    let (socket, text): (&Path, String) = match probe {
        LivenessProbe::Ping(socket) => (socket, "{\"command\":\"ping\"}\n".to_owned()),
        LivenessProbe::Get { socket, path } => {
            (socket, format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))
        }
    };
    let mut stream = UnixStream::connect(socket).await?;
    stream.write_all(text.as_bytes()).await?;
    stream.read(&mut [0; 64]).await
}

/// Activity of a process, from `/proc`.
#[derive(Clone, Copy, Debug, Default)]
struct Activity {
    /// CPU time used, in ticks.
    ticks: u64,
    /// A thread is running, runnable, or waits for a disk.
    wants_to_run: bool,
    /// A debugger has stopped it.
    is_traced: bool,
}

impl Activity {
    fn of(pid: u32) -> Self {
        let mut activity = Self::default();
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        for task in tasks {
            let Some((state, ticks)) =
                fs::read_to_string(task.path().join("stat")).ok().and_then(|stat| read_stat(&stat))
            else {
                continue;
            };
            activity.ticks += ticks;
            activity.wants_to_run |= matches!(state, 'R' | 'D');
            activity.is_traced |= state == 't';
        }
        activity
    }
}

/// Parses the state and the CPU time of a thread from its `stat` line. The name, in brackets, may hold any character.
fn read_stat(stat: &str) -> Option<(char, u64)> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    // The state is the third field; user and system time are the 14th and 15th.
    let user: u64 = fields.nth(10)?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some((state, user + system))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_stat_is_read_behind_its_name() {
        let line = "42 (a) R (b) S 1 42 42 0 -1 4194304 100 0 0 0 7 5 0 0 20 0 1 0 123 0 0";
        assert_eq!(read_stat(line), Some(('S', 12)));
        assert_eq!(read_stat("42 (sh) S 1"), None);
    }
}
