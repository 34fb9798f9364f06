use ib_wire::{Attribute, DirectedRoute, Method};
use proptest::prelude::*;

use super::*;

fn request() -> DataMessage {
    DataMessage {
        dlid: Some(LidAddress::Permissive),
        slid: None,
        dqp: QueuePair::SUBNET_MANAGEMENT,
        sqp: QueuePair::GENERAL_MANAGEMENT,
        status: DataStatus::Ok,
        mad: Mad::directed(Method::GET, Attribute::NODE_INFO, 0, &DirectedRoute::default()),
    }
}

fn connect() -> Connect {
    Connect { number: 4711, role: ClientRole::SubnetManager, node_id: "H-0002c90300216e70".to_owned() }
}

#[test]
fn every_control_request_survives_a_round_trip() {
    for request in [
        ControlRequest::Connect(connect()),
        ControlRequest::Disconnect,
        ControlRequest::Port,
        ControlRequest::Vendor,
        ControlRequest::Gid,
        ControlRequest::Guid,
        ControlRequest::NodeInfo,
        ControlRequest::PortInfo(7),
        ControlRequest::IsSm(ClientRole::SubnetManager),
        ControlRequest::IsSm(ClientRole::Ordinary),
        ControlRequest::Pkeys,
    ] {
        assert_eq!(ControlRequest::decode(&request.encode(9)), Ok((9, request)));
    }
}

#[test]
fn every_control_reply_survives_a_round_trip() {
    let vendor = Vendor { vendor_id: 0x2c9, part_id: 5, hardware_version: 6, firmware_version: u64::MAX };
    for reply in [
        ControlReply::Error,
        ControlReply::Connected(connect()),
        ControlReply::Disconnected,
        ControlReply::Port { lid: Lid::from_wire(0x1234), state: PortState::Active },
        ControlReply::Vendor(vendor),
        ControlReply::Gid(Gid([7; 16])),
        ControlReply::Guid(Guid::from_wire(0x0102_0304_0506_0708)),
        ControlReply::NodeInfo([1; 64]),
        ControlReply::PortInfo([2; 64]),
        ControlReply::IsSm(ClientRole::SubnetManager),
        ControlReply::Pkeys([3; 64]),
    ] {
        assert_eq!(ControlReply::decode(&reply.encode(9)), Ok(reply));
    }
}

#[test]
fn the_connect_request_has_the_bytes_of_the_protocol() {
    let message = ControlRequest::Connect(connect()).encode(0);
    assert_eq!(message[..4], 0xdead_beef_u32.to_ne_bytes());
    assert_eq!(message[8..12], 1_u32.to_ne_bytes());
    assert_eq!(message[12..16], 44_u32.to_ne_bytes());
    assert_eq!(message[16..20], 4711_u32.to_ne_bytes());
    assert_eq!(message[24..28], 1_u32.to_ne_bytes());
    assert_eq!(&message[28..47], b"H-0002c90300216e70\0");
}

#[test]
fn a_long_node_id_is_truncated_and_zero_terminated() {
    let long = Connect { node_id: "x".repeat(60), ..connect() };
    let (_, decoded) = ControlRequest::decode(&ControlRequest::Connect(long).encode(0)).unwrap();
    assert_eq!(decoded, ControlRequest::Connect(Connect { node_id: "x".repeat(31), ..connect() }));
}

#[test]
fn the_data_message_has_the_bytes_of_the_protocol() {
    let mut message = request();
    message.slid = LidAddress::from_wire(0x0102);
    message.status = DataStatus::TimedOut;
    let raw = message.encode();
    assert_eq!(raw[..8], [0xff, 0xff, 0, 0, 1, 2, 0, 0]);
    assert_eq!(raw[8..16], [0, 0, 0, 0, 0, 0, 0, 1]);
    assert_eq!(raw[16..24], [0, 0, 0, 110, 0, 0, 0, 0]);
    assert_eq!(raw[24..32], [0, 0, 0, 0, 0, 0, 1, 0]);
    assert_eq!(DataMessage::decode(&raw), Ok(message));
}

#[test]
fn a_short_mad_is_padded_with_zeros() {
    let mut raw = request().encode();
    raw[DATA_MAD_LEN..DATA_MAD].copy_from_slice(&64_u64.to_be_bytes());
    raw[DATA_MAD + 64..].fill(0xaa);
    assert!(DataMessage::decode(&raw).unwrap().mad.0[64..].iter().all(|byte| *byte == 0));
}

