//! The codec under every input there is: whole messages, cut ones, and noise.

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
    fn messages_to_the_guest_arrive_as_sent_however_they_are_cut(
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
    fn messages_to_the_host_arrive_as_sent_however_they_are_cut(
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
    fn after_any_noise_and_one_end_the_next_message_is_understood(
        noise in vec(any::<u8>(), 0..60_000),
        message in to_host(),
    ) {
        let mut decoder = Decoder::<ToHost>::new();
        decoded(&mut decoder, &noise);
        decoded(&mut decoder, &[0]);
        prop_assert_eq!(decoded(&mut decoder, &encoded(&message)), vec![message]);
    }

    #[test]
    fn a_stream_that_is_joined_in_the_middle_is_understood_from_the_next_frame_on(
        first in to_host(),
        second in to_host(),
        skipped in any::<prop::sample::Index>(),
    ) {
        let bytes = encoded(&first);
        // Without its first byte at least: a whole frame would be understood, rightly.
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
    fn no_input_to_the_guest_does_harm(noise in vec(any::<u8>(), 0..5_000)) {
        decoded(&mut Decoder::<ToGuest>::new(), &noise);
    }

    #[test]
    fn no_payload_does_harm_even_with_a_good_checksum(payload in vec(any::<u8>(), 0..64)) {
        let crc = crc32fast::hash(&payload).to_be_bytes();
        let mut frame = cobs::encode_vec(&[&payload[..], &crc].concat());
        frame.push(0);
        let messages = decoded(&mut Decoder::<ToGuest>::new(), &frame);
        // What is understood is written the same way: there is one spelling of each message.
        for message in messages.iter().filter(|message| !matches!(message, ToGuest::Context(_))) {
            prop_assert_eq!(encoded(message), frame.clone());
        }
        decoded(&mut Decoder::<ToHost>::new(), &frame);
    }

    #[test]
    fn a_window_never_lets_more_pass_than_it_holds(steps in vec((any::<bool>(), 0..70_000_usize), 1..60)) {
        let (mut sender, mut receiver) = (Window::new(), Window::new());
        let (mut waiting, mut granted) = (0_usize, 0_u32);
        for (send, bytes) in steps {
            if send {
                let bytes = bytes.min(sender.available());
                sender.debit(bytes).expect("no more than there is room for");
                receiver.debit(bytes).expect("the receiver has as much room as the sender knows of, or more");
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
        // Whoever hands everything on keeps the sender going.
        if let Some(credit) = receiver.consume(waiting) {
            granted += credit;
            sender.grant(credit).expect("no more than was sent");
        }
        prop_assert!(sender.available() > WINDOW_BYTES as usize / 2, "room {}, granted {granted}", sender.available());
    }
}

#[test]
fn the_longest_context_travels_and_a_longer_one_does_not() {
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
fn a_context_with_a_part_missing_is_not_taken() {
    let context = ToGuest::Context((0..40_000_u32).map(|n| n as u8).collect());
    let bytes = encoded(&context);
    let frames: Vec<&[u8]> = bytes.split_inclusive(|byte| *byte == 0).collect();
    assert_eq!(frames.len(), 3);

    let mut decoder = Decoder::<ToGuest>::new();
    assert_eq!(decoded(&mut decoder, &[frames[0], frames[2]].concat()), []);
    assert_eq!(decoder.dropped_frames(), 1);
    // The control: all of it, after that.
    assert_eq!(decoded(&mut decoder, &bytes), [context]);
}

#[test]
fn a_command_that_is_too_long_is_refused_before_it_is_sent() {
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
fn credit_for_what_was_never_sent_is_an_overrun() {
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
