//! Virtual machines on the emulated fabric: their sockets, each attached to a virtual function.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use control_protocol::sim::{AdapterStatus, FrameCounts, FunctionStatus, PortLocation};
use fabric_model::DropReason;
use fabric_sim::{AdapterFunction, Fabric, FrameCounters, FunctionId, PortId, VirtualFunction};
use ib_transport::{FRAME_BYTES_MAX, FrameBuffer, GuestSockets};
use serde_json::json;

use super::adapter_wire::{self, FromGuest};
use super::views::FunctionViews;

/// The sockets of virtual machines, by virtual function.
#[derive(Debug)]
pub struct GuestFrames {
    guests: GuestSockets<FunctionId>,
    /// Reused buffers.
    buffer: Box<FrameBuffer>,
    receivers: Vec<FunctionId>,
}

/// The two datagram sockets between a virtual machine and the emulation.
#[derive(Clone, Debug)]
pub struct SocketPair {
    /// The machine binds this one.
    pub guest: PathBuf,
    /// The emulation binds this one.
    pub fabric: PathBuf,
}

impl GuestFrames {
    pub fn new() -> anyhow::Result<Self> {
        let guests = GuestSockets::new().context("cannot watch the sockets of virtual machines")?;
        Ok(Self { guests, buffer: Box::new([0; FRAME_BYTES_MAX + 1]), receivers: Vec::new() })
    }

    /// The sockets that the server has to poll.
    pub fn guests(&self) -> &GuestSockets<FunctionId> {
        &self.guests
    }

    /// Attaches a machine to a function; on an error nothing is attached.
    pub fn attach(
        &mut self,
        fabric: &mut Fabric,
        function: VirtualFunction,
        sockets: &SocketPair,
    ) -> anyhow::Result<()> {
        fabric.check_function(&function)?;
        self.guests.attach(function.id, &sockets.guest, &sockets.fabric)?;
        Ok(fabric.attach(function)?)
    }

    /// The same for a machine with an InfiniBand adapter of software.
    pub fn attach_adapter(
        &mut self,
        fabric: &mut Fabric,
        function: AdapterFunction,
        sockets: &SocketPair,
    ) -> anyhow::Result<()> {
        fabric.check_adapter(&function)?;
        self.guests.attach(function.id, &sockets.guest, &sockets.fabric)?;
        Ok(fabric.attach_adapter(function)?)
    }

    /// Detaches the machine of a function; returns whether there was one.
    pub fn detach(&mut self, fabric: &mut Fabric, id: FunctionId) -> bool {
        let (attached, adapter) = (fabric.detach(id), fabric.detach_adapter(id));
        self.guests.detach(id) || attached || adapter
    }

    /// Hands a frame to a machine.
    pub fn deliver_frame(&mut self, at: Instant, to: FunctionId, frame: &[u8]) {
        self.guests.send(at, to, frame);
    }

    /// Takes frames again from machines whose functions have few left inside the fabric.
    pub fn resume(&mut self, fabric: &Fabric) {
        let paused: Vec<FunctionId> = self.guests.paused().collect();
        for function in paused.into_iter().filter(|function| !fabric.is_congested(*function)) {
            self.guests.resume(function);
        }
    }

    /// Hands a packet to the adapter of a machine.
    pub fn deliver_packet(&mut self, at: Instant, to: FunctionId, packet: &[u8]) {
        self.guests.send(at, to, &adapter_wire::packet(packet));
    }

    /// Sends adapters the state of their ports that have changed.
    pub fn send_ports(&mut self, fabric: &mut Fabric, at: Instant) {
        for port in fabric.take_function_ports() {
            self.guests.send(at, port.function, &adapter_wire::port(&port, 0));
        }
    }

