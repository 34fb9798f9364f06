//! The umad device of one port, as a state machine without sockets and clock.
//!
//! The machine does what the kernel's `user_mad.c`, `mad.c` and `mad_rmpp.c` do between a program and a port:
//!
//! - A request gets the number of its agent in bits 47 to 32 of its transaction, is sent, is repeated if no response arrives in
//!   time, and is returned to the program with status ETIMEDOUT after the last attempt.
//! - A response goes to the agent in its transaction if that agent waits for it, any other datagram to the agent that is
//!   registered for its class, version and method. A datagram without receiver is dropped.
//! - For agents with kernel RMPP, messages of subnet administration longer than a datagram are cut into segments and put
//!   together again. RMPP datagrams of other classes pass unchanged: no stock tool uses kernel RMPP there.
//!
//! Two differences from the kernel: a report of the emulation that a request is lost ends an attempt at once, and the timeout
//! of a request starts anew with every segment of its response.
//!
//! The caller passes received datagrams to [`UmadPort::handle`], time to [`UmadPort::handle_timeout`] when
//! [`UmadPort::poll_timeout`] is reached, and calls of the program to the other methods. After each of these calls it sends
//! what [`UmadPort::poll_transmit`] returns. `now` is the time since any fixed moment.

mod agents;
mod file;
mod requests;
#[cfg(test)]
mod tests;
mod transfers;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use ib_wire::rmpp::{RmppFlags, RmppKind, Sender};
use ib_wire::{
    Datagram, Gid, Grh, LidAddress, MAD_LEN, Mad, ManagementClass, Pkey, QKey, QueuePair, ServiceLevel,
    TransactionId,
};

use crate::abi::{HeaderLayout, Registration, RmppHandling, UmadHeader};
use crate::errno::Errno;
use agents::{Agent, AgentId, Agents};
use file::{AGENTS_MAX, UmadFile, UnreadMessage};
use requests::{Request, RequestKey, Requests, Unanswered};
use transfers::{Outgoing, Progress, TransferKey, Transfers};

/// Most files that a program has open at the same time. Tools open one.
const FILES_MAX: usize = 1024;

/// Most datagrams that wait for a slow link, repeated ones included; a program that writes more gets ENOMEM.
const UNSENT_MAX: usize = 65_536;

/// Length of the common header of a datagram, which is all that the kernel returns of a request without response.
const COMMON_HEADER_LEN: usize = 24;

/// Length up to the end of the RMPP header: the shortest message that the kernel accepts.
const SHORTEST_LEN: usize = 36;

/// Length of common, RMPP and class header of subnet administration.
const SA_HEADER_LEN: usize = 56;

/// `ETIMEDOUT` in the status of a message.
const TIMED_OUT: u32 = libc::ETIMEDOUT as u32;

/// Bits of a transaction that belong to agent and program; the server owns the others.
const OWN_TRANSACTION_BITS: u64 = 0x0000_ffff_ffff_ffff;

/// The number of an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FileId(pub(crate) u32);

/// Addresses of the port, which datagrams need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PortAddresses {
    /// The first entries of the P_Key table.
    pub(crate) pkeys: [Option<Pkey>; 32],
    /// GID of index 0.
    pub(crate) gid: Gid,
}

/// The device. See the [module documentation](self).
#[derive(Debug, Default)]
pub(crate) struct UmadPort {
    files: BTreeMap<FileId, UmadFile>,
    agents: Agents,
    requests: Requests,
    transfers: Transfers,
    unsent: VecDeque<Datagram>,
    addresses: PortAddresses,
}

impl UmadPort {
    /// A port whose first agent gets the number after `last_agent`.
    ///
    /// Peers recognise repeated datagrams by their transaction for seconds. A program that is started again uses the same
    /// transactions as before, often as the same client of the server, so the numbers of its agents have to differ: give every
    /// process another one.
    pub(crate) fn new(last_agent: u16) -> Self {
        Self { agents: Agents::after(last_agent), ..Self::default() }
    }

    pub(crate) fn set_addresses(&mut self, addresses: PortAddresses) {
        self.addresses = addresses;
    }

    /// Opens the device as file `id`, which is not open.
    pub(crate) fn open_file(&mut self, id: FileId) -> Result<(), Errno> {
        if self.files.len() >= FILES_MAX {
            return Err(Errno::TOO_MANY_FILES);
        }
        self.files.insert(id, UmadFile::default());
        Ok(())
    }

    /// Closes a file with its agents. Their requests and transfers are dropped.
    pub(crate) fn close_file(&mut self, id: FileId) {
        let Some(file) = self.files.remove(&id) else { return };
        file.agents.into_iter().flatten().for_each(|agent| self.remove_agent(agent));
    }

