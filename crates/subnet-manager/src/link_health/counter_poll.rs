//! Reads the counters of all ports in turn, a few with each sweep. Agents of performance management (PMA) answer at QP1, by
//! LID.
//!
//! Where a service level is reserved for management, the data that adapters sent at it are read, too, in a round of its own: it
//! has fewer ports, and the counters must not be saturated before they are read.
//!
//! A request that is not answered is not repeated: the port is asked again in the next round. A device that does not answer
//! several in a row is asked rarely. Both are no fault, because tables and links can be read without this class.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use fabric_model::intent::PortName;
use ib_wire::congestion::SwitchCongestionSetting;
use ib_wire::perf::{CounterSelect, PortCounters, SlDataCounters};
use ib_wire::{
    Attribute, Datagram, Guid, Lid, LidAddress, Mad, ManagementClass, Method, Pkey, PortNum, PortState,
    ServiceLevel, Status, TransactionId,
};

use super::counters::ErrorCounts;
use crate::event::SmEvent;
use crate::manager::Manager;
use crate::observed::ObservedNode;

/// Requests in flight, at most one of them to a device. Few, because they share lanes with tenants' data.
const IN_FLIGHT_MAX: usize = 16;

/// Time after which a request counts as unanswered.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// Requests in a row that a device may leave unanswered. Answers can be late: they share lanes with tenants' data.
const MISSES_MAX: u8 = 3;

/// Rounds in which a device is not asked after it did not answer.
const ROUNDS_SKIPPED: u8 = 8;

/// The upper half of the transactions that a manager uses, so that they are not mistaken for those of subnet management.
const TRANSACTIONS: u32 = 0x8000_0000;

/// Requests for counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CounterPollCounts {
    pub reads: u64,
    /// Requests that were not answered, or answered with an error.
    pub unanswered: u64,
    /// Counters that were reset because they were saturated, by port.
    pub resets: u64,
}

#[derive(Debug, Default)]
pub(crate) struct CounterPoll {
    /// Ports whose error counters remain to be read in this round, the next one last.
    round: Vec<PortName>,
    /// The same for data by service level.
    level_round: Vec<PortName>,
    /// What this sweep reads.
    due: VecDeque<(PortName, CounterRequest)>,
    /// Requests that follow from what was read.
    follow_ups: VecDeque<(PortName, CounterRequest)>,
    in_flight: BTreeMap<u32, Asked>,
    busy: BTreeSet<Guid>,
    /// Requests in a row that devices did not answer.
    missed: BTreeMap<Guid, u8>,
    /// Devices that did not answer, with the rounds for which they are left in peace.
    skipped: BTreeMap<Guid, u8>,
    /// Devices that do not count by service level.
    without_levels: BTreeSet<Guid>,
    transactions: u32,
    counts: CounterPollCounts,
}

/// A request for counters of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CounterRequest {
    /// The error counters of the port.
    Errors,
    ResetErrors(CounterSelect),
    /// Data received, by service level.
    Levels,
    ResetLevel(ServiceLevel),
    /// Whether a switch marks packets for congestion control.
    Congestion,
}

impl CounterRequest {
    fn class(self) -> ManagementClass {
        match self {
            Self::Congestion => ManagementClass::CONGESTION,
            _ => ManagementClass::PERFORMANCE,
        }
    }

    fn method(self) -> Method {
        match self {
            Self::Errors | Self::Levels | Self::Congestion => Method::GET,
            Self::ResetErrors(_) | Self::ResetLevel(_) => Method::SET,
        }
    }

    fn attribute(self) -> Attribute {
        match self {
            Self::Errors | Self::ResetErrors(_) => Attribute::PORT_COUNTERS,
            Self::Levels | Self::ResetLevel(_) => Attribute::PORT_RCV_DATA_SL,
            Self::Congestion => SwitchCongestionSetting::ATTRIBUTE,
        }
    }

