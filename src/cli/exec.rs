//! `heddle cluster exec`: commands in nodes.

use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use clap::Args;
use controller_api::session::{self, FrameKind, NewSession};
use controller_api::{ApiClient, ClusterRef};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::cluster::ClusterArgs;
use super::output::harmless;

/// Bytes of input per frame: half of the largest frame.
const INPUT_BYTES_MAX: usize = session::FRAME_BYTES_MAX / 2;

/// Longest line that is kept together when the output of several nodes is mixed.
const LINE_BYTES_MAX: usize = 64 * 1024;

/// Most concurrent sessions: half of the limit of the controller for one user.
const SESSIONS_MAX: usize = 128;

/// The exit status of a program that ended by SIGPIPE, as a shell reports it.
const STATUS_BROKEN_PIPE: u8 = 141;

/// The exit status if the command could not be run or its status is unknown, like that of ssh.
const STATUS_NOT_RUN: i32 = 255;

#[derive(Debug, Args)]
pub struct ExecArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Number of the node, from 1
    #[arg(long, value_name = "N", default_value_t = 1)]
    node: u32,
    /// Run the command in all nodes, 128 at a time; output lines begin with the name of the node, standard input is not read
    #[arg(long, conflicts_with = "node")]
    all: bool,
    /// Command to run, with its arguments; it runs as root, without a shell
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Runs a command in one node or in all; returns its exit status.
pub async fn run(client: &ApiClient, args: ExecArgs) -> anyhow::Result<ExitCode> {
    let (cluster, open) = (args.cluster.to_ref()?, NewSession::Exec { argv: args.command });
    let outcome = if args.all {
        run_everywhere(client, &cluster, &open).await
    } else {
        run_in_one(client, &cluster, args.node, &open).await
    };
    match outcome {
        Ok(status) => Ok(exit_code(status)),
        // The reader has closed the pipe: `heddle cluster exec blue -- dmesg | head`.
        Err(error) if is_broken_pipe(&error) => Ok(ExitCode::from(STATUS_BROKEN_PIPE)),
        Err(error) => {
            eprintln!("heddle: {}", harmless(&format!("{error:#}")));
            Ok(exit_code(STATUS_NOT_RUN))
        }
    }
}

async fn run_in_one(
    client: &ApiClient,
    cluster: &ClusterRef,
    node: u32,
    open: &NewSession,
) -> anyhow::Result<i32> {
    let stream = client.session(cluster, node, open).await?;
    let input = Some(tokio::io::stdin());
    carry(stream, input, |stream, bytes| stream.write(bytes)).await
}

async fn run_everywhere(client: &ApiClient, cluster: &ClusterRef, open: &NewSession) -> anyhow::Result<i32> {
    let nodes = client.cluster_show(cluster).await?.nodes;
    ensure!(!nodes.is_empty(), "{} has no nodes", cluster.name);
    let width = nodes.iter().map(|node| node.name.len()).max().unwrap_or_default();
    let mut running = JoinSet::new();
    let places = Arc::new(Semaphore::new(SESSIONS_MAX));
    for node in nodes {
        let (client, cluster, open) = (client.clone(), cluster.clone(), open.clone());
        let places = Arc::clone(&places);
        running.spawn(async move {
            // The semaphore is never closed.
            let _place = places.acquire().await;
            let mut lines = Lines::new(format!("{:width$} | ", node.name));
            let outcome = async {
                let stream = client.session(&cluster, node.number, &open).await?;
                carry(stream, None::<tokio::io::Empty>, |stream, bytes| lines.push(stream, bytes)).await
            };
            let outcome = outcome.await;
            (node, outcome.and_then(|status| Ok(lines.finish().map(|()| status)?)))
        });
    }
    let mut outcomes = Vec::new();
    while let Some(joined) = running.join_next().await {
        outcomes.push(joined.context("a session task panicked")?);
    }
    outcomes.sort_by_key(|(node, _)| node.number);
    let mut first_failure = 0;
    for (node, outcome) in outcomes {
        let status = match outcome {
            Ok(status) => status,
            Err(error) if is_broken_pipe(&error) => return Err(error),
            Err(error) => {
                eprintln!("heddle: {}: {}", node.name, harmless(&format!("{error:#}")));
                STATUS_NOT_RUN
            }
        };
        if status != 0 && first_failure == 0 {
            eprintln!("heddle: {} ended with status {status}", node.name);
            first_failure = status;
        }
    }
    Ok(first_failure)
}

