//! Starts libvirt on machines where no service manager does.

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

/// Socket of libvirtd for `qemu:///system`.
const LIBVIRT_SOCKET: &str = "/run/libvirt/libvirt-sock";

/// Socket of virtlogd, which keeps the output of QEMU.
const LOG_SOCKET: &str = "/run/libvirt/virtlogd-sock";

/// Device of hardware virtualisation, on machines that have it.
const KVM: &str = "/dev/kvm";

/// Directories that both programs need and that systemd would create.
const DIRECTORIES: [&str; 2] = ["/run/libvirt", "/var/log/libvirt/qemu"];

/// Time for each to end; virtual machines keep running.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// Whether `qemu:///system` can be used.
pub fn answers() -> bool {
    UnixStream::connect(LIBVIRT_SOCKET).is_ok()
}

/// The programs that `qemu:///system` needs, in order of start.
///
/// libvirtd runs in a network namespace of its own, and so does every QEMU that it starts: frames of virtual machines
/// travel over unix sockets, and no network is reachable.
pub fn programs() -> anyhow::Result<Vec<Program>> {
    ensure!(
        crate::control_socket::effective_user()? == 0,
        "libvirt is not running, and only root can start it"
    );
    for directory in DIRECTORIES {
        fs::create_dir_all(directory).with_context(|| format!("cannot create {directory}"))?;
    }
    share_kvm();
    let mut programs = Vec::new();
    if UnixStream::connect(LOG_SOCKET).is_err() {
        programs.push(program("virtlogd", &[])?);
    }
    programs.push(program("libvirtd", &["--timeout", "0"])?);
    Ok(programs)
}

/// Gives `/dev/kvm` to the group `kvm`, as udev does. libvirt caches the capabilities of QEMU only if the user of QEMU can
/// open the device; otherwise it probes QEMU before every start, which takes a minute and more under TCG.
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
        tracing::info!("cannot change the group of {KVM}: {error}");
    }
}

/// The socket of virtlogd, which has to listen before libvirtd starts.
pub fn log_socket() -> &'static Path {
    Path::new(LOG_SOCKET)
}

/// The socket of libvirtd.
pub fn socket() -> &'static Path {
    Path::new(LIBVIRT_SOCKET)
}

fn program(name: &'static str, arguments: &[&str]) -> anyhow::Result<Program> {
    Ok(Program {
        name,
        path: find_program(name).with_context(|| format!("{name} is not installed: run scripts/setup.sh"))?,
        arguments: arguments.iter().map(Into::into).collect(),
        stop_limit: STOP_LIMIT,
        own_network: true,
        probe: None,
    })
}
