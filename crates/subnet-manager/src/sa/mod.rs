//! Subnet administration (SA): answers queries of ports about the subnet.
//!
//! A [`SubnetAdministration`] is a state machine without I/O. It answers from a [`Directory`], which is made
//! from a plan and never changes, and from what ports registered: membership in multicast groups, and
//! subscriptions to notices. The requester is identified by the source LID of the datagram. It must be a
//! port of the plan and a member of the partition of the datagram; other datagrams are dropped. A port that
//! shares no partition with the requester is treated as if it did not exist. Only the subnet manager's own
//! port sees everything; an SM_Key proves nothing. In a subnet with a single owner every port sees everything
//! ([`Directory::open`]).
//!
//! | module | content |
//! |---|---|
//! | `directory` | a plan and the facts of nodes, indexed |
//! | `membership` | partitions that two ports share |
//! | `service_levels` | service levels of guaranteed clusters |
//! | `routes` | paths, and what their links can carry |
//! | `requester`, `budget`, `put_off` | the sender of a request, the work that it may cause, and requests that wait for it |
//! | `query` | a request, its requester, and the records found so far |
//! | `paths`, `inventory`, `tables`, `groups` | the records |
//! | `guid_map` | maps by GUID |
//! | `guid_records` | GUIDs of ports, and requests for aliases |
//! | `group_gids` | GIDs of multicast groups |
//! | `joins`, `join_request` | members of multicast groups, and the groups that they create |
//! | `remembered` | what the next manager knows of groups |
//! | `subscriptions`, `reports` | subscriptions to notices, and what is reported to whom |
//! | `transfers` | RMPP responses of several datagrams |

mod budget;
mod directory;
mod group_gids;
mod groups;
mod guid_map;
mod guid_records;
mod inventory;
mod join_request;
mod joins;
mod membership;
mod paths;
mod put_off;
mod query;
mod remembered;
mod reports;
mod requester;
mod routes;
mod service_levels;
mod subscriptions;
mod tables;
mod transfers;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use fabric_model::FabricPlan;
use ib_wire::rmpp::{Receiver, RmppFlags, RmppKind, RmppStatus, SEGMENT_DATA_LEN, Sender};
use ib_wire::sa::McMemberRecord;
use ib_wire::{Attribute, Datagram, Guid, Mad, Method, Status};

use serde::Serialize;

pub use directory::{Directory, ManagerFacts, NodeFacts};
pub(crate) use joins::JoinedGroup;
pub use remembered::{MemberKind, RememberedGroup};

use budget::QueryBudget;
use directory::EndPort;
use joins::Joins;
use put_off::PutOff;
use query::{Answer, EXAMINED_MAX, MANAGER_EXAMINED_MAX, Query};
use requester::Requester;
use subscriptions::Subscriptions;
use transfers::Transfers;

/// Limit on queued responses. Callers send after each datagram; further requests are dropped, and the
/// requester retries.
const ANSWERS_MAX: usize = 4096;
/// A port that asks for more than its share is named once in this time.
const GREEDY_INTERVAL: Duration = Duration::from_secs(60);
/// Limit on ports that are remembered as named.
const GREEDY_MAX: usize = 4096;

/// Counters of subnet administration since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SaCounts {
    /// Requests from ports of the plan.
    pub requests: u64,
    /// Requests for PathRecords among them.
    pub path_requests: u64,
    /// Records in all responses.
    pub records: u64,
    /// Requests with an error status, including those without a matching record.
    pub refused: u64,
    /// Requests with status BUSY.
    pub busy: u64,
    /// Datagrams without response: unknown sender, not a request, or too many queued responses.
    pub dropped: u64,
    /// RMPP transfers that were started.
    pub transfers: u64,
    /// RMPP transfers that were aborted or timed out.
    pub transfers_failed: u64,
    /// Requests to join or leave a multicast group, or to subscribe or unsubscribe, that were granted.
    pub registrations: u64,
    /// Those that were refused.
    pub registrations_refused: u64,
    /// Reports that were sent to subscribers, repetitions included.
    pub reports: u64,
    /// Reports that no subscriber answered, or that had no room.
    pub reports_dropped: u64,
}

