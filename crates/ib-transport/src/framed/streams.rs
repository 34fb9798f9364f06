//! Many clients of the framed protocol in one thread that must not wait.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::frame::{Frame, FrameReader};
use crate::server::ByteQueue;
use crate::sys::{Epoll, Interest};

/// Most reads of a buffer of frames per round and stream, so that a busy stream does not starve the others.
const READS_PER_ROUND: usize = 4;

/// Attached streams of the framed protocol as clients, by a key `K` of the caller.
///
/// Per round: [`begin_round`](Self::begin_round), then [`receive`](Self::receive) until it returns `None`; [`send`](Self::send) at any
/// time. No call waits: a server that does not read has a bounded queue.
#[derive(Debug)]
pub struct FramedStreams<K> {
    epoll: Epoll,
    streams: BTreeMap<K, ClientStream>,
    /// Keys by epoll token.
    tokens: HashMap<u64, K>,
    tokens_given: u64,
    /// Streams that were readable when the round began, and how often they may still be read.
    round: Vec<(K, usize)>,
}

/// What happened at a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamEvent {
    Frame(Frame),
    /// The stream ended, failed, or carried bytes that are no frame. It is closed.
    Ended,
}

#[derive(Debug)]
struct ClientStream {
    token: u64,
    stream: UnixStream,
    reader: FrameReader,
    unsent: ByteQueue,
    is_write_blocked: bool,
}

impl<K: Copy + Ord> FramedStreams<K> {
    /// No streams.
    ///
    /// # Errors
    ///
    /// The process cannot open an epoll instance.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: Epoll::new()?,
            streams: BTreeMap::new(),
            tokens: HashMap::new(),
            tokens_given: 0,
            round: Vec::new(),
        })
    }

    /// Adds a stream whose *attach* frame another process has sent already. It replaces the former stream of `key`, which is closed.
    ///
    /// # Errors
    ///
    /// The stream cannot be polled. The former one is closed all the same.
    pub fn open(&mut self, key: K, stream: UnixStream) -> io::Result<()> {
        self.close(key);
        stream.set_nonblocking(true)?;
        self.tokens_given += 1;
        let token = self.tokens_given;
        self.epoll.add(&stream, token)?;
        let (reader, unsent) = (FrameReader::default(), ByteQueue::default());
        self.tokens.insert(token, key);
        self.streams.insert(key, ClientStream { token, stream, reader, unsent, is_write_blocked: false });
        Ok(())
    }

    /// Closes a stream; `false` if there was none.
    pub fn close(&mut self, key: K) -> bool {
        let Some(stream) = self.streams.remove(&key) else { return false };
        self.tokens.remove(&stream.token);
        true
    }

    /// The keys of all open streams.
    pub fn keys(&self) -> impl Iterator<Item = K> {
        self.streams.keys().copied()
    }

    /// Sends a frame, or queues it if the server does not read. Returns `false` if the queue is full or there is no such stream.
    pub fn send(&mut self, key: K, frame: &Frame) -> bool {
        let Some(stream) = self.streams.get_mut(&key) else { return false };
        let is_queued = stream.unsent.push(|bytes| frame.encode(bytes));
        // A failure is reported when the stream is read.
        let _ = stream.flush(&self.epoll);
        is_queued
    }

    /// Begins a round of [`receive`](Self::receive), and sends what servers have room for.
    pub fn begin_round(&mut self) -> io::Result<()> {
        let count = self.epoll.wait(Duration::ZERO)?;
        self.round.clear();
        for index in 0..count {
            let event = self.epoll.event(index);
            let Some(key) = self.tokens.get(&event.token).copied() else { continue };
            if event.writable
                && let Some(stream) = self.streams.get_mut(&key)
            {
                // As in `send`.
                let _ = stream.flush(&self.epoll);
            }
            if event.readable {
                self.round.push((key, READS_PER_ROUND));
            }
        }
        Ok(())
    }

    /// The next event of this round; `None` when it is over.
    pub fn receive(&mut self) -> Option<(K, StreamEvent)> {
        while let Some((key, left)) = self.round.last_mut() {
            let key = *key;
            let Some(stream) = self.streams.get_mut(&key) else {
                self.round.pop();
                continue;
            };
            match stream.reader.next_frame() {
                Ok(Some(frame)) => return Some((key, StreamEvent::Frame(frame))),
                Ok(None) if *left == 0 => drop(self.round.pop()),
                Ok(None) => {
                    *left -= 1;
                    match stream.stream.read(stream.reader.room()) {
                        Ok(0) => return Some(self.end(key)),
                        Ok(length) => stream.reader.filled(length),
                        Err(error) if is_transient(&error) => drop(self.round.pop()),
                        Err(_) => return Some(self.end(key)),
                    }
                }
                Err(_) => return Some(self.end(key)),
            }
        }
        None
    }

    fn end(&mut self, key: K) -> (K, StreamEvent) {
        self.close(key);
        (key, StreamEvent::Ended)
    }
}

