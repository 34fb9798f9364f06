//! Outstanding MADs: a window for the whole fabric and one per device, retries and timeouts.
//!
//! Every switch on a directed route handles the datagram in software, VL15 has no flow control, and the switches next to
//! the manager handle all of it. How much they take is unknown, so the window adapts to losses like that of TCP (Jacobson,
//! SIGCOMM 1988): it starts small and grows by one with every response; a loss halves it, and from then on it grows by one
//! with every full window of responses.
//!
//! When a link breaks, hundreds of devices behind it stop answering, which is no congestion. A device that lost requests in two round
//! trips in a row is *in doubt*: it gets one request at a time, outside the adaptive window, and devices in doubt leave a part of the
//! whole window to others, so that they hold up nobody else. When one of its requests is given up, the others are, too.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use ib_wire::{Datagram, Guid, LidAddress, Mad, Method, PortInfo, TransactionId};

use crate::election;

/// Limits on outstanding requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadLimits {
    /// The most outstanding requests in total. Fewer after losses.
    pub window: usize,
    /// Outstanding requests per device. Lane 15 has no flow control: a device drops what it cannot queue.
    pub device_window: usize,
    /// Time after which a request without response is sent again or given up.
    pub timeout: Duration,
    /// How often a request is sent again before its device counts as silent.
    pub retries: u8,
}

impl Default for MadLimits {
    fn default() -> Self {
        Self { window: 64, device_window: 4, timeout: Duration::from_millis(500), retries: 5 }
    }
}

/// The smallest window: what OpenSM sends at a time by default.
const WINDOW_MIN: usize = 4;

/// Round trips in a row with losses after which a device is in doubt.
const DOUBT: u8 = 2;

/// The part of the window that devices in doubt leave to others: one in this many.
const KEPT: usize = 8;

/// Transactions are numbered from 1 to below this, again and again. Higher numbers are those of the election.
const TRANSACTIONS: u32 = election::TRANSACTIONS;

/// Added to the transactions of inquiries, so that a response matches no other request.
const INQUIRY_TRANSACTIONS: u32 = 0xC000_0000;

/// Inquiries in flight. Few: whoever is asked may be silent on purpose, and nothing waits for the outcome.
const INQUIRIES_MAX: usize = 8;

/// The transaction of the request that was sent as number `number`, counted from 1.
fn transaction_of(number: u64) -> u32 {
    // The remainder fits.
    (number.saturating_sub(1) % u64::from(TRANSACTIONS - 1)) as u32 + 1
}

/// How many requests may be outstanding now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AdaptiveWindow {
    size: usize,
    max: usize,
    /// Up to this size it grows with every response.
    threshold: usize,
    /// Responses since it last grew.
    credit: usize,
    /// Number of requests sent when it was last halved. Losses among them are of the same congestion.
    halved_at: u64,
}

impl AdaptiveWindow {
    fn new(max: usize) -> Self {
        Self { size: max.min(WINDOW_MIN), max, threshold: max, credit: 0, halved_at: 0 }
    }

    fn handle_response(&mut self) {
        self.credit += 1;
        let needed = if self.size < self.threshold { 1 } else { self.size };
        if self.credit >= needed {
            (self.size, self.credit) = ((self.size + 1).min(self.max), 0);
        }
    }

    /// Request `number` was lost; `last` was the last one sent.
    fn handle_loss(&mut self, number: u64, last: u64) {
        if number > self.halved_at {
            self.threshold = (self.size / 2).max(WINDOW_MIN.min(self.max));
            (self.size, self.credit, self.halved_at) = (self.threshold, 0, last);
        }
    }
}

/// Requests sent since the start, retries included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MadCounts {
    pub gets: u64,
    /// Sets that write configuration.
    pub sets: u64,
    /// Sets that ask software at a port to register again. They write nothing else, but for MasterSMLID after a takeover.
    pub registrations: u64,
    pub retries: u64,
}

