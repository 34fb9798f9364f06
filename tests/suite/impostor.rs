//! Tokens are sent to the controller only, never to a program that listens in its place.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use crate::site::Site;

const SECRET: &str = "heddle_0123456789abcdef";

/// Another user of this machine: `nobody`.
const STRANGER: u32 = 65534;

/// Listens at a socket and prints what it receives, as the user that runs it. It answers like a controller without
/// clusters.
const LISTENER: &str = r#"
use IO::Socket::UNIX;
my $listener = IO::Socket::UNIX->new(Local => $ARGV[0], Listen => 8) or die "listen: $!";
chmod 0666, $ARGV[0];
syswrite STDOUT, "ready\n";
while (my $peer = $listener->accept()) {
    sysread $peer, my $bytes, 65536;
    syswrite STDOUT, $bytes;
    syswrite $peer, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n[]";
}
"#;

/// A process of some user that listens at a unix socket.
struct Impostor {
    child: Child,
    heard: BufReader<std::process::ChildStdout>,
}

impl Impostor {
    fn listen(uid: u32, socket: &Path) -> Self {
        let mut child = Command::new("setpriv")
            .args([&format!("--reuid={uid}"), "--clear-groups", "--pdeathsig=KILL", "perl", "-e", LISTENER])
            .arg(socket)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut heard = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        heard.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "the impostor listens");
        Self { child, heard }
    }

    /// Everything it was ever sent.
    fn heard(mut self) -> String {
        self.child.kill().unwrap();
        let mut text = String::new();
        self.heard.read_to_string(&mut text).unwrap();
        self.child.wait().unwrap();
        text
    }
}

/// A directory as `heddle up` keeps one, with the operator's token.
fn home() -> tempfile::TempDir {
    let home = tempfile::tempdir().unwrap();
    fs::set_permissions(home.path(), Permissions::from_mode(0o755)).unwrap();
    let token = home.path().join("operator.token");
    fs::write(&token, format!("{SECRET}\n")).unwrap();
    fs::set_permissions(token, Permissions::from_mode(0o600)).unwrap();
    home
}

/// A directory for a socket, with an owner and a mode.
fn directory(home: &Path, uid: u32, mode: u32) -> PathBuf {
    let path = home.join("api");
    fs::create_dir(&path).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    std::os::unix::fs::chown(&path, Some(uid), None).unwrap();
    path
}

fn heddle(home: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_heddle"));
    for name in ["HEDDLE_URL", "HEDDLE_TOKEN", "HEDDLE_TOKEN_FILE", "HEDDLE_TENANT", "HEDDLE_CONTROLLER_UID"]
    {
        command.env_remove(name);
    }
    command.args(arguments).env("HEDDLE_HOME", home).output().unwrap()
}

/// Only root can run a process of another user.
fn is_root() -> bool {
    let is_root = fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    if !is_root {
        eprintln!("skipped: needs root to run a process of another user");
    }
    is_root
}

#[test]
fn a_server_at_a_stale_address_gets_no_token() {
    let home = home();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let ears = Arc::clone(&heard);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, mut bytes) = (stream.unwrap(), [0; 65536]);
            let length = stream.read(&mut bytes).unwrap();
            ears.lock().unwrap().extend(&bytes[..length]);
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n[]";
            let _ = stream.write_all(answer);
        }
    });
    let heard = || String::from_utf8(heard.lock().unwrap().clone()).unwrap();
    // The file that a killed controller leaves behind.
    fs::write(home.path().join("endpoint"), format!("http://{address}\n")).unwrap();
    let output = heddle(home.path(), &["cluster", "list"]);
    assert!(!output.status.success(), "{output:?}");
    assert_eq!(heard(), "");
    // Naming it is not enough for the operator's token either; a token that is named with it goes there.
    let url = format!("http://{address}");
    assert!(!heddle(home.path(), &["cluster", "list", "--url", &url]).status.success());
    assert_eq!(heard(), "");
    let token = home.path().join("operator.token");
    let named = ["cluster", "list", "--url", &url, "--token-file", token.to_str().unwrap()];
    assert!(heddle(home.path(), &named).status.success());
    assert!(heard().contains(SECRET), "{}", heard());
}

#[test]
fn a_socket_where_others_can_write_gets_no_token() {
    if !is_root() {
        return;
    }
    for (owner, mode) in [(STRANGER, 0o755), (0, 0o777), (0, 0o1777)] {
        let home = home();
        let socket = directory(home.path(), owner, mode).join("heddle.sock");
        let impostor = Impostor::listen(STRANGER, &socket);
        let output = heddle(home.path(), &["cluster", "list"]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && error.contains("no token was sent"), "{error}");
        assert_eq!(impostor.heard(), "", "owner {owner}, mode {mode:o}");
    }
}

#[test]
fn a_socket_that_another_user_serves_gets_no_token() {
    if !is_root() {
        return;
    }
    let home = home();
    let elsewhere = home.path().join("theirs");
    fs::create_dir(&elsewhere).unwrap();
    fs::set_permissions(&elsewhere, Permissions::from_mode(0o777)).unwrap();
    let impostor = Impostor::listen(STRANGER, &elsewhere.join("heddle.sock"));
    // However it came to the right place.
    let socket = directory(home.path(), 0, 0o755).join("heddle.sock");
    fs::rename(elsewhere.join("heddle.sock"), socket).unwrap();
    let output = heddle(home.path(), &["cluster", "list"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains(&format!("served by user {STRANGER}")), "{error}");
    assert_eq!(impostor.heard(), "");
}

#[test]
fn a_socket_of_ones_own_or_of_a_trusted_user_gets_the_token() {
    if !is_root() {
        return;
    }
    for (uid, more) in [(0, &[][..]), (STRANGER, &["--controller-uid", "65534"][..])] {
        let home = home();
        let socket = directory(home.path(), uid, 0o755).join("heddle.sock");
        let listener = Impostor::listen(uid, &socket);
        let output = heddle(home.path(), &[&["cluster", "list"], more].concat());
        assert!(output.status.success(), "{output:?}");
        assert!(listener.heard().contains(&format!("Bearer {SECRET}")));
    }
}

#[test]
fn another_user_reaches_the_controller_of_root_with_a_token() {
    if !is_root() {
        return;
    }
    let site = Site::new(2);
    let token = site.tenant_token("acme");
    let place = site.directory.path();
    fs::set_permissions(place, Permissions::from_mode(0o711)).unwrap();
    // Where it was built may be closed to others.
    let program = place.join("heddle");
    fs::copy(env!("CARGO_BIN_EXE_heddle"), &program).unwrap();
    let output = Command::new("setpriv")
        .args([&format!("--reuid={STRANGER}"), "--clear-groups"])
        .arg(program)
        .args(["cluster", "list", "-o", "json", "--url", &site.controller_address().to_string()])
        .env("HEDDLE_TOKEN", token)
        .current_dir("/")
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "[]", "{output:?}");
}
