//! RMPP transfers in progress: responses of several datagrams.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

use ib_wire::rmpp::{RmppStatus, Sender};
use ib_wire::{Datagram, Guid, Mad, TransactionId};

/// Limit on transfers. All of them may have to be visited for every datagram sent.
const TRANSFERS_MAX: usize = 64;
/// Limit on transfers to one port. Software queries one table at a time, but several programs may run.
const PORT_TRANSFERS_MAX: usize = 4;
/// Limit on the bytes of all transfers: enough for 20 ports that query all nodes of 11,664 hosts at the same
/// time.
const BYTES_MAX: usize = 32 << 20;
/// Time to wait for an acknowledgement. Ports take milliseconds, a busy machine longer.
const ACKNOWLEDGED_TIMEOUT: Duration = Duration::from_secs(1);

/// The receiver of a transfer, and the transaction.
pub(super) type TransferKey = (Guid, TransactionId);

/// The transfers in progress.
#[derive(Debug, Default)]
pub(super) struct Transfers {
    under_way: BTreeMap<TransferKey, Transfer>,
    bytes: usize,
    /// The transfer that was served last; the next one follows.
    last: Option<TransferKey>,
    failed: u64,
}

#[derive(Debug)]
struct Transfer {
    sender: Sender,
    /// The headers of its datagrams.
    headers: Datagram,
    bytes: usize,
    due: Duration,
    started: Duration,
    /// Whether the receiver has acknowledged anything.
    is_heard: bool,
}

impl Transfer {
    fn is_over(&self) -> bool {
        self.sender.is_done() || self.sender.error().is_some()
    }
}

impl Transfers {
    /// Whether a port may start another transfer. If it has too many, its oldest transfer that was never
    /// acknowledged is dropped, so that software without RMPP support can query again.
    pub fn make_room(&mut self, port: Guid) -> bool {
        let own = self.of_port(port);
        if own.len() >= PORT_TRANSFERS_MAX {
            let deaf = own.iter().filter(|key| self.under_way.get(key).is_some_and(|own| !own.is_heard));
            let Some(oldest) =
                deaf.min_by_key(|key| self.under_way.get(key).map(|transfer| transfer.started)).copied()
            else {
                return false;
            };
            self.remove(oldest);
        }
        self.under_way.len() < TRANSFERS_MAX && self.bytes < BYTES_MAX
    }

    /// Starts a transfer. Replaces one with the same transaction, because the request was repeated. Returns
    /// false if there are too many bytes, or the data cannot be sent.
    pub fn start(&mut self, now: Duration, key: TransferKey, headers: Datagram, data: Vec<u8>) -> bool {
        self.remove(key);
        let bytes = data.len();
        if self.bytes + bytes > BYTES_MAX {
            return false;
        }
        let Ok(sender) = Sender::new(headers.mad.clone(), data) else { return false };
        let due = now + ACKNOWLEDGED_TIMEOUT;
        self.under_way.insert(key, Transfer { sender, headers, bytes, due, started: now, is_heard: false });
        self.bytes += bytes;
        true
    }

    /// Handles an acknowledgement, stop or abort.
    pub fn handle(&mut self, now: Duration, key: TransferKey, mad: &Mad) {
        let Some(transfer) = self.under_way.get_mut(&key) else { return };
        let taken = transfer.sender.handle(mad);
        transfer.is_heard |= taken.is_ok();
        transfer.due = now + ACKNOWLEDGED_TIMEOUT;
        self.failed += u64::from(taken.is_err());
    }

    /// Retransmits what was not acknowledged in time, or gives up.
    pub fn handle_timeout(&mut self, now: Duration) {
        for transfer in self.under_way.values_mut().filter(|transfer| transfer.due <= now) {
            self.failed += u64::from(transfer.sender.handle_timeout().is_err());
            transfer.due = now + ACKNOWLEDGED_TIMEOUT;
        }
    }

    /// Aborts all transfers and notifies the receivers.
    pub fn abort_all(&mut self) {
        for transfer in self.under_way.values_mut().filter(|transfer| !transfer.is_over()) {
            transfer.sender.abort(RmppStatus::Unspecified);
            self.failed += 1;
        }
    }

    /// The next datagram; transfers take turns.
    pub fn poll_transmit(&mut self, now: Duration) -> Option<Datagram> {
        let after = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let order: Vec<TransferKey> = (self.under_way.range((after, Bound::Unbounded)))
            .chain(self.under_way.iter())
            .map(|(key, _)| *key)
            .take(self.under_way.len())
            .collect();
        for key in order {
            let Some(transfer) = self.under_way.get_mut(&key) else { continue };
            if let Some(mad) = transfer.sender.poll_transmit() {
                transfer.due = now + ACKNOWLEDGED_TIMEOUT;
                self.last = Some(key);
                return Some(Datagram { mad, ..transfer.headers.clone() });
            }
            if transfer.is_over() {
                self.remove(key);
            }
        }
        None
    }

    /// The next acknowledgement timeout.
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.under_way.values().filter(|transfer| !transfer.is_over()).map(|transfer| transfer.due).min()
    }

    pub fn len(&self) -> usize {
        self.under_way.len()
    }

    /// Number of transfers that failed.
    pub fn failed(&self) -> u64 {
        self.failed
    }

    fn of_port(&self, port: Guid) -> Vec<TransferKey> {
        let all = (port, TransactionId(0))..=(port, TransactionId(u64::MAX));
        self.under_way.range(all).map(|(key, _)| *key).collect()
    }

    fn remove(&mut self, key: TransferKey) {
        if let Some(transfer) = self.under_way.remove(&key) {
            self.bytes -= transfer.bytes;
        }
    }
}
