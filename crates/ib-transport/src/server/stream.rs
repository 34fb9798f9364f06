//! The second door: streams of the own framing.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use super::backlog::Bytes;
use super::clients::{Link, Owner};
use super::data::claim;
use super::host::{ClientId, Host, Sent};
use super::{Server, TOKEN_LISTENER};
use crate::framed::{Attach, Attached, Frame, Refusal, Station};
use crate::place::{self, ListenError};
use crate::sys::{self, Watch};

/// Connections accepted per round.
const ACCEPTED_PER_ROUND: usize = 32;

/// What became of a frame.
enum Outcome {
    GoOn,
    /// The stream ends, after what is queued for it.
    End,
    /// The stream ends because of what it sent.
    Malformed,
}

impl<P: Copy + Eq> Server<P> {
    /// Lets waiting connections in. They count as clients from here on, and attach by their first frame.
    pub(super) fn accept<H: Host<Port = P>>(&mut self, host: &mut H) {
        for _ in 0..ACCEPTED_PER_ROUND {
            let Some(door) = &self.door else { return };
            let stream = match door.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if is_no_end(&error) => return,
                Err(error) => return self.shut_door(&error),
            };
            let Some(id) = self.free_slot(host) else {
                self.outbox.counters.refused_full += 1;
                refuse(&stream, Refusal::Full);
                continue;
            };
            if stream.set_nonblocking(true).and_then(|()| self.epoll.add(&stream, id.0.into())).is_err() {
                self.outbox.counters.refused_by_system += 1;
                continue;
            }
            let link = Link::Framed { stream, reader: Box::default(), unsent: Bytes::default() };
            // The mode of the socket lets in nobody else.
            self.outbox.clients.insert(id, Owner { user: self.own_user, is_own: true }, link);
        }
    }

    /// Lets people in again after [`shut_door`](Self::shut_door).
    pub(super) fn reopen_door(&mut self) {
        if let Some(door) = self.door.as_mut().filter(|door| door.is_shut) {
            door.is_shut = self.epoll.modify(&door.listener, TOKEN_LISTENER, Watch::Input).is_err();
        }
    }

    /// Ignores waiting connections for a while: most likely the process has no descriptor left for them, and they
    /// would be reported over and over.
    fn shut_door(&mut self, error: &io::Error) {
        tracing::warn!(%error, "cannot accept a connection");
        self.outbox.counters.refused_by_system += 1;
        if let Some(door) = &mut self.door {
            door.is_shut = self.epoll.modify(&door.listener, TOKEN_LISTENER, Watch::Nothing).is_ok();
        }
    }

    /// Takes what a stream sent, a reader's buffer at most, and hands its datagrams to the host.
    pub(super) fn receive_frames<H: Host<Port = P>>(&mut self, host: &mut H, id: ClientId) {
        let Some(client) = self.outbox.clients.get_mut(id) else { return };
        let Link::Framed { stream, reader, .. } = &mut client.link else { return };
        match stream.read(reader.room()) {
            Ok(0) => self.remove(host, id),
            Ok(count) => {
                reader.filled(count);
                self.take_frames(host, id);
            }
            Err(error) if is_no_end(&error) => {}
            Err(_) => self.reclaim(host, id),
        }
    }

    /// Handles the complete frames.
    fn take_frames<H: Host<Port = P>>(&mut self, host: &mut H, id: ClientId) {
        loop {
            let Some(client) = self.outbox.clients.get_mut(id) else { return };
            let Link::Framed { reader, .. } = &mut client.link else { return };
            let outcome = match reader.next_frame() {
                Ok(None) => return,
                Ok(Some(frame)) => self.take_frame(host, id, frame),
                Err(error) => {
                    tracing::debug!(client = %id, %error, "malformed frame");
                    Outcome::Malformed
                }
            };
            match outcome {
                Outcome::GoOn => continue,
                Outcome::Malformed => {
                    self.outbox.counters.frames_malformed += 1;
                    self.say(id, &Frame::Refused(Refusal::Malformed));
                }
                Outcome::End => {}
            }
            // The last word is sent if there is room for it; the stream ends either way.
            let _ = self.flush_client(id);
            return self.remove(host, id);
        }
    }

    fn take_frame<H: Host<Port = P>>(&mut self, host: &mut H, id: ClientId, frame: Frame) -> Outcome {
        let Some(client) = self.outbox.clients.get_mut(id) else { return Outcome::End };
        match (frame, client.port) {
            (Frame::Attach(attach), None) => self.attach(host, id, &attach),
            (Frame::Datagram(mut datagram), Some(port)) => {
                claim(&mut datagram.mad, id, &mut client.classes);
                self.outbox.counters.datagrams_in += 1;
                host.handle(port, Sent::Whole { client: id, datagram: *datagram }, &mut self.outbox);
                Outcome::GoOn
            }
            (Frame::Role(role), Some(port)) => {
                host.charge(port);
                let change = self.outbox.clients.set_role(id, role);
                self.tell_manager_change(host, change);
                Outcome::GoOn
            }
            (Frame::AskPort, Some(port)) => {
                host.charge(port);
                let (lid, state) = host.port_state(port);
                self.say(id, &Frame::Port { lid, state });
                Outcome::GoOn
            }
            (Frame::AskStation, Some(port)) => {
                host.charge(port);
                let (lid, state) = host.port_state(port);
                let station = Station {
                    node_info: host.node_info(port),
                    port_info: host.port_info(port, 0).unwrap_or([0; 64]),
                    pkeys: host.pkeys(port),
                    gid: host.port_gid(port),
                    port_guid: host.port_guid(port),
                    lid,
                    state,
                    vendor: host.vendor(port),
                    node_id: host.node_id(port),
                };
                self.say(id, &Frame::Station(Box::new(station)));
                Outcome::GoOn
            }
            _ => Outcome::Malformed,
        }
    }

    fn attach<H: Host<Port = P>>(&mut self, host: &mut H, id: ClientId, attach: &Attach) -> Outcome {
        let Some(port) = host.find_port(&attach.node_id) else {
            self.outbox.counters.refused_unknown_node += 1;
            self.say(id, &Frame::Refused(Refusal::UnknownNode));
            return Outcome::End;
        };
        if !host.has_slot(port, &mut self.outbox.clients.ports()) {
            self.outbox.counters.refused_full += 1;
            self.say(id, &Frame::Refused(Refusal::Full));
            return Outcome::End;
        }
        if let Some(client) = self.outbox.clients.get_mut(id) {
            client.port = Some(port);
        }
        let (lid, _) = host.port_state(port);
        self.say(id, &Frame::Attached(Attached { client: id.0, lid, port_guid: Some(host.port_guid(port)) }));
        let change = self.outbox.clients.set_role(id, attach.role);
        self.tell_manager_change(host, change);
        Outcome::GoOn
    }

    fn say(&mut self, id: ClientId, frame: &Frame) {
        self.outbox.queue(id, |link| match link {
            Link::Framed { unsent, .. } => unsent.push(|bytes| frame.encode(bytes)),
            Link::Ibsim { .. } => false,
        });
    }
}

/// Listens at a path; a socket file on which nobody answers is replaced.
pub(super) fn listen(path: &Path) -> Result<UnixListener, ListenError> {
    place::bind(path, sys::listen_private, |path| UnixStream::connect(path).map(drop))
}

/// Sends what waits for a client: whether all of it went. An error means that the client is gone.
pub(super) fn send_all(stream: &mut UnixStream, unsent: &mut Bytes) -> io::Result<bool> {
    while !unsent.unsent().is_empty() {
        match stream.write(unsent.unsent()) {
            Ok(count) => unsent.advance(count),
            Err(error) if is_no_end(&error) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// Tells a stream that gets no slot why, if it can be told without waiting.
fn refuse(stream: &UnixStream, reason: Refusal) {
    let mut bytes = Vec::new();
    Frame::Refused(reason).encode(&mut bytes);
    let _ = stream.set_nonblocking(true).and_then(|()| (&*stream).write(&bytes));
}

fn is_no_end(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
