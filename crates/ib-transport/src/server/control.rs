//! The control socket of the ibsim protocol: attaching, detaching and questions about the port.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use super::Server;
use super::backlog::Frames;
use super::clients::Link;
use super::host::{ClientId, Host};
use crate::ibsim::{CONTROL_LEN, Connect, ControlReply, ControlRequest, SocketName, WireError};

/// Control messages served per round, so that a flood of them leaves the data sockets their turn.
const CONTROL_PER_ROUND: usize = 32;

impl<P: Copy + Eq> Server<P> {
    /// Answers the control messages that wait.
    pub(super) fn serve_control<H: Host<Port = P>>(&mut self, host: &mut H) {
        // One byte more than a message has, so that longer ones are noticed.
        let mut buffer = [0; CONTROL_LEN + 1];
        for _ in 0..CONTROL_PER_ROUND {
            let Ok((length, sender)) = self.control.recv_from(&mut buffer) else { return };
            match ControlRequest::decode(&buffer[..length]) {
                Ok((client, request)) => {
                    host.handle_control();
                    self.serve_request(host, &sender, client, request);
                }
                Err(WireError::Length { .. }) => self.outbox.counters.control_wrong_length += 1,
                Err(WireError::Magic(_)) => self.outbox.counters.control_wrong_magic += 1,
                Err(_) => self.outbox.counters.control_unknown_type += 1,
            }
        }
    }

    /// Removes the clients of the ibsim protocol whose sockets are gone. (Streams end by themselves.)
    pub(super) fn reclaim_dead_clients<H: Host<Port = P>>(&mut self, host: &mut H) {
        let Ok(probe) = UnixDatagram::unbound() else { return };
        let dead: Vec<ClientId> = self
            .outbox
            .clients
            .iter()
            .filter(|client| match client.link {
                Link::Ibsim { number, .. } => is_gone(&probe, &self.name, number),
                Link::Framed { .. } => false,
            })
            .map(|client| client.id)
            .collect();
        for id in dead {
            tracing::debug!(client = %id, "client died without disconnecting");
            self.reclaim(host, id);
        }
    }

    fn serve_request<H: Host<Port = P>>(
        &mut self,
        host: &mut H,
        sender: &SocketAddr,
        client: u32,
        request: ControlRequest,
    ) {
        let reply = match request {
            ControlRequest::Connect(connect) => self.connect(host, sender, connect),
            request => self.serve_attached(host, sender, client, request),
        };
        let Some(reply) = reply else { return };
        self.outbox.counters.control_messages += 1;
        if self.control.send_to_addr(&reply.encode(client), sender).is_err() {
            self.outbox.counters.control_unanswered += 1;
        }
    }

    /// Attaches a client; `None` if the sender is not who it says it is.
    fn connect<H: Host<Port = P>>(
        &mut self,
        host: &mut H,
        sender: &SocketAddr,
        connect: Connect,
    ) -> Option<ControlReply> {
        if !self.is_control_of(sender, connect.number) {
            self.outbox.counters.control_forged += 1;
            return None;
        }
        let former = self.outbox.clients.with_number(connect.number);
        let Some(port) = host.find_port(&connect.node_id) else {
            self.outbox.counters.refused_unknown_node += 1;
            return Some(ControlReply::Error);
        };
        let Some(id) = self.free_slot(host) else {
            self.outbox.counters.refused_full += 1;
            return Some(ControlReply::Error);
        };
        if let Err(error) = self.seat(id, connect.number, port) {
            tracing::warn!(number = connect.number, %error, "cannot attach a client");
            self.outbox.counters.refused_by_system += 1;
            return Some(ControlReply::Error);
        }
        // A process that connects again, with a fresh data socket, has forgotten its former self.
        if let Some(former) = former {
            self.remove(host, former);
        }
        let change = self.outbox.clients.set_role(id, connect.role);
        self.tell_manager_change(host, change);
        Some(ControlReply::Connected(Connect { number: id.0.into(), node_id: host.node_id(port), ..connect }))
    }

    fn serve_attached<H: Host<Port = P>>(
        &mut self,
        host: &mut H,
        sender: &SocketAddr,
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
                self.remove(host, id);
                ControlReply::Disconnected
            }
            ControlRequest::Port => {
                let (lid, state) = host.port_state(port);
                ControlReply::Port { lid, state }
            }
            ControlRequest::Vendor => ControlReply::Vendor(host.vendor(port)),
            ControlRequest::Gid => ControlReply::Gid(host.port_gid(port)),
            ControlRequest::Guid => ControlReply::Guid(Some(host.port_guid(port))),
            ControlRequest::NodeInfo => ControlReply::NodeInfo(host.node_info(port)),
            ControlRequest::PortInfo(number) => {
                host.port_info(port, number).map_or(ControlReply::Error, ControlReply::PortInfo)
            }
            ControlRequest::IsSm(role) => {
                let change = self.outbox.clients.set_role(id, role);
                self.tell_manager_change(host, change);
                ControlReply::IsSm(role)
            }
            ControlRequest::Pkeys => ControlReply::Pkeys(host.pkeys(port)),
        })
    }

    /// A free slot, if need be by looking for dead clients.
    pub(super) fn free_slot<H: Host<Port = P>>(&mut self, host: &mut H) -> Option<ClientId> {
        if self.outbox.clients.is_full() {
            self.reclaim_dead_clients(host);
        }
        self.outbox.clients.next_id()
    }

    /// Binds the client's data socket and seats it.
    fn seat(&mut self, id: ClientId, number: u32, port: P) -> io::Result<()> {
        let socket = UnixDatagram::bind_addr(&self.name.server_data(id.0.into())?)?;
        socket.connect_addr(&self.name.client_data(number)?)?;
        socket.set_nonblocking(true)?;
        // Between bind and connect anybody could send; from here on only the client can, and it has no word yet to.
        while socket.recv(&mut [0]).is_ok() {
            self.outbox.counters.control_forged += 1;
        }
        self.epoll.add(&socket, id.0.into())?;
        let link = Link::Ibsim { number, socket, unsent: Frames::default() };
        self.outbox.clients.insert(id, link).port = Some(port);
        Ok(())
    }

    /// The client that a control message names, if the message comes from that client's control socket.
    fn owned_by(&self, sender: &SocketAddr, client: u32) -> Option<(ClientId, P)> {
        let client = self.outbox.clients.get(ClientId(u16::try_from(client).ok()?))?;
        match client.link {
            Link::Ibsim { number, .. } if self.is_control_of(sender, number) => {
                Some((client.id, client.port?))
            }
            _ => None,
        }
    }

    fn is_control_of(&self, sender: &SocketAddr, number: u32) -> bool {
        self.name.client_control(number).is_ok_and(|address| {
            address.as_abstract_name().is_some_and(|name| sender.as_abstract_name() == Some(name))
        })
    }
}

/// Whether nobody is bound to a client's data socket any more. A living one is connected to its own server socket and
/// refuses the probe with another error.
fn is_gone(probe: &UnixDatagram, name: &SocketName, number: u32) -> bool {
    let result = name.client_data(number).and_then(|address| probe.connect_addr(&address));
    result.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}
