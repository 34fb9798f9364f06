//! The slots clients sit in.

use std::fmt;
use std::io;
use std::os::unix::net::{UnixDatagram, UnixStream};

use ib_wire::ManagementClass;

use super::backend::ClientId;
use super::backlog::{ByteQueue, MessageQueue};
use crate::access::UserId;
use crate::client_role::ClientRole;
use crate::framed::FrameReader;
use crate::sys::{Epoll, Interest};

/// Clients that can be attached at once: the slots that 10 bits of a [`ClientId`] can name.
pub const CLIENTS_MAX: usize = 1 << SLOT_BITS;

/// Clients that one user may have who is neither the server's own nor root: enough for a fabric's worth of tools and
/// managers, few enough that sixteen such users do not fill all slots.
pub const CLIENTS_PER_USER_MAX: usize = CLIENTS_MAX / 16 - 1;

const SLOT_BITS: u32 = 10;

/// Whose a client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) user: UserId,
    /// The server's own user, or root.
    pub(super) is_own: bool,
}

/// One attached client.
pub(super) struct Connection<P> {
    pub(super) id: ClientId,
    pub(super) owner: Owner,
    /// Where it sits; `None` for a stream that has not attached yet.
    pub(super) port: Option<P>,
    role: ClientRole,
    /// Classes of which it sent requests.
    pub(super) classes: ClassSet,
    pub(super) link: ClientLink,
    /// Something was queued for it since the last flush.
    pub(super) queued: bool,
    /// The socket is watched for room.
    pub(super) is_write_blocked: bool,
    /// Nothing is read from it for now.
    pub(super) is_paused: bool,
}

/// How a client is reached.
pub(super) enum ClientLink {
    /// By the ibsim protocol.
    Ibsim {
        /// The end of its socket names, a stock client's process id.
        number: u32,
        /// Connected to the client's data socket.
        socket: UnixDatagram,
        unsent: MessageQueue,
    },
    /// By the own framing.
    Framed { stream: UnixStream, reader: Box<FrameReader>, unsent: ByteQueue },
}

/// All slots. Freed ones are used again, under another [`ClientId`].
pub(super) struct Connections<P> {
    slots: Vec<Slot<P>>,
    free: Vec<u16>,
    /// The subnet manager clients, in the order in which they became that.
    managers: Vec<(P, ClientId)>,
}

struct Slot<P> {
    generation: u16,
    client: Option<Connection<P>>,
}

/// What a change of roles means for the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ManagerChange<P> {
    /// The port's first subnet manager client.
    First(P),
    /// The port's last subnet manager client is gone.
    None(P),
}

impl<P> Connection<P> {
    /// Watches the socket for what is waited for.
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

    /// Whether no slot is free.
    pub(super) fn is_full(&self) -> bool {
        self.free.is_empty() && self.slots.len() == CLIENTS_MAX
    }

    /// The identifier the next client will have; `None` if no slot is free.
    pub(super) fn next_id(&mut self) -> Option<ClientId> {
        if self.free.is_empty() && self.slots.len() < CLIENTS_MAX {
            self.free.push(self.slots.len() as u16);
            self.slots.push(Slot { generation: 0, client: None });
        }
        let slot = *self.free.last()?;
        Some(ClientId(slot | (self.slots[usize::from(slot)].generation << SLOT_BITS)))
    }

    /// Seats a client, ordinary and nowhere yet, under [`next_id`](Self::next_id).
    pub(super) fn insert(&mut self, id: ClientId, owner: Owner, link: ClientLink) -> &mut Connection<P> {
        debug_assert_eq!(self.next_id(), Some(id), "clients are seated under the next identifier");
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

    /// The client, unless it is gone.
    #[inline]
    pub(super) fn get_mut(&mut self, id: ClientId) -> Option<&mut Connection<P>> {
        self.slots.get_mut(slot_of(id))?.client.as_mut().filter(|client| client.id == id)
    }

    /// The client, unless it is gone.
    pub(super) fn get(&self, id: ClientId) -> Option<&Connection<P>> {
        self.slots.get(slot_of(id))?.client.as_ref().filter(|client| client.id == id)
    }

    /// All clients.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Connection<P>> {
        self.slots.iter().filter_map(|slot| slot.client.as_ref())
    }

    /// Ends an attachment.
    pub(super) fn remove(&mut self, id: ClientId) -> Option<ManagerChange<P>> {
        let change = self.set_role(id, ClientRole::Ordinary);
        let slot = self.slots.get_mut(slot_of(id))?;
        slot.client.take_if(|client| client.id == id)?;
        slot.generation = (slot.generation + 1) & (u16::MAX >> SLOT_BITS);
        self.free.push(slot_of(id) as u16);
        change
    }

    /// Changes what an attached client is to its port.
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

    /// The client that takes the requests that reach a port: the first that became its manager, but one of the own user or of
    /// root before all others.
    pub(super) fn manager_of(&self, port: P) -> Option<ClientId> {
        let here = || self.managers.iter().filter(|(at, _)| *at == port).map(|(_, id)| *id);
        let is_own = |id: &ClientId| self.get(*id).is_some_and(|client| client.owner.is_own);
        here().find(is_own).or_else(|| here().next())
    }

    /// The ports of all clients, each as often as it has clients.
    pub(super) fn ports(&self) -> impl Iterator<Item = P> {
        self.iter().filter_map(|client| client.port)
    }

    /// How many clients a user has.
    pub(super) fn count_of(&self, user: UserId) -> usize {
        self.iter().filter(|client| client.owner.user == user).count()
    }

    /// The client with this number at the end of its socket names.
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
    fn a_slot_used_again_has_another_name() {
        let mut clients = Connections::new();
        let first = add_client(&mut clients, 1);
        clients.remove(first);
        let second = add_client(&mut clients, 1);
        assert_eq!(slot_of(first), slot_of(second));
        assert_ne!(first, second);
        assert!(clients.get(first).is_none() && clients.get(second).is_some());
        clients.remove(first);
        assert!(clients.get(second).is_some(), "the former owner cannot free the slot");
    }

    #[test]
    fn names_stay_unique_while_generations_wrap() {
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
    fn the_own_manager_of_a_port_goes_before_those_of_other_users() {
        let mut clients = Connections::new();
        let stranger = add_client_of(&mut clients, OTHER, 1);
        let own = add_client(&mut clients, 1);
        clients.set_role(stranger, ClientRole::SubnetManager);
        assert_eq!(clients.manager_of(1), Some(stranger), "nobody else is there");
        clients.set_role(own, ClientRole::SubnetManager);
        assert_eq!(clients.manager_of(1), Some(own));
        assert_eq!((clients.count_of(OTHER.user), clients.count_of(OWN.user)), (1, 1));
    }

    #[test]
    fn classes_are_told_apart() {
        let mut set = ClassSet::default();
        set.insert(ManagementClass::SUBNET_DIRECTED);
        assert!(set.contains(ManagementClass::SUBNET_DIRECTED));
        assert!(!set.contains(ManagementClass::SUBNET_LID) && !set.contains(ManagementClass(0x80)));
    }
}