/// How often a request without response is sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetryPolicy {
    /// As often as [`MadLimits::retries`] says.
    Limits,
    /// Never: it is sent once.
    Once,
}

/// The requests of a subnet manager, each with its purpose `P`.
#[derive(Debug)]
pub(crate) struct MadWindow<P> {
    limits: MadLimits,
    /// Added to the numbers of requests.
    transactions: u32,
    window: AdaptiveWindow,
    devices: HashMap<Guid, Queue<P>>,
    /// Devices with a waiting request and room in their window, each once.
    ready: VecDeque<Guid>,
    /// The same of devices in doubt. A device may stand in the wrong list until its turn.
    doubtful: VecDeque<Guid>,
    /// Requests in flight to devices in doubt.
    doubtful_in_flight: usize,
    in_flight: BTreeMap<u32, InFlight<P>>,
    deadlines: BTreeMap<(Duration, u32), ()>,
    /// Number of requests sent, retries included.
    sent: u64,
    /// Requests that were not sent yet.
    waiting: usize,
    pub counts: MadCounts,
    pub progress: MadProgress,
}

/// Progress since the window was last empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MadProgress {
    /// Requests answered or given up.
    pub done: usize,
    /// Requests known so far, answered ones included.
    pub total: usize,
}

#[derive(Debug)]
struct Queue<P> {
    waiting: VecDeque<Request<P>>,
    in_flight: usize,
    listed: bool,
    /// Round trips with losses since the last answer.
    losses: u8,
    /// Number of requests sent when a loss was last counted. Losses among them are of the same round trip.
    lost_at: u64,
}

impl<P> Queue<P> {
    fn is_in_doubt(&self) -> bool {
        self.losses >= DOUBT
    }
}

impl<P> Default for Queue<P> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), in_flight: 0, listed: false, losses: 0, lost_at: 0 }
    }
}

#[derive(Debug)]
struct Request<P> {
    mad: Box<Mad>,
    purpose: P,
    retries_left: u8,
    /// Whether the device itself answers, not software there or a node behind it.
    is_own: bool,
    is_sent: bool,
}

/// A request that was answered.
#[derive(Debug)]
pub(crate) struct Answered<P> {
    pub purpose: P,
    pub request: Box<Mad>,
}

#[derive(Debug)]
struct InFlight<P> {
    device: Guid,
    request: Request<P>,
    number: u64,
    due: Duration,
    in_doubt: bool,
}

impl<P> MadWindow<P> {
    pub fn new(limits: MadLimits) -> Self {
        Self {
            limits,
            transactions: 0,
            window: AdaptiveWindow::new(limits.window),
            devices: HashMap::new(),
            ready: VecDeque::new(),
            doubtful: VecDeque::new(),
            doubtful_in_flight: 0,
            in_flight: BTreeMap::new(),
            deadlines: BTreeMap::new(),
            sent: 0,
            waiting: 0,
            counts: MadCounts::default(),
            progress: MadProgress::default(),
        }
    }

    /// A window beside that of a manager, for requests that no phase of its work waits for.
    pub fn for_inquiries(limits: MadLimits) -> Self {
        let limits = MadLimits { window: INQUIRIES_MAX, device_window: 1, ..limits };
        Self { transactions: INQUIRY_TRANSACTIONS, ..Self::new(limits) }
    }

    /// Queues a request to a device.
    pub fn request(&mut self, device: Guid, mad: Mad, purpose: P) {
        self.queue(device, mad, purpose, self.limits.retries, true);
    }

    /// Queues a request to software at a device or to a node behind it. Its silence says nothing about the device.
    pub fn request_beyond(&mut self, retry: RetryPolicy, device: Guid, mad: Mad, purpose: P) {
        let retries = match retry {
            RetryPolicy::Limits => self.limits.retries,
            RetryPolicy::Once => 0,
        };
        self.queue(device, mad, purpose, retries, false);
    }