/// What becomes of a request whose port may cause no more work now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WhenBusy {
    PutOff,
    Refuse,
}

/// Subnet administration as a state machine. After every `handle_` verb call `poll_transmit` until `None`,
/// and call `handle_timeout` no later than `poll_timeout`.
///
/// Answers nothing before the first [`publish`](Self::publish). For a change of the plan call
/// [`announce`](Self::announce) before the fabric changes and `publish` with the same directory afterwards.
#[derive(Debug, Default)]
pub struct SubnetAdministration {
    /// The published directory, or what it has in common with the announced one.
    directory: Option<Arc<Directory>>,
    announced: Option<Arc<Directory>>,
    /// The directory that was published last.
    published: Option<Arc<Directory>>,
    joins: Joins,
    subscriptions: Subscriptions,
    /// Ports that may subscribe to notices about devices.
    event_ports: BTreeSet<Guid>,
    answers: VecDeque<Datagram>,
    transfers: Transfers,
    /// Its memory is reused between requests.
    answer: Answer,
    work: QueryBudget,
    put_off: PutOff,
    /// Ports that asked for more than their share, and when that was noticed.
    greedy: BTreeMap<Guid, Duration>,
    /// Those that were not polled yet.
    new_greedy: VecDeque<Guid>,
    /// When a notice of a port, of a number, was last forwarded.
    forwarded: BTreeMap<(Guid, u16), Duration>,
    counts: SaCounts,
}

impl SubnetAdministration {
    /// A subnet administration without directory. Every multicast group of a partition has the multicast LID of its broadcast
    /// group.
    pub fn new() -> Self {
        Self::default()
    }

    /// A subnet administration that gives groups multicast LIDs of their own. The caller programs their trees. The trees
    /// that a former manager remembered stay until ports had time to join again.
    pub(crate) fn with_group_trees(remembered: &[RememberedGroup]) -> Self {
        Self { joins: Joins::with_trees(remembered), ..Self::default() }
    }

    /// The groups with a multicast LID of their own, for the next manager.
    pub(crate) fn remembered_groups(&self) -> Vec<RememberedGroup> {
        self.joins.to_remember()
    }

    /// Whether groups of a former manager are left that ports did not join again.
    pub(crate) fn remembers_groups(&self) -> bool {
        self.joins.remembers()
    }

    /// Forgets who did not join again.
    pub(crate) fn forget_remembered_groups(&mut self) {
        self.joins.forget_remembered();
    }

    /// How often the groups with a multicast LID of their own, or their members, changed since the start.
    pub(crate) fn tree_changes(&self) -> u64 {
        self.joins.tree_changes()
    }

    /// The groups with a multicast LID of their own, and their members in a plan.
    pub(crate) fn joined_groups(&self, plan: &FabricPlan) -> Vec<JoinedGroup> {
        let aliases = plan.adapter_ports().flat_map(|port| {
            let port_guid = port.guid;
            port.aliases.values().map(move |alias| (alias.guid, port_guid))
        });
        let aliases: BTreeMap<Guid, Guid> = aliases.collect();
        let own = |guid| plan.adapter_port(guid).map(|port| port.guid);
        self.joins.joined_groups(|guid| own(guid).or_else(|| aliases.get(&guid).copied()))
    }

    /// Takes the ports that should be asked to join their groups again.
    pub(crate) fn take_evicted(&mut self) -> BTreeSet<Guid> {
        self.joins.take_evicted()
    }

    /// Answers from a directory that differs from the current one in multicast forwarding tables only. Transfers go on.
    pub(crate) fn amend(&mut self, directory: Arc<Directory>) {
        self.published = Some(Arc::clone(&directory));
        self.directory = Some(directory);
    }

