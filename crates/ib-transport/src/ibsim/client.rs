//! A client of the protocol, for Heddle's own server and for stock ibsim.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ib_wire::{Datagram, Gid, Guid, Lid, PortState};

use super::name::SocketName;
use super::wire::{
    Addresses, CONTROL_LEN, Connect, ControlReply, ControlRequest, DATA_LEN, DataMessage, DataStatus,
    WireError, encode_data,
};
use crate::client_role::ClientRole;
use crate::sys::{BATCH_MAX, RawDataMessage, ReceiveBatch, SendBatch, Wait};
use crate::vendor::Vendor;

/// Longest wait for a control reply. An idle server answers within microseconds, a busy one within milliseconds.
const CONTROL_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest time that a send may block. A server that reads nothing for so long hangs.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

/// Bits of a process id (the kernel's limit is 4 million). The bits above distinguish the clients of one process.
const PROCESS_ID_BITS: u32 = 22;

/// Most clients of one process at one server: the number has 31 bits, because the stock server prints it signed.
const CLIENTS_PER_PROCESS: u32 = 1 << (31 - PROCESS_ID_BITS);

/// A client of the ibsim protocol, attached to a port of the server's fabric. Dropping it disconnects.
#[derive(Debug)]
pub struct IbsimClient {
    control: UnixDatagram,
    data: UnixDatagram,
    id: u32,
    batches: Batches,
    /// The current receive timeout of the data socket.
    timeout: Option<Duration>,
    /// Messages of the last batch that were not returned yet.
    unread: Range<usize>,
    /// Whether the last batch was not full, so that the next call need not ask for more.
    is_drained: bool,
}

impl AsFd for IbsimClient {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.data.as_fd()
    }
}

/// Why a client could not be attached, or a query was not answered.
#[derive(Debug, thiserror::Error)]
pub enum IbsimClientError {
    #[error("no server named {name} is running")]
    NoServer { name: SocketName },
    #[error(
        "server {name} refused to attach a client to node {node:?}: unknown node, too many clients, or no access for this user"
    )]
    AttachRefused { name: SocketName, node: String },
    #[error("the server replied with an error to {request:?}")]
    QueryRefused { request: ControlRequest },
    /// The reply is malformed (`source`), or answers another request (no `source`).
    #[error("unexpected reply of the server to {request:?}")]
    UnexpectedReply { request: ControlRequest, source: Option<WireError> },
    /// A socket operation failed, or the server did not reply within 5 seconds.
    #[error("cannot communicate with the ibsim server")]
    Io(#[from] io::Error),
}

struct Batches {
    received: ReceiveBatch,
    sending: SendBatch,
    encoded: Vec<RawDataMessage>,
}

impl IbsimClient {
    /// Attaches to the node with this id or description (at most 31 bytes); an empty text is the server's first node. Blocks at
    /// most 5 seconds.
    pub fn connect(name: &SocketName, node: &str, role: ClientRole) -> Result<Self, IbsimClientError> {
        let (number, control) = bind_control(name)?;
        control.set_read_timeout(Some(CONTROL_TIMEOUT))?;
        control.connect_addr(&name.server_control()?).map_err(|error| match error.kind() {
            io::ErrorKind::ConnectionRefused => IbsimClientError::NoServer { name: name.clone() },
            _ => IbsimClientError::Io(error),
        })?;
        let data = UnixDatagram::bind_addr(&name.client_data(number)?)?;
        let connect = Connect { number, role, node_id: node.to_owned() };
        let refused = || IbsimClientError::AttachRefused { name: name.clone(), node: node.to_owned() };
        let id = match query(&control, 0, ControlRequest::Connect(connect)) {
            Ok(ControlReply::Connected(connected)) => connected.number,
            Ok(_) | Err(IbsimClientError::QueryRefused { .. }) => return Err(refused()),
            Err(error) => return Err(error),
        };
        // From here on the server has a client, which disconnects when this value is dropped.
        let client = Self {
            control,
            data,
            id,
            batches: Batches::new(),
            timeout: None,
            unread: 0..0,
            is_drained: false,
        };
        client.data.connect_addr(&name.server_data(id)?)?;
        client.data.set_write_timeout(Some(SEND_TIMEOUT))?;
        Ok(client)
    }

    /// The number that the server gave the client; it is in bits 63 to 48 of the transactions of its requests.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Sends one message. Blocks at most 5 seconds if the server does not read.
    pub fn send(&mut self, message: &DataMessage) -> io::Result<()> {
        self.data.send(&message.encode()).map(drop)
    }

