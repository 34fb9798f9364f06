//! `heddle die-with-parent`: runs a program that ends with its supervisor.
//!
//! `PR_SET_PDEATHSIG` makes the kernel kill a process when its parent thread ends, for whatever reason. A process has to
//! request this itself, before it execs the program. So the supervisor starts `heddle die-with-parent`, which requests the
//! signal and then execs the program under the same process id.

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

/// Exec a program that ends with its parent.
#[derive(Debug, Args)]
pub struct DieWithParentArgs {
    /// Process id of the supervisor.
    #[arg(long)]
    parent: u32,
    /// Run in a new network namespace: nothing that the program starts can use a network of this machine.
    #[arg(long)]
    own_network: bool,
    /// Program to run, with its arguments.
    #[arg(last = true, required = true)]
    program: Vec<OsString>,
}

/// A command that runs `program` and ends with this process.
///
/// The kernel watches the thread that spawns the command, not the process: spawn it on a thread that lives as long.
pub fn command(heddle: &Path, program: &Program) -> Command {
    let mut command = Command::new(heddle);
    command.args(["die-with-parent", "--parent", &std::process::id().to_string()]);
    if program.own_network {
        command.arg("--own-network");
    }
    command.arg("--").arg(&program.path).args(&program.arguments);
    command
}

/// Execs the program; returns only on an error.
pub fn run(args: DieWithParentArgs) -> anyhow::Result<std::process::ExitCode> {
    prctl::set_pdeathsig(Signal::SIGKILL).context("cannot set the parent death signal")?;
    // The supervisor may have ended before the signal was set.
    ensure!(getppid().as_raw() as u32 == args.parent, "the supervisor has ended already");
    if args.own_network {
        unshare(CloneFlags::CLONE_NEWNET).context("cannot create a network namespace: this needs root")?;
    }
    let (program, arguments) = args.program.split_first().context("the program is missing")?;
    let error = Command::new(program).args(arguments).exec();
    Err(error).with_context(|| format!("cannot run {}", Path::new(program).display()))
}
