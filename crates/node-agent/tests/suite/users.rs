//! Each QEMU process has its own user, who cannot open files of others. Requires root, as agents with QEMU do.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use controller_api::cluster::CpuMode;
use node_agent::disk;
use node_agent::image::ImageCache;
use node_agent::state_dir::{QemuUser, StateDir};
use node_agent::users::QemuUsers;

/// Whether a user can open a file with a redirection of the shell, `<` or `>>`.
fn opens(user: QemuUser, redirection: &str, path: &Path) -> bool {
    let mut command = Command::new("setpriv");
    command.args(["--clear-groups", &format!("--reuid={}", user.uid), &format!("--regid={}", user.gid)]);
    command.args(["sh", "-c", &format!(": {redirection} \"$0\"")]).arg(path);
    command.stderr(Stdio::null()).status().unwrap().success()
}

#[tokio::test]
async fn disks_and_seeds_are_open_to_their_own_user_only() {
    let scratch = tempfile::tempdir().unwrap();
    std::fs::set_permissions(scratch.path(), Permissions::from_mode(0o755)).unwrap();
    let images = scratch.path().join("images");
    std::fs::create_dir(&images).unwrap();
    let image =
        ImageCache::open(scratch.path().join("known")).verify(&crate::common::image(&images)).unwrap();
    let state_dir =
        Arc::new(StateDir::open(&scratch.path().join("state"), &scratch.path().join("run")).unwrap());
    let users = QemuUsers::open(Arc::clone(&state_dir), 2_000_000).unwrap();
    let qemu = QemuUser { uid: 64055, gid: 107 };
    let mut owners = Vec::new();
    for number in [1, 2] {
        let order = crate::common::vm_order(number, CpuMode::Shared);
        let (files, user) = (state_dir.vm(order.id), users.user_for(order.id, qemu).unwrap());
        files.make(Some(user)).unwrap();
        disk::make_overlay(&files, &image, Some(user)).await.unwrap();
        disk::make_seed(&files, &order, Some(user)).await.unwrap();
        std::fs::write(&files.nic_guest, "").unwrap();
        owners.push((files, user));
    }
    let [(files, own), (_, other)] = &owners[..] else { panic!("two were created") };
    assert_ne!(own.uid, other.uid);
    for (path, redirection) in [(&files.overlay, "<"), (&files.overlay, ">>"), (&files.seed, "<")] {
        assert_eq!(
            (path.metadata().unwrap().uid(), path.metadata().unwrap().mode() & 0o777),
            (own.uid, 0o600)
        );
        assert!(opens(*own, redirection, path), "{} {redirection} by its own", path.display());
        for stranger in [*other, qemu] {
            assert!(!opens(stranger, redirection, path), "{} {redirection} by {stranger:?}", path.display());
        }
    }
    // The directory of the sockets is closed to other users.
    assert!(opens(*own, "<", &files.nic_guest) && !opens(*other, "<", &files.nic_guest));
}