    /// The attribute data. Without CounterSelect nothing is written. All values are 0, because devices may store them
    /// (A-COUNT-3).
    fn write(self, port: PortNum, mad: &mut Mad) -> Option<()> {
        let data = mad.perf_data_mut();
        match self {
            Self::Errors | Self::ResetErrors(_) => {
                let mut request = PortCounters::decode(&[0; PortCounters::LEN]).ok()?;
                request.port = port.to_wire();
                if let Self::ResetErrors(select) = self {
                    request.select = select;
                }
                data[..PortCounters::LEN].copy_from_slice(&request.encode());
            }
            Self::Levels | Self::ResetLevel(_) => {
                let mut request = SlDataCounters { port: port.to_wire(), ..SlDataCounters::default() };
                if let Self::ResetLevel(sl) = self {
                    request.select = 1 << sl.to_wire();
                }
                data[..SlDataCounters::LEN].copy_from_slice(&request.encode());
            }
            Self::Congestion => {}
        }
        Some(())
    }
}

#[derive(Debug)]
struct Asked {
    port: PortName,
    lid: Lid,
    request: CounterRequest,
    due: Duration,
}

impl CounterPoll {
    pub fn counts(&self) -> CounterPollCounts {
        self.counts
    }

    /// Starts the reads of a sweep, `count` of each kind. `all` and `levels` list the ports of a new round when the current one
    /// is used up. Returns whether a new round of error counters began.
    pub fn begin_sweep(
        &mut self,
        count: usize,
        all: impl FnOnce() -> Vec<PortName>,
        levels: impl FnOnce() -> Vec<PortName>,
    ) -> bool {
        if !self.due.is_empty() || count == 0 {
            return false;
        }
        let is_new_round = self.round.is_empty();
        if is_new_round {
            self.skipped.retain(|_, rounds| {
                *rounds -= 1;
                *rounds > 0
            });
            self.round = self.in_turn(all());
        }
        if self.level_round.is_empty() {
            self.level_round = self.in_turn(levels());
            self.level_round.retain(|port| !self.without_levels.contains(&port.node));
        }
        let kinds =
            [(&mut self.level_round, CounterRequest::Levels), (&mut self.round, CounterRequest::Errors)];
        for (round, request) in kinds {
            let rest = round.len().saturating_sub(count);
            self.due.extend(round.split_off(rest).into_iter().rev().map(|port| (port, request)));
        }
        is_new_round
    }

    /// Ports of a round, the first one last: devices take turns.
    fn in_turn(&self, mut ports: Vec<PortName>) -> Vec<PortName> {
        ports.retain(|port| !self.skipped.contains_key(&port.node));
        ports.sort_unstable_by_key(|port| std::cmp::Reverse((port.port, port.node)));
        ports
    }

    /// Starts reading the error counters of ports, and the congestion settings of switches, for a survey.
    pub fn begin_survey(&mut self, ports: impl IntoIterator<Item = PortName>, switches: Vec<Guid>) {
        let errors = ports.into_iter().map(|port| (port, CounterRequest::Errors));
        let port_0 = |node| PortName { node, port: PortNum::MANAGEMENT };
        let settings = switches.into_iter().map(|node| (port_0(node), CounterRequest::Congestion));
        self.follow_ups.extend(settings.chain(errors));
    }

    /// Whether nothing is left to ask or to be answered.
    pub fn is_idle(&self) -> bool {
        self.due.is_empty() && self.follow_ups.is_empty() && self.in_flight.is_empty()
    }

    /// The next port to ask, and for what.
    fn next(&mut self) -> Option<(PortName, CounterRequest)> {
        if self.in_flight.len() >= IN_FLIGHT_MAX {
            return None;
        }
        if let Some(index) = self.follow_ups.iter().position(|(port, _)| !self.busy.contains(&port.node)) {
            return self.follow_ups.remove(index);
        }
        let index = self.due.iter().position(|(port, _)| !self.busy.contains(&port.node))?;
        self.due.remove(index)
    }

    fn note_sent(&mut self, asked: Asked) -> TransactionId {
        self.transactions = self.transactions.wrapping_add(1);
        let transaction = TRANSACTIONS | self.transactions;
        self.busy.insert(asked.port.node);
        self.in_flight.insert(transaction, asked);
        TransactionId(transaction.into())
    }

    fn take(&mut self, transaction: u32) -> Option<Asked> {
        let asked = self.in_flight.remove(&transaction)?;
        self.busy.remove(&asked.port.node);
        Some(asked)
    }

