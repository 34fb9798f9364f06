//! The channel's codec and flow control with valid, truncated and random input.

use std::collections::VecDeque;

use guest::channel::{
    CONTEXT_BYTES_MAX, ChannelMessage, DATA_BYTES_MAX, Decoder, MessageTooLong, SessionId, SessionRequest,
    ToGuest, ToHost, WINDOW_BYTES, Window, encode,
};
use guest::probe::Reachability;
use proptest::collection::vec;
use proptest::prelude::*;

fn encoded<M: ChannelMessage>(message: &M) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(message, &mut bytes).expect("fits");
    bytes
}

fn decoded<M: ChannelMessage>(decoder: &mut Decoder<M>, bytes: &[u8]) -> Vec<M> {
    let mut messages = VecDeque::new();
    decoder.push(bytes, &mut messages);
    messages.into()
}

fn session() -> impl Strategy<Value = SessionId> {
    any::<u16>().prop_map(SessionId)
}

fn to_guest() -> impl Strategy<Value = ToGuest> {
    let exec = vec(".{0,20}", 0..8).prop_map(|argv| SessionRequest::Exec { argv });
    prop_oneof![
        any::<u64>().prop_map(|nonce| ToGuest::Hello { nonce }),
        vec(any::<u8>(), 0..40_000).prop_map(ToGuest::Context),
        (session(), prop_oneof![Just(SessionRequest::Ssh), exec])
            .prop_map(|(session, request)| ToGuest::Open { session, request }),
        (session(), vec(any::<u8>(), 0..=DATA_BYTES_MAX))
            .prop_map(|(session, bytes)| ToGuest::Input { session, bytes }),
        (session(), any::<u32>()).prop_map(|(session, bytes)| ToGuest::Credit { session, bytes }),
        session().prop_map(|session| ToGuest::Close { session }),
    ]
}

fn to_host() -> impl Strategy<Value = ToHost> {
    prop_oneof![
        (any::<u64>(), any::<u16>(), ".{0,40}").prop_map(|(nonce, version, boot)| ToHost::Welcome {
            nonce,
            version,
            boot
        }),
        any::<u64>().prop_map(|generation| ToHost::Ready { generation }),
        (any::<u64>(), any::<bool>(), any::<bool>()).prop_map(|(generation, reached, heard)| {
            ToHost::Network { generation, reach: Reachability { reached, heard } }
        }),
        (any::<u64>(), ".{0,200}").prop_map(|(generation, reason)| ToHost::Failed { generation, reason }),
        (session(), vec(any::<u8>(), 1..=DATA_BYTES_MAX))
            .prop_map(|(session, bytes)| ToHost::Output { session, bytes }),
        (session(), vec(any::<u8>(), 1..100)).prop_map(|(session, bytes)| ToHost::Error { session, bytes }),
        (session(), any::<i32>()).prop_map(|(session, status)| ToHost::Exit { session, status }),
        (session(), ".{0,200}").prop_map(|(session, reason)| ToHost::Refused { session, reason }),
        (session(), any::<u32>()).prop_map(|(session, bytes)| ToHost::Credit { session, bytes }),
    ]
}

