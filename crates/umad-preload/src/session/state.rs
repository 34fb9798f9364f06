//! What the lock of a session protects.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Once, OnceLock};
use std::time::{Duration, Instant};

use ib_transport::ClientRole;
use ib_wire::{Datagram, Gid};

use super::forked;
use crate::environment::Attachment;
use crate::errno::Errno;
use crate::link::{Arrived, Link, LinkError, NodeFacts};
use crate::port::{FileId, PortAddresses, UmadPort};
use crate::sys::{self, EventCounter};

/// Most datagrams that are received before the lock is released.
const RECEIVE_MAX: usize = 256;

/// Time between attempts to attach again to a server that is gone.
const REATTACH_INTERVAL: Duration = Duration::from_secs(1);

/// Time for which the P_Key table is cached for datagrams. Reading it for every datagram costs more than the datagram.
const PKEYS_AGE: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) link: Option<AttachedLink>,
    pub(super) is_serving: bool,
    /// The process exits: nothing is sent any more.
    pub(super) is_ended: bool,
    pub(super) port: UmadPort,
    pub(super) files: BTreeMap<FileId, OpenFile>,
    /// A datagram that the link could not take.
    pub(super) unsent: Option<Datagram>,
    /// When the thread wakes up by itself.
    pub(super) wakes_at: Option<Instant>,
    pkeys_read_at: Option<Instant>,
}

/// A link with what is needed to use it.
#[derive(Debug)]
pub(super) struct AttachedLink {
    pub(super) attachment: Attachment,
    pub(super) facts: NodeFacts,
    /// A descriptor of the socket, for waiting without the lock.
    socket: Arc<OwnedFd>,
    /// `None` while the server is gone.
    pub(super) link: Option<Link>,
    reattach_at: Option<Instant>,
}

#[derive(Debug)]
pub(super) enum OpenFile {
    Umad {
        /// Readable while the device has a message for the file.
        ready: EventCounter,
        is_ready: bool,
    },
    IsSm,
}

impl State {
    /// A process that is not attached. `last_agent` is for [`UmadPort::new`].
    pub(super) fn new(last_agent: u16) -> Self {
        Self { port: UmadPort::new(last_agent), ..Self::default() }
    }

    /// Detaches. Nothing is sent any more.
    pub(super) fn end(&mut self) {
        self.is_ended = true;
        self.link = None;
    }

    /// The link to the server; attaches on the first call.
    pub(super) fn attached(&mut self) -> Result<&mut AttachedLink, Errno> {
        if self.is_ended {
            return Err(Errno::NO_DEVICE);
        }
        if self.link.is_none() {
            let attached = AttachedLink::new().inspect_err(|error| complain(&**error));
            self.link = Some(attached.map_err(|_| Errno::NO_DEVICE)?);
            static FORK_HANDLER: Once = Once::new();
            FORK_HANDLER.call_once(|| sys::on_fork(forked));
            self.read_addresses(Instant::now());
        }
        self.link.as_mut().ok_or(Errno::NO_DEVICE)
    }

    pub(super) fn socket(&self) -> Option<Arc<OwnedFd>> {
        let attached = self.link.as_ref().filter(|attached| attached.link.is_some())?;
        Some(Arc::clone(&attached.socket))
    }

    /// Receives, keeps time and sends. Returns whether there may be more to receive.
    pub(super) fn step(&mut self, now: Instant) -> bool {
        self.reattach(now);
        let has_more = self.receive(now);
        self.port.handle_timeout(since_start(now));
        self.transmit(now);
        self.update_readiness();
        has_more
    }

    fn receive(&mut self, now: Instant) -> bool {
        for _ in 0..RECEIVE_MAX {
            let Some(link) = self.link.as_mut().and_then(|attached| attached.link.as_mut()) else {
                return false;
            };
            match link.receive() {
                Ok(Some(Arrived::Datagram(datagram))) => self.port.handle(since_start(now), *datagram),
                Ok(Some(Arrived::Lost(transaction))) => self.port.handle_lost(since_start(now), transaction),
                Ok(Some(Arrived::Ignored)) => {}
                Ok(None) => return false,
                Err(_) => {
                    self.lose_link(now);
                    return false;
                }
            }
        }
        true
    }

