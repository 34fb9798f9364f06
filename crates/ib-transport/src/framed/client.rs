//! A client of the framed protocol.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ib_wire::{Datagram, Lid, PortState, TransactionId};

use super::frame::{Attach, Attached, Frame, FrameReader, PortDetails, RefusalCode};
use crate::client_role::ClientRole;

/// Longest wait for the answer to an attach or query frame.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest time that a send may block. A server that reads nothing for so long hangs.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

/// Most datagrams buffered while waiting for the answer to a query. A server that sends more before it answers is broken.
const BUFFERED_MAX: usize = 65_536;

/// A client of the framed protocol, attached to a port of the server's fabric. Dropping it detaches.
#[derive(Debug)]
pub struct FramedClient {
    stream: UnixStream,
    reader: FrameReader,
    attached: Attached,
    /// Received while waiting for the answer to a query.
    buffered: VecDeque<FramedReceived>,
    /// Encoded frames to send; a field so that its memory is reused.
    unsent: Vec<u8>,
}

impl AsFd for FramedClient {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// What a client of the framed protocol received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FramedReceived {
    Datagram(Box<Datagram>),
    /// The request with this transaction will not be answered.
    Lost(TransactionId),
}

/// Why a client could not be attached.
#[derive(Debug, thiserror::Error)]
pub enum FramedConnectError {
    #[error("no server listens at {}", path.display())]
    NoServer { path: PathBuf, source: io::Error },
    #[error("the server at {} refused to attach a client to node {node:?}: {reason}", path.display())]
    AttachRefused { path: PathBuf, node: String, reason: RefusalCode },
    /// The stream failed, timed out, or carried an unexpected frame.
    #[error("cannot communicate with the server at {}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

impl FramedClient {
    /// Attaches to the node with this id or description; an empty text is the server's first node. Blocks at most 5 seconds.
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

    /// A client on a stream whose *attach* frame another process has sent already, so that the holder of the stream cannot
    /// choose the port. Waits at most 5 seconds for the *attached* frame.
    ///
    /// # Errors
    ///
    /// The server refuses the client, does not answer in time, or the stream fails.
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

    /// The server's answer to the attach frame.
    pub fn attached(&self) -> Attached {
        self.attached
    }

    /// Sends one datagram. Blocks at most 5 seconds if the server does not read.
    pub fn send(&mut self, datagram: &Datagram) -> io::Result<()> {
        self.send_batch(std::slice::from_ref(datagram))
    }

    /// Sends datagrams in order, with one system call if the socket has room. After an error the stream is unusable.
    pub fn send_batch(&mut self, datagrams: &[Datagram]) -> io::Result<()> {
        self.unsent.clear();
        for datagram in datagrams {
            Frame::encode_datagram(datagram, &mut self.unsent);
        }
        self.stream.write_all(&self.unsent)
    }

    /// Receives a datagram or the report that a request is lost; `None` if there was nothing within `timeout`. A timeout of 0
    /// does not wait.
    ///
    /// # Errors
    ///
    /// The stream ended or failed, or carried a malformed or unexpected frame.
    pub fn receive(&mut self, timeout: Duration) -> io::Result<Option<FramedReceived>> {
        if let Some(received) = self.buffered.pop_front() {
            return Ok(Some(received));
        }
        match self.next_frame(timeout)? {
            Some(frame) => received(frame).map(Some).map_err(unexpected_frame),
            None => Ok(None),
        }
    }

    /// Queries LID and logical state of the port. Datagrams that arrive meanwhile are kept for [`receive`](Self::receive).
    pub fn port(&mut self) -> io::Result<(Option<Lid>, PortState)> {
        self.query(&Frame::GetPortState, |frame| match frame {
            Frame::PortState { lid, state } => Ok((lid, state)),
            other => Err(other),
        })
    }

    /// Queries everything that ibsim clients may ask about the port. Datagrams that arrive meanwhile are kept for
    /// [`receive`](Self::receive).
    pub fn port_details(&mut self) -> io::Result<PortDetails> {
        self.query(&Frame::GetPortDetails, |frame| match frame {
            Frame::PortDetails(details) => Ok(*details),
            other => Err(other),
        })
    }

    fn query<T>(&mut self, query: &Frame, answer: impl Fn(Frame) -> Result<T, Frame>) -> io::Result<T> {
        self.send_frame(query)?;
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
            "the server sends datagrams but does not answer the query",
        ))
    }

    /// Changes the role of the client at its port. The server does not acknowledge it, but handles it before later frames.
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
            // A socket timeout of 0 means "wait for ever", and the shortest one takes milliseconds.
            self.stream.set_nonblocking(left.is_zero())?;
            if !left.is_zero() {
                self.stream.set_read_timeout(Some(left))?;
            }
            let read = self.stream.read(self.reader.room());
            self.stream.set_nonblocking(false)?;
            match read {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.reader.filled(count),
                Err(error) if is_timeout(&error) => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// The datagram or loss report in a frame; the frame itself if it is of another kind.
fn received(frame: Frame) -> Result<FramedReceived, Frame> {
    match frame {
        Frame::Datagram(datagram) => Ok(FramedReceived::Datagram(datagram)),
        Frame::Lost(transaction) => Ok(FramedReceived::Lost(transaction)),
        other => Err(other),
    }
}

fn unexpected_frame(frame: Frame) -> io::Error {
    match frame {
        Frame::Refused(reason) => io::Error::other(format!("the server closed the stream: {reason}")),
        other => {
            io::Error::new(io::ErrorKind::InvalidData, format!("unexpected frame from the server: {other:?}"))
        }
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}
