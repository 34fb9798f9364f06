//! Any transport, named by one line of text.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use ib_wire::{Datagram, Lid, Pkey, TransactionId};

use crate::client_role::ClientRole;
use crate::framed::{self, FramedReceived};
use crate::ibsim::{self, DataStatus, InvalidSocketName, SocketName};
use crate::sys;
use crate::umad::{self, Umad, UmadReceived};
use crate::waker::Waker;

/// Which device to open: `umad:N`, `ibsim:NAME[@NODE]` or `heddle:SOCKET[@NODE]`.
///
/// NODE is a node id or description; without it, the server's first node is meant. The first `@` ends NAME and
/// SOCKET, which therefore have none.
///
/// ```
/// use ib_transport::DeviceSpec;
///
/// let spec: DeviceSpec = "ibsim:lab@H-0002c90300216e70".parse().unwrap();
/// assert_eq!(spec.to_string(), "ibsim:lab@H-0002c90300216e70");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceSpec {
    /// The kernel's `/dev/infiniband/umadN`.
    Umad(u32),
    /// A server of the ibsim protocol.
    Ibsim {
        /// The base name of its sockets.
        name: SocketName,
        /// The node to attach at.
        node: String,
    },
    /// A server of the own framing.
    Heddle {
        /// Its socket.
        socket: PathBuf,
        /// The node to attach at.
        node: String,
    },
}

/// A text that names no device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceSpecError {
    /// None of the kinds.
    #[error("{0:?} is no device: umad:N, ibsim:NAME[@NODE] or heddle:SOCKET[@NODE]")]
    UnknownKind(String),
    /// Not a number.
    #[error("umad:{0} is no device: N is a number, as in /dev/infiniband/umad0")]
    UmadNumber(String),
    /// Not a socket name.
    #[error("not the name of an ibsim server")]
    Name(#[from] InvalidSocketName),
    /// No path.
    #[error("heddle:SOCKET needs the path of a socket")]
    NoSocket,
}

/// Why a device cannot be opened or used.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// By the ibsim protocol.
    #[error(transparent)]
    Ibsim(#[from] ibsim::IbsimClientError),
    /// By the own framing.
    #[error(transparent)]
    Framed(#[from] framed::FramedConnectError),
    /// By the kernel.
    #[error(transparent)]
    Umad(#[from] umad::UmadError),
    /// By the kernel, one datagram.
    #[error(transparent)]
    UmadSend(#[from] umad::SendError),
    /// While it was open.
    #[error("the device failed")]
    System(#[from] io::Error),
}

/// What a device receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// A datagram.
    Datagram(Box<Datagram>),
    /// Nobody will answer this request. Of its transaction only the low 32 bits are the sender's.
    Lost(TransactionId),
}

/// An open device.
#[derive(Debug)]
pub struct Device(Transport);

#[derive(Debug)]
enum Transport {
    Ibsim {
        client: ibsim::IbsimClient,
        /// P_Key table entry 0: the protocol carries no keys.
        pkey: Pkey,
    },
    Framed(framed::FramedClient),
    Umad(Umad),
}

impl Device {
    /// Opens a device, as an ordinary client.
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

    /// Becomes the subnet manager of the port, or ceases to be.
    pub fn set_role(&mut self, role: ClientRole) -> Result<(), DeviceError> {
        match &mut self.0 {
            Transport::Ibsim { client, .. } => client.set_role(role)?,
            Transport::Framed(client) => client.set_role(role)?,
            Transport::Umad(umad) => umad.set_role(role)?,
        }
        Ok(())
    }

    /// Sends one datagram; headers that the transport cannot carry are left out.
    pub fn send(&mut self, datagram: &Datagram) -> Result<(), DeviceError> {
        match &mut self.0 {
            Transport::Ibsim { client, .. } => client.send(&datagram.into())?,
            Transport::Framed(client) => client.send(datagram)?,
            Transport::Umad(umad) => umad.send(datagram)?,
        }
        Ok(())
    }

    /// Sends datagrams, in order, with as few system calls as the transport allows.
    pub fn send_batch(&mut self, datagrams: &[Datagram]) -> Result<(), DeviceError> {
        match &mut self.0 {
            Transport::Ibsim { client, .. } => {
                let messages: Vec<_> = datagrams.iter().map(Into::into).collect();
                client.send_batch(&messages)?;
            }
            Transport::Framed(client) => client.send_batch(datagrams)?,
            Transport::Umad(_) => datagrams.iter().try_for_each(|datagram| self.send(datagram))?,
        }
        Ok(())
    }

    /// Receives a datagram or the loss of one; `None` if nothing came in time.
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

    /// Waits until there is something to [`receive`](Self::receive), the time is over, or `waker` was used. What came
    /// with the last datagram does not end the wait: receive first, until nothing is left.
    pub fn wait(&self, waker: &Waker, timeout: Duration) -> Result<(), DeviceError> {
        match &self.0 {
            Transport::Ibsim { client, .. } => sys::wait_for_either(client, waker, timeout)?,
            Transport::Framed(client) => sys::wait_for_either(client, waker, timeout)?,
            Transport::Umad(umad) => umad.wait(waker, timeout)?,
        }
        waker.clear();
        Ok(())
    }

    /// The LID of the port, asked anew (under libumad2sim: as it was when the process attached).
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
        let (place, node) = rest.split_once('@').unwrap_or((rest, ""));
        match kind {
            "umad" => rest.parse().map(Self::Umad).map_err(|_| DeviceSpecError::UmadNumber(rest.to_owned())),
            "ibsim" => Ok(Self::Ibsim { name: SocketName::new(place)?, node: node.to_owned() }),
            "heddle" if place.is_empty() => Err(DeviceSpecError::NoSocket),
            "heddle" => Ok(Self::Heddle { socket: place.into(), node: node.to_owned() }),
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
    fn specifications_are_read_and_written_alike() {
        for text in
            ["umad:0", "ibsim:lab", "ibsim:lab@H-1", "heddle:/run/a.sock", "heddle:/run/a.sock@node 1"]
        {
            assert_eq!(text.parse::<DeviceSpec>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_no_device_is_refused() {
        for text in
            ["", "umad", "umad:", "umad:x", "umad:-1", "ibsim:", "ibsim:@n", "heddle:", "heddle:@n", "tcp:1"]
        {
            assert!(text.parse::<DeviceSpec>().is_err(), "{text}");
        }
    }
}
