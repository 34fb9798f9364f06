//! `heddle-guest`: the first process of a virtual machine, or the server of its channel.

use std::process::{self, ExitCode};

use guest::{init, serve, view};

const USAGE: &str = "\
heddle-guest: inside virtual machines of Heddle

  heddle-guest          as first process: starts the machine as its seed says
  heddle-guest serve    answers the host on the virtio-serial port org.heddle.guest.0
  heddle-guest view     offers the network of the cluster to InfiniBand tools; started by the host
  heddle-guest version  prints the version";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    // The kernel passes what it does not know on to the first process, so that arguments mean nothing there.
    if process::id() == 1 {
        init::run()
    }
    match arguments[..] {
        ["serve"] => match run_server() {
            Ok(never) => match never {},
            Err(error) => {
                eprintln!("heddle-guest: the channel to the host is broken: {error}");
                ExitCode::FAILURE
            }
        },
        ["view"] => match view::run() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("heddle-guest: there is no view: {error}");
                ExitCode::FAILURE
            }
        },
        ["version"] => {
            println!("heddle-guest {}", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn run_server() -> std::io::Result<std::convert::Infallible> {
    serve::ChannelServer::new(serve::open_port()?, serve::GuestNode::this())?.run()
}
