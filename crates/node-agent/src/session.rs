//! Connects a client's session, which arrived over HTTP, with a session of a guest or the adapter of a virtual machine.

use std::io;
use std::time::Duration;

use controller_api::session::{FRAME_BYTES_MAX, FrameKind, read_frame, write_frame};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use crate::link::{Session, SessionEvent};

/// How long to wait for the client to read the last frame: closing a socket with unread input discards unread output.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Forwards frames in both directions until either side ends. A client that disconnects ends the session in the guest.
pub async fn bridge(client: impl AsyncRead + AsyncWrite, session: Session) -> io::Result<()> {
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let inward = async {
        loop {
            match read_frame(&mut from_client).await? {
                Some((FrameKind::Input, bytes)) => {
                    if !session.input(&bytes).await {
                        // The session has ended; its last event is on its way to the client.
                        return std::future::pending().await;
                    }
                }
                Some((kind, _)) => {
                    let what = format!("unexpected frame {kind:?} from a client; only input is allowed");
                    return Err(io::Error::new(io::ErrorKind::InvalidData, what));
                }
                None => return Ok(()),
            }
        }
    };
    let outward = async {
        loop {
            match session.recv().await {
                SessionEvent::Output(bytes) => {
                    forward(&mut to_client, FrameKind::Output, &bytes, &session).await?
                }
                SessionEvent::Error(bytes) => {
                    forward(&mut to_client, FrameKind::Error, &bytes, &session).await?
                }
                SessionEvent::Note(text) => {
                    write_frame(&mut to_client, FrameKind::Error, text.as_bytes()).await?
                }
                SessionEvent::Exit(status) => {
                    write_frame(&mut to_client, FrameKind::Exit, &status.to_be_bytes()).await?;
                    return to_client.shutdown().await;
                }
                SessionEvent::Refused(why) => {
                    write_frame(&mut to_client, FrameKind::Refused, why.as_bytes()).await?;
                    return to_client.shutdown().await;
                }
            }
        }
    };
    tokio::select! {
        ended = inward => return ended,
        ended = outward => ended?,
    }
    let drain = async { while from_client.read(&mut [0; 4096]).await.is_ok_and(|length| length > 0) {} };
    // A client that stays longer has read it, or never will.
    let _ = timeout(CLOSE_TIMEOUT, drain).await;
    Ok(())
}

/// Most bytes per read of [`bridge_stream`].
const PIECE: usize = 16 * 1024;

/// Forwards input frames of a client to a stream, and what the stream sends as output frames, until either side ends.
pub async fn bridge_stream(
    client: impl AsyncRead + AsyncWrite,
    stream: impl AsyncRead + AsyncWrite,
) -> io::Result<()> {
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (mut from_stream, mut to_stream) = tokio::io::split(stream);
    let inward = async {
        loop {
            match read_frame(&mut from_client).await? {
                Some((FrameKind::Input, bytes)) => to_stream.write_all(&bytes).await?,
                Some((kind, _)) => {
                    let what = format!("unexpected frame {kind:?} from a client; only input is allowed");
                    return Err(io::Error::new(io::ErrorKind::InvalidData, what));
                }
                None => return Ok(()),
            }
        }
    };
    let outward = async {
        let mut buffer = vec![0; PIECE];
        loop {
            match from_stream.read(&mut buffer).await? {
                0 => return Ok(()),
                length => write_frame(&mut to_client, FrameKind::Output, &buffer[..length]).await?,
            }
        }
    };
    tokio::select! { ended = inward => ended, ended = outward => ended }
}

async fn forward(
    client: &mut (impl AsyncWrite + Unpin),
    kind: FrameKind,
    bytes: &[u8],
    session: &Session,
) -> io::Result<()> {
    for piece in bytes.chunks(FRAME_BYTES_MAX) {
        write_frame(client, kind, piece).await?;
    }
    session.consumed(bytes.len()).await;
    Ok(())
}