    /// A request gets no answer.
    pub fn lost(&mut self, transaction: TransactionId) {
        // The upper half of a transaction id belongs to the transport.
        if let Some(asked) = self.take(transaction.0 as u32) {
            self.note_missed(asked.port.node);
        }
    }

    /// A device did not answer a request. Gives it up after several in a row.
    fn note_missed(&mut self, node: Guid) {
        self.counts.unanswered += 1;
        let missed = self.missed.entry(node).or_default();
        *missed += 1;
        if *missed >= MISSES_MAX {
            self.give_up(node);
        }
    }

    /// A device does not answer, or has no such agent: its other ports are not asked.
    fn give_up(&mut self, node: Guid) {
        self.missed.remove(&node);
        self.skipped.insert(node, ROUNDS_SKIPPED);
        self.due.retain(|(port, _)| port.node != node);
        self.round.retain(|port| port.node != node);
        self.level_round.retain(|port| port.node != node);
        self.follow_ups.retain(|(port, _)| port.node != node);
    }

    /// A device does not count by service level.
    fn forget_levels(&mut self, node: Guid) {
        self.without_levels.insert(node);
        self.due.retain(|(port, request)| port.node != node || *request != CounterRequest::Levels);
        self.level_round.retain(|port| port.node != node);
    }

    pub fn handle_timeout(&mut self, now: Duration) {
        let late = self.in_flight.iter().filter(|(_, asked)| asked.due <= now);
        let late: Vec<u32> = late.map(|(transaction, _)| *transaction).collect();
        for transaction in late {
            self.lost(TransactionId(transaction.into()));
        }
    }

    pub fn poll_timeout(&self) -> Option<Duration> {
        self.in_flight.values().map(|asked| asked.due).min()
    }
}

impl Manager {
    /// Starts the reads of counters that belong to a sweep. Devices have LIDs and routes only while a plan is in force.
    pub(crate) fn sweep_counters(&mut self) {
        if self.in_force.is_none() {
            return;
        }
        let nodes = &self.observed.nodes;
        let all = || {
            let ports = |(guid, node): (&Guid, &ObservedNode)| -> Vec<PortName> {
                let is_asked = |port: &&PortNum| agent_lid(node, **port).is_some();
                node.links.keys().filter(is_asked).map(|port| PortName { node: *guid, port: *port }).collect()
            };
            nodes.iter().flat_map(ports).collect::<Vec<_>>()
        };
        let count = self.health.settings().ports_per_sweep;
        let senders: Vec<PortName> = if self.counter_poll.level_round.is_empty() {
            all().into_iter().filter(|port| self.management_sender(*port).is_some()).collect()
        } else {
            Vec::new()
        };
        if self.counter_poll.begin_sweep(count, all, || senders) {
            let is_known = |port: PortName| {
                nodes.get(&port.node).is_some_and(|node| node.ports.contains_key(&port.port))
            };
            self.health.forget_old(self.now, is_known);
            self.management_use.retain(is_known);
        }
    }

    /// The next request for counters.
    pub(crate) fn poll_counters(&mut self, now: Duration) -> Option<Datagram> {
        loop {
            let (own, sl) = self.counter_reader()?;
            let (port, request) = self.counter_poll.next()?;
            let lid = self.observed.nodes.get(&port.node).and_then(|node| agent_lid(node, port.port));
            let Some(lid) = lid else { continue };
            let mut mad = Mad::new(request.class(), request.method(), request.attribute(), 0);
            let asked = Asked { port, lid, request, due: now + ANSWER_TIMEOUT };
            mad.set_transaction(self.counter_poll.note_sent(asked));
            request.write(port.port, &mut mad)?;
            let (own, dlid) = (LidAddress::Unicast(own), LidAddress::Unicast(lid));
            return Some(Datagram { sl, ..Datagram::general_management(own, dlid, Pkey::DEFAULT_FULL, mad) });
        }
    }

    /// The LID and service level that counters are read with: those of the plan in force, or in a survey those that another
    /// manager gave.
    pub(crate) fn counter_reader(&self) -> Option<(Lid, ServiceLevel)> {
        if let Some(plan) = &self.in_force {
            return Some((plan.manager().lid, plan.management_service_level()));
        }
        self.survey_notes.as_ref()?;
        let own = self.observed.own?;
        let info = self.observed.nodes.get(&own.node)?.ports.get(&own.number)?;
        Some((info.lid?, info.master_sm_sl))
    }

