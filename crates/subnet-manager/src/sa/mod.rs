//! Subnet administration (SA): answers queries of ports about the subnet.
//!
//! A [`SubnetAdministration`] is a state machine without I/O. It answers from a [`Directory`], which is made
//! from a plan and never changes. The requester is identified by the source LID of the datagram. It must be a
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
//! | `query` | a request, its requester, and the records found so far |
//! | `paths`, `inventory`, `tables`, `groups` | the records |
//! | `transfers` | RMPP responses of several datagrams |

mod directory;
mod groups;
mod inventory;
mod membership;
mod paths;
mod query;
mod routes;
mod service_levels;
mod tables;
mod transfers;

use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use ib_wire::rmpp::{RmppFlags, RmppKind, SEGMENT_DATA_LEN, Sender};
use ib_wire::{
    Attribute, Datagram, Grh, Guid, LidAddress, Mad, ManagementClass, Method, Pkey, QKey, QueuePair, Status,
};

pub use directory::{Directory, ManagerFacts, NodeFacts};

use directory::EndPort;
use query::{Answer, Query};
use transfers::Transfers;

/// Limit on queued responses. Callers send after each datagram; further requests are dropped, and the
/// requester retries.
const ANSWERS_MAX: usize = 4096;
/// Records that one port may have examined per second: 19 queries for all ports of 11,664 hosts. Further
/// queries are answered with BUSY, so that no port uses up the time of others.
const PORT_EXAMINED_MAX: usize = 1 << 18;
/// Queries that examine at most this many records are not accounted.
const EXAMINED_FREE: usize = 64;

/// Counters of subnet administration since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
    answers: VecDeque<Datagram>,
    transfers: Transfers,
    /// Its memory is reused between requests.
    answer: Answer,
    work: QueryBudget,
    counts: SaCounts,
}

impl SubnetAdministration {
    /// A subnet administration without directory.
    pub fn new() -> Self {
        Self::default()
    }

    /// Answers from this directory from now on. Aborts transfers unless the directory was announced.
    pub fn publish(&mut self, directory: Arc<Directory>) {
        let was_announced = self.announced.take().is_some_and(|next| Arc::ptr_eq(&next, &directory));
        if !was_announced {
            // Transfers in progress may contain what must no longer be disclosed.
            self.transfers.abort_all();
        }
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
        if is_about_transfer(&datagram.mad) {
            self.transfers.handle(now, (requester.port.guid, datagram.mad.transaction()), &datagram.mad);
        } else if !is_request(datagram.mad.method()) || self.answers.len() >= ANSWERS_MAX {
            self.counts.dropped += 1;
        } else {
            self.handle_request(now, &directory, &requester, datagram);
        }
    }

    /// Retransmits or aborts transfers that were not acknowledged in time.
    pub fn handle_timeout(&mut self, now: Duration) {
        self.transfers.handle_timeout(now);
    }

    /// The next datagram to send.
    pub fn poll_transmit(&mut self, now: Duration) -> Option<Datagram> {
        self.answers.pop_front().or_else(|| match self.transfers.len() {
            0 => None,
            _ => self.transfers.poll_transmit(now),
        })
    }