    /// Changes the layout of headers: `IB_USER_MAD_ENABLE_PKEY`.
    ///
    /// # Errors
    ///
    /// EINVAL after the first registration.
    pub(crate) fn enable_pkey(&mut self, id: FileId) -> Result<(), Errno> {
        let file = self.file(id)?;
        if file.is_used {
            return Err(Errno::INVALID);
        }
        file.layout = HeaderLayout::WithPkeyIndex;
        Ok(())
    }

    /// Registers an agent and returns its number in the file.
    ///
    /// # Errors
    ///
    /// ENOMEM: the file has 32 agents. EINVAL: another agent receives one of the methods.
    pub(crate) fn register(&mut self, id: FileId, registration: Registration) -> Result<u32, Errno> {
        let file = self.files.get_mut(&id).ok_or(Errno::BAD_DESCRIPTOR)?;
        let slot = file.agents.iter().position(Option::is_none).ok_or(Errno::NO_MEMORY)?;
        let agent = Agent { file: id, slot: slot as u32, registration };
        file.agents[slot] = Some(self.agents.register(agent)?);
        file.is_used = true;
        Ok(slot as u32)
    }

    /// Removes an agent. Its requests, transfers and unread messages are dropped.
    ///
    /// # Errors
    ///
    /// EINVAL: there is no such agent.
    pub(crate) fn unregister(&mut self, id: FileId, slot: u32) -> Result<(), Errno> {
        let file = self.file(id)?;
        let agent = file.agents.get_mut(slot as usize).and_then(Option::take).ok_or(Errno::INVALID)?;
        file.forget_agent(slot);
        self.remove_agent(agent);
        Ok(())
    }

    /// Whether the program can read a message from the file.
    pub(crate) fn is_readable(&self, id: FileId) -> bool {
        self.files.get(&id).is_some_and(UmadFile::is_readable)
    }

    /// Copies the next message to `buffer` and returns its length.
    ///
    /// # Errors
    ///
    /// EAGAIN: there is no message. EINVAL, ENOSPC: the buffer is too short; the message stays.
    pub(crate) fn read(&mut self, id: FileId, buffer: &mut [u8]) -> Result<usize, Errno> {
        self.file(id)?.read(buffer)
    }

    /// Sends the message that the program wrote: header and MAD, or a longer message for an agent with kernel RMPP.
    ///
    /// # Errors
    ///
    /// EINVAL: the message is too short or too long, or a message with its transaction is under way. EIO: there is no such
    /// agent. ENOMEM: too much is under way.
    pub(crate) fn write(&mut self, now: Duration, id: FileId, raw: &[u8]) -> Result<(), Errno> {
        let file = self.files.get(&id).ok_or(Errno::BAD_DESCRIPTOR)?;
        let header = UmadHeader::decode(file.layout, raw).ok_or(Errno::INVALID)?;
        let body = &raw[file.layout.len()..];
        if body.len() < SHORTEST_LEN || header.agent as usize >= AGENTS_MAX {
            return Err(Errno::INVALID);
        }
        let agent = file.agents[header.agent as usize].ok_or(Errno::IO)?;
        let registration = &self.agents.get(agent).ok_or(Errno::IO)?.registration;
        let mut mad = Mad([0; MAD_LEN]);
        let first = body.len().min(MAD_LEN);
        mad.0[..first].copy_from_slice(&body[..first]);
        let rmpp = registration.rmpp == RmppHandling::Library
            && mad.class() == ManagementClass::SUBNET_ADMINISTRATION;
        let is_message = rmpp && mad.rmpp().flags.has(RmppFlags::ACTIVE);
        if !is_message && body.len() > MAD_LEN || is_message && body.len() < SA_HEADER_LEN {
            return Err(Errno::INVALID);
        }
        if rmpp && !is_message {
            // The kernel does not copy the RMPP header of such a datagram.
            mad.0[COMMON_HEADER_LEN..SHORTEST_LEN].fill(0);
        }
        if !agents::is_response(&mad) {
            mad.set_transaction(agent.stamp(mad.transaction()));
        }
        let queue_pair = registration.queue_pair;
        let datagram = self.datagram(&header, queue_pair, mad);
        if is_message {
            self.send_message(now, agent, header, datagram, body[SA_HEADER_LEN..].to_vec())
        } else {
            self.send_datagram(now, agent, header, datagram)
        }
    }

    /// Handles a datagram that arrived at the port.
    pub(crate) fn handle(&mut self, now: Duration, mut datagram: Datagram) {
        let mad = &mut datagram.mad;
        if agents::is_response(mad) {
            // What the server added for itself.
            mad.set_transaction(TransactionId(mad.transaction().0 & OWN_TRANSACTION_BITS));
        }
        let Some((id, agent)) = self.agents.receiver_of(mad) else { return };
        let rmpp = agent.registration.rmpp == RmppHandling::Library
            && mad.class() == ManagementClass::SUBNET_ADMINISTRATION
            && mad.rmpp().flags.has(RmppFlags::ACTIVE);
        if rmpp {
            self.handle_rmpp(now, id, datagram);
        } else {
            let data = datagram.mad.0.to_vec();
            self.complete(id, &datagram, data);
        }
    }

