//! libvirt, on machines where nothing else starts it.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use nix::unistd::Group;

use super::find_program;
use super::supervisor::Program;

/// Where libvirtd listens for `qemu:///system`.
const LIBVIRT_SOCKET: &str = "/run/libvirt/libvirt-sock";

/// Where virtlogd, which holds the output of QEMU, listens.
const LOG_SOCKET: &str = "/run/libvirt/virtlogd-sock";

/// The processor's own way to run virtual machines, where there is one.
const KVM: &str = "/dev/kvm";

/// What both expect and packages leave to systemd.
const DIRECTORIES: [&str; 2] = ["/run/libvirt", "/var/log/libvirt/qemu"];

/// Longer than either takes to end; virtual machines do not end with them.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// Whether `qemu:///system` can be used.
pub fn answers() -> bool {
    UnixStream::connect(LIBVIRT_SOCKET).is_ok()
}

/// What has to run for `qemu:///system` to answer, in order.
///
/// libvirtd gets a network namespace of its own, and so does every QEMU that it starts: frames of virtual machines travel
/// over unix sockets, and nothing else is reachable.
pub fn programs() -> anyhow::Result<Vec<Program>> {
    ensure!(
        crate::control_socket::effective_user()? == 0,
        "libvirt does not run, and only root can start it"
    );
    for directory in DIRECTORIES {
        fs::create_dir_all(directory).with_context(|| format!("cannot make {directory}"))?;
    }
    share_kvm();
    let mut programs = Vec::new();
    if UnixStream::connect(LOG_SOCKET).is_err() {
        programs.push(program("virtlogd", &[])?);
    }
    programs.push(program("libvirtd", &["--timeout", "0"])?);
    Ok(programs)
}

/// Gives `/dev/kvm` to the group `kvm`, as udev does where it runs. libvirt believes what it learnt of QEMU only while QEMU's
/// user may open it, and otherwise examines QEMU again before every start: a minute and more under translation.
fn share_kvm() {
    let shared = || {
        let found = fs::metadata(KVM)?;
        let group = Group::from_name("kvm")?.ok_or(ErrorKind::NotFound)?.gid;
        if found.uid() == 0 && found.gid() == 0 && found.mode() & 0o077 == 0 {
            chown(KVM, None, Some(group.as_raw()))?;
            fs::set_permissions(KVM, fs::Permissions::from_mode(0o660))?;
        }
        std::io::Result::Ok(())
    };
    if let Err(error) = shared() {
        tracing::info!("{KVM} stays as it is: {error}");
    }
}

/// Where its first program listens when it is ready for the second.
pub fn log_socket() -> &'static Path {
    Path::new(LOG_SOCKET)
}

/// Where it listens when it is ready.
pub fn socket() -> &'static Path {
    Path::new(LIBVIRT_SOCKET)
}

fn program(name: &'static str, arguments: &[&str]) -> anyhow::Result<Program> {
    Ok(Program {
        name,
        path: find_program(name).with_context(|| format!("there is no {name}: run scripts/setup.sh"))?,
        arguments: arguments.iter().map(Into::into).collect(),
        stop_limit: STOP_LIMIT,
        own_network: true,
        probe: None,
    })
}