    /// Answers from this directory from now on. Aborts transfers unless the directory was announced.
    pub fn publish(&mut self, directory: Arc<Directory>) {
        let was_announced = self.announced.take().is_some_and(|next| Arc::ptr_eq(&next, &directory));
        if !was_announced {
            // Transfers in progress may contain what must no longer be disclosed.
            self.transfers.abort_all();
        }
        self.joins.restrict_to(&directory, self.published.as_deref());
        self.subscriptions.restrict_to(&directory);
        if let Some(before) = self.published.replace(Arc::clone(&directory)) {
            self.report_ports(&before, &directory);
        }
        self.report_groups(&directory);
        self.directory = Some(directory);
    }

    /// A change begins: until the next [`SubnetAdministration::publish`], only what both the current and the
    /// next directory allow is answered. Aborts transfers.
    pub fn announce(&mut self, next: Arc<Directory>) {
        self.transfers.abort_all();
        self.directory = self.directory.take().map(|current| Arc::new(current.restricted_to(&next)));
        self.announced = Some(next);
    }

    /// Handles a datagram of the subnet administration class: a request, or an acknowledgement of a transfer.
    pub fn handle_datagram(&mut self, now: Duration, datagram: &Datagram) {
        let Some(directory) = self.directory.clone() else {
            self.counts.dropped += 1;
            return;
        };
        let Some(requester) = Requester::of(&directory, datagram) else {
            self.counts.dropped += 1;
            return;
        };
        if datagram.mad.method() == Method::REPORT_RESP {
            self.subscriptions.answered(requester.port.guid, &datagram.mad);
        } else if is_about_transfer(&datagram.mad) {
            self.transfers.handle(now, (requester.port.guid, datagram.mad.transaction()), &datagram.mad);
        } else if !is_request(datagram.mad.method()) || self.answers.len() >= ANSWERS_MAX {
            self.counts.dropped += 1;
        } else if self.accept_segment(&directory, &requester, datagram) {
            self.handle_request(now, &directory, &requester, datagram, WhenBusy::PutOff);
        }
    }

    /// Acknowledges a request that is sent with RMPP, as GetMulti is. Returns whether it is complete: requests of several
    /// segments are refused.
    fn accept_segment(
        &mut self,
        directory: &Directory,
        requester: &Requester<'_>,
        datagram: &Datagram,
    ) -> bool {
        let header = datagram.mad.rmpp();
        if !header.flags.has(RmppFlags::ACTIVE) {
            return true;
        }
        let mut receiver = Receiver::new();
        let (is_complete, control) = if header.flags.has(RmppFlags::LAST) {
            let message = receiver.handle(&datagram.mad);
            (matches!(message, Ok(Some(_))), receiver.poll_transmit())
        } else {
            (false, Some(Receiver::refusal(&datagram.mad, RmppStatus::ResourcesExhausted)))
        };
        self.counts.dropped += u64::from(!is_complete);
        if let Some(mad) = control {
            self.answers.push_back(Datagram { mad, ..requester.reply(directory, datagram) });
        }
        is_complete
    }

    /// Retransmits or aborts transfers that were not acknowledged in time.
    pub fn handle_timeout(&mut self, now: Duration) {
        self.transfers.handle_timeout(now);
        self.subscriptions.handle_timeout(now);
        while let Some(datagram) = self.put_off.take_due(now) {
            let Some(directory) = self.directory.clone() else { continue };
            let Some(requester) = Requester::of(&directory, &datagram) else { continue };
            self.handle_request(now, &directory, &requester, &datagram, WhenBusy::Refuse);
        }
    }

    /// The next datagram to send.
    pub fn poll_transmit(&mut self, now: Duration) -> Option<Datagram> {
        let answer = self.answers.pop_front().or_else(|| match self.transfers.len() {
            0 => None,
            _ => self.transfers.poll_transmit(now),
        });
        answer.or_else(|| self.subscriptions.poll_transmit(now, self.directory.as_deref()?))
    }