#[test]
fn decode_errors_name_the_invalid_value() {
    let raw = request().encode();
    assert_eq!(DataMessage::decode(&raw[..287]), Err(WireError::Length { expected: 288, actual: 287 }));
    let mut long_mad = raw;
    long_mad[DATA_MAD_LEN..DATA_MAD].copy_from_slice(&257_u64.to_be_bytes());
    assert_eq!(DataMessage::decode(&long_mad), Err(WireError::MadLength(257)));
    let mut wrong_pair = raw;
    wrong_pair[8] = 1;
    assert_eq!(DataMessage::decode(&wrong_pair), Err(WireError::QueuePair(0x0100_0000)));
    let control = ControlRequest::Port.encode(1);
    assert_eq!(ControlRequest::decode(&control[1..]), Err(WireError::Length { expected: 80, actual: 79 }));
    let mut wrong_magic = control;
    wrong_magic[0] ^= 1;
    assert_eq!(ControlRequest::decode(&wrong_magic), Err(WireError::Magic(0xdead_beee)));
    let mut unknown = control;
    unknown[8] = 11;
    assert_eq!(ControlRequest::decode(&unknown), Err(WireError::UnknownType(11)));
}

proptest! {
    #[test]
    fn no_input_panics(mut raw in proptest::collection::vec(any::<u8>(), 0..400), magic in any::<bool>()) {
        if magic && raw.len() >= 12 {
            raw[..4].copy_from_slice(&MAGIC.to_ne_bytes());
            let kind = u32::from(raw[8] % 13);
            raw[8..12].copy_from_slice(&kind.to_ne_bytes());
            raw.resize(CONTROL_LEN, 0);
        }
        let _ = ControlRequest::decode(&raw);
        let _ = ControlReply::decode(&raw);
        let _ = DataMessage::decode(&raw);
        raw.resize(DATA_LEN, 0x55);
        let _ = DataMessage::decode(&raw);
    }

    #[test]
    fn data_messages_survive_a_round_trip(
        dlid in any::<u16>(), slid in any::<u16>(), dqp in 0..=0xff_ffff_u32, sqp in 0..=0xff_ffff_u32,
        timed_out in any::<bool>(), fill in any::<u8>(),
    ) {
        let message = DataMessage {
            dlid: LidAddress::from_wire(dlid),
            slid: LidAddress::from_wire(slid),
            dqp: QueuePair::from_wire(dqp).unwrap(),
            sqp: QueuePair::from_wire(sqp).unwrap(),
            status: if timed_out { DataStatus::TimedOut } else { DataStatus::Ok },
            mad: Mad([fill; MAD_LEN]),
        };
        prop_assert_eq!(DataMessage::decode(&message.encode()), Ok(message));
    }
}

#[test]
fn the_length_of_a_table_travels_in_its_rmpp_header() {
    let mut mad =
        Mad::new(ManagementClass::SUBNET_ADMINISTRATION, Method::GET_TABLE_RESP, Attribute::PATH_RECORD, 0);
    mad.0[26] = 1;
    mad.0[119] = 0xaa;
    mad.0[120] = 0xbb;
    let sent = DataMessage {
        dlid: LidAddress::from_wire(7),
        slid: LidAddress::from_wire(8),
        dqp: QueuePair::GENERAL_MANAGEMENT,
        sqp: QueuePair::GENERAL_MANAGEMENT,
        status: DataStatus::Ok,
        mad,
    };
    let mut raw = sent.encode();
    assert_eq!(raw[24..32], 256u64.to_be_bytes(), "without a payload length the whole MAD");
    // As opensm sends one path record: 56 bytes of headers and 64 of record.
    raw[24..32].copy_from_slice(&120u64.to_be_bytes());
    let received = DataMessage::decode(&raw).unwrap();
    let header = received.mad.rmpp();
    assert_eq!((header.version, header.segment, header.payload_length()), (1, 1, 20 + 64));
    assert_eq!((received.mad.0[119], received.mad.0[120]), (0xaa, 0), "bytes behind the end are ignored");
    assert_eq!(received.encode()[24..32], 120u64.to_be_bytes(), "the next client gets the same length");
}

#[test]
fn the_reported_length_never_exceeds_a_mad() {
    let mut mad =
        Mad::new(ManagementClass::SUBNET_ADMINISTRATION, Method::GET_TABLE_RESP, Attribute::PATH_RECORD, 0);
    (mad.0[24], mad.0[25], mad.0[26]) = (1, 1, 7);
    mad.0[32..36].fill(0xff);
    let message = DataMessage {
        dlid: None,
        slid: None,
        dqp: QueuePair::GENERAL_MANAGEMENT,
        sqp: QueuePair::GENERAL_MANAGEMENT,
        status: DataStatus::Ok,
        mad,
    };
    assert_eq!(message.encode()[24..32], 256u64.to_be_bytes());
}