    /// Handles an answer of performance management or congestion control.
    pub(crate) fn handle_counters(&mut self, now: Duration, datagram: &Datagram) {
        let mad = &datagram.mad;
        let transaction = mad.transaction().0 as u32;
        let is_asked = |asked: &Asked| {
            datagram.slid == LidAddress::Unicast(asked.lid)
                && (mad.class(), mad.attribute()) == (asked.request.class(), asked.request.attribute())
        };
        if mad.method() != Method::GET_RESP
            || !self.counter_poll.in_flight.get(&transaction).is_some_and(is_asked)
        {
            return;
        }
        let Some(Asked { port, request, .. }) = self.counter_poll.take(transaction) else { return };
        // Both kinds of counters begin with the port.
        let is_about_port = mad.status() != Status::OK
            || request == CounterRequest::Congestion
            || mad.perf_data()[1] == port.port.to_wire();
        if mad.status() == Status::BUSY || !is_about_port {
            return self.counter_poll.note_missed(port.node);
        }
        self.counter_poll.missed.remove(&port.node);
        let is_right = mad.status() == Status::OK;
        match request {
            CounterRequest::Congestion => {
                let is_on = SwitchCongestionSetting::decode(mad.perf_data()).is_on();
                if let Some(notes) = self.survey_notes.as_mut().filter(|_| is_right) {
                    notes.marking.insert(port.node, is_on);
                }
            }
            CounterRequest::Levels | CounterRequest::ResetLevel(_) if !is_right => {
                self.counter_poll.forget_levels(port.node);
            }
            _ if !is_right => {
                self.counter_poll.counts.unanswered += 1;
                self.counter_poll.give_up(port.node);
            }
            CounterRequest::Errors => self.handle_errors(now, port, mad),
            CounterRequest::Levels => {
                self.handle_levels(now, port, &SlDataCounters::decode(mad.perf_data()).words);
            }
            CounterRequest::ResetErrors(_) => self.counter_poll.counts.resets += 1,
            CounterRequest::ResetLevel(_) => self.management_use.note_reset(now, port),
        }
    }

    fn handle_errors(&mut self, now: Duration, port: PortName, mad: &Mad) {
        let Ok(counters) = PortCounters::decode(mad.perf_data()) else { return };
        self.counter_poll.counts.reads += 1;
        let counts = ErrorCounts::of(&counters);
        if let Some(notes) = &mut self.survey_notes {
            notes.errors.insert(port, counts);
            return;
        }
        let Some(peer) = self.peer(port) else { return };
        self.health.handle_counters(now, port, peer, counts);
        let saturated = counts.saturated();
        if saturated != CounterSelect::default() {
            self.counter_poll.follow_ups.push_back((port, CounterRequest::ResetErrors(saturated)));
        }
    }

    /// Judges the data that a switch port received by service level.
    fn handle_levels(&mut self, now: Duration, port: PortName, words: &[u32; 16]) {
        let Some((sender, sl)) = self.management_sender(port) else { return };
        let count = words[usize::from(sl.to_wire())];
        let limit = self.health.settings().management_bytes_per_second;
        if let Some(bytes_per_second) = self.management_use.note(now, port, count, limit) {
            self.emit(SmEvent::ManagementFlood { port: sender, bytes_per_second });
        }
        if count > u32::MAX / 2 {
            self.counter_poll.follow_ups.push_back((port, CounterRequest::ResetLevel(sl)));
        }
    }

    /// If a switch port leads to an adapter port other than the manager's, and a service level is reserved for management:
    /// that adapter port's GUID, and the service level.
    fn management_sender(&self, port: PortName) -> Option<(Guid, ServiceLevel)> {
        let plan = self.in_force.as_ref()?;
        let sl = plan.management_service_level();
        if sl == ServiceLevel::default() || !self.observed.nodes.get(&port.node)?.is_switch() {
            return None;
        }
        let PortName { node, port } = self.peer(port)?;
        let adapter = self.observed.nodes.get(&node).filter(|node| !node.is_switch())?;
        let sender = *adapter.port_guids.get(&port)?;
        (sender != plan.manager().guid).then_some((sender, sl))
    }