    fn queue(&mut self, device: Guid, mad: Mad, purpose: P, retries_left: u8, is_own: bool) {
        if self.is_idle() {
            self.progress = MadProgress::default();
        }
        self.progress.total += 1;
        let request = Request { mad: Box::new(mad), purpose, retries_left, is_own, is_sent: false };
        self.devices.entry(device).or_default().waiting.push_back(request);
        self.waiting += 1;
        self.list(device);
    }

    /// Number of requests that were not sent yet.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Discards the waiting requests with some purposes. Returns the purposes of those among them that were sent before and may
    /// have had an effect. Requests in flight remain.
    #[must_use]
    pub fn drop_waiting(&mut self, is_dropped: impl Fn(&P) -> bool) -> Vec<P> {
        let mut sent = Vec::new();
        for queue in self.devices.values_mut() {
            for request in std::mem::take(&mut queue.waiting) {
                if !is_dropped(&request.purpose) {
                    queue.waiting.push_back(request);
                    continue;
                }
                self.waiting -= 1;
                self.progress.total -= 1;
                if request.is_sent {
                    sent.push(request.purpose);
                }
            }
        }
        sent
    }

    /// Whether every request was answered or given up.
    pub fn is_idle(&self) -> bool {
        self.in_flight.is_empty() && self.waiting == 0
    }

    /// The device whose turn it is.
    fn next_device(&mut self) -> Option<Guid> {
        loop {
            if self.in_flight.len() >= self.limits.window {
                return None;
            }
            let in_window = self.in_flight.len() - self.doubtful_in_flight;
            let (list, wants_doubt) = if in_window < self.window.size && !self.ready.is_empty() {
                (&mut self.ready, false)
            } else if self.doubtful_in_flight < (self.limits.window - self.limits.window / KEPT).max(1) {
                (&mut self.doubtful, true)
            } else {
                return None;
            };
            let device = *list.front()?;
            let queue = self.devices.get_mut(&device)?;
            if queue.is_in_doubt() == wants_doubt && !queue.waiting.is_empty() {
                return Some(device);
            }
            list.pop_front();
            queue.listed = false;
            self.list(device);
        }
    }

    /// The next datagram that the windows permit to send. Unless Sets may be sent, it waits at the first one.
    pub fn poll_transmit(&mut self, now: Duration, may_set: bool) -> Option<Datagram> {
        let device = self.next_device()?;
        let next = self.devices.get(&device)?.waiting.front();
        if !may_set && next.is_some_and(|next| next.mad.method() == Method::SET) {
            return None;
        }
        let queue = self.devices.get_mut(&device)?;
        let in_doubt = queue.is_in_doubt();
        let list = if in_doubt { &mut self.doubtful } else { &mut self.ready };
        list.pop_front();
        queue.listed = false;
        let mut request = queue.waiting.pop_front()?;
        request.is_sent = true;
        self.waiting -= 1;
        queue.in_flight += 1;
        self.doubtful_in_flight += usize::from(in_doubt);
        self.list(device);
        self.sent += 1;
        let (number, transaction) = (self.sent, self.transactions | transaction_of(self.sent));
        request.mad.set_transaction(TransactionId(transaction.into()));
        match request.mad.method() {
            Method::SET if PortInfo::asks_to_register(&request.mad) => self.counts.registrations += 1,
            Method::SET => self.counts.sets += 1,
            _ => self.counts.gets += 1,
        }
        let mad = request.mad.as_ref().clone();
        let datagram = Datagram::subnet_management(LidAddress::Permissive, LidAddress::Permissive, mad);
        let due = now + self.limits.timeout;
        self.deadlines.insert((due, transaction), ());
        self.in_flight.insert(transaction, InFlight { device, request, number, due, in_doubt });
        Some(datagram)
    }

