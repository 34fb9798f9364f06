//! The first process of a virtual machine: from a bare kernel to ssh in a second or two.
//!
//! It does what its seed says and nothing else: mounts, host name, one network device, files, ssh. Then it starts
//! `heddle-guest serve`, a process of its own so that nothing the host says can bring the machine down, waits for
//! processes that nobody else waits for, and powers off when asked to.
//!
//! What goes wrong is said on the console and left for the host; the machine goes on as far as it can.

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

/// Where ssh keeps the key that the machine is known by. It comes with the seed: in the image it would be a secret that
/// everybody has.
const HOST_KEY: &str = "/etc/ssh/ssh_host_ed25519_key";

/// What commands are found by.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// How long ssh may take to listen before that is told as a failure.
const SSH_TIMEOUT: Duration = Duration::from_secs(30);

/// How often to look for what is about to come.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Runs the machine for as long as it is on.
pub fn run() -> ! {
    umask(Mode::from_bits_truncate(0o022));
    // Adapters pin memory, and the first process passes its limits on. It may not be allowed to, in a container.
    let _ = setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY);
    let prepared = prepare().map_err(|error| error_chain(&*error));
    if let Err(reason) = &prepared {
        log(&format!("failed: {reason}"));
        if let Err(error) = report_failure(Path::new("/"), reason) {
            log(&format!("failed to leave word of that: {error}"));
        }
    }
    let services = services::Services::start();
    match (wait_for_ssh(), prepared) {
        (true, Ok(())) => log(&format!("ready {} in {} s", hostname(), uptime())),
        // That was said.
        (true, Err(_)) => {}
        (false, _) => log(&format!("failed: ssh does not listen after {} s", SSH_TIMEOUT.as_secs())),
    }
    services.run()
}

/// Everything before services.
fn prepare() -> Result<(), Box<dyn Error>> {
    mounts::mount_all()?;
    network::loopback()?;
    seed_volume::link_ports();
    let documents = seed_volume::read_seed()?.read()?;
    apply_documents(&documents)?;
    // A seed of an older agent has none.
    if !Path::new(HOST_KEY).exists() {
        let status = make_host_key()?.wait()?;
        if !status.success() {
            return Err(format!("ssh-keygen could not make {HOST_KEY}: {status}").into());
        }
    }
    Ok(())
}

fn apply_documents(documents: &SeedDocuments) -> Result<(), Box<dyn Error>> {
    for key in documents.user.other.keys() {
        log(&format!("user-data has {key:?}, which is for cloud-init; passed over"));
    }
    nix::unistd::sethostname(&documents.user.hostname)?;
    apply::write_files(Path::new("/"), &documents.user)?;
    for device in documents.network.ethernets.values() {
        network::bring_up(device)?;
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

/// Loads a module of the kernel and those it needs. The initial file system has loaded what most machines need.
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

/// One line on the console.
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
