//! Interactive sessions: the stream behind `exec` and `ssh`.
//!
//! A request with `Connection: upgrade`, `Upgrade: heddle-session` and a [`NewSession`] as its JSON body is answered
//! with 101; both sides then exchange frames: one byte of [`FrameKind`], four bytes of payload length (big endian), and
//! the payload. A session ends with a frame of [`FrameKind::Exit`] or [`FrameKind::Refused`], or when either side closes
//! the connection.

use std::io;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use utoipa::ToSchema;

/// The `Upgrade` protocol of session requests.
pub const PROTOCOL: &str = "heddle-session";

/// Most payload bytes of a frame: the capacity of a pipe.
pub const FRAME_BYTES_MAX: usize = 64 * 1024;

/// Request to open a session in a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum NewSession {
    /// Run a command in the guest as root.
    Exec {
        /// Command with its arguments, at most 64 KiB together.
        argv: Vec<String>,
    },
    /// Connect to the guest's ssh server.
    Ssh {},
}

/// Request of the controller to an agent to open a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum AgentSession {
    /// A session in the guest.
    Guest(NewSession),
    /// A session with the InfiniBand adapter of the virtual machine.
    Adapter(AdapterSession),
}

/// Request to connect to the InfiniBand adapter of a virtual machine, without software in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum AdapterSession {
    /// Open the network view of the adapter, in place of the one opened before. Input and output are the framed protocol of
    /// `ib_transport`: the fabric is the client, the controller the server, which has handled the *attach* frame already.
    View {},
}

/// Kind of a frame, its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// To the guest: standard input. An empty frame closes it.
    Input,
    /// From the guest: standard output, or bytes of the ssh server.
    Output,
    /// From the guest: standard error.
    Error,
    /// From the guest: exit status as four bytes, big endian, 128 + n for signal n. The last frame.
    Exit,
    /// From the guest or the agent: why the session could not be opened, as text. The last frame.
    Refused,
}

impl FrameKind {
    /// The byte on the wire.
    pub const fn to_wire(self) -> u8 {
        match self {
            Self::Input => 0,
            Self::Output => 1,
            Self::Error => 2,
            Self::Exit => 3,
            Self::Refused => 4,
        }
    }

    /// The kind of a byte; `None` for unknown bytes.
    pub const fn from_wire(raw: u8) -> Option<Self> {
        match raw {
            0 => Some(Self::Input),
            1 => Some(Self::Output),
            2 => Some(Self::Error),
            3 => Some(Self::Exit),
            4 => Some(Self::Refused),
            _ => None,
        }
    }
}

/// Reads one frame; `None` if the peer closed the connection between two frames.
///
/// # Errors
/// `InvalidData` for an unknown kind or a payload longer than [`FRAME_BYTES_MAX`].
pub async fn read_frame(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<(FrameKind, Vec<u8>)>> {
    let mut header = [0; 5];
    if from.read(&mut header[..1]).await? == 0 {
        return Ok(None);
    }
    from.read_exact(&mut header[1..]).await?;
    let [kind, length @ ..] = header;
    let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let kind = FrameKind::from_wire(kind).ok_or_else(|| invalid("unknown kind of frame"))?;
    let length = u32::from_be_bytes(length) as usize;
    if length > FRAME_BYTES_MAX {
        return Err(invalid("frame payload is too long"));
    }
    let mut payload = vec![0; length];
    from.read_exact(&mut payload).await?;
    Ok(Some((kind, payload)))
}

/// Writes one frame and flushes. The payload has at most [`FRAME_BYTES_MAX`] bytes.
pub async fn write_frame(
    to: &mut (impl AsyncWrite + Unpin),
    kind: FrameKind,
    payload: &[u8],
) -> io::Result<()> {
    debug_assert!(payload.len() <= FRAME_BYTES_MAX, "callers read in smaller pieces");
    let mut frame = Vec::with_capacity(5 + payload.len());
    frame.push(kind.to_wire());
    frame.extend((payload.len() as u32).to_be_bytes());
    frame.extend(payload);
    to.write_all(&frame).await?;
    to.flush().await
}
