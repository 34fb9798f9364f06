//! A backend whose ports answer Get(NodeInfo) and forward everything else by LID, and a server that serves it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "each test file uses its own part")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ib_transport::ibsim::{DataMessage, DataStatus, IbsimClient, SocketName};
use ib_transport::{
    ClientDatagram, ClientRole, FabricBackend, Outbox, Server, ServerCounters, Vendor, Waker,
};
use ib_wire::{
    Attribute, Datagram, DirectedRoute, Gid, Guid, Lid, LidAddress, Mad, ManagementClass, Method, Pkey,
    PortState, QueuePair, TransactionId,
};

/// Longer than anything here takes on a busy machine.
pub const LONG: Duration = Duration::from_secs(90);

/// An attribute that is never answered.
pub const NEVER_ANSWERED: Attribute = Attribute(0xff00);

/// TrapRepress with this attribute is forwarded; with any other attribute the backend consumes it.
pub const PASSED_ON: Attribute = Attribute(0xff01);

/// Port `n` has LID `n + 1` and is called `n<n>`.
#[derive(Debug, Default)]
pub struct ToyBackend {
    /// Every call of `set_is_sm`.
    pub manager_changes: Vec<(u16, bool)>,
    /// Transactions of the received TrapRepress.
    pub repressed: Vec<u64>,
    /// The next tick delivers a trap to this port.
    pub trap_for: Option<u16>,
    pub ticks: u64,
    /// A port whose clients are paused after every batch, and for how long.
    pub paused: Option<(u16, Duration)>,
    /// Number of query and role frames.
    pub charged: usize,
    /// Number of such frames after which all clients are paused for an hour.
    pub charged_max: Option<usize>,
    /// Most clients per port.
    pub clients_max: Option<usize>,
}

impl FabricBackend for ToyBackend {
    type Port = u16;

    fn find_port(&self, node_id: &str) -> Option<u16> {
        if node_id.is_empty() { Some(0) } else { node_id.strip_prefix('n')?.parse().ok() }
    }

    fn node_id(&self, port: u16) -> String {
        format!("n{port}")
    }

    fn vendor(&self, _: u16) -> Vendor {
        Vendor { vendor_id: 0x2c9, part_id: 4099, hardware_version: 2, firmware_version: 1 }
    }

    fn node_info(&self, port: u16) -> [u8; 64] {
        node_info(port)
    }

    fn port_info(&self, _: u16, number: u8) -> Option<[u8; 64]> {
        (number <= 1).then_some([number; 64])
    }

    fn pkeys(&self, _: u16) -> [u8; 64] {
        [0xff; 64]
    }

    fn port_state(&self, port: u16) -> (Option<Lid>, PortState) {
        (Lid::from_wire(port + 1), PortState::Active)
    }

    fn port_guid(&self, port: u16) -> Guid {
        guid(port)
    }

    fn port_gid(&self, port: u16) -> Gid {
        Gid::unicast(Gid::DEFAULT_PREFIX, guid(port))
    }

    fn set_is_sm(&mut self, port: u16, on: bool) {
        self.manager_changes.push((port, on));
    }

    fn handle(&mut self, from: u16, sent: ClientDatagram, outbox: &mut Outbox<u16>) {
        let (client, datagram) = match sent {
            ClientDatagram::Ibsim { client, message } => {
                let own = Lid::from_wire(from + 1);
                match message.clone().into_datagram(own, Pkey::DEFAULT_FULL) {
                    Some(datagram) => (client, datagram),
                    None => return outbox.report_lost(client, message),
                }
            }
            ClientDatagram::Framed { client, datagram } => (client, datagram),
        };
        if datagram.mad.method() == Method::TRAP_REPRESS && datagram.mad.attribute() != PASSED_ON {
            self.repressed.push(datagram.mad.transaction().0);
            return;
        }
        match (datagram.mad.attribute(), datagram.dlid) {
            (NEVER_ANSWERED, _) => outbox.report_lost(client, datagram),
            (Attribute::NODE_INFO, LidAddress::Permissive) => outbox.deliver(from, answer(datagram, from)),
            (_, LidAddress::Unicast(lid)) => outbox.deliver(lid.to_wire() - 1, datagram),
            _ => outbox.report_lost(client, datagram),
        }
    }

    fn may_attach(&self, port: u16, taken: &mut dyn Iterator<Item = u16>) -> bool {
        self.clients_max.is_none_or(|most| taken.filter(|other| *other == port).count() < most)
    }

    fn charge(&mut self, _: u16) {
        self.charged += 1;
    }

    fn paused_until(&self, port: u16) -> Option<Instant> {
        if self.charged_max.is_some_and(|most| self.charged >= most) {
            return Some(Instant::now() + Duration::from_secs(3600));
        }
        self.paused.filter(|(paused, _)| *paused == port).map(|(_, time)| Instant::now() + time)
    }

