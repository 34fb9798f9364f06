//! The emulated fabric behind the sockets: messages of a client become datagrams of the port it is attached to.

use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use control_protocol::SimRequest;
use fabric_sim::{BareDatagram, Fabric, FabricOutput, PortId};
use ib_transport::ibsim::DataMessage;
use ib_transport::{ClientDatagram, ClientId, FabricBackend, Outbox, Vendor};
use ib_wire::{Datagram, Gid, Guid, Lid, ManagementClass, PortState};

use super::control::{self, EmulationState};
use super::frames::GuestFrames;
use super::request_counts::RequestCounts;
use super::views::FunctionViews;
use crate::control_socket::PendingRequest;

/// An emulated fabric as the backend of a server.
#[derive(Debug)]
pub struct SimHost {
    fabric: Fabric,
    started: Instant,
    commands: Receiver<PendingRequest<SimRequest>>,
    request_counts: RequestCounts,
    frames: GuestFrames,
    views: FunctionViews,
}

impl SimHost {
    pub fn new(
        fabric: Fabric,
        frames: GuestFrames,
        views: FunctionViews,
        commands: Receiver<PendingRequest<SimRequest>>,
    ) -> Self {
        let (started, request_counts) = (Instant::now(), RequestCounts::default());
        Self { fabric, started, commands, request_counts, frames, views }
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Handles a message that has only LIDs and queue pairs: the adapter adds its own address and the P_Key of index 0.
    fn handle_bare(
        &mut self,
        from: PortId,
        client: ClientId,
        message: DataMessage,
        outbox: &mut Outbox<PortId>,
    ) {
        let DataMessage { slid, dlid, sqp, dqp, .. } = message;
        let bare = BareDatagram { slid, dlid, sqp, dqp, mad: message.mad.clone() };
        match self.fabric.complete_datagram(from, bare) {
            Some(datagram) => self.carry(from, datagram, outbox),
            None => outbox.report_lost(client, message),
        }
    }

    /// Handles a whole datagram, if the adapter holds its P_Key. The source address is set to that of the port.
    fn handle_whole(
        &mut self,
        from: PortId,
        client: ClientId,
        datagram: Datagram,
        outbox: &mut Outbox<PortId>,
    ) {
        match self.fabric.with_own_source(from, datagram.clone()) {
            Some(datagram) => self.carry(from, datagram, outbox),
            None => outbox.report_lost(client, datagram),
        }
    }

    fn carry(&mut self, from: PortId, datagram: Datagram, outbox: &mut Outbox<PortId>) {
        let now = outbox.now().duration_since(self.started);
        self.request_counts.count(from, &datagram.mad);
        self.fabric.handle_datagram(now, from, datagram);
        self.pass_on(outbox);
    }

    fn pass_on(&mut self, outbox: &mut Outbox<PortId>) {
        while let Some(output) = self.fabric.poll_output() {
            match output {
                FabricOutput::Deliver { port, mut datagram } => {
                    if datagram.mad.class() == ManagementClass::SUBNET_DIRECTED {
                        // The hop pointer is between agents; clients of ibsim see and send 0.
                        datagram.mad.set_hop_pointer(0);
                    }
                    outbox.deliver(port, datagram);
                }
                FabricOutput::Packet { function, packet } => {
                    self.frames.deliver_packet(outbox.now(), function, &packet);
                }
                FabricOutput::Frame { function, frame } => {
                    self.frames.deliver_frame(outbox.now(), function, &frame);
                }
                FabricOutput::Lost { datagram, .. } => outbox.report_lost_request(datagram),
            }
        }
    }
}

impl FabricBackend for SimHost {
    type Port = PortId;

    fn find_port(&self, node_id: &str) -> Option<PortId> {
        self.fabric.find_port(node_id)
    }

    fn node_id(&self, port: PortId) -> String {
        self.fabric.id_of(port).to_owned()
    }

    fn vendor(&self, port: PortId) -> Vendor {
        let node = self.fabric.node_of(port);
        Vendor {
            vendor_id: node.vendor_id,
            part_id: node.device_id.into(),
            hardware_version: node.revision,
            firmware_version: 1,
        }
    }

    fn node_info(&self, port: PortId) -> [u8; 64] {
        self.fabric.node_info_of(port)
    }

    fn port_info(&self, port: PortId, number: u8) -> Option<[u8; 64]> {
        self.fabric.port_info_of(port, number)
    }

    fn pkeys(&self, port: PortId) -> [u8; 64] {
        self.fabric.pkeys_of(port)
    }

    fn port_state(&self, port: PortId) -> (Option<Lid>, PortState) {
        (self.fabric.lid(port), self.fabric.state_of(port))
    }

    fn port_guid(&self, port: PortId) -> Guid {
        self.fabric.guid_of(port)
    }

    fn port_gid(&self, port: PortId) -> Gid {
        self.fabric.gid_of(port)
    }

    fn set_is_sm(&mut self, port: PortId, on: bool) {
        let now = self.now();
        self.fabric.set_is_sm(now, port, on);
    }

    fn handle(&mut self, from: PortId, sent: ClientDatagram, outbox: &mut Outbox<PortId>) {
        match sent {
            ClientDatagram::Ibsim { client, message } => self.handle_bare(from, client, message, outbox),
            ClientDatagram::Framed { client, datagram } => self.handle_whole(from, client, datagram, outbox),
        }
    }

    fn handle_ready(&mut self, outbox: &mut Outbox<PortId>) {
        let now = outbox.now().duration_since(self.started);
        self.frames.carry(&mut self.fabric, &mut self.views, outbox.now(), now);
        self.views.receive(&mut self.fabric, now);
        self.pass_on(outbox);
    }

    fn tick(&mut self, outbox: &mut Outbox<PortId>) -> Option<Duration> {
        let now = outbox.now().duration_since(self.started);
        self.fabric.handle_timeout(now);
        while let Ok(command) = self.commands.try_recv() {
            let emulation = EmulationState {
                now,
                fabric: &mut self.fabric,
                frames: &mut self.frames,
                views: &mut self.views,
                counters: outbox.counters(),
                request_counts: &self.request_counts,
            };
            control::answer(command, emulation);
        }
        self.views.update(&mut self.fabric);
        self.pass_on(outbox);
        self.frames.resume(&self.fabric);
        self.frames.send_ports(&mut self.fabric, outbox.now());
        let fabric = self.fabric.poll_timeout().map(|due| due.saturating_sub(now));
        fabric.into_iter().chain(self.frames.flush(outbox.now())).min()
    }
}
