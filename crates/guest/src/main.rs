//! `heddle-guest`: PID 1 of a virtual machine, or the server of its channel to the host.

use std::process::{self, ExitCode};

use guest::{init, serve, view};

const USAGE: &str = "\
Boot a Heddle virtual machine and connect it to its host

Usage: heddle-guest [COMMAND]

Without a command, and only as PID 1: read the seed (the disk labelled cidata; waits up to 10 s for it), configure
host name, files and network, start sshd and `heddle-guest serve`, and power off on SIGTERM or SIGINT.

Commands:
  serve    Answer the host on the virtio-serial port org.heddle.guest.0 (waits up to 60 s for the port)
  view     Offer the cluster's network view to InfiniBand tools as the ibsim socket heddle-view; run by the host in a session
  version  Print the version
  help     Print this help";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    // The kernel passes unknown parameters of its command line to PID 1, so arguments are ignored there.
    if process::id() == 1 {
        init::run()
    }
    match arguments[..] {
        ["serve"] => match run_server() {
            Ok(never) => match never {},
            Err(error) => {
                eprintln!("heddle-guest: cannot serve the channel to the host: {error}");
                ExitCode::FAILURE
            }
        },
        ["view"] => match view::run() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("heddle-guest: cannot serve the network view: {error}");
                ExitCode::FAILURE
            }
        },
        ["version" | "--version" | "-V"] => {
            println!("heddle-guest {}", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn run_server() -> std::io::Result<std::convert::Infallible> {
    serve::ChannelServer::new(serve::open_port()?, serve::GuestNode::this_machine())?.run()
}
