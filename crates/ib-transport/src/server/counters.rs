//! Statistics of a server.

/// Statistics of a server since its start. All counters only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ServerCounters {
    /// Control messages of the ibsim protocol that were answered.
    pub control_messages: u64,
    /// Datagrams received from clients and passed to the backend.
    pub datagrams_in: u64,
    /// Datagrams queued for clients.
    pub datagrams_out: u64,
    /// Requests reported to their client as lost.
    pub lost: u64,

    /// Control messages that are not 80 bytes long.
    pub control_wrong_length: u64,
    /// Control messages with a wrong magic number.
    pub control_wrong_magic: u64,
    /// Control messages of an unknown type.
    pub control_unknown_type: u64,
    /// Control messages from an address that does not own the client they name.
    pub control_forged: u64,
    /// Control messages of users without access ([`SocketAccess`](crate::SocketAccess)).
    pub control_foreign_user: u64,
    /// Control replies dropped because the queue of the client's socket was full.
    pub control_unanswered: u64,
    /// Attachments refused: no such node.
    pub refused_unknown_node: u64,
    /// Attachments refused: the limit of clients is reached, for the server, the user or the port.
    pub refused_full: u64,
    /// Attachments that failed with an operating system error.
    pub refused_by_system: u64,

    /// Data messages that are not 288 bytes long.
    pub data_wrong_length: u64,
    /// Data messages with an invalid MAD length or queue pair.
    pub data_malformed: u64,
    /// Streams closed because of a malformed or unexpected frame.
    pub frames_malformed: u64,

    /// Responses dropped because their client is gone, is attached to another port, or sent no request of that class.
    pub responses_unclaimed: u64,
    /// Requests to a port without a subnet manager client, or of a class that such clients do not handle.
    pub requests_undeliverable: u64,
    /// Requests forwarded to a client that did not answer within [`FORWARD_TIMEOUT`](crate::FORWARD_TIMEOUT).
    pub forwards_expired: u64,
    /// Requests not forwarded because [`FORWARDED_MAX`](crate::FORWARDED_MAX) requests wait for a response.
    pub forwards_refused: u64,
    /// Datagrams dropped because the backlog of their client was full.
    pub backlog_dropped: u64,
    /// Clients that ended without disconnecting and were removed.
    pub clients_reclaimed: u64,
}
