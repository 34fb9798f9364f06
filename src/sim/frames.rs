//! Virtual machines on the emulated fabric: their sockets, joined to the virtual functions they sit behind.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use fabric_sim::{DropReason, Fabric, FunctionId, PortId, VirtualFunction};
use ib_transport::{FRAME_BYTES_MAX, FrameBuffer, Guests};
use serde_json::{Map, Value, json};

/// The sockets of virtual machines, each under the name of its function.
#[derive(Debug)]
pub struct GuestFrames {
    guests: Guests<FunctionId>,
    /// Kept for their memory.
    buffer: Box<FrameBuffer>,
    receivers: Vec<FunctionId>,
}

/// Where a virtual machine and its port of the fabric meet.
#[derive(Clone, Debug)]
pub struct GuestSockets {
    /// The machine binds this one.
    pub guest: PathBuf,
    /// The emulation binds this one.
    pub fabric: PathBuf,
}

impl GuestFrames {
    pub fn new() -> anyhow::Result<Self> {
        let guests = Guests::new().context("cannot watch the sockets of virtual machines")?;
        Ok(Self { guests, buffer: Box::new([0; FRAME_BYTES_MAX + 1]), receivers: Vec::new() })
    }

    /// What a server has to watch.
    pub fn guests(&self) -> &Guests<FunctionId> {
        &self.guests
    }

    /// Puts a machine behind a function: all of it, or none.
    pub fn attach(
        &mut self,
        fabric: &mut Fabric,
        function: VirtualFunction,
        sockets: &GuestSockets,
    ) -> anyhow::Result<()> {
        fabric.check_function(&function)?;
        self.guests.attach(function.id, &sockets.guest, &sockets.fabric)?;
        Ok(fabric.attach(function)?)
    }

    /// Takes a machine off its function; whether there was one.
    pub fn detach(&mut self, fabric: &mut Fabric, id: FunctionId) -> bool {
        let (attached, seated) = (fabric.detach(id), self.guests.detach(id));
        attached || seated
    }

    /// Carries what machines have sent, a bounded amount of it.
    pub fn carry(&mut self, fabric: &mut Fabric, at: Instant, now: Duration) {
        if let Err(error) = self.guests.begin_round() {
            tracing::warn!(%error, "cannot ask for frames");
            return;
        }
        while let Some((from, length)) = self.guests.receive(&mut self.buffer) {
            let frame = &self.buffer[..length];
            fabric.forward(now, from, frame, &mut self.receivers);
            for to in &self.receivers {
                self.guests.send(at, *to, frame);
            }
        }
    }

    /// Sends what could not be sent before; when to come back, if anything still waits.
    pub fn flush(&mut self, at: Instant) -> Option<Duration> {
        self.guests.flush(at)
    }

    /// All functions with what they counted, and their sockets with theirs.
    pub fn view(&self, fabric: &Fabric) -> Value {
        fabric
            .functions()
            .map(|(function, counters)| {
                let (guest, socket, sockets) = match self.guests.get(function.id) {
                    Some((guest, socket, counters)) => (Some(guest), Some(socket), Some(counters)),
                    None => (None, None, None),
                };
                let stop = |(reason, at): (&DropReason, &PortId)| {
                    let place = json!({ "node": fabric.id_of(*at), "port": fabric.gate(*at).number });
                    (json!(reason).as_str().unwrap_or_default().to_owned(), place)
                };
                let stops: Map<String, Value> = counters.stops.iter().map(stop).collect();
                let first = function.keys.first();
                let path = |path: Option<&Path>| path.map(|path| path.display().to_string());
                json!({
                    "node": fabric.id_of(function.id.port()),
                    "port": fabric.gate(function.id.port()).number,
                    "function": function.id.number(),
                    "mac": function.mac,
                    "pkey": first.map(|key| key.pkey),
                    "sl": function.sl,
                    "group": first.and_then(|key| key.group),
                    "further": function.keys.get(1..).unwrap_or_default(),
                    "guest": path(guest),
                    "fabric": path(socket),
                    "frames": counters,
                    "stops": stops,
                    "socket": sockets,
                })
            })
            .collect()
    }
}
