//! The umad interface of the kernel, `/dev/infiniband/umadN`.
//!
//! The same code runs on hardware and, with libumad2sim preloaded, on a simulator: it uses only the six C functions that the
//! library replaces.

mod header;
mod sysfs;

use std::ffi::CString;
use std::io;
use std::time::{Duration, Instant};

use ib_wire::{
    Datagram, Guid, Lid, LidAddress, Mad, ManagementClass, Method, Pkey, QKey, QueuePair, ServiceLevel,
    TransactionId,
};

use self::header::{Header, Layout, RegisterAgent};
use crate::client_role::ClientRole;
use crate::sys::{self, EitherReady, RawDevice};
use crate::waker::Waker;
use sysfs::PortFiles;

/// Time after which the kernel reports a request without a response as lost. The caller decides whether to repeat it.
const RESPONSE_TIMEOUT_MS: u32 = 1000;

/// Time for which the LID of the port is cached. Reading it for every datagram costs more than the datagram, and it rarely
/// changes.
const OWN_LID_AGE: Duration = Duration::from_secs(1);

/// Longest wait if the wait cannot be interrupted.
const PRELOADED_WAIT: Duration = Duration::from_millis(20);

/// Methods of the SMPs that a subnet manager receives.
const MANAGER_METHODS: [Method; 5] =
    [Method::GET, Method::SET, Method::TRAP, Method::REPORT, Method::TRAP_REPRESS];

/// Methods of the requests that a subnet administration receives.
const ADMINISTRATOR_METHODS: [Method; 7] = [
    Method::GET,
    Method::SET,
    Method::REPORT,
    Method::GET_TABLE,
    Method::GET_TRACE_TABLE,
    Method::GET_MULTI,
    Method::DELETE,
];

/// A port of an adapter, opened through the umad interface.
#[derive(Debug)]
pub struct Umad {
    number: u32,
    device: RawDevice,
    files: PortFiles,
    layout: Layout,
    agents: Vec<Agent>,
    /// Open while this client is the subnet manager of the port; the kernel sets the IsSM capability while it is open.
    is_sm: Option<RawDevice>,
    /// The cached LID of the port, and when it was read.
    own_lid: Option<(Instant, Option<Lid>)>,
}

/// What a port received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UmadReceived {
    Datagram(Box<Datagram>),
    /// The request with this transaction was not answered within a second.
    Lost(TransactionId),
}

/// Why a port could not be opened or used.
#[derive(Debug, thiserror::Error)]
pub enum UmadError {
    #[error("cannot open {path}")]
    Open { path: String, source: io::Error },
    /// A file of the port in sysfs is missing or malformed.
    #[error("cannot read {path}")]
    Describe { path: String, source: io::Error },
    /// The kernel refused the registration; most likely another subnet manager uses the port.
    #[error("cannot register for class {class:?} on umad{number}")]
    Register { class: ManagementClass, number: u32, source: io::Error },
}

/// A registration of this client for one class.
#[derive(Clone, Copy, Debug)]
struct Agent {
    class: ManagementClass,
    id: u32,
}

impl Umad {
    /// Opens `/dev/infiniband/umad<number>` and registers for the responses of subnet management.
    pub fn open(number: u32) -> Result<Self, UmadError> {
        let files = PortFiles::of_device(number)?;
        let device = open_device(&format!("/dev/infiniband/umad{number}"))?;
        let layout = choose_layout(&device);
        let mut umad = Self { number, device, files, layout, agents: Vec::new(), is_sm: None, own_lid: None };
        umad.agent(ManagementClass::SUBNET_DIRECTED)?;
        umad.agent(ManagementClass::SUBNET_LID)?;
        Ok(umad)
    }

