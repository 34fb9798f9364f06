//! The fabric behind the sockets: what clients send becomes datagrams of the port they sit on.

use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use fabric_sim::{Fabric, Output, PortId};
use ib_transport::ibsim::DataMessage;
use ib_transport::{Host, Outbox, Sent, Vendor};
use ib_wire::{Datagram, Gid, Guid, Lid, LidAddress, ManagementClass, PortState};

use super::control::Command;

/// An emulated fabric as the host of a server.
#[derive(Debug)]
pub struct SimHost {
    fabric: Fabric,
    started: Instant,
    commands: Receiver<Command>,
}

impl SimHost {
    pub fn new(fabric: Fabric, commands: Receiver<Command>) -> Self {
        Self { fabric, started: Instant::now(), commands }
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Who the port really is: a client says what it wants, the adapter says who it is.
    fn source(&self, port: PortId, claimed: Option<LidAddress>) -> LidAddress {
        match (claimed, self.fabric.lid(port)) {
            (Some(LidAddress::Unicast(lid)), _) if self.fabric.owns(port, lid) => lid.into(),
            (_, Some(lid)) => lid.into(),
            (_, None) => LidAddress::Permissive,
        }
    }

    /// A bare message as the adapter would send it: own source, partition key of table index 0.
    fn datagram(&self, port: PortId, message: &DataMessage) -> Option<Datagram> {
        let directed = message.mad.class() == ManagementClass::SUBNET_DIRECTED;
        let dlid = message.dlid.or(directed.then_some(LidAddress::Permissive))?;
        let slid = match dlid {
            LidAddress::Permissive => LidAddress::Permissive,
            _ => self.source(port, message.slid),
        };
        if message.mad.class().is_subnet_management() {
            return Some(Datagram::subnet_management(slid, dlid, message.mad.clone()));
        }
        let pkey = self.fabric.first_pkey(port)?;
        let mut datagram = Datagram::general_management(slid, dlid, pkey, message.mad.clone());
        (datagram.sqp, datagram.dqp) = (message.sqp, message.dqp);
        Some(datagram)
    }

    /// A whole datagram, if the adapter behind the port would send it so: own source, a partition key it holds.
    fn judged(&self, port: PortId, mut datagram: Datagram) -> Option<Datagram> {
        if datagram.dlid != LidAddress::Permissive {
            datagram.slid = self.source(port, Some(datagram.slid));
        }
        let general = !datagram.mad.class().is_subnet_management();
        (!general || self.fabric.holds_pkey(port, datagram.pkey)).then_some(datagram)
    }

    fn pass_on(&mut self, outbox: &mut Outbox<PortId>) {
        while let Some(output) = self.fabric.poll_output() {
            match output {
                Output::Deliver { port, mut datagram } => {
                    if datagram.mad.class() == ManagementClass::SUBNET_DIRECTED {
                        // The hop pointer is between agents; clients of ibsim see and send 0.
                        datagram.mad.set_hop_pointer(0);
                    }
                    outbox.deliver(port, datagram);
                }
                Output::Lost { datagram, .. } => outbox.lost_request(datagram),
            }
        }
    }
}

impl Host for SimHost {
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

    fn handle(&mut self, from: PortId, sent: Sent, outbox: &mut Outbox<PortId>) {
        let datagram = match &sent {
            Sent::Bare { message, .. } => self.datagram(from, message),
            Sent::Whole { datagram, .. } => self.judged(from, datagram.clone()),
        };
        let Some(datagram) = datagram else {
            return match sent {
                Sent::Bare { client, message } => outbox.lost(client, message),
                Sent::Whole { client, datagram } => outbox.lost(client, datagram),
            };
        };
        let now = self.now();
        self.fabric.handle_datagram(now, from, datagram);
        self.pass_on(outbox);
    }

    fn tick(&mut self, outbox: &mut Outbox<PortId>) -> Option<Duration> {
        let now = self.now();
        self.fabric.handle_timeout(now);
        while let Ok(command) = self.commands.try_recv() {
            command.answer(now, &mut self.fabric, outbox.counters());
        }
        self.pass_on(outbox);
        self.fabric.poll_timeout().map(|due| due.saturating_sub(now))
    }
}