    /// The port at the other end of a link.
    pub(crate) fn peer(&self, port: PortName) -> Option<PortName> {
        let (node, port) = *self.observed.nodes.get(&port.node)?.links.get(&port.port)?;
        Some(PortName { node, port })
    }
}

/// The LID at which a device answers for a port: that of the switch, or of the active adapter port.
fn agent_lid(node: &ObservedNode, port: PortNum) -> Option<Lid> {
    if node.is_switch() {
        return node.ports.get(&PortNum::MANAGEMENT)?.lid;
    }
    node.ports.get(&port).filter(|info| info.state == PortState::Active)?.lid
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(node: u64, port: u8) -> PortName {
        PortName { node: Guid::from_wire(node).unwrap(), port: PortNum::new(port).unwrap() }
    }

    fn asked(port: PortName) -> Asked {
        Asked { port, lid: Lid::from_wire(1).unwrap(), request: CounterRequest::Errors, due: ANSWER_TIMEOUT }
    }

    #[test]
    fn sweeps_read_all_ports_in_turn() {
        let mut poll = CounterPoll::default();
        let all = || vec![port(1, 1), port(1, 2), port(2, 1)];
        let hosts = || vec![port(2, 1)];
        let due = |poll: &mut CounterPoll| std::mem::take(&mut poll.due).into_iter().collect::<Vec<_>>();
        let errors = |port| (port, CounterRequest::Errors);
        let levels = (port(2, 1), CounterRequest::Levels);
        assert!(poll.begin_sweep(2, all, hosts));
        let over = || panic!("this sweep is not over");
        assert!(!poll.begin_sweep(2, over, over));
        assert_eq!(due(&mut poll), [levels, errors(port(1, 1)), errors(port(2, 1))]);
        assert!(!poll.begin_sweep(2, || panic!("the round is not over"), hosts), "that of levels is");
        assert_eq!(due(&mut poll), [levels, errors(port(1, 2))]);
        assert!(poll.begin_sweep(2, all, hosts));
    }

    #[test]
    fn a_device_has_one_request_at_a_time() {
        let mut poll = CounterPoll::default();
        poll.begin_sweep(9, || vec![port(1, 1), port(1, 2), port(2, 2)], Vec::new);
        let mut transactions = Vec::new();
        while let Some((port, CounterRequest::Errors)) = poll.next() {
            transactions.push((poll.note_sent(asked(port)), port));
        }
        assert_eq!(transactions.iter().map(|(_, port)| *port).collect::<Vec<_>>(), [port(1, 1), port(2, 2)]);
        poll.take(transactions[0].0.0 as u32);
        assert_eq!(poll.next(), Some((port(1, 2), CounterRequest::Errors)));
    }

    #[test]
    fn a_device_that_does_not_answer_is_asked_rarely() {
        let mut poll = CounterPoll::default();
        let all = || vec![port(1, 1), port(1, 2), port(2, 1)];
        let mut asked_rounds = Vec::new();
        for round in 0..20 {
            poll.begin_sweep(9, all, Vec::new);
            while let Some((port, _)) = poll.next() {
                let transaction = poll.note_sent(asked(port));
                if port.node == Guid::from_wire(1).unwrap() {
                    asked_rounds.push(round);
                } else {
                    poll.take(transaction.0 as u32);
                }
            }
            poll.handle_timeout(ANSWER_TIMEOUT);
        }
        assert_eq!(asked_rounds, [0, 1, 2, 10, 11, 12], "three times, and then not for long");
        assert_eq!(poll.counts().unanswered, 6);
    }

    #[test]
    fn a_late_answer_hides_no_other_port() {
        let mut poll = CounterPoll::default();
        let all = || (1..=4).map(|number| port(1, number)).collect();
        for round in 0..6 {
            poll.begin_sweep(9, all, Vec::new);
            let mut read = 0;
            while let Some((port, _)) = poll.next() {
                let transaction = poll.note_sent(asked(port));
                if port.port.to_wire() == 2 {
                    poll.handle_timeout(ANSWER_TIMEOUT);
                } else {
                    poll.take(transaction.0 as u32);
                    poll.missed.remove(&port.node);
                    read += 1;
                }
            }
            assert_eq!(read, 3, "in round {round}");
        }
    }
}