proptest! {
    #[test]
    fn messages_to_the_guest_survive_any_fragmentation(
        messages in vec(to_guest(), 1..6),
        piece in 1..5_000_usize,
    ) {
        let bytes: Vec<u8> = messages.iter().flat_map(encoded).collect();
        let mut decoder = Decoder::new();
        let received: Vec<ToGuest> = bytes.chunks(piece).flat_map(|piece| decoded(&mut decoder, piece)).collect();
        prop_assert_eq!(received, messages);
        prop_assert_eq!(decoder.dropped_frames(), 0);
    }

    #[test]
    fn messages_to_the_host_survive_any_fragmentation(
        messages in vec(to_host(), 1..6),
        piece in 1..5_000_usize,
    ) {
        let bytes: Vec<u8> = messages.iter().flat_map(encoded).collect();
        let mut decoder = Decoder::<ToHost>::new();
        let received: Vec<ToHost> = bytes.chunks(piece).flat_map(|piece| decoded(&mut decoder, piece)).collect();
        prop_assert_eq!(received, messages);
        prop_assert_eq!(decoder.dropped_frames(), 0);
    }

    #[test]
    fn decoding_resumes_after_noise_and_a_zero_byte(
        noise in vec(any::<u8>(), 0..60_000),
        message in to_host(),
    ) {
        let mut decoder = Decoder::<ToHost>::new();
        decoded(&mut decoder, &noise);
        decoded(&mut decoder, &[0]);
        prop_assert_eq!(decoded(&mut decoder, &encoded(&message)), vec![message]);
    }

    #[test]
    fn a_stream_joined_mid_frame_decodes_from_the_next_frame(
        first in to_host(),
        second in to_host(),
        skipped in any::<prop::sample::Index>(),
    ) {
        let bytes = encoded(&first);
        // At least the first byte is missing: a complete frame would be decoded.
        let skipped = 1 + skipped.index(bytes.len() - 1);
        let mut decoder = Decoder::<ToHost>::new();
        decoded(&mut decoder, &bytes[skipped..]);
        prop_assert_eq!(decoded(&mut decoder, &encoded(&second)), vec![second]);
    }

    #[test]
    fn a_frame_with_a_changed_byte_is_dropped_and_counted(
        message in to_host(),
        at in any::<prop::sample::Index>(),
        change in 1..=255_u8,
    ) {
        let mut bytes = encoded(&message);
        let at = at.index(bytes.len() - 1);
        bytes[at] ^= change;
        let mut decoder = Decoder::<ToHost>::new();
        prop_assert_eq!(decoded(&mut decoder, &bytes), vec![]);
        prop_assert!(decoder.dropped_frames() > 0);
    }

    #[test]
    fn random_input_to_the_guest_does_not_panic(noise in vec(any::<u8>(), 0..5_000)) {
        decoded(&mut Decoder::<ToGuest>::new(), &noise);
    }

    #[test]
    fn random_payloads_with_a_valid_crc_do_not_panic(payload in vec(any::<u8>(), 0..64)) {
        let crc = crc32fast::hash(&payload).to_be_bytes();
        let mut frame = cobs::encode_vec(&[&payload[..], &crc].concat());
        frame.push(0);
        let messages = decoded(&mut Decoder::<ToGuest>::new(), &frame);
        // The encoding is canonical: a decoded message encodes to the same bytes.
        for message in messages.iter().filter(|message| !matches!(message, ToGuest::Context(_))) {
            prop_assert_eq!(encoded(message), frame.clone());
        }
        decoded(&mut Decoder::<ToHost>::new(), &frame);
    }

    #[test]
    fn a_window_never_exceeds_its_size(steps in vec((any::<bool>(), 0..70_000_usize), 1..60)) {
        let (mut sender, mut receiver) = (Window::new(), Window::new());
        let (mut waiting, mut granted) = (0_usize, 0_u32);
        for (send, bytes) in steps {
            if send {
                let bytes = bytes.min(sender.available());
                sender.debit(bytes).expect("within the sender's window");
                receiver.debit(bytes).expect("the receiver's window is at least the sender's");
                waiting += bytes;
            } else {
                let bytes = bytes.min(waiting);
                waiting -= bytes;
                if let Some(credit) = receiver.consume(bytes) {
                    granted += credit;
                    sender.grant(credit).expect("no more than was sent");
                }
            }
            prop_assert!(waiting <= WINDOW_BYTES as usize);
        }
        // A receiver that consumes everything keeps the sender's window open.
        if let Some(credit) = receiver.consume(waiting) {
            granted += credit;
            sender.grant(credit).expect("no more than was sent");
        }
        prop_assert!(sender.available() > WINDOW_BYTES as usize / 2, "room {}, granted {granted}", sender.available());
    }
}

#[test]
fn a_context_longer_than_the_limit_is_rejected() {
    let longest = ToGuest::Context(vec![7; CONTEXT_BYTES_MAX]);
    assert_eq!(decoded(&mut Decoder::<ToGuest>::new(), &encoded(&longest)), [longest]);

    let mut out = b"before".to_vec();
    let longer = ToGuest::Context(vec![7; CONTEXT_BYTES_MAX + 1]);
    assert_eq!(
        encode(&longer, &mut out),
        Err(MessageTooLong { bytes: CONTEXT_BYTES_MAX + 1, max: CONTEXT_BYTES_MAX })
    );
    assert_eq!(out, b"before");
}

#[test]
fn a_context_with_a_missing_part_is_dropped() {
    let context = ToGuest::Context((0..40_000_u32).map(|n| n as u8).collect());
    let bytes = encoded(&context);
    let frames: Vec<&[u8]> = bytes.split_inclusive(|byte| *byte == 0).collect();
    assert_eq!(frames.len(), 3);

    let mut decoder = Decoder::<ToGuest>::new();
    assert_eq!(decoded(&mut decoder, &[frames[0], frames[2]].concat()), []);
    assert_eq!(decoder.dropped_frames(), 1);
    // Control: the complete context is decoded afterwards.
    assert_eq!(decoded(&mut decoder, &bytes), [context]);
}

#[test]
fn a_command_too_long_for_a_frame_is_not_encoded() {
    let open = |argument: usize| ToGuest::Open {
        session: SessionId(1),
        request: SessionRequest::Exec { argv: vec!["a".repeat(argument)] },
    };
    let mut out = Vec::new();
    for argument in [20_000, 70_000] {
        assert!(encode(&open(argument), &mut out).is_err());
        assert!(out.is_empty());
    }
    assert_eq!(decoded(&mut Decoder::<ToGuest>::new(), &encoded(&open(10_000))), [open(10_000)]);
}

#[test]
fn credit_for_bytes_never_sent_is_an_overrun() {
    let mut window = Window::new();
    assert!(window.grant(1).is_err());
    window.debit(1).expect("open");
    window.grant(1).expect("one byte was sent");
    assert!(window.debit(WINDOW_BYTES as usize + 1).is_err());
}

#[test]
fn secrets_do_not_print() {
    let context = ToGuest::Context(b"PRIVATE".to_vec());
    let input = ToGuest::Input { session: SessionId(3), bytes: b"PASSWORD".to_vec() };
    assert_eq!(format!("{context:?} {input:?}"), "Context(7 bytes) Input(3, 8 bytes)");
}