    /// Matches a response to its request. A duplicate response matches none.
    pub fn answered(&mut self, mad: &Mad) -> Option<Answered<P>> {
        // The upper half of a transaction id belongs to the transport.
        let transaction = mad.transaction().0 as u32;
        let request = &self.in_flight.get(&transaction)?.request.mad;
        if (request.attribute(), request.modifier()) != (mad.attribute(), mad.modifier()) {
            return None;
        }
        let InFlight { device, request: Request { purpose, mad: request, .. }, .. } =
            self.take(transaction)?;
        if let Some(queue) = self.devices.get_mut(&device) {
            queue.losses = 0;
        }
        self.progress.done += 1;
        self.window.handle_response();
        Some(Answered { purpose, request })
    }

    /// The transport knows that a request will not be answered: it is sent again, or given up. Returns the purposes of those that are
    /// given up. That takes no time, so nobody waits for the device, and it is not in doubt.
    pub fn lost(&mut self, transaction: TransactionId) -> Vec<P> {
        self.give_up(transaction.0 as u32, false)
    }

    /// Handles timeouts. Returns the purposes of the requests that are given up.
    pub fn handle_timeout(&mut self, now: Duration) -> Vec<P> {
        let mut silent = Vec::new();
        while let Some(((due, transaction), ())) =
            self.deadlines.first_key_value().map(|(key, ())| (*key, ()))
        {
            if due > now {
                break;
            }
            silent.extend(self.give_up(transaction, true));
        }
        silent
    }

    /// When the next request times out.
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.deadlines.first_key_value().map(|((due, _), ())| *due)
    }

    fn give_up(&mut self, transaction: u32, has_timed_out: bool) -> Vec<P> {
        let Some(InFlight { device, mut request, number, in_doubt, .. }) = self.take(transaction) else {
            return Vec::new();
        };
        if !in_doubt {
            self.window.handle_loss(number, self.sent);
        }
        let queue = self.devices.entry(device).or_default();
        if request.is_own && has_timed_out && number > queue.lost_at {
            queue.lost_at = self.sent;
            queue.losses = queue.losses.saturating_add(1);
        }
        let is_dark = queue.losses > self.limits.retries;
        if request.retries_left > 0 && (request.is_own || !is_dark) {
            request.retries_left -= 1;
            self.counts.retries += 1;
            queue.waiting.push_front(request);
            self.waiting += 1;
            self.list(device);
            if has_timed_out {
                self.go_first(device);
            }
            return Vec::new();
        }
        let mut silent = vec![request.purpose];
        if request.is_own && is_dark {
            self.waiting -= queue.waiting.len();
            silent.extend(queue.waiting.drain(..).map(|request| request.purpose));
        }
        self.progress.done += silent.len();
        silent
    }

    /// A device that lost a request goes before others: sooner than with turns it answers, or is in doubt and out of the way.
    fn go_first(&mut self, device: Guid) {
        if self.ready.back() == Some(&device) {
            self.ready.rotate_right(1);
        }
    }

    fn take(&mut self, transaction: u32) -> Option<InFlight<P>> {
        let flight = self.in_flight.remove(&transaction)?;
        self.deadlines.remove(&(flight.due, transaction));
        self.doubtful_in_flight -= usize::from(flight.in_doubt);
        if let Some(queue) = self.devices.get_mut(&flight.device) {
            queue.in_flight -= 1;
            if queue.waiting.is_empty() {
                // Large fabrics have many idle queues.
                queue.waiting = VecDeque::new();
            }
        }
        self.list(flight.device);
        Some(flight)
    }

    /// Puts a device on its list if it has a waiting request and room in its window.
    fn list(&mut self, device: Guid) {
        let Some(queue) = self.devices.get_mut(&device) else { return };
        let (list, limit) = match queue.is_in_doubt() {
            true => (&mut self.doubtful, 1),
            false => (&mut self.ready, self.limits.device_window),
        };
        if !queue.listed && !queue.waiting.is_empty() && queue.in_flight < limit {
            queue.listed = true;
            list.push_back(device);
        }
    }
}

#[cfg(test)]
mod tests;