    /// When [`SubnetAdministration::handle_timeout`] must be called at the latest.
    pub fn poll_timeout(&self) -> Option<Duration> {
        let timeouts =
            [self.transfers.poll_timeout(), self.subscriptions.poll_timeout(), self.put_off.poll_timeout()];
        timeouts.into_iter().flatten().min()
    }

    /// Counters since the start.
    pub fn counts(&self) -> SaCounts {
        SaCounts {
            transfers_failed: self.transfers.failed(),
            reports: self.subscriptions.reports_sent(),
            reports_dropped: self.subscriptions.reports_dropped(),
            ..self.counts
        }
    }

    fn handle_request(
        &mut self,
        now: Duration,
        directory: &Directory,
        requester: &Requester<'_>,
        datagram: &Datagram,
        when_busy: WhenBusy,
    ) {
        let is_first_try = when_busy == WhenBusy::PutOff;
        self.counts.requests += u64::from(is_first_try);
        let is_path =
            matches!(datagram.mad.attribute(), Attribute::PATH_RECORD | Attribute::MULTI_PATH_RECORD);
        self.counts.path_requests += u64::from(is_first_try && is_path);
        let request = &datagram.mad;
        let reply = || requester.reply(directory, datagram);
        let budget = match requester.is_manager {
            true => Ok(usize::MAX),
            false => self.work.left(now, requester.port.port_guid),
        };
        let budget = match budget {
            Ok(budget) => budget,
            Err(_) => return self.handle_exhausted(now, directory, requester, datagram, when_busy),
        };
        if is_registration(request) {
            let reports = self.register(directory, requester, request, reply());
            return self.work.spend(now, requester.port.port_guid, reports);
        }
        let query = Query {
            directory,
            joins: &self.joins,
            subscriptions: &self.subscriptions,
            requester: requester.port,
            is_manager: requester.is_manager || directory.is_open,
            request,
        };
        let wants_table = query.wants_table();
        // For a Get, two records are already too many. Of paths, any one is sufficient.
        let enough = match (query.wants_table(), request.attribute()) {
            (true, _) => usize::MAX,
            (false, Attribute::PATH_RECORD) => 1,
            (false, _) => 2,
        };
        let limit = if requester.is_manager { MANAGER_EXAMINED_MAX } else { EXAMINED_MAX };
        self.answer.start(enough, budget, limit);
        let found = find(&query, &mut self.answer);
        if !requester.is_manager {
            self.work.spend(now, requester.port.port_guid, self.answer.examined());
        }
        let sent = found.and_then(|()| match wants_table {
            true => self.send_table(now, requester.port, reply()),
            false => self.send_one(reply()),
        });
        if let Err(status) = sent {
            if self.answer.is_over_budget() {
                return self.handle_exhausted(now, directory, requester, datagram, when_busy);
            }
            if status == Status::BUSY {
                self.note_greedy(now, requester.port.port_guid);
            }
            self.refuse(reply(), status);
        }
    }

    /// Handles a request of a port that may cause no more work now: it waits, or it is refused.
    fn handle_exhausted(
        &mut self,
        now: Duration,
        directory: &Directory,
        requester: &Requester<'_>,
        datagram: &Datagram,
        when_busy: WhenBusy,
    ) {
        let port = requester.port.port_guid;
        self.note_greedy(now, port);
        let due = self.work.recovers_at(now, port);
        if when_busy == WhenBusy::Refuse || !self.put_off.keep(port, due, datagram) {
            self.refuse(requester.reply(directory, datagram), Status::BUSY);
        }
    }

    /// Names a port that asks for more than its share, once in [`GREEDY_INTERVAL`].
    fn note_greedy(&mut self, now: Duration, port: Guid) {
        let is_known = |since: &Duration| now < *since + GREEDY_INTERVAL;
        if self.greedy.get(&port).is_some_and(is_known) || self.greedy.len() >= GREEDY_MAX {
            self.greedy.retain(|_, since| is_known(since));
            return;
        }
        self.greedy.insert(port, now);
        self.new_greedy.push_back(port);
    }

