//! A client of any transport, opened from a specification in one line.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use ib_wire::{Datagram, Guid, Lid, Pkey, TransactionId};

use crate::client_role::ClientRole;
use crate::framed::{self, FramedReceived};
use crate::ibsim::{self, DataStatus, InvalidSocketName, SocketName};
use crate::sys;
use crate::umad::{self, Umad, UmadReceived};
use crate::waker::Waker;

/// The device to open: `umad:N`, `ibsim:NAME[@NODE]` or `heddle:SOCKET[@NODE]`.
///
/// NODE is a node id or description; without it the server chooses its first node. NAME and SOCKET end at the first `@`, so
/// they cannot contain one.
///
/// ```
/// use ib_transport::DeviceSpec;
///
/// let spec: DeviceSpec = "ibsim:lab@H-0002c90300216e70".parse().unwrap();
/// assert_eq!(spec.to_string(), "ibsim:lab@H-0002c90300216e70");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceSpec {
    /// The kernel device `/dev/infiniband/umadN`.
    Umad(u32),
    /// A server of the ibsim protocol. An empty `node` is its first node.
    Ibsim { name: SocketName, node: String },
    /// A server of the framed protocol. An empty `node` is its first node.
    Heddle { socket: PathBuf, node: String },
}

/// A text that is not a device specification.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceSpecError {
    #[error("{0:?} is not a device: expected umad:N, ibsim:NAME[@NODE] or heddle:SOCKET[@NODE]")]
    UnknownKind(String),
    #[error("umad:{0} is not a device: expected the number of /dev/infiniband/umadN")]
    UmadNumber(String),
    #[error("invalid name of an ibsim server")]
    Name(#[from] InvalidSocketName),
    #[error("heddle:SOCKET needs the path of a socket")]
    NoSocket,
}

