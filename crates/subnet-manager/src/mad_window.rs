//! Outstanding MADs: a window for the whole fabric and one per device, retries and timeouts.
//!
//! Every switch on a directed route handles the datagram in software, VL15 has no flow control, and the switches next to
//! the manager handle all of it. How much they take is unknown, so the window adapts to losses like that of TCP (Jacobson,
//! SIGCOMM 1988): it starts small and grows by one with every response; a loss halves it, and from then on it grows by one
//! with every full window of responses.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use ib_wire::{Datagram, Guid, LidAddress, Mad, Method, PortInfo, TransactionId};

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

/// How many requests may be outstanding now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AdaptiveWindow {
    size: usize,
    max: usize,
    /// Up to this size it grows with every response.
    threshold: usize,
    /// Responses since it last grew.
    credit: usize,
    /// The last transaction that was sent when it was last halved. Losses up to it are of the same congestion.
    halved_at: u32,
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

    /// `transaction` was lost; `last` was the last one sent.
    fn handle_loss(&mut self, transaction: u32, last: u32) {
        if transaction > self.halved_at {
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
    window: AdaptiveWindow,
    devices: HashMap<Guid, Queue<P>>,
    /// Devices with a waiting request and room in their window, each once.
    ready: VecDeque<Guid>,
    in_flight: BTreeMap<u32, InFlight<P>>,
    deadlines: BTreeMap<(Duration, u32), ()>,
    transactions: u32,
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
}

impl<P> Default for Queue<P> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), in_flight: 0, listed: false }
    }
}

#[derive(Debug)]
struct Request<P> {
    mad: Box<Mad>,
    purpose: P,
    retries_left: u8,
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
    due: Duration,
}

impl<P> MadWindow<P> {
    pub fn new(limits: MadLimits) -> Self {
        Self {
            limits,
            window: AdaptiveWindow::new(limits.window),
            devices: HashMap::new(),
            ready: VecDeque::new(),
            in_flight: BTreeMap::new(),
            deadlines: BTreeMap::new(),
            transactions: 0,
            waiting: 0,
            counts: MadCounts::default(),
            progress: MadProgress::default(),
        }
    }

    /// Queues a request to a device.
    pub fn request(&mut self, device: Guid, mad: Mad, purpose: P) {
        self.request_with(RetryPolicy::Limits, device, mad, purpose);
    }

    /// Queues a request to a device with its own retry policy.
    pub fn request_with(&mut self, retry: RetryPolicy, device: Guid, mad: Mad, purpose: P) {
        if self.is_idle() {
            self.progress = MadProgress::default();
        }
        self.progress.total += 1;
        let retries_left = match retry {
            RetryPolicy::Limits => self.limits.retries,
            RetryPolicy::Once => 0,
        };
        let request = Request { mad: Box::new(mad), purpose, retries_left };
        self.devices.entry(device).or_default().waiting.push_back(request);
        self.waiting += 1;
        self.list(device);
    }

    /// Number of requests that were not sent yet.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Discards requests that were not sent yet. Those in flight remain.
    pub fn drop_waiting(&mut self) {
        self.ready.clear();
        self.waiting = 0;
        for queue in self.devices.values_mut() {
            queue.waiting.clear();
            queue.listed = false;
        }
    }

    /// Whether every request was answered or given up.
    pub fn is_idle(&self) -> bool {
        self.in_flight.is_empty() && self.ready.is_empty()
    }

    /// The next datagram that the windows permit to send. Unless Sets may be sent, it waits at the first one.
    pub fn poll_transmit(&mut self, now: Duration, may_set: bool) -> Option<Datagram> {
        if self.in_flight.len() >= self.window.size {
            return None;
        }
        let device = *self.ready.front()?;
        let next = self.devices.get(&device)?.waiting.front();
        if !may_set && next.is_some_and(|next| next.mad.method() == Method::SET) {
            return None;
        }
        self.ready.pop_front();
        let queue = self.devices.get_mut(&device)?;
        queue.listed = false;
        let mut request = queue.waiting.pop_front()?;
        self.waiting -= 1;
        queue.in_flight += 1;
        self.list(device);
        self.transactions = self.transactions.wrapping_add(1).max(1);
        request.mad.set_transaction(TransactionId(self.transactions.into()));
        match request.mad.method() {
            Method::SET if PortInfo::asks_to_register(&request.mad) => self.counts.registrations += 1,
            Method::SET => self.counts.sets += 1,
            _ => self.counts.gets += 1,
        }
        let mad = request.mad.as_ref().clone();
        let datagram = Datagram::subnet_management(LidAddress::Permissive, LidAddress::Permissive, mad);
        let due = now + self.limits.timeout;
        self.deadlines.insert((due, self.transactions), ());
        self.in_flight.insert(self.transactions, InFlight { device, request, due });
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
        let Request { purpose, mad: request, .. } = self.take(transaction)?.request;
        self.progress.done += 1;
        self.window.handle_response();
        Some(Answered { purpose, request })
    }

