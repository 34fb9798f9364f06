//! The channel between host and guest: neither side does harm to the other, and what is read can be written again.
#![no_main]

use std::collections::VecDeque;

use guest::channel::{Decoder, Message, ToGuest, ToHost, encode};
use guest::seed::Seed;
use libfuzzer_sys::fuzz_target;

fn read<M: Message>(raw: &[u8]) -> VecDeque<M> {
    let mut messages = VecDeque::new();
    Decoder::new().push(raw, &mut messages);
    for message in &messages {
        encode(message, &mut Vec::new()).expect("what came in a frame fits one");
    }
    messages
}

fuzz_target!(|raw: &[u8]| {
    read::<ToHost>(raw);
    read::<ToGuest>(raw);
    // The same bytes as what a frame holds: a fuzzer does not find checksums.
    let crc = crc32fast::hash(raw).to_be_bytes();
    let mut frame = cobs::encode_vec(&[raw, &crc].concat());
    frame.push(0);
    read::<ToHost>(&frame);
    read::<ToGuest>(&frame);
    if let Ok(seed) = Seed::from_context(raw) {
        let _ = seed.read();
    }
});