    /// Changes the role of this client at the port. A subnet manager receives the requests and traps that reach the port.
    pub fn set_role(&mut self, role: ClientRole) -> Result<(), UmadError> {
        if role.is_subnet_manager() == self.is_sm.is_some() {
            return Ok(());
        }
        let methods: [(ManagementClass, &[Method]); 3] = [
            (ManagementClass::SUBNET_DIRECTED, &MANAGER_METHODS),
            (ManagementClass::SUBNET_LID, &MANAGER_METHODS),
            (ManagementClass::SUBNET_ADMINISTRATION, &ADMINISTRATOR_METHODS),
        ];
        // Before the IsSM capability is set, because requests may arrive from then on.
        for (class, methods) in methods {
            self.unregister(class);
            self.register(class, if role.is_subnet_manager() { methods } else { &[] })?;
        }
        self.is_sm = match role {
            ClientRole::SubnetManager => Some(open_device(&format!("/dev/infiniband/issm{}", self.number))?),
            ClientRole::Ordinary => None,
        };
        Ok(())
    }

    /// Sends one datagram. The kernel fills in the source. A request without a response is reported by
    /// [`receive`](Self::receive) as lost after a second.
    pub fn send(&mut self, datagram: &Datagram) -> Result<(), SendError> {
        let method = datagram.mad.method();
        let awaited = !method.is_response() && method != Method::TRAP_REPRESS && method != Method::TRAP;
        let header = Header {
            agent: self.agent(datagram.mad.class())?,
            status: 0,
            timeout_ms: if awaited { RESPONSE_TIMEOUT_MS } else { 0 },
            queue_pair: datagram.dqp.to_wire(),
            queue_key: datagram.qkey.to_wire(),
            lid: datagram.dlid.to_wire(),
            service_level: datagram.sl.to_wire(),
            grh: datagram.grh,
            pkey_index: self.pkey_index(datagram)?,
        };
        let mut buffer = [0; header::MESSAGE_MAX];
        let length = header.encode(self.layout, &datagram.mad, &mut buffer);
        self.device.write(&buffer[..length])?;
        Ok(())
    }

    /// Receives a datagram or the report that a request is lost; `None` if there was nothing within `timeout`. A timeout of 0
    /// does not wait.
    pub fn receive(&mut self, timeout: Duration) -> io::Result<Option<UmadReceived>> {
        let deadline = Instant::now() + timeout;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if self.device.wait_readable(left)?
                && let Some(received) = self.read()?
            {
                return Ok(Some(received));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
        }
    }

    /// Waits until there is input, the timeout is over, or `waker` is used.
    pub(crate) fn wait(&self, waker: &Waker, timeout: Duration) -> io::Result<EitherReady> {
        match self.device.kernel_fd() {
            Some(device) => sys::wait_for_either(device, waker, timeout),
            // libumad2sim can wait for one descriptor only, so the waker takes effect a little later.
            None => {
                self.device.wait_readable(timeout.min(PRELOADED_WAIT))?;
                Ok(EitherReady { second: true })
            }
        }
    }

    /// Reads the LID of the port from sysfs. Under libumad2sim it is the LID at the time of attaching.
    pub fn lid(&self) -> Result<Option<Lid>, UmadError> {
        self.files.lid()
    }

    /// The GUID of the port, from sysfs. Under libumad2sim it is that of the node.
    pub fn port_guid(&self) -> Option<Guid> {
        self.files.port_guid()
    }