    /// A request will not be answered. Returns its purpose if it is given up, `None` if it is sent again.
    pub fn lost(&mut self, transaction: TransactionId) -> Option<P> {
        self.give_up(transaction.0 as u32)
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
            silent.extend(self.give_up(transaction));
        }
        silent
    }

    /// When the next request times out.
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.deadlines.first_key_value().map(|((due, _), ())| *due)
    }

    fn give_up(&mut self, transaction: u32) -> Option<P> {
        let InFlight { device, mut request, .. } = self.take(transaction)?;
        self.window.handle_loss(transaction, self.transactions);
        if request.retries_left == 0 {
            self.progress.done += 1;
            return Some(request.purpose);
        }
        request.retries_left -= 1;
        self.counts.retries += 1;
        self.devices.entry(device).or_default().waiting.push_front(request);
        self.waiting += 1;
        self.list(device);
        None
    }

    fn take(&mut self, transaction: u32) -> Option<InFlight<P>> {
        let flight = self.in_flight.remove(&transaction)?;
        self.deadlines.remove(&(flight.due, transaction));
        if let Some(queue) = self.devices.get_mut(&flight.device) {
            queue.in_flight -= 1;
        }
        self.list(flight.device);
        Some(flight)
    }

    /// Puts a device on the ready list if it has a waiting request and room in its window.
    fn list(&mut self, device: Guid) {
        let Some(queue) = self.devices.get_mut(&device) else { return };
        if !queue.listed && !queue.waiting.is_empty() && queue.in_flight < self.limits.device_window {
            queue.listed = true;
            self.ready.push_back(device);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ib_wire::{Attribute, DirectedRoute};

    fn window(window: usize, device_window: usize) -> MadWindow<u32> {
        MadWindow::new(MadLimits { window, device_window, timeout: Duration::from_secs(1), retries: 1 })
    }

    fn device(raw: u64) -> Guid {
        Guid::from_wire(raw).unwrap()
    }

    fn request() -> Mad {
        Mad::directed(Method::GET, Attribute::NODE_INFO, 0, &DirectedRoute::default())
    }

    #[test]
    fn windows_bound_what_is_in_flight() {
        let mut window = window(3, 1);
        for index in 0..8 {
            window.request(device(1 + index % 2), request(), index as u32);
        }
        let sent = std::iter::from_fn(|| window.poll_transmit(Duration::ZERO, true)).count();
        assert_eq!(sent, 2, "one towards each of two devices");
        window.request(device(3), request(), 8);
        window.request(device(4), request(), 9);
        let sent = std::iter::from_fn(|| window.poll_transmit(Duration::ZERO, true)).count();
        assert_eq!(sent, 1, "three altogether");
    }

    #[test]
    fn the_window_grows_with_responses_and_halves_with_losses() {
        let mut window = window(64, 64);
        (0..1000).for_each(|index| window.request(device(1), request(), index));
        let send = |window: &mut MadWindow<u32>| -> Vec<Datagram> {
            std::iter::from_fn(|| window.poll_transmit(Duration::ZERO, true)).collect()
        };
        let mut sizes = Vec::new();
        let mut sent = send(&mut window);
        for _ in 0..5 {
            sizes.push(sent.len());
            sent.iter().for_each(|datagram| assert!(window.answered(&datagram.mad).is_some()));
            sent = send(&mut window);
        }
        assert_eq!(sizes, [4, 8, 16, 32, 64], "doubled in every round trip, up to the limit");
        // All that are in flight are lost at once: that is one congestion.
        for datagram in &sent {
            assert_eq!(window.lost(datagram.mad.transaction()), None, "it is sent again");
        }
        sent = send(&mut window);
        assert_eq!(sent.len(), 32);
        sent.iter().for_each(|datagram| assert!(window.answered(&datagram.mad).is_some()));
        assert_eq!(send(&mut window).len(), 33, "one more in every round trip");
    }

    #[test]
    fn without_a_lease_reads_are_sent_and_sets_wait() {
        let mut window = window(8, 8);
        let mut set = request();
        set.set_method(Method::SET);
        for (index, mad) in [request(), set, request()].into_iter().enumerate() {
            window.request(device(1), mad, index as u32);
        }
        assert!(window.poll_transmit(Duration::ZERO, false).is_some());
        assert!(window.poll_transmit(Duration::ZERO, false).is_none(), "the Set waits, and what follows it");
        let methods = std::iter::from_fn(|| window.poll_transmit(Duration::ZERO, true));
        assert_eq!(methods.map(|sent| sent.mad.method()).collect::<Vec<_>>(), [Method::SET, Method::GET]);
    }

    #[test]
    fn a_response_frees_the_window_once() {
        let mut window = window(1, 1);
        window.request(device(1), request(), 7);
        window.request(device(1), request(), 8);
        let first = window.poll_transmit(Duration::ZERO, true).unwrap();
        assert!(window.poll_transmit(Duration::ZERO, true).is_none());
        assert_eq!(window.answered(&first.mad).map(|answer| answer.purpose), Some(7));
        assert!(window.answered(&first.mad).is_none(), "a duplicate");
        assert!(window.poll_transmit(Duration::ZERO, true).is_some());
    }

    #[test]
    fn a_request_without_response_is_retried_and_given_up() {
        let mut window = window(4, 4);
        window.request(device(1), request(), 7);
        window.poll_transmit(Duration::ZERO, true).unwrap();
        assert!(window.handle_timeout(Duration::from_millis(999)).is_empty());
        assert!(window.handle_timeout(Duration::from_secs(1)).is_empty(), "sent again");
        let again = window.poll_transmit(Duration::from_secs(1), true).unwrap();
        assert_eq!(window.lost(again.mad.transaction()), Some(7), "given up");
        assert!(window.is_idle());
        assert_eq!(window.counts, MadCounts { gets: 2, retries: 1, ..MadCounts::default() });
    }
}
