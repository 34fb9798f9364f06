//! Where an agent keeps what it needs.
//!
//! ```text
//! STATE/                     what survives a restart of the machine
//!   agent.lock  instance     one agent at a time; who it is
//!   number                   so that numbers of reports grow over restarts
//!   orders/HOST.json         what is to be; holds private keys
//!   images.json              files whose checksums were found right
//!   vms/ID/                  overlay.qcow2, seed.iso, console.log
//!   vms/resting/ID/          disks of removed virtual machines, for a while; see [`crate::retention`]
//!   resting.json             how long each has rested
//!   users.json               which virtual machine's QEMU runs as which user
//! RUNTIME/INSTANCE/ID/       sockets of a virtual machine: short paths, since theirs have room for 107 bytes
//!   guest.sock               its virtio-serial port
//!   nic.guest nic.fabric     its network adapter, seen from either end
//! ```

use std::fs::{self, DirBuilder, File, Permissions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use controller_api::Name;
use nix::unistd::{Gid, Uid, chown};
use thiserror::Error;
use uuid::Uuid;

use crate::durable;

/// Longest path of a unix socket, without the byte that ends it.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Letters of an instance's id.
const INSTANCE_DIGITS: usize = 8;

/// Directories that others may pass through, but not list.
const TRAVERSE_ONLY: u32 = 0o711;

/// The user that QEMU runs as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QemuUser {
    pub uid: u32,
    pub gid: u32,
}

/// Where an agent keeps what it needs. The lock on it is held as long as this lives.
#[derive(Debug)]
pub struct StateDir {
    state: PathBuf,
    runtime: PathBuf,
    instance: String,
    _lock: File,
}

/// The files of a virtual machine.
#[derive(Clone, Debug)]
pub struct VmFiles {
    pub directory: PathBuf,
    pub overlay: PathBuf,
    /// What it starts from.
    pub seed: PathBuf,
    /// What it says on its serial line.
    pub console: PathBuf,
    pub sockets: PathBuf,
    pub channel: PathBuf,
    /// Its end of the network adapter.
    pub nic_guest: PathBuf,
    /// The fabric's end of the network adapter.
    pub nic_fabric: PathBuf,
}

/// A state_dir that cannot be used.
#[derive(Debug, Error)]
pub enum StateDirError {
    /// A file or directory cannot be used.
    #[error("{}", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// Somebody else works here.
    #[error("another agent uses {}: end it, or choose another --state", .0.display())]
    Locked(PathBuf),
    /// The file that says who the agent is makes no sense.
    #[error("{} does not hold the {INSTANCE_DIGITS} letters of an agent's id", .0.display())]
    InvalidInstance(PathBuf),
    /// Sockets would have names that are too long.
    #[error(
        "{} is too long for a socket: {bytes} bytes, {SOCKET_PATH_BYTES_MAX} fit; choose a shorter --runtime",
        path.display()
    )]
    SocketPathTooLong {
        /// Such as this one.
        path: PathBuf,
        /// How long it is.
        bytes: usize,
    },
    /// QEMU could not get at a file.
    #[error(
        "QEMU runs as user {uid}, who has no access to {} (mode {mode:03o}), so it cannot use {}: chmod it, or \
         choose another state_dir",
        path.display(), wanted.display()
    )]
    Inaccessible {
        uid: u32,
        /// What it has no access to.
        path: PathBuf,
        mode: u32,
        /// What it needs it for.
        wanted: PathBuf,
    },
}

impl StateDir {
    /// Takes a state_dir for this agent alone; makes what is missing.
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

    /// Tells this agent's virtual machines from others': made once, with the state.
    pub fn instance(&self) -> &str {
        &self.instance
    }

    /// The file with a host's orders.
    pub fn spec_path(&self, host: &Name) -> PathBuf {
        self.state.join("orders").join(format!("{host}.json"))
    }

    /// The file with checksums that were found right.
    pub fn image_cache_path(&self) -> PathBuf {
        self.state.join("images.json")
    }

    /// The file with the number that reports begin with.
    pub fn report_number_path(&self) -> PathBuf {
        self.state.join("number")
    }

    /// The file with what was found out about the accelerator.
    pub fn accelerator_path(&self) -> PathBuf {
        self.state.join("accelerator.json")
    }

    /// The files of a virtual machine.
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

    /// Where disks are.
    pub fn vms_directory(&self) -> PathBuf {
        self.state.join("vms")
    }

    /// Where disks of removed virtual machines rest: for nobody but the agent, and on the file system of all disks, which may be
    /// one of its own.
    pub fn retained_directory(&self) -> PathBuf {
        self.vms_directory().join("resting")
    }

    /// Makes that directory if it is not there.
    pub fn make_retained_directory(&self) -> Result<(), StateDirError> {
        make_directory(&self.retained_directory(), 0o700)
    }

    /// The file with how long they have rested.
    pub fn retention_path(&self) -> PathBuf {
        self.state.join("resting.json")
    }

