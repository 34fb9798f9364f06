//! Files and directories of an agent.
//!
//! ```text
//! STATE/                     persistent
//!   agent.lock  instance     lock of the running agent; its instance id
//!   number                   report number, which increases over restarts
//!   orders/HOST.json         host specs; hold private keys
//!   images.json              cache of image checksums
//!   vms/ID/                  overlay.qcow2, seed.iso, console.log
//!   vms/resting/ID/          retained disks of removed virtual machines; see [`crate::retention`]
//!   resting.json             age of each retained disk
//!   users.json               user id of each virtual machine's QEMU process
//!   accelerator.json         result of the KVM probe
//! RUNTIME/INSTANCE/ID/       sockets of a virtual machine; short, because socket paths have at most 107 bytes
//!   guest.sock               virtio-serial port
//!   nic.guest nic.fabric     network adapter, guest's and fabric's end
//! ```

use std::fs::{self, DirBuilder, File, Permissions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use controller_api::Name;
use nix::unistd::{Gid, Uid, chown};
use thiserror::Error;
use uuid::Uuid;

/// Longest path of a Unix socket, without the terminating zero.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Hexadecimal digits of an instance id.
const INSTANCE_DIGITS: usize = 8;

/// Mode of directories that other users may traverse, but not list.
const TRAVERSE_ONLY: u32 = 0o711;

/// User and group of a QEMU process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QemuUser {
    pub uid: u32,
    pub gid: u32,
}

/// State and runtime directories of an agent. Holds the agent's lock while it exists.
#[derive(Debug)]
pub struct StateDir {
    state: PathBuf,
    runtime: PathBuf,
    instance: String,
    _lock: File,
}

/// Paths of a virtual machine's files.
#[derive(Clone, Debug)]
pub struct VmFiles {
    pub directory: PathBuf,
    pub overlay: PathBuf,
    pub seed: PathBuf,
    /// Log of the serial console.
    pub console: PathBuf,
    pub sockets: PathBuf,
    pub channel: PathBuf,
    /// Guest's end of the network adapter.
    pub nic_guest: PathBuf,
    /// Fabric's end of the network adapter.
    pub nic_fabric: PathBuf,
}

/// Why a file or directory of the agent cannot be used.
#[derive(Debug, Error)]
pub enum StateDirError {
    #[error("{}", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("another agent uses {}; stop it or choose another --state", .0.display())]
    Locked(PathBuf),
    #[error("{} must contain an instance id of {INSTANCE_DIGITS} hexadecimal digits", .0.display())]
    InvalidInstance(PathBuf),
    #[error(
        "the socket path {} must have at most {SOCKET_PATH_BYTES_MAX} bytes, got {bytes}; choose a shorter --runtime",
        path.display()
    )]
    SocketPathTooLong { path: PathBuf, bytes: usize },
    #[error(
        "QEMU runs as user {uid}, who has no access to {} (mode {mode:03o}), so it cannot use {}: chmod it, or \
         choose another --state",
        path.display(), wanted.display()
    )]
    Inaccessible {
        uid: u32,
        /// File or directory that denies access.
        path: PathBuf,
        mode: u32,
        /// File that QEMU needs.
        wanted: PathBuf,
    },
}

impl StateDir {
    /// Creates missing directories and locks the state directory. Fails if another agent has locked it, or if socket paths would be too
    /// long.
    pub fn open(state: &Path, runtime: &Path) -> Result<Self, StateDirError> {
        let state = absolute(state)?;
        make_directory(&state, TRAVERSE_ONLY)?;
        let lock_path = state.join("agent.lock");
        let lock = File::create(&lock_path).map_err(at(&lock_path))?;
        match lock.try_lock() {
            Err(TryLockError::WouldBlock) => return Err(StateDirError::Locked(state)),
            Err(TryLockError::Error(source)) => return Err(StateDirError::Io { path: lock_path, source }),
            Ok(()) => {}
        }
        let instance = instance(&state.join("instance"))?;
        let runtime_root = absolute(runtime)?;
        make_directory(&runtime_root, TRAVERSE_ONLY)?;
        let runtime = runtime_root.join(&instance);
        make_directory(&runtime, TRAVERSE_ONLY)?;
        let state_dir = Self { state, runtime, instance, _lock: lock };
        make_directory(&state_dir.state.join("orders"), 0o700)?;
        make_directory(&state_dir.vms_directory(), TRAVERSE_ONLY)?;
        state_dir.make_retained_directory()?;
        let longest = state_dir.vm(Uuid::nil()).nic_fabric;
        match longest.as_os_str().len() {
            bytes if bytes > SOCKET_PATH_BYTES_MAX => {
                Err(StateDirError::SocketPathTooLong { path: longest, bytes })
            }
            _ => Ok(state_dir),
        }
    }

