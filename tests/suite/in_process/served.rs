//! An emulated fabric of this process behind real sockets, so that real programs manage it while a judge checks after every
//! Set.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fabric_model::Topology;
use fabric_sim::{BareDatagram, BuiltInProfile, Fabric, FabricOutput, PortId};
use ib_transport::{ClientDatagram, FabricBackend, Outbox, Server, Vendor, Waker};
use ib_wire::{Datagram, Gid, Guid, Lid, ManagementClass, Method, PortState};

use super::pairs::Pairs;
use super::tables::{Places, Tables};
use super::world::TableReader;
use crate::rig::{self, Printed, Sockets};

/// Pairs of adapter ports, as places in [`Places::ends`].
pub type PortPairs = BTreeSet<(usize, usize)>;

/// What must hold after every Set.
#[derive(Default)]
pub struct Watch {
    /// Pairs that must be able to exchange packets.
    pub kept: PortPairs,
    /// Sets since then.
    pub sets: u64,
    /// Sets that changed a table, after which the pairs were computed.
    pub judged: u64,
    /// The first pair that was lost, with the number of the Set.
    pub lost: Option<(u64, (usize, usize))>,
}

struct Shared {
    fabric: Fabric,
    topology: Topology,
    places: Places,
    watch: Option<Watch>,
    /// The tables that were judged last.
    judged: Tables,
}

impl Shared {
    fn tables(&self) -> Tables {
        TableReader { fabric: &self.fabric, topology: &self.topology, places: &self.places }.tables()
    }

    fn judge(&mut self) {
        let Some(watch) = self.watch.as_mut().filter(|watch| watch.lost.is_none()) else { return };
        watch.sets += 1;
        let tables =
            TableReader { fabric: &self.fabric, topology: &self.topology, places: &self.places }.tables();
        if tables != self.judged {
            let reachable = tables.reachable().honest;
            watch.judged += 1;
            watch.lost =
                watch.kept.iter().find(|pair| !reachable.contains(**pair)).map(|pair| (watch.sets, *pair));
            self.judged = tables;
        }
    }
}

/// A fabric under a name that tools attach to. Ends when dropped.
pub struct ServedFabric {
    shared: Arc<Mutex<Shared>>,
    name: String,
    scratch: tempfile::TempDir,
    stop: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl ServedFabric {
    pub fn new(topology: &Topology, profile: BuiltInProfile) -> Self {
        let profile = profile.profile();
        let topology = profile.furnish(topology).unwrap();
        let fabric = Fabric::new(topology.clone(), profile, 1).unwrap();
        let places = Places::of(&topology);
        let shared =
            Arc::new(Mutex::new(Shared { fabric, topology, places, watch: None, judged: Tables::default() }));
        let (name, scratch) = (rig::unique("served"), tempfile::tempdir().unwrap());
        let mut server = Server::bind(&name).unwrap();
        server.listen(&scratch.path().join("door")).unwrap();
        let (stop, waker) = (Arc::new(AtomicBool::new(false)), server.waker());
        let mut host = Host { shared: Arc::clone(&shared), started: Instant::now() };
        let ended = Arc::clone(&stop);
        let thread = std::thread::spawn(move || server.run(&mut host, &ended).unwrap());
        Self { shared, name, scratch, stop, waker, thread: Some(thread) }
    }

    pub fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    /// A file with the given text.
    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.scratch().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// The device specification of a node, for `heddle sm`.
    pub fn device_spec(&self, node: &str) -> String {
        format!("heddle:{}@{node}", self.scratch().join("door").display())
    }

    pub fn sockets(&self) -> Sockets<'_> {
        Sockets { name: &self.name, scratch: self.scratch() }
    }

    /// A stock tool that is attached to a node.
    pub fn tool(&self, node: &str, program: &str, arguments: &[&str]) -> Printed {
        Printed::of(self.sockets().command(node, program, arguments).output().unwrap())
    }

    /// The pairs that reach each other by the tables that devices hold now.
    pub fn reachable(&self) -> Pairs {
        self.lock().tables().reachable()
    }

    /// The LID of an adapter port.
    pub fn lid(&self, place: usize) -> u16 {
        self.lock().tables().ends[place].lid.unwrap()
    }

    /// From now on, these pairs are checked after every Set.
    pub fn watch(&self, kept: PortPairs) {
        self.lock().watch = Some(Watch { kept, ..Watch::default() });
    }

    /// What was watched so far.
    pub fn watched(&self) -> Watch {
        self.lock().watch.take().unwrap()
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap()
    }
}

