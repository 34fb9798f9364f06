//! The table of clients, and of subnet manager clients per port.

use std::fmt;
use std::io;
use std::os::unix::net::{UnixDatagram, UnixStream};

use ib_wire::ManagementClass;

use super::backend::ClientId;
use super::backlog::{ByteQueue, MessageQueue};
use crate::client_role::ClientRole;
use crate::framed::FrameReader;
use crate::sys::{Epoll, Interest, UserId};

/// Most clients that can be attached at once: a [`ClientId`] has 10 bits of slot.
pub const CLIENTS_MAX: usize = 1 << SLOT_BITS;

/// Most clients of a user other than the server's own and root: enough for the tools and managers of a fabric, and few enough
/// that sixteen such users cannot use up all slots.
pub const CLIENTS_PER_USER_MAX: usize = CLIENTS_MAX / 16 - 1;

const SLOT_BITS: u32 = 10;

/// The user that a client belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) user: UserId,
    /// Whether it is the server's own user or root.
    pub(super) is_own: bool,
}

/// A connected client, attached to a port or not.
pub(super) struct Connection<P> {
    pub(super) id: ClientId,
    pub(super) owner: Owner,
    /// The port it is attached to; `None` for a stream that has not attached yet.
    pub(super) port: Option<P>,
    role: ClientRole,
    /// Classes of the requests that it has sent.
    pub(super) classes: ClassSet,
    pub(super) link: ClientLink,
    /// Whether it is in the list of clients to flush.
    pub(super) queued: bool,
    /// The socket buffer is full; the server waits until the socket is writable.
    pub(super) is_write_blocked: bool,
    /// The server does not read from it until the pause ends.
    pub(super) is_paused: bool,
}

/// The protocol and sockets of a client.
pub(super) enum ClientLink {
    Ibsim {
        /// The number at the end of its socket names; for stock clients the process id.
        number: u32,
        /// Connected to the client's data socket.
        socket: UnixDatagram,
        unsent: MessageQueue,
    },
    Framed {
        stream: UnixStream,
        reader: Box<FrameReader>,
        unsent: ByteQueue,
    },
}

/// The clients by slot. A freed slot is reused with another generation, so that its [`ClientId`] changes.
pub(super) struct Connections<P> {
    slots: Vec<Slot<P>>,
    free: Vec<u16>,
    /// The subnet manager clients, in the order in which they took the role.
    managers: Vec<(P, ClientId)>,
}

struct Slot<P> {
    generation: u16,
    client: Option<Connection<P>>,
}

/// A change of the subnet manager clients of a port that the backend has to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ManagerChange<P> {
    /// The port's first subnet manager client.
    First(P),
    /// The port's last subnet manager client is gone.
    None(P),
}

impl<P> Connection<P> {
    /// Updates the epoll interest of the socket.
    pub(super) fn watch(&self, epoll: &Epoll) -> io::Result<()> {
        let watch = Interest::new(!self.is_paused, self.is_write_blocked);
        match &self.link {
            ClientLink::Ibsim { socket, .. } => epoll.modify(socket, self.id.0.into(), watch),
            ClientLink::Framed { stream, .. } => epoll.modify(stream, self.id.0.into(), watch),
        }
    }
}

