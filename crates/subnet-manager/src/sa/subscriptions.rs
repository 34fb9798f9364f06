//! Subscriptions to notices (InformInfo), and the reports that subscribers get.
//!
//! Who learns what: notices 64 to 67 (a GID comes or goes, a multicast group begins or ends) reach only subscribers that may see
//! the GID, that is share a partition with it. All others are about devices and come from anywhere: they reach only the manager's
//! own port and the ports that the operator named.
//!
//! A report is repeated until the subscriber responds, [`TRIES`] times. One report of a subscriber is under way at a time, so a
//! port that does not answer delays nobody else.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::ControlFlow;
use std::time::Duration;

use ib_wire::notice::{InformInfo, InformInfoRecord, InformScope, Notice, NoticeEvent, Subscription};
use ib_wire::sa::Pattern;
use ib_wire::{
    Attribute, Datagram, Gid, Grh, Guid, LidAddress, Mad, ManagementClass, Method, QKey, QueuePair, Status,
    TransactionId,
};

use super::directory::{Directory, EndPort};
use super::inventory::add_if;
use super::query::{Answer, Query};

/// Limit on subscriptions of one port. Programs use up to four.
const PORT_SUBSCRIPTIONS_MAX: usize = 32;
/// Limit on reports that wait for one port. Further ones are dropped and counted.
const PORT_REPORTS_MAX: usize = 256;
/// Time to wait for the response to a report.
const REPORT_TIMEOUT: Duration = Duration::from_secs(1);
/// How often a report is sent before it is given up.
const TRIES: u8 = 3;

/// A notice to report, and who may learn of it.
#[derive(Clone, Debug)]
pub(super) struct Reportable {
    pub notice: Notice,
    /// LID of the port that the notice is about, if any; subscriptions may select a range of LIDs.
    pub about: Option<LidAddress>,
}

/// The subscriptions of all ports, and reports that were not answered yet.
#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    by_port: BTreeMap<Guid, Vec<InformInfo>>,
    /// Reports by subscriber; the first is under way once it was sent.
    waiting: BTreeMap<Guid, VecDeque<Report>>,
    /// Ports with a report to send now.
    ready: BTreeSet<Guid>,
    transaction: u32,
    dropped: u64,
    sent: u64,
}

#[derive(Debug)]
struct Report {
    notice: Notice,
    qp: QueuePair,
    transaction: TransactionId,
    tries: u8,
    due: Option<Duration>,
}

impl Subscriptions {
    /// Set(InformInfo): a port subscribes or unsubscribes. The response repeats the request.
    pub fn set(
        &mut self,
        requester: &EndPort,
        request: &Mad,
        sender: QueuePair,
    ) -> Result<InformInfo, Status> {
        let mut inform = InformInfo::decode(request.sa_data()).map_err(|_| Status::SA_REQUEST_INVALID)?;
        if inform.qp == QueuePair::SUBNET_MANAGEMENT {
            // No reports go to that queue pair: the one that the request came from is meant.
            inform.qp = sender;
        }
        let own = self.by_port.entry(requester.guid).or_default();
        let known = own.iter().position(|known| is_same(known, &inform));
        let result = match (inform.subscription, known) {
            (Subscription::Subscribe, None) if own.len() >= PORT_SUBSCRIPTIONS_MAX => {
                Err(Status::SA_NO_RESOURCES)
            }
            (Subscription::Subscribe, None) => {
                own.push(inform.clone());
                Ok(inform)
            }
            (Subscription::Subscribe, Some(_)) => Ok(inform),
            (Subscription::Unsubscribe, Some(index)) => {
                own.remove(index);
                Ok(inform)
            }
            (Subscription::Unsubscribe, None) | (Subscription::Unknown(_), _) => {
                Err(Status::SA_REQUEST_INVALID)
            }
        };
        if own.is_empty() {
            self.by_port.remove(&requester.guid);
        }
        result
    }

    /// Number of ports with subscriptions.
    pub fn subscriber_count(&self) -> usize {
        self.by_port.len()
    }

