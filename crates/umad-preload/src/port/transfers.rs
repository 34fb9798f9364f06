//! RMPP transfers of agents whose RMPP this library handles.
//!
//! [`ib_wire::rmpp`] has the two ends of one transfer. This module keeps all transfers of a port, gives each datagram to its
//! transfer, and limits their number, their memory and their time.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use ib_wire::rmpp::{Receiver, RmppMessage, SEGMENT_DATA_LEN, Sender};
use ib_wire::{Datagram, Mad, QueuePair, TransactionId};

use super::agents::AgentId;
use super::requests::RequestKey;
use crate::abi::UmadHeader;

/// Most messages that are sent at the same time. opensm answers queries one after the other; a response that is not
/// acknowledged stays for seconds.
const SENDS_MAX: usize = 256;

/// Most bytes of all messages that are sent, 64 MiB: eight of the longest message.
const SEND_BYTES_MAX: usize = 64 << 20;

/// Most messages that are received at the same time, completed ones included. Tools send one query at a time.
const RECEIVES_MAX: usize = 256;

/// Most bytes of all incomplete messages, 64 MiB: eight of the longest message.
const RECEIVE_BYTES_MAX: usize = 64 << 20;

/// Longest time for an acknowledgement, as in the kernel.
const ACK_TIMEOUT_MAX: Duration = Duration::from_secs(2);

/// Time after which an incomplete message without new segments is dropped, as in the kernel.
const INCOMPLETE_TIMEOUT: Duration = Duration::from_secs(40);

/// Time for which a complete message is still acknowledged, should an acknowledgement be lost; as in the kernel.
const COMPLETE_TIMEOUT: Duration = Duration::from_secs(10);

/// Most acknowledgements that wait for a slow link. If one is dropped, the sender repeats its segments.
const REPLIES_MAX: usize = 1024;

/// What identifies a transfer at its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TransferKey {
    agent: AgentId,
    transaction: TransactionId,
    class: u8,
    /// LID of the other end.
    peer: u16,
}

impl TransferKey {
    /// The transfer of a datagram that is sent to `peer` or received from it.
    pub(super) fn new(agent: AgentId, mad: &Mad, peer: u16) -> Self {
        Self { agent, transaction: mad.transaction(), class: mad.class().0, peer }
    }
}

/// A message to send.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) agent: AgentId,
    sender: Sender,
    /// The headers of its datagrams.
    headers: Datagram,
    bytes: usize,
    ack_timeout: Duration,
    deadline: Duration,
    /// The header that the program wrote.
    pub(super) header: UmadHeader,
    /// The request that waits for a response once it is sent.
    pub(super) request: Option<RequestKey>,
}

impl Outgoing {
    /// The first bytes of the message.
    pub(super) fn mad(&self) -> &Mad {
        &self.headers.mad
    }

    pub(super) fn new(
        agent: AgentId,
        sender: Sender,
        headers: Datagram,
        bytes: usize,
        header: UmadHeader,
        request: Option<RequestKey>,
    ) -> Self {
        let ack_timeout = match Duration::from_millis(header.timeout_ms.into()) {
            Duration::ZERO => ACK_TIMEOUT_MAX,
            timeout => timeout.min(ACK_TIMEOUT_MAX),
        };
        Self { agent, sender, headers, bytes, ack_timeout, deadline: Duration::ZERO, header, request }
    }
}

/// A message that is being received, or was.
#[derive(Debug)]
struct Incoming {
    receiver: Receiver,
    method: ib_wire::Method,
    bytes: usize,
    is_complete: bool,
    deadline: Duration,
}

/// The transfers of a port.
#[derive(Debug, Default)]
pub(super) struct Transfers {
    outgoing: BTreeMap<TransferKey, Outgoing>,
    /// Transfers that may have something to send, in turn.
    ready: VecDeque<TransferKey>,
    incoming: BTreeMap<TransferKey, Incoming>,
    /// Acknowledgements and aborts to send.
    replies: VecDeque<Datagram>,
}

