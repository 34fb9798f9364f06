use super::*;
use crate::mad::{Attribute, ManagementClass, TransactionId};

fn response() -> Mad {
    let mut mad =
        Mad::new(ManagementClass::SUBNET_ADMINISTRATION, Method::GET_TABLE_RESP, Attribute::NODE_RECORD, 0);
    mad.set_transaction(TransactionId(42));
    mad
}

fn bytes_of(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i % 251) as u8).collect()
}

/// Carries datagrams both ways until the transfer ends; `lose` decides by its number whether a datagram is lost. Returns the
/// message, the sender and the number of datagrams.
fn transfer(data: Vec<u8>, mut lose: impl FnMut(u32) -> bool) -> (Option<RmppMessage>, Sender, u32) {
    let (mut sender, mut receiver) = (Sender::new(response(), data).unwrap(), Receiver::new());
    let (mut message, mut carried) = (None, 0);
    loop {
        let mut quiet = true;
        while let Some(mad) = sender.poll_transmit() {
            quiet = false;
            carried += 1;
            if !lose(carried) {
                message = receiver.handle(&mad).unwrap().or(message);
            }
            if let Some(mad) = receiver.poll_transmit() {
                carried += 1;
                if !lose(carried) {
                    sender.handle(&mad).unwrap();
                }
            }
        }
        if sender.is_done() || sender.error().is_some() {
            return (message, sender, carried);
        }
        if quiet && sender.handle_timeout().is_err() {
            return (message, sender, carried);
        }
    }
}

#[test]
fn messages_of_any_length_arrive_unchanged() {
    for len in [0, 1, 112, 199, 200, 201, 400, 200 * 64, 200 * 64 + 1, 200 * 65, 112 * 351] {
        let (message, sender, _) = transfer(bytes_of(len), |_| false);
        assert_eq!(message.map(|m| m.data), Some(bytes_of(len)), "{len}");
        assert!(sender.is_done());
    }
}

#[test]
fn payload_length_counts_the_class_header_of_every_segment() {
    let segments = |len| {
        let mut sender = Sender::new(response(), bytes_of(len)).unwrap();
        let mut out = Vec::new();
        while let Some(mad) = sender.poll_transmit() {
            let rmpp = mad.rmpp();
            sender
                .handle(&control(&mad, RmppKind::Ack, RmppStatus::Normal, rmpp.segment, rmpp.segment + 1))
                .unwrap();
            out.push((rmpp.segment, rmpp.flags.0, rmpp.payload_length()));
        }
        out
    };
    assert_eq!(segments(0), [(1, 7, 20)]);
    assert_eq!(segments(200), [(1, 7, 220)]);
    assert_eq!(segments(224), [(1, 3, 264), (2, 5, 44)]);
    assert_eq!(segments(448), [(1, 3, 508), (2, 1, 0), (3, 5, 68)]);
}

#[test]
fn the_sender_waits_for_the_window() {
    let mut sender = Sender::new(response(), bytes_of(10 * 200)).unwrap();
    let first = sender.poll_transmit().unwrap();
    assert!(sender.poll_transmit().is_none(), "one segment until the receiver opens the window");
    sender.handle(&control(&first, RmppKind::Ack, RmppStatus::Normal, 1, 4)).unwrap();
    let sent: Vec<u32> =
        std::iter::from_fn(|| sender.poll_transmit()).map(|mad| mad.rmpp().segment).collect();
    assert_eq!(sent, [2, 3, 4]);
}

#[test]
fn lost_datagrams_are_sent_again() {
    for lost in 1..=40 {
        let data = bytes_of(200 * 130 + 7);
        let (message, sender, _) = transfer(data.clone(), |n| n == lost);
        assert_eq!(message.map(|m| m.data), Some(data), "datagram {lost} lost");
        assert!(sender.is_done(), "datagram {lost} lost");
    }
}

proptest::proptest! {
    #[test]
    fn a_received_message_equals_the_sent_one(len in 0usize..30_000, losses: [u8; 32], share in 0u8..128) {
        let (message, sender, _) = transfer(bytes_of(len), |n| losses[n as usize % losses.len()] < share);
        if let Some(message) = message {
            proptest::prop_assert_eq!(message.data, bytes_of(len));
        } else {
            proptest::prop_assert!(sender.error().is_some());
        }
    }
}

#[test]
fn a_silent_receiver_aborts_the_transfer() {
    let (message, mut sender, carried) = transfer(bytes_of(1000), |_| true);
    assert!(message.is_none());
    assert_eq!(carried, 1 + RESENDS_MAX);
    assert_eq!(sender.error(), Some(TransferError::Aborted(RmppStatus::TooManyRetries)));
    let abort = sender.poll_transmit().unwrap();
    assert_eq!((abort.rmpp().kind, abort.method()), (RmppKind::Abort, Method::GET_TABLE_RESP));
    assert!(sender.poll_transmit().is_none());
}

#[test]
fn an_ack_has_the_request_method() {
    let mut receiver = Receiver::new();
    receiver.handle(&Sender::new(response(), bytes_of(1000)).unwrap().poll_transmit().unwrap()).unwrap();
    let ack = receiver.poll_transmit().unwrap();
    assert_eq!(ack.method(), Method::GET_TABLE);
    assert_eq!(ack.transaction(), TransactionId(42));
    let rmpp = ack.rmpp();
    assert_eq!((rmpp.kind, rmpp.segment, rmpp.window_last()), (RmppKind::Ack, 1, 1 + WINDOW_SEGMENTS));
}

