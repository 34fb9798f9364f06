//! The protocol between host and guest on the virtio-serial port [`PORT_NAME`].
//!
//! The port is a byte stream that either side may join in the middle, after a restart of the agent or of the guest. Frames
//! are therefore self-synchronising: each is COBS-encoded, ends with a zero byte and contains a CRC-32. Frames with a wrong
//! CRC are dropped and counted ([`Decoder::dropped_frames`]).
//!
//! ```text
//! frame    = cobs(kind: u8, fields…, crc: u32) 0x00        integers big endian; the CRC covers kind and fields
//! ```
//!
//! Order of messages:
//!
//! 1. The host sends [`ToGuest::Hello`] with a fresh nonce. The guest ends all sessions, answers [`ToHost::Welcome`] with the
//!    same nonce, and reports its status: [`ToHost::Network`], then [`ToHost::Ready`] or [`ToHost::Failed`]. The host ignores
//!    everything received before the welcome.
//! 2. The host opens sessions, at most [`SESSIONS_MAX`] at a time. A session ends with [`ToHost::Exit`] or
//!    [`ToHost::Refused`], also after [`ToGuest::Close`]; only then may its number be reused.
//! 3. Each session has one flow-control [`Window`] per direction. A side sends only bytes for which it holds credit, so a
//!    session whose output is not read does not block the others. Standard output and standard error share a window.
//! 4. [`ToGuest::Context`] replaces the documents of the seed ([`crate::seed::Seed`]). The guest answers with ready or failed.
//!
//! Neither side trusts the other: for any input, memory use stays bounded and nothing panics.

mod codec;
mod window;
mod wire;

pub use codec::{ChannelMessage, Decoder, MessageTooLong, encode};
pub use window::{WINDOW_BYTES, Window, WindowOverrun};

use crate::probe::Reachability;

/// Name of the virtio-serial port.
pub const PORT_NAME: &str = "org.heddle.guest.0";

/// Version of this protocol. The guest sends it in [`ToHost::Welcome`]; the agent rejects guests of any other version.
pub const PROTOCOL_VERSION: u16 = 1;

/// Most bytes of kind and fields in one frame. Small, so that sessions are interleaved.
pub const PAYLOAD_BYTES_MAX: usize = 16 * 1024;

/// Most bytes of session data in one frame: the payload without kind and session number.
pub const DATA_BYTES_MAX: usize = PAYLOAD_BYTES_MAX - 16;

/// Most bytes of a context, which is split into as many frames as it needs. Enough for a cluster of 5,000 nodes.
pub const CONTEXT_BYTES_MAX: usize = 1024 * 1024;

/// Most sessions open at a time: eight for users and tools, one for the network view.
pub const SESSIONS_MAX: usize = 9;

/// Number of a session, chosen by the host among the free ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u16);

/// What a session runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionRequest {
    /// A command, as root, without a terminal.
    Exec {
        /// The program and its arguments. An empty list is refused.
        argv: Vec<String>,
    },
    /// `sshd -i`: input and output are one SSH connection.
    Ssh,
}

/// Messages from the host to the guest.
#[derive(Clone, PartialEq, Eq)]
pub enum ToGuest {
    /// Starts a conversation: the guest ends all sessions and answers with [`ToHost::Welcome`].
    Hello {
        /// Repeated in the welcome.
        nonce: u64,
    },
    /// New documents for the guest, written by [`crate::seed::Seed::to_context`].
    Context(Vec<u8>),
    Open {
        /// A number without an open session.
        session: SessionId,
        request: SessionRequest,
    },
    /// Bytes for standard input.
    Input {
        session: SessionId,
        /// At most [`DATA_BYTES_MAX`]; empty means end of input.
        bytes: Vec<u8>,
    },
    /// Grants the guest credit for more output of a session.
    Credit { session: SessionId, bytes: u32 },
    /// Ends a session: its processes get SIGTERM, then SIGKILL.
    Close { session: SessionId },
}

/// Messages from the guest to the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToHost {
    /// Answers [`ToGuest::Hello`].
    Welcome {
        /// Nonce of the hello.
        nonce: u64,
        /// [`PROTOCOL_VERSION`] of the guest.
        version: u16,
        /// The kernel's boot id. A different one means that the guest has rebooted.
        boot: String,
    },
    /// The context of this generation is applied and sshd listens.
    Ready { generation: u64 },
    /// Result so far of the network check that the context of this generation requests. Sent before [`ToHost::Ready`] of the
    /// same generation and after every change; never sent by guests without a network check.
    Network { generation: u64, reach: Reachability },
    /// The context of this generation could not be applied.
    Failed {
        /// 0 if the context could not be parsed.
        generation: u64,
        reason: String,
    },
    /// Bytes of standard output, or of the SSH connection.
    Output {
        session: SessionId,
        /// 1 to [`DATA_BYTES_MAX`].
        bytes: Vec<u8>,
    },
    /// Bytes of standard error.
    Error {
        session: SessionId,
        /// 1 to [`DATA_BYTES_MAX`].
        bytes: Vec<u8>,
    },
    /// The session has ended; its number is free.
    Exit {
        session: SessionId,
        /// Exit status, or 128 + n if signal n ended the process.
        status: i32,
    },
    /// The session could not be opened, or was ended because the host broke the protocol; its number is free.
    Refused { session: SessionId, reason: String },
    /// Grants the host credit for more input of a session.
    Credit { session: SessionId, bytes: u32 },
}

/// Prints neither contexts, which hold a private key, nor input, which may be a password.
impl std::fmt::Debug for ToGuest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Hello { nonce } => f.debug_struct("Hello").field("nonce", nonce).finish(),
            Self::Context(json) => write!(f, "Context({} bytes)", json.len()),
            Self::Open { session, request } => {
                f.debug_struct("Open").field("session", session).field("request", request).finish()
            }
            Self::Input { session, bytes } => write!(f, "Input({}, {} bytes)", session.0, bytes.len()),
            Self::Credit { session, bytes } => {
                f.debug_struct("Credit").field("session", session).field("bytes", bytes).finish()
            }
            Self::Close { session } => f.debug_struct("Close").field("session", session).finish(),
        }
    }
}