    /// Ports with a subscription to a generic notice of this number.
    pub fn subscribers(&self, number: u16) -> impl Iterator<Item = Guid> {
        let wants = move |inform: &InformInfo| {
            inform.scope == InformScope::Generic && is_either(inform.number, number, InformInfo::ALL)
        };
        self.by_port.iter().filter(move |(_, own)| own.iter().any(wants)).map(|(guid, _)| *guid)
    }

    /// Queues a report of a notice for a port, once for each queue pair with a subscription that the notice matches. The
    /// caller has checked that the port may learn of it.
    pub fn report(&mut self, port: Guid, what: &Reportable) {
        let own = self.by_port.get(&port).map_or(&[][..], Vec::as_slice);
        let pairs: BTreeSet<QueuePair> =
            own.iter().filter(|inform| is_matched(inform, what)).map(|inform| inform.qp).collect();
        for qp in pairs {
            let queue = self.waiting.entry(port).or_default();
            if queue.len() >= PORT_REPORTS_MAX {
                self.dropped += 1;
                continue;
            }
            self.transaction = self.transaction.wrapping_add(1);
            let transaction = TransactionId(self.transaction.into());
            queue.push_back(Report { notice: what.notice.clone(), qp, transaction, tries: 0, due: None });
            if queue.len() == 1 {
                self.ready.insert(port);
            }
        }
    }

    /// ReportResp: the port has the report.
    pub fn answered(&mut self, port: Guid, mad: &Mad) {
        let Some(queue) = self.waiting.get_mut(&port) else { return };
        // The upper bits belong to the transport.
        let is_its = |report: &Report| report.transaction.0 as u32 == mad.transaction().0 as u32;
        if queue.front().is_some_and(|report| report.tries > 0 && is_its(report)) {
            self.advance(port);
        }
    }

    /// Sends reports again that were not answered in time, and gives up those that never were.
    pub fn handle_timeout(&mut self, now: Duration) {
        let is_due = |queue: &VecDeque<Report>| queue.front().is_some_and(|report| report.due <= Some(now));
        let sent = |port: &Guid| !self.ready.contains(port);
        let due: Vec<Guid> = (self.waiting.iter())
            .filter(|(port, queue)| sent(port) && is_due(queue))
            .map(|(port, _)| *port)
            .collect();
        for port in due {
            let tries = self.waiting.get(&port).and_then(VecDeque::front).map_or(0, |report| report.tries);
            if tries < TRIES {
                self.ready.insert(port);
            } else {
                self.dropped += 1;
                self.advance(port);
            }
        }
    }

    pub fn poll_timeout(&self) -> Option<Duration> {
        let first = self.waiting.iter().filter(|(port, _)| !self.ready.contains(port));
        first.filter_map(|(_, queue)| queue.front()?.due).min()
    }

    /// The next report to send.
    pub fn poll_transmit(&mut self, now: Duration, directory: &Directory) -> Option<Datagram> {
        while let Some(port) = self.ready.pop_first() {
            let Some(report) = self.waiting.get_mut(&port).and_then(VecDeque::front_mut) else { continue };
            report.tries += 1;
            report.due = Some(now + REPORT_TIMEOUT);
            if let Some(datagram) = directory.port_by_guid(port).and_then(|to| report.datagram(directory, to))
            {
                self.sent += 1;
                return Some(datagram);
            }
        }
        None
    }

    /// Forgets ports that are gone.
    pub fn restrict_to(&mut self, directory: &Directory) {
        self.by_port.retain(|port, _| directory.port_by_guid(*port).is_some());
        self.waiting.retain(|port, _| directory.port_by_guid(*port).is_some());
        self.ready.retain(|port| self.waiting.contains_key(port));
    }

    /// Reports that were sent, repetitions included.
    pub fn reports_sent(&self) -> u64 {
        self.sent
    }

    /// Reports that no subscriber answered, or for which there was no room.
    pub fn reports_dropped(&self) -> u64 {
        self.dropped
    }

    fn advance(&mut self, port: Guid) {
        let Some(queue) = self.waiting.get_mut(&port) else { return };
        queue.pop_front();
        if queue.is_empty() {
            self.waiting.remove(&port);
        } else {
            self.ready.insert(port);
        }
    }
}