    /// Handles the report that a request is lost. Only bits 47 to 0 of its transaction count.
    pub(crate) fn handle_lost(&mut self, now: Duration, transaction: TransactionId) {
        let (agent, low) = (AgentId::of(transaction), transaction.0 as u32);
        for key in self.requests.with_transaction(agent, low) {
            // A lost acknowledgement is reported in the same way. The transfer has its own timeouts.
            if !self.transfers.is_answering(key) {
                self.end_attempt(now, key);
            }
        }
    }

    /// Ends attempts and transfers whose time is over. Call it when [`Self::poll_timeout`] is reached.
    pub(crate) fn handle_timeout(&mut self, now: Duration) {
        while let Some(key) = self.requests.expired(now) {
            self.end_attempt(now, key);
        }
        for message in self.transfers.handle_timeout(now) {
            if let Some(key) = message.request {
                self.requests.remove(key);
            }
            self.return_to_program(message.agent, message.header.clone(), message.mad());
        }
    }

    /// The time at which [`Self::handle_timeout`] has something to do.
    pub(crate) fn poll_timeout(&self) -> Option<Duration> {
        self.requests.next_deadline().into_iter().chain(self.transfers.next_deadline()).min()
    }

    /// The next datagram to send.
    pub(crate) fn poll_transmit(&mut self, now: Duration) -> Option<Datagram> {
        self.unsent.pop_front().or_else(|| self.transfers.poll_transmit(now))
    }

    fn file(&mut self, id: FileId) -> Result<&mut UmadFile, Errno> {
        self.files.get_mut(&id).ok_or(Errno::BAD_DESCRIPTOR)
    }

    fn remove_agent(&mut self, agent: AgentId) {
        self.agents.remove(agent);
        self.requests.remove_agent(agent);
        self.transfers.remove_agent(agent);
    }

    /// The datagram with the headers that the program wrote. The server fills in the source LID.
    fn datagram(&self, header: &UmadHeader, queue_pair: u32, mad: Mad) -> Datagram {
        let pkey = self.addresses.pkeys.get(usize::from(header.pkey_index)).copied().flatten();
        Datagram {
            slid: LidAddress::Permissive,
            // LID 0 is no address: no port answers at the permissive one either.
            dlid: LidAddress::from_wire(header.lid).unwrap_or(LidAddress::Permissive),
            sl: ServiceLevel::from_wire(header.service_level & 0xf).unwrap_or_default(),
            grh: header.grh.map(|grh| Grh { source: self.addresses.gid, ..grh }),
            pkey: pkey.unwrap_or(Pkey::DEFAULT_FULL),
            qkey: QKey::from_wire(header.queue_key),
            sqp: QueuePair::from_wire(queue_pair).unwrap_or(QueuePair::GENERAL_MANAGEMENT),
            dqp: QueuePair::from_wire(header.queue_pair & 0xff_ffff).unwrap_or(QueuePair::GENERAL_MANAGEMENT),
            mad,
        }
    }

    fn send_datagram(
        &mut self,
        now: Duration,
        agent: AgentId,
        header: UmadHeader,
        datagram: Datagram,
    ) -> Result<(), Errno> {
        if self.unsent.len() >= UNSENT_MAX {
            return Err(Errno::NO_MEMORY);
        }
        let key = RequestKey::new(agent, &datagram.mad);
        let is_response = agents::is_response(&datagram.mad);
        let transfer = TransferKey::new(agent, &datagram.mad, datagram.dlid.to_wire());
        if is_response && self.transfers.is_sending(transfer) {
            return Err(Errno::INVALID);
        }
        if !is_response && header.timeout_ms > 0 {
            self.check_new_request(key)?;
            self.requests.insert(key, Request::new(header, datagram.clone(), true));
            self.requests.restart(now, key);
        }
        self.unsent.push_back(datagram);
        Ok(())
    }

