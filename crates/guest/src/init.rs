//! PID 1 of a virtual machine: from a bare kernel to sshd in one or two seconds.
//!
//! It mounts the kernel's file systems, applies the seed (host name, files, one network device) and starts sshd and
//! `heddle-guest serve`. The latter is a separate process, so that no message of the host can crash PID 1. Then it reaps
//! orphans, restarts the two services when they exit, and powers off on SIGTERM or SIGINT.
//!
//! A failure is logged on the console and recorded for the host; the machine continues as far as possible.

mod mounts;
mod network;
mod seed_volume;
mod services;

use std::error::Error;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::resource::{RLIM_INFINITY, Resource, setrlimit};
use nix::sys::stat::{Mode, umask};

use crate::apply;
use crate::seed::SeedDocuments;
use crate::serve::{error_chain, report_failure, ssh_is_served};

/// The SSH host key. It comes with the seed, because a key in the image would be known to everyone.
const HOST_KEY: &str = "/etc/ssh/ssh_host_ed25519_key";

/// `PATH` of the processes that init starts.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// How long sshd may take to listen before init reports a failure.
const SSH_TIMEOUT: Duration = Duration::from_secs(30);

/// Polling interval for devices and sshd.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Boots the machine and supervises it until it powers off. Must be called by PID 1.
pub fn run() -> ! {
    umask(Mode::from_bits_truncate(0o022));
    // RDMA pins memory, and child processes inherit this limit. Fails in a container without the capability.
    let _ = setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY);
    let prepared = prepare().map_err(|error| error_chain(&*error));
    if let Err(reason) = &prepared {
        log(&format!("failed: {reason}"));
        if let Err(error) = report_failure(Path::new("/"), reason) {
            log(&format!("cannot record the failure: {error}"));
        }
    }
    let services = services::Services::start();
    match (wait_for_ssh(), prepared) {
        (true, Ok(())) => log(&format!("ready {} in {} s", hostname(), uptime())),
        // Already logged.
        (true, Err(_)) => {}
        (false, _) => log(&format!("failed: sshd does not listen after {} s", SSH_TIMEOUT.as_secs())),
    }
    services.run()
}

/// Everything before the services are started.
fn prepare() -> Result<(), Box<dyn Error>> {
    mounts::mount_all()?;
    network::loopback()?;
    seed_volume::link_ports();
    let documents = seed_volume::read_seed()?.read()?;
    apply_documents(&documents)?;
    // Seeds of earlier agents contain no host key.
    if !Path::new(HOST_KEY).exists() {
        let status = make_host_key()?.wait()?;
        if !status.success() {
            return Err(format!("ssh-keygen failed to create {HOST_KEY}: {status}").into());
        }
    }
    Ok(())
}

fn apply_documents(documents: &SeedDocuments) -> Result<(), Box<dyn Error>> {
    for key in documents.user.other.keys() {
        log(&format!("ignoring key {key:?} of user-data, which only cloud-init supports"));
    }
    nix::unistd::sethostname(&documents.user.hostname)?;
    apply::write_files(Path::new("/"), &documents.user)?;
    for (name, device) in &documents.network.ethernets {
        network::bring_up(name, device)?;
    }
    Ok(())
}

fn make_host_key() -> std::io::Result<std::process::Child> {
    command("/usr/bin/ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f", HOST_KEY]).spawn()
}

fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", PATH).env("HOME", "/root").current_dir("/");
    command
}

/// Loads a kernel module and its dependencies. The initramfs has already loaded the usual ones.
fn load_module(name: &str) {
    if let Err(error) = command("/sbin/modprobe").args(["-q", name]).status() {
        log(&format!("cannot run modprobe {name}: {error}"));
    }
}

fn wait_for_ssh() -> bool {
    let deadline = Instant::now() + SSH_TIMEOUT;
    while !ssh_is_served() {
        if Instant::now() > deadline {
            return false;
        }
        thread::sleep(POLL_INTERVAL);
    }
    true
}

/// Writes one line to the console.
fn log(text: &str) {
    eprintln!("heddle-guest: {text}");
}

fn hostname() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim_end().to_owned()
}

/// Seconds since the kernel started.
fn uptime() -> String {
    let text = fs::read_to_string("/proc/uptime").unwrap_or_default();
    text.split(' ').next().unwrap_or_default().to_owned()
}