/// Why a device could not be opened or used.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    #[error(transparent)]
    Ibsim(#[from] ibsim::IbsimClientError),
    #[error(transparent)]
    Framed(#[from] framed::FramedConnectError),
    #[error(transparent)]
    Umad(#[from] umad::UmadError),
    #[error(transparent)]
    UmadSend(#[from] umad::SendError),
    /// Sending, receiving or waiting failed after the device was opened.
    #[error("I/O error on the device")]
    System(#[from] io::Error),
}

/// What a device received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    Datagram(Box<Datagram>),
    /// The request with this transaction will not be answered. Only the low 32 bits are those of the request
    /// ([`application_transaction`](crate::application_transaction)).
    Lost(TransactionId),
}

/// An open device: a client of one of the three transports.
///
/// `send`, `send_batch` and `receive` may be called in any order. Responses arrive in any order; match them by
/// [`application_transaction`](crate::application_transaction).
#[derive(Debug)]
pub struct Device(Transport);

#[derive(Debug)]
enum Transport {
    Ibsim {
        client: ibsim::IbsimClient,
        /// P_Key table entry 0, for received datagrams: the protocol does not carry P_Keys.
        pkey: Pkey,
    },
    Framed(framed::FramedClient),
    Umad(Umad),
}

impl Device {
    /// Opens a device in the role [`ClientRole::Ordinary`].
    ///
    /// # Errors
    ///
    /// There is no such server, node or device, the server refuses the client, or the process lacks the permission.
    pub fn open(spec: &DeviceSpec) -> Result<Self, DeviceError> {
        let transport = match spec {
            DeviceSpec::Umad(number) => Transport::Umad(Umad::open(*number)?),
            DeviceSpec::Ibsim { name, node } => {
                let mut client = ibsim::IbsimClient::connect(name, node, ClientRole::Ordinary)?;
                let [high, low, ..] = client.pkeys()?;
                let pkey = Pkey::from_wire(u16::from_be_bytes([high, low])).unwrap_or(Pkey::DEFAULT_FULL);
                Transport::Ibsim { client, pkey }
            }
            DeviceSpec::Heddle { socket, node } => {
                Transport::Framed(framed::FramedClient::connect(socket, node, ClientRole::Ordinary)?)
            }
        };
        Ok(Self(transport))
    }

    /// Changes the role of the client at its port.
    pub fn set_role(&mut self, role: ClientRole) -> Result<(), DeviceError> {
        match &mut self.0 {
            Transport::Ibsim { client, .. } => client.set_role(role)?,
            Transport::Framed(client) => client.set_role(role)?,
            Transport::Umad(umad) => umad.set_role(role)?,
        }
        Ok(())
    }

    /// The GUID of the port. `None` if the server does not tell; stock ibsim tells that of the node.
    pub fn port_guid(&mut self) -> Result<Option<Guid>, DeviceError> {
        Ok(match &mut self.0 {
            Transport::Ibsim { client, .. } => client.guid()?,
            Transport::Framed(client) => client.attached().port_guid,
            Transport::Umad(umad) => umad.port_guid(),
        })
    }

    /// Sends one datagram. Headers that the transport does not carry (see the [crate documentation](crate)) are dropped.
    pub fn send(&mut self, datagram: &Datagram) -> Result<(), DeviceError> {
        match &mut self.0 {
            Transport::Ibsim { client, .. } => client.send(&datagram.into())?,
            Transport::Framed(client) => client.send(datagram)?,
            Transport::Umad(umad) => umad.send(datagram)?,
        }
        Ok(())
    }

    /// Sends datagrams in order, with as few system calls as the transport allows. After an error it is unknown how many of
    /// them were sent.
    pub fn send_batch(&mut self, datagrams: &[Datagram]) -> Result<(), DeviceError> {
        match &mut self.0 {
            Transport::Ibsim { client, .. } => client.send_datagrams(datagrams)?,
            Transport::Framed(client) => client.send_batch(datagrams)?,
            Transport::Umad(_) => datagrams.iter().try_for_each(|datagram| self.send(datagram))?,
        }
        Ok(())
    }

    /// Receives a datagram, or the report that a request is lost; `None` if there was nothing within `timeout`. A timeout of 0
    /// does not wait.
    pub fn receive(&mut self, timeout: Duration) -> Result<Option<Received>, DeviceError> {
        Ok(match &mut self.0 {
            Transport::Ibsim { client, pkey } => match client.receive(timeout)? {
                Some(message) if message.status == DataStatus::TimedOut => {
                    Some(Received::Lost(message.mad.transaction()))
                }
                Some(message) => {
                    message.into_datagram(None, *pkey).map(|it| Received::Datagram(Box::new(it)))
                }
                None => None,
            },
            Transport::Framed(client) => client.receive(timeout)?.map(|received| match received {
                FramedReceived::Datagram(datagram) => Received::Datagram(datagram),
                FramedReceived::Lost(transaction) => Received::Lost(transaction),
            }),
            Transport::Umad(umad) => umad.receive(timeout)?.map(|received| match received {
                UmadReceived::Datagram(datagram) => Received::Datagram(datagram),
                UmadReceived::Lost(transaction) => Received::Lost(transaction),
            }),
        })
    }

    /// Waits until data arrives, `timeout` is over, or `waker` is used. Call [`receive`](Self::receive) with timeout 0 until it
    /// returns `None` first: datagrams that were read together with an earlier one do not end the wait.
    pub fn wait(&self, waker: &Waker, timeout: Duration) -> Result<(), DeviceError> {
        let ready = match &self.0 {
            Transport::Ibsim { client, .. } => sys::wait_for_either(client, waker, timeout)?,
            Transport::Framed(client) => sys::wait_for_either(client, waker, timeout)?,
            Transport::Umad(umad) => umad.wait(waker, timeout)?,
        };
        // Clearing it costs a system call, which most waits do not need.
        if ready.second {
            waker.clear();
        }
        Ok(())
    }

    /// Queries the current LID of the port; `None` if it has none. Under libumad2sim it is the LID at the time of attaching.
    pub fn lid(&mut self) -> Result<Option<Lid>, DeviceError> {
        Ok(match &mut self.0 {
            Transport::Ibsim { client, .. } => client.port()?.0,
            Transport::Framed(client) => client.port()?.0,
            Transport::Umad(umad) => umad.lid()?,
        })
    }
}

impl FromStr for DeviceSpec {
    type Err = DeviceSpecError;
    fn from_str(text: &str) -> Result<Self, DeviceSpecError> {
        let Some((kind, rest)) = text.split_once(':') else {
            return Err(DeviceSpecError::UnknownKind(text.to_owned()));
        };
        let (address, node) = rest.split_once('@').unwrap_or((rest, ""));
        match kind {
            "umad" => rest.parse().map(Self::Umad).map_err(|_| DeviceSpecError::UmadNumber(rest.to_owned())),
            "ibsim" => Ok(Self::Ibsim { name: SocketName::new(address)?, node: node.to_owned() }),
            "heddle" if address.is_empty() => Err(DeviceSpecError::NoSocket),
            "heddle" => Ok(Self::Heddle { socket: address.into(), node: node.to_owned() }),
            _ => Err(DeviceSpecError::UnknownKind(text.to_owned())),
        }
    }
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let node = match self {
            Self::Umad(number) => return write!(f, "umad:{number}"),
            Self::Ibsim { name, node } => {
                write!(f, "ibsim:{name}")?;
                node
            }
            Self::Heddle { socket, node } => {
                write!(f, "heddle:{}", socket.display())?;
                node
            }
        };
        if node.is_empty() { Ok(()) } else { write!(f, "@{node}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specifications_survive_a_round_trip() {
        for text in
            ["umad:0", "ibsim:lab", "ibsim:lab@H-1", "heddle:/run/a.sock", "heddle:/run/a.sock@node 1"]
        {
            assert_eq!(text.parse::<DeviceSpec>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn invalid_specifications_are_rejected() {
        for text in
            ["", "umad", "umad:", "umad:x", "umad:-1", "ibsim:", "ibsim:@n", "heddle:", "heddle:@n", "tcp:1"]
        {
            assert!(text.parse::<DeviceSpec>().is_err(), "{text}");
        }
    }
}
