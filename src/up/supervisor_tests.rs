//! The supervisor, with shell scripts as programs.

use super::*;

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

struct Rig {
    scratch: tempfile::TempDir,
    site: SiteDir,
    supervisor: Supervisor,
    notices: mpsc::UnboundedReceiver<ProgramNotice>,
}

impl Rig {
    fn new() -> Self {
        use std::os::unix::fs::PermissionsExt;

        let scratch = tempfile::tempdir().unwrap();
        fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let site = SiteDir::at(&scratch.path().join("site")).unwrap();
        site.prepare().unwrap();
        let unwrapped: Wrapper = Arc::new(|program: &Program| {
            let mut command = std::process::Command::new(&program.path);
            command.args(&program.arguments);
            command
        });
        let (supervisor, notices) = Supervisor::new(site.clone(), unwrapped);
        Self { scratch, site, supervisor, notices }
    }

    /// The file in which scripts record their actions, in order.
    fn diary(&self) -> PathBuf {
        self.scratch.path().join("diary")
    }

    fn diary_text(&self) -> String {
        fs::read_to_string(self.diary()).unwrap_or_default()
    }

    fn start(&mut self, name: &'static str, script: &str, stop_limit: Duration) {
        let diary = self.diary();
        let script = format!("note() {{ echo \"$1\" >>'{}'; }}\n{script}", diary.display());
        let arguments = ["-c".into(), script.into()].to_vec();
        let path = "/bin/sh".into();
        self.supervisor.start(Program { name, path, arguments, stop_limit, own_network: false, probe: None });
    }

    async fn notice(&mut self) -> String {
        let notice = tokio::time::timeout(PATIENCE, self.notices.recv()).await;
        notice.expect("a notice in time").expect("the supervisor sends notices").to_string()
    }

    /// Waits until the diary meets a condition.
    async fn until(&self, what: impl Fn(&str) -> bool) {
        let started = Instant::now();
        while !what(&self.diary_text()) {
            assert!(started.elapsed() < PATIENCE, "{:?}", self.diary_text());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

fn run(story: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(story);
}

/// A script that records its start and ends on SIGTERM.
fn obedient(name: &str) -> String {
    format!("trap 'note {name}-ends; exit 0' TERM; note {name}-runs; while :; do sleep 0.01; done")
}

#[test]
fn a_restart_is_reported_with_the_last_log_line() {
    run(async {
        let mut rig = Rig::new();
        rig.start("sm", "note ran; echo no device; echo; exit 3", PATIENCE);
        let first = rig.notice().await;
        assert!(first.starts_with("sm ended (exit status: 3)"), "{first}");
        assert!(first.contains("last line of its log: no device; restarting"), "{first}");
        let second = rig.notice().await;
        assert!(
            first.contains("in 0.2 s") && second.contains("in 0.5 s"),
            "it waits longer: {first}, {second}"
        );
        rig.supervisor.stop().await;
        assert!(rig.diary_text().starts_with("ran\nran\n"), "{}", rig.diary_text());
    });
}

#[test]
fn a_program_that_is_killed_comes_back_as_another_process() {
    run(async {
        let mut rig = Rig::new();
        rig.start("sim", &obedient("sim"), PATIENCE);
        rig.until(|diary| diary == "sim-runs\n").await;
        let first = rig.site.pid("sim").unwrap();
        kill(Pid::from_raw(first as i32), Signal::SIGKILL).unwrap();
        assert!(rig.notice().await.contains("signal: 9"));
        rig.until(|diary| diary == "sim-runs\nsim-runs\n").await;
        assert_ne!(rig.site.pid("sim").unwrap(), first);
        rig.supervisor.stop().await;
    });
}

#[test]
fn programs_stop_in_reverse_order() {
    run(async {
        let mut rig = Rig::new();
        for (name, runs) in [("sim", "sim-runs\n"), ("agent", "sim-runs\nagent-runs\n")] {
            rig.start(name, &obedient(name), PATIENCE);
            rig.until(|diary| diary == runs).await;
        }
        let pids = ["sim", "agent"].map(|name| rig.site.pid(name).unwrap());
        rig.supervisor.stop().await;
        assert_eq!(rig.diary_text(), "sim-runs\nagent-runs\nagent-ends\nsim-ends\n");
        for (name, pid) in ["sim", "agent"].into_iter().zip(pids) {
            assert_eq!(rig.site.pid(name), None);
            kill(Pid::from_raw(pid as i32), None).expect_err("it has ended");
        }
    });
}

#[test]
fn a_program_that_does_not_end_when_asked_is_killed() {
    run(async {
        let mut rig = Rig::new();
        rig.start("sim", "trap '' TERM; note runs; while :; do sleep 0.01; done", Duration::from_millis(50));
        rig.until(|diary| diary == "runs\n").await;
        let pid = rig.site.pid("sim").unwrap();
        rig.supervisor.stop().await;
        assert!(rig.notice().await.contains("killed"));
        kill(Pid::from_raw(pid as i32), None).expect_err("it has ended");
    });
}

#[test]
fn what_cannot_be_started_is_told_and_tried_again() {
    run(async {
        let mut rig = Rig::new();
        rig.supervisor.start(Program {
            name: "agent",
            path: "/nowhere/heddle-agent".into(),
            arguments: Vec::new(),
            stop_limit: PATIENCE,
            own_network: false,
            probe: None,
        });
        for _ in 0..2 {
            assert!(rig.notice().await.contains("cannot start agent"));
        }
        rig.supervisor.stop().await;
    });
}

#[test]
fn restart_delays_grow_and_reset_after_a_steady_run() {
    let mut patience = RestartBackoff::default();
    let waits: Vec<u128> = (0..8).map(|_| patience.after(Duration::ZERO, false).as_millis()).collect();
    assert_eq!(waits, [250, 500, 1000, 2000, 4000, 8000, 10_000, 10_000]);
    assert_eq!(patience.failures, 8);
    assert_eq!((patience.after(STEADY, false), patience.failures), (RESTART_FIRST, 1));
}

#[test]
fn who_ends_because_of_another_waits_less_and_has_not_failed() {
    let mut patience = RestartBackoff::default();
    let waits: Vec<u128> = (0..4).map(|_| patience.after(Duration::ZERO, true).as_millis()).collect();
    assert_eq!((waits, patience.failures), (vec![250, 500, 1000, 1000], 0));
}

#[test]
fn a_log_that_has_grown_is_put_aside_once() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("sm.log");
    fs::write(&path, "short\n").unwrap();
    drop(open_log(&path).unwrap());
    assert_eq!(last_line(&path).as_deref(), Some("short"), "a short log is continued");
    File::options().write(true).open(&path).unwrap().set_len(LOG_BYTES_MAX + 1).unwrap();
    drop(open_log(&path).unwrap());
    assert_eq!(fs::metadata(&path).unwrap().len(), 0);
    assert_eq!(fs::metadata(scratch.path().join("sm.log.1")).unwrap().len(), LOG_BYTES_MAX + 1);
}

#[test]
fn the_last_line_of_a_log_is_short_and_harmless() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("sm.log");
    assert_eq!(last_line(&path), None);
    fs::write(&path, format!("first\n{}\u{1b}[2J\n\n", "x".repeat(10_000))).unwrap();
    let line = last_line(&path).unwrap();
    assert_eq!(line.chars().count(), LINE_CHARS_MAX);
    fs::write(&path, "a\u{1b}b\n").unwrap();
    assert_eq!(last_line(&path).unwrap(), "a\u{fffd}b");
}

/// A program with a liveness probe at a socket that the test serves.
struct Asked {
    rig: Rig,
    socket: PathBuf,
    listener: Option<tokio::net::UnixListener>,
}

impl Asked {
    fn new(script: &str) -> Self {
        let mut rig = Rig::new();
        rig.supervisor.patience = ProbeTiming {
            interval: Duration::from_millis(100),
            answer: Duration::from_secs(1),
            idle_misses: 3,
            busy_misses: 1000,
        };
        let socket = rig.scratch.path().join("socket");
        let listener = tokio::net::UnixListener::bind(&socket).unwrap();
        let arguments =
            ["-c".into(), format!("echo ran >>'{}'; {script}", rig.diary().display()).into()].to_vec();
        rig.supervisor.start(Program {
            name: "sm",
            path: "/bin/sh".into(),
            arguments,
            stop_limit: PATIENCE,
            own_network: false,
            probe: Some(LivenessProbe::Ping(socket.clone())),
        });
        Self { rig, socket, listener: Some(listener) }
    }