    /// The next port that asked for more than its share.
    pub(crate) fn poll_greedy(&mut self) -> Option<Guid> {
        self.new_greedy.pop_front()
    }

    /// Responds to a Get.
    fn send_one(&mut self, mut headers: Datagram) -> Result<(), Status> {
        match self.answer.excess() {
            Some(status) => return Err(status),
            None if self.answer.records() == 0 => return Err(Status::SA_NO_RECORDS),
            None if self.answer.records() > 1 => return Err(Status::SA_TOO_MANY_RECORDS),
            None => {}
        }
        // ClassPortInfo is not a record: its response has no AttributeOffset.
        if headers.mad.attribute() != Attribute::CLASS_PORT_INFO {
            headers.mad.set_sa_record_len(self.answer.record_len());
        }
        let data = self.answer.data();
        headers.mad.sa_data_mut()[..data.len()].copy_from_slice(data);
        self.counts.records += 1;
        self.answers.push_back(headers);
        Ok(())
    }

    /// Responds to a GetTable. A response of one datagram is sent once without waiting for an
    /// acknowledgement; the requester retries if it is lost.
    fn send_table(&mut self, now: Duration, port: &EndPort, mut headers: Datagram) -> Result<(), Status> {
        if let Some(status) = self.answer.excess() {
            return Err(status);
        }
        if headers.mad.attribute() == Attribute::MULTI_PATH_RECORD {
            // IBA o15-0.2.7: its response has PathRecords.
            headers.mad.set_attribute(Attribute::PATH_RECORD);
        }
        headers.mad.set_sa_record_len(self.answer.record_len());
        let records = self.answer.records() as u64;
        if self.answer.data().len() <= SEGMENT_DATA_LEN {
            let segment = Sender::new(headers.mad.clone(), self.answer.data().to_vec());
            let segment = segment.ok().and_then(|mut sender| sender.poll_transmit());
            headers.mad = segment.ok_or(Status::SA_NO_RESOURCES)?;
            self.answers.push_back(headers);
        } else {
            let key = (port.guid, headers.mad.transaction());
            let started = self.transfers.make_room(port.guid)
                && self.transfers.start(now, key, headers, self.answer.take_data());
            if !started {
                return Err(Status::BUSY);
            }
            self.counts.transfers += 1;
        }
        self.counts.records += records;
        Ok(())
    }

    /// Responds to a request that changes what ports registered. Returns the number of subscribers that were considered for a
    /// report of it.
    fn register(
        &mut self,
        directory: &Directory,
        requester: &Requester<'_>,
        request: &Mad,
        mut headers: Datagram,
    ) -> usize {
        let port = requester.port;
        let is_known = request.has_known_versions();
        let data = match (request.method(), request.attribute()) {
            _ if !is_known => Err(Status::BAD_VERSION),
            (_, Attribute::INFORM_INFO) => self
                .subscriptions
                .set(port, request, requester.queue_pair)
                .map(|inform| inform.encode().to_vec()),
            (_, Attribute::GUID_INFO_RECORD) => {
                guid_records::claim(directory, port, request).map(|record| record.encode().to_vec())
            }
            (Method::SET, _) => self.joins.join(directory, port, request).map(encoded),
            _ => self.joins.leave(directory, port, request).map(encoded),
        };
        match data {
            Ok(data) => {
                // InformInfo is not a record: its response has no AttributeOffset.
                if request.attribute() != Attribute::INFORM_INFO {
                    headers.mad.set_sa_record_len(data.len());
                }
                headers.mad.sa_data_mut()[..data.len()].copy_from_slice(&data);
                self.counts.registrations += 1;
                self.answers.push_back(headers);
            }
            Err(status) => {
                self.counts.registrations_refused += 1;
                self.refuse(headers, status);
            }
        }
        self.report_groups(directory)
    }

    fn refuse(&mut self, mut headers: Datagram, status: Status) {
        self.counts.refused += 1;
        self.counts.busy += u64::from(status == Status::BUSY);
        headers.mad.set_status(status);
        self.answers.push_back(headers);
    }
}