/// What became of a message after its receiver answered.
#[derive(Debug)]
pub(super) enum Progress {
    UnderWay,
    /// The receiver has all of it.
    Sent(Box<Outgoing>),
    /// The receiver ended the transfer, or violated the protocol.
    Ended(Box<Outgoing>),
}

impl Transfers {
    /// Whether a message with this key is being sent.
    pub(super) fn is_sending(&self, key: TransferKey) -> bool {
        self.outgoing.contains_key(&key)
    }

    /// Whether a message of `bytes` bytes may be sent now.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        let used: usize = self.outgoing.values().map(|message| message.bytes).sum();
        self.outgoing.len() < SENDS_MAX && used + bytes <= SEND_BYTES_MAX
    }

    /// Starts to send a message. The caller has checked [`Self::has_room`].
    pub(super) fn start(&mut self, now: Duration, key: TransferKey, mut message: Outgoing) {
        message.deadline = now + message.ack_timeout;
        self.outgoing.insert(key, message);
        self.ready.push_back(key);
    }

    /// Handles an acknowledgement, stop or abort of the receiver of a message.
    pub(super) fn handle_answer(&mut self, now: Duration, key: TransferKey, mad: &Mad) -> Progress {
        let Some(message) = self.outgoing.get_mut(&key) else { return Progress::UnderWay };
        let result = message.sender.handle(mad);
        message.deadline = now + message.ack_timeout;
        if result.is_ok() && !message.sender.is_done() {
            self.ready.push_back(key);
            return Progress::UnderWay;
        }
        match self.end(key) {
            Some(message) if result.is_ok() => Progress::Sent(message),
            Some(message) => Progress::Ended(message),
            None => Progress::UnderWay,
        }
    }

    /// Whether a message with this key and method is being received.
    pub(super) fn is_receiving(&self, key: TransferKey, method: ib_wire::Method) -> bool {
        self.incoming.get(&key).is_some_and(|message| message.method == method && !message.is_complete)
    }

    /// Whether a message with this key was received completely, so that its segments are only acknowledged.
    pub(super) fn is_complete(&self, key: TransferKey) -> bool {
        self.incoming.get(&key).is_some_and(|message| message.is_complete)
    }

    /// Whether an incomplete message with this agent and the low 32 bits of this transaction is being received.
    pub(super) fn is_answering(&self, key: RequestKey) -> bool {
        self.incoming.iter().any(|(transfer, message)| is_response_to(transfer, key) && !message.is_complete)
    }

    /// Forgets what was received for a request that is sent again: its response starts again, too.
    pub(super) fn forget_response(&mut self, key: RequestKey) {
        self.incoming.retain(|transfer, _| !is_response_to(transfer, key));
    }

    /// Handles a segment, or the sender's end of a transfer. Returns the message when it is complete.
    pub(super) fn handle_segment(
        &mut self,
        now: Duration,
        key: TransferKey,
        datagram: &Datagram,
    ) -> Option<RmppMessage> {
        if !self.incoming.contains_key(&key) {
            self.make_room()?;
            let message = Incoming {
                receiver: Receiver::new(),
                method: datagram.mad.method(),
                bytes: 0,
                is_complete: false,
                deadline: now,
            };
            self.incoming.insert(key, message);
        }
        let used: usize = self.incoming.values().map(|message| message.bytes).sum();
        let message = self.incoming.get_mut(&key)?;
        if !message.is_complete {
            message.bytes += SEGMENT_DATA_LEN;
            message.deadline = now + INCOMPLETE_TIMEOUT;
        }
        let result = message.receiver.handle(&datagram.mad);
        if let Some(mad) = message.receiver.poll_transmit()
            && self.replies.len() < REPLIES_MAX
        {
            self.replies.push_back(reply(datagram, mad));
        }
        let complete = match result {
            Ok(complete) if used <= RECEIVE_BYTES_MAX => complete,
            // Failed, or there is no memory left: the sender repeats the segments and fails, too.
            _ => {
                self.incoming.remove(&key);
                return None;
            }
        };
        if complete.is_some() {
            message.is_complete = true;
            message.bytes = 0;
            message.deadline = now + COMPLETE_TIMEOUT;
        }
        complete
    }

    /// Drops what is too old and repeats what was not acknowledged. Returns the messages that failed for lack of
    /// acknowledgements.
    pub(super) fn handle_timeout(&mut self, now: Duration) -> Vec<Outgoing> {
        self.incoming.retain(|_, message| message.deadline > now);
        let mut failed = Vec::new();
        let due: Vec<TransferKey> = self
            .outgoing
            .iter()
            .filter(|(_, message)| message.deadline <= now)
            .map(|(key, _)| *key)
            .collect();
        for key in due {
            let Some(message) = self.outgoing.get_mut(&key) else { continue };
            message.deadline = now + message.ack_timeout;
            if message.sender.handle_timeout().is_ok() {
                self.ready.push_back(key);
            } else {
                failed.extend(self.end(key).map(|message| *message));
            }
        }
        failed
    }

    pub(super) fn next_deadline(&self) -> Option<Duration> {
        let outgoing = self.outgoing.values().map(|message| message.deadline);
        outgoing.chain(self.incoming.values().map(|message| message.deadline)).min()
    }

    /// The next datagram to send; messages take turns.
    pub(super) fn poll_transmit(&mut self, now: Duration) -> Option<Datagram> {
        if let Some(reply) = self.replies.pop_front() {
            return Some(reply);
        }
        while let Some(key) = self.ready.pop_front() {
            let Some(message) = self.outgoing.get_mut(&key) else { continue };
            if let Some(mad) = message.sender.poll_transmit() {
                message.deadline = now + message.ack_timeout;
                self.ready.push_back(key);
                return Some(Datagram { mad, ..message.headers.clone() });
            }
        }
        None
    }

    /// Drops all transfers of an agent.
    pub(super) fn remove_agent(&mut self, agent: AgentId) {
        self.outgoing.retain(|key, _| key.agent != agent);
        self.incoming.retain(|key, _| key.agent != agent);
    }

    /// Removes a message and queues the abort for its receiver, if there is one to send.
    fn end(&mut self, key: TransferKey) -> Option<Box<Outgoing>> {
        let mut message = self.outgoing.remove(&key)?;
        if message.sender.error().is_some()
            && let Some(mad) = message.sender.poll_transmit()
        {
            self.replies.push_back(Datagram { mad, ..message.headers.clone() });
        }
        Some(Box::new(message))
    }

    /// Makes room for one more message: the complete one that is oldest goes. `None` if all are incomplete.
    fn make_room(&mut self) -> Option<()> {
        if self.incoming.len() >= RECEIVES_MAX {
            let complete = self.incoming.iter().filter(|(_, message)| message.is_complete);
            let oldest = complete.min_by_key(|(_, message)| message.deadline).map(|(key, _)| *key)?;
            self.incoming.remove(&oldest);
        }
        Some(())
    }
}

fn is_response_to(transfer: &TransferKey, request: RequestKey) -> bool {
    (transfer.agent, transfer.transaction.0 as u32, transfer.class)
        == (request.agent, request.transaction, request.class)
}

/// A datagram for the sender of `received`.
fn reply(received: &Datagram, mad: Mad) -> Datagram {
    Datagram {
        slid: received.dlid,
        dlid: received.slid,
        sqp: QueuePair::GENERAL_MANAGEMENT,
        dqp: received.sqp,
        grh: received.grh.map(|grh| ib_wire::Grh { source: grh.destination, destination: grh.source, ..grh }),
        mad,
        ..received.clone()
    }
}