    /// Answers a given number of probes.
    async fn answer(&self, times: usize) {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

        for _ in 0..times {
            let next = tokio::time::timeout(PATIENCE, self.listener.as_ref().unwrap().accept()).await;
            let (mut stream, _) = next.expect("it is probed").unwrap();
            // The probe has to be read before the connection is closed.
            let _ = stream.read(&mut [0; 64]).await;
            let _ = stream.write_all(b"{}\n").await;
        }
    }
}

#[test]
fn an_idle_program_that_does_not_answer_is_restarted() {
    run(async {
        let mut asked = Asked::new("exec sleep 1000");
        asked.rig.until(|diary| diary == "ran\n").await;
        let first = asked.rig.site.pid("sm").unwrap();
        asked.answer(10).await;
        assert_eq!(asked.rig.site.pid("sm"), Some(first), "control: one that answers keeps running");
        let notice = asked.rig.notice().await;
        assert!(
            notice.contains("sm ended (killed: it did not answer") && notice.contains("was idle"),
            "{notice}"
        );
        asked.rig.until(|diary| diary == "ran\nran\n").await;
        assert_ne!(asked.rig.site.pid("sm"), Some(first));
        asked.rig.supervisor.stop().await;
    });
}

#[test]
fn a_program_stopped_by_sigstop_is_restarted() {
    run(async {
        let mut asked = Asked::new("while :; do :; done");
        asked.rig.until(|diary| diary == "ran\n").await;
        asked.answer(2).await;
        let pid = asked.rig.site.pid("sm").unwrap();
        kill(Pid::from_raw(pid as i32), Signal::SIGSTOP).unwrap();
        assert!(asked.rig.notice().await.contains("was idle"));
        asked.rig.until(|diary| diary == "ran\nran\n").await;
        asked.rig.supervisor.stop().await;
    });
}

#[test]
fn a_busy_program_that_does_not_answer_is_given_time() {
    run(async {
        let mut asked = Asked::new("while :; do :; done");
        asked.answer(2).await;
        let pid = asked.rig.site.pid("sm");
        // Three times the limit of an idle program.
        let unanswered = Duration::from_millis(1100) * 3 * 3;
        assert!(tokio::time::timeout(unanswered, asked.rig.notices.recv()).await.is_err(), "nothing happens");
        assert_eq!(asked.rig.site.pid("sm"), pid);
        asked.listener = None;
        fs::remove_file(&asked.socket).unwrap();
        asked.rig.supervisor.stop().await;
    });
}