    /// Forwards a bounded number of frames that machines have sent. A machine whose function has as much inside the fabric as it may
    /// is not read until [`resume`](Self::resume).
    pub fn carry(&mut self, fabric: &mut Fabric, views: &mut FunctionViews, at: Instant, now: Duration) {
        if let Err(error) = self.guests.begin_round() {
            tracing::warn!(%error, "cannot poll the sockets of virtual machines");
            return;
        }
        while let Some((from, length)) = self.guests.receive(&mut self.buffer) {
            let frame = &self.buffer[..length];
            if fabric.has_adapter_function(from) {
                match adapter_wire::read(frame) {
                    Some(FromGuest::Packet(packet)) => {
                        fabric.send_packet(now, from, packet);
                        views.send(fabric, from);
                    }
                    Some(FromGuest::Hello { sequence, is_sm }) => {
                        views.set_is_sm(from, is_sm);
                        let port = fabric.function_port(from);
                        let answer = port.map(|port| adapter_wire::port(&port, sequence));
                        answer.into_iter().for_each(|answer| self.guests.send(at, from, &answer));
                    }
                    None => {}
                }
            } else {
                fabric.send_frame(now, from, frame, &mut self.receivers);
                for to in &self.receivers {
                    self.guests.send(at, *to, frame);
                }
            }
            if fabric.is_congested(from) {
                self.guests.pause(from);
            }
        }
    }

    /// Sends queued frames; returns when to call again, if some are left.
    pub fn flush(&mut self, at: Instant) -> Option<Duration> {
        self.guests.flush(at)
    }

    /// All virtual functions and their sockets, with counters.
    pub fn view(&self, fabric: &Fabric) -> Vec<FunctionStatus> {
        fabric.functions().map(|(function, counters)| self.status(fabric, function, counters)).collect()
    }

    /// All adapter functions and their sockets, with counters.
    pub fn adapters(&self, fabric: &Fabric) -> Vec<AdapterStatus> {
        let status = |(function, counters): (&AdapterFunction, &FrameCounters)| AdapterStatus {
            node: fabric.id_of(function.id.port()).to_owned(),
            port: fabric.port_forwarding(function.id.port()).number,
            stops: stops(fabric, counters),
            function: function.id.number(),
            guid: function.guid,
            pkeys: function.keys.to_vec(),
            guest: self.guests.get(function.id).map(|(guest, ..)| guest.to_owned()),
            view: fabric.has_view(function.id),
            packets: FrameCounts {
                sent: counters.sent,
                received: counters.received,
                drops: counters.drops.clone(),
            },
        };
        fabric.adapter_functions().map(status).collect()
    }

    fn status(
        &self,
        fabric: &Fabric,
        function: &VirtualFunction,
        counters: &FrameCounters,
    ) -> FunctionStatus {
        let PortLocation { node, port } = location(fabric, function.id.port());
        let (guest, socket, sockets) = match self.guests.get(function.id) {
            Some((guest, socket, counters)) => (Some(guest), Some(socket), Some(counters)),
            None => (None, None, None),
        };
        let first = function.keys.first();
        FunctionStatus {
            node,
            port,
            function: function.id.number(),
            mac: function.mac,
            pkey: first.map(|key| key.pkey),
            sl: function.sl,
            group: first.and_then(|key| key.group),
            further: function.keys.get(1..).unwrap_or_default().to_vec(),
            guest: guest.map(Path::to_owned),
            fabric: socket.map(Path::to_owned),
            frames: FrameCounts {
                sent: counters.sent,
                received: counters.received,
                drops: counters.drops.clone(),
            },
            stops: stops(fabric, counters),
            socket: json!(sockets),
        }
    }
}

fn location(fabric: &Fabric, port: PortId) -> PortLocation {
    PortLocation { node: fabric.id_of(port).to_owned(), port: fabric.port_forwarding(port).number }
}

fn stops(fabric: &Fabric, counters: &FrameCounters) -> BTreeMap<DropReason, PortLocation> {
    counters.stops.iter().map(|(reason, at)| (*reason, location(fabric, *at))).collect()
}
