//! The ibsim protocol by UDP, for `ibsim -r`.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use ib_transport::ibsim::{CONTROL_LEN, Connect, ControlReply, ControlRequest, DATA_LEN, DataMessage};
use ib_transport::{ClientRole, Vendor};

/// Longest wait for a control reply.
const CONTROL_TIMEOUT: Duration = Duration::from_secs(5);

/// A client of an ibsim server that is reached by UDP. Dropping it disconnects.
#[derive(Debug)]
pub(crate) struct UdpClient {
    control: UdpSocket,
    data: UdpSocket,
    id: u32,
}

impl UdpClient {
    /// Attaches to a node, as `IbsimClient::connect` does.
    pub(super) fn connect(host: &str, port: u16, node: &str, role: ClientRole) -> io::Result<Self> {
        let server = (host, port)
            .to_socket_addrs()?
            .find(SocketAddr::is_ipv4)
            .ok_or_else(|| io::Error::other(format!("{host} has no IPv4 address")))?;
        let control = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        control.connect(server)?;
        control.set_read_timeout(Some(CONTROL_TIMEOUT))?;
        let data = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        data.set_nonblocking(true)?;
        let number = data.local_addr()?.port().into();
        let mut client = Self { control, data, id: 0 };
        let connect = Connect { number, role, node_id: node.to_owned() };
        client.id = match client.query(&ControlRequest::Connect(connect))? {
            ControlReply::Connected(connected) => connected.number,
            _ => return Err(unexpected()),
        };
        // The data port of client i follows the control port at distance i + 1.
        let offset = u16::try_from(client.id).ok().and_then(|id| id.checked_add(1));
        let port = offset.and_then(|offset| port.checked_add(offset)).ok_or_else(unexpected)?;
        client.data.connect((server.ip(), port))?;
        Ok(client)
    }

    pub(super) fn send(&self, message: &DataMessage) -> io::Result<()> {
        self.data.send(&message.encode()).map(drop)
    }

    pub(super) fn receive(&self) -> io::Result<Option<DataMessage>> {
        let mut raw = [0; DATA_LEN + 1];
        match self.data.recv(&mut raw) {
            Ok(length) => DataMessage::decode(&raw[..length])
                .map(Some)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error)),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    pub(super) fn node_info(&self) -> io::Result<[u8; 64]> {
        match self.query(&ControlRequest::NodeInfo)? {
            ControlReply::NodeInfo(raw) => Ok(raw),
            _ => Err(unexpected()),
        }
    }

    pub(super) fn port_info(&self) -> io::Result<[u8; 64]> {
        match self.query(&ControlRequest::PortInfo(0))? {
            ControlReply::PortInfo(raw) => Ok(raw),
            _ => Err(unexpected()),
        }
    }

    pub(super) fn pkeys(&self) -> io::Result<[u8; 64]> {
        match self.query(&ControlRequest::Pkeys)? {
            ControlReply::Pkeys(raw) => Ok(raw),
            _ => Err(unexpected()),
        }
    }

    pub(super) fn vendor(&self) -> io::Result<Vendor> {
        match self.query(&ControlRequest::Vendor)? {
            ControlReply::Vendor(vendor) => Ok(vendor),
            _ => Err(unexpected()),
        }
    }

    pub(super) fn set_role(&self, role: ClientRole) -> io::Result<()> {
        self.query(&ControlRequest::IsSm(role)).map(drop)
    }

    fn query(&self, request: &ControlRequest) -> io::Result<ControlReply> {
        self.control.send(&request.encode(self.id))?;
        let mut reply = [0; CONTROL_LEN + 1];
        let length = self.control.recv(&mut reply)?;
        match ControlReply::decode(&reply[..length]) {
            Ok(ControlReply::Error) => Err(io::Error::other("the server refused the request")),
            Ok(reply) => Ok(reply),
            Err(error) => Err(io::Error::new(io::ErrorKind::InvalidData, error)),
        }
    }
}

impl AsFd for UdpClient {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.data.as_fd()
    }
}

impl Drop for UdpClient {
    fn drop(&mut self) {
        // If the message is lost, the server notices later that the client is gone.
        let _ = self.control.send(&ControlRequest::Disconnect.encode(self.id));
    }
}

fn unexpected() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "unexpected reply of the server")
}
