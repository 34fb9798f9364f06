//! A view behind the sockets that stock tools attach to.
#![allow(dead_code, reason = "every test file uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../../../../tests/suite/rig/stock.rs"]
mod stock;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fabric_sim::{BareDatagram, PortId};
use ib_transport::{ClientDatagram, FabricBackend, Outbox, Server, Vendor, Waker};
use ib_wire::{Gid, Guid, Lid, PortState};
pub use stock::eventually;
use stock::{OpenSm, Sockets, unique};
use tenant_view::{AdapterId, View, ViewOutput};

type Task = Box<dyn FnOnce(&mut View, Duration) + Send>;

struct ViewHost {
    view: View,
    started: Instant,
    tasks: Receiver<Task>,
}

impl ViewHost {
    fn port_of(&self, adapter: AdapterId) -> PortId {
        self.view.port(adapter).unwrap()
    }

    fn forward_outputs(&mut self, outbox: &mut Outbox<AdapterId>) {
        while let Some(output) = self.view.poll_output() {
            match output {
                ViewOutput::Deliver { adapter, datagram } => outbox.deliver(adapter, datagram),
                ViewOutput::Lost { datagram, .. } => outbox.report_lost_request(datagram),
            }
        }
    }
}

impl FabricBackend for ViewHost {
    type Port = AdapterId;

    fn find_port(&self, node_id: &str) -> Option<AdapterId> {
        self.view.adapter(node_id)
    }

    fn node_id(&self, port: AdapterId) -> String {
        self.view.fabric().id_of(self.port_of(port)).to_owned()
    }

    fn vendor(&self, _: AdapterId) -> Vendor {
        Vendor::default()
    }

    fn node_info(&self, port: AdapterId) -> [u8; 64] {
        self.view.fabric().node_info_of(self.port_of(port))
    }

    fn port_info(&self, port: AdapterId, number: u8) -> Option<[u8; 64]> {
        self.view.fabric().port_info_of(self.port_of(port), number)
    }

    fn pkeys(&self, port: AdapterId) -> [u8; 64] {
        self.view.fabric().pkeys_of(self.port_of(port))
    }

    fn port_state(&self, port: AdapterId) -> (Option<Lid>, PortState) {
        let port = self.port_of(port);
        (self.view.fabric().lid(port), self.view.fabric().state_of(port))
    }

    fn port_guid(&self, port: AdapterId) -> Guid {
        self.view.fabric().guid_of(self.port_of(port))
    }

    fn port_gid(&self, port: AdapterId) -> Gid {
        self.view.fabric().gid_of(self.port_of(port))
    }

    fn set_is_sm(&mut self, port: AdapterId, on: bool) {
        let now = self.started.elapsed();
        self.view.set_is_sm(now, port, on);
    }

    fn handle(&mut self, from: AdapterId, sent: ClientDatagram, outbox: &mut Outbox<AdapterId>) {
        let now = outbox.now().duration_since(self.started);
        match sent {
            ClientDatagram::Ibsim { client, message } => {
                let bare = BareDatagram {
                    slid: message.slid,
                    dlid: message.dlid,
                    sqp: message.sqp,
                    dqp: message.dqp,
                    mad: message.mad.clone(),
                };
                if self.view.handle_bare(now, from, bare).is_err() {
                    outbox.report_lost(client, message);
                }
            }
            ClientDatagram::Framed { client, datagram } => {
                if self.view.handle_datagram(now, from, datagram.clone()).is_err() {
                    outbox.report_lost(client, datagram);
                }
            }
        }
        self.forward_outputs(outbox);
    }

    fn paused_until(&self, _: AdapterId) -> Option<Instant> {
        self.view.paused_until().map(|until| self.started + until)
    }

    fn tick(&mut self, outbox: &mut Outbox<AdapterId>) -> Option<Duration> {
        let now = outbox.now().duration_since(self.started);
        self.view.handle_timeout(now);
        while let Ok(task) = self.tasks.try_recv() {
            task(&mut self.view, now);
        }
        self.forward_outputs(outbox);
        self.view.poll_timeout().map(|due| due.saturating_sub(now))
    }
}

/// A served view; ends when dropped.
pub struct Served {
    pub name: String,
    tasks: Sender<Task>,
    waker: Waker,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    scratch: tempfile::TempDir,
}

impl Served {
    pub fn new(view: View) -> Self {
        let name = unique("view");
        let (tasks, received) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let mut server = Server::bind(&name).unwrap();
        let (waker, stopped) = (server.waker(), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let mut host = ViewHost { view, started: Instant::now(), tasks: received };
            server.run(&mut host, &stopped).unwrap();
        });
        let scratch = tempfile::tempdir().unwrap();
        Self { name, tasks, waker, stop, thread: Some(thread), scratch }
    }

    /// Runs a task on the view between two datagrams.
    pub fn with<T: Send + 'static>(&self, task: impl FnOnce(&mut View, Duration) -> T + Send + 'static) -> T {
        let (sender, receiver) = channel();
        let send = Box::new(move |view: &mut View, now: Duration| {
            let _ = sender.send(task(view, now));
        });
        self.tasks.send(send).unwrap();
        self.waker.wake();
        receiver.recv().unwrap()
    }

    pub fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    /// Runs a stock tool on a virtual machine and returns its output.
    pub fn tool(&self, node: &str, program: &str, arguments: &[&str]) -> String {
        let output = self.command(node, program, arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "{program} {arguments:?}: {}\n{text}\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        text
    }

    fn command(&self, node: &str, program: &str, arguments: &[&str]) -> Command {
        self.sockets().command(node, program, arguments)
    }

    fn sockets(&self) -> Sockets<'_> {
        Sockets { name: &self.name, scratch: self.scratch() }
    }

    /// Runs opensm as a service on a virtual machine; ends when dropped.
    pub fn opensm(&self, node: &str, options: &[&str]) -> OpenSm {
        self.sockets().opensm(node, options)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
