//! The connection to a server, by any of the protocols.

mod udp;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use ib_transport::framed::{FramedClient, FramedConnectError, FramedReceived};
use ib_transport::ibsim::{DataMessage, DataStatus, IbsimClient, IbsimClientError};
use ib_transport::{ClientRole, Vendor};
use ib_wire::{
    Attribute, Datagram, DirectedRoute, LayoutError, LidAddress, Mad, Method, NodeInfo, NodeKind, Pkey,
    PkeyBlock, PortInfo, TransactionId,
};

use crate::environment::{Attachment, ServerAddress};
use crate::sys;
use udp::UdpClient;

/// Longest wait for the management agent of the port.
const AGENT_TIMEOUT: Duration = Duration::from_secs(2);

/// An attached client of one of the protocols. Dropping it detaches.
#[derive(Debug)]
pub(crate) enum Link {
    Ibsim(Box<IbsimClient>),
    Udp(UdpClient),
    Framed(Box<FramedClient>),
}

/// What arrived from the server.
#[derive(Debug)]
pub(crate) enum Arrived {
    Datagram(Box<Datagram>),
    /// The request with this transaction will not be answered.
    Lost(TransactionId),
    /// A message that means nothing here.
    Ignored,
}

/// Why the link could not be established, or a query was not answered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    #[error(transparent)]
    Ibsim(#[from] IbsimClientError),
    #[error(transparent)]
    Framed(#[from] FramedConnectError),
    #[error("cannot communicate with the server")]
    Io(#[from] io::Error),
    #[error("the server describes the port with an invalid attribute")]
    Layout(#[from] LayoutError),
}

/// What stays the same while a client is attached.
#[derive(Clone, Debug)]
pub(crate) struct NodeFacts {
    pub(crate) node: NodeInfo,
    pub(crate) vendor: Vendor,
}

impl Link {
    /// Attaches to a server. Blocks for at most 5 seconds.
    pub(crate) fn attach(attachment: &Attachment) -> Result<Self, LinkError> {
        let Attachment { server, node, role } = attachment;
        Ok(match server {
            ServerAddress::Framed(path) => Self::Framed(Box::new(FramedClient::connect(path, node, *role)?)),
            ServerAddress::Udp { host, port } => Self::Udp(UdpClient::connect(host, *port, node, *role)?),
            ServerAddress::Ibsim(name) => {
                let client = IbsimClient::connect(name, node, *role)?;
                // The stock server stops reading while the queue of a client is full: a client that waited for the server
                // to read would wait for itself.
                sys::set_nonblocking(client.as_fd())?;
                Self::Ibsim(Box::new(client))
            }
        })
    }

    /// Sends a datagram.
    ///
    /// # Errors
    ///
    /// `WouldBlock`: send it again when the link is writable. After any other error the link is broken.
    pub(crate) fn send(&mut self, datagram: &Datagram) -> io::Result<()> {
        match self {
            Self::Ibsim(client) => client.send(&message(datagram)),
            Self::Udp(client) => client.send(&message(datagram)),
            Self::Framed(client) => client.send(datagram),
        }
    }

    /// Receives without waiting; `None` if there is nothing.
    ///
    /// # Errors
    ///
    /// The link is broken.
    pub(crate) fn receive(&mut self) -> io::Result<Option<Arrived>> {
        let message = match self {
            Self::Ibsim(client) => client.receive(Duration::ZERO),
            Self::Udp(client) => client.receive(),
            Self::Framed(client) => {
                return Ok(client.receive(Duration::ZERO)?.map(|received| match received {
                    FramedReceived::Datagram(datagram) => Arrived::Datagram(datagram),
                    FramedReceived::Lost(transaction) => Arrived::Lost(transaction),
                }));
            }
        };
        match message {
            Ok(message) => Ok(message.map(arrived)),
            // A message that is not one of the protocol says nothing about the next.
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(Some(Arrived::Ignored)),
            Err(error) => Err(error),
        }
    }

    /// Queries node and adapter. Call it before the program uses the link: what arrives meanwhile is dropped.
    pub(crate) fn node_facts(&mut self) -> Result<NodeFacts, LinkError> {
        let (raw, vendor) = match self {
            Self::Ibsim(client) => (client.node_info()?, client.vendor()?),
            Self::Udp(client) => (client.node_info()?, client.vendor()?),
            Self::Framed(client) => {
                let details = client.port_details()?;
                (details.node_info, details.vendor)
            }
        };
        let mut node = NodeInfo::decode(&raw)?;
        if node.kind == NodeKind::Adapter && node.port_guid == node.node_guid {
            // Stock ibsim gives the GUID of the node. The management agent of the port knows better, unless it wants a key.
            node = self.node_info_of_agent().unwrap_or(node);
        }
        Ok(NodeFacts { node, vendor })
    }

    /// Queries NodeInfo of the management agent of the port; `None` without an answer.
    fn node_info_of_agent(&mut self) -> Option<NodeInfo> {
        let request = Mad::directed(Method::GET, Attribute::NODE_INFO, 0, &DirectedRoute::default());
        let own = LidAddress::Permissive;
        self.send(&Datagram::subnet_management(own, own, request)).ok()?;
        let started = Instant::now();
        loop {
            match self.receive().ok()? {
                Some(Arrived::Datagram(response)) if response.mad.attribute() == Attribute::NODE_INFO => {
                    return NodeInfo::decode(response.mad.smp_data()).ok();
                }
                Some(Arrived::Lost(_)) => return None,
                Some(_) => {}
                None => {
                    let left = AGENT_TIMEOUT.checked_sub(started.elapsed())?;
                    sys::wait(&mut [sys::poll_entry(self.as_fd().as_raw_fd(), libc::POLLIN)], Some(left))
                        .ok()?;
                }
            }
        }
    }

    /// Queries PortInfo of the port.
    pub(crate) fn port_info(&mut self) -> Result<PortInfo, LinkError> {
        let raw = match self {
            Self::Ibsim(client) => client.port_info(0)?,
            Self::Udp(client) => client.port_info()?,
            Self::Framed(client) => client.port_details()?.port_info,
        };
        Ok(PortInfo::decode(&raw)?)
    }

    /// Queries the first 32 P_Keys of the port; no protocol tells more.
    pub(crate) fn pkeys(&mut self) -> Result<[Option<Pkey>; 32], LinkError> {
        let raw = match self {
            Self::Ibsim(client) => client.pkeys()?,
            Self::Udp(client) => client.pkeys()?,
            Self::Framed(client) => client.port_details()?.pkeys,
        };
        Ok(PkeyBlock::decode(&raw).0)
    }

    /// Whether datagrams carry their P_Key.
    pub(crate) fn carries_pkeys(&self) -> bool {
        matches!(self, Self::Framed(_))
    }

    /// Changes the role of the client at its port.
    pub(crate) fn set_role(&mut self, role: ClientRole) -> Result<(), LinkError> {
        match self {
            Self::Ibsim(client) => client.set_role(role)?,
            Self::Udp(client) => client.set_role(role)?,
            Self::Framed(client) => client.set_role(role)?,
        }
        Ok(())
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Ibsim(client) => client.as_fd(),
            Self::Udp(client) => client.as_fd(),
            Self::Framed(client) => client.as_fd(),
        }
    }
}

/// The data message of a datagram: the server fills in the source LID, except on a directed route, which has none.
fn message(datagram: &Datagram) -> DataMessage {
    let slid = (datagram.dlid == LidAddress::Permissive).then_some(LidAddress::Permissive);
    DataMessage { slid, ..DataMessage::from(datagram) }
}

fn arrived(message: DataMessage) -> Arrived {
    let is_request = !message.mad.method().is_response();
    match message.status {
        DataStatus::TimedOut if is_request => Arrived::Lost(message.mad.transaction()),
        // A response that found no receiver.
        DataStatus::TimedOut => Arrived::Ignored,
        DataStatus::Ok => match message.into_datagram(None, Pkey::DEFAULT_FULL) {
            Some(datagram) => Arrived::Datagram(Box::new(datagram)),
            None => Arrived::Ignored,
        },
    }
}
