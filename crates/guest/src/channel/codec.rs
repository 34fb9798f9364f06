//! Framing of messages, without I/O.

use std::collections::VecDeque;
use std::marker::PhantomData;

use super::wire::{ContextParts, WireFormat};
use super::{PAYLOAD_BYTES_MAX, ToGuest, ToHost};

/// Bytes of the CRC-32 at the end of every frame.
const CRC_BYTES: usize = 4;

/// Most encoded bytes of a frame, without the terminating zero.
const FRAME_BYTES_MAX: usize = cobs::max_encoding_length(PAYLOAD_BYTES_MAX + CRC_BYTES);

/// A message of one direction: [`ToGuest`] or [`ToHost`]. Sealed.
pub trait ChannelMessage: WireFormat {}

impl ChannelMessage for ToGuest {}
impl ChannelMessage for ToHost {}

/// A message exceeds what the protocol can carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message on the channel must have at most {max} bytes, got {bytes}")]
pub struct MessageTooLong {
    pub bytes: usize,
    pub max: usize,
}

/// Appends the frames of a message to `out`. If the message is too long, `out` is unchanged.
pub fn encode<M: ChannelMessage>(message: &M, out: &mut Vec<u8>) -> Result<(), MessageTooLong> {
    let payloads = message.to_payloads()?;
    if let Some(long) = payloads.iter().find(|payload| payload.len() > PAYLOAD_BYTES_MAX) {
        return Err(MessageTooLong { bytes: long.len(), max: PAYLOAD_BYTES_MAX });
    }
    for mut payload in payloads {
        payload.extend(crc32fast::hash(&payload).to_be_bytes());
        let start = out.len();
        out.resize(start + cobs::max_encoding_length(payload.len()), 0);
        let length = cobs::encode(&payload, &mut out[start..]);
        out.truncate(start + length);
        out.push(0);
    }
    Ok(())
}

/// Extracts messages from a byte stream. Resynchronises at the next zero byte after any noise.
///
/// Buffers one frame and, in the guest, one partial context: less than
/// [`CONTEXT_BYTES_MAX`](super::CONTEXT_BYTES_MAX) + 32 KiB.
pub struct Decoder<M> {
    /// Bytes of the current frame, at most [`FRAME_BYTES_MAX`].
    frame: Vec<u8>,
    /// The current frame is too long: its bytes are discarded up to the next zero byte.
    overlong: bool,
    parts: ContextParts,
    dropped_frames: u64,
    direction: PhantomData<fn() -> M>,
}

impl<M: ChannelMessage> Default for Decoder<M> {
    fn default() -> Self {
        Self::new()
    }
}

/// Does not print the buffers, which may hold secrets.
impl<M> std::fmt::Debug for Decoder<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decoder").field("dropped_frames", &self.dropped_frames).finish_non_exhaustive()
    }
}

impl<M: ChannelMessage> Decoder<M> {
    /// A decoder at the start of a stream.
    pub fn new() -> Self {
        Self {
            frame: Vec::new(),
            overlong: false,
            parts: ContextParts::default(),
            dropped_frames: 0,
            direction: PhantomData,
        }
    }

    /// Number of frames dropped so far: invalid COBS or CRC, too long, or not a valid message.
    pub const fn dropped_frames(&self) -> u64 {
        self.dropped_frames
    }

    /// Consumes received bytes and appends the completed messages, fewer than `bytes.len()`, to `messages`. Callers bound
    /// the queue by passing small slices and draining it in between.
    pub fn push(&mut self, bytes: &[u8], messages: &mut VecDeque<M>) {
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| *byte == 0) {
            self.gather(&rest[..end]);
            rest = &rest[end + 1..];
            let mut frame = std::mem::take(&mut self.frame);
            let overlong = std::mem::take(&mut self.overlong);
            // An empty frame is ignored: a peer that joins the stream sends a zero byte to end a partial frame.
            if overlong {
                self.dropped_frames += 1;
            } else if !frame.is_empty() {
                match self.open(&mut frame) {
                    Some(message) => messages.extend(message),
                    None => self.dropped_frames += 1,
                }
            }
            frame.clear();
            self.frame = frame;
        }
        self.gather(rest);
    }

    fn gather(&mut self, bytes: &[u8]) {
        if self.overlong || self.frame.len() + bytes.len() > FRAME_BYTES_MAX {
            self.overlong = true;
            self.frame.clear();
        } else {
            self.frame.extend_from_slice(bytes);
        }
    }

    /// `None` if the frame is invalid, `Some(None)` if more frames of a message follow.
    fn open(&mut self, frame: &mut [u8]) -> Option<Option<M>> {
        let length = cobs::decode_in_place(frame).ok()?;
        let (payload, crc) = frame.get(..length)?.split_last_chunk::<CRC_BYTES>()?;
        if crc32fast::hash(payload) != u32::from_be_bytes(*crc) {
            return None;
        }
        M::from_payload(payload, &mut self.parts)
    }
}
