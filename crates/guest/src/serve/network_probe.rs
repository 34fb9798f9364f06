//! The network check of this node for its current context.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use crate::channel::ToHost;
use crate::probe::{ProbeSocket, ProbeTask, Prober};

/// Pause before opening the socket is retried: the device may not exist yet.
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
    /// Starts a check on a network device. Without one, nothing is sent and the check stays incomplete.
    pub(super) fn new(task: ProbeTask, device: Option<&'static str>, now: Instant) -> Self {
        // RandomState is seeded from the kernel's random number generator.
        let nonce = RandomState::new().build_hasher().finish();
        Self { prober: Prober::new(task, nonce, now), device, socket: None, open_at: now }
    }

    /// The message that reports the current result.
    pub(super) fn message(&self) -> ToHost {
        ToHost::Network { generation: self.prober.generation(), reach: self.prober.reach() }
    }

    /// The descriptor to poll, if the socket is open.
    pub(super) fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(ProbeSocket::as_fd)
    }

    /// When [`NetworkProbe::poll`] must be called next even if no packet arrives.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match &self.socket {
            Some(_) => self.prober.timeout(),
            None => self.device.map(|_| self.open_at),
        }
    }

    /// Receives packets and sends those that are due.
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
            Err(error) => {
                eprintln!("heddle-guest: cannot open the network check's socket on {device}: {error}")
            }
        }
    }
}
