//! The stream behind `exec` and `ssh`, once a request was upgraded to it.
//!
//! A request with `Connection: upgrade`, `Upgrade: heddle-session` and an [`SessionRequest`] as JSON body is answered with 101, and both sides
//! go on with frames: one byte of [`FrameKind`], four bytes of length (big endian), then that many bytes. A session ends when
//! the guest's side has sent [`FrameKind::Exit`], or either side closes the connection.

use std::io;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use utoipa::ToSchema;

/// The protocol that requests are upgraded to.
pub const PROTOCOL: &str = "heddle-session";

/// Longest frame: what fits a pipe.
pub const FRAME_BYTES_MAX: usize = 64 * 1024;

/// What a session is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum SessionRequest {
    /// Run a command in the guest, as root.
    Exec {
        /// The command and its arguments.
        argv: Vec<String>,
    },
    /// Talk to the guest's ssh server, as over a connection of its own.
    Ssh {},
}

/// What a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// To the guest: standard input. An empty frame ends it.
    Input,
    /// From the guest: standard output, or the bytes of the ssh server.
    Output,
    /// From the guest: standard error.
    Error,
    /// From the guest: the exit status as four bytes, big endian, 128 + n for signal n; the last frame.
    Exit,
    /// From the guest or on the way: why there is no session, as text; the last frame.
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

    /// Checks a byte.
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

/// Reads a frame; `None` where the other side has closed the connection between two frames.
pub async fn read_frame(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<(FrameKind, Vec<u8>)>> {
    let mut header = [0; 5];
    if from.read(&mut header[..1]).await? == 0 {
        return Ok(None);
    }
    from.read_exact(&mut header[1..]).await?;
    let [kind, length @ ..] = header;
    let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let kind = FrameKind::from_wire(kind).ok_or_else(|| invalid("a frame of no known kind"))?;
    let length = u32::from_be_bytes(length) as usize;
    if length > FRAME_BYTES_MAX {
        return Err(invalid("a frame that is too long"));
    }
    let mut payload = vec![0; length];
    from.read_exact(&mut payload).await?;
    Ok(Some((kind, payload)))
}

/// Writes a frame.
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
