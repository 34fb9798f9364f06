//! The control socket of the ibsim protocol: attaching, detaching and queries about the port.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use super::Server;
use super::backend::{ClientId, FabricBackend};
use super::backlog::MessageQueue;
use super::connections::{CLIENTS_PER_USER_MAX, ClientLink, Owner};
use crate::access::SocketAccess;
use crate::ibsim::{CONTROL_LEN, Connect, ControlReply, ControlRequest, SocketName, WireError};
use crate::sys::{self, CredentialedMessage, UserId};

/// Most control messages per round, so that a flood of them does not starve the data sockets.
const CONTROL_PER_ROUND: usize = 32;

/// Address and user of the sender of a control message.
struct Sender {
    address: SocketAddr,
    user: UserId,
}

impl<P: Copy + Eq> Server<P> {
    /// Answers the waiting control messages.
    pub(super) fn serve_control<B: FabricBackend<Port = P>>(&mut self, backend: &mut B) {
        // One byte more than a message has, to detect longer ones.
        let mut buffer = [0; CONTROL_LEN + 1];
        for _ in 0..CONTROL_PER_ROUND {
            let Ok(CredentialedMessage { length, sender, user }) =
                sys::receive_with_credentials(&self.control, &mut buffer)
            else {
                return;
            };
            // A socket without an abstract name is not the control socket of a client.
            let Some(sender) = sender else {
                self.outbox.counters.control_forged += 1;
                continue;
            };
            match ControlRequest::decode(&buffer[..length]) {
                Ok((client, request)) => {
                    let Some(user) = user.filter(|user| self.may_use(*user)) else {
                        self.refuse_user(&sender, client, &request, user);
                        continue;
                    };
                    let sender = Sender { address: sender, user };
                    backend.handle_control();
                    self.serve_request(backend, &sender, client, request);
                }
                Err(WireError::Length { .. }) => self.outbox.counters.control_wrong_length += 1,
                Err(WireError::Magic(_)) => self.outbox.counters.control_wrong_magic += 1,
                Err(_) => self.outbox.counters.control_unknown_type += 1,
            }
        }
    }

    /// Removes ibsim clients whose sockets are gone, and all clients whose port is gone. (The end of a stream is noticed when
    /// reading.)
    pub(super) fn reclaim_dead_clients<B: FabricBackend<Port = P>>(&mut self, backend: &mut B) {
        let Ok(probe) = UnixDatagram::unbound() else { return };
        let dead: Vec<ClientId> = self
            .outbox
            .clients
            .iter()
            .filter(|client| {
                let is_dead = match client.link {
                    ClientLink::Ibsim { number, .. } => is_gone(&probe, &self.name, number),
                    ClientLink::Framed { .. } => false,
                };
                is_dead || client.port.is_some_and(|port| !backend.port_exists(port))
            })
            .map(|client| client.id)
            .collect();
        for id in dead {
            tracing::debug!(client = %id, "removing a client that ended without disconnecting, or whose port is gone");
            self.reclaim(backend, id);
        }
    }

    fn serve_request<B: FabricBackend<Port = P>>(
        &mut self,
        backend: &mut B,
        sender: &Sender,
        client: u32,
        request: ControlRequest,
    ) {
        let reply = match request {
            ControlRequest::Connect(connect) => self.connect(backend, sender, connect),
            request => self.serve_attached(backend, sender, client, request),
        };
        let Some(reply) = reply else { return };
        self.outbox.counters.control_messages += 1;
        if self.control.send_to_addr(&reply.encode(client), &sender.address).is_err() {
            self.outbox.counters.control_unanswered += 1;
        }
    }

    /// Attaches a client; `None` (no reply) if the sender's socket is not that of the client number it names.
    fn connect<B: FabricBackend<Port = P>>(
        &mut self,
        backend: &mut B,
        sender: &Sender,
        connect: Connect,
    ) -> Option<ControlReply> {
        if !self.is_control_of(&sender.address, connect.number) {
            self.outbox.counters.control_forged += 1;
            return None;
        }
        let former = self.outbox.clients.with_number(connect.number);
        let Some(port) = backend.find_port(&connect.node_id) else {
            self.outbox.counters.refused_unknown_node += 1;
            return Some(ControlReply::Error);
        };
        let is_own = self.is_own(sender.user);
        let may_attach = backend.may_attach(port, &mut self.outbox.clients.ports())
            && (is_own || self.outbox.clients.count_of(sender.user) < CLIENTS_PER_USER_MAX);
        let Some(id) = self.free_slot(backend).filter(|_| may_attach) else {
            self.outbox.counters.refused_full += 1;
            return Some(ControlReply::Error);
        };
        let owner = Owner { user: sender.user, is_own };
        if let Err(error) = self.attach_ibsim(id, connect.number, port, owner) {
            tracing::warn!(number = connect.number, %error, "cannot attach a client: socket error");
            self.outbox.counters.refused_by_system += 1;
            return Some(ControlReply::Error);
        }
        // A process that connects again with a new data socket does not use its former connection any more.
        if let Some(former) = former {
            self.remove(backend, former);
        }
        let change = self.outbox.clients.set_role(id, connect.role);
        self.apply_manager_change(backend, change);
        Some(ControlReply::Connected(Connect {
            number: id.0.into(),
            node_id: backend.node_id(port),
            ..connect
        }))
    }