    /// Sends messages in order, up to 64 per system call. Blocks while the server is slower, at most 5 seconds per call. After
    /// an error it is unknown how many messages were sent.
    pub fn send_batch(&mut self, messages: &[DataMessage]) -> io::Result<()> {
        self.send_encoded(messages.iter().map(DataMessage::encode))
    }

    /// Sends datagrams as [`send_batch`](Self::send_batch) sends messages, without the headers that the protocol does not carry.
    pub fn send_datagrams(&mut self, datagrams: &[Datagram]) -> io::Result<()> {
        self.send_encoded(datagrams.iter().map(|datagram| {
            let mut message = [0; DATA_LEN];
            encode_data(&mut message, Addresses::of(datagram), DataStatus::Ok, &datagram.mad);
            message
        }))
    }

    fn send_encoded(&mut self, messages: impl Iterator<Item = RawDataMessage>) -> io::Result<()> {
        let Batches { sending, encoded, .. } = &mut self.batches;
        encoded.clear();
        encoded.extend(messages);
        let mut unsent = &encoded[..];
        while !unsent.is_empty() {
            let count = sending.send(self.data.as_fd(), unsent, Wait::ForOne)?;
            unsent = &unsent[count..];
        }
        Ok(())
    }

    /// Receives one message; `None` if there was none within `timeout`. A timeout of 0 does not wait. A request that will not be
    /// answered comes back with status [`DataStatus::TimedOut`](super::DataStatus::TimedOut).
    pub fn receive(&mut self, timeout: Duration) -> io::Result<Option<DataMessage>> {
        if self.unread.is_empty() {
            if std::mem::take(&mut self.is_drained) && timeout.is_zero() {
                return Ok(None);
            }
            self.fill(timeout)?;
            self.is_drained = (1..Self::RECEIVE_BATCH_MAX).contains(&self.unread.len());
        }
        self.unread.next().map(|index| self.unpack(index)).transpose()
    }

    /// Waits for one message and receives those that are queued with it, at most [`Self::RECEIVE_BATCH_MAX`]. Returns the number
    /// of messages appended to `out`; 0 if there was none within `timeout`.
    pub fn receive_batch(&mut self, out: &mut Vec<DataMessage>, timeout: Duration) -> io::Result<usize> {
        if self.unread.is_empty() {
            self.fill(timeout)?;
        }
        let unread = std::mem::take(&mut self.unread);
        let count = unread.len();
        for index in unread {
            out.push(self.unpack(index)?);
        }
        Ok(count)
    }

    /// Waits for a batch of messages.
    fn fill(&mut self, timeout: Duration) -> io::Result<()> {
        self.set_timeout(timeout)?;
        let wait = if timeout.is_zero() { Wait::Never } else { Wait::ForOne };
        let received = self.batches.received.receive(self.data.as_fd(), wait);
        self.unread = 0..timed(received)?.unwrap_or(0);
        Ok(())
    }

    /// A message of the last batch.
    fn unpack(&self, index: usize) -> io::Result<DataMessage> {
        DataMessage::decode(self.batches.received.message(index).0).map_err(invalid)
    }

    /// Most messages that [`receive_batch`](Self::receive_batch) receives at once.
    pub const RECEIVE_BATCH_MAX: usize = BATCH_MAX;

    /// Queries LID and logical state of the port.
    pub fn port(&mut self) -> Result<(Option<Lid>, PortState), IbsimClientError> {
        match self.query(ControlRequest::Port)? {
            ControlReply::Port { lid, state } => Ok((lid, state)),
            _ => Err(unexpected_reply(ControlRequest::Port)),
        }
    }

    /// Queries the GUID of the port; the stock server returns that of the node.
    pub fn guid(&mut self) -> Result<Option<Guid>, IbsimClientError> {
        match self.query(ControlRequest::Guid)? {
            ControlReply::Guid(guid) => Ok(guid),
            _ => Err(unexpected_reply(ControlRequest::Guid)),
        }
    }

    /// Queries GID 0 of the port; the stock server builds it from the node GUID.
    pub fn gid(&mut self) -> Result<Gid, IbsimClientError> {
        match self.query(ControlRequest::Gid)? {
            ControlReply::Gid(gid) => Ok(gid),
            _ => Err(unexpected_reply(ControlRequest::Gid)),
        }
    }