/// Whether a request changes what ports registered.
fn is_registration(request: &Mad) -> bool {
    matches!(
        (request.method(), request.attribute()),
        (Method::SET | Method::DELETE, Attribute::MC_MEMBER_RECORD | Attribute::GUID_INFO_RECORD)
            | (Method::SET, Attribute::INFORM_INFO)
    )
}

fn encoded(record: McMemberRecord) -> Vec<u8> {
    record.encode().to_vec()
}

/// Finds the records for a request.
fn find(query: &Query<'_>, answer: &mut Answer) -> Result<(), Status> {
    let request = query.request;
    if !request.has_known_versions() {
        return Err(Status::BAD_VERSION);
    }
    match (request.method(), request.attribute()) {
        (Method::GET, Attribute::CLASS_PORT_INFO) => {
            inventory::class_port_info(answer);
            return Ok(());
        }
        (Method::GET_MULTI, Attribute::MULTI_PATH_RECORD) => return paths::find_multi(query, answer),
        (Method::GET | Method::GET_TABLE, _) => {}
        (Method::SET | Method::DELETE, _) => return Err(Status::UNSUPPORTED_ATTRIBUTE),
        _ => return Err(Status::UNSUPPORTED_METHOD),
    }
    let hidden = !query.is_manager;
    // OpenSM answers this query only with its SM_Key, and clients present one. It proves nothing here.
    if hidden && request.attribute() == Attribute::PKEY_TABLE_RECORD && request.sm_key().is_none() {
        return Err(Status::SA_REQUEST_INVALID);
    }
    let _ = match request.attribute() {
        Attribute::PATH_RECORD => return paths::find(query, answer),
        Attribute::NODE_RECORD => inventory::nodes(query, answer),
        Attribute::PORT_INFO_RECORD => inventory::port_infos(query, answer),
        Attribute::SM_INFO_RECORD => inventory::managers(query, answer),
        Attribute::GUID_INFO_RECORD => guid_records::records(query, answer),
        Attribute::PKEY_TABLE_RECORD => tables::pkey_tables(query, answer),
        Attribute::MC_MEMBER_RECORD => groups::members(query, answer),
        Attribute::INFORM_INFO_RECORD => subscriptions::records(query, answer),
        // Tenants must not see the physical topology: for them there are no such records.
        Attribute::SWITCH_INFO_RECORD
        | Attribute::LINK_RECORD
        | Attribute::LINEAR_FORWARDING_RECORD
        | Attribute::MULTICAST_FORWARDING_RECORD
        | Attribute::SL_TO_VL_RECORD
        | Attribute::VL_ARBITRATION_RECORD
            if hidden =>
        {
            ControlFlow::Continue(())
        }
        Attribute::SWITCH_INFO_RECORD => inventory::switches(query, answer),
        Attribute::LINK_RECORD => inventory::links(query, answer),
        Attribute::LINEAR_FORWARDING_RECORD => tables::linear_tables(query, answer),
        Attribute::MULTICAST_FORWARDING_RECORD => tables::multicast_tables(query, answer),
        Attribute::SL_TO_VL_RECORD => tables::lane_maps(query, answer),
        Attribute::VL_ARBITRATION_RECORD => tables::arbitration_tables(query, answer),
        _ => return Err(Status::UNSUPPORTED_ATTRIBUTE),
    };
    Ok(())
}

/// Whether a datagram is an RMPP acknowledgement, stop or abort of a transfer.
fn is_about_transfer(mad: &Mad) -> bool {
    let header = mad.rmpp();
    header.flags.has(RmppFlags::ACTIVE)
        && matches!(header.kind, RmppKind::Ack | RmppKind::Stop | RmppKind::Abort)
}

/// Whether a method requires a response.
fn is_request(method: Method) -> bool {
    !method.is_response()
        && !matches!(method, Method::SEND | Method::TRAP | Method::REPORT | Method::TRAP_REPRESS)
}