/// An output stream of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Output,
    Error,
}

impl Stream {
    /// Writes to our own stream of this kind.
    pub fn write(self, bytes: &[u8]) -> io::Result<()> {
        fn all(mut to: impl Write, bytes: &[u8]) -> io::Result<()> {
            to.write_all(bytes)?;
            to.flush()
        }
        match self {
            Self::Output => all(io::stdout().lock(), bytes),
            Self::Error => all(io::stderr().lock(), bytes),
        }
    }
}

/// Runs a session to its end: sends `input`, passes output to `outlet`, and returns the exit status.
pub async fn carry(
    stream: impl AsyncRead + AsyncWrite,
    input: Option<impl AsyncRead + Unpin>,
    mut outlet: impl FnMut(Stream, &[u8]) -> io::Result<()>,
) -> anyhow::Result<i32> {
    let (mut from, mut to) = tokio::io::split(stream);
    let listen = async {
        loop {
            let frame =
                session::read_frame(&mut from).await.context("the connection to the node was lost")?;
            match frame {
                Some((FrameKind::Output, bytes)) => outlet(Stream::Output, &bytes)?,
                Some((FrameKind::Error, bytes)) => outlet(Stream::Error, &bytes)?,
                Some((FrameKind::Exit, bytes)) => {
                    let status: [u8; 4] = bytes
                        .try_into()
                        .ok()
                        .context("unexpected reply from the node: an exit status must have 4 bytes")?;
                    return Ok(i32::from_be_bytes(status));
                }
                Some((FrameKind::Refused, bytes)) => bail!("{}", String::from_utf8_lossy(&bytes)),
                // Only we send it.
                Some((FrameKind::Input, _)) => bail!("unexpected reply from the node: an input frame"),
                None => bail!("the connection to the node was closed before the command ended"),
            }
        }
    };
    let speak = async {
        // An error shows on the other half of the connection too, and there with its reason.
        let _ = feed(input, &mut to).await;
        std::future::pending::<anyhow::Result<i32>>().await
    };
    tokio::select! { ended = listen => ended, never = speak => never }
}

async fn feed(input: Option<impl AsyncRead + Unpin>, to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    if let Some(mut input) = input {
        let mut piece = vec![0; INPUT_BYTES_MAX];
        loop {
            match input.read(&mut piece).await? {
                0 => break,
                length => session::write_frame(to, FrameKind::Input, &piece[..length]).await?,
            }
        }
    }
    session::write_frame(to, FrameKind::Input, &[]).await
}

/// Splits the output of a node into lines with the name of the node in front.
struct Lines {
    prefix: String,
    output: Vec<u8>,
    error: Vec<u8>,
}

impl Lines {
    fn new(prefix: String) -> Self {
        Self { prefix, output: Vec::new(), error: Vec::new() }
    }

    fn push(&mut self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        stream.write(&self.complete(stream, bytes))
    }

    /// The complete lines that can be printed now.
    fn complete(&mut self, stream: Stream, bytes: &[u8]) -> Vec<u8> {
        let waiting = match stream {
            Stream::Output => &mut self.output,
            Stream::Error => &mut self.error,
        };
        waiting.extend(bytes);
        let ready = match waiting.iter().rposition(|byte| *byte == b'\n') {
            Some(end) => end + 1,
            None if waiting.len() > LINE_BYTES_MAX => waiting.len(),
            None => 0,
        };
        let mut printed = Vec::new();
        for line in waiting.drain(..ready).as_slice().split_inclusive(|byte| *byte == b'\n') {
            printed.extend(self.prefix.as_bytes());
            printed.extend(line);
        }
        if printed.last().is_some_and(|byte| *byte != b'\n') {
            printed.push(b'\n');
        }
        printed
    }

