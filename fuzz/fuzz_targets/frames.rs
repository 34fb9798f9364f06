//! What other programs send to the transports: frames of a stream in any pieces, and messages of the ibsim protocol.
#![no_main]

use ib_transport::framed::{Frame, FrameReader};
use ib_transport::ibsim::{ControlReply, ControlRequest, DataMessage};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let _ = (ControlRequest::decode(input), ControlReply::decode(input), DataMessage::decode(input));
    let Some((&piece, stream)) = input.split_first() else { return };
    let mut reader = FrameReader::default();
    for piece in stream.chunks(usize::from(piece) + 1) {
        let mut unread = piece;
        while !unread.is_empty() {
            let room = reader.room();
            let count = room.len().min(unread.len());
            room[..count].copy_from_slice(&unread[..count]);
            reader.filled(count);
            unread = &unread[count..];
            loop {
                match reader.next_frame() {
                    Ok(Some(frame)) => check(&frame),
                    Ok(None) => break,
                    Err(_) => return,
                }
            }
        }
    }
});

/// What was read can be written, and reads the same again.
fn check(frame: &Frame) {
    let mut raw = Vec::new();
    frame.encode(&mut raw);
    assert_eq!(Frame::decode(&raw[4..]).as_ref(), Ok(frame));
}
