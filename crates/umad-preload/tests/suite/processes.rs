//! What the library does to the process that it is loaded into.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use crate::common::{Ibsim, eventually, preload};

const FIRST: &str = "H-0000000000000b01";
const SECOND: &str = "H-0000000000000c01";

fn names(directory: &std::path::Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn nothing_is_left_behind_even_after_a_kill() {
    let ibsim = Ibsim::small();
    let before = names(ibsim.directory());
    ibsim.tool(FIRST, "ibstat", &[]);
    // The server never answers this one: it waits until it is killed.
    let mut waiting = ibsim.command(FIRST, "smpquery");
    let mut waiting = waiting.args(["-t", "60000", "nodeinfo", "77"]).stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(300));
    let _ = waiting.kill();
    waiting.wait().unwrap();
    assert_eq!(names(ibsim.directory()), before);
}

#[test]
fn ordinary_programs_work_as_without_the_library() {
    let ibsim = Ibsim::small();
    let mut cat = ibsim.command(FIRST, "cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    cat.stdin.take().unwrap().write_all(b"through a pipe").unwrap();
    assert_eq!(cat.wait_with_output().unwrap().stdout, b"through a pipe");
    let read = |program: &str, arguments: &[&str]| {
        let output = ibsim.command(FIRST, program).args(arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert_eq!(read("cat", &["/sys/class/infiniband/ibsim0/node_guid"]), "0000:0000:0000:0b01\n");
    assert_eq!(read("ls", &["/sys/class/infiniband_mad"]), "abi_version\nissm0\numad0\n");
    assert_eq!(read("sh", &["-c", "test -c /dev/infiniband/umad0 && echo yes"]), "yes\n");
    assert_eq!(read("ls", &["net"]), "net\n");
}

#[test]
fn without_a_server_tools_fail_and_say_why() {
    let output = Command::new("ibstat")
        .env("LD_PRELOAD", preload())
        .env("IBSIM_SOCKNAME", "no-such-server")
        .env_remove("HEDDLE_SOCKET")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("heddle-umad: no server named no-such-server is running"), "{text}");
}

#[test]
fn the_slot_of_a_tool_is_free_when_it_ends() {
    // Stock ibsim has ten.
    let ibsim = Ibsim::small();
    for _ in 0..25 {
        ibsim.tool(FIRST, "ibstat", &[]);
    }
}

/// Run as a child process with the library: prints the LID of its port whenever it reads a line, and then once more in a child
/// process of its own. In the ordinary run of the tests it does nothing.
#[test]
fn print_the_lid_in_a_process_of_its_own() {
    if std::env::var_os("PRINT_THE_LID").is_none() {
        return;
    }
    for _ in std::io::stdin().lock().lines() {
        let lid = std::fs::read_to_string("/sys/class/infiniband/ibsim0/ports/1/lid").unwrap();
        println!("lid {}", lid.trim());
    }
}

#[test]
fn sysfs_shows_a_running_program_the_current_lid() {
    let ibsim = Ibsim::small();
    let mut command = ibsim.command(SECOND, std::env::current_exe().unwrap());
    let mut child = command
        .args(["--exact", "processes::print_the_lid_in_a_process_of_its_own", "--nocapture"])
        .env("PRINT_THE_LID", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let mut lid = || {
        writeln!(input).unwrap();
        output.find_map(|line| line.split_once("lid 0x").map(|(_, lid)| lid.to_owned())).unwrap()
    };
    assert_eq!(lid(), "0");
    let _opensm = ibsim.opensm(FIRST);
    eventually("the port has a LID", || lid() != "0");
    drop(input);
    assert!(child.wait().unwrap().success());
}

/// Cancels a thread that waits in `read`, of a pipe and of the device, and one that runs in the emulation.
const CANCEL: &str = r#"
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static void *wait_in_read(void *fd)
{
	char buffer[512];
	read(*(int *)fd, buffer, sizeof(buffer));
	return NULL;
}

static void *read_sysfs(void *unused)
{
	char buffer[64];
	for (;;) {
		int fd = open("/sys/class/infiniband/ibsim0/ports/1/lid", O_RDONLY);
		read(fd, buffer, sizeof(buffer));
		close(fd);
	}
}

static int cancelled(void *(*body)(void *), void *argument)
{
	pthread_t thread;
	void *result;
	pthread_create(&thread, NULL, body, argument);
	usleep(50000);
	pthread_cancel(thread);
	pthread_join(thread, &result);
	return result == PTHREAD_CANCELED;
}

int main(void)
{
	int ends[2], device = open("/dev/infiniband/umad0", O_RDWR);
	if (device < 0 || pipe(ends))
		return 1;
	printf("%d %d %d\n", cancelled(wait_in_read, &ends[0]), cancelled(wait_in_read, &device),
	       cancelled(read_sysfs, NULL));
	return 0;
}
"#;

#[test]
fn threads_can_be_cancelled() {
    let ibsim = Ibsim::small();
    let (source, program) = (ibsim.directory().join("cancel.c"), ibsim.directory().join("cancel"));
    std::fs::write(&source, CANCEL).unwrap();
    let compiled = Command::new("cc").args(["-w", "-pthread", "-o"]).args([&program, &source]).status();
    assert!(compiled.expect("a C compiler is installed").success());
    let output = ibsim.command(FIRST, &program).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "1 1 1\n", "{output:?}");
}