impl Report {
    fn datagram(&self, directory: &Directory, to: &EndPort) -> Option<Datagram> {
        let manager = directory.manager_port()?;
        // An alias may be in fewer partitions than its port.
        let port = directory.port_by_guid(to.port_guid)?;
        let shared = directory.shared(manager, port);
        let pkey = match shared {
            Some(shared) => shared.key,
            None if manager.guid == port.guid => port.pkeys.keys().next()?,
            None => return None,
        };
        let grh = to.is_alias().then(|| Grh {
            source: manager.gid(),
            destination: to.gid(),
            traffic_class: 0,
            flow_label: 0,
            hop_limit: u8::MAX,
        });
        let mut mad = Mad::new(ManagementClass::SUBNET_ADMINISTRATION, Method::REPORT, Attribute::NOTICE, 0);
        mad.set_transaction(self.transaction);
        mad.sa_data_mut()[..Notice::LEN].copy_from_slice(&self.notice.encode());
        let sl = shared.map(|shared| directory.service_level(manager, port, shared)).unwrap_or_default();
        Some(Datagram {
            slid: manager.lid.into(),
            dlid: to.lid.into(),
            sl,
            grh,
            pkey,
            qkey: QKey::GENERAL_MANAGEMENT,
            sqp: QueuePair::GENERAL_MANAGEMENT,
            dqp: self.qp,
            mad,
        })
    }
}

/// InformInfoRecord: a port sees its own subscriptions, the manager's port all.
pub(super) fn records(query: &Query<'_>, answer: &mut Answer) -> ControlFlow<()> {
    let matcher = Pattern::<InformInfoRecord>::of(query.request).matcher();
    let all = &query.subscriptions.by_port;
    let own = query.requester.guid;
    let seen = all.range(own..=own).filter(|_| !query.is_manager);
    for (port, own) in seen.chain(all.iter().filter(|_| query.is_manager)) {
        answer.examine()?;
        let Some(port) = query.directory.port_by_guid(*port) else { continue };
        for (inform, subscriber_enum) in own.iter().zip(0..) {
            answer.examine()?;
            let record =
                InformInfoRecord { subscriber: port.gid(), subscriber_enum, inform_info: inform.clone() };
            add_if(&matcher, &record.encode(), answer)?;
        }
    }
    ControlFlow::Continue(())
}

/// Whether two requests are about the same subscription.
fn is_same(a: &InformInfo, b: &InformInfo) -> bool {
    let key = |inform: &InformInfo| InformInfo {
        subscription: Subscription::Subscribe,
        response_time: 0,
        ..inform.clone()
    };
    key(a) == key(b)
}

fn is_either<T: PartialEq>(value: T, wanted: T, all: T) -> bool {
    value == wanted || value == all
}

/// Whether a notice meets the criteria of a subscription.
fn is_matched(inform: &InformInfo, what: &Reportable) -> bool {
    let Reportable { notice, about } = what;
    let is_meant = match &notice.event {
        NoticeEvent::Generic { producer, trap } => {
            inform.scope == InformScope::Generic
                && is_either(inform.number, trap.number(), InformInfo::ALL)
                && is_either(inform.producer_or_vendor, producer.to_wire(), InformInfo::ALL_PRODUCERS)
        }
        NoticeEvent::Vendor { vendor_id, device_id, .. } => {
            inform.scope == InformScope::Vendor
                && is_either(inform.number, *device_id, InformInfo::ALL)
                && is_either(inform.producer_or_vendor, *vendor_id, InformInfo::ALL_PRODUCERS)
        }
    };
    let is_from = if inform.gid != Gid::default() {
        inform.gid == notice.issuer_gid
    } else {
        is_in_range(inform, notice.issuer_lid) || is_in_range(inform, *about)
    };
    is_meant && is_from && is_either(inform.kind, u16::from(notice.kind.to_wire()), InformInfo::ALL)
}

/// Whether a LID is in the range of a subscription. The permissive LID selects all.
fn is_in_range(inform: &InformInfo, lid: Option<LidAddress>) -> bool {
    match inform.lid_range_begin {
        None | Some(LidAddress::Permissive) => true,
        Some(begin) => {
            let end = inform.lid_range_end.unwrap_or(begin).to_wire();
            lid.is_some_and(|lid| (begin.to_wire()..=end).contains(&lid.to_wire()))
        }
    }
}
