//! The network of the cluster, for stock tools in this machine.
//!
//! The host runs `heddle-guest view` in a session of its own: standard input and output carry frames to and from the port
//! of this machine in its cluster's view. Here are the sockets that libumad2sim looks for, under [`SOCKET_NAME`]; `in-view`
//! of the image sets the environment for a tool.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use ib_transport::framed::Client;
use ib_transport::{Relay, Server};

/// What tools have as `IBSIM_SOCKNAME`.
pub const SOCKET_NAME: &str = "heddle-view";

/// Between two looks at whether the host is still there.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Serves until the host ends it.
pub fn run() -> io::Result<()> {
    let (near, far) = UnixStream::pair()?;
    let writer = far.try_clone()?;
    thread::spawn(move || copy(io::stdin().lock(), &writer, || writer.shutdown(Shutdown::Both)));
    thread::spawn(move || copy(&far, io::stdout().lock(), || far.shutdown(Shutdown::Both)));
    let mut relay = Relay::new(Client::seated(near)?)?;
    let mut server = Server::bind(SOCKET_NAME).map_err(io::Error::other)?;
    server.watch(&relay)?;
    while relay.broken().is_none() {
        server.poll_once(&mut relay, POLL_INTERVAL)?;
    }
    Ok(())
}

/// Carries bytes until either side ends, then ends the other.
fn copy(mut from: impl Read, mut to: impl Write, end: impl FnOnce() -> io::Result<()>) {
    let mut buffer = [0; 16 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..count]).and_then(|()| to.flush()).is_err() {
            break;
        }
    }
    // It may have ended by itself.
    let _ = end();
}