    /// When [`SubnetAdministration::handle_timeout`] must be called at the latest.
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.transfers.poll_timeout()
    }

    /// Counters since the start.
    pub fn counts(&self) -> SaCounts {
        SaCounts { transfers_failed: self.transfers.failed(), ..self.counts }
    }

    fn handle_request(
        &mut self,
        now: Duration,
        directory: &Directory,
        requester: &Requester<'_>,
        datagram: &Datagram,
    ) {
        self.counts.requests += 1;
        self.counts.path_requests += u64::from(datagram.mad.attribute() == Attribute::PATH_RECORD);
        let request = &datagram.mad;
        let sees_all = requester.is_manager || directory.is_open;
        let query = Query { directory, requester: requester.port, is_manager: sees_all, request };
        let budget = if requester.is_manager { usize::MAX } else { self.work.left(now, requester.port.guid) };
        // For a Get, two records are already too many. Of paths, any one is sufficient.
        let enough = match (query.wants_table(), request.attribute()) {
            (true, _) => usize::MAX,
            (false, Attribute::PATH_RECORD) => 1,
            (false, _) => 2,
        };
        self.answer.start(enough, budget);
        let found = find(&query, &mut self.answer);
        if !requester.is_manager {
            self.work.spend(now, requester.port.guid, self.answer.examined());
        }
        let headers = requester.reply(directory, datagram);
        let sent = found.and_then(|()| match query.wants_table() {
            true => self.send_table(now, requester.port, headers.clone()),
            false => self.send_one(headers.clone()),
        });
        if let Err(status) = sent {
            self.refuse(headers, status);
        }
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

    fn refuse(&mut self, mut headers: Datagram, status: Status) {
        self.counts.refused += 1;
        self.counts.busy += u64::from(status == Status::BUSY);
        headers.mad.set_status(status);
        self.answers.push_back(headers);
    }
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
        (Method::GET | Method::GET_TABLE, _) => {}
        (Method::SET | Method::DELETE, _) => return Err(Status::UNSUPPORTED_ATTRIBUTE),
        _ => return Err(Status::UNSUPPORTED_METHOD),
    }
    let hidden = !query.is_manager;
    let _ = match request.attribute() {
        Attribute::PATH_RECORD => return paths::find(query, answer),
        Attribute::NODE_RECORD => inventory::nodes(query, answer),
        Attribute::PORT_INFO_RECORD => inventory::port_infos(query, answer),
        Attribute::SM_INFO_RECORD => inventory::managers(query, answer),
        Attribute::GUID_INFO_RECORD => inventory::guids(query, answer),
        Attribute::PKEY_TABLE_RECORD => tables::pkey_tables(query, answer),
        Attribute::MC_MEMBER_RECORD => groups::members(query, answer),
        // Tenants must not see the physical topology: for them there are no such records.
        Attribute::SWITCH_INFO_RECORD | Attribute::LINK_RECORD | Attribute::LINEAR_FORWARDING_RECORD
            if hidden =>
        {
            ControlFlow::Continue(())
        }
        Attribute::SWITCH_INFO_RECORD => inventory::switches(query, answer),
        Attribute::LINK_RECORD => inventory::links(query, answer),
        Attribute::LINEAR_FORWARDING_RECORD => tables::linear_tables(query, answer),
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

/// The sender of a request.
#[derive(Debug)]
struct Requester<'a> {
    port: &'a EndPort,
    is_manager: bool,
    /// The P_Key of the response.
    key: Pkey,
}

impl<'a> Requester<'a> {
    /// Identifies the sender; `None` for an unknown one. It must be a port of the plan by LID, and by GID if
    /// the datagram has a GRH, and a member of the partition of the datagram. Only the partition counts: if
    /// the P_Key comes from an index into the receiver's table, its membership bit is the receiver's.
    fn of(directory: &'a Directory, datagram: &Datagram) -> Option<Self> {
        if datagram.mad.class() != ManagementClass::SUBNET_ADMINISTRATION {
            return None;
        }
        let LidAddress::Unicast(lid) = datagram.slid else { return None };
        let port = directory.port_by_lid(lid)?;
        let manager = directory.manager_port()?;
        if let Some(grh) = datagram.grh
            && directory.port_by_gid(grh.source)?.guid != port.guid
        {
            return None;
        }
        let partition = datagram.pkey.partition();
        let is_manager = port.guid == manager.guid;
        let key = match directory.shared_in(manager, port, partition) {
            Some(shared) => shared.key,
            // A port may send to itself in any of its partitions.
            None if is_manager && directory.is_member(port, partition) => datagram.pkey,
            None => return None,
        };
        Some(Self { port, is_manager, key })
    }

    /// The response to a request, without records.
    fn reply(&self, directory: &Directory, request: &Datagram) -> Datagram {
        let requested = &request.mad;
        let method = Method(requested.method().0 | Method::GET_RESP.0 & !Method::GET.0);
        let mut mad = Mad::new(requested.class(), method, requested.attribute(), requested.modifier());
        mad.set_transaction(requested.transaction());
        mad.set_component_mask(requested.component_mask());
        let manager = directory.plan.manager();
        let source = ib_wire::Gid::unicast(ib_wire::Gid::DEFAULT_PREFIX, manager.guid);
        Datagram {
            slid: manager.lid.into(),
            dlid: request.slid,
            sl: request.sl,
            grh: request.grh.map(|grh| Grh { source, destination: grh.source, hop_limit: u8::MAX, ..grh }),
            pkey: self.key,
            qkey: QKey::GENERAL_MANAGEMENT,
            sqp: QueuePair::GENERAL_MANAGEMENT,
            dqp: request.sqp,
            mad,
        }
    }
}

/// Records examined for each port in the current second.
#[derive(Debug, Default)]
struct QueryBudget {
    second: u64,
    spent: BTreeMap<Guid, usize>,
}

impl QueryBudget {
    /// The number of records that may still be examined for a port.
    fn left(&mut self, now: Duration, port: Guid) -> usize {
        if self.spent.is_empty() {
            return PORT_EXAMINED_MAX;
        }
        if self.second != now.as_secs() {
            self.spent.clear();
        }
        PORT_EXAMINED_MAX.saturating_sub(self.spent.get(&port).copied().unwrap_or(0)).max(EXAMINED_FREE)
    }

    /// Accounts for examined records.
    fn spend(&mut self, now: Duration, port: Guid, examined: usize) {
        if examined > EXAMINED_FREE {
            self.second = now.as_secs();
            *self.spent.entry(port).or_default() += examined;
        }
    }
}
