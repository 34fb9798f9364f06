//! A client of the own framing.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ib_wire::{Datagram, Lid, PortState, TransactionId};

use super::frame::{Attach, Attached, Frame, FrameReader, PortDetails, RefusalCode};
use crate::client_role::ClientRole;

/// How long the server may take to answer what only it can answer.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a send may wait for room. A server that takes nothing for so long is stuck.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

/// Datagrams kept while waiting for the server's own answer; a stream that brings more than that in between is not
/// from a server that answers.
const BUFFERED_MAX: usize = 65_536;

/// A client attached to a port.
#[derive(Debug)]
pub struct FramedClient {
    stream: UnixStream,
    reader: FrameReader,
    attached: Attached,
    /// What came while waiting for something else.
    buffered: VecDeque<FramedReceived>,
    /// Frames on their way out; kept for its memory.
    unsent: Vec<u8>,
}

impl AsFd for FramedClient {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// What a client receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FramedReceived {
    /// A datagram.
    Datagram(Box<Datagram>),
    /// Nobody will answer this request.
    Lost(TransactionId),
}

/// Why a client is not attached.
#[derive(Debug, thiserror::Error)]
pub enum FramedConnectError {
    /// No server at the path.
    #[error("no server answers at {}", path.display())]
    NoServer {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The server does not want the client.
    #[error("the server at {} refused to attach at {node:?}: {reason}", path.display())]
    AttachRefused {
        /// Where.
        path: PathBuf,
        /// The node asked for.
        node: String,
        /// Why.
        reason: RefusalCode,
    },
    /// The stream broke, or brought something else.
    #[error("cannot talk to the server at {}", path.display())]
    Io {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl FramedClient {
    /// Attaches to the node with this id or description; empty = the server's first node.
    pub fn connect(path: &Path, node: &str, role: ClientRole) -> Result<Self, FramedConnectError> {
        let stream = UnixStream::connect(path)
            .map_err(|source| FramedConnectError::NoServer { path: path.to_owned(), source })?;
        let mut client = Self::new(stream);
        let attach = Attach { node_id: node.to_owned(), role };
        match client
            .attach(attach)
            .map_err(|source| FramedConnectError::Io { path: path.to_owned(), source })?
        {
            Ok(attached) => client.attached = attached,
            Err(reason) => {
                return Err(FramedConnectError::AttachRefused {
                    path: path.to_owned(),
                    node: node.to_owned(),
                    reason,
                });
            }
        }
        Ok(client)
    }

    /// A client on a stream by which somebody else has asked for a port on its behalf: whoever holds the stream cannot say
    /// where it is.
    pub fn from_attached_stream(stream: UnixStream) -> io::Result<Self> {
        let mut client = Self::new(stream);
        client.stream.set_write_timeout(Some(SEND_TIMEOUT))?;
        client.attached =
            client.wait_for_attached()?.map_err(|reason| io::Error::other(reason.to_string()))?;
        Ok(client)
    }

    fn new(stream: UnixStream) -> Self {
        let (reader, buffered, unsent) = (FrameReader::default(), VecDeque::new(), Vec::new());
        let attached = Attached { client: 0, lid: None, port_guid: None };
        Self { stream, reader, attached, buffered, unsent }
    }

    /// What the server said at the beginning.
    pub fn attached(&self) -> Attached {
        self.attached
    }

    /// Sends one datagram.
    pub fn send(&mut self, datagram: &Datagram) -> io::Result<()> {
        self.send_batch(std::slice::from_ref(datagram))
    }

    /// Sends datagrams, in order, with as few system calls as possible.
    pub fn send_batch(&mut self, datagrams: &[Datagram]) -> io::Result<()> {
        self.unsent.clear();
        for datagram in datagrams {
            Frame::encode_datagram(datagram, &mut self.unsent);
        }
        self.stream.write_all(&self.unsent)
    }

    /// Receives a datagram or the loss of one; `None` if nothing came in time.
    pub fn receive(&mut self, timeout: Duration) -> io::Result<Option<FramedReceived>> {
        if let Some(received) = self.buffered.pop_front() {
            return Ok(Some(received));
        }
        match self.next_frame(timeout)? {
            Some(frame) => received(frame).map(Some).map_err(unexpected_frame),
            None => Ok(None),
        }
    }

    /// LID and logical state of the port.
    pub fn port(&mut self) -> io::Result<(Option<Lid>, PortState)> {
        self.query(&Frame::GetPortState, |frame| match frame {
            Frame::PortState { lid, state } => Ok((lid, state)),
            other => Err(other),
        })
    }

    /// All about the port.
    pub fn port_details(&mut self) -> io::Result<PortDetails> {
        self.query(&Frame::GetPortDetails, |frame| match frame {
            Frame::PortDetails(details) => Ok(*details),
            other => Err(other),
        })
    }

    fn query<T>(&mut self, question: &Frame, answer: impl Fn(Frame) -> Result<T, Frame>) -> io::Result<T> {
        self.send_frame(question)?;
        let deadline = Instant::now() + REPLY_TIMEOUT;
        while self.buffered.len() < BUFFERED_MAX {
            match self.next_frame(deadline.saturating_duration_since(Instant::now()))?.map(&answer) {
                Some(Ok(answer)) => return Ok(answer),
                Some(Err(other)) => self.buffered.push_back(received(other).map_err(unexpected_frame)?),
                None => return Err(io::ErrorKind::TimedOut.into()),
            }
        }
        Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the server sends datagrams without end and no answer",
        ))
    }

    /// Becomes the subnet manager of the port, or ceases to be.
    pub fn set_role(&mut self, role: ClientRole) -> io::Result<()> {
        self.send_frame(&Frame::SetRole(role))
    }

    fn attach(&mut self, attach: Attach) -> io::Result<Result<Attached, RefusalCode>> {
        self.stream.set_write_timeout(Some(SEND_TIMEOUT))?;
        self.send_frame(&Frame::Attach(attach))?;
        self.wait_for_attached()
    }

    fn wait_for_attached(&mut self) -> io::Result<Result<Attached, RefusalCode>> {
        match self.next_frame(REPLY_TIMEOUT)? {
            Some(Frame::Attached(attached)) => Ok(Ok(attached)),
            Some(Frame::Refused(reason)) => Ok(Err(reason)),
            Some(other) => Err(unexpected_frame(other)),
            None => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    fn send_frame(&mut self, frame: &Frame) -> io::Result<()> {
        self.unsent.clear();
        frame.encode(&mut self.unsent);
        self.stream.write_all(&self.unsent)
    }

    fn next_frame(&mut self, timeout: Duration) -> io::Result<Option<Frame>> {
        let deadline = Instant::now() + timeout;
        loop {
            let frame = self
                .reader
                .next_frame()
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            if frame.is_some() {
                return Ok(frame);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            // For the system a timeout of 0 means "wait for ever", and the shortest there is takes milliseconds.
            self.stream.set_nonblocking(left.is_zero())?;
            if !left.is_zero() {
                self.stream.set_read_timeout(Some(left))?;
            }
            let read = self.stream.read(self.reader.room());
            self.stream.set_nonblocking(false)?;
            match read {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.reader.filled(count),
                Err(error) if is_time_over(&error) => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// What a client may see of a frame; the frame itself where it may not.
fn received(frame: Frame) -> Result<FramedReceived, Frame> {
    match frame {
        Frame::Datagram(datagram) => Ok(FramedReceived::Datagram(datagram)),
        Frame::Lost(transaction) => Ok(FramedReceived::Lost(transaction)),
        other => Err(other),
    }
}

fn unexpected_frame(frame: Frame) -> io::Error {
    match frame {
        Frame::Refused(reason) => io::Error::other(format!("the server ended the stream: {reason}")),
        other => io::Error::new(io::ErrorKind::InvalidData, format!("a frame out of place: {other:?}")),
    }
}

fn is_time_over(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}