#[test]
fn a_response_without_rmpp_is_one_datagram() {
    let mut receiver = Receiver::new();
    let message = receiver.handle(&response()).unwrap().unwrap();
    assert_eq!(message.data.len(), SEGMENT_DATA_LEN);
    assert!(receiver.poll_transmit().is_none(), "no ACK without RMPP");
}

#[test]
fn malformed_segments_abort_with_the_matching_status() {
    let first = || Sender::new(response(), bytes_of(1000)).unwrap().poll_transmit().unwrap();
    let malformed = |change: &dyn Fn(&mut RmppHeader)| {
        let mut mad = first();
        let mut header = mad.rmpp();
        change(&mut header);
        mad.set_rmpp(&header);
        let mut receiver = Receiver::new();
        let error = receiver.handle(&mad).unwrap_err();
        let abort = receiver.poll_transmit().unwrap().rmpp();
        assert_eq!(error, TransferError::Aborted(abort.status));
        assert!(receiver.handle(&first()).unwrap().is_none(), "the receiver stays failed");
        abort.status
    };
    assert_eq!(malformed(&|h| h.version = 2), RmppStatus::BadVersion);
    assert_eq!(malformed(&|h| h.kind = RmppKind::Unknown(9)), RmppStatus::BadKind);
    assert_eq!(malformed(&|h| h.segment = 0), RmppStatus::BadFirst);
    assert_eq!(malformed(&|h| h.segment = 2), RmppStatus::BadFirst);
    assert_eq!(malformed(&|h| h.flags = RmppFlags::ACTIVE), RmppStatus::BadFirst);
    assert_eq!(
        malformed(&|h| (h.segment, h.flags) = (5, RmppFlags::ACTIVE)),
        RmppStatus::SegmentTooBig,
        "no window is open yet"
    );
    assert_eq!(malformed(&|h| h.flags = RmppFlags(7)), RmppStatus::BadLength);
    assert_eq!(malformed(&|h| h.length_or_window = u32::MAX), RmppStatus::ResourcesExhausted);
}

#[test]
fn an_endless_message_is_stopped_at_the_limit() {
    let mut receiver = Receiver::new();
    let template = Sender::new(response(), bytes_of(1000)).unwrap().poll_transmit().unwrap();
    let header = template.rmpp();
    for segment in 1.. {
        let mut mad = template.clone();
        let flags = if segment == 1 { header.flags } else { RmppFlags::ACTIVE };
        mad.set_rmpp(&RmppHeader { segment, flags, length_or_window: 0, ..header.clone() });
        match receiver.handle(&mad) {
            Ok(message) => assert!(message.is_none()),
            Err(error) => {
                assert_eq!(error, TransferError::Aborted(RmppStatus::ResourcesExhausted));
                assert_eq!(receiver.poll_transmit().unwrap().rmpp().kind, RmppKind::Stop);
                assert_eq!(segment as usize, RECEIVE_MAX / SEGMENT_DATA_LEN + 1);
                break;
            }
        }
    }
}

#[test]
fn invalid_acks_abort_the_transfer() {
    let started = || {
        let mut sender = Sender::new(response(), bytes_of(2000)).unwrap();
        let first = sender.poll_transmit().unwrap();
        (sender, first)
    };
    let (mut sender, first) = started();
    let ack_of_unsent_segment = control(&first, RmppKind::Ack, RmppStatus::Normal, 2, 66);
    assert_eq!(sender.handle(&ack_of_unsent_segment), Err(TransferError::Aborted(RmppStatus::SegmentTooBig)));
    let (mut sender, first) = started();
    let ack_closing_the_window = control(&first, RmppKind::Ack, RmppStatus::Normal, 1, 0);
    assert_eq!(
        sender.handle(&ack_closing_the_window),
        Err(TransferError::Aborted(RmppStatus::WindowTooSmall))
    );
    let (mut sender, first) = started();
    let stop = control(&first, RmppKind::Stop, RmppStatus::ResourcesExhausted, 0, 0);
    assert_eq!(sender.handle(&stop), Err(TransferError::Ended(RmppStatus::ResourcesExhausted)));
    assert!(sender.poll_transmit().is_none(), "STOP is not answered");
}

#[test]
fn an_aborting_sender_sends_one_abort() {
    let mut sender = Sender::new(response(), bytes_of(1000)).unwrap();
    let first = sender.poll_transmit().unwrap();
    sender.abort(RmppStatus::Unspecified);
    let abort = sender.poll_transmit().unwrap();
    assert_eq!((abort.rmpp().kind, abort.rmpp().status), (RmppKind::Abort, RmppStatus::Unspecified));
    assert_eq!(sender.poll_transmit(), None);
    assert_eq!(sender.error(), Some(TransferError::Aborted(RmppStatus::Unspecified)));

    let mut receiver = Receiver::new();
    receiver.handle(&first).unwrap();
    assert_eq!(receiver.handle(&abort), Err(TransferError::Ended(RmppStatus::Unspecified)));
}