    /// Instance id: distinguishes this agent's domains from those of other agents. Created with the state directory.
    pub fn instance(&self) -> &str {
        &self.instance
    }

    /// File with the spec of a host.
    pub fn spec_path(&self, host: &Name) -> PathBuf {
        self.state.join("orders").join(format!("{host}.json"))
    }

    /// File with the cache of image checksums.
    pub fn image_cache_path(&self) -> PathBuf {
        self.state.join("images.json")
    }

    /// File with the last report number.
    pub fn report_number_path(&self) -> PathBuf {
        self.state.join("number")
    }

    /// File with the result of the KVM probe.
    pub fn accelerator_path(&self) -> PathBuf {
        self.state.join("accelerator.json")
    }

    /// Paths of a virtual machine's files, whether or not they exist.
    pub fn vm(&self, id: Uuid) -> VmFiles {
        let directory = self.vms_directory().join(id.to_string());
        let sockets = self.runtime.join(id.to_string());
        VmFiles {
            overlay: directory.join("overlay.qcow2"),
            seed: directory.join("seed.iso"),
            console: directory.join("console.log"),
            channel: sockets.join("guest.sock"),
            nic_guest: sockets.join("nic.guest"),
            nic_fabric: sockets.join("nic.fabric"),
            directory,
            sockets,
        }
    }

    /// Directory of the disks.
    pub fn vms_directory(&self) -> PathBuf {
        self.state.join("vms")
    }

    /// Directory of retained disks, accessible to the agent only. On the same file system as the disks, so that they can be renamed
    /// into it.
    pub fn retained_directory(&self) -> PathBuf {
        self.vms_directory().join("resting")
    }

    /// Creates the directory of retained disks if it is missing.
    pub fn make_retained_directory(&self) -> Result<(), StateDirError> {
        make_directory(&self.retained_directory(), 0o700)
    }

    /// File with the age of retained disks.
    pub fn retention_path(&self) -> PathBuf {
        self.state.join("resting.json")
    }

    /// File with the user ids of QEMU processes.
    pub fn users_path(&self) -> PathBuf {
        self.state.join("users.json")
    }

    /// Whether any file of a virtual machine exists, including a retained disk.
    pub fn has_files(&self, id: Uuid) -> bool {
        let files = self.vm(id);
        let resting = self.retained_directory().join(id.to_string());
        [files.directory, files.sockets, resting].iter().any(|path| path.exists())
    }

    /// Whether a path is below this agent's runtime directory.
    pub fn owns_socket(&self, path: &Path) -> bool {
        path.starts_with(&self.runtime)
    }

    /// Ids of virtual machines that have a disk or socket directory, sorted.
    pub fn vm_ids(&self) -> Result<Vec<Uuid>, StateDirError> {
        let mut found = Vec::new();
        for directory in [self.vms_directory(), self.runtime.clone()] {
            for entry in fs::read_dir(&directory).map_err(at(&directory))? {
                let name = entry.map_err(at(&directory))?.file_name();
                found.extend(name.to_str().and_then(|name| Uuid::parse_str(name).ok()));
            }
        }
        found.sort();
        found.dedup();
        Ok(found)
    }

    /// Removes this agent's runtime directory if it is empty, that is, if no virtual machine runs.
    pub fn remove_runtime_directory(&self) {
        let _ = fs::remove_dir(&self.runtime);
    }

    /// Checks that QEMU can reach the files of virtual machines, by file modes.
    pub fn check_reachable(&self, user: QemuUser) -> Result<(), StateDirError> {
        check_access(&self.vms_directory(), user, Access::Traverse)?;
        check_access(&self.runtime, user, Access::Traverse)
    }
}

impl VmFiles {
    /// Creates the directories. That of the sockets is owned by `user`, because QEMU creates sockets, and closed to others.
    pub fn make(&self, user: Option<QemuUser>) -> Result<(), StateDirError> {
        make_directory(&self.directory, TRAVERSE_ONLY)?;
        make_directory(&self.sockets, 0o770)?;
        chown_to_qemu(&self.sockets, user, GroupOwner::Agent)
    }

    /// Removes the sockets; succeeds if there are none.
    pub fn remove_sockets(&self) -> Result<(), StateDirError> {
        durable_file::remove(&self.sockets).map_err(at(&self.sockets))
    }

    /// Removes all files; succeeds if there are none.
    pub fn remove(&self) -> Result<(), StateDirError> {
        self.remove_sockets()?;
        durable_file::remove(&self.directory).map_err(at(&self.directory))
    }
}

/// Group of a file whose owner becomes the QEMU user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupOwner {
    /// The group stays unchanged, so that the agent keeps its access.
    Agent,
    /// The group becomes that of QEMU.
    Qemu,
}