    /// The file with which virtual machine has which user.
    pub fn users_path(&self) -> PathBuf {
        self.state.join("users.json")
    }

    /// Whether there are files of a virtual machine, also if its disk rests.
    pub fn has_files(&self, id: Uuid) -> bool {
        let files = self.vm(id);
        let resting = self.retained_directory().join(id.to_string());
        [files.directory, files.sockets, resting].iter().any(|path| path.exists())
    }

    /// Whether a path is that of a socket of this agent.
    pub fn owns_socket(&self, path: &Path) -> bool {
        path.starts_with(&self.runtime)
    }

    /// Virtual machines of which there are files.
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

    /// Removes the directory of sockets if there is none in it: no virtual machine is left that runs.
    pub fn remove_runtime_directory(&self) {
        let _ = fs::remove_dir(&self.runtime);
    }

    /// Whether QEMU gets as far as to the files of virtual machines.
    pub fn check_reachable(&self, user: QemuUser) -> Result<(), StateDirError> {
        check_access(&self.vms_directory(), user, Access::Traverse)?;
        check_access(&self.runtime, user, Access::Traverse)
    }
}

impl VmFiles {
    /// Makes the directories. QEMU makes sockets, so that of the sockets is its own; nobody else gets at them.
    pub fn make(&self, user: Option<QemuUser>) -> Result<(), StateDirError> {
        make_directory(&self.directory, TRAVERSE_ONLY)?;
        make_directory(&self.sockets, 0o770)?;
        chown_to_qemu(&self.sockets, user, GroupOwner::Agent)
    }

    /// Removes what is of no use once it has stopped.
    pub fn remove_sockets(&self) -> Result<(), StateDirError> {
        durable::remove(&self.sockets).map_err(at(&self.sockets))
    }

    /// Removes everything.
    pub fn remove(&self) -> Result<(), StateDirError> {
        self.remove_sockets()?;
        durable::remove(&self.directory).map_err(at(&self.directory))
    }
}

/// Whether a file that is given away keeps its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupOwner {
    /// The group stays unchanged, so that the agent keeps its access.
    Agent,
    /// The group becomes that of QEMU.
    Qemu,
}

/// Gives a file to QEMU's user.
pub fn chown_to_qemu(path: &Path, user: Option<QemuUser>, group: GroupOwner) -> Result<(), StateDirError> {
    let Some(user) = user else { return Ok(()) };
    let gid = (group == GroupOwner::Qemu).then(|| Gid::from_raw(user.gid));
    chown(path, Some(Uid::from_raw(user.uid)), gid).map_err(|errno| at(path)(errno.into()))
}

/// Whether QEMU can read a file.
pub fn check_readable(path: &Path, user: QemuUser) -> Result<(), StateDirError> {
    check_access(path, user, Access::Read)
}

#[derive(Clone, Copy)]
enum Access {
    Read = 0o4,
    /// Go through a directory.
    Traverse = 0o1,
}

/// By modes alone: access lists, which may grant more, are not looked at.
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
    match durable::read(path, 64).map_err(at(path))? {
        Some(bytes) => {
            let text = String::from_utf8(bytes).unwrap_or_default();
            let plain = text.len() == INSTANCE_DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit());
            if plain { Ok(text) } else { Err(StateDirError::InvalidInstance(path.to_owned())) }
        }
        None => {
            let mut instance = Uuid::new_v4().simple().to_string();
            instance.truncate(INSTANCE_DIGITS);
            durable::replace(path, instance.as_bytes()).map_err(at(path))?;
            Ok(instance)
        }
    }
}

fn absolute(path: &Path) -> Result<PathBuf, StateDirError> {
    std::path::absolute(path).map_err(at(path))
}

fn make_directory(path: &Path, mode: u32) -> Result<(), StateDirError> {
    match DirBuilder::new().mode(mode).create(path) {
        // The mask may have taken something away.
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
    fn an_agent_keeps_its_id_and_its_place_to_itself() {
        let scratch = tempfile::tempdir().unwrap();
        let (state, runtime) = (scratch.path().join("state"), scratch.path().join("run"));
        let state_dir = StateDir::open(&state, &runtime).unwrap();
        let instance = state_dir.instance().to_owned();
        assert!(matches!(StateDir::open(&state, &runtime), Err(StateDirError::Locked(_))));
        drop(state_dir);
        assert_eq!(StateDir::open(&state, &runtime).unwrap().instance(), instance);
    }

    #[test]
    fn paths_too_long_for_sockets_are_refused() {
        let scratch = tempfile::tempdir().unwrap();
        let long = scratch.path().join("x".repeat(60));
        let error = StateDir::open(&scratch.path().join("state"), &long).unwrap_err();
        assert!(error.to_string().contains("choose a shorter --runtime"), "{error}");
    }

    #[test]
    fn a_directory_that_qemu_cannot_enter_is_named() {
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
