//! The shipped AppArmor profile of QEMU is accepted by AppArmor's parser. Whether a kernel enforces it is assumption A-HOST-1.

use std::io::Write;
use std::process::{Command, Stdio};

/// Whether the parser accepts a profile; nothing is loaded or cached.
fn is_accepted(profile: &str) -> bool {
    let mut command = Command::new("apparmor_parser");
    command.args(["--skip-kernel-load", "--skip-cache", "--quiet"]).stdin(Stdio::piped());
    let mut parser =
        command.stderr(Stdio::null()).spawn().expect("apparmor_parser, from the package apparmor");
    parser.stdin.take().unwrap().write_all(profile.as_bytes()).unwrap();
    parser.wait().unwrap().success()
}

#[test]
fn the_apparmor_profile_is_accepted() {
    let profile = include_str!("../../../../deploy/apparmor/heddle-qemu");
    assert!(is_accepted(profile));
    assert!(
        !is_accepted(&profile.replace("deny network inet,", "deny network inet")),
        "control: the parser rejects a broken profile"
    );
}
