//! What a server counted.

/// Events a server counts instead of failing on them. All start at 0 and only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ServerCounters {
    /// Control messages answered.
    pub control_messages: u64,
    /// Datagrams taken from clients and handed to the backend.
    pub datagrams_in: u64,
    /// Datagrams queued for clients.
    pub datagrams_out: u64,
    /// Requests reported to their sender as lost.
    pub lost: u64,

    /// Control messages that are not 80 bytes long.
    pub control_wrong_length: u64,
    /// Control messages with a wrong magic number.
    pub control_wrong_magic: u64,
    /// Control messages of an unknown type.
    pub control_unknown_type: u64,
    /// Control messages from an address that does not own the client they name.
    pub control_forged: u64,
    /// Control messages of users who may not use the sockets.
    pub control_foreign_user: u64,
    /// Control replies that found the client's queue full.
    pub control_unanswered: u64,
    /// Attachments refused: no such node.
    pub refused_unknown_node: u64,
    /// Attachments refused: every slot is taken by a living client, or all that one user, port or group of ports may have.
    pub refused_full: u64,
    /// Attachments that failed at the operating system.
    pub refused_by_system: u64,

    /// Data messages that are not 288 bytes long.
    pub data_wrong_length: u64,
    /// Data messages whose fields hold what they must not (MAD length, queue pair).
    pub data_malformed: u64,
    /// Streams ended for a malformed frame, or one out of place.
    pub frames_malformed: u64,

    /// Responses for a client that is gone, sits elsewhere, or never sent a request of that class.
    pub responses_unclaimed: u64,
    /// Requests that reached a port where nobody takes them.
    pub requests_undeliverable: u64,
    /// Forwarded requests that nobody answered in time.
    pub forwards_expired: u64,
    /// Requests not forwarded because too many forwarded ones wait for an answer.
    pub forwards_refused: u64,
    /// Datagrams dropped because their receiver does not read.
    pub backlog_dropped: u64,
    /// Clients found dead, whose slots were taken back.
    pub clients_reclaimed: u64,
}
