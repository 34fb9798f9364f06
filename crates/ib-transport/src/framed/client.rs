//! A client of the own framing.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ib_wire::{Datagram, Lid, PortState, TransactionId};

use super::frame::{Attach, Attached, Frame, FrameReader, Refusal, Station};
use crate::role::Role;

/// How long the server may take to answer what only it can answer.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a send may wait for room. A server that takes nothing for so long is stuck.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

/// Datagrams kept while waiting for the server's own answer; a stream that brings more than that in between is not
/// from a server that answers.
const SET_ASIDE_MAX: usize = 65_536;

/// A client attached to a port.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    reader: FrameReader,
    attached: Attached,
    /// What came while waiting for something else.
    set_aside: VecDeque<FramedReceived>,
    /// Frames on their way out; kept for its memory.
    unsent: Vec<u8>,
}

impl AsFd for Client {
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
pub enum AttachError {
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
    Refused {
        /// Where.
        path: PathBuf,
        /// The node asked for.
        node: String,
        /// Why.
        reason: Refusal,
    },
    /// The stream broke, or brought something else.
    #[error("cannot talk to the server at {}", path.display())]
    System {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl Client {
    /// Attaches to the node with this id or description; empty = the server's first node.
    pub fn connect(path: &Path, node: &str, role: Role) -> Result<Self, AttachError> {
        let stream = UnixStream::connect(path)
            .map_err(|source| AttachError::NoServer { path: path.to_owned(), source })?;
        let mut client = Self::over(stream);
        let attach = Attach { node_id: node.to_owned(), role };
        match client.attach(attach).map_err(|source| AttachError::System { path: path.to_owned(), source })? {
            Ok(attached) => client.attached = attached,
            Err(reason) => {
                return Err(AttachError::Refused { path: path.to_owned(), node: node.to_owned(), reason });
            }
        }
        Ok(client)
    }

    /// A client on a stream by which somebody else has asked for a port on its behalf: whoever holds the stream cannot say
    /// where it is.
    pub fn seated(stream: UnixStream) -> io::Result<Self> {
        let mut client = Self::over(stream);
        client.stream.set_write_timeout(Some(SEND_TIMEOUT))?;
        client.attached = client.wait_for_seat()?.map_err(|reason| io::Error::other(reason.to_string()))?;
        Ok(client)
    }

    fn over(stream: UnixStream) -> Self {
        let (reader, set_aside, unsent) = (FrameReader::default(), VecDeque::new(), Vec::new());
        let attached = Attached { client: 0, lid: None, port_guid: None };
        Self { stream, reader, attached, set_aside, unsent }
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
        if let Some(received) = self.set_aside.pop_front() {
            return Ok(Some(received));
        }
        match self.next_frame(timeout)? {
            Some(frame) => received(frame).map(Some).map_err(out_of_place),
            None => Ok(None),
        }
    }

    /// LID and logical state of the port.
    pub fn port(&mut self) -> io::Result<(Option<Lid>, PortState)> {
        self.ask(&Frame::AskPort, |frame| match frame {
            Frame::Port { lid, state } => Ok((lid, state)),
            other => Err(other),
        })
    }

    /// All about the port.
    pub fn station(&mut self) -> io::Result<Station> {
        self.ask(&Frame::AskStation, |frame| match frame {
            Frame::Station(station) => Ok(*station),
            other => Err(other),
        })
    }

    fn ask<T>(&mut self, question: &Frame, answer: impl Fn(Frame) -> Result<T, Frame>) -> io::Result<T> {
        self.say(question)?;
        let deadline = Instant::now() + REPLY_TIMEOUT;
        while self.set_aside.len() < SET_ASIDE_MAX {
            match self.next_frame(deadline.saturating_duration_since(Instant::now()))?.map(&answer) {
                Some(Ok(answer)) => return Ok(answer),
                Some(Err(other)) => self.set_aside.push_back(received(other).map_err(out_of_place)?),
                None => return Err(io::ErrorKind::TimedOut.into()),
            }
        }
        Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the server sends datagrams without end and no answer",
        ))
    }

    /// Becomes the subnet manager of the port, or ceases to be.
    pub fn set_role(&mut self, role: Role) -> io::Result<()> {
        self.say(&Frame::Role(role))
    }

    fn attach(&mut self, attach: Attach) -> io::Result<Result<Attached, Refusal>> {
        self.stream.set_write_timeout(Some(SEND_TIMEOUT))?;
        self.say(&Frame::Attach(attach))?;
        self.wait_for_seat()
    }

    fn wait_for_seat(&mut self) -> io::Result<Result<Attached, Refusal>> {
        match self.next_frame(REPLY_TIMEOUT)? {
            Some(Frame::Attached(attached)) => Ok(Ok(attached)),
            Some(Frame::Refused(reason)) => Ok(Err(reason)),
            Some(other) => Err(out_of_place(other)),
            None => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    fn say(&mut self, frame: &Frame) -> io::Result<()> {
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

fn out_of_place(frame: Frame) -> io::Error {
    match frame {
        Frame::Refused(reason) => io::Error::other(format!("the server ended the stream: {reason}")),
        other => io::Error::new(io::ErrorKind::InvalidData, format!("a frame out of place: {other:?}")),
    }
}

fn is_time_over(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}
