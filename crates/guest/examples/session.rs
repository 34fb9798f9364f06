//! Runs a command in a virtual machine over its channel, to try an image by hand: see docs/guides/images.md.
//!
//! `session SOCKET` waits until the guest is ready; `session SOCKET COMMAND…` then runs a command without input.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use guest::channel::{Decoder, SessionId, ToGuest, ToHost, What, encode};

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut port = UnixStream::connect(arguments.next().ok_or("session SOCKET COMMAND…")?)?;
    let argv: Vec<String> = arguments.collect();
    let session = SessionId(1);
    say(&mut port, &ToGuest::Hello { nonce: u64::from(std::process::id()) })?;

    let mut decoder = Decoder::new();
    let mut messages = VecDeque::new();
    let mut buffer = [0; 4096];
    loop {
        let length = port.read(&mut buffer)?;
        if length == 0 {
            return Err("the machine is gone".into());
        }
        decoder.push(&buffer[..length], &mut messages);
        while let Some(message) = messages.pop_front() {
            match message {
                ToHost::Welcome { version, boot, .. } => {
                    eprintln!("session: protocol {version}, boot {boot}")
                }
                ToHost::Ready { generation } => {
                    eprintln!("session: ready for generation {generation}");
                    if argv.is_empty() {
                        return Ok(ExitCode::SUCCESS);
                    }
                    say(&mut port, &ToGuest::Open { session, what: What::Exec { argv: argv.clone() } })?;
                    say(&mut port, &ToGuest::Input { session, bytes: Vec::new() })?;
                }
                ToHost::Output { bytes, .. } => {
                    io::stdout().write_all(&bytes)?;
                    io::stdout().flush()?;
                    say(&mut port, &ToGuest::Credit { session, bytes: u32::try_from(bytes.len())? })?;
                }
                ToHost::Error { bytes, .. } => {
                    io::stderr().write_all(&bytes)?;
                    say(&mut port, &ToGuest::Credit { session, bytes: u32::try_from(bytes.len())? })?;
                }
                ToHost::Credit { .. } => {}
                ToHost::Exit { status, .. } => {
                    return Ok(ExitCode::from(u8::try_from(status).unwrap_or(255)));
                }
                ToHost::Failed { reason, .. } | ToHost::Refused { reason, .. } => return Err(reason.into()),
            }
        }
    }
}

fn say(port: &mut UnixStream, message: &ToGuest) -> Result<(), Box<dyn std::error::Error>> {
    let mut bytes = Vec::new();
    encode(message, &mut bytes)?;
    Ok(port.write_all(&bytes)?)
}
