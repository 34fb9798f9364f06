//! `heddle die-with-parent`: a program ends with its supervisor, however that ends.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const HEDDLE: &str = env!("CARGO_BIN_EXE_heddle");

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);

/// Whether a process runs; one that has ended and is not waited for yet does not.
fn runs(pid: u32) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    state.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.trim_start().starts_with('Z'))
}

/// A shell that starts a program and waits; its process and the program's.
fn supervisor(start: &str) -> (std::process::Child, u32) {
    let script = format!("{start} & echo $!; wait");
    let mut shell = Command::new("sh").args(["-c", &script]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (shell, line.trim().parse().unwrap())
}

fn eventually(what: &str, holds: impl Fn() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn command_of(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned()
}

#[test]
fn a_wrapped_program_is_killed_with_its_supervisor() {
    let (mut shell, wrapped) = supervisor(&format!("{HEDDLE} die-with-parent --parent $$ -- sleep 600"));
    eventually("it becomes the program", || command_of(wrapped) == "sleep");
    let (mut other, free) = supervisor("sleep 600");
    eventually("it becomes the program", || command_of(free) == "sleep");
    for shell in [&mut shell, &mut other] {
        shell.kill().unwrap();
        shell.wait().unwrap();
    }
    eventually("the wrapped program ends", || !runs(wrapped));
    assert!(runs(free), "the control");
    Command::new("kill").args(["-9", &free.to_string()]).status().unwrap();
}

#[test]
fn a_program_without_a_supervisor_is_not_started() {
    let scratch = tempfile::tempdir().unwrap();
    let mark = scratch.path().join("mark");
    let start = |parent: &str, mark: &Path| {
        Command::new(HEDDLE)
            .args(["die-with-parent", "--parent", parent, "--", "touch"])
            .arg(mark)
            .output()
            .unwrap()
    };
    let refused = start("1", &mark);
    assert!(!refused.status.success() && !mark.exists());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("supervisor has ended"));
    let started = start(&std::process::id().to_string(), &mark);
    assert!(started.status.success() && mark.exists(), "the control");
}