    fn send_message(
        &mut self,
        now: Duration,
        agent: AgentId,
        header: UmadHeader,
        datagram: Datagram,
        data: Vec<u8>,
    ) -> Result<(), Errno> {
        let transfer = TransferKey::new(agent, &datagram.mad, datagram.dlid.to_wire());
        if self.transfers.is_sending(transfer) {
            return Err(Errno::INVALID);
        }
        let bytes = data.len();
        if !self.transfers.has_room(bytes) {
            return Err(Errno::NO_MEMORY);
        }
        let sender = Sender::new(datagram.mad.clone(), data).map_err(|_| Errno::NO_MEMORY)?;
        let awaits_response = !agents::is_response(&datagram.mad) && header.timeout_ms > 0;
        let request = awaits_response.then(|| RequestKey::new(agent, &datagram.mad));
        if let Some(key) = request {
            self.check_new_request(key)?;
            // Its time starts when the receiver has all segments.
            self.requests.insert(key, Request::new(header.clone(), datagram.clone(), false));
        }
        let message = Outgoing::new(agent, sender, datagram, bytes, header, request);
        self.transfers.start(now, transfer, message);
        Ok(())
    }

    fn check_new_request(&self, key: RequestKey) -> Result<(), Errno> {
        if self.requests.contains(key) {
            return Err(Errno::INVALID);
        }
        if self.requests.is_full() { Err(Errno::NO_MEMORY) } else { Ok(()) }
    }

    /// Handles an RMPP datagram for an agent whose RMPP the library handles.
    fn handle_rmpp(&mut self, now: Duration, agent: AgentId, datagram: Datagram) {
        let mad = &datagram.mad;
        let transfer = TransferKey::new(agent, mad, datagram.slid.to_wire());
        let is_answer = match mad.rmpp().kind {
            RmppKind::Ack => true,
            // Either end may end a transfer; the method tells which one did.
            RmppKind::Stop | RmppKind::Abort => !self.transfers.is_receiving(transfer, mad.method()),
            _ => false,
        };
        if is_answer {
            match self.transfers.handle_answer(now, transfer, mad) {
                Progress::UnderWay => {}
                Progress::Sent(message) => {
                    if let Some(key) = message.request {
                        self.requests.restart(now, key);
                    }
                }
                // As in the kernel, the program is not told.
                Progress::Ended(message) => {
                    if let Some(key) = message.request {
                        self.requests.remove(key);
                    }
                }
            }
            return;
        }
        let key = RequestKey::new(agent, mad);
        if agents::is_response(mad) && !self.requests.contains(key) && !self.transfers.is_complete(transfer) {
            // Nobody waits for it.
            return;
        }
        self.requests.restart(now, key);
        if let Some(message) = self.transfers.handle_segment(now, transfer, &datagram) {
            let mut data = message.header.0[..SA_HEADER_LEN].to_vec();
            data.extend(message.data);
            self.complete(agent, &Datagram { mad: message.header, ..datagram }, data);
        }
    }

    /// Gives a complete message to its agent: a response only if its request waits for it.
    fn complete(&mut self, id: AgentId, received: &Datagram, data: Vec<u8>) {
        let mad = &received.mad;
        let Some(agent) = self.agents.get(id) else { return };
        if agents::is_response(mad) {
            let is_awaited = self.requests.remove(RequestKey::new(id, mad)).is_some();
            let is_segment = agent.registration.rmpp == RmppHandling::Program
                && crate::abi::uses_rmpp(mad.class())
                && mad.rmpp().flags.has(RmppFlags::ACTIVE);
            if !is_awaited && !is_segment {
                return;
            }
        }
        let pkey_index = self.addresses.pkeys.iter().position(|held| *held == Some(received.pkey));
        let header = UmadHeader {
            agent: agent.slot,
            queue_pair: received.sqp.to_wire(),
            lid: received.slid.to_wire(),
            service_level: received.sl.to_wire(),
            grh: received.grh,
            pkey_index: pkey_index.unwrap_or(0) as u16,
            ..UmadHeader::default()
        };
        if let Some(file) = self.files.get_mut(&agent.file) {
            file.push(UnreadMessage { header, data });
        }
    }

    /// Ends an attempt of a request without response: sends the request again, or returns it to the program.
    fn end_attempt(&mut self, now: Duration, key: RequestKey) {
        match self.requests.unanswered(now, key) {
            Some(Unanswered::Retry(datagram)) => {
                self.transfers.forget_response(key);
                if self.unsent.len() < UNSENT_MAX {
                    self.unsent.push_back(*datagram);
                }
            }
            Some(Unanswered::GiveUp(request)) => {
                self.return_to_program(key.agent, request.header.clone(), &request.datagram.mad);
            }
            None => {}
        }
    }

    /// Returns what was not answered, with status ETIMEDOUT.
    fn return_to_program(&mut self, agent: AgentId, header: UmadHeader, mad: &Mad) {
        let file = self.agents.get(agent).map(|agent| agent.file);
        if let Some(file) = file.and_then(|file| self.files.get_mut(&file)) {
            let grh = header.grh.map(|grh| Grh { source: grh.destination, ..grh });
            let header = UmadHeader { status: TIMED_OUT, grh, ..header };
            file.push(UnreadMessage { header, data: mad.0[..COMMON_HEADER_LEN].to_vec() });
        }
    }
}
