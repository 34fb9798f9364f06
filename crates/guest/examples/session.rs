//! Runs a command in a virtual machine over its channel, to test an image by hand; see docs/guides/images.md.
//!
//! | call | effect |
//! |---|---|
//! | `session SOCKET` | waits until the guest is ready |
//! | `session SOCKET COMMAND…` | then runs a command with empty standard input |
//! | `session SOCKET --ssh` | then connects standard input and output to sshd, for use as `ProxyCommand` |

use std::collections::VecDeque;
use std::error::Error;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

use guest::channel::{DATA_BYTES_MAX, Decoder, SessionId, SessionRequest, ToGuest, ToHost, Window, encode};

const SESSION: SessionId = SessionId(1);

/// The flow-control window of our input, and a condition variable for changes.
type SharedWindow = Arc<(Mutex<Window>, Condvar)>;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut port = UnixStream::connect(arguments.next().ok_or("usage: session SOCKET [--ssh | COMMAND…]")?)?;
    let argv: Vec<String> = arguments.collect();
    let request =
        if argv == ["--ssh"] { SessionRequest::Ssh } else { SessionRequest::Exec { argv: argv.clone() } };
    send(&mut port, &ToGuest::Hello { nonce: u64::from(std::process::id()) })?;

    let window = SharedWindow::default();
    let mut decoder = Decoder::new();
    let mut messages = VecDeque::new();
    let mut buffer = [0; 4096];
    loop {
        let length = port.read(&mut buffer)?;
        if length == 0 {
            return Err("the virtual machine has disconnected".into());
        }
        decoder.push(&buffer[..length], &mut messages);
        while let Some(message) = messages.pop_front() {
            match message {
                ToHost::Welcome { version, boot, .. } => {
                    eprintln!("session: protocol {version}, boot {boot}")
                }
                ToHost::Network { reach, .. } => eprintln!("session: network {reach:?}"),
                ToHost::Ready { generation } => {
                    eprintln!("session: ready for generation {generation}");
                    if argv.is_empty() {
                        return Ok(ExitCode::SUCCESS);
                    }
                    send(&mut port, &ToGuest::Open { session: SESSION, request: request.clone() })?;
                    if request == SessionRequest::Ssh {
                        let (port, window) = (port.try_clone()?, window.clone());
                        thread::spawn(move || send_input(port, &window));
                    } else {
                        send(&mut port, &ToGuest::Input { session: SESSION, bytes: Vec::new() })?;
                    }
                }
                ToHost::Output { bytes, .. } => {
                    io::stdout().write_all(&bytes)?;
                    io::stdout().flush()?;
                    send(
                        &mut port,
                        &ToGuest::Credit { session: SESSION, bytes: u32::try_from(bytes.len())? },
                    )?;
                }
                ToHost::Error { bytes, .. } => {
                    io::stderr().write_all(&bytes)?;
                    send(
                        &mut port,
                        &ToGuest::Credit { session: SESSION, bytes: u32::try_from(bytes.len())? },
                    )?;
                }
                ToHost::Credit { bytes, .. } => {
                    window.0.lock().unwrap_or_else(PoisonError::into_inner).grant(bytes)?;
                    window.1.notify_one();
                }
                ToHost::Exit { status, .. } => {
                    return Ok(ExitCode::from(u8::try_from(status).unwrap_or(255)));
                }
                ToHost::Failed { reason, .. } | ToHost::Refused { reason, .. } => return Err(reason.into()),
            }
        }
    }
}

fn send_input(mut port: UnixStream, window: &SharedWindow) {
    let mut buffer = [0; DATA_BYTES_MAX];
    loop {
        let guard = window.0.lock().unwrap_or_else(PoisonError::into_inner);
        let open = window.1.wait_while(guard, |window| window.available() == 0);
        let most = open.unwrap_or_else(PoisonError::into_inner).available().min(buffer.len());
        let length = io::stdin().read(&mut buffer[..most]).unwrap_or(0);
        let passed = window.0.lock().unwrap_or_else(PoisonError::into_inner).debit(length);
        let input = ToGuest::Input { session: SESSION, bytes: buffer[..length].to_vec() };
        if passed.is_err() || send(&mut port, &input).is_err() || length == 0 {
            return;
        }
    }
}

fn send(port: &mut UnixStream, message: &ToGuest) -> Result<(), Box<dyn Error>> {
    let mut bytes = Vec::new();
    encode(message, &mut bytes)?;
    // One write, so that the messages of two threads do not mix.
    Ok(port.write_all(&bytes)?)
}