    /// Prints an unfinished last line.
    fn finish(mut self) -> io::Result<()> {
        for stream in [Stream::Output, Stream::Error] {
            let waits = match stream {
                Stream::Output => !self.output.is_empty(),
                Stream::Error => !self.error.is_empty(),
            };
            if waits {
                self.push(stream, b"\n")?;
            }
        }
        Ok(())
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

/// An exit status as the operating system can return it: 255 if it does not fit.
pub fn exit_code(status: i32) -> ExitCode {
    // Anything that does not fit is a failure, and must not look like success.
    ExitCode::from(u8::try_from(status).unwrap_or(u8::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a node: takes input until it ends, then sends these frames.
    async fn node(stream: tokio::io::DuplexStream, frames: Vec<(FrameKind, Vec<u8>)>) -> Vec<u8> {
        let (mut from, mut to) = tokio::io::split(stream);
        let mut heard = Vec::new();
        while let Some((kind, bytes)) = session::read_frame(&mut from).await.unwrap() {
            assert_eq!(kind, FrameKind::Input);
            if bytes.is_empty() {
                break;
            }
            heard.extend(bytes);
        }
        for (kind, bytes) in frames {
            session::write_frame(&mut to, kind, &bytes).await.unwrap();
        }
        heard
    }

    type Printed = Vec<(Stream, Vec<u8>)>;

    /// The printed output, the exit status, and the input that the node received.
    fn converse(
        input: &'static [u8],
        frames: Vec<(FrameKind, Vec<u8>)>,
    ) -> (Printed, Result<i32, String>, Vec<u8>) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (near, far) = tokio::io::duplex(1024);
        let mut printed = Vec::new();
        let (status, heard) = runtime.block_on(async {
            let ours = carry(near, Some(input), |stream, bytes| {
                printed.push((stream, bytes.to_vec()));
                Ok(())
            });
            tokio::join!(ours, node(far, frames))
        });
        (printed, status.map_err(|error| format!("{error:#}")), heard)
    }

    #[test]
    fn a_command_hears_its_input_and_gives_its_output_and_status() {
        let frames = vec![
            (FrameKind::Output, b"out".to_vec()),
            (FrameKind::Error, b"err".to_vec()),
            (FrameKind::Exit, 42i32.to_be_bytes().to_vec()),
        ];
        let (printed, status, heard) = converse(b"hello", frames);
        assert_eq!(printed, [(Stream::Output, b"out".to_vec()), (Stream::Error, b"err".to_vec())]);
        assert_eq!((status, heard), (Ok(42), b"hello".to_vec()));
    }

    #[test]
    fn long_input_arrives_whole() {
        static LONG: [u8; 3 * INPUT_BYTES_MAX + 5] = [7; 3 * INPUT_BYTES_MAX + 5];
        let (_, status, heard) = converse(&LONG, vec![(FrameKind::Exit, vec![0; 4])]);
        assert_eq!((status, heard.len()), (Ok(0), LONG.len()));
    }

    #[test]
    fn a_session_that_ends_without_a_status_is_no_success() {
        let (_, status, _) = converse(b"", vec![(FrameKind::Output, b"half".to_vec())]);
        assert!(status.unwrap_err().contains("before the command ended"));
        let (_, status, _) = converse(b"", vec![(FrameKind::Refused, b"no such program".to_vec())]);
        assert_eq!(status, Err("no such program".to_owned()));
        let (_, status, _) = converse(b"", vec![(FrameKind::Exit, vec![0])]);
        assert!(status.is_err());
    }

    #[test]
    fn mixed_output_says_whose_every_line_is() {
        let mut lines = Lines::new("n1 | ".to_owned());
        assert_eq!(lines.complete(Stream::Output, b"one\ntw"), b"n1 | one\n");
        assert_eq!(lines.complete(Stream::Error, b"bad\n"), b"n1 | bad\n");
        assert_eq!(lines.complete(Stream::Output, b"o\n\nthree"), b"n1 | two\nn1 | \n");
        assert_eq!(lines.complete(Stream::Output, b"\n"), b"n1 | three\n");
        let endless = lines.complete(Stream::Output, &vec![b'x'; LINE_BYTES_MAX + 1]);
        assert_eq!(
            endless.len(),
            LINE_BYTES_MAX + 1 + "n1 | \n".len(),
            "an unfinished line is not kept for ever"
        );
    }

    #[test]
    fn a_status_beyond_what_a_shell_sees_is_still_a_failure() {
        assert_eq!(format!("{:?}", exit_code(256)), format!("{:?}", ExitCode::from(255)));
        assert_eq!(format!("{:?}", exit_code(0)), format!("{:?}", ExitCode::SUCCESS));
    }
}