impl Drop for ServedFabric {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.waker.wake();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

struct Host {
    shared: Arc<Mutex<Shared>>,
    started: Instant,
}

impl Host {
    fn with<T>(&self, read: impl FnOnce(&Fabric) -> T) -> T {
        read(&self.shared.lock().unwrap().fabric)
    }

    fn pass_on(fabric: &mut Fabric, outbox: &mut Outbox<PortId>) {
        while let Some(output) = fabric.poll_output() {
            match output {
                FabricOutput::Deliver { port, mut datagram } => {
                    if datagram.mad.class() == ManagementClass::SUBNET_DIRECTED {
                        datagram.mad.set_hop_pointer(0);
                    }
                    outbox.deliver(port, datagram);
                }
                FabricOutput::Packet { .. } | FabricOutput::Frame { .. } => {}
                FabricOutput::Lost { datagram, .. } => outbox.report_lost_request(datagram),
            }
        }
    }

    fn carry(&self, from: PortId, datagram: Datagram, outbox: &mut Outbox<PortId>) {
        let mut shared = self.shared.lock().unwrap();
        let class = datagram.mad.class();
        let is_smp = [ManagementClass::SUBNET_DIRECTED, ManagementClass::SUBNET_LID].contains(&class);
        let is_set = is_smp && datagram.mad.method() == Method::SET;
        shared.fabric.handle_datagram(self.started.elapsed(), from, datagram);
        if is_set {
            shared.judge();
        }
        Self::pass_on(&mut shared.fabric, outbox);
    }
}

impl FabricBackend for Host {
    type Port = PortId;

    fn find_port(&self, node_id: &str) -> Option<PortId> {
        self.with(|fabric| fabric.find_port(node_id))
    }

    fn node_id(&self, port: PortId) -> String {
        self.with(|fabric| fabric.id_of(port).to_owned())
    }

    fn vendor(&self, port: PortId) -> Vendor {
        self.with(|fabric| {
            let node = fabric.node_of(port);
            Vendor {
                vendor_id: node.vendor_id,
                part_id: node.device_id.into(),
                hardware_version: node.revision,
                firmware_version: 1,
            }
        })
    }

    fn node_info(&self, port: PortId) -> [u8; 64] {
        self.with(|fabric| fabric.node_info_of(port))
    }

    fn port_info(&self, port: PortId, number: u8) -> Option<[u8; 64]> {
        self.with(|fabric| fabric.port_info_of(port, number))
    }

    fn pkeys(&self, port: PortId) -> [u8; 64] {
        self.with(|fabric| fabric.pkeys_of(port))
    }

    fn port_state(&self, port: PortId) -> (Option<Lid>, PortState) {
        self.with(|fabric| (fabric.lid(port), fabric.state_of(port)))
    }

    fn port_guid(&self, port: PortId) -> Guid {
        self.with(|fabric| fabric.guid_of(port))
    }

    fn port_gid(&self, port: PortId) -> Gid {
        self.with(|fabric| fabric.gid_of(port))
    }

    fn set_is_sm(&mut self, port: PortId, on: bool) {
        self.shared.lock().unwrap().fabric.set_is_sm(self.started.elapsed(), port, on);
    }

    fn handle(&mut self, from: PortId, sent: ClientDatagram, outbox: &mut Outbox<PortId>) {
        match sent {
            ClientDatagram::Ibsim { client, message } => {
                let (slid, dlid, sqp, dqp) = (message.slid, message.dlid, message.sqp, message.dqp);
                let bare = BareDatagram { slid, dlid, sqp, dqp, mad: message.mad.clone() };
                let datagram = self.with(|fabric| fabric.complete_datagram(from, bare));
                match datagram {
                    Some(datagram) => self.carry(from, datagram, outbox),
                    None => outbox.report_lost(client, message),
                }
            }
            ClientDatagram::Framed { client, datagram } => {
                let own = self.with(|fabric| fabric.with_own_source(from, datagram.clone()));
                match own {
                    Some(datagram) => self.carry(from, datagram, outbox),
                    None => outbox.report_lost(client, datagram),
                }
            }
        }
    }

    fn tick(&mut self, outbox: &mut Outbox<PortId>) -> Option<Duration> {
        let now = self.started.elapsed();
        let mut shared = self.shared.lock().unwrap();
        shared.fabric.handle_timeout(now);
        Self::pass_on(&mut shared.fabric, outbox);
        shared.fabric.poll_timeout().map(|due| due.saturating_sub(now))
    }
}