impl<K> AsFd for FramedStreams<K> {
    /// Readable while there is something to do in a round.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl ClientStream {
    fn flush(&mut self, epoll: &Epoll) -> io::Result<()> {
        let mut is_blocked = false;
        while !self.unsent.unsent().is_empty() && !is_blocked {
            match self.stream.write(self.unsent.unsent()) {
                Ok(length) => self.unsent.advance(length),
                Err(error) if is_transient(&error) => is_blocked = true,
                Err(error) => return Err(error),
            }
        }
        if is_blocked != self.is_write_blocked {
            epoll.modify(&self.stream, self.token, Interest::new(true, is_blocked))?;
            self.is_write_blocked = is_blocked;
        }
        Ok(())
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use ib_wire::TransactionId;

    use super::*;

    fn drained(streams: &mut FramedStreams<u8>) -> Vec<(u8, StreamEvent)> {
        streams.begin_round().unwrap();
        std::iter::from_fn(|| streams.receive()).collect()
    }

    #[test]
    fn frames_arrive_in_order_and_the_end_once() {
        let mut streams = FramedStreams::new().unwrap();
        let (mut server, client) = UnixStream::pair().unwrap();
        streams.open(7, client).unwrap();
        assert!(drained(&mut streams).is_empty());
        let mut bytes = Vec::new();
        (1..=3).for_each(|number| Frame::Lost(TransactionId(number)).encode(&mut bytes));
        server.write_all(&bytes[..bytes.len() - 1]).unwrap();
        let lost = |number| (7, StreamEvent::Frame(Frame::Lost(TransactionId(number))));
        assert_eq!(drained(&mut streams), [lost(1), lost(2)]);
        server.write_all(&bytes[bytes.len() - 1..]).unwrap();
        assert_eq!(drained(&mut streams), [lost(3)]);
        drop(server);
        assert_eq!(drained(&mut streams), [(7, StreamEvent::Ended)]);
        assert!(drained(&mut streams).is_empty() && !streams.send(7, &Frame::GetPortState));
    }

    #[test]
    fn bytes_that_are_no_frame_end_a_stream() {
        let mut streams = FramedStreams::new().unwrap();
        let (mut server, client) = UnixStream::pair().unwrap();
        streams.open(1, client).unwrap();
        server.write_all(&[0xff; 64]).unwrap();
        assert_eq!(drained(&mut streams), [(1, StreamEvent::Ended)]);
        assert_eq!(streams.keys().count(), 0);
    }

    #[test]
    fn a_server_that_does_not_read_has_a_bounded_queue() {
        let mut streams = FramedStreams::new().unwrap();
        let (mut server, client) = UnixStream::pair().unwrap();
        streams.open(1, client).unwrap();
        let frame = Frame::GetPortState;
        let sent = (0..1 << 20).take_while(|_| streams.send(1, &frame)).count();
        assert!(sent < 1 << 20, "it is bounded");
        // What was queued arrives when it reads, and the stream takes more.
        let mut reader = FrameReader::default();
        let mut received = 0;
        server.set_nonblocking(true).unwrap();
        while received < sent {
            streams.begin_round().unwrap();
            if let Ok(length) = server.read(reader.room()) {
                reader.filled(length);
            }
            while let Some(read) = reader.next_frame().unwrap() {
                assert_eq!(read, frame);
                received += 1;
            }
        }
        assert!(streams.send(1, &frame));
    }

    #[test]
    fn a_new_stream_replaces_the_former_one() {
        let mut streams = FramedStreams::new().unwrap();
        let (mut former, client) = UnixStream::pair().unwrap();
        streams.open(1, client).unwrap();
        let (mut server, client) = UnixStream::pair().unwrap();
        streams.open(1, client).unwrap();
        assert_eq!(former.read(&mut [0; 8]).unwrap(), 0, "it is closed");
        let mut bytes = Vec::new();
        Frame::GetPortState.encode(&mut bytes);
        server.write_all(&bytes).unwrap();
        assert_eq!(drained(&mut streams), [(1, StreamEvent::Frame(Frame::GetPortState))]);
    }
}