    /// Reads one message without blocking.
    fn read(&mut self) -> io::Result<Option<UmadReceived>> {
        let mut buffer = [0; header::MESSAGE_MAX];
        let length = match self.device.read(&mut buffer) {
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                return Ok(None);
            }
            // Longer than a datagram: an RMPP message that the kernel reassembled, which this client does not request.
            Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => return Ok(None),
            result => result?,
        };
        let Some((header, mad)) = Header::decode(self.layout, &buffer[..length]) else { return Ok(None) };
        if header.status != 0 {
            return Ok(Some(UmadReceived::Lost(mad.transaction())));
        }
        Ok(self.datagram(&header, mad).map(|datagram| UmadReceived::Datagram(Box::new(datagram))))
    }

    /// The datagram of a message that was read. The kernel does not report the destination LID: it is that of this port.
    fn datagram(&mut self, header: &Header, mad: Mad) -> Option<Datagram> {
        let sqp = QueuePair::from_wire(header.queue_pair)?;
        let slid = LidAddress::from_wire(header.lid).unwrap_or(LidAddress::Permissive);
        let dlid = match slid {
            LidAddress::Permissive => slid,
            _ => self.own_lid().map_or(LidAddress::Permissive, LidAddress::Unicast),
        };
        let (dqp, pkey) = if mad.class().is_subnet_management() {
            (QueuePair::SUBNET_MANAGEMENT, None)
        } else {
            (QueuePair::GENERAL_MANAGEMENT, self.files.pkey(header.pkey_index))
        };
        Some(Datagram {
            slid,
            dlid,
            sl: ServiceLevel::from_wire(header.service_level).unwrap_or_default(),
            grh: header.grh,
            pkey: pkey.unwrap_or(Pkey::DEFAULT_FULL),
            qkey: QKey::from_wire(header.queue_key),
            sqp,
            dqp,
            mad,
        })
    }

    fn own_lid(&mut self) -> Option<Lid> {
        let now = Instant::now();
        match self.own_lid {
            Some((read, lid)) if now < read + OWN_LID_AGE => lid,
            _ => {
                let lid = self.files.lid().ok().flatten();
                self.own_lid = Some((now, lid));
                lid
            }
        }
    }

    /// The P_Key table index of a datagram's P_Key; 0 for SMPs, which carry no P_Key.
    fn pkey_index(&self, datagram: &Datagram) -> Result<u16, SendError> {
        if datagram.dqp == QueuePair::SUBNET_MANAGEMENT {
            return Ok(0);
        }
        self.files.pkey_index(datagram.pkey).ok_or(SendError::NoSuchPkey { pkey: datagram.pkey })
    }

    /// The agent of a class; if there is none, it is registered for responses only.
    fn agent(&mut self, class: ManagementClass) -> Result<u32, UmadError> {
        match self.agents.iter().find(|agent| agent.class == class) {
            Some(agent) => Ok(agent.id),
            None => self.register(class, &[]),
        }
    }

    fn register(&mut self, class: ManagementClass, methods: &[Method]) -> Result<u32, UmadError> {
        let mut request = RegisterAgent { class, methods }.encode();
        self.device.control(header::REGISTER_AGENT, &mut request).map_err(|source| UmadError::Register {
            class,
            number: self.number,
            source,
        })?;
        let id = RegisterAgent::id(&request);
        self.agents.push(Agent { class, id });
        Ok(id)
    }

    fn unregister(&mut self, class: ManagementClass) {
        for agent in self.agents.extract_if(.., |agent| agent.class == class) {
            // The kernel rejects only unknown agents.
            let _ = self.device.control(header::UNREGISTER_AGENT, &mut agent.id.to_ne_bytes());
        }
    }
}

/// Why a datagram could not be sent.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    #[error("P_Key {pkey} is not in the P_Key table of the port")]
    NoSuchPkey { pkey: Pkey },
    #[error(transparent)]
    Port(#[from] UmadError),
    #[error("cannot write the datagram to the umad device")]
    Io(#[from] io::Error),
}

/// Enables the header layout with a P_Key index. It has to be the first operation on the device.
///
/// Kernels before 2.6.24 do not have that layout. libumad2sim does not either, although its ioctl succeeds: it takes the layout
/// from libibumad, which only switches it for its own clients.
fn choose_layout(device: &RawDevice) -> Layout {
    if device.is_known_to_kernel() && device.control(header::ENABLE_PKEY, &mut []).is_ok() {
        Layout::WithPkeyIndex
    } else {
        Layout::Old
    }
}

fn open_device(path: &str) -> Result<RawDevice, UmadError> {
    let name = CString::new(path).expect("device paths have no zero byte");
    RawDevice::open(&name, libc::O_RDWR | libc::O_NONBLOCK)
        .map_err(|source| UmadError::Open { path: path.to_owned(), source })
}
