//! `heddle wrapper`: a program that does not outlive its supervisor.
//!
//! The kernel ends it when the supervisor ends, however that happens. A process has to ask for this itself, before it
//! becomes the program: so the supervisor starts `heddle wrapper`, which asks and then becomes the program, with the same
//! process id.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use clap::Args;
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::getppid;

use super::supervisor::Program;

/// Become a program that ends with its supervisor.
#[derive(Debug, Args)]
pub struct DieWithParentArgs {
    /// The supervisor's process.
    #[arg(long)]
    parent: u32,
    /// In a network namespace of its own: nothing it starts can send to a network of this machine.
    #[arg(long)]
    own_network: bool,
    /// The program and its arguments.
    #[arg(last = true, required = true)]
    program: Vec<OsString>,
}

/// A command that becomes `program`, on the leash of this process.
///
/// The kernel watches the thread that starts it, not the process: start it on one that stays.
pub fn command(heddle: &Path, program: &Program) -> Command {
    let mut command = Command::new(heddle);
    command.args(["wrapper", "--parent", &std::process::id().to_string()]);
    if program.own_network {
        command.arg("--own-network");
    }
    command.arg("--").arg(&program.path).args(&program.arguments);
    command
}

/// Becomes the program; returns only if that is impossible.
pub fn run(args: DieWithParentArgs) -> anyhow::Result<std::process::ExitCode> {
    prctl::set_pdeathsig(Signal::SIGKILL).context("cannot ask to end with the supervisor")?;
    // Whoever ended before we asked is not waited for.
    ensure!(getppid().as_raw() as u32 == args.parent, "the supervisor has ended already");
    if args.own_network {
        unshare(CloneFlags::CLONE_NEWNET).context("cannot make a network namespace: is this root?")?;
    }
    let (program, arguments) = args.program.split_first().context("no program was named")?;
    let error = Command::new(program).args(arguments).exec();
    Err(error).with_context(|| format!("cannot run {}", Path::new(program).display()))
}
