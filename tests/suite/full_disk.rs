//! A subnet manager whose disk is full: it continues what is safe, writes nothing that is not, and recovers.
//!
//! The disk is a small file system of the manager's own, so this runs as root.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::rig::tree::*;
use crate::rig::{Server, SmDaemon, eventually};

const BLUE: u64 = 0x8123;

/// A manager with its state on a private file system of 256 KiB.
fn on_a_small_disk(server: &Server, disk: &str, options: &[&str]) -> SmDaemon {
    let script = r#"mount -t tmpfs -o size=256k none "$0" && exec "$@""#;
    let wrapper = ["unshare", "--mount", "sh", "-c", script, disk];
    SmDaemon::start_by(&wrapper, server, HOST, (&format!("{disk}/state.json"), options))
}

/// Runs a command where the manager's disk is.
fn on_its_disk(manager: &SmDaemon, script: &str) {
    let pid = manager.pid().to_string();
    let status = Command::new("nsenter").args(["--mount", "--target", &pid, "sh", "-c", script]).status();
    assert!(status.unwrap().success(), "{script}");
}

fn holders(server: &Server) -> Vec<u64> {
    (1..=16).filter(|number| pkeys(server, &host(*number), "1").contains(&BLUE)).collect()
}

#[test]
fn a_manager_on_a_full_disk_goes_on_and_recovers() {
    let server = tree();
    let secret = server.secret(&[0x5a; 32]);
    let (conf, disk) = (server.file("partitions.conf"), server.file("disk"));
    std::fs::create_dir(&disk).unwrap();
    std::fs::write(&conf, "# nobody\n").unwrap();
    let metrics = server.file("metrics.prom");
    let options = ["--partitions", &conf, "--secret", &secret, "--metrics", &metrics];
    let mut manager = on_a_small_disk(&server, &disk, &options);
    manager.wait_for_up(1);
    on_its_disk(&manager, &format!("test $(stat -c %a {disk}/state.json) = 600"));

    // Not a byte is left, and then something new is wanted.
    on_its_disk(&manager, &format!("cat /dev/zero > {disk}/fill 2>/dev/null; true"));
    let before = snapshot(&server);
    // More than fits behind the end of the file in its last page.
    let everyone: Vec<u64> = (1..=16).collect();
    let others = (0..48).map(|more| partition(&format!("more-{more}"), 0x200 + more, &everyone, &[]));
    std::fs::write(&conf, partition("blue", 0x123, &[2, 6], &[3]) + &others.collect::<String>()).unwrap();
    manager.hang_up();
    eventually("it says that it cannot keep it", || manager.status()["unsaved"].is_string());
    assert!(manager.status()["unsaved"].as_str().unwrap().contains("No space left"), "{}", manager.status());
    eventually("metrics say so", || {
        std::fs::read_to_string(&metrics).is_ok_and(|text| text.contains("heddle_sm_state_unsaved 1"))
    });
    assert_eq!(changed(&before, &snapshot(&server)), Vec::<String>::new(), "nothing was written");

    // Safe work continues: a host that restarts is programmed again, and queries are answered.
    assert!(server.control(&["reboot", "host-00009"]).success);
    is_as_before(&server, &before, "a reboot beside a full disk");
    assert!(server.tool(&host(2), "saquery", &["-s"]).success, "queries are answered");
    assert!(manager.status()["state_write_failures"].as_u64() > Some(0));

    on_its_disk(&manager, &format!("rm {disk}/fill"));
    eventually("what was wanted is done once there is room", || holders(&server) == [2, 6]);
    eventually("and it says so", || manager.status()["unsaved"].is_null());

    // The persisted state is what the next manager needs: that writes nothing.
    let copy = Command::new("nsenter")
        .args(["--mount", "--target", &manager.pid().to_string(), "cat", &format!("{disk}/state.json")])
        .output()
        .unwrap();
    manager.crash();
    let state = server.file("state.json");
    std::fs::write(&state, copy.stdout).unwrap();
    std::fs::set_permissions(&state, std::fs::Permissions::from_mode(0o644)).unwrap();
    let mut next = SmDaemon::start(&server, HOST, &options);
    let told = next.wait_for_up(1);
    assert!(told.contains(" 0 Sets "), "{told}");
    let mode = std::fs::metadata(&state).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600, "one that everybody could read is taken from them");
}
