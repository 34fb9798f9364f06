//! The network check of this node, for the context that is in force.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use crate::channel::ToHost;
use crate::probe::{ProbeSocket, ProbeTask, Prober};

/// How long to wait before the socket is tried again: the device may not be there yet.
const SOCKET_PAUSE: Duration = Duration::from_secs(1);

/// A prober and its socket.
#[derive(Debug)]
pub(super) struct NetworkProbe {
    prober: Prober,
    device: Option<&'static str>,
    socket: Option<ProbeSocket>,
    open_at: Instant,
}

impl NetworkProbe {
    /// Checks at a device; without one, nothing is sent and nothing found out.
    pub(super) fn new(task: ProbeTask, device: Option<&'static str>, now: Instant) -> Self {
        // The state of a hasher comes from the kernel's random numbers.
        let nonce = RandomState::new().build_hasher().finish();
        Self { prober: Prober::new(task, nonce, now), device, socket: None, open_at: now }
    }

    /// SessionRequest the host is told.
    pub(super) fn message(&self) -> ToHost {
        ToHost::Network { generation: self.prober.generation(), reach: self.prober.reach() }
    }

    /// SessionRequest to wait for.
    pub(super) fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(ProbeSocket::as_fd)
    }

    /// When to look again although nothing has come.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match &self.socket {
            Some(_) => self.prober.timeout(),
            None => self.device.map(|_| self.open_at),
        }
    }

    /// Takes what has come, and sends what is due.
    pub(super) fn poll(&mut self, now: Instant) {
        if self.socket.is_none() && now >= self.open_at {
            self.open(now);
        }
        if let Some(socket) = &self.socket {
            socket.receive(&mut self.prober, now);
            socket.send(&mut self.prober, now);
        }
    }

    fn open(&mut self, now: Instant) {
        self.open_at = now + SOCKET_PAUSE;
        let Some(device) = self.device else { return };
        let opened: io::Result<ProbeSocket> = ProbeSocket::open(device);
        match opened {
            Ok(socket) => self.socket = Some(socket),
            Err(error) => eprintln!("heddle-guest: the network check cannot use {device}: {error}"),
        }
    }
}
