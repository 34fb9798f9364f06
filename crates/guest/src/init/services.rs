//! Supervises the services of the machine and powers it off.

use std::path::PathBuf;
use std::process::Child;
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::reboot::{RebootMode, reboot, set_cad_enabled};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, sync};
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::{command, log};

/// Pause before a service that has exited is restarted.
const RESTART_PAUSE: Duration = Duration::from_secs(1);

/// Time between SIGTERM and SIGKILL when the machine powers off.
const TERMINATION_GRACE: Duration = Duration::from_secs(1);

/// A program that is restarted whenever it exits.
struct Service {
    name: &'static str,
    program: PathBuf,
    arguments: &'static [&'static str],
    child: Option<Child>,
}

/// sshd and the channel server.
pub(super) struct Services([Service; 2]);

impl Services {
    /// Starts both services. A failure is logged.
    pub(super) fn start() -> Self {
        let mut services = [
            Service {
                name: "ssh",
                program: "/usr/sbin/sshd".into(),
                // Without PAM, a login is half a second faster under emulation, and root is the only user.
                arguments: &["-D", "-o", "UsePAM=no"],
                child: None,
            },
            Service { name: "channel", program: this_program(), arguments: &["serve"], child: None },
        ];
        services.iter_mut().for_each(Service::start);
        Self(services)
    }

    /// Reaps processes and restarts services until a signal asks for power-off.
    pub(super) fn run(mut self) -> ! {
        // Ctrl-Alt-Del sends SIGINT instead of resetting the machine.
        let _ = set_cad_enabled(false);
        let mut signals = match Signals::new([SIGCHLD, SIGTERM, SIGINT]) {
            Ok(signals) => signals,
            Err(error) => {
                log(&format!("cannot wait for signals: {error}"));
                power_off()
            }
        };
        loop {
            // Before waiting: processes may have exited before the handler was installed.
            self.reap();
            if signals.wait().any(|signal| signal != SIGCHLD) {
                log("power off");
                power_off();
            }
        }
    }

    /// Reaps all processes that have exited, most of them orphans, and restarts services among them.
    fn reap(&mut self) {
        loop {
            match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, _) | WaitStatus::Signaled(pid, _, _)) => {
                    for service in self.0.iter_mut().filter(|service| service.is(pid)) {
                        log(&format!("{} has exited; restarting it", service.name));
                        thread::sleep(RESTART_PAUSE);
                        service.start();
                    }
                }
                Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return,
                Ok(_) | Err(_) => {}
            }
        }
    }
}

impl Service {
    fn start(&mut self) {
        match command(&self.program).args(self.arguments).spawn() {
            Ok(child) => self.child = Some(child),
            Err(error) => {
                self.child = None;
                log(&format!("cannot start {}: {error}", self.name));
            }
        }
    }

    fn is(&self, pid: Pid) -> bool {
        self.child.as_ref().is_some_and(|child| i64::from(child.id()) == i64::from(pid.as_raw()))
    }
}

fn this_program() -> PathBuf {
    std::env::current_exe().unwrap_or_else(|_| "/sbin/heddle-guest".into())
}

/// Ends all processes, syncs disks and powers off.
fn power_off() -> ! {
    let all_processes = Pid::from_raw(-1);
    // Fails only if there are no other processes.
    let _ = kill(all_processes, Signal::SIGTERM);
    thread::sleep(TERMINATION_GRACE);
    let _ = kill(all_processes, Signal::SIGKILL);
    sync();
    loop {
        // Returns only on error.
        let Err(error) = reboot(RebootMode::RB_POWER_OFF);
        log(&format!("cannot power off: {error}"));
        thread::sleep(TERMINATION_GRACE);
    }
}