impl<P: Copy + Eq> Connections<P> {
    pub(super) fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new(), managers: Vec::new() }
    }

    /// Whether all [`CLIENTS_MAX`] slots are taken.
    pub(super) fn is_full(&self) -> bool {
        self.free.is_empty() && self.slots.len() == CLIENTS_MAX
    }

    /// The identifier of the next client; `None` if all slots are taken.
    pub(super) fn next_id(&mut self) -> Option<ClientId> {
        if self.free.is_empty() && self.slots.len() < CLIENTS_MAX {
            self.free.push(self.slots.len() as u16);
            self.slots.push(Slot { generation: 0, client: None });
        }
        let slot = *self.free.last()?;
        Some(ClientId(slot | (self.slots[usize::from(slot)].generation << SLOT_BITS)))
    }

    /// Adds a client with role ordinary and without a port. `id` is that of [`next_id`](Self::next_id).
    pub(super) fn insert(&mut self, id: ClientId, owner: Owner, link: ClientLink) -> &mut Connection<P> {
        debug_assert_eq!(self.next_id(), Some(id), "clients are added under the next identifier");
        self.free.pop();
        self.slots[slot_of(id)].client.insert(Connection {
            id,
            owner,
            port: None,
            role: ClientRole::Ordinary,
            classes: ClassSet::default(),
            link,
            queued: false,
            is_write_blocked: false,
            is_paused: false,
        })
    }

    /// The client; `None` if it is gone.
    #[inline]
    pub(super) fn get_mut(&mut self, id: ClientId) -> Option<&mut Connection<P>> {
        self.slots.get_mut(slot_of(id))?.client.as_mut().filter(|client| client.id == id)
    }

    /// The client; `None` if it is gone.
    pub(super) fn get(&self, id: ClientId) -> Option<&Connection<P>> {
        self.slots.get(slot_of(id))?.client.as_ref().filter(|client| client.id == id)
    }

    /// All connected clients, by slot.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Connection<P>> {
        self.slots.iter().filter_map(|slot| slot.client.as_ref())
    }

    /// Removes a client; the change of its port's managers, if there is one.
    pub(super) fn remove(&mut self, id: ClientId) -> Option<ManagerChange<P>> {
        let change = self.set_role(id, ClientRole::Ordinary);
        let slot = self.slots.get_mut(slot_of(id))?;
        slot.client.take_if(|client| client.id == id)?;
        slot.generation = (slot.generation + 1) & (u16::MAX >> SLOT_BITS);
        self.free.push(slot_of(id) as u16);
        change
    }

    /// Changes the role of an attached client; the change of its port's managers, if there is one.
    pub(super) fn set_role(&mut self, id: ClientId, role: ClientRole) -> Option<ManagerChange<P>> {
        let client = self.get_mut(id)?;
        let port = client.port?;
        if std::mem::replace(&mut client.role, role) == role {
            return None;
        }
        if role.is_subnet_manager() {
            let first = self.manager_of(port).is_none();
            self.managers.push((port, id));
            first.then_some(ManagerChange::First(port))
        } else {
            self.managers.retain(|(_, manager)| *manager != id);
            self.manager_of(port).is_none().then_some(ManagerChange::None(port))
        }
    }

    /// The client that receives the requests to a port: the first of its subnet manager clients, those of the own user and root
    /// before all others.
    pub(super) fn manager_of(&self, port: P) -> Option<ClientId> {
        let here = || self.managers.iter().filter(|(at, _)| *at == port).map(|(_, id)| *id);
        let is_own = |id: &ClientId| self.get(*id).is_some_and(|client| client.owner.is_own);
        here().find(is_own).or_else(|| here().next())
    }

    /// The ports of all attached clients, one item per client.
    pub(super) fn ports(&self) -> impl Iterator<Item = P> {
        self.iter().filter_map(|client| client.port)
    }

    /// Number of clients of a user.
    pub(super) fn count_of(&self, user: UserId) -> usize {
        self.iter().filter(|client| client.owner.user == user).count()
    }

    /// The ibsim client with this number at the end of its socket names.
    pub(super) fn with_number(&self, wanted: u32) -> Option<ClientId> {
        self.iter()
            .find(|client| matches!(client.link, ClientLink::Ibsim { number, .. } if number == wanted))
            .map(|client| client.id)
    }
}

impl<P> fmt::Debug for Connections<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connections({} of {} slots taken)", self.slots.len() - self.free.len(), CLIENTS_MAX)
    }
}

fn slot_of(id: ClientId) -> usize {
    usize::from(id.0) & (CLIENTS_MAX - 1)
}