/// Makes the QEMU user the owner of a file. Does nothing without a user.
pub fn chown_to_qemu(path: &Path, user: Option<QemuUser>, group: GroupOwner) -> Result<(), StateDirError> {
    let Some(user) = user else { return Ok(()) };
    let gid = (group == GroupOwner::Qemu).then(|| Gid::from_raw(user.gid));
    chown(path, Some(Uid::from_raw(user.uid)), gid).map_err(|errno| at(path)(errno.into()))
}

/// Checks that QEMU can read a file, by file modes.
pub fn check_readable(path: &Path, user: QemuUser) -> Result<(), StateDirError> {
    check_access(path, user, Access::Read)
}

#[derive(Clone, Copy)]
enum Access {
    Read = 0o4,
    Traverse = 0o1,
}

/// Checks modes only; POSIX ACLs, which may grant more, are ignored.
fn check_access(wanted: &Path, user: QemuUser, access: Access) -> Result<(), StateDirError> {
    if user.uid == 0 {
        return Ok(());
    }
    let directories = wanted.ancestors().skip(1).map(|directory| (directory, Access::Traverse));
    for (path, access) in directories.chain([(wanted, access)]) {
        if path.as_os_str().is_empty() {
            continue;
        }
        let found = fs::metadata(path).map_err(at(path))?;
        let shift = match () {
            () if found.uid() == user.uid => 6,
            () if found.gid() == user.gid => 3,
            () => 0,
        };
        if found.mode() >> shift & access as u32 == 0 {
            let (path, mode) = (path.to_owned(), found.mode() & 0o777);
            return Err(StateDirError::Inaccessible { uid: user.uid, path, mode, wanted: wanted.to_owned() });
        }
    }
    Ok(())
}

fn instance(path: &Path) -> Result<String, StateDirError> {
    match durable_file::read(path, 64).map_err(at(path))? {
        Some(bytes) => {
            let text = String::from_utf8(bytes).unwrap_or_default();
            let plain = text.len() == INSTANCE_DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit());
            if plain { Ok(text) } else { Err(StateDirError::InvalidInstance(path.to_owned())) }
        }
        None => {
            let mut instance = Uuid::new_v4().simple().to_string();
            instance.truncate(INSTANCE_DIGITS);
            durable_file::replace(path, instance.as_bytes()).map_err(at(path))?;
            Ok(instance)
        }
    }
}

fn absolute(path: &Path) -> Result<PathBuf, StateDirError> {
    std::path::absolute(path).map_err(at(path))
}

fn make_directory(path: &Path, mode: u32) -> Result<(), StateDirError> {
    match DirBuilder::new().mode(mode).create(path) {
        // The umask may have removed bits.
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(mode)).map_err(at(path)),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let parent = path.parent().ok_or(error).map_err(at(path))?;
            make_directory(parent, 0o755)?;
            make_directory(path, mode)
        }
        Err(error) => Err(at(path)(error)),
    }
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> StateDirError + use<> {
    let path = path.to_owned();
    move |source| StateDirError::Io { path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHER_USER: QemuUser = QemuUser { uid: 64055, gid: 64055 };

    #[test]
    fn the_state_directory_is_locked_and_keeps_its_instance() {
        let scratch = tempfile::tempdir().unwrap();
        let (state, runtime) = (scratch.path().join("state"), scratch.path().join("run"));
        let state_dir = StateDir::open(&state, &runtime).unwrap();
        let instance = state_dir.instance().to_owned();
        assert!(matches!(StateDir::open(&state, &runtime), Err(StateDirError::Locked(_))));
        drop(state_dir);
        assert_eq!(StateDir::open(&state, &runtime).unwrap().instance(), instance);
    }

    #[test]
    fn too_long_socket_paths_are_rejected() {
        let scratch = tempfile::tempdir().unwrap();
        let long = scratch.path().join("x".repeat(60));
        let error = StateDir::open(&scratch.path().join("state"), &long).unwrap_err();
        assert!(error.to_string().contains("choose a shorter --runtime"), "{error}");
    }

    #[test]
    fn an_inaccessible_directory_is_named() {
        let scratch = tempfile::tempdir().unwrap();
        let closed = scratch.path().join("closed");
        fs::set_permissions(scratch.path(), Permissions::from_mode(0o755)).unwrap();
        let state_dir = StateDir::open(&closed.join("state"), &scratch.path().join("r")).unwrap();
        state_dir.check_reachable(OTHER_USER).unwrap();
        fs::set_permissions(&closed, Permissions::from_mode(0o700)).unwrap();
        match state_dir.check_reachable(OTHER_USER) {
            Err(StateDirError::Inaccessible { path, .. }) => assert_eq!(path, closed),
            other => panic!("{other:?}"),
        }
        state_dir.check_reachable(QemuUser { uid: 0, gid: 0 }).unwrap();
    }
}
