//! Requests that wait because their port has used up its work for now.
//!
//! A port that asks for much, one request after the other, is slowed down to its rate instead of being refused. One that sends
//! more requests meanwhile gets BUSY.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use ib_wire::{Datagram, Guid};

/// Limit on ports with a request that waits; they are searched after every datagram. Requests of further ports get BUSY.
const PUT_OFF_MAX: usize = 256;

/// One request for each port.
#[derive(Debug, Default)]
pub(super) struct PutOff {
    requests: BTreeMap<Guid, Waiting>,
}

#[derive(Debug)]
struct Waiting {
    due: Duration,
    datagram: Datagram,
}

impl PutOff {
    /// Keeps a request of a port until `due`. Returns whether there was room.
    pub fn keep(&mut self, port: Guid, due: Duration, datagram: &Datagram) -> bool {
        let has_room = self.requests.len() < PUT_OFF_MAX;
        match self.requests.entry(port) {
            Entry::Vacant(vacant) if has_room => {
                vacant.insert(Waiting { due, datagram: datagram.clone() });
                true
            }
            Entry::Vacant(_) => false,
            // Sent again, because its sender does not know that it waits.
            Entry::Occupied(waiting) => waiting.get().datagram == *datagram,
        }
    }

    /// Takes a request that is due.
    pub fn take_due(&mut self, now: Duration) -> Option<Datagram> {
        let (port, _) = self.requests.iter().find(|(_, waiting)| waiting.due <= now)?;
        let port = *port;
        self.requests.remove(&port).map(|waiting| waiting.datagram)
    }

    /// When the next request is due.
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.requests.values().map(|waiting| waiting.due).min()
    }
}
