//! Frames around messages, without I/O.

use std::collections::VecDeque;
use std::marker::PhantomData;

use super::wire::{ContextParts, WireFormat};
use super::{PAYLOAD_BYTES_MAX, ToGuest, ToHost};

/// Bytes of the checksum at the end of every frame.
const CRC_BYTES: usize = 4;

/// Longest frame without its end.
const FRAME_BYTES_MAX: usize = cobs::max_encoding_length(PAYLOAD_BYTES_MAX + CRC_BYTES);

/// A message of one direction: [`ToGuest`] or [`ToHost`].
pub trait ChannelMessage: WireFormat {}

impl ChannelMessage for ToGuest {}
impl ChannelMessage for ToHost {}

/// A message that has no place in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message for the channel has {bytes} bytes; at most {max} fit")]
pub struct MessageTooLong {
    /// How long it is.
    pub bytes: usize,
    /// How long it may be.
    pub max: usize,
}

/// Appends a message to the bytes that go out. Appends nothing if it is too long.
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

/// Finds messages in the bytes that come in.
///
/// It keeps one frame and, towards the guest, one context at most: less than
/// [`CONTEXT_BYTES_MAX`](super::CONTEXT_BYTES_MAX) and 32 KiB.
pub struct Decoder<M> {
    /// Of the frame that has begun, [`FRAME_BYTES_MAX`] at most.
    frame: Vec<u8>,
    /// The frame that has begun is too long: what comes up to its end is thrown away.
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

/// SessionRequest it holds may be secret.
impl<M> std::fmt::Debug for Decoder<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decoder").field("dropped_frames", &self.dropped_frames).finish_non_exhaustive()
    }
}

impl<M: ChannelMessage> Decoder<M> {
    /// One that has seen nothing.
    pub fn new() -> Self {
        Self {
            frame: Vec::new(),
            overlong: false,
            parts: ContextParts::default(),
            dropped_frames: 0,
            direction: PhantomData,
        }
    }

    /// Frames that were dropped because they were broken, too long or made no sense.
    pub const fn dropped_frames(&self) -> u64 {
        self.dropped_frames
    }

    /// Takes bytes as they come and appends the messages that they complete to `messages`: fewer than `bytes.len()`,
    /// so that who feeds small pieces and empties the queue in between has few.
    pub fn push(&mut self, bytes: &[u8], messages: &mut VecDeque<M>) {
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| *byte == 0) {
            self.gather(&rest[..end]);
            rest = &rest[end + 1..];
            let mut frame = std::mem::take(&mut self.frame);
            let overlong = std::mem::take(&mut self.overlong);
            // Two ends in a row are no frame: who joins sends one to end what may have begun.
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

    /// The message that ends with a frame, if one does; `None` if the frame is broken.
    fn open(&mut self, frame: &mut [u8]) -> Option<Option<M>> {
        let length = cobs::decode_in_place(frame).ok()?;
        let (payload, crc) = frame.get(..length)?.split_last_chunk::<CRC_BYTES>()?;
        if crc32fast::hash(payload) != u32::from_be_bytes(*crc) {
            return None;
        }
        M::from_payload(payload, &mut self.parts)
    }
}