/// A set of management classes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ClassSet([u64; 4]);

impl ClassSet {
    #[inline]
    pub(super) fn insert(&mut self, class: ManagementClass) {
        self.0[usize::from(class.0 >> 6)] |= 1 << (class.0 & 63);
    }

    #[inline]
    pub(super) fn contains(&self, class: ManagementClass) -> bool {
        self.0[usize::from(class.0 >> 6)] & (1 << (class.0 & 63)) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Owner = Owner { user: UserId(1000), is_own: true };
    const OTHER: Owner = Owner { user: UserId(65534), is_own: false };

    fn add_client(clients: &mut Connections<u8>, port: u8) -> ClientId {
        add_client_of(clients, OWN, port)
    }

    fn add_client_of(clients: &mut Connections<u8>, owner: Owner, port: u8) -> ClientId {
        let id = clients.next_id().unwrap();
        let link = ClientLink::Ibsim {
            number: u32::from(id.0),
            socket: UnixDatagram::unbound().unwrap(),
            unsent: MessageQueue::default(),
        };
        clients.insert(id, owner, link).port = Some(port);
        id
    }

    #[test]
    fn a_reused_slot_has_another_client_id() {
        let mut clients = Connections::new();
        let first = add_client(&mut clients, 1);
        clients.remove(first);
        let second = add_client(&mut clients, 1);
        assert_eq!(slot_of(first), slot_of(second));
        assert_ne!(first, second);
        assert!(clients.get(first).is_none() && clients.get(second).is_some());
        clients.remove(first);
        assert!(clients.get(second).is_some(), "the former client cannot free the slot");
    }

    #[test]
    fn client_ids_stay_unique_while_generations_wrap() {
        let mut clients = Connections::new();
        let neighbour = add_client(&mut clients, 1);
        for _ in 0..200 {
            let id = add_client(&mut clients, 1);
            assert_ne!(id, neighbour);
            clients.remove(id);
        }
        assert!(clients.get(neighbour).is_some());
    }

    #[test]
    fn a_port_changes_only_with_its_first_and_last_manager() {
        let mut clients = Connections::new();
        let (a, b, elsewhere) =
            (add_client(&mut clients, 1), add_client(&mut clients, 1), add_client(&mut clients, 2));
        assert_eq!(clients.set_role(a, ClientRole::SubnetManager), Some(ManagerChange::First(1)));
        assert_eq!(clients.set_role(a, ClientRole::SubnetManager), None);
        assert_eq!(clients.set_role(b, ClientRole::SubnetManager), None);
        assert_eq!(clients.set_role(elsewhere, ClientRole::SubnetManager), Some(ManagerChange::First(2)));
        assert_eq!(clients.manager_of(1), Some(a));
        assert_eq!(clients.remove(a), None);
        assert_eq!(clients.manager_of(1), Some(b));
        assert_eq!(clients.remove(b), Some(ManagerChange::None(1)));
        assert_eq!(clients.manager_of(1), None);
    }

    #[test]
    fn managers_of_the_own_user_take_precedence() {
        let mut clients = Connections::new();
        let stranger = add_client_of(&mut clients, OTHER, 1);
        let own = add_client(&mut clients, 1);
        clients.set_role(stranger, ClientRole::SubnetManager);
        assert_eq!(clients.manager_of(1), Some(stranger), "the only manager");
        clients.set_role(own, ClientRole::SubnetManager);
        assert_eq!(clients.manager_of(1), Some(own));
        assert_eq!((clients.count_of(OTHER.user), clients.count_of(OWN.user)), (1, 1));
    }

    #[test]
    fn a_class_set_distinguishes_classes() {
        let mut set = ClassSet::default();
        set.insert(ManagementClass::SUBNET_DIRECTED);
        assert!(set.contains(ManagementClass::SUBNET_DIRECTED));
        assert!(!set.contains(ManagementClass::SUBNET_LID) && !set.contains(ManagementClass(0x80)));
    }
}
