//! The data sockets of the ibsim protocol, the hot path of the server.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;

use ib_wire::{Mad, Method, TransactionId};

use super::Server;
use super::backend::{ClientDatagram, ClientId, FabricBackend};
use super::backlog::MessageQueue;
use super::connections::{ClassSet, ClientLink};
use crate::ibsim::{DataMessage, WireError};
use crate::sys::{SendBatch, Wait};

/// Batches of up to this many messages are answered message by message, because their sender probably waits for the responses:
/// client and server then work in parallel. Larger batches are answered with fewer system calls.
const EAGER_BATCH_MAX: usize = 4;

impl<P: Copy + Eq> Server<P> {
    /// Receives one batch of a client and passes it to the backend; the rest waits for the next round, so that a busy client does
    /// not starve the others.
    pub(super) fn receive_data<B: FabricBackend<Port = P>>(&mut self, backend: &mut B, id: ClientId) {
        let Some(client) = self.outbox.clients.get_mut(id) else { return };
        let ClientLink::Ibsim { socket, .. } = &client.link else { return };
        // The error is EWOULDBLOCK, or a socket error that the call has cleared.
        let Ok(count) = self.received.receive(socket.as_fd(), Wait::Never) else { return };
        for index in 0..count {
            self.handle_data(backend, id, index);
            if count <= EAGER_BATCH_MAX && index + 1 < count {
                self.flush(backend);
            }
        }
    }

    /// Passes one received message to the backend.
    #[inline]
    fn handle_data<B: FabricBackend<Port = P>>(&mut self, backend: &mut B, id: ClientId, index: usize) {
        let (bytes, length) = self.received.message(index);
        if length > bytes.len() {
            self.outbox.counters.data_wrong_length += 1;
            return;
        }
        let mut message = match DataMessage::decode(bytes) {
            Ok(message) => message,
            Err(WireError::Length { .. }) => {
                self.outbox.counters.data_wrong_length += 1;
                return;
            }
            Err(_) => {
                self.outbox.counters.data_malformed += 1;
                return;
            }
        };
        let Some(client) = self.outbox.clients.get_mut(id) else { return };
        let Some(port) = client.port else { return };
        stamp_request(&mut message.mad, id, &mut client.classes);
        self.outbox.counters.datagrams_in += 1;
        backend.handle(port, ClientDatagram::Ibsim { client: id, message }, &mut self.outbox);
    }
}

/// Writes the client into the transaction of a request and records its class. Responses and TrapRepress keep their transaction.
#[inline]
pub(super) fn stamp_request(mad: &mut Mad, id: ClientId, classes: &mut ClassSet) {
    let method = mad.method();
    if method.is_response() || method == Method::TRAP_REPRESS {
        return;
    }
    classes.insert(mad.class());
    mad.set_transaction(TransactionId(id.stamp(mad.transaction().0)));
}

/// Sends the queue of a client; `true` if it is empty afterwards. An error means that the client is gone.
pub(super) fn send_all(
    batch: &mut SendBatch,
    socket: &UnixDatagram,
    unsent: &mut MessageQueue,
) -> io::Result<bool> {
    while !unsent.unsent().is_empty() {
        match batch.send(socket.as_fd(), unsent.unsent(), Wait::Never) {
            Ok(count) => unsent.advance(count),
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN | libc::ENOBUFS | libc::EINTR) => return Ok(false),
                _ => return Err(error),
            },
        }
    }
    Ok(true)
}