    /// Queries vendor, device and versions of the adapter.
    pub fn vendor(&mut self) -> Result<Vendor, IbsimClientError> {
        match self.query(ControlRequest::Vendor)? {
            ControlReply::Vendor(vendor) => Ok(vendor),
            _ => Err(unexpected_reply(ControlRequest::Vendor)),
        }
    }

    /// Queries NodeInfo, in wire order.
    pub fn node_info(&mut self) -> Result<[u8; 64], IbsimClientError> {
        match self.query(ControlRequest::NodeInfo)? {
            ControlReply::NodeInfo(raw) => Ok(raw),
            _ => Err(unexpected_reply(ControlRequest::NodeInfo)),
        }
    }

    /// Queries PortInfo of a port of the node, in wire order; 0 is the attached port.
    pub fn port_info(&mut self, number: u8) -> Result<[u8; 64], IbsimClientError> {
        match self.query(ControlRequest::PortInfo(number))? {
            ControlReply::PortInfo(raw) => Ok(raw),
            _ => Err(unexpected_reply(ControlRequest::PortInfo(number))),
        }
    }

    /// Queries the first 32 P_Keys of the port, in wire order.
    pub fn pkeys(&mut self) -> Result<[u8; 64], IbsimClientError> {
        match self.query(ControlRequest::Pkeys)? {
            ControlReply::Pkeys(raw) => Ok(raw),
            _ => Err(unexpected_reply(ControlRequest::Pkeys)),
        }
    }

    /// Changes the role of the client at its port.
    pub fn set_role(&mut self, role: ClientRole) -> Result<(), IbsimClientError> {
        self.query(ControlRequest::IsSm(role)).map(drop)
    }

    fn query(&mut self, request: ControlRequest) -> Result<ControlReply, IbsimClientError> {
        query(&self.control, self.id, request)
    }

    fn set_timeout(&mut self, timeout: Duration) -> io::Result<()> {
        // A socket timeout of 0 means "wait for ever".
        let timeout = timeout.max(Duration::from_micros(1));
        if self.timeout != Some(timeout) {
            self.data.set_read_timeout(Some(timeout))?;
            self.timeout = Some(timeout);
        }
        Ok(())
    }
}

impl Drop for IbsimClient {
    fn drop(&mut self) {
        // If the message is lost, the server notices later that the socket is gone.
        let _ = self.control.set_nonblocking(true);
        let _ = self.control.send(&ControlRequest::Disconnect.encode(self.id));
    }
}

impl Batches {
    fn new() -> Self {
        Self { received: ReceiveBatch::new(), sending: SendBatch::new(), encoded: Vec::new() }
    }
}

impl std::fmt::Debug for Batches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Batches")
    }
}

fn query(
    control: &UnixDatagram,
    client: u32,
    request: ControlRequest,
) -> Result<ControlReply, IbsimClientError> {
    control.send(&request.encode(client))?;
    let mut reply = [0; CONTROL_LEN + 1];
    let length = control.recv(&mut reply)?;
    match ControlReply::decode(&reply[..length]) {
        Ok(ControlReply::Error) => Err(IbsimClientError::QueryRefused { request }),
        Ok(reply) => Ok(reply),
        Err(error) => Err(IbsimClientError::UnexpectedReply { request, source: Some(error) }),
    }
}

/// Binds the control socket with a number that no other client has: the process id, as stock clients do, with a count of
/// clients in the bits above it.
fn bind_control(name: &SocketName) -> io::Result<(u32, UnixDatagram)> {
    static OPENED: AtomicU32 = AtomicU32::new(0);
    let process = std::process::id() & ((1 << PROCESS_ID_BITS) - 1);
    let mut result = Err(io::Error::from(io::ErrorKind::AddrInUse));
    for _ in 0..CLIENTS_PER_PROCESS {
        let count = OPENED.fetch_add(1, Ordering::Relaxed) % CLIENTS_PER_PROCESS;
        let number = process | (count << PROCESS_ID_BITS);
        result = UnixDatagram::bind_addr(&name.client_control(number)?).map(|socket| (number, socket));
        if !result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse) {
            break;
        }
    }
    result
}

/// `None` if the call timed out or was interrupted.
fn timed<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
        Err(error) => Err(error),
    }
}

fn invalid(error: WireError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

fn unexpected_reply(request: ControlRequest) -> IbsimClientError {
    IbsimClientError::UnexpectedReply { request, source: None }
}
