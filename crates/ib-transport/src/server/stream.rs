//! Clients of the framed protocol.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use super::backend::{ClientDatagram, ClientId, FabricBackend};
use super::backlog::ByteQueue;
use super::connections::{ClientLink, Owner};
use super::data::stamp_request;
use super::{Server, TOKEN_LISTENER};
use crate::framed::{Attach, Attached, Frame, PortDetails, RefusalCode};
use crate::socket_file::{self, SocketBindError};
use crate::sys::{self, Interest};

/// Most connections accepted per round.
const ACCEPTED_PER_ROUND: usize = 32;

/// What to do with a stream after a frame.
enum FrameOutcome {
    Continue,
    /// Close the stream after sending its queue.
    Close,
    /// Count the frame, send *refused* and close the stream.
    Malformed,
}

impl<P: Copy + Eq> Server<P> {
    /// Accepts waiting connections. They occupy a slot from here on, and attach with their first frame.
    pub(super) fn accept<B: FabricBackend<Port = P>>(&mut self, backend: &mut B) {
        for _ in 0..ACCEPTED_PER_ROUND {
            let Some(listener) = &self.framed_listener else { return };
            let stream = match listener.socket.accept() {
                Ok((stream, _)) => stream,
                Err(error) if is_transient(&error) => return,
                Err(error) => return self.pause_accepting(&error),
            };
            let Some(id) = self.free_slot(backend) else {
                self.outbox.counters.refused_full += 1;
                refuse(&stream, RefusalCode::Full);
                continue;
            };
            if stream.set_nonblocking(true).and_then(|()| self.epoll.add(&stream, id.0.into())).is_err() {
                self.outbox.counters.refused_by_system += 1;
                continue;
            }
            let link = ClientLink::Framed { stream, reader: Box::default(), unsent: ByteQueue::default() };
            // The mode of the socket file allows only the own user and root.
            self.outbox.clients.insert(id, Owner { user: self.own_user, is_own: true }, link);
        }
    }

    /// Accepts connections again after [`pause_accepting`](Self::pause_accepting).
    pub(super) fn resume_accepting(&mut self) {
        if let Some(listener) = self.framed_listener.as_mut().filter(|listener| listener.is_paused) {
            listener.is_paused = self.epoll.modify(&listener.socket, TOKEN_LISTENER, Interest::Read).is_err();
        }
    }

    /// Stops accepting until the next liveness check. Most likely the process has no file descriptor left, and epoll would report
    /// the waiting connections again and again.
    fn pause_accepting(&mut self, error: &io::Error) {
        tracing::warn!(%error, "cannot accept a connection");
        self.outbox.counters.refused_by_system += 1;
        if let Some(listener) = &mut self.framed_listener {
            listener.is_paused = self.epoll.modify(&listener.socket, TOKEN_LISTENER, Interest::None).is_ok();
        }
    }

    /// Reads from a stream, at most one buffer, and handles the complete frames.
    pub(super) fn receive_frames<B: FabricBackend<Port = P>>(&mut self, backend: &mut B, id: ClientId) {
        let Some(client) = self.outbox.clients.get_mut(id) else { return };
        let ClientLink::Framed { stream, reader, .. } = &mut client.link else { return };
        match stream.read(reader.room()) {
            Ok(0) => self.remove(backend, id),
            Ok(count) => {
                reader.filled(count);
                self.handle_frames(backend, id);
            }
            Err(error) if is_transient(&error) => {}
            Err(_) => self.reclaim(backend, id),
        }
    }

    /// Handles the complete frames in the buffer of a stream.
    fn handle_frames<B: FabricBackend<Port = P>>(&mut self, backend: &mut B, id: ClientId) {
        loop {
            let Some(client) = self.outbox.clients.get_mut(id) else { return };
            let ClientLink::Framed { reader, .. } = &mut client.link else { return };
            let outcome = match reader.next_frame() {
                Ok(None) => return,
                Ok(Some(frame)) => self.handle_frame(backend, id, frame),
                Err(error) => {
                    tracing::debug!(client = %id, %error, "malformed frame");
                    FrameOutcome::Malformed
                }
            };
            match outcome {
                FrameOutcome::Continue => continue,
                FrameOutcome::Malformed => {
                    self.outbox.counters.frames_malformed += 1;
                    self.queue_frame(id, &Frame::Refused(RefusalCode::Malformed));
                }
                FrameOutcome::Close => {}
            }
            // Sends the reason if the socket has room; the stream is closed either way.
            let _ = self.flush_client(id);
            return self.remove(backend, id);
        }
    }

