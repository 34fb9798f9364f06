//! Outstanding MADs: a window for the whole fabric and one per device, retries and timeouts.
//!
//! Every switch on a directed route handles the datagram in software, VL15 has no flow control, and the switches next to
//! the manager handle all of it. How much they take is unknown, so the window adapts to losses like that of TCP (Jacobson,
//! SIGCOMM 1988): it starts small and grows by one with every response; a loss halves it, and from then on it grows by one
//! with every full window of responses.
//!
//! When a link breaks, hundreds of devices behind it stop answering, which is no congestion. A device that lost requests in two round
//! trips in a row is *in doubt*: it gets one request at a time, outside the adaptive window, so that it holds up nobody else. When
//! one of its requests is given up, the others are, too.

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

/// Round trips in a row with losses after which a device is in doubt.
const DOUBT: u8 = 2;

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
    /// The same of devices in doubt. A device may stand in the wrong list until its turn.
    doubtful: VecDeque<Guid>,
    /// Requests in flight to devices in doubt.
    doubtful_in_flight: usize,
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
    /// Round trips with losses since the last answer.
    losses: u8,
    /// The last transaction that was sent when a loss was last counted. Losses up to it are of the same round trip.
    lost_at: u32,
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
    due: Duration,
    in_doubt: bool,
}

impl<P> MadWindow<P> {
    pub fn new(limits: MadLimits) -> Self {
        Self {
            limits,
            window: AdaptiveWindow::new(limits.window),
            devices: HashMap::new(),
            ready: VecDeque::new(),
            doubtful: VecDeque::new(),
            doubtful_in_flight: 0,
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

    /// Discards requests that wait. Returns the purposes of those among them that were sent before and may have had an effect.
    /// Requests in flight remain.
    pub fn drop_waiting(&mut self) -> Vec<P> {
        self.ready.clear();
        self.doubtful.clear();
        self.waiting = 0;
        let mut sent = Vec::new();
        for queue in self.devices.values_mut() {
            queue.listed = false;
            let waiting = queue.waiting.drain(..);
            sent.extend(waiting.filter(|request| request.is_sent).map(|request| request.purpose));
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
            let in_window = self.in_flight.len() - self.doubtful_in_flight;
            let (list, wants_doubt) = if in_window < self.window.size && !self.ready.is_empty() {
                (&mut self.ready, false)
            } else if self.doubtful_in_flight < self.limits.window {
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
        self.in_flight.insert(self.transactions, InFlight { device, request, due, in_doubt });
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
        let Some(InFlight { device, mut request, in_doubt, .. }) = self.take(transaction) else {
            return Vec::new();
        };
        if !in_doubt {
            self.window.handle_loss(transaction, self.transactions);
        }
        let queue = self.devices.entry(device).or_default();
        if request.is_own && has_timed_out && transaction > queue.lost_at {
            queue.lost_at = self.transactions;
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
            assert!(window.lost(datagram.mad.transaction()).is_empty(), "it is sent again");
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
        assert_eq!(window.lost(again.mad.transaction()), [7], "given up");
        assert!(window.is_idle());
        assert_eq!(window.counts, MadCounts { gets: 2, retries: 1, ..MadCounts::default() });
    }

    /// Sends what may be sent; devices up to `dark` never answer. Returns how many requests were answered.
    fn round_trip(window: &mut MadWindow<u32>, now: Duration, dark: u64, silent: &mut Vec<u32>) -> usize {
        let mut answered = 0;
        while let Some(sent) = window.poll_transmit(now, true) {
            let transaction = sent.mad.transaction().0 as u32;
            if window.in_flight[&transaction].device >= device(dark + 1) {
                answered += usize::from(window.answered(&sent.mad).is_some());
            }
        }
        silent.extend(window.handle_timeout(now + Duration::from_secs(1)));
        answered
    }

    #[test]
    fn silent_devices_hold_up_nobody_else() {
        let limits = MadLimits { window: 64, device_window: 4, timeout: Duration::from_secs(1), retries: 5 };
        let mut window = MadWindow::new(limits);
        for index in 0..600 {
            // 60 devices do not answer, 40 do.
            window.request(device(1 + index % 100), request(), index as u32);
        }
        let (mut silent, mut answered) = (Vec::new(), 0);
        let mut trips = 0;
        while !window.is_idle() {
            answered += round_trip(&mut window, Duration::from_secs(trips), 60, &mut silent);
            trips += 1;
        }
        assert_eq!((answered, silent.len()), (240, 360));
        assert!(trips < 40, "{trips} timeouts, not 360 * 6 / 4");
        // They answer again: one request at a time at first.
        (0..8).for_each(|index| window.request(device(1), request(), index));
        assert_eq!(round_trip(&mut window, Duration::from_secs(trips), 0, &mut silent), 8);
    }

    #[test]
    fn silent_software_says_nothing_about_its_device() {
        let mut window = window(4, 4);
        for index in 0..6 {
            window.request_beyond(RetryPolicy::Once, device(1), request(), index);
        }
        window.request(device(1), request(), 7);
        let mut sent = Vec::new();
        while !window.is_idle() {
            while let Some(datagram) = window.poll_transmit(Duration::ZERO, true) {
                sent.push(datagram);
            }
            let datagram = sent.remove(0);
            match window.in_flight[&(datagram.mad.transaction().0 as u32)].request.purpose {
                7 => assert_eq!(window.answered(&datagram.mad).map(|it| it.purpose), Some(7)),
                purpose => assert_eq!(window.lost(datagram.mad.transaction()), [purpose]),
            }
            assert!(!window.devices[&device(1)].is_in_doubt());
        }
    }

    #[test]
    fn what_was_sent_is_named_when_the_rest_is_dropped() {
        let mut window = window(2, 1);
        (1..=4).for_each(|index| window.request(device(index), request(), index as u32));
        let sent: Vec<Datagram> = std::iter::from_fn(|| window.poll_transmit(Duration::ZERO, true)).collect();
        assert_eq!(sent.len(), 2);
        assert!(window.lost(sent[0].mad.transaction()).is_empty());
        assert_eq!(window.drop_waiting(), [1]);
        assert!(!window.is_idle(), "one is in flight");
        assert!(window.answered(&sent[1].mad).is_some());
        assert!(window.is_idle());
    }
}
