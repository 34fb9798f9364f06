//! The kernel's interface to management datagrams: `/dev/infiniband/umadN`.
//!
//! The same code runs on hardware and, with libumad2sim preloaded, on a simulator: everything goes through the six
//! C functions that library replaces.

mod header;
mod sysfs;

use std::ffi::CString;
use std::io;
use std::time::{Duration, Instant};

use ib_wire::{
    Datagram, Lid, LidAddress, Mad, ManagementClass, Method, Pkey, QKey, QueuePair, ServiceLevel,
    TransactionId,
};

use self::header::{Header, Layout, RegisterAgent};
use crate::client_role::ClientRole;
use crate::sys::{self, RawDevice};
use crate::waker::Waker;
use sysfs::PortFiles;

/// How long the kernel waits for the answer to a request before it reports the request as lost. The caller decides
/// about sending again.
const RESPONSE_TIMEOUT_MS: u32 = 1000;

/// For how long a LID that was read is taken for the port's: reading it anew for each datagram costs more than the
/// datagram, and it changes only when a subnet manager starts over.
const OWN_LID_AGE: Duration = Duration::from_secs(1);

/// How long a wait lasts at most where it cannot be interrupted.
const PRELOADED_WAIT: Duration = Duration::from_millis(20);

/// Methods of requests that reach a subnet manager by subnet management datagrams.
const MANAGER_METHODS: [Method; 5] =
    [Method::GET, Method::SET, Method::TRAP, Method::REPORT, Method::TRAP_REPRESS];

/// Methods of requests that reach a subnet administrator.
const ADMINISTRATOR_METHODS: [Method; 7] = [
    Method::GET,
    Method::SET,
    Method::REPORT,
    Method::GET_TABLE,
    Method::GET_TRACE_TABLE,
    Method::GET_MULTI,
    Method::DELETE,
];

/// A port of an adapter, opened for management datagrams.
#[derive(Debug)]
pub struct Umad {
    number: u32,
    device: RawDevice,
    files: PortFiles,
    layout: Layout,
    agents: Vec<Agent>,
    /// Open while this is the port's subnet manager: its being open sets the IsSM capability.
    is_sm: Option<RawDevice>,
    /// The port's LID, and when it was read.
    own_lid: Option<(Instant, Option<Lid>)>,
}

/// What a port receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UmadReceived {
    /// A datagram.
    Datagram(Box<Datagram>),
    /// Nobody answered this request in time.
    Lost(TransactionId),
}

/// Why a port cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum UmadError {
    /// No such device, or no right to use it.
    #[error("cannot open {path}")]
    Open {
        /// Which.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// The kernel's description of the port is not there, or not as expected.
    #[error("cannot read {path}")]
    Describe {
        /// Which file.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// The kernel refused to receive a class for us; another subnet manager may be running on the port.
    #[error("cannot register for {class:?} on umad{number}")]
    Register {
        /// The class.
        class: ManagementClass,
        /// The device.
        number: u32,
        /// Why.
        source: io::Error,
    },
}

/// A registration for one class.
#[derive(Clone, Copy, Debug)]
struct Agent {
    class: ManagementClass,
    id: u32,
}

impl Umad {
    /// Opens `/dev/infiniband/umad<number>` and registers for subnet management.
    pub fn open(number: u32) -> Result<Self, UmadError> {
        let files = PortFiles::of_device(number)?;
        let device = open_device(&format!("/dev/infiniband/umad{number}"))?;
        let layout = choose_layout(&device);
        let mut umad = Self { number, device, files, layout, agents: Vec::new(), is_sm: None, own_lid: None };
        umad.agent(ManagementClass::SUBNET_DIRECTED)?;
        umad.agent(ManagementClass::SUBNET_LID)?;
        Ok(umad)
    }

    /// Becomes the subnet manager of the port, which then gets the requests that reach it, or ceases to be.
    pub fn set_role(&mut self, role: ClientRole) -> Result<(), UmadError> {
        if role.is_subnet_manager() == self.is_sm.is_some() {
            return Ok(());
        }
        let methods: [(ManagementClass, &[Method]); 3] = [
            (ManagementClass::SUBNET_DIRECTED, &MANAGER_METHODS),
            (ManagementClass::SUBNET_LID, &MANAGER_METHODS),
            (ManagementClass::SUBNET_ADMINISTRATION, &ADMINISTRATOR_METHODS),
        ];
        // Registered before the capability shows: from then on requests may come.
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

    /// Sends one datagram. The kernel fills in the source.
    ///
    /// A request that nobody answers comes back from [`receive`](Self::receive) as lost.
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

    /// Receives a datagram or the loss of one; `None` if nothing came in time.
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

    /// Waits until there is something to read, the time is over, or `waker` was used.
    pub(crate) fn wait(&self, waker: &Waker, timeout: Duration) -> io::Result<()> {
        match self.device.kernel_fd() {
            Some(device) => sys::wait_for_either(device, waker, timeout),
            // libumad2sim waits for one descriptor at a time: the waker is seen a little later.
            None => self.device.wait_readable(timeout.min(PRELOADED_WAIT)).map(drop),
        }
    }

    /// The port's LID, as the kernel knows it (libumad2sim: as it was when the process attached).
    pub fn lid(&self) -> Result<Option<Lid>, UmadError> {
        self.files.lid()
    }

    /// What is there, without waiting.
    fn read(&mut self) -> io::Result<Option<UmadReceived>> {
        let mut buffer = [0; header::MESSAGE_MAX];
        let length = match self.device.read(&mut buffer) {
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                return Ok(None);
            }
            // Longer than a datagram: reassembled by the kernel for somebody who asked for that, which we did not.
            Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => return Ok(None),
            result => result?,
        };
        let Some((header, mad)) = Header::decode(self.layout, &buffer[..length]) else { return Ok(None) };
        if header.status != 0 {
            return Ok(Some(UmadReceived::Lost(mad.transaction())));
        }
        Ok(self.datagram(&header, mad).map(|datagram| UmadReceived::Datagram(Box::new(datagram))))
    }

    /// The datagram behind what was read. Its destination is not passed on by the kernel, and has to be this port.
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

    /// The P_Key table index of a datagram's key; 0 for subnet management, which has none.
    fn pkey_index(&self, datagram: &Datagram) -> Result<u16, SendError> {
        if datagram.dqp == QueuePair::SUBNET_MANAGEMENT {
            return Ok(0);
        }
        self.files.pkey_index(datagram.pkey).ok_or(SendError::NoSuchPkey { pkey: datagram.pkey })
    }

    /// The agent for a class, registered if need be: answers only.
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
            // The kernel refuses only what it does not know.
            let _ = self.device.control(header::UNREGISTER_AGENT, &mut agent.id.to_ne_bytes());
        }
    }
}

/// Why a datagram was not sent.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The port is not a member of the partition.
    #[error("the port does not hold the P_Key {pkey}")]
    NoSuchPkey {
        /// The key.
        pkey: Pkey,
    },
    /// The class cannot be registered.
    #[error(transparent)]
    Port(#[from] UmadError),
    /// The kernel refused.
    #[error("cannot send")]
    System(#[from] io::Error),
}

/// Asks for the layout with a P_Key index, before anything else is done with the device.
///
/// Kernels before 2.6.24 do not have it. Neither has libumad2sim, though it agrees: it takes the layout from libibumad,
/// where only libibumad's own clients can switch it over.
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
