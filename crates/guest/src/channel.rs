//! SessionRequest host and guest say to each other on the virtio-serial port [`PORT_NAME`].
//!
//! The port is a stream of bytes that either side may join in the middle: an agent was killed and comes back, a guest
//! was restarted. So frames find their own start: each is COBS-encoded and ended by a zero byte, and a CRC-32 inside
//! tells whole ones from broken ones, which are dropped and counted ([`Decoder::dropped_frames`]).
//!
//! ```text
//! frame    = cobs(kind: u8, fields…, crc: u32) 0x00        integers big endian; the CRC is over kind and fields
//! ```
//!
//! A conversation:
//!
//! 1. The host says [`ToGuest::Hello`] with a number it has not used before. The guest drops every session and answers
//!    [`ToHost::Welcome`] with that number, and says how it stands: [`ToHost::Network`], then [`ToHost::Ready`] or
//!    [`ToHost::Failed`]. The host ignores all that came before the welcome.
//! 2. The host opens sessions, [`SESSIONS_MAX`] at most. A session is over when the guest has said
//!    [`ToHost::Exit`] or [`ToHost::Refused`], also after [`ToGuest::Close`]; only then is its number free again.
//! 3. Each session has a [`Window`] in each direction: nobody sends bytes that the other side has not granted, so a
//!    session that is not read stops nobody else. Standard output and standard error share one.
//! 4. [`ToGuest::Context`] brings changed documents ([`crate::seed::Seed`]); the guest answers with ready or failed.
//!
//! Neither side trusts the other's bytes: whatever comes in, memory stays bounded and nothing panics.

mod codec;
mod window;
mod wire;

pub use codec::{ChannelMessage, Decoder, MessageTooLong, encode};
pub use window::{WINDOW_BYTES, Window, WindowOverrun};

use crate::probe::Reachability;

/// Name of the virtio-serial port.
pub const PORT_NAME: &str = "org.heddle.guest.0";

/// SessionRequest this side speaks. A guest says it in [`ToHost::Welcome`]; hosts refuse others by name.
pub const PROTOCOL_VERSION: u16 = 1;

/// Longest kind and fields of one frame: small, so that sessions take turns.
pub const PAYLOAD_BYTES_MAX: usize = 16 * 1024;

/// Bytes of input, output or error that fit one frame: the rest of the payload is for kind and session.
pub const DATA_BYTES_MAX: usize = PAYLOAD_BYTES_MAX - 16;

/// Longest context, which travels in as many frames as it needs. Enough for a cluster of 5,000 nodes.
pub const CONTEXT_BYTES_MAX: usize = 1024 * 1024;

/// Sessions at a time: eight of people and tools that look at one node at once, and the one of its view.
pub const SESSIONS_MAX: usize = 9;

/// A session, as the host numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u16);

/// SessionRequest a session is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionRequest {
    /// Run a command, as root.
    Exec {
        /// The command and its arguments.
        argv: Vec<String>,
    },
    /// Talk to an ssh server of its own, as over a connection.
    Ssh,
}

/// From the host to the guest.
#[derive(Clone, PartialEq, Eq)]
pub enum ToGuest {
    /// A host begins: all sessions end, and the guest answers with [`ToHost::Welcome`].
    Hello {
        /// Comes back in the welcome.
        nonce: u64,
    },
    /// Documents that replace the guest's, as [`crate::seed::Seed::to_context`] writes them.
    Context(Vec<u8>),
    /// Begins a session.
    Open {
        /// A number that is free.
        session: SessionId,
        /// SessionRequest for.
        request: SessionRequest,
    },
    /// Standard input.
    Input {
        /// Whose.
        session: SessionId,
        /// Empty at the end of input. At most [`DATA_BYTES_MAX`].
        bytes: Vec<u8>,
    },
    /// The guest may send that many bytes more.
    Credit {
        /// In which session.
        session: SessionId,
        /// How many.
        bytes: u32,
    },
    /// Ends a session: its processes are killed.
    Close {
        /// Which.
        session: SessionId,
    },
}

/// From the guest to the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToHost {
    /// Answers [`ToGuest::Hello`].
    Welcome {
        /// That of the hello.
        nonce: u64,
        /// [`PROTOCOL_VERSION`] of the guest.
        version: u16,
        /// The kernel's boot id: another one means that the guest was started anew.
        boot: String,
    },
    /// The context of this generation holds, and ssh is served.
    Ready {
        /// Of the context.
        generation: u64,
    },
    /// SessionRequest the guest knows of its network, as far as the context of this generation asks. Comes before
    /// [`ToHost::Ready`] of the same generation, and again when it changes; never from guests that do not check.
    Network {
        /// Of the context.
        generation: u64,
        /// SessionRequest was found out so far.
        reach: Reachability,
    },
    /// The context of this generation could not be applied.
    Failed {
        /// Of the context; 0 where it could not even be read.
        generation: u64,
        /// Why.
        reason: String,
    },
    /// Standard output, or what the ssh server says.
    Output {
        /// Whose.
        session: SessionId,
        /// Not empty. At most [`DATA_BYTES_MAX`].
        bytes: Vec<u8>,
    },
    /// Standard error.
    Error {
        /// Whose.
        session: SessionId,
        /// Not empty. At most [`DATA_BYTES_MAX`].
        bytes: Vec<u8>,
    },
    /// A session is over.
    Exit {
        /// Which.
        session: SessionId,
        /// Exit status; 128 + n for signal n.
        status: i32,
    },
    /// There is no such session.
    Refused {
        /// Which.
        session: SessionId,
        /// Why.
        reason: String,
    },
    /// The host may send that many bytes more.
    Credit {
        /// In which session.
        session: SessionId,
        /// How many.
        bytes: u32,
    },
}

/// Contexts hold a private key and input may be a password: neither prints.
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