    fn handle_frame<B: FabricBackend<Port = P>>(
        &mut self,
        backend: &mut B,
        id: ClientId,
        frame: Frame,
    ) -> FrameOutcome {
        let Some(client) = self.outbox.clients.get_mut(id) else { return FrameOutcome::Close };
        match (frame, client.port) {
            (Frame::Attach(attach), None) => self.attach(backend, id, &attach),
            (Frame::Datagram(mut datagram), Some(port)) => {
                stamp_request(&mut datagram.mad, id, &mut client.classes);
                self.outbox.counters.datagrams_in += 1;
                backend.handle(
                    port,
                    ClientDatagram::Framed { client: id, datagram: *datagram },
                    &mut self.outbox,
                );
                FrameOutcome::Continue
            }
            (Frame::SetRole(role), Some(port)) => {
                backend.charge(port);
                let change = self.outbox.clients.set_role(id, role);
                self.apply_manager_change(backend, change);
                FrameOutcome::Continue
            }
            (Frame::GetPortState, Some(port)) => {
                backend.charge(port);
                let (lid, state) = backend.port_state(port);
                self.queue_frame(id, &Frame::PortState { lid, state });
                FrameOutcome::Continue
            }
            (Frame::GetPortDetails, Some(port)) => {
                backend.charge(port);
                let (lid, state) = backend.port_state(port);
                let details = PortDetails {
                    node_info: backend.node_info(port),
                    port_info: backend.port_info(port, 0).unwrap_or([0; 64]),
                    pkeys: backend.pkeys(port),
                    gid: backend.port_gid(port),
                    port_guid: backend.port_guid(port),
                    lid,
                    state,
                    vendor: backend.vendor(port),
                    node_id: backend.node_id(port),
                };
                self.queue_frame(id, &Frame::PortDetails(Box::new(details)));
                FrameOutcome::Continue
            }
            _ => FrameOutcome::Malformed,
        }
    }

    fn attach<B: FabricBackend<Port = P>>(
        &mut self,
        backend: &mut B,
        id: ClientId,
        attach: &Attach,
    ) -> FrameOutcome {
        let Some(port) = backend.find_port(&attach.node_id) else {
            self.outbox.counters.refused_unknown_node += 1;
            self.queue_frame(id, &Frame::Refused(RefusalCode::UnknownNode));
            return FrameOutcome::Close;
        };
        if !backend.may_attach(port, &mut self.outbox.clients.ports()) {
            self.outbox.counters.refused_full += 1;
            self.queue_frame(id, &Frame::Refused(RefusalCode::Full));
            return FrameOutcome::Close;
        }
        if let Some(client) = self.outbox.clients.get_mut(id) {
            client.port = Some(port);
        }
        let (lid, _) = backend.port_state(port);
        self.queue_frame(
            id,
            &Frame::Attached(Attached { client: id.0, lid, port_guid: Some(backend.port_guid(port)) }),
        );
        let change = self.outbox.clients.set_role(id, attach.role);
        self.apply_manager_change(backend, change);
        FrameOutcome::Continue
    }

    fn queue_frame(&mut self, id: ClientId, frame: &Frame) {
        self.outbox.queue(id, |link| match link {
            ClientLink::Framed { unsent, .. } => unsent.push(|bytes| frame.encode(bytes)),
            ClientLink::Ibsim { .. } => false,
        });
    }
}

/// Listens at a path; the socket file of a process that is gone is replaced.
pub(super) fn listen(path: &Path) -> Result<UnixListener, SocketBindError> {
    socket_file::bind(path, sys::listen_private, |path| UnixStream::connect(path).map(drop))
}

/// Sends the queue of a client; `true` if it is empty afterwards. An error means that the client is gone.
pub(super) fn send_all(stream: &mut UnixStream, unsent: &mut ByteQueue) -> io::Result<bool> {
    while !unsent.unsent().is_empty() {
        match stream.write(unsent.unsent()) {
            Ok(count) => unsent.advance(count),
            Err(error) if is_transient(&error) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// Sends *refused* to a stream for which there is no slot, if that is possible without blocking.
fn refuse(stream: &UnixStream, reason: RefusalCode) {
    let mut bytes = Vec::new();
    Frame::Refused(reason).encode(&mut bytes);
    let _ = stream.set_nonblocking(true).and_then(|()| (&*stream).write(&bytes));
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