    pub(super) fn transmit(&mut self, now: Instant) {
        while let Some(datagram) = self.unsent.take().or_else(|| self.port.poll_transmit(since_start(now))) {
            // Without a server it is lost, as on a link that is down.
            let Some(link) = self.link.as_mut().and_then(|attached| attached.link.as_mut()) else { continue };
            match link.send(&datagram) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.unsent = Some(datagram);
                    return;
                }
                Err(_) => self.lose_link(now),
            }
        }
    }

    /// Makes the event counter of every file agree with the device.
    pub(super) fn update_readiness(&mut self) {
        for (id, file) in &mut self.files {
            let OpenFile::Umad { ready, is_ready } = file else { continue };
            let readable = self.port.is_readable(*id);
            if readable && !*is_ready {
                ready.signal();
            } else if !readable && *is_ready {
                ready.clear();
            }
            *is_ready = readable;
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let reattach = self.link.as_ref().and_then(|attached| attached.reattach_at);
        self.port.poll_timeout().map(|due| *start() + due).into_iter().chain(reattach).min()
    }

    /// When the thread has to wake up. A time that was planned earlier is kept even if it is no longer needed: otherwise every
    /// request of a program that sends one at a time would have to wake the thread.
    pub(super) fn plan_wake(&mut self, now: Instant) -> Option<Instant> {
        let planned = self.wakes_at.filter(|at| *at > now);
        self.wakes_at = self.next_deadline().map(|at| at.max(now)).into_iter().chain(planned).min();
        self.wakes_at
    }

    fn read_addresses(&mut self, now: Instant) {
        let Some(AttachedLink { link: Some(link), facts, .. }) = &mut self.link else { return };
        if let (Ok(pkeys), Ok(port)) = (link.pkeys(), link.port_info()) {
            let gid = Gid::unicast(port.gid_prefix, facts.node.port_guid);
            self.port.set_addresses(PortAddresses { pkeys, gid });
        }
        self.pkeys_read_at = Some(now);
    }

    /// Reads the P_Key table again if it is old and the protocol needs it. Returns whether it did: datagrams may have arrived
    /// together with the answer.
    pub(super) fn refresh_pkeys(&mut self, now: Instant) -> bool {
        let link = self.link.as_ref().and_then(|attached| attached.link.as_ref());
        let is_old = self.pkeys_read_at.is_none_or(|read| now >= read + PKEYS_AGE);
        let is_needed = is_old && link.is_some_and(Link::carries_pkeys);
        if is_needed {
            self.read_addresses(now);
        }
        is_needed
    }

    fn lose_link(&mut self, now: Instant) {
        if let Some(attached) = &mut self.link {
            attached.link = None;
            attached.reattach_at = Some(now + REATTACH_INTERVAL);
        }
    }

    /// Attaches again to a server that was gone, if it is time to try.
    fn reattach(&mut self, now: Instant) {
        let is_manager = self.files.values().any(|file| matches!(file, OpenFile::IsSm));
        let Some(attached) = &mut self.link else { return };
        if self.is_ended || attached.reattach_at.is_none_or(|at| at > now) {
            return;
        }
        match attached.connect() {
            Ok(()) => {
                if let Some(link) = attached.link.as_mut().filter(|_| is_manager) {
                    // If it fails, the next use of the link does, too.
                    let _ = link.set_role(ClientRole::SubnetManager);
                }
                self.read_addresses(now);
            }
            Err(_) => attached.reattach_at = Some(now + REATTACH_INTERVAL),
        }
    }
}

impl AttachedLink {
    fn new() -> Result<Self, Box<dyn std::error::Error>> {
        let attachment = Attachment::from_environment()?;
        let mut link = Link::attach(&attachment)?;
        let facts = link.node_facts()?;
        let socket = Arc::new(link.as_fd().try_clone_to_owned()?);
        Ok(Self { attachment, facts, socket, link: Some(link), reattach_at: None })
    }

    fn connect(&mut self) -> Result<(), LinkError> {
        let mut link = Link::attach(&self.attachment)?;
        self.facts = link.node_facts()?;
        self.socket = Arc::new(link.as_fd().try_clone_to_owned()?);
        (self.link, self.reattach_at) = (Some(link), None);
        Ok(())
    }

    pub(super) fn link(&mut self) -> Result<&mut Link, Errno> {
        self.link.as_mut().ok_or(Errno::IO)
    }
}

/// The moment from which the device counts time.
fn start() -> &'static Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now)
}

pub(super) fn since_start(now: Instant) -> Duration {
    now.saturating_duration_since(*start())
}

/// Prints why there is no device, once: tools only say that there is none.
fn complain(error: &dyn std::error::Error) {
    static PRINTED: Once = Once::new();
    PRINTED.call_once(|| {
        let mut text = format!("heddle-umad: {error}");
        let mut source = error.source();
        while let Some(cause) = source {
            text += &format!(": {cause}");
            source = cause.source();
        }
        eprintln!("{text}");
    });
}