    fn tick(&mut self, outbox: &mut Outbox<u16>) -> Option<Duration> {
        self.ticks += 1;
        if let Some(port) = self.trap_for.take() {
            outbox.deliver(port, lid_routed(Method::TRAP, Attribute::NOTICE, port + 1, 0x0000_7777));
        }
        None
    }
}

/// A server that runs on its own thread.
pub struct Running {
    pub name: SocketName,
    stop: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<(ToyBackend, ServerCounters)>>,
}

impl Running {
    pub fn start() -> Self {
        Self::start_with(ToyBackend::default(), |_| {})
    }

    pub fn start_with(mut backend: ToyBackend, prepare: impl FnOnce(&mut Server<u16>)) -> Self {
        let mut server = Server::bind(&unique_name()).unwrap();
        prepare(&mut server);
        let (name, waker) = (server.name().clone(), server.waker());
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            server.run(&mut backend, &stopped).unwrap();
            (backend, *server.counters())
        });
        Self { name, stop, waker, thread: Some(thread) }
    }

    pub fn client(&self, node: &str, role: ClientRole) -> IbsimClient {
        IbsimClient::connect(&self.name, node, role).unwrap()
    }

    pub fn stop(mut self) -> (ToyBackend, ServerCounters) {
        self.end().unwrap()
    }

    fn end(&mut self) -> Option<(ToyBackend, ServerCounters)> {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
        self.thread.take().map(|thread| thread.join().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.end();
        }
    }
}

/// A name that no other test or process uses.
pub fn unique_name() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("heddle-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

pub fn guid(port: u16) -> Guid {
    Guid::from_wire(0x1000 + u64::from(port)).unwrap()
}

pub fn node_info(port: u16) -> [u8; 64] {
    let mut raw = [0; 64];
    raw[..4].copy_from_slice(&[1, 1, 1, 1]);
    raw[12..20].copy_from_slice(&guid(port).to_wire().to_be_bytes());
    raw[20..28].copy_from_slice(&guid(port).to_wire().to_be_bytes());
    raw
}

/// The node an answer to Get(NodeInfo) comes from.
pub fn answering_port(mad: &Mad) -> u16 {
    assert_eq!(mad.method(), Method::GET_RESP);
    let raw: [u8; 8] = mad.smp_data()[12..20].try_into().unwrap();
    (u64::from_be_bytes(raw) - 0x1000) as u16
}

/// Get(NodeInfo) to the local node.
pub fn ask_node_info(transaction: u32) -> DataMessage {
    let mut mad = Mad::directed(Method::GET, Attribute::NODE_INFO, 0, &DirectedRoute::default());
    mad.set_transaction(TransactionId(transaction.into()));
    Datagram::subnet_management(LidAddress::Permissive, LidAddress::Permissive, mad).into()
}

/// A subnet management datagram to a LID, from the sender's own.
pub fn lid_routed(method: Method, attribute: Attribute, dlid: u16, transaction: u64) -> Datagram {
    let mut mad = Mad::new(ManagementClass::SUBNET_LID, method, attribute, 0);
    mad.set_transaction(TransactionId(transaction));
    let dlid = LidAddress::from_wire(dlid).unwrap();
    Datagram::subnet_management(LidAddress::Permissive, dlid, mad)
}

/// The same datagram as an ibsim client sends it: without source LID.
pub fn bare(datagram: Datagram) -> DataMessage {
    DataMessage { slid: None, ..datagram.into() }
}

/// The response of an ibsim client to a request.
pub fn respond(request: &DataMessage) -> DataMessage {
    let mut mad = request.mad.clone();
    mad.set_method(Method(request.mad.method().0 | 0x80));
    DataMessage {
        dlid: request.slid,
        slid: None,
        dqp: QueuePair::SUBNET_MANAGEMENT,
        sqp: QueuePair::SUBNET_MANAGEMENT,
        status: DataStatus::Ok,
        mad,
    }
}

/// Sends Get(NodeInfo) and checks the answer.
pub fn assert_served(client: &mut IbsimClient, port: u16) {
    client.send(&ask_node_info(0xabcd)).unwrap();
    let answer = client.receive(LONG).unwrap().expect("an answer");
    assert_eq!(answering_port(&answer.mad), port);
    assert_eq!(ib_transport::application_transaction(answer.mad.transaction()), 0xabcd);
}

fn answer(mut request: Datagram, port: u16) -> Datagram {
    request.mad.set_method(Method::GET_RESP);
    request.mad.set_returning();
    *request.mad.smp_data_mut() = node_info(port);
    std::mem::swap(&mut request.slid, &mut request.dlid);
    request
}
