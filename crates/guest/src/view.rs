//! Access to the cluster's network view for stock InfiniBand tools in this machine.
//!
//! The host runs `heddle-guest view` in a session. Standard input and output carry frames to and from this machine's port in
//! the view. This module serves the ibsim sockets that libumad2sim connects to, under [`SOCKET_NAME`]; the image's `in-view`
//! sets the environment of a tool accordingly.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use ib_transport::framed::FramedClient;
use ib_transport::{Relay, Server};

/// Value of `IBSIM_SOCKNAME` for tools in the guest.
pub const SOCKET_NAME: &str = "heddle-view";

/// Interval at which the connection to the host is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Serves until the host closes standard input or the connection breaks.
pub fn run() -> io::Result<()> {
    let (near, far) = UnixStream::pair()?;
    let writer = far.try_clone()?;
    thread::spawn(move || copy(io::stdin().lock(), &writer, || writer.shutdown(Shutdown::Both)));
    thread::spawn(move || copy(&far, io::stdout().lock(), || far.shutdown(Shutdown::Both)));
    let mut relay = Relay::new(FramedClient::from_attached_stream(near)?)?;
    let mut server = Server::bind(SOCKET_NAME).map_err(io::Error::other)?;
    server.watch(&relay)?;
    while relay.error().is_none() {
        server.poll_once(&mut relay, POLL_INTERVAL)?;
    }
    Ok(())
}

/// Copies bytes until either side ends, then calls `end` to close the other.
fn copy(mut from: impl Read, mut to: impl Write, end: impl FnOnce() -> io::Result<()>) {
    let mut buffer = [0; 16 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..count]).and_then(|()| to.flush()).is_err() {
            break;
        }
    }
    // Fails only if the socket is already closed.
    let _ = end();
}