    fn serve_attached<B: FabricBackend<Port = P>>(
        &mut self,
        backend: &mut B,
        sender: &Sender,
        client: u32,
        request: ControlRequest,
    ) -> Option<ControlReply> {
        let Some((id, port)) = self.owned_by(sender, client) else {
            self.outbox.counters.control_forged += 1;
            return None;
        };
        Some(match request {
            ControlRequest::Connect(_) => return None,
            ControlRequest::Disconnect => {
                self.remove(backend, id);
                ControlReply::Disconnected
            }
            ControlRequest::Port => {
                let (lid, state) = backend.port_state(port);
                ControlReply::Port { lid, state }
            }
            ControlRequest::Vendor => ControlReply::Vendor(backend.vendor(port)),
            ControlRequest::Gid => ControlReply::Gid(backend.port_gid(port)),
            ControlRequest::Guid => ControlReply::Guid(Some(backend.port_guid(port))),
            ControlRequest::NodeInfo => ControlReply::NodeInfo(backend.node_info(port)),
            ControlRequest::PortInfo(number) => {
                backend.port_info(port, number).map_or(ControlReply::Error, ControlReply::PortInfo)
            }
            ControlRequest::IsSm(role) => {
                let change = self.outbox.clients.set_role(id, role);
                self.apply_manager_change(backend, change);
                ControlReply::IsSm(role)
            }
            ControlRequest::Pkeys => ControlReply::Pkeys(backend.pkeys(port)),
        })
    }

    /// A free slot; if all are taken, dead clients are removed first.
    pub(super) fn free_slot<B: FabricBackend<Port = P>>(&mut self, backend: &mut B) -> Option<ClientId> {
        if self.outbox.clients.is_full() {
            self.reclaim_dead_clients(backend);
        }
        self.outbox.clients.next_id()
    }

    /// Binds the server's data socket of a client and adds the client.
    fn attach_ibsim(&mut self, id: ClientId, number: u32, port: P, owner: Owner) -> io::Result<()> {
        let socket = UnixDatagram::bind_addr(&self.name.server_data(id.0.into())?)?;
        socket.connect_addr(&self.name.client_data(number)?)?;
        socket.set_nonblocking(true)?;
        // Between bind and connect any process could send. From here on only the client can, and it does not know the socket yet:
        // whatever is queued is forged.
        while socket.recv(&mut [0]).is_ok() {
            self.outbox.counters.control_forged += 1;
        }
        self.epoll.add(&socket, id.0.into())?;
        let link = ClientLink::Ibsim { number, socket, unsent: MessageQueue::default() };
        self.outbox.clients.insert(id, owner, link).port = Some(port);
        Ok(())
    }

    /// The client that a control message names, if the message comes from the control socket and user of that client.
    fn owned_by(&self, sender: &Sender, client: u32) -> Option<(ClientId, P)> {
        let client = self.outbox.clients.get(ClientId(u16::try_from(client).ok()?))?;
        match client.link {
            ClientLink::Ibsim { number, .. }
                if self.is_control_of(&sender.address, number) && client.owner.user == sender.user =>
            {
                Some((client.id, client.port?))
            }
            _ => None,
        }
    }

    /// Whether a user has access to the ibsim sockets.
    fn may_use(&self, user: UserId) -> bool {
        self.access == SocketAccess::Everyone || self.is_own(user)
    }

    fn is_own(&self, user: UserId) -> bool {
        user == self.own_user || user == UserId::ROOT
    }

    /// Refuses a connect message of a user without access; other messages are not answered.
    fn refuse_user(
        &mut self,
        sender: &SocketAddr,
        client: u32,
        request: &ControlRequest,
        user: Option<UserId>,
    ) {
        self.outbox.counters.control_foreign_user += 1;
        if matches!(request, ControlRequest::Connect(_)) {
            tracing::debug!(
                user = user.map(|user| user.0),
                "refused to attach a client of a user without access"
            );
            // Best effort: the reply may be lost.
            let _ = self.control.send_to_addr(&ControlReply::Error.encode(client), sender);
        }
    }

    fn is_control_of(&self, sender: &SocketAddr, number: u32) -> bool {
        self.name.client_control(number).is_ok_and(|address| {
            address.as_abstract_name().is_some_and(|name| sender.as_abstract_name() == Some(name))
        })
    }
}

/// Whether the data socket of a client is gone. An existing one is connected to the server's socket and rejects the probe with
/// another error.
fn is_gone(probe: &UnixDatagram, name: &SocketName, number: u32) -> bool {
    let result = name.client_data(number).and_then(|address| probe.connect_addr(&address));
    result.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}
